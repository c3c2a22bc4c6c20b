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

var leaseMutants = []mutant{
	{
		check:  "lease/expires",
		breaks: "a margin is subtracted from Expires",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.expires = func() time.Time { return l.Lease.Expires().Add(-time.Millisecond) }
		}),
	},
	{
		check:  "lease/expires",
		breaks: "Expires is later than the TTL",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.expires = func() time.Time { return l.Lease.Expires().Add(time.Millisecond) }
		}),
	},
	{
		check:  "lease/expires",
		breaks: "Expires is a time of the wall clock",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.expires = func() time.Time { return l.Lease.Expires().Round(0) }
		}),
		clock: true,
	},
	{
		check:  "lease/after-wait",
		breaks: "after a wait Expires counts from the request that waited",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				sent := time.Now()
				l, err := d.Acquire(ctx, r)
				if l == nil || time.Now().Equal(sent) {
					return l, err
				}
				return &brokenLease{Lease: l, r: r, expires: func() time.Time { return sent.Add(r.TTL) }}, nil
			}}
		},
	},
	{
		check:  "lease/after-wait",
		breaks: "a place in the queue ends with its TTL",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			queued, cancel := context.WithTimeout(ctx, r.TTL)
			defer cancel()
			l, err := d.Acquire(queued, r)
			if err != nil && queued.Err() != nil {
				<-ctx.Done()
				return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
			}
			return l, err
		}),
	},
	{
		check:  "lease/renew",
		breaks: "Renew does not move Expires",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			at := l.Lease.Expires()
			l.expires = func() time.Time { return at }
		}),
	},
	{
		check:  "lease/renew",
		breaks: "Expires never moves to an earlier time",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			var latest atomic.Int64
			l.expires = func() time.Time {
				latest.Store(max(latest.Load(), l.Lease.Expires().UnixNano()))
				return time.Unix(0, latest.Load())
			}
		}),
	},
	{
		check:  "lease/over",
		breaks: "a renewal acquires an expired name again",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			again := &retaken{d: d, brokenLease: l}
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				err := l.Lease.Renew(ctx, ttl)
				if errors.Is(err, driver.ErrNotHeld) && !again.released.Load() {
					return again.take(ttl)
				}
				return err
			}
			l.release = func(ctx context.Context) error {
				again.released.Store(true)
				return l.Lease.Release(ctx)
			}
			l.expires = again.until
		}),
	},
	{
		check:  "lease/late-renewal",
		breaks: "a renewal that was sent in time acquires the name again when the lease has expired in the meantime",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			again := &retaken{d: d, brokenLease: l}
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				inTime := time.Now().Before(l.Lease.Expires())
				err := l.Lease.Renew(ctx, ttl)
				if inTime && errors.Is(err, driver.ErrNotHeld) && !time.Now().Before(l.Lease.Expires()) {
					return again.take(ttl)
				}
				return err
			}
			l.expires = again.until
		}),
	},
	{
		check:  "lease/renew-all",
		breaks: "RenewAll reports the outcome of the first lease for all",
		mutate: func(d *memory.Driver) driver.Driver {
			return breakRenewAll(d, func(ctx context.Context, leases []driver.Lease, done func(int, error)) {
				var first error
				d.RenewAll(ctx, leases, func(i int, err error) {
					if i == 0 {
						first = err
					}
					done(i, first)
				})
			})
		},
	},
	{
		check:  "lease/renew-all",
		breaks: "RenewAll is not done when it returns",
		mutate: func(d *memory.Driver) driver.Driver {
			return breakRenewAll(d, func(_ context.Context, leases []driver.Lease, done func(int, error)) {
				go func() { // ends in a millisecond
					time.Sleep(time.Millisecond)
					d.RenewAll(context.Background(), leases, done)
				}()
			})
		},
	},
	{
		check:  "lease/renew-all",
		breaks: "RenewAll reports outcomes twice",
		mutate: func(d *memory.Driver) driver.Driver {
			return breakRenewAll(d, func(ctx context.Context, leases []driver.Lease, done func(int, error)) {
				d.RenewAll(ctx, leases, done)
				d.RenewAll(ctx, leases, done)
			})
		},
	},
}

func breakRenewAll(d *memory.Driver, f func(context.Context, []driver.Lease, func(int, error))) driver.Driver {
	return &broken{Driver: d, renewAll: f}
}

// retaken is a lease whose name is acquired again.
type retaken struct {
	d *memory.Driver
	*brokenLease
	released atomic.Bool
	second   atomic.Pointer[driver.Lease]
}

// take acquires the name, if it is free.
func (l *retaken) take(ttl time.Duration) error {
	again := *l.r
	again.NoWait, again.TTL = true, ttl
	second, err := l.d.Acquire(context.Background(), &again)
	if err != nil {
		return driver.ErrNotHeld
	}
	l.second.Store(&second)
	return nil
}

func (l *retaken) until() time.Time {
	if second := l.second.Load(); second != nil {
		return (*second).Expires()
	}
	return l.Lease.Expires()
}

var lengthMutants = []mutant{
	{
		check:  "lengths/renewed",
		breaks: "the backend renews leases for at most a year",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				return l.Lease.Renew(ctx, min(ttl, 365*24*time.Hour))
			}
		}),
	},
	{
		check:  "lengths/extended",
		breaks: "a lease does not report the session that carries it",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.session = func() (time.Time, time.Duration) { return time.Time{}, 0 }
		}),
		on: memory.Options{KeepsAlive: true},
	},
	{check: "lengths/many", breaks: "from the ninth length on, leases belong to a short session without reporting it", mutate: fewLengths()},
}

