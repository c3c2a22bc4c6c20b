package conformance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var permitMutants = []mutant{
	{
		check:  "permits/fill",
		breaks: "as long as any permit is free, any number is granted",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if s, _ := d.Inspect(ctx, r.Name); r.Mode == driver.Permit && s.Held && s.Used < s.Limit && s.Used+r.Permits > s.Limit {
				return newForged(r), nil
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "permits/fill",
		breaks: "the last permit is never granted",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if s, _ := d.Inspect(ctx, r.Name); r.Mode == driver.Permit && s.Held && s.Used+r.Permits == s.Limit {
				return nil, driver.ErrLocked
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "permits/at-once",
		breaks: "a waiter for more than half of the permits acquires them one by one",
		mutate: breakAcquire(oneByOne),
	},
	{
		check:  "permits/limit",
		breaks: "permits are checked and granted in separate steps",
		mutate: countedApart,
	},
	{
		check:  "permits/all-woken",
		breaks: "only one waiter for permits is woken",
		mutate: inTurn(driver.Permit, ofServer),
	},
	{
		check:  "permits/all-woken",
		breaks: "only one of a client's waiters for permits is woken, and it keeps the message although it needs more permits",
		on:     memory.Options{Order: memory.Unordered},
		mutate: inTurn(driver.Permit, ofClient),
	},
	{
		check:  "permits/release",
		breaks: "the release of ended permits frees another client's permits",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			l.release = func(ctx context.Context) error {
				err := l.Lease.Release(ctx)
				if l.r.Mode == driver.Permit && errors.Is(err, driver.ErrNotHeld) {
					s, _ := d.Inspect(ctx, l.r.Name)
					d.Server().ExpireHold(s.Hold)
				}
				return err
			}
		}),
	},
	{
		check:  "permits/expired",
		breaks: "expired permits become free only when all other permits are free",
		mutate: breakAcquire(endsWithOthers(driver.Permit)),
	},
	{
		check:  "permits/own-renewal",
		breaks: "a renewal renews all of the client's permits of the name",
		mutate: func(d *memory.Driver) driver.Driver {
			return &brokenInMode{broken: renewsAll(d).(*broken), mode: driver.Permit}
		},
	},
	{
		check:  "permits/canceled",
		breaks: "a wait for several permits that is canceled leaves one of them taken",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if r.Permits > 1 && errors.Is(err, context.Canceled) {
				part := *r
				part.Permits, part.NoWait = 1, true
				_, _ = d.Acquire(context.Background(), &part)
			}
			return l, err
		}),
	},
	{
		check:  "permits/disagree",
		breaks: "the limit in the request replaces the stored limit",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if s, _ := d.Inspect(ctx, r.Name); errors.Is(err, driver.ErrLimit) && s.Used+r.Permits <= r.Limit {
				return newForged(r), nil
			}
			return l, err
		}),
	},
	{
		check:  "permits/disagree",
		breaks: "a name without a limit has no bound",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if s, _ := d.Inspect(ctx, r.Name); r.Mode == driver.Permit && r.Limit == 0 && s.Limit == 0 {
				return newForged(r), nil
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "permits/grow",
		breaks: "a limit is not raised while a client waits",
		mutate: breakSetLimit(func(d *memory.Driver, ctx context.Context, name string, limit int) error {
			if s, _ := d.Inspect(ctx, name); s.Waiters > 0 && limit > s.Limit {
				return nil
			}
			return d.SetLimit(ctx, name, limit)
		}),
	},
	{
		check:  "permits/shrink",
		breaks: "a lowered limit ends the holds",
		mutate: breakSetLimit(func(d *memory.Driver, ctx context.Context, name string, limit int) error {
			if s, _ := d.Inspect(ctx, name); limit < s.Used {
				defer d.Server().Expire(name)
			}
			return d.SetLimit(ctx, name, limit)
		}),
	},
	{
		check:  "permits/shrink",
		breaks: "a waiter that passed the old limit keeps waiting",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			s, _ := d.Inspect(ctx, r.Name)
			l, err := d.Acquire(ctx, r)
			if r.Limit > 0 && s.Limit == r.Limit && errors.Is(err, driver.ErrLimit) {
				<-ctx.Done()
			}
			return l, err
		}),
	},
	{
		check:  "permits/order",
		breaks: "a request for few permits overtakes a request for many",
		on:     memory.Options{Order: memory.Unordered},
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, info: func(i driver.Info) driver.Info {
				i.Permits.Order = driver.FIFO
				return i
			}}
		},
	},
	{
		check:  "permits/removed",
		breaks: "the loss of a hold is reported to all of its client's holders of permits of the name",
		mutate: func(d *memory.Driver) driver.Driver {
			return &brokenInMode{broken: losesAll(d).(*broken), mode: driver.Permit}
		},
	},
	{
		check:  "permits/force-unlock",
		breaks: "ForceUnlock ends one hold of permits",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, forceUnlock: func(ctx context.Context, name string) error {
				if s, _ := d.Inspect(ctx, name); s.Mode == driver.Permit {
					d.Server().ExpireHold(s.Hold)
					return nil
				}
				return d.ForceUnlock(ctx, name)
			}}
		},
	},
	{
		check:  "permits/shrunk",
		breaks: "Inspect reports no more permits than the limit",
		mutate: breakStatus(func(s *driver.Status) {
			if s.Mode == driver.Permit {
				s.Used = min(s.Used, s.Limit)
			}
		}),
	},
	{
		check:  "permits/shrunk",
		breaks: "ForceUnlock ends one hold, where the limit allows one",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, forceUnlock: func(ctx context.Context, name string) error {
				if s, err := d.Inspect(ctx, name); err == nil && s.Used > s.Limit {
					d.Server().ExpireHold(s.Hold)
					return nil
				}
				return d.ForceUnlock(ctx, name)
			}}
		},
	},
	{
		check:  "permits/inspect",
		breaks: "Inspect does not report the limit while no permit is held",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, inspect: func(ctx context.Context, name string) (driver.Status, error) {
				s, err := d.Inspect(ctx, name)
				if !s.Held {
					s.Limit = 0
				}
				return s, err
			}}
		},
	},
	{
		check:  "permits/no-tokens",
		breaks: "permits have tokens",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			if l.r.Mode == driver.Permit {
				l.tokens = func() (uint64, int) { return 1, 1 }
			}
		}),
	},
	{
		check:  "permits/sealed",
		breaks: "permits of a sealed name are granted",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if r.Mode == driver.Permit && errors.Is(err, driver.ErrSealed) {
				return newForged(r), nil
			}
			return l, err
		}),
	},
	{
		check:  "permits/all-woken",
		breaks: "without an order, a newcomer waits behind a waiter for more permits",
		on:     memory.Options{Order: memory.Unordered},
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			s, _ := d.Inspect(ctx, r.Name)
			if r.Mode != driver.Permit || r.NoWait || s.Waiters == 0 || s.Used+r.Permits > s.Limit {
				return d.Acquire(ctx, r)
			}
			r.Events.Waiting()
			for s.Waiters > 0 {
				select {
				case <-time.After(time.Millisecond):
				case <-ctx.Done():
					return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
				}
				s, _ = d.Inspect(ctx, r.Name)
			}
			again := *r
			again.Events = waitsAlready{r.Events}
			return d.Acquire(ctx, &again)
		}),
	},
	{
		check:  "permits/limit-life",
		breaks: "the limit of one name applies to all",
		mutate: func() func(*memory.Driver) driver.Driver {
			var set sync.Map // names
			return breakSetLimit(func(d *memory.Driver, ctx context.Context, name string, limit int) error {
				set.Store(name, true)
				set.Range(func(key, _ any) bool {
					if other := key.(string); other != name {
						_ = d.SetLimit(ctx, other, limit)
					}
					return true
				})
				return d.SetLimit(ctx, name, limit)
			})
		}(),
	},
	{
		check:  "permits/limit-life",
		breaks: "setting a limit again is an error",
		mutate: func() func(*memory.Driver) driver.Driver {
			var set sync.Map // limits, by name
			return breakSetLimit(func(d *memory.Driver, ctx context.Context, name string, limit int) error {
				if before, ok := set.Swap(name, limit); ok && before == limit {
					return driver.ErrLimit
				}
				return d.SetLimit(ctx, name, limit)
			})
		}(),
	},
	{
		check:  "permits/limit-life",
		breaks: "ForceUnlock removes the limit",
		mutate: func() func(*memory.Driver) driver.Driver {
			var removed sync.Map // names
			return func(d *memory.Driver) driver.Driver {
				b := &broken{Driver: d}
				b.forceUnlock = func(ctx context.Context, name string) error {
					removed.Store(name, true)
					return d.ForceUnlock(ctx, name)
				}
				b.acquire = func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
					if s, _ := d.Inspect(ctx, r.Name); r.Limit > 0 && !s.Held {
						if _, ok := removed.LoadAndDelete(r.Name); ok {
							_ = d.SetLimit(ctx, r.Name, r.Limit)
						}
					}
					return d.Acquire(ctx, r)
				}
				return b
			}
		}(),
	},
	{
		check:  "permits/wide",
		breaks: "a number of permits has 15 bits",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			q := *r
			if q.Permits > 1<<15 {
				q.Permits &= 1<<15 - 1
			}
			return d.Acquire(ctx, &q)
		}),
	},
	{
		check:  "permits/wide",
		breaks: "limits are compared in 16 bits",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			q := *r
			if s, _ := d.Inspect(ctx, r.Name); r.Limit > 0 && s.Limit > 0 && r.Limit != s.Limit && (r.Limit-s.Limit)%(1<<16) == 0 {
				q.Limit = 0
			}
			return d.Acquire(ctx, &q)
		}),
	},
	{
		check:  "permits/wrong-limit",
		breaks: "a waiter that got ErrLimit keeps its place for a while",
		mutate: func() func(*memory.Driver) driver.Driver {
			var places sync.Map // by name
			return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
				before, _ := d.Inspect(ctx, r.Name)
				l, err := d.Acquire(ctx, r)
				waited := r.Mode == driver.Permit && before.Held && !r.NoWait
				if _, behind := places.Load(r.Name); err == nil && waited && behind {
					time.Sleep(20 * time.Second)
				}
				if errors.Is(err, driver.ErrLimit) && waited {
					places.Store(r.Name, true)
				}
				return l, err
			})
		}(),
	},
	{
		check:  "permits/lost-limit",
		breaks: "a SetLimit whose answer was lost is reported as not carried out",
		mutate: breakSetLimit(func(d *memory.Driver, ctx context.Context, name string, limit int) error {
			err := d.SetLimit(ctx, name, limit)
			if errors.Is(err, driver.ErrUnknown) {
				return driver.ErrUnavailable
			}
			return err
		}),
	},
}

