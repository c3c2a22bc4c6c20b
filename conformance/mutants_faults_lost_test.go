package conformance

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var lostMutants = []mutant{
	{
		check:  "faults/one-release",
		breaks: "a release that gets no answer for the second time ends another hold of the client",
		mutate: func(d *memory.Driver) driver.Driver {
			var all fellowsOfClient
			return &broken{Driver: d, lease: func(l *brokenLease) {
				all.add(l)
				var unanswered atomic.Int64
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					if errors.Is(err, driver.ErrUnknown) || ctx.Err() != nil {
						if unanswered.Add(1) > 1 {
							all.endOther(d, l)
						}
					}
					return err
				}
			}}
		},
	},
	{
		check:  "faults/lost-grant",
		breaks: "who asks again after a lost answer takes its own hold for a new one, and counts from there",
		mutate: takesOwnForNew(),
	},
	{
		check:  "faults/lost-grant",
		breaks: "who asks again after a lost answer takes its own hold for a new one, as a driver that reads before it writes",
		mutate: readsFirst(takesOwnForNew()),
	},
	{
		check:  "faults/lost-renewal",
		breaks: "a renewal for less whose answer is lost does not move Expires",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			var believed belief
			l.expires = func() time.Time { return believed.or(l.Lease.Expires()) }
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				before := l.expires()
				err := l.Lease.Renew(ctx, ttl)
				if errors.Is(err, driver.ErrUnknown) {
					believed.set(before)
				} else if err == nil {
					believed.set(time.Time{})
				}
				return err
			}
		}),
	},
	{
		check:  "faults/lost-renewal",
		breaks: "a renewal for less moves Expires when its answer arrives",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			var believed belief
			l.expires = func() time.Time { return believed.or(l.Lease.Expires()) }
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				if !l.r.Fixed {
					return l.Lease.Renew(ctx, ttl)
				}
				believed.set(l.expires())
				timer := time.AfterFunc(ttl, func() { expireHold(d, l.r) }) // the backend has got the request
				err := l.Lease.Renew(ctx, ttl)
				if err == nil {
					timer.Stop()
				}
				if !errors.Is(err, driver.ErrUnknown) {
					believed.set(time.Time{})
				}
				return err
			}
		}),
	},
	{
		check:  "faults/clean-up",
		breaks: "a clean-up that fails is given up",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if errors.Is(err, driver.ErrUnknown) && !isHung(ctx, err) {
				leave(d, r)
				time.AfterFunc(patience, func() {
					if reaches(d) {
						d.Server().Expire(r.Name)
					}
				})
			}
			return l, err
		}),
	},
	{
		check:  "faults/many",
		breaks: "each clean-up is a goroutine",
		mutate: cleansUpInGoroutines(),
	},
	{
		check:  "faults/many",
		breaks: "each clean-up is a goroutine, of a driver that reads before it writes",
		mutate: readsFirst(cleansUpInGoroutines()),
	},
}

// reaches reports whether d gets answers of the backend, or is closed.
func reaches(d *memory.Driver) bool {
	_, err := d.Inspect(context.Background(), "x")
	return err == nil || errors.Is(err, driver.ErrClosed)
}

// belief is when a lease seems to end, if it is not the zero time.
type belief struct {
	mu  sync.Mutex
	end time.Time
}

func (b *belief) set(end time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end = end
}

func (b *belief) or(end time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.end.IsZero() {
		return end
	}
	return b.end
}

// takesOwnForNew is a mutation in which a request whose answer was lost is made again, and its own hold counts as one that has just been granted.
func takesOwnForNew() func(*memory.Driver) driver.Driver {
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		l, err := d.Acquire(ctx, r)
		if _, bounded := ctx.Deadline(); bounded || !r.Fixed || !errors.Is(err, driver.ErrUnknown) {
			return l, err
		}
		own, err := overwrite(d.Server().NewDriver(), r)
		if err != nil {
			return nil, err
		}
		for !reaches(d) {
			time.Sleep(time.Millisecond)
		}
		end := time.Now().Add(r.TTL)
		return &brokenLease{Lease: own, r: r, expires: func() time.Time { return end }}, nil
	})
}

// cleansUpInGoroutines is a mutation with a goroutine for each request whose answer was lost.
func cleansUpInGoroutines() func(*memory.Driver) driver.Driver {
	return breakClosed(func(d *closable, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		l, err := d.Acquire(ctx, r)
		if errors.Is(err, driver.ErrUnknown) {
			go func() { // ends when the backend is in reach, or with Close
				for !d.isClosed() && !reaches(d.Driver) {
					select {
					case <-time.After(time.Second):
					case <-d.closed:
					}
				}
			}()
		}
		return l, err
	}, nil)
}

// fellowsOfClient are the leases of one client.
type fellowsOfClient struct{ fellows }

// endOther ends a hold of the client beside that of l.
func (a *fellowsOfClient) endOther(d *memory.Driver, l *brokenLease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, other := range a.all {
		if other != l {
			expireHold(d, other.r)
		}
	}
}
