package migration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/drivers/migrate"
)

func sealCommand(f *pairFlags) *cobra.Command {
	s := &sweep{
		done:  "sealed",
		moved: true,
		does:  "each is sealed on the old backend for ever, and locked on the new one from then on",
		step:  (*migrate.Driver).Seal,
		check: (*migrate.Driver).Moves,
	}
	var all, anyway bool
	var lasting time.Duration
	c := &cobra.Command{
		Use:   "seal NAME... | seal --all --names FILE",
		Short: "Move idle names to the new backend",
		Long: `Seal moves names that no program locks, as a lock in phase new does: it holds each on both backends for a moment, seals it on the old
one, and marks it on the new one with the floor of its tokens. Programs in the migration then lock it on the new backend in every phase.
Programs that know the old backend alone wait for it without success, so seal first looks for them, as status does. It seals nothing and
exits with 3 if it finds one, unless --anyway is given. It looks once; --for looks longer.

Held names are left out, or waited for with --wait. Seal can be interrupted and repeated. The exit status is 3 if names are left.`,
		Example: `  dsync migrate seal --all --names names.txt --dry-run
  dsync migrate seal --all --names names.txt --for 10m --rate 200 --wait 1m`,
		Args: cobra.ArbitraryArgs,
	}
	s.add(c)
	c.Flags().BoolVar(&anyway, "anyway", false, "seal also beside programs that know the old backend alone, which wait in vain then, and without a floor")
	c.Flags().DurationVar(&lasting, "for", 0, "how long to look for programs that know the old backend alone; once if it is not given")
	c.Flags().BoolVar(&all, "all", false, "seal all names of --names")
	return f.command(c, s, func(c *cobra.Command, args []string, text io.Writer) error {
		if all != (s.names.File != "") {
			return cli.Usage(errors.New("--all and --names FILE go together: all names of the file are sealed"))
		}
		names, err := s.list(c, f, args)
		if err != nil {
			return err
		}
		if !anyway {
			if err := s.nobodyBehind(c.Context(), f, names, lasting, text); c.Context().Err() != nil {
				return fmt.Errorf("interrupted before the first name: %w", c.Context().Err())
			} else if err != nil {
				return err
			}
		}
		return s.execute(c, f, names, text)
	})
}

// nobodyBehind fails if it sees a program that uses only the old backend.
func (s *sweep) nobodyBehind(ctx context.Context, f *pairFlags, names []string, lasting time.Duration, text io.Writer) error {
	r := &statusReport{}
	if err := r.look(ctx, f, names, lasting); err != nil {
		return err
	}
	for _, n := range r.Names {
		if n.HeldOn == "old" && n.Behind != "" {
			s.Behind = append(s.Behind, n)
			n.writeBehind(text)
		}
	}
	if n := len(s.Behind); n > 0 {
		return cli.Unfinished("%s in use by programs that know the old backend alone, and would wait in vain: stop these, or seal --anyway", cli.Are(n, "name"))
	}
	if !f.fenced {
		return nil
	}
	_, _, err := f.floor(ctx)
	return err
}
