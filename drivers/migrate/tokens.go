package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-dsync/dsync/driver"
)

// tokensName is locked for a moment on each backend, to read the tokens of a
// name that was never locked.
const tokensName = reserved + "tokens"

// floorUnit is far more than the rise of a backend's tokens during a migration:
// nine years for tokens that are microseconds. Floors that Tokens proposes are
// multiples of it, so that two calls agree.
const floorUnit = 1 << 48

// Tokens are the tokens that the two backends give to a name that has not been
// moved by a seal.
type Tokens struct {
	From, To uint64 // with the floors of the two

	// Floor is the floor that to needs. It is the floor that the migration is
	// tied to, if to has another floor. Otherwise it is the floor of to if
	// tokens rise with it, or else a floor that keeps the tokens of to above
	// those of from until long after now.
	Floor uint64
}

// Rise reports whether tokens rise, for years to come, even for names that no
// program locks before the programs use only to. Two clocks that differ by
// chance are not enough.
func (t Tokens) Rise() bool { return t.To > t.From+floorUnit/2 }

// Tokens locks a reserved name for a moment on each backend, and compares the
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
		return 0, fmt.Errorf("old backend: it cannot list its floor: %w", errors.ErrUnsupported)
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
	return 0, fmt.Errorf("old backend: it was untied meanwhile: %w", driver.ErrUnknown)
}
