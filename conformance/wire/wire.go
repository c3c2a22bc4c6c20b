// Package wire puts a network that tests can disturb between a client and its
// servers:
//
//	w := new(wire.Wire)
//	defer w.Close()
//	addr, err := w.Listen(server) // or give w.DialContext to the client library
//	...
//	w.Hold(wire.Replies) // the server carries out requests, but its answers stay on the way
//	...
//	w.Heal()
//
// Each disturbance lasts until [Wire.Heal] and affects all connections unless
// noted:
//
//   - [Wire.Cut] breaks connections and refuses new ones.
//   - [Wire.Hold] stops the bytes in a direction, and [Wire.Drop] loses them.
//     Connections stay open, so the client is not notified.
//   - [Wire.Strand] loses all bytes on the open connections, while new
//     connections work.
//   - [Wire.LoseReplies] lets requests arrive and breaks the connection
//     instead of delivering the reply.
//   - [Wire.Delay] delays a direction, and [Wire.Garble] changes bytes of
//     replies.
//
// A trap finds a single request by its text. [Wire.LoseReply] loses the reply
// to the request, and [Wire.HoldReply] holds it back. [Wire.HoldRequest] holds
// back the request itself. [Wire.Traffic] counts the disturbed connections and
// bytes. If these counts are zero, the test has disturbed nothing.
//
// conformance.LinkOver lets the conformance suite disturb a Wire.
package wire

import (
	"context"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// A Wire is a network between one client and its servers that tests can
// disturb. A client library connects through [Wire.DialContext] or, if it
// cannot use a dialer, through the address of a proxy ([Wire.Listen]). The zero
// Wire is a healthy network.
//
// Client and server use real sockets, with the Wire between them. So deadlines
// work whatever the Wire does. As in a real network, a client's writes succeed
// even while no bytes arrive. A disturbance is in effect when its method
// returns, and from then on no affected byte passes. It lasts until
// [Wire.Heal]. All methods may be called concurrently.
type Wire struct {
	wg sync.WaitGroup // all goroutines; each ends when its connection or listener is closed

	mu      sync.Mutex
	faults  faults
	trap    *trap // the trap that no request has sprung
	links   map[*link]bool
	proxies []*proxy
	served  []net.Listener
	// closed at the next change for which a caller may be waiting; nil if no
	// caller is waiting
	changed chan struct{}
	ctx     context.Context // ends at Close; made when needed
	cancel  context.CancelFunc
	closed  bool
	cuts    int               // calls to Cut
	moved   map[string]string // servers by the addresses that Redirect moved
	traffic Traffic

	pairMu sync.Mutex
	pairs  net.Listener // makes the connections of DialContext
}

// faults are the disturbances of a Wire.
type faults struct {
	cut    bool
	hold   Direction
	drop   Direction
	lose   bool
	delay  [Both]time.Duration // by Direction
	garble *garbler
}

// Direction is one of the two directions of a [Wire], or both.
type Direction uint8

const (
	Requests Direction = 1 << iota // from the client to the server
	Replies                        // from the server to the client
	Both     = Requests | Replies
)

// Traffic counts the traffic of a [Wire] so far. A test that disturbs a Wire
// should check that the disturbance happened.
type Traffic struct {
	Connections int   // connections that were made
	Open        int   // connections that exist now
	Cut         int   // connections that the Wire broke
	Requests    int64 // bytes that reached a server
	Replies     int64 // bytes that reached the client
	Held        int64 // bytes that had to wait for Heal, or are still waiting
	Dropped     int64 // bytes that vanished
	Garbled     int64 // bytes that were changed
}

// Cut breaks all connections, including those being made, and refuses new ones
// until Heal. Held bytes are lost.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults.cut = true
	w.cuts++
	for _, p := range w.proxies {
		p.refuse()
	}
	for l := range w.links {
		l.cut()
	}
	w.notify()
}

// Hold stops the bytes in a direction on all connections and prevents new
// connections, like a black hole. Neither side can know when it will end. Heal
// delivers the bytes late, even if their sender has closed the connection in
// the meantime. If they must never arrive, call Cut before Heal.
func (w *Wire) Hold(d Direction) {
	w.disturb(d, func(f *faults) { f.hold |= d })
}

