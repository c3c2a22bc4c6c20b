package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var crossingMutants = []mutant{
	{
		check:  "crossing/changes",
		breaks: "a count-down that was carried out returns ErrClosed when the driver is closed before its answer arrives",
		mutate: breakCrossed(func(d *memory.Driver, b *brokenLatches, closing func() bool) {
			b.countDown = func(ctx context.Context, name, id string) error {
				return lateClosed(closing, d.CountDown(ctx, name, id))
			}
		}),
	},
	{
		check:  "crossing/changes",
		breaks: "a deletion that was carried out returns ErrClosed when the driver is closed before its answer arrives",
		mutate: breakCrossed(func(d *memory.Driver, b *brokenLatches, closing func() bool) {
			b.delete = func(ctx context.Context, name, id string) error {
				return lateClosed(closing, d.DeleteLatch(ctx, name, id))
			}
		}),
	},
	{
		check:  "crossing/changes",
		breaks: "a latch that was set is not reported as set when the driver is closed before its answer arrives",
		mutate: breakCrossed(func(d *memory.Driver, b *brokenLatches, closing func() bool) {
			b.set = func(ctx context.Context, name, id string, n int) (bool, error) {
				set, err := d.SetLatch(ctx, name, id, n)
				return set && !closing(), err
			}
		}),
	},
	{
		check:  "crossing/changes",
		breaks: "a count-down that Close cuts off returns nil",
		mutate: breakCrossed(func(d *memory.Driver, b *brokenLatches, _ func() bool) {
			b.countDown = func(ctx context.Context, name, id string) error {
				open := !b.closed.Load()
				err := d.CountDown(ctx, name, id)
				if errors.Is(err, driver.ErrClosed) && open {
					return nil
				}
				return err
			}
		}),
	},
	{
		check:  "crossing/changes",
		breaks: "a release that was carried out returns ErrNotHeld when the driver is closed before its answer arrives",
		mutate: breakCrossed(func(_ *memory.Driver, b *brokenLatches, closing func() bool) {
			b.lease = func(l *brokenLease) {
				l.release = func(ctx context.Context) error {
					if err := l.Lease.Release(ctx); err != nil || !closing() {
						return err
					}
					return driver.ErrNotHeld
				}
			}
		}),
	},
	{
		check:  "crossing/changes",
		breaks: "a ForceUnlock that was carried out returns ErrClosed when the driver is closed before its answer arrives",
		mutate: breakCrossed(func(d *memory.Driver, b *brokenLatches, closing func() bool) {
			b.forceUnlock = func(ctx context.Context, name string) error { return lateClosed(closing, d.ForceUnlock(ctx, name)) }
		}),
	},
	{
		check:  "crossing/changes",
		breaks: "a limit that was set returns ErrClosed when the driver is closed before its answer arrives",
		mutate: breakCrossed(func(d *memory.Driver, b *brokenLatches, closing func() bool) {
			b.setLimit = func(ctx context.Context, name string, limit int) error {
				return lateClosed(closing, d.SetLimit(ctx, name, limit))
			}
		}),
	},
	{
		check:  "crossing/questions",
		breaks: "an Inspect that Close cuts off says that the name is free",
		mutate: breakCrossed(func(d *memory.Driver, b *brokenLatches, _ func() bool) {
			b.inspect = func(ctx context.Context, name string) (driver.Status, error) {
				s, err := d.Inspect(ctx, name)
				if errors.Is(err, driver.ErrClosed) {
					err = nil
				}
				return s, err
			}
		}),
	},
	{
		check:  "crossing/requests",
		breaks: "a renewal that is repeated after Close takes the name again",
		mutate: breakCrossed(func(d *memory.Driver, b *brokenLatches, closing func() bool) {
			b.lease = func(l *brokenLease) {
				l.renew = func(ctx context.Context, ttl time.Duration) error {
					err := l.Lease.Renew(ctx, ttl)
					if l.r.Fixed && ttl == longTTL && (errors.Is(err, driver.ErrClosed) || err == nil && closing()) {
						time.Sleep(time.Millisecond)
						leave(d, l.r)
					}
					return err
				}
			}
		}),
	},
	{
		check:  "crossing/waits",
		breaks: "a question about a latch goes on after its context when the driver is closed",
		mutate: breakCrossed(func(d *memory.Driver, b *brokenLatches, closing func() bool) {
			b.count = func(ctx context.Context, name string) (int, error) {
				left, err := d.Latch(ctx, name)
				if closing() && ctx.Err() != nil {
					time.Sleep(longTTL)
				}
				return left, err
			}
		}),
	},
	{
		check:  "crossing/waits",
		breaks: "the end of the watch of a latch has to wait for a message when the driver is closed",
		mutate: breakCrossed(func(d *memory.Driver, b *brokenLatches, _ func() bool) {
			b.watch = func(name string, changed func()) (func(), error) {
				stop, err := d.WatchLatch(name, changed)
				return func() {
					if b.closed.Load() {
						time.Sleep(longTTL)
					}
					stop()
				}, err
			}
		}),
	},
	{
		check:  "crossing/leave",
		breaks: "Close ends a hold whose Leave has no answer yet",
		mutate: breakCrossed(func(d *memory.Driver, b *brokenLatches, closing func() bool) {
			b.leave = func(ctx context.Context, l driver.Lease, ttl time.Duration) error {
				if err := ctx.Err(); err != nil {
					return err
				}
				closing()
				return d.Leave(ctx, unbroken(l), ttl)
			}
		}),
	},
	{
		check:  "crossing/leave",
		breaks: "a Leave that was carried out returns ErrNotHeld when the driver is closed before its answer arrives",
		mutate: breakCrossed(func(d *memory.Driver, b *brokenLatches, closing func() bool) {
			b.leave = func(ctx context.Context, l driver.Lease, ttl time.Duration) error {
				err := d.Leave(ctx, unbroken(l), ttl)
				if closing() {
					return driver.ErrNotHeld
				}
				return err
			}
		}),
	},
}

// breakCrossed returns a mutation of what a driver does when Close crosses a call. closing lets time pass, in which Close may begin, and
// reports whether it has.
func breakCrossed(f func(d *memory.Driver, b *brokenLatches, closing func() bool)) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		b, closed := &brokenLatches{broken: broken{Driver: d}}, make(chan struct{})
		b.close = func(ctx context.Context) error {
			b.closed.Store(true)
			close(closed)
			return d.Close(ctx)
		}
		f(d, b, func() bool {
			timer := time.NewTimer(answersLate)
			defer timer.Stop()
			select {
			case <-closed:
				return true
			case <-timer.C:
				return false
			}
		})
		return b
	}
}

// lateClosed returns the outcome of a call, or ErrClosed if Close begins before the answer arrives.
func lateClosed(closing func() bool, err error) error {
	if err == nil && closing() {
		return driver.ErrClosed
	}
	return err
}
