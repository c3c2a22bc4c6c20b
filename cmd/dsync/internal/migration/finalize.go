package migration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// finalizeReport is the result of `finalize`. Its JSON is part of the command's
// interface.
type finalizeReport struct {
	statusReport
	Found string   `json:"found,omitempty"`
	Floor uint64   `json:"floor,omitempty"` // of the new backend's URL
	Steps []string `json:"steps,omitempty"` // what remains to be done; the first is step 8 of the runbook
}

func finalizeCommand(f *pairFlags) *cobra.Command {
	var names cli.NameFlags
	var dryRun bool
	var lasting time.Duration
	c := &cobra.Command{
		Use:   "finalize [NAME...] [--names FILE]",
		Short: "Check that the old backend is no longer needed, and list the remaining steps",
		Long: `Finalize checks that all given names have moved, that no program is waiting for one of them on the old backend, and that tokens also
rise for names that were not given. Then it prints the remaining steps in their safe order. It changes nothing, but locks a reserved
name on each backend for a moment. Call it when all programs are in phase new. It does not detect programs that poll on the old backend.

With --gate, finalize joins phase new, which fails while a process is in phase old. It closes phase old permanently if the old backend
keeps seals. It first checks for a while (--for) that no program that takes no part holds a given name. With --dry-run, finalize does not
join phase new, and relies on the checks of status.

The exit status is 3 if finalize was called too early: names are left, a program is behind, or a floor is missing or cannot be read.`,
		Example: `  dsync migrate finalize --names names.txt
  dsync migrate finalize --gate --dry-run`,
		Args: cobra.ArbitraryArgs,
	}
	names.Add(c)
	c.Flags().DurationVar(&lasting, "for", 5*time.Second, "with --gate: how long to check the given names")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "with --gate: do not join phase new")
	r := &finalizeReport{statusReport: statusReport{Names: []nameReport{}}}
	return f.command(c, r, func(c *cobra.Command, args []string, text io.Writer) error {
		list, err := names.Some(c, args, !f.gate)
		if err != nil {
			return err
		}
		if !f.gate {
			lasting = 0
		}
		if err := r.look(c.Context(), f, list, lasting); err != nil {
			return err
		}
		how := "this command checks names, their waiters, and tokens"
		if f.gate && !dryRun {
			how = "this command joins phase new, and closes phase old"
		}
		fmt.Fprintf(text, "%s → %s: is the old backend still needed? %s\n", r.From, r.To, how)
		if err = r.tooEarly(text, f.gate); err != nil {
			return err
		}
		tokens, err := r.tokens(c.Context(), f)
		switch {
		case err != nil:
			return err
		case !f.gate:
			r.Found = fmt.Sprintf("all given names have moved (%d), and %s", len(r.Names), tokens)
		case dryRun:
			r.Found = "no process is in phase old now. This command did not join phase new, so a process can still enter phase old"
		default:
			if r.Found, err = f.closeGate(c); err != nil {
				return err
			}
		}
		r.writeSteps(text, f.gate)
		return nil
	})
}

// tooEarly returns an error while programs need the old backend.
func (r *finalizeReport) tooEarly(w io.Writer, gate bool) error {
	if behind := r.inOld(); len(behind) > 0 {
		return &migrate.BehindError{Phase: migrate.PhaseOld, Members: behind}
	}
	left := 0
	for _, n := range r.Names {
		if !gate && n.State != stateMoved {
			left++
			fmt.Fprintf(w, "not moved: %s (%s)\n", cli.Show(n.Name), n.State)
		}
		n.writeBehind(w)
	}
	switch {
	case left > 0:
		return cli.Unfinished("%d of %d names have not moved (run dsync migrate seal)", left, len(r.Names))
	case r.Behind > 0 && gate:
		return cli.Unfinished("%s held by programs that take no part in the migration", cli.Are(r.Behind, "name"))
	case r.Behind > 0:
		return cli.Unfinished("programs wait on the old backend for names that have moved: %s", cli.Plural(r.Behind, "name"))
	}
	return nil
}

// floor returns an error if tokens would fall with the floor of the new
// backend's URL.
func (f *pairFlags) floor(ctx context.Context) (floor uint64, t migrate.Tokens, err error) {
	err = f.with(ctx, func(p *pair) error {
		t, err = f.tokens(ctx, p)
		if floor = p.toFloor; err != nil || t == (migrate.Tokens{}) || t.Rise() {
			return err
		}
		return cli.Unfinished("tokens of some names would fall, namely of names that are first locked when the programs use only the new backend: `to` of "+
			"all programs needs floor=%d. To change the floor, put all programs into phase dual, run `dsync migrate rollback --all` and "+
			"`dsync migrate untie`, and start again", t.Floor)
	})
	return floor, t, err
}

// tokens reports whether tokens rise.
func (r *finalizeReport) tokens(ctx context.Context, f *pairFlags) (found string, err error) {
	if !f.fenced && !f.gate {
		return "tokens were given up", nil
	}
	floor, t, err := f.floor(ctx)
	r.Floor = floor
	if t == (migrate.Tokens{}) {
		return "the old backend has no tokens", err
	}
	return "tokens rise for all other names, too", err
}

// writeSteps reports the remaining steps.
func (r *finalizeReport) writeSteps(w io.Writer, gate bool) {
	if gate {
		r.Found += "\nProcesses in phase dual are not registered, and still need the old backend"
	}
	alone := r.To
	if r.Floor > 0 {
		alone += fmt.Sprintf(" with floor=%d", r.Floor)
	}
	seals := "\n   Until then, do not delete any of its keys: its seals keep out programs that only know the old backend."
	if gate {
		seals = ""
	}
	r.Steps = []string{
		"Cut off all programs that use only the old backend, by their own user of it. Then wait for their longest TTL.\n   If a program in phase new " +
			"is also cut off, it cannot lock names that have not moved.",
		"Give the programs, one by one, only the URL of the new backend: " + alone,
		"When no program has a migrate URL any longer, cut all clients off the old backend, and delete it." + seals,
	}
	fmt.Fprintf(w, "%s\n\nIn this order, when all programs are in phase new:\n", r.Found)
	for i, step := range r.Steps {
		fmt.Fprintf(w, "%d. %s\n", 8+i, step)
	}
}

// closeGate joins phase new, permanently closes phase old if possible, and
// reports the result. A member in phase old blocks it, because the gate detects
// members that the backends do not report.
func (f *pairFlags) closeGate(c *cobra.Command) (done string, err error) {
	err = f.join(c.Context(), migrate.PhaseNew, c.Name(), func(m *migrate.Driver) error {
		err := m.Finalize(c.Context())
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			done = "no process is in phase old, and none can enter it while a process is in phase new. The old backend keeps no seal that closes phase old " +
				"permanently, so step 9 must wait for step 8"
			return nil
		case errors.Is(err, driver.ErrLocked):
			return cli.Unfinished("another operator is finalizing the migration: %w", err)
		}
		done = "no process is in phase old, and none can enter it any longer"
		return err
	})
	return done, err
}
