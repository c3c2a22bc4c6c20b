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
var ErrSame = fmt.Errorf("from and to are the same backend by two addresses: %w", errors.ErrUnsupported)

// apartNames is the number of names for the check whether the backends are
// different. Several processes may check at the same time.
const apartNames = 16

// Check checks that the two backends are different, can seal if there is no
// gate, and belong together: see [ErrSame], [ErrNeedsGate], [ErrOtherBackend]
// and [ErrWrongWay]. The first Check of a migration ties from to to, if
// [Driver.Ties] returns nil. Opening by URL calls Check. A program that uses
// New should call Check before its first lock.
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
