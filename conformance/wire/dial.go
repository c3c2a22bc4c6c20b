package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// DialContext connects to a server through the Wire. It has the form in which client libraries take a dialer. While something is
// held or dropped it waits until ctx ends, as an attempt to connect does into a black hole.
func (w *Wire) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, stop := w.lifetime(ctx)
	defer stop()
	c, err := w.connect(ctx, network, addr)
	if err == nil {
		return c, nil
	}
	if w.isClosed() { // which also ended ctx
		err = net.ErrClosed
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return nil, err
	}
	return nil, &net.OpError{Op: "dial", Net: network, Err: err}
}

func (w *Wire) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := w.connectable(ctx); err != nil {
		return nil, err
	}
	server, err := w.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	client, inner, err := w.pair(ctx)
	if err != nil {
		server.Close()
		return nil, err
	}
	if err := w.join(inner, server); err != nil {
		client.Close()
		return nil, err
	}
	return &conn{client, server.RemoteAddr()}, nil
}

func (w *Wire) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// conn is the client's end of a connection. It says that it is connected to the server, for some libraries connect there again.
type conn struct {
	*net.TCPConn
	server net.Addr
}

func (c *conn) RemoteAddr() net.Addr { return c.server }

// Listen opens a proxy on the loopback interface and returns its address. Every connection to it is one through the Wire to the
// target, which is what DialContext takes. The proxy ends with Close.
func (w *Wire) Listen(network, target string) (addr string, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		ln.Close()
		return "", net.ErrClosed
	}
	w.listeners = append(w.listeners, ln)
	w.wg.Go(func() { // ends when Close closes ln
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			w.wg.Go(func() { w.serve(client, network, target) }) // ends with Close at the latest
		}
	})
	return ln.Addr().String(), nil
}

// serve connects a client of a proxy to its target.
func (w *Wire) serve(client net.Conn, network, target string) {
	ctx, stop := w.lifetime(context.Background())
	defer stop()
	if w.connectable(ctx) != nil {
		reset(client)
		return
	}
	server, err := w.dial(ctx, network, target)
	if err != nil {
		reset(client)
		return
	}
	_ = w.join(client, server) // which closes both if there is to be no connection
}

func (w *Wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if w.Dial != nil {
		return w.Dial(ctx, network, addr)
	}
	var d net.Dialer
	return d.DialContext(ctx, network, addr)
}

// lifetime returns a context that ends with ctx or the Wire.
func (w *Wire) lifetime(ctx context.Context) (context.Context, func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx == nil {
		w.ctx, w.cancel = context.WithCancel(context.Background())
	}
	ctx, cancel := context.WithCancel(ctx)
	forget := context.AfterFunc(w.ctx, cancel)
	return ctx, func() {
		forget()
		cancel()
	}
}

// connectable waits until connections can be made.
func (w *Wire) connectable(ctx context.Context) error {
	for {
		w.mu.Lock()
		f, closed, changed := w.faults, w.closed, w.wait()
		w.mu.Unlock()
		switch {
		case closed:
			return net.ErrClosed
		case f.refuse:
			return syscall.ECONNREFUSED
		case f.hold|f.drop == 0:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// pair returns the two ends of a new connection.
func (w *Wire) pair(ctx context.Context) (client *net.TCPConn, inner net.Conn, err error) {
	w.pairMu.Lock()
	defer w.pairMu.Unlock()
	if w.isClosed() {
		return nil, nil, net.ErrClosed
	}
	if w.pairs == nil {
		if w.pairs, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return nil, nil, err
		}
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", w.pairs.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	for {
		inner, err := w.pairs.Accept()
		if err != nil {
			c.Close()
			return nil, nil, err
		}
		if inner.RemoteAddr().String() == c.LocalAddr().String() {
			return c.(*net.TCPConn), inner, nil
		}
		inner.Close() // of a pair that did not come about, or a stranger
	}
}

// join lets a new connection flow between its two ends. It returns an error, with both closed, if the Wire is closed, or has come to
// refuse connections since this one was begun.
func (w *Wire) join(client, server net.Conn) error {
	l := &link{wire: w, client: client, server: server}
	l.requests = pipe{link: l, dir: Requests, src: client, dst: server}
	l.replies = pipe{link: l, dir: Replies, src: server, dst: client}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.faults.refuse {
		reset(client)
		reset(server)
		if w.closed {
			return net.ErrClosed
		}
		return syscall.ECONNREFUSED
	}
	if w.links == nil {
		w.links = map[*link]bool{}
	}
	w.links[l] = true
	w.traffic.Connections++
	w.notify()
	w.wg.Go(l.run) // ends when both ends have closed, or with cut
	return nil
}

// reset breaks a connection rather than end it in good order.
func reset(c net.Conn) {
	if tcp, ok := c.(interface{ SetLinger(sec int) error }); ok {
		tcp.SetLinger(0) // best effort: Close ends the connection in any case
	}
	c.Close()
}

// closeWrite ends what is sent over a connection, in good order.
func closeWrite(c net.Conn) error {
	half, ok := c.(interface{ CloseWrite() error })
	if !ok {
		return fmt.Errorf("a %T cannot be closed in one direction", c)
	}
	return half.CloseWrite()
}
