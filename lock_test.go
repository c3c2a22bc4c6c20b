package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// orders are the orders in which a backend may grant. With all orders except
// FIFO, callers wait in the queue of the process.
var orders = []memory.Order{memory.FIFO, memory.FIFOByClient, memory.Unordered}

// forOrders runs f in a bubble for each order, with two clients of one backend.
func forOrders(t *testing.T, f func(t *testing.T, a, b *dsync.Client)) {
	for _, o := range orders {
		t.Run(fmt.Sprintf("order %d", o), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.NewServer(&memory.Options{Order: o})
				f(t, newClient(t, s.NewDriver(), nil), newClient(t, s.NewDriver(), nil))
			})
		})
	}
}

func TestExclusion(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		var counter int // synchronized only by the lock: the race detector watches
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				var l dsync.Locker = []*dsync.Client{a, b}[i%2]
				if i%4 < 2 {
					l = []*dsync.Client{a, b}[i%2].NewOwner()
				}
				for range 50 {
					lease, err := l.Lock(t.Context(), "x")
					if err != nil {
						t.Error(err)
						return
					}
					counter++
					if err := lease.Unlock(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if counter != 16*50 {
			t.Errorf("counted %d, want %d", counter, 16*50)
		}
	})
}

func TestTryLockOfAHeldLock(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		l := mustLock(t, a, "x")
		for _, c := range []*dsync.Client{a, b} {
			if _, err := c.TryLock(t.Context(), "x"); !errors.Is(err, dsync.ErrLocked) {
				t.Errorf("TryLock: %v, want ErrLocked", err)
			}
		}
		_ = l.Unlock(t.Context())
		if _, err := b.TryLock(t.Context(), "x"); err != nil {
			t.Errorf("TryLock after Unlock: %v", err)
		}
	})
}

func TestWaitThatRunsOutWhileAnotherHolds(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		mustLock(t, a, "x")
		for _, c := range []*dsync.Client{a, b} { // in the local queue for a, on the backend for b
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
			_, err := c.Lock(ctx, "x")
			cancel()
			if !errors.Is(err, dsync.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Lock: %v, want ErrLocked and the deadline", err)
			}
			if got, want := time.Since(start), 90*time.Second; got != want {
				t.Errorf("Lock returned after %v, want %v", got, want)
			}
		}
	})
}

func TestWaitInLineBehindAnUnreachableBackendIsNotErrLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{acquire: func(ctx context.Context, n int, r *driver.Request) (driver.Lease, error) {
			return nil, driver.ErrUnavailable
		}}
		c := newStub(t, d)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if _, err := c.Lock(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, dsync.ErrLocked) {
					t.Errorf("Lock: %v, want the deadline and not ErrLocked", err)
				}
			})
		}
		wg.Wait()
	})
}

func TestCanceledWaitLeavesNothing(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		l := mustLock(t, a, "x")
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		left := errors.New("the customer left")
		for i := range 10 {
			wg.Go(func() {
				_, err := []*dsync.Client{a, b}[i%2].Lock(ctx, "x")
				if !errors.Is(err, context.Canceled) || !errors.Is(err, left) {
					t.Errorf("Lock: %v, want the cancellation with its cause", err)
				}
			})
		}
		synctest.Wait()
		cancel(left)
		wg.Wait()
		if s, err := b.Inspect(t.Context(), "x"); err != nil || s.Waiters != 0 || s.Owner != l.Owner() {
			t.Errorf("Inspect: %+v, %v; want the holder and no waiters", s, err)
		}
		_ = l.Unlock(t.Context())
		if s, err := b.Inspect(t.Context(), "x"); err != nil || s.Held {
			t.Errorf("Inspect after Unlock: %+v, %v; want a free name", s, err)
		}
	})
}

func TestCancelAtTheInstantOfTheGrant(t *testing.T) {
	// In many rounds in real time, the outcome is a lease or an error, and
	// afterwards the lock is free.
	for _, o := range orders {
		s := memory.NewServer(&memory.Options{Order: o})
		a, b := newClient(t, s.NewDriver(), nil), newClient(t, s.NewDriver(), nil)
		for i := range 500 {
			waiting := a
			if i%2 == 0 {
				waiting = b
			}
			l := mustLock(t, a, "x")
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				if l, err := waiting.Lock(ctx, "x"); err == nil {
					if err := l.Unlock(t.Context()); err != nil {
						t.Errorf("Unlock of a lease that was granted at the instant of the cancel: %v", err)
					}
				} else if !errors.Is(err, context.Canceled) {
					t.Errorf("Lock: %v", err)
				}
			})
			wg.Go(cancel)
			_ = l.Unlock(t.Context())
			wg.Wait()
			mustLock(t, b, "x").Unlock(t.Context())
		}
	}
}

