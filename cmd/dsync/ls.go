package main
import "github.com/spf13/cobra"
func lsCommand() *cobra.Command { return &cobra.Command{Use:"ls"} }
