package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
)

// benchReport is the result of `bench`. Its JSON is part of the command's
// interface.
type benchReport struct {
	URL       string     `json:"url"`
	Rate      int        `json:"rate"` // maximum locks per second; 0 means no limit
	Seconds   float64    `json:"seconds"`
	Workloads []measured `json:"workloads"`
}

// measured is the result of one workload.
type measured struct {
	Workload  int     `json:"workload"`
	Title     string  `json:"title"`
	Of        string  `json:"of"` // the operation that the percentiles describe
	Locks     int     `json:"locks"`
	PerSecond float64 `json:"locks_per_second,omitempty"`
	Bounded   bool    `json:"bounded"` // the result was limited by the rate
	P50Msec   float64 `json:"p50_ms"`
	P99Msec   float64 `json:"p99_ms"`
}

// benchFlags limit the load that `bench` puts on a server.
type benchFlags struct {
	cli.BackendFlags
	rate, callers int
	lasting       time.Duration
	prefix        string
	yes           bool
}

const (
	mostCallers = 512
	longestRun  = time.Minute // duration of a workload
)

func Command() *cobra.Command {
	var f benchFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "bench [URL]",
		Short: "Measure what locks cost on a backend",
		Long: `Bench acquires and releases locks on the backend, with two clients in this process, and measures throughput and latency:

  1  a free lock, one caller                   from the call to Lock to the end of Unlock
  2  free locks, --callers on distinct names   the same
  3  one hot lock, callers of one client       from the call to Lock to the grant
  4  two clients in turn                       from the call to Unlock to the grant to the other client, which waits for the lock
  5  one hot lock, callers of two clients      as 3

These are workloads 1 to 5 of docs/performance.md, which explains their limits. Workloads 3 and 5 have at most 32 callers.

--rate, --callers and --for bound the load on the server. A figure with a * is limited by --rate, and the server can do more. With --rate 0,
the callers never pause. Use that only on a server that no program uses. Bench refuses to start without --yes if names are held
on the backend, and warns if it cannot determine that.

The names of the locks begin with --prefix. If the user may only use certain names, as with ~lk:*, set it: --prefix lk:bench:. At its end,
and when it is interrupted, bench removes everything it has created. If it is killed, its locks end with their TTL. Sequences of tokens,
which all names share, remain on Redis for an hour.

Exit status
    0  measured
    1  the backend cannot be opened or is out of reach, or a lock failed
    2  the command line is wrong
    3  a lock is held on the backend: see --yes
    4  the backend cannot be measured without leaving remains behind
  130  interrupted`,
		Example: `  dsync bench redisson://redis:6379
  dsync bench --rate 0 --callers 512 --for 10s etcd://test-etcd:2379/bench/
  DSYNC_URL=redisson://app:secret@redis:6379 dsync bench --prefix lk:bench: --rate 100 --json`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cli.CompleteOneURL,
		RunE: func(c *cobra.Command, args []string) error {
			raw, err := f.check(c, args)
			if err != nil {
				return cli.Usage(err)
			}
			r, err := f.run(c, raw)
			if err != nil {
				return err
			}
			return cli.Write(c.OutOrStdout(), asJSON, r, r.write)
		},
	}
	f.Add(c)
	flags := c.Flags()
	flags.IntVar(&f.rate, "rate", 1000, "maximum locks per second; 0 means no limit")
	flags.IntVar(&f.callers, "callers", 64, "number of goroutines that lock concurrently")
	flags.DurationVar(&f.lasting, "for", 3*time.Second, "how long to run each workload")
	flags.StringVar(&f.prefix, "prefix", "dsync:bench:", "prefix of the names of the locks")
	flags.BoolVar(&f.yes, "yes", false, "measure even if a lock is held")
	flags.BoolVar(&asJSON, "json", false, "write JSON")
	return c
}

