package etcd

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/go-dsync/dsync/driver"
)

const (
	lingerFor = 2 * time.Second // how long a feed continues without waiters and watches
	// the same for a feed of the end of one key, because a waiter that comes
	// back immediately usually waits for the same client
	keyLingerFor = 200 * time.Millisecond
	firstRetry   = 50 * time.Millisecond
	lastRetry    = 2 * time.Second
	maxRecent    = 32 // events that a feed remembers
)

// feeds notify the waiters of a driver of changes to the keys before the
// waiters' keys. The watches of all names share one stream.
type feeds struct {
	driver *Driver
	clock  atomic.Int64 // orders the requests for views and the beginnings of watches

	mu      sync.Mutex // guards all feeds and waiters
	byRange map[keyRange]*feed
	stream  int // number of the stream that new watches share
}

func newFeeds(d *Driver) *feeds { return &feeds{driver: d, byRange: make(map[keyRange]*feed)} }

// feed is the watch on the contenders for one name, on some of them, or on one
// key of the name's record. The watch has no start revision, because the server
// delivers the events of a watch that starts in the past only ten times a
// second. So the feed wakes all waiters when it becomes active, and they read
// the earlier changes.
type feed struct {
	feeds *feeds
	keys  keyRange
	idle  chan struct{} // buffered; signaled when the last waiter has left
	again chan struct{} // buffered; signaled when the watch must be replaced

	// Guarded by feeds.mu.
	stream int               // the stream of the watch
	due    time.Time         // when the watch should have begun; it is not replaced before
	active bool              // the feed delivers all events
	since  int64             // when the feed became active, on feeds.clock
	recent []*clientv3.Event // the last events delivered since then
	// revision of the newest event delivered since then that is no longer in
	// recent
	lost    int64
	waiters map[*waiter]struct{}
	watches map[*watch]struct{}
}

// waiter is a contender that waits until the keys before its own are gone. It
// is in one of these states:
//
//	waiting  view                 the view has all keys before the waiter's, or the nearest one
//	first    view and first       by the view and the events since, no key is before the waiter's
//	in doubt                      the waiter must look, as soon as its feeds are active, or after a while
//
// The waiter's view determines the feeds to which it listens (see hold.hears).
type waiter struct {
	all  *feeds
	own  string        // key
	wake chan struct{} // buffered; signaled in the last two states

	// Guarded by feeds.mu.
	feeds   []*feed
	asked   int64 // when the last request for a view was sent, on feeds.clock
	view    *view
	nearest string // the key directly before, if the last view had only that key; else ""
	first   int64  // revision of the event by which the key became the first
}

// now is the time of the request that puts a waiter's key (see join).
func (fs *feeds) now() int64 { return fs.clock.Add(1) }

// join returns a waiter for a key. The waiter is in doubt, and listens to no
// feed until it has a view. The request that put the key, and returns the first
// view, was sent at asked.
func (fs *feeds) join(own string, asked int64) *waiter {
	return &waiter{all: fs, own: own, asked: asked, wake: make(chan struct{}, 1)}
}

// feed returns the feed of a range. It is called with feeds.mu held.
func (fs *feeds) feed(keys keyRange) *feed {
	f := fs.byRange[keys]
	if f == nil {
		f = &feed{
			feeds: fs, keys: keys, idle: make(chan struct{}, 1), again: make(chan struct{}, 1),
			waiters: make(map[*waiter]struct{}), watches: make(map[*watch]struct{}),
		}
		if fs.driver.life.Go(f.run) {
			fs.byRange[keys] = f
		}
	}
	return f
}

// leave ends what join began.
func (w *waiter) leave() {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	w.listen(nil)
}

// listen makes the waiter listen to the feeds of ranges, and to no others. It
// is called with feeds.mu held.
func (w *waiter) listen(ranges []keyRange) {
	before := w.feeds
	w.feeds = nil
	for _, keys := range ranges {
		f := w.all.feed(keys)
		f.waiters[w] = struct{}{}
		w.feeds = append(w.feeds, f)
	}
	for _, f := range before {
		if !slices.Contains(w.feeds, f) {
			delete(f.waiters, w)
			f.left()
		}
	}
}

// active reports whether all feeds of the waiter are active. It is called with
// feeds.mu held.
func (w *waiter) active() bool {
	return !slices.ContainsFunc(w.feeds, func(f *feed) bool { return !f.active })
}

// left ends the feed after a while, unless a waiter or a watch joins it. It is
// called with feeds.mu held.
func (f *feed) left() {
	if len(f.waiters)+len(f.watches) == 0 {
		signal(f.idle)
	}
}

// beginLook begins a request for a view. It returns the view that the waiter
// had, or nil, and the key to pass to look.
func (w *waiter) beginLook() (old *view, nearest string) {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	old = w.view
	w.forget()
	w.asked = w.all.now()
	return old, w.nearest
}

// endLook ends a read that beginLook began, or the request that put the key. v
// is the answer, and from now on the waiter listens to the feeds of ranges.
// endLook reports whether these are active. If they have delivered all events
// since the request was sent, and still remember them, the waiter continues
// from v. Otherwise it must read the queue again as soon as all feeds are
// active.
func (w *waiter) endLook(v view, ranges []keyRange) (active bool) {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	w.forget()
	if w.nearest = ""; !v.all {
		w.nearest = v.before[0]
	}
	if w.listen(ranges); !w.active() {
		return false
	}
	for _, f := range w.feeds {
		if f.since > w.asked || f.lost > v.revision {
			signal(w.wake)
			return true
		}
	}
	w.view = &v
	for _, f := range w.feeds {
		for _, e := range f.recent {
			w.note(f, e)
		}
	}
	return true
}

