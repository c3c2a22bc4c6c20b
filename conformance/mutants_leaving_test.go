package conformance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var leavingMutants = []mutant{
	{
		check:  "leaving/time",
		breaks: "a hold that is left is released",
		mutate: breakLeave(func(ctx context.Context, _ *memory.Driver, l driver.Lease, _ time.Duration) error {
			return l.Release(ctx)
		}),
	},
	{
		check:  "leaving/time",
		breaks: "a hold that is left ends when its lease would have ended",
		mutate: breakLeave(func(ctx context.Context, d *memory.Driver, l driver.Lease, ttl time.Duration) error {
			return d.Leave(ctx, l, time.Until(l.Expires()))
		}),
	},
	{
		check:  "leaving/close",
		breaks: "Close ends a hold that was left",
		mutate: breakLeave(func(ctx context.Context, _ *memory.Driver, l driver.Lease, ttl time.Duration) error {
			return l.Renew(ctx, ttl)
		}),
	},
	{
		check:  "leaving/lease",
		breaks: "the lease of a hold that was left can be renewed",
		mutate: func(d *memory.Driver) driver.Driver {
			var left sync.Map // leases
			b := &broken{Driver: d}
			b.lease = func(l *brokenLease) {
				l.renew = func(ctx context.Context, ttl time.Duration) error {
					if _, ok := left.Load(l.Lease); ok {
						return nil
					}
					return l.Lease.Renew(ctx, ttl)
				}
			}
			b.leave = func(ctx context.Context, l driver.Lease, ttl time.Duration) error {
				left.Store(unbroken(l), true)
				return d.Leave(ctx, unbroken(l), ttl)
			}
			return b
		},
	},
}

// breakLeave returns a mutation of the driver's Leave.
func breakLeave(f func(ctx context.Context, d *memory.Driver, l driver.Lease, ttl time.Duration) error) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		b := &broken{Driver: d}
		b.leave = func(ctx context.Context, l driver.Lease, ttl time.Duration) error { return f(ctx, d, unbroken(l), ttl) }
		return b
	}
}

