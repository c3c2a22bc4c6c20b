package redistopic

import (
	"context"
	"slices"
	"time"

	"github.com/redis/rueidis"
)

const (
	// Pauses between attempts to connect for subscriptions.
	firstConnect = 50 * time.Millisecond
	lastConnect  = 2 * time.Second

	// placeAgain is the pause before a subscription that a node of a cluster
	// refused is assigned to a node again.
	placeAgain = 300 * time.Millisecond

	// leaveEvery is the minimum pause before a feed leaves channels again. The
	// pause is leaveEach for each channel to which the feed must then subscribe
	// again, if that is longer. After a failure the pause doubles, up to
	// lastLeave.
	leaveEvery = time.Second
	leaveEach  = 200 * time.Microsecond
	lastLeave  = 8 * time.Second

	// maxUnused is the number of unused channels above which a feed gives up
	// its connection, even without a replacement.
	maxUnused = 10_000

	// perCommand is the number of channels in one SUBSCRIBE.
	perCommand = 1000

	// lookEvery is the pause between two calls to Conn.Stale.
	lookEvery = 250 * time.Millisecond
)

// feedKey identifies a feed. For sharded channels in a cluster, it contains the
// address of the feed's node. Otherwise there is one feed for each kind.
type feedKey struct {
	node    string
	sharded bool
}

// feed holds the subscriptions of one kind, over one connection. While the
// connection is down, the feed repeats its attempts to connect, and then
// subscribes to all of its channels. After that, one waiter of each channel
// makes an attempt, because messages may have been missed.
//
// A feed never unsubscribes, because the library panics if a server refuses
// this (BUSY, MISCONF, MASTERDOWN). Instead it subscribes to the channels in
// use on a new connection, and closes the old one when the server has confirmed
// them.
type feed struct {
	listener *Listener
	key      feedKey
	kick     chan struct{} // holds a value when there is work to do

	// Owned by the goroutine.
	connecting bool
	connectAt  time.Time     // when to connect, if there is no connection
	pause      time.Duration // the pause before the following attempt
	leaveAt    time.Time     // when unused channels may be left
	leavePause time.Duration // the pause before the following attempt

	// Written by the goroutine with Listener.mu held.
	cur  *link // nil while the connection is down
	next *link // about to replace cur; nil if none is

	// Guarded by Listener.mu.
	subs  map[string]*subscription // by channel
	links []*link                  // cur, next, and links that are being closed
	late  []*link                  // links that were not closed yet when the driver ended
}

type link struct {
	feed  *feed
	conn  Conn
	lost  <-chan error
	since time.Time

	// Guarded by Listener.mu.
	channels map[string]channelState // the channels that were requested
	todo     []string                // the channels that must still be requested
	missing  int                     // number of channels that are needed and not confirmed
}

type channelState struct {
	// the channel must be confirmed before the link replaces another link,
	// which may have the channel
	needed    bool
	confirmed bool
}

// feed returns the feed for key and starts one if there is none (mu).
func (ln *Listener) feed(key feedKey) *feed {
	f := ln.feeds[key]
	if f == nil {
		f = &feed{listener: ln, key: key, kick: make(chan struct{}, 1), subs: make(map[string]*subscription),
			pause: firstConnect, leavePause: leaveEvery}
		ln.feeds[key] = f
		ln.options.Life.Go(f.run)
	}
	return f
}

// add begins a subscription (mu).
func (f *feed) add(s *subscription) {
	channel := s.hub.channel
	f.subs[channel] = s
	carried := f.carriers(channel, false) > 0 // the channel was not left yet
	if l := f.newest(); l != nil {
		l.request(channel, carried)
	}
	if carried {
		f.begin(s)
	}
	f.wake()
}

// begin records that the server has confirmed a subscription. It lets waiters
// try, because messages may have been missed (mu).
func (f *feed) begin(s *subscription) {
	s.active = true
	s.hub.poke()
}

// unsubscribe ends a subscription, on whichever feed it is. The server is not
// notified until the feed replaces its connection (mu).
func (ln *Listener) unsubscribe(s *subscription) {
	s.active = false
	channel := s.hub.channel
	for _, f := range ln.feeds {
		if f.subs[channel] == s {
			delete(f.subs, channel)
			f.wake()
		}
	}
}

func (f *feed) wake() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// newest returns the link that gets new channels, or nil (mu).
func (f *feed) newest() *link {
	if f.next != nil {
		return f.next
	}
	return f.cur
}

// carriers returns the number of links that deliver the messages of a channel.
// If closing is set, links that are being closed also count (mu).
func (f *feed) carriers(channel string, closing bool) (n int) {
	for _, l := range f.links {
		if l.channels[channel].confirmed && (closing || l == f.cur || l == f.next) {
			n++
		}
	}
	return n
}

