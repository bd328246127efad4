package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// writeMan writes a page of section 1 for each command into a folder, which it
// makes, and returns how many.
func writeMan(root *cobra.Command, dir string) (n int, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	for _, cmd := range pages(root) {
		if err := os.WriteFile(filepath.Join(dir, manName(cmd)+".1"), []byte(manPage(cmd)), 0o644); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// pages returns root and all commands under it that a page is about.
func pages(root *cobra.Command) []*cobra.Command {
	out := []*cobra.Command{root}
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() {
			out = append(out, pages(cmd)...)
		}
	}
	return out
}

// manName is the name of a command's page, such as allocator-admin-drain.
func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage returns the page of a command, in the macros of man(7).
func manPage(cmd *cobra.Command) string {
	var b strings.Builder
	section := func(name string) { fmt.Fprintf(&b, ".SH %s\n", name) }
	// No date: two runs over one tree give the same pages.
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"allocator\" \"allocator manual\"\n", strings.ToUpper(manName(cmd)))
	section("NAME")
	fmt.Fprintf(&b, "%s \\- %s\n", manName(cmd), roff(cmd.Short))
	section("SYNOPSIS")
	fmt.Fprintf(&b, ".nf\n%s\n.fi\n", roff(cmd.UseLine()))
	section("DESCRIPTION")
	about := cmd.Long
	if about == "" {
		about = cmd.Short + "."
	}
	b.WriteString(roffText(about))
	if cmd.HasAvailableSubCommands() {
		section("COMMANDS")
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(sub.Name()), roff(sub.Short))
			}
		}
	}
	section("OPTIONS")
	cmd.InitDefaultHelpFlag()
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) { manFlag(&b, f) })
	if cmd.Example != "" {
		section("EXAMPLES")
		fmt.Fprintf(&b, ".nf\n%s\n.fi\n", roff(dedent(cmd.Example)))
	}
	section("EXIT STATUS")
	for _, e := range exits {
		fmt.Fprintf(&b, ".TP\n.B %d\n%s\n", e.code, roff(e.means))
	}
	section("SEE ALSO")
	var also []string
	for _, other := range pages(cmd.Root()) {
		if other != cmd && (other == cmd.Parent() || other.Parent() == cmd || cmd.HasParent() && other.Parent() == cmd.Parent()) {
			also = append(also, fmt.Sprintf(".BR %s (1)", roff(manName(other))))
		}
	}
	b.WriteString(strings.Join(also, ",\n") + "\n")
	return b.String()
}

// exits are the exit codes, as the references list them.
var exits = []struct {
	code  int
	means string
}{
	{exitOK, "all went well"},
	{exitInvalid, "an input is invalid, or a request was refused"},
	{exitUsage, "called wrongly: an unknown command or flag, a bad value, a setting that breaks a rule"},
	{exitUnavailable, "etcd, or every node asked, is away"},
	{exitInterrupted, "interrupted before it was done"},
}

func manFlag(b *strings.Builder, f *pflag.Flag) {
	if f.Hidden {
		return
	}
	b.WriteString(".TP\n.B ")
	if f.Shorthand != "" {
		fmt.Fprintf(b, "\\-%s, ", f.Shorthand)
	}
	word, help := pflag.UnquoteUsage(f)
	fmt.Fprintf(b, "\\-\\-%s", roff(f.Name))
	if word != "" {
		fmt.Fprintf(b, " \\fI%s\\fR", roff(word))
	}
	fmt.Fprintf(b, "\n%s", roff(help))
	if d := f.DefValue; d != "" && d != "[]" && d != "false" {
		fmt.Fprintf(b, " (default %s)", roff(strings.Trim(d, "[]")))
	}
	b.WriteString("\n")
}

// roff escapes what would be a command: backslashes, and dots and quotes that
// begin a line. Hyphens become such that can be copied to a shell, and letters
// beyond ASCII what every troff knows them by.
func roff(s string) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case c == '\\':
			b.WriteString(`\e`)
		case c == '-':
			b.WriteString(`\-`)
		case c > 127:
			fmt.Fprintf(&b, `\[u%04X]`, c)
		default:
			b.WriteRune(c)
		}
	}
	s = b.String()
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// roffText turns paragraphs into such; lines that are indented stay as they are.
func roffText(s string) string {
	var b strings.Builder
	for paragraph := range strings.SplitSeq(strings.TrimSpace(s), "\n\n") {
		if strings.HasPrefix(paragraph, "  ") {
			fmt.Fprintf(&b, ".PP\n.nf\n%s\n.fi\n", roff(paragraph))
			continue
		}
		fmt.Fprintf(&b, ".PP\n%s\n", roff(paragraph))
	}
	return b.String()
}
