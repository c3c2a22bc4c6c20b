package etcd

import (
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

// queueLook is one look at all contenders, for all waiters that wanted one when it began. When a thousand of them are woken at once,
// as when the feed becomes active, a look of each at all the others would keep the server busy for longer than they wait for it.
type queueLook struct {
	done   chan struct{} // closed when the fields below are set
	queue  []*mvccpb.KeyValue
	record record
	token  int64
	err    error
}

// lookFresh asks for the contender before the key, and prolongs a lease of the hold's own at the same time.
func (h *hold) lookFresh(ctx context.Context, w *waiter) (before string, err error) {
	if h.own == nil {
		return h.lookShared(ctx, w)
	}
	bounded, cancel := h.driver.request(ctx, attemptFor)
	defer cancel()
	refreshed := h.driver.refresh(bounded, h.own.carrier())
	before, err = h.lookShared(bounded, w)
	if failed := <-refreshed; err == nil && (before == "" || isLeaseGone(failed)) {
		err = failed
	}
	return before, err
}

// lookShared looks at once if no other waiter does, and together with all that wait for their turn otherwise.
func (h *hold) lookShared(ctx context.Context, w *waiter) (before string, err error) {
	f := w.feed
	f.feeds.mu.Lock()
	if !f.looking {
		f.looking = true
		f.feeds.mu.Unlock()
		defer f.looked()
		return h.look(ctx, f.dir)
	}
	if f.next == nil {
		f.next = &queueLook{done: make(chan struct{})}
	}
	q := f.next
	f.feeds.mu.Unlock()
	select {
	case <-q.done:
	case <-ctx.Done():
		return "", ctx.Err()
	case <-h.driver.stopping.Done():
		return "", errNoAnswer
	}
	if q.err != nil {
		return "", q.err
	}
	i, found := slices.BinarySearchFunc(q.queue, h.revision, func(kv *mvccpb.KeyValue, revision int64) int {
		return int(kv.CreateRevision - revision)
	})
	switch {
	case q.record.sealed:
		return "", driver.ErrSealed
	case !found || string(q.queue[i].Key) != h.key:
		return "", errGone
	case i > 0:
		return string(q.queue[i-1].Key), nil
	}
	h.tokenFrom(q.record, q.token)
	return "", nil
}

// looked ends a look, and begins the one that others wait for.
func (f *feed) looked() {
	f.feeds.mu.Lock()
	defer f.feeds.mu.Unlock()
	q := f.next
	f.next = nil
	if q == nil {
		f.looking = false
		return
	}
	if !f.feeds.driver.spawn(func() { f.lookForAll(q) }) {
		q.err, f.looking = errNoAnswer, false
		close(q.done)
	}
}

// lookForAll asks for all contenders.
func (f *feed) lookForAll(q *queueLook) {
	defer f.looked()
	defer close(q.done)
	d := f.feeds.driver
	ctx, cancel := d.background(requestFor)
	defer cancel()
	all, r, revision, err := d.getQueue(ctx, f.dir, clientv3.WithKeysOnly(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		q.err = err
		return
	}
	q.token, q.record = revision, r
	q.queue = slices.DeleteFunc(all.Kvs, func(kv *mvccpb.KeyValue) bool { return !isContender(f.dir, kv) })
}

// look asks for the contender before the key. If there is none, the lock is granted, and the revision of the answer is the token:
// the lock was held at that revision, and whoever had it before had let go of it.
func (h *hold) look(ctx context.Context, dir string) (before string, err error) {
	bounded, cancel := h.driver.request(ctx, attemptFor)
	defer cancel()
	options := []clientv3.OpOption{clientv3.WithKeysOnly(), clientv3.WithMaxCreateRev(h.revision),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend)}
	page, r, token, err := h.driver.getQueue(bounded, dir, append(options, clientv3.WithLimit(pageSize))...)
	if err != nil {
		return "", err
	}
	if r.sealed {
		return "", driver.ErrSealed
	}
	if len(page.Kvs) == 0 || page.Kvs[0].CreateRevision != h.revision || string(page.Kvs[0].Key) != h.key {
		return "", errGone
	}
	if page.More && contender(dir, page.Kvs[1:]) == nil { // a page full of names below
		if page, _, _, err = h.driver.getQueue(bounded, dir, append(options, clientv3.WithRev(token))...); err != nil {
			return "", err
		}
	}
	if c := contender(dir, others(page.Kvs, h.key)); c != nil {
		return string(c.Key), nil
	}
	h.tokenFrom(r, token)
	return "", nil
}

// getQueue asks for contenders, together with the record of the name.
func (d *Driver) getQueue(ctx context.Context, dir string, options ...clientv3.OpOption) (
	page *pb.RangeResponse, r record, revision int64, err error,
) {
	options = append(options, clientv3.WithPrefix())
	answer, err := d.client.Txn(ctx).Then(clientv3.OpGet(dir, options...), getRecord(dir)).Commit()
	if err != nil {
		return nil, r, 0, err
	}
	r, err = readRecord(dir, answer.Responses[1].GetResponseRange().Kvs)
	return answer.Responses[0].GetResponseRange(), r, answer.Header.Revision, err
}
