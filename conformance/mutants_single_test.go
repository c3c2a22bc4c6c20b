package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// sentAgain reports whether a request that lost its answer would be sent once
// more, since the backend answers.
func sentAgain(ctx context.Context, d *memory.Driver, l *brokenLease, err error) bool {
	if !errors.Is(err, driver.ErrUnknown) || ctx.Err() != nil {
		return false
	}
	_, lost := d.Inspect(ctx, l.r.Name)
	return lost == nil
}

var singleMutants = []mutant{
	{
		check:  "single/lost-acquire",
		breaks: "a request without an answer is sent once more, and finds its own hold",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if !errors.Is(err, driver.ErrUnknown) || ctx.Err() != nil {
				return l, err
			}
			if _, lost := d.Inspect(ctx, r.Name); lost != nil { // the next answer is lost, too
				return nil, err
			}
			return nil, fmt.Errorf("%w: by a request of the same client", driver.ErrLocked)
		}),
	},
	{
		check:  "single/lost-renewal",
		breaks: "a renewal that is sent once more says that the lease is over",
		mutate: renewalNotHeld(sentAgain),
	},
	{
		check:  "single/lost-release",
		breaks: "a release that is sent once more says that the lease was over",
		mutate: releaseNotHeld(sentAgain),
	},
	{
		check:  "single/lost-release",
		breaks: "a release without an answer ends the other holds of the client",
		mutate: func(d *memory.Driver) driver.Driver {
			var mu sync.Mutex
			names := map[string]bool{}
			return breakLeases(func(d *memory.Driver, l *brokenLease) {
				mu.Lock()
				names[l.r.Name] = true
				mu.Unlock()
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					mu.Lock()
					defer mu.Unlock()
					delete(names, l.r.Name)
					if _, lost := d.Inspect(ctx, l.r.Name); errors.Is(err, driver.ErrUnknown) && lost == nil {
						for name := range names {
							d.Server().Expire(name)
						}
					}
					return err
				}
			})(d)
		},
	},
	{
		check:  "single/overtaken-renewal",
		breaks: "a renewal that arrives after a newer one ends the hold early",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			var held atomic.Int64 // the TTL of a renewal that is under way
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				err := l.Lease.Renew(ctx, ttl)
				if isHung(ctx, err) && held.Load() == 0 {
					held.Store(int64(ttl))
				}
				if late := time.Duration(held.Load()); err == nil && late > 0 && late < ttl && held.Swap(0) > 0 {
					end := l.Lease.Expires()
					l.expires = func() time.Time { return end }
					time.AfterFunc(time.Millisecond, func() { _ = l.Lease.Renew(context.Background(), late) })
				}
				return err
			}
		}),
	},
	{
		check:  "single/vanished-release",
		breaks: "a release without an answer is not repeated, since it may still arrive",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			l.release = func(ctx context.Context) error {
				_, err := d.Inspect(ctx, l.r.Name) // stands for the request of the release
				if !isHung(ctx, err) {
					return l.Lease.Release(ctx)
				}
				go func() { // ends within a minute
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					if _, err := d.Inspect(ctx, l.r.Name); err == nil {
						_ = l.Lease.Release(ctx)
					}
				}()
				return err
			}
		}),
	},
}
