package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
)

// pageSize is the number of keys that a request reads when one or two are
// expected. The keys that it reads may include keys of locks with longer names.
const pageSize = 8

const (
	againAfter = 20 * time.Millisecond // the pause before a third attempt within one Acquire
	// the longest a canceled wait continues until its key has been deleted
	abandonFor = 50 * time.Millisecond
)

// An attempt to acquire a lock has one key and goes through these states.
// Acquire starts the next attempt if the lease or the key is gone before the
// lock is granted, or if the key must contain a different limit of permits.
//
//	state    the attempt                 ends with                       next
//	board    gets a lease                the lease                       enqueue, or try if the request has NoWait
//	try      puts its key if the range   the key is put                  enter
//	         is empty                    a key excludes it               giveUp, ErrLocked
//	                                     no key on the page excludes it  enqueue
//	enqueue  puts its key and reads      no key excludes it              enter
//	         the keys before             a key excludes it               wait, or giveUp if the request has NoWait
//	                                     no key on a full page does      look
//	                                     an unread record                enqueue
//	wait     sleeps                      events: no key excludes it      enter
//	                                     events in doubt, or a timer     look
//	look     reads the keys before       no key excludes it              enter
//	                                     a key excludes it, no answer    wait
//	enter    lists the hold              the session lives               the hold
//	giveUp   settles the key                                             the error of the call, or the next attempt
//
// Each state is implemented by the method of hold with the same name. An error
// in any state except board leads to giveUp. Only giveUp settles the key,
// returns the lease and makes the error for the caller. It learns from
// hold.standing whether the key may be on the server. The table rules defines
// the modes.

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
	limit, waited := r.Limit, false
	for again := 0; ; again++ {
		h := &hold{driver: d, request: r, limit: limit, waited: waited}
		if err := h.board(ctx, seconds); err != nil {
			return nil, err
		}
		err := h.contend(ctx)
		if err == nil {
			return h, nil
		}
		if err = h.giveUp(ctx, err); err != errAgain {
			return nil, err
		}
		limit, waited = h.limit, h.waited
		if again > 0 && !d.life.Sleep(ctx, againAfter) || ctx.Err() != nil {
			return nil, lifecycle.WithCause(ctx, driver.ErrUnavailable, errors.New("the lease ended before the lock was granted"))
		}
	}
}

// board finds an etcd lease for the key and makes the key, whose name contains
// the lease. A grant that outlasts board continues in the background and serves
// the next attempt.
func (h *hold) board(ctx context.Context, seconds int64) (err error) {
	d, dir := h.driver, h.driver.dir(h.request.Name)
	bounded, cancel := d.asks.under(ctx)
	defer cancel()
	if !h.request.Fixed {
		h.session, err = d.sessions.Board(bounded, time.Duration(seconds)*time.Second, 0)
	} else {
		h.own, err = d.spare.take(bounded, seconds)
	}
	switch {
	case err == nil:
	case d.life.Open().Err() != nil:
		return driver.ErrClosed
	case err == bounded.Err():
		return lifecycle.WithCause(ctx, driver.ErrUnavailable, errNoAnswer)
	default:
		return err
	}
	h.takeNumber(dir)
	h.key = newKey(dir, h.mark(), h.leaseID(), h.number)
	return nil
}

// contend goes through the remaining states, beginning with try or enqueue. If
// ctx ends at the instant of the grant, a call that has not waited gets a
// lease, and a call that has waited gets an error.
func (h *hold) contend(ctx context.Context) error {
	put := h.enqueue
	if h.request.NoWait {
		put = h.try
	}
	sent := h.driver.feeds.now()
	v, err := put(ctx)
	switch {
	case err != nil:
		return err
	case v.first():
		return h.enter()
	case h.request.NoWait:
		return final{driver.ErrLocked}
	}
	if !h.waited {
		h.waited = true
		h.request.Events.Waiting()
	}
	if err := h.wait(ctx, h.driver.feeds.join(h.key, sent), v); err != nil {
		return err
	}
	if ctx.Err() != nil { // the context was canceled at the same time
		return final{fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())}
	}
	return h.enter()
}

