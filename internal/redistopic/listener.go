// Package redistopic listens to the channels on which Redis announces the end
// of holds. It has one subscription for each name with waiters, regardless of
// their number.
package redistopic

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/lifecycle"
)

// lingerFor is how long a subscription outlives its last waiter, so that a name
// with frequent waits does not need a new subscription each time.
const lingerFor = 250 * time.Millisecond

// Options are the driver's decisions.
type Options struct {
	Life  *lifecycle.Lifecycle         // the connections end when its context ends
	Kinds func() (plain, sharded bool) // the kinds of channels to subscribe to
	// Connect connects to a node of the cluster, or to the only node if node is
	// "". It fails if the node is no longer known.
	Connect func(node string) (Conn, bool)
	Shards  Shards     // nil outside of a cluster
	Label   func() int // label of the database, or 0; nil if messages have none
}

// Conn is a connection for subscriptions.
type Conn struct {
	rueidis.DedicatedClient

	// End closes the connection, and handles messages until then. It must not
	// return an open connection to the client, which would unsubscribe (see
	// feed).
	End func()

	// Stale reports whether the client now uses another server. It may be nil.
	Stale func() bool
}

// Shards knows which node of a cluster has a sharded channel.
type Shards interface {
	Refresh(ctx context.Context) error // unless the last refresh was recent
	Expire()                           // makes the next Refresh query
	Node(channel string) string        // "" if the node is not known
}

// Groups is the number of groups of waiters that a channel can have. All
// waiters of a group wait for the same event, so one of them tries for all.
const Groups = 3

// Each is the group of waiters that wait for different events. A message wakes
// all of them.
const Each = -1

// Functions that are marked (mu) are called with Listener.mu held.

// Listener keeps the subscriptions of a driver: one for each name with waiters.
// They use one connection, or one to each node in a cluster with sharded
// channels.
type Listener struct {
	options Options
	active  atomic.Int64 // len(hubs)+len(heard), for reading without the mutex

	mu     sync.Mutex
	closed bool
	hubs   map[string]*hub // by channel
	// by channel: the number of subscriptions that the server has confirmed,
	// including unused channels
	heard  map[string]int
	feeds  map[feedKey]*feed
	router *router // where sharded channels in a cluster begin
	left   []leaving
	timer  *time.Timer // for the first of left
}

// hub is a channel with waiters.
type hub struct {
	listener *Listener
	channel  string

	// Guarded by Listener.mu.
	topics  [Groups]Topic
	each    []*Topic
	watches []*watch
	waiters int // number of waiters of all groups, including watches
	leaves  int // number of times that waiters fell to 0
	subs    []*subscription
}

// Topic is one group of the waiters of a channel.
type Topic struct {
	hub *hub

	// Wake holds a value when a waiter of the group should try to acquire the
	// lock. The waiter that takes the value tries, or passes it on.
	Wake chan struct{}

	waiters int  // guarded by Listener.mu
	turn    turn // turn of all waiters in a group; waiters of Each have no turn
}

type watch struct{ changed func() }

// subscription is the subscription of a hub on the server, to a plain or to a
// sharded channel.
type subscription struct {
	hub     *hub
	sharded bool
	active  bool // the server has confirmed the subscription
}

// leaving is a hub together with the time when its last waiter left.
type leaving struct {
	hub    *hub
	leaves int
	at     time.Time
}

// New returns a Listener without subscriptions.
func New(o Options) *Listener {
	ln := &Listener{options: o, hubs: make(map[string]*hub), heard: make(map[string]int), feeds: make(map[feedKey]*feed)}
	ln.router = &router{listener: ln}
	return ln
}

// JoinActive adds a waiter to a group of a channel if the channel is already
// subscribed to or, if pending is set, about to be. Otherwise it returns nil.
func (ln *Listener) JoinActive(channel string, group int, pending bool) *Topic {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	h := ln.hubs[channel]
	if h == nil || !pending && !h.subscribed() {
		return nil
	}
	return h.join(group)
}

// join adds a waiter. The first waiter of a group that was empty does not get a
// value from Wake that was meant for earlier waiters.
func (h *hub) join(group int) *Topic {
	h.waiters++
	if group == Each {
		t := &Topic{hub: h, Wake: make(chan struct{}, 1), waiters: 1}
		h.each = append(h.each, t)
		return t
	}
	t := &h.topics[group]
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
	t.turn.due, t.turn.owed, t.turn.ended = false, false, false
	return t
}

// Join adds a waiter to a group of a channel. Wake will hold a value once the
// server has confirmed the subscription, because earlier events may have been
// missed. If the server has already confirmed it, Wake holds a value
// immediately.
func (ln *Listener) Join(channel string, group int) *Topic {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	h := ln.hub(channel)
	t := h.join(group)
	if h.subscribed() {
		t.poke()
	}
	return t
}

// hub returns the hub of a channel (mu).
func (ln *Listener) hub(channel string) *hub {
	h := ln.hubs[channel]
	if h == nil {
		h = &hub{listener: ln, channel: channel}
		ln.hubs[channel] = h
		ln.note()
		if !ln.closed {
			ln.subscribe(h)
		}
	}
	return h
}

