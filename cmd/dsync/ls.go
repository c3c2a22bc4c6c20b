package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/driver"
)

// listedName is a name in the JSON of `ls` without --long.
type listedName struct {
	Name string `json:"name"`
}

func lsCommand() *cobra.Command {
	var f backendFlags
	var asJSON, long bool
	c := &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "List the names that are held",
		Long: `Ls lists the names that are held, of those that begin with PREFIX, in alphabetical order: one in a line, or with --long a table of who
holds them. A name that somebody gets or gives back meanwhile is listed or not. Nothing is locked and nothing changed.

  Redis       goes through all keys of the server, a hundred thousand in a second at most, and takes hashes that look like locks
              for locks. The rights for that are in docs/security.md.
  etcd        reads the keys below the prefix of the URL, a thousand with each request
  ZooKeeper   goes through the nodes below the path of the URL, one after the other
  PostgreSQL  knows names by their hashes alone. With key=number (or key=pair) in the URL, the numbers that are locked are listed,
              those of other programs too
  Redlock     and migrations cannot list names

Exit status
    0  listed, also if nobody holds a name
    1  the backend cannot be opened or is out of reach, or a right is missing
    2  the command line is wrong
    4  the backend cannot list names
  130  interrupted`,
		Example: `  export DSYNC_URL=etcd://etcd:2379/locks/
  dsync ls
  dsync ls --long orders/
  dsync ls orders/ | xargs -d '\n' dsync show`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError{fmt.Errorf("%s takes one prefix", c.CommandPath())}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			prefix := ""
			if len(args) > 0 {
				prefix = args[0]
			}
			return f.withBackend(c, func(b *backend) error {
				names, err := b.list(c.Context(), prefix)
				if err != nil {
					return err
				}
				if long {
					return writeLong(c, b, names, asJSON)
				}
				return writeNames(c.OutOrStdout(), names, asJSON)
			})
		},
	}
	f.add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	c.Flags().BoolVarP(&long, "long", "l", false, "show who holds each name")
	return c
}

// list returns the names with a prefix that are held.
func (b *backend) list(ctx context.Context, prefix string) ([]string, error) {
	lister, can := b.driver.(driver.Lister)
	if !can {
		return nil, fmt.Errorf("it cannot list names: %w", errors.ErrUnsupported)
	}
	names := []string{}
	for name, err := range lister.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func writeNames(w io.Writer, names []string, asJSON bool) error {
	if asJSON {
		list := []listedName{}
		for _, name := range names {
			list = append(list, listedName{name})
		}
		return writeJSON(w, list)
	}
	for _, name := range names {
		if _, err := fmt.Fprintln(w, show(name)); err != nil {
			return err
		}
	}
	return nil
}

// writeLong leaves out the names that are free by now.
func writeLong(c *cobra.Command, b *backend, names []string, asJSON bool) error {
	reports, err := b.inspectAll(c.Context(), names)
	if err != nil {
		return err
	}
	reports = slices.DeleteFunc(reports, func(r lockReport) bool { return !r.Held })
	out := c.OutOrStdout()
	if asJSON {
		return writeJSON(out, reports)
	}
	rows := [][]string{{"NAME", "HELD", "HOLDER", "PROCESS", "FOR", "TTL", "WAITERS", "TOKEN"}}
	for _, r := range reports {
		since, ttl := "", ""
		if r.Since != nil {
			since = r.Seen.Sub(*r.Since).Round(time.Second).String()
		}
		if r.TTLSeconds > 0 {
			ttl = time.Duration(r.TTLSeconds * float64(time.Second)).Round(time.Second).String()
		}
		rows = append(rows, []string{show(r.Name), r.state(), dash(r.who()), dash(r.Process), dash(since), dash(ttl), count(r.Waiters), dash(token(r.Token))})
	}
	return writeTable(out, widthOf(out), rows)
}
