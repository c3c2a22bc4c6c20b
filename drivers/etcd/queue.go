package etcd

import (
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// crowd is how many waiters of one client make a long queue worth knowing.
const crowd = 4

// queue is all contenders for a name: those that one look has found, and the events since then. With many waiters in one process it
// takes the place of a view for each, which the server would make by reading and sorting all keys of the name.
//
// What is said of a view holds for it as well: the watch was active before the look was sent, and has been since then, no key was put
// again, and the lease of who is granted the lock is not over by the local clock. Otherwise the queue is dropped, and all look.
type queue struct {
	first, last *place
	places      map[string]*place // by key
	record      record
	looked      int64 // revision
	told        int64 // revision of the last event, or of the look
	cleared     int64 // revision at which the first became the first, or of the look if it was that already
}

// place is a key in the queue.
type place struct {
	key            string
	created        int64 // revision
	previous, next *place
}

func newQueue(kvs []*mvccpb.KeyValue, r record, revision int64) *queue {
	q := &queue{places: make(map[string]*place, len(kvs)), record: r, looked: revision, told: revision, cleared: revision}
	for _, kv := range kvs {
		q.add(kv)
	}
	return q
}

func (q *queue) add(kv *mvccpb.KeyValue) {
	p := &place{key: string(kv.Key), created: kv.CreateRevision, previous: q.last}
	if q.places[p.key] = p; q.last == nil {
		q.first = p
	} else {
		q.last.next = p
	}
	q.last = p
}

func (q *queue) remove(p *place) {
	delete(q.places, p.key)
	if p.previous == nil {
		q.first = p.next
	} else {
		p.previous.next = p.next
	}
	if p.next == nil {
		q.last = p.previous
	} else {
		p.next.previous = p.previous
	}
}

// tell takes note of events. It reports whether the queue is still known.
func (q *queue) tell(dir string, events []*clientv3.Event) bool {
	for _, e := range events {
		if e.Kv.ModRevision <= q.looked {
			continue
		}
		q.told = e.Kv.ModRevision
		if !isContender(dir, e.Kv) {
			continue
		}
		p := q.places[string(e.Kv.Key)]
		switch {
		case e.IsCreate() && p == nil:
			if q.add(e.Kv); q.first == q.last {
				q.cleared = e.Kv.ModRevision
			}
		case e.Type == mvccpb.DELETE && p != nil:
			if q.remove(p); p.previous == nil {
				q.cleared = e.Kv.ModRevision
			}
		default: // a seal, or a mark
			return false
		}
	}
	return true
}

// before returns the key right before key, or "" if there is none or it is not known.
func (q *queue) before(key string) string {
	if p := q.places[key]; p != nil && p.previous != nil {
		return p.previous.key
	}
	return ""
}

// askQueue has the queue looked at, unless that is under way. It is called with feeds.mu held.
func (f *feed) askQueue() {
	if f.missed != nil {
		return
	}
	missed := new([]*clientv3.Event)
	if f.feeds.driver.life.Go(func() { f.makeQueue(missed) }) {
		f.missed = missed
	}
}

// makeQueue looks, and takes the queue over unless the watch has broken meanwhile.
func (f *feed) makeQueue(missed *[]*clientv3.Event) {
	d := f.feeds.driver
	ctx, cancel := d.background(requestFor)
	defer cancel()
	all, r, revision, err := d.getContenders(ctx, f.dir)
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	if f.missed != missed {
		return
	}
	f.missed = nil
	if err == nil && !r.sealed {
		f.adopt(newQueue(all, r, revision), *missed)
	}
}

// adopt makes q, with the events that came since it was asked for, what says to those with long views when they are the first. It is
// called with feeds.mu held.
func (f *feed) adopt(q *queue, missed []*clientv3.Event) {
	if !q.tell(f.dir, missed) {
		return
	}
	f.queue = q
	f.feeds.callNext(f.dir)
	for _, list := range f.waiters {
		for _, w := range slices.Clone(list) {
			if w.own != "" && !w.queued && !w.stale && !w.view.all {
				for _, key := range w.view.before {
					f.remove(key, w)
				}
				w.view.before = nil
				f.enqueue(w)
			}
		}
	}
}

// enqueue makes the queue say when w is the first. If the key of w is not there any more, w is to look. It is called with feeds.mu held.
func (f *feed) enqueue(w *waiter) {
	q := f.queue
	p := q.places[w.own]
	if p == nil && w.created <= q.told || p != nil && p.created > w.created {
		w.stale = true
		w.call()
		return
	}
	w.queued, w.stale = true, false
	w.calm()
	f.wakeFirst()
}

// wakeFirst tells the waiter that it is the first, if the first is one. It is called with feeds.mu held.
func (f *feed) wakeFirst() {
	q := f.queue
	if q.first == nil {
		return
	}
	for _, w := range f.waiters[q.first.key] {
		if w.queued && w.own == q.first.key && w.created == q.first.created && w.cleared == 0 {
			w.cleared, w.view.record = max(q.cleared, w.created), q.record
			w.call()
		}
	}
}

// tellQueue tells the queue of events, or what is to become the queue. It is called with feeds.mu held.
func (f *feed) tellQueue(events []*clientv3.Event) {
	if f.missed != nil {
		*f.missed = append(*f.missed, events...)
	}
	switch q := f.queue; {
	case q == nil:
	case q.tell(f.dir, events):
		f.wakeFirst()
	default:
		for _, w := range f.dropQueue() {
			w.call()
		}
	}
}

// dropQueue forgets the queue, and returns those who relied upon it, who are to look. It is called with feeds.mu held.
func (f *feed) dropQueue() (left []*waiter) {
	f.missed = nil
	if f.queue == nil {
		return nil
	}
	f.queue = nil
	for _, list := range f.waiters {
		for _, w := range list {
			if w.queued {
				w.queued, w.stale = false, true
				left = append(left, w)
			}
		}
	}
	return left
}

// isBehind reports whether another waiter of the client is before w in the queue. That one looks now and then whether the watch tells
// everything, and so w need not.
func (w *waiter) isBehind() bool {
	f := w.feed
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	if !w.queued || w.stale || w.cleared > 0 {
		return false
	}
	for p := f.queue.first; p != nil; p = p.next {
		for _, other := range f.waiters[p.key] {
			if other.queued && other.own == p.key && other.created == p.created {
				return other != w
			}
		}
	}
	return false
}
