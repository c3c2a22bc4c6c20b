package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/drivers/migrate"
)

func untieCommand(f *pairFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "untie",
		Short: "Let the old backend be part of another migration",
		Long: `Untie ends what the first program of a migration has begun: it ties the old backend to the new one, so that a program with another
new backend, by a wrong prefix perhaps, is refused, and so is one with the two swapped. Untie the old backend when the migration was
given up and all names were taken back, or when the first program was the one that was wrong. First stop all programs that use
the migration: those go on, and are not told.`,
		Example: `  export DSYNC_FROM=redisson://:secret@redis:6379 DSYNC_TO=etcd://etcd:2379/locks/
  dsync migrate untie`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := f.openBoth(c.Context())
			if err != nil {
				return err
			}
			m, err := migrate.New(p.from, p.to, f.options(p))
			if err != nil {
				return closed(p, err)
			}
			end, err := operate(c.Context(), m, "untie")
			if err == nil {
				if err = m.Untie(c.Context()); err == nil {
					fmt.Fprintf(c.OutOrStdout(), "%s: not tied to a new backend any more\n", p.fromURL)
				}
				end()
			}
			if e := closeDriver(m); err == nil {
				err = e
			}
			return err
		},
	}
}
