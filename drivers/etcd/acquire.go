package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

// pageSize is how many keys a request looks at where one or two are expected: keys of locks with names below may be among them.
const pageSize = 8

// againAfter is the pause before a third attempt within one Acquire.
const againAfter = 20 * time.Millisecond

// errAgain says that the session, or the key of a waiter, is gone, so the attempt has to start anew.
var errAgain = errors.New("ask again")

// value is what a key tells people about its holder.
type value struct {
	Owner string    `json:"owner,omitempty"`
	Host  string    `json:"host,omitempty"`
	Time  time.Time `json:"time"`
	Note  string    `json:"note,omitempty"`
	Hold  string    `json:"hold,omitempty"`
	Pass  int       `json:"pass,omitempty"` // how many times the hold was passed to another caller of the client
}

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	seconds, err := d.seconds(r.TTL)
	if err != nil {
		return nil, err
	}
	if err := d.cluster.trouble(); err != nil {
		return nil, err
	}
	if err := d.life.Enter(); err != nil {
		return nil, err
	}
	defer d.life.Leave()
	so := attempts{limit: r.Limit}
	for again := 0; ; again++ {
		h, err := d.attempt(ctx, r, seconds, &so)
		if err == nil {
			return h, nil
		}
		if err != errAgain {
			return nil, err
		}
		if again > 0 && !d.life.Sleep(ctx, againAfter) || ctx.Err() != nil {
			return nil, withCause(ctx, driver.ErrUnavailable, errors.New("the lease ended before the lock was granted"))
		}
	}
}

// attempts is what one attempt of an Acquire leaves to the next.
type attempts struct {
	waited bool
	limit  int // that the key is to name
}

// attempt asks with one key, until the lock is granted or the attempt has to start anew.
func (d *Driver) attempt(ctx context.Context, r *driver.Request, seconds int64, so *attempts) (*hold, error) {
	h := &hold{driver: d, request: r, limit: so.limit}
	defer func() { so.limit = h.limit }()
	dir := d.dir(r.Name)
	fresh, err := h.chooseLeaseAndKey(ctx, dir, seconds)
	if err != nil {
		return nil, err
	}
	if r.NoWait {
		return h.try(ctx, dir, fresh)
	}
	asked := d.feeds.now()
	v, err := h.enqueue(ctx, dir, fresh)
	if err == nil && !v.first() {
		if !so.waited {
			so.waited = true
			r.Events.Waiting()
		}
		err = h.wait(ctx, dir, d.feeds.join(h.key, asked), v)
	}
	return h.outcome(err)
}

