package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/drivers/migrate"
	"github.com/go-dsync/dsync/internal/testenv"
)

var longFleet = flag.Bool("fleet", false, "run TestFleetOfSix, which takes minutes")

const (
	fleetSize   = 6  // one of them knows the old backend alone
	fleetTries  = 60 // of a command whose backends are killed meanwhile, and that has to wait for the slot of a frozen process to end
	frozenClerk = 2
	looksAtOne  = 5 // of a tool that has to see somebody each time
)

// six is a fleet of processes under faults.
type six struct {
	*fleet
	old    *oldPlace
	now    *newPlace
	names  string // a file with those that are listed
	own    *history.History
	files  []string
	thawed func() // of the one that is frozen
	clerks map[*program]*testenv.Process
}

// TestFleetOfSix goes by a runbook from the plain URL of the old backend to that of the new one, with six processes under load: one of them
// knows the old backend alone, one is frozen through two steps, and one is started with the old configuration at the very end. Either
// backend is killed once in each step, and one name is locked by nobody meanwhile.
func TestFleetOfSix(t *testing.T) {
	if !*longFleet {
		t.Skip("left to make migration-long")
	}
	for _, pair := range fleetPairs {
		t.Run(pair.name, func(t *testing.T) {
			s := &six{old: pair.from(t), now: pair.to(t), clerks: map[*program]*testenv.Process{}}
			s.fleet = &fleet{two: &two{t: t, ctx: t.Context(), from: s.old.as(oldUser), to: s.now.url}, gated: pair.runbook == gateTitle, launch: s.spawn, tries: fleetTries,
				tokens: s.old.tokens, listed: []string{"a", "b", "c"}, all: []string{"a", "b", "c", "d", "e"}, programs: make([]*program, fleetSize-1)}
			s.follow(runbookLines(t, pair.runbook))
			s.judge()
		})
	}
}

func (s *six) file(label string) string {
	path := filepath.Join(s.t.TempDir(), label)
	s.files = append(s.files, path)
	return path
}

// spawn is fleet.launch.
func (s *six) spawn(raw string) *program {
	s.t.Helper()
	return s.employ(clerk{URL: raw, Work: 5 * time.Millisecond})
}

// employ starts a clerk.
func (s *six) employ(c clerk) *program {
	s.t.Helper()
	c.Label, c.Names, c.Seed = fmt.Sprintf("clerk-%d", len(s.files)), s.all, uint64(len(s.files))
	if c.Speaks != "" {
		c.Label = incumbentLabel
	}
	c.History = s.file(c.Label)
	text, err := json.Marshal(c)
	if err != nil {
		s.t.Fatal(err)
	}
	process := testenv.Spawn(s.t, "clerk", clerkVariable+"="+string(text))
	if line := process.Line(); line != "ready" {
		s.t.Fatalf("%s said %q", c.Label, line)
	}
	p := &program{done: make(chan struct{})}
	p.stop = func() {
		go func() { // ends with the process
			defer close(p.done)
			if err := process.Wait(); err != nil {
				s.t.Errorf("%s: %v", c.Label, err)
			}
		}()
	}
	s.clerks[p] = process
	return p
}

// incumbentLabel is that of a clerk whose locks have no tokens.
const incumbentLabel = "incumbent"

// trouble kills either backend once, while f goes on.
func (s *six) trouble(f func()) {
	var faults sync.WaitGroup
	faults.Go(func() {
		pause(s.t.Context(), 300*time.Millisecond)
		off := s.own.Fault("restart", "the old backend")
		s.old.Restart()
		off()
		pause(s.t.Context(), time.Second)
		off = s.own.Fault("restart", "the new backend")
		s.now.Restart()
		off()
	})
	f()
	faults.Wait()
	pause(s.t.Context(), time.Second)
}

// tooLate starts a program with an old configuration. It returns why that gets no lock.
func (s *six) tooLate(raw string) error {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 3*time.Second)
	defer cancel()
	c, err := dsync.Open(ctx, raw, &dsync.Options{TTL: runbookTTL})
	if err == nil {
		_, err = c.Lock(ctx, s.all[0])
		_ = c.Close(s.t.Context())
	}
	if err == nil {
		s.t.Errorf("a program with an old configuration got a lock at the very end")
	}
	return err
}

// idle locks the name that nobody locks meanwhile, and returns its token.
func (s *six) idle(raw string) uint64 {
	s.t.Helper()
	c, l := s.take(raw, "idle")
	defer c.Close(context.WithoutCancel(s.t.Context()))
	defer l.Unlock(s.t.Context())
	return l.Token()
}

// take locks a name by a program of its own.
func (s *six) take(raw, name string) (*dsync.Client, *dsync.Lease) {
	s.t.Helper()
	c, err := dsync.Open(s.t.Context(), raw, &dsync.Options{TTL: runbookTTL})
	if err != nil {
		s.t.Fatal(err)
	}
	l, err := c.Lock(s.t.Context(), name, dsync.WaitAtMost(fleetPatience))
	if err != nil {
		s.t.Fatal(err)
	}
	return c, l
}

func (s *six) follow(lines []string) {
	s.names = filepath.Join(s.t.TempDir(), "names.txt")
	err := os.WriteFile(s.names, []byte(strings.Join(s.listed, "\n")), 0o600)
	if err == nil {
		s.own, err = history.Create(s.file("own"), "own")
	}
	if err != nil {
		s.t.Fatal(err)
	}
	before := s.idle(s.from)
	s.restart(s.from)
	s.stranger = s.employ(clerk{URL: s.from, Work: 50 * time.Millisecond, Speaks: s.old.speaks}) // so long that status has something to see
	s.from = s.old.as(moverUser)                                                                 // that of programs from step 2 on
	said := ""
	for _, text := range lines {
		s.t.Log(text)
		s.beforeLine(text)
		step := func() { said = s.line(text, said, s.names) }
		if strings.HasPrefix(text, "dsync ") || strings.Contains(text, "restart all programs") {
			s.trouble(step)
		} else {
			step()
		}
		s.afterLine(text)
		if s.t.Failed() {
			s.t.Fatalf("after the line %q", text)
		}
	}
	if after := s.idle(s.to); after <= before {
		s.t.Errorf("the name that nobody locked meanwhile: got token %d after %d", after, before)
	}
	for _, p := range s.programs {
		s.end(p)
	}
}

