package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// ErrNoWayBack reports that a name that has moved cannot return to the old
// backend. Processes in any phase lock it on the new backend, and programs that
// only know the old backend can never acquire it again. Errors that match
// ErrNoWayBack contain the reason, and also match errors.ErrUnsupported.
var ErrNoWayBack = fmt.Errorf("the name cannot go back to the old backend: %w", errors.ErrUnsupported)

// quiet implements the Events of the driver's own requests.
type quiet struct{}

func (quiet) Waiting()    {}
func (quiet) Tokens() int { return 1 }
func (quiet) Lost(error)  {}

// own begins one of the driver's own attempts at a name. The caller must call
// its end.
func (d *Driver) own(ctx context.Context, name, owner string) (a *attempt, bound context.Context, err error) {
	a = &attempt{d: d, r: d.ownRequest(name), outer: ctx}
	a.r.Owner = owner
	bound, err = a.closable(ctx)
	return a, bound, err
}

// nearestTTL returns ttl, or 30 s if ttl is 0, or the nearest TTL that both
// backends support.
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
// without a lock to release. It is for names that no program locks. Seal waits
// until the name is free. It does not change a name that has moved.
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

// Moved reports whether a name has moved to the new backend, by checking
// whether it is sealed on the old one.
func (d *Driver) Moved(ctx context.Context, name string) (bool, error) {
	if d.gate != nil {
		return false, ErrNoSeals
	}
	_, moved, err := d.sealer.Sealed(ctx, name)
	return moved, err
}

// Rollback moves a name back to the old backend, with tokens above all tokens
// so far. It waits until the name is free. It does not change a name that has
// not moved. After an error, Rollback may be called again.
//
// All processes must be in PhaseDual, otherwise the name moves again when it is
// locked. Rollback fails with [ErrPhase] if d is in another phase, and with
// [ErrNoWayBack] if the backends cannot move a name back or raise the tokens.
func (d *Driver) Rollback(ctx context.Context, name string) error {
	if err := d.WayBack(ctx); err != nil {
		return err
	}
	if d.Phase() != PhaseDual {
		return fmt.Errorf("%w: in phase %v names move to the new backend: first return to phase %v", ErrPhase, d.Phase(), PhaseDual)
	}
	a, bound, err := d.own(ctx, name, "roll-back")
	if err != nil {
		return err
	}
	defer a.end()
	for err = errAgain; errors.Is(err, errAgain); {
		if err = bound.Err(); err == nil {
			err = a.rollback(bound)
		}
	}
	return d.closing(ctx, err)
}

// WayBack returns the reason why names cannot be moved back, as far as the
// drivers report it: [ErrNoSeals] or [ErrNoWayBack]. It returns nil if names
// can be moved back.
func (d *Driver) WayBack(context.Context) error {
	switch {
	case d.gate != nil:
		return ErrNoSeals
	case d.unsealer == nil:
		return fmt.Errorf("%w: backend %s cannot take back a seal", ErrNoWayBack, d.from.info.Name)
	case d.unmarker == nil:
		return fmt.Errorf("%w: backend %s cannot take back a mark", ErrNoWayBack, d.to.info.Name)
	}
	return nil
}

// rollback holds the name on to, on which every process that knows of the move
// acquires it. It removes the mark first, since a name with a mark and without
// a seal would be free on both backends. A crash in between leaves a seal
// without a mark, like a crash during a move.
func (a *attempt) rollback(ctx context.Context) error {
	l := a.newLease()
	to, err := l.acquire(ctx, a.d.to, true, false)
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
	if !sealed { // there can be a mark only if the backend lost the seal, and then the mark is wrong
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

// over returns errAgain for ErrNotHeld, since the request must start again, and
// the caller's error for other errors.
func (a *attempt) over(err error) error {
	if errors.Is(err, driver.ErrNotHeld) {
		return errAgain
	}
	return a.translate(err)
}

// ErrOperator reports that another operator is changing names, or the gate, by
// hand. Concurrent changes are safe, but may not have the effect that either
// operator intends.
var ErrOperator = errors.New("another operator is working on this migration")

const (
	// operatorName is locked on the old backend while an operator changes
	// names, or the gate, by hand.
	operatorName = reserved + "operator"

	// operatorTTL is how long a killed operator blocks the next operator. The
	// next operator waits longer than that.
	operatorTTL = 5 * time.Second
)

// Operate registers an operator until end is called. It returns [ErrOperator]
// if another operator is registered, with the owner if the backend stores it.
// If reserved names are not permitted, Operate does nothing.
func (d *Driver) Operate(ctx context.Context, what string) (end func(), err error) {
	bound, leave, err := d.closable(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	r := d.ownRequest(operatorName)
	r.Owner, r.TTL = d.process+", "+what, d.nearestTTL(min(operatorTTL, d.ttl))
	wait, cancel := context.WithTimeout(bound, r.TTL+operatorTTL/5)
	defer cancel()
	l, err := d.from.Acquire(wait, r)
	if err != nil {
		if bound.Err() == nil && (errors.Is(err, driver.ErrLocked) || wait.Err() != nil && !errors.Is(err, driver.ErrUnavailable)) {
			return nil, d.otherOperator(bound)
		}
		return func() {}, d.closing(ctx, unlessRefused(d.permitted(bound, d.from.explain(err))))
	}
	var c *carried
	if !d.from.info.KeepsAlive {
		c = d.carry(d.from, l, r.TTL, func() bool { return time.Now().Before(l.Expires()) }, func(error) {})
	}
	return func() {
		c.stop()
		letGo(l)
	}, nil
}

func (d *Driver) otherOperator(ctx context.Context) error {
	who := "the backend does not report which one"
	if inspector, ok := d.from.Driver.(driver.Inspector); ok {
		if s, err := inspector.Inspect(ctx, operatorName); err == nil && s.Held {
			who = cmp.Or(s.Owner, s.Hold)
		}
	}
	return fmt.Errorf("%w: %s: try again when that operation has ended", ErrOperator, who)
}
