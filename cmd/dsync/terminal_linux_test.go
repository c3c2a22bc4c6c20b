package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestProgressOnTerminal runs a seal on a terminal, which shows a progress bar,
// and ends it with Ctrl-C.
func TestProgressOnTerminal(t *testing.T) {
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprint("n", i))
	}
	cmd, stdout, _ := testenv.Program(t, append([]string{"migrate", "seal", "--from", "memory://a", "--to", "memory://b?floor=281474976710656", "--rate", "20"}, names...)...)
	terminal := testenv.Terminal(t, cmd)
	until(t, terminal, "/200)")
	// The program's last output may be lost with the terminal if no other
	// process has the terminal open.
	tty, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/2", cmd.Process.Pid), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	defer time.AfterFunc(drivertest.HangGuard, func() { tty.Close() }).Stop()
	if _, err := terminal.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	until(t, terminal, "dsync: interrupted: repeat the command")
	_ = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != cli.ExitInterrupted {
		t.Errorf("got status %d, want %d", status, cli.ExitInterrupted)
	}
	if out := stdout.String(); strings.Contains(out, "/200)") || !strings.Contains(out, "not tried: ") {
		t.Errorf("standard output: got %q, want a summary and no progress bar", out)
	}
}

// TestReleaseAsks answers the question on a terminal.
func TestReleaseAsks(t *testing.T) {
	t.Parallel()
	url := "redisson://" + testenv.Redis(t).Addr
	c := clitest.Client(t, url)
	lease := clitest.Lock(t, c, "x")
	answer := func(text string) int {
		cmd, _, _ := testenv.Program(t, "release", "--url", url, "x")
		terminal := testenv.Terminal(t, cmd)
		until(t, terminal, "Release x? [y/N] ")
		if _, err := terminal.WriteString(text + "\n"); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		return cmd.ProcessState.ExitCode()
	}
	if status := answer("n"); status != cli.ExitInterrupted || lease.Err() != nil {
		t.Errorf("no: got status %d, and the lease is %v", status, lease.Err())
	}
	if status := answer("y"); status != cli.ExitDone {
		t.Errorf("yes: got status %d", status)
	}
	if lease, err := clitest.Client(t, url).TryLock(t.Context(), "x"); err != nil {
		t.Errorf("the lock is still held: %v", err)
	} else if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// until reads the output until it contains text and returns the output.
func until(t *testing.T, terminal *os.File, text string) string {
	t.Helper()
	var shown strings.Builder
	for b := make([]byte, 1024); !strings.Contains(shown.String(), text); {
		n, err := terminal.Read(b)
		shown.Write(b[:n])
		if err != nil {
			t.Fatalf("the program ended (%v) before it printed %[2]q; its output is %[3]q", err, text, shown.String())
		}
	}
	return shown.String()
}
