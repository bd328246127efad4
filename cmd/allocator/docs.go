package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/metrics"
)

// docsCommand prints the files of docs/reference.
func docsCommand(a *cli.App) *cobra.Command {
	docs := &cobra.Command{Use: "docs", Short: "Print the reference pages: commands, settings, metrics", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	for _, p := range []struct {
		name, short string
		page        func(root *cobra.Command) string
	}{
		{"cli", "Print the reference of all commands, as Markdown", reference},
		{"config", "Print the reference of all settings, as Markdown", func(*cobra.Command) string { return config.Reference() }},
		{"sample", "Print a commented file of all settings", func(*cobra.Command) string { return config.Sample() }},
		{"metrics", "Print the reference of all metrics, as Markdown", func(*cobra.Command) string { return metrics.Reference() }},
	} {
		docs.AddCommand(&cobra.Command{Use: p.name, Short: p.short, Args: cobra.NoArgs, DisableFlagsInUseLine: true,
			RunE: func(cmd *cobra.Command, _ []string) error {
				_, err := fmt.Fprint(a.Out, p.page(cmd.Root()))
				return err
			}})
	}
	return docs
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
reader of stdout that leaves, such as ` + "`head`" + `, ends a command quietly and with 0. Nothing is colored.

| exit code | meaning |
|---|---|
`)
	for _, e := range exits {
		fmt.Fprintf(&b, "| %d | %s |\n", e.code, e.means)
	}
	b.WriteString(`
Completion for bash, zsh, fish and PowerShell, of flags and of their values: ` + "`allocator completion --help`" + `.
`)
	var page func(cmd *cobra.Command)
	page = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" { // cobra adds these when it runs
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
		name, _, _ = strings.Cut(name, "[") // a flag that needs no value
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

// exits are the exit codes, as the reference lists them.
var exits = []struct {
	code  int
	means string
}{
	{cli.ExitOK, "all went well"},
	{cli.ExitInvalid, "an input is invalid, or a request was refused"},
	{cli.ExitUsage, "wrong command line: an unknown command or flag, a bad value, a setting that breaks a rule"},
	{cli.ExitUnavailable, "etcd, or every node asked, is unavailable"},
	{cli.ExitInterrupted, "interrupted before it was done"},
}
