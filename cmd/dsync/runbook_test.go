package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
	"github.com/go-dsync/dsync/drivers/migrate"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

var longFleet = flag.Bool("fleet", false, "run TestFleetOfSix on all pairs and with faults, which takes minutes")

const (
	runbookTTL  = 5 * time.Second // the TTL of the programs
	fleetSize   = 6               // one of them uses only the old backend
	fleetTries  = 60              // attempts of a command while backends are killed and the slot of a frozen process lasts
	frozenClerk = 2
	looksAtOne  = 5 // looks by a tool that must see a program each time

	closedName = cli.Reserved + "closed"
	targetName = cli.Reserved + "target"
)

// fleet is six programs that follow the runbook of docs/migration.md.
type fleet struct {
	*two
	old     *oldPlace
	now     *newPlace
	gated   bool
	faults  bool // each backend is killed in each step
	freezes bool // one program misses a restart, and runs again two phases later
	listed  string
	every   string            // a file with all names
	urls    map[string]string // of the programs, as plan prints them

	own      *history.History
	files    []string
	programs []*testenv.Process
	stranger *testenv.Process // it uses only the old backend
	frozen   *testenv.Process
	thawed   func()
}

var fleetNames = []string{"a", "b", "c", "d", "e"} // including the listed names a, b and c

// TestFleetOfSix follows the runbook from the plain URL of the old backend to
// phase new and goes back to the plain URL of the old backend. Then it follows
// the runbook again, to the plain URL of the new backend. After each command it
// compares the exit status with the state of the backends.
func TestFleetOfSix(t *testing.T) {
	for _, pair := range fleetPairs {
		if !*longFleet && !pair.short {
			continue
		}
		t.Run(pair.name, func(t *testing.T) {
			t.Parallel()
			s := &fleet{old: pair.from(t), now: pair.to(t), gated: pair.gated, programs: make([]*testenv.Process, fleetSize-1)}
			s.two = &two{t: t, ctx: t.Context(), from: s.old.as(moverUser), to: s.now.url}
			s.prepare()
			s.roundTrip()
			s.judge()
		})
	}
}

func (s *fleet) prepare() {
	s.listed, s.every = filepath.Join(s.t.TempDir(), "names.txt"), filepath.Join(s.t.TempDir(), "every.txt")
	err := errors.Join(os.WriteFile(s.listed, []byte(strings.Join(fleetNames[:3], "\n")), 0o600),
		os.WriteFile(s.every, []byte(strings.Join(fleetNames, "\n")), 0o600))
	if err == nil {
		s.own, err = history.Create(s.file("own"), "own")
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *fleet) roundTrip() {
	runbook := s.steps("Runbook")
	step := func(number int) int {
		return slices.IndexFunc(runbook, func(x step) bool { return strings.HasPrefix(x.text, fmt.Sprint(number, ". ")) })
	}
	plain := s.old.as(oldUser)
	before := s.idle(plain)
	s.restart(plain)
	s.leaveBehind()
	s.follow(runbook[:step(8)])
	s.faults = *longFleet
	if back := s.steps("The way back"); s.old.stays {
		s.follow(back[:2])
		s.freezes = false
		s.follow(runbook[step(6):])
	} else {
		s.follow(back)
		for _, name := range fleetNames {
			s.release(s.take(plain, name))
		}
		after := s.idle(plain)
		if s.old.tokens && after <= before {
			s.t.Errorf("the name that no program locked in the meantime: got token %d after %d on the way back", after, before)
		}
		before = after
		s.leaveBehind()
		s.to, s.freezes = s.now.url, *longFleet
		s.follow(runbook)
	}
	if after := s.idle(s.to); after <= before {
		s.t.Errorf("the name that no program locked in the meantime: got token %d after %d", after, before)
	}
	for _, p := range s.programs {
		s.end(p)
	}
}

// step is a paragraph of a runbook.
type step struct {
	text     string
	commands []string
}

// steps returns the steps in a section of docs/migration.md that concern this
// pair.
func (s *fleet) steps(section string) (steps []step) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "migration.md"))
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "\n## "+section+"\n")
	_, rest, ok2 := strings.Cut(rest, "```sh\n")
	block, _, ok3 := strings.Cut(rest, "```")
	if !ok || !ok2 || !ok3 {
		s.t.Fatalf("docs/migration.md has no %s", section)
	}
	other := ". gate:"
	if s.gated {
		other = ". seals:"
	}
	for _, paragraph := range strings.Split(strings.TrimSpace(block), "\n\n") {
		var x step
		for _, line := range strings.Split(paragraph, "\n") {
			if text, ok := strings.CutPrefix(line, "#"); ok {
				x.text += strings.TrimSpace(text) + " "
			} else {
				x.commands = append(x.commands, line)
			}
		}
		if !strings.Contains(x.text, other) {
			steps = append(steps, x)
		}
	}
	return steps
}

