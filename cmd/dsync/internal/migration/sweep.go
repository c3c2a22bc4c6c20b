package migration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/migrate"
)

func sealCommand(f *pairFlags) *cobra.Command {
	s := &sweep{
		done:  "sealed",
		moved: true,
		does:  "each name is sealed on the old backend permanently, and locked on the new one from then on",
		step:  (*migrate.Driver).Seal,
		check: (*migrate.Driver).Moves,
	}
	var all, anyway bool
	var lasting time.Duration
	c := &cobra.Command{
		Use:   "seal NAME... | seal --all --names FILE",
		Short: "Move idle names to the new backend",
		Long: `Seal moves names that no program locks, as a lock in phase new does. It holds each name on both backends for a moment, seals it on the
old one, and marks it on the new one with the floor of its tokens. Programs in the migration then lock the name on the new backend in
every phase. Programs that only know the old backend wait for it without success, so seal first looks for such programs, as status does.
It seals nothing and exits with 3 if it finds one, unless --anyway is given. It checks once, or for the time given by --for.

Seal skips held names, or waits for them with --wait. It can be interrupted and repeated. The exit status is 3 if names are left.`,
		Example: `  dsync migrate seal --all --names names.txt --dry-run
  dsync migrate seal --all --names names.txt --for 10m --rate 200 --wait 1m`,
		Args: cobra.ArbitraryArgs,
	}
	s.add(c)
	c.Flags().BoolVar(&anyway, "anyway", false, "seal even without a floor, and even if programs that only know the old backend then wait without success")
	c.Flags().DurationVar(&lasting, "for", 0, "how long to look for programs that only know the old backend; without it, seal checks once")
	c.Flags().BoolVar(&all, "all", false, "seal all names of --names")
	return f.command(c, s, func(c *cobra.Command, args []string, text io.Writer) error {
		if all != (s.names.File != "") {
			return cli.Usage(errors.New("--all and --names FILE require each other: all names in the file are sealed"))
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

// nobodyBehind fails if it detects a program that uses only the old backend.
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
		return cli.Unfinished("%s in use by programs that only know the old backend and would wait without success: "+
			"stop these programs, or use seal --anyway", cli.Are(n, "name"))
	}
	if !f.fenced {
		return nil
	}
	_, _, err := f.floor(ctx)
	return err
}

// sweep applies a step to one name after the other. If it ends early, its
// results remain, and another sweep continues from there. Its JSON is part of
// the commands' interface.
type sweep struct {
	heading
	DryRun   bool         `json:"dry_run"`
	Done     int          `json:"done"`    // names that this sweep has done, or would do
	Already  int          `json:"already"` // names that were done before
	NotTried int          `json:"not_tried"`
	Held     []string     `json:"held,omitempty"` // names that a client holds
	Refused  []nameReport `json:"refused,omitempty"`
	Behind   []nameReport `json:"behind,omitempty"` // names because of which nothing is done

	names cli.NameFlags
	rate  float64
	wait  time.Duration

	done  string // state of a name that is done
	moved bool   // whether a finished name has moved
	does  string // the step, described for people
	step  func(*migrate.Driver, context.Context, string) error
	// For a dry run, it returns the reason why the step would refuse any name.
	check func(*migrate.Driver, context.Context) error

	m    *migrate.Driver
	out  io.Writer
	bar  *cli.Progress
	pace <-chan time.Time // nil without a rate
	mu   sync.Mutex       // guards the results
}

func (s *sweep) add(c *cobra.Command) {
	s.names.Add(c)
	c.Flags().BoolVar(&s.DryRun, "dry-run", false, "report what would be done, and do nothing")
	c.Flags().Float64Var(&s.rate, "rate", 100, "maximum number of names per second; 0 means no limit")
	c.Flags().DurationVar(&s.wait, "wait", 0, "how long to wait for held names in total; without it, held names are skipped")
}

// fate decides what to do with a name.
type fate int

const (
	isDone fate = iota
	isHeld
	isFree
)

// fate changes nothing.
func (s *sweep) fate(ctx context.Context, name string) (fate, error) {
	moved, err := s.m.Moved(ctx, name)
	if err != nil || moved == s.moved {
		return isDone, err
	}
	switch status, err := s.m.Inspect(ctx, name); {
	case errors.Is(err, errors.ErrUnsupported):
		return isFree, nil // unknown: the step will find out
	case err != nil:
		return 0, err
	case status.Held:
		return isHeld, nil
	}
	return isFree, nil
}

// list returns the names given to a command.
func (s *sweep) list(c *cobra.Command, f *pairFlags, args []string) ([]string, error) {
	if !(s.rate == 0 || s.rate >= 0.001 && s.rate <= 1e6) || s.wait < 0 {
		return nil, cli.Usage(errors.New("--rate must be 0 or from 0.001 to 1000000, and --wait must not be negative"))
	}
	if f.gate {
		return nil, migrate.ErrNoSeals
	}
	names, err := s.names.Some(c, args, true)
	s.NotTried = len(names)
	return names, err
}

// execute applies the step to names.
func (s *sweep) execute(c *cobra.Command, f *pairFlags, names []string, text io.Writer) error {
	s.out = text
	mode := ""
	if s.DryRun {
		mode = " (dry run: nothing is changed)"
	}
	fmt.Fprintf(s.out, "%s → %s, %s: %s%s\n", s.From, s.To, cli.Plural(len(names), "name"), s.does, mode)
	run := func(m *migrate.Driver) error {
		s.m = m
		return s.run(c.Context(), names, c.ErrOrStderr())
	}
	if !s.DryRun {
		return f.join(c.Context(), migrate.PhaseDual, c.Name(), run)
	}
	return f.withBoth(c.Context(), func(_ *pair, m *migrate.Driver) error {
		err := m.Look(c.Context())
		if err == nil {
			err = s.check(m, c.Context())
		}
		if err == nil {
			err = run(m)
		}
		return err
	})
}

// run returns nil if all names are done.
func (s *sweep) run(ctx context.Context, names []string, stderr io.Writer) error {
	if s.rate > 0 && !s.DryRun {
		ticker := time.NewTicker(time.Duration(float64(time.Second) / s.rate))
		defer ticker.Stop()
		s.pace = ticker.C
	}
	s.bar = cli.NewProgress(stderr, s.done, len(names))
	err := cli.SideBySide(ctx, side, len(names), func(ctx context.Context, i int) error { return s.one(ctx, names[i]) })
	if err == nil && s.wait > 0 && !s.DryRun && len(s.Held) > 0 {
		err = s.waitForHeld(ctx)
	}
	s.bar.Stop()
	if err = s.report(ctx, len(names), err); err != nil || s.moved || s.DryRun {
		return err
	}
	// Programs in phase new may have locked names in the meantime.
	moved, err := countMoved(ctx, s.m, names)
	if err == nil && moved > 0 {
		err = cli.Unfinished("%s on the new backend again, because programs in phase new lock names there. "+
			"Put all programs into phase dual, and repeat the command", cli.Are(moved, "name"))
	}
	return err
}

// side is the number of names that are processed concurrently.
const side = 64

// retryAfter is the delay after a failure before the one retry.
const retryAfter = time.Second

// stepLimit bounds the step for a name that seemed free.
const stepLimit = 10 * time.Second

// one processes a single name. It retries once if a backend was out of reach.
func (s *sweep) one(ctx context.Context, name string) error {
	f, err := s.once(ctx, name)
	if errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) {
		select {
		case <-time.After(retryAfter):
			f, err = s.once(ctx, name)
		case <-ctx.Done():
		}
	}
	if s.moved && errors.Is(err, errors.ErrUnsupported) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.Refused = append(s.Refused, refused(name, err))
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", cli.Show(name), err)
	}
	s.count(name, f)
	return nil
}

