package redlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/redisdial"
)

const (
	linger       = 250 * time.Millisecond // how long a channel is listened to after the last waiter left
	firstConnect = 10 * time.Millisecond  // pauses between attempts to connect
	lastConnect  = time.Second
)

// listener receives the messages of one node that tell the end of holds, over a connection of its own. They let waiters ask at once
// rather than at their next poll; nothing depends on them.
type listener struct {
	driver *Driver
	option rueidis.ClientOption
	dialer *redisdial.Dialer
	kick   chan struct{} // there is something to do
	active atomic.Int32  // topics that messages arrive for

	mu      sync.Mutex
	started bool
	topics  map[string]*topic // by channel
	todo    []subscription
}

// topic is a channel that is listened to. Its fields are guarded by listener.mu.
type topic struct {
	listener *listener
	channel  string
	wake     chan struct{} // a message that nobody has acted on
	users    int
	active   bool
	idle     int64 // since when it has no users
}

// subscription is a change of what is listened to.
type subscription struct {
	channel string
	end     bool
}

func newListener(d *Driver, o rueidis.ClientOption) *listener {
	ln := &listener{driver: d, kick: make(chan struct{}, 1), topics: make(map[string]*topic)}
	ln.dialer = redisdial.New(o.DialCtxFn)
	o.DialCtxFn = ln.dialer.Dial
	ln.option = o
	return ln
}

// joinActive is join for a channel that messages already arrive for, and nil for others. What arrived before is forgotten.
func (ln *listener) joinActive(name string) *topic {
	if ln.active.Load() == 0 {
		return nil
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	t := ln.topics[channel(name)]
	if t == nil || !t.active {
		return nil
	}
	if t.users == 0 {
		t.drain()
	}
	t.users++
	return t
}

// join begins to listen for the end of holds of name. The first message comes when that has begun.
func (ln *listener) join(name string) *topic {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	c := channel(name)
	t := ln.topics[c]
	if t == nil {
		t = &topic{listener: ln, channel: c, wake: make(chan struct{}, 1)}
		ln.topics[c] = t
		ln.do(subscription{channel: c})
	}
	t.users++
	if !ln.started {
		ln.started = ln.driver.life.Go(ln.run)
	}
	return t
}

// leave ends what join began. A message that the caller did not act on is passed on.
func (t *topic) leave(unused bool) {
	ln := t.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if t.users--; t.users == 0 {
		t.idle = ln.driver.now()
		ln.poke()
	} else if unused {
		t.poke()
	}
}

// poke has one waiter ask.
func (t *topic) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *topic) drain() {
	select {
	case <-t.wake:
	default:
	}
}

// own returns how many subscribers of the channel are this listener.
func (ln *listener) own(name string) int64 {
	if ln.active.Load() == 0 {
		return 0
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if t := ln.topics[channel(name)]; t != nil && t.active {
		return 1
	}
	return 0
}

// do adds a change. It is called with mu held.
func (ln *listener) do(s subscription) {
	ln.todo = append(ln.todo, s)
	ln.poke()
}

func (ln *listener) poke() {
	select {
	case ln.kick <- struct{}{}:
	default:
	}
}

// run ends with the driver.
func (ln *listener) run() {
	wait := firstConnect
	for {
		start := ln.driver.now()
		ln.serve(ln.driver.life.Context())
		ln.reset()
		if ln.driver.now()-start > int64(lastConnect) {
			wait = firstConnect
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ln.driver.life.Context().Done():
			timer.Stop()
			return
		}
		wait = min(2*wait, lastConnect)
	}
}

// serve connects and keeps the subscriptions until the connection is lost.
func (ln *listener) serve(ctx context.Context) {
	client, err := rueidis.NewClient(ln.option)
	if client != nil {
		defer client.Close()
	}
	if err != nil {
		return
	}
	c, giveBack := client.Dedicate()
	defer giveBack()
	lost := c.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: ln.message, OnSubscription: ln.confirmed})
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for {
		if wait := ln.expire(); wait > 0 {
			timer.Reset(wait)
		}
		if !ln.flush(ctx, c) {
			return
		}
		select {
		case <-ln.kick:
		case <-timer.C:
		case <-lost:
			return
		case <-ctx.Done():
			return
		}
	}
}

// expire ends what nobody has listened to for a while, and returns when to look again; 0: not by itself.
func (ln *listener) expire() (wait time.Duration) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	now := ln.driver.now()
	for c, t := range ln.topics {
		if t.users > 0 {
			continue
		}
		left := linger - time.Duration(now-t.idle)
		if left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			continue
		}
		delete(ln.topics, c)
		ln.deactivate(t)
		ln.do(subscription{channel: c, end: true})
	}
	return wait
}

// deactivate notes that no messages arrive for t. It is called with mu held.
func (ln *listener) deactivate(t *topic) {
	if t.active {
		t.active = false
		ln.active.Add(-1)
	}
}

// flush sends the changes, in order, and reports whether the connection still works.
func (ln *listener) flush(ctx context.Context, c rueidis.DedicatedClient) bool {
	ln.mu.Lock()
	todo := ln.todo
	ln.todo = nil
	ln.mu.Unlock()
	if len(todo) == 0 {
		return true
	}
	commands := make([]rueidis.Completed, len(todo))
	for i, s := range todo {
		if s.end {
			commands[i] = c.B().Unsubscribe().Channel(s.channel).Build()
		} else {
			commands[i] = c.B().Subscribe().Channel(s.channel).Build()
		}
	}
	for _, result := range c.DoMulti(ctx, commands...) {
		if result.NonRedisError() != nil { // a refusal, for want of a permission, leaves the polls
			return false
		}
	}
	return true
}

// message is called by the connection's reader.
func (ln *listener) message(m rueidis.PubSubMessage) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if t := ln.topics[m.Channel]; t != nil {
		t.poke()
	}
}

// confirmed is called by the connection's reader.
func (ln *listener) confirmed(s rueidis.PubSubSubscription) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	t := ln.topics[s.Channel]
	if s.Kind != "subscribe" || t == nil {
		return
	}
	if !t.active {
		t.active = true
		ln.active.Add(1)
	}
	t.poke() // a hold may have ended before
}

// reset prepares for a new connection.
func (ln *listener) reset() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.todo = nil
	for c, t := range ln.topics {
		ln.deactivate(t)
		ln.do(subscription{channel: c})
	}
}
