package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var exclusionMutants = []mutant{
	{
		check:  "exclusion/free",
		breaks: "a release does nothing",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.release = func(context.Context) error { return nil }
		}),
	},
	{
		check:  "exclusion/clients",
		breaks: "an attempt takes the name from its holder",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if r.NoWait {
				d.Server().Expire(r.Name)
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "exclusion/clients",
		breaks: "a request that must not wait waits",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			q := *r
			q.NoWait = false
			return d.Acquire(ctx, &q)
		}),
	},
	{
		check:  "exclusion/requests",
		breaks: "all requests of a client count as one owner",
		mutate: reentrantBy(func(r *driver.Request) string {
			client, _, _ := strings.Cut(r.Hold, ":")
			return client
		}),
	},
	{
		check:  "exclusion/requests",
		breaks: "a refusal comes with a lease",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if r.NoWait && errors.Is(err, driver.ErrLocked) {
				return newForged(r), err
			}
			return l, err
		}),
	},
	{
		check:  "exclusion/equal-owners",
		breaks: "requests with one Owner re-enter",
		mutate: reentrantBy(func(r *driver.Request) string { return r.Owner }),
	},
	{
		check:  "exclusion/race",
		breaks: "the driver checks whether the name is free in a separate request",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			s, err := d.Inspect(ctx, r.Name)
			if err != nil || s.Held {
				return d.Acquire(ctx, r)
			}
			time.Sleep(time.Millisecond)
			return overwrite(d, r)
		}),
	},
	{
		check:  "exclusion/concurrent-requests",
		breaks: "requests of one client for one name are combined",
		mutate: func(d *memory.Driver) driver.Driver {
			var f flights
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				return f.join(r, func() (driver.Lease, error) {
					time.Sleep(time.Millisecond)
					return d.Acquire(ctx, r)
				})
			}}
		},
	},
}

// forged is a lease without a hold. Another client holds the name, or the name
// is free.
type forged struct{ until time.Time }

func newForged(r *driver.Request) *forged { return &forged{time.Now().Add(r.TTL)} }

func (l *forged) Tokens() (uint64, int)                      { return 0, 0 }
func (l *forged) Expires() time.Time                         { return l.until }
func (l *forged) Renew(context.Context, time.Duration) error { return nil }
func (l *forged) Release(context.Context) error              { return nil }

// overwrite takes name from its holder. The old holder still believes that it
// holds the name.
func overwrite(d *memory.Driver, r *driver.Request) (driver.Lease, error) {
	d.Server().Expire(r.Name)
	try := *r
	try.NoWait = true
	return d.Acquire(context.Background(), &try)
}

// reentrantBy returns a mutation that grants a held name to another request
// with the same identity.
func reentrantBy(identity func(*driver.Request) string) func(*memory.Driver) driver.Driver {
	var holders sync.Map // by name
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		l, err := d.Acquire(ctx, r)
		holder, _ := holders.Load(r.Name)
		if err == nil {
			holders.Store(r.Name, identity(r))
		} else if holder == identity(r) && errors.Is(err, driver.ErrLocked) {
			return newForged(r), nil
		}
		return l, err
	})
}

// flights merges concurrent requests for a name into one.
type flights struct {
	mu   sync.Mutex
	asks map[string]*flight
}

type flight struct {
	done chan struct{}
	err  error
}

func (f *flights) join(r *driver.Request, ask func() (driver.Lease, error)) (l driver.Lease, err error) {
	f.mu.Lock()
	if f.asks == nil {
		f.asks = map[string]*flight{}
	}
	if other := f.asks[r.Name]; other != nil {
		f.mu.Unlock()
		<-other.done
		if other.err != nil {
			return nil, other.err
		}
		return newForged(r), nil
	}
	mine := &flight{done: make(chan struct{})}
	f.asks[r.Name] = mine
	f.mu.Unlock()
	l, mine.err = ask()
	f.mu.Lock()
	delete(f.asks, r.Name)
	f.mu.Unlock()
	close(mine.done)
	return l, mine.err
}

var contentionMutants = []mutant{
	{
		check:  "contention/clients",
		breaks: "a waiter that was woken and refused acquires the name later",
		mutate: wakeByRelease(&sync.Map{}, func(d *memory.Driver, r *driver.Request) (driver.Lease, error) {
			try := *r
			try.NoWait = true
			for range 3 {
				time.Sleep(time.Millisecond)
				if l, err := d.Acquire(context.Background(), &try); err == nil {
					return l, nil
				}
			}
			return overwrite(d, r)
		}),
	},
	{
		check:  "contention/owners",
		breaks: "requests of one client that wait for one name are combined",
		mutate: func(d *memory.Driver) driver.Driver {
			var f flights
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				if r.NoWait {
					return d.Acquire(ctx, r)
				}
				return f.join(r, func() (driver.Lease, error) { return d.Acquire(ctx, r) })
			}}
		},
	},
}

