package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/drivers/migrate"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// program opens the migration as a program does.
func (p *two) program(phase migrate.Phase, more string) *migrate.Driver {
	p.t.Helper()
	return drivertest.Open(p.t, "migrate:?from="+url.QueryEscape(p.from)+"&to="+url.QueryEscape(p.to)+"&phase="+phase.String()+more).(*migrate.Driver)
}

func TestStatusShowsWhereNamesAre(t *testing.T) {
	p := inMemory(t)
	last := drivertest.Token(drivertest.Acquire(t, p.program(migrate.PhaseNew, ""), drivertest.Request("moved and held")))
	both := drivertest.Acquire(t, p.program(migrate.PhaseDual, ""), drivertest.Request("held on both"))
	waits := drivertest.Wait(t, p.program(migrate.PhaseDual, ""), drivertest.Request("held on both"))
	drivertest.Acquire(t, drivertest.Open(t, p.from), drivertest.Request("held by an old program"))
	drivertest.Acquire(t, drivertest.Open(t, p.to), drivertest.Request("held by a stranger"))
	s := p.status(cli.ExitUnfinished, "moved and held", "held on both", "held by an old program", "held by a stranger", "idle")
	if s.Moved != 1 || s.Held != 3 || s.Idle != 1 || s.Behind != 2 {
		t.Errorf("got %+v, want 1 moved, 3 held, 1 idle, 2 behind", s)
	}
	for i, want := range []struct {
		state, on string
		behind    string
		waiters   int
	}{
		{"moved", "new", "", 0},
		{"held", "both", "", 1},
		{"held", "old", "a program that only knows the old backend holds it", 0},
		{"held", "new", "outside of the migration", 0},
		{"idle", "", "", 0},
	} {
		n := s.Names[i]
		if n.State != want.state || n.HeldOn != want.on || n.Waiters != want.waiters || (n.Behind == "") != (want.behind == "") ||
			!strings.Contains(n.Behind, want.behind) || (n.Hold == "") != (want.on == "") {
			t.Errorf("got %+v, want %+v", n, want)
		}
	}
	if got := s.Names[0].TokenFloor; got >= last || got == 0 {
		t.Errorf("got floor %d, want the last token of the old backend, which is below %d", got, last)
	}
	p.run("status", "held on both", "idle").want(cli.ExitDone, "2 names: 0 moved, 1 held, 1 idle")
	p.run("status", "held by an old program").want(cli.ExitUnfinished, "behind: ", s.Names[2].Hold)
	drivertest.Release(t, both)
	drivertest.Release(t, waits.Granted(t))
}

func TestStatusNamesForeignHolders(t *testing.T) {
	p := inMemory(t)
	r := drivertest.Request("x")
	r.Hold, r.Owner = "694d8f2b", "694d8f2b" // as etcdctl does, without an identity of dsync
	drivertest.Acquire(t, drivertest.Open(t, p.from), r)
	p.run("status", "x").want(cli.ExitUnfinished, "a program that only knows the old backend holds it: 694d8f2b\n")
	drivertest.Acquire(t, drivertest.Open(t, p.to), drivertest.Request("x")) // no half of that hold
	if n := p.status(cli.ExitUnfinished, "x").Names[0]; n.HeldOn != "old" {
		t.Errorf("got %+v, want a hold on the old backend", n)
	}
}

// TestStatusTellsSessionsOfPostgresApart checks that status distinguishes
// sessions by their names.
func TestStatusTellsSessionsOfPostgresApart(t *testing.T) {
	server := testenv.Postgres(t)
	for _, name := range []string{"", "?application_name=orders"} {
		p := inMemory(t)
		p.from = server.URL("pglock") + name
		l := drivertest.Acquire(t, p.program(migrate.PhaseDual, "&gate=true&fenced=false"), drivertest.Request("x"))
		p.run("status", "--gate", "--fenced=false", "x").want(cli.ExitDone, "1 held")
		drivertest.Release(t, l)
		l = drivertest.Acquire(t, drivertest.Open(t, p.from), drivertest.Request("x"))
		p.run("status", "--gate", "--fenced=false", "x").want(cli.ExitUnfinished, "a program that only knows the old backend holds it")
		drivertest.Release(t, l)
	}
}

