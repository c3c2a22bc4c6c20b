// Package redistopic listens to the channels by which Redis tells the end of holds: one subscription for each name that is waited for, however
// many wait.
package redistopic

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/lifecycle"
)

// linger is how long a subscription outlives its last waiter, so that a name that is contended again and again costs no
// subscription each time.
const linger = 250 * time.Millisecond

// Options are what the driver decides.
type Options struct {
	Life    *lifecycle.Lifecycle           // whose context ends the connections
	Channel func(name string) string       // that tells the end of holds of a name
	Kinds   func() (plain, sharded bool)   // of channels that are subscribed to
	Connect func(node string) (Conn, bool) // to a node of the cluster, or to the only one: "". It fails if the node is not known any more
	Shards  Shards                         // nil outside of a cluster
}

// Conn is a connection for subscriptions.
type Conn struct {
	rueidis.DedicatedClient
	End func()
}

// Shards knows which node of a cluster has a sharded channel.
type Shards interface {
	Refresh(ctx context.Context) error // unless that was done of late
	Expire()                           // has the next Refresh ask
	Node(channel string) string        // "" if it is not known
}

// Groups is how many groups of waiters a channel can have: those of a group wait for the same, so that one of them asks for all.
const Groups = 3

// Listener keeps the subscriptions of a driver: one for each name that is waited for, however many wait, over one connection (in a
// cluster with sharded channels over one to each node).
type Listener struct {
	options Options
	active  atomic.Int64 // len(hubs), for a look without the mutex

	mu     sync.Mutex
	closed bool
	hubs   map[string]*hub // by channel
	feeds  map[feedKey]*feed
	router *router // where sharded channels in a cluster begin
	left   []leaving
	timer  *time.Timer // for the first of left
}

// hub is a channel that is waited for.
type hub struct {
	listener *Listener
	channel  string

	// Guarded by Listener.mu.
	topics  [Groups]Topic
	waiters int // of all groups
	leaves  int // how often waiters fell to 0
	subs    []*subscription
}

// Topic is one group of the waiters of a channel.
type Topic struct {
	hub *hub

	// Wake holds a value when somebody of the group should ask for the lock: the channel had a message, or was subscribed to, since the
	// last time. Who takes it asks, or passes it on.
	Wake chan struct{}

	waiters int // guarded by Listener.mu
}

// subscription is a hub on the server, by a plain or by a sharded channel.
type subscription struct {
	hub     *hub
	sharded bool
	active  bool // the server has confirmed it
}

// leaving is a hub that had its last waiter leave at a time.
type leaving struct {
	hub    *hub
	leaves int
	at     time.Time
}

// New returns a Listener that is subscribed to nothing.
func New(o Options) *Listener {
	ln := &Listener{options: o, hubs: make(map[string]*hub), feeds: make(map[feedKey]*feed)}
	ln.router = &router{listener: ln, kick: make(chan struct{}, 1)}
	return ln
}

// JoinActive adds a waiter to the topic of a name if that is subscribed already, and returns nil otherwise.
func (ln *Listener) JoinActive(name string) *Topic {
	if ln.active.Load() == 0 {
		return nil
	}
	return ln.JoinActiveChannel(ln.options.Channel(name), 0)
}

// JoinActiveChannel is JoinActive for a group of waiters of a channel.
func (ln *Listener) JoinActiveChannel(channel string, group int) *Topic {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	h := ln.hubs[channel]
	if h == nil || !h.subscribed() {
		return nil
	}
	return h.enter(group)
}

// enter adds a waiter. What woke those of its group that were there before is nothing to the first one that comes after them.
func (h *hub) enter(group int) *Topic {
	t := &h.topics[group]
	h.waiters++
	if t.waiters++; t.waiters > 1 {
		return t
	}
	if t.Wake == nil {
		t.hub, t.Wake = h, make(chan struct{}, 1)
	}
	select {
	case <-t.Wake:
	default:
	}
	return t
}

// Join adds a waiter to the topic of a name. There will be a value in Wake when the server has confirmed the subscription, or at
// once where it has before: what happened until then could have been missed.
func (ln *Listener) Join(name string) *Topic { return ln.JoinChannel(ln.options.Channel(name), 0) }

