package conformance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var faultMutants = []mutant{
	{
		check:  "faults/cut",
		breaks: "an unreachable backend looks like a held lock",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if errors.Is(err, driver.ErrUnavailable) {
				err = driver.ErrLocked
			}
			return l, err
		}),
	},
	{
		check:  "faults/cut",
		breaks: "a broken connection is not reestablished",
		mutate: func(d *memory.Driver) driver.Driver {
			var down atomic.Bool
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				if down.Load() {
					return nil, driver.ErrUnavailable
				}
				l, err := d.Acquire(ctx, r)
				if errors.Is(err, driver.ErrUnavailable) {
					down.Store(true)
				}
				return l, err
			}}
		},
	},
	{
		check:  "faults/hung-acquire",
		breaks: "an Acquire waits for its answer forever",
		mutate: func(d *memory.Driver) driver.Driver {
			closed := make(chan struct{})
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				l, err := d.Acquire(ctx, r)
				if isHung(ctx, err) {
					<-closed
				}
				return l, err
			}, close: func(ctx context.Context) error {
				close(closed)
				return d.Close(ctx)
			}}
		},
	},
	{
		check:  "faults/hung-acquire",
		breaks: "the hold of a request that arrived late remains",
		mutate: leavesHung(),
	},
	{
		check:  "faults/hung-acquire",
		breaks: "the hold of a request that arrived late remains, with a driver that queries before it requests",
		mutate: readsFirst(leavesHung()),
	},
	{
		check:  "faults/hung-wait",
		breaks: "a canceled wait leaves the queue without a time limit",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if errors.Is(err, driver.ErrLocked) && !r.NoWait {
				_, _ = d.Inspect(context.WithoutCancel(ctx), r.Name)
			}
			return l, err
		}),
	},
	{
		check:  "faults/hung-lease",
		breaks: "a renewal waits for its answer forever",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				return l.Lease.Renew(context.WithoutCancel(ctx), ttl)
			}
		}),
	},
	{
		check:  "faults/hung-lease",
		breaks: "a batch of renewals waits for its answer forever",
		mutate: func(d *memory.Driver) driver.Driver {
			return breakRenewAll(d, func(ctx context.Context, leases []driver.Lease, done func(int, error)) {
				d.RenewAll(context.WithoutCancel(ctx), leases, done)
			})
		},
	},
	{
		check:  "faults/hung-lease",
		breaks: "a release waits for its answer forever",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			l.release = func(ctx context.Context) error { return l.Lease.Release(context.WithoutCancel(ctx)) }
		}),
	},
	{
		check:  "faults/late-answer",
		breaks: "Expires counts from the arrival of the answer",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			late := time.Now().Add(l.r.TTL).Sub(l.Lease.Expires())
			l.expires = func() time.Time { return l.Lease.Expires().Add(late) }
		}),
	},
	{
		check:  "faults/late-answer",
		breaks: "after a renewal Expires counts from the arrival of the answer",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			var late atomic.Int64
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				err := l.Lease.Renew(ctx, ttl)
				if err == nil {
					late.Store(int64(time.Now().Add(ttl).Sub(l.Lease.Expires())))
				}
				return err
			}
			l.expires = func() time.Time { return l.Lease.Expires().Add(time.Duration(late.Load())) }
		}),
	},
	{
		check:  "faults/lost-acquire",
		breaks: "a grant whose answer was lost is not released",
		mutate: leavesUnknown(),
	},
	{
		check:  "faults/lost-acquire",
		breaks: "a grant whose answer was lost is not released, with a driver that reads before it writes",
		mutate: readsFirst(leavesUnknown()),
	},
	{
		check:  "faults/lost-release",
		breaks: "a release that is repeated deletes the name",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			var lost atomic.Bool
			l.release = func(ctx context.Context) error {
				if lost.Load() {
					d.Server().Expire(l.r.Name)
				}
				err := l.Lease.Release(ctx)
				lost.Store(errors.Is(err, driver.ErrUnknown) && ctx.Err() == nil)
				return err
			}
		}),
	},
}

// isHung reports whether a request ended with ctx and without an answer.
func isHung(ctx context.Context, err error) bool {
	return errors.Is(err, driver.ErrUnknown) && ctx.Err() != nil
}

// leave leaves behind a hold of the name that no client knows.
func leave(d *memory.Driver, r *driver.Request) { _, _ = overwrite(d.Server().NewDriver(), r) }