var leftMutants = []mutant{
	{
		check:  "leaving/bounds",
		breaks: "the time passed to Leave counts from the grant",
		mutate: func(d *memory.Driver) driver.Driver {
			var granted sync.Map // leases, with the times of their grants
			b := &broken{Driver: d, lease: func(l *brokenLease) { granted.Store(l.Lease, time.Now()) }}
			b.leave = func(ctx context.Context, l driver.Lease, ttl time.Duration) error {
				since, _ := granted.Load(unbroken(l))
				return d.Leave(ctx, unbroken(l), ttl-time.Since(since.(time.Time)))
			}
			return b
		},
	},
	{
		check:  "leaving/bounds",
		breaks: "the time passed to Leave is truncated to seconds",
		mutate: breakLeave(func(ctx context.Context, d *memory.Driver, l driver.Lease, ttl time.Duration) error {
			return d.Leave(ctx, l, ttl.Truncate(time.Second))
		}),
	},
	{
		check:  "leaving/bounds",
		breaks: "a hold is left for twice as long",
		mutate: breakLeave(func(ctx context.Context, d *memory.Driver, l driver.Lease, ttl time.Duration) error {
			return d.Leave(ctx, l, 2*ttl)
		}),
	},
	{
		check:  "leaving/bounds",
		breaks: "a waiter is not notified that a hold was left for less than its lease",
		mutate: func(d *memory.Driver) driver.Driver {
			b := &broken{Driver: d}
			b.leave = func(ctx context.Context, l driver.Lease, ttl time.Duration) error {
				l = unbroken(l)
				if s, err := d.Inspect(ctx, nameOf(l)); err == nil && s.Waiters > 0 {
					ttl = max(ttl, time.Until(l.Expires()))
				}
				return d.Leave(ctx, l, ttl)
			}
			b.lease = func(l *brokenLease) { leaseNames.Store(l.Lease, l.r.Name) }
			return b
		},
	},
	{
		check:  "leaving/bounds",
		breaks: "a hold that is left never outlasts its lease",
		mutate: breakLeave(func(ctx context.Context, d *memory.Driver, l driver.Lease, ttl time.Duration) error {
			if rest := time.Until(l.Expires()); rest < ttl {
				ttl = rest
			}
			return d.Leave(ctx, l, ttl)
		}),
	},
	{
		check:  "leaving/readers",
		breaks: "Leave of one reader moves the end of all readers of the client",
		mutate: leaveWithOthers(func(ctx context.Context, other *brokenLease, ttl time.Duration) { _ = other.Lease.Renew(ctx, ttl) }),
	},
	{
		check:  "leaving/readers",
		breaks: "Leave of one reader ends the other readers of the client",
		mutate: leaveWithOthers(func(ctx context.Context, other *brokenLease, _ time.Duration) { _ = other.Lease.Release(ctx) }),
	},
	{
		check:  "leaving/over",
		breaks: "Leave acquires a free name again",
		mutate: func(d *memory.Driver) driver.Driver {
			var requests sync.Map // by lease
			b := &broken{Driver: d, lease: func(l *brokenLease) { requests.Store(l.Lease, l.r) }}
			b.leave = func(ctx context.Context, l driver.Lease, ttl time.Duration) error {
				err := d.Leave(ctx, unbroken(l), ttl)
				if errors.Is(err, driver.ErrNotHeld) {
					r, _ := requests.Load(unbroken(l))
					again := *r.(*driver.Request)
					again.NoWait, again.TTL = true, ttl
					if next, err := d.Acquire(ctx, &again); err == nil {
						_ = d.Leave(ctx, next, ttl)
					}
				}
				return err
			}
			return b
		},
	},
	{
		check:  "leaving/over",
		breaks: "Leave of a hold that has ended returns nil",
		mutate: breakLeave(func(ctx context.Context, d *memory.Driver, l driver.Lease, ttl time.Duration) error {
			if err := d.Leave(ctx, l, ttl); !errors.Is(err, driver.ErrNotHeld) {
				return err
			}
			return nil
		}),
	},
	{
		check:  "leaving/over",
		breaks: "a removed hold is reported as left",
		mutate: breakLeave(func(ctx context.Context, d *memory.Driver, l driver.Lease, ttl time.Duration) error {
			if err := d.Leave(ctx, l, ttl); !errors.Is(err, driver.ErrNotHeld) || !time.Now().Before(l.Expires()) {
				return err
			}
			return nil
		}),
	},
	{
		check:  "leaving/force",
		breaks: "ForceUnlock returns ErrNotHeld for a hold that was left",
		mutate: leavesUnseen(func(b *broken) {
			b.forceUnlock = func(ctx context.Context, name string) error {
				if _, left := leftNames.Load(name); left {
					return driver.ErrNotHeld
				}
				return b.Driver.ForceUnlock(ctx, name)
			}
		}),
	},
	{
		check:  "leaving/bounds",
		breaks: "a hold that is left for less than a second is kept for one",
		mutate: breakLeave(func(ctx context.Context, d *memory.Driver, l driver.Lease, ttl time.Duration) error {
			return d.Leave(ctx, l, max(ttl, time.Second))
		}),
	},
	{
		check:  "leaving/over",
		breaks: "a Leave that arrives after the end of the hold returns nil",
		mutate: breakLeave(func(ctx context.Context, d *memory.Driver, l driver.Lease, ttl time.Duration) error {
			inTime := time.Now().Before(l.Expires())
			if err := d.Leave(ctx, l, ttl); !errors.Is(err, driver.ErrNotHeld) || !inTime || time.Now().Before(l.Expires()) {
				return err
			}
			return nil
		}),
	},
	{
		check:  "leaving/seen",
		breaks: "Inspect reports a name as free after Leave",
		mutate: leavesUnseen(func(b *broken) {
			b.inspect = func(ctx context.Context, name string) (driver.Status, error) {
				if _, left := leftNames.Load(name); left {
					return driver.Status{}, nil
				}
				return b.Driver.Inspect(ctx, name)
			}
		}),
	},
	{
		check:  "leaving/seen",
		breaks: "List leaves out holds that were left",
		mutate: leavesUnseen(func(b *broken) {
			b.list = func(ctx context.Context, prefix string) iter.Seq2[string, error] {
				return func(yield func(string, error) bool) {
					for name, err := range b.Driver.List(ctx, prefix) {
						if _, left := leftNames.Load(name); !left && !yield(name, err) {
							return
						}
					}
				}
			}
		}),
	},
	{
		check:  "leaving/seen",
		breaks: "a watch does not report the end of a hold that was left",
		mutate: leavesUnseen(func(b *broken) {
			b.watch = func(name string, changed func()) (func(), error) {
				return b.Driver.Watch(name, func() {
					if _, left := leftNames.Load(name); !left {
						changed()
					}
				})
			}
		}),
	},
	{
		check:  "leaving/no-answer",
		breaks: "a hold is released if Leave gets no answer",
		mutate: breakLeave(func(ctx context.Context, d *memory.Driver, l driver.Lease, ttl time.Duration) error {
			if err := l.Renew(ctx, ttl); err != nil {
				ended, cancel := context.WithCancel(ctx)
				cancel()
				_ = l.Release(ended)
				return err
			}
			return d.Leave(ctx, l, ttl)
		}),
	},
	{
		check:  "leaving/no-answer",
		breaks: "Close ends the hold if Leave gets no answer",
		mutate: breakLeave(func(ctx context.Context, d *memory.Driver, l driver.Lease, ttl time.Duration) error {
			if err := l.Renew(ctx, ttl); err != nil {
				return err
			}
			return d.Leave(ctx, l, ttl)
		}),
	},
	{
		check:  "leaving/no-answer",
		breaks: "an unanswered Leave returns ErrNotHeld",
		mutate: breakLeave(func(ctx context.Context, d *memory.Driver, l driver.Lease, ttl time.Duration) error {
			err := d.Leave(ctx, l, ttl)
			if errors.Is(err, driver.ErrUnknown) {
				err = fmt.Errorf("%w: %w", driver.ErrNotHeld, err)
			}
			return err
		}),
	},
	{
		check:  "leaving/outage",
		breaks: "a hold that was left ends soon after its client is cut off",
		mutate: leaveUntilOutage,
	},
}

