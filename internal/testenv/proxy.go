package testenv

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// Direction is one of the two ways, or both, through a [Proxy].
type Direction int

const (
	Requests Direction = 1 << iota // from clients to the server
	Replies                        // from the server to clients
	Both     = Requests | Replies
)

// Proxy forwards TCP connections to a server, and breaks them on demand. Its methods may be called concurrently; what they say holds
// when they return.
type Proxy struct {
	// Addr is where clients connect, as host:port.
	Addr string

	tb     testing.TB
	target string
	wg     sync.WaitGroup // all goroutines; they end with their link or the listener

	mu       sync.Mutex
	changed  sync.Cond // broadcast when anything below changes, links included
	listener net.Listener
	links    map[*link]bool
	frozen   Direction
	drop     bool
	garbler  *garbler // nil: replies are passed on as they are
	trap     *trap
}

// garbler changes bytes of replies.
type garbler struct {
	rand  *rand.Rand
	every int
}

// trap waits for a request.
type trap struct {
	part   []byte
	cut    bool // cut the connection; otherwise hold all replies
	sprung chan struct{}
}

// NewProxy starts a proxy in front of the server at target (host:port). It ends with the test.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	p := &Proxy{
		Addr:   fmt.Sprintf("127.0.0.1:%d", freePort(tb)),
		tb:     tb,
		target: target,
		links:  make(map[*link]bool),
	}
	p.changed.L = &p.mu
	p.Heal()
	tb.Cleanup(func() {
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Connections returns how many connections go through the proxy.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Cut resets all connections on both sides, drops what was held, and refuses new connections until Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
	var cut []*link
	for l := range p.links {
		p.reset(l)
		cut = append(cut, l)
	}
	for _, l := range cut {
		for l.running > 0 {
			p.changed.Wait()
		}
	}
}

// Heal ends all that the other methods began: it accepts connections, delivers what was held, drops no more, and forgets the
// request that was waited for. Connections that lost bytes are reset.
func (p *Proxy) Heal() {
	p.tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		listener, err := net.Listen("tcp", p.Addr)
		if err != nil {
			p.tb.Fatal(err)
		}
		p.listener = listener
		p.wg.Go(func() { p.accept(listener) })
	}
	for l := range p.links {
		if l.lost {
			p.reset(l)
		}
	}
	p.frozen, p.drop, p.garbler, p.trap = 0, false, nil, nil
	p.changed.Broadcast()
}

// Freeze makes a black hole of one direction or both: connections stay open and new ones are accepted, but what is sent, the end of
// a connection included, is held until Thaw.
func (p *Proxy) Freeze(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freeze(d)
}

// Thaw delivers what was held in a direction, and goes on.
func (p *Proxy) Thaw(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen &^= d
	p.changed.Broadcast()
}

// DropReplies forwards requests but throws away what the server sends from now on, until Heal.
func (p *Proxy) DropReplies() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop = true
}

// LostReplies reports whether replies to a connection that is still there were thrown away or changed.
func (p *Proxy) LostReplies() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.lost {
			return true
		}
	}
	return false
}

// Garble changes bytes of what the server sends from now on, one of every so many on average, until Heal. The seed decides which.
func (p *Proxy) Garble(seed uint64, every int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.garbler = &garbler{rand.New(rand.NewPCG(seed, 0)), every}
}

// CutAfterRequest waits for a request that contains part. It forwards it (and what the client sent together with it), lets the server
// handle it to the end, throws the answer away and resets that connection. Other connections, and later ones, are not touched. The
// channel is closed when the connection is reset.
//
// To let the server handle the request, the proxy ends the connection behind it and waits until the server does the same; Redis
// does so when it has run all that it received. For a server that abandons its work when a client hangs up there is HoldAfterRequest.
//
// Both look at what the client sends in one piece: a small write that is not encrypted.
func (p *Proxy) CutAfterRequest(part string) <-chan struct{} {
	return p.setTrap(part, true)
}

// HoldAfterRequest waits for a request that contains part, forwards it, and holds the replies to all connections from the moment
// before it. The channel is closed when the request has been forwarded. The test can then look at the server until the request shows
// there, and go on with Cut (the answer is lost), Thaw (it is late) or Heal.
func (p *Proxy) HoldAfterRequest(part string) <-chan struct{} {
	return p.setTrap(part, false)
}

func (p *Proxy) setTrap(part string, cut bool) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trap = &trap{part: []byte(part), cut: cut, sprung: make(chan struct{})}
	return p.trap.sprung
}

// freeze returns when no write in d is under way; p.mu is let go meanwhile.
func (p *Proxy) freeze(d Direction) {
	p.frozen |= d
	for l := range p.links {
		p.interrupt(&l.up, d)
		p.interrupt(&l.down, d)
	}
}
