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
		breaks: "a fixed lease ends on the backend after nine tenths of its TTL",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			if l.r.Fixed {
				time.AfterFunc(l.r.TTL/10*9, func() { expireHold(d, l.r) })
			}
		}),
	},
	{check: "expiry/waiters", breaks: "waiters are notified of releases but not of expiries", mutate: deafToExpiry()},
	{
		check:  "expiry/extend",
		breaks: "the extension of a fixed lease is not sent to the backend",
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
					real = time.Until(l.Lease.Expires()) // the rest of the lease
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
	{check: "expiry/abandoned", breaks: "the client ends a lease instead of the backend", mutate: endedByClient()},
	{
		check:  "expiry/holder-first",
		breaks: "the lease of a waiter counts from the arrival of the grant",
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
	{check: "expiry/race", breaks: "a client that finds an expired lease takes the name without checking it again", mutate: overwriteExpired()},
}

// expireHold ends the hold of r on the backend, if it still exists.
func expireHold(d *memory.Driver, r *driver.Request) {
	if s, err := d.Server().NewDriver().Inspect(context.Background(), r.Name); err == nil && s.Hold == r.Hold {
		d.Server().Expire(r.Name)
	}
}

// ends contains the time at which the last hold of each name ends by itself. A
// hold that was released before that does not end by itself.
type ends struct{ m sync.Map }

// keep records l.
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

// deafToExpiry is a mutation that drops a grant to a waiter if the previous
// lease expired.
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

// endedByClient is a mutation whose leases have a very long TTL on the backend,
// and are released by a timer in the client.
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

// overwriteExpired is a mutation in which a try that finds an expired lease
// takes the name from its current holder.
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

var boundsMutants = []mutant{
	{
		check:  "expiry/bounds",
		breaks: "the backend counts TTLs of more than a second in tenths of a second",
		mutate: keptFor(func(ttl time.Duration) time.Duration {
			if ttl < time.Second {
				return ttl
			}
			return ttl.Truncate(time.Second / 10)
		}),
	},
	{
		check:  "expiry/bounds",
		breaks: "the backend keeps a hold for 30 s, whatever its TTL is",
		mutate: keptFor(func(ttl time.Duration) time.Duration { return max(ttl, 30*time.Second) }),
	},
	{
		check:  "expiry/bounds",
		breaks: "the backend keeps a hold a tenth of a second longer than Info.Late allows",
		mutate: keptFor(func(ttl time.Duration) time.Duration { return ttl + time.Second/10 }),
	},
	{
		check:  "expiry/bounds",
		breaks: "the shortening of a fixed lease is not sent to the backend",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			var believed belief
			l.expires = func() time.Time { return believed.or(l.Lease.Expires()) }
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				end := time.Now().Add(ttl)
				if end.Before(l.expires()) {
					believed.set(end)
					return nil
				}
				believed.set(time.Time{})
				return l.Lease.Renew(ctx, ttl)
			}
		}),
	},
	{
		check:  "expiry/bounds",
		breaks: "waiters are not notified that a fixed lease was made shorter",
		mutate: deafToShorter(),
	},
	{
		check:  "expiry/bounds",
		breaks: "a lease that no other client requested lasts half a second too long",
		mutate: lateForNewcomers(),
	},
}

// keptFor returns a mutation in which the backend keeps holds for a time other
// than their TTL. Package dsync releases leases that would end too late.
func keptFor(f func(time.Duration) time.Duration) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d,
			acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				q := *r
				q.TTL = f(r.TTL)
				l, err := d.Acquire(ctx, &q)
				if l == nil {
					return l, err
				}
				more := &shifted{by: r.TTL - q.TTL}
				return &brokenLease{Lease: l, r: r,
					expires: func() time.Time { return more.end(l.Expires()) },
					renew: func(ctx context.Context, ttl time.Duration) error {
						end := more.end(l.Expires())
						if !time.Now().Before(end) {
							return driver.ErrNotHeld
						}
						err := l.Renew(ctx, f(ttl))
						if !time.Now().Before(end) {
							more.set(time.Until(end) - time.Until(l.Expires())) // the lease has ended
							return driver.ErrNotHeld
						}
						if err == nil {
							more.set(ttl - f(ttl))
						}
						return err
					},
					release: func(ctx context.Context) error {
						late := !time.Now().Before(more.end(l.Expires()))
						err := l.Release(ctx)
						if late && err == nil {
							return driver.ErrNotHeld
						}
						return err
					},
				}, nil
			},
		}
	}
}

// shifted is how much later than its real end a lease seems to end.
type shifted struct {
	mu sync.Mutex
	by time.Duration
}

func (s *shifted) set(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by = by
}

func (s *shifted) end(t time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.Add(s.by)
}

// deafToShorter is a mutation in which waiters do not detect that a lease has
// become shorter. They are granted the name only at the lease's original end.
func deafToShorter() func(*memory.Driver) driver.Driver {
	var ends sync.Map // ends that were moved to earlier, by name
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d,
			lease: func(l *brokenLease) {
				l.renew = func(ctx context.Context, ttl time.Duration) error {
					before := l.Lease.Expires()
					err := l.Lease.Renew(ctx, ttl)
					if err == nil && l.Lease.Expires().Before(before) {
						ends.Store(l.r.Name, before)
					}
					return err
				}
				l.release = func(ctx context.Context) error {
					if time.Now().Before(l.Lease.Expires()) {
						ends.Delete(l.r.Name)
					}
					return l.Lease.Release(ctx)
				}
			},
			acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				q, early := *r, false
				q.Events = &waitingEvents{r.Events, func() {
					_, shorter := ends.Load(r.Name)
					early = !shorter
				}}
				l, err := d.Acquire(ctx, &q)
				end, shorter := ends.Load(r.Name)
				if l == nil || !early || !shorter {
					return l, err
				}
				_ = l.Release(ctx)
				time.Sleep(time.Until(end.(time.Time)))
				return d.Acquire(ctx, r)
			},
		}
	}
}

// lateForNewcomers is a mutation in which fixed leases end half a second late,
// unless another client requests the name before.
func lateForNewcomers() func(*memory.Driver) driver.Driver {
	var last ends
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d,
			lease: func(l *brokenLease) {
				if l.r.Fixed {
					last.keep(l)
				}
			},
			acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				if !last.expired(r.Name) {
					last.m.Delete(r.Name)
					return d.Acquire(ctx, r)
				}
				end, _ := last.m.Load(r.Name)
				late := time.Until(end.(time.Time).Add(time.Second / 2))
				if r.NoWait && late > 0 {
					return nil, driver.ErrLocked
				}
				time.Sleep(late)
				return d.Acquire(ctx, r)
			},
		}
	}
}
