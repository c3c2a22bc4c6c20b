package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"math/rand/v2"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

const (
	// the longest a waiter goes without reading the queue, in case it misses
	// events; shortened at random by up to a quarter
	backstop  = 5 * time.Second
	firstLook = time.Second // the same bound while the feed is not active
	lookAgain = 100 * time.Millisecond
)

// wait goes through the states wait and look, until no key before h.key
// excludes it. v is the view from the request that put the key.
func (h *hold) wait(ctx context.Context, w *waiter, v view) error {
	d := h.driver
	defer w.leave()
	d.conns.expectEvents()
	defer d.conns.stopExpecting()
	active := w.endLook(v, h.hears(v))
	timer := time.NewTimer(h.pause(active))
	defer timer.Stop()
	for refusal := driver.ErrLocked; ; {
		late := false
		select {
		case <-w.wake:
			switch h.judge(w) {
			case frees:
				return nil
			case holds:
				continue
			}
		case <-timer.C:
			late = true
		case <-h.sessionOver():
			return errOver
		case <-ctx.Done():
			return final{fmt.Errorf("%w: %w", refusal, ctx.Err())}
		case <-d.life.Open().Done():
			return driver.ErrClosed
		}
		old, nearest := w.beginLook()
		v, err := h.lookFresh(ctx, nearest)
		if late && err == nil {
			missed := old != nil && !old.isOf(v) // an event was missed that should have woken the waiter
			w.doubt(missed)
		}
		switch {
		case err == nil && v.first():
			return nil
		case err == nil:
			refusal = driver.ErrLocked
			active = w.endLook(v, h.hears(v))
			timer.Reset(h.pause(active))
		default:
			if err = h.endOfWait(ctx, err); err != nil {
				return err
			}
			if ctx.Err() == nil {
				refusal = driver.ErrUnavailable
			}
			timer.Reset(lookAgain)
		}
	}
}

// hears returns the ranges whose events a waiter with a view receives. If few
// keys are before its own, a waiter listens to all contenders, and is granted
// the lock without another read. If many keys are, each waiter listens only for
// the end of the nearest key. Otherwise each release would notify all waiting
// clients. Sealing does not delete the key, so every waiter also watches the
// seal.
//
// A waiter that listens to the nearest key keeps listening while that key
// exists, even when few keys are left, because its reads return no other key. A
// waiter behind a key of its own client also listens to all contenders. So if
// callers have a key each (Options.FIFO), most callers of a client share one
// watch. A request for permits must count all released permits, and reads the
// queue after a change of the limit.
func (h *hold) hears(v view) []keyRange {
	dir := h.dir()
	switch {
	case h.rule().adds:
		return []keyRange{h.keys(), {dir: limitKey(dir), ofRecord: true}}
	case v.all, isOfClient(v.before[0], h.key):
		return []keyRange{h.keys()}
	}
	return []keyRange{{dir: v.before[0], ends: true}, {dir: sealKey(dir), ofRecord: true}}
}

// judge determines the effect of events on the view of a waiter that was woken,
// and gives the hold its token if it now holds the lock. A hold with its own
// lease always reads the queue, because the lease must be extended at the
// grant.
func (h *hold) judge(w *waiter) verdict {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	switch {
	case w.view == nil:
		return drops
	case w.first == 0:
		return holds
	case h.own != nil, h.rule().confirms, h.isPast():
		return drops
	}
	h.tokenFrom(w.view.record, w.first)
	return frees
}

// endOfWait returns the error that ends a wait after a read failed with err, or
// nil if the wait continues. wait itself notices the end of ctx or of the
// driver.
func (h *hold) endOfWait(ctx context.Context, err error) error {
	if _, isFinal := err.(final); isFinal || err == errGone || isLeaseGone(err) || errors.Is(err, errClusters) {
		return err
	}
	if err, _ = fault(ctx, err); ctx.Err() == nil && h.driver.life.Open().Err() == nil && errors.Is(err, fs.ErrPermission) {
		return final{err}
	}
	return nil
}

