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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

var trials = flag.Int("trials", 1, "how many trials TestNoTwoCommands makes of each fault on each backend")

const (
	trialTTL   = 3 * time.Second
	packSize   = 5
	maxVoid    = 3
	packAlive  = 50 * time.Millisecond // how long the second pack is watched beside what is left of the first one
	trialGuard = time.Minute
)

// mishap is what happens to the holder.
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
	{"frozen", exitLost, func(tr *trial) { tr.signal(syscall.SIGSTOP) }, never},
	{"cut off", exitLost, func(tr *trial) { tr.wire.Hold(wire.Both) }, never},
	{"forced", exitLost, func(tr *trial) {
		if err := tr.client.ForceUnlock(tr.t.Context(), tr.name); err != nil {
			tr.t.Errorf("force: %v", err)
		}
	}, always},
	// The server of PostgreSQL frees the locks of a process that is gone at once.
	{"killed", -1, func(tr *trial) { tr.signal(syscall.SIGKILL) }, func(backend string) bool { return backend == "pglock" }},
}

// bed is a backend for trials.
type bed struct {
	name   string
	addrs  []string
	url    func(addrs []string) string
	client *dsync.Client
}

func trialBeds(t *testing.T) []*bed {
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
	add("redlock", "redlock://%s?durable=true", testenv.Redis(t).Addr, testenv.Redis(t).Addr, testenv.Redis(t).Addr)
	add("etcd", "etcd://%s/locks/", testenv.Etcd(t).Addr)
	add("zk", "zk://%s/locks", testenv.ZooKeeper(t).Addr)
	add("pglock", "pglock://postgres@%s/postgres?force_unlock=true", testenv.Postgres(t).Addr)
	return beds
}

// TestNoTwoCommands lets something happen to a `dsync run` whose command has started others that ignore TERM, while another `dsync run` waits
// for the lock: when that starts its command, nobody of the first one runs.
func TestNoTwoCommands(t *testing.T) {
	pack := filepath.Join(t.TempDir(), "pack")
	if out, err := exec.Command("go", "build", "-o", pack, "./testdata/pack").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var all sync.WaitGroup
	for _, b := range trialBeds(t) {
		free := make(chan struct{}, 2) // as many faults at a time: a machine that is too busy to renew locks is another trial
		for _, f := range mishaps {
			all.Go(func() {
				free <- struct{}{}
				defer func() { <-free }()
				t.Run(b.name+"/"+f.name, func(t *testing.T) {
					for n, void := 0, 0; n < *trials && !t.Failed(); {
						tr := &trial{t: t, bed: b, mishap: f, pack: pack}
						if tr.run() {
							n++
						} else if void++; void > maxVoid+*trials/5 {
							t.Errorf("%d trials were void, since the lock was lost before the fault", void)
						}
					}
				})
			})
		}
	}
	all.Wait()
}

var trialNames atomic.Int64

// trial is one pair of `dsync run`.
type trial struct {
	t *testing.T
	*bed
	mishap mishap
	pack   string
	name   string
	dir    string
	wire   *wire.Wire
	first  *command
}

// run makes the trial. False means that a lock was lost on the way, which says nothing, and that all is over.
func (tr *trial) run() bool {
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
	tr.first = tr.start("first", tr.url(addrs))
	defer tr.first.end()
	if !tr.await(tr.first, func() bool { return len(tr.files("first")) == packSize }) {
		return false
	}
	args := []string{}
	if tr.mishap.settle(tr.bed.name) {
		args = append(args, "--settle")
	}
	second := tr.start("second", tr.url(tr.addrs), args...)
	defer second.end()
	pause(t.Context(), rand.N(trialTTL/3)) // so that the fault comes at any time between two renewals
	if tr.first.hasEnded() {
		return false
	}
	tr.mishap.happen(tr)
	if !tr.await(second, func() bool { return tr.started("second") > 0 }) {
		return false
	}
	began := tr.started("second")
	if !tr.await(second, func() bool { return tr.lastOf("second") > began+packAlive }) {
		return false
	}
	tr.judge(began)
	second.end()
	testenv.Eventually(t, func() bool { return len(tr.running("second")) == 0 }, "the guard of a dsync that was killed ends the command")
	if tr.mishap.name == "frozen" {
		tr.signal(syscall.SIGCONT)
	}
	if status := tr.first.wait(); status != tr.mishap.status {
		t.Errorf("the first dsync ended with %d, want %d\n%s", status, tr.mishap.status, tr.first.errors())
	}
	return true
}

