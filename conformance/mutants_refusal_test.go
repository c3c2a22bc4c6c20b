package conformance

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// refusing are the servers that refuse requests at the moment.
var refusing sync.Map

// refused reports whether err came of the refusal of a server.
func refused(d *memory.Driver, err error) bool {
	_, refuses := refusing.Load(d.Server())
	return refuses && errors.Is(err, driver.ErrUnavailable)
}

func refusedLease(_ context.Context, d *memory.Driver, _ *brokenLease, err error) bool {
	return refused(d, err)
}

var refusalMutants = []mutant{
	{
		check:  "refusal/requests",
		breaks: "a request that the backend refuses returns ErrLocked",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if refused(d, err) {
				err = driver.ErrLocked
			}
			return l, err
		}),
	},
	{
		check:  "refusal/requests",
		breaks: "a request that is said to be refused has the name",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if refused(d, err) && r.NoWait {
				_, _ = d.Server().NewDriver().Acquire(ctx, r)
			}
			return l, err
		}),
	},
	{
		check:  "refusal/requests",
		breaks: "a waiter that the backend refuses waits for ever",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if refused(d, err) && !r.NoWait {
				<-ctx.Done()
			}
			return l, err
		}),
	},
	{
		check:  "refusal/holds",
		breaks: "a renewal that the backend refuses returns ErrNotHeld",
		mutate: renewalNotHeld(refusedLease),
	},
	{
		check:  "refusal/holds",
		breaks: "a release that the backend refuses returns ErrNotHeld",
		mutate: releaseNotHeld(refusedLease),
	},
	{
		check:  "refusal/holds",
		breaks: "a release that the backend refuses is not repeated",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			l.release = func(ctx context.Context) error {
				if _, refuses := refusing.Load(d.Server()); refuses {
					return driver.ErrUnavailable
				}
				return l.Lease.Release(ctx)
			}
		}),
	},
	{
		check:  "refusal/holds",
		breaks: "Inspect reports a free name when the backend refuses it",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, inspect: func(ctx context.Context, name string) (driver.Status, error) {
				s, err := d.Inspect(ctx, name)
				if refused(d, err) {
					return driver.Status{}, nil
				}
				return s, err
			}}
		},
	},
	{
		check:  "refusal/holds",
		breaks: "List yields nothing, and no error, when the backend refuses it",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, list: func(ctx context.Context, prefix string) iter.Seq2[string, error] {
				return func(yield func(string, error) bool) {
					for name, err := range d.List(ctx, prefix) {
						if !refused(d, err) && !yield(name, err) {
							return
						}
					}
				}
			}}
		},
	},
	{
		check:  "refusal/changes",
		breaks: "a count-down that the backend refuses returns nil",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.countDown = func(ctx context.Context, name, id string) error {
				err := d.CountDown(ctx, name, id)
				if refused(d, err) {
					return nil
				}
				return err
			}
		}),
	},
	{
		check:  "refusal/changes",
		breaks: "a latch is set in spite of ErrUnavailable",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.set = func(ctx context.Context, name, id string, n int) (bool, error) {
				set, err := d.SetLatch(ctx, name, id, n)
				if refused(d, err) {
					_, _ = d.Server().NewDriver().SetLatch(ctx, name, id, n)
				}
				return set, err
			}
		}),
	},
	{
		check:  "refusal/changes",
		breaks: "a limit that the backend refuses to change is ErrLimit",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, setLimit: func(ctx context.Context, name string, limit int) error {
				err := d.SetLimit(ctx, name, limit)
				if refused(d, err) {
					return driver.ErrLimit
				}
				return err
			}}
		},
	},
	{
		check:  "closing/remains",
		breaks: "the session of a client that was closed stays on the backend",
		mutate: func(d *memory.Driver) driver.Driver {
			var once sync.Once
			return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
				once.Do(func() { leaveOn(d.Server(), "the session of "+r.Hold) })
				return d.Acquire(ctx, r)
			})(d)
		},
	},
	{
		check:  "closing/remains",
		breaks: "the place of a waiter that gave up stays on the backend",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			leaveOn(d.Server(), "the place of "+r.Hold)
			l, err := d.Acquire(ctx, r)
			if l != nil || ctx.Err() == nil {
				takeFrom(d.Server(), "the place of "+r.Hold)
			}
			return l, err
		}),
	},
}
