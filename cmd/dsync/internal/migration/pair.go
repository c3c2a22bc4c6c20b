package migration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// Variables for URLs that are not given as flags. Other users of a machine can
// see the flags of a command.
const (
	fromVariable = "DSYNC_FROM"
	toVariable   = "DSYNC_TO"
)

// pairFlags identify the migration. They correspond to the programs' migrate
// URL.
type pairFlags struct {
	from, to     string
	gate, fenced bool
	ttl, connect time.Duration
}

func (f *pairFlags) add(c *cobra.Command) {
	flags := c.PersistentFlags()
	flags.StringVar(&f.from, "from", "", "`URL` of the old backend ($"+fromVariable+" if it is not given)")
	flags.StringVar(&f.to, "to", "", "`URL` of the new backend ($"+toVariable+" if it is not given)")
	flags.BoolVar(&f.gate, "gate", false, "the migration is one with a gate, without seals")
	flags.BoolVar(&f.fenced, "fenced", true, "false gives the fencing tokens up")
	flags.DurationVar(&f.ttl, "ttl", 0, "how long what this command holds outlives a crash of it (30s if both backends keep that)")
	flags.DurationVar(&f.connect, "connect", 10*time.Second, "how long to try to reach the backends")
}

// read fills in values from the environment and parses the URLs.
func (f *pairFlags) read() (from, to *driver.URL, err error) {
	if f.from == "" {
		f.from = os.Getenv(fromVariable)
	}
	if f.to == "" {
		f.to = os.Getenv(toVariable)
	}
	if f.connect <= 0 || f.ttl < 0 {
		return nil, nil, cli.Usage(errors.New("--connect has to be positive, and --ttl not negative"))
	}
	if from, err = parse("--from", f.from, fromVariable); err != nil {
		return nil, nil, err
	}
	if to, err = parse("--to", f.to, toVariable); err != nil {
		return nil, nil, err
	}
	if from.Scheme == to.Scheme && from.Scheme != "memory" && sameHosts(from, to) && from.Path == to.Path ||
		from.Scheme == "memory" && from.String() == to.String() {
		return nil, nil, fmt.Errorf("--from and --to are both %s: %w", from, migrate.ErrSame)
	}
	return from, to, nil
}

func parse(flag, raw, variable string) (*driver.URL, error) {
	if raw == "" {
		return nil, cli.Usage(fmt.Errorf("%s is needed: the URL of a backend (or $%s)", flag, variable))
	}
	u, err := driver.ParseURL(raw)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("%s: %w", flag, err))
	}
	if u.Scheme == "migrate" {
		return nil, cli.Usage(fmt.Errorf("%s is a migrate URL: it takes the URL of one of the two backends", flag))
	}
	if u.Has("ttl") {
		return nil, cli.Usage(fmt.Errorf("%s has a ttl, which belongs to the migration as a whole: --ttl", flag))
	}
	require, err := driver.ParseRequire(u.Param("require", ""))
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("%s: require: %w", flag, err))
	}
	if require.Fair || require.FIFO {
		return nil, fmt.Errorf("%s requires an order of waiters, and none goes over from one backend to the other: %w", flag, errors.ErrUnsupported)
	}
	return u, nil
}

func sameHosts(a, b *driver.URL) bool {
	return slices.Equal(slices.Sorted(slices.Values(a.Hosts)), slices.Sorted(slices.Values(b.Hosts)))
}

// pair is the two backends, opened for inspection.
type pair struct {
	from, to       driver.Driver
	fromURL, toURL *driver.URL

	fromFloor, toFloor uint64 // of their tokens
}

// openBoth opens the two backends without changing them.
func (f *pairFlags) openBoth(ctx context.Context) (*pair, error) {
	p := &pair{}
	var err error
	if p.fromURL, p.toURL, err = f.read(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, f.connect)
	defer cancel()
	var of *driver.Config
	if p.from, of, err = driver.Open(ctx, f.from); err != nil {
		return nil, fmt.Errorf("old backend %s: %w", p.fromURL, err)
	}
	p.fromFloor = of.Floor
	if p.to, of, err = driver.Open(ctx, f.to); err != nil {
		return nil, errors.Join(fmt.Errorf("new backend %s: %w", p.toURL, err), cli.CloseDriver(p.from))
	}
	p.toFloor = of.Floor
	return p, nil
}

// with calls do with the two backends and then closes them.
func (f *pairFlags) with(ctx context.Context, do func(*pair) error) error {
	p, err := f.openBoth(ctx)
	if err != nil {
		return err
	}
	err = do(p)
	if e := p.close(); err == nil {
		err = e
	}
	return err
}

func (f *pairFlags) options(p *pair) *migrate.Options {
	return &migrate.Options{Unfenced: !f.fenced, Gated: f.gate, TTL: f.ttl, FromFloor: p.fromFloor, ToFloor: p.toFloor}
}

// listOld lists the names that are held or sealed on the old backend, except
// the names of the migration itself.
func (p *pair) listOld(ctx context.Context) ([]string, error) {
	names, _, err := (&cli.Backend{Driver: p.from}).List(ctx, "", math.MaxInt)
	if err != nil {
		err = fmt.Errorf("old backend %s: %w", p.fromURL, err)
	}
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, cli.Reserved) }), err
}

func (f *pairFlags) listOld(ctx context.Context) (names []string, err error) {
	err = f.with(ctx, func(p *pair) (err error) {
		names, err = p.listOld(ctx)
		return err
	})
	return names, err
}

func (p *pair) close() error { return errors.Join(cli.CloseDriver(p.from), cli.CloseDriver(p.to)) }

// join opens the migration in a phase, as programs do, in order to change it.
// It first verifies that the two backends differ.
func (f *pairFlags) join(ctx context.Context, p migrate.Phase) (*migrate.Driver, error) {
	if _, _, err := f.read(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, f.connect)
	defer cancel()
	d, _, err := driver.Open(ctx, f.url(p.String()))
	if err != nil {
		return nil, err
	}
	return d.(*migrate.Driver), nil
}

// url returns the URL of a program in a phase.
func (f *pairFlags) url(phase string) string {
	q := url.Values{"from": {f.from}, "to": {f.to}, "phase": {phase}}
	if f.gate {
		q.Set("gate", "true")
	}
	if !f.fenced {
		q.Set("fenced", "false")
	}
	if f.ttl > 0 {
		q.Set("ttl", f.ttl.String())
	}
	return "migrate:?" + q.Encode()
}

// pretend opens a migration for inspection and changes nothing. Check returns
// the other reasons to refuse it.
func (f *pairFlags) pretend(ctx context.Context, check func(*migrate.Driver, context.Context) error) (*migrate.Driver, error) {
	p, err := f.openBoth(ctx)
	if err != nil {
		return nil, err
	}
	m, err := migrate.New(p.from, p.to, f.options(p))
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	if err = m.Look(ctx); err == nil {
		err = check(m, ctx)
	}
	if err != nil {
		return nil, errors.Join(err, cli.CloseDriver(m))
	}
	return m, nil
}

// operate detects another operator at work, and lets the other operator detect
// this command.
func operate(ctx context.Context, m *migrate.Driver, what string) (end func(), err error) {
	if end, err = m.Operate(ctx, what); errors.Is(err, migrate.ErrOperator) {
		err = cli.Unfinished("%w: repeat it when that has ended", err)
	}
	return end, err
}