// try sends one request. If the lock is taken, it puts no key, unless the page
// is full of keys that do not count.
func (h *hold) try(ctx context.Context) (view, error) {
	dir, keys := h.dir(), h.keys()
	look := clientv3.OpGet(keys.from(), keys.rest(), clientv3.WithKeysOnly(), h.atMost(pageSize))
	condition, then := h.plain(dir)
	answer, err := h.sendPut(ctx, []clientv3.Cmp{keys.isEmpty(), condition}, append([]clientv3.Op{h.put()}, then...), []clientv3.Op{look, getRecord(dir)})
	if err != nil {
		return view{}, err
	}
	r, err := h.recordAt(dir, answer, 1)
	var before []*mvccpb.KeyValue
	if !answer.Succeeded {
		before = answer.Responses[0].GetResponseRange().Kvs
	}
	missing := 0
	switch {
	case err == nil && r.sealed:
		err = driver.ErrSealed
	case err == nil:
		missing, err = h.missing(dir, before, r)
	}
	if err != nil {
		return view{}, final{err}
	}
	if answer.Succeeded {
		h.created(answer, r)
		return view{all: true}, nil
	}
	if missing > 0 || anyExcludes(dir, before, h.request.Mode) {
		return view{}, final{driver.ErrLocked}
	}
	return h.enqueue(ctx) // relevant keys may be on a later page
}

// enqueue puts the key and returns a view of the keys before it. If there are
// none, the lock is granted.
func (h *hold) enqueue(ctx context.Context) (view, error) {
	dir := h.dir()
	endTurn, err := h.driver.turn(ctx, dir)
	if err != nil {
		return view{}, err
	}
	condition, record := h.plain(dir)
	answer, err := h.sendPut(ctx, []clientv3.Cmp{condition}, append([]clientv3.Op{h.readBefore(), h.put()}, record...), nil)
	endTurn()
	switch {
	case err != nil:
		return view{}, err
	case !answer.Succeeded && len(record) > 0:
		return view{}, final{driver.ErrSealed}
	case !answer.Succeeded:
		h.driver.recorded.Store(true)
		return h.enqueue(ctx) // so from now on plain also reads the record
	}
	r, err := h.recordAt(dir, answer, 2)
	h.created(answer, r)
	if err != nil {
		return view{}, final{err}
	}
	page := answer.Responses[0].GetResponseRange()
	v := viewOf(dir, h.request.Mode, page.Kvs, page.More, r, h.revision)
	if v.missing, err = h.missing(dir, page.Kvs, r); err != nil {
		return view{}, final{err}
	}
	if len(v.before) > 0 || v.all {
		return v, nil
	}
	return h.look(ctx, "") // keys that do not count fill the page
}

