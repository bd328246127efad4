package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/config"
)

var page = flag.String("page", "", "write the reference of all commands, as Markdown, into this file; make docs does")

// Each command has a section of the page of commands, and the page that is committed leads to it by the names of all
// top-level commands.
func TestReferenceOfCommands(t *testing.T) {
	out := reference(newRoot(&cli.App{}))
	if *page != "" {
		fatal.If(t, os.WriteFile(*page, []byte(out), 0o644))
	}
	index := readFile(t, "../../docs/reference/printed.md")
	sections := 0
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if sub.Hidden || sub.Name() == "help" || sub.Name() == "completion" {
				continue
			}
			if cmd.Parent() == nil && !strings.Contains(index, "`"+sub.Name()+"`") {
				t.Errorf("docs/reference/printed.md does not name %s", sub.CommandPath())
			}
			if !sub.HasSubCommands() {
				sections++
				if strings.Count(out, "\n## "+sub.CommandPath()+"\n") != 1 {
					t.Errorf("the page of commands has no section %s", sub.CommandPath())
				}
			}
			visit(sub)
		}
	}
	visit(newRoot(&cli.App{}))
	if sections < 40 {
		t.Errorf("found %d commands", sections)
	}
}

// reference returns the page of all commands, as Markdown. Options of a node are
// on a page of their own, and flags of several commands are described once.
func reference(root *cobra.Command) string {
	var commands []*cobra.Command
	var collect func(cmd *cobra.Command)
	collect = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" { // cobra adds these when it runs
			return
		}
		if cmd.Runnable() && !cmd.HasSubCommands() {
			commands = append(commands, cmd)
		}
		for _, sub := range cmd.Commands() {
			collect(sub)
		}
	}
	collect(root)
	shared := sharedFlags(commands)
	var b strings.Builder
	b.WriteString(`# Command line

Results go to stdout, everything else to stderr. With ` + "`--format json`" + ` each result is one JSON object on a
line, invalid inputs included, in the order of the inputs. A dash in place of an ID reads IDs from stdin, one a line.
A reader of stdout that leaves, such as ` + "`head`" + `, ends a command quietly and with 0. Nothing is colored.

| exit code | meaning |
|---|---|
`)
	for _, e := range exits {
		fmt.Fprintf(&b, "| %d | %s |\n", e.code, e.means)
	}
	b.WriteString(`
Completion for bash, zsh, fish and PowerShell, of flags and of their values: ` + "`allocator completion --help`" + `.

## Flags of several commands

` + "```" + `
`)
	b.WriteString(usages(shared))
	b.WriteString("```\n\nCommands with `--config` have a flag for each [setting](printed.md#settings) besides, " +
		"such as `--lease.window 1m`.\n")
	for _, cmd := range commands {
		commandPage(&b, cmd, shared)
	}
	return b.String()
}

// flagsOf returns the flags of a command, without help and without the settings of a node.
func flagsOf(cmd *cobra.Command) (out []*pflag.Flag) {
	node := cmd.NonInheritedFlags().Lookup("config") != nil
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		setting := slices.ContainsFunc(config.Options(), func(o config.Option) bool { return o.Key == f.Name })
		if !f.Hidden && f.Name != "help" && !(node && setting) {
			out = append(out, f)
		}
	})
	return out
}

// same reports whether two commands mean the same with a flag.
func same(a, b *pflag.Flag) bool {
	return a.Name == b.Name && a.Usage == b.Usage && a.DefValue == b.DefValue && a.Value.Type() == b.Value.Type()
}

// sharedFlags returns those that at least three commands have with the same meaning, by
// name. Of two meanings of one name the one of most commands is shared.
func sharedFlags(commands []*cobra.Command) (out []*pflag.Flag) {
	var all []*pflag.Flag
	for _, cmd := range commands {
		all = append(all, flagsOf(cmd)...)
	}
	count := func(f *pflag.Flag) (n int) {
		for _, other := range all {
			if same(f, other) {
				n++
			}
		}
		return n
	}
	best := map[string]*pflag.Flag{}
	for _, f := range all {
		if n := count(f); n >= 3 && (best[f.Name] == nil || n > count(best[f.Name])) {
			best[f.Name] = f
		}
	}
	for _, name := range slices.Sorted(maps.Keys(best)) {
		out = append(out, best[name])
	}
	return out
}

// usages returns what help prints of flags.
func usages(flags []*pflag.Flag) string {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, f := range flags {
		set.AddFlag(f)
	}
	return set.FlagUsages()
}

func commandPage(b *strings.Builder, cmd *cobra.Command, shared []*pflag.Flag) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n", cmd.CommandPath(), cmd.Short+".")
	if cmd.Long != "" {
		fmt.Fprintf(b, "\n%s\n", strings.TrimSpace(cmd.Long))
	}
	if use := strings.TrimSuffix(cmd.UseLine(), " [flags]"); use != cmd.CommandPath() {
		fmt.Fprintf(b, "\n```\n%s\n```\n", cmd.UseLine())
	}
	if cmd.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", dedent(cmd.Example))
	}
	var own []*pflag.Flag
	var others []string
	for _, f := range flagsOf(cmd) {
		if slices.ContainsFunc(shared, func(other *pflag.Flag) bool { return same(f, other) }) {
			others = append(others, "`--"+f.Name+"`")
		} else {
			own = append(own, f)
		}
	}
	if len(own) > 0 {
		fmt.Fprintf(b, "\n```\n%s```\n", usages(own))
	}
	if len(others) > 0 {
		fmt.Fprintf(b, "\n[Shared](#flags-of-several-commands): %s.\n", strings.Join(others, ", "))
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
	{cli.ExitUnavailable, "etcd, every node asked, a database, or what serve needs of its machine is unavailable"},
	{cli.ExitInterrupted, "interrupted before it was done"},
}