func (s *sweep) once(ctx context.Context, name string) (fate, error) {
	f, err := s.fate(ctx, name)
	if err != nil || f != isFree || s.DryRun {
		return f, err
	}
	if err := s.turn(ctx); err != nil {
		return f, err
	}
	bound, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	return s.try(ctx, bound, name)
}

// count records a name that was finished before, is held, or has just been
// finished (isFree).
func (s *sweep) count(name string, f fate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch f {
	case isDone:
		s.Already++
	case isHeld:
		s.Held = append(s.Held, name)
		return // it may still succeed
	default:
		s.Done++
	}
	s.bar.Add()
}

// turn waits until the rate permits another name.
func (s *sweep) turn(ctx context.Context) error {
	if s.pace == nil {
		return ctx.Err()
	}
	select {
	case <-s.pace:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// try runs the step until bound ends. It returns isFree when the name is done,
// and isHeld if another client acquired it first.
func (s *sweep) try(ctx, bound context.Context, name string) (fate, error) {
	err := s.step(s.m, bound, name)
	switch {
	case err == nil:
		return isFree, nil
	case ctx.Err() != nil || bound.Err() == nil && !errors.Is(err, driver.ErrLocked):
		return 0, err
	}
	f, e := s.fate(ctx, name)
	switch {
	case e != nil:
		return 0, errors.Join(err, e)
	case f == isFree && errors.Is(err, driver.ErrLocked):
		return isHeld, nil
	case f == isFree: // free, but the step timed out
		return 0, err
	}
	return f, nil
}

// waitForHeld queues for the held names and processes each one when its turn
// comes.
func (s *sweep) waitForHeld(ctx context.Context) error {
	held := s.Held
	s.Held = nil
	bound, cancel := context.WithTimeout(ctx, s.wait)
	defer cancel()
	counted := make([]bool, len(held))
	err := cli.SideBySide(bound, side, len(held), func(inner context.Context, i int) error {
		if s.turn(inner) != nil {
			return nil
		}
		f, err := s.try(ctx, inner, held[i])
		if err != nil {
			if inner.Err() != nil {
				return nil // another name failed, or the wait has ended
			}
			return fmt.Errorf("%s: %w", cli.Show(held[i]), err)
		}
		s.count(held[i], f)
		counted[i] = true
		return nil
	})
	for i, name := range held {
		if !counted[i] {
			s.Held = append(s.Held, name)
		}
	}
	if err == context.Cause(bound) {
		return ctx.Err() // the wait has ended
	}
	return err
}

// report describes the finished and the remaining work.
func (s *sweep) report(ctx context.Context, total int, err error) error {
	s.NotTried = total - s.Done - s.Already - len(s.Held) - len(s.Refused)
	would := ""
	if s.DryRun {
		would = "would be "
	}
	fmt.Fprintf(s.out, "%s%s: %d; %s already: %d; held by a client: %d; not tried: %d\n", would, s.done, s.Done, s.done, s.Already, len(s.Held), s.NotTried)
	const shown = 20
	for _, name := range s.Held[:min(shown, len(s.Held))] {
		fmt.Fprintf(s.out, "  held: %s\n", cli.Show(name))
	}
	if more := len(s.Held) - shown; more > 0 {
		fmt.Fprintf(s.out, "  ... and %d more (status lists all names)\n", more)
	}
	for _, n := range s.Refused {
		n.writeBehind(s.out)
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted: repeat the command. Names that are %s stay %s: %w", s.done, s.done, ctx.Err())
	case err != nil:
		return err
	case len(s.Refused) > 0:
		return refusalOf(s.Refused)
	case len(s.Held) > 0:
		return cli.Unfinished("%s held: repeat the command, or wait for held names with --wait", cli.Are(len(s.Held), "name"))
	}
	return nil
}
