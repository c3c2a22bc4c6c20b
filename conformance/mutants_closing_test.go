package conformance

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var closingMutants = []mutant{
	{
		check:  "closing/later",
		breaks: "a closed driver returns an error other than ErrClosed",
		mutate: breakClosed(func(d *closable, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if d.isClosed() {
				return nil, errors.New("use of a closed connection")
			}
			return d.Acquire(ctx, r)
		}, nil),
	},
	{
		check:  "closing/waiters",
		breaks: "a waiter gets the error of a context when the driver is closed",
		mutate: breakClosed(func(d *closable, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			open := !d.isClosed()
			l, err := d.Acquire(ctx, r)
			if open && errors.Is(err, driver.ErrClosed) {
				err = context.Canceled
			}
			return l, err
		}, nil),
	},
	{
		check:  "closing/waiters",
		breaks: "Close waits for the waiters",
		mutate: func(d *memory.Driver) driver.Driver {
			var busy sync.WaitGroup
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				busy.Add(1)
				defer busy.Done()
				return d.Acquire(ctx, r)
			}, close: func(ctx context.Context) error {
				busy.Wait()
				return d.Close(ctx)
			}}
		},
	},
	{
		check:  "closing/holds",
		breaks: "Close leaves holds to their TTLs",
		mutate: breakClosed(nil, func(d *closable, ctx context.Context) error {
			left := d.live()
			err := d.Close(ctx)
			for _, l := range left {
				leave(d.Driver, l.r)
			}
			return err
		}),
	},
	{
		check:  "closing/modes",
		breaks: "Close forgets Read holds",
		mutate: closeForgets(func(of []*brokenLease, l *brokenLease) bool { return l.r.Mode == driver.Read }),
	},
	{
		check:  "closing/modes",
		breaks: "Close ends one of several holds of a name",
		mutate: closeForgets(func(of []*brokenLease, l *brokenLease) bool {
			i := slices.IndexFunc(of, func(other *brokenLease) bool { return other.r.Name == l.r.Name })
			return of[i] != l
		}),
	},
	{
		check:  "permits/limit-life",
		breaks: "Close forgets permits",
		mutate: closeForgets(func(of []*brokenLease, l *brokenLease) bool { return l.r.Mode == driver.Permit }),
	},
	{
		check:  "closing/modes",
		breaks: "Close ends the holds of other clients, too",
		mutate: breakClosed(nil, func(d *closable, ctx context.Context) error {
			for _, l := range d.live() {
				d.Server().Expire(l.r.Name)
			}
			return d.Close(ctx)
		}),
	},
	{
		check:  "closing/behind",
		breaks: "Close ends a wait for many permits but leaves its place in the queue",
		mutate: func(d *memory.Driver) driver.Driver {
			c := newClosable(d)
			c.broken.acquire = func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				try := *r
				try.NoWait = true
				l, err := d.Acquire(ctx, &try)
				if r.NoWait || r.Permits != 3 || !errors.Is(err, driver.ErrLocked) {
					if err != nil && !r.NoWait {
						l, err = d.Acquire(ctx, r)
					}
					return l, err
				}
				return c.waitElsewhere(ctx, r)
			}
			return c.broken
		},
	},
	{
		check:  "closing/own-waiters",
		breaks: "Close releases holds before it ends the waits",
		mutate: breakClosed(nil, func(d *closable, ctx context.Context) error {
			for _, l := range d.live() {
				_ = l.Lease.Release(ctx)
			}
			time.Sleep(time.Millisecond)
			return d.Close(ctx)
		}),
	},
	{
		check:  "closing/leases",
		breaks: "a renewal after Close takes the name again",
		mutate: func(d *memory.Driver) driver.Driver {
			c := newClosable(d)
			c.broken.lease = func(l *brokenLease) {
				l.renew = func(ctx context.Context, ttl time.Duration) error {
					if c.isClosed() {
						leave(d, l.r)
					}
					return l.Lease.Renew(ctx, ttl)
				}
			}
			return c.broken
		},
	},
	{
		check:  "closing/busy",
		breaks: "a grant that arrives during Close is dropped",
		mutate: breakClosed(func(d *closable, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			time.Sleep(time.Millisecond)
			if err == nil && d.isClosed() {
				leave(d.Driver, r)
				return nil, driver.ErrClosed
			}
			return l, err
		}, nil),
	},
	{
		check:  "closing/hung",
		breaks: "Close waits for an answer forever",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, close: func(ctx context.Context) error { return d.Close(context.WithoutCancel(ctx)) }}
		},
	},
}

