package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
)

// Report describes one lock. Its JSON is part of the command's interface.
type Report struct {
	Name       string     `json:"name"`
	Held       bool       `json:"held"`
	Mode       string     `json:"mode,omitempty"`    // exclusive, read, write or permit
	Used       int        `json:"used,omitempty"`    // held permits
	Limit      int        `json:"limit,omitempty"`   // limit of permits if the backend stores one, even for a free name
	Holders    int        `json:"holders,omitempty"` // more than 1 for several readers or permit holders; the fields below describe one of them
	Hold       string     `json:"hold,omitempty"`
	Owner      string     `json:"owner,omitempty"`
	Note       string     `json:"note,omitempty"`
	Process    string     `json:"process,omitempty"` // host:pid
	Since      *time.Time `json:"since,omitempty"`
	TTLSeconds float64    `json:"ttl_seconds,omitempty"`
	Token      uint64     `json:"token,omitempty"` // the latest token of the present grant; 0 if unknown
	Waiters    int        `json:"waiters"`         // -1 if the backend cannot tell
	Queue      []string   `json:"queue,omitempty"`
	Seen       time.Time  `json:"seen"`
}

func NewLockReport(name string, s dsync.Status) Report {
	r := Report{Name: name, Held: s.Held, Used: s.Used, Limit: s.Limit, Token: s.Token, Waiters: s.Waiters, Queue: s.Queue, Seen: time.Now()}
	if !s.Held {
		return r
	}
	r.Mode, r.Holders, r.Hold, r.Owner, r.Note, r.Process = s.Mode.String(), s.Holders, s.Hold, s.Owner, s.Note, s.Process
	r.TTLSeconds = s.TTL.Round(time.Millisecond).Seconds()
	if !s.Since.IsZero() {
		r.Since = &s.Since
	}
	return r
}

func showCommand() *cobra.Command {
	var f cli.BackendFlags
	var names cli.NameFlags
	var asJSON, watch bool
	c := &cobra.Command{
		Use:   "show NAME...",
		Short: "Show the holders and waiters of locks",
		Long: `Show prints for each name its holder, the holder's host and note, the time of the grant, how long the lock lasts without a renewal, the
last fencing token, and the waiters. Values that the backend does not store are left out (see docs/operations.md). Show changes nothing.

With --watch it prints a line whenever a holder changes, until Ctrl-C. It may skip changes in quick succession, but never the last one.

Use the URL of the programs: in $DSYNC_URL, or in a file (--url-file). A URL without a password can be a flag (--url). Other users of a
machine can see flags.

Exit status
    0  shown, whether the names are held or not; with --watch, also by Ctrl-C
    1  the backend cannot be opened or is out of reach
    2  the command line is wrong
    4  the backend cannot report holders
  130  interrupted`,
		Example: `  export DSYNC_URL=redisson://:secret@redis:6379
  dsync show orders/42
  dsync show --json orders/42 invoices
  dsync show --watch leader`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			list, err := names.Some(c, args, true)
			if err != nil {
				return err
			}
			return f.WithBackend(c, func(b *cli.Backend) error {
				if watch {
					return watchLocks(c.Context(), b, list, lockPrinter(c.OutOrStdout(), asJSON))
				}
				reports, err := Inspect(c.Context(), b, list)
				if err != nil {
					return err
				}
				return writeLocks(c.OutOrStdout(), reports, asJSON)
			})
		},
	}
	f.Add(c)
	names.Add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON; with --watch, one object per line for each change")
	c.Flags().BoolVar(&watch, "watch", false, "print a line whenever a holder changes")
	return c
}

// inspectAll inspects all names, several at a time.
func Inspect(ctx context.Context, b *cli.Backend, names []string) ([]Report, error) {
	const atOnce = 16
	reports := make([]Report, len(names))
	err := cli.SideBySide(ctx, atOnce, len(names), func(ctx context.Context, i int) error {
		s, err := b.Client.Inspect(ctx, names[i])
		if err == nil {
			reports[i] = NewLockReport(names[i], s)
		}
		return err
	})
	return reports, err
}

