package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
)

// complete adds the command that writes completion scripts for shells, and says
// of all commands below root what their arguments and flags can be. Completion
// knows the command line alone: no backend is asked, and no variable and no
// file is read, so nothing of a password can be shown.
func complete(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Example = "  dsync help run"
		case "completion":
			cli.AsGroup(c)
			c.Example = `  source <(dsync completion bash)
  dsync completion zsh > "${fpath[1]}/_dsync"`
			for _, shell := range c.Commands() {
				shell.Args = cli.NoArguments
				shell.Example = "  " + c.CommandPath() + " " + shell.Name()
			}
		}
	}
	completeValues(root)
}

// completeValues goes through a command and all below it.
func completeValues(c *cobra.Command) {
	if c.ValidArgsFunction == nil {
		c.ValidArgsFunction = cobra.NoFileCompletions // a name: no backend knows those that nobody holds
	}
	add := func(f *pflag.Flag) {
		values := cobra.NoFileCompletions
		switch kind, _ := pflag.UnquoteUsage(f); {
		case f.NoOptDefVal != "", kind == "FILE":
			return // no value; files, as the shell completes them
		case kind == "URL":
			values = cli.CompleteURL
		}
		// which fails for flags that the command does not have
		_ = c.RegisterFlagCompletionFunc(f.Name, values)
	}
	c.Flags().VisitAll(add)
	c.PersistentFlags().VisitAll(add)
	for _, below := range c.Commands() {
		completeValues(below)
	}
}
