package conformance

import (
	"context"
	"errors"
	"sync"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// breakLoosen returns a mutation that replaces Loosen.
func breakLoosen(f func(d *memory.Driver, ctx context.Context, name, id string, floor uint64) error) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, loosen: func(ctx context.Context, name, id string, floor uint64) error { return f(d, ctx, name, id, floor) }}
	}
}

// breakUnseal returns a mutation that changes what comes of an Unseal.
func breakUnseal(f func(err error) error) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, unseal: func(ctx context.Context, name, id string) error { return f(d.Unseal(ctx, name, id)) }}
	}
}

// breakUnmark returns a mutation that replaces Unmark.
func breakUnmark(f func(d *memory.Driver, ctx context.Context, l driver.Lease) error) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, unmark: func(ctx context.Context, l driver.Lease) error { return f(d, ctx, unbroken(l)) }}
	}
}

// notNotHeld turns ErrNotHeld into success.
func notNotHeld(err error) error {
	if errors.Is(err, driver.ErrNotHeld) {
		return nil
	}
	return err
}

// notUnknown turns ErrUnknown into ErrNotHeld.
func notUnknown(err error) error {
	if errors.Is(err, driver.ErrUnknown) {
		return driver.ErrNotHeld
	}
	return err
}

var migrationBackMutants = []mutant{
	{
		check:  "migration/loosen",
		breaks: "a seal with an id is none any more",
		mutate: breakLoosen(func(d *memory.Driver, ctx context.Context, name, id string, floor uint64) error {
			if err := d.Loosen(ctx, name, id, floor); err != nil {
				return err
			}
			return d.Unseal(ctx, name, id)
		}),
	},
	{
		check:  "migration/loosen",
		breaks: "a name that is not sealed can be given an id",
		mutate: breakLoosen(func(d *memory.Driver, ctx context.Context, name, id string, floor uint64) error {
			return notNotHeld(d.Loosen(ctx, name, id, floor))
		}),
	},
	{check: "migration/unseal", breaks: "every id is the right one", mutate: anyID(false)},
	{check: "migration/unseal", breaks: "the id of an earlier seal is the right one", mutate: anyID(true)},
	{check: "migration/unseal", breaks: "Unseal seems to succeed where there is no seal", mutate: breakUnseal(notNotHeld)},
	{
		check:  "migration/unseal-floor",
		breaks: "Loosen raises no tokens",
		mutate: breakLoosen(func(d *memory.Driver, ctx context.Context, name, id string, floor uint64) error {
			if floor == 1<<64-1 {
				return errors.ErrUnsupported
			}
			return d.Loosen(ctx, name, id, 0)
		}),
	},
	{
		check:  "migration/unseal-floor",
		breaks: "a Loosen that is refused has written its id",
		mutate: breakLoosen(func(d *memory.Driver, ctx context.Context, name, id string, floor uint64) error {
			err := d.Loosen(ctx, name, id, floor)
			if errors.Is(err, errors.ErrUnsupported) {
				err = errors.Join(err, d.Loosen(ctx, name, id, 0))
			}
			return err
		}),
	},
	{
		check:  "migration/unseal-floor",
		breaks: "a floor that is lower than the last token is refused",
		mutate: breakLoosen(func(d *memory.Driver, ctx context.Context, name, id string, floor uint64) error {
			if last, _, _ := d.Sealed(ctx, name); 0 < floor && floor < last {
				return errors.ErrUnsupported
			}
			return d.Loosen(ctx, name, id, floor)
		}),
	},
	{check: "migration/unseal-lost", breaks: "an Unseal whose answer was lost counts as none", mutate: breakUnseal(notUnknown)},
	{
		check:  "migration/unseal-lost",
		breaks: "a Loosen whose answer was lost has set the name free",
		mutate: breakLoosen(func(d *memory.Driver, ctx context.Context, name, id string, floor uint64) error {
			err := d.Loosen(ctx, name, id, floor)
			if errors.Is(err, driver.ErrUnknown) {
				_ = d.Unseal(ctx, name, id)
			}
			return err
		}),
	},
	{
		check:  "migration/unmark",
		breaks: "the mark stays",
		mutate: breakUnmark(func(*memory.Driver, context.Context, driver.Lease) error { return nil }),
	},
	{check: "migration/unmark", breaks: "what raises the tokens goes with the mark", mutate: ownFloors(func(was, floor uint64) uint64 { return max(was, floor) })},
	{
		check:  "migration/unmark-held",
		breaks: "an Unmark of a hold that is over seems to succeed",
		mutate: breakUnmark(func(d *memory.Driver, ctx context.Context, l driver.Lease) error { return notNotHeld(d.Unmark(ctx, l)) }),
	},
	{
		check:  "migration/unmark-lost",
		breaks: "an Unmark whose answer was lost counts as none",
		mutate: breakUnmark(func(d *memory.Driver, ctx context.Context, l driver.Lease) error { return notUnknown(d.Unmark(ctx, l)) }),
	},
}

// anyID is a mutation that takes every id for that of the seal, or every one that a seal of the name ever had.
func anyID(past bool) func(*memory.Driver) driver.Driver {
	var mu sync.Mutex
	had := map[string]map[string]bool{}
	return func(d *memory.Driver) driver.Driver {
		b := &broken{Driver: d}
		b.loosen = func(ctx context.Context, name, id string, floor uint64) error {
			err := d.Loosen(ctx, name, id, floor)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && had[name] == nil {
				had[name] = map[string]bool{}
			}
			return err
		}
		b.unseal = func(ctx context.Context, name, id string) error {
			mu.Lock()
			defer mu.Unlock()
			ids := had[name]
			if err := d.Unseal(ctx, name, id); err == nil {
				if ids != nil {
					ids[id] = true
				}
				return nil
			}
			if past && !ids[id] || !past && ids == nil {
				return driver.ErrNotHeld
			}
			if err := d.Loosen(ctx, name, id, 0); err != nil {
				return err
			}
			return d.Unseal(ctx, name, id)
		}
		return b
	}
}
