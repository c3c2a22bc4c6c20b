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

var latchMutants = []mutant{
	{
		check:  "latch/set",
		breaks: "SetLatch replaces an existing latch",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.set = func(ctx context.Context, name, id string, n int) (bool, error) {
				if err := d.DeleteLatch(ctx, name, id+"!"); err != nil {
					return false, err
				}
				return d.SetLatch(ctx, name, id, n)
			}
		}),
	},
	{
		check:  "latch/count",
		breaks: "the count is read and written in separate requests",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.countDown = func(ctx context.Context, name, id string) error {
				left, err := d.Latch(ctx, name)
				time.Sleep(time.Millisecond)
				if err != nil || left == 0 {
					return err
				}
				if err := d.DeleteLatch(ctx, name, id+"!"); err != nil || left == 1 {
					return err
				}
				_, err = d.SetLatch(ctx, name, id, left-1)
				return err
			}
		}),
	},
	{
		check:  "latch/count",
		breaks: "a countdown that is unexpectedly the last does nothing",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.countDown = func(ctx context.Context, name, id string) error {
				before, err := d.Latch(ctx, name)
				time.Sleep(time.Millisecond)
				if left, _ := d.Latch(ctx, name); err != nil || before > 1 && left == 1 {
					return err
				}
				return d.CountDown(ctx, name, id)
			}
		}),
	},
	{
		check:  "latch/delete",
		breaks: "a deletion counts down",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) { b.delete = d.CountDown }),
	},
	{
		check:  "latch/names",
		breaks: "all names share one latch",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.countDown = func(ctx context.Context, name, id string) error {
				b.names.Range(func(other, _ any) bool {
					if other != name {
						_ = d.CountDown(ctx, other.(string), id)
					}
					return true
				})
				return d.CountDown(ctx, name, id)
			}
		}),
	},
	{
		check:  "latch/close",
		breaks: "Close deletes the latches that the client has set",
		mutate: func(d *memory.Driver) driver.Driver {
			b := &brokenLatches{broken: broken{Driver: d}}
			b.close = func(ctx context.Context) error {
				b.names.Range(func(name, _ any) bool {
					_ = d.DeleteLatch(ctx, name.(string), "close")
					return true
				})
				return d.Close(ctx)
			}
			return b
		},
	},
	{
		check:  "latch/repeat",
		breaks: "a repeated countdown counts again",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.countDown = func(ctx context.Context, name, _ string) error { return d.CountDown(ctx, name, anew()) }
		}),
	},
	{
		check:  "latch/repeat",
		breaks: "the repeat of SetLatch reports that there is a latch",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.set = func(ctx context.Context, name, _ string, n int) (bool, error) {
				return d.SetLatch(ctx, name, anew(), n)
			}
		}),
	},
	{
		check:  "latch/repeat",
		breaks: "the repeat of a deletion deletes the next latch",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.delete = func(ctx context.Context, name, _ string) error { return d.DeleteLatch(ctx, name, anew()) }
		}),
	},
	{
		check:  "latch/repeat",
		breaks: "a countdown without a latch is not remembered",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.countDown = func(ctx context.Context, name, id string) error {
				if left, err := d.Latch(ctx, name); err != nil || left == 0 {
					return err
				}
				return d.CountDown(ctx, name, id)
			}
		}),
	},
	{
		check:  "latch/lost-answers",
		breaks: "the driver repeats an unanswered request with a different id",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.countDown = func(ctx context.Context, name, id string) error {
				if err := d.CountDown(ctx, name, id); err == nil {
					return nil
				}
				return d.CountDown(ctx, name, id+"!")
			}
		}),
	},
	{
		check:  "latch/told",
		breaks: "a watcher is not called when a latch is deleted",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			var deleting atomic.Bool
			b.delete = func(ctx context.Context, name, id string) error {
				deleting.Store(true)
				defer deleting.Store(false)
				return d.DeleteLatch(ctx, name, id)
			}
			b.watch = func(name string, changed func()) (func(), error) {
				return d.WatchLatch(name, func() {
					if !deleting.Load() {
						changed()
					}
				})
			}
		}),
	},
	{
		check:  "latch/outage",
		breaks: "a watch ends with the first outage",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.watch = func(name string, changed func()) (func(), error) {
				called, stopped := untilOutage(d, changed)
				stop, err := d.WatchLatch(name, called)
				return func() {
					stop()
					stopped()
				}, err
			}
		}),
	},
	{
		check:  "latch/stop",
		breaks: "a watcher is still called after the watch is stopped",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.watch = func(name string, changed func()) (func(), error) {
				_, err := d.WatchLatch(name, changed)
				return func() {}, err
			}
		}),
	},
	{
		check:  "latch/wide",
		breaks: "a count has 31 bits",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.set = func(ctx context.Context, name, id string, n int) (bool, error) {
				return d.SetLatch(ctx, name, id, min(n, 1<<31-1))
			}
		}),
	},
	{
		check:  "latch/known",
		breaks: "the backend remembers only the last 64 changes",
		mutate: knowsChanges(func(since time.Duration, others int) bool { return others <= 64 }),
	},
	{
		check:  "latch/known",
		breaks: "the backend remembers a change for only half the required time",
		mutate: knowsChanges(func(since time.Duration, others int) bool { return since <= driver.RepeatFor }),
	},
	{
		check:  "latch/lost-answers",
		breaks: "a countdown whose answer was lost is reported as not carried out",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.countDown = func(ctx context.Context, name, id string) error {
				err := d.CountDown(ctx, name, id)
				if errors.Is(err, driver.ErrUnknown) {
					return driver.ErrUnavailable
				}
				return err
			}
		}),
	},
}

