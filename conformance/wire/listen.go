package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// proxy is an address that leads through a Wire.
type proxy struct {
	addr, target string
	ln           net.Listener // nil while connections are refused
	keeper       net.Conn     // is connected at addr, so nobody else gets the port while ln is nil
}

// Listen opens a proxy on the loopback interface and returns its address. Every connection to the proxy leads through the Wire to the
// server at target (host:port). The proxy ends with Close.
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

// open lets a proxy accept connections. A process that is just being started has copies of all sockets until it runs its program, so
// the port may be in use for a moment after the listener was closed. w.mu is held.
func (w *Wire) open(p *proxy) {
	ln, err := net.Listen("tcp", p.addr)
	for end := time.Now().Add(10 * time.Second); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		ln, err = net.Listen("tcp", p.addr)
	}
	if err != nil {
		panic(fmt.Sprintf("wire: the proxy cannot listen any more: %v", err))
	}
	p.ln = ln
	cuts := w.cuts
	w.accept(ln, p.target, func() int { return cuts }) // Cut closes ln, so all its connections are older than the next Cut
}

// refuse keeps a proxy from accepting connections. w.mu is held.
func (p *proxy) refuse() {
	if p.ln != nil {
		p.ln.Close()
		p.ln = nil
	}
}

// Serve makes a proxy of a listener, as Listen does of a listener on the loopback interface. Close closes the listener; Cut does not, so
// connections are accepted and then broken. A connection of package crypto/tls breaks when Hold interrupts a write on it.
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

// accept connects clients to the target until the listener is closed; cuts is how often Cut was called before a client came. w.mu is
// held.
func (w *Wire) accept(ln net.Listener, target string, cuts func() int) {
	w.wg.Go(func() { // ends with the listener, which Close closes
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			before := cuts()
			w.wg.Go(func() { w.serve(client, target, before) }) // ends with Close at the latest
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