// run returns when the driver is closed. The feed of a node also ends when it
// has no channel. It ends when its connection is lost too, because the node may
// have left the cluster.
func (f *feed) run() {
	life := f.listener.options.Life
	ctx := life.Context()
	made := make(chan *link, 1)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	defer func() {
		if f.connecting {
			if l := <-made; l != nil {
				l.conn.End()
			}
		}
		f.closeAll()
	}()
	for {
		wait, connect, ended := f.plan()
		if ended {
			return
		}
		if connect {
			f.connecting = life.Go(func() { made <- f.connect() })
		}
		timer.Reset(wait)
		var lost, nextLost <-chan error
		if f.cur != nil {
			lost = f.cur.lost
		}
		if f.next != nil {
			nextLost = f.next.lost
		}
		select {
		case l := <-made:
			f.connecting = false
			f.connected(l)
		case <-f.kick:
		case <-lost:
			f.drop(f.cur)
		case <-nextLost:
			f.drop(f.next)
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		f.flush(ctx)
	}
}

// plan decides on the next action: to wait, to connect, or to end.
func (f *feed) plan() (wait time.Duration, connect, ended bool) {
	ln := f.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	now := time.Now()
	wait = time.Hour
	for f.cur != nil && f.cur.conn.Stale != nil {
		if !f.cur.conn.Stale() {
			wait = lookEvery
			break
		}
		f.lose(f.cur)
		f.connectAt = now
	}
	if f.next != nil && f.next.missing == 0 {
		f.switchTo(f.next, now)
	}
	if f.cur != nil && f.unused(f.cur) > maxUnused {
		f.lose(f.cur)
	}
	switch {
	case f.cur == nil && f.key.node != "" && (len(f.subs) == 0 || f.pause > firstConnect):
		for _, s := range f.subs {
			ln.router.again(s)
		}
		delete(ln.feeds, f.key)
		return 0, false, true
	case f.connecting, f.next != nil, len(f.subs) == 0 && f.cur == nil:
	case f.cur == nil:
		if connect = !now.Before(f.connectAt); !connect {
			wait = min(wait, f.connectAt.Sub(now))
		}
	case f.unused(f.cur) <= 0 && len(f.subs) > 0:
	case now.Before(f.leaveAt):
		wait = min(wait, f.leaveAt.Sub(now))
	case len(f.subs) == 0:
		f.switchTo(nil, now)
	default:
		connect = true
	}
	return wait, connect, false
}

// unused returns the number of channels of a link without a subscription (mu).
func (f *feed) unused(l *link) int { return len(l.channels) - len(f.subs) }

// switchTo replaces cur, and so leaves cur's unused channels (mu).
func (f *feed) switchTo(next *link, now time.Time) {
	old := f.cur
	f.cur, f.next = next, nil
	f.close(old)
	f.leavePause = max(leaveEvery, time.Duration(len(f.subs))*leaveEach)
	f.leaveAt = now.Add(f.leavePause)
}

func (f *feed) connect() *link {
	c, ok := f.listener.options.Connect(f.key.node)
	if !ok {
		return nil
	}
	l := &link{feed: f, conn: c, since: time.Now(), channels: make(map[string]channelState)}
	l.lost = c.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: l.message, OnSubscription: l.confirmed})
	return l
}

// connected handles a new link, or nil if there is none.
func (f *feed) connected(l *link) {
	f.listener.mu.Lock()
	defer f.listener.mu.Unlock()
	switch {
	case l == nil && f.cur == nil:
		f.failed(time.Time{})
		return
	case l == nil:
		f.putOff()
		return
	case f.cur == nil:
		f.cur = l
	default:
		f.next = l
	}
	f.links = append(f.links, l)
	for channel := range f.subs {
		l.request(channel, true)
	}
}

// failed sets the time of the next attempt to connect, after the loss of a
// connection that was made at since (mu).
func (f *feed) failed(since time.Time) {
	now := time.Now()
	if !since.IsZero() && now.Sub(since) > lastConnect {
		f.pause = firstConnect
	}
	f.connectAt = now.Add(f.pause)
	f.pause = min(2*f.pause, lastConnect)
}

// putOff sets the time of the next attempt to leave channels, after a failure
// (mu).
func (f *feed) putOff() {
	f.leaveAt = time.Now().Add(f.leavePause)
	f.leavePause = min(2*f.leavePause, lastLeave)
}

// drop gives up a lost link.
func (f *feed) drop(l *link) {
	f.listener.mu.Lock()
	defer f.listener.mu.Unlock()
	f.lose(l)
}

// lose is like drop, with Listener.mu held.
func (f *feed) lose(l *link) {
	switch l {
	case f.cur:
		f.cur, f.next = f.next, nil
		if f.cur == nil {
			f.failed(l.since)
		}
	case f.next:
		f.next = nil
		f.putOff()
		for channel := range f.subs { // only the channels that the lost link alone had
			f.cur.request(channel, false)
		}
	}
	f.forget(l)
	f.close(l)
}

// forget removes a link whose messages no longer arrive (mu).
func (f *feed) forget(l *link) {
	f.links = slices.DeleteFunc(f.links, func(other *link) bool { return other == l })
	for channel, state := range l.channels {
		if !state.confirmed {
			continue
		}
		f.listener.count(channel, -1)
		if s := f.subs[channel]; s != nil && s.active && f.carriers(channel, false) == 0 {
			s.active = false
		}
	}
	clear(l.channels)
}

