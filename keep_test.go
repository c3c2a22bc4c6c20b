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

// keptLease is a lease of a stub whose tokens must be kept.
type keptLease struct {
	*stubLease
	keep func() error
}

// KeepTokens implements driver.TokenKeeper.
func (l *keptLease) KeepTokens(context.Context) error { return l.keep() }

// newKeeper returns a client whose leases keep their tokens with keep.
func newKeeper(t *testing.T, keep func() error) *dsync.Client {
	d := &stub{info: driver.Info{Fencing: driver.Durable, Order: driver.FIFOByClient, KeepsAlive: true}}
	d.acquire = func(_ context.Context, _ int, r *driver.Request) (driver.Lease, error) {
		return &keptLease{d.grant(r, time.Now()), keep}, nil
	}
	c, err := dsync.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func TestTokensAreKeptForThoseWhoAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept atomic.Int32
		c := newKeeper(t, func() error { kept.Add(1); return nil })
		for range 3 {
			l, err := c.Lock(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := dsync.Do(t.Context(), c, "a", func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if n := kept.Load(); n != 0 {
			t.Errorf("tokens that no caller requests are kept %d times", n)
		}
		l, err := c.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if token := l.Token(); token == 0 || kept.Load() != 1 {
			t.Errorf("Token: got %d after %d calls to KeepTokens, want one", token, kept.Load())
		}
	})
}

func TestTokensOfAHandOverAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept atomic.Int32
		c := newKeeper(t, func() error { kept.Add(1); return nil })
		var wg sync.WaitGroup
		var mu sync.Mutex
		last := uint64(0)
		for range 10 {
			wg.Go(func() {
				l, err := c.Lock(t.Context(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				defer l.Unlock(t.Context())
				mu.Lock()
				defer mu.Unlock()
				if token := l.Token(); token <= last {
					t.Errorf("token %d after %d", token, last)
				} else {
					last = token
				}
			})
		}
		wg.Wait()
		if n := kept.Load(); n != 10 {
			t.Errorf("KeepTokens: got %d calls, want 10", n)
		}
	})
}

func TestTokenThatIsNotKeptIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := errors.New("out of reach")
		c := newKeeper(t, func() error { return err })
		l, lockErr := c.Lock(t.Context(), "a")
		if lockErr != nil {
			t.Fatal(lockErr)
		}
		if token := l.Token(); token != 0 {
			t.Errorf("Token: got %d, want 0", token)
		}
		if l.Err() != nil {
			t.Errorf("Err: got %v, want the lease to continue", l.Err())
		}
		err = nil
		if l.Token() == 0 {
			t.Error("Token: got 0, want a token that was kept")
		}
	})
}

// TestTokenBlocksNobody waits for KeepTokens while other goroutines use the
// lease.
func TestTokenBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keeps := make(chan struct{})
		c := newKeeper(t, func() error { <-keeps; return driver.ErrNotHeld })
		l, err := c.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		token := make(chan uint64)
		go func() { token <- l.Token() }()
		synctest.Wait()
		if l.Err() != nil {
			t.Errorf("Err: got %v", l.Err())
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		close(keeps)
		if n := <-token; n != 0 {
			t.Errorf("Token: got %d, want 0", n)
		}
	})
}
