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
	stream int // number of the stream that new watches share
}

func newFeeds(d *Driver) *feeds { return &feeds{driver: d, byDir: make(map[string]*feed)} }

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
	stream  int                  // that the watch is on
	looking bool                 // one waiter looks, or all that waited for it do
	next    *queueLook           // for those who wait for that
	waiters map[string][]*waiter // by the keys that concern them; "" stands for all
	handing map[string]struct{}  // keys that are being deleted by requests which say who is next
}

// waiter is a contender that waits for a key to be deleted or changed, or for the deletion of its own.
type waiter struct {
	feed        *feed
	own, before string        // "", "" while everything wakes it
	granted     *grant        // what a release said that no look was needed for
	wake        chan struct{} // buffered
}

// joinActive returns a waiter, which everything wakes, if the feed of dir is active, and nil otherwise.
func (fs *feeds) joinActive(dir string) *waiter {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.byDir[dir]; f != nil && f.active {
		return f.add()
	}
	return nil
}

// join returns a waiter, which everything wakes.
func (fs *feeds) join(dir string) *waiter {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.byDir[dir]
	if f == nil {
		f = &feed{feeds: fs, dir: dir, idle: make(chan struct{}, 1), again: make(chan struct{}, 1), waiters: make(map[string][]*waiter)}
		if fs.driver.spawn(f.run) {
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

// narrow says which keys concern w from now on: its own, and the one before it. It reports whether the feed is active.
func (w *waiter) narrow(own, before string) (active bool) {
	f := w.feed
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	f.remove("", w)
	f.waiters[own] = append(f.waiters[own], w)
	f.waiters[before] = append(f.waiters[before], w)
	w.own, w.before = own, before
	return f.active
}

// widen makes everything wake w again, until it is narrowed: it is about to look who is before it.
func (w *waiter) widen() {
	f := w.feed
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	f.remove(w.own, w)
	f.remove(w.before, w)
	w.own, w.before = "", ""
	f.waiters[""] = append(f.waiters[""], w)
}

// leave ends what join began.
func (w *waiter) leave() {
	f := w.feed
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	f.remove(w.own, w)
	f.remove(w.before, w)
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

// run ends when the feed has had no users for a while, or with the driver.
func (f *feed) run() {
	d := f.feeds.driver
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		seen, end := f.watch()
		if end || d.life.Err() != nil {
			return
		}
		if seen {
			pause = firstRetry
		}
		if !d.sleep(d.life, pause) {
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
	ctx := metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(d.life), "dsync-stream", strconv.Itoa(f.stream))
	f.feeds.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer f.setActive(false)
	var events clientv3.WatchChan
	started := make(chan clientv3.WatchChan, 1)
	if !d.spawn(func() { started <- d.client.Watch(ctx, f.dir, clientv3.WithPrefix(), clientv3.WithCreatedNotify()) }) {
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
	if f.active = active; active {
		f.call()
	}
}

// call wakes all waiters. It is called with feeds.mu held.
func (f *feed) call() {
	for _, list := range f.waiters {
		for _, w := range list {
			w.call()
		}
	}
}

// tell wakes those whom events concern.
func (f *feed) tell(events []*clientv3.Event) {
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	for _, e := range events {
		if e.Type == mvccpb.PUT && e.Kv.CreateRevision == e.Kv.ModRevision {
			continue // somebody new, who stands behind
		}
		if e.Type == mvccpb.PUT && e.Kv.Lease == int64(clientv3.NoLease) { // a seal, for all that stand behind it
			f.call()
			continue
		}
		for _, w := range f.waiters[string(e.Kv.Key)] {
			w.call()
		}
		for _, w := range f.waiters[""] {
			w.call()
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
