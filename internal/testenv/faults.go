package testenv

import (
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
)

//go:embed preload/clock.c
var clockShim []byte

// Clock is the wall clock of a server, which can jump. The server's other
// clocks are not affected.
type Clock struct {
	tb   testing.TB
	file *os.File
}

// Set makes the clock jump to an offset of d from the true time. The offset
// persists when the server is restarted.
func (c *Clock) Set(d time.Duration) {
	c.tb.Helper()
	if _, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(d)), 0); err != nil {
		c.tb.Fatal(err)
	}
}

// newClock makes a clock for a server. It also returns the start of the command
// line with which the server uses the clock. dir contains the files that the
// server needs. newClock requires a C compiler. Without one the test is
// skipped, or fails if CI is set.
func newClock(tb testing.TB, dir string) (c *Clock, program []string) {
	tb.Helper()
	source, shim := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockShim, 0o600); err != nil {
		tb.Fatal(err)
	}
	if out, err := exec.Command(need(tb, "cc", "gcc"), "-O1", "-Wall", "-shared", "-fPIC", "-o", shim, source).CombinedOutput(); err != nil {
		tb.Fatalf("cc: %v\n%s", err, out)
	}
	file, err := os.Create(filepath.Join(dir, "offset"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { file.Close() })
	c = &Clock{tb: tb, file: file}
	c.Set(0)
	return c, []string{"env", "LD_PRELOAD=" + shim, "DSYNC_TEST_CLOCK=" + file.Name()}
}

// RedisClock is like [Redis], but with a clock that can jump.
func RedisClock(tb testing.TB, args ...string) (*RedisServer, *Clock) {
	tb.Helper()
	c, program := newClock(tb, tb.TempDir())
	return redisAt(tb, host{loopback.ip, program}, args), c
}

// PostgresClock is like [Postgres], but with a clock that can jump.
func PostgresClock(tb testing.TB, settings ...string) (*PostgresServer, *Clock) {
	tb.Helper()
	c, program := newClock(tb, serverAccount(tb).tempDir(tb))
	s := newPostgres(tb, settings)
	s.argv = append(program, s.argv...)
	s.launchPostgres()
	return s, c
}

// MySQLClock is like [MySQL], but with a clock that can jump.
func MySQLClock(tb testing.TB, settings ...string) (*MySQLServer, *Clock) {
	tb.Helper()
	c, program := newClock(tb, serverAccount(tb).tempDir(tb))
	return startMySQL(tb, program, settings), c
}

// Front forwards connections to a server from another address, on a host such
// as 127.0.0.2, and returns that address. If certs is set, Front uses TLS
// toward clients with the server certificate of certs, and requires a client
// certificate from the same authority. It is for servers that do not support
// TLS.
func Front(tb testing.TB, host, target string, certs *Certificates) (addr string) {
	tb.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		tb.Fatal(err)
	}
	if addr = listener.Addr().String(); certs != nil {
		listener = tls.NewListener(listener, certs.server(tb))
	}
	w := new(wire.Wire)
	tb.Cleanup(w.Close)
	if err := w.Serve(listener, target); err != nil {
		tb.Fatal(err)
	}
	return addr
}

// server returns the TLS configuration of a server.
func (c *Certificates) server(tb testing.TB) *tls.Config {
	tb.Helper()
	pair, err := tls.LoadX509KeyPair(c.ServerCertFile, c.ServerKeyFile)
	if err != nil {
		tb.Fatal(err)
	}
	authority, err := os.ReadFile(c.CAFile)
	if err != nil {
		tb.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(authority)
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
}

// Wire returns a network to the server at target (host:port) that can be
// disturbed until the test ends, and the address that leads through this
// network.
func Wire(tb testing.TB, target string) (w *wire.Wire, addr string) {
	tb.Helper()
	w = new(wire.Wire)
	tb.Cleanup(w.Close)
	addr, err := w.Listen(target)
	if err != nil {
		tb.Fatal(err)
	}
	return w, addr
}

// HostileRedis starts a server that speaks the Redis protocol and appears
// valid, but takes its important responses from data. The responses are well
// formed, but of any type. At the end of data it responds with 0. It returns
// the address.
func HostileRedis(tb testing.TB, data []byte) string {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	h := &hostile{data: data, conns: map[net.Conn]bool{}}
	h.wg.Go(func() { h.accept(listener) })
	tb.Cleanup(func() {
		listener.Close()
		h.end()
		h.wg.Wait()
	})
	return listener.Addr().String()
}

type hostile struct {
	wg sync.WaitGroup // ends with the listener and the connections

	mu    sync.Mutex
	data  []byte
	ended bool
	conns map[net.Conn]bool
}

func (h *hostile) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		h.mu.Lock()
		if h.ended {
			conn.Close()
		} else {
			h.conns[conn] = true
			h.wg.Go(func() { h.serve(conn) })
		}
		h.mu.Unlock()
	}
}

