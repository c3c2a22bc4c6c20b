package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var leaseMutants = []mutant{
	{
		check:  "lease/expires",
		breaks: "a margin is taken off Expires",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.expires = func() time.Time { return l.Lease.Expires().Add(-time.Millisecond) }
		}),
	},
	{
		check:  "lease/expires",
		breaks: "Expires is later than the TTL",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.expires = func() time.Time { return l.Lease.Expires().Add(time.Millisecond) }
		}),
	},
	{
		check:  "lease/expires",
		breaks: "Expires is a time of the wall clock",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.expires = func() time.Time { return l.Lease.Expires().Round(0) }
		}),
		clock: true,
	},
	{
		check:  "lease/after-wait",
		breaks: "after a wait Expires counts from the request that waited",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				sent := time.Now()
				l, err := d.Acquire(ctx, r)
				if l == nil || time.Now().Equal(sent) {
					return l, err
				}
				return &brokenLease{Lease: l, r: r, expires: func() time.Time { return sent.Add(r.TTL) }}, nil
			}}
		},
	},
	{
		check:  "lease/after-wait",
		breaks: "a place in the queue ends with its TTL",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			queued, cancel := context.WithTimeout(ctx, r.TTL)
			defer cancel()
			l, err := d.Acquire(queued, r)
			if err != nil && queued.Err() != nil {
				<-ctx.Done()
				return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
			}
			return l, err
		}),
	},
	{
		check:  "lease/renew",
		breaks: "Renew does not move Expires",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			at := l.Lease.Expires()
			l.expires = func() time.Time { return at }
		}),
	},
	{
		check:  "lease/renew",
		breaks: "Expires never falls",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			var latest atomic.Int64
			l.expires = func() time.Time {
				latest.Store(max(latest.Load(), l.Lease.Expires().UnixNano()))
				return time.Unix(0, latest.Load())
			}
		}),
	},
	{
		check:  "lease/over",
		breaks: "a renewal takes a name again that has run out",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			again := &retaken{d: d, brokenLease: l}
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				err := l.Lease.Renew(ctx, ttl)
				if errors.Is(err, driver.ErrNotHeld) && !again.released.Load() {
					return again.take(ttl)
				}
				return err
			}
			l.release = func(ctx context.Context) error {
				again.released.Store(true)
				return l.Lease.Release(ctx)
			}
			l.expires = again.until
		}),
	},
	{
		check:  "lease/late-renewal",
		breaks: "a renewal that was sent in time takes the name again when the lease has run out meanwhile",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			again := &retaken{d: d, brokenLease: l}
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				inTime := time.Now().Before(l.Lease.Expires())
				err := l.Lease.Renew(ctx, ttl)
				if inTime && errors.Is(err, driver.ErrNotHeld) && !time.Now().Before(l.Lease.Expires()) {
					return again.take(ttl)
				}
				return err
			}
			l.expires = again.until
		}),
	},
	{
		check:  "lease/renew-all",
		breaks: "RenewAll says the outcome of the first lease for all",
		mutate: func(d *memory.Driver) driver.Driver {
			return breakRenewAll(d, func(ctx context.Context, leases []driver.Lease, done func(int, error)) {
				var first error
				d.RenewAll(ctx, leases, func(i int, err error) {
					if i == 0 {
						first = err
					}
					done(i, first)
				})
			})
		},
	},
	{
		check:  "lease/renew-all",
		breaks: "RenewAll is not done when it returns",
		mutate: func(d *memory.Driver) driver.Driver {
			return breakRenewAll(d, func(_ context.Context, leases []driver.Lease, done func(int, error)) {
				go func() { // ends in a millisecond
					time.Sleep(time.Millisecond)
					d.RenewAll(context.Background(), leases, done)
				}()
			})
		},
	},
	{
		check:  "lease/renew-all",
		breaks: "RenewAll tells outcomes twice",
		mutate: func(d *memory.Driver) driver.Driver {
			return breakRenewAll(d, func(ctx context.Context, leases []driver.Lease, done func(int, error)) {
				d.RenewAll(ctx, leases, done)
				d.RenewAll(ctx, leases, done)
			})
		},
	},
}

func breakRenewAll(d *memory.Driver, f func(context.Context, []driver.Lease, func(int, error))) driver.Driver {
	return &broken{Driver: d, renewAll: f}
}

// retaken is a lease whose name is taken again.
type retaken struct {
	d *memory.Driver
	*brokenLease
	released atomic.Bool
	second   atomic.Pointer[driver.Lease]
}

// take takes the name, if it is free.
func (l *retaken) take(ttl time.Duration) error {
	again := *l.r
	again.NoWait, again.TTL = true, ttl
	second, err := l.d.Acquire(context.Background(), &again)
	if err != nil {
		return driver.ErrNotHeld
	}
	l.second.Store(&second)
	return nil
}

func (l *retaken) until() time.Time {
	if second := l.second.Load(); second != nil {
		return (*second).Expires()
	}
	return l.Lease.Expires()
}
