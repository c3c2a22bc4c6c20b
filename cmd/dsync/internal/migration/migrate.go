package migration

import (
	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
)

func Command() *cobra.Command {
	f := &pairFlags{}
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Move locks from one backend to another while everything runs",
		Long: `Migrate helps to move locks from an old backend to a new one while all programs run, without a moment in which two holders have one
lock. The programs do the work, with the URL

  migrate:?from=OLD&to=NEW&phase=dual|new

in which OLD and NEW are escaped (%3A for a colon, and so on). This command shows where the migration stands, and moves the names
that nobody locks.

  1. plan               what is possible between the two, and which floor the URL of the new one needs
  2. deploy phase=dual  everywhere; "status" shows who still uses the old backend alone
  3. seal               names move, when no program is left that knows the old backend alone and has to go on
  4. deploy phase=new   everywhere: all other names move as they are locked
  5. finalize           is the old backend still needed? what is left to do, and in which order?
     rollback           takes names back, before step 4 or after a return to phase dual
     untie              lets the old backend be part of another migration

Names. No backend can list the locks that nobody holds, so the commands get names as arguments or from a file (--names), one in a line.

Passwords. URLs are shown without passwords and parameters. Other users of a machine can see flags, so URLs with passwords are
better in the environment, as DSYNC_FROM and DSYNC_TO.

Flags. --from and --to are the URLs of the two backends. Give --gate, --fenced=false and --ttl as the programs' migrate URL has
them. A pair of backends that keeps no seals is migrated with --gate --fenced=false, in the phases old, dual and new; then there is
nothing to seal and to roll back, and status shows the processes in phases old and new.

Exit status
    0  done; or with status, nobody is behind
    1  a backend cannot be opened or is out of reach, or something else failed
    2  the command line is wrong
    3  not there yet: somebody is behind, or names are left; repeat it later
    4  it cannot be done with these backends, or not in this way
  130  interrupted; what was done stays, and the command can be repeated

A runbook for Redisson to etcd is in docs/migration.md of the project.`,
		Example: `  export DSYNC_FROM=redisson://:secret@redis:6379 DSYNC_TO=etcd://etcd:2379/locks/
  dsync migrate plan
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
