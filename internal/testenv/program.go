package testenv

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// programVariable tells a process that it was made by Program.
const programVariable = "DSYNC_TEST_PROGRAM"

// RunProgram is the first half of a TestMain of package main whose tests call [Program]: where this process is to be the program, or
// has one of the variables in its environment by which the program knows the processes that it starts, it calls main, which has to
// exit. Otherwise it returns.
func RunProgram(main func(), variables ...string) {
	for _, variable := range append(variables, programVariable) {
		if os.Getenv(variable) != "" {
			main()
		}
	}
	// A process with the race detector would take a second to end.
	os.Setenv("GORACE", strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=0"))
}

// Program returns the program as a process that is yet to be started. It has a directory of its own for temporary files.
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
	_ = cmd.Run() // the exit code says it all
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}