// TestCancelBeforeTheUnlock cancels a wait and then unlocks. The wait is not
// granted the lock, regardless of the client to which it belongs.
func TestCancelBeforeTheUnlock(t *testing.T) {
	modes := map[string][2][]dsync.LockOption{ // of the holder and of the wait
		"exclusive": {},
		"read":      {{dsync.Write()}, {dsync.Read()}},
		"write":     {{dsync.Read()}, {dsync.Write()}},
		"permit":    {{dsync.Permits(1, 1)}, {dsync.Permits(1, 1)}},
	}
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		for mode, opts := range modes {
			o := a.NewOwner()
			for who, waiting := range map[string]dsync.Locker{"its own client": a, "an owner of its client": o, "another client": b} {
				for range 20 {
					l := mustLock(t, a, mode, opts[0]...)
					ctx, cancel := context.WithCancel(t.Context())
					var wg sync.WaitGroup
					for range 2 {
						wg.Go(func() {
							if l, err := waiting.Lock(ctx, mode, opts[1]...); !errors.Is(err, context.Canceled) {
								t.Errorf("%s, by %s: Lock, canceled before the Unlock: %v", mode, who, err)
								l.Unlock(t.Context())
							}
						})
					}
					synctest.Wait()
					cancel()
					if err := l.Unlock(t.Context()); err != nil {
						t.Errorf("Unlock: %v", err)
					}
					wg.Wait()
					mustLock(t, b, mode, opts[0]...).Unlock(t.Context())
				}
			}
		}
	})
}

func TestContextThatIsDoneHasNoEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{}
		c := newStub(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := c.Lock(ctx, "x")
		_, tryErr := c.TryLock(ctx, "x")
		if !errors.Is(err, context.Canceled) || !errors.Is(tryErr, context.Canceled) || len(d.asked()) != 0 {
			t.Errorf("Lock %v, TryLock %v, %d requests; want the cancellation and no request", err, tryErr, len(d.asked()))
		}
	})
}

func TestBadNames(t *testing.T) {
	d := &stub{}
	c := newClient(t, d, nil)
	long := make([]byte, 1025)
	for i := range long {
		long[i] = 'n'
	}
	for _, name := range []string{"", string(long), "a\x00b", "a\xff"} {
		if _, err := c.Lock(t.Context(), name); err == nil {
			t.Errorf("Lock(%.20q) succeeded", name)
		} else if len(err.Error()) > 200 {
			t.Errorf("Lock(%.20q): the error has %d bytes", name, len(err.Error()))
		}
		if _, err := c.TryLock(t.Context(), name); err == nil {
			t.Errorf("TryLock(%.20q) succeeded", name)
		}
		if _, err := c.Inspect(t.Context(), name); err == nil || errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Inspect(%.20q): %v, want an error that names the name", name, err)
		}
	}
	if got := len(d.asked()); got != 0 {
		t.Errorf("%d requests reached the driver", got)
	}
}

func TestLeaseLengthThatIsRefused(t *testing.T) {
	d := &stub{info: driver.Info{Name: "stub", MinTTL: time.Second, MaxTTL: time.Minute, TTLUnit: time.Second}}
	c := newClient(t, d, nil)
	for _, d := range []time.Duration{0, -time.Second, time.Nanosecond, time.Millisecond, time.Hour, 1500 * time.Millisecond} {
		if _, err := c.Lock(t.Context(), "x", dsync.ExpireAfter(d)); err == nil {
			t.Errorf("Lock with ExpireAfter(%v) succeeded", d)
		}
	}
	if got := len(d.asked()); got != 0 {
		t.Errorf("%d requests reached the driver", got)
	}
}

func TestDeadlockIsReported(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		outer := mustLock(t, a, "x")
		ctx, cancel := outer.Context(t.Context())
		defer cancel()
		inner := mustLock(t, a, "y")
		ctx, cancel2 := inner.Context(ctx)
		defer cancel2()
		ctx, cancel3 := context.WithTimeout(ctx, time.Hour) // contexts in between do not hide it
		defer cancel3()
		for _, name := range []string{"x", "y"} {
			if _, err := a.Lock(ctx, name); !errors.Is(err, dsync.ErrDeadlock) {
				t.Errorf("Lock(%s) under its own lease: %v, want ErrDeadlock", name, err)
			}
			if _, err := a.NewOwner().Lock(ctx, name); !errors.Is(err, dsync.ErrDeadlock) {
				t.Errorf("Lock(%s) by another owner under its own lease: %v, want ErrDeadlock", name, err)
			}
			if _, err := a.TryLock(ctx, name); !errors.Is(err, dsync.ErrLocked) || errors.Is(err, dsync.ErrDeadlock) {
				t.Errorf("TryLock(%s) under its own lease: %v, want ErrLocked", name, err)
			}
		}
		mustLock(t, b, "z")
		if err := outer.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		again, err := a.Lock(context.WithoutCancel(ctx), "x") // the lease has ended: no deadlock any more
		if err != nil {
			t.Fatalf("Lock under a lease that was unlocked: %v", err)
		}
		_ = again
	})
}

func TestOwnerUnderItsOwnLeaseIsNoDeadlock(t *testing.T) {
	forOrders(t, func(t *testing.T, a, _ *dsync.Client) {
		o := a.NewOwner()
		ctx, cancel := mustLock(t, o, "x").Context(t.Context())
		defer cancel()
		if _, err := o.Lock(ctx, "x"); err != nil {
			t.Errorf("re-entry under its own lease: %v", err)
		}
	})
}

func TestClientForgetsNamesItHasNothingToDoWith(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		held := mustLock(t, b, "x")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = a.Lock(ctx, "x")
		_, _ = a.TryLock(t.Context(), "x")
		_ = held.Unlock(t.Context())
		o := a.NewOwner()
		l1, l2 := mustLock(t, o, "y"), mustLock(t, o, "y")
		_, _ = l1.Unlock(t.Context()), l2.Unlock(t.Context())
		<-mustLock(t, a, "z", dsync.ExpireAfter(time.Second)).Done()
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, c := range []*dsync.Client{a, b} {
			if got := dsync.KnownNames(c); got != 0 {
				t.Errorf("the client still knows %d names", got)
			}
		}
	})
}
