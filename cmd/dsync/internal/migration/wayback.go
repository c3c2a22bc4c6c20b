package migration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/drivers/migrate"
)

func rollbackCommand(f *pairFlags) *cobra.Command {
	s := &sweep{
		done:  "back",
		moved: false,
		does:  "each moved name is unsealed on the old backend, with its tokens raised; a program in phase new moves it again",
		step:  (*migrate.Driver).Rollback,
		check: (*migrate.Driver).WayBack,
	}
	var all bool
	c := &cobra.Command{
		Use:   "rollback [NAME...] [--names FILE] [--all]",
		Short: "Take moved names back to the old backend",
		Long: `Rollback takes names back to the old backend, where programs that only know the old backend can lock them again. It holds each name on
the new backend for a moment, raises the tokens of the old one above all tokens of the new one, and removes the mark and the seal. First
put all programs into phase dual. Otherwise names move again when a program locks them. --all takes back all names that are sealed on
the old backend.

The exit status is 4 if a backend cannot take back a seal or a mark, or cannot raise its tokens. The way back then ends in phase dual.
Rollback skips held names, or waits for them with --wait. It can be interrupted and repeated. The exit status is 3 if names are left.`,
		Example: `  dsync migrate rollback --names names.txt --dry-run
  dsync migrate rollback orders/42
  dsync migrate rollback --all`,
		Args: cobra.ArbitraryArgs,
	}
	s.add(c)
	c.Flags().BoolVar(&all, "all", false, "also take back all names that are sealed on the old backend")
	return f.command(c, s, func(c *cobra.Command, names []string, text io.Writer) (err error) {
		if all {
			if err = f.with(c.Context(), func(p *pair) error {
				sealed, err := p.listOld(c.Context())
				names = append(names, sealed...)
				return err
			}); err != nil {
				return err
			}
			if len(names) == 0 && s.names.File == "" {
				_, err = fmt.Fprintln(text, "no name is held or sealed on the old backend")
				return err
			}
		}
		if names, err = s.list(c, f, names); err == nil {
			err = s.execute(c, f, names, text)
		}
		if errors.Is(err, migrate.ErrNoWayBack) {
			return fmt.Errorf("%w; programs can return to phase dual anyway, where they lock moved names on the new backend", err)
		}
		return err
	})
}

func untieCommand(f *pairFlags) *cobra.Command {
	var anyway bool
	c := &cobra.Command{
		Use:   "untie",
		Short: "Free the old backend for another migration",
		Long: `The first program of a migration ties the old backend to the new one, so that programs with a different new backend, or with the two
swapped, are refused. Untie frees the old backend again. Use it after all names were taken back, or if the first program had the wrong
URL. First stop all programs that use the migration, because they are not notified.

The exit status is 3 while names are sealed on the old backend (see rollback --all). With --gate all processes must be in phase dual,
and phase old is open again afterwards. After the loss of the new backend, --anyway unties despite sealed names.`,
		Example: `  export DSYNC_FROM=redisson://:secret@redis:6379 DSYNC_TO=etcd://etcd:2379/locks/
  dsync migrate untie`,
		Args: cli.NoArguments,
	}
	c.Flags().BoolVar(&anyway, "anyway", false, "untie even while names are sealed on the old backend")
	return f.command(c, &heading{}, func(c *cobra.Command, _ []string, text io.Writer) error {
		return f.withBoth(c.Context(), func(p *pair, m *migrate.Driver) error {
			if !anyway {
				if err := p.nothingSealed(c.Context(), m, f.gate); err != nil {
					return err
				}
			}
			end, err := m.Operate(c.Context(), c.Name())
			if err != nil {
				return err
			}
			defer end()
			if err = m.Untie(c.Context()); err == nil {
				fmt.Fprintf(text, "%s: no longer tied to a new backend\n", f.fromURL)
			}
			return err
		})
	})
}

// nothingSealed fails while names are sealed on the old backend. With a gate,
// it also fails while processes are in phases old and new.
func (p *pair) nothingSealed(ctx context.Context, m *migrate.Driver, gate bool) error {
	if gate {
		members, err := m.Members(ctx)
		if len(members) > 0 {
			err = cli.Unfinished("processes are in phases old and new: %v: first put all processes into phase dual", members)
		}
		return err
	}
	names, err := p.listOld(ctx)
	if errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("names that were not taken back stay sealed (see status): %w", err)
	}
	var sealed int
	if err == nil {
		sealed, err = countMoved(ctx, m, names)
	}
	if err == nil && sealed > 0 {
		err = cli.Unfinished("%s sealed on the old backend, where no program could lock them: first run dsync migrate rollback --all", cli.Are(sealed, "name"))
	}
	return err
}

// countMoved returns the number of names that have moved.
func countMoved(ctx context.Context, m *migrate.Driver, names []string) (int, error) {
	var n atomic.Int64
	err := cli.SideBySide(ctx, side, len(names), func(ctx context.Context, i int) error {
		moved, err := m.Moved(ctx, names[i])
		if moved {
			n.Add(1)
		}
		return err
	})
	return int(n.Load()), err
}
