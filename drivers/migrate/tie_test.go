package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// checked is like client, but checks the backends.
func (p *pair) checked(phase migrate.Phase) (*client, error) {
	c := p.client(phase)
	return c, c.Check(p.t.Context())
}

// TestAnotherNewBackendIsFound has a process with a wrong prefix in the URL of
// the new backend.
func TestAnotherNewBackendIsFound(t *testing.T) {
	for _, phase := range phases {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, nil, nil)
			wrong := &pair{t, p.from, memory.NewServer(nil)}
			c, err := p.checked(migrate.PhaseDual)
			wantErr(t, "the first process", err, nil)
			_, err = p.checked(phase)
			wantErr(t, "the second process", err, nil)
			_, err = wrong.checked(phase)
			wantErr(t, "a process with another new backend", err, migrate.ErrOtherBackend)
			if err := c.Untie(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, err = wrong.checked(phase)
			wantErr(t, "another new backend after Untie", err, nil)
			_, err = p.checked(phase)
			wantErr(t, "the first new backend after that", err, migrate.ErrOtherBackend)
		})
	}
}

// TestProcessesThatStartTogetherAgree has processes with two new backends.
func TestProcessesThatStartTogetherAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		sides := []*pair{p, {t, p.from, memory.NewServer(nil)}}
		var mu sync.Mutex
		var all sync.WaitGroup
		agreed := map[int]int{}
		for i := range 10 {
			all.Go(func() {
				_, err := sides[i%2].checked(migrate.PhaseNew)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					agreed[i%2]++
				} else {
					wantErr(t, "a process", err, migrate.ErrOtherBackend)
				}
			})
		}
		all.Wait()
		if len(agreed) != 1 || agreed[0]+agreed[1] != 5 {
			t.Errorf("processes that agreed on each of two new backends: %v, want five on one of them", agreed)
		}
	})
}

// TestATieThatStopsInTheMiddle loses the first process at each request to the
// old backend. The next process has another new backend.
func TestATieThatStopsInTheMiddle(t *testing.T) {
	for request := range 20 {
		for _, kind := range []memory.FaultKind{memory.CutOff, memory.LoseAnswer} {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, nil, nil)
				c := (&pair{t, p.from, memory.NewServer(nil)}).client(migrate.PhaseNew)
				c.from.Inject(memory.Fault{Kind: memory.Slow, Delay: time.Second})
				done := make(chan error, 1)
				go func() { done <- c.Check(t.Context()) }() // ends when the fault ends
				time.Sleep(time.Duration(request)*time.Second + time.Second/2)
				c.from.Inject(memory.Fault{Kind: kind})
				first := <-done
				c.from.Heal()
				_, second := p.checked(migrate.PhaseNew)
				_, again := (&pair{t, p.from, c.to.Server()}).checked(migrate.PhaseNew)
				if (second == nil) == (again == nil) {
					t.Errorf("request %d, fault %v: the first process got %v; then the other new backend got %v, and the first new backend %v; want success for one of the two",
						request, kind, first, second, again)
				}
			})
		}
	}
}

// TestSwappedBackendsAreFound checks this at open and at a lock.
func TestSwappedBackendsAreFound(t *testing.T) {
	for _, phase := range phases {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, nil, nil)
			c, err := p.checked(migrate.PhaseNew)
			wantErr(t, "the first process", err, nil)
			release(t, lock(t, c, "x"))
			swapped := &pair{t, p.to, p.from}
			_, err = swapped.checked(phase)
			wantErr(t, "a process with from and to swapped", err, migrate.ErrWrongWay)
			for _, noWait := range []bool{true, false} { // of a program that does not call Check
				wrong, a := swapped.client(phase), newAttempt("x")
				a.NoWait = noWait
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				begun := time.Now()
				_, err := wrong.Acquire(ctx, &a.Request)
				cancel()
				wantErr(t, fmt.Sprintf("a lock in phase %v", phase), err, migrate.ErrWrongWay)
				if errors.Is(err, driver.ErrSealed) || time.Since(begun) > time.Second {
					t.Errorf("a lock in phase %v: got %v after %v, want the error immediately", phase, err, time.Since(begun))
				}
			}
			release(t, lock(t, c, "x"))
		})
	}
}

// forbidden permits no names of the migration.
type forbidden struct{ *memory.Driver }

func (d forbidden) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if strings.HasPrefix(r.Name, "dsync:") {
		return nil, errors.New("no permission")
	}
	return d.Driver.Acquire(ctx, r)
}

func (d forbidden) Sealed(ctx context.Context, name string) (uint64, bool, error) {
	if strings.HasPrefix(name, "dsync:") {
		return 0, false, errors.New("no permission")
	}
	return d.Driver.Sealed(ctx, name)
}

