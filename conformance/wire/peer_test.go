package wire

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// hang bounds waits that could otherwise last forever.
const hang = 30 * time.Second

// lineServer answers each line with the same line and records the lines.
type lineServer struct {
	addr    string
	answers sync.Mutex // held while it answers
	mu      sync.Mutex
	cond    *sync.Cond
	got     []string // lines, and "EOF" or "reset" for the ends of connections
}

func newLineServer(t *testing.T) *lineServer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &lineServer{addr: ln.Addr().String()}
	s.cond = sync.NewCond(&s.mu)
	var wg sync.WaitGroup
	var conns sync.Map
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Store(c, nil)
			wg.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		conns.Range(func(c, _ any) bool { c.(net.Conn).Close(); return true })
		wg.Wait()
	})
	return s
}

func (s *lineServer) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		switch {
		case err == io.EOF:
			s.log("EOF")
			return
		case err != nil:
			s.log("reset")
			return
		}
		s.log(strings.TrimSuffix(line, "\n"))
		s.answers.Lock()
		_, err = io.WriteString(c, line)
		s.answers.Unlock()
		if err != nil {
			s.log("reset")
			return
		}
	}
}

func (s *lineServer) log(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, what)
	s.cond.Broadcast()
}

// await waits until the server has received exactly the wanted lines, in this
// order.
func (s *lineServer) await(t *testing.T, want ...string) {
	t.Helper()
	timer := time.AfterFunc(hang, s.cond.Broadcast)
	defer timer.Stop()
	end := time.Now().Add(hang)
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.got) < len(want) && time.Now().Before(end) {
		s.cond.Wait()
	}
	if !slices.Equal(s.got, want) {
		t.Fatalf("the server got %q, want %q", s.got, want)
	}
}

// shapes are the two ways to connect through a Wire.
var shapes = map[string]func(t *testing.T, w *Wire, s *lineServer) func(ctx context.Context) (net.Conn, error){
	"dialer": func(t *testing.T, w *Wire, s *lineServer) func(ctx context.Context) (net.Conn, error) {
		return func(ctx context.Context) (net.Conn, error) { return w.DialContext(ctx, "tcp", s.addr) }
	},
	"proxy": func(t *testing.T, w *Wire, s *lineServer) func(ctx context.Context) (net.Conn, error) {
		addr, err := w.Listen(s.addr)
		if err != nil {
			t.Fatal(err)
		}
		return func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	},
}

// peer is a client of a lineServer behind a Wire.
type peer struct {
	t *testing.T
	net.Conn
	in *bufio.Reader
}

// onWire runs a test with each shape.
func onWire(t *testing.T, test func(t *testing.T, w *Wire, s *lineServer, dial func() *peer)) {
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			s := newLineServer(t)
			var w Wire
			t.Cleanup(w.Close)
			connect := shape(t, &w, s)
			test(t, &w, s, func() *peer {
				t.Helper()
				before := w.Traffic().Connections
				c, err := connect(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				await(&w, func() bool { return w.traffic.Connections > before }) // a proxy accepts before it has connected to the server
				t.Cleanup(func() { c.Close() })
				c.SetDeadline(time.Now().Add(hang))
				return &peer{t, c, bufio.NewReader(c)}
			})
		})
	}
}

// await waits until a condition is true. It is evaluated with w.mu held.
func await(w *Wire, is func() bool) {
	for {
		w.mu.Lock()
		done, changed := is(), w.wait()
		w.mu.Unlock()
		if done {
			return
		}
		<-changed
	}
}

func (p *peer) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p, line+"\n"); err != nil {
		p.t.Fatalf("send %q: %v", line, err)
	}
}

func (p *peer) receive(want string) {
	p.t.Helper()
	if got, err := p.in.ReadString('\n'); got != want+"\n" || err != nil {
		p.t.Fatalf("received %q, %v, want %q", got, err, want)
	}
}

func (p *peer) ask(line string) {
	p.t.Helper()
	p.send(line)
	p.receive(line)
}

// receiveNothing reads until a deadline, which shows that deadlines work.
func (p *peer) receiveNothing() {
	p.t.Helper()
	p.SetReadDeadline(time.Now().Add(10 * ms))
	defer p.SetReadDeadline(time.Now().Add(hang))
	if got, err := p.in.ReadString('\n'); got != "" || !errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Fatalf("received %q, %v, want %v", got, err, os.ErrDeadlineExceeded)
	}
}

// receiveEnd waits for a broken connection.
func (p *peer) receiveEnd() {
	p.t.Helper()
	if got, err := p.in.ReadString('\n'); got != "" || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Fatalf("received %q, %v, want the end of the connection", got, err)
	}
}

func awaitClosed(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(hang):
		t.Fatal("nothing happened")
	}
}

func hasClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// twoEnds returns the two ends of a connection through w to a server that does
// nothing.
func twoEnds(t *testing.T, w *Wire, network, addr string) (client, server net.Conn) {
	t.Helper()
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if client, err = w.DialContext(t.Context(), network, ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if server, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return client, server
}
