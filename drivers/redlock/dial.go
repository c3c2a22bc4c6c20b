package redlock

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// dialer makes the connections to one node, and so knows when there is a new one: behind it may be another life of the server.
type dialer struct {
	dial func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error)
	life context.Context // ends with the driver, and so does every attempt to connect
	made atomic.Uint64   // how many connections were asked for

	mu    sync.Mutex
	ended bool
	conns map[*conn]struct{}
}

// conn is a connection that its dialer can still break.
type conn struct {
	net.Conn
	dialer *dialer
}

func newDialer(life context.Context, o *rueidis.ClientOption) *dialer {
	d := &dialer{dial: o.DialCtxFn, life: life, conns: make(map[*conn]struct{})}
	if d.dial == nil {
		d.dial = dialTCP
	}
	return d
}

func dialTCP(ctx context.Context, addr string, nd *net.Dialer, config *tls.Config) (net.Conn, error) {
	if config != nil {
		return (&tls.Dialer{NetDialer: nd, Config: config}).DialContext(ctx, "tcp", addr)
	}
	return nd.DialContext(ctx, "tcp", addr)
}

func (d *dialer) connect(ctx context.Context, addr string, nd *net.Dialer, config *tls.Config) (net.Conn, error) {
	d.made.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.life, cancel)()
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
	c := &conn{raw, d}
	d.conns[c] = struct{}{}
	return c, nil
}

// breakAll breaks every connection and lets none be made any more.
func (d *dialer) breakAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
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

// sever closes a connection without the goodbye of TLS, which could block.
func sever(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	c.Close()
}
