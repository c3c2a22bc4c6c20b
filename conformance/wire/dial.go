package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// DialContext connects to a server through the Wire. It has the signature that
// client libraries expect of a dialer. While traffic is held or dropped,
// DialContext waits until ctx ends, like a connection attempt into a black
// hole.
func (w *Wire) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, stop := w.lifetime(ctx)
	defer stop()
	c, err := w.connect(ctx, network, addr)
	if err == nil {
		return c, nil
	}
	if w.isClosed() { // closing the Wire also ended ctx
		err = net.ErrClosed
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return nil, err
	}
	return nil, &net.OpError{Op: "dial", Net: network, Err: err}
}

func (w *Wire) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	cuts := w.cutsSoFar()
	if err := w.connectable(ctx, cuts); err != nil {
		return nil, err
	}
	server, err := new(net.Dialer).DialContext(ctx, network, w.route(addr))
	if err != nil {
		return nil, err
	}
	client, inner, err := w.pair(ctx)
	if err != nil {
		server.Close()
		return nil, err
	}
	if err := w.join(inner, server, cuts); err != nil {
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

// conn is the client's end of a connection. Its remote address is the server's,
// because some libraries connect to that address again.
type conn struct {
	*net.TCPConn
	server net.Addr
}

func (c *conn) RemoteAddr() net.Addr { return c.server }

// cutsSoFar counts the calls to Cut, so that the caller can find out later
// whether Cut was called while a connection was being made.
func (w *Wire) cutsSoFar() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cuts
}

// lifetime returns a context that ends when ctx ends or the Wire is closed.
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

// connectable waits until connections can be made. It returns an error if they
// cannot, or if Cut was called after cuts was counted.
func (w *Wire) connectable(ctx context.Context, cuts int) error {
	for {
		w.mu.Lock()
		err, holds, changed := w.refusal(cuts), w.faults.hold|w.faults.drop != 0, w.wait()
		w.mu.Unlock()
		if err != nil || !holds {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// refusal returns the error of a connection that cannot be made, or that was
// begun before the last Cut. w.mu is held.
func (w *Wire) refusal(cuts int) error {
	switch {
	case w.closed:
		return net.ErrClosed
	case w.faults.cut, w.cuts != cuts:
		return syscall.ECONNREFUSED
	}
	return nil
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
	return connectTo(ctx, w.pairs)
}

// connectTo returns the two ends of a new connection to a listener.
func connectTo(ctx context.Context, ln net.Listener) (client *net.TCPConn, inner net.Conn, err error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", ln.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	for {
		inner, err := ln.Accept()
		if err != nil {
			c.Close()
			return nil, nil, err
		}
		if inner.RemoteAddr().String() == c.LocalAddr().String() {
			return c.(*net.TCPConn), inner, nil
		}
		inner.Close() // of an incomplete pair, or of an unrelated client
	}
}

// join connects the two ends of a new connection. If the connection has been
// refused in the meantime, join closes both ends and returns an error.
func (w *Wire) join(client, server net.Conn, cuts int) error {
	l := &link{wire: w, client: client, server: server}
	l.requests = pipe{link: l, dir: Requests, src: client, dst: server}
	l.replies = pipe{link: l, dir: Replies, src: server, dst: client}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.refusal(cuts); err != nil {
		reset(client)
		reset(server)
		return err
	}
	if w.links == nil {
		w.links = map[*link]bool{}
	}
	w.links[l] = true
	w.traffic.Connections++
	w.notify()
	w.wg.Go(l.run) // ends when both ends have closed, or at cut
	return nil
}

// reset breaks a connection without an orderly end.
func reset(c net.Conn) {
	if tcp, ok := c.(interface{ SetLinger(sec int) error }); ok {
		tcp.SetLinger(0) // best effort: Close ends the connection anyway
	}
	c.Close()
}

// closeWrite ends one direction of a connection in an orderly way.
func closeWrite(c net.Conn) error {
	half, ok := c.(interface{ CloseWrite() error })
	if !ok {
		return fmt.Errorf("a %T cannot be closed in one direction", c)
	}
	return half.CloseWrite()
}

// proxy is an address that leads through a Wire.
type proxy struct {
	addr, target string
	ln           net.Listener // nil while connections are refused
	// is connected at addr, so no other process gets the port while ln is nil
	keeper net.Conn
}

// Listen opens a proxy on the loopback interface and returns its address. Every
// connection to the proxy leads through the Wire to the server at target
// (host:port). Close ends the proxy.
func (w *Wire) Listen(target string) (addr string, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	client, keeper, err := connectTo(context.Background(), ln)
	if err != nil {
		ln.Close()
		return "", err
	}
	client.Close()
	ln.Close()
	p := &proxy{addr: ln.Addr().String(), target: target, keeper: keeper}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		keeper.Close()
		return "", net.ErrClosed
	}
	w.proxies = append(w.proxies, p)
	if !w.faults.cut {
		w.open(p)
	}
	return p.addr, nil
}

// open lets a proxy accept connections. A process that is just being started
// has copies of all sockets until it runs its program, so the port may be in
// use for a moment after the listener was closed. w.mu is held.
func (w *Wire) open(p *proxy) {
	ln, err := net.Listen("tcp", p.addr)
	for end := time.Now().Add(10 * time.Second); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		ln, err = net.Listen("tcp", p.addr)
	}
	if err != nil {
		panic(fmt.Sprintf("wire: the proxy can no longer listen: %v", err))
	}
	p.ln = ln
	cuts := w.cuts
	// Cut closes ln, so all its connections are older than the next Cut
	w.accept(ln, p.target, func() int { return cuts })
}

// refuse keeps a proxy from accepting connections. w.mu is held.
func (p *proxy) refuse() {
	if p.ln != nil {
		p.ln.Close()
		p.ln = nil
	}
}

// Serve makes ln a proxy, as Listen does with a listener on the loopback
// interface. Close closes the listener. Cut does not, so connections are
// accepted and then broken. A connection of package crypto/tls breaks when Hold
// interrupts a write on it.
func (w *Wire) Serve(ln net.Listener, target string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		ln.Close()
		return net.ErrClosed
	}
	w.served = append(w.served, ln)
	w.accept(ln, target, w.cutsSoFar)
	return nil
}

// accept connects clients to the target until the listener is closed. cuts
// returns how many times Cut was called before a client arrived. w.mu is held.
func (w *Wire) accept(ln net.Listener, target string, cuts func() int) {
	w.wg.Go(func() { // ends when Close closes the listener
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			before := cuts()
			w.wg.Go(func() { w.serve(client, target, before) }) // ends in Close at the latest
		}
	})
}

// serve connects a client of a proxy to its target.
func (w *Wire) serve(client net.Conn, target string, cuts int) {
	ctx, stop := w.lifetime(context.Background())
	defer stop()
	if w.connectable(ctx, cuts) != nil {
		reset(client)
		return
	}
	server, err := new(net.Dialer).DialContext(ctx, "tcp", w.route(target))
	if err != nil {
		reset(client)
		return
	}
	_ = w.join(client, server, cuts) // closes both if the connection is refused
}
