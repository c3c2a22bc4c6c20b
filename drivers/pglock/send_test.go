package pglock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestReadersTakeTurns alternates between one caller, a few, and none. Each
// caller may read for the others or leave the reading to the session, and every
// caller must get its answer.
func TestReadersTakeTurns(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	d := newDriver(t, pg.Addr, nil)
	for range 100 {
		var callers sync.WaitGroup
		for i := range 1 + rand.N(3) {
			callers.Go(func() {
				name := string(rune('a' + i))
				for range 1 + rand.N(20) {
					ctx, cancel := context.WithTimeout(context.Background(), drivertest.HangGuard)
					l, err := d.Acquire(ctx, request(name, longTTL))
					if err != nil {
						t.Errorf("Acquire: %v", err)
					} else if err = l.Release(ctx); err != nil {
						t.Errorf("Release: %v", err)
					}
					cancel()
				}
			})
		}
		callers.Wait()
		if rand.N(4) == 0 {
			<-time.After(rand.N(5 * time.Millisecond)) // the session reads itself again, or is about to
		}
	}
}

// TestCallerLeavesWhileItReads has the answer arrive late at a single caller,
// which leaves when its time is up. The requested lock is released.
func TestCallerLeavesWhileItReads(t *testing.T) {
	pg := testenv.Postgres(t)
	link, addr := testenv.Wire(t, pg.Addr)
	d, other := newDriver(t, addr, nil), newDriver(t, pg.Addr, nil)
	for range 10 {
		mustRelease(t, mustAcquire(t, d, request("warm", longTTL))) // from here on there is no reader
		link.Hold(wire.Replies)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := d.Acquire(ctx, request("a", longTTL))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("unanswered Acquire: got %v, want %v and %v", err, context.DeadlineExceeded, driver.ErrUnknown)
		}
		link.Heal()
		mustRelease(t, mustAcquire(t, other, request("a", longTTL)))
	}
}

// TestEndOfTheConnectionAfterARequest ends the connection when there is no
// reader. The holder is notified anyway.
func TestEndOfTheConnectionAfterARequest(t *testing.T) {
	pg := testenv.Postgres(t)
	link, addr := testenv.Wire(t, pg.Addr)
	for range 5 {
		d := newDriver(t, addr, nil)
		r := request("a", longTTL)
		mustAcquire(t, d, r)
		mustRelease(t, mustAcquire(t, d, request("b", longTTL)))
		link.Cut()
		link.Heal()
		select {
		case err := <-r.Events.(*events).lost:
			if !errors.Is(err, driver.ErrSessionEnded) {
				t.Errorf("loss: got %v, want %v", err, driver.ErrSessionEnded)
			}
		case <-time.After(drivertest.HangGuard):
			t.Fatal("the holder is not notified")
		}
	}
}
