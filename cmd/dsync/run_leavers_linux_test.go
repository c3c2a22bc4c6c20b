package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// leavers are commands that start the script job outside of the command's
// process group, or hide it in another way.
var leavers = []struct {
	name    string
	program string // required programs
	command func(job string) []string
}{
	{"timeout", "timeout", func(job string) []string { return []string{"timeout", "300", job} }},
	{"timeout in a shell that waits", "timeout", func(job string) []string {
		return []string{"sh", "-c", "trap 'exit 3' TERM; timeout 300 " + job + "; exit 4"}
	}},
	{"timeout in timeout", "timeout", func(job string) []string { return []string{"timeout", "300", "timeout", "300", job} }},
	{"job control", "sh", func(job string) []string { return []string{"sh", "-m", "-c", job + " & wait; exit 4"} }},
	{"job control of bash", "bash", func(job string) []string { return []string{"bash", "-m", "-c", job + " & wait; exit 4"} }},
	{"setsid", "setsid", func(job string) []string { return []string{"setsid", "-w", job} }},
	{"setsid below a shell", "setsid", func(job string) []string { return []string{"sh", "-c", "setsid " + job + " & wait; exit 4"} }},
	{"daemon", "setsid", func(job string) []string {
		return []string{"sh", "-c", "(setsid sh -c '" + job + " & exit' &); exec sleep 300"}
	}},
	{"environment", "env", func(job string) []string { return []string{"env", "-i", "setsid", "-w", job} }},
	{"nohup", "nohup", func(job string) []string { return []string{"nohup", "timeout", "300", job} }},
	{"xargs", "xargs", func(job string) []string {
		return []string{"sh", "-c", "echo a b | xargs -n 1 -P 2 timeout 300 " + job}
	}},
	{"script", "script", func(job string) []string { return []string{"script", "-qc", job, "/dev/null"} }},
	{"su", "su", func(job string) []string { return []string{"su", "-c", job} }},
}

// jobOf returns a script that never ends by itself, and its number of
// processes. A stubborn script ignores TERM.
func jobOf(t *testing.T, stubborn bool) (job string, pids func() []string) {
	t.Helper()
	dir := t.TempDir()
	text := "#!/bin/sh\necho $$ >> " + dir + "/pids\nexec sleep 300 <&- >&- 2>&-\n"
	if stubborn {
		text = strings.Replace(text, "\n", "\ntrap '' TERM\n", 1)
	}
	job = filepath.Join(dir, "job")
	if err := os.WriteFile(job, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return job, func() []string {
		written, _ := os.ReadFile(dir + "/pids")
		return strings.Fields(string(written))
	}
}

// startLeaver starts a `dsync run` and returns when its job is running.
func startLeaver(t *testing.T, command func(string) []string, stubborn bool, flags ...string) (c *command, isOver func() bool) {
	t.Helper()
	job, pids := jobOf(t, stubborn)
	args := append([]string{"run", "--url", inProcess, "--kill-after", "200ms"}, flags...)
	cmd, _, errs := testenv.Program(t, append(append(args, "x", "--"), command(job)...)...)
	c = startCommand(t, cmd, errs)
	testenv.Eventually(t, func() bool { return len(pids()) > 0 }, "the job runs")
	return c, func() bool {
		for _, pid := range pids() {
			if alive(t, pid) {
				return false
			}
		}
		return true
	}
}

// guardOf returns the guard of a `dsync run`.
func guardOf(t *testing.T, c *command) int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", c.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks { // each thread lists the children that it has started
		text, _ := os.ReadFile(task)
		var pid int
		if n, _ := fmt.Sscan(string(text), &pid); n == 1 {
			return pid
		}
	}
	t.Fatal("there is no guard")
	return 0
}

// TestRunEndsWhatLeavesItsGroup checks that a process that has left the
// command's group ends when the command ends, for whatever reason.
func TestRunEndsWhatLeavesItsGroup(t *testing.T) {
	t.Parallel()
	free := make(chan struct{}, 4)
	for _, l := range leavers {
		if _, err := exec.LookPath(l.program); err != nil {
			t.Logf("%s: %v", l.name, err)
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			for name, test := range map[string]struct {
				happen func(*testing.T, *command)
				status func(int) bool // nil: any
			}{
				"dsync is killed": {func(_ *testing.T, c *command) { _ = c.Process.Kill() }, nil},
				"dsync gets TERM": {func(_ *testing.T, c *command) { _ = c.Process.Signal(syscall.SIGTERM) }, nil},
				"guard is killed": {func(t *testing.T, c *command) { _ = syscall.Kill(guardOf(t, c), syscall.SIGKILL) },
					func(status int) bool { return status == cli.ExitBroken }},
			} {
				for _, stubborn := range []bool{false, true} {
					if stubborn && name == "dsync gets TERM" {
						continue // the command decides
					}
					t.Run(fmt.Sprintf("%s, stubborn %t", name, stubborn), func(t *testing.T) {
						t.Parallel()
						free <- struct{}{}
						defer func() { <-free }()
						c, isOver := startLeaver(t, l.command, stubborn)
						test.happen(t, c)
						if status := c.wait(); test.status != nil && !test.status(status) {
							t.Errorf("got status %d: %s", status, c.errors())
						}
						if name == "dsync is killed" {
							testenv.Eventually(t, isOver, "the guard kills the job")
						} else if !isOver() {
							t.Error("the job still runs")
						}
					})
				}
			}
		})
	}
}

