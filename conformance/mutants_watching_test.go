package conformance

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var watchingMutants = []mutant{
	{
		check:  "watching/changes",
		breaks: "who watches is called when the watch begins and never again",
		mutate: breakWatch(func(_ *memory.Driver, changed func()) (called, stop func()) { return sync.OnceFunc(changed), func() {} }),
	},
	{
		check:  "watching/changes",
		breaks: "who watches a name that is read is not called when it is free",
		mutate: func(d *memory.Driver) driver.Driver {
			var reading atomic.Bool
			b := &broken{Driver: d}
			b.lease = func(l *brokenLease) {
				l.release = func(ctx context.Context) error {
					reading.Store(l.r.Mode == driver.Read)
					defer reading.Store(false)
					return l.Lease.Release(ctx)
				}
			}
			b.watch = func(name string, changed func()) (func(), error) {
				return d.Watch(name, func() {
					if !reading.Load() {
						changed()
					}
				})
			}
			return b
		},
	},
	{
		check:  "watching/changes",
		breaks: "who watches a name that is read is called when the last reader is gone only",
		mutate: func(d *memory.Driver) driver.Driver {
			var quiet atomic.Bool
			b := &broken{Driver: d}
			b.lease = func(l *brokenLease) {
				l.release = func(ctx context.Context) error {
					s, err := d.Inspect(ctx, l.r.Name)
					quiet.Store(err == nil && s.Holders > 1)
					defer quiet.Store(false)
					return l.Lease.Release(ctx)
				}
			}
			b.watch = func(name string, changed func()) (func(), error) {
				return d.Watch(name, func() {
					if !quiet.Load() {
						changed()
					}
				})
			}
			return b
		},
	},
	{
		check:  "watching/outage",
		breaks: "a watch ends with the first outage",
		mutate: breakWatch(untilOutage),
	},
	{
		check:  "watching/stop",
		breaks: "who watches is called after the end as well",
		mutate: func(d *memory.Driver) driver.Driver {
			b := &broken{Driver: d}
			b.watch = func(name string, changed func()) (func(), error) {
				_, err := d.Watch(name, changed)
				return func() {}, err
			}
			return b
		},
	},
	{
		check:  "watching/many",
		breaks: "a client has four watches at most",
		mutate: func(d *memory.Driver) driver.Driver {
			var n atomic.Int64
			b := &broken{Driver: d}
			b.watch = func(name string, changed func()) (func(), error) {
				if n.Add(1) > 4 {
					changed()
					return func() {}, nil
				}
				stop, err := d.Watch(name, changed)
				return func() {
					n.Add(-1)
					stop()
				}, err
			}
			return b
		},
	},
	{
		check:  "watching/many",
		breaks: "who watches is not called while others wait",
		mutate: func() func(*memory.Driver) driver.Driver {
			var waiting atomic.Int64
			return func(d *memory.Driver) driver.Driver {
				b := &broken{Driver: d}
				b.acquire = func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
					s, _ := d.Inspect(ctx, r.Name)
					if s.Held && !r.NoWait {
						waiting.Add(1)
						defer waiting.Add(-1)
					}
					return d.Acquire(ctx, r)
				}
				b.watch = func(name string, changed func()) (func(), error) {
					return d.Watch(name, func() {
						if waiting.Load() == 0 {
							changed()
						}
					})
				}
				return b
			}
		}(),
	},
}

// untilOutage calls changed until the first outage, which it looks for until stop.
func untilOutage(d *memory.Driver, changed func()) (called, stop func()) {
	var out atomic.Bool
	ctx, cancel := context.WithCancel(context.Background())
	var probe sync.WaitGroup
	probe.Go(func() {
		for ctx.Err() == nil && !out.Load() {
			bounded, cancel := context.WithTimeout(ctx, time.Second)
			if _, err := d.Inspect(bounded, "any"); err != nil {
				out.Store(true)
			}
			cancel()
			time.Sleep(time.Millisecond)
		}
	})
	called = func() {
		if !out.Load() {
			changed()
		}
	}
	return called, func() {
		cancel()
		probe.Wait()
	}
}

// breakWatch returns a mutation of what a driver calls, with what is to be done when the watch is stopped.
func breakWatch(f func(d *memory.Driver, changed func()) (called, stop func())) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		b := &broken{Driver: d}
		b.watch = func(name string, changed func()) (func(), error) {
			called, stopped := f(d, changed)
			stop, err := d.Watch(name, called)
			return func() {
				stop()
				stopped()
			}, err
		}
		return b
	}
}

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
		breaks: "a hold that is left ends when its lease would have",
		mutate: breakLeave(func(ctx context.Context, d *memory.Driver, l driver.Lease, ttl time.Duration) error {
			return d.Leave(ctx, l, time.Until(l.Expires()))
		}),
	},
	{
		check:  "leaving/close",
		breaks: "a hold that is left is one of those that Close ends",
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

// breakLeave returns a mutation of how a driver leaves holds.
func breakLeave(f func(ctx context.Context, d *memory.Driver, l driver.Lease, ttl time.Duration) error) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		b := &broken{Driver: d}
		b.leave = func(ctx context.Context, l driver.Lease, ttl time.Duration) error { return f(ctx, d, unbroken(l), ttl) }
		return b
	}
}
