package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// moved returns the last token of the name x, which has moved to the new
// backend.
func (p *pair) moved() uint64 {
	c := p.client(migrate.PhaseNew)
	release(p.t, lock(p.t, c, "x"))
	l := lock(p.t, c, "x")
	release(p.t, l)
	first, n := l.Tokens()
	return first + uint64(n) - 1
}

// wantFrom fails unless the name is only on from, with tokens above last.
func (p *pair) wantFrom(what string, last uint64) {
	p.t.Helper()
	old := p.from.NewDriver()
	l := lock(p.t, old, "x")
	if first, _ := l.Tokens(); first <= last {
		p.t.Errorf("%s: got token %d from the old backend, want a token above %d", what, first, last)
	}
	_, err := try(p.client(migrate.PhaseNew), "x")
	wantErr(p.t, what+": a client in phase new while an old program holds the name", err, driver.ErrLocked)
	release(p.t, l)
}

func TestRollbackTakesANameBack(t *testing.T) {
	for _, m := range manners {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, m.from, m.to)
			last, c := p.moved(), p.client(migrate.PhaseDual)
			for range 2 { // the second time there is nothing to do
				if err := c.Rollback(t.Context(), "x"); err != nil {
					t.Fatal(err)
				}
			}
			if moved, err := c.Moved(t.Context(), "x"); moved || err != nil {
				t.Errorf("Moved after the roll-back: got %t, %v, want false", moved, err)
			}
			p.wantFrom("rolled back", last)
			l := lock(t, c, "x")
			first, n := l.Tokens()
			release(t, l)
			if again := p.moved(); again <= first+uint64(n)-1 {
				t.Errorf("moved again: got token %d after %d", again, first)
			}
		})
	}
}

func TestRollbackWaitsForTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		p.moved()
		c := p.client(migrate.PhaseDual)
		l := lock(t, c, "x")
		waiting := start(t.Context(), p.client(migrate.PhaseDual), newAttempt("x"))
		ctx, cancel := context.WithTimeout(t.Context(), ttl/2)
		defer cancel()
		wantErr(t, "a roll-back of a name that is held", c.Rollback(ctx, "x"), context.DeadlineExceeded)
		done := make(chan error, 1)
		go func() { done <- c.Rollback(t.Context(), "x") }() // ends when the name is free
		synctest.Wait()
		release(t, l)
		r := <-waiting
		if r.err != nil {
			t.Fatal(r.err)
		}
		release(t, r.lease)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		p.wantFrom("after the wait", 0)
	})
}

// TestRollbackThatStopsInTheMiddle cuts a backend off, or loses its answer, at
// each request of a roll-back in turn. The next client gets the lock, in every
// phase, and the next roll-back succeeds.
func TestRollbackThatStopsInTheMiddle(t *testing.T) {
	for _, kind := range []memory.FaultKind{memory.CutOff, memory.LoseAnswer} {
		for _, at := range []struct {
			to      bool // the fault is on the new backend
			request memory.Requests
			skip    int // the number of requests before the fault
		}{{true, memory.Acquires, 0}, {false, memory.Queries, 0}, {false, memory.Seals, 0}, {true, memory.Seals, 0}, {false, memory.Seals, 1}} {
			for _, next := range phases {
				synctest.Test(t, func(t *testing.T) {
					p := newPair(t, nil, nil)
					what := fmt.Sprintf("fault %v at %+v, then phase %v", kind, at, next)
					last, c := p.moved(), p.client(migrate.PhaseDual)
					d := c.from
					if at.to {
						d = c.to
					}
					d.Inject(memory.Fault{Kind: memory.Slow, On: at.request, Delay: time.Second})
					done := make(chan error, 1)
					go func() { done <- c.Rollback(t.Context(), "x") }() // ends when the fault ends
					time.Sleep(time.Duration(at.skip)*time.Second + time.Second/2)
					d.Inject(memory.Fault{Kind: kind, On: at.request})
					if err := <-done; !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, driver.ErrUnavailable) {
						t.Errorf("%s: got %v, want ErrUnknown or ErrUnavailable", what, err)
					}
					d.Heal()
					l := lock(t, p.client(next), "x")
					if first, _ := l.Tokens(); first <= last {
						t.Errorf("%s: got token %d after %d", what, first, last)
					}
					_, err := try(p.from.NewDriver(), "x")
					if !errors.Is(err, driver.ErrLocked) && !errors.Is(err, driver.ErrSealed) {
						t.Errorf("%s: an old program while the name is held: got %v, want ErrLocked or ErrSealed", what, err)
					}
					first, n := l.Tokens()
					release(t, l)
					if err := c.Rollback(t.Context(), "x"); err != nil {
						t.Errorf("%s: the next roll-back: %v", what, err)
					}
					p.wantFrom(what, first+uint64(n)-1)
				})
			}
		}
	}
}

