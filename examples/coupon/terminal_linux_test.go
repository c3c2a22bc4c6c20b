package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// terminal is a pseudo-terminal that is the program's standard input and
// standard error.
type terminal struct {
	*os.File // the user's side
	cmd      *exec.Cmd
	stdout   *bytes.Buffer
}

func startOnTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	cmd, stdout, _ := testenv.Program(t, args...)
	return &terminal{testenv.Terminal(t, cmd), cmd, stdout}
}

// until reads the program's output until it contains text or the program has
// ended.
func (p *terminal) until(t *testing.T, text string) string {
	t.Helper()
	var shown strings.Builder
	for b := make([]byte, 1024); !strings.Contains(shown.String(), text); {
		n, err := p.Read(b)
		shown.Write(b[:n])
		if err != nil {
			t.Fatalf("the program ended (%v) before it printed %[2]q; its output is %[3]q", err, text, shown.String())
		}
	}
	return shown.String()
}

// end waits for the end of the program and returns its output until then.
func (p *terminal) end(t *testing.T) (shown string, status int) {
	t.Helper()
	rest, _ := io.ReadAll(p) // ends with EIO when no process has the terminal open
	_ = p.cmd.Wait()
	return string(rest), p.cmd.ProcessState.ExitCode()
}

func TestProgressOnTerminal(t *testing.T) {
	t.Parallel()
	p := startOnTerminal(t, "-buyers", "25", "-coupons", "25", "-moment", "50ms")
	p.until(t, "/25)")
	shown, status := p.end(t)
	checkSuccess(t, 25, 25, status, p.stdout.String(), "")
	if last := shown[strings.LastIndex(strings.TrimSuffix(shown, "\r"), "\r")+1:]; strings.TrimSpace(last) != "" {
		t.Errorf("left on the terminal: got %q, want nothing", last)
	}
}

func TestNoProgressWhenFast(t *testing.T) {
	p := startOnTerminal(t, "-buyers", "10", "-coupons", "5", "-moment", "1ms")
	shown, status := p.end(t)
	checkSuccess(t, 10, 5, status, p.stdout.String(), shown)
}

func TestCtrlC(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	p := startOnTerminal(t, "-procs", "4", "-url", "redisson://"+server.Addr, "-moment", "50ms", "-coupons", "100")
	p.until(t, "/100)")
	if _, err := p.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	shown, status := p.end(t)
	if status != 1 || p.stdout.Len() > 0 || !strings.Contains(shown, "coupon: ") || !strings.Contains(shown, "interrupt") {
		t.Errorf("got status %d, standard output %q, on the terminal %q; want 1, no output, and an error message", status, p.stdout, shown)
	}
	if locked(server) {
		t.Error("the lock is held, want a free lock")
	}
	awaitNoClients(t, server)
}
