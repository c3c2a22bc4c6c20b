package main

import (
	"bufio"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/internal/testenv"
)

// pipe returns a pipe that is closed after the test.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// fullPipe returns the end of a full pipe. Writes block until drain is called.
func fullPipe(t *testing.T) (w *os.File, drain func()) {
	t.Helper()
	r, w := pipe(t)
	fd := int(w.Fd())
	if err := syscall.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 1); ; {
		if _, err := syscall.Write(fd, b); err == syscall.EAGAIN {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	return w, func() {
		go io.Copy(io.Discard, r) // ends when the test closes the pipe
	}
}

// unread starts a `dsync run` whose messages are not read and returns the first
// line of its command.
func unread(t *testing.T, args ...string) (c *command, line string, drain func()) {
	t.Helper()
	cmd, _, _ := testenv.Program(t, append([]string{"run"}, args...)...)
	cmd.Stderr, drain = fullPipe(t)
	r, w := pipe(t)
	cmd.Stdout = w
	c = startCommand(t, cmd, &strings.Builder{})
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return c, strings.TrimSpace(line), drain
}

// TestGuardKillsThoughNobodyReads checks that an unread message of a guard does
// not delay its work.
func TestGuardKillsThoughNobodyReads(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		signal syscall.Signal
		status int
	}{{"frozen", syscall.SIGSTOP, cli.ExitLost}, {"killed", syscall.SIGKILL, -1}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, pid, drain := unread(t, "--url", inProcess, "--ttl", "3s", "x", "--", "sh", "-c", "echo $$; exec sleep 300")
			_ = c.Process.Signal(test.signal)
			testenv.Eventually(t, func() bool { return !alive(t, pid) }, "the guard kills the command")
			drain()
			_ = c.Process.Signal(syscall.SIGCONT)
			if status := c.wait(); status != test.status {
				t.Errorf("got status %d, want %d", status, test.status)
			}
		})
	}
}

func TestRunSendsTermThoughNobodyReads(t *testing.T) {
	t.Parallel()
	network := new(wire.Wire)
	defer network.Close()
	addr, err := network.Listen(testenv.Redis(t).Addr)
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/term"
	c, _, drain := unread(t, "--url", "redisson://"+addr, "--ttl", "3s", "--connect", trialGuard.String(), "x", "--",
		"sh", "-c", "exec 2>/dev/null; trap 'echo term > "+file+"; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
	network.Hold(wire.Both)
	testenv.Eventually(t, func() bool { _, err := os.Stat(file); return err == nil }, "the command gets TERM")
	drain()
	if status := c.wait(); status != cli.ExitLost {
		t.Errorf("got status %d, want %d", status, cli.ExitLost)
	}
}
