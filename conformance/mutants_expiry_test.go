package conformance

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var expiryMutants = []mutant{
	{
		check:  "expiry/not-early",
		breaks: "a fixed lease ends at the backend a tenth before its time",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			if l.r.Fixed {
				time.AfterFunc(l.r.TTL/10*9, func() { expireHold(d, l.r) })
			}
		}),
	},
	{check: "expiry/waiters", breaks: "those who wait hear of releases and not of expiries", mutate: deafToExpiry()},
	{
		check:  "expiry/extend",
		breaks: "the backend is not told that a fixed lease was extended",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			var mu sync.Mutex
			end := l.Lease.Expires()
			l.expires = func() time.Time {
				mu.Lock()
				defer mu.Unlock()
				return end
			}
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				sent, real := time.Now(), ttl
				if l.r.Fixed {
					real = time.Until(l.Lease.Expires()) // as long as it would last anyway
				}
				err := l.Lease.Renew(ctx, max(real, 1))
				if err == nil {
					mu.Lock()
					defer mu.Unlock()
					end = sent.Add(ttl)
				}
				return err
			}
		}),
	},
	{check: "expiry/abandoned", breaks: "a lease is ended by its client and not by the backend", mutate: endedByClient()},
	{
		check:  "expiry/holder-first",
		breaks: "the lease of one who waited counts from the arrival of the grant",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			waited := false
			q := *r
			q.Events = &waitingEvents{r.Events, func() { waited = true }}
			l, err := d.Acquire(ctx, &q)
			if l == nil || !waited {
				return l, err
			}
			end := time.Now().Add(r.TTL)
			return &brokenLease{Lease: l, r: r, expires: func() time.Time {
				if now := l.Expires(); now.After(end) {
					return now
				}
				return end
			}}, nil
		}),
	},
	{check: "expiry/race", breaks: "who finds a lease expired takes the name without looking again", mutate: overwriteExpired()},
}

// expireHold ends the hold of r at the backend, if it is still there.
func expireHold(d *memory.Driver, r *driver.Request) {
	if s, err := d.Server().NewDriver().Inspect(context.Background(), r.Name); err == nil && s.Hold == r.Hold {
		d.Server().Expire(r.Name)
	}
}

// ends is when the last hold of each name ends by itself. Holds that are released before do not.
type ends struct{ m sync.Map }

// keep takes note of l.
func (v *ends) keep(l *brokenLease) {
	v.m.Store(l.r.Name, l.Lease.Expires())
	l.release = func(ctx context.Context) error {
		if time.Now().Before(l.Lease.Expires()) {
			v.m.Delete(l.r.Name)
		}
		return l.Lease.Release(ctx)
	}
}

// expired reports whether the last hold of name ended by itself.
func (v *ends) expired(name string) bool {
	end, ok := v.m.Load(name)
	return ok && !time.Now().Before(end.(time.Time))
}

// deafToExpiry is a mutation that drops what is granted to a waiter because the lease before ran out.
func deafToExpiry() func(*memory.Driver) driver.Driver {
	var last ends
	return func(d *memory.Driver) driver.Driver {
		return &broken{
			Driver: d,
			lease: func(l *brokenLease) {
				if l.r.Fixed {
					last.keep(l)
				}
			},
			acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				q, waited := *r, false
				q.Events = &waitingEvents{r.Events, func() { waited = true }}
				l, err := d.Acquire(ctx, &q)
				if l != nil && waited && last.expired(r.Name) {
					err = l.Release(ctx)
					<-ctx.Done()
					return nil, errors.Join(ctx.Err(), err)
				}
				return l, err
			},
		}
	}
}

// endedByClient is a mutation whose leases last very long at the backend, and are released by a timer of the client.
func endedByClient() func(*memory.Driver) driver.Driver {
	const forever = 200 * 365 * 24 * time.Hour
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		q := *r
		q.TTL = forever
		l, err := d.Acquire(ctx, &q)
		if l == nil {
			return l, err
		}
		var mu sync.Mutex
		end := l.Expires().Add(r.TTL - forever)
		timer := time.AfterFunc(time.Until(end), func() { _ = l.Release(context.Background()) })
		return &brokenLease{
			Lease: l, r: r,
			expires: func() time.Time {
				mu.Lock()
				defer mu.Unlock()
				return end
			},
			renew: func(ctx context.Context, ttl time.Duration) error {
				sent := time.Now()
				err := l.Renew(ctx, forever)
				mu.Lock()
				defer mu.Unlock()
				if err == nil && sent.Before(end) {
					end = sent.Add(ttl)
					timer.Reset(time.Until(end))
				}
				return err
			},
			release: func(ctx context.Context) error {
				timer.Stop()
				return l.Release(ctx)
			},
		}, nil
	})
}

// overwriteExpired is a mutation in which a try that finds the lease before expired takes the name from whoever has it by then.
func overwriteExpired() func(*memory.Driver) driver.Driver {
	var last ends
	return func(d *memory.Driver) driver.Driver {
		return &broken{
			Driver: d,
			lease: func(l *brokenLease) {
				if l.r.Fixed {
					last.keep(l)
				}
			},
			acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				if !r.NoWait || r.Fixed || !last.expired(r.Name) {
					return d.Acquire(ctx, r)
				}
				s, err := d.Inspect(ctx, r.Name)
				if err != nil || s.Held {
					return d.Acquire(ctx, r)
				}
				time.Sleep(time.Millisecond)
				return overwrite(d, r)
			},
		}
	}
}
