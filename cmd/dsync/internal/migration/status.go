package migration

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// statusReport is the result of `status`. Its JSON is part of the command's
// interface.
type statusReport struct {
	heading
	Moved   int              `json:"moved"`
	Held    int              `json:"held"`
	Idle    int              `json:"idle"`
	Behind  int              `json:"behind"` // names with a client behind, and processes that are in phase old or want to be
	Names   []nameReport     `json:"names"`
	Members []migrate.Member `json:"members,omitempty"` // with a gate
}

func statusCommand(f *pairFlags) *cobra.Command {
	var names cli.NameFlags
	var lasting time.Duration
	c := &cobra.Command{
		Use:   "status [NAME...]",
		Short: "Show where names are, their holders, and programs that are behind",
		Long: `Status shows for each name whether it has moved, its holder and the backend of that hold, its waiters, and the floor of its tokens. The
floor is the last token of the old backend. With --gate, status also shows the processes in phases old and new, and the processes that
are waiting to enter phase old. It changes nothing.

A program is behind if it uses only the old backend. Such a program holds a name there without the mark of programs in the migration, or
is waiting there for a name that has moved. With a gate, a program is also behind if it is in phase old or waiting to enter it.
The exit status is 3 if a program is behind, or if the user has no rights to reserved names.

A single check finds programs that hold a name at that moment. With --for, status checks names in use fifty times a second. It finds a
program that holds a name for a hundredth of the time within seconds. On Redis, it finds waiters that listen for the end of the lock.
PostgreSQL shows the application_name of sessions, which begins with migrate- for programs with a migrate URL.`,
		Example: `  dsync migrate status orders/42 invoices
  dsync migrate status --names names.txt --for 1m --json`,
		Args: cobra.ArbitraryArgs,
	}
	names.Add(c)
	c.Flags().DurationVar(&lasting, "for", 0, "how long to check names that have not moved; without it, status checks them once")
	r := &statusReport{Names: []nameReport{}}
	return f.command(c, r, func(c *cobra.Command, args []string, text io.Writer) error {
		list, err := names.Some(c, args, !f.gate)
		if err == nil {
			err = r.look(c.Context(), f, list, lasting)
		}
		if err == nil || len(r.Names) > 0 {
			err = cmp.Or(err, r.write(text, f.gate))
		}
		if err == nil && r.Behind > 0 {
			err = cli.Unfinished("names or processes are behind: %d in all", r.Behind)
		}
		return err
	})
}

// look inspects names repeatedly for a while. If it is interrupted, the report
// holds what look has seen.
func (r *statusReport) look(ctx context.Context, f *pairFlags, names []string, lasting time.Duration) error {
	if lasting < 0 {
		return cli.Usage(fmt.Errorf("--for %v is negative", lasting))
	}
	return f.withBoth(ctx, func(p *pair, m *migrate.Driver) error {
		if err := m.Look(ctx); err != nil {
			return err
		}
		l, err := newLooker(p, f.gate)
		if err != nil {
			return err
		}
		l.lasting = lasting
		if f.gate {
			if r.Members, err = m.Members(ctx); err != nil {
				return err
			}
			r.Behind = len(r.inOld())
		}
		r.Names, err = l.all(ctx, names)
		for _, n := range r.Names {
			switch n.State {
			case stateMoved:
				r.Moved++
			case stateHeld:
				r.Held++
			case stateIdle:
				r.Idle++
			}
			if n.Behind != "" {
				r.Behind++
			}
		}
		return err
	})
}

func (r *statusReport) write(w io.Writer, gate bool) error {
	fmt.Fprintf(w, "%s → %s\n", r.From, r.To)
	if gate {
		r.writeMembers(w)
	}
	if len(r.Names) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nNAME\tSTATE\tHELD ON\tMODE\tHOLDERS\tHOLDER\tWAITERS\tTOKEN FLOOR")
	for _, n := range r.Names {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", cli.Show(n.Name), n.State, cli.Dash(n.HeldOn), cli.Dash(n.Mode), n.Holders, cli.Dash(n.who()),
			cli.Count(n.Waiters), cli.Dash(cli.Token(n.TokenFloor)))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%s: %d moved, %d held, %d idle\n", cli.Plural(len(r.Names), "name"), r.Moved, r.Held, r.Idle)
	for _, n := range r.Names {
		n.writeBehind(w)
	}
	return nil
}

// writeBehind writes the client of a name that is behind, if any.
func (r *nameReport) writeBehind(w io.Writer) {
	if r.Behind != "" {
		fmt.Fprintf(w, "behind: %s: %s\n", cli.Show(r.Name), r.Behind)
	}
}

// inOld returns the members that are in phase old or about to enter it.
func (r *statusReport) inOld() []migrate.Member {
	return slices.DeleteFunc(slices.Clone(r.Members), func(m migrate.Member) bool { return m.Phase != migrate.PhaseOld })
}

func (r *statusReport) writeMembers(w io.Writer) {
	n, wants := map[migrate.Phase]int{}, 0
	for _, m := range r.Members {
		if m.Wants {
			wants++
		} else {
			n[m.Phase]++
		}
	}
	fmt.Fprintf(w, "\nprocesses in phase old: %d, in phase new: %d (processes in phase dual are not registered)", n[migrate.PhaseOld], n[migrate.PhaseNew])
	if wants > 0 {
		fmt.Fprintf(w, "; processes that want to enter phase old: %d", wants)
	}
	fmt.Fprintln(w)
	for _, m := range r.Members {
		is := m.Phase.String()
		if m.Wants {
			is = "wants " + is
		}
		fmt.Fprintf(w, "  %s: slot %d  %s  %s\n", is, m.Slot, cli.Dash(m.Owner), cli.Dash(m.Hold))
	}
}