// TestStatusNamesReadersAndWriters checks readers and writers of the old
// backend, which are outside of the migration.
func TestStatusNamesReadersAndWriters(t *testing.T) {
	p := inMemory(t)
	d := drivertest.Open(t, p.from)
	for _, mode := range []driver.Mode{driver.Read, driver.Read, driver.Read, driver.Write, driver.Exclusive} {
		r := drivertest.Request(mode.String())
		r.Mode = mode
		drivertest.Acquire(t, d, r)
	}
	s := p.status(cli.ExitUnfinished, "read", "write", "exclusive", "idle")
	for i, want := range []struct {
		mode    string
		holders int
	}{{"read", 3}, {"write", 1}, {"exclusive", 1}, {"", 0}} {
		if n := s.Names[i]; n.Mode != want.mode || n.Holders != want.holders {
			t.Errorf("%s: got mode %q and %d holders, want %q and %d", n.Name, n.Mode, n.Holders, want.mode, want.holders)
		}
	}
	out := p.run("status", "read", "idle").want(cli.ExitUnfinished).out
	for _, row := range []string{`NAME +STATE +HELD ON +MODE +HOLDERS +HOLDER `, `read +held +old +read +3 +\S`, `idle +idle +- +- +0 +- `} {
		if !regexp.MustCompile(`(?m)^` + row).MatchString(out) {
			t.Errorf("got no row %q in\n%s", row, out)
		}
	}
}

// TestStatusNamesAnIncumbent checks a fleet of six with an incumbent that holds
// a name one percent of the time, by either procedure and in each phase.
func TestStatusNamesAnIncumbent(t *testing.T) {
	for _, test := range []struct {
		more  string
		phase migrate.Phase
		flags []string
	}{
		{"", migrate.PhaseDual, nil},
		{"&gate=true&fenced=false", migrate.PhaseDual, []string{"--gate", "--fenced=false"}},
		{"&gate=true&fenced=false", migrate.PhaseNew, []string{"--gate", "--fenced=false"}},
	} {
		for _, incumbent := range []string{"", "old", nameless} {
			synctest.Test(t, func(t *testing.T) {
				p := inMemory(t)
				p.ctx = t.Context()
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for i := range 6 {
					d := p.program(test.phase, test.more)
					all.Go(func() { holdAgain(ctx, fmt.Sprint("fleet-", i), d, time.Millisecond, 19*time.Millisecond) })
				}
				status := cli.ExitDone
				if incumbent != "" {
					old := drivertest.Open(t, p.from)
					all.Go(func() { holdAgain(ctx, incumbent, old, 2500*time.Millisecond, 25*time.Millisecond) })
					status = cli.ExitUnfinished
				}
				synctest.Wait()
				r := p.run(append([]string{"status", "--for", "5s", "x"}, test.flags...)...).want(status)
				if incumbent != "" {
					r.want(status, "behind: x: a program that only knows the old backend", incumbent)
				}
				cancel()
				all.Wait()
			})
		}
	}
}

// TestStatusFor checks that status, if it runs for longer, finds a client that
// is behind only occasionally, even on names that no other client uses.
func TestStatusFor(t *testing.T) {
	for _, test := range []struct {
		what  string
		pause time.Duration // of a program that uses only the old backend, before each lock of x
		holds time.Duration
		dual  bool // a program in phase dual repeatedly holds x for long
		found bool
	}{
		{"now and then", 5 * time.Second, 3 * time.Second, false, true},
		{"alongside long holds", 0, 20 * time.Millisecond, true, true},
		{"no client is behind", time.Hour, 0, true, false},
		{"there is no client", time.Hour, 0, false, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := inMemory(t)
			p.ctx = t.Context() // this may take longer than tests usually do
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			if test.dual {
				all.Go(func() { holdAgain(ctx, "dual", p.program(migrate.PhaseDual, ""), 0, time.Second) })
			}
			synctest.Wait()
			all.Go(func() { holdAgain(ctx, "old", drivertest.Open(t, p.from), test.pause, test.holds) })
			synctest.Wait()
			p.run("status", "x").want(cli.ExitDone)
			begun := time.Now()
			if r := p.run("status", "--for", "10m", "x"); test.found {
				r.want(cli.ExitUnfinished, "behind: x: ", "old:")
			} else {
				r.want(cli.ExitDone)
			}
			if took := time.Since(begun); took >= 10*time.Minute == test.found {
				t.Errorf("%s: it took %v", test.what, took)
			}
			cancel()
			all.Wait()
		})
	}
	inMemory(t).run("status", "--for", "-1s", "x").want(cli.ExitUsage, "--for -1s is negative")
	synctest.Test(t, func(t *testing.T) {
		p := inMemory(t)
		drivertest.Acquire(t, drivertest.Open(t, p.from), drivertest.Request("y"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		p.ctx = ctx
		p.run("status", "--for", "10m", "x", "y").want(cli.ExitInterrupted, "2 names: 0 moved, 1 held, 1 idle", "behind: y: ")
	})
}

// TestSealFor checks that seal finds an occasional holder if it looks for long
// enough.
func TestSealFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := inMemory(t)
		p.ctx = t.Context()
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { holdAgain(ctx, "old", drivertest.Open(t, p.from), 5*time.Second, 3*time.Second) })
		synctest.Wait()
		p.run("seal", "--for", "10m", "x").want(cli.ExitUnfinished, "behind: x: ", "--anyway").not("sealed: ")
		cancel()
		all.Wait()
		p.run("seal", "--for", "1s", "x").want(cli.ExitDone, "sealed: 1")
	})
	inMemory(t).run("seal", "--for", "-1s", "x").want(cli.ExitUsage, "--for -1s is negative")
}

