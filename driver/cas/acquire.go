package cas

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/cleaner"
)

const (
	// placeFor bounds the TTL of a place in the queue, and so how long a
	// vanished waiter delays the waiters behind it.
	placeFor = 10 * time.Second

	// leaveFor bounds how long an Acquire may continue after its context has
	// ended.
	leaveFor = 200 * time.Millisecond

	// lookAfter is the interval at which a waiter reads the record even though
	// the store notifies it.
	lookAfter = 5 * time.Second

	maxTokens = 1000 // of a grant
)

// attempt is one call to Acquire.
type attempt struct {
	job
	d     *Driver
	lease *lease
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
	open, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.life.Open(), cancel)()
	k := d.desk(r.Name)
	k.pin() // for the lease
	defer k.unpin()
	a := &attempt{job: job{hold: r.Hold, request: r}, d: d}
	a.to = a.look
	if err := k.do(open, &a.job); err != nil {
		return nil, a.failed(ctx, k, err)
	}
	if !a.lease.granted(k, a.v) {
		d.clean.Add(&ghost{name: r.Name, hold: r.Hold})
		return nil, fmt.Errorf("%w: the answer came after the lease had ended", driver.ErrUnknown)
	}
	return a.lease, nil
}

// look acquires the name if it can be granted. Otherwise it takes a place in
// the queue, or renews the place.
func (a *attempt) look(v *view) error {
	r, sent := a.request, time.Now()
	if a.served && sent.Before(a.due) && v.held(r.Mode) {
		return errQueued
	}
	place := find(v.Queue, r.Hold)
	newcomer := place < 0
	if newcomer {
		place = len(v.Queue)
	}
	err := v.admits(r, place)
	switch {
	case err == nil:
		v.remove(r.Hold)
		a.lease, v.dirty = a.d.grant(v, r, sent), true
		return nil
	case r.NoWait || !errors.Is(err, driver.ErrLocked):
		return err
	case a.d.Plain:
		a.due = sent.Add(r.TTL)
		return errQueued
	case newcomer:
		v.Queue = append(v.Queue, newClaim(r, sent, a.placeTTL()))
	case sent.Before(a.due):
		return errQueued
	default:
		v.Queue[place].Beat = ""
	}
	a.due, v.dirty = sent.Add(a.placeTTL()/3), true
	return errQueued
}

func (a *attempt) placeTTL() time.Duration { return min(a.request.TTL, placeFor) }

// newClaim returns the claim of a request that is about to be written.
func newClaim(r *driver.Request, sent time.Time, ttl time.Duration) claim {
	return claim{Hold: r.Hold, Owner: r.Owner, Note: r.Note, Process: process, Mode: r.Mode, Permits: r.Permits, TTL: ttl, Since: sent}
}

const (
	// behind bounds the factor by which a waiter reads less often because other
	// waiters are ahead of it.
	behind = 10

	// burst is how long a waiter collects changes before it reads, for each
	// waiter ahead of it.
	burst = 20 * time.Millisecond
)

// failed removes the place of a request from the queue and returns the error
// for Acquire.
func (a *attempt) failed(ctx context.Context, k *desk, err error) error {
	waits := false
	select {
	case <-a.queued:
		waits = true
	default:
	}
	unknown := errors.Is(err, driver.ErrUnknown)
	switch {
	case err == errLeft, errors.Is(err, driver.ErrSealed): // a sealed name has no queue
	case unknown:
		a.d.clean.Add(a.ghost())
	case waits:
		g := &ghost{name: a.request.Name, hold: a.hold}
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveFor)
		defer cancel()
		if unknown = k.settle(short, g) != nil; unknown {
			a.d.clean.Add(g)
		}
	}
	why := err
	switch closed := a.d.life.Open().Err() != nil; {
	case errors.Is(err, driver.ErrLimit), errors.Is(err, driver.ErrSealed):
		return err
	case closed:
		why = driver.ErrClosed
	case ctx.Err() != nil && (waits || errors.Is(err, context.Canceled)): // the round was canceled
		why = ctx.Err()
	}
	switch {
	case unknown && waits:
		return fmt.Errorf("%w; before that, %w: %w", driver.ErrUnknown, driver.ErrLocked, why)
	case unknown && !errors.Is(why, driver.ErrUnknown):
		return fmt.Errorf("%w: %w", driver.ErrUnknown, why)
	case waits && why == ctx.Err():
		return fmt.Errorf("%w: %w", driver.ErrLocked, why)
	}
	return why
}

// ghost is the state that a request may have left behind, or may leave behind
// later.
type ghost struct {
	cleaner.Ghost
	name, hold string
	pending    bool   // a write may still be carried out, as long as the record
	version    string // has this version
}

// ghost returns the state that the Acquire may have left after the round.
func (j *job) ghost() *ghost {
	g := &ghost{name: j.request.Name, hold: j.hold}
	if errors.Is(j.err, driver.ErrUnknown) {
		g.pending, g.version = true, j.v.version
	}
	return g
}

// settle makes sure that the ghost is gone and cannot come back. The absence of
// the ghost proves nothing, because an unanswered write may still be on its
// way. If that write could still be carried out, settle also writes.
func (k *desk) settle(ctx context.Context, g *ghost) error {
	d := k.d
	err := k.do(ctx, &job{hold: g.hold, to: func(v *view) error {
		there := v.remove(g.hold)
		absent := v.version == "" || !d.Plain // or the ghost may be absent again
		if g.pending && g.version == "" && absent {
			until := int64(forever)
			if d.Clock {
				until = v.clock() + linger.Microseconds()
			}
			v.Keep = max(v.Keep, until)
		} else if !there && !(g.pending && g.version == v.version) {
			return errDone
		}
		return nil
	}})
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

// errDone means that there is nothing to change.
var errDone = errors.New("nothing to change")

// linger is how long a write that requires the absence of a record may be on
// its way.
const linger = time.Hour

// settleAll is the Policy of the cleaner.
func (d *Driver) settleAll(ghosts []*ghost) (left []*ghost) {
	for _, g := range ghosts {
		if d.desk(g.name).settle(d.life.Context(), g) != nil {
			left = append(left, g)
		}
	}
	return left
}
