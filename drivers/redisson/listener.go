package redisson

import (
	"sync"
	"sync/atomic"
	"time"
)

// linger is how long a subscription outlives its last waiter, so that a name that is contended again and again costs no
// subscription each time.
const linger = 250 * time.Millisecond

// listener keeps the subscriptions of a driver: one for each name that is waited for, however many wait, over one connection (in a
// cluster with sharded channels over one to each node).
type listener struct {
	driver *Driver
	active atomic.Int64 // len(topics), for a look without the mutex

	mu     sync.Mutex
	closed bool
	topics map[string]*topic // by channel
	feeds  map[feedKey]*feed
	router *router // where sharded channels in a cluster begin
	left   []leaving
	timer  *time.Timer // for the first of left
}

// topic is the channel of a name that is waited for.
type topic struct {
	listener *listener
	channel  string

	// wake holds a value when somebody should ask for the lock: the channel had a message, or was subscribed to, since the last
	// time. Who takes it asks, or passes it on.
	wake chan struct{}

	// Guarded by listener.mu.
	waiters int
	leaves  int // how often waiters fell to 0
	subs    []*subscription
}

// subscription is a topic on the server, by a plain or by a sharded channel.
type subscription struct {
	topic   *topic
	sharded bool
	active  bool // the server has confirmed it
}

// leaving is a topic that had its last waiter leave at a time.
type leaving struct {
	topic  *topic
	leaves int
	at     time.Time
}

func newListener(d *Driver) *listener {
	ln := &listener{driver: d, topics: make(map[string]*topic), feeds: make(map[feedKey]*feed)}
	ln.router = &router{listener: ln, kick: make(chan struct{}, 1)}
	return ln
}

// joinActive adds a waiter to the topic of a name if that is subscribed already, and returns nil otherwise.
func (ln *listener) joinActive(name string) *topic {
	if ln.active.Load() == 0 {
		return nil
	}
	channel := prefixName(channelPrefix, name)
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
func (t *topic) enter() {
	if t.waiters++; t.waiters > 1 {
		return
	}
	select {
	case <-t.wake:
	default:
	}
}

// join adds a waiter to the topic of a name. There will be a value in wake when the server has confirmed the subscription, or at
// once where it has before: what happened until then could have been missed.
func (ln *listener) join(name string) *topic {
	return ln.joinChannel(prefixName(channelPrefix, name))
}

// joinChannel is join for a channel.
func (ln *listener) joinChannel(channel string) *topic {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	t := ln.topics[channel]
	if t == nil {
		t = &topic{listener: ln, channel: channel, wake: make(chan struct{}, 1)}
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
func (ln *listener) subscribe(t *topic) {
	mode := ln.driver.checked.pubSub
	if mode != PubSubSharded {
		s := &subscription{topic: t}
		t.subs = append(t.subs, s)
		ln.feed(feedKey{}).add(s)
	}
	if mode != PubSubPlain {
		s := &subscription{topic: t, sharded: true}
		t.subs = append(t.subs, s)
		if ln.driver.cluster {
			ln.router.place(s)
		} else {
			ln.feed(feedKey{sharded: true}).add(s)
		}
	}
}

// leave takes a waiter off. One that took a value from wake and did not get to ask, or got no clear answer, passes it on.
func (t *topic) leave(pass bool) {
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

// leaveSealed is leave where the name is sealed: there is nothing to listen for any more, and who watches the old backend of a migration
// must not take those who only ask for those who wait.
func (t *topic) leaveSealed() {
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
func (ln *listener) drop(t *topic) {
	delete(ln.topics, t.channel)
	ln.active.Add(-1)
	for _, s := range t.subs {
		ln.unsubscribe(s)
	}
}

// sweep ends the subscriptions of topics that nobody came back to.
func (ln *listener) sweep() {
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

// subscribed reports whether every message from now on will arrive, as far as one can know. It is called with listener.mu held.
func (t *topic) subscribed() bool {
	for _, s := range t.subs {
		if !s.active {
			return false
		}
	}
	return len(t.subs) > 0
}

// poke lets one waiter ask, if there is any. It is called with listener.mu held.
func (t *topic) poke() {
	if t.waiters == 0 {
		return
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// own returns how many subscriptions of this driver receive a message to the waiters of a name.
func (ln *listener) own(name string) int {
	if ln.active.Load() == 0 {
		return 0
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	n := 0
	if t := ln.topics[prefixName(channelPrefix, name)]; t != nil {
		for _, s := range t.subs {
			if s.active {
				n++
			}
		}
	}
	return n
}

// contended tells from the number of receivers of a message, own of them this driver's, whether other clients wait. In a cluster a
// plain message is counted where it was sent only.
func (d *Driver) contended(told int64, own int) bool {
	return told > int64(own) || d.cluster && d.checked.pubSub != PubSubSharded
}

// close ends the listening; the feeds end with the driver.
func (ln *listener) close() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.closed = true
	if ln.timer != nil {
		ln.timer.Stop()
	}
}