func (h *hold) sessionOver() <-chan struct{} {
	if h.session == nil {
		return nil
	}
	return h.session.Over()
}

// pause returns the time to wait for an event. In the meantime, a hold with its
// own lease must extend the lease.
func (h *hold) pause(active bool) time.Duration {
	limit := backstop - rand.N(backstop/4)
	if !active {
		limit = firstLook
	}
	if h.own != nil {
		limit = min(limit, h.own.carrier().ttl/3)
	}
	return limit
}

// lookFresh is like look, but also extends the hold's own lease.
func (h *hold) lookFresh(ctx context.Context, nearest string) (v view, err error) {
	if h.own == nil {
		return h.look(ctx, nearest)
	}
	bounded, cancel := h.driver.looks.under(ctx)
	defer cancel()
	refreshed := h.driver.refresh(bounded, h.own.carrier(), requestFor)
	v, err = h.look(bounded, nearest)
	if failed := <-refreshed; err == nil && (v.first() || isLeaseGone(failed)) {
		err = failed
	}
	return v, err
}

// maxLooks is the maximum number of concurrent requests that read the queue of
// a name, if each caller of a client sends its own (Options.FIFO). With this
// limit, thousands of simultaneous callers all get their place. The server's
// cost for each request grows with the number of keys. Without the limit, many
// of 4,000 requests got no answer in time.
const maxLooks = 4

