package redisson

import (
	"errors"
	"maps"
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
	go func() { // ends when the answer arrives
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
		t.Errorf("Release of that hold: got %v, want ErrNotHeld", err)
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

// TestSealedNameHasNoWaiters: a program that was notified of a seal does not
// count as a waiter for the sealed name, even if it cannot leave the channel
// immediately.
func TestSealedNameHasNoWaiters(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	d, other := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, d, request("x"))
	w := wait(t, other, request("x"))
	subscribers(t, s, "x", 1)
	topic := other.topics.Join(prefixName(channelPrefix, "y"), 0)
	<-topic.Wake
	topic.LeaveForGood()
	testenv.Eventually(t, func() bool { return other.topics.Own(prefixName(channelPrefix, "y")) == 0 }, "the channel is left, and the next is not left immediately")
	if err := d.Seal(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if <-w.done; !errors.Is(w.err, driver.ErrSealed) {
		t.Fatalf("the waiter got %v, want ErrSealed", w.err)
	}
	if status, err := d.Inspect(t.Context(), "x"); err != nil || status.Owner != "seal" || status.Waiters != 0 {
		t.Errorf("Inspect: got %+v, %v, want no waiters", status, err)
	}
	late := other.topics.Join(prefixName(channelPrefix, "x"), 0) // like a program that does not know of the seal
	defer late.Leave(false)
	<-late.Wake
	if status, err := d.Inspect(t.Context(), "x"); err != nil || status.Waiters != 1 {
		t.Errorf("Inspect: got %+v, %v, want a waiter", status, err)
	}
}

// TestWhatASealIs checks the key of a seal, which clients of other versions and
// Java's Redisson read, and a key from before seals had a mode.
func TestWhatASealIs(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fence=redisson", s.Addr)
	if err := d.Seal(t.Context(), acquire(t, d, request("new"))); err != nil {
		t.Fatal(err)
	}
	if got := fieldsOf(s, "new"); !maps.Equal(got, map[string]string{"mode": "write", sealField: "1"}) {
		t.Errorf("the hash of a seal: got %v", got)
	}
	s.Do("HSET", "old", sealField, "1")
	s.Do("PEXPIRE", "old", "3153600000000")
	for _, name := range []string{"new", "old"} {
		for _, mode := range modes {
			if _, err := d.Acquire(t.Context(), inMode(mode, request(name))); !errors.Is(err, driver.ErrSealed) {
				t.Errorf("Acquire of the %s seal in mode %v: got %v, want ErrSealed", name, mode, err)
			}
		}
		if last, sealed, err := d.Sealed(t.Context(), name); last != 1 || !sealed || err != nil {
			t.Errorf("Sealed of the %s seal: got %d, %t, %v, want 1, true", name, last, sealed, err)
		}
		status, err := d.Inspect(t.Context(), name)
		if err != nil || !status.Held || status.Owner != "seal" || status.Mode != driver.Exclusive || status.Holders != 1 {
			t.Errorf("Inspect of the %s seal: got %+v, %v, want the seal as the only owner", name, status, err)
		}
		if err := d.ForceUnlock(t.Context(), name); err != driver.ErrSealed {
			t.Errorf("ForceUnlock of the %s seal: got %v, want ErrSealed", name, err)
		}
		if err := errors.Join(d.Loosen(t.Context(), name, "id", 0), d.Unseal(t.Context(), name, "id")); err != nil {
			t.Errorf("Loosen and Unseal of the %s seal: %v", name, err)
		}
		for _, mode := range modes {
			release(t, acquire(t, d, inMode(mode, request(name))))
		}
	}
}

// TestSealBesideAReadWriteLock: a Java reader or writer is granted a name that
// is locked.
func TestSealBesideAReadWriteLock(t *testing.T) {
	s := testenv.Redis(t)
	d, other := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	for _, mode := range []string{"read", "write"} {
		l := acquire(t, d, request(mode))
		w := wait(t, other, during(time.Minute, request(mode)))
		settled(t, other)
		java := map[string]string{"mode": mode, "java:1": "1"}
		for field, value := range java {
			s.Do("HSET", mode, field, value)
		}
		if err := d.Seal(t.Context(), l); err != driver.ErrNotHeld {
			t.Errorf("Seal alongside a hold of mode %s: got %v, want ErrNotHeld", mode, err)
		}
		if got := fieldsOf(s, mode); !maps.Equal(got, java) {
			t.Errorf("the hash after that: got %v, want %v", got, java)
		}
		if err := l.Release(t.Context()); err != driver.ErrNotHeld {
			t.Errorf("Release of the hold that excludes no client: got %v, want ErrNotHeld", err)
		}
		// The waiter was notified, and from then on listens on the channel of
		// Java's holds.
		testenv.Eventually(t, func() bool { return s.SubscriberCount(prefixName(readWritePrefix, mode)) == 1 }, "the waiter has changed the channel")
		s.Do("DEL", mode)
		s.Do("PUBLISH", prefixName(readWritePrefix, mode), "1")
		release(t, w.granted(t))
	}
}

// TestNobodyListensForASealedName: no client listens, even if it tries again
// and again, so any listener is waiting without success.
func TestNobodyListensForASealedName(t *testing.T) {
	s := testenv.Redis(t)
	d, other := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, d, request("x"))
	const waiters = 3
	refused := make(chan error, waiters)
	for range waiters {
		r := request("x")
		go func() { // ends when the answer arrives
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
	}, "no client listens")
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

// wantSequenceAbove wants the sequence of a name to be kept for an hour after
// the clock has passed a floor, or forever if it belongs to Redisson.
func wantSequenceAbove(t *testing.T, s *testenv.RedisServer, d *Driver, name string, floor uint64) {
	t.Helper()
	left, passed := leftOf(s, d.tokenKey(name)), time.UnixMicro(int64(floor)).Add(time.Hour)
	if d.options.Fence == FenceRedisson && left >= 0 {
		t.Errorf("a counter of Redisson ends in %v, want never", left)
	}
	if end := time.Now().Add(left); d.options.Fence == FenceOwn && (end.Before(passed.Add(-time.Second)) || end.After(passed.Add(hangGuard))) {
		t.Errorf("the sequence of %q ends at %v, want %v", name, end, passed)
	}
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
		if first, n := l.Tokens(); first != floor+1 || n != 1 {
			t.Errorf("%s: tokens of the marked lease: got %d from %d, want one token, %d", fence, n, first, floor+1)
		}
		if err := d.Mark(t.Context(), l, 1); err != nil {
			t.Fatal(err)
		}
		release(t, l)
		l = acquire(t, d, request(fence))
		if first, _ := l.Tokens(); first <= floor+2 {
			t.Errorf("%s: token %d after a second mark with a lower floor, want more than %d", fence, first, floor+2)
		}
		if marked, err := d.Marked(t.Context(), l); !marked || err != nil {
			t.Errorf("%s: Marked: got %t, %v, want true", fence, marked, err)
		}
		if left := s.Do("PTTL", prefixName(markPrefix, fence)); left != int64(-1) {
			t.Errorf("%s: the mark ends in %v ms, want never", fence, left)
		}
		wantSequenceAbove(t, s, d, fence, floor)
		release(t, l)
	}
}
