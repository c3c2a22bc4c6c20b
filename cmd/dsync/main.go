// Command dsync is the command line tool of package dsync. `dsync run` runs a command under a lock, `dsync migrate` moves locks from one
// backend to another, and others show locks, and look at backends: see `dsync --help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/drivers/migrate"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	interrupts := make(chan os.Signal, 1)
	notify(interrupts, []os.Signal{os.Interrupt, syscall.SIGTERM})
	go func() { // ends with the program
		<-interrupts
		signal.Stop(interrupts) // a second Ctrl-C ends the program at once
		stop()
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// newRoot returns the command with all below it, which writes to stdout.
func newRoot(stdout io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "dsync",
		Short: "Locks across processes: the command line tool",
		Example: `  export DSYNC_URL=redisson://redis:6379
  dsync doctor                                        # is the backend fit for locks?
  dsync run backup -- pg_dump -f /backup/db shop      # one at a time, on all machines
  dsync ls --long                                     # who holds what?`,
		Version:       thisBuild().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	asGroup(root)
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(migrateCommand(), versionCommand(), serveCommand(), doctorCommand(), benchCommand())
	root.AddCommand(runCommands()...)
	root.AddCommand(adminCommands()...)
	root.SetFlagErrorFunc(flagError)
	root.SetOut(stdout)
	complete(root)
	return root
}

// run is the program with its surroundings as parameters. It returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot(stdout)
	root.SetArgs(append([]string{}, args...)) // nil would stand for those of the process
	root.SetIn(stdin)
	root.SetErr(stderr)
	wrapHelp(root, widthOf(stdout))
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(stderr, "dsync:", text)
	}
	return exitStatus(ctx, err)
}

func exitStatus(ctx context.Context, err error) int {
	if status, ok := statusOf(err); ok {
		return status
	}
	var behind *migrate.BehindError
	switch {
	case errors.As(err, new(usageError)):
		return exitUsage
	case ctx.Err() != nil, errors.Is(err, errDeclined):
		return exitInterrupted
	case errors.As(err, new(unfinishedError)), errors.As(err, &behind), errors.Is(err, migrate.ErrNotPermitted):
		return exitUnfinished
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, migrate.ErrPhase), errors.Is(err, migrate.ErrSkipped),
		errors.Is(err, migrate.ErrFull):
		return exitRefused
	}
	return exitFailed
}