// watchLocks prints each change of the names until ctx ends.
func watchLocks(ctx context.Context, b *cli.Backend, names []string, print func(Report) error) error {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex // guards print
	var observers sync.WaitGroup
	for _, name := range names {
		observers.Go(func() { // ends when inner ends
			for s, err := range b.Client.Observe(inner, name) {
				if err == nil {
					mu.Lock()
					err = print(NewLockReport(name, s))
					mu.Unlock()
				}
				if err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	observers.Wait()
	if ctx.Err() != nil {
		return nil // Ctrl-C is the usual end of a watch
	}
	return context.Cause(inner)
}

// lockPrinter prints one line for each report.
func lockPrinter(w io.Writer, asJSON bool) func(Report) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		return func(r Report) error { return e.Encode(r) }
	}
	return func(r Report) error {
		_, err := fmt.Fprintf(w, "%s  %s  %s\n", r.Seen.Format("15:04:05.000"), cli.Show(r.Name), r.Summary())
		return err
	}
}

// Summary returns the report as one line.
func (r *Report) Summary() string {
	if !r.Held {
		return "free"
	}
	text := r.state()
	if who := r.who(); who != "" {
		text += " by " + who
	}
	if r.Process != "" {
		text += " on " + cli.Show(r.Process)
	}
	if r.Token > 0 {
		text += fmt.Sprintf(", token %d", r.Token)
	}
	return text
}

// state returns whether the name is held, and in which mode.
func (r *Report) state() string {
	switch {
	case !r.Held:
		return "free"
	case r.Mode == driver.Read.String():
		return "read"
	case r.Mode == driver.Write.String():
		return "written"
	case r.Mode == driver.Permit.String():
		return r.permits()
	}
	return "held"
}

func (r *Report) permits() string { return fmt.Sprintf("%d of %d permits held", r.Used, r.Limit) }

// who returns a text that names the holder.
func (r *Report) who() string {
	if r.Owner != "" {
		return cli.Show(r.Owner)
	}
	if r.Hold != "" {
		return cli.Show(r.Hold)
	}
	return ""
}

func writeLocks(w io.Writer, reports []Report, asJSON bool) error {
	if asJSON {
		return cli.WriteJSON(w, reports)
	}
	for i := range reports {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := reports[i].write(w); err != nil {
			return err
		}
	}
	return nil
}

// write writes the whole report, one field per line.
func (r *Report) write(w io.Writer) error {
	paint, colour := cli.Painter(w), cli.Green
	if r.Held {
		colour = cli.Yellow
	}
	_, err := fmt.Fprintf(w, "%s  %s\n", cli.Show(r.Name), paint(colour, r.state()))
	line := func(label, value string) {
		if value != "" && err == nil {
			_, err = fmt.Fprintf(w, "  %-8s  %s\n", label, value)
		}
	}
	if r.Holders > 1 {
		line("holders", fmt.Sprintf("%d, one of them:", r.Holders))
	}
	line("holder", r.who())
	if r.Hold != r.Owner && r.Owner != "" {
		line("hold", cli.Show(r.Hold))
	}
	if r.Process != "" {
		line("process", cli.Show(r.Process))
	}
	if r.Note != "" {
		line("note", cli.Show(r.Note))
	}
	if r.Since != nil {
		line("since", fmt.Sprintf("%s (%s)", r.Since.Format(time.RFC3339), r.Seen.Sub(*r.Since).Round(time.Second)))
	}
	if r.TTLSeconds > 0 {
		line("ttl", time.Duration(r.TTLSeconds*float64(time.Second)).Round(100*time.Millisecond).String())
	}
	line("token", cli.Token(r.Token))
	line("waiters", r.WhoWaits())
	return err
}

func (r *Report) WhoWaits() string {
	text := cli.Count(r.Waiters)
	if len(r.Queue) == 0 {
		return text
	}
	const most = 10
	var queue []string
	for _, who := range r.Queue[:min(most, len(r.Queue))] {
		queue = append(queue, cli.Show(who))
	}
	if more := len(r.Queue) - most; more > 0 {
		queue = append(queue, fmt.Sprintf("and %d more (--json)", more))
	}
	return text + ": " + strings.Join(queue, ", ")
}
