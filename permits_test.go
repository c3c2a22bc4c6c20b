package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var withPermits = driver.Info{Name: "stub", Permits: driver.Support{Offered: true}}

func TestPermits(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		all := []dsync.Locker{a, b, a.NewOwner()}
		o := b.NewOwner()
		first, second := mustTry(t, a, dsync.Permits(2, 4)), mustTry(t, o, dsync.Permits(1, 4))
		mustBeLocked(t, all, dsync.Permits(2, 4))
		third := mustTry(t, o, dsync.Permits(1, 0)) // the same owner, and no re-entry
		mustBeLocked(t, all, dsync.Permits(1, 4))
		s, err := a.Inspect(t.Context(), "x")
		if err != nil || s.Mode != driver.Permit || s.Used != 4 || s.Limit != 4 || s.Holders != 3 {
			t.Errorf("got %+v and error %v", s, err)
		}
		if first.Token() != 0 || second.Owner() != o.ID() {
			t.Errorf("token %d, owner %q of %q", first.Token(), second.Owner(), o.ID())
		}
		mustUnlock(t, first)
		mustUnlock(t, mustTry(t, b, dsync.Permits(2, 4)), second, third)
		if err := first.Unlock(t.Context()); !errors.Is(err, dsync.ErrNotHeld) {
			t.Errorf("second Unlock: %v", err)
		}
		mustUnlock(t, mustTry(t, a, dsync.Permits(9, 9))) // a new limit: none was stored
		if n := dsync.KnownNames(a) + dsync.KnownNames(b); n != 0 {
			t.Errorf("%d names are kept", n)
		}
	})
}

// At most ten permits are held at a time across two clients, and ten are
// reached.
func TestPermitsBoundConcurrency(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		var now, most atomic.Int64
		var wg sync.WaitGroup
		for i := range 60 {
			calls := dsync.With([]dsync.Locker{a, b, b.NewOwner()}[i%3], dsync.Permits(1+i%2, 10))
			wg.Go(func() {
				for range 5 {
					err := dsync.Do(t.Context(), calls, "x", func(context.Context) error {
						n := now.Add(int64(1 + i%2))
						for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
						}
						time.Sleep(time.Duration(1+i%7) * 20 * time.Millisecond)
						now.Add(-int64(1 + i%2))
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if most.Load() != 10 {
			t.Errorf("up to %d permits were held, want 10", most.Load())
		}
	})
}

func TestPermitsComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(nil)
		a, b := newClient(t, d, &dsync.Options{TTL: 10 * time.Second}), newClient(t, d.Server().NewDriver(), nil)
		lost, expired := mustLock(t, a, "x", dsync.Permits(2, 3)), mustLock(t, b, "x", dsync.Permits(1, 3), dsync.ExpireAfter(5*time.Second))
		d.Cut()
		begun := time.Now()
		next := mustLock(t, b, "x", dsync.Permits(1, 3))
		if got := time.Since(begun); got != 5*time.Second || expired.Err() == nil {
			t.Errorf("the permit with ExpireAfter became free after %v, its lease reports %v", got, expired.Err())
		}
		rest := mustLock(t, b, "x", dsync.Permits(2, 3))
		if got := time.Since(begun); got != 10*time.Second || !errors.Is(lost.Err(), dsync.ErrLost) {
			t.Errorf("the permits of a client that is cut off became free after %v, its lease reports %v", got, lost.Err())
		}
		d.Heal()
		mustUnlock(t, next, rest)
	})
}

func TestPermitsExtendAndLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), nil)
		l := mustTry(t, c, dsync.Permits(1, 2), dsync.ExpireAfter(time.Second))
		if err := l.Extend(t.Context(), time.Minute); err != nil {
			t.Error(err)
		}
		kept := mustTry(t, c, dsync.Permits(1, 2), dsync.ExpireAfter(time.Minute), dsync.HoldAtLeast(time.Second))
		mustUnlock(t, kept)
		time.Sleep(999 * time.Millisecond)
		mustBeLocked(t, []dsync.Locker{c}, dsync.Permits(1, 2))
		time.Sleep(time.Millisecond)
		mustUnlock(t, mustTry(t, c, dsync.Permits(1, 2)), l)
	})
}

