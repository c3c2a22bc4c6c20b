package migration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// planReport is the result of `plan`. Its JSON is part of the command's
// interface.
type planReport struct {
	heading
	Gate     bool              `json:"gate"`   // as requested by --gate
	Fenced   bool              `json:"fenced"` // as requested by --fenced
	Possible bool              `json:"possible"`
	Phases   []string          `json:"phases,omitempty"`
	URLs     map[string]string `json:"urls,omitempty"`  // of the programs: by phase, and "alone" for the end
	Floor    uint64            `json:"floor,omitempty"` // for the URL of the new backend
	Facts    []fact            `json:"facts"`
	Refused  []nameReport      `json:"refused,omitempty"` // given names
}

// fact is one ability of the pair, or one limitation.
type fact struct {
	What string `json:"what"`
	OK   bool   `json:"ok"`
	Why  string `json:"why"`
}

func planCommand(f *pairFlags) *cobra.Command {
	var names cli.NameFlags
	var passwords bool
	c := &cobra.Command{
		Use:   "plan [NAME...] [--names FILE]",
		Short: "Show what is possible between two backends, and explain what is not",
		Long: `Plan opens both backends and shows whether names move by seals or need a gate, what happens to fencing tokens and TTLs, what programs
cannot use during the migration, and whether names can be taken back. It prints the floor that every URL of the new backend needs, and
the programs' URLs. It moves nothing, but locks reserved names on each backend for a moment. It checks whether both backends accept
the given names.

The exit status is 4 if this migration is not possible, if a backend refuses a name, or if one of the backends belongs to another
migration, for example because from and to are swapped, or because of a wrong prefix or a different floor. It is 3 if the user has no rights
to reserved names.

Plan does not check whether the two URLs lead to the same server, but the programs, seal and rollback do.`,
		Example: `  export DSYNC_FROM=redisson://:secret@redis:6379 DSYNC_TO=etcd://etcd:2379/locks/
  dsync migrate plan --names names.txt`,
		Args: cobra.ArbitraryArgs,
	}
	names.Add(c)
	c.Flags().BoolVar(&passwords, "passwords", false, "print the programs' URLs with their passwords")
	r := &planReport{Facts: []fact{}}
	return f.command(c, r, func(c *cobra.Command, args []string, text io.Writer) error {
		list, err := names.Read(c, args)
		if err != nil {
			return err
		}
		var refusal error
		err = f.with(c.Context(), func(p *pair) (err error) {
			refusal, err = r.fill(c.Context(), f, p, list)
			return err
		})
		if err != nil {
			return err
		}
		if r.Possible = refusal == nil; r.Possible {
			r.URLs = f.urls(r.Phases, r.Floor, passwords)
		} else {
			r.Phases = nil
		}
		return cmp.Or(r.write(text), refusal)
	})
}

// fill fills in the report. If the migration that the flags describe is
// refused, fill returns the refusal.
func (r *planReport) fill(ctx context.Context, f *pairFlags, p *pair, names []string) (refusal, err error) {
	r.Gate, r.Fenced, r.Phases = f.gate, f.fenced, []string{"dual", "new"}
	one := *f
	one.gate = false
	m, ties, refusal := p.procedure(ctx, one.options(p))
	r.add("names move by seals", refusal, "name by name, beside programs that only know the old backend. They find a moved name locked, and wait")
	needsGate := errors.Is(refusal, migrate.ErrNeedsGate)
	if f.gate || needsGate {
		one.gate = true
		gated, gateTies, gateErr := p.procedure(ctx, one.options(p))
		r.add("gate", gateErr, fmt.Sprintf("phase by phase, if all programs take part (--gate), with up to %d processes in a phase", migrate.MaxMembers))
		if f.gate {
			m, ties, refusal, r.Phases = gated, gateTies, gateErr, []string{"old", "dual", "new"}
		}
	}
	r.add("programs with a different new backend are refused", ties, "when they open the migration")
	t, err := f.tokens(ctx, p)
	if errors.Is(err, migrate.ErrNotPermitted) {
		refusal = cmp.Or(refusal, err)
	} else if err != nil {
		return nil, err
	}
	r.Floor = t.Floor
	if m != nil {
		r.add("HoldAtLeast", m.MayLeave(), "and dsync run --at-least")
	}
	r.Facts = append(r.Facts, p.tokens(f, t, cmp.Or(err, refusal)), p.back(ctx, m, f.gate || needsGate, t, refusal), p.lengths(m, refusal), fact{"modes", false,
		"only the exclusive lock. Programs that use reads, permits or latches, or that require an order of waiters, cannot migrate"})
	if len(names) > 0 {
		if err := r.try(ctx, p, names); err != nil {
			return nil, err
		}
		refusal = cmp.Or(refusal, refusalOf(r.Refused))
	}
	return refusal, nil
}

