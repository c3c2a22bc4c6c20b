package migrate_test

import (
	"context"
	"slices"
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

// isBehind reports whether Members returns the client who as a process that is
// in PhaseOld, or wants to be.
func isBehind(t *testing.T, by, who *client) bool {
	t.Helper()
	members, err := by.Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(members, func(m migrate.Member) bool {
		return m.Phase == migrate.PhaseOld && strings.HasPrefix(m.Hold, who.ID())
	})
}

// TestOneThatMayNotBeInPhaseOldIsSeen has a process that was frozen while the
// others moved on, and whose program locks nothing.
func TestOneThatMayNotBeInPhaseOldIsSeen(t *testing.T) {
	for _, o := range []*memory.Options{nil, sessions} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, o, o)
			behind, other := p.gated(migrate.PhaseOld), p.gated(migrate.PhaseDual)
			setPhase(t, behind, migrate.PhaseOld)
			behind.from.Cut()
			behind.to.Cut()
			for other.SetPhase(t.Context(), migrate.PhaseNew) != nil {
				time.Sleep(time.Second)
			}
			behind.from.Heal()
			behind.to.Heal()
			time.Sleep(ttl)
			for range 40 {
				if !isBehind(t, other, behind) {
					t.Fatal("a process that wants to be in phase old is not seen")
				}
				time.Sleep(497 * time.Millisecond)
			}
			setPhase(t, behind, migrate.PhaseDual)
			time.Sleep(time.Second)
			if isBehind(t, other, behind) {
				t.Error("the process is seen in phase dual")
			}
			setPhase(t, other, migrate.PhaseDual)
			setPhase(t, behind, migrate.PhaseOld)
		})
	}
}

// TestOneThatWantsToBeInPhaseOldGetsThere checks that a process enters PhaseOld
// without a lock when the others have left, and then releases its wish.
func TestOneThatWantsToBeInPhaseOldGetsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		late, other := p.gated(migrate.PhaseOld), p.gated(migrate.PhaseNew)
		setPhase(t, other, migrate.PhaseNew)
		_, err := try(late, "x")
		wantBehind(t, "a lock in phase old while a process is in phase new", err, migrate.PhaseNew, other)
		time.Sleep(time.Minute)
		setPhase(t, other, migrate.PhaseDual)
		time.Sleep(6 * time.Second)
		members, err := other.Members(t.Context())
		if err != nil || len(members) != 1 || members[0].Wants || !strings.HasPrefix(members[0].Hold, late.ID()) {
			t.Errorf("got members %v, %v, want %s in phase old", members, err, late.ID())
		}
	})
}

// TestMembersLeavesOutThoseWhoLook has processes that hold a slot for a moment.
func TestMembersLeavesOutThoseWhoLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		looker := lock(t, p.from.NewDriver(), "dsync:migrate:old:3")
		time.AfterFunc(100*time.Millisecond, func() { _ = looker.Release(context.Background()) })
		if members, err := p.gated(migrate.PhaseDual).Members(t.Context()); err != nil || len(members) > 0 {
			t.Errorf("got members %v, %v, want none", members, err)
		}
	})
}

// gatedSealer is a client with a gate whose old backend keeps seals.
func (p *pair) gatedSealer(phase migrate.Phase) *client {
	c := &client{from: p.from.NewDriver(), to: p.to.NewDriver()}
	var err error
	if c.Driver, err = migrate.New(c.from, c.to, &migrate.Options{Phase: phase, Gated: true, Unfenced: true, TTL: ttl}); err != nil {
		p.t.Fatal(err)
	}
	return c
}

