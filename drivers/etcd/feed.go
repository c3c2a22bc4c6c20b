package etcd

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

const (
	lingerFor  = 2 * time.Second // how long a feed goes on after its last waiter has left
	firstRetry = 50 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// feeds tell the waiters of a driver what happens to the keys they wait for. The watches of all names share one stream.
type feeds struct {
	driver *Driver

	mu     sync.Mutex
	byDir  map[string]*feed
	gates  map[string]*gate
	stream int // number of the stream that new watches share
}

func newFeeds(d *Driver) *feeds {
	return &feeds{driver: d, byDir: make(map[string]*feed), gates: make(map[string]*gate)}
}

// feed is the watch on the contenders for one name. It has no start revision: the server delivers from a watch that starts in the
// past only ten times a second. So what happened before the feed became active has to be asked for: all waiters are woken then.
type feed struct {
	feeds *feeds
	dir   string
	idle  chan struct{} // buffered; signaled when the last user has left
	again chan struct{} // buffered; signaled when the watch is to be made anew

	// Guarded by feeds.mu.
	users   int
	active  bool
	epoch   int                  // how many times it has become active
	stream  int                  // that the watch is on
	looking bool                 // one waiter looks, or all that waited for it do
	next    *queueLook           // for those who wait for that
	waiters map[string][]*waiter // by the keys that concern them; "" stands for all
	handing map[string]struct{}  // keys that are being deleted by requests which say who is next
	queue   *queue               // nil unless it is known
	missed  *[]*clientv3.Event   // what the feed has told since queue was asked for; nil if it is not being asked for
}

// waiter is a contender that waits for those before it to go.
type waiter struct {
	feed *feed
	wake chan struct{} // buffered

	// Guarded by feeds.mu.
	own     string // key; "" while a request is on its way that shows who is before it, and everything wakes it
	created int64  // revision of own
	queued  bool   // the queue of the feed says when own is the first, in place of the view
	epoch   int    // of the feed when that request was sent; 0 if it was not active then
	newest  int64  // revision of what the feed has told since then
	view    view   // without those that the feed has told the deletion of, if it is of all
	stale   bool   // the view is not to be relied upon: a look is needed
	cleared int64  // revision at which own became the first, by what the feed has told; 0 if it has not, or the view was not of all
	granted *grant // what a release said that no look was needed for
}

// join returns a waiter, which everything wakes, for a key that was put before.
func (fs *feeds) join(dir string) *waiter {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.byDir[dir]
	if f == nil {
		f = &feed{feeds: fs, dir: dir, idle: make(chan struct{}, 1), again: make(chan struct{}, 1), waiters: make(map[string][]*waiter)}
		if fs.driver.life.Go(f.run) {
			fs.byDir[dir] = f
		}
	}
	return f.add()
}

// add is called with feeds.mu held.
func (f *feed) add() *waiter {
	f.users++
	w := &waiter{feed: f, wake: make(chan struct{}, 1)}
	f.waiters[""] = append(f.waiters[""], w)
	return w
}

// remove takes w off what is of concern to key. It is called with feeds.mu held.
func (f *feed) remove(key string, w *waiter) {
	list := f.waiters[key]
	if i := slices.Index(list, w); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	if f.waiters[key] = list; len(list) == 0 {
		delete(f.waiters, key)
	}
}

// narrow says who stands before w, and so which keys concern it from now on. It reports whether the feed is active. If the feed has not
// told all that happened since the view, or will not, w is to look.
func (w *waiter) narrow(own string, created int64, v view) (active bool) {
	f := w.feed
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	f.remove("", w)
	w.own, w.created, w.view, w.stale, w.cleared = own, created, v, true, 0
	f.waiters[own] = append(f.waiters[own], w)
	if !v.all && f.queue != nil {
		w.view.before = nil
		f.enqueue(w)
		return true
	}
	for _, key := range v.before {
		f.waiters[key] = append(f.waiters[key], w)
	}
	switch {
	case f.active && len(v.before) > 0 && w.epoch == f.epoch && w.newest <= v.revision:
		w.stale = false
		w.calm() // by what the view has in it
		if !v.all && f.users >= crowd {
			f.askQueue()
		}
	case f.active:
		w.call()
	}
	return f.active
}

// widen makes everything wake w again, until it is narrowed: it is about to look who is before it. It returns who was, as far as the
// feed has told, or "" if that is not known.
func (w *waiter) widen() (before string) {
	f := w.feed
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	before = w.view.next()
	if w.queued {
		before = f.queue.before(w.own)
	}
	w.unlist()
	w.own, w.view, w.queued, w.stale, w.cleared = "", view{}, false, true, 0
	if w.newest, w.epoch = 0, 0; f.active {
		w.epoch = f.epoch
	}
	f.waiters[""] = append(f.waiters[""], w)
	return before
}

// unlist takes w off what is of concern to any key. It is called with feeds.mu held.
func (w *waiter) unlist() {
	w.feed.remove(w.own, w)
	for _, key := range w.view.before {
		w.feed.remove(key, w)
	}
}

// leave ends what join began.
func (w *waiter) leave() {
	f := w.feed
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	w.unlist()
	if f.users--; f.users == 0 {
		select {
		case f.idle <- struct{}{}:
		default:
		}
	}
}

// doubt has the watch made anew, on another stream, which may be one to another server: what it should have told, or that it has
// begun, was not told in time. A server that is frozen, or cut off from the others, says nothing, and its connection may stay.
func (w *waiter) doubt() {
	f := w.feed
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	if f.stream == f.feeds.stream {
		f.feeds.stream++
	}
	select {
	case f.again <- struct{}{}:
	default:
	}
}

func (w *waiter) call() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// calm takes back a call that has not been heard yet.
func (w *waiter) calm() {
	select {
	case <-w.wake:
	default:
	}
}

// run ends when the feed has had no users for a while, or with the driver.
func (f *feed) run() {
	d := f.feeds.driver
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

// watch follows one watch until it breaks. The library resumes a watch by itself when its connection breaks.
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
	if !d.life.Go(func() { started <- d.client.Watch(ctx, f.dir, clientv3.WithPrefix(), clientv3.WithCreatedNotify()) }) {
		return false, true
	}
	linger := time.NewTimer(lingerFor)
	defer linger.Stop()
	for {
		select {
		case events = <-started: // it blocks until the server has answered
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

// setActive says whether the feed sees all that happens from now on, and wakes all waiters if it does.
func (f *feed) setActive(active bool) {
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	f.dropQueue()
	if f.active = active; active {
		f.epoch++
		f.call()
	}
}

// call has all waiters look. It is called with feeds.mu held.
func (f *feed) call() {
	for _, list := range f.waiters {
		for _, w := range list {
			w.stale = true
			w.call()
		}
	}
}

// tell tells those whom events concern. They learn of all that came together, before any of them does something about it: the end of
// a lease deletes keys in any order, and a waiter's own may be among them.
func (f *feed) tell(events []*clientv3.Event) {
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	f.tellQueue(events)
	for _, e := range events {
		if e.IsCreate() || !isContender(f.dir, e.Kv) {
			continue // somebody new, who stands behind, or a name below
		}
		for _, w := range f.waiters[""] {
			w.newest = max(w.newest, e.Kv.ModRevision)
			w.call()
		}
		if e.Type == mvccpb.PUT && e.Kv.Lease == int64(clientv3.NoLease) { // a seal, for all that stand behind it
			f.call()
			continue
		}
		for _, w := range slices.Clone(f.waiters[string(e.Kv.Key)]) {
			w.see(e)
		}
	}
}

// close takes the feed off if it has no users.
func (f *feed) close() bool {
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	if f.users > 0 {
		return false
	}
	delete(f.feeds.byDir, f.dir)
	return true
}