// leavesHung is a mutation in which a request remains granted if it had no
// answer before its context ended.
func leavesHung() func(*memory.Driver) driver.Driver {
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		l, err := d.Acquire(ctx, r)
		if isHung(ctx, err) {
			leave(d, r)
		}
		return l, err
	})
}

// leavesUnknown is a mutation in which a request remains granted if its answer
// was lost.
func leavesUnknown() func(*memory.Driver) driver.Driver {
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		l, err := d.Acquire(ctx, r)
		if errors.Is(err, driver.ErrUnknown) && !isHung(ctx, err) {
			leave(d, r)
		}
		return l, err
	})
}

// readsFirst returns a mutation that queries the holder of a name before it
// requests the name, so that the answer to the query is lost first.
func readsFirst(mutate func(*memory.Driver) driver.Driver) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		inner := mutate(d)
		return &broken{
			Driver: d,
			acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				if _, err := d.Inspect(ctx, r.Name); err != nil {
					return nil, err
				}
				return inner.Acquire(ctx, r)
			},
			close: inner.Close,
		}
	}
}

var lostMutants = []mutant{
	{
		check:  "faults/one-release",
		breaks: "a second unanswered release ends another hold of the client",
		mutate: func(d *memory.Driver) driver.Driver {
			var all fellowsOfClient
			return &broken{Driver: d, lease: func(l *brokenLease) {
				all.add(l)
				var unanswered atomic.Int64
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					if errors.Is(err, driver.ErrUnknown) || ctx.Err() != nil {
						if unanswered.Add(1) > 1 {
							all.endOther(d, l)
						}
					}
					return err
				}
			}}
		},
	},
	{
		check:  "faults/lost-grant",
		breaks: "a driver that repeats a request after a lost answer takes its own hold for a new grant and counts from there",
		mutate: takesOwnForNew(),
	},
	{
		check:  "faults/lost-grant",
		breaks: "a driver that reads before it writes repeats a request after a lost answer and takes its own hold for a new grant",
		mutate: readsFirst(takesOwnForNew()),
	},
	{
		check:  "faults/lost-renewal",
		breaks: "a renewal for a shorter time whose answer is lost does not move Expires",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			var believed belief
			l.expires = func() time.Time { return believed.or(l.Lease.Expires()) }
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				before := l.expires()
				err := l.Lease.Renew(ctx, ttl)
				if errors.Is(err, driver.ErrUnknown) {
					believed.set(before)
				} else if err == nil {
					believed.set(time.Time{})
				}
				return err
			}
		}),
	},
	{
		check:  "faults/lost-renewal",
		breaks: "a renewal for a shorter time moves Expires when its answer arrives",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			var believed belief
			l.expires = func() time.Time { return believed.or(l.Lease.Expires()) }
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				if !l.r.Fixed {
					return l.Lease.Renew(ctx, ttl)
				}
				believed.set(l.expires())
				timer := time.AfterFunc(ttl, func() { expireHold(d, l.r) }) // the backend has received the request
				err := l.Lease.Renew(ctx, ttl)
				if err == nil {
					timer.Stop()
				}
				if !errors.Is(err, driver.ErrUnknown) {
					believed.set(time.Time{})
				}
				return err
			}
		}),
	},
	{
		check:  "faults/clean-up",
		breaks: "a failed cleanup is not repeated",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if errors.Is(err, driver.ErrUnknown) && !isHung(ctx, err) {
				leave(d, r)
				time.AfterFunc(patience, func() {
					if reaches(d) {
						d.Server().Expire(r.Name)
					}
				})
			}
			return l, err
		}),
	},
	{
		check:  "faults/many",
		breaks: "each cleanup is a goroutine",
		mutate: cleansUpInGoroutines(),
	},
	{
		check:  "faults/many",
		breaks: "each cleanup is a goroutine, with a driver that reads before it writes",
		mutate: readsFirst(cleansUpInGoroutines()),
	},
}

// reaches reports whether d gets answers from the backend or is closed.
func reaches(d *memory.Driver) bool {
	_, err := d.Inspect(context.Background(), "x")
	return err == nil || errors.Is(err, driver.ErrClosed)
}

// belief is the apparent end of a lease, if it is not the zero time.
type belief struct {
	mu  sync.Mutex
	end time.Time
}

func (b *belief) set(end time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end = end
}

func (b *belief) or(end time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.end.IsZero() {
		return end
	}
	return b.end
}