// nameless is a client whose holds share no prefix, like the random values of
// string locks.
const nameless = "random"

// holdAgain repeatedly pauses, then locks x for a while, until ctx ends.
func holdAgain(ctx context.Context, client string, d driver.Driver, before, holds time.Duration) {
	for n := 0; ctx.Err() == nil; n++ {
		pause(ctx, before)
		r := drivertest.Request("x")
		if r.Hold = fmt.Sprintf("%s:%d", client, n); client == nameless {
			r.Hold = fmt.Sprint(n, client)
		}
		if l, err := d.Acquire(ctx, r); err == nil {
			pause(ctx, holds)
			_ = l.Release(context.Background())
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func TestSealMovesIdleNames(t *testing.T) {
	p := inMemory(t)
	l := drivertest.Acquire(t, p.program(migrate.PhaseDual, ""), drivertest.Request("held"))
	p.stdin = "a\nb\nheld\nc\n"
	p.run("seal", "--all", "--names", "-", "--dry-run").want(cli.ExitUnfinished, "dry run: nothing is changed", "would be sealed: 3;", "held: held")
	p.wantState("idle", "a", "b", "c")
	p.run("seal", "--all", "--names", "-", "--rate", "0").want(cli.ExitUnfinished, "4 names", "sealed: 3; sealed already: 0; held by a client: 1; not tried: 0",
		"held: held", "1 name is held: repeat the command")
	p.wantState("moved", "a", "b", "c")
	p.run("finalize", "--names", "-").want(cli.ExitUnfinished, "not moved: held (held)", "1 of 4 names have not moved").not("cut all clients off")
	drivertest.Release(t, l)
	p.run("seal", "--all", "--names", "-").want(cli.ExitDone, "sealed: 1; sealed already: 3; held by a client: 0; not tried: 0")
	p.run("finalize", "--names", "-").want(cli.ExitDone, "have moved (4), and tokens rise for all other names",
		"use only the old backend, by their own user", "only the URL of the new backend: memory://", "with floor=")
	if _, err := drivertest.Open(t, p.from).Acquire(t.Context(), drivertest.NoWait("a")); err == nil {
		t.Error("an old program got a name that has moved")
	}
	drivertest.Release(t, drivertest.Acquire(t, p.program(migrate.PhaseDual, ""), drivertest.Request("a")))
}

func TestSealKeepsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, begun := inMemory(t), time.Now()
		p.ctx = t.Context()
		p.run("seal", "a", "b", "c", "d", "--rate", "2").want(cli.ExitDone, "sealed: 4;")
		if took := time.Since(begun); took != 2*time.Second {
			t.Errorf("4 names at 2 per second took %v, want 2s", took)
		}
		begun = time.Now()
		p.run("seal", "e", "f", "--rate", "0.05").want(cli.ExitDone, "sealed: 2;")
		if took := time.Since(begun); took != 40*time.Second {
			t.Errorf("2 names at 0.05 per second took %v, want 40s", took)
		}
		begun = time.Now()
		p.run("seal", "a", "b", "c", "d", "--rate", "2").want(cli.ExitDone, "sealed already: 4;")
		if took := time.Since(begun); took != 0 {
			t.Errorf("4 names that have moved took %v, want no time", took)
		}
	})
}

func TestSealWaitsInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := inMemory(t)
		old := p.program(migrate.PhaseDual, "")
		soon := drivertest.Acquire(t, old, drivertest.WithTTL(drivertest.Request("soon"), time.Hour))
		drivertest.Acquire(t, old, drivertest.WithTTL(drivertest.Request("late"), time.Hour))
		time.AfterFunc(30*time.Second, func() { drivertest.Release(t, soon) })
		begun := time.Now()
		p.ctx = t.Context()
		p.run("seal", "soon", "late", "idle", "--wait", "1m").want(cli.ExitUnfinished, "sealed: 2;", "held by a client: 1", "held: late")
		if took := time.Since(begun); took < time.Minute {
			t.Errorf("seal waited for %v, want a minute", took)
		}
	})
}

// picky does not accept a name with a brace.
type picky struct{ *memory.Driver }

func accepts(name string) error {
	if strings.Contains(name, "{") {
		return fmt.Errorf("name with a brace: %w", errors.ErrUnsupported)
	}
	return nil
}

func (d picky) Inspect(ctx context.Context, name string) (s driver.Status, err error) {
	if err = accepts(name); err == nil {
		s, err = d.Driver.Inspect(ctx, name)
	}
	return s, err
}

func (d picky) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if err := accepts(r.Name); err != nil {
		return nil, err
	}
	return d.Driver.Acquire(ctx, r)
}

func init() {
	driver.Register("picky", func(ctx context.Context, c *driver.Config) (driver.Driver, error) {
		d, _, err := driver.Open(ctx, "memory://"+c.URL.Hosts[0])
		if err != nil {
			return nil, err
		}
		return picky{d.(*memory.Driver)}, nil
	})
}

// TestANameThatABackendRefusesHidesNoOther checks names together with a name
// that a backend refuses.
func TestANameThatABackendRefusesHidesNoOther(t *testing.T) {
	p := inMemory(t)
	p.from = strings.Replace(p.from, "memory:", "picky:", 1)
	p.run("seal", "a", "b{", "c").want(cli.ExitRefused, "sealed: 2;", "b{: ", "name with a brace")
	p.run("status", "a", "b{", "c").want(cli.ExitUnfinished, "3 names: 2 moved, 0 held, 0 idle", "behind: b{: it cannot move")
	p.run("finalize", "a", "b{", "c").want(cli.ExitUnfinished, "not moved: b{ (refused)")
}

func TestSealCanBeInterruptedAndRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := inMemory(t)
		var names []string
		for i := range 10 {
			names = append(names, fmt.Sprint("n", i))
		}
		early, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		p.ctx = early
		p.run("seal", "--for", "10m", "y").want(cli.ExitInterrupted, "interrupted before the first name")
		ctx, cancel := context.WithTimeout(t.Context(), 4500*time.Millisecond)
		defer cancel()
		p.ctx = ctx
		p.wantState("idle", "y")
		args := append([]string{"seal", "--rate", "1"}, names...)
		p.run(args...).want(cli.ExitInterrupted, "sealed: 4; sealed already: 0; held by a client: 0; not tried: 6", "interrupted: repeat the command")
		p.ctx = nil
		p.run(args...).want(cli.ExitDone, "sealed: 6; sealed already: 4; held by a client: 0; not tried: 0")
		p.wantState("moved", names...)
	})
}

func TestRollbackTakesNamesBack(t *testing.T) {
	p := inMemory(t)
	p.run("seal", "a", "b", "held").want(cli.ExitDone, "sealed: 3")
	l := drivertest.Acquire(t, p.program(migrate.PhaseDual, ""), drivertest.Request("held"))
	token := drivertest.Token(l)
	p.run("rollback", "a", "b", "held", "c", "--dry-run").want(cli.ExitUnfinished, "would be back: 2; back already: 1; held by a client: 1")
	p.wantState("moved", "a", "b", "held")
	p.run("rollback", "a", "b", "held", "c").want(cli.ExitUnfinished, "back: 2; back already: 1; held by a client: 1; not tried: 0", "held: held")
	drivertest.Release(t, l)
	p.run("rollback", "held").want(cli.ExitDone, "back: 1")
	p.wantState("idle", "a", "b", "held", "c")
	if got := drivertest.Token(drivertest.Acquire(t, drivertest.Open(t, p.from), drivertest.Request("held"))); got <= token {
		t.Errorf("got token %d from the old backend after %d from the new one", got, token)
	}
}

func TestRollbackIsRefused(t *testing.T) {
	p := inMemory(t)
	p.run("seal", "x").want(cli.ExitDone)
	p.from = strings.Replace(p.from, "memory:", "oneway:", 1)
	for _, more := range [][]string{nil, {"--dry-run"}} {
		p.run(append([]string{"rollback", "x"}, more...)...).want(cli.ExitRefused, "cannot go back", "cannot take back a seal", "phase dual anyway")
	}
	p.wantState("moved", "x")
}

