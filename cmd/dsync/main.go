// Command dsync is the command line tool of package dsync. `dsync run` runs a
// command under a lock, and `dsync migrate` moves locks from one backend to
// another. Other commands show locks and inspect backends: see `dsync --help`.
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

	"github.com/go-dsync/dsync/cmd/dsync/internal/admin"
	"github.com/go-dsync/dsync/cmd/dsync/internal/bench"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/doctor"
	"github.com/go-dsync/dsync/cmd/dsync/internal/migration"
	"github.com/go-dsync/dsync/cmd/dsync/internal/runjob"
	"github.com/go-dsync/dsync/cmd/dsync/internal/serve"
	"github.com/go-dsync/dsync/drivers/migrate"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	interrupts := make(chan os.Signal, 1)
	runjob.Notify(interrupts, []os.Signal{os.Interrupt, syscall.SIGTERM})
	go func() { // ends when the program ends
		<-interrupts
		signal.Stop(interrupts) // a second Ctrl-C ends the program immediately
		stop()
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// newRoot returns the command with all subcommands. It writes to stdout.
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
	cli.AsGroup(root)
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(migration.Command(), versionCommand(), serve.Command(), doctor.Command(), bench.Command())
	root.AddCommand(runjob.Commands()...)
	root.AddCommand(admin.Commands()...)
	root.SetFlagErrorFunc(cli.FlagError)
	root.SetOut(stdout)
	complete(root)
	return root
}

// run is the program, with its environment as parameters. It returns the exit
// status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot(stdout)
	if len(args) > 0 && args[0] == cobra.ShellCompRequestCmd {
		describePlainly(root)
	}
	root.SetArgs(append([]string{}, args...)) // nil would stand for the arguments of the process
	root.SetIn(stdin)
	root.SetErr(stderr)
	wrapHelp(root, cli.WidthOf(stdout))
	err := root.ExecuteContext(ctx)
	if err == nil {
		return cli.ExitDone
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(stderr, "dsync:", text)
	}
	return exitStatus(ctx, err)
}

func exitStatus(ctx context.Context, err error) int {
	if status, ok := cli.StatusOf(err); ok {
		return status
	}
	var behind *migrate.BehindError
	switch {
	case errors.As(err, new(cli.UsageError)):
		return cli.ExitUsage
	case ctx.Err() != nil, errors.Is(err, admin.ErrDeclined):
		return cli.ExitInterrupted
	case errors.As(err, new(cli.UnfinishedError)), errors.As(err, &behind), errors.Is(err, migrate.ErrNotPermitted),
		errors.Is(err, migrate.ErrOperator):
		return cli.ExitUnfinished
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, migrate.ErrPhase), errors.Is(err, migrate.ErrSkipped),
		errors.Is(err, migrate.ErrFull):
		return cli.ExitRefused
	}
	return cli.ExitFailed
}