// takesOwnForNew is a mutation that repeats a request whose answer was lost and
// treats its own hold as a new grant.
func takesOwnForNew() func(*memory.Driver) driver.Driver {
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		l, err := d.Acquire(ctx, r)
		if _, bounded := ctx.Deadline(); bounded || !r.Fixed || !errors.Is(err, driver.ErrUnknown) {
			return l, err
		}
		own, err := overwrite(d.Server().NewDriver(), r)
		if err != nil {
			return nil, err
		}
		for !reaches(d) {
			time.Sleep(time.Millisecond)
		}
		end := time.Now().Add(r.TTL)
		return &brokenLease{Lease: own, r: r, expires: func() time.Time { return end }}, nil
	})
}

// cleansUpInGoroutines is a mutation with a goroutine for each request whose
// answer was lost.
func cleansUpInGoroutines() func(*memory.Driver) driver.Driver {
	return breakClosed(func(d *closable, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		l, err := d.Acquire(ctx, r)
		if errors.Is(err, driver.ErrUnknown) {
			go func() { // ends when the backend is reachable, or with Close
				for !d.isClosed() && !reaches(d.Driver) {
					select {
					case <-time.After(time.Second):
					case <-d.closed:
					}
				}
			}()
		}
		return l, err
	}, nil)
}

// fellowsOfClient are the leases of one client.
type fellowsOfClient struct{ fellows }

// endOther ends another hold of l's client.
func (a *fellowsOfClient) endOther(d *memory.Driver, l *brokenLease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, other := range a.all {
		if other != l {
			expireHold(d, other.r)
		}
	}
}

// sentAgain reports whether a driver would repeat a request whose answer was
// lost, because the backend answers again.
func sentAgain(ctx context.Context, d *memory.Driver, l *brokenLease, err error) bool {
	if !errors.Is(err, driver.ErrUnknown) || ctx.Err() != nil {
		return false
	}
	_, lost := d.Inspect(ctx, l.r.Name)
	return lost == nil
}

var singleMutants = []mutant{
	{
		check:  "single/lost-acquire",
		breaks: "an unanswered request is repeated and finds its own hold",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if !errors.Is(err, driver.ErrUnknown) || ctx.Err() != nil {
				return l, err
			}
			if _, lost := d.Inspect(ctx, r.Name); lost != nil { // the next answer is lost too
				return nil, err
			}
			return nil, fmt.Errorf("%w: by a request of the same client", driver.ErrLocked)
		}),
	},
	{
		check:  "single/lost-renewal",
		breaks: "a repeated renewal reports that the lease has ended",
		mutate: renewalNotHeld(sentAgain),
	},
	{
		check:  "single/lost-release",
		breaks: "a repeated release reports that the lease had ended",
		mutate: releaseNotHeld(sentAgain),
	},
	{
		check:  "single/lost-release",
		breaks: "an unanswered release ends the other holds of the client",
		mutate: func(d *memory.Driver) driver.Driver {
			var mu sync.Mutex
			names := map[string]bool{}
			return breakLeases(func(d *memory.Driver, l *brokenLease) {
				mu.Lock()
				names[l.r.Name] = true
				mu.Unlock()
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					_, lost := d.Inspect(ctx, l.r.Name)
					mu.Lock()
					defer mu.Unlock()
					delete(names, l.r.Name)
					if errors.Is(err, driver.ErrUnknown) && lost == nil {
						for name := range names {
							d.Server().Expire(name)
						}
					}
					return err
				}
			})(d)
		},
	},
	{
		check:  "single/overtaken-renewal",
		breaks: "a renewal that arrives after a newer one ends the hold early",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			var held atomic.Int64 // the TTL of a renewal that is under way
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				err := l.Lease.Renew(ctx, ttl)
				if isHung(ctx, err) && held.Load() == 0 {
					held.Store(int64(ttl))
				}
				if late := time.Duration(held.Load()); err == nil && late > 0 && late < ttl && held.Swap(0) > 0 {
					end := l.Lease.Expires()
					l.expires = func() time.Time { return end }
					time.AfterFunc(time.Millisecond, func() { _ = l.Lease.Renew(context.Background(), late) })
				}
				return err
			}
		}),
	},
	{
		check:  "single/vanished-release",
		breaks: "an unanswered release is not repeated, because it may still arrive",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			l.release = func(ctx context.Context) error {
				_, err := d.Inspect(ctx, l.r.Name) // in place of the request of the release
				if !isHung(ctx, err) {
					return l.Lease.Release(ctx)
				}
				go func() { // ends within a minute
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					if _, err := d.Inspect(ctx, l.r.Name); err == nil {
						_ = l.Lease.Release(ctx)
					}
				}()
				return err
			}
		}),
	},
}