// noUnsealer is a backend that cannot unseal, and noUnmarker a backend that
// cannot remove a mark.
type noUnsealer struct {
	driver.Driver
	move.Sealer
}

type noUnmarker struct {
	driver.Driver
	move.Marker
}

// fixedCount is a backend whose tokens cannot be raised, like a log's offsets.
type fixedCount struct{ *memory.Driver }

func (d fixedCount) Loosen(ctx context.Context, name, id string, floor uint64) error {
	if floor > 0 {
		return fmt.Errorf("tokens are numbers of the log: %w", errors.ErrUnsupported)
	}
	return d.Driver.Loosen(ctx, name, id, floor)
}

func TestRollbackIsRefusedWhereItCannotBeDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		last := p.moved()
		a, b := p.from.NewDriver(), p.to.NewDriver()
		for _, test := range []struct {
			from, to driver.Driver
			phase    migrate.Phase
			want     error
		}{
			{noUnsealer{a, a}, b, migrate.PhaseDual, migrate.ErrNoWayBack},
			{a, noUnmarker{b, b}, migrate.PhaseDual, migrate.ErrNoWayBack},
			{fixedCount{a}, b, migrate.PhaseDual, migrate.ErrNoWayBack},
			{a, b, migrate.PhaseNew, migrate.ErrPhase},
		} {
			d, err := migrate.New(test.from, test.to, &migrate.Options{Phase: test.phase})
			if err != nil {
				t.Fatal(err)
			}
			err = d.Rollback(t.Context(), "x")
			wantErr(t, fmt.Sprintf("%T to %T in phase %v", test.from, test.to, test.phase), err, test.want)
			if test.want == migrate.ErrNoWayBack {
				wantErr(t, "a roll-back that is refused", err, errors.ErrUnsupported)
			}
			l := lock(t, d, "x")
			if first, _ := l.Tokens(); first <= last {
				t.Errorf("after a roll-back that was refused: got token %d after %d", first, last)
			}
			_, err = try(p.from.NewDriver(), "x")
			wantErr(t, "an old program after that", err, driver.ErrSealed)
			release(t, l)
		}
	})
}

func TestRollbackWithoutTokensNeedsNoRaise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		p.moved()
		d, err := migrate.New(fixedCount{p.from.NewDriver()}, p.to.NewDriver(), &migrate.Options{Phase: migrate.PhaseDual, Unfenced: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Rollback(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		p.wantFrom("rolled back without tokens", 0)
	})
}

func TestSealMovesAnIdleName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		c := p.client(migrate.PhaseDual)
		for range 2 {
			if err := c.Seal(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
		}
		if moved, err := c.Moved(t.Context(), "x"); !moved || err != nil {
			t.Errorf("Moved: got %t, %v, want true", moved, err)
		}
		if c.Phase() != migrate.PhaseDual {
			t.Errorf("got phase %v, want it unchanged", c.Phase())
		}
		release(t, lock(t, c, "x"))
	})
}

