package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// planReport is what `plan` finds. Its JSON is part of the command's interface.
type planReport struct {
	From     string   `json:"from"`
	To       string   `json:"to"`
	Gate     bool     `json:"gate"`   // as asked for by --gate
	Fenced   bool     `json:"fenced"` // as asked for by --fenced
	Possible bool     `json:"possible"`
	Phases   []string `json:"phases,omitempty"`
	Floor    uint64   `json:"floor,omitempty"` // for the URL of the new backend
	Facts    []fact   `json:"facts"`
}

// fact is one thing that the pair can do or cannot do.
type fact struct {
	What string `json:"what"`
	OK   bool   `json:"ok"`
	Why  string `json:"why"`
}

func planCommand(f *pairFlags) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "plan",
		Short: "Show what is possible between two backends, and what is not and why",
		Long: `Plan opens both backends and shows what a migration between them can do: whether names move by seals, whether there is a gate,
what becomes of fencing tokens, of the order of waiters and of TTLs, and whether names can be taken back. It moves nothing; it
locks a reserved name for a moment on each backend, to compare their tokens, and says which floor the URL of the new one needs.

The exit status is 4 if the migration that the flags describe is not possible: also if one of the backends belongs to another
migration, as the old one of it (from and to swapped?) or with another new one (a wrong prefix?).

Not looked at: whether the two URLs lead to one and the same server by two addresses. The programs find out when they open the
migration, and so do seal and rollback.`,
		Example: `  export DSYNC_FROM=redisson://:secret@redis:6379 DSYNC_TO=etcd://etcd:2379/locks/
  dsync migrate plan`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			r, refusal, err := plan(c.Context(), f)
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(c.OutOrStdout(), r)
			} else {
				err = r.write(c.OutOrStdout())
			}
			return errors.Join(err, refusal)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return c
}

// plan returns, beside the report, why the migration is refused that the flags describe, if it is.
func plan(ctx context.Context, f *pairFlags) (r *planReport, refusal, err error) {
	p, err := f.openBoth(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = closed(p, err) }()
	r = &planReport{From: p.fromURL.String(), To: p.toURL.String(), Gate: f.gate, Fenced: f.fenced}
	one := *f
	one.gate = false
	seals, ties, sealsErr := p.procedure(ctx, one.options(p))
	one.gate = true
	gate, tiesGate, gateErr := p.procedure(ctx, one.options(p))
	if sealsErr == nil {
		sealsErr = p.neverSeals()
	}
	info := seals
	refusal, r.Phases = sealsErr, []string{"dual", "new"}
	if f.gate {
		info, ties, refusal, r.Phases = gate, tiesGate, gateErr, []string{"old", "dual", "new"}
	}
	if r.Possible = refusal == nil; !r.Possible {
		r.Phases = nil
	}
	r.add("names move by seals", sealsErr, "name by name, beside programs that know the old backend alone: these find a moved name locked, and wait")
	r.add("gate", gateErr, fmt.Sprintf("phase by phase, if all programs take part (--gate), up to %d in a phase", migrate.MaxMembers))
	r.add("programs with another new backend are refused", cmp.Or(ties, p.neverSeals(), p.fairNew()), "when they open the migration")
	t, err := f.tokens(ctx, p)
	if err != nil {
		return nil, nil, err
	}
	r.Floor = t.Floor
	r.Facts = append(r.Facts, p.tokens(f, t, refusal), p.back(f.gate || sealsErr != nil, t))
	r.Facts = append(r.Facts, p.lengths(info, refusal), p.order())
	return r, refusal, nil
}

// procedure returns what a migration promises, why its backends are not tied to each other, if they are not, and why there is no
// migration. It changes nothing on the backends, and is not to be closed.
func (p *pair) procedure(ctx context.Context, o *migrate.Options) (promised driver.Info, ties, err error) {
	m, err := migrate.New(p.from, p.to, o)
	if err != nil {
		return driver.Info{}, err, err
	}
	return m.Info(), m.Ties(), m.Look(ctx)
}

// tokens compares the tokens that the two backends give to a name without a history. They are zero if one of the two has none.
func (f *pairFlags) tokens(ctx context.Context, p *pair) (migrate.Tokens, error) {
	m, err := migrate.New(p.from, p.to, &migrate.Options{Unfenced: true, Gated: true, TTL: f.ttl, FromFloor: p.fromFloor, ToFloor: p.toFloor})
	if err != nil {
		return migrate.Tokens{}, nil // there is no migration, and plan says why
	}
	return m.Tokens(ctx)
}

// neverSeals returns why a driver that can seal does not, by its parameters. It says so itself only when it is asked to.
func (p *pair) neverSeals() error {
	for _, side := range []struct {
		role string
		url  *driver.URL
	}{{"old", p.fromURL}, {"new", p.toURL}} {
		switch u := side.url; {
		case u.Scheme != "redisson":
		case u.Param("evict", "") == "allow":
			return fmt.Errorf("the %s backend has evict=allow, and what may be evicted keeps no seal and no mark: %w", side.role, errors.ErrUnsupported)
		case side.role == "old" && u.Bool("fair", false):
			return fmt.Errorf("the old backend has fair=true, and a fair lock cannot be sealed: %w", errors.ErrUnsupported)
		}
	}
	return nil
}

