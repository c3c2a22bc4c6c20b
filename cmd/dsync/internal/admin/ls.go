package admin

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
)

// listedName is a name in the JSON of `ls` without --long.
type listedName struct {
	Name string `json:"name"`
}

// adminCommands returns the commands that show and release locks.
func Commands() []*cobra.Command {
	return []*cobra.Command{lsCommand(), showCommand(), releaseCommand(), permitsCommand()}
}

func lsCommand() *cobra.Command {
	var f cli.BackendFlags
	var asJSON, long bool
	c := &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "List the held names",
		Long: `Ls lists the held names that begin with PREFIX, in alphabetical order: one per line, or with --long in a table of their holders. A name
that is acquired or released in the meantime may be missing. Ls changes nothing. On a terminal, names with unusual characters are quoted.
Elsewhere, names are written as they are. For names with line breaks, use --json.

  Redis       reads all keys of the server, at most a hundred thousand per second, and lists hashes that look like locks.
              docs/security.md lists the rights that this needs.
  etcd        reads the keys below the prefix of the URL, a thousand per request
  ZooKeeper   reads the nodes below the path of the URL, one after the other
  PostgreSQL  stores only hashes of names. With key=number (or key=pair) in the URL, locked numbers are listed, including those of
              other programs
  Redlock     and migrations cannot list names

Exit status
    0  listed, even if no name is held
    1  the backend cannot be opened or is out of reach, or a right is missing
    2  the command line is wrong
    4  the backend cannot list names
  130  interrupted`,
		Example: `  export DSYNC_URL=etcd://etcd:2379/locks/
  dsync ls
  dsync ls --long orders/
  dsync ls orders/ | xargs -d '\n' dsync show`,
		Args: cli.AtMostOnePrefix,
		RunE: func(c *cobra.Command, args []string) error {
			return f.WithBackend(c, func(b *cli.Backend) error {
				names, _, err := b.List(c.Context(), cli.PrefixOf(args), math.MaxInt)
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
	f.Add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	c.Flags().BoolVarP(&long, "long", "l", false, "show the holder of each name")
	return c
}

func writeNames(w io.Writer, names []string, asJSON bool) error {
	if asJSON {
		list := []listedName{}
		for _, name := range names {
			list = append(list, listedName{name})
		}
		return cli.WriteJSON(w, list)
	}
	text := func(name string) string { return name } // unescaped, for other programs
	if cli.WidthOf(w) > 0 {
		text = cli.Show
	}
	for _, name := range names {
		if _, err := fmt.Fprintln(w, text(name)); err != nil {
			return err
		}
	}
	return nil
}

// writeLong omits names that have become free.
func writeLong(c *cobra.Command, b *cli.Backend, names []string, asJSON bool) error {
	reports, err := Inspect(c.Context(), b, names)
	if err != nil {
		return err
	}
	reports = slices.DeleteFunc(reports, func(r Report) bool { return !r.Held })
	out := c.OutOrStdout()
	if asJSON {
		return cli.WriteJSON(out, reports)
	}
	return cli.WriteTable(out, cli.WidthOf(out), Rows(reports), 3)
}

// WaitersColumn is the index of the number of waiters in Rows.
const WaitersColumn = 6

// Rows returns a table of holders.
func Rows(reports []Report) [][]string {
	rows := [][]string{{"NAME", "HOLDER", "PROCESS", "HELD", "FOR", "TTL", "WAITERS", "TOKEN", "NOTE"}}
	for _, r := range reports {
		since, ttl := "", ""
		if r.Since != nil {
			since = r.Seen.Sub(*r.Since).Round(time.Second).String()
		}
		if r.TTLSeconds > 0 {
			ttl = time.Duration(r.TTLSeconds * float64(time.Second)).Round(time.Second).String()
		}
		rows = append(rows, []string{cli.Show(r.Name), cli.Dash(r.who()), cli.Dash(cli.Printable(r.Process)), r.state(), cli.Dash(since), cli.Dash(ttl), cli.Count(r.Waiters), cli.Dash(cli.Token(r.Token)), cli.Dash(cli.Printable(r.Note))})
	}
	return rows
}