// TestAtLeastInAMigration checks that the name stays locked on both backends
// after the command ends.
func TestAtLeastInAMigration(t *testing.T) {
	p := &two{t: t, from: "redisson://" + testenv.Redis(t).Addr, to: "etcd://" + testenv.Etcd(t).Addr + "/locks/"}
	raw := "migrate:?phase=dual&from=" + url.QueryEscape(p.from) + "&to=" + url.QueryEscape(p.to)
	job := []string{"run", "--url", raw, "--try", "--at-least", "1m", "x", "--", "true"}
	if status, _, errs := testenv.Execute(t, job...); status != cli.ExitDone {
		t.Errorf("got status %d: %s", status, errs)
	}
	if n := p.status(cli.ExitDone, "x").Names[0]; n.HeldOn != "both" || n.TTLSeconds < 10 {
		t.Errorf("got %+v, want a hold on both backends for another minute", n)
	}
	if status, _, errs := testenv.Execute(t, job...); status != cli.ExitLocked {
		t.Errorf("within the minute: got status %d: %s", status, errs)
	}
}

func TestSameBackendByTwoAddressesIsRefused(t *testing.T) {
	p := inMemory(t)
	p.to = strings.Replace(p.from, "memory:", "oneway:", 1) + "?floor=1125899906842624"
	for _, c := range []string{"seal", "rollback"} {
		p.run(c, "x").want(cli.ExitRefused, migrate.ErrSame.Error())
	}
	if _, sealed, err := drivertest.Open(t, p.from).(move.Sealer).Sealed(t.Context(), "x"); sealed || err != nil {
		t.Errorf("got sealed %t, %v, want false", sealed, err)
	}
}

func TestGate(t *testing.T) {
	p := inMemory(t)
	flags := []string{"--gate", "--fenced=false"}
	run := func(args ...string) result { t.Helper(); return p.run(append(args, flags...)...) }
	const gate = "&gate=true&fenced=false"
	d := p.program(migrate.PhaseOld, gate)
	id := regexp.QuoteMeta(d.ID())
	for _, c := range [][]string{{"status"}, {"finalize"}, {"finalize", "--dry-run"}} {
		r := run(c...).want(cli.ExitUnfinished)
		if !regexp.MustCompile(id + ":").MatchString(r.out + r.errors) {
			t.Errorf("%v: want the process in phase old to be named in\n%s%s", c, r.out, r.errors)
		}
		r.not("cut all clients off")
	}
	if err := d.SetPhase(t.Context(), migrate.PhaseDual); err != nil {
		t.Fatal(err)
	}
	run("finalize", "--dry-run").want(cli.ExitDone, "did not join", "use only the old backend, by their own user")
	l := drivertest.Acquire(t, drivertest.Open(t, p.from), drivertest.Request("x"))
	run("status", "x").want(cli.ExitUnfinished, "only knows the old backend")
	run("finalize", "x").want(cli.ExitUnfinished, "take no part in the migration")
	drivertest.Release(t, l)
	var busy sync.WaitGroup
	stop := make(chan struct{})
	busy.Go(func() {
		old := drivertest.Open(t, p.from)
		for begin := time.Tick(300 * time.Millisecond); ; { // holds x for a tenth of the time
			select {
			case <-begin:
			case <-stop:
				return
			}
			l := drivertest.Acquire(t, old, drivertest.Request("x"))
			time.Sleep(30 * time.Millisecond)
			drivertest.Release(t, l)
		}
	})
	run("finalize", "x").want(cli.ExitUnfinished, "take no part in the migration")
	close(stop)
	busy.Wait()
	if err := d.SetPhase(t.Context(), migrate.PhaseNew); err != nil {
		t.Fatal(err)
	}
	run("status", "x").want(cli.ExitDone, "in phase old: 0, in phase new: 1", "new: slot 0")
	run("finalize", "x").want(cli.ExitDone, "no process is in phase old, and none can enter it any longer", "with floor=")
	if err := d.SetPhase(t.Context(), migrate.PhaseDual); err != nil { // the command is no longer in phase new
		t.Fatal(err)
	}
	if err := d.SetPhase(t.Context(), migrate.PhaseOld); !errors.Is(err, migrate.ErrFinalized) || !strings.Contains(err.Error(), "`dsync migrate untie`") {
		t.Errorf("phase old after finalize: got %v, want %v and the command that opens it again", err, migrate.ErrFinalized)
	}
	run("untie").want(cli.ExitDone)
	if err := d.SetPhase(t.Context(), migrate.PhaseOld); err != nil {
		t.Errorf("phase old after untie: %v", err)
	}
}

