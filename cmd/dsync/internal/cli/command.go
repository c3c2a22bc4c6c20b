package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/driver"
)

// AsGroup makes a command that only groups subcommands.
func AsGroup(c *cobra.Command) {
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		what := " " + args[0]
		if strings.ContainsAny(args[0], ":@") {
			what = "" // it may be a URL with a password
		}
		return Usage(fmt.Errorf("%s has no command%s (see %s --help)", c.CommandPath(), what, c.CommandPath()))
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
}

// FlagError omits the text of a flag, which may be a URL with a password.
func FlagError(c *cobra.Command, err error) error {
	if strings.Contains(err.Error(), "://") {
		err = errors.New("a flag that takes no URL has a URL as its value")
	}
	return Usage(fmt.Errorf("%w (see %s --help)", err, c.CommandPath()))
}

func NoArguments(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usage(fmt.Errorf("%s takes no arguments", c.CommandPath()))
	}
	return nil
}

func AtMostOnePrefix(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return Usage(fmt.Errorf("%s takes one prefix", c.CommandPath()))
	}
	return nil
}

func PrefixOf(args []string) string { return strings.Join(args, "") }

// CompleteURL completes the beginnings of URLs.
func CompleteURL(_ *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var urls []cobra.Completion
	for _, scheme := range driver.Schemes() {
		if url := scheme + "://"; strings.HasPrefix(url, begun) && url != begun && !slices.Contains([]string{"memory", "migrate"}, scheme) {
			urls = append(urls, url)
		}
	}
	return urls, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

// CompleteOneURL is for commands whose only argument is a URL.
func CompleteOneURL(c *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return CompleteURL(c, args, begun)
}
