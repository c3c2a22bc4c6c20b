package dsync_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// queueUp makes n callers of c wait for name in order. Each runs hold with its
// lease, and unlocks.
func queueUp(t *testing.T, c dsync.Locker, n int, hold func(i int, l *dsync.Lease), opts ...dsync.LockOption) *sync.WaitGroup {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			l, err := c.Lock(t.Context(), "x", opts...)
			if err != nil {
				t.Error(err)
				return
			}
			hold(i, l)
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
	}
	return &wg
}

func TestHandOverInOrderWithoutARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: driver.Info{Fencing: driver.Volatile}}
		c := newStub(t, d)
		var order []int
		var last uint64
		first := mustLock(t, c, "x") // no call waits yet: the grant brings one token, so this hold is not handed over
		wg := queueUp(t, c, 50, func(i int, l *dsync.Lease) {
			order = append(order, i)
			if l.Token() <= last {
				t.Errorf("token %d after %d", l.Token(), last)
			}
			last = l.Token()
		})
		_ = first.Unlock(t.Context())
		wg.Wait()
		for i, got := range order {
			if got != i {
				t.Fatalf("granted in the order %v, want the order of arrival", order)
			}
		}
		if got := len(d.asked()); got != 2 {
			t.Errorf("%d requests for 51 holds, want 2", got)
		}
		if got := len(d.gaveBack()); got != 2 {
			t.Errorf("%d releases, want 2", got)
		}
	})
}

func TestHandOverIsBounded(t *testing.T) {
	for _, tt := range []struct {
		name          string
		fencing       driver.Fencing
		hold          time.Duration
		opts          []dsync.LockOption
		waiters, want int // want: all requests
	}{
		{"by number with tokens", driver.Volatile, 0, nil, 128, 3},  // 1, then 2 blocks of 64
		{"by number without tokens", driver.None, 0, nil, 129, 2},   // 1 + 64 handed over, then 65
		{"by time", driver.None, 30 * time.Millisecond, nil, 12, 3}, // 4 more in 100 ms, then 5, then the rest
		{"not for fixed leases", driver.None, 0, []dsync.LockOption{dsync.ExpireAfter(time.Second)}, 10, 11},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &stub{info: driver.Info{Fencing: tt.fencing}}
				c := newStub(t, d)
				first := mustLock(t, c, "x")
				wg := queueUp(t, c, tt.waiters, func(int, *dsync.Lease) { time.Sleep(tt.hold) }, tt.opts...)
				_ = first.Unlock(t.Context())
				wg.Wait()
				if got := len(d.asked()); got != tt.want {
					t.Errorf("%d requests for %d holds, want %d", got, tt.waiters+1, tt.want)
				}
			})
		})
	}
}

func TestNoHandOverOfALeaseThatRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{renew: func(context.Context, *stubLease) error { return driver.ErrUnavailable }}
		c := newStub(t, d)
		first := mustLock(t, c, "x")
		wg := queueUp(t, c, 1, func(int, *dsync.Lease) {})
		time.Sleep(6 * time.Second) // less than half of the TTL is left
		_ = first.Unlock(t.Context())
		wg.Wait()
		if got := len(d.asked()); got != 2 {
			t.Errorf("%d requests, want a second request in place of a hand-over", got)
		}
	})
}

func TestNoHandOverOnFIFO(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: driver.Info{Order: driver.FIFO}}
		taken := make(chan struct{}, 1)
		d.acquire = func(ctx context.Context, _ int, r *driver.Request) (driver.Lease, error) {
			select {
			case taken <- struct{}{}:
				return d.grant(r, time.Now()), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		d.release = func(context.Context, *stubLease) error { <-taken; return nil }
		c := newClient(t, d, nil)
		first := mustLock(t, c, "x")
		wg := queueUp(t, c, 10, func(int, *dsync.Lease) {})
		_ = first.Unlock(t.Context())
		wg.Wait()
		if got := len(d.asked()); got != 11 {
			t.Errorf("%d requests for 11 holds, want 11", got)
		}
	})
}

func TestHandOverServesAllCallsOfAnOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{}
		c := newStub(t, d)
		first, o := mustLock(t, c, "x"), c.NewOwner()
		leases := make(chan *dsync.Lease, 3)
		for range 3 {
			go func() { leases <- mustLock(t, o, "x") }()
		}
		synctest.Wait()
		_ = first.Unlock(t.Context())
		for range 3 {
			if err := (<-leases).Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		if got := len(d.asked()); got != 1 {
			t.Errorf("%d requests, want 1", got)
		}
		if got := len(d.gaveBack()); got != 1 {
			t.Errorf("%d releases, want 1", got)
		}
	})
}

func TestOtherClientsGetTheirTurn(t *testing.T) {
	// Two clients, each with many callers, contend for one lock. A hand-over
	// favors the client that holds the lock, but only for a while.
	for _, o := range []memory.Order{memory.Unordered, memory.FIFOByClient} {
		synctest.Test(t, func(t *testing.T) {
			s := memory.NewServer(&memory.Options{Order: o})
			var counts [2]int
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var wg sync.WaitGroup
			for i := range counts {
				c := newClient(t, s.NewDriver(), nil)
				for range 8 {
					wg.Go(func() {
						for {
							l, err := c.Lock(ctx, "x")
							if err != nil {
								return
							}
							counts[i]++
							time.Sleep(100 * time.Microsecond)
							_ = l.Unlock(ctx)
						}
					})
				}
			}
			wg.Wait()
			if low, high := min(counts[0], counts[1]), max(counts[0], counts[1]); low == 0 || high > 8*low {
				t.Errorf("order %v: %v holds, want neither client to starve", o, counts)
			}
		})
	}
}

func TestReleaseReportsThatNobodyElseWaits(t *testing.T) {
	for contends, want := range map[bool]time.Duration{false: 0, true: time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			d := &stub{}
			d.acquire = func(_ context.Context, _ int, r *driver.Request) (driver.Lease, error) {
				return &contendedLease{d.grant(r, time.Now()), contends}, nil
			}
			c := newStub(t, d)
			first := mustLock(t, c, "x", dsync.ExpireAfter(time.Second)) // not handed over
			start := time.Now()
			wg := queueUp(t, c, 1, func(int, *dsync.Lease) {
				if got := time.Since(start); got != want {
					t.Errorf("other clients wait: %t; the next request came after %v, want %v", contends, got, want)
				}
			})
			_ = first.Unlock(t.Context())
			wg.Wait()
		})
	}
}

type contendedLease struct {
	*stubLease
	contended bool
}

func (l *contendedLease) Contended() bool { return l.contended }

func TestTryLockMayOvertakeTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{}
		c := newStub(t, d)
		first := mustLock(t, c, "x")
		wg := queueUp(t, c, 1, func(int, *dsync.Lease) {})
		if _, err := c.TryLock(t.Context(), "x"); !errors.Is(err, dsync.ErrLocked) {
			t.Errorf("TryLock while the client holds the lock: %v, want ErrLocked", err)
		}
		if got := len(d.asked()); got != 1 {
			t.Errorf("%d requests, want none by TryLock while the client holds the lock", got)
		}
		_ = first.Unlock(t.Context())
		wg.Wait()
	})
}
