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

var ownershipMutants = []mutant{
	{
		check:  "ownership/release-twice",
		breaks: "every release says that it ended the hold",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.release = func(ctx context.Context) error {
				_ = l.Lease.Release(ctx)
				return nil
			}
		}),
	},
	{
		check:  "ownership/release-twice",
		breaks: "a second release deletes the name",
		mutate: breakRelease(func(d *memory.Driver, l *brokenLease, times int, err error) error {
			if times > 1 {
				d.Server().Expire(l.r.Name)
			}
			return err
		}),
	},
	{
		check:  "ownership/stale-release",
		breaks: "the release of a lease that ran out deletes the name",
		mutate: breakRelease(func(d *memory.Driver, l *brokenLease, times int, err error) error {
			if times == 1 && errors.Is(err, driver.ErrNotHeld) {
				d.Server().Expire(l.r.Name)
			}
			return err
		}),
	},
	{
		check:  "ownership/stale-release",
		breaks: "the release of a lease that ran out frees what the same client holds by now",
		mutate: newestOfClient(func(l *brokenLease, newest func() *brokenLease) {
			l.release = func(ctx context.Context) error {
				err := l.Lease.Release(ctx)
				if next := newest(); errors.Is(err, driver.ErrNotHeld) && next != l && !time.Now().Before(l.Lease.Expires()) {
					return next.Lease.Release(ctx)
				}
				return err
			}
		}),
	},
	{
		check:  "ownership/late-release",
		breaks: "the release of a lease that ran out returns nil unless somebody else has the name",
		mutate: breakRelease(func(d *memory.Driver, l *brokenLease, times int, err error) error {
			s, _ := d.Inspect(context.Background(), l.r.Name)
			if times == 1 && errors.Is(err, driver.ErrNotHeld) && !time.Now().Before(l.Lease.Expires()) && !s.Held {
				return nil
			}
			return err
		}),
	},
	{
		check:  "ownership/stale-renew",
		breaks: "the renewal of a lease that ran out deletes the name",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				err := l.Lease.Renew(ctx, ttl)
				if errors.Is(err, driver.ErrNotHeld) {
					d.Server().Expire(l.r.Name)
				}
				return err
			}
		}),
	},
	{
		check:  "ownership/stale-renew",
		breaks: "the renewal of a lease that ran out renews what the same client holds by now",
		mutate: newestOfClient(func(l *brokenLease, newest func() *brokenLease) {
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				err := l.Lease.Renew(ctx, ttl)
				if next := newest(); errors.Is(err, driver.ErrNotHeld) && next != l && !time.Now().Before(l.Lease.Expires()) {
					return next.Lease.Renew(ctx, ttl)
				}
				return err
			}
		}),
	},
	{
		check:  "ownership/stale-renew",
		breaks: "the renewal of a lease that ran out, which is refused, moves the end of what the same client holds by now",
		mutate: newestOfClient(func(l *brokenLease, newest func() *brokenLease) {
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				err := l.Lease.Renew(ctx, ttl)
				if next := newest(); errors.Is(err, driver.ErrNotHeld) && next != l && !time.Now().Before(l.Lease.Expires()) {
					_ = next.Lease.Renew(ctx, ttl)
				}
				return err
			}
		}),
	},
	{
		check:  "ownership/dead-after-release",
		breaks: "a renewal takes a name again that was released",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			again := &retaken{d: d, brokenLease: l}
			l.release = func(ctx context.Context) error {
				again.released.Store(true)
				return l.Lease.Release(ctx)
			}
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				if again.released.Load() {
					return again.take(ttl)
				}
				return l.Lease.Renew(ctx, ttl)
			}
		}),
	},
	{
		check:  "ownership/done-context",
		breaks: "a release whose context is over does nothing",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.release = func(ctx context.Context) error {
				if err := ctx.Err(); err != nil {
					return err
				}
				return l.Lease.Release(ctx)
			}
		}),
	},
	{
		check:  "ownership/force-unlock",
		breaks: "ForceUnlock of a free name succeeds",
		mutate: breakForceUnlock(func(_ context.Context, _ string, err error) error {
			if errors.Is(err, driver.ErrNotHeld) {
				return nil
			}
			return err
		}),
	},
	{
		check:  "ownership/force-unlock",
		breaks: "ForceUnlock does nothing",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, forceUnlock: func(ctx context.Context, name string) error {
				if s, err := d.Inspect(ctx, name); err != nil || s.Held {
					return err
				}
				return driver.ErrNotHeld
			}}
		},
	},
	{
		check:  "ownership/force-unlock-tells",
		breaks: "the holder is not told, and its renewals seem to succeed",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				q := *r
				q.Events = quietEvents{r.Events}
				return d.Acquire(ctx, &q)
			}, lease: pretendRenewals}
		},
	},
	{
		check:  "ownership/force-unlock-wakes",
		breaks: "only a release wakes those who wait",
		mutate: wakeByRelease(&sync.Map{}, nil),
	},
}

