package conformance

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var stormMutants = []mutant{
	{
		check:  "storm/calm",
		breaks: "who extends a lease for the second time gets microseconds for seconds",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			var extensions ticker
			var more atomic.Int64
			l.expires = func() time.Time { return l.Lease.Expires().Add(time.Duration(more.Load())) }
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				if !l.r.Fixed || l.r.Mode != driver.Exclusive || extensions.next() < 2 {
					return l.Lease.Renew(ctx, ttl)
				}
				err := l.Lease.Renew(ctx, ttl/100_000)
				if err == nil {
					more.Store(int64(ttl - ttl/100_000))
				}
				return err
			}
		}),
	},
	{
		check:  "storm/faults",
		breaks: "a release whose answer was lost is repeated for the name again and again, whoever holds it",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			l.release = func(ctx context.Context) error {
				err := l.Lease.Release(ctx)
				if errors.Is(err, driver.ErrUnknown) {
					for i := range 150 {
						time.AfterFunc(time.Duration(i+1)*15*time.Millisecond, func() { d.Server().Expire(l.r.Name) })
					}
				}
				return err
			}
		}),
	},
	{
		check:  "storm/server",
		breaks: "a server that was started again is not known any more",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if _, ok := restarted.Load(d.Server()); ok {
				return nil, errors.New("no matching script")
			}
			return d.Acquire(ctx, r)
		}),
	},
}
