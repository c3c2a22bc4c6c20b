package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var sessions = &memory.Options{KeepsAlive: true}

// lockEvents is like lock, but also returns the attempt.
func lockEvents(t *testing.T, d *memory.Driver, name string) (driver.Lease, *attempt) {
	t.Helper()
	a := newAttempt(name)
	l, err := d.Acquire(t.Context(), &a.Request)
	if err != nil {
		t.Fatalf("acquire %q: %v", name, err)
	}
	return l, a
}

func wantLost(t *testing.T, a *attempt, cause error) {
	t.Helper()
	if n := a.losses.Load(); n != 1 || !errors.Is(a.lostBy(), cause) {
		t.Errorf("Lost was called %d times, last with %v, want once with %v", n, a.lostBy(), cause)
	}
}

func TestSessionIsKeptAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(sessions)
		if !d.Info().KeepsAlive {
			t.Error("Info does not report that the driver keeps its leases alive")
		}
		l, a := lockEvents(t, d, "x")
		c := wait(t.Context(), other, newAttempt("x"))
		for range 100 {
			time.Sleep(time.Second)
			if left := time.Until(l.Expires()); left < 6*time.Second || left > 10*time.Second {
				t.Fatalf("%v left, want 6s to 10s", left)
			}
		}
		if n := d.Sessions(); n != 1 {
			t.Errorf("%d sessions, want 1", n)
		}
		release(t, l)
		r := <-c
		if n := d.Sessions(); n != 0 || a.losses.Load() != 0 {
			t.Errorf("%d sessions after the release and %d losses, want none", n, a.losses.Load())
		}
		time.Sleep(time.Minute)
		release(t, r.lease)
		if n := other.Sessions(); n != 0 {
			t.Errorf("%d sessions after the release, want none", n)
		}
	})
}

func TestSessionThatIsCutOffExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(sessions)
		l, a := lockEvents(t, d, "x")
		l2, a2 := lockEvents(t, d, "y")
		time.Sleep(time.Minute)
		d.Cut()
		expires := l.Expires()
		c := wait(t.Context(), other, newAttempt("x"))
		r := <-c
		if r.err != nil || !r.at.Equal(expires) {
			t.Errorf("the other driver got %v at %v, want a lease at %v", r.err, r.at, expires)
		}
		synctest.Wait()
		wantLost(t, a, driver.ErrSessionEnded)
		wantLost(t, a2, driver.ErrSessionEnded)
		if got := l.Expires(); !got.Equal(expires) {
			t.Errorf("Expires moved from %v to %v", expires, got)
		}
		d.Heal()
		wantErr(t, "release", l2.Release(t.Context()), driver.ErrNotHeld)
		_, err := try(d, "x")
		wantErr(t, "acquire of a name that the other driver holds", err, driver.ErrLocked)
		release(t, lock(t, d, "y"))
		release(t, r.lease)
	})
}

func TestSessionWhoseKeepAlivesAreNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, kind := range []memory.FaultKind{memory.CutOff, memory.Hang, memory.LoseAnswer} {
			d, other := pair(sessions)
			l, a := lockEvents(t, d, "x")
			d.Inject(memory.Fault{Kind: kind, On: memory.Renewals})
			time.Sleep(9 * time.Second)
			d.Heal()
			time.Sleep(10 * time.Second)
			if n := a.losses.Load(); n != 0 || !l.Expires().After(time.Now()) {
				t.Errorf("fault %d, healed in time: %d losses, %v left", kind, n, time.Until(l.Expires()))
			}
			d.Inject(memory.Fault{Kind: kind, On: memory.Renewals})
			time.Sleep(time.Until(l.Expires()))
			synctest.Wait()
			wantLost(t, a, driver.ErrSessionEnded)
			release(t, lock(t, other, "x")) // the session was ended at once, even if the server had extended it
			if err := d.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestFixedLeaseOnASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(sessions)
		start := time.Now()
		a := newAttempt("x")
		a.Fixed = true
		l, err := d.Acquire(t.Context(), &a.Request)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		if got := l.Expires().Sub(start); got != 10*time.Second {
			t.Errorf("expires after %v, want 10s", got)
		}
		if err := l.Renew(t.Context(), 20*time.Second); err != nil {
			t.Fatal(err)
		}
		r := <-wait(t.Context(), other, newAttempt("x"))
		if got := r.at.Sub(start); r.err != nil || got != 24*time.Second {
			t.Errorf("the other driver got %v after %v, want a lease after 24s", r.err, got)
		}
		wantErr(t, "renewal", l.Renew(t.Context(), time.Second), driver.ErrNotHeld)
		release(t, r.lease)
	})
}

func TestEndSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(sessions)
		l, a := lockEvents(t, d, "x")
		lx := lock(t, other, "y")
		cx, cy := wait(t.Context(), other, newAttempt("x")), wait(t.Context(), d, newAttempt("y"))
		d.EndSession()
		wantLost(t, a, driver.ErrSessionEnded)
		release(t, (<-cx).lease)
		wantErr(t, "release", l.Release(t.Context()), driver.ErrNotHeld)
		synctest.Wait()
		release(t, lx)
		r := <-cy // the waiter kept waiting with a new session
		if r.err != nil {
			t.Fatal(r.err)
		}
		if n := r.a.waiting.Load(); n != 1 {
			t.Errorf("Waiting was called %d times, want 1", n)
		}

		d.Cut()
		d.EndSession()
		if n := r.a.losses.Load(); n != 0 {
			t.Errorf("Lost was called %d times for a driver that is cut off, want 0", n)
		}
		release(t, lock(t, other, "y"))
		d.Heal()
		wantLost(t, r.a, driver.ErrSessionEnded)
	})
}

func TestWaiterWhoseSessionExpiredAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(sessions)
		l := lock(t, other, "x")
		c := wait(t.Context(), d, newAttempt("x"))
		behind := newAttempt("x")
		behind.TTL = 20 * time.Second
		c2 := wait(t.Context(), d, behind)
		d.Inject(memory.Fault{Kind: memory.LoseAnswer, On: memory.Renewals}) // so the server extends the session
		time.Sleep(15 * time.Second)                                         // the first waiter has lost its place, and the second has not
		d.Heal()
		release(t, l)
		r := <-c2
		if r.err != nil || len(c) != 0 {
			t.Fatalf("got %v, want a lease for the waiter that kept its place", r.err)
		}
		release(t, r.lease)
		release(t, (<-c).lease)
	})
}

func TestGrantOnASessionThatExpiredMeanwhileIsNotReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(sessions)
		start := time.Now()
		l := lock(t, other, "x")
		c := wait(t.Context(), d, newAttempt("x"))
		d.Inject(memory.Fault{Kind: memory.LoseAnswer, On: memory.Renewals})
		time.Sleep(4 * time.Second) // the session ends after 10s for the driver, and after 13s for the server
		d.Inject(memory.Fault{Kind: memory.Hang})
		release(t, l)
		time.Sleep(7 * time.Second)
		d.Inject(memory.Fault{Kind: memory.CutOff, On: memory.Releases})
		r := <-c
		if r.err != nil {
			t.Fatal(r.err)
		}
		if got, least := r.at.Sub(start), 13*time.Second; got < least || !r.lease.Expires().After(r.at) {
			t.Errorf("granted after %v with %v left, want a live lease after %v", got, r.lease.Expires().Sub(r.at), least)
		}
	})
}

func TestSilentRemovalIsToldWhereASessionCarriesTheLease(t *testing.T) {
	d := memory.New(sessions)
	for _, end := range []func(){func() { d.Server().Expire("x") }, d.Server().Flush} {
		_, a := lockEvents(t, d, "x")
		end()
		wantLost(t, a, driver.ErrRemoved)
	}
	if n := d.Sessions(); n != 0 {
		t.Errorf("%d sessions, want none", n)
	}
}

func TestCloseEndsSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(sessions)
		lock(t, d, "x")
		lock(t, other, "y")
		c := wait(t.Context(), d, newAttempt("y"))
		d.Inject(memory.Fault{Kind: memory.Hang, On: memory.Renewals})
		time.Sleep(5 * time.Second) // a keep-alive hangs
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
		wantErr(t, "wait", (<-c).err, driver.ErrClosed)
		if n := d.Sessions(); n != 0 {
			t.Errorf("%d sessions, want none", n)
		}
		release(t, lock(t, other, "x"))
	})
}
