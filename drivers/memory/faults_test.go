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

// pair returns two drivers of one server.
func pair(o *memory.Options) (a, b *memory.Driver) {
	s := memory.NewServer(o)
	return s.NewDriver(), s.NewDriver()
}

func TestCutOffHolderLosesItsLeaseAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(nil)
		l := lock(t, d, "x")
		c := wait(t.Context(), other, newAttempt("x"))
		expires := l.Expires()
		d.Cut()
		time.Sleep(time.Second)
		wantErr(t, "renewal", l.Renew(t.Context(), time.Minute), driver.ErrUnavailable)
		_, err := try(d, "free")
		wantErr(t, "acquire", err, driver.ErrUnavailable)
		_, err = d.Inspect(t.Context(), "x")
		wantErr(t, "inspect", err, driver.ErrUnavailable)
		wantErr(t, "forced unlock", d.ForceUnlock(t.Context(), "x"), driver.ErrUnavailable)
		d.RenewAll(t.Context(), []driver.Lease{l}, func(_ int, err error) { wantErr(t, "renewal of all", err, driver.ErrUnavailable) })

		r := <-c
		if r.err != nil || !r.at.Equal(expires) {
			t.Errorf("the other driver got %v at %v, want a lease at %v", r.err, r.at, expires)
		}
		d.Heal()
		wantErr(t, "renewal after the end", l.Renew(t.Context(), time.Minute), driver.ErrNotHeld)
		if got := l.Expires(); !got.Equal(expires) {
			t.Errorf("Expires moved from %v to %v", expires, got)
		}
		if got := status(t, d, "x").Hold; got != r.a.Hold {
			t.Errorf("held by %q, want the other driver's %q", got, r.a.Hold)
		}
	})
}

func TestCutDismissesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(nil)
		l := lock(t, other, "x")
		c := wait(t.Context(), d, newAttempt("x"))
		d.Cut()
		wantErr(t, "wait", (<-c).err, driver.ErrUnavailable)
		if got := status(t, other, "x").Waiters; got != 0 {
			t.Errorf("%d requests wait, want none", got)
		}
		release(t, l)
	})
}

func TestShortCutIsSurvived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(nil)
		l := lock(t, d, "x")
		d.Cut()
		time.Sleep(9 * time.Second)
		d.Heal()
		if err := l.Renew(t.Context(), 10*time.Second); err != nil {
			t.Error(err)
		}
		if got := time.Until(l.Expires()); got != 10*time.Second {
			t.Errorf("%v left, want 10s", got)
		}
	})
}

func TestReleaseThatFailsIsDoneLater(t *testing.T) {
	for _, test := range []struct {
		name string
		kind memory.FaultKind
	}{{"cut off", memory.CutOff}, {"hang", memory.Hang}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, other := pair(nil)
				l := lock(t, d, "x")
				d.Inject(memory.Fault{Kind: test.kind, On: memory.Releases})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				wantErr(t, "release", l.Release(ctx), driver.ErrUnknown)
				wantErr(t, "renewal of a lease whose release failed", l.Renew(t.Context(), time.Minute), driver.ErrNotHeld)
				_, err := try(other, "x")
				wantErr(t, "acquire by the other driver before the fault ends", err, driver.ErrLocked)
				d.Heal()
				wantErr(t, "renewal of a released lease", l.Renew(t.Context(), time.Second), driver.ErrNotHeld)
				release(t, lock(t, other, "x"))
				release(t, l) // the answer to the first Acquire
				wantErr(t, "third release", l.Release(t.Context()), driver.ErrNotHeld)
			})
		})
	}
}

func TestReleaseWhoseAnswerIsLost(t *testing.T) {
	d, other := pair(nil)
	l := lock(t, d, "x")
	d.Inject(memory.Fault{Kind: memory.LoseAnswer})
	wantErr(t, "release", l.Release(t.Context()), driver.ErrUnknown)
	release(t, lock(t, other, "x"))
	wantErr(t, "repeated release", l.Release(t.Context()), driver.ErrUnknown)
	d.Heal()
	release(t, l)
	wantErr(t, "release after the answer", l.Release(t.Context()), driver.ErrNotHeld)
}

