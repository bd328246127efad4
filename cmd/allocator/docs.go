package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/metrics"
)

// docsCommand prints the pages of docs/reference; a test holds them together.
func (a *app) docsCommand() *cobra.Command {
	return &cobra.Command{
		Use:       "docs cli|config|metrics",
		Short:     "Print a page of the reference, as Markdown",
		Hidden:    true,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"cli", "config", "metrics"},
		RunE: func(cmd *cobra.Command, args []string) error {
			page := map[string]func() string{
				"cli": func() string { return reference(cmd.Root()) }, "config": config.Reference, "metrics": metrics.Reference,
			}[args[0]]
			_, err := fmt.Fprint(a.out, page())
			return err
		},
	}
}

// reference returns the page of all commands, as Markdown. Options of a node are
// on a page of their own and not repeated under each command that takes them.
func reference(root *cobra.Command) string {
	options := map[string]bool{}
	for _, o := range config.Options() {
		options[o.Key] = true
	}
	var b strings.Builder
	b.WriteString(`# Command line

Results go to stdout, everything else to stderr. With ` + "`--format json`" + ` each result is one JSON object on a line,
invalid inputs included, in the order of the inputs. A dash in place of an ID reads IDs from stdin, one a line. A
reader of stdout that leaves, such as ` + "`head`" + `, ends a command quietly and with 0. Nothing is coloured.

| exit code | meaning |
|---|---|
| 0 | all went well |
| 1 | an input is invalid, or a request was refused |
| 2 | called wrongly: an unknown command or flag, a bad value, a setting that breaks a rule |
| 3 | etcd, or every node asked, is away |
| 130 | interrupted before it was done |
`)
	var page func(cmd *cobra.Command)
	page = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "help" {
			return
		}
		if cmd.Runnable() && !cmd.HasSubCommands() {
			commandPage(&b, cmd, options)
		}
		for _, sub := range cmd.Commands() {
			page(sub)
		}
	}
	page(root)
	return b.String()
}

func commandPage(b *strings.Builder, cmd *cobra.Command, options map[string]bool) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n", cmd.CommandPath(), cmd.Short+".")
	if cmd.Long != "" {
		fmt.Fprintf(b, "\n%s\n", strings.TrimSpace(cmd.Long))
	}
	fmt.Fprintf(b, "\n```\n%s\n```\n", cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", dedent(cmd.Example))
	}
	flags := cmd.NonInheritedFlags()
	node := flags.Lookup("config") != nil // it takes the settings of a node
	var own []string
	for line := range strings.SplitSeq(flags.FlagUsages(), "\n") {
		name, _, _ := strings.Cut(strings.TrimSpace(line[strings.Index(line, "--")+1:]), " ")
		name = strings.TrimLeft(name, "-")
		name, _, _ = strings.Cut(name, "[") // a flag that may stand without a value
		if name == "" || name == "help" || node && options[name] {
			continue
		}
		own = append(own, strings.TrimRight(line, " "))
	}
	if len(own) > 0 {
		fmt.Fprintf(b, "\n```\n%s\n```\n", strings.Join(own, "\n"))
	}
	if node {
		b.WriteString("\nBesides, a flag for each [setting](config.md), such as `--lease.window 1m`.\n")
	}
}

// dedent takes the two blanks off that begin each line of an example.
func dedent(s string) string {
	return strings.TrimPrefix(strings.ReplaceAll(s, "\n  ", "\n"), "  ")
}
