package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/internal/testenv"
)

// inProcess is a backend that `dsync run` accepts, for tests with a lock that
// no other client wants.
const inProcess = "process://"

func init() {
	driver.Register("process", func(context.Context, *driver.Config) (driver.Driver, error) { return memory.New(nil), nil })
}

// dsyncRun runs `dsync run` until it ends.
func dsyncRun(t *testing.T, args ...string) ended {
	t.Helper()
	var r ended
	r.t, r.args = t, strings.Join(args, " ")
	r.status, r.out, r.errors = testenv.Execute(t, append([]string{"run"}, args...)...)
	return r
}

// ended is a `dsync run` that has ended.
type ended struct{ result }

// is is like result.want, but accepts a command without output.
func (r ended) is(status int, texts ...string) {
	r.t.Helper()
	if r.status != status {
		r.t.Errorf("%s: got status %d, want %d\n%s%s", r.args, r.status, status, r.out, r.errors)
	}
	for _, text := range texts {
		if !strings.Contains(r.out+r.errors, text) {
			r.t.Errorf("%s: want %q in\n%s%s", r.args, text, r.out, r.errors)
		}
	}
}

func TestRunEndsAsItsCommand(t *testing.T) {
	t.Parallel()
	sh := func(script string) ended { return dsyncRun(t, "--url", inProcess, "x", "--", "sh", "-c", script) }
	sh("exit 0").is(cli.ExitDone)
	sh("exit 3").is(3)
	sh("kill -KILL $$").is(cli.ExitBySignal + 9)
	dsyncRun(t, "--url", inProcess, "x", "--", "no-such-command").is(cli.ExitNotFound, "not found")
	dsyncRun(t, "--url", inProcess, "x", "--", "/etc/passwd").is(cli.ExitNotExecutable, "permission denied")
	dsyncRun(t, "--url", inProcess, "x", "--", notExecutable(t)).is(cli.ExitNotExecutable, "exec format error")
}

