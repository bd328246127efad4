package operator

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/config"
)

// ConfigCommand returns "allocator config".
func ConfigCommand(a *cli.App) *cobra.Command {
	return cli.Parent("config", "Show and check settings", configPrintCommand(a), configCheckCommand(a))
}

// DocsCommand returns "allocator docs".
func DocsCommand(a *cli.App) *cobra.Command {
	return cli.Parent("docs", "Print the reference of all settings", &cobra.Command{
		Use:                   "sample",
		Short:                 "Print a file of all settings, with their defaults and reasons",
		Args:                  cobra.NoArgs,
		DisableFlagsInUseLine: true,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(a.Out, config.Sample())
			return err
		},
	})
}

// configPrintCommand returns "allocator print".
func configPrintCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print every setting, its value and its source",
		Long: `Print shows the settings that "allocator serve" would use with the same flags, variables
and file. With --format yaml it prints them as such a file. It exits with 1 if a setting
breaks a rule. For a file to begin with, see "allocator docs sample".`,
		Args: cobra.NoArgs,
	}
	format := cli.Choose(cmd, "format",
		"output format; json is one object a line, yaml a file for --config", "text", "json", "yaml")
	load := a.Settings(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, list, err := load()
		if err != nil {
			return err
		}
		switch format.Value {
		case "json":
			for _, s := range list {
				if err := cli.PrintLine(a.Out, s); err != nil {
					return err
				}
			}
		case "yaml":
			if _, err := fmt.Fprint(a.Out, config.YAML(list)); err != nil {
				return err
			}
		default:
			w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
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

// configCheckCommand returns "allocator config check".
func configCheckCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Say what is wrong with a file of settings",
		Long: `Check reads a file of settings as "allocator serve --config FILE" would, with the variables that
are set, but opens none of the files that the settings name. It prints nothing and exits with 0 if
nothing is wrong. Else it names each key that is unknown, with the closest one that there is, each
bad value and each broken rule, and exits with 1. Run it in CI, and on a machine before you restart
a node.`,
		Example: `  allocator config check /etc/allocator/allocator.yaml && systemctl restart allocator`,
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, _, err := config.Load(config.Sources{File: args[0], Env: a.Env})
			if errors.Is(err, config.ErrFile) {
				return err // There are no settings whose rules could be broken.
			}
			if len(c.Etcd.Addresses()) == 0 {
				err = errors.Join(err, &config.RuleError{Key: "etcd.endpoints",
					Rule: "there are none, and serve needs them, or etcd.join of nodes with etcd inside"})
			}
			return errors.Join(err, c.Validate())
		},
	}
}

// VersionCommand returns "allocator version".
func VersionCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs}
	format := cli.FormatFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		v := a.Build()
		return format.Print(a.Out, v, v.String()+"\n")
	}
	return cmd
}