// TestGateShowsWhoWantsToBeInPhaseOld checks this in each query, even when
// phase old is closed.
func TestGateShowsWhoWantsToBeInPhaseOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := inMemory(t)
		p.program(migrate.PhaseNew, "&gate=true&fenced=false")
		late, err := migrate.New(drivertest.Open(t, p.from), drivertest.Open(t, p.to),
			&migrate.Options{Phase: migrate.PhaseOld, Gated: true, Unfenced: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := late.SetPhase(t.Context(), migrate.PhaseOld); err == nil {
			t.Fatal("it is in phase old beside phase new")
		}
		time.Sleep(time.Second)
		for range 20 {
			p.run("status", "--gate", "--fenced=false").want(cli.ExitUnfinished, "processes that want to enter phase old: ", "wants old: slot 0", late.ID())
			p.run("finalize", "--gate", "--fenced=false").want(cli.ExitUnfinished, "wants to enter it", late.ID()).not("cut all clients off")
			time.Sleep(777 * time.Millisecond)
		}
		if err := late.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.run("finalize", "--gate", "--fenced=false").want(cli.ExitDone)
	})
}

func TestOperatorsAreToldOfEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := inMemory(t)
		for _, gate := range []string{"", "&gate=true&fenced=false"} {
			end, err := p.program(migrate.PhaseDual, gate).Operate(t.Context(), "seal")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			for _, c := range [][]string{{"seal", "x"}, {"rollback", "x"}, {"untie"}, {"finalize", "--gate", "--fenced=false"}} {
				p.run(c...).want(cli.ExitUnfinished, migrate.ErrOperator.Error(), "seal: try again")
			}
			p.run("seal", "x", "--dry-run").want(cli.ExitDone)
			end()
		}
		p.run("seal", "x").want(cli.ExitDone, "sealed: 1;")
	})
}

// TestFinalizeAsksForAFloor covers tokens that would fall without a floor, for
// a name that is not locked before the end.
func TestFinalizeAsksForAFloor(t *testing.T) {
	p := inMemory(t).bareURLs()
	old := drivertest.Open(t, p.from)
	for range 10 {
		drivertest.Release(t, drivertest.Acquire(t, old, drivertest.Request("y")))
	}
	p.run("seal", "x").want(cli.ExitUnfinished, "tokens of some names would fall, namely of names that are first locked when the programs use only the new backend")
	p.wantState("idle", "x")
	p.run("seal", "x", "--anyway").want(cli.ExitDone)
	said := p.run("finalize", "x").want(cli.ExitUnfinished, "tokens of some names would fall, namely of names that are first locked when the programs use only the new backend")
	said.not("In this order")
	p.run("plan").want(cli.ExitDone, "if floor=")
	p.run("finalize", "x", "--fenced=false").want(cli.ExitDone, "tokens were given up")
	p.run("rollback", "--all").want(cli.ExitDone)
	p.run("untie").want(cli.ExitDone)
	p.to += "?" + regexp.MustCompile(`floor=\d+`).FindString(said.errors)
	floor := p.to[strings.Index(p.to, "floor="):]
	p.run("seal", "x").want(cli.ExitDone)
	p.run("finalize", "x").want(cli.ExitDone, "tokens rise for all other names", "only the URL of the new backend: memory://", "with "+floor)
}

// TestToolFindsTheWrongPair uses another new backend, or swaps the two.
func TestToolFindsTheWrongPair(t *testing.T) {
	p, other := inMemory(t), inMemory(t)
	drivertest.Release(t, drivertest.Acquire(t, p.program(migrate.PhaseNew, ""), drivertest.Request("x")))
	wrong := &two{t: t, from: p.from, to: other.to}
	swapped := &two{t: t, from: p.to, to: p.from}
	for _, c := range [][]string{{"plan"}, {"status", "x"}, {"finalize", "x"}, {"seal", "y"}, {"seal", "y", "--dry-run"}, {"rollback", "x"}, {"rollback", "x", "--dry-run"}} {
		wrong.run(c...).want(cli.ExitRefused, migrate.ErrOtherBackend.Error())
		swapped.run(c...).want(cli.ExitRefused, migrate.ErrWrongWay.Error())
	}
	p.run("untie").want(cli.ExitUnfinished, "1 name is sealed")
	wrong.run("plan").want(cli.ExitRefused)
	p.run("rollback", "x").want(cli.ExitDone)
	p.run("untie").want(cli.ExitDone, "no longer tied")
	wrong.run("plan").want(cli.ExitDone)
	swapped.run("plan").want(cli.ExitDone)
}