// breakSetLimit returns a mutation that replaces SetLimit.
func breakSetLimit(f func(d *memory.Driver, ctx context.Context, name string, limit int) error) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, setLimit: func(ctx context.Context, name string, limit int) error { return f(d, ctx, name, limit) }}
	}
}

// oneByOne is an Acquire that, if it requests more than half of the permits,
// holds some of them while it waits for the others.
func oneByOne(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if r.NoWait || 2*r.Permits <= r.Limit {
		return d.Acquire(ctx, r)
	}
	var held []driver.Lease
	release := func(ctx context.Context) (err error) {
		for _, l := range held {
			err = errors.Join(err, l.Release(ctx))
		}
		return err
	}
	part := *r
	part.Permits = 1
	for i := range r.Permits {
		one := part
		one.Hold = fmt.Sprintf("%s#%d", r.Hold, i)
		l, err := d.Acquire(ctx, &one)
		if err != nil {
			return nil, errors.Join(err, release(context.Background()))
		}
		held = append(held, l)
	}
	return &brokenLease{Lease: held[0], r: r, release: release}, nil
}

// counts are the permits that a countedApart driver has granted.
type counts struct {
	mu   sync.Mutex
	held map[string]int // by name
}

var countsOf sync.Map // by server

func (c *counts) add(name string, n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[name] += n
	return c.held[name]
}