// breakRelease returns a mutation that changes what happens after each release, and counts those of each lease.
func breakRelease(f func(d *memory.Driver, l *brokenLease, times int, err error) error) func(*memory.Driver) driver.Driver {
	return breakLeases(func(d *memory.Driver, l *brokenLease) {
		var times atomic.Int32
		l.release = func(ctx context.Context) error {
			n := times.Add(1)
			return f(d, l, int(n), l.Lease.Release(ctx))
		}
	})
}

// newestOfClient returns a mutation of leases that know the last lease of their name that their client was granted.
func newestOfClient(f func(l *brokenLease, newest func() *brokenLease)) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		var last sync.Map // by name
		return &broken{Driver: d, lease: func(l *brokenLease) {
			last.Store(l.r.Name, l)
			f(l, func() *brokenLease {
				newest, _ := last.Load(l.r.Name)
				return newest.(*brokenLease)
			})
		}}
	}
}

func breakForceUnlock(f func(ctx context.Context, name string, err error) error) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, forceUnlock: func(ctx context.Context, name string) error {
			return f(ctx, name, d.ForceUnlock(ctx, name))
		}}
	}
}

// quietEvents never tell of a loss.
type quietEvents struct{ driver.Events }

func (quietEvents) Lost(error) {}

// pretendRenewals makes renewals seem to succeed until the lease has run out or is released.
func pretendRenewals(l *brokenLease) {
	var until atomic.Int64
	var released atomic.Bool
	l.release = func(ctx context.Context) error {
		released.Store(true)
		return l.Lease.Release(ctx)
	}
	l.renew = func(ctx context.Context, ttl time.Duration) error {
		now, expires := time.Now(), l.Expires()
		err := l.Lease.Renew(ctx, ttl)
		if errors.Is(err, driver.ErrNotHeld) && time.Now().Before(expires) && !released.Load() {
			until.Store(now.Add(ttl).UnixNano())
			return nil
		}
		return err
	}
	l.expires = func() time.Time {
		if t := until.Load(); t != 0 {
			return time.Unix(0, t)
		}
		return l.Lease.Expires()
	}
}

// alarmClock wakes all who wait at one server.
type alarmClock struct {
	mu   sync.Mutex
	ring chan struct{}
}

func (c *alarmClock) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring == nil {
		c.ring = make(chan struct{})
	}
	return c.ring
}

func (c *alarmClock) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring != nil {
		close(c.ring)
		c.ring = nil
	}
}

// wakeByRelease returns a mutation in which those who wait ask again when a name is released, in no order, and only then. inVain, if
// it is given, is called instead of waiting on when a waiter was woken and refused.
func wakeByRelease(clocks *sync.Map, inVain func(d *memory.Driver, r *driver.Request) (driver.Lease, error)) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		c, _ := clocks.LoadOrStore(d.Server(), &alarmClock{})
		clock := c.(*alarmClock)
		b := &broken{Driver: d}
		b.info = func(i driver.Info) driver.Info {
			i.Order = driver.Unordered
			return i
		}
		b.inspect = func(ctx context.Context, name string) (driver.Status, error) {
			s, err := d.Inspect(ctx, name)
			s.Waiters, s.Queue = -1, nil
			return s, err
		}
		b.lease = func(l *brokenLease) {
			l.release = func(ctx context.Context) error {
				defer clock.wake()
				return l.Lease.Release(ctx)
			}
		}
		if inVain != nil {
			b.forceUnlock = func(ctx context.Context, name string) error {
				defer clock.wake()
				return d.ForceUnlock(ctx, name)
			}
		}
		b.acquire = func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
			try := *r
			try.NoWait = true
			for times := 0; ; times++ {
				ring := clock.next()
				l, err := d.Acquire(ctx, &try)
				switch {
				case r.NoWait || !errors.Is(err, driver.ErrLocked):
					return l, err
				case times == 0:
					r.Events.Waiting()
				case inVain != nil:
					return inVain(d, r)
				}
				select {
				case <-ring:
				case <-ctx.Done():
					return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
				}
			}
		}
		return b
	}
}