// Watch calls changed after each message of the channels, and whenever one of
// them was subscribed to, until stop is called. changed must not block.
func (ln *Listener) Watch(changed func(), channels ...string) (stop func()) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	w, hubs := &watch{changed}, make([]*hub, len(channels))
	for i, channel := range channels {
		h := ln.hub(channel)
		hubs[i] = h
		h.waiters++
		h.watches = append(h.watches, w)
		if h.subscribed() {
			changed()
		}
	}
	return func() {
		ln.mu.Lock()
		defer ln.mu.Unlock()
		for _, h := range hubs {
			h.watches = slices.DeleteFunc(h.watches, func(other *watch) bool { return other == w })
			ln.vacate(h, false)
		}
	}
}

// subscribe begins the subscriptions of a new hub (mu).
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

// Leave removes a waiter. A waiter that took a value from Wake and could not
// try, or got no clear answer, passes on the value.
func (t *Topic) Leave(pass bool) { t.leave(pass, false) }

// LeaveForGood is like Leave, but for a channel that will have no more events.
// The subscription does not linger.
func (t *Topic) LeaveForGood() { t.leave(true, true) }

func (t *Topic) leave(pass, forGood bool) {
	h := t.hub
	ln := h.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if t.waiters--; t.waiters == 0 && t.turn.timer != nil {
		t.turn.timer.Stop()
	}
	if i := slices.Index(h.each, t); i >= 0 {
		h.each = slices.Delete(h.each, i, i+1)
	}
	if pass {
		t.poke()
	}
	ln.vacate(h, forGood)
}

// vacate records that a waiter has left a hub. A hub without waiters is
// dropped. This happens immediately if the channel has no more events, and
// otherwise in sweep (mu).
func (ln *Listener) vacate(h *hub, forGood bool) {
	if h.waiters--; h.waiters > 0 || ln.closed {
		return
	}
	h.leaves++
	if forGood {
		ln.drop(h)
		return
	}
	switch ln.left = append(ln.left, leaving{h, h.leaves, time.Now().Add(lingerFor)}); {
	case len(ln.left) > 1:
	case ln.timer == nil:
		ln.timer = time.AfterFunc(lingerFor, ln.sweep)
	default:
		ln.timer.Reset(lingerFor)
	}
}

// drop ends the subscriptions of a hub (mu).
func (ln *Listener) drop(h *hub) {
	delete(ln.hubs, h.channel)
	ln.note()
	for _, s := range h.subs {
		ln.unsubscribe(s)
	}
}

// sweep ends the subscriptions of hubs without new waiters.
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

// subscribed reports whether, as far as is known, every message will arrive
// from now on (mu).
func (h *hub) subscribed() bool {
	for _, s := range h.subs {
		if !s.active {
			return false
		}
	}
	return len(h.subs) > 0
}

// poke lets one waiter of each group try, and calls all watches, because
// messages may have been missed (mu).
func (h *hub) poke() {
	for i := range h.topics {
		h.topics[i].poke()
	}
	h.others()
}

// others wakes the waiters that are in no group and calls the watches (mu).
func (h *hub) others() {
	for _, t := range h.each {
		t.poke()
	}
	for _, w := range h.watches {
		w.changed()
	}
}

// readerEnded is the message that a reader has ended while other readers
// remain. It concerns only watchers. To Redisson it is a meaningless number,
// and it never equals a message about permits, which is the number of permits.
const readerEnded = "9000000000000000000"

// heard handles a message. counts means that no other message reports the same
// event.
func (h *hub) heard(message string, counts bool) {
	if message == readerEnded {
		for _, w := range h.watches {
			w.changed()
		}
		return
	}
	own := 0
	if h.listener.options.Label != nil {
		own = h.listener.options.Label()
	}
	if label, left, granted, ok := readHeld(message); ok {
		for i := range h.topics {
			if label == 0 || own == 0 || label == own {
				h.topics[i].held(left, granted)
			}
		}
		return
	}
	if foreign(message, own) {
		return
	}
	for i := range h.topics {
		h.topics[i].released(counts)
	}
	h.others()
}

// poke lets one waiter of the group try, whether or not it is its turn (mu).
func (t *Topic) poke() {
	t.turn.owed = true
	t.wake()
}

// wake gives a value to one waiter of the group, if there is any (mu).
func (t *Topic) wake() {
	if t.waiters == 0 {
		return
	}
	select {
	case t.Wake <- struct{}{}:
	default:
	}
}

// Quiet reports whether there is no channel with waiters or subscriptions.
func (ln *Listener) Quiet() bool { return ln.active.Load() == 0 }

// Own returns the number of this driver's subscriptions that receive a message
// on a channel.
func (ln *Listener) Own(channel string) int {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.heard[channel]
}

// Unused returns the number of this driver's subscriptions to a channel that
// have no waiter.
func (ln *Listener) Unused(channel string) int {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	n := ln.heard[channel]
	if h := ln.hubs[channel]; h != nil && h.waiters > 0 {
		for _, s := range h.subs {
			if s.active {
				n--
			}
		}
	}
	return n
}

// count changes the number of subscriptions to a channel (mu).
func (ln *Listener) count(channel string, change int) {
	if ln.heard[channel] += change; ln.heard[channel] == 0 {
		delete(ln.heard, channel)
	}
	ln.note()
}

func (ln *Listener) note() { ln.active.Store(int64(len(ln.hubs) + len(ln.heard))) }

// Idle reports whether there is no waiter and no subscription left.
func (ln *Listener) Idle() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return len(ln.hubs)+len(ln.heard)+len(ln.left) == 0
}

// Close stops listening. The connections end when the driver is closed.
func (ln *Listener) Close() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.closed = true
	if ln.timer != nil {
		ln.timer.Stop()
	}
}
