package etcd

import (
	"context"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

const (
	lingerFor  = 2 * time.Second // how long a feed goes on without waiters and watches
	firstRetry = 50 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// feeds tell the waiters of a driver what happens to the keys before theirs. The watches of all names share one stream.
type feeds struct {
	driver *Driver

	mu      sync.Mutex // taken before that of a feed
	byRange map[keyRange]*feed
	stream  int // number of the stream that new watches share
}

func newFeeds(d *Driver) *feeds { return &feeds{driver: d, byRange: make(map[keyRange]*feed)} }

// feed is the watch on the contenders for one name or, for Reads that wait, on all contenders but the Reads of this driver. The watch has
// no start revision: the server delivers only ten times a second from a watch that starts in the past. So all waiters are woken when
// the feed becomes active, and ask what happened before.
type feed struct {
	feeds  *feeds
	keys   keyRange
	idle   chan struct{} // buffered; signaled when the last waiter has left
	again  chan struct{} // buffered; signaled when the watch has to be made anew
	stream int           // the stream of the watch; guarded by feeds.mu

	mu      sync.Mutex
	active  bool // the feed tells all that happens
	waiters map[*waiter]struct{}
	watches map[*watch]struct{}
}

// waiter is a contender that waits for those before it to go. It is in one of these states:
//
//	asking   missed               a request for a view is under way
//	waiting  view                 the view has all keys before the waiter's, or the nearest one
//	first    view and first       by the view and the events since, no key is before the waiter's
//	in doubt                      the waiter has to look, as soon as the feed is active, or after a while
type waiter struct {
	feed *feed
	own  string        // key
	wake chan struct{} // buffered; signaled in the last two states

	// Guarded by feed.mu.
	missed []*clientv3.Event // told since the request for a view was sent, by a feed that was active before
	view   *view
	first  int64 // revision of the event by which the key became the first
}

// join returns a waiter for a key. Before says that the key is yet to be put: then the waiter is asking, so that the put brings its view,
// and join returns nil if the feed is not active. Otherwise the waiter is in doubt.
func (fs *feeds) join(keys keyRange, own string, before bool) *waiter {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if before && fs.byRange[keys] == nil {
		return nil
	}
	f := fs.feed(keys)
	f.mu.Lock()
	defer f.mu.Unlock()
	if before && !f.active {
		return nil
	}
	w := &waiter{feed: f, own: own, wake: make(chan struct{}, 1)}
	if f.waiters[w] = struct{}{}; before {
		w.missed = []*clientv3.Event{}
	}
	return w
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
	f := w.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waiters, w)
	f.left()
}

// left has the feed end after a while, unless somebody joins it. It is called with feed.mu held.
func (f *feed) left() {
	if len(f.waiters)+len(f.watches) == 0 {
		signal(f.idle)
	}
}

// ask begins a request for a view, and returns the view that the waiter had, or nil.
func (w *waiter) ask() (old *view) {
	f := w.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	old = w.view
	if w.forget(); f.active {
		w.missed = []*clientv3.Event{}
	}
	return old
}

// got ends what ask began: v is the answer, or nil. It reports whether the feed is active. If the feed has told all events since the
// request was sent, the waiter goes on from v; otherwise the waiter has to look.
func (w *waiter) got(v *view) (active bool) {
	f := w.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	missed := w.missed
	w.forget()
	switch {
	case v == nil:
	case missed != nil:
		w.view = v
		for _, e := range missed {
			w.hear(e)
		}
	case f.active:
		signal(w.wake)
	}
	return f.active
}

// forget leaves the waiter in doubt. It is called with feed.mu held.
func (w *waiter) forget() { w.missed, w.view, w.first = nil, nil, 0 }

// hear takes note of a change or deletion of a contender's key. It is called with feed.mu held.
func (w *waiter) hear(e *clientv3.Event) {
	if w.missed != nil {
		w.missed = append(w.missed, e)
	}
	if w.view == nil {
		return
	}
	switch w.view.tell(e, w.own) {
	case frees:
		w.first = e.Kv.ModRevision
		signal(w.wake)
	case drops:
		w.forget()
		signal(w.wake)
	}
}

// signal wakes the reader of c, which is buffered, now or at its next read.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// doubt has the watch made anew, on another stream and so perhaps to another server, because the watch did not tell an event, or its own
// start, in time. A server that is frozen, or cut off from the others, says nothing, and its connection may stay.
func (w *waiter) doubt() {
	f, fs := w.feed, w.feed.feeds
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.stream == fs.stream {
		fs.stream++
	}
	signal(f.again)
}

// run ends when the feed has had no waiters and watches for a while, or with the driver.
func (f *feed) run() {
	d := f.feeds.driver
	if f.keys.counts {
		stop, err := d.watch(keyRange{dir: limitKey(f.keys.dir)}, f.lookAll)
		if err != nil {
			return // the driver ends
		}
		defer stop()
	}
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		seen, end := f.watch()
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

// watch follows one watch until it ends. The library resumes a watch by itself when the connection breaks.
func (f *feed) watch() (seen, end bool) {
	d := f.feeds.driver
	f.feeds.mu.Lock()
	f.stream = f.feeds.stream
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
	linger := time.NewTimer(lingerFor)
	defer linger.Stop()
	for {
		select {
		case events = <-started: // Client.Watch blocks until the server has answered
		case answer, ok := <-events:
			if !ok || answer.Err() != nil {
				return seen, false
			}
			if answer.Created {
				seen = true
				f.setActive(true)
			}
			f.tell(answer.Events)
		case <-f.again:
			return seen, false
		case <-f.idle:
			linger.Reset(lingerFor)
		case <-linger.C:
			if f.close() {
				return seen, true
			}
		}
	}
}

// setActive says whether the feed tells all events from now on. The feed has missed some before in either case, so all waiters are in doubt.
func (f *feed) setActive(active bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.active = active
	for w := range f.waiters {
		if w.forget(); active {
			signal(w.wake)
		}
	}
	if active {
		f.tellWatches()
	}
}

// lookAll has all waiters look. It is called when the limit of permits has changed, or may have changed unseen.
func (f *feed) lookAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.waiters {
		w.forget()
		signal(w.wake)
	}
}

// tell tells all waiters of events. Waiters hear all events that came together before any waiter acts on one: the end of a lease deletes
// keys in any order, and the key of the waiter may be among them.
func (f *feed) tell(events []*clientv3.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range events {
		if e.IsCreate() || !isContender(f.keys.dir, e.Kv) {
			continue // a new contender, who stands behind, or a name below
		}
		for w := range f.waiters {
			w.hear(e)
		}
	}
	if len(events) > 0 {
		f.tellWatches()
	}
}

// close ends the feed if it has no waiters and watches.
func (f *feed) close() bool {
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waiters)+len(f.watches) > 0 {
		return false
	}
	delete(f.feeds.byRange, f.keys)
	return true
}
