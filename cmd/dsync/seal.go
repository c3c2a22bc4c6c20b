package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/drivers/migrate"
)

func sealCommand(f *pairFlags) *cobra.Command {
	s := &sweep{
		done:  "sealed",
		moved: true,
		does:  "each is sealed on the old backend for ever, and locked on the new one from then on",
		step:  (*migrate.Driver).Seal,
		check: (*pair).neverSeals,
	}
	var all bool
	c := &cobra.Command{
		Use:   "seal NAME... | seal --all --names FILE",
		Short: "Move idle names to the new backend",
		Long: `Seal moves names to the new backend, as a lock in phase handover does, for names that nobody locks: each is taken on both backends
for a moment, sealed on the old one for ever, and marked on the new one with the floor of its tokens. Whoever uses the migration
takes it on the new backend from then on, in whatever phase. A program that knows the old backend alone waits for it in vain: so
seal names when no such program is left that has to go on.

Names that somebody holds are left out, or waited for with --wait, in the queue like everybody else. It can be interrupted and
repeated at any time: a name has moved or has not. The exit status is 3 if names are left.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if all != (s.names.file != "") {
				return usageError{errors.New("--all and --names FILE go together: all names of the file are sealed")}
			}
			return s.execute(c, f, args)
		},
	}
	s.add(c)
	c.Flags().BoolVar(&all, "all", false, "seal all names of --names")
	return c
}
