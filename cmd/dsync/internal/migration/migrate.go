package migration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
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

// report is what a command has found and done. Its JSON is part of the
// command's interface.
type report interface{ about() *heading }

// heading is the first part of every report.
type heading struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Error string `json:"error,omitempty"` // if the exit status is not 0
}

func (h *heading) about() *heading { return h }

// command makes c fill in the report r by calling do, which also writes text.
// With --json, the report replaces the text, even if do fails.
func (f *pairFlags) command(c *cobra.Command, r report, do func(c *cobra.Command, args []string, text io.Writer) error) *cobra.Command {
	c.RunE = func(c *cobra.Command, args []string) error {
		h, text := r.about(), c.OutOrStdout()
		if f.json {
			text = io.Discard
		}
		err := f.read()
		if err == nil {
			h.From, h.To = f.fromURL.String(), f.toURL.String()
			err = do(c, args, text)
		}
		if !f.json {
			return err
		}
		if err != nil {
			h.Error = err.Error()
		}
		return errors.Join(err, cli.WriteJSON(c.OutOrStdout(), r))
	}
	return c
}

func Command() *cobra.Command {
	f := &pairFlags{}
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Move locks from one backend to another while all programs run",
		Long: `Migrate helps to move locks from an old backend to a new one while all programs run. The programs do the work, with the URL
migrate:?from=OLD&to=NEW&phase=dual|new. These commands show the state of the migration, and move names that no program locks.

  1. plan               what is possible, the floor for the URL of the new backend, and the programs' URLs
  2. deploy phase=dual  everywhere; status shows programs that still use only the old backend
  3. seal               moves names, when no such program is left
  4. deploy phase=new   everywhere: all other names move as they are locked
  5. finalize           checks that the old backend is no longer needed, and lists the remaining steps
     rollback           takes names back, before step 4 or after a return to phase dual
     untie              frees the old backend for another migration

The full runbook, which also covers a migration with a gate, is docs/migration.md in the project.

No backend can list free locks, so the commands get names as arguments or from a file (--names), one per line.
URLs with passwords belong in the environment (DSYNC_FROM, DSYNC_TO), because other users of a machine can see flags.
Set --gate, --fenced=false and --ttl as in the programs' URLs.
With --json, each command writes one JSON object instead of text. It has the member error if the exit status is not 0.

Exit status
    0  done; for status: no program is behind
    1  a backend is out of reach, or something else failed
    2  the command line is wrong
    3  not yet: a program is behind, or names are left; repeat it later
    4  impossible with these backends, or with this configuration
  130  interrupted; finished work remains, and the command can be repeated`,
		Example: `  export DSYNC_FROM=redisson://:secret@redis:6379 DSYNC_TO=etcd://etcd:2379/locks/
  dsync migrate plan --names names.txt
  dsync migrate status --names names.txt
  dsync migrate seal --all --names names.txt --dry-run
  dsync migrate seal --all --names names.txt --rate 200 --wait 1m
  dsync migrate finalize --names names.txt`,
	}
	cli.AsGroup(c)
	f.add(c)
	c.AddCommand(planCommand(f), statusCommand(f), sealCommand(f), finalizeCommand(f), rollbackCommand(f), untieCommand(f))
	return c
}

// Variables for URLs that are not given as flags. Other users of a machine can
// see the flags of a command.
const (
	fromVariable = "DSYNC_FROM"
	toVariable   = "DSYNC_TO"
)

// pairFlags identify the migration. They correspond to the programs' migrate
// URL.
type pairFlags struct {
	from, to           string
	gate, fenced, json bool
	ttl, connect       time.Duration

	fromURL, toURL *driver.URL // set by read
}

func (f *pairFlags) add(c *cobra.Command) {
	flags := c.PersistentFlags()
	flags.StringVar(&f.from, "from", "", "`URL` of the old backend ($"+fromVariable+" if it is not given)")
	flags.StringVar(&f.to, "to", "", "`URL` of the new backend ($"+toVariable+" if it is not given)")
	flags.BoolVar(&f.gate, "gate", false, "the migration uses a gate, and no seals")
	flags.BoolVar(&f.fenced, "fenced", true, "false gives up fencing tokens")
	flags.BoolVar(&f.json, "json", false, "write JSON")
	flags.DurationVar(&f.ttl, "ttl", 0, "how long the locks of this command stay held if it crashes (30s if both backends support that)")
	flags.DurationVar(&f.connect, "connect", 10*time.Second, "how long to try to reach the backends")
}