// fewLengths is a mutation with one session for all fixed leases, except those
// with one of the first lengths.
func fewLengths() func(*memory.Driver) driver.Driver {
	const session = 100 * time.Millisecond
	return func(d *memory.Driver) driver.Driver {
		var mu sync.Mutex
		lengths := map[time.Duration]bool{}
		ownSession := func(ttl time.Duration) bool {
			mu.Lock()
			defer mu.Unlock()
			if len(lengths) < 8 {
				lengths[ttl] = true
			}
			return lengths[ttl]
		}
		return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if l == nil || !r.Fixed || ownSession(r.TTL) {
				return l, err
			}
			return &brokenLease{Lease: l, r: r, expires: func() time.Time {
				end, own := time.Now().Add(session), l.Expires() // the session is always kept alive
				if own.Before(end) {
					return own
				}
				return end
			}}, nil
		}}
	}
}

var batchMutants = []mutant{
	{
		check:  "batches/ttls",
		breaks: "a batch is renewed for the TTL of its first lease",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			return batch[i].Lease.Renew(ctx, batch[0].r.TTL)
		}),
	},
	{
		check:  "batches/ttls",
		breaks: "the server renews a batch for its shortest TTL without the driver's knowledge",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			shortest := batch[i].r.TTL
			for _, l := range batch {
				shortest = min(shortest, l.r.TTL)
			}
			end := time.Now().Add(batch[i].r.TTL)
			if shortest < batch[i].r.TTL {
				batch[i].expires = func() time.Time { return end }
			}
			return batch[i].Lease.Renew(ctx, shortest)
		}),
	},
	{
		check:  "batches/ttls",
		breaks: "the server renews a batch for its longest TTL",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			longest := batch[i].r.TTL
			for _, l := range batch {
				longest = max(longest, l.r.TTL)
			}
			if longest > batch[i].r.TTL {
				_ = batch[i].pretend()
			}
			return batch[i].Lease.Renew(ctx, longest)
		}),
	},
	{
		check:  "batches/same-name",
		breaks: "of several holds of one name in a batch, only the first is renewed",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			for _, l := range batch[:i] {
				if l.r.Name == batch[i].r.Name {
					return batch[i].pretend()
				}
			}
			return batch[i].Lease.Renew(ctx, batch[i].r.TTL)
		}),
	},
	{
		check:  "batches/many",
		breaks: "a removed hold is reported as renewed in a batch",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			err := batch[i].Lease.Renew(ctx, batch[i].r.TTL)
			if len(batch) > 4 && errors.Is(err, driver.ErrNotHeld) && time.Now().Before(batch[i].Lease.Expires()) {
				return batch[i].pretend()
			}
			return err
		}),
	},
	{
		check:  "batches/many",
		breaks: "from the 257th on, the leases of a batch are reported as renewed but are not renewed",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			if i >= 256 {
				return batch[i].pretend()
			}
			return batch[i].Lease.Renew(ctx, batch[i].r.TTL)
		}),
	},
	{
		check:  "batches/many",
		breaks: "the leases behind one whose hold was removed are reported as ended",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			if len(batch) > 4 && i > 0 && errors.Is(batch[i-1].Lease.Renew(ctx, batch[i-1].r.TTL), driver.ErrNotHeld) {
				return driver.ErrNotHeld
			}
			return batch[i].Lease.Renew(ctx, batch[i].r.TTL)
		}),
	},
	{
		check:  "batches/no-answer",
		breaks: "the leases of a batch that got no answer are reported as ended",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			err := batch[i].Lease.Renew(ctx, batch[i].r.TTL)
			if i > 1 && err != nil {
				return driver.ErrNotHeld
			}
			return err
		}),
	},
	{
		check:  "batches/no-answer",
		breaks: "a batch of five moves Expires before its answer arrives",
		mutate: breakEach(func(ctx context.Context, batch []*brokenLease, i int) error {
			err := batch[i].Lease.Renew(ctx, batch[i].r.TTL)
			if errors.Is(err, driver.ErrUnknown) && len(batch) == 5 {
				_ = batch[i].pretend()
			}
			return err
		}),
	},
	{
		check:  "batches/busy",
		breaks: "a lease whose Renew is under way is reported as renewed in a batch",
		mutate: func(d *memory.Driver) driver.Driver {
			b := &broken{Driver: d, lease: func(l *brokenLease) {
				var busy atomic.Int32
				l.renew = func(ctx context.Context, ttl time.Duration) error {
					if busy.Add(1) > 1 {
						busy.Add(-1)
						return nil
					}
					defer busy.Add(-1)
					return l.Lease.Renew(ctx, ttl)
				}
			}}
			return b
		},
	},
	{
		check:  "batches/empty",
		breaks: "an empty batch has an outcome",
		mutate: func(d *memory.Driver) driver.Driver {
			return breakRenewAll(d, func(ctx context.Context, leases []driver.Lease, done func(int, error)) {
				if len(leases) == 0 {
					done(0, nil)
				}
				d.RenewAll(ctx, leases, done)
			})
		},
	},
}

// breakEach returns a mutation that renews the leases of a batch one by one.
func breakEach(renew func(ctx context.Context, batch []*brokenLease, i int) error) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		b := &broken{Driver: d, lease: func(*brokenLease) {}}
		b.renewAll = func(ctx context.Context, leases []driver.Lease, done func(int, error)) {
			batch := make([]*brokenLease, len(leases))
			for i, l := range leases {
				batch[i] = l.(*brokenLease)
			}
			for i := range batch {
				done(i, renew(ctx, batch, i))
			}
		}
		return b
	}
}

// pretend moves Expires as if the lease had been renewed.
func (l *brokenLease) pretend() error {
	end := time.Now().Add(l.r.TTL)
	l.expires = func() time.Time { return end }
	return nil
}