// TestBackendsThatPermitNoReservedNames checks that such backends are not
// compared, and migrate anyway.
func TestBackendsThatPermitNoReservedNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		for _, pair := range [][2]driver.Driver{
			{forbidden{p.from.NewDriver()}, p.to.NewDriver()},
			{p.from.NewDriver(), forbidden{p.to.NewDriver()}},
		} {
			d, err := migrate.New(pair[0], pair[1], &migrate.Options{Phase: migrate.PhaseNew})
			if err != nil {
				t.Fatal(err)
			}
			wantErr(t, "Check", d.Check(t.Context()), nil)
			_, err = d.Tokens(t.Context())
			for what, err := range map[string]error{"Look": d.Look(t.Context()), "Moves": d.Moves(t.Context()), "Tokens": err} {
				wantErr(t, what, err, migrate.ErrNotPermitted)
			}
			release(t, lock(t, d, "x"))
		}
	})
}

// TestAnotherFloorIsFound has programs with different floors, whose tokens are
// not above each other.
func TestAnotherFloorIsFound(t *testing.T) {
	for _, phase := range phases {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, nil, nil)
			with := func(floor uint64) *migrate.Driver {
				d, err := migrate.New(p.from.NewDriver(), p.to.NewDriver(), &migrate.Options{Phase: phase, ToFloor: floor})
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			first, none := with(3<<48), with(0)
			tokens, err := none.Tokens(t.Context())
			wantErr(t, "Tokens", err, nil)
			release(t, lock(t, p.from.NewDriver(), "y"))
			if again, _ := none.Tokens(t.Context()); again.Floor != tokens.Floor || tokens.Floor == 0 {
				t.Errorf("got the floors %d and %d, want the same", tokens.Floor, again.Floor)
			}
			wantErr(t, "the first process", first.Check(t.Context()), nil)
			for _, d := range []*migrate.Driver{none, with(4 << 48)} {
				for what, err := range map[string]error{"Check": d.Check(t.Context()), "Look": d.Look(t.Context())} {
					wantErr(t, what+" with another floor", err, migrate.ErrOtherFloor)
				}
				if tokens, err := d.Tokens(t.Context()); err != nil || tokens.Floor != 3<<48 {
					t.Errorf("got the floor %d, %v, want the floor of the first process", tokens.Floor, err)
				}
			}
			wantErr(t, "the same floor", with(3<<48).Check(t.Context()), nil)
		})
	}
}

// unidentified neither keeps seals nor has an identity, like a fair lock of
// Redisson.
type unidentified struct{ *memory.Driver }

func (unidentified) Seal(context.Context, driver.Lease) error {
	return fmt.Errorf("a fair lock: %w", errors.ErrUnsupported)
}

// TestAnUnidentifiedNewBackendIsAnother has an old backend that is tied to an
// identified one.
func TestAnUnidentifiedNewBackendIsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		open := func() (*migrate.Driver, error) {
			d, err := migrate.New(p.from.NewDriver(), unidentified{memory.NewServer(nil).NewDriver()}, nil)
			if err != nil {
				t.Fatal(err)
			}
			wantErr(t, "Ties", d.Ties(t.Context()), errors.ErrUnsupported)
			return d, d.Check(t.Context())
		}
		_, err := open()
		wantErr(t, "the unidentified backend, before any other", err, nil)
		_, err = p.checked(migrate.PhaseNew)
		wantErr(t, "the first identified backend", err, nil)
		d, err := open()
		wantErr(t, "Check with the unidentified backend", err, migrate.ErrOtherBackend)
		wantErr(t, "Look with the unidentified backend", d.Look(t.Context()), migrate.ErrOtherBackend)
	})
}

// TestBackendsOutOfReachAreNotTakenForOthers checks that Open fails during an
// outage.
func TestBackendsOutOfReachAreNotTakenForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		for _, which := range []string{"from", "to"} {
			c := p.client(migrate.PhaseNew)
			if which == "from" {
				c.from.Cut()
			} else {
				c.to.Cut()
			}
			if c.Check(t.Context()) == nil && which == "from" || c.Look(t.Context()) == nil {
				t.Errorf("%s is out of reach: got no error", which)
			}
		}
	})
}

func TestTokensRiseForNamesThatNobodyLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		c := p.client(migrate.PhaseDual)
		tokens, err := c.Tokens(t.Context())
		if err != nil || tokens.Rise() || tokens.From <= 1<<16 {
			t.Errorf("without a floor: got %+v, %v, want falling tokens", tokens, err)
		}
		o := &migrate.Options{ToFloor: tokens.Floor}
		d, err := migrate.New(p.from.NewDriver(), p.to.NewDriver(), o)
		if err != nil {
			t.Fatal(err)
		}
		if tokens, err = d.Tokens(t.Context()); err != nil || !tokens.Rise() || tokens.Floor != o.ToFloor {
			t.Errorf("with the floor %d: got %+v, %v, want rising tokens and the same floor", o.ToFloor, tokens, err)
		}
		last := uint64(0)
		rises := func(what string, l driver.Lease, floor uint64) {
			t.Helper()
			first, n := driver.Tokens(l, floor)
			if first <= last {
				t.Errorf("%s: got token %d after %d", what, first, last)
			}
			last = first + uint64(n) - 1
			release(t, l)
		}
		rises("the old backend alone", lock(t, p.from.NewDriver(), "x"), 0)
		rises("phase dual", lock(t, d, "x"), 0)
		if err := d.SetPhase(t.Context(), migrate.PhaseNew); err != nil {
			t.Fatal(err)
		}
		moved := last
		rises("phase new", lock(t, d, "x"), 0)
		if last > o.ToFloor+1000 {
			t.Errorf("got token %d with the floor %d: the floor was added twice", last, o.ToFloor)
		}
		rises("the new backend alone", lock(t, p.to.NewDriver(), "x"), o.ToFloor)
		back := last
		last = moved
		rises("a name that no program locked in the meantime", lock(t, p.to.NewDriver(), "y"), o.ToFloor)
		if err := d.SetPhase(t.Context(), migrate.PhaseDual); err != nil {
			t.Fatal(err)
		}
		if err := d.Rollback(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		last = back
		rises("taken back", lock(t, p.from.NewDriver(), "x"), 0)
		if err := d.SetPhase(t.Context(), migrate.PhaseNew); err != nil {
			t.Fatal(err)
		}
		rises("moved again", lock(t, d, "x"), 0)
	})
}

