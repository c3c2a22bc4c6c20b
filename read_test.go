package dsync_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

var bothModes = driver.Info{ReadWrite: driver.Support{Offered: true}}

// mustTry is like mustLock, but uses TryLock.
func mustTry(t *testing.T, l dsync.Locker, opts ...dsync.LockOption) *dsync.Lease {
	t.Helper()
	lease, err := l.TryLock(t.Context(), "x", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func mustUnlock(t *testing.T, leases ...*dsync.Lease) {
	t.Helper()
	for _, l := range leases {
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// mustBeLocked checks that x is not granted now.
func mustBeLocked(t *testing.T, lockers []dsync.Locker, opts ...dsync.LockOption) {
	t.Helper()
	for i, l := range lockers {
		if lease, err := l.TryLock(t.Context(), "x", opts...); !errors.Is(err, dsync.ErrLocked) {
			t.Errorf("TryLock of %d: lease %v and error %v, want ErrLocked", i, lease, err)
		}
	}
}

func TestReadersShare(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		all := []dsync.Locker{a, b, a.NewOwner()}
		first, second, third := mustTry(t, a, dsync.Read()), mustTry(t, a, dsync.Read()), mustTry(t, b, dsync.Read())
		mustBeLocked(t, all)
		mustBeLocked(t, all, dsync.Write())
		mustUnlock(t, first, third)
		mustBeLocked(t, all, dsync.Write())
		mustUnlock(t, second)
		for _, alone := range [][]dsync.LockOption{nil, {dsync.Write()}} {
			l := mustTry(t, b, alone...)
			if l.Token() <= first.Token() {
				t.Errorf("token %d after a reader's %d", l.Token(), first.Token())
			}
			mustBeLocked(t, all)
			mustBeLocked(t, all, dsync.Write())
			mustBeLocked(t, all, dsync.Read())
			mustUnlock(t, l)
		}
	})
}

func TestInspectReaders(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		first, _ := mustLock(t, a, "x", dsync.Read()), mustLock(t, b, "x", dsync.Read())
		s, err := b.Inspect(t.Context(), "x")
		if err != nil || !s.Held || s.Mode != driver.Read || s.Holders != 2 || s.Owner != first.Owner() {
			t.Errorf("got %+v and error %v", s, err)
		}
	})
}

// A thousand reading goroutines share one hold, with one request, one renewal
// and one release.
func TestReadersOfAClientAreOneHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: bothModes}
		d.acquire = func(_ context.Context, _ int, r *driver.Request) (driver.Lease, error) {
			time.Sleep(time.Millisecond)
			return d.grant(r, time.Now()), nil
		}
		c := newStub(t, d)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 90 * time.Microsecond) // within the first 100 ms
				l := mustLock(t, c, "x", dsync.Read())
				time.Sleep(5 * time.Second)
				mustUnlock(t, l)
			})
		}
		wg.Wait()
		if got := len(d.asked()); got != 1 {
			t.Errorf("%d requests, want 1", got)
		}
		if got := d.renewals(); len(got) != 1 || len(got[0]) != 1 {
			t.Errorf("renewals %v, want one renewal of one hold", got)
		}
		if got := len(d.gaveBack()); got != 1 {
			t.Errorf("%d releases, want 1", got)
		}
	})
}

func TestJoiningIsBounded(t *testing.T) {
	for _, tt := range []struct {
		ttl, bound time.Duration
	}{
		{10 * time.Second, 100 * time.Millisecond},
		{90 * time.Millisecond, 30 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &stub{info: bothModes}
			c := newClient(t, d, &dsync.Options{TTL: tt.ttl})
			asked := func(want int) {
				t.Helper()
				mustTry(t, c, dsync.Read())
				if got := len(d.asked()); got != want {
					t.Errorf("%d requests, want %d", got, want)
				}
			}
			asked(1)
			time.Sleep(tt.bound - time.Nanosecond)
			asked(1)
			time.Sleep(time.Nanosecond)
			asked(2)
			asked(2) // joins the second hold
		})
	}
}

// An endless stream of readers costs one request per 100 ms, and a writer of
// any client gets its turn.
func TestStreamOfReaders(t *testing.T) {
	const length = 20 * time.Millisecond // of a read
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		var grants sync.Map // of holds, by token
		end := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * length / 100)
				for {
					select {
					case <-end:
						return
					default:
					}
					l := mustLock(t, a, "x", dsync.Read())
					grants.Store(l.Token(), true)
					time.Sleep(length)
					mustUnlock(t, l)
				}
			})
		}
		time.Sleep(time.Second)
		n := 0
		grants.Range(func(any, any) bool { n++; return true })
		if n > 11 {
			t.Errorf("%d holds in 1 s, want one hold per 100 ms", n)
		}
		for _, l := range []dsync.Locker{a, b, dsync.With(a, dsync.Write()), dsync.With(b, dsync.Write())} {
			start := time.Now()
			mustUnlock(t, mustLock(t, l, "x"))
			if got, want := time.Since(start), 100*time.Millisecond+length; got > want {
				t.Errorf("the writer waited %v, want at most %v", got, want)
			}
			time.Sleep(time.Second)
		}
		close(end)
		wg.Wait()
	})
}

func TestReadWithExpireAfterIsNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: bothModes}
		c := newStub(t, d)
		o := c.NewOwner()
		for i, l := range []*dsync.Lease{
			mustLock(t, c, "x", dsync.Read()), mustLock(t, c, "x", dsync.Read(), dsync.ExpireAfter(time.Second)),
			mustLock(t, c, "x", dsync.Read(), dsync.ExpireAfter(time.Minute)), mustLock(t, o, "x", dsync.Read(), dsync.ExpireAfter(time.Hour)),
		} {
			if got := len(d.asked()); got != 4 {
				t.Fatalf("%d requests for 4 holds", got)
			}
			if end := []time.Duration{10, 1, 60, 3600}[i] * time.Second; time.Until(l.Deadline()) > end || time.Until(l.Deadline()) < end*9/10 {
				t.Errorf("lease %d ends in %v, want %v", i, time.Until(l.Deadline()), end)
			}
		}
		mustLock(t, o, "x", dsync.Read(), dsync.ExpireAfter(time.Hour))
		time.Sleep(time.Second)
		mustLock(t, o, "x", dsync.Read())
		if got := len(d.asked()); got != 4 {
			t.Errorf("%d requests, want none by an Owner that is already reading", got-4)
		}
	})
}

// All waiting Reads are served with the grant to one of them, without requests
// of their own.
func TestWaitingReadersAreGrantedTogether(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		writer := mustLock(t, b, "x", dsync.Write())
		var tokens sync.Map
		var wg sync.WaitGroup
		start := time.Now()
		for i := range 50 {
			wg.Go(func() {
				l := mustLock(t, a, "x", dsync.Read())
				if got := time.Since(start); got != time.Second {
					t.Errorf("granted after %v, want 1s", got)
				}
				tokens.Store(l.Token(), true)
				time.Sleep(time.Second)
				mustUnlock(t, l)
			})
			if i%10 == 0 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*10*time.Millisecond)
				defer cancel()
				wg.Go(func() {
					if _, err := a.Lock(ctx, "x", dsync.Read()); !errors.Is(err, dsync.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("error %v, want the context's error and ErrLocked", err)
					}
				})
			}
		}
		time.Sleep(time.Second)
		s, err := b.Inspect(t.Context(), "x")
		if err != nil || s.Waiters != 1 {
			t.Errorf("%d requests wait on the backend, want 1 for all readers; error %v", s.Waiters, err)
		}
		mustUnlock(t, writer)
		wg.Wait()
		n := 0
		tokens.Range(func(any, any) bool { n++; return true })
		if n != 1 {
			t.Errorf("%d holds, want 1", n)
		}
	})
}

// A request that hangs blocks no reader: the grant to another call also serves
// its caller.
func TestGrantToTryLockServesAReaderThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: bothModes}
		d.acquire = func(ctx context.Context, n int, r *driver.Request) (driver.Lease, error) {
			if n == 1 {
				return nil, unanswered(ctx)
			}
			return d.grant(r, time.Now()), nil
		}
		c := newStub(t, d)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { mustUnlock(t, mustLock(t, c, "x", dsync.Read())) })
		}
		synctest.Wait()
		mustUnlock(t, mustTry(t, c, dsync.Read()))
		wg.Wait()
	})
}

func TestModeThatIsNotOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: driver.Info{Name: "plain"}}
		c := newStub(t, d)
		for mode, opt := range map[string]dsync.LockOption{"read": dsync.Read(), "write": dsync.Write()} {
			_, err := c.Lock(t.Context(), "x", opt)
			_, tryErr := c.NewOwner().TryLock(t.Context(), "x", opt)
			for _, err := range []error{err, tryErr} {
				if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "plain") || !strings.Contains(err.Error(), mode) {
					t.Errorf("error %v, want ErrUnsupported with the backend and the mode", err)
				}
			}
		}
		if got := len(d.asked()); got != 0 {
			t.Errorf("%d requests, want none", got)
		}
	})
}

func TestWriteIsHandedOverWithinItsMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: bothModes}
		c := newStub(t, d)
		first := mustLock(t, c, "x", dsync.Write())
		wg := queueUp(t, c, 10, func(int, *dsync.Lease) {}, dsync.Write())
		mustUnlock(t, first)
		wg.Wait()
		if got := d.asked(); len(got) != 1 || got[0].Mode != driver.Write {
			t.Errorf("requests %v, want one request to write", got)
		}
	})
}
