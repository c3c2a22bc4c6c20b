package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
	"github.com/go-dsync/dsync/internal/linked"
)

// hold is one attempt to acquire a lock, represented by a key. If the lock is
// granted, the hold is also the driver.Lease.
type hold struct {
	linked.Links[hold] // in session.holds or Driver.fixed

	driver   *Driver
	request  *driver.Request
	waited   bool // Events.Waiting was called
	standing standing
	key      string
	limit    int    // limit of permits in the key
	number   uint64 // in the key
	revision int64  // at which the key was created
	token    int64  // the revision that the token comes from
	record   record
	first    atomic.Uint64 // token
	granted  int64         // time of the grant, on the driver's clock
	session  *session      // nil if the hold has its own lease
	own      *ownLease     // nil otherwise

	mu        sync.Mutex
	phase     phase
	inCleaner bool  // leaveToCleaner was called
	sealing   bool  // the key may have become a seal
	deletions int32 // requests to delete the key
	doubtedAt int64 // when the first unanswered request to release the hold was sent
	// the key's value since the hold was passed, or its next value; nil if it
	// never was passed
	passed *value
}

// phase is the progress of the end of a hold.
type phase int8

// standing is the state of an attempt's key, as far as the driver knows.
type standing int8

const (
	absent standing = iota // the key is not on the server
	asked                  // a request to put the key was sent and may be carried out
	there                  // the key was put
)

const (
	held    phase = iota
	ending        // Release was called
	doubted       // a request to release the hold was not answered
	over
)

// Tokens implements driver.Lease.
func (h *hold) Tokens() (first uint64, n int) {
	if h.driver.options.NoTokens || h.rule().adds {
		return 0, 0
	}
	return h.first.Load(), 1
}

// Expires implements driver.Lease.
func (h *hold) Expires() time.Time {
	return h.driver.epoch.Add(time.Duration(h.expires()))
}

func (h *hold) expires() int64 {
	if h.session != nil {
		return h.session.End.At()
	}
	return h.own.expires.Load()
}

// isPast reports whether the time Expires has passed. Once isPast has returned
// true for a session's hold, the session has ended permanently.
func (h *hold) isPast() bool {
	if h.session != nil {
		return h.session.End.Passed(h.driver.now())
	}
	return h.driver.now() >= h.expires()
}

// Session implements driver.SessionLease. The server counts in whole seconds,
// so with Options.RoundUp ttl may be longer than the TTL of the request.
func (h *hold) Session() (expires time.Time, ttl time.Duration) {
	if s := h.session; s != nil {
		return h.driver.epoch.Add(time.Duration(s.End.At())), s.ttl
	}
	return time.Time{}, 0
}

// list adds a granted hold to the lists of the driver, unless its session is
// dead.
func (h *hold) list() bool {
	if h.session != nil {
		return h.session.add(h)
	}
	d := h.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fixed.Add(h)
	return true
}

func (h *hold) unlist() {
	if h.session != nil {
		h.session.remove(h)
		return
	}
	d := h.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fixed.Remove(h)
}

// lose ends a hold other than by Release. The hold is no longer listed. Without
// a cause the holder is not notified.
func (h *hold) lose(cause error) {
	h.mu.Lock()
	first := h.phase == held
	if first {
		h.phase = over
	}
	h.mu.Unlock()
	if !first {
		return // the request of Release finds out from the server
	}
	h.giveLeaseBack()
	if cause != nil {
		h.request.Events.Lost(cause)
	}
}

// giveLeaseBack gives back the lease to which the key was attached. The key is
// known to be gone.
func (h *hold) giveLeaseBack() {
	h.mu.Lock()
	inCleaner := h.inCleaner
	h.mu.Unlock()
	switch {
	case inCleaner:
	case h.session != nil:
		h.session.Leave(0)
	default:
		h.own.giveBack(h.driver)
	}
}

// leaveToCleaner deletes the key in the background. definite is set if the
// request that put the key was answered.
func (h *hold) leaveToCleaner(definite bool) {
	h.mu.Lock()
	again, sealing := h.inCleaner, h.sealing
	h.inCleaner = true
	h.mu.Unlock()
	switch {
	case again:
	case h.session != nil:
		h.driver.ghosts.Add(&ghost{key: h.key, carrier: &h.session.carrier, session: h.session, definite: definite, sealing: sealing})
		h.session.Leave(0)
	default:
		h.own.discard(h.driver)
	}
}

