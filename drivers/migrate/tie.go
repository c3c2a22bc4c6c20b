package migrate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
)

// A migration ties its old backend to one new backend and one floor of the
// tokens. A process with a different new backend, for example because of a
// wrong prefix, or with a different floor is refused before it locks anything.
// The tie consists of sealed reserved names. They do not change until
// [Driver.Untie]:
//
//   - identityName on the new backend, after a random mark: its last token is
//     the identity. A new backend without seals may be a [move.Identifier].
//   - targetName on the old backend, and two names that contain its last token.
//     One of the two also contains the identity of the new backend, the other
//     the floor. They are sealed while the holder of targetName has that token.
const (
	identityName = reserved + "identity"
	targetName   = reserved + "target"
	tiedTo       = reserved + "to:"
	tiedFloor    = reserved + "floor:"
)

// keepsName is locked for a moment, to check whether a backend keeps seals and
// marks.
const keepsName = reserved + "seals"

func tieName(prefix string, value, target uint64) string {
	return fmt.Sprintf("%s%d:%d", prefix, value, target)
}

var (
	// ErrOtherBackend reports that names of the old backend move to a different
	// new backend.
	ErrOtherBackend = fmt.Errorf("names of the old backend move to a different new backend (a wrong host or prefix in `to`? if `to` is "+
		"right, the first program used a different one: stop all programs that use it, then run `dsync migrate untie`): %w", errors.ErrUnsupported)

	// ErrOtherFloor reports that programs of this migration use a different
	// floor for the new backend.
	ErrOtherFloor = fmt.Errorf("programs of this migration have a different floor in `to` (`dsync migrate plan` prints it; to change it, "+
		"return to phase dual, then run `dsync migrate rollback --all` and `dsync migrate untie`): %w", errors.ErrUnsupported)

	// ErrWrongWay reports that a name is sealed on the new backend.
	ErrWrongWay = fmt.Errorf("names of the new backend have moved to another backend (are `from` and `to` swapped? to return after a "+
		"migration, run `dsync migrate rollback --all`, unless it had a gate, and `dsync migrate untie`, with the --from and --to of that migration): %w",
		errors.ErrUnsupported)
)

// identityBits is the length of a random identity. The tokens of every backend
// can be raised to such a number.
const identityBits = 40

// keepsSeals checks whether a backend keeps seals, by sending a request to seal
// a hold that has ended. The request changes nothing, and a driver that never
// seals refuses it.
func (d *Driver) keepsSeals(ctx context.Context, b *backend, s move.Sealer) error {
	return d.keeps(ctx, b, func(l driver.Lease) error {
		letGo(l)
		return s.Seal(ctx, l)
	})
}

// keeps returns an error that matches errors.ErrUnsupported if a request about
// a hold fails with one.
func (d *Driver) keeps(ctx context.Context, b *backend, request func(driver.Lease) error) error {
	l, err := b.Acquire(ctx, d.ownRequest(keepsName))
	if err == nil {
		defer letGo(l)
		if err = request(l); err == nil || errors.Is(err, driver.ErrNotHeld) {
			return nil
		}
	}
	return d.permitted(ctx, b.explain(err))
}

// Moves returns nil if names can move, and otherwise an error that matches
// [ErrNeedsGate], or [ErrNotPermitted] if Moves cannot determine it. It locks a
// reserved name for a moment on each backend.
func (d *Driver) Moves(ctx context.Context) error {
	if d.gate != nil {
		return ErrNoSeals
	}
	err := d.keepsSeals(ctx, d.from, d.sealer)
	if err == nil {
		err = d.keeps(ctx, d.to, func(l driver.Lease) error {
			_, err := d.marker.Marked(ctx, l)
			return err
		})
	}
	if errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("%w: %v", ErrNeedsGate, err)
	}
	return err
}

// Look is like [Driver.Check], but ties nothing and changes nothing. It detects
// an earlier Check that has tied one of the two backends to another backend.
func (d *Driver) Look(ctx context.Context) error {
	_, err := d.tied(ctx)
	return d.permitted(ctx, err)
}