var phaseOf = regexp.MustCompile(`phase=(old|dual|new)`)

// follow performs steps.
func (s *fleet) follow(steps []step) {
	for _, x := range steps {
		s.t.Log(x.text)
		s.before(x)
		if s.faults && !strings.Contains(x.text, "cut") {
			s.trouble(func() { s.do(x) })
		} else {
			s.do(x)
		}
		s.after(x)
		if s.t.Failed() {
			s.t.Fatalf("after the step %q", x.text)
		}
	}
}

func (s *fleet) do(x step) {
	s.t.Helper()
	switch m := phaseOf.FindStringSubmatch(x.text); {
	case strings.Contains(x.text, "stop them all"), strings.Contains(x.text, "cut off all programs"):
		if s.stranger != nil {
			s.end(s.stranger)
			s.stranger = nil
		}
	case !strings.Contains(x.text, "restart all programs"):
	case strings.Contains(x.text, "only the URL of the new backend"):
		s.restart(s.urls["alone"])
	case strings.Contains(x.text, "the old URL"):
		s.restart(s.old.as(oldUser))
	case m != nil:
		s.restart(s.urls[m[1]])
	default:
		s.t.Errorf("which URL do the programs get in the step %q?", x.text)
	}
	for _, command := range x.commands {
		s.command(command)
	}
}

// gate returns the flags of commands.
func (s *fleet) gate() []string {
	if !s.gated {
		return nil
	}
	return []string{"--gate", "--fenced=false"}
}

// command runs a line of the runbook, and compares its exit status with the
// state of the backends.
func (s *fleet) command(text string) {
	s.t.Helper()
	if strings.HasPrefix(text, "export ") { // s.from and s.to are the values
		return
	}
	args := strings.Fields(strings.NewReplacer("$GATE", strings.Join(s.gate(), " "), "names.txt", s.listed, "10m", "1s").Replace(text))
	if args = args[2:]; args[0] == "rollback" && s.old.unlisted {
		args = strings.Fields(strings.Replace(strings.Join(args, " "), "--all", "--names "+s.every, 1))
	}
	status := cli.ExitDone
	if args[0] == "rollback" && s.old.stays || args[0] == "untie" && s.old.unlisted {
		status = cli.ExitRefused
	}
	for try := 1; ; try++ {
		if r := s.run(args...); r.status == status || try == fleetTries {
			r.want(status)
			break
		}
		pause(s.t.Context(), time.Second)
	}
	if args[0] == "plan" {
		var plan planJSON
		args = append(args, "--json", "--passwords")
		testenv.Eventually(s.t, func() bool { return json.Unmarshal([]byte(s.run(args...).out), &plan) == nil && plan.Possible }, "plan prints the URLs")
		s.urls, s.to = plan.URLs, plan.URLs["alone"]
	}
	names, want := []string(nil), 0
	switch sealed := args[0] == "seal" || args[0] == "finalize"; {
	case sealed && s.gated:
		names, want = []string{closedName}, 1
	case sealed:
		names, want = fleetNames[:3], 3
	case args[0] == "rollback" && s.old.stays:
		names, want = fleetNames, len(fleetNames)
	case args[0] == "rollback", args[0] == "untie":
		names = append([]string{closedName}, fleetNames...)
	}
	if args[0] == "untie" {
		names = append(names, targetName)
	}
	if got := s.sealed(names); got != want {
		s.t.Errorf("%v exits with %d, and %d of %q are sealed, want %d", args, status, got, names, want)
	}
}

