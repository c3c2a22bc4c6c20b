package conformance

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var faultMutants = []mutant{
	{
		check:  "faults/cut",
		breaks: "a backend that is out of reach looks like a lock that is held",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if errors.Is(err, driver.ErrUnavailable) {
				err = driver.ErrLocked
			}
			return l, err
		}),
	},
	{
		check:  "faults/cut",
		breaks: "a connection that broke is not made again",
		mutate: func(d *memory.Driver) driver.Driver {
			var down atomic.Bool
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				if down.Load() {
					return nil, driver.ErrUnavailable
				}
				l, err := d.Acquire(ctx, r)
				if errors.Is(err, driver.ErrUnavailable) {
					down.Store(true)
				}
				return l, err
			}}
		},
	},
	{
		check:  "faults/hung-acquire",
		breaks: "an Acquire waits for its answer for ever",
		mutate: func(d *memory.Driver) driver.Driver {
			closed := make(chan struct{})
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				l, err := d.Acquire(ctx, r)
				if isHung(ctx, err) {
					<-closed
				}
				return l, err
			}, close: func(ctx context.Context) error {
				close(closed)
				return d.Close(ctx)
			}}
		},
	},
	{
		check:  "faults/hung-acquire",
		breaks: "what a request left that arrived late stays there",
		mutate: leavesHung(),
	},
	{
		check:  "faults/hung-acquire",
		breaks: "what a request left that arrived late stays there, of a driver that looks before it asks",
		mutate: readsFirst(leavesHung()),
	},
	{
		check:  "faults/hung-wait",
		breaks: "a wait that is canceled leaves the queue, however long that takes",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if errors.Is(err, driver.ErrLocked) && !r.NoWait {
				_, _ = d.Inspect(context.WithoutCancel(ctx), r.Name)
			}
			return l, err
		}),
	},
	{
		check:  "faults/hung-lease",
		breaks: "a renewal waits for its answer for ever",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				return l.Lease.Renew(context.WithoutCancel(ctx), ttl)
			}
		}),
	},
	{
		check:  "faults/hung-lease",
		breaks: "a batch of renewals waits for its answer for ever",
		mutate: func(d *memory.Driver) driver.Driver {
			return breakRenewAll(d, func(ctx context.Context, leases []driver.Lease, done func(int, error)) {
				d.RenewAll(context.WithoutCancel(ctx), leases, done)
			})
		},
	},
	{
		check:  "faults/hung-lease",
		breaks: "a release waits for its answer for ever",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.release = func(ctx context.Context) error { return l.Lease.Release(context.WithoutCancel(ctx)) }
		}),
	},
	{
		check:  "faults/late-answer",
		breaks: "Expires counts from the arrival of the answer",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			late := time.Now().Add(l.r.TTL).Sub(l.Lease.Expires())
			l.expires = func() time.Time { return l.Lease.Expires().Add(late) }
		}),
	},
	{
		check:  "faults/late-answer",
		breaks: "after a renewal Expires counts from the arrival of the answer",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			var late atomic.Int64
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				err := l.Lease.Renew(ctx, ttl)
				if err == nil {
					late.Store(int64(time.Now().Add(ttl).Sub(l.Lease.Expires())))
				}
				return err
			}
			l.expires = func() time.Time { return l.Lease.Expires().Add(time.Duration(late.Load())) }
		}),
	},
	{
		check:  "faults/lost-acquire",
		breaks: "what was granted by a lost answer is not given back",
		mutate: leavesUnknown(),
	},
	{
		check:  "faults/lost-acquire",
		breaks: "what was granted by a lost answer is not given back, by a driver that reads before it writes",
		mutate: readsFirst(leavesUnknown()),
	},
	{
		check:  "faults/lost-release",
		breaks: "a release that is repeated deletes the name",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			var lost atomic.Bool
			l.release = func(ctx context.Context) error {
				if lost.Load() {
					d.Server().Expire(l.r.Name)
				}
				err := l.Lease.Release(ctx)
				lost.Store(errors.Is(err, driver.ErrUnknown) && ctx.Err() == nil)
				return err
			}
		}),
	},
}

// isHung reports whether a request ended with ctx and without an answer.
func isHung(ctx context.Context, err error) bool {
	return errors.Is(err, driver.ErrUnknown) && ctx.Err() != nil
}

// leave leaves a hold of the name that nobody knows of.
func leave(d *memory.Driver, r *driver.Request) { _, _ = overwrite(d.Server().NewDriver(), r) }

// leavesHung is a mutation in which a request that had no answer within its context stays granted.
func leavesHung() func(*memory.Driver) driver.Driver {
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		l, err := d.Acquire(ctx, r)
		if isHung(ctx, err) {
			leave(d, r)
		}
		return l, err
	})
}

// leavesUnknown is a mutation in which a request whose answer was lost stays granted.
func leavesUnknown() func(*memory.Driver) driver.Driver {
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		l, err := d.Acquire(ctx, r)
		if errors.Is(err, driver.ErrUnknown) && !isHung(ctx, err) {
			leave(d, r)
		}
		return l, err
	})
}

// readsFirst makes a driver with a mutation ask who holds a name before it asks for the name, so that the answer to that is lost first.
func readsFirst(mutate func(*memory.Driver) driver.Driver) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		inner := mutate(d)
		return &broken{
			Driver: d,
			acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				if _, err := d.Inspect(ctx, r.Name); err != nil {
					return nil, err
				}
				return inner.Acquire(ctx, r)
			},
			close: inner.Close,
		}
	}
}