// judge looks at the first command, after the second one has begun.
func (tr *trial) judge(began time.Duration) {
	if last := tr.lastOf("first"); last >= began {
		tr.t.Errorf("a process of the first command ran %v after the start of the second one", last-began)
	}
	if saw, err := os.ReadFile(filepath.Join(tr.dir, "second.saw")); err != nil || len(saw) > 0 {
		tr.t.Errorf("at its start the second command saw %q of the first one (%v)", saw, err)
	}
	if left := tr.running("first"); len(left) > 0 {
		tr.t.Errorf("processes %v of the first command are left", left)
	}
}

// command is a `dsync run`.
type command struct {
	*exec.Cmd
	t      *testing.T
	errors func() string
	ended  chan struct{}
}

func (tr *trial) start(label, url string, args ...string) *command {
	args = append([]string{"run", "--ttl", trialTTL.String(), "--connect", trialGuard.String(), tr.name}, args...)
	cmd, _, errs := testenv.Program(tr.t, append(args, "--", tr.pack, tr.dir, label, "0")...)
	cmd.Env = append(cmd.Env, urlVariable+"="+url)
	return startCommand(tr.t, cmd, errs)
}

func startCommand(t *testing.T, cmd *exec.Cmd, errs fmt.Stringer) *command {
	t.Helper()
	cmd.WaitDelay = drivertest.HangGuard
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &command{Cmd: cmd, t: t, ended: make(chan struct{})}
	c.errors = func() string { // what it said, once it has ended
		select {
		case <-c.ended:
			return errs.String()
		default:
			return ""
		}
	}
	go func() { // ends with the process, which the test's context ends
		_ = cmd.Wait()
		close(c.ended)
	}()
	return c
}

// end kills dsync, unless it has ended.
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

// await looks until it is so. False means that the command has lost the lock before.
func (tr *trial) await(c *command, so func() bool) bool {
	tr.t.Helper()
	for end := time.Now().Add(trialGuard); !so(); pause(tr.t.Context(), 5*time.Millisecond) {
		if time.Now().After(end) {
			c.end()
			tr.t.Fatalf("%v: waited for %v\n%s", c.Args, trialGuard, c.errors())
		}
		select {
		case <-c.ended:
			if status := c.ProcessState.ExitCode(); status != exitLost {
				tr.t.Fatalf("%v has ended with %d: %s", c.Args, status, c.errors())
			}
			return false
		default:
		}
	}
	return true
}

// started returns when a command has started, or 0.
func (tr *trial) started(label string) time.Duration {
	text, err := os.ReadFile(filepath.Join(tr.dir, label+".start"))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		tr.t.Fatal(err)
	}
	return time.Duration(n)
}

// files returns the files of the processes of a command.
func (tr *trial) files(label string) []string {
	files, err := filepath.Glob(filepath.Join(tr.dir, label+".pid.*"))
	if err != nil {
		tr.t.Fatal(err)
	}
	return files
}

// lastOf returns when one of the processes of a command last ran.
func (tr *trial) lastOf(label string) (last time.Duration) {
	for _, file := range tr.files(label) {
		b, err := os.ReadFile(file)
		if err == nil && len(b) == 8 {
			last = max(last, time.Duration(binary.LittleEndian.Uint64(b)))
		}
	}
	return last
}

// running returns those of them that have not ended.
func (tr *trial) running(label string) (pids []string) {
	for _, file := range tr.files(label) {
		_, pid, _ := strings.Cut(filepath.Base(file), ".pid.")
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if _, rest, _ := strings.Cut(string(stat), "(pack) "); err == nil && rest != "" && rest[0] != 'Z' && rest[0] != 'X' {
			pids = append(pids, pid)
		}
	}
	return pids
}
