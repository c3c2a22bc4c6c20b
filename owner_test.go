package dsync_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

func TestReentry(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		o := a.NewOwner()
		outer, inner := mustLock(t, o, "x"), mustLock(t, o, "x")
		third, err := o.TryLock(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if outer.Token() == 0 || inner.Token() != outer.Token() || third.Token() != outer.Token() {
			t.Errorf("tokens %d, %d, %d; want one token", outer.Token(), inner.Token(), third.Token())
		}
		if outer.Owner() != o.ID() || inner.Owner() != o.ID() {
			t.Errorf("owners %q and %q, want %q", outer.Owner(), inner.Owner(), o.ID())
		}
		for i, l := range []*dsync.Lease{outer, third, inner} {
			for _, other := range []dsync.Locker{a, b, a.NewOwner()} {
				if _, err := other.TryLock(t.Context(), "x"); !errors.Is(err, dsync.ErrLocked) {
					t.Errorf("TryLock of another owner after %d of 3 unlocks: %v, want ErrLocked", i, err)
				}
			}
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			if err := l.Unlock(t.Context()); !errors.Is(err, dsync.ErrNotHeld) {
				t.Errorf("second Unlock of one lease: %v, want ErrNotHeld", err)
			}
		}
		if _, err := b.TryLock(t.Context(), "x"); err != nil {
			t.Errorf("TryLock after the last Unlock: %v", err)
		}
	})
}

func TestReentryAsksNoBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{}
		o := newStub(t, d).NewOwner()
		for range 100 {
			mustLock(t, o, "x")
		}
		if got := len(d.asked()); got != 1 {
			t.Errorf("%d requests for 100 entries, want 1", got)
		}
	})
}

func TestReentryWithExpireAfter(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		o := a.NewOwner()
		outer := mustLock(t, o, "x")
		start := time.Now()
		inner := mustLock(t, o, "x", dsync.ExpireAfter(time.Minute))
		<-inner.Done()
		if got, want := time.Since(start), time.Minute; got != want {
			t.Errorf("the inner lease ended after %v, want %v", got, want)
		}
		if err := inner.Err(); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Err of the inner lease: %v, want ErrLost", err)
		}
		if err := outer.Err(); err != nil {
			t.Errorf("Err of the outer lease: %v", err)
		}
		// When the last lease ends by itself, the lock is free.
		last := mustLock(t, o, "x", dsync.ExpireAfter(time.Minute))
		_ = outer.Unlock(t.Context())
		if _, err := b.TryLock(t.Context(), "x"); !errors.Is(err, dsync.ErrLocked) {
			t.Errorf("TryLock while a re-entry holds: %v, want ErrLocked", err)
		}
		<-last.Done()
		synctest.Wait()
		if _, err := b.TryLock(t.Context(), "x"); err != nil {
			t.Errorf("TryLock after the last lease ended by itself: %v", err)
		}
	})
}

func TestReentryEndsWithTheHoldThatItJoined(t *testing.T) {
	forOrders(t, func(t *testing.T, a, _ *dsync.Client) {
		o := a.NewOwner()
		outer := mustLock(t, o, "x", dsync.ExpireAfter(time.Second))
		for _, inner := range []*dsync.Lease{mustLock(t, o, "x"), mustLock(t, o, "x", dsync.ExpireAfter(time.Hour))} {
			if got, want := inner.Deadline(), outer.Deadline(); !got.Equal(want) {
				t.Errorf("deadline of a re-entry %v, want the deadline of the hold, %v", got, want)
			}
		}
		<-outer.Done()
	})
}

func TestLostHoldIsNotReentered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{renew: func(context.Context, *stubLease) error { return driver.ErrUnavailable }}
		o := newStub(t, d).NewOwner()
		first, nested := mustLock(t, o, "x"), mustLock(t, o, "x")
		<-first.Done()
		<-nested.Done()
		again := mustLock(t, o, "x")
		if got := len(d.asked()); got != 2 || again.Err() != nil {
			t.Errorf("%d requests, Err %v; want a second request and a live lease", got, again.Err())
		}
		if err := first.Unlock(t.Context()); !errors.Is(err, dsync.ErrLost) || again.Err() != nil {
			t.Errorf("Unlock of the lost lease: %v, then Err of the new lease: %v", err, again.Err())
		}
	})
}

func TestGrantServesAllWaitingCallsOfItsOwner(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		held := mustLock(t, b, "x")
		o := a.NewOwner()
		leases := make(chan *dsync.Lease, 10)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { leases <- mustLock(t, o, "x") })
		}
		synctest.Wait()
		_ = held.Unlock(t.Context())
		wg.Wait()
		close(leases)
		first := <-leases
		for l := range leases {
			if l.Token() != first.Token() || l.Err() != nil {
				t.Errorf("token %d, Err %v; want token %d, from the only grant", l.Token(), l.Err(), first.Token())
			}
			_ = l.Unlock(t.Context())
		}
		if _, err := b.TryLock(t.Context(), "x"); !errors.Is(err, dsync.ErrLocked) {
			t.Errorf("TryLock while one call still holds: %v, want ErrLocked", err)
		}
		_ = first.Unlock(t.Context())
		if _, err := b.TryLock(t.Context(), "x"); err != nil {
			t.Errorf("TryLock after all were unlocked: %v", err)
		}
	})
}

func TestTryLockOfAnOwnerServesItsWaitingLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{}
		d.acquire = func(ctx context.Context, _ int, r *driver.Request) (driver.Lease, error) {
			if !r.NoWait {
				return nil, unanswered(ctx)
			}
			return d.grant(r, time.Now()), nil
		}
		o := newStub(t, d).NewOwner()
		waiting := make(chan *dsync.Lease)
		go func() { waiting <- mustLock(t, o, "x") }()
		synctest.Wait()
		tried, err := o.TryLock(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if l := <-waiting; l.Err() != nil || tried.Err() != nil {
			t.Errorf("Err of the waiting call %v, of TryLock %v; want both to hold", l.Err(), tried.Err())
		}
	})
}

func TestWaitingCallOfAnOwnerTakesOverWhenTheFirstLeaves(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		held := mustLock(t, b, "x")
		o := a.NewOwner()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := o.Lock(ctx, "x"); !errors.Is(err, context.Canceled) {
				t.Errorf("the canceled call: %v", err)
			}
		})
		synctest.Wait()
		wg.Go(func() { mustLock(t, o, "x") })
		synctest.Wait()
		cancel()
		synctest.Wait()
		_ = held.Unlock(t.Context())
		wg.Wait()
	})
}

func TestCallThatIsServedWhenItsTurnHasJustComeLeavesTheLine(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that the call has not run since its turn came when it is served
	synctest.Test(t, func(t *testing.T) {
		c := newStub(t, &stub{})
		o := c.NewOwner()
		held := mustLock(t, c, "x", dsync.ExpireAfter(time.Second)) // a fixed lease is not handed over
		served := make(chan *dsync.Lease, 1)
		go func() { served <- mustLock(t, o, "x") }()
		synctest.Wait()
		var wg sync.WaitGroup
		wg.Go(func() { // next in the queue
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := c.Lock(ctx, "x"); err != nil {
				t.Errorf("the call behind it in line: %v", err)
			}
		})
		synctest.Wait()
		_ = held.Unlock(t.Context()) // it is the turn of the owner's call
		tried, err := o.TryLock(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = tried.Unlock(t.Context()), (<-served).Unlock(t.Context())
		wg.Wait()
	})
}
