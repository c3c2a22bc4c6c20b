package dsync_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
)

func mustLockAll(t *testing.T, l dsync.Locker, names ...string) *dsync.Leases {
	t.Helper()
	g, err := dsync.LockAll(t.Context(), l, names...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func free(t *testing.T, l dsync.Locker, names ...string) {
	t.Helper()
	for _, name := range names {
		lease, err := l.TryLock(t.Context(), name)
		if err != nil {
			t.Errorf("TryLock of %q: got %v, want a free name", name, err)
			continue
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func onServer(t *testing.T, f func(t *testing.T, s *memory.Server, c, other *dsync.Client)) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		f(t, s, newClient(t, s.NewDriver(), nil), newClient(t, s.NewDriver(), nil))
	})
}

func TestLockAllTakesAllInOneOrder(t *testing.T) {
	onServer(t, func(t *testing.T, _ *memory.Server, c, other *dsync.Client) {
		g := mustLockAll(t, c, "c", "a", "b")
		var names []string
		for _, l := range g.All() {
			names = append(names, l.Name())
			if l.Token() == 0 {
				t.Errorf("the lease of %q has no token", l.Name())
			}
			if _, err := other.TryLock(t.Context(), l.Name()); !errors.Is(err, dsync.ErrLocked) {
				t.Errorf("TryLock of %q by another owner: got %v, want ErrLocked", l.Name(), err)
			}
			if l.Deadline().Before(g.Deadline()) {
				t.Errorf("Deadline: got %v, after the deadline of %q", g.Deadline(), l.Name())
			}
		}
		if want := []string{"a", "b", "c"}; !slices.Equal(names, want) {
			t.Errorf("order: got %q, want %q", names, want)
		}
		if err := g.Err(); err != nil {
			t.Errorf("Err: got %v, want nil", err)
		}
		if err := g.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		free(t, other, "a", "b", "c")
		if err := g.Unlock(t.Context()); !errors.Is(err, dsync.ErrNotHeld) {
			t.Errorf("a second Unlock: got %v, want ErrNotHeld", err)
		}
	})
}

func TestLockAllThatCannotHaveOneHasNone(t *testing.T) {
	onServer(t, func(t *testing.T, _ *memory.Server, c, other *dsync.Client) {
		taken := mustLock(t, other, "b")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := dsync.LockAll(ctx, c, "a", "b", "c"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, dsync.ErrLocked) {
			t.Errorf("LockAll: got %v, want ErrLocked and the error of the context", err)
		}
		if _, err := dsync.TryLockAll(t.Context(), c, "a", "b", "c"); !errors.Is(err, dsync.ErrLocked) {
			t.Errorf("TryLockAll: got %v, want ErrLocked", err)
		}
		free(t, other, "a", "c")
		if err := taken.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		g, err := dsync.TryLockAll(t.Context(), c, "a", "b", "c")
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestLockAllInOppositeOrdersGoesOn(t *testing.T) {
	onServer(t, func(t *testing.T, _ *memory.Server, c, other *dsync.Client) {
		var wg sync.WaitGroup
		var inside int // guarded by the locks
		for i, l := range []dsync.Locker{c, other, c, other} {
			names := []string{"a", "b", "c"}
			if i%2 > 0 {
				slices.Reverse(names)
			}
			wg.Go(func() {
				for range 100 {
					g, err := dsync.LockAll(t.Context(), l, names...)
					if err != nil {
						t.Error(err)
						return
					}
					inside++
					if err := g.Unlock(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if inside != 400 {
			t.Errorf("counted %d, want 400", inside)
		}
	})
}

func TestLossOfOneIsTheLossOfAll(t *testing.T) {
	onServer(t, func(t *testing.T, s *memory.Server, c, other *dsync.Client) {
		g := mustLockAll(t, c, "a", "b")
		ctx, cancel := g.Context(t.Context())
		defer cancel()
		done := g.Done()
		if err := other.ForceUnlock(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		<-done
		<-ctx.Done()
		if err := g.Err(); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Err: got %v, want ErrLost", err)
		}
		if err := context.Cause(ctx); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("cause of the context: got %v, want ErrLost", err)
		}
		if err := g.Unlock(t.Context()); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Unlock: got %v, want ErrLost", err)
		}
		free(t, other, "a", "b")
	})
}

func TestLockAllEndsWhenOneIsLostMeanwhile(t *testing.T) {
	onServer(t, func(t *testing.T, _ *memory.Server, c, other *dsync.Client) {
		taken := mustLock(t, other, "b")
		result := make(chan error)
		go func() { // ends when LockAll returns
			_, err := dsync.LockAll(t.Context(), c, "a", "b")
			result <- err
		}()
		synctest.Wait()
		if err := other.ForceUnlock(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if err := <-result; !errors.Is(err, dsync.ErrLost) {
			t.Errorf("LockAll: got %v, want ErrLost", err)
		}
		if err := taken.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		free(t, other, "a", "b")
	})
}

func TestLockOnSeveralClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var targets []dsync.Target
		for range 3 {
			targets = append(targets, dsync.Target{Locker: newClient(t, memory.NewServer(nil).NewDriver(), nil), Names: []string{"x", "a"}})
		}
		g, err := dsync.LockOn(t.Context(), targets...)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := len(g.All()), 6; got != want {
			t.Errorf("leases: got %d, want %d", got, want)
		}
		if err := g.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		taken := mustLock(t, targets[2].Locker, "x")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := dsync.LockOn(ctx, targets...); !errors.Is(err, dsync.ErrLocked) {
			t.Errorf("LockOn: got %v, want ErrLocked", err)
		}
		if err := taken.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		for _, target := range targets {
			free(t, target.Locker, target.Names...)
		}
	})
}

func TestLockAllRefuses(t *testing.T) {
	onServer(t, func(t *testing.T, _ *memory.Server, c, _ *dsync.Client) {
		for what, err := range map[string]error{
			`"a" is given twice`: func() error { _, err := dsync.LockAll(t.Context(), c, "a", "b", "a"); return err }(),
			"target 1 of 1":      func() error { _, err := dsync.LockAll(t.Context(), c); return err }(),
			"no names":           func() error { _, err := dsync.LockOn(t.Context()); return err }(),
			"target 2 of 2": func() error {
				_, err := dsync.LockOn(t.Context(), dsync.Target{Locker: c, Names: []string{"a"}}, dsync.Target{})
				return err
			}(),
			`dsync: lock ""`: func() error { _, err := dsync.LockAll(t.Context(), c, "a", ""); return err }(),
		} {
			if err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("got %v, want an error with %q in it", err, what)
			}
		}
		free(t, c, "a", "b")
	})
}
