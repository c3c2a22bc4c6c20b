package conformance

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
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

// passes returns a mutation whose leases have one token and can be passed on.
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

// passedBy is a lease with one token that can be passed on.
type passedBy struct {
	*brokenLease
	token uint64
	pass  func(ctx context.Context, owner, note string) error
}

func (l *passedBy) Pass(ctx context.Context, owner, note string) error {
	return l.pass(ctx, owner, note)
}

func (l *passedBy) Tokens() (uint64, int) { return l.token, 1 }

// passing is the holder of a hold that was passed on.
type passing struct {
	owner, note string
	token       uint64
}

// holders are the holders of holds that were passed on, by Request.Hold.
var holders sync.Map

// passer returns a driver that passes on holds. broke, if not nil, replaces
// pass and may call pass. told changes the state that other clients see.
func passer(broke func(ctx context.Context, l *passedBy, pass func(context.Context) error) error, told func(*passing)) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		b := &broken{Driver: d}
		b.acquire = func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if err != nil || r.Mode != driver.Exclusive || r.Fixed {
				return l, err
			}
			p := &passedBy{brokenLease: &brokenLease{Lease: l, r: r}}
			p.token, _ = l.Tokens()
			p.pass = func(ctx context.Context, owner, note string) error {
				pass := func(ctx context.Context) error { return p.passedTo(ctx, d, passing{owner: owner, note: note}, told) }
				if broke == nil {
					return pass(ctx)
				}
				return broke(ctx, p, pass)
			}
			return p, nil
		}
		b.renewAll = func(ctx context.Context, leases []driver.Lease, done func(int, error)) {
			for i, l := range leases {
				d.RenewAll(ctx, []driver.Lease{unbroken(l)}, func(_ int, err error) { done(i, err) })
			}
		}
		b.inspect = func(ctx context.Context, name string) (driver.Status, error) {
			s, err := d.Inspect(ctx, name)
			if p, ok := holders.Load(s.Hold); ok {
				p := p.(passing)
				s.Owner, s.Note, s.Token = p.owner, p.note, p.token
			}
			return s, err
		}
		return b
	}
}

// passedTo passes the hold on, with the token of another name, because there is
// one token count for all names.
func (l *passedBy) passedTo(ctx context.Context, d *memory.Driver, p passing, told func(*passing)) error {
	s, err := d.Inspect(ctx, l.r.Name)
	if err != nil {
		return err
	}
	if s.Hold != l.r.Hold {
		return driver.ErrNotHeld
	}
	scratch := *l.r
	scratch.Name, scratch.NoWait = l.r.Hold, true
	other, err := d.Acquire(ctx, &scratch)
	if err != nil {
		return err
	}
	p.token, _ = other.Tokens()
	if err := other.Release(ctx); err != nil {
		return err
	}
	if l.token = p.token; told != nil {
		told(&p)
	}
	holders.Store(l.r.Hold, p)
	return nil
}

func TestGoodPasser(t *testing.T) {
	for _, c := range capabilityChecks {
		r := c.result(t, onMemory(nil, passer(nil, nil)))
		if r.err != nil || r.refused == "to pass holds on" {
			t.Errorf("%s: %v%s\n%s", c.Name, r.err, r.refused, r.events)
		}
	}
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
		breaks: "Ping never queries the backend",
		mutate: func(d *memory.Driver) driver.Driver {
			return &pinging{d, func(context.Context) error { return nil }}
		},
	},
	{
		check:  "capabilities/ping",
		breaks: "Ping returns the first error forever",
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
		breaks: "a TTL that Info allows is refused",
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
		breaks: "the backend caps TTLs at a year",
		mutate: in32Bits(func(d time.Duration) time.Duration { return min(d, 365*24*time.Hour) }),
	},
	{
		check:  "capabilities/pass",
		breaks: "a hold that is passed on keeps its token",
		mutate: passes(func(context.Context, *passedOn) error { return nil }),
	},
	{
		check:  "capabilities/pass",
		breaks: "the new holder of a passed-on hold is not reported",
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
		check:  "capabilities/pass",
		breaks: "a hold that was passed on shows its old note",
		mutate: passer(nil, func(p *passing) { p.note = "the first note" }),
	},
	{
		check:  "capabilities/pass-over",
		breaks: "a hold that has run out is passed on",
		mutate: passer(func(ctx context.Context, l *passedBy, pass func(context.Context) error) error {
			if time.Now().Before(l.Expires()) {
				return pass(ctx)
			}
			return nil
		}, nil),
	},
	{
		check:  "capabilities/pass-over",
		breaks: "Pass of an expired hold returns an error other than ErrNotHeld",
		mutate: passer(func(ctx context.Context, l *passedBy, pass func(context.Context) error) error {
			if time.Now().Before(l.Expires()) {
				return pass(ctx)
			}
			return driver.ErrUnavailable
		}, nil),
	},
	{
		check:  "capabilities/pass-unanswered",
		breaks: "an unanswered Pass counts as done, with the next token",
		mutate: passer(func(ctx context.Context, l *passedBy, pass func(context.Context) error) error {
			err := pass(ctx)
			if err != nil && !errors.Is(err, driver.ErrNotHeld) {
				l.token++
				return nil
			}
			return err
		}, nil),
	},
	{
		check:  "capabilities/pass-unanswered",
		breaks: "an unanswered Pass reports that the hold has ended",
		mutate: passer(func(ctx context.Context, l *passedBy, pass func(context.Context) error) error {
			if pass(ctx) != nil {
				return driver.ErrNotHeld
			}
			return nil
		}, nil),
	},
	{
		check:  "capabilities/contended",
		breaks: "waiters are never reported",
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
		breaks: "each call to Tokens returns another token",
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
		breaks: "Inspect reports the same for all holds",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, inspect: func(ctx context.Context, name string) (driver.Status, error) {
				s, err := d.Inspect(ctx, name)
				s.Hold = "somebody's"
				return s, err
			}}
		},
	},
}

// in32Bits returns a mutation in which the backend converts the TTLs of fixed
// leases.
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
