package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// gated is like client, but with a gate.
func (p *pair) gated(phase migrate.Phase) *client {
	c := &client{from: p.from.NewDriver(), to: p.to.NewDriver()}
	var err error
	if c.Driver, err = migrate.New(onlyDriverAndAdmin{c.from, c.from}, onlyDriverAndAdmin{c.to, c.to},
		&migrate.Options{Phase: phase, Gated: true, Unfenced: true, TTL: ttl}); err != nil {
		p.t.Fatal(err)
	}
	return c
}

// onlyDriverAndAdmin cannot seal.
type onlyDriverAndAdmin struct {
	driver.Driver
	driver.Inspector
}

var gatedPhases = []migrate.Phase{migrate.PhaseOld, migrate.PhaseDual, migrate.PhaseNew}

func setPhase(t *testing.T, c *client, p migrate.Phase) {
	t.Helper()
	if err := c.SetPhase(t.Context(), p); err != nil || c.Phase() != p {
		t.Fatalf("SetPhase(%v): got %v and phase %v", p, err, c.Phase())
	}
}

// wantBehind fails unless err reports that one process is in phase p, and which
// process.
func wantBehind(t *testing.T, what string, err error, p migrate.Phase, who *client) {
	t.Helper()
	var behind *migrate.BehindError
	if !errors.As(err, &behind) || behind.Phase != p || len(behind.Members) != 1 || !strings.HasPrefix(behind.Members[0].Hold, who.ID()) {
		t.Errorf("%s: got %v, want one process in phase %v, %s", what, err, p, who.ID())
	}
}

func TestGateKeepsOldAndNewApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		a, b := p.gated(migrate.PhaseOld), p.gated(migrate.PhaseDual)
		setPhase(t, a, migrate.PhaseOld)
		wantBehind(t, "to phase new while a process is in phase old", b.SetPhase(t.Context(), migrate.PhaseNew), migrate.PhaseOld, a)
		if b.Phase() != migrate.PhaseDual {
			t.Errorf("after a change that was refused: got phase %v, want dual", b.Phase())
		}
		_, err := try(p.gated(migrate.PhaseNew), "x")
		wantBehind(t, "a lock in phase new while a process is in phase old", err, migrate.PhaseOld, a)
		wantErr(t, "a lock in phase new while a process is in phase old", err, driver.ErrUnavailable)
		setPhase(t, a, migrate.PhaseDual)
		setPhase(t, b, migrate.PhaseNew)
		wantBehind(t, "back to phase old while a process is in phase new", a.SetPhase(t.Context(), migrate.PhaseOld), migrate.PhaseNew, b)
		l := lock(t, b, "x")
		_, err = try(a, "x")
		wantErr(t, "a lock in phase dual while a process in phase new holds it", err, driver.ErrLocked)
		release(t, l)
		setPhase(t, b, migrate.PhaseDual)
		setPhase(t, a, migrate.PhaseOld)
		release(t, lock(t, a, "x"))
	})
}

// TestProcessesThatGoToNewTogetherAreNotRefused checks that processes can enter
// PhaseNew together if no process is in PhaseOld.
func TestProcessesThatGoToNewTogetherAreNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		var all sync.WaitGroup
		for i := range 6 {
			c := p.gated(migrate.PhaseDual)
			c.from.Inject(memory.Fault{Kind: memory.Slow, Delay: time.Duration(40+i) * time.Millisecond})
			all.Go(func() { wantErr(t, "to new", c.SetPhase(t.Context(), migrate.PhaseNew), nil) })
		}
		all.Wait()
	})
}

// before calls do before each Acquire of a name with a prefix.
type before struct {
	onlyDriverAndAdmin
	prefix string
	do     func()
}

func (d before) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if strings.HasPrefix(r.Name, d.prefix) {
		d.do()
	}
	return d.onlyDriverAndAdmin.Acquire(ctx, r)
}

