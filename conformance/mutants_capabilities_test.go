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

// passedOn is a lease that a mutation passes on.
type passedOn struct {
	*brokenLease
	token uint64
	pass  func(ctx context.Context, l *passedOn) error
}

func (l *passedOn) Pass(ctx context.Context, _, _ string) error { return l.pass(ctx, l) }

// passes returns a mutation whose leases have one token, and can be passed on.
func passes(pass func(ctx context.Context, l *passedOn) error) func(*memory.Driver) driver.Driver {
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		l, err := d.Acquire(ctx, r)
		if err != nil {
			return nil, err
		}
		p := &passedOn{pass: pass}
		p.token, _ = l.Tokens()
		p.brokenLease = &brokenLease{Lease: l, r: r, tokens: func() (uint64, int) { return p.token, 1 }}
		return p, nil
	})
}

// pinging is a driver with a Ping.
type pinging struct {
	*memory.Driver
	ping func(ctx context.Context) error
}

func (d *pinging) Ping(ctx context.Context) error { return d.ping(ctx) }

var capabilityMutants = []mutant{
	{
		check:  "capabilities/ping",
		breaks: "Ping never asks the backend",
		mutate: func(d *memory.Driver) driver.Driver {
			return &pinging{d, func(context.Context) error { return nil }}
		},
	},
	{
		check:  "capabilities/ping",
		breaks: "Ping returns the first error for ever",
		mutate: func(d *memory.Driver) driver.Driver {
			var first error
			return &pinging{d, func(ctx context.Context) error {
				if first == nil {
					_, first = d.Inspect(ctx, "x")
				}
				return first
			}}
		},
	},
	{
		check:  "capabilities/info",
		breaks: "Info has an order that does not exist",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, info: func(i driver.Info) driver.Info {
				i.Order = 3
				return i
			}}
		},
	},
	{
		check:  "capabilities/info",
		breaks: "Info changes with the first request",
		mutate: func(d *memory.Driver) driver.Driver {
			var asked atomic.Bool
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				asked.Store(true)
				return d.Acquire(ctx, r)
			}, info: func(i driver.Info) driver.Info {
				if asked.Load() {
					i.Late = time.Second
				}
				return i
			}}
		},
	},
	{
		check:  "capabilities/ttl",
		breaks: "a TTL that Info allows is an error",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if r.TTL > time.Hour {
				return nil, errors.New("TTL too long")
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "capabilities/ttl",
		breaks: "the backend counts TTLs in 32 bits of milliseconds",
		mutate: in32Bits(func(d time.Duration) time.Duration { return time.Duration(int32(d.Milliseconds())) * time.Millisecond }),
	},
	{
		check:  "capabilities/ttl",
		breaks: "the backend keeps TTLs of years for a year",
		mutate: in32Bits(func(d time.Duration) time.Duration { return min(d, 365*24*time.Hour) }),
	},
	{
		check:  "capabilities/pass",
		breaks: "a hold that is passed on keeps its token",
		mutate: passes(func(context.Context, *passedOn) error { return nil }),
	},
	{
		check:  "capabilities/pass",
		breaks: "nobody is told who has a hold that was passed on",
		mutate: passes(func(_ context.Context, l *passedOn) error {
			l.token++
			return nil
		}),
	},
	{
		check:  "capabilities/pass",
		breaks: "a hold that is passed on is free for a moment",
		mutate: passes(func(ctx context.Context, l *passedOn) error {
			err := l.Lease.Release(ctx)
			l.token++
			<-time.After(time.Millisecond)
			return err
		}),
	},
	{
		check:  "capabilities/contended",
		breaks: "nobody is ever said to wait",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) { l.contended = func() bool { return false } }),
	},
	{
		check:  "capabilities/tokens",
		breaks: "a driver that claims fencing has no tokens",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.tokens = func() (uint64, int) { return 0, 0 }
		}),
	},
	{
		check:  "capabilities/tokens",
		breaks: "a driver that does not claim fencing has tokens",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, info: func(i driver.Info) driver.Info {
				i.Fencing = driver.None
				return i
			}}
		},
	},
	{
		check:  "capabilities/tokens",
		breaks: "each look at a lease takes another token",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			first, _ := l.Lease.Tokens()
			var looks atomic.Uint64
			l.tokens = func() (uint64, int) { return first + looks.Add(1), 1 }
		}),
	},
	{
		check:  "capabilities/inspect",
		breaks: "Inspect looks only at the client's own holds",
		mutate: func(d *memory.Driver) driver.Driver {
			var own sync.Map
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				own.Store(r.Hold, true)
				return d.Acquire(ctx, r)
			}, inspect: func(ctx context.Context, name string) (driver.Status, error) {
				s, err := d.Inspect(ctx, name)
				if _, known := own.Load(s.Hold); !known {
					s = driver.Status{Waiters: s.Waiters}
				}
				return s, err
			}}
		},
	},
	{
		check:  "capabilities/inspect",
		breaks: "Inspect says the same of all holds",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, inspect: func(ctx context.Context, name string) (driver.Status, error) {
				s, err := d.Inspect(ctx, name)
				s.Hold = "somebody's"
				return s, err
			}}
		},
	},
}

// in32Bits returns a mutation in which the backend makes something else of the TTLs of fixed leases.
func in32Bits(f func(time.Duration) time.Duration) func(*memory.Driver) driver.Driver {
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		q := *r
		if r.Fixed && r.TTL > time.Hour {
			q.TTL = max(f(r.TTL), 1)
		}
		l, err := d.Acquire(ctx, &q)
		if l == nil || q.TTL == r.TTL {
			return l, err
		}
		end := time.Now().Add(r.TTL)
		return &brokenLease{Lease: l, r: r, expires: func() time.Time { return end }}, nil
	})
}
