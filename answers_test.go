package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// wantBoth fails the test unless err reports that a context ended while another
// owner held the lock.
func wantBoth(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, dsync.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s: %v, want ErrLocked and the deadline", what, err)
	}
}

func TestDeadlineWhileALockIsHeld(t *testing.T) {
	for _, order := range orders {
		for what, fault := range map[string]memory.Fault{
			"slow":         {Delay: 10 * time.Millisecond},
			"hangs":        {Kind: memory.Hang},
			"lost answers": {Kind: memory.LoseAnswer},
		} {
			t.Run(fmt.Sprint(order, " ", what), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := memory.NewServer(&memory.Options{Order: order})
					mustLock(t, newClient(t, s.NewDriver(), nil), "x")
					d := s.NewDriver()
					c := newClient(t, d, nil)
					ctx, cancel := context.WithCancel(t.Context())
					var wg sync.WaitGroup
					defer wg.Wait()
					defer cancel()
					wg.Go(func() { _, _ = c.Lock(ctx, "x") }) // it is refused and waits
					synctest.Wait()
					d.Inject(fault)
					defer d.Heal()
					for range 20 {
						after := rand.N(30 * time.Millisecond)
						for range 3 {
							wg.Go(func() {
								ctx, cancel := context.WithTimeout(ctx, after)
								defer cancel()
								_, err := c.Lock(ctx, "x")
								wantBoth(t, fmt.Sprintf("Lock with a deadline of %v", after), err)
							})
						}
						time.Sleep(after)
						synctest.Wait()
					}
				})
			})
		}
	}
}

func TestRequestThatIsCutOffAfterARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{acquire: func(ctx context.Context, _ int, r *driver.Request) (driver.Lease, error) {
			r.Events.Waiting()
			return nil, unanswered(ctx) // the call asks again and gets no answer
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := newStub(t, d).Lock(ctx, "x")
		wantBoth(t, "Lock", err)
		if want := `dsync: lock "x": context deadline exceeded while it was locked by another owner; outcome unknown`; err == nil || err.Error() != want {
			t.Errorf("got the text %q, want %q", err, want)
		}
		if !errors.Is(err, dsync.ErrUnknown) {
			t.Errorf("%v does not match ErrUnknown", err)
		}
	})
}

func TestAllWhoWaitLearnTheReason(t *testing.T) {
	reason := fmt.Errorf("%w: connection refused", driver.ErrUnavailable)
	for _, order := range []driver.Order{driver.Unordered, driver.FIFO} {
		synctest.Test(t, func(t *testing.T) {
			d := &stub{info: driver.Info{Order: order}}
			d.acquire = func(context.Context, int, *driver.Request) (driver.Lease, error) { return nil, reason }
			c := newStub(t, d)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					defer cancel()
					_, err := c.Lock(ctx, "x")
					if !errors.Is(err, reason) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, dsync.ErrLocked) {
						t.Errorf("Lock: %v, want the deadline and the reason", err)
					}
					if want := `dsync: lock "x": context deadline exceeded; before that: backend unavailable: connection refused`; err.Error() != want {
						t.Errorf("got the text %q, want %q", err, want)
					}
				})
			}
			wg.Wait()
		})
	}
}

func TestOutageIsNotToldAsLockedForEver(t *testing.T) {
	for wait, locked := range map[time.Duration]bool{3 * time.Second: true, 30 * time.Second: false} {
		synctest.Test(t, func(t *testing.T) {
			d := &stub{acquire: func(_ context.Context, n int, r *driver.Request) (driver.Lease, error) {
				if n == 1 {
					r.Events.Waiting()
				}
				return nil, driver.ErrUnavailable
			}}
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			_, err := newStub(t, d).Lock(ctx, "x") // TTL: 10 s
			if !errors.Is(err, dsync.ErrUnavailable) || errors.Is(err, dsync.ErrLocked) != locked {
				t.Errorf("Lock, refused %v ago: %v; want ErrUnavailable, and ErrLocked: %t", wait, err, locked)
			}
		})
	}
}

// A call may wait in the client's queue while the request of an earlier call
// has no answer yet.
func TestWaitWithoutAnyAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.NewServer(&memory.Options{Order: memory.FIFOByClient}).NewDriver()
		c := newClient(t, d, nil)
		d.Inject(memory.Fault{Kind: memory.Hang, On: memory.Acquires})
		defer d.Heal()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = c.Lock(ctx, "x") }()
		synctest.Wait()
		_, err := c.Lock(t.Context(), "x", dsync.WaitAtMost(time.Second))
		if !errors.Is(err, dsync.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, dsync.ErrLocked) {
			t.Errorf("got %v, want ErrUnavailable and DeadlineExceeded", err)
		}
		cancel()
		synctest.Wait()
	})
}

func TestWaitForOurOwnReleaseThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{release: func(ctx context.Context, _ *stubLease) error { return unanswered(ctx) }}
		c := newStub(t, d)
		l := mustLock(t, c, "x")
		var wg sync.WaitGroup
		wg.Go(func() { _ = l.Unlock(t.Context()) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := c.Lock(ctx, "x")
		wantBoth(t, "Lock", err)
		wg.Wait()
	})
}

// TestContextThatIsOverAlready checks that the error of a call that must not
// send a request includes the client's knowledge of the name.
func TestContextThatIsOverAlready(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), nil)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		o := c.NewOwner()
		l, err := o.Lock(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		for name, test := range map[string]struct {
			locker dsync.Locker
			name   string
			locked bool
		}{"another owner": {c, "x", true}, "the owner itself": {o, "x", false}, "another name": {c, "y", false}} {
			_, err := test.locker.Lock(over, test.name)
			if !errors.Is(err, context.Canceled) || errors.Is(err, dsync.ErrLocked) != test.locked {
				t.Errorf("%s: got %v, want an error that matches the context's error, and ErrLocked: %t", name, err, test.locked)
			}
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
