package dsync_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
)

// TestNesting is the table of the locks that may be acquired under a lease of
// the same name, by the Owner of the lease or with its context.
func TestNesting(t *testing.T) {
	exclusive, read, write := []dsync.LockOption(nil), []dsync.LockOption{dsync.Read()}, []dsync.LockOption{dsync.Write()}
	for _, tt := range []struct {
		has, asks          []dsync.LockOption
		byOwner, byContext bool // joins; otherwise ErrDeadlock
	}{
		{read, read, true, true},
		{read, write, false, false},
		{read, exclusive, false, false},
		{write, read, true, true},
		{write, write, true, false},
		{write, exclusive, true, false},
		{exclusive, read, true, true},
		{exclusive, write, true, false},
		{exclusive, exclusive, true, false},
	} {
		forOrders(t, func(t *testing.T, a, b *dsync.Client) {
			nested := func(ctx context.Context, under *dsync.Lease, l dsync.Locker, joins bool) {
				t.Helper()
				lease, err := l.Lock(ctx, "x", tt.asks...)
				tried, tryErr := l.TryLock(ctx, "x", tt.asks...)
				if !joins {
					if !errors.Is(err, dsync.ErrDeadlock) || !errors.Is(tryErr, dsync.ErrLocked) {
						t.Errorf("errors %v and %v, want ErrDeadlock and ErrLocked", err, tryErr)
					}
					return
				}
				if err != nil || tryErr != nil {
					t.Fatalf("errors %v and %v", err, tryErr)
				}
				owner := under.Owner()
				if o, ok := l.(*dsync.Owner); ok {
					owner = o.ID()
				}
				if lease.Token() != under.Token() || lease.Owner() != owner {
					t.Errorf("token %d, owner %s; want token %d, owner %s", lease.Token(), lease.Owner(), under.Token(), owner)
				}
				mustUnlock(t, lease, tried)
			}
			for _, outer := range []dsync.Locker{a, a.NewOwner()} {
				lease := mustLock(t, outer, "x", tt.has...)
				ctx, cancel := lease.Context(t.Context())
				waits := make(chan error)
				go func() { // ends when the lease ends
					l, err := b.Lock(t.Context(), "x", dsync.Write())
					if err == nil {
						err = l.Unlock(t.Context())
					}
					waits <- err
				}()
				time.Sleep(time.Second) // the hold is too old to be joined
				nested(ctx, lease, a, tt.byContext)
				nested(ctx, lease, a.NewOwner(), tt.byContext)
				if o, ok := outer.(*dsync.Owner); ok {
					nested(ctx, lease, o, tt.byOwner)
					nested(t.Context(), lease, o, tt.byOwner)
				}
				cancel()
				mustUnlock(t, lease)
				if err := <-waits; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A nested Read keeps the name exclusive after the outer lease has ended.
func TestReadUnderWriteKeepsTheName(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		for _, has := range [][]dsync.LockOption{nil, {dsync.Write()}} {
			outer := mustLock(t, a, "x", has...)
			ctx, cancel := outer.Context(t.Context())
			inner, err := a.Lock(ctx, "x", dsync.Read())
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			mustUnlock(t, outer)
			mustBeLocked(t, []dsync.Locker{a, b}, dsync.Read())
			mustUnlock(t, inner)
			mustUnlock(t, mustTry(t, b, dsync.Read()))
		}
	})
}

// An Owner that joined the hold of another reader can nest in it as in its own
// hold.
func TestOwnerNestsInAJoinedHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: bothModes}
		c := newStub(t, d)
		o := c.NewOwner()
		first, joined := mustLock(t, c, "x", dsync.Read()), mustLock(t, o, "x", dsync.Read())
		mustUnlock(t, first)
		time.Sleep(time.Second)
		again := mustLock(t, o, "x", dsync.Read())
		if got := len(d.asked()); got != 1 {
			t.Errorf("%d requests, want 1", got)
		}
		if _, err := o.Lock(t.Context(), "x"); !errors.Is(err, dsync.ErrDeadlock) {
			t.Errorf("error %v, want ErrDeadlock", err)
		}
		mustUnlock(t, joined, again)
		mustUnlock(t, mustLock(t, o, "x"))
	})
}

// If goroutines of an Owner request a name in two modes at the same time, both
// eventually acquire it.
func TestOwnerAsksInTwoModesAtOnce(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		for range 20 {
			other := mustLock(t, b, "x")
			o := a.NewOwner()
			var wg sync.WaitGroup
			for _, opt := range []dsync.LockOption{dsync.Read(), dsync.Write(), {}} {
				wg.Go(func() {
					l, err := o.Lock(t.Context(), "x", opt)
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Millisecond)
					mustUnlock(t, l)
				})
			}
			synctest.Wait()
			mustUnlock(t, other)
			wg.Wait()
		}
	})
}
