package redisson

import (
	"errors"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestInspectReadWrite(t *testing.T) {
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "?fair=true"} {
		name := "x" + parameters
		d, other := openURL(t, "redisson://%s/%s", s.Addr, parameters), openURL(t, "redisson://%s/%s", s.Addr, parameters)
		r := write(name)
		l := acquire(t, d, r)
		got, err := d.Inspect(t.Context(), name)
		if err != nil || !got.Held || got.Mode != driver.Write || got.Holders != 1 || got.Hold != r.Hold || got.Owner != "somebody" || got.Token != l.first {
			t.Errorf("%s, written: got %+v, %v", parameters, got, err)
		}
		release(t, l)
		long, short := during(2*time.Hour, read(name)), during(time.Hour, read(name))
		short.Owner = "another"
		leases := []*lease{acquire(t, d, long), acquire(t, d, short)}
		dead := acquire(t, d, read(name))
		s.Do("DEL", timeoutKey(driver.Read, name, dead.request.Hold))
		w := wait(t, other, write(name))
		testenv.Eventually(t, func() bool { return s.SubscriberCount("redisson_rwlock:{"+name+"}") == 1 }, "the writer listens")
		got, err = d.Inspect(t.Context(), name)
		if err != nil || !got.Held || got.Mode != driver.Read || got.Holders != 2 || got.Waiters != 1 ||
			got.Hold != long.Hold && got.Hold != short.Hold || got.TTL > 2*time.Hour || got.TTL < time.Hour-hangGuard {
			t.Errorf("%s, read: got %+v, %v, want two holders and a waiter", parameters, got, err)
		}
		if wait, err := d.Inspect(t.Context(), "y"); err != nil || wait.Held || wait.Holders != 0 || wait.Mode != driver.Exclusive {
			t.Errorf("%s, free: got %+v, %v", parameters, wait, err)
		}
		for _, l := range leases {
			release(t, l)
		}
		release(t, w.granted(t))
	}
}

func TestForceUnlockReadWrite(t *testing.T) {
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "?fair=true"} {
		d, other := openURL(t, "redisson://%s/%s", s.Addr, parameters), openURL(t, "redisson://%s/%s", s.Addr, parameters)
		spy := spyOn(t, s, "redisson_rwlock:{x}")
		for _, test := range []struct {
			held    driver.Mode
			n       int
			message string
		}{{driver.Read, 3, "0"}, {driver.Write, 1, "1"}} {
			var leases []*lease
			for range test.n {
				leases = append(leases, acquire(t, d, inMode(test.held, request("x"))))
			}
			waiters := []*waiter{wait(t, other, write("x")), wait(t, other, request("x"))}
			settled(t, other)
			start := time.Now()
			if err := d.ForceUnlock(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
			if got := spy.next(t); got != test.message {
				t.Errorf("%s, %v: got message %q, want %q", parameters, test.held, got, test.message)
			}
			outcomes := make([]error, test.n)
			for i, l := range leases {
				outcomes[i] = l.Renew(t.Context(), testTTL)
				if outcomes[i] != driver.ErrNotHeld {
					t.Errorf("%s, %v: Renew of a hold that was removed: got %v, want ErrNotHeld", parameters, test.held, outcomes[i])
				}
			}
			<-either(waiters)
			for _, w := range waiters {
				release(t, w.granted(t))
			}
			if took := time.Since(start); took > backstop/2 {
				t.Errorf("%s, %v: the waiters were done after %v", parameters, test.held, took)
			}
			for range len(spy.messages) {
				<-spy.messages
			}
		}
		if err := d.ForceUnlock(t.Context(), "x"); err != driver.ErrNotHeld {
			t.Errorf("%s: ForceUnlock of a free name: got %v, want ErrNotHeld", parameters, err)
		}
	}
}

// either is closed when one of two waiters is done. The first waiter releases,
// so that the other one is granted the lock.
func either(waiters []*waiter) <-chan struct{} {
	done := make(chan struct{})
	go func() { // ends with a waiter
		defer close(done)
		select {
		case <-waiters[0].done:
		case <-waiters[1].done:
			waiters[0], waiters[1] = waiters[1], waiters[0]
		}
	}()
	return done
}

func TestSealedInEveryMode(t *testing.T) {
	s := testenv.Redis(t)
	d, other := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, d, request("x"))
	var waiters []*waiter
	for _, mode := range modes {
		waiters = append(waiters, wait(t, other, inMode(mode, request("x"))))
	}
	settled(t, other)
	start := time.Now()
	if err := d.Seal(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	for i, w := range waiters {
		if <-w.done; !errors.Is(w.err, driver.ErrSealed) {
			t.Errorf("the waiter in mode %v: got %v, want ErrSealed", modes[i], w.err)
		}
	}
	if took := time.Since(start); took > backstop/2 {
		t.Errorf("the waiters were notified after %v", took)
	}
	for _, mode := range modes {
		if _, err := other.Acquire(t.Context(), inMode(mode, request("x"))); !errors.Is(err, driver.ErrSealed) {
			t.Errorf("Acquire in mode %v: got %v, want ErrSealed", mode, err)
		}
	}
}