// TestPhaseNewNeedsTheOldBackendNoLonger checks that after the gate was closed,
// a process that loses its slot gets another one while the old backend is dead.
func TestPhaseNewNeedsTheOldBackendNoLonger(t *testing.T) {
	for _, known := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, nil, nil)
			c, operator := p.gatedSealer(migrate.PhaseNew), p.gatedSealer(migrate.PhaseNew)
			setPhase(t, c, migrate.PhaseNew)
			if err := operator.Finalize(t.Context()); err != nil {
				t.Fatal(err)
			}
			if known {
				time.Sleep(time.Minute + time.Second)
			}
			c.from.Cut()
			members, err := operator.Members(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range members {
				if strings.HasPrefix(m.Hold, c.ID()) {
					if err := p.to.NewDriver().ForceUnlock(t.Context(), "dsync:migrate:new:"+string(rune('0'+m.Slot))); err != nil {
						t.Fatal(err)
					}
				}
			}
			synctest.Wait()
			l, err := try(c, "x")
			if !known {
				wantErr(t, "before it has learned that the gate is closed", err, driver.ErrUnavailable)
			} else if err != nil {
				t.Errorf("a lock without the old backend: %v", err)
			} else {
				release(t, l)
			}
		})
	}
}

// TestClosedIsBelievedOnlyWithALook has a process that may have lost its slot
// before it sealed, while another process may be in PhaseOld.
func TestClosedIsBelievedOnlyWithALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		old := p.gatedSealer(migrate.PhaseOld)
		setPhase(t, old, migrate.PhaseOld)
		admin := p.from.NewDriver()
		if err := admin.Seal(t.Context(), lock(t, admin, "dsync:migrate:closed")); err != nil {
			t.Fatal(err)
		}
		c := p.gatedSealer(migrate.PhaseNew)
		for range 2 {
			wantBehind(t, "to phase new while a process is in phase old", c.SetPhase(t.Context(), migrate.PhaseNew), migrate.PhaseOld, old)
			time.Sleep(2 * time.Minute)
		}
	})
}

// counted counts the requests to a backend that keeps seals.
type counted struct {
	*memory.Driver
	n *atomic.Int64
}

func (d counted) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	d.n.Add(1)
	return d.Driver.Acquire(ctx, r)
}

// TestOneThatComesTooLateAsksNowAndThen checks that such a process limits its
// requests, however often its program locks.
func TestOneThatComesTooLateAsksNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		if err := p.gatedSealer(migrate.PhaseNew).Finalize(t.Context()); err != nil {
			t.Fatal(err)
		}
		from := counted{p.from.NewDriver(), &atomic.Int64{}}
		late, err := migrate.New(from, p.to.NewDriver(), &migrate.Options{Phase: migrate.PhaseOld, Gated: true, Unfenced: true, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * ttl)
		for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(10 * time.Millisecond) {
			_, err := try(late, "x")
			wantErr(t, "a lock after the end", err, driver.ErrUnavailable)
		}
		if n := from.n.Load(); n > 50 {
			t.Errorf("the process queried the old backend %d times in a minute, want a query every 5s", n)
		}
	})
}

// whileLooked calls do when the first slot of PhaseOld is looked at.
type whileLooked struct {
	*memory.Driver
	do func()
}

func (d whileLooked) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if strings.HasPrefix(r.Name, "dsync:migrate:old:") {
		d.do()
	}
	return d.Driver.Acquire(ctx, r)
}

// TestAClosureAfterTheLooksBeganIsNotKnown has a process that may have become a
// member in PhaseOld after the looks and before the closure.
func TestAClosureAfterTheLooksBeganIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		operator := p.gatedSealer(migrate.PhaseNew)
		from := whileLooked{p.from.NewDriver(), sync.OnceFunc(func() { wantErr(t, "Finalize", operator.Finalize(t.Context()), nil) })}
		c, err := migrate.New(from, p.to.NewDriver(), &migrate.Options{Gated: true, Unfenced: true, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, "to new", c.SetPhase(t.Context(), migrate.PhaseNew), nil)
		from.Cut()
		wantErr(t, "the loss of the slot", p.to.NewDriver().ForceUnlock(t.Context(), "dsync:migrate:new:0"), nil)
		synctest.Wait()
		_, err = try(c, "x")
		wantErr(t, "a lock without a look", err, driver.ErrUnavailable)
	})
}