// TestTokensRiseFromABackendWithAFloor has an old backend that was the new one
// of an earlier migration.
func TestTokensRiseFromABackendWithAFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const floor = 1 << 40
		p := newPair(t, nil, nil)
		from := p.from.NewDriver()
		d, err := migrate.New(from, p.to.NewDriver(), &migrate.Options{FromFloor: floor})
		if err != nil {
			t.Fatal(err)
		}
		last := uint64(0)
		rises := func(what string, l driver.Lease, floor uint64) {
			t.Helper()
			first, n := driver.Tokens(l, floor)
			if first <= last || first < floor {
				t.Errorf("%s: got token %d after %d", what, first, last)
			}
			last = first + uint64(n) - 1
			release(t, l)
		}
		rises("phase dual", lock(t, d, "x"), 0)
		sealed := lock(t, from, "sealed without a mark")
		before, n := driver.Tokens(sealed, floor)
		if err := from.Seal(t.Context(), sealed); err != nil {
			t.Fatal(err)
		}
		if err := d.SetPhase(t.Context(), migrate.PhaseNew); err != nil {
			t.Fatal(err)
		}
		l := lock(t, d, "sealed without a mark") // the first marked name: all names of a server share one token count
		if first, _ := l.Tokens(); first < before+uint64(n) {
			t.Errorf("a name that was sealed before: got token %d after %d", first, before+uint64(n)-1)
		}
		release(t, l)
		rises("phase new", lock(t, d, "x"), 0)
		if err := d.SetPhase(t.Context(), migrate.PhaseDual); err != nil {
			t.Fatal(err)
		}
		if err := d.Rollback(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		rises("taken back", lock(t, from, "x"), floor)
		if last > floor+floor/2 {
			t.Errorf("got token %d with the floor %d: the floor was added twice", last, uint64(floor))
		}
	})
}

// TestANameThatMovesLateHasTokensOfTheNewBackend has a program that only knows
// the new backend, and has locked the name before.
func TestANameThatMovesLateHasTokensOfTheNewBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const floor = 1 << 40
		p := newPair(t, nil, nil)
		d, err := migrate.New(p.from.NewDriver(), p.to.NewDriver(), &migrate.Options{Phase: migrate.PhaseNew, ToFloor: floor})
		if err != nil {
			t.Fatal(err)
		}
		held := lock(t, p.from.NewDriver(), "x")
		waiting := start(t.Context(), d, newAttempt("x"))
		alone := lock(t, p.to.NewDriver(), "x")
		before, _ := driver.Tokens(alone, floor)
		release(t, alone)
		release(t, held)
		r := <-waiting
		if r.err != nil {
			t.Fatal(r.err)
		}
		if first, _ := r.lease.Tokens(); first <= before {
			t.Errorf("got token %d after %d", first, before)
		}
		release(t, r.lease)
	})
}

// TestTokensRiseForANameThatIsHeldWhenItIsToMove checks the path of
// [migrate.Driver.Seal], and of a grant that waited for a program that only
// knows the old backend.
func TestTokensRiseForANameThatIsHeldWhenItIsToMove(t *testing.T) {
	for _, bySeal := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, nil, nil)
			c := p.client(migrate.PhaseNew)
			held := lock(t, p.from.NewDriver(), "x")
			first, n := held.Tokens()
			var all sync.WaitGroup
			var after driver.Lease
			all.Go(func() {
				if bySeal {
					wantErr(t, "Seal", c.Seal(t.Context(), "x"), nil)
				}
				var err error
				after, err = c.Acquire(t.Context(), &newAttempt("x").Request)
				wantErr(t, "the next lock", err, nil)
			})
			synctest.Wait()
			release(t, held)
			all.Wait()
			if token, _ := after.Tokens(); token < first+uint64(n) {
				t.Errorf("by Seal %t: got token %d after %d tokens from %d", bySeal, token, n, first)
			}
			release(t, after)
		})
	}
}
