package conformance

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var keepAliveMutants = []mutant{
	{
		check:  "keepalive/outage",
		breaks: "nobody is told that a session cannot be kept alive",
		on:     memory.Options{KeepsAlive: true},
		mutate: hearing(func(f func(error), err error) {
			if err == nil {
				f(nil)
			}
		}),
	},
	{
		check:  "keepalive/outage",
		breaks: "a session that is kept alive is said not to be",
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
		breaks: "a wait that is given up ends the session a while later",
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
		breaks: "the end of a session is reported to the first of its leases",
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
		breaks: "the end of a session is reported as a removal when another client has the name",
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
		breaks: "nobody is told that a session is kept alive again",
		on:     memory.Options{KeepsAlive: true},
		mutate: hearing(func(f func(error), err error) {
			if err != nil {
				f(err)
			}
		}),
	},
	{
		check:  "keepalive/session",
		breaks: "a session is said to last for twice its TTL",
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

// hearing is a mutation of what is said of keep-alives.
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

// toldOfOne passes on one end of a session of a driver.
type toldOfOne struct {
	driver.Events
	told *atomic.Bool
}

func (o *toldOfOne) Lost(cause error) {
	if !errors.Is(cause, driver.ErrSessionEnded) || !o.told.Swap(true) {
		o.Events.Lost(cause)
	}
}

// removedInstead reports the end of a session as a removal when another client
// has the name.
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
