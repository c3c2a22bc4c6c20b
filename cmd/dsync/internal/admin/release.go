package admin

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
)

func releaseCommand() *cobra.Command {
	var f cli.BackendFlags
	var yes bool
	var hold string
	c := &cobra.Command{
		Use:   "release NAME",
		Short: "End the hold of a lock",
		Long: `Release shows the holder of a lock, asks for confirmation, and ends the hold. If several clients read the name, it ends all their holds.
Waiters are notified immediately, and the holder within the bound of its backend (docs/guarantees.md). Until then the holder may still write
at the same time as the next holder, unless the resource checks fencing tokens. If you can, stop the holder instead.

Without a terminal, --yes replaces the confirmation. With --hold, release ends only that hold. A script passes the hold that
"dsync show --json" reports.

Release checks again just before the request. If the displayed hold ends between this check and the request, and another client is granted
the name, release may end that client's hold.

On PostgreSQL a lock can only be removed together with its session and all other locks of the session. This needs force_unlock=true in
the URL.

Exit status
    0  the displayed hold has ended
    1  the backend cannot be opened or is out of reach, or the outcome is unknown
    2  the command line is wrong, or there is no terminal for the confirmation
    3  the name is free, or another client holds it now: nothing was released
    4  the backend does not support it, or the name is sealed
  130  interrupted, or the answer was no`,
		Example: `  dsync release orders/42
  dsync release --yes --hold 7d0c3a52-…:17 orders/42`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage(fmt.Errorf("%s takes one name", c.CommandPath()))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := cli.CheckName(args[0]); err != nil {
				return cli.Usage(fmt.Errorf("name %s: %w", cli.Show(args[0]), err))
			}
			if !yes && !isTerminal(c.InOrStdin()) {
				return cli.Usage(errors.New("standard input is not a terminal, so there is no confirmation: use --yes"))
			}
			return f.WithBackend(c, func(b *cli.Backend) error { return releaseShown(c, b, args[0], hold, yes) })
		},
	}
	f.Add(c)
	c.Flags().BoolVar(&yes, "yes", false, "skip the confirmation")
	c.Flags().StringVar(&hold, "hold", "", "release only this `HOLD`")
	return c
}

// ErrDeclined is returned if the user does not answer yes.
var ErrDeclined = errors.New("not released")

// releaseShown ends the displayed hold. Unless yes is set, it first asks the
// user for confirmation.
func releaseShown(c *cobra.Command, b *cli.Backend, name, hold string, yes bool) error {
	err := Release(c.Context(), b, name, func(r *Report) error {
		if err := r.write(c.OutOrStdout()); err != nil {
			return err
		}
		if hold != "" && r.Hold != hold {
			return cli.Unfinished("%s: held by another client, %s", cli.Show(name), cli.Show(r.Hold))
		}
		if yes {
			return nil
		}
		return confirm(c.Context(), c.InOrStdin(), c.ErrOrStderr(), fmt.Sprintf("Release %s? [y/N] ", cli.Show(name)))
	})
	if err == nil {
		_, err = fmt.Fprintf(c.OutOrStdout(), "released\n")
	}
	return err
}

// Release ends the hold of a name unless agree, called with the hold, returns
// an error.
func Release(ctx context.Context, b *cli.Backend, name string, agree func(*Report) error) error {
	over := cli.Unfinished("%s: the displayed hold has ended: nothing was released", cli.Show(name))
	seen, err := b.Client.Inspect(ctx, name)
	if err != nil {
		return err
	}
	if !seen.Held {
		return cli.Unfinished("%s: not held", cli.Show(name))
	}
	report := NewLockReport(name, seen)
	if err := agree(&report); err != nil {
		return err
	}
	now, err := b.Client.Inspect(ctx, name)
	if err != nil {
		return err
	}
	if again := NewLockReport(name, now); again.Grant() != report.Grant() {
		return over
	}
	err = b.Client.ForceUnlock(ctx, name)
	switch {
	case errors.Is(err, dsync.ErrNotHeld):
		return over
	case errors.Is(err, driver.ErrSealed):
		return fmt.Errorf("%w, and a seal cannot be released: %w", err, errors.ErrUnsupported)
	}
	return err
}

// Grant returns a string that distinguishes the hold in a report from other
// holds of the name, as far as the backend can. It consists of letters and
// digits.
func (r *Report) Grant() string {
	if !r.Held {
		return ""
	}
	since := int64(0)
	if r.Since != nil {
		since = r.Since.UnixNano()
	}
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%q %q %s %d %d", r.Hold, r.Owner, r.Mode, r.Token, since)))
}

// confirm prompts the user and returns nil if the answer is yes.
func confirm(ctx context.Context, in io.Reader, out io.Writer, question string) error {
	fmt.Fprint(out, question)
	answer := make(chan string, 1)
	go func() { // ends when the line arrives or the program ends: the read cannot be interrupted
		line, _ := bufio.NewReader(in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
		return ErrDeclined
	case <-ctx.Done():
		fmt.Fprintln(out)
		return ctx.Err()
	}
}

func isTerminal(r io.Reader) bool {
	file, ok := r.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
