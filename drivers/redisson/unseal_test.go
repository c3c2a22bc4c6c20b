package redisson

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestUnsealNeedsTheIDOfTheLastLoosenAndWakesJava(t *testing.T) {
	s := testenv.Redis(t)
	for _, fence := range []string{"own", "redisson"} {
		d, other := openURL(t, "redisson://%s?fence=%s", s.Addr, fence), openURL(t, "redisson://%s?fence=%s", s.Addr, fence)
		ctx := t.Context()
		drivertest.WantErr(t, "Loosen of a name that is not sealed", d.Loosen(ctx, fence, "a", 1), driver.ErrNotHeld)
		l := acquire(t, d, request(fence))
		first, _ := l.Tokens()
		if err := d.Seal(ctx, l); err != nil {
			t.Fatal(err)
		}
		drivertest.WantErr(t, "Unseal before Loosen", d.Unseal(ctx, fence, ""), driver.ErrNotHeld)
		floor := first + 1e12
		for _, id := range []string{"a", "b"} {
			if err := d.Loosen(ctx, fence, id, floor); err != nil {
				t.Fatal(err)
			}
		}
		drivertest.WantErr(t, "Unseal with an id that was replaced", other.Unseal(ctx, fence, "a"), driver.ErrNotHeld)
		if last, sealed, err := other.Sealed(ctx, fence); last != first || !sealed || err != nil {
			t.Errorf("Sealed after Loosen: got %d, %t, %v, want %d, true", last, sealed, err, first)
		}
		if status, err := other.Inspect(ctx, fence); err != nil || status.Owner != "seal" {
			t.Errorf("Inspect after Loosen: got %+v, %v, want the seal as the owner", status, err)
		}
		// A Java program waits only for the message.
		told, stop := context.WithCancel(ctx)
		go func() { // ends when the message arrives
			channel := prefixName(channelPrefix, fence)
			_ = d.client.Receive(told, d.client.B().Subscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) { stop() })
		}()
		subscribers(t, s, fence, 1)
		if err := other.Unseal(ctx, fence, "b"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-told.Done():
		case <-time.After(hangGuard):
			t.Fatal("the waiters were not notified")
		}
		drivertest.WantErr(t, "second Unseal", other.Unseal(ctx, fence, "b"), driver.ErrNotHeld)
		if n := s.Do("EXISTS", fence); n != int64(0) {
			t.Errorf("the lock after Unseal: EXISTS says %v, want 0", n)
		}
		l = acquire(t, other, request(fence))
		if first, _ := l.Tokens(); first != floor+1 {
			t.Errorf("%s: after Unseal: got token %d, want %d", fence, first, floor+1)
		}
		wantSequenceAbove(t, s, d, fence, floor)
		if err := other.Seal(ctx, l); err != nil {
			t.Fatal(err)
		}
		drivertest.WantErr(t, "Unseal of a new seal with the id of an old one", d.Unseal(ctx, fence, "b"), driver.ErrNotHeld)
	}
}

func TestLoosenRefusesWhatItCannotCountTo(t *testing.T) {
	s := testenv.Redis(t)
	d, bare := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s?fenced=false", s.Addr)
	if err := d.Seal(t.Context(), acquire(t, d, request("x"))); err != nil {
		t.Fatal(err)
	}
	drivertest.WantErr(t, "a floor that is too high", d.Loosen(t.Context(), "x", "a", maxFloor+1), errors.ErrUnsupported)
	drivertest.WantErr(t, "a floor without tokens", bare.Loosen(t.Context(), "x", "a", 1), errors.ErrUnsupported)
	drivertest.WantErr(t, "Unseal after that", d.Unseal(t.Context(), "x", "a"), driver.ErrNotHeld)
	if err := bare.Loosen(t.Context(), "x", "a", 0); err != nil {
		t.Errorf("Loosen without a floor: %v", err)
	}
}

func TestUnmarkNeedsTheHoldAndKeepsTheTokens(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, d, request("x"))
	first, _ := l.Tokens()
	floor := first + 1e12
	if err := d.Mark(t.Context(), l, floor); err != nil {
		t.Fatal(err)
	}
	s.Do("DEL", "x")
	drivertest.WantErr(t, "Unmark without the hold", d.Unmark(t.Context(), l), driver.ErrNotHeld)
	l = acquire(t, d, request("x"))
	for range 2 {
		if err := d.Unmark(t.Context(), l); err != nil {
			t.Errorf("Unmark: %v", err)
		}
	}
	if marked, err := d.Marked(t.Context(), l); marked || err != nil {
		t.Errorf("Marked after Unmark: got %t, %v, want false", marked, err)
	}
	release(t, l)
	l = acquire(t, d, request("x"))
	if next, _ := l.Tokens(); next <= floor {
		t.Errorf("after Unmark: got token %d, want a token above %d", next, floor)
	}
	release(t, l)
}
