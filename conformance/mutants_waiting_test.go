package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var waitingMutants = []mutant{
	{
		check:  "waiting/try",
		breaks: "a refused attempt reports that it waits",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if r.NoWait && err != nil {
				r.Events.Waiting()
			}
			return l, err
		}),
	},
	{
		check:  "waiting/try",
		breaks: "an attempt polls for three seconds",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			for range 3 {
				if l, err := d.Acquire(ctx, r); !r.NoWait || !errors.Is(err, driver.ErrLocked) {
					return l, err
				}
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "waiting/prompt",
		breaks: "a waiter polls every fifth of a second",
		mutate: claimingUnordered(breakWait(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			r.Events.Waiting()
			try := *r
			try.NoWait = true
			for {
				select {
				case <-time.After(time.Second / 5):
				case <-ctx.Done():
					return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
				}
				if l, err := d.Acquire(ctx, &try); !errors.Is(err, driver.ErrLocked) {
					return l, err
				}
			}
		})),
	},
	{
		check:  "waiting/context",
		breaks: "a lease is released when the context of its Acquire ends",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if l != nil {
				context.AfterFunc(ctx, func() { _ = l.Release(context.Background()) })
			}
			return l, err
		}),
	},
	{
		check:  "waiting/context",
		breaks: "a lease is renewed until the context of its Acquire ends",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if l == nil {
				return l, err
			}
			return &brokenLease{Lease: l, r: r, renew: func(_ context.Context, ttl time.Duration) error { return l.Renew(ctx, ttl) }}, nil
		}),
	},
	{
		check:  "waiting/woken",
		breaks: "a release wakes no waiter",
		mutate: breakWait(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			r.Events.Waiting()
			<-ctx.Done()
			return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		}),
	},
	{
		check:  "waiting/woken",
		breaks: "a wait is not reported",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			q := *r
			q.Events = &countedEvents{r.Events, 0}
			return d.Acquire(ctx, &q)
		}),
	},
	{
		check:  "waiting/event",
		breaks: "a request for a free name reports that it waits",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if err == nil {
				r.Events.Waiting()
			}
			return l, err
		}),
	},
	{
		check:  "waiting/event",
		breaks: "a wait is reported twice",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			q := *r
			q.Events = &countedEvents{r.Events, 2}
			return d.Acquire(ctx, &q)
		}),
	},
	{
		check:  "waiting/deadline",
		breaks: "a wait that timed out does not report that the name was held",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if err != nil && ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return l, err
		}),
	},
	{
		check:  "waiting/deadline",
		breaks: "a wait that timed out does not return the error of its context",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if errors.Is(err, context.DeadlineExceeded) {
				return nil, fmt.Errorf("%w: timeout", driver.ErrLocked)
			}
			return l, err
		}),
	},
	{
		check:  "waiting/deadline",
		breaks: "a wait ends before its deadline",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if deadline, ok := ctx.Deadline(); ok {
				var cancel context.CancelFunc
				ctx, cancel = context.WithDeadline(ctx, deadline.Add(-10*time.Millisecond))
				defer cancel()
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "waiting/cancel",
		breaks: "a wait that was canceled stays in the queue",
		mutate: breakWait(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			type answer struct {
				driver.Lease
				error
			}
			answers := make(chan answer, 1)
			go func() { // ends when the lock is granted or in Close
				l, err := d.Acquire(uncanceled{ctx}, r)
				answers <- answer{l, err}
			}()
			gone := ctx.Done()
			if _, ok := ctx.Deadline(); ok {
				gone = nil
			}
			select {
			case a := <-answers:
				return a.Lease, a.error
			case <-gone:
				return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
			}
		}),
	},
	{
		check:  "waiting/cancel",
		breaks: "the cleanup after a canceled wait deletes the name",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if errors.Is(err, context.Canceled) {
				d.Server().Expire(r.Name)
			}
			return l, err
		}),
	},
	{
		check:  "waiting/cancel-at-grant",
		breaks: "a grant that coincides with a cancellation is dropped",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if err == nil && ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return l, err
		}),
	},
	{
		check:  "waiting/cancel-at-grant",
		breaks: "a grant that coincides with a cancellation returns a lease and an error",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if err == nil {
				err = ctx.Err()
			}
			return l, err
		}),
	},
	{
		check:  "waiting/done-context",
		breaks: "a request whose context has ended is sent and its answer is dropped",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if ctx.Err() == nil {
				return d.Acquire(ctx, r)
			}
			try := *r
			try.NoWait = true
			_, _ = d.Acquire(context.WithoutCancel(ctx), &try)
			return nil, ctx.Err()
		}),
	},
	{
		check:  "waiting/queue",
		breaks: "waiters that gave up are counted forever",
		mutate: func(d *memory.Driver) driver.Driver {
			var most atomic.Int64
			return &broken{Driver: d, inspect: func(ctx context.Context, name string) (driver.Status, error) {
				s, err := d.Inspect(ctx, name)
				most.Store(max(most.Load(), int64(s.Waiters)))
				s.Waiters = int(most.Load())
				return s, err
			}}
		},
	},
}

// uncanceled is a context without its parent's cancellation, but with its
// deadline.
type uncanceled struct{ context.Context }

func (c uncanceled) Done() <-chan struct{} {
	if _, ok := c.Deadline(); ok {
		return c.Context.Done()
	}
	return nil
}

func (c uncanceled) Err() error {
	if _, ok := c.Deadline(); ok {
		return c.Context.Err()
	}
	return nil
}

// countedEvents reports each wait a number of times.
type countedEvents struct {
	driver.Events
	times int
}

func (v *countedEvents) Waiting() {
	for range v.times {
		v.Events.Waiting()
	}
}

// breakWait returns a mutation that replaces the wait of a request that was
// refused once.
func breakWait(wait func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error)) func(*memory.Driver) driver.Driver {
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		try := *r
		try.NoWait = true
		l, err := d.Acquire(ctx, &try)
		if r.NoWait || !errors.Is(err, driver.ErrLocked) {
			return l, err
		}
		return wait(d, ctx, r)
	})
}

// claimingUnordered returns a mutation that claims no order and cannot count
// waiters.
func claimingUnordered(mutate func(*memory.Driver) driver.Driver) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		b := mutate(d).(*broken)
		b.info = func(i driver.Info) driver.Info {
			i.Order = driver.Unordered
			return i
		}
		b.inspect = func(ctx context.Context, name string) (driver.Status, error) {
			s, err := d.Inspect(ctx, name)
			s.Waiters, s.Queue = -1, nil
			return s, err
		}
		return b
	}
}

var deadlineMutants = []mutant{
	{check: "deadlines/held", breaks: "a call with little time left does not return the last answer", owner: hasty()},
	{
		check:  "deadlines/silent",
		breaks: "a wait that ended takes half a second to leave the backend",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if ctx.Err() != nil {
				farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), 500*time.Millisecond)
				defer cancel()
				_, _ = d.Inspect(farewell, r.Name)
			}
			return l, err
		}),
	},
}

// hasty returns a mutation whose waits of less than a tenth of a second return
// only the error of their context.
func hasty() func(*client, locker) locker {
	return func(_ *client, l locker) locker { return hastyLocker{l} }
}

type hastyLocker struct{ locker }

func (l hastyLocker) lock(ctx context.Context, try bool, name string, opts ...dsync.LockOption) (lease, error) {
	end, ok := ctx.Deadline()
	brief := ok && time.Until(end) < 100*time.Millisecond
	h, err := l.locker.lock(ctx, try, name, opts...)
	if err != nil && brief && ctx.Err() != nil {
		err = ctx.Err()
	}
	return h, err
}
