package migrate_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// TestReleaseEndsTheNewBackendFirst checks that the next client that acquires
// the name on the old backend finds the new one free, and waits once.
func TestReleaseEndsTheNewBackendFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		c := p.client(migrate.PhaseDual)
		l := lock(t, c, "x")
		c.to.Inject(memory.Fault{Delay: time.Second, On: memory.Releases})
		done := make(chan error, 1)
		go func() { done <- l.Release(t.Context()) }() // ends after a second
		time.Sleep(time.Second / 2)
		_, err := try(p.from.NewDriver(), "x")
		wantErr(t, "the old backend, before the new one has answered", err, driver.ErrLocked)
		wantErr(t, "Release", <-done, nil)
		release(t, lock(t, p.from.NewDriver(), "x"))
		release(t, lock(t, p.to.NewDriver(), "x"))
	})
}

// TestForceUnlockEndsBothHalves has a client that is not notified.
func TestForceUnlockEndsBothHalves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		c := p.client(migrate.PhaseDual)
		lock(t, c, "x")
		c.from.Cut()
		c.to.Cut()
		wantErr(t, "ForceUnlock", p.client(migrate.PhaseNew).ForceUnlock(t.Context(), "x"), nil)
		release(t, lock(t, p.from.NewDriver(), "x"))
		release(t, lock(t, p.to.NewDriver(), "x"))
	})
}

// TestAnUndoThatFailedIsUnknown checks the error of a failed Acquire that may
// leave the name held on the old backend for a while.
func TestAnUndoThatFailedIsUnknown(t *testing.T) {
	for _, kind := range []memory.FaultKind{memory.CutOff, memory.LoseAnswer, memory.Hang} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, nil, nil)
			c := p.client(migrate.PhaseDual)
			l := lock(t, p.to.NewDriver(), "x")
			_, err := try(c, "x")
			if !errors.Is(err, driver.ErrLocked) || errors.Is(err, driver.ErrUnknown) {
				t.Errorf("a name that is held on the new backend: got %v, want only ErrLocked", err)
			}
			c.from.Inject(memory.Fault{Kind: kind, On: memory.Releases})
			_, err = try(c, "x")
			wantErr(t, "and the old backend does not answer", err, driver.ErrLocked)
			wantErr(t, "and the old backend does not answer", err, driver.ErrUnknown)
			c.from.Heal()
			release(t, l)
			time.Sleep(2 * ttl)
			release(t, lock(t, c, "x"))
		})
	}
}

// TestADeadlineOfARequestIsNotTheCallers has a caller without a deadline, and a
// backend that does not answer.
func TestADeadlineOfARequestIsNotTheCallers(t *testing.T) {
	for _, test := range []struct {
		what  string
		phase migrate.Phase
		hang  func(c *client)
	}{
		{"the seal", migrate.PhaseNew, func(c *client) { c.from.Inject(memory.Fault{Kind: memory.Hang, On: memory.Seals}) }},
		{"the mark", migrate.PhaseNew, func(c *client) { c.to.Inject(memory.Fault{Kind: memory.Hang, On: memory.Seals}) }},
		{"the check whether the old backend still holds the name", migrate.PhaseDual, func(c *client) {
			c.from.Inject(memory.Fault{Kind: memory.Hang, On: memory.Renewals})
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, nil, nil)
			c := p.client(test.phase)
			test.hang(c)
			l := lock(t, p.to.NewDriver(), "x")
			r := start(context.Background(), c, newAttempt("x"))
			release(t, l)
			err := (<-r).err
			wantErr(t, test.what, err, driver.ErrUnknown)
			if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
				t.Errorf("%s: got %v, want no error of the caller's context", test.what, err)
			}
		})
	}
}
