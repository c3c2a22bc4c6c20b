// Package wire puts a network that can be disturbed between a client and its servers, for tests:
//
//	w := new(wire.Wire)
//	defer w.Close()
//	addr, err := w.Listen("tcp", server) // or give w.DialContext to the client library
//	...
//	w.Hold(wire.Replies) // the server carries out what it is asked, and its answers stay on the way
//	...
//	w.Heal()
//
// What can go wrong, on all connections at once:
//
//   - [Wire.Cut] breaks connections, [Wire.Refuse] the making of new ones.
//   - [Wire.Hold] stops a direction and [Wire.Drop] loses what flows in it, with the connections open: the client does not get to know.
//   - [Wire.LoseReplies] lets requests arrive and breaks the connection in place of the reply.
//   - [Wire.Delay] makes a direction late, [Wire.Slice] cuts the stream into small pieces.
//
// A single request is met by its text: [Wire.AfterRequest] loses the reply to that request, [Wire.HoldRequest] stops the request
// itself. [Wire.Traffic] tells what was disturbed: a test that sees nothing there has disturbed nothing.
//
// conformance.LinkOver lets the conformance suite disturb a Wire.
package wire

import (
	"context"
	"net"
	"sync"
	"time"
)

// A Wire is the network between one client and its servers, and can be disturbed. A client library connects through it by
// [Wire.DialContext], or, if it cannot take a dialer, by the address of a proxy ([Wire.Listen]). The zero Wire is a healthy network.
//
// Client and server talk over real sockets, with the Wire between them; so deadlines work whatever the Wire does, and what a client
// writes while nothing gets through is accepted, as by a real network. A disturbance is in force when its method returns: not a byte
// passes after that which should not. It lasts until [Wire.Heal]. All methods may be called concurrently.
type Wire struct {
	// Dial connects to a server. The default is that of a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	wg sync.WaitGroup // all goroutines; each ends with its connection or listener

	mu        sync.Mutex
	faults    faults
	traps     []*trap
	links     map[*link]bool
	listeners []net.Listener
	changed   chan struct{}   // closed when anything changes that somebody may wait for; nil if nobody does
	ctx       context.Context // ends with Close; made when needed
	cancel    context.CancelFunc
	closed    bool
	traffic   Traffic

	pairMu sync.Mutex
	pairs  net.Listener // makes the connections that DialContext returns
}

// faults is what is wrong with a Wire.
type faults struct {
	refuse bool
	hold   Direction
	drop   Direction
	lose   bool
	delay  [Both]time.Duration // by Direction
	slice  int
}

// Direction is one of the two ways through a [Wire], or both.
type Direction uint8

const (
	Requests Direction = 1 << iota // from the client to the server
	Replies                        // from the server to the client
	Both     = Requests | Replies
)

// Traffic is what has happened on a [Wire] so far. A test that disturbs a Wire should see here that it did.
type Traffic struct {
	Connections int   // that were made
	Cut         int   // connections that the Wire broke
	Requests    int64 // bytes that reached a server
	Replies     int64 // bytes that reached the client
	Held        int64 // bytes that had to wait for Heal, or still do
	Dropped     int64 // bytes that vanished
}

// Cut breaks all connections. New ones can be made at once; for a network that is down, call Refuse as well, before.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.links {
		l.cut()
	}
}

// Refuse makes every attempt to connect fail. A proxy accepts connections and breaks them at once.
func (w *Wire) Refuse() {
	w.disturb(func(f *faults) { f.refuse = true })
}

// Hold stops what flows in a direction, on all connections, and the making of new ones: a black hole, of which neither side can know
// when it will end. Heal delivers what was held, late, also if its sender has closed the connection meanwhile. If it is never to
// arrive, call Cut before Heal.
func (w *Wire) Hold(d Direction) {
	w.disturb(func(f *faults) { f.hold |= d })
}