// TestGateLooksAfterTheSlotIsTaken lets another process become a member of the
// other kind at the last moment.
func TestGateLooksAfterTheSlotIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		other := p.gated(migrate.PhaseDual)
		old := sync.OnceFunc(func() { setPhase(t, other, migrate.PhaseOld) })
		from, to := p.from.NewDriver(), p.to.NewDriver()
		d, err := migrate.New(onlyDriverAndAdmin{from, from}, before{onlyDriverAndAdmin{to, to}, "dsync:migrate:new:", old},
			&migrate.Options{Gated: true, Unfenced: true, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		wantBehind(t, "to new", d.SetPhase(t.Context(), migrate.PhaseNew), migrate.PhaseOld, other)
	})
}

// TestFinalizeKeepsProcessesOutOfPhaseOld checks this even when no process is
// left in PhaseNew.
func TestFinalizeKeepsProcessesOutOfPhaseOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		gated := func(phase migrate.Phase) *migrate.Driver {
			d, err := migrate.New(p.from.NewDriver(), p.to.NewDriver(), &migrate.Options{Phase: phase, Gated: true, Unfenced: true, TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		old := gated(migrate.PhaseOld)
		l := lock(t, old, "x")
		fresh := gated(migrate.PhaseNew)
		var behind *migrate.BehindError
		if err := fresh.Finalize(t.Context()); !errors.As(err, &behind) {
			t.Errorf("while a process is in phase old: got %v, want a BehindError", err)
		}
		release(t, l)
		if err := old.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "in phase dual", gated(migrate.PhaseDual).Finalize(t.Context()), migrate.ErrPhase)
		for range 2 {
			if err := fresh.Finalize(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := fresh.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		late := gated(migrate.PhaseOld)
		_, err := try(late, "x")
		wantErr(t, "a lock in phase old after the end", err, migrate.ErrFinalized)
		wantErr(t, "phase old after the end", late.SetPhase(t.Context(), migrate.PhaseOld), migrate.ErrFinalized)
		wantErr(t, "without seals", p.gated(migrate.PhaseNew).Finalize(t.Context()), errors.ErrUnsupported)
		wantErr(t, "without a gate", p.client(migrate.PhaseNew).Finalize(t.Context()), errors.ErrUnsupported)
	})
}

// TestOneThatLooksWhileTheGateIsClosed has a process that enters PhaseOld, and
// finds no process left in PhaseNew.
func TestOneThatLooksWhileTheGateIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		operator := p.gatedSealer(migrate.PhaseNew)
		setPhase(t, operator, migrate.PhaseNew)
		to := p.to.NewDriver()
		closed := sync.OnceFunc(func() {
			wantErr(t, "Finalize", errors.Join(operator.Finalize(t.Context()), operator.Close(t.Context())), nil)
		})
		late, err := migrate.New(p.from.NewDriver(), before{onlyDriverAndAdmin{to, to}, "dsync:migrate:new:", closed},
			&migrate.Options{Gated: true, Unfenced: true, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, "to old", late.SetPhase(t.Context(), migrate.PhaseOld), migrate.ErrFinalized)
	})
}

// TestFinalizeLooksForItsSlot checks that Finalize checks its slot after it has
// sealed: without the slot another process may have entered PhaseOld before.
func TestFinalizeLooksForItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		from := &slowSealer{Driver: p.from.NewDriver(), do: func() {
			if err := p.to.NewDriver().ForceUnlock(t.Context(), "dsync:migrate:new:0"); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}}
		from.at.Store(1)
		d, err := migrate.New(from, p.to.NewDriver(), &migrate.Options{Phase: migrate.PhaseNew, Gated: true, Unfenced: true, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, "Finalize", d.Finalize(t.Context()), driver.ErrUnknown)
		wantErr(t, "once more", d.Finalize(t.Context()), nil)
	})
}

