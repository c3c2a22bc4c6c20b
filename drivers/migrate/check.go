package migrate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/go-dsync/dsync/driver"
)

// ErrSame reports that both URLs lead to the same backend, so each lock would
// wait for itself.
var ErrSame = fmt.Errorf("from and to are the same backend under two addresses: %w", errors.ErrUnsupported)

// apartNames is the number of names for the check whether the backends are
// different. Several processes may check at the same time.
const apartNames = 16

// Check checks that the two backends are different, can seal if there is no
// gate, and belong together: see [ErrSame], [ErrNeedsGate], [ErrOtherBackend]
// and [ErrWrongWay]. The first Check of a migration ties the old backend to the
// new one, if [Driver.Ties] returns nil. Opening by URL calls Check. A program
// that uses New should call Check before its first lock.
func (d *Driver) Check(ctx context.Context) error {
	bound, end, err := d.closable(ctx)
	if err != nil {
		return err
	}
	defer end()
	err = d.apart(bound)
	if err == nil && d.gate == nil {
		err = unlessRefused(d.Moves(bound))
	}
	if err == nil {
		err = unlessRefused(d.tie(bound))
	}
	return d.closing(ctx, err)
}

// apart checks that the two backends are different: a hold on one of them must
// not appear on the other. If another client uses one of the names in the same
// way, apart tries the next name.
func (d *Driver) apart(ctx context.Context) error {
	inspectFrom, inspectTo, err := inspectors(d)
	if err != nil {
		return nil // a backend does not report holders
	}
	first := rand.IntN(apartNames)
	for i := range apartNames {
		name := fmt.Sprintf("%sapart:%d", reserved, (first+i)%apartNames)
		r := d.ownRequest(name)
		r.NoWait = true
		l, err := d.from.Acquire(ctx, r)
		if errors.Is(err, driver.ErrLocked) && !errors.Is(err, driver.ErrUnknown) {
			continue
		}
		if err != nil {
			return unlessRefused(d.permitted(ctx, d.from.explain(err)))
		}
		defer letGo(l)
		on, fromErr := inspectFrom.Inspect(ctx, name)
		other, toErr := inspectTo.Inspect(ctx, name)
		if fromErr == nil && toErr == nil && other.Held && on.Hold != "" && other.Hold == on.Hold {
			return fmt.Errorf("migrate URL: %w", ErrSame)
		}
		return nil // also if a backend does not report holders
	}
	return nil
}

// tokensName is locked for a moment on each backend, to read the tokens of a
// name that was never locked.
const tokensName = reserved + "tokens"

// floorUnit is far more than a backend's tokens can rise during a migration:
// nine years for tokens that are microseconds. Floors that Tokens proposes are
// multiples of floorUnit, so that two calls agree.
const floorUnit = 1 << 48

// Tokens are the tokens that the two backends give to a name that has not been
// moved by a seal.
type Tokens struct {
	From, To uint64 // including the floors of the two backends

	// Floor is the floor that to needs. If the migration is already tied to a
	// different floor, it is that floor. Otherwise it is the floor of to, if
	// tokens rise with it. If they do not, it is a floor that keeps the tokens
	// of to above the tokens of from for years.
	Floor uint64
}

// Rise reports whether tokens rise, for years to come, even for names that no
// program locks before the programs use only to. Two clocks that differ by
// chance are not enough.
func (t Tokens) Rise() bool { return t.To > t.From+floorUnit/2 }

// Tokens locks a reserved name for a moment on each backend and compares the
// tokens. It returns zero Tokens if a backend has none.
func (d *Driver) Tokens(ctx context.Context) (t Tokens, err error) {
	if d.from.info.Fencing == driver.None || d.to.info.Fencing == driver.None {
		return t, nil
	}
	for b, token := range map[*backend]*uint64{d.from: &t.From, d.to: &t.To} {
		l, err := b.Acquire(ctx, d.ownRequest(tokensName))
		if err != nil {
			return Tokens{}, d.permitted(ctx, b.explain(err))
		}
		first, n := driver.Tokens(l, b.floor)
		*token = first + uint64(max(n, 1)) - 1
		letGo(l)
	}
	if t.Floor = d.to.floor; !t.Rise() {
		bare := t.To - d.to.floor
		units := (t.From - min(t.From, bare) + floorUnit*3/4 + floorUnit - 1) / floorUnit
		t.Floor = units * floorUnit
	}
	if _, err := d.tied(ctx); errors.Is(err, ErrOtherFloor) {
		t.Floor, err = d.otherFloor(ctx)
		return t, d.permitted(ctx, err)
	}
	return t, nil
}

// otherFloor returns the floor that the migration is tied to.
func (d *Driver) otherFloor(ctx context.Context) (uint64, error) {
	lister, ok := d.from.Driver.(driver.Lister)
	if !ok {
		return 0, fmt.Errorf("the old backend cannot list its floor: %w", errors.ErrUnsupported)
	}
	target, _, err := d.sealed(ctx, targetName)
	if err != nil {
		return 0, err
	}
	for name, err := range lister.List(ctx, tiedFloor) {
		if err != nil {
			return 0, d.from.explain(err)
		}
		var floor, of uint64
		if _, err := fmt.Sscanf(name, tiedFloor+"%d:%d", &floor, &of); err == nil && of == target {
			return floor, nil
		}
	}
	return 0, fmt.Errorf("the old backend was untied in the meantime: %w", driver.ErrUnknown)
}