// Callers for free permits send requests concurrently, a limited number at a
// time.
func TestPermitsAreAskedForSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		d := &stub{info: withPermits}
		d.acquire = func(_ context.Context, _ int, r *driver.Request) (driver.Lease, error) {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Millisecond)
			now.Add(-1)
			return d.grant(r, time.Now()), nil
		}
		c, begun := newStub(t, d), time.Now()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { mustLock(t, c, "x", dsync.Permits(1, 100)) })
		}
		wg.Wait()
		if got := time.Since(begun); most.Load() != 16 || got > 10*time.Millisecond {
			t.Errorf("%d requests at a time, 100 in %v; want 16, and 7 ms", most.Load(), got)
		}
	})
}

// While one call waits on the backend, no other call of its client sends a
// request, and TryLock is refused.
func TestPermitsWaitInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		d := &stub{info: withPermits}
		d.acquire = func(ctx context.Context, n int, r *driver.Request) (driver.Lease, error) {
			if n == 1 {
				r.Events.Waiting()
				select {
				case <-free:
				case <-ctx.Done():
					return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
				}
			}
			return d.grant(r, time.Now()), nil
		}
		c := newStub(t, d)
		var wg sync.WaitGroup
		wg.Go(func() { mustLock(t, c, "x", dsync.Permits(5, 5)) })
		synctest.Wait()
		for range 10 {
			wg.Go(func() { mustLock(t, c, "x", dsync.Permits(1, 5)) })
		}
		synctest.Wait()
		mustBeLocked(t, []dsync.Locker{c}, dsync.Permits(1, 5))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Lock(ctx, "x", dsync.Permits(1, 5)); !errors.Is(err, dsync.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait in line ended with %v", err)
		}
		if got := len(d.asked()); got != 1 {
			t.Errorf("%d requests while one call waits, want 1", got)
		}
		close(free)
		wg.Wait()
		if got := len(d.asked()); got != 11 {
			t.Errorf("%d requests, want 11", got)
		}
	})
}

// For a while a hold passes to the next call in the queue that requests the
// same number of permits. Then it is released.
func TestPermitsAreHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: withPermits}
		d.acquire = func(ctx context.Context, n int, r *driver.Request) (driver.Lease, error) {
			if n == 1 {
				return d.grant(r, time.Now()), nil
			}
			r.Events.Waiting()
			<-ctx.Done()
			return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		}
		c := newStub(t, d)
		held := mustLock(t, c, "x", dsync.Permits(2, 2))
		got := make(chan *dsync.Lease)
		wait := func(opts ...dsync.LockOption) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			go func() {
				defer cancel()
				l, _ := c.Lock(ctx, "x", opts...)
				got <- l
			}()
			synctest.Wait()
		}
		wait(dsync.Permits(1, 2)) // on the backend
		wait(dsync.Permits(2, 0))
		mustUnlock(t, held)
		next := <-got
		if next == nil || len(d.asked()) != 2 || len(d.gaveBack()) != 0 {
			t.Fatalf("lease %v after %d requests and %d releases", next, len(d.asked()), len(d.gaveBack()))
		}
		wait(dsync.Permits(1, 2))
		mustUnlock(t, next) // too many for the next
		if n := len(d.gaveBack()); n != 1 {
			t.Errorf("%d releases, want 1", n)
		}
		for range 2 {
			if l := <-got; l != nil {
				t.Errorf("a waiter was granted permits that were released")
			}
		}
	})
}

// A call for all permits is not overtaken forever by other calls of its client,
// even if the backend has no order.
func TestManyPermitsAreGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(&memory.Options{Order: memory.Unordered}), nil)
		end := make(chan struct{})
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() {
				for {
					select {
					case <-end:
						return
					default:
					}
					l := mustLock(t, c, "x", dsync.Permits(1, 4))
					time.Sleep(time.Millisecond)
					mustUnlock(t, l)
				}
			})
		}
		time.Sleep(time.Second)
		for range 5 {
			begun := time.Now()
			l := mustLock(t, c, "x", dsync.Permits(4, 4))
			if took := time.Since(begun); took > 300*time.Millisecond {
				t.Errorf("all permits were granted after %v", took)
			}
			mustUnlock(t, l)
		}
		close(end)
		wg.Wait()
	})
}

