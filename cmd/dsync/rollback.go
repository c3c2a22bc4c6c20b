package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/driver/move"
	"github.com/go-dsync/dsync/drivers/migrate"
)

func rollbackCommand(f *pairFlags) *cobra.Command {
	s := &sweep{
		done:  "back",
		moved: false,
		does:  "each that has moved is unsealed on the old backend, with its tokens raised, and locked there from then on",
		step:  (*migrate.Driver).Rollback,
		check: (*pair).noWayBack,
	}
	c := &cobra.Command{
		Use:   "rollback NAME... | rollback --names FILE",
		Short: "Take names that have moved back to the old backend",
		Long: `Rollback takes names back to the old backend, where programs that know it alone get them again: each is held on the new backend
for a moment, the tokens of the old one are raised above all that the new one gave, and mark and seal are taken away. First put
all programs into phase dual, or a name moves again when it is locked.

It is refused, with exit status 4, where a backend cannot take a seal or a mark back or cannot raise its tokens; then the way
back ends in phase dual, with the names on the new backend. Names that somebody holds are left out, or waited for with --wait.
It can be interrupted and repeated at any time. The exit status is 3 if names are left.`,
		Example: `  dsync migrate rollback --names names.txt --dry-run
  dsync migrate rollback orders/42`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			err := s.execute(c, f, args)
			if errors.Is(err, migrate.ErrNoWayBack) {
				return fmt.Errorf("%w; programs may return to phase dual all the same, and lock names that have moved on the new backend", err)
			}
			return err
		},
	}
	s.add(c)
	return c
}

// noWayBack returns why moved names cannot be taken back, as far as that is known before.
func (p *pair) noWayBack() error {
	if _, ok := p.from.(move.Unsealer); !ok {
		return fmt.Errorf("%w: backend %s takes no seal back", migrate.ErrNoWayBack, p.from.Info().Name)
	}
	if _, ok := p.to.(move.Unmarker); !ok {
		return fmt.Errorf("%w: backend %s takes no mark back", migrate.ErrNoWayBack, p.to.Info().Name)
	}
	return nil
}
