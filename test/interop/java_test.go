package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
	"github.com/go-dsync/dsync/test/interop/agent"
)

// commandVariable passes the command line of the Java program to the process
// that becomes it.
const commandVariable = "DSYNC_INTEROP_COMMAND"

// separator separates the words of a command line.
const separator = "\x1f"

// javaRole turns a process of testenv.Spawn, which ends with the test, into the
// Java program.
func javaRole() {
	command := strings.Split(os.Getenv(commandVariable), separator)
	err := syscall.Exec(command[0], command, os.Environ())
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}

// builds holds the Java programs by version of Redisson. Only one process of
// Maven uses its repository at a time, and no test waits for the build of
// another version.
var builds = struct {
	maven     sync.Mutex
	mu        sync.Mutex
	byVersion map[string]func() ([]string, error)
}{byVersion: make(map[string]func() ([]string, error))}

// javaCommand builds the Java program once. Without Java the test is skipped,
// or fails if CI is set.
func javaCommand(tb testing.TB, version string) []string {
	tb.Helper()
	command, err := buildOf(version)()
	if errors.Is(err, agent.ErrNoJava) && os.Getenv("CI") == "" {
		tb.Skip(err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return command
}

func buildOf(version string) func() ([]string, error) {
	builds.mu.Lock()
	defer builds.mu.Unlock()
	if builds.byVersion[version] == nil {
		builds.byVersion[version] = sync.OnceValues(func() ([]string, error) {
			builds.maven.Lock()
			defer builds.maven.Unlock()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
			defer cancel()
			return agent.Command(ctx, version)
		})
	}
	return builds.byVersion[version]
}

// jvm is a Java process with Redisson.
type jvm struct {
	*testenv.Process

	mu      sync.Mutex
	calls   int
	clients int
	pending map[string]*call
	ended   bool
}

// call is a command that a Java process executes.
type call struct {
	what string
	done chan struct{}
	text string
	err  error // the Java exception, or an error that the process has ended
	java *jvm
}

func startJava(tb testing.TB, version string) *jvm {
	tb.Helper()
	command := javaCommand(tb, version)
	j := &jvm{pending: make(map[string]*call)}
	j.start(tb, testenv.Spawn(tb, "java", commandVariable+"="+strings.Join(command, separator)))
	return j
}

// start begins to read the output of a process that is ready to execute
// commands.
func (j *jvm) start(tb testing.TB, p *testenv.Process) {
	tb.Helper()
	j.Process = p
	if got := j.Line(); got != "ready" {
		tb.Fatalf("the process began with %q", got)
	}
	go j.read() // ends when the process ends
}

func (j *jvm) read() {
	for line := range j.Lines {
		fields := strings.SplitN(line, "\t", 3)
		if len(fields) != 3 {
			continue
		}
		j.mu.Lock()
		c := j.pending[fields[0]]
		delete(j.pending, fields[0])
		j.mu.Unlock()
		if c == nil {
			continue
		}
		c.text = fields[2]
		if fields[1] != "ok" {
			c.err = errors.New(c.text)
		}
		close(c.done)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = true
	for _, c := range j.pending {
		c.err = errors.New("the Java process has ended")
		close(c.done)
	}
	j.pending = nil
}

// kill kills the process. Pending and later calls fail.
func (j *jvm) kill() {
	j.mu.Lock()
	j.ended = true // nothing is sent from now on
	j.mu.Unlock()
	j.Kill()
}

func (j *jvm) hasEnded() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.ended
}

func (j *jvm) call(client, thread, command string, args ...string) *call {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calls++
	number := strconv.Itoa(j.calls)
	fields := append([]string{number, client, thread, command}, args...)
	c := &call{what: strings.Join(fields[1:], " "), done: make(chan struct{}), java: j}
	if j.ended {
		c.err = errors.New("the Java process has ended")
		close(c.done)
		return c
	}
	j.pending[number] = c
	j.Send(strings.Join(fields, "\t"))
	return c
}

// redisson is a RedissonClient.
type redisson struct {
	java *jvm
	name string
}

// open creates a client. Mode is single, cluster, or replicated with the master
// first.
func (j *jvm) open(tb testing.TB, mode string, addrs []string, watchdog time.Duration) *redisson {
	tb.Helper()
	j.mu.Lock()
	j.clients++
	c := &redisson{j, "client" + strconv.Itoa(j.clients)}
	j.mu.Unlock()
	urls := make([]string, len(addrs))
	for i, addr := range addrs {
		urls[i] = "redis://" + addr
	}
	j.call(c.name, "main", "open", mode, strings.Join(urls, ","), strconv.FormatInt(watchdog.Milliseconds(), 10)).ok(tb)
	return c
}

// thread is a Java thread with the lock that it uses.
type thread struct {
	client     *redisson
	name       string
	kind, lock string
}

// thread returns a thread, the same thread for the same name. Kind is plain,
// fair, fenced, read, write, latch or permits.
func (c *redisson) thread(name, kind, lock string) *thread { return &thread{c, name, kind, lock} }

// begin makes the thread execute a command after its unfinished commands.
func (t *thread) begin(command string, args ...string) *call {
	return t.client.java.call(t.client.name, t.name, command, append([]string{t.kind, t.lock}, args...)...)
}

func (t *thread) do(tb testing.TB, command string, args ...string) string {
	tb.Helper()
	return t.begin(command, args...).ok(tb)
}

// acquire begins lock(), or lock(lease) if that is not 0.
func (t *thread) acquire(lease time.Duration) *call {
	if lease == 0 {
		return t.begin("lock", "-1")
	}
	return t.begin("lock", strconv.FormatInt(lease.Milliseconds(), 10))
}

// interrupt interrupts the current command of the thread.
func (t *thread) interrupt(tb testing.TB) {
	tb.Helper()
	t.client.java.call(t.client.name, t.name, "interrupt").ok(tb)
}

// owner returns the field by which Redisson identifies the thread.
func (t *thread) owner(tb testing.TB) string {
	tb.Helper()
	return t.client.java.call(t.client.name, t.name, "owner").ok(tb)
}

// wait waits until the call has ended.
func (c *call) wait(tb testing.TB) {
	tb.Helper()
	select {
	case <-c.done:
	case <-time.After(hangGuard):
		tb.Fatalf("java %s: no answer.\n%s", c.what, c.java.stacks())
	}
}

// stacks returns the stacks of the threads of the process.
func (j *jvm) stacks() string {
	out, err := exec.Command("jstack", strconv.Itoa(j.Pid())).CombinedOutput()
	if err != nil {
		return err.Error()
	}
	return string(out)
}

func (c *call) ok(tb testing.TB) string {
	tb.Helper()
	if c.wait(tb); c.err != nil {
		tb.Fatalf("java %s: %v", c.what, c.err)
	}
	return c.text
}

func (c *call) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// refused checks that the call ended with an IllegalMonitorStateException.
func (c *call) refused(tb testing.TB) {
	tb.Helper()
	if c.wait(tb); c.err == nil || !strings.HasPrefix(c.err.Error(), "IllegalMonitorStateException") {
		tb.Errorf("java %s: got %v, want an IllegalMonitorStateException", c.what, c.err)
	}
}

func (c *call) equals(tb testing.TB, want string) {
	tb.Helper()
	if got := c.ok(tb); got != want {
		tb.Errorf("java %s: got %s, want %s", c.what, got, want)
	}
}