// close closes a link. Its messages are handled until it is closed (mu).
func (f *feed) close(l *link) {
	end := func() {
		l.conn.End()
		f.listener.mu.Lock()
		defer f.listener.mu.Unlock()
		f.forget(l)
	}
	if !f.listener.options.Life.Go(end) {
		f.late = append(f.late, l)
	}
}

func (f *feed) closeAll() {
	f.listener.mu.Lock()
	defer f.listener.mu.Unlock()
	links := append(f.late, f.cur, f.next)
	f.cur, f.next = nil, nil
	for _, l := range links {
		if l != nil {
			f.listener.mu.Unlock()
			l.conn.End()
			f.listener.mu.Lock()
			f.forget(l)
		}
	}
}

// flush sends the requests for pending channels.
func (f *feed) flush(ctx context.Context) {
	for _, l := range []*link{f.cur, f.next} {
		if l != nil && !l.flush(ctx) {
			f.drop(l)
		}
	}
}

// request queues the request for a channel, unless it was made (mu).
func (l *link) request(channel string, needed bool) {
	if _, known := l.channels[channel]; known {
		return
	}
	l.channels[channel] = channelState{needed: needed}
	l.todo = append(l.todo, channel)
	if needed {
		l.missing++
	}
}

// flush requests channels and reports whether the link still works. A channel
// that is refused together with others is requested again separately.
func (l *link) flush(ctx context.Context) bool {
	ln := l.feed.listener
	ln.mu.Lock()
	todo := l.todo
	l.todo = nil
	ln.mu.Unlock()
	most := perCommand
	if l.feed.key.sharded { // the channels of one request would have to share a slot
		most = 1
	}
	for ; len(todo) > 0; most = 1 {
		var cmds []rueidis.Completed
		for rest := todo; len(rest) > 0; {
			some := rest[:min(most, len(rest))]
			rest = rest[len(some):]
			if b := l.conn.B(); l.feed.key.sharded {
				cmds = append(cmds, b.Ssubscribe().Channel(some...).Build())
			} else {
				cmds = append(cmds, b.Subscribe().Channel(some...).Build())
			}
		}
		var again []string
		for i, result := range l.conn.DoMulti(ctx, cmds...) {
			if result.NonRedisError() != nil {
				return false
			}
			some := todo[i*most : min((i+1)*most, len(todo))]
			switch {
			case result.Error() == nil:
			case len(some) > 1:
				again = append(again, some...)
			case !l.refused(some[0]):
				return false
			}
		}
		todo = again
	}
	return true
}

// message handles a message, which wakes waiters of the channel. It is called
// by the connection's reader.
func (l *link) message(m rueidis.PubSubMessage) {
	f := l.feed
	f.listener.mu.Lock()
	defer f.listener.mu.Unlock()
	if s := f.subs[m.Channel]; s != nil {
		s.hub.heard(m.Message, (s.sharded || len(s.hub.subs) == 1) && f.carriers(m.Channel, true) == 1)
	}
}

// confirmed handles the server's confirmation of a subscription. A sharded
// channel whose slot moves away is unsubscribed by the server.
func (l *link) confirmed(c rueidis.PubSubSubscription) {
	f := l.feed
	ln := f.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	state, known := l.channels[c.Channel]
	s := f.subs[c.Channel]
	switch {
	case !known:
	case (c.Kind == "subscribe" || c.Kind == "ssubscribe") && !state.confirmed:
		if state.needed {
			l.missing--
		}
		l.channels[c.Channel] = channelState{state.needed, true}
		ln.count(c.Channel, 1)
		if s != nil && !s.active {
			f.begin(s)
		}
	case c.Kind == "sunsubscribe":
		l.remove(c.Channel)
		if s != nil && s.active && f.carriers(c.Channel, false) == 0 {
			s.active = false
			f.replace(s)
		}
	}
	f.wake()
}

// remove removes a channel that the link does not have (mu).
func (l *link) remove(channel string) {
	state := l.channels[channel]
	if state.confirmed {
		l.feed.listener.count(channel, -1)
	} else if state.needed {
		l.missing--
	}
	delete(l.channels, channel)
}

// refused handles a channel that the server did not accept, and reports whether
// the link is useful without the channel. If the link is about to replace
// another link that has the channel, it is useless.
func (l *link) refused(channel string) bool {
	f := l.feed
	ln := f.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	s := f.subs[channel]
	if s != nil && s.active {
		return false
	}
	l.remove(channel)
	if s != nil {
		f.replace(s)
	}
	return true
}

// replace finds another place for a subscription that this server refused (mu).
func (f *feed) replace(s *subscription) {
	ln := f.listener
	delete(f.subs, s.hub.channel)
	if f.key.node != "" {
		ln.router.again(s)
		return
	}
	time.AfterFunc(lastConnect, func() { // perhaps the subscription is not permitted
		ln.mu.Lock()
		defer ln.mu.Unlock()
		if ln.hubs[s.hub.channel] == s.hub && !ln.closed {
			f.add(s)
		}
	})
}