func TestAcquireWhoseAnswerIsLostIsCleanedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(nil)
		d.Inject(memory.Fault{Kind: memory.LoseAnswer})
		_, err := try(d, "x")
		wantErr(t, "acquire", err, driver.ErrUnknown)
		_, err = try(other, "x")
		wantErr(t, "acquire by the other driver before the fault ends", err, driver.ErrLocked)
		d.Heal()
		l := lock(t, other, "x")

		d.Inject(memory.Fault{Kind: memory.LoseAnswer})
		_, err = try(d, "x")
		wantErr(t, "acquire of a name that the other driver holds", err, driver.ErrUnknown)
		release(t, l)
		_, err = try(d, "x")
		wantErr(t, "acquire", err, driver.ErrUnknown)
		start := time.Now()
		r := <-wait(t.Context(), other, newAttempt("x"))
		if got := r.at.Sub(start); r.err != nil || got != 10*time.Second {
			t.Errorf("the other driver got %v after %v, want a lease when the TTL of the remains has passed", r.err, got)
		}
		d.Heal()
		if got := status(t, d, "x").Hold; got != r.a.Hold || d.Behind() != 0 {
			t.Errorf("held by %q, %d left behind, want the other driver's %q and none", got, d.Behind(), r.a.Hold)
		}
	})
}

func TestRequestThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(nil)
		d.Inject(memory.Fault{Kind: memory.Hang})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		r := <-wait(ctx, d, newAttempt("x"))
		wantErr(t, "acquire", r.err, driver.ErrUnknown, context.DeadlineExceeded)
		if got := r.at.Sub(start); got != 3*time.Second {
			t.Errorf("Acquire returned after %v, want 3s", got)
		}
		c := wait(t.Context(), d, newAttempt("x"))
		time.Sleep(time.Hour)
		d.Heal()
		r = <-c
		if r.err != nil {
			t.Fatalf("acquire after the fault: %v", r.err)
		}
		if got, want := time.Until(r.lease.Expires()), 10*time.Second-time.Hour; got != want {
			t.Errorf("%v left, want %v: the TTL starts when the request is sent", got, want)
		}
		wantErr(t, "renewal of an expired lease", r.lease.Renew(t.Context(), time.Minute), driver.ErrNotHeld)
		release(t, r.lease) // the TTL began at the server when the request was let through

		c = wait(t.Context(), d, newAttempt("x"))
		release(t, (<-c).lease)
		d.Inject(memory.Fault{Kind: memory.Hang})
		c = wait(t.Context(), d, newAttempt("x"))
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
		wantErr(t, "acquire that hangs in Close", (<-c).err, driver.ErrClosed)
	})
}

func TestGrantToAWaiterThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(nil)
		l := lock(t, other, "x")
		ctx, cancel := context.WithCancel(t.Context())
		a := newAttempt("x")
		c := wait(ctx, d, a)
		d.Inject(memory.Fault{Kind: memory.Hang})
		release(t, l)
		if got := status(t, other, "x").Hold; got != a.Hold {
			t.Errorf("held by %q, want %q, which is not notified", got, a.Hold)
		}
		cancel()
		wantErr(t, "acquire", (<-c).err, driver.ErrUnknown, context.Canceled)
		if err := other.ForceUnlock(t.Context(), "x"); err != nil {
			t.Error(err)
		}
		d.Heal()
		if got := a.losses.Load(); got != 0 {
			t.Errorf("Lost was called %d times for an Acquire that failed, want 0", got)
		}

		// An Acquire whose grant has expired on arrival is repeated.
		l = lock(t, other, "x")
		c = wait(t.Context(), d, newAttempt("x"))
		d.Inject(memory.Fault{Kind: memory.Hang})
		release(t, l)
		time.Sleep(11 * time.Second)
		d.Heal()
		r := <-c
		if r.err != nil || time.Until(r.lease.Expires()) != 10*time.Second || r.a.waiting.Load() != 1 {
			t.Errorf("got %v, want a fresh lease", r.err)
		}
	})
}

func TestSlowRequestCountsFromItsSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(nil)
		d.Inject(memory.Fault{Delay: 4 * time.Second})
		start := time.Now()
		l := lock(t, d, "x")
		if got := time.Since(start); got != 4*time.Second {
			t.Errorf("acquire took %v, want 4s", got)
		}
		if got := l.Expires().Sub(start); got != 10*time.Second {
			t.Errorf("expires %v after the request was sent, want 10s", got)
		}
		c := wait(t.Context(), other, newAttempt("x"))
		if err := l.Renew(t.Context(), 10*time.Second); err != nil {
			t.Error(err)
		}
		if got := l.Expires().Sub(start); got != 14*time.Second {
			t.Errorf("expires %v after the first request was sent, want 14s", got)
		}
		time.Sleep(4 * time.Second)
		wantErr(t, "renewal that arrives too late", l.Renew(t.Context(), 10*time.Second), driver.ErrNotHeld)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := d.Acquire(ctx, &newAttempt("y").Request)
		wantErr(t, "acquire that takes longer than its context", err, context.DeadlineExceeded)
		if r := <-c; r.at.Sub(start) != 18*time.Second {
			t.Errorf("the other driver was granted the lock %v after the first request was sent, want 18s", r.at.Sub(start))
		}
	})
}

func TestFaultOnSomeRequests(t *testing.T) {
	d := memory.New(nil)
	l := lock(t, d, "x")
	d.Inject(memory.Fault{Kind: memory.CutOff, On: memory.Renewals, Times: 2})
	release(t, lock(t, d, "y"))
	expires := l.Expires()
	d.RenewAll(t.Context(), []driver.Lease{l}, func(_ int, err error) { wantErr(t, "first renewal", err, driver.ErrUnavailable) })
	wantErr(t, "second renewal", l.Renew(t.Context(), time.Minute), driver.ErrUnavailable)
	if got := l.Expires(); !got.Equal(expires) {
		t.Errorf("Expires moved from %v to %v", expires, got)
	}
	if err := l.Renew(t.Context(), time.Minute); err != nil {
		t.Errorf("third renewal: %v", err)
	}

	d.Inject(memory.Fault{Kind: memory.LoseAnswer, Times: 1})
	_, err := try(d, "z")
	wantErr(t, "acquire", err, driver.ErrUnknown)
	release(t, lock(t, d, "z"))

	d.Inject(memory.Fault{Kind: memory.CutOff, Times: 2})
	wantErr(t, "release", l.Release(t.Context()), driver.ErrUnknown)
	_, err = d.Inspect(t.Context(), "x")
	wantErr(t, "inspect", err, driver.ErrUnavailable)
	release(t, lock(t, d, "x")) // the release was carried out before the fault ended
}

func TestRenewalWhoseAnswerIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(nil)
		start := time.Now()
		l := lock(t, d, "x")
		c := wait(t.Context(), other, newAttempt("x"))
		d.Inject(memory.Fault{Kind: memory.LoseAnswer, On: memory.Renewals})
		time.Sleep(time.Second)
		wantErr(t, "renewal", l.Renew(t.Context(), 10*time.Second), driver.ErrUnknown)
		if got := l.Expires().Sub(start); got != 10*time.Second {
			t.Errorf("expires after %v, want 10s, as granted", got)
		}
		wantErr(t, "renewal with a shorter TTL", l.Renew(t.Context(), 2*time.Second), driver.ErrUnknown)
		if got := l.Expires().Sub(start); got != 3*time.Second {
			t.Errorf("expires after %v, want 3s: the server may have carried out the renewal", got)
		}
		if r := <-c; r.at.Sub(start) != 3*time.Second {
			t.Errorf("the other driver was granted the lock after %v, want 3s", r.at.Sub(start))
		}
	})
}

