package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

var trials = flag.Int("trials", 0, "number of trials of TestNoTwoCommands on each backend; 0 means one trial of each fault, only on Redis")

const (
	trialTTL     = 3 * time.Second
	trialTTLMost = time.Minute
	packSize     = 5
	packAlive    = 50 * time.Millisecond // how long the second pack is observed alongside the rest of the first
	trialGuard   = 2 * time.Minute       // no expectation
)

// mishap is an event that hits the holder.
type mishap struct {
	name   string
	status int // of the holder
	happen func(*trial)

	// settle reports whether exclusion needs --settle.
	settle func(backend string) bool
}

func never(string) bool  { return false }
func always(string) bool { return true }

var mishaps = []mishap{
	{"frozen", cli.ExitLost, func(tr *trial) { tr.signal(syscall.SIGSTOP) }, never},
	{"cut off", cli.ExitLost, func(tr *trial) { tr.wire.Hold(wire.Both) }, never},
	{"forced", cli.ExitLost, func(tr *trial) {
		if err := tr.client.ForceUnlock(tr.t.Context(), tr.name); err != nil {
			tr.t.Errorf("force: %v", err)
		}
	}, always},
	// A PostgreSQL server frees the locks of a dead process immediately.
	{"killed", -1, func(tr *trial) { tr.signal(syscall.SIGKILL) }, func(backend string) bool { return backend == "pglock" }},
	{"guard killed", cli.ExitBroken, func(tr *trial) {
		guard, err := syscall.Getpgid(tr.leader("first"))
		if err == nil {
			err = syscall.Kill(guard, syscall.SIGKILL)
		}
		if err != nil {
			tr.t.Errorf("kill the guard: %v", err)
		}
	}, never},
	{"command killed", cli.ExitBySignal + int(syscall.SIGKILL), func(tr *trial) { // and its children are left
		if err := syscall.Kill(tr.leader("first"), syscall.SIGKILL); err != nil {
			tr.t.Errorf("kill the command: %v", err)
		}
	}, never},
}

// bed is a backend for trials.
type bed struct {
	name   string
	addrs  []string
	url    func(addrs []string) string
	client *dsync.Client
}

// trialBeds returns Redis, or all backends.
func trialBeds(t *testing.T, all bool) []*bed {
	join := func(format string) func([]string) string {
		return func(addrs []string) string { return fmt.Sprintf(format, strings.Join(addrs, ",")) }
	}
	var beds []*bed
	add := func(name, format string, addrs ...string) {
		b := &bed{name: name, addrs: addrs, url: join(format)}
		client, err := dsync.Open(t.Context(), b.url(addrs), &dsync.Options{TTL: trialTTL})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(func() { _ = client.Close(context.Background()) })
		b.client = client
		beds = append(beds, b)
	}
	add("redisson", "redisson://%s", testenv.Redis(t).Addr)
	if !all {
		return beds
	}
	add("redlock", "redlock://%s?durable=true", testenv.Redis(t).Addr, testenv.Redis(t).Addr, testenv.Redis(t).Addr)
	add("etcd", "etcd://%s/locks/", testenv.Etcd(t).Addr)
	add("zk", "zk://%s/locks", testenv.ZooKeeper(t).Addr)
	add("pglock", "pglock://postgres@%s/postgres?force_unlock=true", testenv.Postgres(t).Addr)
	return beds
}

// TestNoTwoCommands lets mishaps happen to a `dsync run` whose command has
// started processes that ignore TERM, while another `dsync run` waits for the
// lock. When the second `dsync run` starts its command, no process of the first
// command may be running.
//
// This is promised if the guard gets a processor once in the last tenth of the
// TTL, its reserve. A trial is therefore void if a process of the commands got
// no processor for a third of that time, or if a lock was lost before the
// mishap. A void trial is repeated with twice the TTL. No other time is
// promised.
func TestNoTwoCommands(t *testing.T) {
	t.Parallel()
	pack := filepath.Join(t.TempDir(), "pack")
	if out, err := exec.Command("go", "build", "-o", pack, "./testdata/pack").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	of := max(1, (*trials+len(mishaps)-1)/len(mishaps)) // trials of each mishap
	var all sync.WaitGroup
	for _, b := range trialBeds(t, *trials > 0) {
		free := make(chan struct{}, 3) // concurrent mishaps: too many make trials void
		for _, m := range mishaps {
			for _, kind := range b.kinds(m, *trials > 0) {
				all.Go(func() {
					free <- struct{}{}
					defer func() { <-free }()
					t.Run(b.name+"/"+m.name+kind.name, func(t *testing.T) { b.tryAll(t, m, kind, pack, of) })
				})
			}
		}
	}
	all.Wait()
}

