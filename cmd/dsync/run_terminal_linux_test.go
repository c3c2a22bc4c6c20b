package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/internal/testenv"
)

// inTerminal returns a command for testenv.Terminal, with $DSYNC and a backend.
func inTerminal(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, _, _ := testenv.Program(t)
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(program.Env, "PS1=> ", "TERM=dumb", "DSYNC="+self, "DSYNC_URL"+"="+inProcess)
	return cmd
}

// shell is a bash with job control, driven by typed input.
type shell struct {
	*os.File
	t   *testing.T
	cmd *exec.Cmd
}

func startShell(t *testing.T) *shell {
	t.Helper()
	cmd := inTerminal(t, "bash", "--norc", "--noprofile", "-i")
	s := &shell{testenv.Terminal(t, cmd), t, cmd}
	s.types("exec >/dev/tty\n")
	return s
}

func (s *shell) types(keys string) {
	s.t.Helper()
	if _, err := s.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// shows waits for a text and returns the output since the last call. That may
// include output shortly after the text.
func (s *shell) shows(text string) (before string) {
	s.t.Helper()
	return until(s.t, s.File, text)
}

// resumes types fg and waits until the shell has given the terminal to the job.
// The shell prints its message first, and until it hands over, keys such as
// Ctrl-C go to the shell.
func (s *shell) resumes() {
	s.t.Helper()
	s.types("fg\n")
	s.shows("run x")
	terminal, err := s.SyscallConn() // Fd would remove the deadlines
	if err != nil {
		s.t.Fatal(err)
	}
	testenv.Eventually(s.t, func() bool {
		var group int
		failed := terminal.Control(func(fd uintptr) { group, err = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) })
		return failed == nil && err == nil && group != s.cmd.Process.Pid
	}, "the job has the terminal")
}

func (s *shell) exits() {
	s.types("exit\n")
	_ = s.cmd.Wait()
}

// TestRunOnATerminal stops and continues a command in a shell with job control.
func TestRunOnATerminal(t *testing.T) {
	t.Parallel()
	s := startShell(t)
	s.types(`"$DSYNC" run x -- sh -c 'echo sta''rted; read line; echo g''ot $line; exit 9'` + "\n")
	s.shows("started\r")
	s.types("\x1a")
	s.shows("Stopped")
	s.resumes()
	s.types("hello\n")
	s.shows("got hello")
	s.types("echo status=$?\n")
	s.shows("status=9")
	s.types("\"$DSYNC\" run x -- sh -c 'echo sta''rted; exec sleep 300'\n")
	s.shows("started\r")
	s.types("\x03")
	s.types("echo status=$?\n")
	s.shows("status=130")
	s.types(`bash -c '"$DSYNC" run x -- sh -c "echo sta""rted; exec sleep 300"; echo the script has $?'` + "\n")
	s.shows("started\r")
	s.types("\x03")
	s.shows("the script has 130")
	s.types(`bash -c '"$DSYNC" run x -- ` + notExecutable(t) + `; read line; echo the script g""ot $line'` + "\n")
	s.shows("exec format error") // it arrives when the command is in the foreground
	s.types("hello\n")
	s.shows("the script got hello")
	s.exits()
}

// TestRunOfTimeoutOnATerminal uses timeout, which moves to its own process
// group. Ctrl-Z and Ctrl-C must reach it anyway.
func TestRunOfTimeoutOnATerminal(t *testing.T) {
	t.Parallel()
	s := startShell(t)
	s.types(`"$DSYNC" run x -- timeout 300 sh -c 'echo sta''rted; exec sleep 300'` + "\n")
	s.shows("started\r")
	s.types("\x1a")
	s.shows("Stopped")
	s.resumes()
	s.types("\x03")
	s.types("echo status=$?\n")
	s.shows("status=130")
	s.exits()
}

// TestRunInAPipeline gives the terminal to a command that reads from it, though
// other members of the pipeline are in the foreground.
func TestRunInAPipeline(t *testing.T) {
	t.Parallel()
	s := startShell(t)
	s.types(`"$DSYNC" run x -- sh -c 'echo sta''rted >/dev/tty; read line; echo g''ot $line; exit 9' | cat; echo status=${PIPESTATUS[0]}` + "\n")
	s.shows("started\r")
	s.types("hello\n")
	if before := s.shows("status=9"); !strings.Contains(before, "got hello") {
		t.Errorf("got %q", before)
	}
	s.exits()
}

// TestRunIsStoppedForLong stops a command and dsync with Ctrl-Z until the lock
// has ended.
func TestRunIsStoppedForLong(t *testing.T) {
	t.Parallel()
	s := startShell(t)
	s.types(`"$DSYNC" run --ttl 6s x -- sh -c 'echo pid $$ en''d; exec sleep 300'` + "\n")
	before := s.shows("end\r")
	pid := strings.TrimSpace(before[strings.LastIndex(before, "pid ")+len("pid ") : strings.LastIndex(before, "end\r")])
	s.types("\x1a")
	s.shows("Stopped")
	testenv.Eventually(t, func() bool { return !alive(t, pid) }, "the guard kills the command")
	s.types("fg\n")
	s.shows("lock lost")
	s.types("echo status=$?\n")
	s.shows(fmt.Sprintf("status=%d", cli.ExitLost))
	s.exits()
}

// TestTerminalOfRunIsClosed checks that the command gets HUP, as it would
// without dsync.
func TestTerminalOfRunIsClosed(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/hup"
	cmd := inTerminal(t, "sh", "-c", `exec "$DSYNC" run x -- sh -c 'trap "echo hup >>`+file+`; exit 3" HUP; echo ready; while :; do sleep 0.05; done' >/dev/tty`)
	terminal := testenv.Terminal(t, cmd)
	until(t, terminal, "ready")
	terminal.Close()
	_ = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 3 {
		t.Errorf("got status %d, want 3", status)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(text), "hup") {
		t.Errorf("got %q, %v", text, err)
	}
}
