package main

import (
	"bufio"
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
	"github.com/go-dsync/dsync/internal/testenv"
)

const inProcess = "memory://"

// dsyncRun runs `dsync run` until it ends.
func dsyncRun(t *testing.T, args ...string) ended {
	t.Helper()
	var r ended
	r.t, r.args = t, strings.Join(args, " ")
	r.status, r.out, r.errors = testenv.Execute(t, append([]string{"run"}, args...)...)
	return r
}

// ended is a `dsync run` that has.
type ended struct{ result }

// is is result.want where the command may be silent.
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
	sh("exit 0").is(exitDone)
	sh("exit 3").is(3)
	sh("kill -KILL $$").is(exitBySignal + 9)
	dsyncRun(t, "--url", inProcess, "x", "--", "no-such-command").is(exitNotFound, "not found")
	dsyncRun(t, "--url", inProcess, "x", "--", "/etc/passwd").is(exitNotExecutable, "permission denied")
	odd := t.TempDir() + "/odd"
	if err := os.WriteFile(odd, []byte("neither a script nor a binary"), 0o700); err != nil {
		t.Fatal(err)
	}
	dsyncRun(t, "--url", inProcess, "x", "--", odd).is(exitNotExecutable, "exec format error")
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
		{"x", exitMisused, "the command is missing"},
		{"-- true", exitMisused, "one name is needed"},
		{"x y -- true", exitMisused, "one name is needed"},
		{"x -- true", exitMisused, "$DSYNC_URL, --url-file or --url"},
		{"--url memory:// --url-file " + file + " x -- true", exitMisused, "give one"},
		{"--url-file /does/not/exist x -- true", exitMisused, "/does/not/exist"},
		{"--url-file " + file + " --connect 10ms x -- true", exitOutOfReach, "127.0.0.1:1"},
		{"--url redisson://user:" + secret + "@127.0.0.1:1 x -- true", exitMisused, "--url has a password"},
		{"--wait redisson://user:" + secret + "@127.0.0.1:1 x -- true", exitMisused, "takes none"},
		{"--url nothing://h x -- true", exitMisused, "unknown backend"},
		{"--url memory:// --frob x -- true", exitMisused, "unknown flag"},
		{"--url memory:// --try --wait 1s x -- true", exitMisused, "--try does not wait"},
		{"--url memory:// --wait 0s x -- true", exitMisused, "positive"},
		{"--url memory:// --elect --read x -- true", exitMisused, "exclude each other"},
		{"--url memory:// --elect --try x -- true", exitMisused, "again and again"},
		{"--url memory:// --ttl 3s --kill-after 1s x -- true", exitMisused, "Give --kill-after 700ms, or --ttl 6s"},
		{"--url memory://?ttl=6s --ttl 3s --kill-after 1s x -- true", exitDone, ""},
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
	cmd.Env = append(cmd.Env, urlVariable+"="+inProcess, "DSYNC_TOKEN=of another one")
	before := time.Now()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, errs)
	}
	got := map[string]string{}
	for line := range strings.Lines(out.String()) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		got[name] = value
	}
	if _, there := got[urlVariable]; there || got["DSYNC_NAME"] != "job 1" {
		t.Errorf("got %s", out)
	}
	if n, err := strconv.ParseUint(got["DSYNC_TOKEN"], 10, 64); err != nil || n == 0 {
		t.Errorf("got token %q", got["DSYNC_TOKEN"])
	}
	if at, err := time.Parse(time.RFC3339Nano, got["DSYNC_DEADLINE"]); err != nil || at.Before(before.Add(25*time.Second)) || at.After(time.Now().Add(30*time.Second)) {
		t.Errorf("got deadline %q (%v) of a TTL of 30 s", got["DSYNC_DEADLINE"], err)
	}
	cmd, out, _ = testenv.Program(t, "run", "--pass-url", "x", "--", "env")
	cmd.Env = append(cmd.Env, urlVariable+"="+inProcess)
	if err := cmd.Run(); err != nil || !strings.Contains(out.String(), urlVariable+"="+inProcess) {
		t.Errorf("with --pass-url: %v, got %s", err, out)
	}
}

// lines starts a `dsync run`, and returns how to read its output. Its command ends with the test.
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

// over waits for the end of a command of lines, all lines of which were read.
func (c *command) over(want int) {
	c.t.Helper()
	guard := time.AfterFunc(trialGuard, func() { _ = c.Process.Kill() })
	defer guard.Stop()
	_ = c.Wait()
	if got := c.ProcessState.ExitCode(); got != want {
		c.t.Errorf("%v: got status %d, want %d\n%s", c.Args, got, want, c.errors())
	}
}

// alive reports whether a process is there that has not ended.
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
				t.Error("a process of the group is left")
			}
		})
	}
}

// TestRunWithoutItsGuard: if somebody kills the guard, nobody would end the command if dsync were frozen.
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
	c.over(exitBroken)
	if alive(t, pid) {
		t.Error("the command is left")
	}
}

