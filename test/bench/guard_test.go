package bench

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// noLock lets everybody in.
type noLock struct{}

func (noLock) Lock(context.Context, string) (Held, error) { return noHold{}, nil }
func (noLock) Close() error                               { return nil }

type noHold struct{}

func (noHold) Release(context.Context) error { return nil }

func tempGuard(t *testing.T) *guard {
	g, err := newGuard(filepath.Join(t.TempDir(), "guard"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func TestContentionFindsAnOverlap(t *testing.T) {
	g := tempGuard(t)
	all := contend(slices.Repeat([]Locker{noLock{}}, 8), bout{Name: "x"}, g)
	testenv.Eventually(t, func() bool { return g.overlaps.Load() > 0 }, "two hold the lock at once")
	if c := all.end(); !errors.Is(c.err, errOverlap) {
		t.Errorf("without a lock: got %v, want %v", c.err, errOverlap)
	}
}

func TestHandOverFindsAnOverlap(t *testing.T) {
	if _, _, err := handTo(t.Context(), noLock{}, noHold{}, "x", 20*time.Millisecond, tempGuard(t)); !errors.Is(err, errOverlap) {
		t.Errorf("without a lock: got %v, want %v", err, errOverlap)
	}
}

func TestGuardIsSharedByAllWhoOpenIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "guard")
	var guards [2]*guard
	for i := range guards {
		var err error
		if guards[i], err = newGuard(path); err != nil {
			t.Fatal(err)
		}
		defer guards[i].close()
	}
	guards[0].enter()
	guards[1].enter()
	if got := guards[0].err(); !errors.Is(got, errOverlap) {
		t.Errorf("two are in: got %v, want %v", got, errOverlap)
	}
	guards[0].leave()
	guards[1].leave()
	guards[1].enter()
	guards[1].leave()
	if got := guards[1].err(); got != nil {
		t.Errorf("one after the other: got %v, want nil", got)
	}
}
