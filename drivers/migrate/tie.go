package migrate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
)

// A migration ties its old backend to one new backend, so that a process with another one, by a wrong prefix perhaps, is found before it
// locks anything. The tie is made of seals alone, of reserved names:
//
//   - identityName is sealed on the new backend after a random mark. The last token in the seal is the identity. A new backend that keeps no
//     seals may tell an identity of its own: see [move.Identifier].
//   - targetName is sealed on the old backend. A third name consists of the last token in this seal and the identity of the new backend, and
//     was sealed while the holder of targetName had that token.
//
// None of these change any more before [Driver.Untie].
const (
	identityName = reserved + "identity"
	targetName   = reserved + "target"
)

// sealsName is locked for a moment, to see whether the old backend keeps seals.
const sealsName = reserved + "seals"

func tieName(identity, target uint64) string {
	return fmt.Sprintf("%sto:%d:%d", reserved, identity, target)
}

var (
	// ErrOtherBackend: names of the old backend move to another new one.
	ErrOtherBackend = fmt.Errorf("names of the old backend move to another new backend than this one (a wrong host or prefix in `to`? "+
		"if `to` is right, the first program had another one: end what uses that, then `dsync migrate untie`): %w", errors.ErrUnsupported)

	// ErrWrongWay: a name is sealed on the new backend.
	ErrWrongWay = fmt.Errorf("names of the new backend have moved to another backend (are `from` and `to` swapped? to come back after a "+
		"migration, take the names back by `dsync migrate rollback` with --from and --to as they were then, and `dsync migrate untie`): %w",
		errors.ErrUnsupported)
)

// identityBits is the length of a random identity. The tokens of every backend can be raised to such a number.
const identityBits = 40

// keepsSeals asks for a seal of a hold that is over. The request changes nothing, and a driver that never seals refuses it.
func (d *Driver) keepsSeals(ctx context.Context) error {
	l, err := d.from.Acquire(ctx, d.ownRequest(sealsName))
	if err != nil {
		return d.permitted(ctx, fmt.Errorf("old backend: %w", err))
	}
	letGo(l)
	if err := d.sealer.Seal(ctx, l); errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("%w: %v", ErrNeedsGate, err)
	}
	return nil
}

// Look is [Driver.Check] without the tie, and changes nothing: it finds an earlier Check that has tied one of the two to another backend.
func (d *Driver) Look(ctx context.Context) error {
	err := d.wrongWay(ctx)
	if err == nil && d.Ties() == nil {
		var identity uint64
		var known bool
		if identity, known, err = d.readIdentity(ctx); err == nil {
			_, err = d.tied(ctx, identity, known)
		}
	}
	return d.permitted(ctx, err)
}

// Ties returns nil if Check can tie from to to, as far as their drivers say, and why a process with another to is not found otherwise.
func (d *Driver) Ties() error {
	_, keeps := d.to.Driver.(move.Sealer)
	_, tells := d.to.Driver.(move.Identifier)
	switch {
	case d.sealer == nil || d.from.info.Fencing == driver.None:
		return fmt.Errorf("the old backend, %s, keeps no seals with tokens: %w", d.from.info.Name, errors.ErrUnsupported)
	case !tells && (!keeps || d.marker == nil || d.to.info.Fencing == driver.None):
		return fmt.Errorf("the new backend, %s, neither tells what it is nor keeps seals with tokens: %w", d.to.info.Name, errors.ErrUnsupported)
	}
	return nil
}

// wrongWay returns ErrWrongWay if the new backend is the old one of another migration.
func (d *Driver) wrongWay(ctx context.Context) error {
	to, ok := d.to.Driver.(move.Sealer)
	if !ok {
		return nil
	}
	_, sealed, err := to.Sealed(ctx, targetName)
	switch {
	case err != nil:
		return fmt.Errorf("new backend: %w", err)
	case sealed:
		return ErrWrongWay
	}
	return nil
}

// tied reports whether from is tied to the new backend with this identity. It returns ErrOtherBackend if from is tied to another one.
func (d *Driver) tied(ctx context.Context, identity uint64, known bool) (bool, error) {
	target, sealed, err := d.sealer.Sealed(ctx, targetName)
	if err != nil || !sealed {
		return false, err
	}
	sealed = false
	if known {
		_, sealed, err = d.sealer.Sealed(ctx, tieName(identity, target))
	}
	if err == nil && !sealed {
		err = ErrOtherBackend
	}
	return sealed, err
}