// TestRunWhileTheCommandIsStopped: the lock is kept and, in the long form, renewed.
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
	client, err := dsync.Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(t.Context()) })
	t.Run("locked", func(t *testing.T) {
		t.Parallel()
		l, err := client.Lock(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		dsyncRun(t, "--url", url, "--try", "x", "--", "echo", "ran").is(exitLocked, "locked by another owner")
		dsyncRun(t, "--url", url, "--wait", "100ms", "x", "--", "echo", "ran").is(exitLocked, "locked by another owner")
		cmd, _, errs := testenv.Program(t, "run", "--url", url, "x", "--", "echo", "ran")
		c := startCommand(t, cmd, errs)
		testenv.Eventually(t, func() bool { return server.SubscriberCount("redisson_lock__channel:{x}") > 0 }, "somebody waits")
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if status := c.wait(); status != exitBySignal+int(syscall.SIGTERM) {
			t.Errorf("got status %d: %s", status, errs)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		dsyncRun(t, "--url", url, "--try", "x", "--", "echo", "ran").is(exitDone, "ran")
	})
	t.Run("read", func(t *testing.T) {
		t.Parallel()
		l, err := client.Lock(t.Context(), "r", dsync.Read())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Unlock(t.Context())
		dsyncRun(t, "--url", url, "--try", "--read", "r", "--", "echo", "ran").is(exitDone, "ran")
		dsyncRun(t, "--url", url, "--try", "r", "--", "echo", "ran").is(exitLocked)
	})
	t.Run("elect", func(t *testing.T) {
		t.Parallel()
		file := t.TempDir() + "/terms"
		script := fmt.Sprintf("echo term >> %s; test $(wc -l < %s) = 2 && exit 6; exec sleep 300", file, file)
		cmd, _, errs := testenv.Program(t, "run", "--url", url, "--ttl", "6s", "--elect", "e", "--", "sh", "-c", script)
		c := startCommand(t, cmd, errs)
		testenv.Eventually(t, func() bool { text, _ := os.ReadFile(file); return len(text) > 0 }, "the first term")
		if err := client.ForceUnlock(t.Context(), "e"); err != nil {
			t.Fatal(err)
		}
		if status := c.wait(); status != 6 {
			t.Errorf("got status %d: %s", status, errs)
		}
	})
	t.Run("at least", func(t *testing.T) {
		t.Parallel()
		oncePerPeriod(t, url)
	})
}

// oncePerPeriod runs a job from three machines whose clocks are 150 ms apart: once in each period. Each period has a name of its own, so that
// a busy machine, which is late, is in the right one.
func oncePerPeriod(t *testing.T, url string) {
	const period, apart = time.Second, 150 * time.Millisecond
	periods := testenv.Briefly(2, 20)
	first := time.Now().Add(period)
	ran := make(chan int, 3*periods)
	var machines sync.WaitGroup
	for machine := range 3 {
		machines.Go(func() {
			for i := range periods {
				pause(t.Context(), time.Until(first.Add(time.Duration(i)*period+time.Duration(machine)*apart)))
				status, _, errs := testenv.Execute(t, "run", "--url", url, "--try", "--at-least", "10m", fmt.Sprint("job-", i), "--", "true")
				if status == exitDone {
					ran <- i
				} else if status != exitLocked {
					t.Errorf("got status %d: %s", status, errs)
				}
			}
		})
	}
	machines.Wait()
	close(ran)
	var got, want []int
	for i := range ran {
		got = append(got, i)
	}
	for i := range periods {
		want = append(want, i)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("the job ran in periods %v", got)
	}
	dsyncRun(t, "--url", url, "--try", "--at-least", "1s", "short", "--", "true").is(exitDone)
	dsyncRun(t, "--url", url, "short", "--", "true").is(exitDone) // which waits for the rest
}

// TestRunOnATerminal stops a command by Ctrl-Z, and lets it go on, in a shell with job control.
func TestRunOnATerminal(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "--norc", "--noprofile", "-i")
	cmd.Env = append(os.Environ(), "DSYNC_TEST_PROGRAM=1", "PS1=> ", "TERM=dumb", "DSYNC="+self, urlVariable+"="+inProcess)
	terminal := testenv.Terminal(t, cmd)
	cmd.Stdout = nil
	press := func(keys string) {
		if _, err := terminal.WriteString(keys); err != nil {
			t.Fatal(err)
		}
	}
	press(`exec >/dev/tty; "$DSYNC" run x -- sh -c 'echo sta''rted; read line; echo g''ot $line; exit 9'` + "\n")
	until(t, terminal, "started\r")
	press("\x1a")
	until(t, terminal, "Stopped")
	press("fg\n")
	until(t, terminal, "run x")
	press("hello\n")
	until(t, terminal, "got hello")
	press("echo status=$?\n")
	until(t, terminal, "status=9")
	press("\"$DSYNC\" run x -- sh -c 'echo sta''rted; exec sleep 300'\n")
	until(t, terminal, "started\r")
	press("\x03")
	press("echo status=$?\n")
	until(t, terminal, "status=130")
	press("exit\n")
	_ = cmd.Wait()
}

func TestStatusesAreInTheDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/command.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| status | meaning |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var want strings.Builder
	for _, row := range runStatuses {
		fmt.Fprintf(&want, "| %s | %s |\n", row.status, row.meaning)
	}
	if table+"\n" != want.String() {
		t.Errorf("docs/command.md has the statuses\n%s, want\n%s", table, want.String())
	}
}

func TestVersion(t *testing.T) {
	status, out, _ := testenv.Execute(t, "version")
	if status != exitDone || !strings.HasPrefix(out, "dsync ") {
		t.Errorf("got status %d, %q", status, out)
	}
	if status, out, _ = testenv.Execute(t, "version", "--json"); status != exitDone || !strings.Contains(out, `"version":`) {
		t.Errorf("got status %d, %q", status, out)
	}
}