// forget puts the waiter in doubt. It is called with feeds.mu held.
func (w *waiter) forget() { w.view, w.first = nil, 0 }

// note handles an event of a feed. It is called with feeds.mu held.
func (w *waiter) note(f *feed, e *clientv3.Event) {
	if w.view == nil {
		return
	}
	switch w.view.apply(e, w.own, f.keys.ofRecord) {
	case frees:
		w.first = e.Kv.ModRevision
		signal(w.wake)
	case drops:
		w.forget()
		signal(w.wake)
	}
}

// signal wakes the reader of c, a buffered channel, now or at its next read.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// doubt replaces watches with new ones on another stream, and so possibly on
// another server. It replaces watches that should have begun or, if an event
// was missed, all watches of the waiter. A server that is frozen, or cut off
// from the others, sends nothing, but its connection may stay open.
func (w *waiter) doubt(missed bool) {
	fs := w.all
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range w.feeds {
		if f.active && !missed || !f.active && time.Now().Before(f.due) {
			continue
		}
		if f.stream == fs.stream {
			fs.stream++
		}
		signal(f.again)
	}
}

// run returns when the feed has had no waiters and watches for a while, or when
// the driver is closed.
func (f *feed) run() {
	d := f.feeds.driver
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		seen, end := f.watch(max(firstLook/2, 2*pause))
		if end || d.life.Context().Err() != nil {
			return
		}
		if seen {
			pause = firstRetry
		}
		if !d.life.Sleep(d.life.Context(), pause) {
			return
		}
	}
}

// watch follows one watch until it ends. If there are waiters, the watch must
// begin within patience. The library resumes a watch by itself when the
// connection breaks.
func (f *feed) watch(patience time.Duration) (seen, end bool) {
	d := f.feeds.driver
	f.feeds.mu.Lock()
	f.stream, f.due = f.feeds.stream, time.Now().Add(patience)
	f.trust()
	// Watches with the same metadata share a stream.
	ctx := metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(d.life.Context()), "dsync-stream", strconv.Itoa(f.stream))
	f.feeds.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer f.setActive(false)
	var events clientv3.WatchChan
	started := make(chan clientv3.WatchChan, 1)
	if !d.life.Go(func() { started <- d.client.Watch(ctx, f.keys.from(), f.keys.rest(), clientv3.WithCreatedNotify()) }) {
		return false, true
	}
	lingers := lingerFor
	if f.keys.ends {
		lingers = keyLingerFor
	}
	linger := time.NewTimer(lingers)
	defer linger.Stop()
	for {
		select {
		case events = <-started: // Client.Watch blocks until the server has answered
		case answer, ok := <-events:
			if !ok || answer.Err() != nil {
				d.conns.failed(answer.Err())
				return seen, false
			}
			if answer.Created {
				seen = true
				f.setActive(true)
			}
			f.deliver(answer.Events)
		case <-f.again:
			return seen, false
		case <-f.idle:
			linger.Reset(lingers)
		case <-linger.C:
			if f.close() {
				return seen, true
			}
		}
	}
}

// trust ends doubts about the feed's watch so far. It is called with feeds.mu
// held.
func (f *feed) trust() {
	select {
	case <-f.again:
	default:
	}
}

// setActive sets whether the feed delivers all events from now on. In either
// case the feed has missed earlier events, so all waiters are in doubt.
func (f *feed) setActive(active bool) {
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	f.active, f.since, f.recent, f.lost = active, f.feeds.now(), nil, 0
	f.trust()
	for w := range f.waiters {
		if w.forget(); w.active() {
			signal(w.wake)
		}
	}
	if active {
		f.callWatches()
	}
}

// deliver notifies all waiters of events. It handles all events that arrived
// together before any waiter acts on one: the end of a lease deletes keys in
// any order, and the waiter's key may be among them.
func (f *feed) deliver(events []*clientv3.Event) {
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	for _, e := range events {
		if !f.keys.ofRecord && (e.IsCreate() || !isContender(f.keys.dir, e.Kv)) {
			continue // a new contender, which is further back in the queue, or a longer name
		}
		if f.recent = append(f.recent, e); len(f.recent) > maxRecent {
			f.lost = f.recent[0].Kv.ModRevision
			f.recent = slices.Delete(f.recent, 0, 1)
		}
		for w := range f.waiters {
			w.note(f, e)
		}
	}
	if len(events) > 0 {
		f.callWatches()
	}
}

// close ends the feed if it has no waiters and watches.
func (f *feed) close() bool {
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	if len(f.waiters)+len(f.watches) > 0 {
		return false
	}
	delete(f.feeds.byRange, f.keys)
	return true
}

// watch is one call to Watch, which listens to a feed like a waiter.
type watch struct{ changed func() }

// Watch implements driver.Watcher. The feed delivers events of all contenders,
// including new ones.
func (d *Driver) Watch(name string, changed func()) (stop func(), err error) {
	return d.watch(keyRange{dir: d.dir(name)}, changed)
}

// watch calls changed when the feed of a range begins, and at each event of the
// feed.
func (d *Driver) watch(keys keyRange, changed func()) (stop func(), err error) {
	if err := d.life.Context().Err(); err != nil {
		return nil, driver.ErrClosed
	}
	fs, w := d.feeds, &watch{changed}
	d.conns.expectEvents()
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.feed(keys)
	if f.watches[w] = struct{}{}; f.active {
		changed()
	}
	return func() {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		if _, watches := f.watches[w]; watches {
			d.conns.stopExpecting()
		}
		delete(f.watches, w)
		f.left()
	}, nil
}

// callWatches is called with feeds.mu held.
func (f *feed) callWatches() {
	for w := range f.watches {
		w.changed()
	}
}