// notExecutable returns a file that looks like a command.
func notExecutable(t *testing.T) string {
	t.Helper()
	file := t.TempDir() + "/odd"
	if err := os.WriteFile(file, []byte("neither a script nor a binary"), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestRunRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	const secret = testenv.PasswordMark
	file := t.TempDir() + "/url"
	if err := os.WriteFile(file, []byte("redisson://user:"+secret+"@127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	defer all.Wait()
	for _, test := range []struct {
		args   string
		status int
		want   string
	}{
		{"x", cli.ExitMisused, "the command is missing"},
		{"-- true", cli.ExitMisused, "exactly one name"},
		{"x y -- true", cli.ExitMisused, "exactly one name"},
		{"x -- true", cli.ExitMisused, "$DSYNC_URL, --url-file or --url"},
		{"--url " + inProcess + " --url-file " + file + " x -- true", cli.ExitMisused, "give one"},
		{"--url-file /does/not/exist x -- true", cli.ExitMisused, "/does/not/exist"},
		{"--url-file " + file + " --connect 10ms x -- true", cli.ExitOutOfReach, "127.0.0.1:1"},
		{"--url redisson://user:" + secret + "@127.0.0.1:1 x -- true", cli.ExitMisused, "--url has a password"},
		{"--wait redisson://user:" + secret + "@127.0.0.1:1 x -- true", cli.ExitMisused, "takes no URL"},
		{"--url memory:// x -- true", cli.ExitMisused, "excludes no other process"},
		{"--url memory://named?ttl=6s x -- true", cli.ExitMisused, "excludes no other process"},
		{"--url migrate:?from=redisson%3A%2F%2F127.0.0.1&to=memory%3A%2F%2Fx&phase=dual x -- true", cli.ExitMisused, "excludes no other process"},
		{"--url nothing://h x -- true", cli.ExitMisused, "unknown backend"},
		{"--url " + inProcess + " --frob x -- true", cli.ExitMisused, "unknown flag"},
		{"--url " + inProcess + " --try --wait 1s x -- true", cli.ExitMisused, "--try does not wait"},
		{"--url " + inProcess + " --wait 0s x -- true", cli.ExitMisused, "positive"},
		{"--url " + inProcess + " --elect --read x -- true", cli.ExitMisused, "exclude each other"},
		{"--url " + inProcess + " --write --read x -- true", cli.ExitMisused, "exclude each other"},
		{"--url " + inProcess + " --permits 1/2 --write x -- true", cli.ExitMisused, "instead of a lock"},
		{"--url " + inProcess + " --ttl 0s x -- true", cli.ExitMisused, "positive"},
		{"--url " + inProcess + " --ttl -1s x -- true", cli.ExitMisused, "positive"},
		{"--url " + inProcess + " --at-least 0s x -- true", cli.ExitMisused, "positive"},
		{"--url " + inProcess + " --connect 0s x -- true", cli.ExitMisused, "positive"},
		{"--url " + inProcess + " --kill-after 0s x -- true", cli.ExitMisused, "positive"},
		{"--url " + inProcess + " --permits 1/2 --read x -- true", cli.ExitMisused, "instead of a lock"},
		{"--url " + inProcess + " --permits 1/2 --elect x -- true", cli.ExitMisused, "instead of a lock"},
		{"--url " + inProcess + " --permits 3/2 x -- true", cli.ExitMisused, "at most the limit"},
		{"--url " + inProcess + " --permits 0/2 x -- true", cli.ExitMisused, "at least 1"},
		{"--url " + inProcess + " --permits 8 x -- true", cli.ExitMisused, "2/8 acquires two of eight permits"},
		{"--url " + inProcess + " --permits 1/2147483648 x -- true", cli.ExitMisused, "limit is not between"},
		{"--url " + inProcess + " --permits 2/2 x -- true", cli.ExitDone, ""},
		{"--url " + inProcess + " --elect --try x -- true", cli.ExitMisused, "repeatedly"},
		{"--url " + inProcess + " --ttl 3s --kill-after 1s x -- true", cli.ExitMisused, "Give --kill-after 700ms, or --ttl 6s"},
		{"--url " + inProcess + "?ttl=6s --ttl 3s --kill-after 1s x -- true", cli.ExitDone, ""},
	} {
		all.Go(func() {
			r := dsyncRun(t, strings.Fields(test.args)...)
			r.is(test.status, test.want)
			r.not(secret)
		})
	}
}

func TestRunEnvironment(t *testing.T) {
	t.Parallel()
	cmd, out, errs := testenv.Program(t, "run", "job 1", "--", "env")
	cmd.Env = append(cmd.Env, "DSYNC_URL"+"="+inProcess, "DSYNC_TOKEN=of another one")
	before := time.Now()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, errs)
	}
	got := map[string]string{}
	for line := range strings.Lines(out.String()) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		got[name] = value
	}
	if _, there := got["DSYNC_URL"]; there || got["DSYNC_NAME"] != "job 1" {
		t.Errorf("got %s", out)
	}
	if n, err := strconv.ParseUint(got["DSYNC_TOKEN"], 10, 64); err != nil || n == 0 {
		t.Errorf("got token %q", got["DSYNC_TOKEN"])
	}
	if at, err := time.Parse(time.RFC3339Nano, got["DSYNC_DEADLINE"]); err != nil || at.Before(before.Add(25*time.Second)) || at.After(time.Now().Add(30*time.Second)) {
		t.Errorf("got deadline %q (%v) of a TTL of 30 s", got["DSYNC_DEADLINE"], err)
	}
	cmd, out, _ = testenv.Program(t, "run", "--pass-url", "x", "--", "env")
	cmd.Env = append(cmd.Env, "DSYNC_URL"+"="+inProcess)
	if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "DSYNC_URL"+"="+inProcess) {
		t.Errorf("with --pass-url: %v, got %s", err, out)
	}
}

// lines starts a `dsync run` and returns a function that reads its output. Its
// command ends with the test.
func lines(t *testing.T, args ...string) (c *command, next func() string) {
	t.Helper()
	cmd, _, errs := testenv.Program(t, append([]string{"run", "--url", inProcess}, args...)...)
	cmd.Stdout = nil
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(out)
	cmd.WaitDelay = trialGuard
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c = &command{Cmd: cmd, t: t, ended: make(chan struct{}), errors: errs.String}
	next = func() string {
		t.Helper()
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatalf("%v: no line (%v)", args, err)
		}
		return strings.TrimSpace(line)
	}
	return c, next
}

// over waits for the end of a command that lines started, after all its lines
// have been read.
func (c *command) over(want int) {
	c.t.Helper()
	guard := time.AfterFunc(trialGuard, func() { _ = c.Process.Kill() })
	defer guard.Stop()
	_ = c.Wait()
	if got := c.ProcessState.ExitCode(); got != want {
		c.t.Errorf("%v: got status %d, want %d\n%s", c.Args, got, want, c.errors())
	}
}