// newest reads only the keys of a range, newest first. newestPage reads at most
// one page of them.
var (
	newest     = clientv3.OpGet("", clientv3.WithKeysOnly(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))
	newestPage = clientv3.OpGet("", clientv3.WithKeysOnly(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(maxView))
)

// readBefore makes the operation that reads the keys before the key about to be
// put.
func (h *hold) readBefore() clientv3.Op {
	if h.rule().adds { // all keys count
		return h.keys().read(newest)
	}
	return h.keys().read(newestPage)
}

// plain returns the condition under which a key may contend, and any additional
// reads for the request that puts the key. Until the driver has met a name with
// a record, the condition is that there is no record, because that costs the
// server less than reading one.
func (h *hold) plain(dir string) (clientv3.Cmp, []clientv3.Op) {
	if h.rule().adds || h.driver.recorded.Load() {
		return notSealed(dir), []clientv3.Op{getRecord(dir)}
	}
	return noRecord(dir), nil
}

// recordAt reads the record from response i of the answer, if the request reads
// the record.
func (h *hold) recordAt(dir string, answer *clientv3.TxnResponse, i int) (record, error) {
	if i >= len(answer.Responses) {
		return record{}, nil
	}
	kvs := answer.Responses[i].GetResponseRange().Kvs
	if len(kvs) > 0 && !h.rule().adds { // requests for permits always read the record
		h.driver.recorded.Store(true)
	}
	return readRecord(dir, kvs)
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

// dir returns the common prefix of all contenders' keys for a name.
func (d *Driver) dir(name string) string {
	if d.options.Flat {
		name = flatten.Replace(name)
	}
	return d.options.Prefix + name + "/"
}

var flatten = strings.NewReplacer("%", "%25", "/", "%2F")

// dir is like Driver.dir, but for the name of h.
func (h *hold) dir() string { return h.key[:strings.LastIndexByte(h.key, '/')+1] }

// keys returns the range of the keys that matter to h.
func (h *hold) keys() keyRange { return keyRange{dir: h.dir(), forRead: h.rule().forRead} }

func (h *hold) rule() *rule { return &rules[h.request.Mode] }

// mark returns the beginning of the key's last part.
func (h *hold) mark() string {
	if h.rule().adds {
		return markOfPermits(h.request.Permits, h.limit)
	}
	return h.rule().mark
}

// created handles the answer to the transaction that put the key.
func (h *hold) created(answer *clientv3.TxnResponse, r record) {
	h.revision = answer.Header.Revision
	h.tokenFrom(r, h.revision)
}

// sendPut sends a transaction that may put the key. It also extends a lease
// from the pool.
func (h *hold) sendPut(ctx context.Context, compare []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	bounded, cancel := h.driver.asks.under(ctx)
	defer cancel()
	var refreshed <-chan error
	if h.own != nil && !h.own.fresh {
		refreshed = h.driver.refresh(bounded, h.own.carrier(), requestFor)
	}
	h.standing = asked
	o := &op{dir: h.dir(), compare: compare, then: then, otherwise: otherwise}
	err := h.driver.sender.do(bounded, o)
	var failed error
	if refreshed != nil {
		failed = <-refreshed
	}
	switch {
	case errors.Is(err, errNotSent), err == nil && failed == nil && !o.answer.Succeeded:
		h.standing = absent
	case err == nil:
		h.standing = there
	}
	if err = cmp.Or(err, failed); err != nil {
		return nil, err
	}
	return o.answer, nil
}

// giveUp ends an attempt that was not granted. It settles the key, returns the
// lease, and returns the error for the caller or errAgain.
func (h *hold) giveUp(ctx context.Context, err error) error {
	closing := h.driver.life.Open().Err() != nil
	answer, isFinal := err.(final)
	switch {
	case isFinal && h.standing == there:
		return h.abandon(ctx, answer.error)
	case isFinal:
		h.keyIsGone()
		return answer.error
	case err == errGone: // a sweep may still delete the key with its number
		h.giveLeaseBack()
		return errAgain
	case err == driver.ErrClosed:
		h.leaveToLease()
		return err
	case err == errOver:
		h.leaveToLease()
		return errAgain
	case isLeaseGone(err):
		if h.session != nil {
			h.session.Die(driver.ErrSessionEnded)
		}
		h.leaveToLease()
		return errAgain
	}
	err, doubt := fault(ctx, err)
	switch {
	case h.standing == there:
		h.leaveToCleaner(true)
		if !doubt {
			err = fmt.Errorf("%w: %w", driver.ErrUnknown, err)
		}
	case doubt:
		h.leaveToCleaner(false)
	case h.standing == absent:
		h.keyIsGone()
	default: // refused
		h.giveLeaseBack()
	}
	if closing {
		return fmt.Errorf("%w: %w", driver.ErrClosed, err)
	}
	return err
}

// abandon deletes a key that was put, and returns cause. After the end of ctx
// it waits for at most abandonFor; the deletion then continues in the
// background.
func (h *hold) abandon(ctx context.Context, cause error) error {
	d := h.driver
	removed := make(chan bool, 1)
	d.life.EnterLate() // left when the deletion has ended
	remove := func() { // ends when bounded ends, at the latest
		defer d.life.Leave()
		bounded, cancel := withBound(valued{d.life.Context(), ctx}, attemptFor)
		defer cancel()
		_, err := d.delete(bounded, h.key)
		if err != nil {
			h.leaveToCleaner(true)
		} else {
			h.keyIsGone()
		}
		removed <- err == nil
	}
	if !d.life.Go(remove) {
		d.life.Leave()
		h.leaveToCleaner(true)
		removed <- false
	}
	gone := false
	select {
	case gone = <-removed:
	case <-ctx.Done():
		select {
		case gone = <-removed:
		case <-time.After(abandonFor):
		}
	}
	if gone {
		return cause
	}
	return fmt.Errorf("%w: %w", cause, driver.ErrUnknown)
}

// keyIsGone returns the number and the lease of an attempt. The caller
// guarantees that the key is gone and that no request for it is under way.
func (h *hold) keyIsGone() {
	h.putNumber()
	h.giveLeaseBack()
}

// enter adds a granted hold to the driver's holds.
func (h *hold) enter() error {
	d := h.driver
	h.granted = d.now()
	if d.life.Open().Err() != nil {
		return driver.ErrClosed
	}
	if h.own != nil {
		h.own.modified = h.revision
		h.own.expires.Store(h.own.carrier().end.At())
	}
	if !h.list() {
		return errOver
	}
	d.checks.start()
	return nil
}