func TestPermitsNest(t *testing.T) {
	forOrders(t, func(t *testing.T, a, _ *dsync.Client) {
		o := a.NewOwner()
		permit, lock := mustTry(t, o, dsync.Permits(2, 3)), mustLock(t, o, "y")
		under, cancel := permit.Context(t.Context())
		defer cancel()
		twice, cancel := permit.Context(under)
		defer cancel()
		locked, cancel := lock.Context(t.Context())
		defer cancel()
		for what, tt := range map[string]struct {
			l    dsync.Locker
			ctx  context.Context
			name string
			opt  dsync.LockOption
		}{
			"one permit too many":                   {a, under, "x", dsync.Permits(2, 3)},
			"one permit too many, under two leases": {o, twice, "x", dsync.Permits(2, 3)},
			"a lock under permits":                  {a, under, "x", dsync.Write()},
			"a read under permits":                  {a, under, "x", dsync.Read()},
			"permits under a lock":                  {a, locked, "y", dsync.Permits(1, 3)},
			"a lock for a holder of permits":        {o, t.Context(), "x", dsync.LockOption{}},
			"a read for a holder of permits":        {o, t.Context(), "x", dsync.Read()},
			"permits for the holder of the lock":    {o, t.Context(), "y", dsync.Permits(1, 3)},
			"permits under its own lock":            {o, locked, "y", dsync.Permits(1, 3)},
			"its own lock under permits":            {o, under, "x", dsync.Write()},
		} {
			if _, err := tt.l.Lock(tt.ctx, tt.name, tt.opt); !errors.Is(err, dsync.ErrDeadlock) {
				t.Errorf("%s: Lock: %v, want ErrDeadlock", what, err)
			}
			if _, err := tt.l.TryLock(tt.ctx, tt.name, tt.opt); !errors.Is(err, dsync.ErrLocked) {
				t.Errorf("%s: TryLock: %v, want ErrLocked", what, err)
			}
		}
		inner, err := a.Lock(twice, "x", dsync.Permits(1, 3))
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, inner, permit, lock)
		if l, err := a.TryLock(context.WithoutCancel(under), "x", dsync.Permits(3, 3)); err != nil {
			t.Errorf("under the context of an ended lease: %v", err)
		} else {
			mustUnlock(t, l)
		}
	})
}

func TestLimitOfPermits(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		wrong := func(opts dsync.LockOption) {
			t.Helper()
			if _, err := b.Lock(t.Context(), "x", opts); !errors.Is(err, dsync.ErrLimit) {
				t.Errorf("error %v, want ErrLimit", err)
			}
		}
		wrong(dsync.Permits(1, 0))
		held := mustTry(t, a, dsync.Permits(2, 2))
		wrong(dsync.Permits(1, 3))
		wrong(dsync.Permits(3, 0))
		waiting := make(chan error, 2)
		for _, limit := range []int{0, 2} {
			go func() {
				l, err := b.Lock(t.Context(), "x", dsync.Permits(1, limit))
				_ = l.Unlock(t.Context())
				waiting <- err
			}()
		}
		synctest.Wait()
		if err := a.SetLimit(t.Context(), "x", 3); err != nil {
			t.Fatal(err)
		}
		if first, second := <-waiting, <-waiting; errors.Join(first, second) == nil || !errors.Is(errors.Join(first, second), dsync.ErrLimit) || first != nil && second != nil {
			t.Errorf("got %v and %v, want the new permit for one waiter, and ErrLimit for the other", first, second)
		}
		if err := a.SetLimit(t.Context(), "x", 1); err != nil || held.Err() != nil {
			t.Errorf("error %v and lease %v after the limit was lowered", err, held.Err())
		}
		mustBeLocked(t, []dsync.Locker{b}, dsync.Permits(1, 0))
		mustUnlock(t, held)
		mustUnlock(t, mustTry(t, b, dsync.Permits(1, 1)))
		wrong(dsync.Permits(1, 2)) // the limit of SetLimit stays
	})
}

func TestPermitsThatMakeNoSense(t *testing.T) {
	c := newClient(t, memory.New(nil), nil)
	tooHigh := math.MaxInt32
	tooHigh++ // negative where an int has 32 bits
	for _, tt := range []struct {
		n, limit int
		want     string
	}{
		{0, 3, "not 1 or more"}, {-1, 3, "not 1 or more"}, {1, -1, "not between"}, {1, tooHigh, "not between"}, {4, 3, "above the limit"},
	} {
		for _, lock := range []func(context.Context, string, ...dsync.LockOption) (*dsync.Lease, error){c.Lock, c.TryLock} {
			if _, err := lock(t.Context(), "x", dsync.Permits(tt.n, tt.limit)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Permits(%d, %d): error %v, want %q", tt.n, tt.limit, err, tt.want)
			}
		}
	}
	for _, limit := range []int{-1, 0, tooHigh} {
		if err := c.SetLimit(t.Context(), "x", limit); err == nil {
			t.Errorf("SetLimit(%d): no error", limit)
		}
	}
}