// alive reports whether a process exists that has not ended.
func alive(t *testing.T, pid string) bool {
	t.Helper()
	if _, err := strconv.Atoi(pid); err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && rest[0] != 'Z' && rest[0] != 'X'
}

func TestRunPassesSignals(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name   string
		number syscall.Signal
	}{{"TERM", syscall.SIGTERM}, {"INT", syscall.SIGINT}, {"HUP", syscall.SIGHUP}, {"QUIT", syscall.SIGQUIT}, {"USR1", syscall.SIGUSR1}, {"USR2", syscall.SIGUSR2}} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			c, next := lines(t, "x", "--", "sh", "-c", "trap 'echo got; exit 7' "+s.name+"; echo ready; while :; do sleep 0.05; done")
			next()
			_ = c.Process.Signal(s.number)
			if line := next(); line != "got" {
				t.Errorf("got %q", line)
			}
			c.over(7)
		})
	}
}

// TestRunHeedsWhatIsIgnored checks a background job of a script, for which INT
// is ignored.
func TestRunHeedsWhatIsIgnored(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const script = `trap '' INT; exec "$0" run --url ` + inProcess + ` x -- sh -c 'kill -INT $PPID; kill -INT $$; exit 5'`
	program, _, _ := testenv.Program(t)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script, self)
	cmd.Env = program.Env
	out, _ := cmd.CombinedOutput()
	if status := cmd.ProcessState.ExitCode(); status != 5 {
		t.Errorf("got status %d, want 5: %s", status, out)
	}
}

func TestRunEndsWhatItsCommandLeaves(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, script string }{
		{"ends by TERM", "sleep 300 & echo $!"},
		{"ignores TERM", "trap '' TERM; sleep 300 & echo $!"},
		{"is stopped", "sleep 300 & kill -STOP $!; echo $!"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, next := lines(t, "--kill-after", "200ms", "x", "--", "sh", "-c", test.script+"; exit 4")
			pid := next()
			c.over(4)
			if alive(t, pid) {
				t.Error("a process of the group still runs")
			}
		})
	}
}

// TestRunWithoutItsGuard kills the guard. Without it, the command would
// continue if dsync were frozen.
func TestRunWithoutItsGuard(t *testing.T) {
	t.Parallel()
	c, next := lines(t, "x", "--", "sh", "-c", "ps -o pgid= -p $$; echo $$; exec sleep 300")
	group, pid := next(), next()
	n, err := strconv.Atoi(group)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.over(cli.ExitBroken)
	if alive(t, pid) {
		t.Error("the command still runs")
	}
}

// TestRunWhileTheCommandIsStopped checks that the lock is kept and, in the long
// form of the test, renewed.
func TestRunWhileTheCommandIsStopped(t *testing.T) {
	t.Parallel()
	ttl := testenv.Briefly("30s", "6s")
	c, next := lines(t, "--ttl", ttl, "x", "--", "sh", "-c", "echo $$; kill -STOP $$; exit 5")
	pid, err := strconv.Atoi(next())
	if err != nil {
		t.Fatal(err)
	}
	pause(t.Context(), testenv.Briefly(time.Second, 7*time.Second)) // more than the shorter TTL
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	c.over(5)
}

