package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
)

// complete adds the command that writes completion scripts for shells, and
// declares the possible arguments and flags of every command below root.
// Completion uses only the command line. It sends no request to a backend and
// reads no variable and no file, so it cannot reveal a password.
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

// completeValues completes the flag values of a command and all its
// subcommands.
func completeValues(c *cobra.Command) {
	if c.ValidArgsFunction == nil {
		c.ValidArgsFunction = cobra.NoFileCompletions // a name: backends do not list free names
	}
	add := func(f *pflag.Flag) {
		values := cobra.NoFileCompletions
		switch kind, _ := pflag.UnquoteUsage(f); {
		case f.NoOptDefVal != "", kind == "FILE":
			return // no value; files, as the shell completes them
		case kind == "URL":
			values = cli.CompleteURL
		}
		// The error is returned for flags that the command does not have.
		_ = c.RegisterFlagCompletionFunc(f.Name, values)
	}
	c.Flags().VisitAll(add)
	c.PersistentFlags().VisitAll(add)
	for _, below := range c.Commands() {
		completeValues(below)
	}
}

// describePlainly removes the quotation marks, which name the values of flags
// in a help text, from the descriptions of all flags.
func describePlainly(c *cobra.Command) {
	c.Flags().VisitAll(func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) })
	c.PersistentFlags().VisitAll(func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) })
	for _, below := range c.Commands() {
		describePlainly(below)
	}
}
