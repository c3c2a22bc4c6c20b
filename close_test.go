package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
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
		if got := time.Since(start); got > time.Second || got < 700*time.Millisecond {
			t.Errorf("Close returned after %v, want 1 s or slightly less", got)
		}
	})
}

func TestCloseWithAContextThatIsOverFreesWhatIsHeld(t *testing.T) {
	type key struct{}
	for _, o := range orders {
		synctest.Test(t, func(t *testing.T) {
			s := memory.NewServer(&memory.Options{Order: o})
			other := newClient(t, s.NewDriver(), nil)
			canceled, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
			cancel()
			late, cancelLate := context.WithTimeout(t.Context(), 0)
			defer cancelLate()
			for _, ctx := range []context.Context{canceled, late} {
				d := &spied{Driver: s.NewDriver()}
				c, err := dsync.New(d, nil)
				if err != nil {
					t.Fatal(err)
				}
				mustLock(t, c, "x")
				if err := c.Close(ctx); err != nil {
					t.Errorf("Close: %v", err)
				}
				if got, want := d.closedWith.Value(key{}), ctx.Value(key{}); got != want {
					t.Errorf("the driver's Close saw the value %v of the context, want %v", got, want)
				}
				l, err := other.TryLock(t.Context(), "x")
				if err != nil {
					t.Fatalf("TryLock of another client after Close: %v", err)
				}
				if err := l.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// spied is a driver that records the context of its Close.
type spied struct {
	driver.Driver
	closedWith context.Context
}

func (d *spied) Close(ctx context.Context) error {
	d.closedWith = ctx
	return d.Driver.Close(ctx)
}

func TestCloseOfABackendThatHangsIsBounded(t *testing.T) {
	for _, tt := range []struct {
		what string
		ctx  func(context.Context) (context.Context, context.CancelFunc)
		want time.Duration
	}{
		{"no deadline", context.WithCancel, 5 * time.Second},
		{"canceled", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx, cancel
		}, 5 * time.Second},
		{"canceled before its deadline", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			cancel()
			return ctx, cancel
		}, 3 * time.Second},
		{"deadline passed", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 0)
		}, 5 * time.Second},
		{"later deadline", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 20*time.Second)
		}, 20 * time.Second},
	} {
		t.Run(tt.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := memory.NewServer(nil).NewDriver()
				c, err := dsync.New(d, &dsync.Options{TTL: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				mustLock(t, c, "x")
				d.Inject(memory.Fault{Kind: memory.Hang})
				ctx, cancel := tt.ctx(t.Context())
				defer cancel()
				start := time.Now()
				err = c.Close(ctx)
				if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, dsync.ErrUnknown) || !strings.Contains(err.Error(), "1 holds were left behind") {
					t.Errorf("Close: %v, want the deadline, ErrUnknown, and that a hold was left behind", err)
				}
				if got := time.Since(start); got > tt.want || got < tt.want-time.Second/2 {
					t.Errorf("Close returned after %v, want %v or slightly less", got, tt.want)
				}
			})
		})
	}
}

// closing is a driver whose Close does not return before its context ends.
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
