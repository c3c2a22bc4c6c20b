package testenv

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// programVariable marks a process that was made by Program.
const programVariable = "DSYNC_TEST_PROGRAM"

// RunProgram is the first half of a TestMain of package main whose tests call
// [Program]. If this process was made by Program, it calls main, which must
// exit. It also does so if the environment has one of the variables by which
// the program recognizes its child processes. Otherwise it returns.
func RunProgram(main func(), variables ...string) {
	for _, variable := range append(variables, programVariable) {
		if os.Getenv(variable) != "" {
			main()
		}
	}
	// A process with the race detector would take a second to end.
	os.Setenv("GORACE", strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=0"))
}

// Program returns the program as a process that is not started yet. It has its
// own directory for temporary files.
func Program(tb testing.TB, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd = exec.CommandContext(tb.Context(), self, args...)
	cmd.Env = append(os.Environ(), programVariable+"=1", "TMPDIR="+tb.TempDir())
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

// Execute runs the program in a process until it ends.
func Execute(tb testing.TB, args ...string) (status int, stdout, stderr string) {
	tb.Helper()
	cmd, out, errs := Program(tb, args...)
	_ = cmd.Run() // the exit code contains all the information
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// roleVariable names the role of a process that was made by Spawn.
const roleVariable = "DSYNC_TEST_ROLE"

// Main is the body of a TestMain whose tests call [Spawn]. It runs the tests or
// the role of this process, and exits.
//
//	func TestMain(m *testing.M) {
//		testenv.Main(m, map[string]func(){"holder": holder})
//	}
func Main(m *testing.M, roles map[string]func()) {
	RunRole(roles)
	os.Exit(m.Run())
}

// RunRole is the first half of Main, for a TestMain that runs the tests in its
// own way. If this process was made by Spawn, it runs the role and exits.
// Otherwise it returns.
func RunRole(roles map[string]func()) {
	role, ok := os.LookupEnv(roleVariable)
	if !ok {
		return
	}
	run := roles[role]
	if run == nil {
		fmt.Fprintf(os.Stderr, "TestMain has no role %q\n", role)
		os.Exit(2)
	}
	run()
	os.Exit(0)
}

// Process is another process that runs a role of this test binary. Its methods
// fail the test on errors.
type Process struct {
	// Lines receives the lines of the process's standard output. It is closed
	// after the process has ended and its output was read.
	Lines <-chan string

	tb    testing.TB
	role  string
	stdin *os.File

	mu   sync.Mutex
	proc *process
}

// Spawn runs a role of this test binary in a new process, with env
// ("KEY=value") added to the environment. The process is killed at the end of
// the test, or when this process ends for any reason. A data race that it
// reports fails the test.
func Spawn(tb testing.TB, role string, env ...string) *Process {
	tb.Helper()
	return spawn(tb, loopback, role, env...)
}

func spawn(tb testing.TB, at host, role string, env ...string) *Process {
	tb.Helper()
	binary, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	inRead, inWrite := pipe(tb)
	outRead, outWrite := pipe(tb)
	stderr, err := os.Create(filepath.Join(tb.TempDir(), "stderr"))
	if err != nil {
		tb.Fatal(err)
	}
	defer stderr.Close()
	argv := at.command(binary)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(append(os.Environ(), roleVariable+"="+role), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inRead, outWrite, stderr
	proc, err := startProcess(cmd)
	// Only the process may have its ends of the pipes, so that each side sees
	// the end of the other.
	inRead.Close()
	outWrite.Close()
	if err != nil {
		tb.Fatal(err)
	}

	lines := make(chan string)
	p := &Process{Lines: lines, tb: tb, role: role, stdin: inWrite, proc: proc}
	unread := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() { readLines(outRead, lines, unread) })
	tb.Cleanup(func() {
		p.Kill()
		close(unread)
		reader.Wait()
		p.report(stderr.Name())
	})
	return p
}

func pipe(tb testing.TB) (r, w *os.File) {
	tb.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		r.Close()
		w.Close()
	})
	return r, w
}

// readLines ends when the process has ended, or when no reader wants more
// lines.
func readLines(r io.Reader, lines chan<- string, unread <-chan struct{}) {
	defer close(lines)
	for in := bufio.NewScanner(r); in.Scan(); {
		select {
		case lines <- in.Text():
		case <-unread:
			return
		}
	}
}

// Send writes a line to the standard input of the process.
func (p *Process) Send(line string) {
	p.tb.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		p.tb.Fatalf("%s: %v", p.role, err)
	}
}

// Line waits for the next line of the process.
func (p *Process) Line() string {
	p.tb.Helper()
	guard := time.NewTimer(hangGuard)
	defer guard.Stop()
	select {
	case line, ok := <-p.Lines:
		if !ok {
			<-p.proc.done
			p.tb.Fatalf("%s ended without another line: %v", p.role, p.proc.err)
		}
		return line
	case <-guard.C:
		p.tb.Fatalf("%s wrote no line within %v", p.role, hangGuard)
	}
	return ""
}

// Pid is the process id.
func (p *Process) Pid() int { return p.proc.cmd.Process.Pid }

// Kill ends the process by SIGKILL, even if it is stopped, and returns when it
// is gone.
func (p *Process) Kill() { p.proc.kill() }

// Stop stops the process (SIGSTOP) and returns when all its threads have
// stopped.
func (p *Process) Stop() {
	p.tb.Helper()
	p.signal((*process).freeze)
}

// Cont continues a stopped process.
func (p *Process) Cont() {
	p.tb.Helper()
	p.signal((*process).thaw)
}

func (p *Process) signal(send func(*process) error) {
	p.tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := send(p.proc); err != nil {
		p.tb.Fatalf("%s: %v", p.role, err)
	}
}

// Wait closes the standard input of the process, waits until it has ended by
// itself, and returns nil if its exit code is 0. Another goroutine must read
// the lines that it writes in the meantime, unless these lines fit into a pipe.
func (p *Process) Wait() error {
	p.tb.Helper()
	p.stdin.Close()
	guard := time.NewTimer(hangGuard)
	defer guard.Stop()
	select {
	case <-p.proc.done:
	case <-guard.C:
		p.tb.Fatalf("%s did not end within %v", p.role, hangGuard)
	}
	return p.proc.err
}

// report checks the process's standard error.
func (p *Process) report(stderr string) {
	text, err := os.ReadFile(stderr)
	if err != nil {
		p.tb.Error(err)
		return
	}
	if bytes.Contains(text, []byte("WARNING: DATA RACE")) {
		p.tb.Errorf("%s: data race", p.role)
	}
	if bytes.Contains(text, []byte(PasswordMark)) {
		p.tb.Errorf("%s: a password is on its standard error", p.role)
	}
	if p.tb.Failed() && len(text) > 0 {
		p.tb.Logf("standard error of %s:\n%s", p.role, text)
	}
}
