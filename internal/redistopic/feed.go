package redistopic

import (
	"context"
	"time"

	"github.com/redis/rueidis"
)

// Pauses between attempts to connect for subscriptions, and to place a subscription again that a node of a cluster refused.
const (
	firstConnect = 50 * time.Millisecond
	lastConnect  = 2 * time.Second
	placeAgain   = 300 * time.Millisecond
)

// feedKey names a feed: by the address of its node for sharded channels in a cluster, else there is one for each kind.
type feedKey struct {
	node    string
	sharded bool
}

// feed is a connection with subscriptions of one kind. While it is down it connects again and again, and subscribes to all
// of its channels anew; then one waiter of each channel asks, since messages may have been missed.
type feed struct {
	listener *Listener
	key      feedKey
	kick     chan struct{} // holds a value when there is something in todo

	// Guarded by Listener.mu.
	subs map[string]*subscription // by channel
	todo []command
}

// command is a change of the subscriptions that the server does not know yet.
type command struct {
	channel string
	end     bool
}

// feed returns the feed for key, and starts one if there is none. It is called with mu held.
func (ln *Listener) feed(key feedKey) *feed {
	f := ln.feeds[key]
	if f == nil {
		f = &feed{listener: ln, key: key, kick: make(chan struct{}, 1), subs: make(map[string]*subscription)}
		ln.feeds[key] = f
		ln.options.Life.Go(f.run)
	}
	return f
}

// add begins a subscription. It is called with Listener.mu held.
func (f *feed) add(s *subscription) {
	f.subs[s.hub.channel] = s
	f.do(command{channel: s.hub.channel})
}

// unsubscribe ends a subscription, wherever it is. It is called with mu held.
func (ln *Listener) unsubscribe(s *subscription) {
	s.active = false
	channel := s.hub.channel
	for _, f := range ln.feeds {
		if f.subs[channel] == s {
			delete(f.subs, channel)
			f.do(command{channel: channel, end: true})
		}
	}
}

func (f *feed) do(c command) {
	f.todo = append(f.todo, c)
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// run ends with the driver.
func (f *feed) run() {
	life := f.listener.options.Life
	ctx := life.Context()
	for wait := firstConnect; ; wait = min(2*wait, lastConnect) {
		start := time.Now()
		f.serve(ctx)
		if !f.reset() {
			return
		}
		if time.Since(start) > lastConnect {
			wait = firstConnect
		}
		if !life.Sleep(ctx, wait) {
			return
		}
	}
}

// serve connects and keeps the subscriptions until the connection is lost.
func (f *feed) serve(ctx context.Context) {
	c, ok := f.listener.options.Connect(f.key.node)
	if !ok {
		return
	}
	defer c.End()
	lost := c.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: f.message, OnSubscription: f.confirmed})
	for {
		select {
		case <-f.kick:
			if !f.flush(ctx, c) {
				return
			}
		case <-lost:
			return
		case <-ctx.Done():
			return
		}
	}
}

// flush sends the commands in order, and reports whether the connection still works.
func (f *feed) flush(ctx context.Context, c Conn) bool {
	ln := f.listener
	ln.mu.Lock()
	todo := f.todo
	f.todo = nil
	ln.mu.Unlock()
	if len(todo) == 0 {
		return true
	}
	cmds, heads := f.commands(c, todo)
	for i, result := range c.DoMulti(ctx, cmds...) {
		if result.NonRedisError() != nil {
			return false
		}
		if result.Error() != nil && !todo[heads[i]].end {
			end := len(todo)
			if i+1 < len(heads) {
				end = heads[i+1]
			}
			f.refused(todo[heads[i]:end])
		}
	}
	return true
}

// commands makes requests out of todo, and returns where in todo each begins. Sharded channels of one request would have to share a
// slot, plain ones are combined.
func (f *feed) commands(c Conn, todo []command) (cmds []rueidis.Completed, heads []int) {
	for i := 0; i < len(todo); {
		next := i + 1
		for !f.key.sharded && next < len(todo) && todo[next].end == todo[i].end {
			next++
		}
		channels := make([]string, 0, next-i)
		for _, t := range todo[i:next] {
			channels = append(channels, t.channel)
		}
		var cmd rueidis.Completed
		switch b := c.B(); {
		case f.key.sharded && todo[i].end:
			cmd = b.Sunsubscribe().Channel(channels...).Build()
		case f.key.sharded:
			cmd = b.Ssubscribe().Channel(channels...).Build()
		case todo[i].end:
			cmd = b.Unsubscribe().Channel(channels...).Build()
		default:
			cmd = b.Subscribe().Channel(channels...).Build()
		}
		cmds, heads = append(cmds, cmd), append(heads, i)
		i = next
	}
	return cmds, heads
}

// message takes a message, after which waiters of the channel ask. It is called by the connection's reader.
func (f *feed) message(m rueidis.PubSubMessage) {
	f.listener.mu.Lock()
	defer f.listener.mu.Unlock()
	if s := f.subs[m.Channel]; s != nil {
		s.hub.heard(m.Message, s.sharded || len(s.hub.subs) == 1)
	}
}

// confirmed takes what the server says about a subscription. A sharded channel whose slot moves away is unsubscribed by the server.
func (f *feed) confirmed(c rueidis.PubSubSubscription) {
	ln := f.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	s := f.subs[c.Channel]
	switch c.Kind {
	case "subscribe", "ssubscribe":
		if s == nil {
			f.do(command{channel: c.Channel, end: true})
			return
		}
		s.active, s.lost = true, false
		s.hub.poke()
	case "sunsubscribe":
		if s != nil && s.active {
			s.active = false
			f.replace(s)
		}
	}
}

// refused takes the commands that the server did not accept.
func (f *feed) refused(cmds []command) {
	ln := f.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	for _, c := range cmds {
		if s := f.subs[c.channel]; s != nil {
			f.replace(s)
		}
	}
}

// replace finds another place for a subscription that the server does not want here. It is called with Listener.mu held.
func (f *feed) replace(s *subscription) {
	ln := f.listener
	s.lost = true
	delete(f.subs, s.hub.channel)
	if f.key.node != "" {
		ln.router.again(s)
		return
	}
	time.AfterFunc(lastConnect, func() { // not permitted, perhaps
		ln.mu.Lock()
		defer ln.mu.Unlock()
		if ln.hubs[s.hub.channel] == s.hub && !ln.closed {
			f.add(s)
		}
	})
}

// reset prepares for a new connection and reports whether there is to be one: a node of a cluster may be gone, so its channels are
// placed anew.
func (f *feed) reset() bool {
	ln := f.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	f.todo = f.todo[:0]
	for channel, s := range f.subs {
		s.active, s.lost = false, true
		if f.key.node != "" {
			ln.router.again(s)
		} else {
			f.do(command{channel: channel})
		}
	}
	if f.key.node == "" {
		return !ln.closed
	}
	delete(ln.feeds, f.key)
	return false
}
