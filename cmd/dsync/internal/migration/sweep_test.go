package migration

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/drivers/migrate"
	"github.com/go-dsync/dsync/internal/drivertest"
)

// flaky fails the first request for the seal of x.
type flaky struct {
	*memory.Driver
	asked *atomic.Bool
}

func (d flaky) Sealed(ctx context.Context, name string) (uint64, bool, error) {
	if name == "x" && !d.asked.Swap(true) {
		return 0, false, driver.ErrUnavailable
	}
	return d.Driver.Sealed(ctx, name)
}

// aSweep seals names of two backends without a check for programs that are
// behind. It returns the drivers.
func aSweep(t *testing.T, wrap func(*memory.Driver) driver.Driver) (s *sweep, old *memory.Driver) {
	old = memory.New(nil)
	m, err := migrate.New(wrap(old), memory.New(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cli.CloseDriver(m) })
	return &sweep{done: "sealed", moved: true, step: (*migrate.Driver).Seal, m: m, out: io.Discard}, old
}

// TestASweepTriesASecondTime makes a backend unreachable for the first try.
func TestASweepTriesASecondTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := aSweep(t, func(d *memory.Driver) driver.Driver { return flaky{d, &atomic.Bool{}} })
		if err := s.run(t.Context(), []string{"x", "y"}, io.Discard); err != nil || s.Done != 2 {
			t.Errorf("got %v, and %d names sealed, want 2", err, s.Done)
		}
	})
}

// TestANameThatIsTakenBeforeItsTurnIsLeftOut checks that the other names are
// done.
func TestANameThatIsTakenBeforeItsTurnIsLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, old := aSweep(t, func(d *memory.Driver) driver.Driver { return d })
		seal := s.step
		s.step = func(m *migrate.Driver, ctx context.Context, name string) error {
			if name == "x" {
				if _, err := old.Acquire(ctx, drivertest.WithTTL(drivertest.Request("x"), time.Hour)); err != nil {
					t.Error(err)
				}
				return driver.ErrLocked
			}
			return seal(m, ctx, name)
		}
		err := s.run(t.Context(), []string{"x", "y"}, io.Discard)
		if !errors.As(err, new(cli.UnfinishedError)) || s.Done != 1 || !slices.Equal(s.Held, []string{"x"}) {
			t.Errorf("got %v, %d names sealed and %q held, want 1 and x", err, s.Done, s.Held)
		}
	})
}

// TestRollbackLooksAgain lets a program in phase new lock a name right after it
// was taken back.
func TestRollbackLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := aSweep(t, func(d *memory.Driver) driver.Driver { return d })
		names := []string{"x", "y"}
		if err := s.run(t.Context(), names, io.Discard); err != nil {
			t.Fatal(err)
		}
		back := &sweep{done: "back", m: s.m, out: io.Discard, step: func(m *migrate.Driver, ctx context.Context, name string) error {
			err := m.Rollback(ctx, name)
			if name == "x" && err == nil {
				err = m.Seal(ctx, name)
			}
			return err
		}}
		err := back.run(t.Context(), names, io.Discard)
		if !errors.As(err, new(cli.UnfinishedError)) || !strings.Contains(err.Error(), "1 name is on the new backend again") {
			t.Errorf("got %v, want that x has moved again", err)
		}
	})
}