// JoinChannel is Join for a group of waiters of a channel.
func (ln *Listener) JoinChannel(channel string, group int) *Topic {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	h := ln.hubs[channel]
	if h == nil {
		h = &hub{listener: ln, channel: channel}
		ln.hubs[channel] = h
		ln.active.Add(1)
		if !ln.closed {
			ln.subscribe(h)
		}
	}
	t := h.enter(group)
	if h.subscribed() {
		t.poke()
	}
	return t
}

// subscribe begins the subscriptions of a new hub. It is called with mu held.
func (ln *Listener) subscribe(h *hub) {
	plain, sharded := ln.options.Kinds()
	if plain {
		s := &subscription{hub: h}
		h.subs = append(h.subs, s)
		ln.feed(feedKey{}).add(s)
	}
	if sharded {
		s := &subscription{hub: h, sharded: true}
		h.subs = append(h.subs, s)
		if ln.options.Shards != nil {
			ln.router.place(s)
		} else {
			ln.feed(feedKey{sharded: true}).add(s)
		}
	}
}

// Leave takes a waiter off. One that took a value from Wake and did not get to ask, or got no clear answer, passes it on.
func (t *Topic) Leave(pass bool) {
	h := t.hub
	ln := h.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	t.leave(pass)
	if h.waiters > 0 {
		return
	}
	h.leaves++
	ln.left = append(ln.left, leaving{h, h.leaves, time.Now().Add(linger)})
	if len(ln.left) > 1 || ln.closed {
		return
	}
	if ln.timer == nil {
		ln.timer = time.AfterFunc(linger, ln.sweep)
	} else {
		ln.timer.Reset(linger)
	}
}

// LeaveForGood is Leave where there is nothing to listen for any more, so that the subscription does not linger.
func (t *Topic) LeaveForGood() {
	h := t.hub
	ln := h.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	t.leave(true)
	if h.waiters == 0 && !ln.closed {
		h.leaves++ // it is no business of sweep
		ln.drop(h)
	}
}

// leave takes a waiter off. It is called with Listener.mu held.
func (t *Topic) leave(pass bool) {
	t.waiters--
	t.hub.waiters--
	if pass {
		t.poke()
	}
}

// drop ends the subscriptions of a hub. It is called with mu held.
func (ln *Listener) drop(h *hub) {
	delete(ln.hubs, h.channel)
	ln.active.Add(-1)
	for _, s := range h.subs {
		ln.unsubscribe(s)
	}
}

// sweep ends the subscriptions of hubs that nobody came back to.
func (ln *Listener) sweep() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	now := time.Now()
	for len(ln.left) > 0 && !ln.closed {
		l := ln.left[0]
		if now.Before(l.at) {
			ln.timer.Reset(l.at.Sub(now))
			return
		}
		ln.left = ln.left[1:]
		if l.hub.waiters > 0 || l.hub.leaves != l.leaves {
			continue
		}
		ln.drop(l.hub)
	}
	ln.left = nil
}

// subscribed reports whether every message from now on will arrive, as far as one can know. It is called with Listener.mu held.
func (h *hub) subscribed() bool {
	for _, s := range h.subs {
		if !s.active {
			return false
		}
	}
	return len(h.subs) > 0
}

// poke lets one waiter of each group ask. It is called with Listener.mu held.
func (h *hub) poke() {
	for i := range h.topics {
		h.topics[i].poke()
	}
}

// poke lets one waiter of the group ask, if there is any. It is called with Listener.mu held.
func (t *Topic) poke() {
	if t.waiters == 0 {
		return
	}
	select {
	case t.Wake <- struct{}{}:
	default:
	}
}

// Own returns how many subscriptions of this driver receive a message to the waiters of a name.
func (ln *Listener) Own(name string) int {
	if ln.active.Load() == 0 {
		return 0
	}
	return ln.OwnOfChannel(ln.options.Channel(name))
}

// OwnOfChannel is Own for a channel.
func (ln *Listener) OwnOfChannel(channel string) int {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	n := 0
	if h := ln.hubs[channel]; h != nil {
		for _, s := range h.subs {
			if s.active {
				n++
			}
		}
	}
	return n
}

// Idle reports whether nobody waits, and no subscription lingers.
func (ln *Listener) Idle() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return len(ln.hubs)+len(ln.left) == 0
}

// Close ends the listening; the connections end with the driver.
func (ln *Listener) Close() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.closed = true
	if ln.timer != nil {
		ln.timer.Stop()
	}
}