// sealed queries the old backend for the number of sealed names.
func (s *fleet) sealed(names []string) (n int) {
	s.t.Helper()
	if len(names) == 0 {
		return 0
	}
	var sealer move.Sealer
	testenv.Eventually(s.t, func() bool { // it may be down at this moment
		d, _, err := driver.Open(s.t.Context(), s.from)
		if err == nil {
			drivertest.CloseLater(s.t, d)
			sealer = d.(move.Sealer)
		}
		return err == nil
	}, "the old backend can be opened")
	for _, name := range names {
		var sealed bool
		testenv.Eventually(s.t, func() (ok bool) {
			_, is, err := sealer.Sealed(s.t.Context(), name)
			sealed = is
			return err == nil
		}, "the old backend reports whether a name is sealed")
		if sealed {
			n++
		}
	}
	return n
}

func (s *fleet) before(x step) {
	s.t.Helper()
	command := strings.Join(x.commands, " ")
	switch {
	case strings.Contains(command, "migrate seal"):
		s.sees("names have not moved", "finalize", "--names", s.listed)
	case strings.Contains(command, "rollback") && !s.old.unlisted:
		s.sees("sealed on the old backend", "untie")
	case strings.Contains(x.text, "stop them all"):
		s.sees("only knows the old backend", "status", "--names", s.listed, "--for", "30s")
	}
	if s.freezes && (strings.Contains(command, "migrate seal") || s.gated && strings.Contains(x.text, "phase=dual")) {
		s.frozen = s.programs[frozenClerk]
		s.thawed = s.own.Fault("stop", "a clerk")
		s.frozen.Stop()
	}
}

func (s *fleet) after(x step) {
	s.t.Helper()
	switch {
	case strings.Contains(x.text, "phase=new") && s.frozen != nil:
		s.thaw()
	case strings.Contains(x.text, "phase=new") && !s.freezes: // all names move
		testenv.Eventually(s.t, func() bool { return s.gated || s.sealed(fleetNames) == len(fleetNames) }, "all names that are locked move")
	case strings.Contains(x.text, "closes phase old") && s.gated:
		_ = s.tooLate(s.urls["old"])
	case strings.Contains(x.text, "cut off all programs"):
		c, l := s.take(s.old.as(oldUser), "forgotten") // and kept
		s.old.cutOff(oldUser)
		pause(s.t.Context(), runbookTTL+time.Second)
		if l.Err() == nil {
			s.t.Error("a program that was cut off still has a lock after its TTL")
		}
		s.release(c, l)
		_ = s.tooLate(s.old.as(oldUser))
	case strings.Contains(x.text, "cut all clients off"):
		_ = s.tooLate(s.old.as(oldUser))
		if s.gated { // and no program is still in phase new
			if err := s.tooLate(s.urls["old"]); !errors.Is(err, migrate.ErrFinalized) {
				s.t.Errorf("a program in phase old at the very end: got %v, want ErrFinalized", err)
			}
		}
		s.old.cutOff(moverUser)
		_ = s.tooLate(s.urls["dual"])
	}
}

// thaw continues the frozen program, two phases or a seal behind the others,
// and then gives it the missed URL.
func (s *fleet) thaw() {
	s.t.Helper()
	p := s.frozen
	s.frozen = nil
	p.Cont()
	s.thawed()
	if s.gated { // it lost its slot, and wants to be in phase old again
		testenv.Eventually(s.t, func() bool { return s.run(append([]string{"status"}, s.gate()...)...).status == cli.ExitUnfinished }, "status shows the program that wants to be in phase old")
		for range looksAtOne {
			s.sees("wants old", "status")
			s.sees("phase old", "finalize")
		}
	}
	pause(s.t.Context(), 2*time.Second)
	s.programs[frozenClerk] = s.start(s.urls["new"])
	s.end(p)
}

// sees expects a command to end with status 3 and a text. A killed backend may
// not be back yet.
func (s *fleet) sees(text string, args ...string) {
	s.t.Helper()
	for try := 1; ; try++ {
		r := s.run(append(args, s.gate()...)...)
		if r.status != cli.ExitFailed || try == fleetTries {
			r.want(cli.ExitUnfinished, text)
			return
		}
		pause(s.t.Context(), time.Second)
	}
}