// TestRunFrozenEndsWhatLeavesItsGroup checks the guard without dsync.
func TestRunFrozenEndsWhatLeavesItsGroup(t *testing.T) {
	t.Parallel()
	c, isOver := startLeaver(t, leavers[0].command, true, "--ttl", "3s")
	_ = c.Process.Signal(syscall.SIGSTOP)
	testenv.Eventually(t, isOver, "the guard kills the job")
	_ = c.Process.Signal(syscall.SIGCONT)
	if status := c.wait(); status != cli.ExitLost {
		t.Errorf("got status %d: %s", status, c.errors())
	}
}

// TestRunEndsADaemon runs a command that ends and leaves a process outside of
// its group.
func TestRunEndsADaemon(t *testing.T) {
	t.Parallel()
	for _, stubborn := range []bool{false, true} {
		job, pids := jobOf(t, stubborn)
		dsyncRun(t, "--url", inProcess, "--kill-after", "200ms", "x", "--", "sh", "-c",
			"setsid "+job+" & while ! test -s "+filepath.Dir(job)+"/pids; do sleep 0.02; done; exit 5").is(5)
		if alive(t, pids()[0]) {
			t.Error("the job still runs")
		}
	}
}

// TestRunPassesSignalsToATimeout runs a command that has left its group, with a
// shell below it that counts signals. The signal arrives once, and CONT reaches
// all processes.
func TestRunPassesSignalsToATimeout(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGUSR1, syscall.SIGHUP} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			c, next := lines(t, "x", "--", "setsid", "-w", "sh", "-c",
				fmt.Sprintf("trap 'echo got' %d; trap 'exit 7' USR2; echo ready; while :; do sleep 0.05; done", s))
			next()
			_ = c.Process.Signal(s)
			if line := next(); line != "got" {
				t.Errorf("got %q", line)
			}
			_ = c.Process.Signal(syscall.SIGUSR2)
			c.over(7)
		})
	}
}

// TestRunLetsItsGuardGoOn stops the guard. A stopped guard cannot report the
// end of the command, so dsync continues it.
func TestRunLetsItsGuardGoOn(t *testing.T) {
	t.Parallel()
	c, next := lines(t, "x", "--", "sh", "-c", "trap 'exit 6' USR1; echo ready; while :; do sleep 0.05; done")
	next()
	if err := syscall.Kill(guardOf(t, c), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_ = c.Process.Signal(syscall.SIGUSR1)
	c.over(6)
}

// TestRunLeavesOthersAlone uses a shell that has started other processes before
// it becomes dsync. They do not belong to the command, even if the guard is
// killed.
func TestRunLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	program, _, _ := testenv.Program(t)
	for _, test := range []struct {
		script string
		status int
	}{
		{"exit 3", 3},
		{"kill -KILL $PPID; exec sleep 300", cli.ExitBroken},
	} {
		file := filepath.Join(t.TempDir(), "other")
		cmd := exec.CommandContext(t.Context(), "sh", "-c", `sleep 300 <&- >&- 2>&- & echo $! > "$1"; exec "$0" run --url `+inProcess+` x -- sh -c "$2"`,
			program.Path, file, test.script)
		cmd.Env, cmd.WaitDelay = program.Env, drivertest.HangGuard
		out, _ := cmd.CombinedOutput()
		if status := cmd.ProcessState.ExitCode(); status != test.status {
			t.Errorf("got status %d, want %d: %s", status, test.status, out)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pid := strings.TrimSpace(string(text))
		if !alive(t, pid) {
			t.Error("the other process was killed")
		}
		if n, err := strconv.Atoi(pid); err == nil {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
}

// TestRunKeepsFilesOpen checks that the command has the same open files as
// without dsync, with the same numbers.
func TestRunKeepsFilesOpen(t *testing.T) {
	t.Parallel()
	r, w := pipe(t)
	script := []string{"sh", "-c", "ls /proc/self/fd >&3"}
	program, _, errs := testenv.Program(t, append([]string{"run", "--url", inProcess, "x", "--"}, script...)...)
	files := func(cmd *exec.Cmd) string {
		cmd.ExtraFiles, cmd.WaitDelay = []*os.File{w}, drivertest.HangGuard
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, errs)
		}
		b := make([]byte, 1000)
		n, err := r.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	if got, want := files(program), files(exec.CommandContext(t.Context(), script[0], script[1:]...)); got != want {
		t.Errorf("the command has the files %q, want %q", got, want)
	}
}
