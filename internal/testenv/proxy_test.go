package testenv

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
)

// client sends raw lines over a connection; nothing but a hang bounds its reads.
type client struct {
	net.Conn
	t  *testing.T
	in *bufio.Reader
}

func connect(t *testing.T, addr string) *client {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, hangGuard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{Conn: conn, t: t, in: bufio.NewReader(conn)}
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c.Conn, text); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) wantLine(want string) {
	c.t.Helper()
	got, err := c.in.ReadString('\n')
	if strings.TrimSpace(got) != want || err != nil {
		c.t.Fatalf("got %q, %v, want %q", got, err, want)
	}
}

func (c *client) wantReset() {
	c.t.Helper()
	if got, err := c.in.ReadString('\n'); !errors.Is(err, syscall.ECONNRESET) {
		c.t.Fatalf("got %q, %v, want a reset", got, err)
	}
}

// held returns what a proxy with one connection holds in a direction.
func held(p *Proxy, d Direction) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if d == Requests {
			return string(l.up.held)
		}
		return string(l.down.held)
	}
	return ""
}

func TestProxyCutAndHeal(t *testing.T) {
	s := Redis(t)
	p := NewProxy(t, s.Addr)
	c := connect(t, p.Addr)
	c.send("SET k 1\r\n")
	c.wantLine("+OK")
	p.Cut()
	c.wantReset()
	if conn, err := net.Dial("tcp", p.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("connect after Cut: got %v, %v, want a refusal", conn, err)
	}
	p.Heal()
	c = connect(t, p.Addr)
	c.send("INCR k\r\n")
	c.wantLine(":2")
}

func TestProxyPassesTheEndOfAConnection(t *testing.T) {
	p := NewProxy(t, Redis(t).Addr)
	c := connect(t, p.Addr)
	c.send("QUIT\r\n")
	c.wantLine("+OK")
	if got, err := c.in.ReadString('\n'); err != io.EOF {
		t.Fatalf("after the server closed: got %q, %v, want EOF", got, err)
	}
	c.Close()
	Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.links) == 0
	}, "the proxy forgets the connection")
}

