package migration

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
)

// report is what a command has found and done. Its JSON is part of the
// command's interface.
type report interface{ about() *heading }

// heading is the beginning of every report.
type heading struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Error string `json:"error,omitempty"` // if the exit status is not 0
}

func (h *heading) about() *heading { return h }

// command makes c fill in the report r by calling do, which also writes text.
// With --json, the report replaces the text, even if do fails.
func (f *pairFlags) command(c *cobra.Command, r report, do func(c *cobra.Command, args []string, text io.Writer) error) *cobra.Command {
	c.RunE = func(c *cobra.Command, args []string) error {
		h, text := r.about(), c.OutOrStdout()
		if f.json {
			text = io.Discard
		}
		err := f.read()
		if err == nil {
			h.From, h.To = f.fromURL.String(), f.toURL.String()
			err = do(c, args, text)
		}
		if !f.json {
			return err
		}
		if err != nil {
			h.Error = err.Error()
		}
		return errors.Join(err, cli.WriteJSON(c.OutOrStdout(), r))
	}
	return c
}

func Command() *cobra.Command {
	f := &pairFlags{}
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Move locks from one backend to another while everything runs",
		Long: `Migrate helps to move locks from an old backend to a new one while all programs run. The programs do the work, with the URL
migrate:?from=OLD&to=NEW&phase=dual|new. These commands show the state of the migration, and move names that no program locks.

  1. plan               what is possible, the floor for the URL of the new backend, and the programs' URLs
  2. deploy phase=dual  everywhere; status shows programs that still use the old backend alone
  3. seal               moves names, when no such program is left
  4. deploy phase=new   everywhere: all other names move as they are locked
  5. finalize           checks that the old backend is no longer needed, and lists the remaining steps
     rollback           takes names back, before step 4 or after a return to phase dual
     untie              frees the old backend for another migration

The full runbook, also for a migration with a gate, is docs/migration.md of the project.

No backend can list free locks, so the commands get names as arguments or from a file (--names), one per line.
URLs with passwords belong in the environment (DSYNC_FROM, DSYNC_TO), because other users of a machine see flags.
Give --gate, --fenced=false and --ttl as the programs' URLs have them.
With --json, each command writes one JSON object in place of text. It has the member error if the exit status is not 0.

Exit status
    0  done; for status: no program is behind
    1  a backend is out of reach, or something else failed
    2  the command line is wrong
    3  not yet: a program is behind, or names are left; repeat it later
    4  impossible with these backends, or in this way
  130  interrupted; what was done stays, and the command can be repeated`,
		Example: `  export DSYNC_FROM=redisson://:secret@redis:6379 DSYNC_TO=etcd://etcd:2379/locks/
  dsync migrate plan --names names.txt
  dsync migrate status --names names.txt
  dsync migrate seal --all --names names.txt --dry-run
  dsync migrate seal --all --names names.txt --rate 200 --wait 1m
  dsync migrate finalize --names names.txt`,
	}
	cli.AsGroup(c)
	f.add(c)
	c.AddCommand(planCommand(f), statusCommand(f), sealCommand(f), finalizeCommand(f), rollbackCommand(f), untieCommand(f))
	return c
}
