package dsync_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

func TestGrantThatComesTooLateIsGivenBackAndAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{}
		d.acquire = func(ctx context.Context, n int, r *driver.Request) (driver.Lease, error) {
			if n == 1 {
				return d.grant(r, time.Now().Add(-r.TTL)), nil
			}
			return d.grant(r, time.Now()), nil
		}
		l := mustLock(t, newStub(t, d), "x")
		synctest.Wait()
		asked, back := d.asked(), d.gaveBack()
		if len(asked) != 2 || len(back) != 1 || back[0].request != asked[0] {
			t.Fatalf("%d requests, %d released; want 2 requests, the first released", len(asked), len(back))
		}
		if asked[0].Hold == asked[1].Hold {
			t.Errorf("both attempts have the hold %q", asked[0].Hold)
		}
		if err := l.Err(); err != nil {
			t.Errorf("Err of the second grant: %v", err)
		}
	})
}

func TestGrantsThatAlwaysComeTooLateDoNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{}
		d.acquire = func(_ context.Context, _ int, r *driver.Request) (driver.Lease, error) {
			return d.grant(r, time.Now().Add(-r.TTL)), nil
		}
		c := newStub(t, d)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := c.Lock(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Lock: %v, want the deadline", err)
		}
		if n := len(d.asked()); n > 100 {
			t.Errorf("%d requests in 20 s, want a few dozen", n)
		}
	})
}

func TestHoldLostBeforeAcquireReturnedIsAskedAgainAndNotReleased(t *testing.T) {
	for _, try := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := &stub{}
			d.acquire = func(ctx context.Context, n int, r *driver.Request) (driver.Lease, error) {
				l := d.grant(r, time.Now())
				if n == 1 {
					r.Events.Lost(driver.ErrRemoved)
				}
				return l, nil
			}
			c := newStub(t, d)
			lock := c.Lock
			if try {
				lock = c.TryLock
			}
			if _, err := lock(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got := len(d.asked()); got != 2 {
				t.Errorf("%d requests, want 2", got)
			}
			if got := len(d.gaveBack()); got != 0 {
				t.Errorf("%d releases, want none: the driver removes the remains of a lost hold", got)
			}
		})
	}
}

func TestBackendOutOfReachIsAskedAgainUntilTheContextEnds(t *testing.T) {
	for _, answer := range []error{driver.ErrUnavailable, driver.ErrUnknown} {
		synctest.Test(t, func(t *testing.T) {
			d := &stub{acquire: func(context.Context, int, *driver.Request) (driver.Lease, error) { return nil, answer }}
			c := newStub(t, d)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := c.Lock(ctx, "x")
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, answer) {
				t.Errorf("Lock: %v, want the deadline and %v", err, answer)
			}
			if errors.Is(err, dsync.ErrLocked) {
				t.Errorf("Lock: %v, matches ErrLocked although the lock was free", err)
			}
			holds := map[string]bool{}
			for _, r := range d.asked() {
				holds[r.Hold] = true
			}
			if n := len(d.asked()); n < 15 || n > 100 || len(holds) != n {
				t.Errorf("%d requests with %d different holds in 20 s, want a few dozen, all different", n, len(holds))
			}
		})
	}
}

func TestTryLockAsksOnce(t *testing.T) {
	refused := errors.New("permission denied")
	for _, answer := range []error{driver.ErrUnavailable, driver.ErrUnknown, driver.ErrLocked, refused} {
		synctest.Test(t, func(t *testing.T) {
			d := &stub{acquire: func(context.Context, int, *driver.Request) (driver.Lease, error) { return nil, answer }}
			_, err := newStub(t, d).TryLock(t.Context(), "x")
			if !errors.Is(err, answer) {
				t.Errorf("TryLock: %v, want %v", err, answer)
			}
			if got := len(d.asked()); got != 1 || !d.asked()[0].NoWait {
				t.Errorf("%d requests, want one request that does not wait", got)
			}
		})
	}
}

func TestOtherErrorsEndLockAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		denied := errors.New("permission denied")
		d := &stub{acquire: func(context.Context, int, *driver.Request) (driver.Lease, error) { return nil, denied }}
		_, err := newStub(t, d).Lock(t.Context(), "x")
		if !errors.Is(err, denied) || len(d.asked()) != 1 {
			t.Errorf("Lock: %v after %d requests, want %v after one request", err, len(d.asked()), denied)
		}
		if got, want := err.Error(), `dsync: lock "x": permission denied`; got != want {
			t.Errorf("error text %q, want %q", got, want)
		}
	})
}

func TestUnlockThatHangsReturnsErrUnknownInTime(t *testing.T) {
	for _, tt := range []struct {
		ttl, want time.Duration
	}{{time.Minute, 5 * time.Second}, {2 * time.Second, 2 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			d := &stub{release: func(ctx context.Context, _ *stubLease) error { return unanswered(ctx) }}
			c := newClient(t, d, &dsync.Options{TTL: tt.ttl})
			l := mustLock(t, c, "x")
			start := time.Now()
			if err := l.Unlock(t.Context()); !errors.Is(err, dsync.ErrUnknown) {
				t.Errorf("Unlock: %v, want ErrUnknown", err)
			}
			if got := time.Since(start); got != tt.want {
				t.Errorf("Unlock returned after %v, want %v", got, tt.want)
			}
			if err := l.Unlock(t.Context()); !errors.Is(err, dsync.ErrNotHeld) {
				t.Errorf("second Unlock: %v, want ErrNotHeld", err)
			}
			if got := len(d.gaveBack()); got != 1 {
				t.Errorf("%d releases, want 1", got)
			}
		})
	}
}

func TestUnlockIgnoresCancellationAndKeepsValues(t *testing.T) {
	type key struct{}
	synctest.Test(t, func(t *testing.T) {
		var seen atomic.Value
		d := &stub{release: func(ctx context.Context, _ *stubLease) error {
			seen.Store(ctx.Value(key{}))
			return ctx.Err()
		}}
		l := mustLock(t, newStub(t, d), "x")
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		cancel()
		if err := l.Unlock(ctx); err != nil {
			t.Errorf("Unlock with a canceled context: %v", err)
		}
		if got := seen.Load(); got != "value" {
			t.Errorf("the release saw the value %v of the context, want %q", got, "value")
		}
	})
}

func TestReleaseFindsTheLockGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{release: func(context.Context, *stubLease) error { return driver.ErrNotHeld }}
		l := mustLock(t, newStub(t, d), "x")
		err := l.Unlock(t.Context())
		if !errors.Is(err, dsync.ErrLost) || !errors.Is(err, dsync.ErrNotHeld) {
			t.Errorf("Unlock of a lock that was gone: %v, want ErrLost and ErrNotHeld", err)
		}
	})
}

func TestReleaseThatHangsHoldsTheNextUpOnlyForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{release: func(ctx context.Context, _ *stubLease) error { return unanswered(ctx) }}
		c := newClient(t, d, &dsync.Options{TTL: time.Minute})
		first := mustLock(t, c, "x", dsync.ExpireAfter(time.Minute)) // a fixed lease is not handed over
		var wg sync.WaitGroup
		start := time.Now()
		wg.Go(func() {
			l := mustLock(t, c, "x")
			if got, want := time.Since(start), time.Second; got < want || got > want+10*time.Millisecond {
				t.Errorf("the next was granted %v after the start of a release that hangs, want about %v", got, want)
			}
			_ = l.Unlock(t.Context())
		})
		synctest.Wait()
		_ = first.Unlock(t.Context())
		wg.Wait()
	})
}

func TestNewGrantIsEvidenceThatTheOldHoldIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: driver.Info{Order: driver.FIFO, Fencing: driver.Volatile}}
		c := newStub(t, d)
		first := mustLock(t, c, "x")
		second := mustLock(t, c, "x") // the backend has forgotten the first
		if err := first.Err(); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Err of the first lease after a second was granted: %v, want ErrLost", err)
		}
		if err := second.Err(); err != nil {
			t.Errorf("Err of the second lease: %v", err)
		}
	})
}