// Release implements driver.Lease. It repeats failed requests until ctx or the
// hold ends.
func (h *hold) Release(ctx context.Context) error {
	d := h.driver
	h.mu.Lock()
	if h.phase == over {
		h.mu.Unlock()
		return driver.ErrNotHeld
	}
	first := h.phase == held
	if first {
		h.phase = ending
	}
	h.mu.Unlock()
	if first {
		h.unlist()
	}
	known := false
	err := d.life.Repeat(ctx, func() (again bool, err error) {
		known, err = h.releaseOnce(ctx)
		return !known && lifecycle.Transient(err) && ctx.Err() == nil && !h.isPast(), err
	})
	if known {
		return err
	}
	h.leaveToCleaner(true)
	if !errors.Is(err, driver.ErrUnknown) {
		err = fmt.Errorf("%w: %w", driver.ErrUnknown, err)
	}
	return err
}

// releaseOnce sends one request to delete the key and reports whether its
// outcome is known.
//
// If a repeated request finds no key, the unanswered request before it counts
// as successful, provided that it was sent before the lease could have ended
// and that the key cannot have become a seal.
func (h *hold) releaseOnce(ctx context.Context) (known bool, _ error) {
	d := h.driver
	bounded, cancel := d.ends.ending(ctx)
	defer cancel()
	h.mu.Lock()
	if h.phase == over {
		h.mu.Unlock()
		return true, driver.ErrNotHeld
	}
	h.deletions++
	sealing := h.sealing
	h.mu.Unlock()
	sent := d.now()
	removed, err := h.remove(bounded, sealing)

	h.mu.Lock()
	if h.phase == over { // in the meantime the session died, or another Release has ended it
		h.mu.Unlock()
		return true, driver.ErrNotHeld
	}
	if err != nil {
		if h.session != nil && h.session.gone.Load() {
			// the lease is known to be revoked, by Close or at the end of the
			// session
			h.phase = over
			h.mu.Unlock()
			h.giveLeaseBack()
			return true, driver.ErrNotHeld
		}
		err, doubt := fault(ctx, err)
		if doubt && h.phase == ending {
			h.phase, h.doubtedAt = doubted, sent
		}
		h.mu.Unlock()
		return false, err
	}
	ended := removed || h.phase == doubted && h.doubtedAt < h.expires() && !sealing
	h.phase = over
	only := h.deletions == 1 && !h.sealing
	h.mu.Unlock()
	if only {
		h.putNumber()
	}
	h.giveLeaseBack()
	if !ended {
		return true, driver.ErrNotHeld
	}
	return true, nil
}

// remove deletes the key.
func (h *hold) remove(ctx context.Context, sealing bool) (removed bool, err error) {
	d := h.driver
	if sealing {
		return d.removeKey(ctx, h.key, true)
	}
	o := &op{dir: h.dir(), key: h.key, hold: h}
	if err := d.sender.do(ctx, o); err != nil {
		return false, err
	}
	return o.removed, nil
}

// leaveToLease leaves the key to the end of its lease.
func (h *hold) leaveToLease() {
	if h.session != nil {
		h.session.Leave(0)
	} else {
		h.own.discard(h.driver)
	}
}

// holdList is a list of holds, almost in the order in which they were granted.
type holdList struct{ linked.List[hold, *hold] }

// before returns the holds that were granted before a time.
func (l *holdList) before(granted int64) []*hold {
	var some []*hold
	for h := range l.All() {
		if h.granted >= granted {
			break
		}
		some = append(some, h)
	}
	return some
}

var _ driver.Passer = (*hold)(nil)

// Pass implements driver.Passer. The key is put again on the same lease: it
// stays the oldest one, the waiters behind it keep waiting, and the revision of
// the answer is the token. Even if there is no answer, the key exists, and
// Release deletes it.
func (h *hold) Pass(ctx context.Context, owner, note string) error {
	if h.isOver() {
		return driver.ErrNotHeld
	}
	bounded, cancel := h.driver.ends.ending(ctx)
	defer cancel()
	v := h.nextValue(owner, note)
	o := &op{dir: h.dir(), compare: append(h.stands(), h.overlookedByNobody()...), then: []clientv3.Op{opPut(h.key, h.driver.textOf(v), clientv3.WithIgnoreLease())}}
	if err := h.driver.sender.do(bounded, o); err != nil {
		err, _ = fault(ctx, err)
		return err
	}
	if !o.answer.Succeeded {
		if h.rule().besideRecipe {
			return errOverlooked // or the hold has ended, as its release will report
		}
		h.vanish()
		return driver.ErrNotHeld
	}
	revision := o.answer.Header.Revision
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tokenFrom(h.record, revision)
	return nil
}