func TestProxyToAServerThatIsDown(t *testing.T) {
	s := Redis(t)
	p := NewProxy(t, s.Addr)
	s.Kill()
	conn, err := net.Dial("tcp", p.Addr)
	if err == nil {
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
}

func TestProxyFreezeRequests(t *testing.T) {
	s := Redis(t)
	p := NewProxy(t, s.Addr)
	p.Freeze(Requests)
	c := connect(t, p.Addr)
	c.send("SET k v\r\n")
	Eventually(t, func() bool { return held(p, Requests) == "SET k v\r\n" }, "the proxy holds the request")
	if got := s.Do("GET", "k"); got != nil {
		t.Errorf("while requests are frozen: got %v, want nothing", got)
	}
	c.Close()
	p.Thaw(Requests)
	Eventually(t, func() bool { return s.Do("GET", "k") == "v" }, "a request is delivered though its sender is gone")
}

func TestProxyFreezeReplies(t *testing.T) {
	s := Redis(t)
	p := NewProxy(t, s.Addr)
	c := connect(t, p.Addr)
	p.Freeze(Replies)
	c.send("SET k v\r\n")
	Eventually(t, func() bool { return held(p, Replies) == "+OK\r\n" }, "the proxy holds the reply")
	if got := s.Do("GET", "k"); got != "v" {
		t.Errorf("while replies are frozen: got %v, want v", got)
	}
	p.Thaw(Replies)
	c.wantLine("+OK")
}

func TestProxyFreezeBothAcceptsConnections(t *testing.T) {
	s := Redis(t)
	p := NewProxy(t, s.Addr)
	p.Freeze(Both)
	c := connect(t, p.Addr)
	c.send("PING\r\n")
	Eventually(t, func() bool { return held(p, Requests) == "PING\r\n" }, "the proxy holds the request")
	p.Thaw(Requests)
	Eventually(t, func() bool { return held(p, Replies) == "+PONG\r\n" }, "the proxy holds the reply")
	p.Heal()
	c.wantLine("+PONG")
}

func TestProxyFreezeDoesNotWaitForAServerThatDoesNotRead(t *testing.T) {
	s := Redis(t)
	p := NewProxy(t, s.Addr)
	s.Freeze()
	c := connect(t, p.Addr)
	value := strings.Repeat("x", 16<<20) // more than the kernel buffers
	c.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n" + fmt.Sprintf("$%d\r\n", len(value)) + value + "\r\n")
	for range 10 {
		p.Freeze(Both)
		p.Thaw(Both)
	}
	s.Thaw()
	c.wantLine("+OK")
	if got := s.Do("GET", "k"); got != value {
		t.Error("the value differs after its transfer was interrupted")
	}
	s.Freeze()
	c.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n" + fmt.Sprintf("$%d\r\n", len(value)) + value + "\r\n")
	p.Cut()
}

func TestProxyDropReplies(t *testing.T) {
	s := Redis(t)
	p := NewProxy(t, s.Addr)
	c, idle := connect(t, p.Addr), connect(t, p.Addr)
	idle.send("PING\r\n")
	idle.wantLine("+PONG")
	p.DropReplies()
	if p.LostReplies() {
		t.Error("replies are lost before there are any")
	}
	c.send("SET k v\r\n")
	Eventually(t, p.LostReplies, "the proxy throws the reply away")
	if got := s.Do("GET", "k"); got != "v" {
		t.Errorf("got %v, want v: the request must arrive", got)
	}
	p.Heal()
	c.wantReset()
	idle.send("PING\r\n")
	idle.wantLine("+PONG")
}

func TestProxyCutAfterRequest(t *testing.T) {
	s := Redis(t)
	p := NewProxy(t, s.Addr)
	other := connect(t, p.Addr)
	for i := range 20 {
		key := fmt.Sprintf("k%d", i)
		cut := p.CutAfterRequest(key)
		c := connect(t, p.Addr)
		c.send("PING\r\n")
		c.wantLine("+PONG")
		const pipelined = 1000
		c.send(strings.Repeat("INCR n\r\n", pipelined) + "SET " + key + " v\r\n")
		<-cut
		if got := s.Do("GET", key); got != "v" {
			t.Fatalf("GET %s when the connection was cut: got %v, want v", key, got)
		}
		if got, want := s.Do("GET", "n"), fmt.Sprint((i+1)*pipelined); got != want {
			t.Fatalf("requests before it: got %v, want %v", got, want)
		}
		c.wantReset()
		other.send("INCR other\r\n")
		other.wantLine(fmt.Sprintf(":%d", i+1))
	}
}

func TestProxyCutAfterRequestThoughTheClientHangsUp(t *testing.T) {
	s := Redis(t)
	p := NewProxy(t, s.Addr)
	cut := p.CutAfterRequest("SET")
	c := connect(t, p.Addr)
	c.send("PING\r\n")
	c.wantLine("+PONG")
	s.Freeze()
	c.send("SET k v\r\n")
	Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.trap == nil
	}, "the proxy sees the request")
	abort(c.Conn)
	s.Thaw()
	<-cut
	if got := s.Do("GET", "k"); got != "v" {
		t.Errorf("got %v, want v", got)
	}
}

func TestProxyHoldAfterRequest(t *testing.T) {
	s := Redis(t)
	p := NewProxy(t, s.Addr)
	c := connect(t, p.Addr)

	forwarded := p.HoldAfterRequest("late")
	c.send("INCR early\r\n")
	c.wantLine(":1")
	c.send("INCR late\r\n")
	<-forwarded
	Eventually(t, func() bool { return s.Do("GET", "late") == "1" }, "the server runs the request")
	Eventually(t, func() bool { return held(p, Replies) == ":1\r\n" }, "the proxy holds the reply")
	p.Thaw(Replies)
	c.wantLine(":1")

	forwarded = p.HoldAfterRequest("late")
	c.send("INCR late\r\n")
	<-forwarded
	Eventually(t, func() bool { return s.Do("GET", "late") == "2" }, "the server runs the request")
	p.Cut()
	c.wantReset()
}