// try checks whether both backends accept names.
func (r *planReport) try(ctx context.Context, p *pair, names []string) error {
	l, err := newLooker(p, true)
	if err != nil {
		return err
	}
	seen, err := l.all(ctx, names)
	if err != nil {
		return err
	}
	for _, n := range seen {
		if n.State == stateRefused {
			r.Refused = append(r.Refused, n)
		}
	}
	r.add("names", refusalOf(r.Refused), "both backends accept "+cli.Plural(len(names), "name"))
	return nil
}

// procedure returns a migration, which must not be closed. If its backends are
// not tied to each other, or if the migration is refused, procedure also
// returns the reason.
func (p *pair) procedure(ctx context.Context, o *migrate.Options) (m *migrate.Driver, ties, err error) {
	if m, err = migrate.New(p.from, p.to, o); err != nil {
		return nil, err, err
	}
	if err = m.Look(ctx); err == nil && !o.Gated {
		err = m.Moves(ctx)
	}
	if ties = m.Ties(ctx); ties == nil && errors.Is(err, migrate.ErrNotPermitted) {
		ties = err
	}
	return m, ties, err
}

// urls returns the URLs of the programs.
func (f *pairFlags) urls(phases []string, floor uint64, passwords bool) map[string]string {
	one := *f
	if one.to = withFloor(f.to, floor); !passwords {
		one.from, one.to = withoutPassword(one.from), withoutPassword(one.to)
	}
	urls := map[string]string{"alone": one.to}
	for _, phase := range phases {
		urls[phase] = one.url(phase)
	}
	return urls
}

// withFloor replaces the floor of a URL.
func withFloor(raw string, floor uint64) string {
	before, query, _ := strings.Cut(raw, "?")
	params := strings.FieldsFunc(query, func(r rune) bool { return r == '&' })
	params = slices.DeleteFunc(params, func(p string) bool { return strings.HasPrefix(p, "floor=") })
	if floor > 0 {
		params = append(params, fmt.Sprintf("floor=%d", floor))
	}
	if len(params) == 0 {
		return before
	}
	return before + "?" + strings.Join(params, "&")
}

var (
	userPassword = regexp.MustCompile(`(//[^:@/?]*):[^?]*@`)
	parameter    = regexp.MustCompile(`([?&][^=&]*password)=[^&]*`)
)

// withoutPassword replaces the passwords of a URL by the word PASSWORD. The URL
// must be accepted by driver.ParseURL.
func withoutPassword(raw string) string {
	return parameter.ReplaceAllString(userPassword.ReplaceAllString(raw, "$1:PASSWORD@"), "$1=PASSWORD")
}