// nextValue returns the key's value for its next holder, and remembers it for
// putAgain.
func (h *hold) nextValue(owner, note string) value {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := value{Owner: owner, Host: h.driver.host, Time: time.Now(), Note: note, Hold: h.request.Hold, Pass: 1}
	if h.passed != nil {
		v.Pass = h.passed.Pass + 1
	}
	h.passed = &v
	return v
}

// putAgain puts the key of the hold unchanged except for the count of passes,
// so that the event does not look like a pass. The event notifies the waiters
// behind the key that the record of the name has changed.
func (h *hold) putAgain() clientv3.Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.passed == nil {
		return clientv3.OpPut(h.key, "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease())
	}
	v := *h.passed
	v.Pass = 0
	return opPut(h.key, h.driver.textOf(v), clientv3.WithIgnoreLease())
}

// textOf returns the value of a hold's key. A value that is only a note does
// not show that the hold was passed, so the waiters behind it read the queue
// again.
func (d *Driver) textOf(v value) []byte {
	if d.options.NoteAlone {
		return []byte(v.Note)
	}
	return v.text()
}

// Leave implements driver.Leaver. It works like a final renewal of a hold with
// its own expiry, repeated like a release. All leases to which the key is or
// may be attached are left to run out.
//
// If a Leave is in progress, Close waits for it but does not end the hold. The
// hold is first removed from the driver's list, so Close does not end it even if
// Close gives up waiting.
func (d *Driver) Leave(ctx context.Context, granted driver.Lease, ttl time.Duration) error {
	h := granted.(*hold)
	d.life.EnterLate()
	defer d.life.Leave()
	h.unlist()
	err := d.life.Repeat(ctx, func() (again bool, err error) {
		err = h.Renew(ctx, ttl)
		return lifecycle.Transient(err) && !h.isPast(), err
	})
	h.mu.Lock()
	h.phase = over
	h.mu.Unlock()
	h.own.mu.Lock()
	h.own.ended = true
	h.own.mu.Unlock()
	return err
}

// removalPause is the minimum time between two checks of a key by WatchRemoval.
const removalPause = 100 * time.Millisecond

// WatchRemoval implements driver.RemovalWatcher. Any change to the contenders
// may be the removal, so the driver checks for the key after each change.
func (h *hold) WatchRemoval(func()) (stop func()) {
	d := h.driver
	ctx, stop := context.WithCancel(d.life.Context())
	changed := make(chan struct{}, 1)
	unwatch, err := d.Watch(h.request.Name, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return stop
	}
	look := func() { // ends when stop is called or the driver is closed
		defer unwatch()
		for {
			select {
			case <-changed:
				bounded, cancel := withBound(ctx, requestFor)
				d.verify(bounded, h)
				cancel()
				d.life.Sleep(ctx, removalPause)
			case <-ctx.Done():
				return
			}
		}
	}
	if !d.life.Go(look) {
		unwatch()
	}
	return stop
}

// verify reads the key of h in a way that no lagging server can answer, and
// ends the hold if the key is gone.
func (d *Driver) verify(ctx context.Context, h *hold) {
	h.mu.Lock()
	phase := h.phase
	h.mu.Unlock()
	if phase != held {
		return
	}
	answer, err := d.get(ctx, h.key) // servers omit the lease in answers with only keys
	if err != nil || len(answer.Kvs) > 0 && h.isOf(answer.Kvs[0]) {
		return
	}
	if len(answer.Kvs) == 0 || !h.isSealing() || !h.isSeal(answer.Kvs) {
		h.vanish()
	}
}

// vanish ends a hold whose key another client removed or overwrote.
func (h *hold) vanish() {
	h.unlist()
	if !h.isSealing() {
		h.sweep()
	}
	h.lose(driver.ErrRemoved)
}

// sweep deletes the key in the background. A key that another client overwrote
// is not attached to a lease, so it would stay forever.
func (h *hold) sweep() {
	h.driver.ghosts.Add(&ghost{key: h.key, carrier: new(carrier), definite: true})
}

// isOf reports whether kv is the key of h as this driver put it. A key put by
// hand has another create revision, or no lease.
func (h *hold) isOf(kv *mvccpb.KeyValue) bool {
	return kv.CreateRevision == h.revision && kv.Lease != int64(clientv3.NoLease)
}