// changesAnew is the counter for the ids of anew.
var changesAnew atomic.Uint64

// anew returns the id of a change that is not a repetition.
func anew() string { return fmt.Sprint("anew:", changesAnew.Add(1)) }

// brokenLatches is a memory driver that replaces some methods of latches.
type brokenLatches struct {
	broken
	names     sync.Map // of latches for which SetLatch was called
	closed    atomic.Bool
	set       func(ctx context.Context, name, id string, n int) (bool, error)
	countDown func(ctx context.Context, name, id string) error
	count     func(ctx context.Context, name string) (int, error)
	delete    func(ctx context.Context, name, id string) error
	watch     func(name string, changed func()) (stop func(), err error)
}

// breakLatches returns a mutation of the driver's latches.
func breakLatches(f func(d *memory.Driver, b *brokenLatches)) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		b := &brokenLatches{broken: broken{Driver: d}}
		f(d, b)
		return b
	}
}

// SetLatch implements driver.Latcher.
func (b *brokenLatches) SetLatch(ctx context.Context, name, id string, n int) (bool, error) {
	b.names.Store(name, true)
	if b.set != nil {
		return b.set(ctx, name, id, n)
	}
	return b.Driver.SetLatch(ctx, name, id, n)
}

// CountDown implements driver.Latcher.
func (b *brokenLatches) CountDown(ctx context.Context, name, id string) error {
	if b.countDown != nil {
		return b.countDown(ctx, name, id)
	}
	return b.Driver.CountDown(ctx, name, id)
}

// DeleteLatch implements driver.Latcher.
func (b *brokenLatches) DeleteLatch(ctx context.Context, name, id string) error {
	if b.delete != nil {
		return b.delete(ctx, name, id)
	}
	return b.Driver.DeleteLatch(ctx, name, id)
}

// WatchLatch implements driver.Latcher.
func (b *brokenLatches) WatchLatch(name string, changed func()) (stop func(), err error) {
	if b.watch != nil {
		return b.watch(name, changed)
	}
	return b.Driver.WatchLatch(name, changed)
}

// Latch implements driver.Latcher.
func (b *brokenLatches) Latch(ctx context.Context, name string) (int, error) {
	if b.count != nil {
		return b.count(ctx, name)
	}
	return b.Driver.Latch(ctx, name)
}

// knowsChanges returns a mutation that carries out a repeated countdown again
// unless known returns true, given the time since the first request and the
// number of other changes since then.
func knowsChanges(known func(since time.Duration, others int) bool) func(*memory.Driver) driver.Driver {
	type change struct {
		at time.Time
		n  int
	}
	var mu sync.Mutex
	var n int
	changes := map[string]change{}
	return breakLatches(func(d *memory.Driver, b *brokenLatches) {
		b.countDown = func(ctx context.Context, name, id string) error {
			mu.Lock()
			n++
			first, repeated := changes[id]
			if !repeated {
				first = change{time.Now(), n}
				changes[id] = first
			}
			is := known(time.Since(first.at), n-first.n)
			mu.Unlock()
			if !is {
				id = anew()
			}
			return d.CountDown(ctx, name, id)
		}
	})
}

var watchingMutants = []mutant{
	{
		check:  "watching/changes",
		breaks: "a watcher is called when the watch begins and never again",
		mutate: breakWatch(func(_ *memory.Driver, changed func()) (called, stop func()) { return sync.OnceFunc(changed), func() {} }),
	},
	{
		check:  "watching/changes",
		breaks: "a watcher of a name held by readers is not called when the name becomes free",
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
		breaks: "a watcher of a name held by readers is called only when the last reader is gone",
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
		breaks: "a watcher is still called after the watch is stopped",
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
		breaks: "a client has at most four watches",
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
		breaks: "a watcher is not called while other clients wait",
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

// untilOutage calls changed until the first outage. It polls for the outage
// until stop is called.
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

// breakWatch returns a mutation of the function that a watch calls, and of what
// happens when the watch is stopped.
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