// Drop makes the bytes in a direction vanish on all connections and prevents
// new connections. A connection on which bytes have vanished is useless
// afterwards, so Heal breaks it.
func (w *Wire) Drop(d Direction) {
	w.disturb(d, func(f *faults) { f.drop |= d })
}

// Strand makes every open connection lose all bytes in both directions, like a
// router that has forgotten the connection. Neither side is notified. New
// connections work. Heal breaks the stranded connections.
func (w *Wire) Strand() {
	w.mu.Lock()
	links := w.all()
	for _, l := range links {
		l.stranded, l.torn = true, true
	}
	w.notify()
	w.mu.Unlock()
	flush(links, Both)
}

// Redirect makes new connections to the server at target lead to another
// server, like a virtual address that has moved. Open connections stay with the
// old server.
func (w *Wire) Redirect(target, to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.moved == nil {
		w.moved = map[string]string{}
	}
	w.moved[target] = to
}

// route returns where connections to target lead.
func (w *Wire) route(target string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if to, moved := w.moved[target]; moved {
		return to
	}
	return target
}

// LoseReplies breaks each connection when the next reply arrives on it, instead
// of delivering the reply. Requests are carried out, but the client is not
// notified. The server sees the end of the connection only after all earlier
// requests.
func (w *Wire) LoseReplies() {
	w.disturb(Replies, func(f *faults) { f.lose = true })
}

// Delay makes the bytes in a direction arrive late. It does not slow down new
// connections.
func (w *Wire) Delay(d Direction, late time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.faults.delay {
		if d&Direction(one) != 0 {
			w.faults.delay[one] = late
		}
	}
}

// Garble changes, on average, a fraction 1/every of the bytes of replies. The
// seed decides which bytes change and to which values. Heal breaks the
// connections on which bytes were changed.
func (w *Wire) Garble(seed uint64, every int) {
	w.disturb(Replies, func(f *faults) { f.garble = &garbler{rand.New(rand.NewPCG(seed, 0)), every} })
}

// Heal ends all disturbances, forgets the request of a trap, and delivers the
// bytes that were held.
func (w *Wire) Heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults, w.trap = faults{}, nil
	for _, p := range w.proxies {
		if p.ln == nil && !w.closed {
			w.open(p)
		}
	}
	for l := range w.links {
		l.stuck = false
		if l.torn {
			l.cut()
		} else if !l.silent {
			l.trap = nil
		}
	}
	w.notify()
}

// disturb adds to the faults. It returns when earlier bytes in direction d have
// passed or are stopped.
func (w *Wire) disturb(d Direction, add func(*faults)) {
	w.mu.Lock()
	add(&w.faults)
	w.notify()
	links := w.all()
	w.mu.Unlock()
	flush(links, d)
}

// all returns the links. w.mu is held.
func (w *Wire) all() []*link { return slices.Collect(maps.Keys(w.links)) }

// Traffic returns what has happened so far.
func (w *Wire) Traffic() Traffic {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.traffic
	t.Open = len(w.links)
	return t
}

// Close breaks all connections, closes the proxies, and waits until all
// goroutines of the Wire have ended. Later attempts to connect fail.
func (w *Wire) Close() {
	w.mu.Lock()
	w.closed = true
	for _, p := range w.proxies {
		p.refuse()
		p.keeper.Close()
	}
	for _, ln := range w.served {
		ln.Close()
	}
	for l := range w.links {
		l.cut()
	}
	if w.cancel != nil {
		w.cancel()
	}
	w.notify()
	w.mu.Unlock()

	w.pairMu.Lock()
	if w.pairs != nil {
		w.pairs.Close()
	}
	w.pairMu.Unlock()
	w.wg.Wait()
}

// wait returns a channel that is closed at the next change. w.mu is held.
func (w *Wire) wait() <-chan struct{} {
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.changed
}

// notify wakes the callers that are waiting for a change. w.mu is held.
func (w *Wire) notify() {
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}
