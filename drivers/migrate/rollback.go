package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// ErrNoWayBack: a name that has moved cannot return to the old backend.
// Processes in any phase lock it on the new one, and programs that only know
// the old backend never get it again. Errors that match it say why, and match
// errors.ErrUnsupported too.
var ErrNoWayBack = fmt.Errorf("the name cannot go back to the old backend: %w", errors.ErrUnsupported)

// quiet has the Events of the driver's own requests.
type quiet struct{}

func (quiet) Waiting()    {}
func (quiet) Tokens() int { return 1 }
func (quiet) Lost(error)  {}

// own begins an attempt of the driver's own at a name. The attempt is over with
// its end.
func (d *Driver) own(ctx context.Context, name, owner string) (a *attempt, bound context.Context, err error) {
	a = &attempt{d: d, r: d.ownRequest(name), outer: ctx, phase: d.Phase()}
	a.r.Owner = owner
	bound, err = a.closable(ctx)
	return a, bound, err
}

// nearestTTL returns ttl, or 30 s if ttl is 0, or the nearest TTL that both
// backends keep.
func (d *Driver) nearestTTL(ttl time.Duration) time.Duration {
	if ttl == 0 {
		ttl = 30 * time.Second
	}
	ttl = max(ttl, d.info.MinTTL)
	if d.info.MaxTTL > 0 {
		ttl = min(ttl, d.info.MaxTTL)
	}
	if d.info.TTLUnit > 0 {
		ttl -= ttl % d.info.TTLUnit
	}
	return ttl
}

// Seal moves a name to the new backend, as a grant in PhaseNew does, but
// without a lock to give back: for names that nobody locks. Seal waits until
// the name is free. A name that has moved is left as it is.
func (d *Driver) Seal(ctx context.Context, name string) error {
	if d.gate != nil {
		return ErrNoSeals
	}
	a, bound, err := d.own(ctx, name, "migration")
	if err != nil {
		return err
	}
	defer a.end()
	a.seals = true
	l, err := a.acquire(bound, a.handover)
	if err != nil {
		return d.closing(ctx, err)
	}
	return l.Release(bound)
}

// Moved reports whether a name has moved to the new backend, by whether the
// name is sealed on the old one.
func (d *Driver) Moved(ctx context.Context, name string) (bool, error) {
	if d.gate != nil {
		return false, ErrNoSeals
	}
	_, moved, err := d.sealer.Sealed(ctx, name)
	return moved, err
}

// Rollback takes a name back to the old backend, with tokens above all tokens
// so far. It waits until the name is free. A name that has not moved is left as
// it is. After an error, Rollback may be called again.
//
// All processes have to be in PhaseDual, or the name moves again when it is
// locked. Rollback fails with [ErrPhase] if d is in another phase, and with
// [ErrNoWayBack] if the backends cannot take a name back or raise the tokens.
func (d *Driver) Rollback(ctx context.Context, name string) error {
	if err := d.WayBack(ctx); err != nil {
		return err
	}
	if d.Phase() != PhaseDual {
		return fmt.Errorf("%w: in phase %v names move to the new backend, go back to %v first", ErrPhase, d.Phase(), PhaseDual)
	}
	a, bound, err := d.own(ctx, name, "roll-back")
	if err != nil {
		return err
	}
	defer a.end()
	for {
		if err = a.rollback(bound); !errors.Is(err, errAgain) {
			return d.closing(ctx, err)
		}
		if bound.Err() != nil {
			return d.closing(ctx, bound.Err())
		}
	}
}

// WayBack returns why names cannot be taken back, as far as the drivers say:
// nil, [ErrNoSeals] or [ErrNoWayBack].
func (d *Driver) WayBack(context.Context) error {
	switch {
	case d.gate != nil:
		return ErrNoSeals
	case d.unsealer == nil:
		return fmt.Errorf("%w: backend %s takes no seal back", ErrNoWayBack, d.from.info.Name)
	case d.unmarker == nil:
		return fmt.Errorf("%w: backend %s takes no mark back", ErrNoWayBack, d.to.info.Name)
	}
	return nil
}

// rollback holds the name on to, where every process that knows of the move
// acquires it. The mark goes first, since a name with a mark and without a seal
// would be free on both. A crash in between leaves a seal without a mark, as a
// crash of a move does.
func (a *attempt) rollback(ctx context.Context) error {
	l := a.newLease()
	to, err := l.take(ctx, a.d.to, true, false)
	if err != nil {
		return err
	}
	bound, cancel := context.WithDeadline(ctx, to.lease.Expires())
	defer cancel()
	return to.undo(ctx, a.goBack(bound, to))
}

func (a *attempt) goBack(ctx context.Context, to *part) error {
	d, id := a.d, a.d.nextHold()
	_, sealed, err := d.sealer.Sealed(ctx, a.r.Name)
	if err != nil {
		return a.translate(err)
	}
	if !sealed { // a mark is left only if the backend lost the seal, and is wrong then
		return a.over(d.unmarker.Unmark(ctx, to.lease))
	}
	floor := uint64(0)
	if d.info.Fencing != driver.None {
		floor = to.token()
	}
	err = d.unsealer.Loosen(ctx, a.r.Name, id, d.from.below(floor))
	if errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("%w: backend %s: %v", ErrNoWayBack, d.from.info.Name, err)
	}
	if err == nil {
		err = d.unmarker.Unmark(ctx, to.lease)
	}
	if err == nil {
		err = d.unsealer.Unseal(ctx, a.r.Name, id)
	}
	return a.over(err)
}

// over makes errAgain of ErrNotHeld, since the request has to begin anew, and
// the caller's error of others.
func (a *attempt) over(err error) error {
	if errors.Is(err, driver.ErrNotHeld) {
		return errAgain
	}
	return a.translate(err)
}
