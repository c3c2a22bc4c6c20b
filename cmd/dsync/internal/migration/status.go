package migration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// statusReport is the result of `status`. Its JSON is part of the command's
// interface.
type statusReport struct {
	From    string           `json:"from"`
	To      string           `json:"to"`
	Moved   int              `json:"moved"`
	Held    int              `json:"held"`
	Idle    int              `json:"idle"`
	Behind  int              `json:"behind"` // names with a client behind, and processes that are in phase old or want to be
	Names   []nameReport     `json:"names"`
	Members []migrate.Member `json:"members,omitempty"` // with a gate
	fenced  bool             // the old backend has tokens
	gate    bool
}

func statusCommand(f *pairFlags) *cobra.Command {
	var names cli.NameFlags
	var asJSON bool
	var lasting time.Duration
	c := &cobra.Command{
		Use:   "status [NAME...]",
		Short: "Show where names are, who holds them, and who is behind",
		Long: `Status shows each name: whether it has moved, its holder and where that is, its waiters, and the floor of its tokens, which is the last
token of the old backend. With --gate it also shows the processes in phases old and new, and those that want to be in phase old. It
changes nothing.

A program is behind if it uses the old backend alone: if it holds a name there without the mark of programs in the migration, or waits
there for a name that has moved; with a gate also if it is in phase old or wants to be. The exit status is 3 then, and also if the user
has no rights to reserved names.

One look finds programs that hold a name at that moment. With --for, status looks fifty times a second at names in use, and finds a
program that holds one for a hundredth of the time within seconds. Waiters on Redis are found if they listen for the end of the lock.
PostgreSQL shows the application_name of sessions, which begins with migrate- for programs with a migrate URL.`,
		Example: `  dsync migrate status orders/42 invoices
  dsync migrate status --names names.txt --for 1m --json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if lasting < 0 {
				return cli.Usage(fmt.Errorf("--for %v is negative", lasting))
			}
			r, err := statusOfNames(c, f, &names, args, lasting)
			if err != nil {
				return failed(c.OutOrStdout(), asJSON, err)
			}
			if err = cli.Write(c.OutOrStdout(), asJSON, r, r.write); err == nil && r.Behind > 0 {
				err = cli.Unfinished("somebody is behind: %d in all", r.Behind)
			}
			return err
		},
	}
	names.Add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	c.Flags().DurationVar(&lasting, "for", 0, "how long to look at names that have not moved; once if it is not given")
	return c
}

// statusOfNames inspects the names given to a command. With a gate, names are
// optional.
func statusOfNames(c *cobra.Command, f *pairFlags, n *cli.NameFlags, args []string, lasting time.Duration) (*statusReport, error) {
	list, err := n.Some(c, args, !f.gate)
	if err != nil {
		return nil, err
	}
	return status(c.Context(), f, list, lasting)
}

func status(ctx context.Context, f *pairFlags, names []string, lasting time.Duration) (r *statusReport, err error) {
	err = f.with(ctx, func(p *pair) error {
		r = &statusReport{From: p.fromURL.String(), To: p.toURL.String(), Names: []nameReport{}, fenced: p.from.Info().Fencing != driver.None, gate: f.gate}
		m, err := migrate.New(p.from, p.to, f.options(p)) // is not closed: p is
		if err == nil {
			err = m.Look(ctx)
		}
		if err != nil {
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
		if r.Names, err = l.all(ctx, names); err != nil {
			return err
		}
		for _, n := range r.Names {
			r.count(n)
		}
		return nil
	})
	return r, err
}

func (r *statusReport) count(n nameReport) {
	switch n.State {
	case stateMoved:
		r.Moved++
	case stateHeld:
		r.Held++
	case stateRefused:
	default:
		r.Idle++
	}
	if n.Behind != "" {
		r.Behind++
	}
}

func (r *statusReport) write(w io.Writer) error {
	fmt.Fprintf(w, "%s → %s\n", r.From, r.To)
	if r.gate {
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

// writeBehind writes which client is behind at a name, if any.
func (r *nameReport) writeBehind(w io.Writer) {
	if r.Behind != "" {
		fmt.Fprintf(w, "behind: %s: %s\n", cli.Show(r.Name), r.Behind)
	}
}

// inOld returns the members that are in phase old or want to be.
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
	fmt.Fprintf(w, "\nprocesses in phase old: %d, in phase new: %d (those in dual are not registered)", n[migrate.PhaseOld], n[migrate.PhaseNew])
	if wants > 0 {
		fmt.Fprintf(w, "; that want to be in phase old, and may not or are about to: %d", wants)
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

// failed returns the error of a command. If JSON is requested, it also writes
// the error as JSON.
func failed(w io.Writer, asJSON bool, err error) error {
	if !asJSON {
		return err
	}
	return errors.Join(err, cli.WriteJSON(w, struct {
		Error string `json:"error"`
	}{err.Error()}))
}
