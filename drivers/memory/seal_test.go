package memory_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

func TestSealAnswersWaitersAndStays(t *testing.T) {
	for _, o := range []*memory.Options{nil, {Order: memory.FIFOByClient}, sessions} {
		synctest.Test(t, func(t *testing.T) {
			d, other := pair(o)
			l := lock(t, d, "x")
			first, second := wait(t.Context(), other, newAttempt("x")), wait(t.Context(), other, newAttempt("x"))
			synctest.Wait()
			if err := d.Seal(t.Context(), l); err != nil {
				t.Fatal(err)
			}
			for _, c := range []<-chan result{first, second} {
				if r := <-c; !errors.Is(r.err, driver.ErrSealed) {
					t.Errorf("a waiter got %v, want ErrSealed", r.err)
				}
			}
			if err := l.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
				t.Errorf("Release of the hold that became a seal: got %v, want ErrNotHeld", err)
			}
			if err := d.ForceUnlock(t.Context(), "x"); !errors.Is(err, driver.ErrSealed) {
				t.Errorf("ForceUnlock: got %v, want ErrSealed", err)
			}
			time.Sleep(24 * time.Hour)
			if _, err := try(other, "x"); !errors.Is(err, driver.ErrSealed) {
				t.Errorf("Acquire a day later: got %v, want ErrSealed", err)
			}
			last, _ := l.Tokens()
			if got, sealed, err := other.Sealed(t.Context(), "x"); got != last || !sealed || err != nil {
				t.Errorf("Sealed: got %d, %t, %v, want %d, true", got, sealed, err, last)
			}
		})
	}
}

func TestSealAndMarkNeedTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(nil)
		l := lock(t, d, "x")
		d.Server().Expire("x")
		if err := d.Seal(t.Context(), l); !errors.Is(err, driver.ErrNotHeld) {
			t.Errorf("Seal: got %v, want ErrNotHeld", err)
		}
		if err := d.Mark(t.Context(), l, 1000); !errors.Is(err, driver.ErrNotHeld) {
			t.Errorf("Mark: got %v, want ErrNotHeld", err)
		}
		l = lock(t, other, "x")
		if marked, err := other.Marked(t.Context(), l); marked || err != nil {
			t.Errorf("Marked: got %t, %v, want false", marked, err)
		}
		if token, _ := l.Tokens(); token >= 1000 {
			t.Errorf("token %d is above the floor of a mark that failed", token)
		}
	})
}

func TestMarkRaisesTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(nil)
		l := lock(t, d, "x")
		if err := d.Mark(t.Context(), l, 1000); err != nil {
			t.Fatal(err)
		}
		if token, _ := l.Tokens(); token != 1001 {
			t.Errorf("token %d after the mark, want 1001", token)
		}
		if err := d.Mark(t.Context(), l, 10); err != nil {
			t.Fatal(err)
		}
		release(t, l)
		l = lock(t, other, "x")
		if token, _ := l.Tokens(); token <= 1001 {
			t.Errorf("token %d after a second mark with a lower floor, want more than 1001", token)
		}
		if marked, err := other.Marked(t.Context(), l); !marked || err != nil {
			t.Errorf("Marked: got %t, %v, want true", marked, err)
		}
	})
}

func TestSealWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(nil)
		l := lock(t, d, "x")
		d.Inject(memory.Fault{Kind: memory.LoseAnswer, On: memory.Seals, Times: 1})
		if err := d.Seal(t.Context(), l); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("Seal: got %v, want ErrUnknown", err)
		}
		if err := l.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
			t.Errorf("Release: got %v, want ErrNotHeld", err)
		}
		if _, err := try(other, "x"); !errors.Is(err, driver.ErrSealed) {
			t.Errorf("Acquire: got %v, want ErrSealed", err)
		}
	})
}
