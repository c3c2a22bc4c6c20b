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

// sweepFlags are the flags of commands that process one name after the other.
type sweepFlags struct {
	names  cli.NameFlags
	dryRun bool
	rate   float64
	wait   time.Duration
}

func (f *sweepFlags) add(c *cobra.Command) {
	f.names.Add(c)
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "say what would be done, and do nothing")
	c.Flags().Float64Var(&f.rate, "rate", 100, "at most so many names per second; 0 is no limit")
	c.Flags().DurationVar(&f.wait, "wait", 0, "how long to wait in all for names that are held; without it they are left out")
}

func (f *sweepFlags) valid() error {
	if !(f.rate == 0 || f.rate >= 0.001 && f.rate <= 1e6) || f.wait < 0 {
		return cli.Usage(errors.New("--rate has to be 0 or from 0.001 to 1000000, and --wait not negative"))
	}
	return nil
}

// sweep applies a step to one name after the other. If it ends early, its
// results remain, and another sweep continues from there.
type sweep struct {
	sweepFlags
	done  string // state of a name that is done
	moved bool   // whether a done name has moved
	does  string // the step, described for people
	step  func(*migrate.Driver, context.Context, string) error
	// It returns, for a dry run, why the step would refuse the name.
	check func(*migrate.Driver, context.Context) error

	m   *migrate.Driver
	out io.Writer
	bar *cli.Progress

	pace <-chan time.Time // nil without a rate

	mu             sync.Mutex
	stepped, there int      // names that this sweep has done, and names that were done before
	held           []string // names that a client holds
	refused        []error  // of names that a backend does not accept
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
	if err := s.valid(); err != nil {
		return nil, err
	}
	if f.gate {
		return nil, migrate.ErrNoSeals
	}
	return s.names.Some(c, args, true)
}

// execute applies the step to names.
func (s *sweep) execute(c *cobra.Command, f *pairFlags, names []string) (err error) {
	from, to, err := f.read()
	if err != nil {
		return err
	}
	s.out = c.OutOrStdout()
	mode := ""
	if s.dryRun {
		mode = " (dry run: nothing is changed)"
	}
	fmt.Fprintf(s.out, "%s → %s, %s: %s%s\n", from, to, cli.Plural(len(names), "name"), s.does, mode)
	if s.dryRun {
		s.m, err = f.pretend(c.Context(), s.check)
	} else {
		s.m, err = f.join(c.Context(), migrate.PhaseDual)
	}
	if err != nil {
		return err
	}
	defer func() {
		if e := cli.CloseDriver(s.m); err == nil {
			err = e
		}
	}()
	if !s.dryRun {
		end, err := operate(c.Context(), s.m, c.Name())
		if err != nil {
			return err
		}
		defer end()
	}
	return s.run(c.Context(), names, c.ErrOrStderr())
}

// run returns nil if all names are done.
func (s *sweep) run(ctx context.Context, names []string, stderr io.Writer) error {
	if s.rate > 0 && !s.dryRun {
		ticker := time.NewTicker(time.Duration(float64(time.Second) / s.rate))
		defer ticker.Stop()
		s.pace = ticker.C
	}
	s.bar = cli.NewProgress(stderr, s.done, len(names))
	err := s.sweep(ctx, names)
	s.bar.Stop()
	if err = s.report(ctx, len(names), err); err != nil || s.moved || s.dryRun {
		return err
	}
	// Programs in phase new may have locked names in the meantime.
	moved, err := countMoved(ctx, s.m, names)
	if err == nil && moved > 0 {
		err = cli.Unfinished("%s on the new backend again: programs in phase new lock them. Put all programs into phase dual, and repeat it", cli.Are(moved, "name"))
	}
	return err
}

func (s *sweep) sweep(ctx context.Context, names []string) error {
	if err := s.all(ctx, names); err != nil {
		return err
	}
	if s.wait == 0 || s.dryRun || len(s.held) == 0 {
		return nil
	}
	return s.waitForHeld(ctx)
}

// side is the number of names that are processed concurrently.
const side = 64

// all processes all free names and ends with the first error.
func (s *sweep) all(ctx context.Context, names []string) error {
	return cli.SideBySide(ctx, side, len(names), func(ctx context.Context, i int) error {
		err := s.one(ctx, names[i])
		if err != nil {
			err = fmt.Errorf("%s: %w", cli.Show(names[i]), err)
		}
		return err
	})
}

// retryAfter is the delay after a failure before the one retry.
const retryAfter = time.Second

// stepLimit bounds the step for a name that seemed free.
const stepLimit = 10 * time.Second

// one processes a name. It retries once if a backend was out of reach.
func (s *sweep) one(ctx context.Context, name string) error {
	f, err := s.once(ctx, name)
	if errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) {
		again := time.NewTimer(retryAfter)
		defer again.Stop()
		select {
		case <-again.C:
			f, err = s.once(ctx, name)
		case <-ctx.Done():
		}
	}
	if s.moved && errors.Is(err, errors.ErrUnsupported) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refused = append(s.refused, fmt.Errorf("%s: %w", cli.Show(name), err))
		return nil
	}
	if err == nil {
		s.count(name, f)
	}
	return err
}

func (s *sweep) once(ctx context.Context, name string) (fate, error) {
	f, err := s.fate(ctx, name)
	if err != nil || f != isFree || s.dryRun {
		return f, err
	}
	if err := s.turn(ctx); err != nil {
		return f, err
	}
	bound, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	return s.try(ctx, bound, name)
}

// count records a name that was done before, is held, or has just been done
// (isFree).
func (s *sweep) count(name string, f fate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch f {
	case isDone:
		s.there++
	case isHeld:
		s.held = append(s.held, name)
		return // it may still succeed
	default:
		s.stepped++
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
	held := s.held
	s.held = nil
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
			s.held = append(s.held, name)
		}
	}
	if err == context.Cause(bound) {
		return ctx.Err() // the wait has ended
	}
	return err
}

// report describes the finished and the remaining work.
func (s *sweep) report(ctx context.Context, total int, err error) error {
	left := total - s.stepped - s.there - len(s.held) - len(s.refused)
	if s.dryRun {
		fmt.Fprintf(s.out, "would be %s: %d; %s already: %d; held by somebody: %d\n", s.done, s.stepped, s.done, s.there, len(s.held))
	} else {
		fmt.Fprintf(s.out, "%s: %d; %s already: %d; held by somebody: %d; not tried: %d\n", s.done, s.stepped, s.done, s.there, len(s.held), left)
	}
	const shown = 20
	for i, name := range s.held {
		if i == shown {
			fmt.Fprintf(s.out, "  ... and %d more (status names all)\n", len(s.held)-shown)
			break
		}
		fmt.Fprintf(s.out, "  held: %s\n", cli.Show(name))
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted, to be repeated: what is %s stays so: %w", s.done, ctx.Err())
	case err != nil:
		return err
	case len(s.refused) > 0:
		return errors.Join(s.refused...)
	case len(s.held) > 0:
		return cli.Unfinished("%s held: repeat it, or let it wait with --wait", cli.Are(len(s.held), "name"))
	}
	return nil
}