var ownershipMutants = []mutant{
	{
		check:  "ownership/release-twice",
		breaks: "every release reports that it ended the hold",
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
		breaks: "the release of an expired lease deletes the name",
		mutate: breakRelease(func(d *memory.Driver, l *brokenLease, times int, err error) error {
			if times == 1 && errors.Is(err, driver.ErrNotHeld) {
				d.Server().Expire(l.r.Name)
			}
			return err
		}),
	},
	{
		check:  "ownership/stale-release",
		breaks: "the release of an expired lease frees the client's new hold",
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
		breaks: "the release of an expired lease returns nil unless another client holds the name",
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
		breaks: "the renewal of an expired lease deletes the name",
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
		breaks: "the renewal of an expired lease renews the client's new hold",
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
		breaks: "the refused renewal of an expired lease moves the end of the client's new hold",
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
		breaks: "a renewal acquires a released name again",
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
		breaks: "a release whose context has ended does nothing",
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
		breaks: "the holder is not notified, and its renewals seem to succeed",
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
		breaks: "only a release wakes waiters",
		mutate: wakeByRelease(&sync.Map{}, nil),
	},
}

// breakRelease returns a mutation that changes what happens after each release
// and counts the releases of each lease.
func breakRelease(f func(d *memory.Driver, l *brokenLease, times int, err error) error) func(*memory.Driver) driver.Driver {
	return breakLeases(func(d *memory.Driver, l *brokenLease) {
		var times atomic.Int32
		l.release = func(ctx context.Context) error {
			n := times.Add(1)
			return f(d, l, int(n), l.Lease.Release(ctx))
		}
	})
}

// newestOfClient returns a mutation of leases that know the last lease of their
// name that was granted to their client.
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

// quietEvents never report a loss.
type quietEvents struct{ driver.Events }

func (quietEvents) Lost(error) {}

// pretendRenewals makes renewals seem to succeed until the lease has expired or
// is released.
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

// alarmClock wakes all waiters at one server.
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

// wakeByRelease returns a mutation whose waiters try again only when a name is
// released, in no order. If inVain is not nil, it is called when a waiter was
// woken and refused. If inVain is nil, the waiter continues to wait.
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

// The owners of package dsync implement reentrancy, on any driver. So these
// mutants are owners.
var reentrancyMutants = []mutant{
	{
		check:  "reentrancy/nested",
		breaks: "a nested lock is the same lease",
		owner: breakNested(func(outer lease, nested func() (lease, error), _ bool) (lease, error) {
			return outer, nil
		}),
	},
	{
		check:  "reentrancy/other-owner",
		breaks: "all owners of a client count as one owner",
		owner: func() func(*client, locker) locker {
			var first sync.Map
			return func(c *client, l locker) locker {
				one, _ := first.LoadOrStore(c, l)
				return one.(locker)
			}
		}(),
	},
	{
		check:  "reentrancy/shorter",
		breaks: "the end of a nested lease also ends the outer one",
		owner: breakNested(func(outer lease, nested func() (lease, error), ends bool) (lease, error) {
			inner, err := nested()
			if err != nil || !ends {
				return inner, err
			}
			fatal := &fatalLease{lease: inner, done: make(chan struct{})}
			go func() { // ends with the lease or the client
				defer close(fatal.done)
				<-inner.Done()
				_ = outer.Unlock(context.Background())
			}()
			return fatal, nil
		}),
	},
	{
		check:  "reentrancy/renewal",
		breaks: "unlocking a nested lease stops the renewal",
		owner: breakNested(func(outer lease, nested func() (lease, error), _ bool) (lease, error) {
			inner, err := nested()
			return lastRenewal{inner, outer}, err
		}),
	},
	{
		check:  "reentrancy/loss",
		breaks: "a nested lease is not notified of the loss",
		owner: breakNested(func(_ lease, nested func() (lease, error), ends bool) (lease, error) {
			inner, err := nested()
			if err == nil && !ends {
				return deaf{inner}, nil
			}
			return inner, err
		}),
	},
}

// breakNested returns a mutation of owners that replaces a nested lock. ends
// reports that the nested lock uses ExpireAfter.
func breakNested(f func(outer lease, nested func() (lease, error), ends bool) (lease, error)) func(*client, locker) locker {
	return func(_ *client, l locker) locker { return &brokenOwner{locker: l, nested: f} }
}

type brokenOwner struct {
	locker
	nested func(outer lease, nested func() (lease, error), ends bool) (lease, error)

	mu   sync.Mutex
	held map[string]lease
}

func (o *brokenOwner) lock(ctx context.Context, try bool, name string, opts ...dsync.LockOption) (lease, error) {
	o.mu.Lock()
	outer := o.held[name]
	o.mu.Unlock()
	if outer != nil && outer.Err() == nil {
		return o.nested(outer, func() (lease, error) { return o.locker.lock(ctx, try, name, opts...) }, len(opts) > 0)
	}
	l, err := o.locker.lock(ctx, try, name, opts...)
	if err == nil {
		o.mu.Lock()
		o.held = map[string]lease{name: l}
		o.mu.Unlock()
	}
	return l, err
}

// fatalLease is a nested lease whose Done is closed only after it has ended the
// outer lease.
type fatalLease struct {
	lease
	done chan struct{}
}

func (l *fatalLease) Done() <-chan struct{} { return l.done }

// lastRenewal is a nested lease whose Unlock ends the outer lease after a
// second.
type lastRenewal struct {
	lease
	outer lease
}

func (l lastRenewal) Unlock(ctx context.Context) error {
	time.AfterFunc(time.Second, func() { _ = l.outer.Unlock(ctx) })
	return l.lease.Unlock(ctx)
}

// deaf is a lease that never reports its end.
type deaf struct{ lease }

func (deaf) Err() error            { return nil }
func (deaf) Done() <-chan struct{} { return nil }
