package migration

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// errNotMoved means that names are still on the old backend.
var errNotMoved = errors.New("names have not moved")

// errBlocked means that a client is waiting on the old backend.
var errBlocked = errors.New("programs wait on the old backend for names that have moved")

// errFall means that the URL of the new backend lacks a floor.
var errFall = errors.New("tokens would fall for names that nobody locks before the programs use the new backend alone")

func finalizeCommand(f *pairFlags) *cobra.Command {
	var names cli.NameFlags
	var dryRun bool
	c := &cobra.Command{
		Use:   "finalize [NAME...] [--names FILE]",
		Short: "Check that the old backend is not needed any more, and say what may be cut off",
		Long: `Finalize checks that all given names have moved, that no program waits for one of them on the old backend, and that tokens also rise for
names that were not given. Then it prints the remaining steps in their safe order. It changes nothing, and locks a reserved name for a
moment on each backend. Call it when all programs are in phase new. Programs that poll on the old backend are not seen.

With --gate, finalize joins phase new, which fails while a process is in phase old, and closes phase old permanently if the old backend
keeps seals. No given name may be held on the old backend alone. With --dry-run it does not join, and relies on status.

The exit status is 3 if it is too early: names are left, a program is behind, or a floor is missing or cannot be seen.`,
		Example: `  dsync migrate finalize --names names.txt
  dsync migrate finalize --gate --dry-run`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			r, err := statusOfNames(c, f, &names, args, 0)
			if err != nil {
				return err
			}
			how := "names, those who wait for them, and tokens are looked at"
			if f.gate && !dryRun {
				how = "this command joins phase new, and closes phase old"
			}
			fmt.Fprintf(c.OutOrStdout(), "%s → %s: is the old backend still needed? %s\n", r.From, r.To, how)
			if f.gate {
				return r.finalizeGate(c.Context(), f, c.OutOrStdout(), dryRun)
			}
			return r.finalizeSeals(c.Context(), f, c.OutOrStdout())
		},
	}
	names.Add(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "with --gate: do not join phase new")
	return c
}

// alone returns the new backend's URL as programs use it, without secrets.
func (r *statusReport) alone(floor uint64) string {
	if floor == 0 {
		return r.To
	}
	return fmt.Sprintf("%s with floor=%d", r.To, floor)
}

// floor returns the floor of the new backend's URL, or an error if tokens would
// fall with it.
func (f *pairFlags) floor(ctx context.Context) (floor uint64, err error) {
	err = f.with(ctx, func(p *pair) error {
		t, err := f.tokens(ctx, p)
		if floor = p.toFloor; err != nil || t == (migrate.Tokens{}) || t.Rise() {
			return err
		}
		return cli.Unfinished("%w: `to` of all programs needs floor=%d. To change it, put all programs "+
			"into phase dual, `dsync migrate rollback --all`, `dsync migrate untie`, and begin again with that floor", errFall, t.Floor)
	})
	return floor, err
}

func (r *statusReport) finalizeSeals(ctx context.Context, f *pairFlags, w io.Writer) error {
	left, blocked := 0, 0
	for _, n := range r.Names {
		if n.State != stateMoved {
			left++
			fmt.Fprintf(w, "not moved: %s (%s)\n", cli.Show(n.Name), n.State)
		}
		if n.Blocked > 0 {
			blocked++
		}
		n.writeBehind(w)
	}
	switch {
	case left > 0:
		return cli.Unfinished("%w: %d of %d (see seal)", errNotMoved, left, len(r.Names))
	case blocked > 0:
		return cli.Unfinished("%w: %s", errBlocked, cli.Plural(blocked, "name"))
	}
	floor, tokens := uint64(0), "tokens were given up"
	if f.fenced {
		var err error
		if floor, err = f.floor(ctx); err != nil {
			return err
		}
		tokens = "tokens rise for all others, too"
		if !r.fenced {
			tokens = "the old backend has no tokens"
		}
	}
	r.writeSteps(w, floor, fmt.Sprintf("all names that were given have moved (%d), and %s", len(r.Names), tokens))
	return nil
}

// writeSteps writes the remaining steps.
func (r *statusReport) writeSteps(w io.Writer, floor uint64, found string) {
	fmt.Fprintf(w, `%s

In this order, when all programs are in phase new:
8. Cut all programs off the old backend that use it alone: %s
   Then wait for their longest TTL. A program in phase new that is cut off with them cannot lock names that have not moved.
9. Give the programs, one by one, the URL of the new backend alone: %s
10. When no program has a migrate URL any more, cut all clients off the old backend, and delete it.
   Until then delete no single key of it: its seals keep programs out that know it alone.
`, found, r.From, r.alone(floor))
}

func (r *statusReport) finalizeGate(ctx context.Context, f *pairFlags, w io.Writer, dryRun bool) error {
	if behind := r.inOld(); len(behind) > 0 {
		return &migrate.BehindError{Phase: migrate.PhaseOld, Members: behind}
	}
	strangers := 0
	for _, n := range r.Names {
		if n.Behind != "" {
			strangers++
		}
		n.writeBehind(w)
	}
	if strangers > 0 {
		return cli.Unfinished("%s held by programs that take no part in the migration", cli.Are(strangers, "name"))
	}
	floor, err := f.floor(ctx)
	if err != nil {
		return err
	}
	closed := "no process is in phase old now; this command did not join, so one may get there"
	if !dryRun {
		if closed, err = f.closeGate(ctx); err != nil {
			return err
		}
	}
	r.writeSteps(w, floor, closed+"\nProcesses in phase dual are not registered, and need the old backend")
	return nil
}

// closeGate joins phase new, permanently closes phase old if possible, and
// reports the result. A member in phase old blocks it, because the gate detects
// members that the backends do not report.
func (f *pairFlags) closeGate(ctx context.Context) (done string, err error) {
	m, err := f.join(ctx, migrate.PhaseNew)
	if err != nil {
		return "", err
	}
	end, err := operate(ctx, m, "finalize")
	if err != nil {
		return "", errors.Join(err, cli.CloseDriver(m))
	}
	defer end()
	err = m.Finalize(ctx)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		done, err = "no process is in phase old, and none gets there while one is in phase new: the old backend keeps no seal that closes it for good, "+
			"so step 8 comes before step 9", nil
	case errors.Is(err, driver.ErrLocked):
		err = cli.Unfinished("another one finalizes right now: %w", err)
	case err == nil:
		done = "no process is in phase old, and none gets there any more"
	}
	return done, errors.Join(err, cli.CloseDriver(m))
}