// outcome is what attempt returns.
func (h *hold) outcome(err error) (*hold, error) {
	if err == nil {
		err = h.enter()
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

// chooseLeaseAndKey finds a lease of etcd for the key, and makes the key, whose name contains the lease. A lease that is not fresh has to be
// prolonged together with the next request.
func (h *hold) chooseLeaseAndKey(ctx context.Context, dir string, seconds int64) (fresh bool, err error) {
	d := h.driver
	if !h.request.Fixed {
		if h.session, err = d.board(ctx, seconds); err != nil {
			return false, err
		}
		h.takeNumber(dir)
		h.key = newKey(dir, h.mark(), h.session.id, h.number)
		return true, nil
	}
	c, fresh, err := d.spare.take(ctx, seconds)
	if err != nil {
		return false, err
	}
	h.own = newOwnLease(c, seconds)
	h.takeNumber(dir)
	h.key = newKey(dir, h.mark(), c.id, h.number)
	return fresh, nil
}

// try asks once. If the lock is taken, no key stays in the queue.
func (h *hold) try(ctx context.Context, dir string, fresh bool) (*hold, error) {
	keys := h.rangeIn(dir)
	look := clientv3.OpGet(keys.from(), keys.rest(), clientv3.WithKeysOnly(), h.atMost(pageSize))
	condition, then := h.plain(dir)
	answer, err := h.ask(ctx, fresh, []clientv3.Cmp{keys.isEmpty(), condition}, append([]clientv3.Op{h.put()}, then...), []clientv3.Op{look, getRecord(dir)})
	if err != nil {
		return nil, err
	}
	r, err := h.recordAt(dir, answer, 1)
	if answer.Succeeded {
		h.created(answer, r)
		if err == nil {
			_, err = h.missing(dir, nil, r)
		}
		if err != nil {
			err = h.abandon(ctx, err)
		}
		return h.outcome(err)
	}
	if r.sealed || err != nil {
		h.notPut()
		return nil, cmp.Or(err, driver.ErrSealed)
	}
	page := answer.Responses[0].GetResponseRange()
	missing, err := h.missing(dir, page.Kvs, r)
	if err != nil || missing > 0 || anyExcludes(dir, page.Kvs, h.request.Mode) {
		h.notPut()
		return nil, cmp.Or(err, driver.ErrLocked)
	}
	v, err := h.enqueue(ctx, dir, fresh) // the keys of this page do not count, and others behind the page may
	if err == nil && !v.first() {
		err = h.abandon(ctx, driver.ErrLocked)
	}
	return h.outcome(err)
}

// enqueue puts the key, and returns a view of the keys before it. If there are none, the lock is granted.
func (h *hold) enqueue(ctx context.Context, dir string, fresh bool) (view, error) {
	leave, err := h.driver.turn(ctx, dir)
	if err != nil {
		return view{}, h.fail(ctx, err)
	}
	condition, record := h.plain(dir)
	answer, err := h.ask(ctx, fresh, []clientv3.Cmp{condition}, append([]clientv3.Op{h.queue(dir), h.put()}, record...), nil)
	leave()
	if err != nil {
		return view{}, err
	}
	if !answer.Succeeded {
		if len(record) > 0 {
			h.notPut()
			return view{}, driver.ErrSealed
		}
		h.driver.recorded.Store(true)
		return h.enqueue(ctx, dir, fresh) // and plain asks for the record from now on
	}
	r, err := h.recordAt(dir, answer, 2)
	h.created(answer, r)
	if err != nil {
		return view{}, h.abandon(ctx, err)
	}
	page := answer.Responses[0].GetResponseRange()
	v := viewOf(dir, h.request.Mode, page.Kvs, page.More, r, h.revision)
	if v.missing, err = h.missing(dir, page.Kvs, r); err != nil {
		return view{}, h.abandon(ctx, err)
	}
	if len(v.before) > 0 || v.all { // otherwise keys that do not count fill the page
		return v, nil
	}
	if v, err = h.look(ctx, dir, ""); err != nil {
		return view{}, h.failPut(ctx, err)
	}
	return v, nil
}

// newest asks for keys alone, the one that was put last first: all of a range, or a page.
var (
	newest     = clientv3.OpGet("", clientv3.WithKeysOnly(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))
	newestPage = clientv3.OpGet("", clientv3.WithKeysOnly(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(maxView))
)

// queue makes the operation that reads the keys before one that is about to be put.
func (h *hold) queue(dir string) clientv3.Op {
	if h.request.Mode == driver.Permit { // all keys count
		return h.rangeIn(dir).read(newest)
	}
	return h.rangeIn(dir).read(newestPage)
}

// plain returns the condition under which a key may contend, and what else the request that puts the key has to read. Until the driver has
// met a name with a record, the condition is that there is no record, which is less work for the server than to read one.
func (h *hold) plain(dir string) (clientv3.Cmp, []clientv3.Op) {
	if h.request.Mode == driver.Permit || h.driver.recorded.Load() {
		return notSealed(dir), []clientv3.Op{getRecord(dir)}
	}
	return noRecord(dir), nil
}

// recordAt takes the record out of the answer at i, if the request has asked for the record.
func (h *hold) recordAt(dir string, answer *clientv3.TxnResponse, i int) (record, error) {
	if i >= len(answer.Responses) {
		return record{}, nil
	}
	kvs := answer.Responses[i].GetResponseRange().Kvs
	if len(kvs) > 0 && h.request.Mode != driver.Permit { // whose requests read the record in any case
		h.driver.recorded.Store(true)
	}
	return readRecord(dir, kvs)
}

// notPut ends an attempt whose key surely was not put.
func (h *hold) notPut() {
	h.putNumber()
	h.giveLeaseBack()
}

// put makes the operation that puts the key.
func (h *hold) put() clientv3.Op {
	r := h.request
	v := value{Owner: r.Owner, Host: h.driver.host, Time: time.Now(), Note: r.Note, Hold: r.Hold}
	return opPut(h.key, h.driver.textOf(v), clientv3.WithLease(h.leaseID()))
}

func (h *hold) leaseID() clientv3.LeaseID {
	if h.session != nil {
		return h.session.id
	}
	return h.own.carrier().id
}

// created takes the answer to the transaction that put the key.
func (h *hold) created(answer *clientv3.TxnResponse, r record) {
	h.revision = answer.Header.Revision
	h.tokenFrom(r, h.revision)
}

// ask sends a transaction that may put the key, and prolongs a lease that is not fresh at the same time. If either fails, ask cleans up
// what may be left.
func (h *hold) ask(ctx context.Context, fresh bool, compare []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	bounded, cancel := h.driver.asks.under(ctx)
	defer cancel()
	var refreshed <-chan error
	if !fresh {
		refreshed = h.driver.refresh(bounded, h.own.carrier())
	}
	o := &op{dir: h.dir(), compare: compare, then: then, otherwise: otherwise}
	err := h.driver.sender.do(bounded, o)
	var failed error
	if refreshed != nil {
		failed = <-refreshed
	}
	if err != nil {
		return nil, h.fail(ctx, err)
	}
	if failed != nil {
		return nil, h.failPut(ctx, failed)
	}
	return o.answer, nil
}

// fail ends an attempt by the error of a request that may have put the key, and returns the error for the caller.
func (h *hold) fail(ctx context.Context, err error) error {
	if isLeaseGone(err) {
		h.giveLeaseUp()
		return errAgain
	}
	unsent := errors.Is(err, errNotSent)
	err, doubt := fault(ctx, err)
	switch {
	case doubt:
		h.leaveToCleaner(false)
	case unsent:
		h.notPut()
	default:
		h.giveLeaseBack()
	}
	if h.driver.life.Open().Err() != nil {
		return fmt.Errorf("%w: %w", driver.ErrClosed, err)
	}
	return err
}

// failPut is fail after an answer said that the key was put.
func (h *hold) failPut(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, errGone):
		h.giveLeaseBack()
		return errAgain
	case isFinal(err):
		return h.abandon(ctx, err)
	case isLeaseGone(err):
		h.giveLeaseUp()
		return errAgain
	}
	h.leaveToCleaner(true)
	err, _ = fault(ctx, err)
	if errors.Is(err, errClusters) {
		return err
	}
	if h.driver.life.Open().Err() != nil {
		return fmt.Errorf("%w: %w", driver.ErrClosed, err)
	}
	if !errors.Is(err, driver.ErrUnknown) {
		err = fmt.Errorf("%w: %w", driver.ErrUnknown, err)
	}
	return err
}

// giveLeaseUp gives up a lease that the server has ended, and all holds on it.
func (h *hold) giveLeaseUp() {
	if h.session != nil {
		h.session.die(driver.ErrSessionEnded)
		h.session.leave()
	} else {
		h.own.discard(h.driver)
	}
}

// enter counts a granted hold among those of the driver.
func (h *hold) enter() error {
	d := h.driver
	h.granted = d.now()
	if d.life.Open().Err() != nil {
		h.leaveToClose()
		return driver.ErrClosed
	}
	if h.own != nil {
		h.own.modified = h.revision
		h.own.expires.Store(h.own.carrier().expires.Load())
	}
	if !h.list() {
		h.session.leave()
		return errAgain
	}
	d.checks.start()
	return nil
}
