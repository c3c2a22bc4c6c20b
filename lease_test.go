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

func TestLeaseTellsWhatItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), &dsync.Options{TTL: 10 * time.Second})
		start := time.Now()
		l := mustLock(t, c, "orders/42")
		if l.Name() != "orders/42" || l.Owner() == "" || l.Token() == 0 {
			t.Errorf("name %q, owner %q, token %d", l.Name(), l.Owner(), l.Token())
		}
		if got, want := l.Deadline().Sub(start), 10*time.Second-105*time.Millisecond; got != want {
			t.Errorf("deadline %v after the grant, want %v", got, want)
		}
		s, err := c.Inspect(t.Context(), "orders/42")
		if err != nil || !s.Held || s.Owner != l.Owner() || s.Token != l.Token() {
			t.Errorf("Inspect: %+v, %v; want the lease", s, err)
		}
		other := mustLock(t, c, "orders/43")
		if other.Owner() == l.Owner() {
			t.Errorf("two calls through one client have the same owner %q", l.Owner())
		}
	})
}

func TestUnlockEndsDoneAndContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustLock(t, newClient(t, memory.New(nil), nil), "x")
		ctx, cancel := l.Context(t.Context())
		defer cancel()
		canceled, cancelNow := l.Context(t.Context())
		cancelNow()
		if err := context.Cause(canceled); err != context.Canceled {
			t.Errorf("cause of a canceled context: %v", err)
		}
		if l.Err() != nil || ctx.Err() != nil {
			t.Fatalf("Err %v, context %v; want a live lease", l.Err(), ctx.Err())
		}
		select {
		case <-l.Done():
			t.Fatal("Done is closed while the lease is held")
		default:
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-l.Done()
		<-ctx.Done()
		if err := context.Cause(ctx); !errors.Is(err, dsync.ErrNotHeld) || errors.Is(err, dsync.ErrLost) {
			t.Errorf("cause of the context after Unlock: %v, want ErrNotHeld and not ErrLost", err)
		}
		if err := l.Err(); !errors.Is(err, dsync.ErrNotHeld) || errors.Is(err, dsync.ErrLost) {
			t.Errorf("Err after Unlock: %v, want ErrNotHeld and not ErrLost", err)
		}
		late, cancel := l.Context(t.Context())
		defer cancel()
		if late.Err() == nil {
			t.Error("a context made after the end of the lease is live")
		}
	})
}

func TestLeaseContextEndsWithItsParent(t *testing.T) {
	type key struct{}
	synctest.Test(t, func(t *testing.T) {
		l := mustLock(t, newClient(t, memory.New(nil), nil), "x")
		parent, cancelParent := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Second)
		defer cancelParent()
		ctx, cancel := l.Context(parent)
		defer cancel()
		child, cancelChild := context.WithCancel(ctx)
		defer cancelChild()
		if got := child.Value(key{}); got != "value" {
			t.Errorf("value %v", got)
		}
		<-child.Done()
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) || l.Err() != nil {
			t.Errorf("context %v, lease %v; want the parent's deadline and a live lease", ctx.Err(), l.Err())
		}
	})
}

func TestExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), nil)
		l := mustLock(t, c, "x", dsync.ExpireAfter(10*time.Second))
		time.Sleep(8 * time.Second)
		start := time.Now()
		if err := l.Extend(t.Context(), 20*time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		if err := l.Err(); err != nil {
			t.Fatalf("Err of an extended lease: %v", err)
		}
		if err := l.Extend(t.Context(), time.Second); err != nil { // the new end is earlier than the old one
			t.Fatal(err)
		}
		<-l.Done()
		if got, want := time.Since(start), 16*time.Second-15*time.Millisecond; got != want {
			t.Errorf("the lease ended after %v, want %v", got, want)
		}
		if err := l.Extend(t.Context(), time.Minute); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Extend of an ended lease: %v, want ErrLost", err)
		}
		if got := l.Err(); !errors.Is(got, dsync.ErrLost) {
			t.Errorf("Err after Extend of an ended lease: %v, want ErrLost", got)
		}
	})
}

func TestExtendOfARenewedLeaseIsUnsupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustLock(t, newClient(t, memory.New(nil), nil), "x")
		if err := l.Extend(t.Context(), time.Minute); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Extend: %v, want ErrUnsupported", err)
		}
	})
}