// tokens compares the tokens that the two backends issue for a name that was
// not locked before. Both are zero if one of the backends has no tokens.
func (f *pairFlags) tokens(ctx context.Context, p *pair) (migrate.Tokens, error) {
	m, err := migrate.New(p.from, p.to, &migrate.Options{Unfenced: true, Gated: true, TTL: f.ttl, FromFloor: p.fromFloor, ToFloor: p.toFloor})
	if err != nil {
		return migrate.Tokens{}, nil // there is no migration, and plan reports why
	}
	return m.Tokens(ctx)
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
	kinds := fmt.Sprintf("%s: %v, %s: %v", from.Name, from.Fencing, to.Name, to.Fencing)
	switch {
	case !f.fenced && f.gate && t.From > 0:
		return fact{"fencing tokens", false, "there are none until the migration has ended, so resources must not require them before that. " +
			"Afterwards they rise, " + p.floorText(t)}
	case !f.fenced:
		return fact{"fencing tokens", false, "given up because of --fenced=false (" + kinds + ")"}
	case from.Fencing == driver.None && to.Fencing == driver.None:
		return fact{"fencing tokens", false, "neither backend has fencing tokens"}
	case to.Fencing == driver.None:
		return fact{"fencing tokens", false, kinds + ". Resources that check tokens would refuse every client after the migration. " +
			"--fenced=false gives up tokens"}
	case from.Fencing == driver.None:
		return fact{"fencing tokens", false, kinds + ". There are none until the migration has ended"}
	}
	if errors.Is(refusal, migrate.ErrOtherFloor) {
		return fact{"fencing tokens", false, fmt.Sprintf("the programs of this migration have floor=%d in the URL of the new backend", t.Floor)}
	}
	if f.gate && errors.Is(refusal, migrate.ErrTokens) {
		return fact{"fencing tokens", false, "with a gate there are none until the migration has ended: add --fenced=false"}
	}
	if refusal != nil {
		return fact{"fencing tokens", false, "this migration is not possible: " + refusal.Error()}
	}
	return fact{"fencing tokens", true, "they rise over the switch for names that move by seals, and for all other names " + p.floorText(t)}
}

// floorText explains why tokens rise for names that are not locked during the
// migration.
func (p *pair) floorText(t migrate.Tokens) string {
	if t.Floor == p.toFloor {
		return fmt.Sprintf("if floor=%d stays in every URL of the new backend", t.Floor)
	}
	return fmt.Sprintf("if floor=%d is a parameter of every URL of the new backend: here, in `to`, and after the migration", t.Floor)
}

func (p *pair) back(ctx context.Context, m *migrate.Driver, gate bool, t migrate.Tokens, refusal error) fact {
	const what = "moved names can be taken back"
	switch {
	case m == nil || gate && refusal != nil:
		return fact{what, false, "this migration is not possible"}
	case gate:
		return fact{what, true, "no name moves permanently: processes can return phase by phase"}
	}
	if err := m.WayBack(ctx); err != nil {
		return fact{what, false, err.Error() + ". Programs can return to phase dual anyway"}
	}
	if p.from.Info().Name == "etcd" && t.To > t.From {
		return fact{what, false, "tokens of etcd cannot be raised, and tokens of the new backend are higher. With --fenced=false names " +
			"can return, but tokens fall. Programs can return to phase dual anyway"}
	}
	return fact{what, true, "in phase dual, unless the old backend refuses to raise its tokens above the tokens of the new one"}
}

func (p *pair) lengths(m *migrate.Driver, refusal error) fact {
	const what = "TTL"
	if refusal != nil {
		return fact{what, false, "this migration is not possible"}
	}
	info := m.Info()
	if err := info.CheckTTL(30 * time.Second); err != nil {
		return fact{what, true, cli.Bounds(info) + ". The default of 30s does not suit both backends: set a TTL in the programs"}
	}
	return fact{what, true, cli.Bounds(info)}
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
	for _, n := range r.Refused {
		n.writeBehind(w)
	}
	if !r.Possible {
		return nil
	}
	fmt.Fprintf(w, "\nThe URLs of the programs. Deploy each URL to all programs before the next one (--passwords also prints the passwords):\n")
	for _, p := range append(slices.Clone(r.Phases), "alone") {
		fmt.Fprintf(w, "\n%s: %s\n  %s\n", p, phaseText(p, r.Gate), r.URLs[p])
	}
	return nil
}

// phaseText describes a phase, and says what to do before the next one.
func phaseText(phase string, gate bool) string {
	const dual = "locks on the old backend, then also on the new one: both must be up. Then run `dsync migrate status --for 10m`, and "
	switch {
	case phase == "old":
		return "locks on the old backend"
	case phase == "dual" && gate:
		return dual + "cut off all programs that may use only the old backend"
	case phase == "dual":
		return dual + "`dsync migrate seal`"
	case phase == "new" && gate:
		return "locks on the new backend. Then run `dsync migrate finalize --gate`"
	case phase == "new":
		return "locks on the new backend. Then run `dsync migrate finalize`, and cut off all programs that may use only the old backend"
	}
	return "locks on the new backend, without a migration"
}
