package migration

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/drivers/migrate"
)

func rollbackCommand(f *pairFlags) *cobra.Command {
	s := &sweep{
		done:  "back",
		moved: false,
		does:  "each that has moved is unsealed on the old backend, with its tokens raised, and locked there from then on",
		step:  (*migrate.Driver).Rollback,
		check: (*migrate.Driver).WayBack,
	}
	var all bool
	c := &cobra.Command{
		Use:   "rollback NAME... | rollback --names FILE | rollback --all",
		Short: "Take names that have moved back to the old backend",
		Long: `Rollback takes names back to the old backend, where programs that know it alone get them again: each is held on the new backend
for a moment, the tokens of the old one are raised above all that the new one gave, and mark and seal are taken away. First put
all programs into phase dual, or a name moves again when it is locked. With --all it takes back all names that are sealed on the
old backend, also those that moved as they were locked.

It is refused, with exit status 4, where a backend cannot take a seal or a mark back or cannot raise its tokens; then the way
back ends in phase dual, with the names on the new backend. Names that somebody holds are left out, or waited for with --wait.
It can be interrupted and repeated at any time. The exit status is 3 if names are left.`,
		Example: `  dsync migrate rollback --names names.txt --dry-run
  dsync migrate rollback orders/42
  dsync migrate rollback --all`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if all {
				var err error
				if args, err = f.listOld(c.Context()); err != nil {
					return err
				}
				if len(args) == 0 {
					_, err = fmt.Fprintln(c.OutOrStdout(), "no name is held or sealed on the old backend")
					return err
				}
			}
			err := s.execute(c, f, args)
			if errors.Is(err, migrate.ErrNoWayBack) {
				return fmt.Errorf("%w; programs may return to phase dual all the same, and lock names that have moved on the new backend", err)
			}
			return err
		},
	}
	s.add(c)
	c.Flags().BoolVar(&all, "all", false, "all names that are sealed on the old backend")
	c.MarkFlagsMutuallyExclusive("all", "names")
	return c
}
