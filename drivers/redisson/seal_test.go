package redisson

import (
	"errors"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestSealAnswersWaitersAndStays(t *testing.T) {
	s := testenv.Redis(t)
	d, other := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	r := request("x")
	r.Events.(*events).tokens = 3
	l := acquire(t, d, r)
	first, n := l.Tokens()
	refused := make(chan error, 1)
	waiting := request("x")
	go func() { // ends with the answer
		_, err := other.Acquire(t.Context(), waiting)
		refused <- err
	}()
	subscribers(t, s, "x", 1)
	if err := d.Seal(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-refused:
		if !errors.Is(err, driver.ErrSealed) {
			t.Errorf("the waiter got %v, want ErrSealed", err)
		}
	case <-time.After(hangGuard):
		t.Fatal("the waiter got no answer")
	}
	if err := l.Renew(t.Context(), time.Second); err != driver.ErrNotHeld {
		t.Errorf("Renew of the hold that became a seal: got %v, want ErrNotHeld", err)
	}
	if err := l.Release(t.Context()); err != driver.ErrNotHeld {
		t.Errorf("Release of it: got %v, want ErrNotHeld", err)
	}
	if err := other.ForceUnlock(t.Context(), "x"); err != driver.ErrSealed {
		t.Errorf("ForceUnlock: got %v, want ErrSealed", err)
	}
	if _, err := other.Acquire(t.Context(), noWait("x")); !errors.Is(err, driver.ErrSealed) {
		t.Errorf("Acquire: got %v, want ErrSealed", err)
	}
	want := first + uint64(n) - 1
	if last, sealed, err := other.Sealed(t.Context(), "x"); last != want || !sealed || err != nil {
		t.Errorf("Sealed: got %d, %t, %v, want %d, true", last, sealed, err, want)
	}
	if _, sealed, err := other.Sealed(t.Context(), "y"); sealed || err != nil {
		t.Errorf("Sealed of another name: got %t, %v, want false", sealed, err)
	}
	if status, err := other.Inspect(t.Context(), "x"); err != nil || !status.Held || status.Owner != "seal" {
		t.Errorf("Inspect: got %+v, %v, want the seal as the owner", status, err)
	}
}

// TestNobodyListensForASealedName: not even where it is asked for again and again, so that who listens is one who waits in vain.
func TestNobodyListensForASealedName(t *testing.T) {
	s := testenv.Redis(t)
	d, other := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, d, request("x"))
	const waiters = 3
	refused := make(chan error, waiters)
	for range waiters {
		r := request("x")
		go func() { // ends with the answer
			_, err := other.Acquire(t.Context(), r)
			refused <- err
		}()
	}
	subscribers(t, s, "x", 1)
	if err := d.Seal(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	for range waiters {
		if err := <-refused; !errors.Is(err, driver.ErrSealed) {
			t.Errorf("a waiter got %v, want ErrSealed", err)
		}
	}
	testenv.Eventually(t, func() bool {
		if _, err := other.Acquire(t.Context(), request("x")); !errors.Is(err, driver.ErrSealed) {
			t.Errorf("Acquire: got %v, want ErrSealed", err)
		}
		return s.SubscriberCount("redisson_lock__channel:{x}") == 0
	}, "nobody listens")
}

func TestSealAndMarkNeedTheHold(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, d, request("x"))
	s.Do("DEL", "x")
	if err := d.Mark(t.Context(), l, 1); err != driver.ErrNotHeld {
		t.Errorf("Mark: got %v, want ErrNotHeld", err)
	}
	if err := d.Seal(t.Context(), l); err != driver.ErrNotHeld {
		t.Errorf("Seal: got %v, want ErrNotHeld", err)
	}
	l = acquire(t, d, request("x"))
	if marked, err := d.Marked(t.Context(), l); marked || err != nil {
		t.Errorf("Marked: got %t, %v, want false", marked, err)
	}
	release(t, l)
}

func TestMarkRaisesTokensForGood(t *testing.T) {
	s := testenv.Redis(t)
	for _, fence := range []string{"own", "redisson"} {
		d := openURL(t, "redisson://%s?fence=%s", s.Addr, fence)
		r := request(fence)
		r.Events.(*events).tokens = 4
		l := acquire(t, d, r)
		before, _ := l.Tokens()
		floor := before + 1e9
		if err := d.Mark(t.Context(), l, floor); err != nil {
			t.Fatal(err)
		}
		if first, n := l.Tokens(); first != floor+1 || n != 4 {
			t.Errorf("%s: tokens of the marked lease: got %d from %d, want 4 from %d", fence, n, first, floor+1)
		}
		if err := d.Mark(t.Context(), l, 1); err != nil {
			t.Fatal(err)
		}
		release(t, l)
		l = acquire(t, d, request(fence))
		if first, _ := l.Tokens(); first <= floor+8 {
			t.Errorf("%s: token %d after a second mark with a lower floor, want more than %d", fence, first, floor+8)
		}
		if marked, err := d.Marked(t.Context(), l); !marked || err != nil {
			t.Errorf("%s: Marked: got %t, %v, want true", fence, marked, err)
		}
		for _, key := range []string{d.tokenKey(fence), prefixName(markPrefix, fence)} {
			if left := s.Do("PTTL", key); left != int64(-1) {
				t.Errorf("%s: key %s ends in %v ms, want never", fence, key, left)
			}
		}
		release(t, l)
	}
}
