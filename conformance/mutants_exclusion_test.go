package conformance

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

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
		breaks: "a try takes the name from its holder",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if r.NoWait {
				d.Server().Expire(r.Name)
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "exclusion/clients",
		breaks: "a request that cannot wait waits",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			q := *r
			q.NoWait = false
			return d.Acquire(ctx, &q)
		}),
	},
	{
		check:  "exclusion/requests",
		breaks: "all requests of a client are one owner",
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
		breaks: "whether the name is free is looked up before it is taken",
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

// forged is a lease of nothing: the name is somebody else's, or free.
type forged struct{ until time.Time }

func newForged(r *driver.Request) *forged { return &forged{time.Now().Add(r.TTL)} }

func (l *forged) Tokens() (uint64, int)                      { return 0, 0 }
func (l *forged) Expires() time.Time                         { return l.until }
func (l *forged) Renew(context.Context, time.Duration) error { return nil }
func (l *forged) Release(context.Context) error              { return nil }

// overwrite takes name from whoever holds it, and leaves the other one in the belief that it does.
func overwrite(d *memory.Driver, r *driver.Request) (driver.Lease, error) {
	d.Server().Expire(r.Name)
	try := *r
	try.NoWait = true
	return d.Acquire(context.Background(), &try)
}

// reentrantBy returns a mutation that grants a name which is held by a request with the same identity.
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

// flights lets requests for a name that is being asked for join the request that asks.
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