func (h *hostile) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	for conn := range h.conns {
		conn.Close()
	}
}

func (h *hostile) serve(conn net.Conn) {
	defer conn.Close()
	c := newRESP(conn)
	for {
		request, err := c.read()
		if err != nil {
			return
		}
		args, _ := request.([]any)
		var words []string
		for _, arg := range args {
			words = append(words, fmt.Sprint(arg))
		}
		if len(words) == 0 {
			return
		}
		if _, err := io.WriteString(conn, h.answer(words)); err != nil {
			return
		}
	}
}

func (h *hostile) answer(words []string) string {
	switch strings.ToUpper(words[0]) {
	case "HELLO":
		return "%4\r\n+server\r\n+redis\r\n+version\r\n+7.0.15\r\n+mode\r\n+standalone\r\n+role\r\n+master\r\n"
	case "INFO":
		info := "run_id:1\r\nuptime_in_seconds:1000000\r\nrole:master\r\nmaster_replid:1\r\nmaxmemory_policy:noeviction\r\n"
		return fmt.Sprintf("$%d\r\n%s\r\n", len(info), info)
	case "PING":
		return "+PONG\r\n"
	case "CLIENT", "SCRIPT":
		return "+OK\r\n"
	case "SUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "SUNSUBSCRIBE":
		var all strings.Builder
		for _, channel := range words[1:] {
			fmt.Fprintf(&all, ">3\r\n+%s\r\n$%d\r\n%s\r\n:1\r\n", strings.ToLower(words[0]), len(channel), channel)
		}
		return all.String()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var value strings.Builder
	h.data = writeValue(&value, h.data, 0)
	return value.String()
}

// writeValue writes the value at the beginning of data and returns the rest.
func writeValue(w *strings.Builder, data []byte, depth int) []byte {
	if len(data) == 0 {
		w.WriteString(":0\r\n")
		return nil
	}
	kind, data := data[0], data[1:]
	n := 0
	if len(data) > 0 {
		n, data = int(data[0]), data[1:]
	}
	switch kind % 9 {
	case 0:
		w.WriteString("_\r\n")
	case 1:
		fmt.Fprintf(w, ":%d\r\n", int8(n))
	case 2:
		var wide [8]byte
		data = data[copy(wide[:], data):]
		fmt.Fprintf(w, ":%d\r\n", int64(binary.BigEndian.Uint64(wide[:])))
	case 3:
		n = min(n, len(data))
		fmt.Fprintf(w, "$%d\r\n%s\r\n", n, data[:n])
		data = data[n:]
	case 4:
		fmt.Fprintf(w, "+%d\r\n", n)
	case 5:
		words := []string{"ERR", "NOSCRIPT", "MOVED 1 127.0.0.1:1", "READONLY", "LOADING", "WRONGTYPE", "NOPERM", "OOM", "BUSY", "NOREPLICAS"}
		fmt.Fprintf(w, "-%s %d\r\n", words[n%len(words)], n)
	case 6:
		fmt.Fprintf(w, ",%d.5\r\n", n)
	case 7:
		fmt.Fprintf(w, "#%c\r\n", "tf"[n%2])
	case 8:
		if n %= 8; depth > 2 {
			n = 0
		}
		fmt.Fprintf(w, "*%d\r\n", n)
		for range n {
			data = writeValue(w, data, depth+1)
		}
	}
	return data
}
