package testenv

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// RedisServer is a private redis-server. What its methods ask goes over a
// connection of their own, as the default user.
type RedisServer struct {
	Server

	password string
	tls      *tls.Config // nil for plain TCP
}

// Redis starts a redis-server that keeps nothing on disk. It takes args as
// redis-server does, and they win over the defaults:
//
//	testenv.Redis(t, "--requirepass", testenv.Password())
//	testenv.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
//
// Where redis-server is not installed, the test is skipped, or fails if CI is
// set.
func Redis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	return redisAt(tb, loopback, args)
}

func redisAt(tb testing.TB, at host, args []string) *RedisServer {
	tb.Helper()
	port := freePort(tb)
	return startRedis(tb, at, port, nil, append([]string{"--port", strconv.Itoa(port)}, args...))
}

// RedisTLS is Redis with a server that listens with TLS only, with the server
// certificate of certs, and by default asks clients for a certificate of the
// same authority ("--tls-auth-clients", "no" turns that off).
func RedisTLS(tb testing.TB, certs *Certificates, args ...string) *RedisServer {
	tb.Helper()
	port := freePort(tb)
	return startRedis(tb, loopback, port, certs.Client, append([]string{
		"--port", "0", "--tls-port", strconv.Itoa(port),
		"--tls-ca-cert-file", certs.CAFile, "--tls-cert-file", certs.ServerCertFile, "--tls-key-file", certs.ServerKeyFile,
	}, args...))
}

func startRedis(tb testing.TB, at host, port int, tlsConfig *tls.Config, args []string) *RedisServer {
	tb.Helper()
	s := newRedis(tb, at, "redis-server", port, append([]string{
		"--bind", at.ip, "--protected-mode", "no", "--save", "", "--repl-diskless-sync-delay", "0",
	}, args...))
	s.tls, s.password = tlsConfig, lastValue(args, "--requirepass")
	s.checkPasswords(args)
	s.launch()
	return s
}

// newRedis makes a server that is not yet started.
func newRedis(tb testing.TB, at host, name string, port int, args []string) *RedisServer {
	tb.Helper()
	s := &RedisServer{}
	s.Server = Server{
		tb:    tb,
		name:  name,
		Addr:  fmt.Sprintf("%s:%d", at.ip, port),
		log:   filepath.Join(tb.TempDir(), "log"),
		argv:  at.command(append([]string{need(tb, "redis-server", "redis-server")}, args...)...),
		ready: s.ping,
	}
	return s
}

// ping asks once for a PONG. A server that still loads its data answers with an
// error.
func (s *RedisServer) ping(ctx context.Context) error {
	answer, err := s.call(ctx, "PING")
	if err != nil {
		return err
	}
	if answer != "PONG" {
		return fmt.Errorf("PING: got %v, want PONG", answer)
	}
	return nil
}

// Do runs a command and returns its answer: a string, an int64, nil, or a []any
// of these (with errors in it where the server puts them there). An error fails
// the test. A server that is frozen lets Do wait until it is thawed. Each call
// is a connection of its own: MULTI, SUBSCRIBE or WAIT (see AwaitReplicas) make
// no sense here.
func (s *RedisServer) Do(args ...string) any {
	s.tb.Helper()
	s.checkPasswords(args)
	answer, err := s.Try(args...)
	if err != nil {
		s.tb.Fatalf("redis at %s: %s: %v", s.Addr, args[0], err)
	}
	return answer
}

// checkPasswords fails the test if it makes a password that `make test` does
// not find.
func (s *RedisServer) checkPasswords(args []string) {
	s.tb.Helper()
	user := slices.ContainsFunc(args, func(arg string) bool { return strings.EqualFold(arg, "SETUSER") || arg == "--user" })
	for i, arg := range args {
		password := i > 0 && args[i-1] == "--requirepass" || user && strings.HasPrefix(arg, ">")
		if password && !strings.Contains(arg, PasswordMark) {
			s.tb.Fatal("a password that is not from testenv.Password")
		}
	}
}

// Try is Do for commands that may fail: errors of the server are a
// [RedisError], others come from the network.
func (s *RedisServer) Try(args ...string) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	return s.call(ctx, args...)
}

// Commands returns how often the server ran each command since it started,
// those inside scripts included. The names are those of INFO commandstats
// ("evalsha", "client|setinfo"); INFO itself is left out, so that two calls
// differ by the work of others only.
func (s *RedisServer) Commands() map[string]int64 {
	s.tb.Helper()
	stats := make(map[string]int64)
	for _, line := range strings.Split(s.Do("INFO", "commandstats").(string), "\r\n") {
		name, values, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok || name == "info" {
			continue
		}
		calls, _, _ := strings.Cut(values, ",")
		n, err := strconv.ParseInt(calls, 10, 64)
		if err != nil {
			s.tb.Fatalf("INFO commandstats: %q: %v", line, err)
		}
		stats[name] = n
	}
	return stats
}

// SubscriberCount returns how many clients of this server are subscribed to a
// channel, by SUBSCRIBE or SSUBSCRIBE.
func (s *RedisServer) SubscriberCount(channel string) int64 {
	s.tb.Helper()
	n := s.Do("PUBSUB", "NUMSUB", channel).([]any)[1].(int64)
	sharded, err := s.Try("PUBSUB", "SHARDNUMSUB", channel)
	if errors.As(err, new(RedisError)) {
		return n // a server before 7.0 has no sharded channels
	}
	if err != nil {
		s.tb.Fatalf("redis at %s: PUBSUB: %v", s.Addr, err)
	}
	return n + sharded.([]any)[1].(int64)
}

