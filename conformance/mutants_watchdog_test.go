package conformance

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var watchdogMutants = []mutant{
	{
		check:  "watchdog/keeps",
		breaks: "a lease is renewed eight times, then renewals only seem to succeed",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			var renewals ticker
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				if renewals.next() > 8 {
					return nil
				}
				return l.Lease.Renew(ctx, ttl)
			}
		}),
	},
	{
		check:  "watchdog/many",
		breaks: "a client renews its first fifty leases, but renewals of the others only seem to succeed",
		mutate: func(d *memory.Driver) driver.Driver {
			var leases ticker
			return &broken{Driver: d, lease: func(l *brokenLease) {
				if leases.next() > 50 {
					l.renew = func(context.Context, time.Duration) error { return nil }
				}
			}}
		},
	},
	{
		check:  "watchdog/transient",
		breaks: "a lease that cannot be renewed because of a fault is reported as ended",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				err := l.Lease.Renew(ctx, ttl)
				if errors.Is(err, driver.ErrUnavailable) {
					return driver.ErrNotHeld
				}
				return err
			}
		}),
	},
	{
		check:  "watchdog/unreachable",
		breaks: "a renewal that failed moves Expires",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			var mu sync.Mutex
			var end time.Time
			l.expires = func() time.Time {
				mu.Lock()
				defer mu.Unlock()
				if now := l.Lease.Expires(); now.After(end) {
					return now
				}
				return end
			}
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				sent := time.Now()
				err := l.Lease.Renew(ctx, ttl)
				if err != nil && !errors.Is(err, driver.ErrNotHeld) {
					mu.Lock()
					defer mu.Unlock()
					end = sent.Add(ttl)
				}
				return err
			}
		}),
	},
	{
		check:  "watchdog/ends",
		breaks: "a renewal that arrives after the release acquires the name again",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			l.release = func(ctx context.Context) error {
				err := l.Lease.Release(ctx)
				if !l.r.Fixed && err == nil {
					time.AfterFunc(l.r.TTL/3, func() { _ = takeFree(d, l.r) })
				}
				return err
			}
		}),
	},
	{
		check:  "watchdog/removed",
		breaks: "a renewal recreates the hold if the name is free",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			released := false
			l.release = func(ctx context.Context) error {
				released = true
				return l.Lease.Release(ctx)
			}
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				err := l.Lease.Renew(ctx, ttl)
				if errors.Is(err, driver.ErrNotHeld) && !released && time.Now().Before(l.Lease.Expires()) {
					if again := takeFree(d, l.r); again != nil {
						l.Lease = again
						return nil
					}
				}
				return err
			}
		}),
	},
}

// takeFree acquires the name of r again if it is free.
func takeFree(d *memory.Driver, r *driver.Request) driver.Lease {
	try := *r
	try.NoWait = true
	l, err := d.Acquire(context.Background(), &try)
	if err != nil {
		return nil
	}
	return l
}

var lossMutants = []mutant{
	{
		check:  "loss/unlock",
		breaks: "a release is reported as a loss",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.release = func(ctx context.Context) error {
				err := l.Lease.Release(ctx)
				l.r.Events.Lost(driver.ErrRemoved)
				return err
			}
		}),
	},
	{
		check:  "loss/told",
		breaks: "a loss is not reported before the next renewal",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			q := *r
			q.Events = untold{r.Events}
			return d.Acquire(ctx, &q)
		}),
	},
	{
		check:  "loss/told",
		breaks: "a removed hold is reported as ended with its session",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			q := *r
			q.Events = sessionEvents{r.Events}
			return d.Acquire(ctx, &q)
		}),
	},
	{
		check:  "loss/told",
		breaks: "a hold with waiters is removed a second later",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, forceUnlock: func(ctx context.Context, name string) error {
				if s, err := d.Inspect(ctx, name); err != nil || s.Waiters == 0 {
					return d.ForceUnlock(ctx, name)
				}
				time.AfterFunc(time.Second, func() { _ = d.Server().NewDriver().ForceUnlock(context.Background(), name) })
				return nil
			}}
		},
	},
	{
		check:  "loss/fixed",
		breaks: "the removal of a fixed lease's hold is not reported",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			q := *r
			if q.Fixed {
				q.Events = untold{r.Events}
			}
			return d.Acquire(ctx, &q)
		}),
	},
	{
		check:  "loss/fixed",
		breaks: "a query whether a fixed lease is held renews the lease",
		mutate: func(d *memory.Driver) driver.Driver {
			b := breakLeases(func(_ *memory.Driver, l *brokenLease) {
				l.renew = func(ctx context.Context, ttl time.Duration) error {
					return l.Lease.Renew(ctx, cmp.Or(ttl, l.r.TTL))
				}
			})(d).(*broken)
			b.info = func(i driver.Info) driver.Info {
				i.Detect = 0
				return i
			}
			return b
		},
	},
	{
		check:  "loss/once",
		breaks: "the release of an ended hold reports the loss again",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			var releases ticker
			l.release = func(ctx context.Context) error {
				err := l.Lease.Release(ctx)
				if releases.next() == 1 && errors.Is(err, driver.ErrNotHeld) {
					l.r.Events.Lost(driver.ErrRemoved)
				}
				return err
			}
		}),
	},
	{
		check:  "loss/unlocked",
		breaks: "a loss is reported while the mutex that Expires locks is held",
		mutate: eventsLocked(func(v driver.Events, mu *sync.Mutex) driver.Events { return lockedLoss{v, mu} }),
		clock:  true,
	},
	{
		check:  "loss/unlocked",
		breaks: "a wait is reported while the mutex that Expires locks is held",
		mutate: eventsLocked(func(v driver.Events, mu *sync.Mutex) driver.Events { return lockedWait{v, mu} }),
		clock:  true,
	},
	{
		check:  "loss/unlocked",
		breaks: "tokens are requested while the mutex that Expires locks is held",
		mutate: eventsLocked(func(v driver.Events, mu *sync.Mutex) driver.Events { return lockedTokens{v, mu} }),
		clock:  true,
	},
	{
		check:  "loss/context",
		breaks: "the contexts of a lease outlive it",
		owner:  func(_ *client, l locker) locker { return contextless{l} },
	},
	{check: "loss/again", breaks: "a client stops locking when five of its leases have expired", mutate: brokenByLosses()},
}

