package cas

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
)

var (
	_ move.Sealer   = (*Driver)(nil)
	_ move.Marker   = (*Driver)(nil)
	_ move.Unsealer = (*Driver)(nil)
	_ move.Unmarker = (*Driver)(nil)
)

// seal is stored in place of the hold of a name that has moved to another
// backend. It is never changed, only replaced.
type seal struct {
	Last uint64 `json:"last,omitempty"` // the last token before the seal
	ID   string `json:"id,omitempty"`   // of the last Loosen
}

// maxFloor is the highest floor that leaves room for all later tokens.
const maxFloor = 1 << 62

func checkFloor(floor uint64) error {
	if floor > maxFloor {
		return fmt.Errorf("floor %d of the tokens leaves no room above it: %w", floor, errors.ErrUnsupported)
	}
	return nil
}

// raise makes all later tokens larger than floor, if there are tokens.
func (d *Driver) raise(v *view, floor uint64) {
	switch {
	case floor == 0 || d.NoTokens:
	case !d.Rising:
		v.Last, v.Keep = max(v.Last, floor), forever
	case d.tokenOf(v, driver.Exclusive) <= floor:
		v.Base = floor
	}
}

// movable returns an error for a store whose records have no room for a seal.
func (d *Driver) movable() error {
	if d.Plain {
		return fmt.Errorf("names of backend %s cannot move: %w", d.Name, errors.ErrUnsupported)
	}
	return nil
}

// alterHeld changes the record of a lease if the record contains its hold.
func (d *Driver) alterHeld(ctx context.Context, l *lease, to func(v *view, c *claim)) (*view, error) {
	if err := d.movable(); err != nil {
		return nil, err
	}
	if err := d.life.Enter(); err != nil {
		return nil, err
	}
	defer d.life.Leave()
	if l.over() {
		return nil, driver.ErrNotHeld
	}
	j := &job{hold: l.r.Hold, to: func(v *view) error {
		i := find(v.Holds, l.r.Hold)
		if i < 0 {
			return driver.ErrNotHeld
		}
		to(v, &v.Holds[i])
		return nil
	}}
	err := l.desk.do(ctx, j)
	return j.v, err
}

// Seal implements [move.Sealer].
func (d *Driver) Seal(ctx context.Context, held driver.Lease) error {
	l := held.(*lease)
	first, n := l.Tokens()
	_, err := d.alterHeld(ctx, l, func(v *view, _ *claim) {
		v.Holds, v.Queue, v.Sealed = nil, nil, &seal{}
		if n > 0 {
			v.Sealed.Last = first + uint64(n) - 1
		}
	})
	if err == nil {
		l.die()
		l.drop()
	}
	return err
}

// Sealed implements [move.Sealer].
func (d *Driver) Sealed(ctx context.Context, name string) (last uint64, sealed bool, err error) {
	if err := d.movable(); err != nil {
		return 0, false, err
	}
	if err := d.life.Enter(); err != nil {
		return 0, false, err
	}
	defer d.life.Leave()
	v, err := d.read(ctx, name, nil)
	if err != nil || v.Sealed == nil {
		return 0, false, err
	}
	return v.Sealed.Last, true, nil
}

// alterSeal changes the record of a sealed name.
func (d *Driver) alterSeal(ctx context.Context, name string, to func(v *view) error) error {
	if err := d.movable(); err != nil {
		return err
	}
	return d.alter(ctx, name, func(v *view) error {
		if v.Sealed == nil {
			return driver.ErrNotHeld
		}
		return to(v)
	})
}

// Loosen implements [move.Unsealer].
func (d *Driver) Loosen(ctx context.Context, name, id string, floor uint64) error {
	if floor > 0 && d.NoTokens {
		return fmt.Errorf("there are no tokens to raise: %w", errors.ErrUnsupported)
	}
	if err := checkFloor(floor); err != nil {
		return err
	}
	return d.alterSeal(ctx, name, func(v *view) error {
		v.Sealed = &seal{v.Sealed.Last, id}
		d.raise(v, floor)
		return nil
	})
}

// Unseal implements [move.Unsealer].
func (d *Driver) Unseal(ctx context.Context, name, id string) error {
	return d.alterSeal(ctx, name, func(v *view) error {
		if id == "" || v.Sealed.ID != id {
			return driver.ErrNotHeld
		}
		v.Sealed = nil
		return nil
	})
}

// Mark implements [move.Marker].
func (d *Driver) Mark(ctx context.Context, held driver.Lease, floor uint64) error {
	if err := checkFloor(floor); err != nil {
		return err
	}
	l := held.(*lease)
	v, err := d.alterHeld(ctx, l, func(v *view, c *claim) {
		v.Marked = true
		d.raise(v, floor)
		if d.Rising { // the token is the version of this write
			c.Token, c.Beat = 0, ""
		} else {
			l.assignTokens(v, c)
		}
	})
	if err == nil {
		l.number(v)
		l.marked = true
	}
	return err
}

// Unmark implements [move.Unmarker].
func (d *Driver) Unmark(ctx context.Context, held driver.Lease) error {
	l := held.(*lease)
	_, err := d.alterHeld(ctx, l, func(v *view, _ *claim) { v.Marked = false })
	if err == nil {
		l.marked = false
	}
	return err
}

// Marked implements [move.Marker]. The mark came with the grant.
func (d *Driver) Marked(_ context.Context, held driver.Lease) (bool, error) {
	return held.(*lease).marked, d.movable()
}