// Ties returns nil if Check can tie the old backend to the new one. Otherwise
// it returns the reason why Check cannot detect a process with a different new
// backend. It may lock a reserved name for a moment on the new backend.
func (d *Driver) Ties(ctx context.Context) error {
	to, keeps := d.to.Driver.(move.Sealer)
	_, tells := d.to.Driver.(move.Identifier)
	switch {
	case d.sealer == nil || d.from.info.Fencing == driver.None:
		return fmt.Errorf("the old backend, %s, cannot keep seals with tokens: %w", d.from.info.Name, errors.ErrUnsupported)
	case tells:
		return nil
	case !keeps || d.marker == nil || d.to.info.Fencing == driver.None:
		return fmt.Errorf("the new backend, %s, neither reports its identity nor keeps seals with tokens: %w", d.to.info.Name, errors.ErrUnsupported)
	}
	return d.keepsSeals(ctx, d.to, to)
}

// wrongWay returns ErrWrongWay if the new backend is the old backend of another
// migration.
func (d *Driver) wrongWay(ctx context.Context) error {
	to, ok := d.to.Driver.(move.Sealer)
	if !ok {
		return nil
	}
	_, sealed, err := to.Sealed(ctx, targetName)
	if sealed {
		return ErrWrongWay
	}
	return d.to.explain(err)
}

// tied reports whether from is tied to this new backend with this floor. It
// returns an error if one of the two is tied to another backend.
func (d *Driver) tied(ctx context.Context) (bool, error) {
	if err := d.wrongWay(ctx); err != nil || d.sealer == nil || d.from.info.Fencing == driver.None {
		return false, err
	}
	target, sealed, err := d.sealed(ctx, targetName)
	if err != nil || !sealed {
		return false, err
	}
	identity, known, err := d.readIdentity(ctx)
	if known {
		_, known, err = d.sealed(ctx, tieName(tiedTo, identity, target))
	}
	if err == nil && !known {
		err = ErrOtherBackend
	}
	if err != nil {
		return false, err
	}
	if _, sealed, err = d.sealed(ctx, tieName(tiedFloor, d.to.floor, target)); err == nil && !sealed {
		err = ErrOtherFloor
	}
	return sealed, err
}

// sealed queries the old backend.
func (d *Driver) sealed(ctx context.Context, name string) (last uint64, sealed bool, err error) {
	last, sealed, err = d.sealer.Sealed(ctx, name)
	return last, sealed, d.from.explain(err)
}