// refusing contains the servers that are currently refusing requests.
var refusing sync.Map

// refused reports whether err means that a server refused a request.
func refused(d *memory.Driver, err error) bool {
	_, refuses := refusing.Load(d.Server())
	return refuses && errors.Is(err, driver.ErrUnavailable)
}

func refusedLease(_ context.Context, d *memory.Driver, _ *brokenLease, err error) bool {
	return refused(d, err)
}

var refusalMutants = []mutant{
	{
		check:  "refusal/requests",
		breaks: "a request that the backend refuses returns ErrLocked",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if refused(d, err) {
				err = driver.ErrLocked
			}
			return l, err
		}),
	},
	{
		check:  "refusal/requests",
		breaks: "a request that is reported as refused holds the name",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if refused(d, err) && r.NoWait {
				_, _ = d.Server().NewDriver().Acquire(ctx, r)
			}
			return l, err
		}),
	},
	{
		check:  "refusal/requests",
		breaks: "a waiter that the backend refuses waits forever",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if refused(d, err) && !r.NoWait {
				<-ctx.Done()
			}
			return l, err
		}),
	},
	{
		check:  "refusal/holds",
		breaks: "a renewal that the backend refuses returns ErrNotHeld",
		mutate: renewalNotHeld(refusedLease),
	},
	{
		check:  "refusal/holds",
		breaks: "a release that the backend refuses returns ErrNotHeld",
		mutate: releaseNotHeld(refusedLease),
	},
	{
		check:  "refusal/holds",
		breaks: "a release that the backend refuses is not repeated",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			l.release = func(ctx context.Context) error {
				if _, refuses := refusing.Load(d.Server()); refuses {
					return driver.ErrUnavailable
				}
				return l.Lease.Release(ctx)
			}
		}),
	},
	{
		check:  "refusal/holds",
		breaks: "Inspect reports a free name when the backend refuses the query",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, inspect: func(ctx context.Context, name string) (driver.Status, error) {
				s, err := d.Inspect(ctx, name)
				if refused(d, err) {
					return driver.Status{}, nil
				}
				return s, err
			}}
		},
	},
	{
		check:  "refusal/holds",
		breaks: "List yields nothing and no error when the backend refuses the query",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, list: func(ctx context.Context, prefix string) iter.Seq2[string, error] {
				return func(yield func(string, error) bool) {
					for name, err := range d.List(ctx, prefix) {
						if !refused(d, err) && !yield(name, err) {
							return
						}
					}
				}
			}}
		},
	},
	{
		check:  "refusal/changes",
		breaks: "a countdown that the backend refuses returns nil",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.countDown = func(ctx context.Context, name, id string) error {
				err := d.CountDown(ctx, name, id)
				if refused(d, err) {
					return nil
				}
				return err
			}
		}),
	},
	{
		check:  "refusal/changes",
		breaks: "a latch is set in spite of ErrUnavailable",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.set = func(ctx context.Context, name, id string, n int) (bool, error) {
				set, err := d.SetLatch(ctx, name, id, n)
				if refused(d, err) {
					_, _ = d.Server().NewDriver().SetLatch(ctx, name, id, n)
				}
				return set, err
			}
		}),
	},
	{
		check:  "refusal/changes",
		breaks: "SetLimit returns ErrLimit when the backend refuses to change the limit",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, setLimit: func(ctx context.Context, name string, limit int) error {
				err := d.SetLimit(ctx, name, limit)
				if refused(d, err) {
					return driver.ErrLimit
				}
				return err
			}}
		},
	},
	{
		check:  "closing/remains",
		breaks: "the session of a client that was closed stays on the backend",
		mutate: func(d *memory.Driver) driver.Driver {
			var once sync.Once
			return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
				once.Do(func() { leaveOn(d.Server(), "the session of "+r.Hold) })
				return d.Acquire(ctx, r)
			})(d)
		},
	},
	{
		check:  "closing/remains",
		breaks: "the place of a waiter that gave up stays on the backend",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			leaveOn(d.Server(), "the place of "+r.Hold)
			l, err := d.Acquire(ctx, r)
			if l != nil || ctx.Err() == nil {
				takeFrom(d.Server(), "the place of "+r.Hold)
			}
			return l, err
		}),
	},
}
