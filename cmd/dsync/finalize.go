package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// errNotMoved: names are still on the old backend.
var errNotMoved = errors.New("names have not moved")

// errBlocked: somebody waits on the old backend.
var errBlocked = errors.New("programs wait on the old backend for names that have moved")

func finalizeCommand(f *pairFlags) *cobra.Command {
	var names nameFlags
	var dryRun bool
	c := &cobra.Command{
		Use:   "finalize [NAME...] [--names FILE]",
		Short: "Check that the old backend is not needed any more, and say what may be cut off",
		Long: `Finalize checks that all names that are given have moved and that nobody waits for one of them on the old backend. Then it says
what may be cut off, and in which order. It changes nothing and cuts nothing off itself. Call it when all programs are in phase new:
those in other phases may be taken for ones that wait.

With --gate it needs no names: it joins phase new for a moment, which is possible only if no process is in phase old. A name
that is given must not be held on the old backend alone. With --dry-run it does not join, and asks the backends who is a member,
which is as exact as what they tell.

The exit status is 3 if it is too early: names are left, or somebody is behind, and it says who.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			r, err := names.status(c, f, args, 0)
			if err != nil {
				return err
			}
			how := "names and those who wait for them are looked at, and nothing is changed"
			if f.gate && !dryRun {
				how = "this command joins phase new for a moment"
			}
			fmt.Fprintf(c.OutOrStdout(), "%s → %s: is the old backend still needed? %s\n", r.From, r.To, how)
			if !f.gate {
				return r.finalizeSeals(c.OutOrStdout())
			}
			return r.finalizeGate(c.Context(), f, c.OutOrStdout(), dryRun)
		},
	}
	names.add(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "with --gate: do not join phase new")
	return c
}

func (r *statusReport) finalizeSeals(w io.Writer) error {
	left, blocked := 0, 0
	for _, n := range r.Names {
		if n.State != stateMoved {
			left++
			fmt.Fprintf(w, "not moved: %s (%s)\n", show(n.Name), n.State)
		}
		if n.Blocked > 0 {
			blocked++
		}
		n.writeBehind(w)
	}
	switch {
	case left > 0:
		return unfinishedError{fmt.Errorf("%w: %d of %d (see seal)", errNotMoved, left, len(r.Names))}
	case blocked > 0:
		return unfinishedError{fmt.Errorf("%w: %s", errBlocked, plural(blocked, "name"))}
	}
	fmt.Fprintf(w, `all names that were given have moved (%d)

1. When all programs are in phase new, give them, one by one, the URL of the new backend alone: %s
2. When no program has a migrate URL any more, cut all clients off the old backend: %s
   Until then keep its seals, which keep programs out that know it alone: delete no single key.
3. Delete the old backend.

Names that were not given are not known here: one that has not moved needs the old backend until step 1 is over.
`, len(r.Names), r.To, r.From)
	return nil
}

func (r *statusReport) finalizeGate(ctx context.Context, f *pairFlags, w io.Writer, dryRun bool) error {
	behind := &migrate.BehindError{Phase: migrate.PhaseOld}
	for _, m := range r.Members {
		if m.Phase == migrate.PhaseOld.String() {
			behind.Members = append(behind.Members, migrate.Member{Phase: migrate.PhaseOld, Slot: m.Slot, Hold: m.Hold, Owner: m.Owner})
		}
	}
	if len(behind.Members) > 0 {
		return behind
	}
	strangers := 0
	for _, n := range r.Names {
		if n.Behind != "" {
			strangers++
		}
		n.writeBehind(w)
	}
	if strangers > 0 {
		return unfinished("%s held by programs that take no part in the migration", are(strangers, "name"))
	}
	if !dryRun {
		if err := f.joinNew(ctx); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, `no process is in phase old

1. Processes in phase dual are not registered, and need the old backend: be sure that all are in phase new.
2. Give the programs, one by one, the URL of the new backend alone: %s
3. When no program has a migrate URL any more, cut all clients off the old backend, and delete it: %s
`, r.To, r.From)
	return nil
}

// joinNew becomes a member in phase new for a moment. A member in phase old, seen by more than what backends tell, is in the way.
func (f *pairFlags) joinNew(ctx context.Context) error {
	m, err := f.join(ctx, migrate.PhaseNew)
	if errors.Is(err, driver.ErrLocked) {
		return unfinished("another process is joining right now: %w", err)
	}
	if err != nil {
		return err
	}
	return closeDriver(m)
}
