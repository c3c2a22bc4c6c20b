package admin

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
)

func permitsCommand() *cobra.Command {
	var f cli.BackendFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "permits NAME [LIMIT]",
		Short: "Show how many permits of a name are held, or set their limit",
		Long: `Permits shows how many permits of a name are held, and the limit that is stored on the backend. With LIMIT it sets the limit first. The
limit remains until the next change, and applies to "dsync run --permits N/0" and to programs that pass no limit.

A limit below the number of held permits revokes none of them, but the backend grants no permits until enough have been released.
Waiting calls that pass a different limit fail.

Exit status
    0  shown or set
    1  the backend cannot be opened or is out of reach, or the outcome is unknown
    2  the command line is wrong
    4  the backend has no permits, or cannot show them
  130  interrupted`,
		Example: `  dsync permits convert
  dsync permits convert 8`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return cli.Usage(fmt.Errorf("%s takes one name, and optionally a limit", c.CommandPath()))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			name, limit := args[0], 0
			if err := cli.CheckName(name); err != nil {
				return cli.Usage(fmt.Errorf("name %s: %w", cli.Show(name), err))
			}
			if len(args) == 2 {
				var err error
				if limit, err = strconv.Atoi(args[1]); err != nil || limit < 1 {
					return cli.Usage(fmt.Errorf("limit %s: not a number of 1 or more", cli.Show(args[1])))
				}
			}
			return f.WithBackend(c, func(b *cli.Backend) error {
				if limit > 0 {
					if err := b.Client.SetLimit(c.Context(), name, limit); err != nil {
						return err
					}
				}
				s, err := b.Client.Inspect(c.Context(), name)
				if err != nil {
					return err
				}
				r := NewLockReport(name, s)
				if asJSON {
					return cli.WriteJSON(c.OutOrStdout(), []Report{r})
				}
				text := "no limit is stored"
				if r.Limit > 0 {
					text = r.permits() + ", " + cli.Count(r.Waiters) + " waiting"
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s  %s\n", cli.Show(name), text)
				return err
			})
		},
	}
	f.Add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON, as show does")
	return c
}
