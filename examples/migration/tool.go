package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// tool is the command dsync.
type tool struct {
	path string
	env  []string
}

// newTool builds the command in dir, unless it exists already.
func newTool(ctx context.Context, dir, path, from, to string) (*tool, error) {
	// Other users of a machine can see the flags of a command, but not its
	// environment.
	t := &tool{path: path, env: append(os.Environ(), "DSYNC_FROM="+from, "DSYNC_TO="+to)}
	if path != "" {
		return t, nil
	}
	t.path = filepath.Join(dir, "dsync")
	build := exec.CommandContext(ctx, "go", "build", "-o", t.path, "github.com/go-dsync/dsync/cmd/dsync")
	build.Env = append(os.Environ(), "GOWORK=auto") // the command is in its own module
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build of the command dsync: %w\n%s", err, out)
	}
	return t, nil
}

// migrate runs a command of `dsync migrate` and returns its exit status and its
// whole output. If err is nil, the command has ended by itself.
func (t *tool) migrate(ctx context.Context, args ...string) (status int, said string, err error) {
	cmd := exec.CommandContext(ctx, t.path, append([]string{"migrate"}, args...)...)
	cmd.Env = t.env
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if errors.As(err, new(*exec.ExitError)) && cmd.ProcessState.Exited() {
		err = nil
	}
	if cmd.ProcessState != nil {
		status = cmd.ProcessState.ExitCode()
	}
	return status, out.String(), err
}
