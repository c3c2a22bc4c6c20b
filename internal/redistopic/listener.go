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

// Listener keeps the subscriptions of a driver: one for each name that is waited for, however many wait, over one connection (in a
// cluster with sharded channels over one to each node).
type Listener struct {
	options Options
	active  atomic.Int64 // len(topics), for a look without the mutex

	mu     sync.Mutex
	closed bool
	topics map[string]*Topic // by channel
	feeds  map[feedKey]*feed
	router *router // where sharded channels in a cluster begin
	left   []leaving
	timer  *time.Timer // for the first of left
}

// Topic is the channel of a name that is waited for.
type Topic struct {
	listener *Listener
	channel  string

	// Wake holds a value when somebody should ask for the lock: the channel had a message, or was subscribed to, since the last
	// time. Who takes it asks, or passes it on.
	Wake chan struct{}

	// Guarded by Listener.mu.
	waiters int
	leaves  int // how often waiters fell to 0
	subs    []*subscription
}

// subscription is a topic on the server, by a plain or by a sharded channel.
type subscription struct {
	topic   *Topic
	sharded bool
	active  bool // the server has confirmed it
}

// leaving is a topic that had its last waiter leave at a time.
type leaving struct {
	topic  *Topic
	leaves int
	at     time.Time
}

// New returns a Listener that is subscribed to nothing.
func New(o Options) *Listener {
	ln := &Listener{options: o, topics: make(map[string]*Topic), feeds: make(map[feedKey]*feed)}
	ln.router = &router{listener: ln, kick: make(chan struct{}, 1)}
	return ln
}

// JoinActive adds a waiter to the topic of a name if that is subscribed already, and returns nil otherwise.
func (ln *Listener) JoinActive(name string) *Topic {
	if ln.active.Load() == 0 {
		return nil
	}
	channel := ln.options.Channel(name)
	ln.mu.Lock()
	defer ln.mu.Unlock()
	t := ln.topics[channel]
	if t == nil || !t.subscribed() {
		return nil
	}
	t.enter()
	return t
}

// enter adds a waiter. What woke those that were there before is nothing to the first one that comes after them.
func (t *Topic) enter() {
	if t.waiters++; t.waiters > 1 {
		return
	}
	select {
	case <-t.Wake:
	default:
	}
}

// Join adds a waiter to the topic of a name. There will be a value in Wake when the server has confirmed the subscription, or at
// once where it has before: what happened until then could have been missed.
func (ln *Listener) Join(name string) *Topic { return ln.JoinChannel(ln.options.Channel(name)) }

// JoinChannel is Join for a channel.
func (ln *Listener) JoinChannel(channel string) *Topic {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	t := ln.topics[channel]
	if t == nil {
		t = &Topic{listener: ln, channel: channel, Wake: make(chan struct{}, 1)}
		ln.topics[channel] = t
		ln.active.Add(1)
		if !ln.closed {
			ln.subscribe(t)
		}
	}
	t.enter()
	if t.subscribed() {
		t.poke()
	}
	return t
}

// subscribe begins the subscriptions of a new topic. It is called with mu held.
func (ln *Listener) subscribe(t *Topic) {
	plain, sharded := ln.options.Kinds()
	if plain {
		s := &subscription{topic: t}
		t.subs = append(t.subs, s)
		ln.feed(feedKey{}).add(s)
	}
	if sharded {
		s := &subscription{topic: t, sharded: true}
		t.subs = append(t.subs, s)
		if ln.options.Shards != nil {
			ln.router.place(s)
		} else {
			ln.feed(feedKey{sharded: true}).add(s)
		}
	}
}

// Leave takes a waiter off. One that took a value from Wake and did not get to ask, or got no clear answer, passes it on.
func (t *Topic) Leave(pass bool) {
	ln := t.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	t.waiters--
	if pass {
		t.poke()
	}
	if t.waiters > 0 {
		return
	}
	t.leaves++
	ln.left = append(ln.left, leaving{t, t.leaves, time.Now().Add(linger)})
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
	ln := t.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	t.waiters--
	t.poke()
	if t.waiters == 0 && !ln.closed {
		t.leaves++ // it is no business of sweep
		ln.drop(t)
	}
}

// drop ends the subscriptions of a topic. It is called with mu held.
func (ln *Listener) drop(t *Topic) {
	delete(ln.topics, t.channel)
	ln.active.Add(-1)
	for _, s := range t.subs {
		ln.unsubscribe(s)
	}
}

// sweep ends the subscriptions of topics that nobody came back to.
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
		if l.topic.waiters > 0 || l.topic.leaves != l.leaves {
			continue
		}
		ln.drop(l.topic)
	}
	ln.left = nil
}

// subscribed reports whether every message from now on will arrive, as far as one can know. It is called with Listener.mu held.
func (t *Topic) subscribed() bool {
	for _, s := range t.subs {
		if !s.active {
			return false
		}
	}
	return len(t.subs) > 0
}

// poke lets one waiter ask, if there is any. It is called with Listener.mu held.
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
	ln.mu.Lock()
	defer ln.mu.Unlock()
	n := 0
	if t := ln.topics[ln.options.Channel(name)]; t != nil {
		for _, s := range t.subs {
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
	return len(ln.topics)+len(ln.left) == 0
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
