package testenv

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Long skips a test that `make test` leaves to `make test-long`, because other
// tests cover nearly the same in less time.
func Long(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("left to make test-long")
	}
}

// Briefly returns the first value in the short form of the tests, which `make
// test` runs, and otherwise the second.
func Briefly[T any](short, long T) T {
	if testing.Short() {
		return short
	}
	return long
}

// need returns the path of a server's binary. If it is not installed, the test
// fails if CI is set, and is skipped otherwise.
func need(tb testing.TB, binary, pkg string) string {
	tb.Helper()
	if path := provided(binary); path != "" {
		return path
	}
	path, err := exec.LookPath(binary)
	if err != nil {
		missing(tb, binary, pkg)
	}
	return path
}

// provided returns the path of a file in the directory that DSYNC_TEST_SERVERS
// names, or "". The servers in that directory replace the usual ones.
func provided(name string) string {
	dir := os.Getenv("DSYNC_TEST_SERVERS")
	if dir == "" {
		return ""
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

func missing(tb testing.TB, binary, pkg string) {
	tb.Helper()
	untested(tb, fmt.Sprintf("%s is not installed; `make test` installs it, or install the package %s", binary, pkg))
}

// untested fails the test if CI is set, and skips it otherwise.
func untested(tb testing.TB, why string) {
	tb.Helper()
	const text = "%s is UNTESTED: %s"
	if os.Getenv("CI") != "" {
		tb.Fatalf(text, tb.Name(), why)
	}
	tb.Skipf(text, tb.Name(), why)
}

// Promtool returns the path of the tool that tests rules of Prometheus.
func Promtool(tb testing.TB) string {
	tb.Helper()
	return need(tb, "promtool", "prometheus")
}

// Apart reserves the last CPU of the machine for servers and the other CPUs for
// this process until tb ends. It is for benchmarks of throughput, which would
// otherwise measure the scheduler. With one CPU or without taskset, it does
// nothing.
func Apart(tb testing.TB, servers ...int) {
	tb.Helper()
	cpus := runtime.NumCPU()
	if _, err := exec.LookPath("taskset"); err != nil || cpus < 2 {
		tb.Log("the servers and this process share the CPUs: figures vary more")
		return
	}
	last := strconv.Itoa(cpus - 1)
	ServersApart(tb, servers...)
	pin(tb, "0-"+strconv.Itoa(cpus-2), os.Getpid())
	procs := runtime.GOMAXPROCS(cpus - 1)
	tb.Cleanup(func() {
		runtime.GOMAXPROCS(procs)
		pin(tb, "0-"+last, os.Getpid())
	})
}

// ServersApart moves servers that were started after [Apart] to their CPU, with
// their child processes.
func ServersApart(tb testing.TB, servers ...int) {
	tb.Helper()
	cpus := runtime.NumCPU()
	if _, err := exec.LookPath("taskset"); err != nil || cpus < 2 {
		return
	}
	for _, pid := range servers {
		pin(tb, strconv.Itoa(cpus-1), pid)
		for _, child := range childPids(pid) {
			_ = affinity(strconv.Itoa(cpus-1), child) // the process may have ended
		}
	}
}

// pin binds all threads of a process to CPUs.
func pin(tb testing.TB, cpus string, pid int) {
	tb.Helper()
	if err := affinity(cpus, pid); err != nil {
		tb.Fatal(err)
	}
}

func affinity(cpus string, pid int) error {
	out, err := exec.Command("taskset", "-a", "-p", "-c", cpus, strconv.Itoa(pid)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("taskset: %w: %s", err, out)
	}
	return nil
}

// Eventually waits until cond returns true. If this takes so long that only a
// hang explains it, Eventually fails the test with what as the message. Use it
// for server state whose changes are not reported.
func Eventually(tb testing.TB, cond func() bool, what string) {
	tb.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(hangGuard); !cond(); <-tick.C {
		if time.Now().After(end) {
			tb.Fatalf("not within %v: %s", hangGuard, what)
		}
	}
}

// OnClose wraps conn so that each Close first calls closed.
func OnClose(conn net.Conn, closed func()) net.Conn { return &closing{conn, closed} }

type closing struct {
	net.Conn
	closed func()
}

func (c *closing) Close() error {
	c.closed()
	return c.Conn.Close()
}

// Counter is a number in a file that processes increment under a lock. Reading
// and writing it is not atomic, so the result is too small if two processes
// ever hold the lock at the same time.
type Counter struct {
	tb   testing.TB
	file string
	all  []*Process
	want int
}

// NewCounter returns a Counter of 0.
func NewCounter(tb testing.TB) *Counter {
	tb.Helper()
	c := &Counter{tb: tb, file: filepath.Join(tb.TempDir(), "counter")}
	if err := os.WriteFile(c.file, []byte("0"), 0o600); err != nil {
		tb.Fatal(err)
	}
	return c
}

const (
	counterFile  = "DSYNC_TEST_COUNTER_FILE"
	counterHolds = "DSYNC_TEST_COUNTER_HOLDS"
	counterEach  = "DSYNC_TEST_COUNTER_EACH"
)

// Spawn adds processes whose role calls [Count]. Each process acquires the lock
// holds times. During each hold it makes the number of increments given by
// each. In the short form of the tests, half of the processes acquire the lock
// a fifth as often.
func (c *Counter) Spawn(processes int, role string, holds, each int, env ...string) {
	c.tb.Helper()
	processes, holds = Briefly((processes+1)/2, processes), Briefly(holds/5, holds)
	env = append(env, counterFile+"="+c.file, fmt.Sprint(counterHolds, "=", holds), fmt.Sprint(counterEach, "=", each))
	for range processes {
		c.all = append(c.all, Spawn(c.tb, role, env...))
		c.want += holds * each
	}
}

// Run starts all processes at the same time, waits for them, and fails the test
// unless the file contains every increment.
func (c *Counter) Run() {
	c.tb.Helper()
	for _, p := range c.all {
		if got := p.Line(); got != "ready" {
			c.tb.Fatalf("a process of the role %q printed %q, want ready", p.role, got)
		}
	}
	for _, p := range c.all {
		p.Send("go")
	}
	for _, p := range c.all {
		for range p.Lines { // until the process ends, however long that takes on this machine
		}
		if err := p.Wait(); err != nil {
			c.tb.Errorf("a process of the role %q: %v", p.role, err)
		}
	}
	got, err := readNumber(c.file)
	if err != nil {
		c.tb.Fatal(err)
	}
	if got != c.want {
		c.tb.Errorf("counted %d, want %d", got, c.want)
	}
}

// Count is the work of a process of a [Counter]. The function lock acquires the
// lock, and its result releases it.
func Count(lock func() (unlock func() error, err error)) {
	if err := count(lock); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func count(lock func() (unlock func() error, err error)) error {
	file := os.Getenv(counterFile)
	holds, err := strconv.Atoi(os.Getenv(counterHolds))
	if err != nil {
		return err
	}
	each, err := strconv.Atoi(os.Getenv(counterEach))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	for range holds {
		unlock, err := lock()
		if err != nil {
			return err
		}
		for range each {
			if err := addOne(file); err != nil {
				return err
			}
		}
		if err := unlock(); err != nil {
			return err
		}
	}
	return nil
}

func addOne(file string) error {
	n, err := readNumber(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, strconv.AppendInt(nil, int64(n)+1, 10), 0o600)
}

func readNumber(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}

// leakGuard bounds the wait for goroutines that are about to end. It does not
// predict how long they take.
const leakGuard = 10 * time.Second

// NoLeaks is the second half of a TestMain. It runs the tests and fails if a
// goroutine is left, except goroutines that run one of the functions in except.
// The tests may get servers that earlier tests have left without data.
// Functions are given with their packages: "net/http.(*Server).Serve".
func NoLeaks(m *testing.M, except ...string) {
	code := spares.use(m.Run)
	if left := awaitGoroutines(except, leakGuard); code == 0 && len(left) > 0 {
		fmt.Fprintf(os.Stderr, "%d goroutines stay behind:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
		code = 1
	}
	os.Exit(code)
}

// awaitGoroutines returns the stacks of goroutines that have not ended in time.
// It polls because the runtime does not report the end of a goroutine.
func awaitGoroutines(except []string, atMost time.Duration) (left []string) {
	for deadline, pause := time.Now().Add(atMost), time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if left = goroutines(except); len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		time.Sleep(pause)
	}
}

// goroutines returns the stacks of all goroutines except the calling one, the
// goroutine of package os/signal, which never ends, and goroutines that run a
// function of except.
func goroutines(except []string) (stacks []string) {
	all := make([]byte, 1<<20)
	for n := 0; ; all = make([]byte, 2*len(all)) {
		if n = runtime.Stack(all, true); n < len(all) {
			all = all[:n]
			break
		}
	}
	for _, stack := range strings.Split(string(all), "\n\n")[1:] { // the first is the calling one
		if !runs(stack, except) && !runs(stack, []string{"os/signal.loop"}) {
			stacks = append(stacks, strings.TrimSpace(stack))
		}
	}
	return stacks
}

// runs reports whether a goroutine is inside one of the functions. In a stack,
// each function starts a line and is followed by its arguments.
func runs(stack string, functions []string) bool {
	for _, f := range functions {
		if strings.Contains(stack, "\n"+f+"(") {
			return true
		}
	}
	return false
}

// PasswordMark is in every password of the tests and nowhere else. It needs no
// escaping. `make test` fails if the output of the tests contains it
// (.ci/test).
const PasswordMark = "never-shown-"

// Password returns a new password. Append special characters if a test needs
// them.
func Password() string { return PasswordMark + rand.Text()[:8] }