// AwaitReplicas waits until n replicas have received all that the server has
// written so far.
func (s *RedisServer) AwaitReplicas(n int) {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	conn, err := s.dial(ctx)
	if err == nil {
		defer conn.Close()
		// WAIT counts from the end of the last command on its connection.
		if _, err = conn.do("PING"); err == nil {
			_, err = conn.do("WAIT", strconv.Itoa(n), "0")
		}
	}
	if err != nil {
		s.tb.Fatalf("redis at %s: %d replicas: %v", s.Addr, n, err)
	}
}

// info decodes an answer of lines "name:value". It is empty if there is no
// answer: a sentinel or a cluster that changes roles closes connections as it
// pleases.
func (s *RedisServer) info(args ...string) map[string]string {
	info := make(map[string]string)
	answer, err := s.Try(args...)
	if err != nil {
		return info
	}
	for line := range strings.Lines(answer.(string)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

// Kept returns how many keys the server has, how many of them have no time at
// which they end, and what memory it uses.
func (s *RedisServer) Kept() (keys, forGood, bytes int64) {
	s.tb.Helper()
	bytes, err := strconv.ParseInt(s.info("INFO", "memory")["used_memory"], 10, 64)
	if err != nil {
		s.tb.Fatal(err)
	}
	var ending int64
	if db := s.info("INFO", "keyspace")["db0"]; db != "" {
		if _, err := fmt.Sscanf(db, "keys=%d,expires=%d", &keys, &ending); err != nil {
			s.tb.Fatalf("INFO keyspace: %q: %v", db, err)
		}
	}
	return keys, keys - ending, bytes
}

// Refuse makes the server refuse all writes, as one without its replicas does,
// until Allow.
func (s *RedisServer) Refuse() { s.Do("CONFIG", "SET", "min-replicas-to-write", "1") }

// Allow ends Refuse.
func (s *RedisServer) Allow() { s.Do("CONFIG", "SET", "min-replicas-to-write", "0") }

// Left returns the keys of the server, each with its type, and the channels
// that clients listen to.
func (s *RedisServer) Left() (all []string) {
	s.tb.Helper()
	for _, key := range s.Do("KEYS", "*").([]any) {
		if kind := s.Do("TYPE", key.(string)).(string); kind != "none" { // it has ended since
			all = append(all, kind+" "+key.(string))
		}
	}
	for _, channel := range s.Do("PUBSUB", "CHANNELS").([]any) {
		all = append(all, "channel "+channel.(string))
	}
	return all
}

// replicates reports whether the server is a replica that is connected to its
// primary.
func (s *RedisServer) replicates() bool {
	info := s.info("INFO", "replication")
	return info["role"] == "slave" && info["master_link_status"] == "up"
}

func (s *RedisServer) call(ctx context.Context, args ...string) (any, error) {
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.do(args...)
}

func (s *RedisServer) dial(ctx context.Context) (*respConn, error) {
	conn, err := dialRESP(ctx, s.Addr, s.tls)
	if err != nil || s.password == "" {
		return conn, err
	}
	if _, err := conn.do("AUTH", s.password); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// lastValue returns what follows the last mention of option in args.
func lastValue(args []string, option string) string {
	value := ""
	for i, arg := range args[:max(0, len(args)-1)] {
		if strings.EqualFold(arg, option) {
			value = args[i+1]
		}
	}
	return value
}

// RedisError is an error that a Redis server answered with, as it stands:
// "WRONGTYPE Operation against …".
type RedisError string

func (e RedisError) Error() string { return string(e) }

// respConn speaks version 2 of the Redis protocol, one request at a time.
type respConn struct {
	net.Conn
	in *bufio.Reader
}

// dialRESP connects; the deadline of ctx holds for all that is asked over the
// connection.
func dialRESP(ctx context.Context, addr string, config *tls.Config) (*respConn, error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if config != nil {
		config = config.Clone()
		config.ServerName = "127.0.0.1"
		conn = tls.Client(conn, config)
	}
	return newRESP(conn), nil
}

// dial connects; the deadline of ctx, or hangGuard if there is none, holds for
// all that is read and written.
func dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(hangGuard)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func newRESP(conn net.Conn) *respConn { return &respConn{Conn: conn, in: bufio.NewReader(conn)} }

func (c *respConn) do(args ...string) (any, error) {
	var request strings.Builder
	fmt.Fprintf(&request, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(c.Conn, request.String()); err != nil {
		return nil, err
	}
	answer, err := c.read()
	if err != nil {
		return nil, err
	}
	if err, ok := answer.(RedisError); ok {
		return nil, err
	}
	return answer, nil
}

func (c *respConn) read() (any, error) {
	line, err := c.in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, fmt.Errorf("empty line in an answer")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return RedisError(rest), nil
	case ':':
		return strconv.ParseInt(rest, 10, 64)
	}
	n, err := strconv.Atoi(rest)
	if err != nil {
		return nil, fmt.Errorf("answer begins with %q", line)
	}
	switch {
	case n < 0:
		return nil, nil
	case kind == '$':
		text := make([]byte, n+len("\r\n"))
		_, err := io.ReadFull(c.in, text)
		return string(text[:n]), err
	case kind == '*':
		list := make([]any, n)
		for i := range list {
			if list[i], err = c.read(); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	return nil, fmt.Errorf("answer begins with %q", line)
}