// TestTheWayBackTakesBackAllNames covers names that are in no list and moved
// only because they were locked.
func TestTheWayBackTakesBackAllNames(t *testing.T) {
	t.Parallel()
	for kind, from := range map[string]string{
		"memory": "memory://way-back", "redis": "redisson://" + testenv.Redis(t).Addr, "zookeeper": "zk://" + testenv.ZooKeeper(t).Addr + "/locks",
		"etcd": "etcd://" + testenv.Etcd(t).Addr + "/locks/", "flat": "etcd://" + testenv.Etcd(t).Addr + "/locks/?names=flat",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p := inMemory(t)
			p.from = from
			old := drivertest.Open(t, from)
			all := []string{"a", "b", "c/c", "d", "e e%"}
			d := p.program(migrate.PhaseNew, "&fenced=false")
			for _, name := range all {
				drivertest.Release(t, drivertest.Acquire(t, d, drivertest.Request(name)))
			}
			run := func(args ...string) result { t.Helper(); return p.run(append(args, "--fenced=false")...) }
			run("rollback", "a", "b").want(cli.ExitDone, "back: 2")
			run("untie").want(cli.ExitUnfinished, "3 names are sealed on the old backend")
			p.stdin = p.bare("ls", "--url", from).want(cli.ExitDone).out
			run("rollback", "--names", "-", "--dry-run").want(cli.ExitDone, "would be back: 3")
			run("rollback", "--all").want(cli.ExitDone, "back: 3;")
			run("rollback", "--all").want(cli.ExitDone, "no name is held or sealed")
			run("untie").want(cli.ExitDone)
			for _, name := range all {
				drivertest.Release(t, drivertest.Acquire(t, old, drivertest.NoWait(name)))
			}
		})
	}
}

// TestTheNextMigrationHasAHigherFloor compares the floor with the tokens of
// names that came back.
func TestTheNextMigrationHasAHigherFloor(t *testing.T) {
	p := inMemory(t).bareURLs()
	p.from = "redisson://" + testenv.Redis(t).Addr
	p.to += fmt.Sprintf("?floor=%d", uint64(1)<<51)
	drivertest.Release(t, drivertest.Acquire(t, p.program(migrate.PhaseNew, ""), drivertest.Request("x")))
	p.run("rollback", "--all").want(cli.ExitDone)
	p.run("untie").want(cli.ExitDone)
	p.run("untie").want(cli.ExitDone)
	last := drivertest.Token(drivertest.Acquire(t, drivertest.Open(t, p.from), drivertest.Request("x")))
	var plan planJSON
	if err := json.Unmarshal([]byte(p.bareURLs().run("plan", "--json").want(cli.ExitDone).out), &plan); err != nil || plan.Floor <= last {
		t.Errorf("got floor %d, %v, want more than the token %d", plan.Floor, err, last)
	}
}

// TestUntieWhereTokensCannotBeRaised leaves nothing sealed.
func TestUntieWhereTokensCannotBeRaised(t *testing.T) {
	p := inMemory(t)
	p.from = "etcd://" + testenv.Etcd(t).Addr + "/locks/"
	p.program(migrate.PhaseDual, "")
	p.run("untie").want(cli.ExitDone)
	p.run("plan").want(cli.ExitDone)
}

// TestToolFindsTheWrongNewBackendOfAGate gives one operator a different new
// backend.
func TestToolFindsTheWrongNewBackendOfAGate(t *testing.T) {
	p, other := inMemory(t), inMemory(t)
	if err := p.program(migrate.PhaseDual, "&gate=true&fenced=false").Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wrong := &two{t: t, from: p.from, to: other.to}
	for _, c := range []string{"plan", "finalize"} {
		wrong.run(c, "--gate", "--fenced=false").want(cli.ExitRefused, migrate.ErrOtherBackend.Error()).not("cut all clients off")
	}
	p.run("plan", "--gate", "--fenced=false").want(cli.ExitDone)
	wrong.run("untie", "--gate", "--fenced=false").want(cli.ExitDone, "no longer tied")
	wrong.run("finalize", "--gate", "--fenced=false").want(cli.ExitDone)
}