func (s *six) beforeLine(text string) {
	s.t.Helper()
	freeze := strings.HasPrefix(text, "dsync migrate seal")
	if s.gated {
		freeze = strings.Contains(text, "phase=dual")
	}
	switch {
	case freeze:
		s.frozen = s.programs[frozenClerk]
		s.thawed = s.own.Fault("stop", "a clerk")
		s.clerks[s.frozen].Stop()
	case strings.Contains(text, "stop them"):
		s.sees("knows the old backend alone", "status", "--names", s.names, "--for", "30s")
	}
}

func (s *six) afterLine(text string) {
	s.t.Helper()
	switch {
	case strings.Contains(text, "phase=new"):
		s.thaw()
	case strings.Contains(text, "finalize") && s.gated:
		_ = s.tooLate(s.phase("old"))
	case strings.Contains(text, "cut off whoever"):
		c, l := s.take(s.old.as(oldUser), "forgotten") // and kept
		defer c.Close(context.WithoutCancel(s.t.Context()))
		s.old.cutOff(oldUser)
		pause(s.t.Context(), runbookTTL+time.Second)
		if l.Err() == nil {
			s.t.Error("a program that was cut off still has a lock after its TTL")
		}
		_ = s.tooLate(s.old.as(oldUser))
	case strings.Contains(text, "cut all clients off"):
		_ = s.tooLate(s.old.as(oldUser))
		if s.gated { // and nobody is in phase new any more
			if err := s.tooLate(s.phase("old")); !errors.Is(err, migrate.ErrFinalized) {
				s.t.Errorf("a program in phase old at the very end: got %v, want ErrFinalized", err)
			}
		}
		s.old.cutOff(moverUser)
		_ = s.tooLate(s.phase("dual"))
	}
}

// thaw lets the frozen process go on, two phases or a seal behind others, and then gives it the URL that it has missed.
func (s *six) thaw() {
	s.t.Helper()
	p := s.frozen
	s.frozen = nil
	s.clerks[p].Cont()
	s.thawed()
	if s.gated { // it lost its slot, and wants to be in phase old again
		status := []string{"status", "--gate", "--fenced=false"}
		testenv.Eventually(s.t, func() bool { return s.migrate(status...).status == cli.ExitUnfinished }, "status sees who wants to be in phase old")
		for range looksAtOne {
			s.sees("wants old", status...)
			s.sees("phase old", "finalize", "--gate", "--fenced=false")
		}
	}
	pause(s.t.Context(), 2*time.Second)
	s.programs[frozenClerk] = s.start(s.phase("new"), s.all)
	s.end(p)
}

func (s *six) migrate(args ...string) result {
	s.t.Helper()
	s.t.Setenv("DSYNC_FROM", s.from)
	s.t.Setenv("DSYNC_TO", s.to)
	return s.bare(append([]string{"migrate"}, args...)...)
}

// sees wants a command to end with 3 and a text. A backend that was killed may not be back yet.
func (s *six) sees(text string, args ...string) {
	s.t.Helper()
	for try := 1; ; try++ {
		r := s.migrate(args...)
		if r.status != cli.ExitFailed || try == fleetTries {
			r.want(cli.ExitUnfinished, text)
			return
		}
		pause(s.t.Context(), time.Second)
	}
}

// judge reads what all processes were told.
func (s *six) judge() {
	if err := s.own.Close(); err != nil {
		s.t.Fatal(err)
	}
	events, err := history.Read(s.files...)
	if err != nil {
		s.t.Fatal(err)
	}
	v := history.Judge(events, history.Bounds{MinClients: fleetSize, MinGrants: fleetSize, MaxUnknown: 0.5,
		Linger: runbookTTL + 2*time.Second, Wake: 4 * runbookTTL, Stuck: 4 * runbookTTL, Recover: 2 * runbookTTL})
	s.t.Logf("%d attempts, %d granted, %d lost, %d unknown, %d faults", v.Attempts, v.Granted, v.Lost, v.Unknown, v.Faults)
	if err := v.Err(); err != nil {
		s.t.Error(err)
	}
	if v.Granted < 1000 {
		s.t.Error(errors.New("fewer than 1000 grants"))
	}
	v = history.Judge(s.fenced(events), history.Bounds{Fenced: true, MinClients: fleetSize - 1, MinGrants: 1, MaxUnknown: 0.5})
	s.t.Logf("%d granted with tokens", v.Granted)
	if err := v.Err(); err != nil {
		s.t.Error(err)
	}
}

// fenced leaves out the grants that may be without a token, as all are that the procedure without tokens gives, and the faults, after which there
// may be no others.
func (s *six) fenced(events []history.Event) []history.Event {
	type op struct {
		process string
		call    uint64
	}
	without := map[op]bool{}
	for _, e := range events {
		switch e.Kind {
		case history.KindFaultOn, history.KindFaultOff:
			without[op{e.Proc, e.Call}] = true
		case history.KindGrant:
			if e.Token == 0 && (s.gated || !s.tokens || e.Proc == incumbentLabel) {
				without[op{e.Proc, e.Call}] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(events), func(e history.Event) bool { return without[op{e.Proc, e.Call}] })
}