// tie ties from to to, or looks whether they are tied to each other.
func (d *Driver) tie(ctx context.Context) error {
	if err := d.wrongWay(ctx); err != nil || d.Ties() != nil {
		return d.permitted(ctx, err)
	}
	identity, err := d.identity(ctx)
	if err != nil {
		return d.permitted(ctx, err)
	}
	for {
		tied, err := d.tied(ctx, identity, true)
		if tied || errors.Is(err, ErrOtherBackend) {
			return err
		}
		if err == nil {
			err = d.tieTo(ctx, identity)
		}
		if err != nil && !errors.Is(err, driver.ErrSealed) && !errors.Is(err, driver.ErrNotHeld) {
			return d.permitted(ctx, fmt.Errorf("old backend: %w", err))
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// permitted returns nil if err is neither of an unreachable backend, nor of somebody else in the way, nor of a wrong one: then the backend
// does not permit reserved names, and the backends are not tied.
func (d *Driver) permitted(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	for _, e := range []error{driver.ErrUnavailable, driver.ErrUnknown, driver.ErrLocked, driver.ErrClosed, ErrWrongWay, ErrOtherBackend} {
		if errors.Is(err, e) || ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// readIdentity returns the identity of the new backend, if it has one.
func (d *Driver) readIdentity(ctx context.Context) (identity uint64, known bool, err error) {
	if i, ok := d.to.Driver.(move.Identifier); ok {
		identity, err = i.Identity(ctx)
		known = err == nil
	} else {
		identity, known, err = d.to.Driver.(move.Sealer).Sealed(ctx, identityName)
	}
	if err != nil {
		err = fmt.Errorf("new backend: %w", err)
	}
	return identity, known, err
}

// identity is readIdentity, and gives the new backend an identity if it has none.
func (d *Driver) identity(ctx context.Context) (uint64, error) {
	for {
		identity, known, err := d.readIdentity(ctx)
		if err != nil || known {
			return identity, err
		}
		l, err := d.to.Acquire(ctx, d.ownRequest(identityName))
		if err == nil {
			if err = d.marker.Mark(ctx, l, rand.Uint64N(1<<identityBits)); err == nil {
				err = d.to.Driver.(move.Sealer).Seal(ctx, l)
			}
			if err != nil {
				letGo(l)
			}
		}
		if err != nil && !errors.Is(err, driver.ErrSealed) && !errors.Is(err, driver.ErrNotHeld) {
			return 0, fmt.Errorf("new backend: %w", err)
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
	}
}

// tieTo seals the two names on from. A process that stops in between has changed nothing: the next holder has another token.
func (d *Driver) tieTo(ctx context.Context, identity uint64) error {
	target, err := d.from.Acquire(ctx, d.ownRequest(targetName))
	if err != nil {
		return err
	}
	first, n := target.Tokens()
	tie, err := d.from.Acquire(ctx, d.ownRequest(tieName(identity, first+uint64(n)-1)))
	if err == nil {
		if err = d.sealer.Seal(ctx, tie); err != nil {
			letGo(tie)
		}
	}
	if err == nil {
		err = d.sealer.Seal(ctx, target)
	}
	if err != nil {
		letGo(target)
	}
	return err
}

// Untie undoes the first [Driver.Check] of a migration: from may then be tied to another backend, or names may move to it. No
// program may use the migration any more, and no name may be sealed on from.
func (d *Driver) Untie(ctx context.Context) error {
	if d.unsealer == nil {
		return fmt.Errorf("%w: backend %s takes no seal back", ErrNoWayBack, d.from.info.Name)
	}
	id := d.nextHold()
	err := d.unsealer.Loosen(ctx, targetName, id, 0)
	if err == nil {
		err = d.unsealer.Unseal(ctx, targetName, id)
	}
	if errors.Is(err, driver.ErrNotHeld) {
		return nil // from is not tied, or no longer
	}
	return err
}

// ownRequest returns a request of the driver's own.
func (d *Driver) ownRequest(name string) *driver.Request {
	return &driver.Request{Name: name, Hold: d.nextHold(), Owner: "migration", TTL: d.ttl, Events: quiet{}}
}