// tie ties the old backend to the new one, or checks that they are tied to each
// other.
func (d *Driver) tie(ctx context.Context) error {
	for {
		tied, err := d.tied(ctx)
		if tied || err != nil {
			return d.permitted(ctx, err)
		}
		if err := d.Ties(ctx); errors.Is(err, errors.ErrUnsupported) {
			return nil
		} else if err != nil {
			return err
		}
		err = d.tieTo(ctx)
		if err != nil && !errors.Is(err, driver.ErrSealed) && !errors.Is(err, driver.ErrNotHeld) {
			return d.permitted(ctx, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// ErrNotPermitted reports that a backend does not permit the user to access the
// names that are reserved for the migration.
var ErrNotPermitted = fmt.Errorf("no permission to inspect names that begin with %s", reserved)

// permitted returns ErrNotPermitted unless an error comes from an unreachable
// backend, from an interfering client, or from a wrong or incapable backend.
func (d *Driver) permitted(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	for _, e := range []error{driver.ErrUnavailable, driver.ErrUnknown, driver.ErrLocked, driver.ErrClosed, errors.ErrUnsupported} {
		if errors.Is(err, e) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrNotPermitted, err)
}

// unlessRefused returns nil in place of ErrNotPermitted, because programs need
// no rights for reserved names.
func unlessRefused(err error) error {
	if errors.Is(err, ErrNotPermitted) {
		return nil
	}
	return err
}

// readIdentity returns the identity of the new backend, if it has one.
func (d *Driver) readIdentity(ctx context.Context) (identity uint64, known bool, err error) {
	switch to := d.to.Driver.(type) {
	case move.Identifier:
		identity, err = to.Identity(ctx)
		known = err == nil
	case move.Sealer:
		identity, known, err = to.Sealed(ctx, identityName)
	}
	return identity, known, d.to.explain(err)
}

// tieTo takes the next step toward a tie. If the new backend has no identity
// yet, tieTo gives it one. Otherwise it seals the three names on from. A
// process that stops in the middle has changed nothing that counts, because the
// next holder of targetName has a different token.
func (d *Driver) tieTo(ctx context.Context) error {
	identity, known, err := d.readIdentity(ctx)
	if err != nil {
		return err
	}
	if !known {
		return d.seal(ctx, d.to, identityName, func(l driver.Lease) error {
			return d.to.explain(d.marker.Mark(ctx, l, rand.Uint64N(1<<identityBits)))
		})
	}
	return d.seal(ctx, d.from, targetName, func(l driver.Lease) error {
		first, n := l.Tokens()
		last := first + uint64(n) - 1
		err := d.seal(ctx, d.from, tieName(tiedFloor, d.to.floor, last), nil)
		if err == nil {
			err = d.seal(ctx, d.from, tieName(tiedTo, identity, last), nil)
		}
		return err
	})
}

// seal seals a reserved name on b, which is a move.Sealer, after it has called
// before with the hold.
func (d *Driver) seal(ctx context.Context, b *backend, name string, before func(driver.Lease) error) error {
	l, err := b.Acquire(ctx, d.ownRequest(name))
	if err != nil {
		return b.explain(err)
	}
	if before != nil {
		err = before(l)
	}
	if err == nil {
		err = b.explain(b.Driver.(move.Sealer).Seal(ctx, l))
	}
	if err != nil {
		letGo(l)
	}
	return err
}

// Untie undoes the first [Driver.Check] of a migration, and [Driver.Finalize].
// Then from may be tied to another backend, or names may move to it. No program
// may still be using the migration, and no name may be sealed on from.
func (d *Driver) Untie(ctx context.Context) error {
	if d.unsealer == nil {
		return fmt.Errorf("%w: backend %s cannot take back a seal", ErrNoWayBack, d.from.info.Name)
	}
	err := d.unseal(ctx, tokensName, 0) // it is sealed if raiseTokens was interrupted
	if err == nil {
		err = d.unseal(ctx, closedName, 0)
	}
	if err == nil {
		err = unlessRefused(d.raiseTokens(ctx))
	}
	if err == nil {
		err = d.unseal(ctx, targetName, 0)
	}
	return err
}

// unseal unseals a name, if it is sealed, and raises its tokens.
func (d *Driver) unseal(ctx context.Context, name string, floor uint64) error {
	id := d.nextHold()
	err := d.unsealer.Loosen(ctx, name, id, floor)
	if err == nil {
		err = d.unsealer.Unseal(ctx, name, id)
	}
	if errors.Is(err, driver.ErrNotHeld) {
		return nil
	}
	return err
}

// raiseTokens raises the tokens of tokensName on from above its tokens on to,
// just as the tokens of returned names were raised. The floor of the next
// migration is computed from them.
func (d *Driver) raiseTokens(ctx context.Context) error {
	t, err := d.Tokens(ctx)
	if err != nil || t.To == 0 || d.gate != nil || d.info.Fencing == driver.None {
		return err
	}
	if err = d.seal(ctx, d.from, tokensName, nil); err != nil {
		return d.permitted(ctx, err)
	}
	if _, err := d.tied(ctx); errors.Is(err, ErrOtherFloor) {
		t.To += t.Floor - d.to.floor
	}
	if err = d.unseal(ctx, tokensName, d.from.below(t.To)); errors.Is(err, errors.ErrUnsupported) {
		// in this case no returned name has such tokens
		err = d.unseal(ctx, tokensName, 0)
	}
	return err
}

// ownRequest returns one of the driver's own requests.
func (d *Driver) ownRequest(name string) *driver.Request {
	return &driver.Request{Name: name, Hold: d.nextHold(), Owner: d.process, TTL: d.ttl, Events: quiet{}}
}
