package conformance

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// breakSeal returns a mutation that changes the result of a Seal.
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
		breaks: "a sealed name looks like a held name",
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
		breaks: "waiters are not notified of a seal",
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
		breaks: "a driver that reports that it never seals has sealed",
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
		breaks: "the seal is reported to the holder as a loss",
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
		breaks: "the last token of a sealed name is the first token of a block",
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
		breaks: "a held name looks sealed",
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
		breaks: "Seal of a hold that has ended returns nil",
		mutate: breakSeal(func(_ *memory.Driver, _ *brokenLease, err error) error {
			if errors.Is(err, driver.ErrNotHeld) {
				return nil
			}
			return err
		}),
	},
	{
		check:  "migration/seal-held",
		breaks: "a seal of an ended hold ends the next one",
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
		breaks: "a seal whose answer was lost counts as not made",
		mutate: breakSeal(func(_ *memory.Driver, _ *brokenLease, err error) error {
			if errors.Is(err, driver.ErrUnknown) {
				return driver.ErrNotHeld
			}
			return err
		}),
	},
	{
		check:  "migration/mark",
		breaks: "a mark is known only to the client that made it",
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
		breaks: "Mark of a hold that has ended returns nil",
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

// ownFloors is a mutation that computes a floor from the previous floor and the
// mark's floor. Its tokens are above this floor until the mark is removed.
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

// breakLoosen returns a mutation that replaces Loosen.
func breakLoosen(f func(d *memory.Driver, ctx context.Context, name, id string, floor uint64) error) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, loosen: func(ctx context.Context, name, id string, floor uint64) error { return f(d, ctx, name, id, floor) }}
	}
}

// breakUnseal returns a mutation that changes the result of an Unseal.
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
		breaks: "a seal with an id is no longer a seal",
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
	{check: "migration/unseal", breaks: "every id is correct", mutate: anyID(false)},
	{check: "migration/unseal", breaks: "the id of an earlier seal is correct", mutate: anyID(true)},
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
		breaks: "a refused Loosen has stored its id",
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
	{check: "migration/unseal-lost", breaks: "an Unseal whose answer was lost counts as not carried out", mutate: breakUnseal(notUnknown)},
	{
		check:  "migration/unseal-lost",
		breaks: "a Loosen whose answer was lost has freed the name",
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
	{check: "migration/unmark", breaks: "the tokens are no longer raised after the mark is removed", mutate: ownFloors(func(was, floor uint64) uint64 { return max(was, floor) })},
	{
		check:  "migration/unmark-held",
		breaks: "Unmark of a hold that has ended returns nil",
		mutate: breakUnmark(func(d *memory.Driver, ctx context.Context, l driver.Lease) error { return notNotHeld(d.Unmark(ctx, l)) }),
	},
	{
		check:  "migration/unmark-lost",
		breaks: "an Unmark whose answer was lost counts as not carried out",
		mutate: breakUnmark(func(d *memory.Driver, ctx context.Context, l driver.Lease) error { return notUnknown(d.Unmark(ctx, l)) }),
	},
}

// anyID is a mutation that accepts every id as the id of the seal, or every id
// that a seal of the name ever had.
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
