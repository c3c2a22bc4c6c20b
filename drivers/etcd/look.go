package etcd

import (
	"context"
	"hash/maphash"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

// lookFresh is look, and prolongs a lease of the hold's own at the same time.
func (h *hold) lookFresh(ctx context.Context, dir, nearest string) (v view, err error) {
	if h.own == nil {
		return h.look(ctx, dir, nearest)
	}
	bounded, cancel := h.driver.looks.under(ctx)
	defer cancel()
	refreshed := h.driver.refresh(bounded, h.own.carrier())
	v, err = h.look(bounded, dir, nearest)
	if failed := <-refreshed; err == nil && (v.first() || isLeaseGone(failed)) {
		err = failed
	}
	return v, err
}

// maxLooks is how many requests that read the queue of a name are on their way at a time, where each caller of a client sends its own
// (Options.FIFO). The cost of each at the server grows with the number of keys: requests that are not answered in time would be sent again
// and again.
const maxLooks = 4

// turn waits until less than maxLooks requests of the client read the queue of dir, or of a name that shares its turns. Leave ends the turn.
func (d *Driver) turn(ctx context.Context, dir string) (leave func(), err error) {
	if !d.options.FIFO {
		return func() {}, nil // package dsync asks for one caller at a time
	}
	c := d.turns[maphash.String(d.seed, dir)%uint64(len(d.turns))]
	select {
	case c <- struct{}{}:
		return func() { <-c }, nil
	case <-ctx.Done():
	case <-d.life.Open().Done():
	}
	return nil, errNotSent
}

// look asks for the contenders before the key that exclude it. If there are none, the lock is granted, and the revision of the answer is the
// token: h had the lock at that revision, and the holder before had let go of it. If nearest, the key that was right before, is still there, the
// answer is that alone, and the server has not read the queue.
func (h *hold) look(ctx context.Context, dir, nearest string) (view, error) {
	leave, err := h.driver.turn(ctx, dir)
	if err != nil {
		return view{}, err
	}
	defer leave()
	bounded, cancel := h.driver.looks.under(ctx)
	defer cancel()
	keys := h.rangeIn(dir)
	before := func(bound clientv3.OpOption) clientv3.Op {
		return clientv3.OpGet(keys.from(), keys.rest(), clientv3.WithKeysOnly(), clientv3.WithMaxCreateRev(h.revision-1), bound,
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))
	}
	all := []clientv3.Op{getRecord(dir), clientv3.OpGet(h.key), before(h.atMost(maxView))}
	var isThere []clientv3.Cmp
	then, otherwise := all, []clientv3.Op(nil)
	if nearest != "" && h.request.Mode != driver.Permit { // it may have gone, and come again behind; for permits all keys count
		created := clientv3.CreateRevision(nearest)
		isThere = []clientv3.Cmp{clientv3.Compare(created, ">", 0), clientv3.Compare(created, "<", h.revision)}
		then, otherwise = all[:2], all
	}
	answer, err := h.driver.transact(bounded, isThere, then, otherwise)
	if err != nil {
		return view{}, err
	}
	r, err := readRecord(dir, answer.Responses[0].GetResponseRange().Kvs)
	if err != nil {
		return view{}, err
	}
	if r.sealed {
		return view{}, driver.ErrSealed
	}
	switch there := answer.Responses[1].GetResponseRange().Kvs; {
	case len(there) == 0:
		return view{}, errGone
	case !h.isOf(there[0]):
		h.sweep()
		return view{}, errGone
	}
	token := answer.Header.Revision
	if len(answer.Responses) < len(all) {
		return view{revision: token, record: r, before: []string{nearest}}, nil
	}
	page := answer.Responses[2].GetResponseRange()
	if page.More && !anyExcludes(dir, page.Kvs, h.request.Mode) { // none of the keys on the page counts
		if answer, _, err = h.driver.askFor(bounded, dir, before(clientv3.WithRev(token))); err != nil {
			return view{}, err
		}
		page = answer.Responses[0].GetResponseRange()
	}
	v := viewOf(dir, h.request.Mode, page.Kvs, page.More, r, token)
	if v.missing, err = h.missing(dir, page.Kvs, r); err != nil {
		return view{}, err
	}
	if v.first() {
		h.tokenFrom(r, token)
	}
	return v, nil
}