// kind is the kind of lock that the two commands of a trial use.
type kind struct {
	name string
	args []string
}

// kinds returns the lock and, if the backend supports them, permits, one of
// which a third party holds. A short run tests permits with some mishaps only.
func (b *bed) kinds(m mishap, all bool) []kind {
	kinds := []kind{{}}
	if b.client.Info().Permits.Offered && (all || m.name == "frozen" || m.name == "killed") {
		kinds = append(kinds, kind{", permits", []string{"--permits", "2/3"}})
	}
	return kinds
}

// tryAll makes a number of trials, not counting void ones.
func (b *bed) tryAll(t *testing.T, m mishap, k kind, pack string, number int) {
	ttl, voids := trialTTL, 0
	for n := 0; n < number && !t.Failed(); {
		tr := &trial{t: t, bed: b, mishap: m, kind: k, pack: pack, ttl: ttl}
		if void := tr.run(); void == "" {
			n, ttl = n+1, trialTTL
		} else if t.Logf("void with a TTL of %v: %s", ttl, void); ttl > trialTTLMost/2 {
			t.Error("the machine is too busy for a TTL of that length")
		} else {
			voids, ttl = voids+1, ttl*2
		}
	}
	t.Logf("%d trials, and %d void trials", number, voids)
}

var trialNames atomic.Int64

// trial is one pair of `dsync run`.
type trial struct {
	t *testing.T
	*bed
	mishap mishap
	kind   kind
	pack   string
	ttl    time.Duration
	name   string
	dir    string
	wire   *wire.Wire
	first  *command
	wrong  []string // violations
}

const lostBefore = "a lock was lost before the mishap"

// run makes the trial. It returns the reason if the trial is void, or "".
func (tr *trial) run() (void string) {
	t := tr.t
	tr.name, tr.dir, tr.wire = fmt.Sprint("trial-", trialNames.Add(1)), t.TempDir(), new(wire.Wire)
	defer tr.wire.Close()
	var addrs []string
	for _, a := range tr.addrs {
		addr, err := tr.wire.Listen(a)
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, addr)
	}
	if tr.kind.args != nil {
		third, err := tr.client.Lock(t.Context(), tr.name, dsync.Permits(1, 3))
		if err != nil {
			t.Fatal(err)
		}
		defer third.Unlock(t.Context())
	}
	tr.first = tr.start("first", tr.url(addrs))
	defer tr.first.end()
	if !tr.await(tr.first, func() bool { return len(tr.files("first")) == packSize }) {
		return lostBefore
	}
	args := []string{}
	if tr.mishap.settle(tr.bed.name) {
		args = append(args, "--settle")
	}
	second := tr.start("second", tr.url(tr.addrs), args...)
	defer second.end()
	pause(t.Context(), rand.N(tr.ttl/3)) // so that the mishap hits at any time between two renewals
	if tr.first.hasEnded() {
		return lostBefore
	}
	tr.mishap.happen(tr)
	if !tr.await(second, func() bool { return tr.started("second") > 0 }) {
		return lostBefore
	}
	began := tr.started("second")
	if !tr.await(second, func() bool { last, _ := tr.times("second"); return last > began+packAlive }) {
		return lostBefore
	}
	tr.judge(began)
	second.end()
	testenv.Eventually(t, func() bool { return tr.othersThan("first") == "" }, "the guard of a dsync that was killed ends the command")
	if tr.mishap.name == "frozen" {
		tr.signal(syscall.SIGCONT)
	}
	if status := tr.first.wait(); status != tr.mishap.status {
		tr.not("the first dsync ended with %d, want %d\n%s", status, tr.mishap.status, tr.first.errors())
	}
	return tr.verdict()
}

// judge examines the first command after the second command has begun.
func (tr *trial) judge(began time.Duration) {
	if last, _ := tr.times("first"); last >= began {
		tr.not("a process of the first command ran %v after the start of the second command", last-began)
	}
	if saw, err := os.ReadFile(filepath.Join(tr.dir, "second.saw")); err != nil || len(saw) > 0 {
		tr.not("when it started, the second command saw %q from the first one (%v)", saw, err)
	}
	if left := tr.othersThan("second"); left != "" {
		tr.not("processes %v of the first command still exist", left)
	}
}

func (tr *trial) not(format string, args ...any) {
	tr.wrong = append(tr.wrong, fmt.Sprintf(format, args...))
}