func TestPermitsThatAreNotOffered(t *testing.T) {
	c := newStub(t, &stub{info: driver.Info{Name: "stub", Permits: driver.Support{Why: "it cannot count"}}})
	const want = "backend stub has no permits, because it cannot count: unsupported operation"
	_, err := c.Lock(t.Context(), "x", dsync.Permits(1, 1))
	_, opened := dsync.New(&stub{info: driver.Info{Name: "stub", Permits: driver.Support{Why: "it cannot count"}}}, &dsync.Options{Require: dsync.Require{Permits: true}})
	for _, err := range []error{err, c.SetLimit(t.Context(), "x", 1), opened} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestPermitsOfLockAll(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		l, err := dsync.LockAll(t.Context(), dsync.With(a, dsync.Permits(1, 2)), "x", "y")
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, mustTry(t, b, dsync.Permits(1, 2)))
		mustBeLocked(t, []dsync.Locker{a, b}, dsync.Permits(2, 2))
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The driver releases the permits of a client that closes, and the waiters
// acquire them.
func TestCloseGivesPermitsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(nil)
		a, err := dsync.New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		b := newClient(t, d.Server().NewDriver(), nil)
		leases := []*dsync.Lease{mustTry(t, a, dsync.Permits(1, 3)), mustTry(t, a, dsync.Permits(2, 3))}
		if err := a.Close(t.Context()); err != nil {
			t.Error(err)
		}
		for _, l := range leases {
			if !errors.Is(l.Err(), dsync.ErrClosed) {
				t.Errorf("lease: %v", l.Err())
			}
		}
		mustUnlock(t, mustTry(t, b, dsync.Permits(3, 3)))
	})
}

func TestObservePermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), nil)
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		var observer sync.WaitGroup
		observer.Go(func() {
			for s, err := range c.Observe(ctx, "x") {
				got = append(got, fmt.Sprintf("%d of %d", s.Used, s.Limit))
				if err != nil {
					t.Error(err)
				}
			}
		})
		synctest.Wait()
		first := mustTry(t, c, dsync.Permits(1, 3))
		synctest.Wait()
		second := mustTry(t, c, dsync.Permits(2, 3))
		synctest.Wait()
		mustUnlock(t, first)
		synctest.Wait()
		if err := c.SetLimit(t.Context(), "x", 5); err != nil {
			t.Error(err)
		}
		mustUnlock(t, second)
		synctest.Wait()
		cancel()
		observer.Wait()
		if want := "[0 of 0 1 of 3 3 of 3 2 of 3 0 of 5]"; fmt.Sprint(got) != want {
			t.Errorf("got %v, want %s", got, want)
		}
	})
}

// Calls that are canceled, and calls whose answers are lost, leave all permits
// free.
func TestManyCallsLeaveNoPermits(t *testing.T) {
	for _, o := range orders {
		for _, kind := range []memory.FaultKind{memory.Slow, memory.LoseAnswer, memory.Hang} {
			synctest.Test(t, func(t *testing.T) {
				s := memory.NewServer(&memory.Options{Order: o})
				d := s.NewDriver()
				a, b := newClient(t, d, nil), newClient(t, s.NewDriver(), nil)
				held := mustTry(t, b, dsync.Permits(2, 5))
				d.Inject(memory.Fault{Kind: kind, On: memory.Acquires})
				var wg sync.WaitGroup
				for i := range 1000 {
					wg.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i)*time.Millisecond)
						defer cancel()
						if l, err := a.Lock(ctx, "x", dsync.Permits(2, 5)); err == nil { // with Slow, one call at a time is granted
							mustUnlock(t, l)
						}
					})
				}
				wg.Wait()
				d.Heal()
				synctest.Wait()
				mustUnlock(t, held)
				mustUnlock(t, mustTry(t, b, dsync.Permits(5, 5)))
			})
		}
	}
}
