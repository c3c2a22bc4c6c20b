package migrate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// These errors tell Acquire which step to try next after a failed attempt. They
// never leave the package.
var (
	errAgain = errors.New("a hold of the request ended before the last one was granted")
	errTaken = errors.New("the lock is held on the old backend")
)

// attempt is one call to Acquire.
type attempt struct {
	d       *Driver
	r       *driver.Request
	seals   bool            // the grant seals a name that has not moved yet
	member  *member         // nil without a gate
	outer   context.Context // the caller's context
	waiting sync.Once
	again   bool  // the Hold of the request has already been used
	only    lease // most attempts need one lease, which is allocated together with the attempt

	bound context.Context // see closable; nil until needed
	leave func()          // releases bound
}

func (a *attempt) wait() { a.waiting.Do(a.r.Events.Waiting) }

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !d.begin(&d.calls) {
		return nil, driver.ErrClosed
	}
	defer d.calls.Done()
	a := &attempt{d: d, r: r, outer: ctx}
	defer a.end()
	acquire := a.moving
	if d.gate != nil {
		acquire = a.gated
	}
	l, err := acquire(ctx)
	if err != nil {
		return nil, d.closing(a.outer, err)
	}
	return l, nil
}

// closable returns the context for steps that send a request to one backend
// while the attempt may have a hold on the other, or a membership. Close ends
// such steps and waits for them before it closes the backends. A step that uses
// one backend while nothing else is held ends when that backend is closed, so
// it needs no such context.
func (a *attempt) closable(ctx context.Context) (context.Context, error) {
	var err error
	if a.bound == nil {
		a.bound, a.leave, err = a.d.closable(ctx)
	}
	return a.bound, err
}

// end must be called at the end of the attempt.
func (a *attempt) end() {
	if a.bound != nil {
		a.leave()
	}
}

// closing returns the error for the caller if the driver was closed in the
// meantime, and err otherwise.
func (d *Driver) closing(outer context.Context, err error) error {
	if err == nil || d.life.Err() == nil || outer.Err() != nil {
		return err
	}
	if errors.Is(err, driver.ErrUnknown) {
		return fmt.Errorf("%w: %w", driver.ErrClosed, driver.ErrUnknown)
	}
	return driver.ErrClosed
}

// moving acquires the name in the phase of the process.
func (a *attempt) moving(ctx context.Context) (l *lease, err error) {
	if a.d.Phase() == PhaseNew {
		a.seals = true
		return a.acquire(ctx, a.alone)
	}
	if ctx, err = a.closable(ctx); err != nil {
		return nil, err
	}
	return a.acquire(ctx, a.dual)
}

// acquire tries one way after another until the name is granted. A way ends
// without a grant if a hold is lost, if the name turns out to be sealed or no
// longer sealed, or if a name that should be sealed turns out to be held.
func (a *attempt) acquire(ctx context.Context, first func(context.Context) (*lease, error)) (l *lease, err error) {
	way := first
	for {
		l, err = way(ctx)
		switch {
		case err == nil:
			return l, nil
		case errors.Is(err, ErrWrongWay):
			return nil, err
		case errors.Is(err, driver.ErrSealed):
			way = a.alone
		case errors.Is(err, errTaken):
			way = a.handover
		case errors.Is(err, errAgain):
			way = first
		default:
			return nil, err
		}
		if ctx, err = a.closable(ctx); err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
	}
}

// dual acquires the name on from, then on to.
func (a *attempt) dual(ctx context.Context) (*lease, error) {
	l, from, to, err := a.both(ctx, false)
	if err != nil {
		return nil, err
	}
	return l.grant(ctx, from, from, to)
}

// handover is like dual, but then seals the name. After the seal, the lease is
// held only on to.
func (a *attempt) handover(ctx context.Context) (*lease, error) {
	l, from, to, err := a.both(ctx, true)
	if err != nil {
		return nil, err
	}
	bound, cancel := context.WithDeadline(ctx, to.lease.Expires())
	defer cancel()
	if _, err := a.marked(bound, to); err != nil { // a name that cannot be marked must not be sealed
		return nil, from.undo(ctx, to.undo(ctx, err))
	}
	if err := a.seal(ctx, from, to); err != nil {
		return nil, err
	}
	if err := a.mark(ctx, to, from.token()); err != nil {
		return nil, to.undo(ctx, err)
	}
	return l.grant(ctx, to, to)
}

