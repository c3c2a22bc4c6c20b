// Package redisdial sets the options and makes the connections of clients that
// a driver opened itself. In this way the driver knows all its connections. It
// can distinguish a new connection from the previous one, and no connection
// stays open when the driver is closed, regardless of what the client was doing
// at that moment.
package redisdial

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
)

// Func makes a connection, with TLS if config is not nil. It has the type of
// rueidis.ClientOption.DialCtxFn.
type Func = func(ctx context.Context, addr string, nd *net.Dialer, config *tls.Config) (net.Conn, error)

// Dialer makes connections and can break them later. All methods may be called
// concurrently.
type Dialer struct {
	dial     Func
	made     atomic.Uint64
	life     context.Context // parent of every attempt to connect; canceled by End
	end      context.CancelFunc
	attempts sync.WaitGroup

	mu    sync.Mutex
	ended bool
	conns map[*conn]struct{}
}

// conn is a connection that its dialer can break.
type conn struct {
	net.Conn
	dialer   *Dialer
	asked    atomic.Bool // something was written
	sentinel bool
}

// RemoteAddr implements net.Conn. The credentials of a connection depend on the
// address (see ToSentinels).
func (c *conn) RemoteAddr() net.Addr {
	if c.sentinel {
		return sentinelAddr{c.Conn.RemoteAddr()}
	}
	return c.Conn.RemoteAddr()
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	c.asked.Store(true)
	return c.Conn.Write(b)
}

// Read implements net.Conn. A server that refuses a connection because it has
// too many reports this before the first request. The library panics on a
// response without a request, so Read turns the response into an error.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.asked.Load() {
		return 0, fmt.Errorf("the server refuses the connection: %q", b[:n])
	}
	return n, err
}

// New returns a Dialer that connects with dial, or by TCP if dial is nil.
func New(dial Func) *Dialer {
	if dial == nil {
		dial = dialTCP
	}
	d := &Dialer{dial: dial, conns: make(map[*conn]struct{})}
	d.life, d.end = context.WithCancel(context.Background())
	return d
}

func dialTCP(ctx context.Context, addr string, nd *net.Dialer, config *tls.Config) (net.Conn, error) {
	if config != nil {
		return (&tls.Dialer{NetDialer: nd, Config: config}).DialContext(ctx, "tcp", addr)
	}
	return nd.DialContext(ctx, "tcp", addr)
}

// Dial is a Func. After End it returns net.ErrClosed.
func (d *Dialer) Dial(ctx context.Context, addr string, nd *net.Dialer, config *tls.Config) (net.Conn, error) {
	d.made.Add(1)
	if !d.begin() {
		return nil, net.ErrClosed
	}
	defer d.attempts.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.life, cancel)()
	sentinel := nd.Resolver == toSentinel
	if sentinel {
		plain := *nd
		plain.Resolver, nd = nil, &plain
	}
	raw, err := d.dial(ctx, addr, nd, config)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		sever(raw)
		return nil, net.ErrClosed
	}
	c := &conn{Conn: raw, dialer: d, sentinel: sentinel}
	d.conns[c] = struct{}{}
	return c, nil
}

// begin counts an attempt and fails after End.
func (d *Dialer) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return false
	}
	d.attempts.Add(1)
	return true
}

// Made returns the number of connections that were requested. While the number
// stays the same, there is no new connection.
func (d *Dialer) Made() uint64 { return d.made.Load() }

// Connected reports whether a connection is open. The client closes a
// connection when it notices the end of the connection.
func (d *Dialer) Connected() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.conns) > 0
}

// Break breaks every connection. New connections may be made.
func (d *Dialer) Break() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.breakAll()
}

// End breaks every connection and prevents new connections. It can be called
// several times.
func (d *Dialer) End() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	d.end()
	d.breakAll()
}

// Wait waits for the attempts to connect that were in progress at End.
func (d *Dialer) Wait() { d.attempts.Wait() }

func (d *Dialer) breakAll() {
	for c := range d.conns {
		sever(c.Conn)
	}
	clear(d.conns)
}

func (c *conn) Close() error {
	c.dialer.mu.Lock()
	delete(c.dialer.conns, c)
	c.dialer.mu.Unlock()
	return c.Conn.Close()
}

// sever closes a connection without the close message of TLS, which could
// block.
func sever(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	c.Close()
}