func TestForceUnlockTellsTheHolder(t *testing.T) {
	d, other := pair(nil)
	a := newAttempt("x")
	l, err := d.Acquire(t.Context(), &a.Request)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.ForceUnlock(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	wantLost(t, a, driver.ErrRemoved)
	wantErr(t, "second forced unlock", other.ForceUnlock(t.Context(), "x"), driver.ErrNotHeld)
	wantErr(t, "renewal", l.Renew(t.Context(), time.Second), driver.ErrNotHeld)
	wantErr(t, "release", l.Release(t.Context()), driver.ErrNotHeld)
	release(t, lock(t, other, "x"))
}

func TestForceUnlockTellsOnlyThoseWhoHoldOn(t *testing.T) {
	d, other := pair(nil)
	holds, released := newAttempt("x"), newAttempt("y")
	for _, a := range []*attempt{holds, released} {
		l, err := d.Acquire(t.Context(), &a.Request)
		if err != nil {
			t.Fatal(err)
		}
		d.Inject(memory.Fault{Kind: memory.CutOff, On: memory.Releases})
		if a == released {
			wantErr(t, "release", l.Release(t.Context()), driver.ErrUnknown)
		}
		if err := other.ForceUnlock(t.Context(), a.Name); err != nil {
			t.Fatal(err)
		}
	}
	wantLost(t, holds, driver.ErrRemoved)
	if got := released.losses.Load(); got != 0 {
		t.Errorf("Lost was called %d times after Release, want 0", got)
	}
}

func TestCutOffHolderIsToldWhenItIsBack(t *testing.T) {
	d, other := pair(nil)
	lost, released := newAttempt("x"), newAttempt("y")
	for _, a := range []*attempt{lost, released} {
		l, err := d.Acquire(t.Context(), &a.Request)
		if err != nil {
			t.Fatal(err)
		}
		d.Cut()
		if err := other.ForceUnlock(t.Context(), a.Name); err != nil {
			t.Fatal(err)
		}
		if a == released {
			wantErr(t, "release while cut off", l.Release(t.Context()), driver.ErrUnknown)
		}
		if got := a.losses.Load(); got != 0 {
			t.Errorf("Lost was called %d times for a driver that is cut off, want 0", got)
		}
		d.Heal()
	}
	wantLost(t, lost, driver.ErrRemoved)
	if got := released.losses.Load(); got != 0 {
		t.Errorf("Lost was called %d times after Release, want 0", got)
	}
}

func TestExpireAndFlushAreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(nil)
		for _, end := range []func(){func() { d.Server().Expire("x") }, d.Server().Flush} {
			a := newAttempt("x")
			l, err := d.Acquire(t.Context(), &a.Request)
			if err != nil {
				t.Fatal(err)
			}
			c := wait(t.Context(), other, newAttempt("x"))
			end()
			r := <-c
			if r.err != nil {
				t.Fatal(r.err)
			}
			before, _ := l.Tokens()
			if after, _ := r.lease.Tokens(); after <= before {
				t.Errorf("token %d follows %d", after, before)
			}
			wantErr(t, "renewal", l.Renew(t.Context(), time.Second), driver.ErrNotHeld)
			wantErr(t, "release", l.Release(t.Context()), driver.ErrNotHeld)
			if got := a.losses.Load(); got != 0 {
				t.Errorf("Lost was called %d times, want 0", got)
			}
			release(t, r.lease)
			end() // nothing is held
		}
	})
}

func TestCloseWhileCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			name         string
			heal, cancel time.Duration
			want         time.Duration
			wantErr      error
		}{
			{"holds end by themselves", time.Hour, time.Hour, 10 * time.Second, nil},
			{"healed", 3 * time.Second, time.Hour, 3 * time.Second, nil},
			{"context ends", time.Hour, 4 * time.Second, 4 * time.Second, context.DeadlineExceeded},
		} {
			d, other := pair(nil)
			lock(t, d, "x")
			d.Cut()
			start := time.Now()
			heal := time.AfterFunc(test.heal, d.Heal)
			ctx, cancel := context.WithTimeout(t.Context(), test.cancel)
			if err := d.Close(ctx); !errors.Is(err, test.wantErr) {
				t.Errorf("%s: got error %v, want %v", test.name, err, test.wantErr)
			}
			if got := time.Since(start); got != test.want {
				t.Errorf("%s: Close took %v, want %v", test.name, got, test.want)
			}
			if held := status(t, other, "x").Held; held != (test.wantErr != nil) {
				t.Errorf("%s: held = %v", test.name, held)
			}
			_, err := try(d, "y")
			wantErr(t, "acquire after Close", err, driver.ErrClosed)
			heal.Stop()
			cancel()
		}
	})
}