// closeForgets returns a mutation whose Close does not release some of the
// holds. These end when their TTLs expire.
func closeForgets(forgets func(of []*brokenLease, l *brokenLease) bool) func(*memory.Driver) driver.Driver {
	return breakClosed(nil, func(d *closable, ctx context.Context) error {
		of := d.live()
		for _, l := range of {
			if forgets(of, l) {
				leaveBeside(d.Driver, l.r)
			}
		}
		return d.Close(ctx)
	})
}

// waitElsewhere waits with another client, which continues to wait when d is
// closed.
func (c *closable) waitElsewhere(ctx context.Context, r *driver.Request) (l driver.Lease, err error) {
	waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	done := make(chan struct{})
	go func() { // ends within a minute
		defer close(done)
		defer cancel()
		l, err = c.Server().NewDriver().Acquire(waiting, r)
	}()
	select {
	case <-done:
		return l, err
	case <-c.closed:
		return nil, driver.ErrClosed
	case <-ctx.Done():
	}
	cancel()
	<-done
	return l, err
}

// leaveBeside leaves another hold of the name behind if the existing holds
// admit it.
func leaveBeside(d *memory.Driver, r *driver.Request) {
	try := *r
	try.NoWait = true
	_, _ = d.Server().NewDriver().Acquire(context.Background(), &try)
}

// closable is a driver that knows whether it is closed, and its holds.
type closable struct {
	*memory.Driver
	broken *broken
	closed chan struct{}

	mu    sync.Mutex
	holds map[*brokenLease]bool
}

func newClosable(d *memory.Driver) *closable {
	c := &closable{Driver: d, closed: make(chan struct{}), holds: map[*brokenLease]bool{}}
	c.broken = &broken{Driver: d, lease: c.keep, close: func(ctx context.Context) error {
		close(c.closed)
		return d.Close(ctx)
	}}
	return c
}

// breakClosed returns a mutation that replaces Acquire, or Close. A nil
// function replaces nothing.
func breakClosed(
	acquire func(*closable, context.Context, *driver.Request) (driver.Lease, error), closes func(*closable, context.Context) error,
) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		c := newClosable(d)
		if acquire != nil {
			c.broken.acquire = func(ctx context.Context, r *driver.Request) (driver.Lease, error) { return acquire(c, ctx, r) }
		}
		if closes != nil {
			c.broken.close = func(ctx context.Context) error { return closes(c, ctx) }
		}
		return c.broken
	}
}

func (c *closable) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// keep records a lease until it is released.
func (c *closable) keep(l *brokenLease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holds[l] = true
	l.release = func(ctx context.Context) error {
		c.mu.Lock()
		delete(c.holds, l)
		c.mu.Unlock()
		return l.Lease.Release(ctx)
	}
}

// live returns the leases that were not released.
func (c *closable) live() (all []*brokenLease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.holds {
		all = append(all, l)
	}
	return all
}

var crossingMutants = []mutant{
	{
		check:  "crossing/changes",
		breaks: "a countdown that was carried out returns ErrClosed when the driver is closed before its answer arrives",
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
		breaks: "a countdown that Close interrupts returns nil",
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
		breaks: "an Inspect that Close interrupts reports the name as free",
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
		breaks: "a query for a latch continues after its context ends when the driver is closed",
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
		breaks: "when the driver is closed, ending the watch of a latch waits for a message",
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
		breaks: "Close ends a hold whose Leave is unanswered",
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

// breakCrossed returns a mutation of the driver's behavior when Close crosses a
// call. closing lets time pass during which Close may begin and reports whether
// it has begun.
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

// lateClosed returns the outcome of a call, or ErrClosed if Close begins before
// the answer arrives.
func lateClosed(closing func() bool, err error) error {
	if err == nil && closing() {
		return driver.ErrClosed
	}
	return err
}
