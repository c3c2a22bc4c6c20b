package etcd

import (
	"context"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// patience is how long a waiter that was woken by the deletion of the key before it waits for the answer to the request that deleted
// it, where that is one of this driver's. If it does not come, the waiter looks.
const patience = 50 * time.Millisecond

// grant is what the answer to a release says to the waiter who is the first now: what its own look would have found.
type grant struct {
	created int64 // revision of its key
	token   int64 // the revision of the answer: the holder before had let go of the lock at it
	record  record
}

// expect returns the feed of dir if a waiter of this driver stands right behind key, which is about to be deleted. Whoever calls it
// calls handOver then.
func (fs *feeds) expect(dir, key string) *feed {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.byDir[dir]
	if f == nil || !slices.ContainsFunc(f.waiters[key], func(w *waiter) bool { return w.view.next() == key }) {
		return nil
	}
	if _, twice := f.handing[key]; twice {
		return nil
	}
	if f.handing == nil {
		f.handing = make(map[string]struct{})
	}
	f.handing[key] = struct{}{}
	return f
}

// handOver deletes a key and asks in the same request who is the next, who then needs no look: with callers of one process in a row
// that saves one of three requests for each grant.
func (f *feed) handOver(ctx context.Context, key string) (removed bool, err error) {
	look := clientv3.OpGet(f.dir, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(pageSize),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	o := &op{dir: f.dir, then: []clientv3.Op{clientv3.OpDelete(key), look, getRecord(f.dir)}}
	if err := f.feeds.driver.sender.do(ctx, o); err != nil {
		f.settle(key, "", nil)
		return false, err
	}
	answer := o.answer
	first := contender(f.dir, answer.Responses[1].GetResponseRange().Kvs)
	r, wrong := readRecord(f.dir, answer.Responses[2].GetResponseRange().Kvs)
	if first == nil || wrong != nil || r.sealed {
		first = new(mvccpb.KeyValue)
	}
	f.settle(key, string(first.Key), &grant{created: first.CreateRevision, token: answer.Header.Revision, record: r})
	return answer.Responses[0].GetResponseDeleteRange().Deleted > 0, nil
}

// settle tells the waiter whose key is next that it has the lock. Those who counted on the answer for key, and get nothing, look.
func (f *feed) settle(key, next string, g *grant) {
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	delete(f.handing, key)
	for _, w := range f.waiters[next] {
		if next != "" && w.own == next {
			w.granted = g
			w.call()
		}
	}
	for _, w := range f.waiters[key] {
		if w.view.next() == key {
			w.stale = true
			w.call()
		}
	}
}

// todo is what a waiter does that was woken.
type todo int8

const (
	toLook   todo = iota // who is before it
	toRest               // it goes on waiting
	toExpect             // the answer to a release of this process, and to look if it does not come
	toTake               // the lock
)

// take says what the hold does that w was woken for, and gives it the token if it has the lock. A lease of the hold's own has to be
// prolonged at the grant, so those look then in any case.
func (h *hold) take(w *waiter) todo {
	f := w.feed
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	g := w.granted
	w.granted = nil
	_, pending := f.handing[w.view.next()]
	switch told := g != nil && g.created == h.revision; {
	case h.own != nil && (told || w.stale || w.cleared > 0):
		return toLook
	case told:
		h.tokenFrom(g.record, g.token)
		return toTake
	case w.stale && pending:
		return toExpect
	case w.stale, g != nil: // a grant for an earlier key of that name may have been in the way of one for this
		return toLook
	case w.cleared == 0:
		return toRest
	case h.driver.now() >= h.expires():
		return toLook
	}
	h.tokenFrom(w.view.record, w.cleared)
	return toTake
}
