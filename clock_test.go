package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// whoKnows runs a test on a system that knows how long it slept and on a system
// where only the wall clock shows the sleep.
func whoKnows(t *testing.T, f func(t *testing.T, known bool)) {
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("known %t", known), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, known) })
		})
	}
}

// near reports whether two times are equal, except for the drift of the
// machine's real clocks between two readings.
func near(a, b time.Duration) bool { return (a - b).Abs() < time.Millisecond }

func TestLeaseIsOverAfterASleepOfItsTTL(t *testing.T) {
	whoKnows(t, func(t *testing.T, known bool) {
		c := newStub(t, &stub{info: driver.Info{KeepsAlive: true}})
		l := mustLock(t, c, "x")
		ctx, cancel := l.Context(t.Context())
		defer cancel()
		dsync.Sleep(c, 9900*time.Millisecond, known)
		if err := l.Err(); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Err after the sleep: %v, want ErrLost", err)
		}
		if ctx.Err() == nil {
			t.Error("the lease's context has not ended although Err reported ErrLost")
		}
	})
}

func TestEndOfALeaseIsToldSoonAfterASleep(t *testing.T) {
	whoKnows(t, func(t *testing.T, known bool) {
		c := newStub(t, &stub{info: driver.Info{KeepsAlive: true}})
		l := mustLock(t, c, "x")
		done := l.Done()
		synctest.Wait()
		start := time.Now()
		dsync.Sleep(c, 9900*time.Millisecond, known)
		<-done
		if got := time.Since(start); got > time.Second {
			t.Errorf("Done is closed %v after the sleep, want a second at most", got)
		}
	})
}

func TestSleepCountsForWhatWasSentBefore(t *testing.T) {
	whoKnows(t, func(t *testing.T, known bool) {
		d := &stub{}
		c := newStub(t, d)
		l := mustLock(t, c, "x")
		time.Sleep(1500 * time.Millisecond) // between two of the watchdog's checks: a check, every second, would renew after a sleep
		dsync.Sleep(c, 4*time.Second, known)
		if got, want := time.Until(l.Deadline()), 4395*time.Millisecond; !near(got, want) {
			t.Errorf("the deadline is %v away, want %v", got, want)
		}
		time.Sleep(2 * time.Second) // for a renewal, which becomes due after a sleep
		if got, want := time.Until(l.Deadline()), 7895*time.Millisecond; got < want {
			t.Errorf("the deadline of a renewed lease is %v away, want %v at least", got, want)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if n := len(d.renewals()); n == 0 {
			t.Error("no renewal after the sleep")
		}
	})
}

func TestLapsedHoldIsNotReleasedEarlyForASleep(t *testing.T) {
	whoKnows(t, func(t *testing.T, known bool) {
		d := &stub{info: driver.Info{KeepsAlive: true}}
		c := newClient(t, d, &dsync.Options{TTL: 1000 * time.Second})
		l := mustLock(t, c, "x")
		time.Sleep(990 * time.Second)
		if err := l.Err(); !errors.Is(err, dsync.ErrLost) {
			t.Fatalf("Err: %v, want ErrLost", err)
		}
		dsync.Sleep(c, 2*time.Second, known)
		start := time.Now()
		for len(d.gaveBack()) == 0 {
			time.Sleep(100 * time.Microsecond)
		}
		if got, want := time.Since(start), 8*time.Second; !near(got, want) {
			t.Errorf("the hold was released after %v, want %v", got, want)
		}
	})
}

func TestSleepsThatAreTooShortToNoticeAddUp(t *testing.T) {
	whoKnows(t, func(t *testing.T, known bool) {
		c := newStub(t, &stub{info: driver.Info{KeepsAlive: true}})
		l := mustLock(t, c, "x")
		whole := l.Deadline()
		for range 1000 {
			dsync.Sleep(c, 300*time.Microsecond, known)
			l.Deadline()
		}
		if got, want := whole.Sub(l.Deadline()), 300*time.Millisecond; (got - want).Abs() > 2*time.Millisecond {
			t.Errorf("1000 sleeps of 300 µs made the deadline earlier by %v, want %v", got, want)
		}
	})
}

func TestStepsOfTheWallClock(t *testing.T) {
	for _, tt := range []struct {
		known      bool
		step, want time.Duration
	}{
		{true, time.Hour, 0},
		{true, -time.Hour, 0},
		{false, -time.Hour, 0},
		{false, time.Second, time.Second}, // may be a sleep
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newStub(t, &stub{info: driver.Info{KeepsAlive: true}})
			l := mustLock(t, c, "x")
			whole := l.Deadline()
			dsync.Sleep(c, 0, tt.known)
			dsync.StepWallClock(c, tt.step)
			if got := whole.Sub(l.Deadline()); !near(got, tt.want) {
				t.Errorf("known %t: a step of %v made the deadline earlier by %v, want %v", tt.known, tt.step, got, tt.want)
			}
			dsync.Sleep(c, 3*time.Second, tt.known)
			if got := whole.Sub(l.Deadline()); !near(got, tt.want+3*time.Second) {
				t.Errorf("known %t: a sleep of 3 s after a step of %v made the deadline earlier by %v in all", tt.known, tt.step, got)
			}
		})
	}
}

// The server slept as well, so the session has not expired and the driver keeps
// it alive.
func TestLockIsFreeAfterASleepOfClientAndServer(t *testing.T) {
	whoKnows(t, func(t *testing.T, known bool) {
		s := memory.NewServer(&memory.Options{KeepsAlive: true})
		var clients [2]*dsync.Client
		for i := range clients {
			c, err := dsync.New(s.NewDriver(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(t.Context())
			clients[i] = c
		}
		l := mustLock(t, clients[0], "x")
		time.Sleep(time.Second)
		dsync.Sleep(clients[0], time.Hour, known)
		if err := l.Err(); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Err after the sleep: %v, want ErrLost", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		next, err := clients[1].Lock(ctx, "x")
		if err != nil {
			t.Fatalf("Lock of another client: %v", err)
		}
		if err := next.Unlock(ctx); err != nil {
			t.Error(err)
		}
	})
}