func TestRunOnAServer(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	url := "redisson://" + server.Addr
	client := clitest.Client(t, url)
	t.Run("locked", func(t *testing.T) {
		t.Parallel()
		l, err := client.Lock(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		dsyncRun(t, "--url", url, "--try", "x", "--", "echo", "ran").is(cli.ExitLocked, "locked by another owner")
		dsyncRun(t, "--url", url, "--wait", "100ms", "x", "--", "echo", "ran").is(cli.ExitLocked, "locked by another owner")
		cmd, _, errs := testenv.Program(t, "run", "--url", url, "x", "--", "echo", "ran")
		c := startCommand(t, cmd, errs)
		testenv.Eventually(t, func() bool { return server.SubscriberCount("redisson_lock__channel:{x}") > 0 }, "somebody waits")
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if status := c.wait(); status != cli.ExitBySignal+int(syscall.SIGTERM) {
			t.Errorf("got status %d: %s", status, errs)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		dsyncRun(t, "--url", url, "--try", "x", "--", "echo", "ran").is(cli.ExitDone, "ran")
	})
	t.Run("read", func(t *testing.T) {
		t.Parallel()
		l, err := client.Lock(t.Context(), "r", dsync.Read())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Unlock(t.Context())
		dsyncRun(t, "--url", url, "--try", "--read", "r", "--", "echo", "ran").is(cli.ExitDone, "ran")
		dsyncRun(t, "--url", url, "--try", "r", "--", "echo", "ran").is(cli.ExitLocked)
	})
	for _, flags := range [][]string{{"--write"}, {"--write", "--elect"}} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			t.Parallel()
			name := "w" + strings.Join(flags, "")
			read, err := client.Lock(t.Context(), name, dsync.Read())
			if err != nil {
				t.Fatal(err)
			}
			mode := t.TempDir() + "/mode"
			cmd, _, errs := testenv.Program(t, slices.Concat([]string{"run", "--url", url}, flags,
				[]string{name, "--", "sh", "-c", "echo started > " + mode + "; exec sleep 300"})...)
			c := startCommand(t, cmd, errs)
			testenv.Eventually(t, func() bool {
				s, err := client.Inspect(t.Context(), name)
				return err == nil && s.Waiters > 0
			}, "the command waits for the reader")
			if err := read.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, func() bool { _, err := os.Stat(mode); return err == nil }, "the command runs")
			if s, err := client.Inspect(t.Context(), name); err != nil || s.Mode != driver.Write {
				t.Errorf("got %v (%v), want Write", s, err)
			}
			_ = cmd.Process.Signal(syscall.SIGTERM)
			c.wait()
		})
	}
	t.Run("lost before the command", func(t *testing.T) {
		t.Parallel()
		cmd, out, errs := testenv.Program(t, "run", "--url", url, "--ttl", "3s", "--settle", "l", "--", "echo", "ran")
		c := startCommand(t, cmd, errs)
		testenv.Eventually(t, func() bool {
			s, err := client.Inspect(t.Context(), "l")
			return err == nil && s.Held
		}, "the lock is held")
		if err := client.ForceUnlock(t.Context(), "l"); err != nil {
			t.Fatal(err)
		}
		if status := c.wait(); status != cli.ExitDone || !strings.Contains(out.String(), "ran") || !strings.Contains(errs.String(), "waits for the lock again") {
			t.Errorf("got status %d: %s%s", status, out, errs)
		}
	})
	for _, heard := range []bool{true, false} {
		t.Run(fmt.Sprintf("elect, heard %t", heard), func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprint("e", heard)
			file := t.TempDir() + "/terms"
			script := fmt.Sprintf("echo term >> %s; test $(wc -l < %s) = 2 && exit 6; exec sleep 300", file, file)
			cmd, _, errs := testenv.Program(t, "run", "--url", url, "--ttl", "6s", "--elect", name, "--", "sh", "-c", script)
			if !heard { // its message about the loss must not end it
				r, w := pipe(t)
				r.Close()
				cmd.Stderr = w
			}
			c := startCommand(t, cmd, errs)
			testenv.Eventually(t, func() bool { text, _ := os.ReadFile(file); return len(text) > 0 }, "the first term")
			if err := client.ForceUnlock(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			if status := c.wait(); status != 6 {
				t.Errorf("got status %d: %s", status, errs)
			}
		})
	}
	t.Run("at least", func(t *testing.T) {
		t.Parallel()
		dsyncRun(t, "--url", url, "--try", "--at-least", "1s", "short", "--", "true").is(cli.ExitDone)
		dsyncRun(t, "--url", url, "short", "--", "true").is(cli.ExitDone) // it waits for the rest
	})
}

func TestVersion(t *testing.T) {
	status, out, _ := testenv.Execute(t, "version")
	if status != cli.ExitDone || !strings.HasPrefix(out, "dsync ") {
		t.Errorf("got status %d, %q", status, out)
	}
	if status, flag, _ := testenv.Execute(t, "--version"); status != cli.ExitDone || flag != out {
		t.Errorf("--version: got status %d, %q, want %q", status, flag, out)
	}
	if status, out, _ = testenv.Execute(t, "version", "--json"); status != cli.ExitDone || !strings.Contains(out, `"version":`) {
		t.Errorf("got status %d, %q", status, out)
	}
}