// TestASealThatIsMarkedAgainForgetsEarlierRollBacks has a late request to
// unseal, from a roll-back that stopped.
func TestASealThatIsMarkedAgainForgetsEarlierRollBacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		p.moved()
		from, to := p.from.NewDriver(), p.to.NewDriver()
		l := lock(t, to, "x")
		if err := errors.Join(from.Loosen(t.Context(), "x", "late", 0), to.Unmark(t.Context(), l)); err != nil {
			t.Fatal(err)
		}
		release(t, l)
		l = lock(t, p.client(migrate.PhaseNew), "x")
		wantErr(t, "the request that arrives late", from.Unseal(t.Context(), "x", "late"), driver.ErrNotHeld)
		_, err := try(from, "x")
		wantErr(t, "an old program while the name is held", err, driver.ErrSealed)
		release(t, l)
	})
}

// TestANameThatWasTakenBackIsNotSealedInPhaseDual has a process that was on its
// way when the name moved back.
func TestANameThatWasTakenBackIsNotSealedInPhaseDual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		p.moved()
		c := p.client(migrate.PhaseDual)
		l := lock(t, c, "x")
		back := make(chan error, 1)
		go func() { back <- c.Rollback(t.Context(), "x") }() // ends when the name is free
		synctest.Wait()
		waiting := start(t.Context(), p.client(migrate.PhaseDual), newAttempt("x")) // behind the roll-back in the queue of to
		release(t, l)
		if err := <-back; err != nil {
			t.Fatal(err)
		}
		r := <-waiting
		if r.err != nil {
			t.Fatal(r.err)
		}
		if moved, err := c.Moved(t.Context(), "x"); moved || err != nil {
			t.Errorf("Moved after a lock in phase dual: got %t, %v, want false", moved, err)
		}
		release(t, r.lease)
	})
}

// TestANameThatCouldNotBeSealedIsNotMarked has a name that would be free on
// both backends with the mark and without the seal.
func TestANameThatCouldNotBeSealedIsNotMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		c := p.client(migrate.PhaseDual)
		c.from.Inject(memory.Fault{Kind: memory.CutOff, On: memory.Seals})
		wantErr(t, "unanswered Seal", c.Seal(t.Context(), "x"), driver.ErrUnavailable)
		l := lock(t, p.from.NewDriver(), "x")
		_, err := try(p.client(migrate.PhaseNew), "x")
		wantErr(t, "phase new while an old program holds the name", err, driver.ErrLocked)
		release(t, l)
	})
}

// unmarkable refuses marks, like a server that may evict keys.
type unmarkable struct{ *memory.Driver }

func (unmarkable) Marked(context.Context, driver.Lease) (bool, error) {
	return false, fmt.Errorf("it may evict keys: %w", errors.ErrUnsupported)
}

// TestANameThatCannotBeMarkedIsNotSealed checks an idle name and a name with a
// waiter.
func TestANameThatCannotBeMarkedIsNotSealed(t *testing.T) {
	for _, bySeal := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, nil, nil)
			d, err := migrate.New(p.from.NewDriver(), unmarkable{p.to.NewDriver()}, &migrate.Options{Phase: migrate.PhaseNew})
			if err != nil {
				t.Fatal(err)
			}
			wantErr(t, "Check", d.Check(t.Context()), migrate.ErrNeedsGate)
			held := lock(t, p.from.NewDriver(), "x")
			done := make(chan error, 1)
			go func() { // ends when x is free
				if bySeal {
					done <- d.Seal(t.Context(), "x")
					return
				}
				_, err := d.Acquire(t.Context(), &newAttempt("x").Request)
				done <- err
			}()
			synctest.Wait()
			release(t, held)
			wantErr(t, "a name that cannot be marked", <-done, errors.ErrUnsupported)
			release(t, lock(t, p.from.NewDriver(), "x"))
		})
	}
}

// TestAReleaseWithoutAnAnswerIsUnknown has a name that is held on the old
// backend in PhaseNew, so its hold on the new backend is released before the
// next way.
func TestAReleaseWithoutAnAnswerIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		c := p.client(migrate.PhaseNew)
		held := lock(t, p.from.NewDriver(), "x")
		c.to.Inject(memory.Fault{Kind: memory.CutOff, On: memory.Releases})
		_, err := c.Acquire(t.Context(), &newAttempt("x").Request)
		wantErr(t, "the lock", err, driver.ErrUnknown)
		release(t, held)
	})
}