// read fills in values from the environment and parses the URLs.
func (f *pairFlags) read() (err error) {
	f.from = cmp.Or(f.from, os.Getenv(fromVariable))
	f.to = cmp.Or(f.to, os.Getenv(toVariable))
	if f.connect <= 0 || f.ttl < 0 {
		return cli.Usage(errors.New("--connect must be positive, and --ttl must not be negative"))
	}
	if f.fromURL, err = parse("--from", f.from, fromVariable); err != nil {
		return err
	}
	if f.toURL, err = parse("--to", f.to, toVariable); err != nil {
		return err
	}
	from, to := f.fromURL, f.toURL
	if from.Scheme == to.Scheme && from.Scheme != "memory" && sameHosts(from, to) && from.Path == to.Path && from.Param("table", "") == to.Param("table", "") ||
		from.Scheme == "memory" && from.String() == to.String() {
		return fmt.Errorf("--from and --to are both %s: %w", from, migrate.ErrSame)
	}
	return nil
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
		return nil, cli.Usage(fmt.Errorf("%s is a migrate URL, but must be the URL of one of the two backends", flag))
	}
	if u.Has("ttl") {
		return nil, cli.Usage(fmt.Errorf("%s has a ttl, which belongs to the whole migration: use --ttl", flag))
	}
	require, err := driver.ParseRequire(u.Param("require", ""))
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("%s: require: %w", flag, err))
	}
	if require.Fair || require.FIFO {
		return nil, fmt.Errorf("%s requires an order of waiters, which does not carry over from one backend to the other: %w", flag, errors.ErrUnsupported)
	}
	return u, nil
}

func sameHosts(a, b *driver.URL) bool {
	return slices.Equal(slices.Sorted(slices.Values(a.Hosts)), slices.Sorted(slices.Values(b.Hosts)))
}

// pair is the two backends, opened for inspection.
type pair struct {
	from, to           driver.Driver
	fromFloor, toFloor uint64 // of their tokens
}

// with calls do with the two backends, which it opens without changing them,
// and then closes them.
func (f *pairFlags) with(ctx context.Context, do func(*pair) error) (err error) {
	p := &pair{}
	bound, cancel := context.WithTimeout(ctx, f.connect)
	defer cancel()
	var of *driver.Config
	if p.from, of, err = driver.Open(bound, f.from); err != nil {
		return fmt.Errorf("old backend %s: %w", f.fromURL, err)
	}
	defer func() { err = cmp.Or(err, cli.CloseDriver(p.from)) }()
	p.fromFloor = of.Floor
	if p.to, of, err = driver.Open(bound, f.to); err != nil {
		return fmt.Errorf("new backend %s: %w", f.toURL, err)
	}
	defer func() { err = cmp.Or(err, cli.CloseDriver(p.to)) }()
	p.toFloor = of.Floor
	return do(p)
}

// withBoth is like with, for a migration in which no program needs to take
// part.
func (f *pairFlags) withBoth(ctx context.Context, do func(*pair, *migrate.Driver) error) error {
	return f.with(ctx, func(p *pair) error {
		m, err := migrate.New(p.from, p.to, f.options(p)) // is not closed: p is
		if err != nil {
			return err
		}
		return do(p, m)
	})
}

func (f *pairFlags) options(p *pair) *migrate.Options {
	return &migrate.Options{Unfenced: !f.fenced, Gated: f.gate, TTL: f.ttl, FromFloor: p.fromFloor, ToFloor: p.toFloor}
}

// listOld lists the names that are held or sealed on the old backend, except
// the names of the migration itself.
func (p *pair) listOld(ctx context.Context) ([]string, error) {
	names, _, err := (&cli.Backend{Driver: p.from}).List(ctx, "", math.MaxInt)
	if err != nil {
		err = fmt.Errorf("old backend: %w", err)
	}
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, cli.Reserved) }), err
}

// join opens the migration in a phase, as programs do, and calls do while no
// other operator changes it.
func (f *pairFlags) join(ctx context.Context, p migrate.Phase, what string, do func(*migrate.Driver) error) (err error) {
	bound, cancel := context.WithTimeout(ctx, f.connect)
	defer cancel()
	d, _, err := driver.Open(bound, f.url(p.String()))
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, cli.CloseDriver(d)) }()
	m := d.(*migrate.Driver)
	end, err := m.Operate(ctx, what)
	if err != nil {
		return err
	}
	defer end()
	return do(m)
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