// trouble kills each backend once while f runs.
func (s *fleet) trouble(f func()) {
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

func (s *fleet) file(label string) string {
	path := filepath.Join(s.t.TempDir(), label)
	s.files = append(s.files, path)
	return path
}

func (s *fleet) start(raw string) *testenv.Process {
	s.t.Helper()
	return s.employ(clerk{URL: raw, Work: 5 * time.Millisecond})
}

// leaveBehind starts a program that uses only the old backend. Its holds last
// long enough for status to see them.
func (s *fleet) leaveBehind() {
	s.t.Helper()
	s.stranger = s.employ(clerk{URL: s.old.as(oldUser), Work: 50 * time.Millisecond, Speaks: s.old.speaks})
}

// foreignLabel is the prefix of the labels of clerks whose locks have no
// tokens.
const foreignLabel = "foreign-"

// employ starts a clerk.
func (s *fleet) employ(c clerk) *testenv.Process {
	s.t.Helper()
	c.Label, c.Names, c.Seed = fmt.Sprintf("clerk-%d", len(s.files)), fleetNames, uint64(len(s.files))
	if c.Speaks != "" {
		c.Label = foreignLabel + c.Label
	}
	c.History = s.file(c.Label)
	text, err := json.Marshal(c)
	if err != nil {
		s.t.Fatal(err)
	}
	p := testenv.Spawn(s.t, "clerk", clerkVariable+"="+string(text))
	if line := p.Line(); line != "ready" {
		s.t.Fatalf("%s said %q", c.Label, line)
	}
	return p
}

func (s *fleet) end(p *testenv.Process) {
	s.t.Helper()
	if err := p.Wait(); err != nil {
		s.t.Error(err)
	}
}

// restart gives all programs another URL, one after the other.
func (s *fleet) restart(raw string) {
	s.t.Helper()
	for i, p := range s.programs {
		if p != nil && p == s.frozen {
			continue
		}
		s.programs[i] = s.start(raw)
		if p != nil {
			s.end(p)
		}
		pause(s.t.Context(), 50*time.Millisecond)
	}
}

// tooLate starts a program with an old configuration. It returns why the
// program gets no lock.
func (s *fleet) tooLate(raw string) error {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 3*time.Second)
	defer cancel()
	c, err := dsync.Open(ctx, raw, &dsync.Options{TTL: runbookTTL})
	if err == nil {
		_, err = c.Lock(ctx, fleetNames[0])
		_ = c.Close(s.t.Context())
	}
	if err == nil {
		s.t.Error("a program with an old configuration got a lock at the very end")
	}
	return err
}

// idle locks the name that no program locks, and returns its token.
func (s *fleet) idle(raw string) uint64 {
	s.t.Helper()
	c, l := s.take(raw, "idle")
	defer s.release(c, l)
	return l.Token()
}

// take locks a name with a program of its own.
func (s *fleet) take(raw, name string) (*dsync.Client, *dsync.Lease) {
	s.t.Helper()
	c, err := dsync.Open(s.t.Context(), raw, &dsync.Options{TTL: runbookTTL})
	if err != nil {
		s.t.Fatal(err)
	}
	l, err := c.Lock(s.t.Context(), name, dsync.WaitAtMost(fleetPatience))
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	return c, l
}

func (s *fleet) release(c *dsync.Client, l *dsync.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), runbookTTL)
	defer cancel()
	_ = l.Unlock(ctx)
	_ = c.Close(ctx)
}

// judge reads the histories of all processes.
func (s *fleet) judge() {
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
	if least := 200; v.Granted < least {
		s.t.Errorf("fewer than %d grants", least)
	}
	v = history.Judge(s.fenced(events), history.Bounds{Fenced: true, MinClients: fleetSize - 1, MinGrants: 1, MaxUnknown: 0.5})
	s.t.Logf("%d granted with tokens", v.Granted)
	if err := v.Err(); err != nil {
		s.t.Error(err)
	}
}

// fenced omits the grants that may have no token, such as all grants of a gate.
// It also omits the faults, after which such grants are not allowed.
func (s *fleet) fenced(events []history.Event) []history.Event {
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
			if e.Token == 0 && (s.gated || !s.old.tokens || strings.HasPrefix(e.Proc, foreignLabel)) {
				without[op{e.Proc, e.Call}] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(events), func(e history.Event) bool { return without[op{e.Proc, e.Call}] })
}