// turn waits until fewer than maxLooks requests of the client read the queue of
// dir, or of a name that shares its turns.
func (d *Driver) turn(ctx context.Context, dir string) (end func(), err error) {
	if !d.options.FIFO {
		return func() {}, nil // package dsync sends requests for one caller at a time
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

// look requests the contenders before the key that exclude it. If there are
// none, the lock is granted, and the revision of the answer is the token: h
// held the lock at that revision, after the previous holder had released it. If
// nearest, which was the key directly before, is still there, the answer has
// only that key, and the server has not read the queue.
func (h *hold) look(ctx context.Context, nearest string) (view, error) {
	dir := h.dir()
	endTurn, err := h.driver.turn(ctx, dir)
	if err != nil {
		return view{}, err
	}
	defer endTurn()
	bounded, cancel := h.driver.looks.under(ctx)
	defer cancel()
	keys := h.keys()
	before := func(bound clientv3.OpOption) clientv3.Op {
		return clientv3.OpGet(keys.from(), keys.rest(), clientv3.WithKeysOnly(), clientv3.WithMaxCreateRev(h.revision-1), bound,
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))
	}
	all := []clientv3.Op{getRecord(dir), clientv3.OpGet(h.key), before(h.atMost(maxView))}
	var isThere []clientv3.Cmp
	then, otherwise := all, []clientv3.Op(nil)
	if nearest != "" && !h.rule().adds {
		// the key may have been deleted and put again further back; for permits
		// all keys count
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
		return view{}, final{driver.ErrSealed}
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
	if page.More && !anyExcludes(dir, page.Kvs, h.request.Mode) {
		// none of the keys on the page counts
		if answer, _, err = h.driver.readQueue(bounded, dir, before(clientv3.WithRev(token))); err != nil {
			return view{}, err
		}
		page = answer.Responses[0].GetResponseRange()
	}
	v := viewOf(dir, h.request.Mode, page.Kvs, page.More, r, token)
	if v.missing, err = h.missing(dir, page.Kvs, r); err != nil {
		return view{}, final{err}
	}
	if v.first() {
		h.tokenFrom(r, token)
	}
	return v, nil
}

// view contains the keys that are before a key and exclude it, according to one
// answer from the server. If there are none, the key holds the lock.
//
// No new key can be placed before another key, because its create revision is
// above those of all others. So a view of all the keys before, with every event
// since then, is as good as another read: the event by which the last of these
// keys is deleted grants the lock, at its revision, if all of these conditions
// are met:
//
//   - The watch was active before the request for the view was sent, and has
//     been since then, and its feed remembers all events since the
//     revision of the view. When a connection breaks, the client library goes
//     on with the revision after the last one that the watch delivered; if it
//     cannot, as after a compaction, the watch ends, and all waiters read the
//     queue.
//   - No event has reported a change of any of these keys, or of the key
//     itself. A seal changes the key of its holder. A mark may change the
//     record of a name, so setting or removing a mark puts the key of the
//     holder again, for the views. Only a pass to another caller of the client
//     leaves the view unchanged, and the value of the key identifies such a
//     pass.
//   - The lease of the key has not ended by the local clock. An event may
//     arrive arbitrarily late, but until the lease has ended no other client
//     can hold the lock, unless the key was removed in the meantime. The holder
//     is notified of such a removal in the usual way.
//
// Otherwise the waiter reads the queue again.
type view struct {
	revision int64
	record   record
	before   []string // keys, the nearest first
	all      bool     // before has all keys; otherwise only the nearest one

	// missing is the minimum number of permits that must be released before the
	// key can be granted its own.
	missing int
}

// maxView is the maximum number of keys in a view of all keys.
const maxView = 7

// viewOf returns the view of a key in the given mode. kvs are the keys before
// it, the nearest first. more is set if there are more keys before these.
func viewOf(dir string, mode driver.Mode, kvs []*mvccpb.KeyValue, more bool, r record, revision int64) view {
	v := view{revision: revision, record: r, all: !more}
	for _, kv := range kvs {
		switch {
		case !excludes(dir, kv, mode):
		case len(v.before) > 0 && (!v.all || len(v.before) == maxView):
			v.before, v.all = v.before[:1:1], false
			return v
		default:
			v.before = append(v.before, string(kv.Key))
		}
	}
	return v
}

// first reports whether no contender is before the key and no permits are
// missing.
func (v *view) first() bool { return v.all && len(v.before) == 0 && v.missing <= 0 }

// isOf reports whether a later view shows no change that an event should have
// reported before.
func (v *view) isOf(later view) bool {
	return slices.Equal(v.before, later.before[:min(len(v.before), len(later.before))]) && v.missing <= later.missing
}

// verdict is the effect of an event on a view.
type verdict int8

const (
	holds verdict = iota // the view remains valid
	frees                // since that event no key is before the waiter's key
	drops                // the waiter must read the queue
)

// apply handles an event of a contender, other than the creation of its key,
// because new keys are always behind. It also handles events of the name's
// record. The view belongs to the key own.
func (v *view) apply(e *clientv3.Event, own string, ofRecord bool) verdict {
	key := string(e.Kv.Key)
	i := slices.Index(v.before, key)
	switch {
	case e.Kv.ModRevision <= v.revision: // of an earlier key of the same name, or older than the view
		return holds
	case ofRecord, isSeal(e):
		// all waiters behind must read the queue, even if their view contains
		// only the nearest key
		return drops
	case i < 0 && key != own && v.missing > 0:
		return v.givenBack(e)
	case i < 0 && key != own, isPass(e):
		return holds
	case i < 0, e.Type == mvccpb.PUT, !v.all:
		return drops
	}
	if v.before = slices.Delete(v.before, i, i+1); len(v.before) > 0 {
		return holds
	}
	if v.missing > 0 {
		return holds
	}
	return frees
}

// givenBack counts the permits of a deleted key. The key may have been behind
// the waiter's own, and the limit may have changed in the meantime. So the
// waiter reads the queue when its permits may be free, and sometimes earlier.
func (v *view) givenBack(e *clientv3.Event) verdict {
	if e.Type == mvccpb.DELETE {
		n, _ := permitsOf(e.Kv.Key)
		v.missing -= n
	}
	if v.missing > 0 || len(v.before) > 0 {
		return holds
	}
	return drops
}

// isSeal reports whether an event makes a contender's key a seal, which stays
// forever.
func isSeal(e *clientv3.Event) bool {
	return e.Type == mvccpb.PUT && e.Kv.Lease == int64(clientv3.NoLease)
}

// isPass reports whether an event only passed a hold to another caller of its
// client.
func isPass(e *clientv3.Event) bool {
	var v value
	return e.Type == mvccpb.PUT && json.Unmarshal(e.Kv.Value, &v) == nil && v.Pass > 0
}