// TestOneThatIsKilledWhileItLooksIsInNobodysWayForLong cuts a process off in
// the middle of its checks.
func TestOneThatIsKilledWhileItLooksIsInNobodysWayForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		killed := p.gated(migrate.PhaseDual)
		killed.from.Inject(memory.Fault{Kind: memory.LoseAnswer, On: memory.Acquires}) // it holds the slot that it checked
		_ = killed.SetPhase(t.Context(), migrate.PhaseNew)
		killed.from.Cut()
		killed.to.Cut()
		c := p.gated(migrate.PhaseDual)
		for begun := time.Now(); c.SetPhase(t.Context(), migrate.PhaseNew) != nil; {
			if time.Since(begun) > 6*time.Second {
				t.Fatal("another process cannot be in phase new after 6s")
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// TestOneThatIsBehindAsksNowAndThen checks that a process that is behind limits
// its requests, however often its program locks.
func TestOneThatIsBehindAsksNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		other := p.gated(migrate.PhaseNew)
		setPhase(t, other, migrate.PhaseNew)
		slots := 0
		from, to := p.from.NewDriver(), p.to.NewDriver()
		d, err := migrate.New(before{onlyDriverAndAdmin{from, from}, "dsync:migrate:old:", func() { slots++ }}, onlyDriverAndAdmin{to, to},
			&migrate.Options{Phase: migrate.PhaseOld, Gated: true, Unfenced: true, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		for begun := time.Now(); time.Since(begun) < time.Minute; {
			_, err := try(d, "x")
			wantBehind(t, "a lock in phase old while a process is in phase new", err, migrate.PhaseNew, other)
			time.Sleep(10 * time.Millisecond)
		}
		if slots < 10 || slots > 20 {
			t.Errorf("the process checked slots %d times in a minute, want a check every 5s", slots)
		}
		if err := other.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		release(t, lock(t, d, "x"))
	})
}

func TestGatePhasesExcludeTheNext(t *testing.T) {
	for _, first := range gatedPhases {
		for _, second := range gatedPhases {
			if first != second && first != migrate.PhaseDual && second != migrate.PhaseDual {
				continue
			}
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, nil, sessions)
				a, b := p.gated(first), p.gated(second)
				l := lock(t, a, "x")
				_, err := try(b, "x")
				wantErr(t, fmt.Sprintf("%v while %v holds", second, first), err, driver.ErrLocked)
				c := start(t.Context(), b, newAttempt("x"))
				time.Sleep(3 * ttl) // sessions of this package keep the lock
				release(t, l)
				if r := <-c; r.err != nil {
					t.Errorf("%v after %v: %v", second, first, r.err)
				}
			})
		}
	}
}

func TestGateMisuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		c := p.gated(migrate.PhaseOld)
		wantErr(t, "old to new", c.SetPhase(t.Context(), migrate.PhaseNew), migrate.ErrSkipped)
		wantErr(t, "to old without a gate", p.client(migrate.PhaseDual).SetPhase(t.Context(), migrate.PhaseOld), migrate.ErrPhase)
		wantErr(t, "to phase 7", c.SetPhase(t.Context(), 7), migrate.ErrPhase)
		_, err := try(c, "dsync:migrate:old:3")
		wantErr(t, "a reserved name", err, migrate.ErrReserved)
		wantErr(t, "Seal", c.Seal(t.Context(), "x"), migrate.ErrNoSeals)
		wantErr(t, "Rollback", c.Rollback(t.Context(), "x"), migrate.ErrNoSeals)
		_, err = c.Moved(t.Context(), "x")
		wantErr(t, "Moved", err, migrate.ErrNoSeals)
		_, err = p.client(migrate.PhaseDual).Members(t.Context())
		wantErr(t, "Members without a gate", err, errors.ErrUnsupported)
		for _, test := range []struct {
			from, to driver.Driver
			o        migrate.Options
			want     error
		}{
			{p.from.NewDriver(), p.to.NewDriver(), migrate.Options{Gated: true}, migrate.ErrTokens},
			{p.from.NewDriver(), p.to.NewDriver(), migrate.Options{Phase: migrate.PhaseOld}, migrate.ErrPhase},
			{onlyDriver{p.from.NewDriver()}, p.to.NewDriver(), migrate.Options{}, migrate.ErrNeedsGate},
			{p.from.NewDriver(), onlyDriver{p.to.NewDriver()}, migrate.Options{}, migrate.ErrNeedsGate},
			{p.from.NewDriver(), c.Driver, migrate.Options{}, errors.ErrUnsupported},
			{c.Driver, p.from.NewDriver(), migrate.Options{}, errors.ErrUnsupported},
			{p.from.NewDriver(), p.to.NewDriver(), migrate.Options{TTL: -1}, errors.ErrUnsupported},
		} {
			_, err := migrate.New(test.from, test.to, &test.o)
			wantErr(t, fmt.Sprintf("New with %+v", test.o), err, test.want)
		}
	})
}

func TestGateWaitsForWhatThisProcessHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		c := p.gated(migrate.PhaseOld)
		l := lock(t, c, "x")
		other := p.gated(migrate.PhaseOld)
		held := lock(t, other, "y")
		waiting := start(t.Context(), c, newAttempt("y"))
		setPhase(t, c, migrate.PhaseDual)
		ctx, cancel := context.WithTimeout(t.Context(), 2*ttl)
		defer cancel()
		err := c.SetPhase(ctx, migrate.PhaseNew)
		wantErr(t, "to new with a lock of phase old", err, context.DeadlineExceeded)
		wantBehind(t, "to new with a lock of phase old", err, migrate.PhaseOld, c)
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("Release of a lock from phase old: %v", err)
		}
		wantBehind(t, "to phase new while another process is in phase old", c.SetPhase(t.Context(), migrate.PhaseNew), migrate.PhaseOld, other)
		release(t, held)
		if r := <-waiting; r.err != nil {
			t.Errorf("a waiter while the phase changed: %v", r.err)
		}
		setPhase(t, other, migrate.PhaseDual)
		setPhase(t, c, migrate.PhaseNew)
	})
}

func TestLocksEndWithTheMembership(t *testing.T) {
	for _, o := range []*memory.Options{nil, sessions} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, o, o)
			c := p.gated(migrate.PhaseOld)
			a := newAttempt("x")
			l, err := c.Acquire(t.Context(), &a.Request)
			if err != nil {
				t.Fatal(err)
			}
			members, err := c.Members(t.Context())
			if err != nil || len(members) != 1 || !strings.HasPrefix(members[0].Hold, c.ID()) {
				t.Fatalf("Members: got %v, %v, want this process", members, err)
			}
			admin := p.from.NewDriver()
			if err := admin.ForceUnlock(t.Context(), fmt.Sprint("dsync:migrate:old:", members[0].Slot)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := a.losses.Load(); n != 1 {
				t.Errorf("Lost was called %d times, want once", n)
			}
			wantErr(t, "Release", l.Release(t.Context()), driver.ErrNotHeld)
			release(t, lock(t, c, "x")) // the process becomes a member again
		})
	}
}

// after calls do after each grant of a name.
type after struct {
	onlyDriverAndAdmin
	name string
	do   func()
}

func (d after) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l, err := d.onlyDriverAndAdmin.Acquire(ctx, r)
	if err == nil && r.Name == d.name {
		d.do()
	}
	return l, err
}

// TestAGrantAfterTheEndOfTheMembershipDoesNotCount checks that the process
// becomes a member again, and repeats its request.
func TestAGrantAfterTheEndOfTheMembershipDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, sessions)
		from, to, grants := p.from.NewDriver(), p.to.NewDriver(), 0
		d, err := migrate.New(onlyDriverAndAdmin{from, from}, after{onlyDriverAndAdmin{to, to}, "x", func() {
			if grants++; grants == 1 {
				if err := p.to.NewDriver().ForceUnlock(t.Context(), "dsync:migrate:new:0"); err != nil {
					t.Error(err)
				}
				synctest.Wait()
			}
		}}, &migrate.Options{Phase: migrate.PhaseNew, Gated: true, Unfenced: true, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		release(t, lock(t, d, "x"))
		if grants != 2 {
			t.Errorf("the new backend granted the name %d times, want twice", grants)
		}
	})
}

