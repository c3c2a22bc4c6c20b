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

// RedisServer is a private redis-server. Its methods use their own connections,
// as the default user.
type RedisServer struct {
	Server

	password string
	tls      *tls.Config // nil for plain TCP
}

// Redis starts a redis-server that stores nothing on disk. args are passed to
// redis-server and override the defaults:
//
//	testenv.Redis(t, "--requirepass", testenv.Password())
//	testenv.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
//
// If redis-server is not installed, the test is skipped, or fails if CI is set.
func Redis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	return redisAt(tb, loopback, args)
}

func redisAt(tb testing.TB, at host, args []string) *RedisServer {
	tb.Helper()
	port := freePort(tb)
	return startRedis(tb, at, port, nil, append([]string{"--port", strconv.Itoa(port)}, args...))
}

// RedisTLS is like Redis, but its server only listens with TLS, with the server
// certificate of certs. By default it requires client certificates of the same
// authority ("--tls-auth-clients", "no" turns that off).
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

// newRedis makes a server without starting it.
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

// ping makes one attempt to get a PONG. A server that is still loading its data
// responds with an error.
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

// Do runs a command and returns its response: a string, an int64, nil, or a
// []any of these (which may contain errors of the server). An error fails the
// test. If the server is frozen, Do waits until it is thawed. Each call uses a
// new connection, so MULTI, SUBSCRIBE and WAIT (see AwaitReplicas) do not work
// here.
func (s *RedisServer) Do(args ...string) any {
	s.tb.Helper()
	s.checkPasswords(args)
	answer, err := s.Try(args...)
	if err != nil {
		s.tb.Fatalf("redis at %s: %s: %v", s.Addr, args[0], err)
	}
	return answer
}

// checkPasswords fails the test if it creates a password that `make test`
// cannot find.
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

// Try is like Do, for commands that may fail. An error of the server is a
// [RedisError]; other errors come from the network.
func (s *RedisServer) Try(args ...string) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	return s.call(ctx, args...)
}

// Commands returns the number of times that the server has run each command
// since it started, including commands in scripts. The names are from INFO
// commandstats ("evalsha", "client|setinfo"). INFO itself is omitted, so the
// difference of two calls shows only the work of other clients.
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

// SubscriberCount returns the number of clients of this server that are
// subscribed to a channel, by SUBSCRIBE or SSUBSCRIBE.
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

// AwaitReplicas waits until n replicas have received everything that the server
// has written so far.
func (s *RedisServer) AwaitReplicas(n int) {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	conn, err := s.dial(ctx)
	if err == nil {
		defer conn.Close()
		// WAIT waits for the writes up to the last command on its own
		// connection.
		if _, err = conn.do("PING"); err == nil {
			_, err = conn.do("WAIT", strconv.Itoa(n), "0")
		}
	}
	if err != nil {
		s.tb.Fatalf("redis at %s: %d replicas: %v", s.Addr, n, err)
	}
}

// info decodes a response with lines "name:value". The result is empty if there
// is no response, because a sentinel, or a cluster whose roles change, may
// close connections at any time.
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

// Kept returns the number of keys of the server, the number of keys without an
// expiry, and the used memory.
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

// Refuse makes the server refuse all writes until Allow, like a server without
// its replicas.
func (s *RedisServer) Refuse() { s.Do("CONFIG", "SET", "min-replicas-to-write", "1") }

// Allow ends Refuse.
func (s *RedisServer) Allow() { s.Do("CONFIG", "SET", "min-replicas-to-write", "0") }

// Left returns the keys of the server, each with its type, and the channels
// with subscribers.
func (s *RedisServer) Left() (all []string) {
	s.tb.Helper()
	for _, key := range s.Do("KEYS", "*").([]any) {
		if kind := s.Do("TYPE", key.(string)).(string); kind != "none" {
			// the key has disappeared in the meantime
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

// lastValue returns the value after the last occurrence of option in args.
func lastValue(args []string, option string) string {
	value := ""
	for i, arg := range args[:max(0, len(args)-1)] {
		if strings.EqualFold(arg, option) {
			value = args[i+1]
		}
	}
	return value
}

// RedisError is the unchanged error of a Redis server: "WRONGTYPE Operation
// against …".
type RedisError string

func (e RedisError) Error() string { return string(e) }

// respConn speaks version 2 of the Redis protocol, one request at a time.
type respConn struct {
	net.Conn
	in *bufio.Reader
}

// dialRESP connects. The deadline of ctx applies to all requests over the
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

// dial connects. The deadline of ctx, or hangGuard if there is none, applies to
// all reads and writes.
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
