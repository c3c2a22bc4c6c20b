package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"time"

	"github.com/go-dsync/dsync/driver"
)

const (
	backstop   = 5 * time.Second // the longest wait without a look, for events that do not come; spread over a quarter of itself
	firstLook  = time.Second     // while the feed is not active
	lookAgain  = 100 * time.Millisecond
	abandonFor = attemptFor // how long a wait that ended waits for its key to be deleted
)

// errGone says that the key of a waiter is not there any more.
var errGone = errors.New("the place in the queue was removed")

// wait waits until no contender is before the key. W is nil if the feed was not active when the key was put. If it returns an error,
// the key is gone, or cleaned up in the background.
func (h *hold) wait(ctx context.Context, dir string, w *waiter, v view) error {
	d := h.driver
	if w == nil {
		w = d.feeds.join(dir)
	}
	defer w.leave()
	before := v.next()
	active := w.narrow(h.key, h.revision, v)
	timer := time.NewTimer(h.pause(active))
	defer timer.Stop()
	for refusal, patient := driver.ErrLocked, false; ; {
		late := false
		select {
		case <-w.wake:
			switch next := h.take(w); {
			case next == toTake:
				return h.confirmed(ctx)
			case next == toRest:
				continue
			case next == toExpect && !patient:
				patient = true
				timer.Reset(patience)
				continue
			}
		case <-timer.C:
			if h.own == nil && w.isBehind() {
				timer.Reset(h.pause(active))
				continue
			}
			late = !patient
		case <-h.sessionOver():
			h.session.leave()
			return errAgain
		case <-ctx.Done():
			return h.abandon(ctx, fmt.Errorf("%w: %w", refusal, ctx.Err()))
		case <-d.life.Open().Done():
			h.forsake()
			return driver.ErrClosed
		}
		patient = false
		before = cmp.Or(w.widen(), before)
		v, err := h.lookFresh(ctx, w)
		if late && err == nil && (!active || v.next() != before) {
			w.doubt() // it should have woken us
		}
		switch {
		case err == nil && v.first():
			return h.confirmed(ctx)
		case err == nil:
			refusal = driver.ErrLocked
			active = w.narrow(h.key, h.revision, v)
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

// lookFailed returns what a wait ends with after the error of a look, or nil if it goes on, also to find out that ctx has ended.
func (h *hold) lookFailed(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, errGone):
		h.disembark()
		return errAgain
	case errors.Is(err, driver.ErrSealed):
		return h.abandon(ctx, err)
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

// confirmed is called when the key is the first. A wait may have ended at the same time.
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

// pause is how long to wait for an event. A lease of one's own has to be prolonged meanwhile.
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

// abandon takes a key off that was put, and returns cause.
func (h *hold) abandon(ctx context.Context, cause error) error {
	bounded, cancel := withBound(context.WithoutCancel(ctx), abandonFor)
	defer cancel()
	if _, err := h.driver.client.Delete(bounded, h.key); err != nil {
		h.leaveBehind(true)
		return fmt.Errorf("%w: %w", cause, driver.ErrUnknown)
	}
	h.putNumber()
	h.disembark()
	return cause
}
