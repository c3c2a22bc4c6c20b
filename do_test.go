package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
)

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), nil)
		failed := errors.New("failed")
		for _, want := range []error{nil, failed} {
			err := dsync.Do(t.Context(), c, "x", func(ctx context.Context) error {
				if _, err := c.TryLock(t.Context(), "x"); !errors.Is(err, dsync.ErrLocked) {
					t.Errorf("TryLock inside of Do: %v, want ErrLocked", err)
				}
				return want
			})
			if !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("Do: %v, want %v", err, want)
			}
		}
		func() {
			defer func() { _ = recover() }()
			_ = dsync.Do(t.Context(), c, "x", func(context.Context) error { panic("fn") })
		}()
		if _, err := c.TryLock(t.Context(), "x"); err != nil {
			t.Errorf("TryLock after fn panicked: %v", err)
		}
	})
}

func TestDoReportsTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		c, admin := newClient(t, s.NewDriver(), nil), newClient(t, s.NewDriver(), nil)
		stopped := errors.New("stopped")
		err := dsync.Do(t.Context(), c, "x", func(ctx context.Context) error {
			if err := admin.ForceUnlock(t.Context(), "x"); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return stopped
		})
		if !errors.Is(err, dsync.ErrLost) || !errors.Is(err, stopped) {
			t.Errorf("Do: %v, want ErrLost and the error that fn returned", err)
		}
		err = dsync.Do(t.Context(), c, "x", func(context.Context) error {
			return admin.ForceUnlock(t.Context(), "x") // fn does not notice
		})
		if !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Do: %v, want ErrLost though fn returned nil", err)
		}
	})
}

func TestDoTellsALossOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.NewServer(nil).NewDriver()
		c := newClient(t, d, nil)
		err := dsync.Do(t.Context(), c, "x", func(ctx context.Context) error {
			if err := d.ForceUnlock(ctx, "x"); err != nil {
				return err
			}
			<-ctx.Done()
			return fmt.Errorf("working: %w", context.Cause(ctx))
		})
		if want := `working: dsync: lease "x": lock lost: removed: hold was removed`; err == nil || err.Error() != want || !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Do: %v, want %q", err, want)
		}
	})
}

// TestDoTellsWhetherFnHasRun makes Do fail in every way.
func TestDoTellsWhetherFnHasRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		d := s.NewDriver()
		c, other := newClient(t, d, nil), newClient(t, s.NewDriver(), nil)
		mustLock(t, other, "taken")
		failed := errors.New("failed")
		for name, test := range map[string]struct {
			name      string
			fault     *memory.Fault
			fn        error
			runs      bool
			want, not error
		}{
			"locked":         {name: "taken", want: dsync.ErrLocked, not: failed},
			"out of reach":   {name: "x", fault: &memory.Fault{Kind: memory.CutOff, On: memory.Acquires, Times: 1}, want: dsync.ErrUnavailable, not: failed},
			"fn fails":       {name: "x", fn: failed, runs: true, want: failed, not: dsync.ErrUnknown},
			"unlock unknown": {name: "x", fault: &memory.Fault{Kind: memory.LoseAnswer, On: memory.Releases, Times: 1}, runs: true, want: dsync.ErrUnknown, not: dsync.ErrLost},
			"fn fails, outcome of the unlock unknown": {name: "x", fault: &memory.Fault{Kind: memory.LoseAnswer, On: memory.Releases, Times: 1}, fn: failed, runs: true, want: failed, not: dsync.ErrLost},
		} {
			if test.fault != nil {
				d.Inject(*test.fault)
			}
			ran := false
			err := dsync.TryDo(t.Context(), c, test.name, func(context.Context) error {
				ran = true
				return test.fn
			})
			if ran != test.runs || !errors.Is(err, test.want) || errors.Is(err, test.not) {
				t.Errorf("%s: fn has run: %t; got %v, want %v", name, ran, err, test.want)
			}
			done, unlock := new(dsync.DoError), test.runs && test.fault != nil
			if got := errors.As(err, &done); got != unlock || got && (done.Err != test.fn || !errors.Is(done.Unlock, dsync.ErrUnknown)) {
				t.Errorf("%s: got %#v, want a DoError with the error of fn: %t", name, err, unlock)
			}
			d.Heal()
			time.Sleep(time.Minute) // the remains of an unanswered release are cleaned up
		}
	})
}

func TestDoTakesOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		c, other := newClient(t, s.NewDriver(), nil), newClient(t, s.NewDriver(), nil)
		err := dsync.Do(t.Context(), c, "x", func(ctx context.Context) error {
			time.Sleep(2 * time.Second)
			return ctx.Err()
		}, dsync.ExpireAfter(time.Second))
		if done := new(dsync.DoError); !errors.As(err, &done) || !errors.Is(done.Unlock, dsync.ErrLost) || !errors.Is(done.Err, context.Canceled) {
			t.Errorf("Do for longer than ExpireAfter: got %v, want ErrLost", err)
		}
		mustLock(t, other, "x")
		began := time.Now()
		err = dsync.Do(t.Context(), c, "x", func(context.Context) error { return nil }, dsync.WaitAtMost(3*time.Second))
		if !errors.Is(err, dsync.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Second {
			t.Errorf("Do: got %v after %v, want ErrLocked and DeadlineExceeded after 3 s", err, time.Since(began))
		}
	})
}

// TestWaitAtMost: the bound applies to the wait, and not to the work under the
// lock.
func TestWaitAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), nil)
		for _, lock := range []func(context.Context, string, ...dsync.LockOption) (*dsync.Lease, error){c.Lock, c.TryLock, c.NewOwner().Lock} {
			l, err := lock(t.Context(), "x", dsync.WaitAtMost(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := l.Context(t.Context())
			time.Sleep(time.Minute)
			if err := errors.Join(l.Err(), ctx.Err()); err != nil {
				t.Errorf("after the bound of the wait: %v", err)
			}
			if err := l.Unlock(ctx); err != nil {
				t.Errorf("Unlock: %v", err)
			}
			cancel()
		}
		mustLock(t, c, "x")
		_, err := c.Lock(t.Context(), "x", dsync.WaitAtMost(time.Second))
		if want := `dsync: lock "x": context deadline exceeded (WaitAtMost(1s)) while it was locked by another owner`; err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
		for _, d := range []time.Duration{0, -time.Second} {
			if _, err := c.Lock(t.Context(), "free", dsync.WaitAtMost(d)); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("WaitAtMost(%v): got %v, want an error that names the option", d, err)
			}
		}
	})
}

func TestLeaseFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), nil)
		if l := dsync.LeaseFrom(t.Context()); l != nil {
			t.Errorf("without a lock: got a lease of %q", l.Name())
		}
		err := dsync.Do(t.Context(), c, "outer", func(ctx context.Context) error {
			outer := dsync.LeaseFrom(ctx)
			if outer == nil || outer.Name() != "outer" || outer.Token() == 0 {
				t.Errorf("in Do: got %v", outer)
			}
			return dsync.Do(context.WithoutCancel(ctx), c, "inner", func(ctx context.Context) error {
				if l := dsync.LeaseFrom(ctx); l == nil || l.Name() != "inner" {
					t.Errorf("in Do within Do: got %v", l)
				}
				return nil
			})
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestRan calls Do with functions that return errors that look like the error
// of Do itself.
func TestRan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		c, other := newClient(t, s.NewDriver(), nil), newClient(t, s.NewDriver(), nil)
		lease := mustLock(t, other, "taken")
		failed := errors.New("failed")
		inner := func(ctx context.Context) error {
			return dsync.TryDo(ctx, c, "taken", func(context.Context) error { return nil })
		}
		removed := func(err error) func(context.Context) error {
			return func(ctx context.Context) error { return errors.Join(other.ForceUnlock(ctx, "x"), err) }
		}
		for name, tt := range map[string]struct {
			name string
			fn   func(context.Context) error
			ran  bool
			err  error
		}{
			"succeeds":                  {"x", func(context.Context) error { return nil }, true, nil},
			"fails":                     {"x", func(context.Context) error { return failed }, true, failed},
			"loses the lock":            {"x", removed(nil), true, nil},
			"fails and loses the lock":  {"x", removed(failed), true, failed},
			"is not granted a lock":     {"x", inner, true, dsync.ErrLocked},
			"runs an unconfirmed inner": {"x", func(context.Context) error { return &dsync.DoError{Unlock: dsync.ErrUnknown} }, true, dsync.ErrUnknown},
			"does not run":              {"taken", func(context.Context) error { return nil }, false, dsync.ErrLocked},
			"has no name":               {"", func(context.Context) error { return nil }, false, nil},
		} {
			err := dsync.TryDo(t.Context(), c, tt.name, tt.fn)
			ran, got := dsync.Ran(err)
			if ran != tt.ran || tt.err != nil && !errors.Is(got, tt.err) || tt.err == nil && ran && got != nil {
				t.Errorf("a function that %s: Ran(%v) returns %t, %v; want %t, %v", name, err, ran, got, tt.ran, tt.err)
			}
			var failure *dsync.LockError
			if !ran && (!errors.As(err, &failure) || failure.Op != "lock" || failure.Name != tt.name) {
				t.Errorf("a function that %s: %v is no LockError for %q", name, err, tt.name)
			}
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
