package conformance

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// breakSeal returns a mutation that changes what comes of a Seal.
func breakSeal(f func(d *memory.Driver, l *brokenLease, err error) error) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, lease: func(*brokenLease) {}, seal: func(ctx context.Context, l driver.Lease) error {
			return f(d, l.(*brokenLease), d.Seal(ctx, unbroken(l)))
		}}
	}
}

// breakMark returns a mutation that replaces Mark.
func breakMark(f func(d *memory.Driver, ctx context.Context, l driver.Lease, floor uint64) error) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, mark: func(ctx context.Context, l driver.Lease, floor uint64) error { return f(d, ctx, unbroken(l), floor) }}
	}
}

var migrationMutants = []mutant{
	{
		check:  "migration/seal",
		breaks: "a sealed name looks like one that is held",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if r.NoWait && errors.Is(err, driver.ErrSealed) {
				err = driver.ErrLocked
			}
			return l, err
		}),
	},
	{
		check:  "migration/seal",
		breaks: "those who wait are not told of a seal",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			var waited atomic.Bool
			q := *r
			q.Events = &waitingEvents{r.Events, func() { waited.Store(true) }}
			l, err := d.Acquire(ctx, &q)
			if waited.Load() && errors.Is(err, driver.ErrSealed) {
				<-ctx.Done()
			}
			return l, err
		}),
	},
	{
		check:  "migration/seal",
		breaks: "a driver that says that it never seals has sealed",
		mutate: breakSeal(func(_ *memory.Driver, _ *brokenLease, err error) error {
			return errors.Join(err, errors.ErrUnsupported)
		}),
	},
	{
		check:  "migration/seal-over",
		breaks: "the release of a lease that became a seal succeeds",
		mutate: breakSeal(func(_ *memory.Driver, l *brokenLease, err error) error {
			if err == nil {
				l.release = func(context.Context) error { return nil }
			}
			return err
		}),
	},
	{
		check:  "migration/seal-over",
		breaks: "the holder is told of the seal as of a loss",
		mutate: breakSeal(func(_ *memory.Driver, l *brokenLease, err error) error {
			if err == nil {
				l.r.Events.Lost(driver.ErrRemoved)
			}
			return err
		}),
	},
	{
		check:  "migration/seal-over",
		breaks: "the release of a lease that became a seal ends the seal",
		mutate: breakSeal(func(d *memory.Driver, l *brokenLease, err error) error {
			if err == nil {
				l.release = func(context.Context) error {
					d.Server().Flush()
					return driver.ErrNotHeld
				}
			}
			return err
		}),
	},
	{
		check:  "migration/seal-stays",
		breaks: "a seal can be unlocked by force",
		mutate: breakForceUnlock(func(_ context.Context, _ string, err error) error {
			if errors.Is(err, driver.ErrSealed) {
				return nil
			}
			return err
		}),
	},
	{
		check:  "migration/seal-stays",
		breaks: "a seal ends with the client that made it",
		mutate: func(d *memory.Driver) driver.Driver {
			var sealed atomic.Bool
			b := &broken{Driver: d}
			b.seal = func(ctx context.Context, l driver.Lease) error {
				sealed.Store(true)
				return d.Seal(ctx, l)
			}
			b.close = func(ctx context.Context) error {
				if sealed.Load() {
					d.Server().Flush()
				}
				return d.Close(ctx)
			}
			return b
		},
	},
	{
		check:  "migration/sealed",
		breaks: "the last token of a sealed name is that of the first lease of its block",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, sealed: func(ctx context.Context, name string) (uint64, bool, error) {
				last, sealed, err := d.Sealed(ctx, name)
				if sealed {
					last -= 4
				}
				return last, sealed, err
			}}
		},
	},
	{
		check:  "migration/sealed",
		breaks: "a name that is held looks sealed",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, sealed: func(ctx context.Context, name string) (uint64, bool, error) {
				last, sealed, err := d.Sealed(ctx, name)
				s, _ := d.Inspect(ctx, name)
				return last, sealed || s.Held, err
			}}
		},
	},
	{
		check:  "migration/seal-held",
		breaks: "a seal of a hold that is over seems to succeed",
		mutate: breakSeal(func(_ *memory.Driver, _ *brokenLease, err error) error {
			if errors.Is(err, driver.ErrNotHeld) {
				return nil
			}
			return err
		}),
	},
	{
		check:  "migration/seal-held",
		breaks: "a seal of a hold that is over ends the next one",
		mutate: breakSeal(func(d *memory.Driver, l *brokenLease, err error) error {
			if errors.Is(err, driver.ErrNotHeld) {
				d.Server().Expire(l.r.Name)
			}
			return err
		}),
	},
	{
		check:  "migration/seal-lost",
		breaks: "a release ends the seal whose answer was lost",
		mutate: breakSeal(func(d *memory.Driver, l *brokenLease, err error) error {
			if errors.Is(err, driver.ErrUnknown) {
				l.release = func(ctx context.Context) error {
					d.Server().Flush()
					return l.Lease.Release(ctx)
				}
			}
			return err
		}),
	},
	{
		check:  "migration/seal-lost",
		breaks: "a seal whose answer was lost counts as none",
		mutate: breakSeal(func(_ *memory.Driver, _ *brokenLease, err error) error {
			if errors.Is(err, driver.ErrUnknown) {
				return driver.ErrNotHeld
			}
			return err
		}),
	},
	{
		check:  "migration/mark",
		breaks: "a mark is known to the client alone that made it",
		mutate: func(d *memory.Driver) driver.Driver {
			var own sync.Map // leases that were marked
			b := &broken{Driver: d}
			b.mark = func(ctx context.Context, l driver.Lease, floor uint64) error {
				own.Store(l, true)
				return d.Mark(ctx, l, floor)
			}
			b.marked = func(_ context.Context, l driver.Lease) (bool, error) {
				_, marked := own.Load(l)
				return marked, nil
			}
			return b
		},
	},
	{
		check:  "migration/mark",
		breaks: "every name is marked",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, marked: func(context.Context, driver.Lease) (bool, error) { return true, nil }}
		},
	},
	{
		check:  "migration/floor",
		breaks: "a mark raises no tokens",
		mutate: breakMark(func(d *memory.Driver, ctx context.Context, l driver.Lease, _ uint64) error { return d.Mark(ctx, l, 0) }),
	},
	{
		check:  "migration/floor",
		breaks: "the lease that was marked keeps its tokens",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, lease: func(l *brokenLease) {
				first, n := l.Lease.Tokens()
				l.tokens = func() (uint64, int) { return first, n }
			}}
		},
	},
	{check: "migration/floor", breaks: "a lower floor lowers the tokens", mutate: ownFloors(func(_, floor uint64) uint64 { return floor })},
	{
		check:  "migration/mark-held",
		breaks: "a mark of a hold that is over seems to succeed",
		mutate: breakMark(func(d *memory.Driver, ctx context.Context, l driver.Lease, floor uint64) error {
			if err := d.Mark(ctx, l, floor); !errors.Is(err, driver.ErrNotHeld) {
				return err
			}
			return nil
		}),
	},
	{
		check:  "migration/mark-lost",
		breaks: "the mark and the floor are set by two requests",
		mutate: breakMark(func(d *memory.Driver, ctx context.Context, l driver.Lease, floor uint64) error {
			if err := d.Mark(ctx, l, 0); err != nil {
				return err
			}
			return d.Mark(ctx, l, floor)
		}),
	},
}

// ownFloors is a mutation whose tokens are above the floor that raise makes of the one before and that of a mark, and of none once the
// mark is taken off.
func ownFloors(raise func(was, floor uint64) uint64) func(*memory.Driver) driver.Driver {
	var mu sync.Mutex
	floors := map[string]uint64{}
	return func(d *memory.Driver) driver.Driver {
		b := &broken{Driver: d}
		b.lease = func(l *brokenLease) {
			l.tokens = func() (uint64, int) {
				first, n := l.Lease.Tokens()
				mu.Lock()
				defer mu.Unlock()
				return first + floors[l.r.Name], n
			}
		}
		b.mark = func(ctx context.Context, l driver.Lease, floor uint64) error {
			err := d.Mark(ctx, unbroken(l), 0)
			mu.Lock()
			defer mu.Unlock()
			if name := l.(*brokenLease).r.Name; err == nil || errors.Is(err, driver.ErrUnknown) {
				floors[name] = raise(floors[name], floor)
			}
			return err
		}
		b.unmark = func(ctx context.Context, l driver.Lease) error {
			mu.Lock()
			defer mu.Unlock()
			delete(floors, l.(*brokenLease).r.Name)
			return d.Unmark(ctx, unbroken(l))
		}
		return b
	}
}