// sessionEvents reports every loss as the loss of a session.
type sessionEvents struct{ driver.Events }

func (v sessionEvents) Lost(error) { v.Events.Lost(driver.ErrSessionEnded) }

// untold does not report losses.
type untold struct{ driver.Events }

func (untold) Lost(error) {}

// contextless makes leases whose contexts do not end when the leases end.
type contextless struct{ locker }

func (c contextless) lock(ctx context.Context, try bool, name string, opts ...dsync.LockOption) (lease, error) {
	l, err := c.locker.lock(ctx, try, name, opts...)
	if err != nil {
		return nil, err
	}
	return endless{l}, nil
}

type endless struct{ lease }

func (endless) Context(parent context.Context) (context.Context, context.CancelFunc) {
	return context.WithCancel(parent)
}

// brokenByLosses is a mutation that must be created again after it has lost
// leases.
func brokenByLosses() func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		var mu sync.Mutex
		live := map[driver.Lease]bool{}
		return &broken{
			Driver: d,
			acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				mu.Lock()
				lost := 0
				for l := range live {
					if !time.Now().Before(l.Expires()) {
						lost++
					}
				}
				mu.Unlock()
				if lost >= 5 {
					return nil, driver.ErrUnavailable
				}
				return d.Acquire(ctx, r)
			},
			lease: func(l *brokenLease) {
				mu.Lock()
				live[l.Lease] = true
				mu.Unlock()
				l.release = func(ctx context.Context) error {
					mu.Lock()
					if time.Now().Before(l.Lease.Expires()) {
						delete(live, l.Lease)
					}
					mu.Unlock()
					return l.Lease.Release(ctx)
				}
			},
		}
	}
}

var wakeupMutants = []mutant{
	{
		check:  "wakeup/missed",
		breaks: "a client that was cut off keeps waiting for a message",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			q, waited := *r, false
			q.Events = &waitingEvents{r.Events, func() { waited = true }}
			l, err := d.Acquire(ctx, &q)
			if waited && errors.Is(err, driver.ErrUnavailable) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return l, err
		}),
	},
	{
		check:  "wakeup/dead-waiter",
		breaks: "a grant to a waiter lasts until the waiter answers",
		mutate: breakWait(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			q := *r
			q.TTL = 24 * time.Hour
			l, err := d.Acquire(ctx, &q)
			if err != nil {
				return nil, err
			}
			if err := l.Renew(ctx, r.TTL); err != nil {
				return nil, errors.Join(err, l.Release(ctx))
			}
			return &brokenLease{Lease: l, r: r}, nil
		}),
	},
}

// eventsLocked returns a mutation in which Expires locks a mutex that is also
// held during some of the Events of requests.
func eventsLocked(lock func(driver.Events, *sync.Mutex) driver.Events) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		mu := new(sync.Mutex)
		return &broken{
			Driver: d,
			acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				q := *r
				q.Events = lock(r.Events, mu)
				return d.Acquire(ctx, &q)
			},
			lease: func(l *brokenLease) {
				l.expires = func() time.Time {
					mu.Lock()
					defer mu.Unlock()
					return l.Lease.Expires()
				}
			},
		}
	}
}

