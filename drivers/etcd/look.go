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

// lookFresh asks for the contenders before the key, and prolongs a lease of the hold's own at the same time.
func (h *hold) lookFresh(ctx context.Context, w *waiter) (v view, err error) {
	if h.own == nil {
		return h.lookShared(ctx, w)
	}
	bounded, cancel := h.driver.request(ctx, attemptFor)
	defer cancel()
	refreshed := h.driver.refresh(bounded, h.own.carrier())
	v, err = h.lookShared(bounded, w)
	if failed := <-refreshed; err == nil && (v.first() || isLeaseGone(failed)) {
		err = failed
	}
	return v, err
}

// lookShared looks at once if no other waiter does, and together with all that wait for their turn otherwise.
func (h *hold) lookShared(ctx context.Context, w *waiter) (view, error) {
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
		return view{}, ctx.Err()
	case <-h.driver.life.Open().Done():
		return view{}, errNoAnswer
	}
	if q.err != nil {
		return view{}, q.err
	}
	i, found := slices.BinarySearchFunc(q.queue, h.revision, func(kv *mvccpb.KeyValue, revision int64) int {
		return int(kv.CreateRevision - revision)
	})
	switch {
	case q.record.sealed:
		return view{}, driver.ErrSealed
	case !found || string(q.queue[i].Key) != h.key:
		return view{}, errGone
	case i == 0:
		h.tokenFrom(q.record, q.token)
	}
	from := max(0, i-pageSize)
	before := slices.Clone(q.queue[from:i])
	slices.Reverse(before)
	return viewOf(w.feed.dir, before, from > 0, q.record, q.token), nil
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
	if !f.feeds.driver.life.Go(func() { f.lookForAll(q) }) {
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
	q.queue, q.record, q.token, q.err = d.getContenders(ctx, f.dir)
}

// getContenders asks for all contenders, the first one first, together with the record of the name.
func (d *Driver) getContenders(ctx context.Context, dir string) (all []*mvccpb.KeyValue, r record, revision int64, err error) {
	answer, r, revision, err := d.getQueue(ctx, dir, clientv3.WithKeysOnly(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return nil, r, revision, err
	}
	return slices.DeleteFunc(answer.Kvs, func(kv *mvccpb.KeyValue) bool { return !isContender(dir, kv) }), r, revision, nil
}

// look asks for the contenders before the key. If there is none, the lock is granted, and the revision of the answer is the token:
// the lock was held at that revision, and whoever had it before had let go of it.
func (h *hold) look(ctx context.Context, dir string) (view, error) {
	bounded, cancel := h.driver.request(ctx, attemptFor)
	defer cancel()
	options := []clientv3.OpOption{clientv3.WithKeysOnly(), clientv3.WithMaxCreateRev(h.revision),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend)}
	page, r, token, err := h.driver.getQueue(bounded, dir, append(options, clientv3.WithLimit(pageSize))...)
	if err != nil {
		return view{}, err
	}
	if r.sealed {
		return view{}, driver.ErrSealed
	}
	if len(page.Kvs) == 0 || page.Kvs[0].CreateRevision != h.revision || string(page.Kvs[0].Key) != h.key {
		return view{}, errGone
	}
	if page.More && contender(dir, page.Kvs[1:]) == nil { // a page full of names below
		if page, _, _, err = h.driver.getQueue(bounded, dir, append(options, clientv3.WithRev(token))...); err != nil {
			return view{}, err
		}
	}
	v := viewOf(dir, others(page.Kvs, h.key), page.More, r, token)
	if v.first() {
		h.tokenFrom(r, token)
	}
	return v, nil
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