// Drop makes what flows in a direction vanish, on all connections, and stops the making of new ones. A connection on which something
// has vanished is of no use any more: Heal breaks it.
func (w *Wire) Drop(d Direction) {
	w.disturb(func(f *faults) { f.drop |= d })
}

// LoseReplies breaks each connection when the next reply arrives on it, instead of delivering the reply: requests are carried out,
// but the client does not get to know. The server sees the end of the connection only after all that was sent before it.
func (w *Wire) LoseReplies() {
	w.disturb(func(f *faults) { f.lose = true })
}

// Delay makes what flows in a direction arrive by late. Connections are not made more slowly.
func (w *Wire) Delay(d Direction, late time.Duration) {
	w.disturb(func(f *faults) {
		for one := range f.delay {
			if d&Direction(one) != 0 {
				f.delay[one] = late
			}
		}
	})
}

// Slice makes everything pass in pieces of at most n bytes.
func (w *Wire) Slice(n int) {
	w.disturb(func(f *faults) { f.slice = n })
}

// Heal ends all disturbances, forgets what AfterRequest and HoldRequest still wait for, and delivers what was held.
func (w *Wire) Heal() {
	w.disturb(func(f *faults) {
		*f = faults{}
		w.traps = nil
		for l := range w.links {
			if !l.silent {
				l.trap, l.held = nil, false
			}
		}
	})
}

// disturb changes the faults, and returns when what was on its way before has passed or is stopped.
func (w *Wire) disturb(change func(*faults)) {
	w.mu.Lock()
	before := w.faults
	change(&w.faults)
	stricter := (w.faults.hold|w.faults.drop)&^(before.hold|before.drop) != 0 || w.faults.lose && !before.lose
	var links []*link
	for l := range w.links {
		if l.torn && w.faults.drop == 0 {
			l.cut()
		} else if stricter {
			links = append(links, l)
		}
	}
	w.notify()
	w.mu.Unlock()
	for _, l := range links {
		l.requests.settle()
		l.replies.settle()
	}
}

// trap waits for a request that contains match.
type trap struct {
	match  []byte
	hold   bool          // the request, rather than lose its reply
	sprung chan struct{} // closed when the request is held, or its reply lost
}

// AfterRequest waits for the next request that contains match, which may be empty for any, lets it pass, and breaks its connection
// when the reply arrives: the request was carried out, but the client does not get to know. The channel is closed then, or when the
// connection breaks for another reason. A request may be sent in pieces; match may not be longer than 4 KiB.
//
// The reply is taken to be what arrives next on the connection. Where several requests share one, as in HTTP/2, that may be
// something else; and under TLS only an empty match is of use.
func (w *Wire) AfterRequest(match string) <-chan struct{} {
	t := &trap{match: []byte(match), sprung: make(chan struct{})}
	w.set(t)
	return t.sprung
}

// HoldRequest waits for the next request that contains match, as AfterRequest does, and holds it, with all that follows it on the
// same connection. Other connections are not disturbed. The channel is closed when the request is held; from then on, deliver lets it
// pass, as does Heal. The client may close the connection before that.
func (w *Wire) HoldRequest(match string) (held <-chan struct{}, deliver func()) {
	t := &trap{match: []byte(match), hold: true, sprung: make(chan struct{})}
	w.set(t)
	return t.sprung, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for l := range w.links {
			if l.trap == t {
				l.held = false
			}
		}
		w.notify()
	}
}

func (w *Wire) set(t *trap) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.traps = append(w.traps, t)
}

// Traffic returns what has happened so far.
func (w *Wire) Traffic() Traffic {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.traffic
}

// Close breaks all connections, closes the proxies, and waits until nothing is left of the Wire. Later attempts to connect fail.
func (w *Wire) Close() {
	w.mu.Lock()
	w.closed = true
	for _, l := range w.listeners {
		l.Close()
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

// notify wakes those that wait for a change. w.mu is held.
func (w *Wire) notify() {
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}