// fairNew returns why the new backend has no identity, although its driver can seal.
func (p *pair) fairNew() error {
	if u := p.toURL; u.Scheme == "redisson" && u.Bool("fair", false) {
		return fmt.Errorf("the new backend has fair=true, and a fair lock cannot be sealed: %w", errors.ErrUnsupported)
	}
	return nil
}

func (r *planReport) add(what string, err error, why string) {
	if err != nil {
		r.Facts = append(r.Facts, fact{what, false, err.Error()})
		return
	}
	r.Facts = append(r.Facts, fact{what, true, why})
}

func (p *pair) tokens(f *pairFlags, t migrate.Tokens, refusal error) fact {
	from, to := p.from.Info(), p.to.Info()
	kinds := fmt.Sprintf("%s has %v ones, %s %v", from.Name, from.Fencing, to.Name, to.Fencing)
	switch {
	case !f.fenced && f.gate && t.Floor > 0:
		return fact{"fencing tokens", false, "none until the migration is over, so resources must not ask for them meanwhile; afterwards they rise, " +
			p.floorText(t)}
	case !f.fenced:
		return fact{"fencing tokens", false, "given up by --fenced=false (" + kinds + ")"}
	case from.Fencing == driver.None && to.Fencing == driver.None:
		return fact{"fencing tokens", false, "neither backend has them"}
	case to.Fencing == driver.None:
		return fact{"fencing tokens", false, kinds + ": what checks them would refuse everybody afterwards; --fenced=false gives them up"}
	case from.Fencing == driver.None:
		return fact{"fencing tokens", false, kinds + ": there are none until the migration is over"}
	}
	if refusal != nil {
		return fact{"fencing tokens", false, "the migration is not possible so"}
	}
	return fact{"fencing tokens", true, "they rise over the switch, for names that move by seals; for all others too, " + p.floorText(t)}
}

// floorText says what makes tokens rise for names that nobody locks during the migration.
func (p *pair) floorText(t migrate.Tokens) string {
	if t.Floor == 0 {
		return "if there is a floor in the URL of the new backend: which, cannot be seen without rights for names that begin with " + reserved
	}
	if t.Rise() {
		return fmt.Sprintf("with floor=%d as it is, wherever the URL of the new backend stands", p.toFloor)
	}
	return fmt.Sprintf("if floor=%d is a parameter of the URL of the new backend, wherever that stands: here, in `to`, and alone", t.Floor)
}

func (p *pair) back(gate bool, t migrate.Tokens) fact {
	const what = "moved names can be taken back"
	if gate {
		return fact{what, true, "no name moves for good: phases go back one by one"}
	}
	if err := p.noWayBack(); err != nil {
		return fact{what, false, err.Error() + "; programs may return to phase dual all the same"}
	}
	if p.from.Info().Name == "etcd" && t.To > t.From {
		return fact{what, false, "tokens of etcd cannot be raised, and those of the new backend are above them; with --fenced=false names " +
			"come back, and tokens fall; programs may return to phase dual all the same"}
	}
	return fact{what, true, "in phase dual, unless the old backend refuses to raise its tokens above those of the new one"}
}

func (p *pair) lengths(info driver.Info, refusal error) fact {
	const what = "TTL"
	if refusal != nil {
		return fact{what, false, "the migration is not possible"}
	}
	if err := info.CheckTTL(30 * time.Second); err != nil {
		return fact{what, true, bounds(info) + "; that is not the usual 30s: set one in the programs"}
	}
	return fact{what, true, bounds(info)}
}

func bounds(i driver.Info) string {
	s := "any"
	const longest = 100 * 365 * 24 * time.Hour // which no program needs
	switch {
	case i.MinTTL > 0 && i.MaxTTL > 0 && i.MaxTTL < longest:
		s = fmt.Sprintf("%v to %v", i.MinTTL, i.MaxTTL)
	case i.MinTTL > 0:
		s = fmt.Sprintf("%v or longer", i.MinTTL)
	case i.MaxTTL > 0:
		s = fmt.Sprintf("up to %v", i.MaxTTL)
	}
	if i.TTLUnit > 0 {
		s += fmt.Sprintf(", multiples of %v", i.TTLUnit)
	}
	return s
}

func (p *pair) order() fact {
	from, to := p.from.Info(), p.to.Info()
	return fact{"order of waiters", false, fmt.Sprintf("none while names move, so require=fair is refused (%s: %v, %s: %v)",
		from.Name, from.Order, to.Name, to.Order)}
}

func (r *planReport) write(w io.Writer) error {
	fmt.Fprintf(w, "%s → %s\n\n", r.From, r.To)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range r.Facts {
		answer := "no"
		if f.OK {
			answer = "yes"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.What, answer, f.Why)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if !r.Possible {
		return nil
	}
	fmt.Fprintf(w, "\nThe phases of the programs, one after the other, each everywhere before the next:\n")
	for _, p := range r.Phases {
		fmt.Fprintf(w, "  %-5s %s\n", p, phaseTexts[p])
	}
	return nil
}

var phaseTexts = map[string]string{
	"old":  "locks on the old backend",
	"dual": "on the old one, then on the new one as well: both have to be up",
	"new":  "on the new one",
}