// Events that call one of their methods with a mutex held.
type (
	lockedLoss   lockedEvents
	lockedWait   lockedEvents
	lockedTokens lockedEvents
	lockedEvents struct {
		driver.Events
		mu *sync.Mutex
	}
)

func (l lockedLoss) Lost(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Events.Lost(cause)
}

func (l lockedWait) Waiting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Events.Waiting()
}

func (l lockedTokens) Tokens() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Events.Tokens()
}

var keepAliveMutants = []mutant{
	{
		check:  "keepalive/outage",
		breaks: "the failure to keep a session alive is not reported",
		on:     memory.Options{KeepsAlive: true},
		mutate: hearing(func(f func(error), err error) {
			if err == nil {
				f(nil)
			}
		}),
	},
	{
		check:  "keepalive/outage",
		breaks: "a session that is kept alive is reported as failing",
		on:     memory.Options{KeepsAlive: true},
		mutate: hearing(func(f func(error), _ error) { f(driver.ErrUnavailable) }),
	},
	{
		check:  "keepalive/cut",
		breaks: "a broken connection is not reported as a failure to keep a session alive",
		on:     memory.Options{KeepsAlive: true},
		mutate: hearing(func(f func(error), err error) {
			if !errors.Is(err, driver.ErrUnavailable) {
				f(err)
			}
		}),
	},
	{
		check:  "keepalive/shared",
		breaks: "an abandoned wait ends the session a while later",
		on:     memory.Options{KeepsAlive: true},
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if errors.Is(err, driver.ErrLocked) && ctx.Err() != nil && r.TTL < longTTL {
				time.AfterFunc(r.TTL, d.EndSession)
			}
			return l, err
		}),
	},
	{
		check:  "keepalive/all-told",
		breaks: "the end of a session is reported only to the first of its leases",
		on:     memory.Options{KeepsAlive: true},
		mutate: func(d *memory.Driver) driver.Driver {
			var told atomic.Bool
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				q := *r
				q.Events = &toldOfOne{r.Events, &told}
				return d.Acquire(ctx, &q)
			}}
		},
	},
	{
		check:  "keepalive/all-told",
		breaks: "the end of a session is reported as a removal when another client holds the name",
		on:     memory.Options{KeepsAlive: true},
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				q := *r
				q.Events = &removedInstead{r.Events, d, r}
				return d.Acquire(ctx, &q)
			}}
		},
	},
	{
		check:  "keepalive/over",
		breaks: "the recovery of a session is not reported",
		on:     memory.Options{KeepsAlive: true},
		mutate: hearing(func(f func(error), err error) {
			if err != nil {
				f(err)
			}
		}),
	},
	{
		check:  "keepalive/session",
		breaks: "a session is reported to last for twice its TTL",
		on:     memory.Options{KeepsAlive: true},
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.session = func() (time.Time, time.Duration) {
				expires, ttl := l.Lease.(driver.SessionLease).Session()
				return expires, 2 * ttl
			}
		}),
	},
	{
		check:  "keepalive/session",
		breaks: "the end of a session counts from the answer",
		on:     memory.Options{KeepsAlive: true},
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			called := time.Now()
			l, err := d.Acquire(ctx, r)
			if err != nil {
				return nil, err
			}
			took := time.Since(called)
			return &brokenLease{Lease: l, r: r, session: func() (time.Time, time.Duration) {
				expires, ttl := l.(driver.SessionLease).Session()
				return expires.Add(took), ttl
			}}, nil
		}),
	},
}

// hearing is a mutation of the keep-alive reports.
func hearing(hear func(f func(error), err error)) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver { return &hearsay{Driver: d, hear: hear} }
}

type hearsay struct {
	*memory.Driver
	hear func(f func(error), err error)
}

func (d *hearsay) OnKeepAlive(f func(err error)) {
	d.Driver.OnKeepAlive(func(err error) { d.hear(f, err) })
}

// toldOfOne reports the end of a driver's session for only one lease.
type toldOfOne struct {
	driver.Events
	told *atomic.Bool
}

func (o *toldOfOne) Lost(cause error) {
	if !errors.Is(cause, driver.ErrSessionEnded) || !o.told.Swap(true) {
		o.Events.Lost(cause)
	}
}

// removedInstead reports the end of a session as a removal if another client
// holds the name.
type removedInstead struct {
	driver.Events
	d *memory.Driver
	r *driver.Request
}

func (i *removedInstead) Lost(cause error) {
	s, err := i.d.Server().NewDriver().Inspect(context.Background(), i.r.Name)
	if err == nil && s.Held && s.Hold != i.r.Hold {
		cause = driver.ErrRemoved
	}
	i.Events.Lost(cause)
}
