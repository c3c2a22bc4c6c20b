//go:build !linux && !darwin

package runjob

import (
	"errors"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
)

var (
	endSignals    = []os.Signal{os.Interrupt}
	passedSignals = endSignals
)

// groupsWork returns an error: without process groups, dsync cannot promise
// that the whole command ends in time.
func groupsWork() error {
	return errors.New("run needs the process groups of Linux and macOS, and is not supported on " + runtime.GOOS)
}

func (r *runner) supervise(*dsync.Lease) ending {
	return ending{err: cli.Exit(cli.ExitMisused, groupsWork())}
}

func guardCommand() *cobra.Command { return &cobra.Command{Use: guardName, Hidden: true} }