func TestExtendOfAReentry(t *testing.T) {
	for _, fixed := range []bool{false, true} { // of the hold that it joined
		synctest.Test(t, func(t *testing.T) {
			o := newClient(t, memory.New(nil), nil).NewOwner()
			var opts []dsync.LockOption
			if fixed {
				opts = append(opts, dsync.ExpireAfter(10*time.Second))
			}
			outer := mustLock(t, o, "x", opts...)
			inner := mustLock(t, o, "x", dsync.ExpireAfter(time.Second))
			start := time.Now()
			for _, d := range []time.Duration{5 * time.Second, 20 * time.Second} { // within the fixed hold, and beyond it
				if err := inner.Extend(t.Context(), d); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(15 * time.Second)
			if inner.Err() != nil || outer.Err() != nil {
				t.Errorf("Err of the inner lease %v, of the outer %v; want both live", inner.Err(), outer.Err())
			}
			<-inner.Done()
			if got := time.Since(start); got < 19*time.Second || got > 20*time.Second {
				t.Errorf("the inner lease ended after %v, want about 20 s", got)
			}
		})
	}
}

func TestExtendThatFailsChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{renew: func(context.Context, *stubLease) error { return driver.ErrUnavailable }}
		l := mustLock(t, newStub(t, d), "x", dsync.ExpireAfter(10*time.Second))
		before := l.Deadline()
		for _, bad := range []time.Duration{0, -time.Second, time.Minute} {
			if err := l.Extend(t.Context(), bad); err == nil {
				t.Errorf("Extend(%v) succeeded", bad)
			}
		}
		if got := l.Deadline(); !got.Equal(before) || l.Err() != nil {
			t.Errorf("deadline %v, Err %v; want %v and a live lease", got, l.Err(), before)
		}
		d.renew = func(context.Context, *stubLease) error { return driver.ErrNotHeld }
		if err := l.Extend(t.Context(), time.Minute); !errors.Is(err, dsync.ErrLost) || l.Err() == nil {
			t.Errorf("Extend of a hold that is gone: %v, then Err %v; want ErrLost", err, l.Err())
		}
	})
}

func TestForceUnlockTellsTheHolder(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		l := mustLock(t, a, "x")
		start := time.Now()
		if err := b.ForceUnlock(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		<-l.Done()
		if got, bound := time.Since(start), a.Info().Detect; got > bound {
			t.Errorf("the holder was notified after %v, want within %v", got, bound)
		}
		if err := l.Unlock(t.Context()); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Unlock: %v, want ErrLost", err)
		}
		if err := b.ForceUnlock(t.Context(), "x"); !errors.Is(err, dsync.ErrNotHeld) {
			t.Errorf("ForceUnlock of a free lock: %v, want ErrNotHeld", err)
		}
	})
}

func TestWhatTheDriverCannotDoIsUnsupported(t *testing.T) {
	c := newClient(t, &stub{}, nil)
	if err := c.ForceUnlock(t.Context(), "x"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("ForceUnlock: %v, want ErrUnsupported", err)
	}
	if _, err := c.Inspect(t.Context(), "x"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Inspect: %v, want ErrUnsupported", err)
	}
}

func TestContextsHaveEndedWhenDoneIsClosed(t *testing.T) {
	c := newClient(t, memory.New(nil), nil)
	for range 500 {
		l := mustLock(t, c, "x")
		ctx, cancel := l.Context(t.Context())
		done := l.Done()
		go func() { _ = l.Unlock(context.Background()) }()
		<-done
		if ctx.Err() == nil {
			t.Error("a context of the lease has not ended although Done is closed")
		}
		cancel()
	}
}

func TestUnlockAndLossAtTheSameTime(t *testing.T) {
	s := memory.NewServer(nil)
	c, admin := newClient(t, s.NewDriver(), nil), newClient(t, s.NewDriver(), nil)
	for range 1000 {
		l := mustLock(t, c, "x")
		ctx, cancel := l.Context(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := l.Unlock(t.Context()); err != nil && !errors.Is(err, dsync.ErrNotHeld) {
				t.Errorf("Unlock: %v", err)
			}
		})
		wg.Go(func() {
			if err := admin.ForceUnlock(t.Context(), "x"); err != nil && !errors.Is(err, dsync.ErrNotHeld) {
				t.Errorf("ForceUnlock: %v", err)
			}
		})
		wg.Wait()
		<-l.Done()
		<-ctx.Done()
		cancel()
	}
}

func TestTextsOfRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.NewServer(nil).NewDriver(), nil)
		l := mustLock(t, c, "x")
		ctx, cancel := l.Context(t.Context())
		defer cancel()
		_, nested := c.TryLock(ctx, "x")
		for want, err := range map[string]error{
			`dsync: extend "x": the lease is renewed automatically: unsupported operation`:    l.Extend(ctx, time.Minute),
			`dsync: lock "x": locked by another owner: the caller's own lease holds the name`: nested,
		} {
			if err == nil || err.Error() != want {
				t.Errorf("got %q, want %q", err, want)
			}
		}
	})
}
