package migration

import (
	"errors"
	"fmt"
	"io"

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
		Long: `Rollback takes names back to the old backend, where programs that know it alone get them again. It holds each on the new backend for a
moment, raises the tokens of the old one above all of the new one, and removes mark and seal. First put all programs into phase dual,
or names move again as they are locked. --all takes back all names that are sealed on the old backend.

The exit status is 4 if a backend cannot take back a seal or a mark, or cannot raise its tokens. The way back then ends in phase dual.
Held names are left out, or waited for with --wait. Rollback can be interrupted and repeated. The exit status is 3 if names are left.`,
		Example: `  dsync migrate rollback --names names.txt --dry-run
  dsync migrate rollback orders/42
  dsync migrate rollback --all`,
		Args: cobra.ArbitraryArgs,
	}
	s.add(c)
	c.Flags().BoolVar(&all, "all", false, "all names that are sealed on the old backend")
	c.MarkFlagsMutuallyExclusive("all", "names")
	return f.command(c, s, func(c *cobra.Command, names []string, text io.Writer) (err error) {
		if all {
			if err = f.with(c.Context(), func(p *pair) (err error) {
				names, err = p.listOld(c.Context())
				return err
			}); err != nil {
				return err
			}
			if len(names) == 0 {
				_, err = fmt.Fprintln(text, "no name is held or sealed on the old backend")
				return err
			}
		}
		if names, err = s.list(c, f, names); err == nil {
			err = s.execute(c, f, names, text)
		}
		if errors.Is(err, migrate.ErrNoWayBack) {
			return fmt.Errorf("%w; programs may return to phase dual all the same, and lock names that have moved on the new backend", err)
		}
		return err
	})
}