// check returns the URL, or an error if the command line is wrong.
func (f *benchFlags) check(c *cobra.Command, args []string) (string, error) {
	switch {
	case f.rate < 0:
		return "", errors.New("--rate cannot be negative")
	case f.callers < 1 || f.callers > mostCallers:
		return "", fmt.Errorf("--callers must be 1 to %d", mostCallers)
	case f.lasting <= 0 || f.lasting > longestRun:
		return "", fmt.Errorf("--for must be positive, and at most %v", longestRun)
	case f.prefix == "":
		return "", errors.New("--prefix cannot be empty: it separates the names from the names of programs")
	}
	if err := cli.CheckName(f.name(mostCallers)); err != nil {
		return "", fmt.Errorf("--prefix: %w", err)
	}
	if err := f.Valid(); err != nil {
		return "", err
	}
	return cli.ArgumentURL(c, args)
}

// ownDigits distinguish the names of this run from names of other runs. Names
// end in digits and nothing else, because a backend may require it.
var ownDigits = rand.IntN(1e6)

// name returns one of the names.
func (f *benchFlags) name(i int) string { return fmt.Sprintf("%s%06d%03d", f.prefix, ownDigits, i) }

// run measures all workloads and cleans up after itself.
func (f *benchFlags) run(c *cobra.Command, raw string) (r *benchReport, err error) {
	ctx, out := c.Context(), c.ErrOrStderr()
	u, err := driver.ParseURL(raw)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "migrate" {
		return nil, fmt.Errorf("in a migration, locking a name moves it permanently: give the URL of one of its backends: %w", errors.ErrUnsupported)
	}
	undo, err := f.tidy(ctx, u)
	if err != nil {
		return nil, err
	}
	b := &bench{benchFlags: f, pace: newPacer(f.rate)}
	for i := range b.clients {
		opened, err := f.OpenURL(ctx, raw)
		if err != nil {
			return nil, errors.Join(err, b.close())
		}
		b.clients[i] = opened.Client
		if i == 0 {
			if err := f.nobodyElse(ctx, opened, out); err != nil {
				return nil, errors.Join(err, b.close())
			}
		}
	}
	r, err = b.measureAll(ctx, out)
	if closed := b.close(); err == nil {
		err = closed
	}
	if left := undo(); left != nil {
		fmt.Fprintln(out, "dsync: some remains were not removed:", left)
	}
	r.URL = u.String()
	return r, err
}

// nobodyElse returns an error if another client holds a name, unless that is
// allowed.
func (f *benchFlags) nobodyElse(ctx context.Context, b *cli.Backend, out io.Writer) error {
	if f.yes {
		return nil
	}
	lister, can := b.Driver.(driver.Lister)
	if !can {
		fmt.Fprintln(out, "dsync: this backend does not report whether it is in use")
		return nil
	}
	bound, cancel := context.WithTimeout(ctx, f.Connect)
	defer cancel()
	for name, err := range lister.List(bound, "") {
		if err == nil {
			return cli.Unfinished("the backend is in use: %s is held. A benchmark delays other clients. --yes starts it anyway, within --rate, --callers and --for", cli.Show(name))
		}
		if ctx.Err() == nil {
			fmt.Fprintln(out, "dsync: cannot determine whether the backend is in use:", err)
		}
		break
	}
	return ctx.Err()
}

// write writes a table. Its titles are cut if the terminal is narrow.
func (r *benchReport) write(w io.Writer) error { return r.fill(w, cli.WidthOf(w)) }

func (r *benchReport) fill(w io.Writer, width int) error {
	fmt.Fprintf(w, "%s\n\n", r.URL)
	rows, bounded := [][]string{{"WORKLOAD", "LOCKS/S", "P50 MS", "P99 MS", "OF"}}, false
	for _, m := range r.Workloads {
		rate := cli.NoValue
		if m.PerSecond > 0 {
			rate = strconv.FormatFloat(m.PerSecond, 'f', 0, 64)
		}
		if m.Bounded {
			rate, bounded = rate+"*", true
		}
		rows = append(rows, []string{fmt.Sprintf("%d %s", m.Workload, m.Title), rate, fmt.Sprintf("%.2f", m.P50Msec), fmt.Sprintf("%.2f", m.P99Msec), m.Of})
	}
	err := cli.WriteTable(w, width, rows, 1)
	if bounded && err == nil {
		_, err = fmt.Fprint(w, "\n"+cli.Wrap(fmt.Sprintf("* limited by --rate %d: the server can do more", r.Rate), "", width))
	}
	return err
}
