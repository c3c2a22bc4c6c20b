package memory_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

func TestUnsealNeedsTheIDOfTheLastLoosen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(nil)
		ctx := t.Context()
		wantErr(t, "Loosen of a name that is not sealed", d.Loosen(ctx, "x", "a", 1), driver.ErrNotHeld)
		l := lock(t, d, "x")
		token, _ := l.Tokens()
		if err := d.Seal(ctx, l); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "Unseal before Loosen", d.Unseal(ctx, "x", ""), driver.ErrNotHeld)
		for _, id := range []string{"a", "b"} {
			if err := d.Loosen(ctx, "x", id, 1000); err != nil {
				t.Fatal(err)
			}
		}
		wantErr(t, "Unseal with an id that was replaced", other.Unseal(ctx, "x", "a"), driver.ErrNotHeld)
		if last, sealed, err := other.Sealed(ctx, "x"); last < token || last >= 1000 || !sealed || err != nil {
			t.Errorf("Sealed after Loosen: got %d, %t, %v, want the last token before the seal", last, sealed, err)
		}
		if err := other.Unseal(ctx, "x", "b"); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "second Unseal", other.Unseal(ctx, "x", "b"), driver.ErrNotHeld)
		l = lock(t, other, "x")
		if first, _ := l.Tokens(); first <= 1000 {
			t.Errorf("after Unseal: got token %d, want a token above 1000", first)
		}
		if err := other.Seal(ctx, l); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "Unseal of a new seal with the id of an old one", d.Unseal(ctx, "x", "b"), driver.ErrNotHeld)
	})
}

func TestLoosenRaisesNothingWithoutTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := pair(&memory.Options{NoTokens: true})
		if err := d.Seal(t.Context(), lock(t, d, "x")); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "Loosen with a floor", d.Loosen(t.Context(), "x", "a", 1), errors.ErrUnsupported)
		wantErr(t, "Unseal after that", d.Unseal(t.Context(), "x", "a"), driver.ErrNotHeld)
		if err := d.Loosen(t.Context(), "x", "a", 0); err != nil {
			t.Errorf("Loosen without a floor: %v", err)
		}
	})
}

func TestUnmarkNeedsTheHoldAndKeepsTheTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(nil)
		l := lock(t, d, "x")
		if err := d.Mark(t.Context(), l, 1000); err != nil {
			t.Fatal(err)
		}
		d.Server().Expire("x")
		wantErr(t, "Unmark without the hold", d.Unmark(t.Context(), l), driver.ErrNotHeld)
		l = lock(t, other, "x")
		if marked, err := other.Marked(t.Context(), l); !marked || err != nil {
			t.Errorf("Marked: got %t, %v, want true", marked, err)
		}
		for range 2 {
			if err := other.Unmark(t.Context(), l); err != nil {
				t.Errorf("Unmark: %v", err)
			}
		}
		if marked, err := other.Marked(t.Context(), l); marked || err != nil {
			t.Errorf("Marked after Unmark: got %t, %v, want false", marked, err)
		}
		release(t, l)
		if first, _ := lock(t, d, "x").Tokens(); first <= 1000 {
			t.Errorf("after Unmark: got token %d, want a token above 1000", first)
		}
	})
}