// verdict fails the test for violations, unless the machine was too busy for
// the promise.
func (tr *trial) verdict() (void string) {
	_, gap1 := tr.times("first")
	_, gap2 := tr.times("second")
	gap, all := max(gap1, gap2), strings.Join(tr.wrong, "\n")
	switch {
	case all == "":
	case gap > tr.ttl/30:
		return fmt.Sprintf("a process had no processor for %v, and: %s", gap, all)
	default:
		tr.t.Errorf("%s\n(no process was without a processor for more than %v)", all, gap)
	}
	return ""
}

// command is a `dsync run`.
type command struct {
	*exec.Cmd
	t      *testing.T
	errors func() string
	ended  chan struct{}
}

func (tr *trial) start(label, url string, args ...string) *command {
	args = slices.Concat([]string{"run", "--ttl", tr.ttl.String(), "--connect", trialGuard.String(), tr.name}, tr.kind.args, args)
	cmd, _, errs := testenv.Program(tr.t, append(args, "--", tr.pack, tr.dir, label, "0")...)
	cmd.Env = append(cmd.Env, "DSYNC_URL"+"="+url)
	return startCommand(tr.t, cmd, errs)
}

func startCommand(t *testing.T, cmd *exec.Cmd, errs fmt.Stringer) *command {
	t.Helper()
	cmd.WaitDelay = drivertest.HangGuard
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &command{Cmd: cmd, t: t, ended: make(chan struct{})}
	c.errors = func() string { // its output, once it has ended
		select {
		case <-c.ended:
			return errs.String()
		default:
			return ""
		}
	}
	go func() { // ends when the test's context ends the process
		_ = cmd.Wait()
		close(c.ended)
	}()
	return c
}

// end kills dsync unless it has ended.
func (c *command) end() {
	_ = c.Process.Kill()
	<-c.ended
}

func (c *command) hasEnded() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// wait returns the status.
func (c *command) wait() int {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(trialGuard):
		c.t.Fatalf("%v does not end", c.Args)
	}
	return c.ProcessState.ExitCode()
}

func (tr *trial) signal(s syscall.Signal) {
	if err := tr.first.Process.Signal(s); err != nil {
		tr.t.Errorf("%v: %v", s, err)
	}
}

// await polls until the condition is true. It returns false if the command
// loses the lock first.
func (tr *trial) await(c *command, so func() bool) bool {
	tr.t.Helper()
	for end := time.Now().Add(trialGuard); !so(); pause(tr.t.Context(), 5*time.Millisecond) {
		if time.Now().After(end) {
			c.end()
			tr.t.Fatalf("%v: waited for %v\n%s", c.Args, trialGuard, c.errors())
		}
		select {
		case <-c.ended:
			if status := c.ProcessState.ExitCode(); status != cli.ExitLost {
				tr.t.Fatalf("%v has ended with %d: %s", c.Args, status, c.errors())
			}
			return false
		default:
		}
	}
	return true
}

// started returns the start time of a command, or 0.
func (tr *trial) started(label string) time.Duration {
	at, _ := tr.beginning(label)
	return at
}

// leader returns the first process of a command.
func (tr *trial) leader(label string) (pid int) {
	_, pid = tr.beginning(label)
	return pid
}

// beginning returns the output of a command's first process at its start.
func (tr *trial) beginning(label string) (at time.Duration, pid int) {
	text, err := os.ReadFile(filepath.Join(tr.dir, label+".start"))
	if err != nil {
		return 0, 0
	}
	if _, err := fmt.Sscan(string(text), (*int64)(&at), &pid); err != nil {
		tr.t.Fatal(err)
	}
	return at, pid
}

// files returns the files of the processes of a command.
func (tr *trial) files(label string) []string {
	files, err := filepath.Glob(filepath.Join(tr.dir, label+".pid.*"))
	if err != nil {
		tr.t.Fatal(err)
	}
	return files
}

// times returns when a process of a command last ran, and the longest time that
// one of them did not run.
func (tr *trial) times(label string) (last, gap time.Duration) {
	for _, file := range tr.files(label) {
		b, err := os.ReadFile(file)
		if err == nil && len(b) == 16 {
			last = max(last, time.Duration(binary.LittleEndian.Uint64(b)))
			gap = max(gap, time.Duration(binary.LittleEndian.Uint64(b[8:])))
		}
	}
	return last, gap
}

// othersThan returns the living processes of all other commands.
func (tr *trial) othersThan(label string) string {
	out, err := exec.Command(tr.pack, tr.dir, label, "look").CombinedOutput()
	if err != nil {
		tr.t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}