// names returns the names with this prefix that have held permits.
func (c *counts) names(prefix string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for name, n := range c.held {
		if n > 0 && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names
}

// countedApart is a mutation that checks the permits and grants them a moment
// later.
func countedApart(d *memory.Driver) driver.Driver {
	of, _ := countsOf.LoadOrStore(d.Server(), &counts{held: map[string]int{}})
	all := of.(*counts)
	acquire := func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
		for waits := false; r.Mode == driver.Permit && ctx.Err() == nil; waits = true {
			if all.add(r.Name, 0)+r.Permits <= r.Limit {
				time.Sleep(time.Microsecond)
				all.add(r.Name, r.Permits)
				return &brokenLease{Lease: newForged(r), r: r, release: func(context.Context) error {
					all.add(r.Name, -r.Permits)
					return nil
				}}, nil
			}
			switch {
			case r.NoWait:
				return nil, driver.ErrLocked
			case !waits:
				r.Events.Waiting()
			}
			time.Sleep(time.Millisecond)
		}
		return d.Acquire(ctx, r)
	}
	inspect := func(ctx context.Context, name string) (driver.Status, error) {
		s, err := d.Inspect(ctx, name)
		s.Used += all.add(name, 0)
		return s, err
	}
	list := func(ctx context.Context, prefix string) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for name, err := range d.List(ctx, prefix) {
				if !yield(name, err) {
					return
				}
			}
			for _, name := range all.names(prefix) {
				if !yield(name, nil) {
					return
				}
			}
		}
	}
	return &broken{Driver: d, acquire: acquire, inspect: inspect, list: list}
}
