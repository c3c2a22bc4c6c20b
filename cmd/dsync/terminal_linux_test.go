package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// TestProgressOnTerminal runs a seal on a terminal, where a progress bar is shown, and ends it with Ctrl-C.
func TestProgressOnTerminal(t *testing.T) {
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprint("n", i))
	}
	cmd, stdout, _ := program(t, append([]string{"migrate", "seal", "--from", "memory://a", "--to", "memory://b", "--rate", "20"}, names...)...)
	terminal := testenv.Terminal(t, cmd)
	until(t, terminal, "/200)")
	if _, err := terminal.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(terminal) // ends with EIO when nobody has the terminal open
	_ = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != exitInterrupted || !strings.Contains(string(rest), "dsync: interrupted, to be repeated") {
		t.Errorf("got status %d, on the terminal %q; want %d, and a word on it", status, rest, exitInterrupted)
	}
	if out := stdout.String(); strings.Contains(out, "/200)") || !strings.Contains(out, "not tried: ") {
		t.Errorf("standard output: got %q, want what was done, and no progress bar", out)
	}
}

// until reads what is shown until it contains text.
func until(t *testing.T, terminal *os.File, text string) {
	t.Helper()
	var shown strings.Builder
	for b := make([]byte, 1024); !strings.Contains(shown.String(), text); {
		n, err := terminal.Read(b)
		shown.Write(b[:n])
		if err != nil {
			t.Fatalf("the program has ended (%v), and did not show %q but %q", err, text, shown.String())
		}
	}
}
