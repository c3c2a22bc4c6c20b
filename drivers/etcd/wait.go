package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"time"

	"github.com/go-dsync/dsync/driver"
)

const (
	backstop   = 5 * time.Second // the longest wait without a look, in case events do not come; spread over a quarter of itself
	firstLook  = time.Second     // the same while the feed is not active
	lookAgain  = 100 * time.Millisecond
	abandonFor = 50 * time.Millisecond // how long a wait that has ended waits for its key to be deleted
)

// errGone says that the key of a waiter is gone.
var errGone = errors.New("the place in the queue was removed")

// wait waits until no key before h.key excludes it. v is the view that came with the request to put the key. If wait returns an error,
// the key is gone, or the cleaner has it.
func (h *hold) wait(ctx context.Context, dir string, w *waiter, v view) error {
	d := h.driver
	defer w.leave()
	d.lines.wait()
	defer d.lines.stop()
	active := w.got(v, h.hears(dir, v))
	timer := time.NewTimer(h.pause(active))
	defer timer.Stop()
	for refusal := driver.ErrLocked; ; {
		late := false
		select {
		case <-w.wake:
			switch h.take(w) {
			case frees:
				return h.confirmed(ctx)
			case holds:
				continue
			}
		case <-timer.C:
			late = true
		case <-h.sessionOver():
			h.session.leave()
			return errAgain
		case <-ctx.Done():
			return h.abandon(ctx, fmt.Errorf("%w: %w", refusal, ctx.Err()))
		case <-d.life.Open().Done():
			h.leaveToClose()
			return driver.ErrClosed
		}
		old, nearest := w.ask()
		v, err := h.lookFresh(ctx, dir, nearest)
		if late && err == nil {
			missed := old != nil && !old.isOf(v) // an event that should have woken the waiter before
			w.doubt(missed)
		}
		switch {
		case err == nil && v.first():
			return h.confirmed(ctx)
		case err == nil:
			refusal = driver.ErrLocked
			active = w.got(v, h.hears(dir, v))
			timer.Reset(h.pause(active))
		default:
			if err = h.lookFailed(ctx, err); err != nil {
				return err
			}
			if ctx.Err() == nil {
				refusal = driver.ErrUnavailable
			}
			timer.Reset(lookAgain)
		}
	}
}

// hears returns the ranges of the events that a waiter with a view is told of. Where few keys are before its own, a waiter hears of all
// contenders, and needs no look to be granted the lock. Where many are, all of them wait behind the nearest one, and hear of its end alone: each
// release would otherwise be told to all clients that wait. A seal is not the end of its key, but is to be known to all.
//
// A waiter that hears of the nearest key goes on with that while the key is there, also when few are left: its looks show no other one. Behind a key
// of its own client it hears of all contenders, too: where callers have a key each (Options.FIFO), most of a client's share one watch so. A request
// for permits has to count all that are given back, and looks after a change of the limit.
func (h *hold) hears(dir string, v view) []keyRange {
	switch {
	case h.request.Mode == driver.Permit:
		return []keyRange{h.rangeIn(dir), {dir: limitKey(dir), ofRecord: true}}
	case v.all, isOfClient(v.before[0], h.key):
		return []keyRange{h.rangeIn(dir)}
	}
	return []keyRange{{dir: v.before[0], ends: true}, {dir: sealKey(dir), ofRecord: true}}
}

// take says what has become of the view of a waiter that was woken, and gives the hold its token if it has the lock. Three kinds of waiters
// look in any case: a hold with a lease of its own, because the lease has to be prolonged at the grant; a Read, because its feed does
// not tell of its own key; and permits, because the limit may be another one.
func (h *hold) take(w *waiter) verdict {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	switch {
	case w.view == nil:
		return drops
	case w.first == 0:
		return holds
	case h.own != nil, h.request.Mode == driver.Read, h.request.Mode == driver.Permit, h.driver.now() >= h.expires():
		return drops
	}
	h.tokenFrom(w.view.record, w.first)
	return frees
}

// lookFailed returns what a wait ends with after the error of a look, or nil if the wait goes on; wait itself finds out that ctx has ended.
func (h *hold) lookFailed(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, errGone):
		h.giveLeaseBack()
		return errAgain
	case isFinal(err):
		return h.abandon(ctx, err)
	case errors.Is(err, errClusters):
		return h.failPut(ctx, err)
	case isLeaseGone(err):
		return h.fail(ctx, err)
	case ctx.Err() != nil || h.driver.life.Open().Err() != nil:
		return nil
	}
	if err, _ = fault(ctx, err); errors.Is(err, fs.ErrPermission) {
		return h.abandon(ctx, err)
	}
	return nil
}

// isFinal reports whether the error of a look ends the attempt, with the key in its place.
func isFinal(err error) bool {
	return errors.Is(err, driver.ErrSealed) || errors.Is(err, driver.ErrLimit) || err == errAgain
}

// confirmed is called when the key is the first. The wait may have been canceled at the same time.
func (h *hold) confirmed(ctx context.Context) error {
	if ctx.Err() != nil {
		return h.abandon(ctx, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err()))
	}
	return nil
}

func (h *hold) sessionOver() <-chan struct{} {
	if h.session == nil {
		return nil
	}
	return h.session.over
}

// pause is how long to wait for an event. A hold with a lease of its own has to prolong the lease meanwhile.
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

// abandon deletes a key that was put, and returns cause. After the end of ctx it
// waits for abandonFor at most, and the deletion goes on in the background.
func (h *hold) abandon(ctx context.Context, cause error) error {
	d := h.driver
	left := make(chan bool, 1)
	d.life.EnterLate() // until the deletion has ended
	leave := func() {  // ends with the bound
		defer d.life.Leave()
		bounded, cancel := withBound(valued{d.life.Context(), ctx}, attemptFor)
		defer cancel()
		_, err := d.delete(bounded, h.key)
		if err != nil {
			h.leaveToCleaner(true)
		} else {
			h.putNumber()
			h.giveLeaseBack()
		}
		left <- err == nil
	}
	if !d.life.Go(leave) {
		d.life.Leave()
		h.leaveToCleaner(true)
		left <- false
	}
	gone := false
	select {
	case gone = <-left:
	case <-ctx.Done():
		select {
		case gone = <-left:
		case <-time.After(abandonFor):
		}
	}
	if gone {
		return cause
	}
	return fmt.Errorf("%w: %w", cause, driver.ErrUnknown)
}