// TestSealLooksForProgramsThatWouldWaitInVain checks that seal leaves all names
// unchanged.
func TestSealLooksForProgramsThatWouldWaitInVain(t *testing.T) {
	p := inMemory(t)
	l := drivertest.Acquire(t, drivertest.Open(t, p.from), drivertest.Request("held"))
	p.stdin = "a\nheld\n"
	p.run("seal", "--all", "--names", "-").want(cli.ExitUnfinished, "behind: held: ", "--anyway").not("sealed: ")
	p.wantState("idle", "a")
	p.run("seal", "--all", "--names", "-", "--anyway").want(cli.ExitUnfinished, "sealed: 1;", "held: held")
	drivertest.Release(t, l)
	p.run("seal", "--all", "--names", "-").want(cli.ExitDone, "sealed: 1; sealed already: 1")
}

// TestStatusKnowsHoldsOfTheMigration kills a command, which leaves one half of
// its hold.
func TestStatusKnowsHoldsOfTheMigration(t *testing.T) {
	p := inMemory(t)
	r := drivertest.Request("x")
	r.Hold = p.program(migrate.PhaseDual, "").ID() + ":7"
	drivertest.Acquire(t, drivertest.Open(t, p.from), r)
	p.run("status", "x").want(cli.ExitDone, "1 held")
}

// TestJSONOfAllCommands checks that each command writes one object, whether it
// succeeds, finds that it is too early, or fails.
func TestJSONOfAllCommands(t *testing.T) {
	p := inMemory(t)
	l := drivertest.Acquire(t, drivertest.Open(t, p.from), drivertest.Request("held"))
	report := func(status int, args ...string) (got map[string]any) {
		t.Helper()
		r := p.run(append(args, "--json")...).want(status)
		if err := json.Unmarshal([]byte(r.out), &got); err != nil {
			t.Fatalf("%s: %v in\n%s", r.args, err, r.out)
		}
		if text, failed := got["error"].(string); failed != (status != cli.ExitDone) || failed && "dsync: "+text+"\n" != r.errors {
			t.Errorf("%s: got the error %q in the JSON, and %q on standard error", r.args, text, r.errors)
		}
		return got
	}
	all := [][]string{{"plan"}, {"status", "x"}, {"seal", "x"}, {"rollback", "x"}, {"finalize", "x"}, {"untie"}}
	for _, c := range all {
		if got := report(cli.ExitUsage, append(c, "--connect", "-1s")...); got["from"] != "" {
			t.Errorf("%v: got %v", c, got)
		}
	}
	wantNumbers := func(got map[string]any, want map[string]int) {
		t.Helper()
		for name, n := range want {
			if got[name] != float64(n) {
				t.Errorf("got %s=%v, want %d in %v", name, got[name], n, got)
			}
		}
	}
	wantNumbers(report(cli.ExitUnfinished, "status", "held", "x"), map[string]int{"held": 1, "idle": 1, "behind": 1})
	got := report(cli.ExitUnfinished, "seal", "held", "x")
	if wantNumbers(got, map[string]int{"done": 0, "not_tried": 2}); len(got["behind"].([]any)) != 1 {
		t.Errorf("got %v, want the name that is behind", got)
	}
	wantNumbers(report(cli.ExitUnfinished, "seal", "held", "x", "--anyway"), map[string]int{"done": 1, "already": 0, "not_tried": 0})
	drivertest.Release(t, l)
	report(cli.ExitUnfinished, "finalize", "held", "x")
	wantNumbers(report(cli.ExitDone, "seal", "held", "x"), map[string]int{"done": 1, "already": 1})
	got = report(cli.ExitDone, "finalize", "held", "x")
	if wantNumbers(got, map[string]int{"moved": 2}); len(got["steps"].([]any)) != 3 || got["floor"] == nil {
		t.Errorf("got %v, want the steps that remain", got)
	}
	report(cli.ExitUnfinished, "untie")
	wantNumbers(report(cli.ExitDone, "rollback", "held", "x", "y"), map[string]int{"done": 2, "already": 1})
	report(cli.ExitDone, "rollback", "--all")
	report(cli.ExitDone, "untie")
	p.from, p.to = "redisson://127.0.0.1:1", "redisson://127.0.0.1:2"
	for _, c := range all {
		if got := report(cli.ExitFailed, append(c, "--connect", "50ms")...); got["from"] != p.from {
			t.Errorf("%v: got %v", c, got)
		}
	}
	p.from, p.to = "mysql://127.0.0.1:1/db?table=a", "mysql://127.0.0.1:1/db?table=b" // two backends
	report(cli.ExitFailed, "plan", "--connect", "50ms")
}