func TestProcessThatIsGoneIsNotInTheWayForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		c, other := p.gated(migrate.PhaseOld), p.gated(migrate.PhaseDual)
		l, err := c.Acquire(t.Context(), &newAttemptFor("x", 10*ttl).Request) // the lease ends when the membership ends
		if err != nil {
			t.Fatal(err)
		}
		c.from.Cut()
		for range 30 {
			if err := other.SetPhase(t.Context(), migrate.PhaseNew); err == nil {
				break
			}
			time.Sleep(ttl / 10)
		}
		if other.Phase() != migrate.PhaseNew {
			t.Fatal("a process that was cut off is still in the way after three TTLs")
		}
		if left := time.Until(l.Expires()); left > 0 {
			t.Errorf("the lock of the process lasts %v longer", left)
		}
	})
}

func TestGateHasRoomForSoMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		for i := range 129 {
			err := p.gated(migrate.PhaseOld).SetPhase(t.Context(), migrate.PhaseOld)
			if (err != nil) != (i == 128) || err != nil && !errors.Is(err, migrate.ErrFull) {
				t.Fatalf("process %d: got %v", i, err)
			}
		}
	})
}

func TestCloseGivesTheMembershipBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		c := p.gated(migrate.PhaseOld)
		lock(t, c, "x")
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "SetPhase after Close", c.SetPhase(t.Context(), migrate.PhaseDual), driver.ErrClosed)
		setPhase(t, p.gated(migrate.PhaseNew), migrate.PhaseNew)
	})
}

// brief records the TTLs of requests to a backend.
type brief struct {
	onlyDriverAndAdmin
	longest *atomic.Int64
}

func (d brief) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	d.longest.Store(max(d.longest.Load(), int64(r.TTL)))
	return d.onlyDriverAndAdmin.Acquire(ctx, r)
}

// TestLooksAreBrief checks that a slot that was looked at is soon free again,
// even if the process that looks is killed.
func TestLooksAreBrief(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		from, to := p.from.NewDriver(), p.to.NewDriver()
		looks := brief{onlyDriverAndAdmin{from, from}, &atomic.Int64{}}
		d, err := migrate.New(looks, onlyDriverAndAdmin{to, to}, &migrate.Options{Gated: true, Unfenced: true, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.SetPhase(t.Context(), migrate.PhaseNew); err != nil {
			t.Fatal(err)
		}
		if got := time.Duration(looks.longest.Load()); got == 0 || got > 5*time.Second {
			t.Errorf("slots of the other kind were requested with a TTL of %v, want at most 5s", got)
		}
	})
}

// TestASlotThatIsLostDuringTheLooks checks that such a slot does not count.
func TestASlotThatIsLostDuringTheLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		lose := sync.OnceFunc(func() {
			if err := p.to.NewDriver().ForceUnlock(t.Context(), "dsync:migrate:new:0"); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		})
		from, to := p.from.NewDriver(), p.to.NewDriver()
		d, err := migrate.New(before{onlyDriverAndAdmin{from, from}, "dsync:migrate:old:127", lose}, onlyDriverAndAdmin{to, to},
			&migrate.Options{Gated: true, Unfenced: true, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, "to new", d.SetPhase(t.Context(), migrate.PhaseNew), driver.ErrUnavailable)
		wantErr(t, "once more", d.SetPhase(t.Context(), migrate.PhaseNew), nil)
	})
}

// TestASlotOfUnknownFateIsNotTakenForThatOfAnother checks that the process does
// not take a second slot.
func TestASlotOfUnknownFateIsNotTakenForThatOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPair(t, nil, nil).gated(migrate.PhaseDual)
		c.to.Inject(memory.Fault{Kind: memory.LoseAnswer, On: memory.Acquires})
		wantErr(t, "to new", c.SetPhase(t.Context(), migrate.PhaseNew), driver.ErrUnknown)
	})
}
