package redisson

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
)

// dialer makes the connections of a client that the driver opened itself.
type dialer struct {
	opening context.Context // bounds the connections that are made while Open runs
	made    atomic.Uint64   // how many connections were asked for

	mu     sync.Mutex
	opened bool
	conns  map[*conn]struct{}
}

// conn is a connection that its dialer can still close.
type conn struct {
	net.Conn
	dialer *dialer
	stop   func() bool // of the watch over dialer.opening
}

func newDialer(opening context.Context) *dialer {
	return &dialer{opening: opening, conns: make(map[*conn]struct{})}
}

// done ends the opening: connections live from now on as long as the client lets them.
func (d *dialer) done() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened = true
	for c := range d.conns {
		c.stop()
	}
}

func (d *dialer) dial(ctx context.Context, addr string, nd *net.Dialer, config *tls.Config) (net.Conn, error) {
	d.made.Add(1)
	d.mu.Lock()
	opened := d.opened
	d.mu.Unlock()
	if !opened { // the library does not pass on the context of Open
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(d.opening, cancel)()
	}
	var raw net.Conn
	var err error
	if config != nil {
		raw, err = (&tls.Dialer{NetDialer: nd, Config: config}).DialContext(ctx, "tcp", addr)
	} else {
		raw, err = nd.DialContext(ctx, "tcp", addr)
	}
	if err != nil {
		return nil, notSent{err}
	}
	c := &conn{Conn: raw, dialer: d, stop: func() bool { return true }}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns[c] = struct{}{}
	if !d.opened {
		c.stop = context.AfterFunc(d.opening, func() { sever(raw) })
	}
	return c, nil
}

// closeAll breaks every connection, so that the next request is sent to whatever the address stands for by then.
func (d *dialer) closeAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		sever(c.Conn)
	}
	clear(d.conns)
}

func (c *conn) Close() error {
	c.stop()
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