// leaseNames contains the names of leases for mutants, and leftNames the names
// whose holds were left. No two checks share a name.
var leaseNames, leftNames sync.Map

// leavesUnseen returns a mutation of a driver that records in leftNames which
// holds it has left.
func leavesUnseen(change func(b *broken)) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		b := &broken{Driver: d, lease: func(l *brokenLease) { leaseNames.Store(l.Lease, l.r.Name) }}
		b.leave = func(ctx context.Context, l driver.Lease, ttl time.Duration) error {
			leftNames.Store(nameOf(unbroken(l)), true)
			return d.Leave(ctx, unbroken(l), ttl)
		}
		change(b)
		return b
	}
}

func nameOf(l driver.Lease) string {
	name, _ := leaseNames.Load(l)
	return name.(string)
}

// leaveWithOthers returns a mutation of Leave. After Leave of a Read hold, do
// is called for the client's other Read holds of the name.
func leaveWithOthers(do func(ctx context.Context, other *brokenLease, ttl time.Duration)) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		var mu sync.Mutex
		var readers []*brokenLease
		b := &broken{Driver: d, lease: func(l *brokenLease) {
			if l.r.Mode == driver.Read {
				mu.Lock()
				defer mu.Unlock()
				readers = append(readers, l)
			}
		}}
		b.leave = func(ctx context.Context, l driver.Lease, ttl time.Duration) error {
			mu.Lock()
			defer mu.Unlock()
			for _, other := range readers {
				if this := l.(*brokenLease); this.r.Mode == driver.Read && other != this && other.r.Name == this.r.Name {
					do(ctx, other, ttl)
				}
			}
			return d.Leave(ctx, unbroken(l), ttl)
		}
		return b
	}
}

// leaveUntilOutage ends the holds that a driver has left when an outage has
// lasted for a while.
func leaveUntilOutage(d *memory.Driver) driver.Driver {
	ctx, cancel := context.WithCancel(context.Background())
	b := &broken{Driver: d, lease: func(*brokenLease) {}}
	b.leave = func(leaving context.Context, l driver.Lease, ttl time.Duration) error {
		r, end := l.(*brokenLease).r, time.Now().Add(ttl)
		go func() { // ends when the driver ends
			answered := time.Now()
			for ctx.Err() == nil && time.Now().Before(end) {
				bounded, done := context.WithTimeout(ctx, r.TTL/10)
				_, err := d.Inspect(bounded, r.Name)
				done()
				if err == nil {
					answered = time.Now()
				}
				if time.Since(answered) > r.TTL && ctx.Err() == nil {
					d.Server().Expire(r.Name)
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(r.TTL / 10):
				}
			}
		}()
		return d.Leave(leaving, unbroken(l), ttl)
	}
	b.close = func(closing context.Context) error {
		cancel()
		return d.Close(closing)
	}
	return b
}
