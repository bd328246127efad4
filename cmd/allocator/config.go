package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Show settings", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(a.configPrintCommand())
	return cmd
}

func (a *app) configPrintCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print every setting, its value and where that came from",
		Long: `Print shows what «allocator serve» would run with, given the same flags, variables and
file. It exits with 1 if a rule is broken.`,
		Args: cobra.NoArgs,
	}
	format := formatFlag(cmd)
	load := a.settings(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, list, err := load()
		if err != nil {
			return err
		}
		if format.value == "json" {
			for _, s := range list {
				if err := printLine(a.out, s); err != nil {
					return err
				}
			}
		} else {
			w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "KEY\tVALUE\tSOURCE")
			for _, s := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\n", s.Key, s.Value, s.Source)
			}
			if err := w.Flush(); err != nil {
				return err
			}
		}
		return c.Validate()
	}
	return cmd
}
