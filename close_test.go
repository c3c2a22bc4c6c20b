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
	"github.com/go-dsync/dsync/drivers/memory"
)

func TestClose(t *testing.T) {
	for _, o := range orders {
		synctest.Test(t, func(t *testing.T) {
			s := memory.NewServer(&memory.Options{Order: o})
			c, err := dsync.New(s.NewDriver(), nil)
			if err != nil {
				t.Fatal(err)
			}
			other := newClient(t, s.NewDriver(), nil)
			var held []*dsync.Lease
			for i := range 10 {
				held = append(held, mustLock(t, c, fmt.Sprint("mine", i)))
			}
			mustLock(t, other, "theirs")
			var wg sync.WaitGroup
			for i := range 20 {
				name := []string{"theirs", "mine0"}[i%2]
				wg.Go(func() {
					if _, err := c.Lock(t.Context(), name); !errors.Is(err, dsync.ErrClosed) {
						t.Errorf("waiting Lock(%s): %v, want ErrClosed", name, err)
					}
				})
			}
			synctest.Wait()
			for range 3 {
				wg.Go(func() {
					if err := c.Close(t.Context()); err != nil {
						t.Errorf("Close: %v", err)
					}
				})
			}
			wg.Wait()
			for _, l := range held {
				<-l.Done()
				if err := l.Err(); !errors.Is(err, dsync.ErrClosed) || !errors.Is(err, dsync.ErrNotHeld) || errors.Is(err, dsync.ErrLost) {
					t.Errorf("Err after Close: %v, want ErrClosed and ErrNotHeld", err)
				}
				if err := l.Unlock(t.Context()); !errors.Is(err, dsync.ErrClosed) {
					t.Errorf("Unlock after Close: %v, want ErrClosed", err)
				}
				if _, err := other.TryLock(t.Context(), l.Name()); err != nil {
					t.Errorf("TryLock of another client after Close: %v", err)
				}
			}
			_, lockErr := c.Lock(t.Context(), "x")
			_, tryErr := c.NewOwner().TryLock(t.Context(), "x")
			_, inspectErr := c.Inspect(t.Context(), "x")
			for _, err := range []error{lockErr, tryErr, inspectErr, c.ForceUnlock(t.Context(), "x")} {
				if !errors.Is(err, dsync.ErrClosed) {
					t.Errorf("call after Close: %v, want ErrClosed", err)
				}
			}
		})
	}
}

func TestCloseWaitsNoLongerThanItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &closing{stub: stub{}}
		c, err := dsync.New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v, want the deadline", err)
		}
		if got := time.Since(start); got != time.Second {
			t.Errorf("Close returned after %v, want 1 s", got)
		}
	})
}

// closing is a driver whose Close does not come to an end before its context does.
type closing struct{ stub }

func (d *closing) Close(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestCloseWithCallsInFlight(t *testing.T) {
	for i := range 20 {
		s := memory.NewServer(&memory.Options{Order: orders[i%len(orders)]})
		c, err := dsync.New(s.NewDriver(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		started := make(chan struct{}, 8)
		for g := range 8 {
			wg.Go(func() {
				o := c.NewOwner()
				for n := 0; ; n++ {
					l, err := o.Lock(t.Context(), fmt.Sprint(g%2))
					if errors.Is(err, dsync.ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					if err := l.Unlock(t.Context()); err != nil && !errors.Is(err, dsync.ErrClosed) && !errors.Is(err, dsync.ErrUnknown) {
						t.Errorf("Unlock while the client closes: %v", err)
					}
					if n == 0 {
						started <- struct{}{}
					}
				}
			})
		}
		for range 8 {
			<-started
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		other := newClient(t, s.NewDriver(), nil)
		for _, name := range []string{"0", "1"} {
			if _, err := other.TryLock(t.Context(), name); err != nil {
				t.Errorf("TryLock after Close: %v", err)
			}
		}
	}
}