// both acquires the name on from, keeps it while it waits for to, and then
// checks that from is still held. With tokensOfTo the lease has the tokens of
// to, otherwise the tokens of from.
func (a *attempt) both(ctx context.Context, tokensOfTo bool) (l *lease, from, to *part, err error) {
	l = a.newLease()
	from, err = l.acquire(ctx, a.d.from, !tokensOfTo, a.r.NoWait)
	if err != nil {
		return nil, nil, nil, err
	}
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	l.abandonWith(from, cancel)
	var kept *carried
	if !a.r.NoWait {
		kept = from.keep(cancel)
	}
	to, err = l.acquire(wait, a.d.to, tokensOfTo, a.r.NoWait)
	kept.stop()
	if err != nil {
		if wait.Err() != nil && ctx.Err() == nil && !errors.Is(err, driver.ErrUnknown) {
			err = errAgain // the hold on from was lost
		}
		return nil, nil, nil, from.undo(ctx, a.translate(err))
	}
	if err := from.check(ctx, to.blocked); err != nil {
		return nil, nil, nil, from.undo(ctx, to.undo(ctx, err))
	}
	return l, from, to, nil
}

// alone acquires the name on the new backend, and seals it on the old one if it
// is not sealed yet. While alone holds the name on the new backend, it never
// waits for the old one, because every other way acquires the old one first.
func (a *attempt) alone(ctx context.Context) (*lease, error) {
	l := a.newLease()
	to, err := l.acquire(ctx, a.d.to, true, a.r.NoWait)
	if err != nil {
		return nil, err
	}
	marked, err := a.marked(ctx, to)
	if err != nil {
		return nil, to.undo(ctx, err)
	}
	if marked {
		return l.grant(ctx, to, to)
	}
	moving, err := a.closable(ctx)
	if err != nil {
		return nil, to.undo(ctx, err)
	}
	bound, cancel := context.WithDeadline(moving, to.lease.Expires())
	defer cancel()
	floor, err := a.sealIdle(bound, to)
	if err == nil {
		if err = a.mark(moving, to, floor); err != nil {
			err = to.undo(ctx, err)
		}
	}
	if err != nil {
		return nil, err
	}
	return l.grant(ctx, to, to)
}

// sealIdle seals the name on from, unless the name is held there, and returns
// the floor of the tokens. In PhaseDual, where names do not move, it only
// checks whether the name is sealed. After an error, the hold on to is
// released.
func (a *attempt) sealIdle(ctx context.Context, to *part) (floor uint64, err error) {
	err = driver.ErrSealed
	if a.seals {
		var from *part
		if from, err = to.l.acquire(ctx, a.d.from, false, true); err == nil {
			return from.token(), a.seal(ctx, from, to)
		}
	}
	if errors.Is(err, driver.ErrSealed) {
		if floor, err = a.sealOf(ctx); err == nil {
			return floor, nil
		}
	}
	if errors.Is(err, driver.ErrLocked) && !errors.Is(err, driver.ErrUnknown) && !a.r.NoWait {
		err = errTaken
	}
	return 0, to.undo(ctx, a.translate(err))
}

// sealOf returns the floor of the tokens of a name that is sealed and not
// marked. From then on a late request to unseal the name has no effect.
func (a *attempt) sealOf(ctx context.Context) (floor uint64, err error) {
	floor, sealed, err := a.d.sealer.Sealed(ctx, a.r.Name)
	a.d.from.above(&floor)
	if err == nil && !sealed { // the name was unsealed, or the backend has lost its data
		err = errAgain
	}
	if err == nil && a.d.unsealer != nil {
		err = a.over(a.d.unsealer.Loosen(ctx, a.r.Name, a.d.nextHold(), 0))
	}
	return floor, err
}

// seal seals the name on from. The caller holds both backends. After an error,
// both holds are released.
func (a *attempt) seal(ctx context.Context, from, to *part) error {
	bound, cancel := context.WithDeadline(ctx, earlier(from.lease.Expires(), to.lease.Expires()))
	defer cancel()
	from.session.Load().stop() // a seal is not renewed
	err := a.d.sealer.Seal(bound, from.lease)
	if err == nil {
		return nil
	}
	if errors.Is(err, driver.ErrNotHeld) {
		err = errAgain
	} else if !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("%w: %w", driver.ErrUnknown, a.translate(err))
	}
	return from.undo(ctx, to.undo(ctx, err))
}

// marked reports whether the name is marked on to. A caller that holds nothing
// else needs no bound context, because the hold on to expires by itself.
func (a *attempt) marked(ctx context.Context, to *part) (bool, error) {
	marked, err := a.d.marker.Marked(ctx, to.lease)
	if err == nil && !to.live() {
		err = errAgain
	}
	return marked, a.translate(err)
}

// mark marks the name on to, with the floor of its tokens. After an error the
// seal stays, and the next holder marks the name.
func (a *attempt) mark(ctx context.Context, to *part, floor uint64) error {
	bound, cancel := context.WithDeadline(ctx, to.lease.Expires())
	defer cancel()
	err := a.d.marker.Mark(bound, to.lease, to.b.below(floor))
	if errors.Is(err, driver.ErrNotHeld) {
		return errAgain
	}
	return a.translate(err)
}

// translate returns the error for the caller, in place of an error from a
// context that only bounds a request.
func (a *attempt) translate(err error) error {
	if err == nil || a.outer.Err() != nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: no answer in time: %v", driver.ErrUnknown, err)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
