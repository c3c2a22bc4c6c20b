package cas

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

const (
	// placeFor bounds the TTL of a place in the queue, and so how long a waiter
	// that is gone holds up those behind it.
	placeFor = 10 * time.Second

	// leaveFor bounds how much longer than its context an Acquire takes.
	leaveFor = 200 * time.Millisecond

	// lookAfter is how often a waiter looks although the store notifies it.
	lookAfter = 5 * time.Second

	maxTokens = 1000 // of a grant
)

// attempt is one call of Acquire.
type attempt struct {
	d       *Driver
	r       *driver.Request
	place   *view     // the record with the request's place, as it was written last
	beaten  time.Time // when it was renewed
	waits   bool      // Events.Waiting was called
	changed chan struct{}
}

// Acquire implements [driver.Driver].
func (d *Driver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := d.life.Enter(); err != nil {
		return nil, err
	}
	defer d.life.Leave()
	a := &attempt{d: d, r: r, changed: make(chan struct{}, 1)}
	open, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.life.Open(), cancel)()
	l, err := a.run(open)
	if err != nil {
		return nil, a.failed(ctx, err)
	}
	return l, nil
}

// run looks at the record again and again, until a grant or an error.
func (a *attempt) run(ctx context.Context) (*lease, error) {
	for {
		l, v, err := a.look(ctx)
		switch {
		case err == nil:
			return l, nil
		case a.r.NoWait || !errors.Is(err, errQueued):
			return nil, err
		}
		if !a.waits {
			a.waits = true
			a.r.Events.Waiting()
			if n, ok := a.d.store.(Notifier); ok {
				stop, err := n.Notify(a.r.Name, a.notify)
				if err != nil {
					return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
				}
				defer stop()
			}
		}
		if err := a.sleep(ctx, v); err != nil {
			return nil, err
		}
	}
}

// errQueued says that the request has a place in the queue.
var errQueued = fmt.Errorf("%w, and the request waits", driver.ErrLocked)

// look takes the name if it can be granted. Otherwise it takes a place in the
// queue, or renews the place, and returns the record.
func (a *attempt) look(ctx context.Context) (*lease, *view, error) {
	r, d := a.r, a.d
	var l *lease
	v, err := d.change(ctx, r.Name, r.Hold, nil, func(v *view) error {
		l = nil
		place := find(v.Queue, r.Hold)
		newcomer := place < 0
		if newcomer {
			place = len(v.Queue)
		}
		err := v.admits(r, place)
		sent := time.Now()
		switch {
		case err == nil:
			v.remove(r.Hold)
			l = d.grant(v, r, sent)
			return nil
		case r.NoWait || !errors.Is(err, driver.ErrLocked):
			return err
		case newcomer:
			v.Queue = append(v.Queue, newClaim(r, sent, a.placeTTL()))
		case sent.Sub(a.beaten) < a.placeTTL()/3:
			return errQueued
		default:
			v.Queue[place].Beat = ""
		}
		a.beaten = sent
		return nil
	})
	switch {
	case errors.Is(err, driver.ErrUnknown):
		d.clean.Add(&ghost{name: r.Name, hold: r.Hold, pending: true, version: v.version})
		return nil, nil, err
	case l == nil && (err == nil || errors.Is(err, errQueued)):
		a.place = v
		return nil, v, errQueued
	case err != nil:
		return nil, nil, err
	case !l.granted(v):
		d.clean.Add(&ghost{name: r.Name, hold: r.Hold})
		return nil, nil, fmt.Errorf("%w: the answer came when the lease was over", driver.ErrUnknown)
	}
	return l, v, nil
}

func (a *attempt) placeTTL() time.Duration { return min(a.r.TTL, placeFor) }

// newClaim returns the claim of a request, to be written now.
func newClaim(r *driver.Request, sent time.Time, ttl time.Duration) claim {
	return claim{Hold: r.Hold, Owner: r.Owner, Note: r.Note, Process: process, Mode: r.Mode, Permits: r.Permits, TTL: ttl, Since: sent}
}

// notify is called by a Notifier.
func (a *attempt) notify() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// sleep waits until it is time for the next look.
func (a *attempt) sleep(ctx context.Context, v *view) error {
	wait, ahead := a.d.Poll, max(find(v.Queue, a.r.Hold), 0)
	switch _, notified := a.d.store.(Notifier); {
	case notified:
		wait = lookAfter
	case ahead > 1:
		wait *= time.Duration(min(ahead, behind))
	}
	wait = min(wait, time.Until(a.beaten.Add(a.placeTTL()/3)))
	for _, claims := range [][]claim{v.Holds, v.Queue[:ahead]} {
		for _, c := range claims {
			wait = min(wait, c.left-time.Since(v.at))
		}
	}
	timer := time.NewTimer(max(wait, time.Millisecond))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-a.changed:
	}
	if ahead > 1 { // more changes may come: those in front look first
		timer.Reset(time.Duration(min(ahead, 50)) * burst)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

const (
	// behind is how much less often waiters look, at most, that have others in
	// front.
	behind = 10

	// burst is how long a waiter lets changes gather, for each one in front.
	burst = 20 * time.Millisecond
)

// failed takes the place of a request out of the queue, and makes the error of
// Acquire.
func (a *attempt) failed(ctx context.Context, err error) error {
	unknown := errors.Is(err, driver.ErrUnknown) // look has told the cleaner
	if a.place != nil && !unknown {
		g := &ghost{name: a.r.Name, hold: a.r.Hold}
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveFor)
		defer cancel()
		if unknown = a.d.settle(short, g, a.place) != nil; unknown {
			a.d.clean.Add(g)
		}
	}
	why := err
	switch closed := a.d.life.Open().Err() != nil; {
	case errors.Is(err, driver.ErrLimit):
		return err
	case closed:
		why = driver.ErrClosed
	case ctx.Err() != nil && a.waits:
		why = ctx.Err()
	}
	switch {
	case unknown && a.waits:
		return fmt.Errorf("%w; before it was %w: %w", driver.ErrUnknown, driver.ErrLocked, why)
	case unknown && !errors.Is(why, driver.ErrUnknown):
		return fmt.Errorf("%w: %w", driver.ErrUnknown, why)
	case a.waits && why == ctx.Err():
		return fmt.Errorf("%w: %w", driver.ErrLocked, why)
	}
	return why
}
