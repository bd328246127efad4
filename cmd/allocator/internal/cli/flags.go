package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Choice is a flag whose value is one of a few words.
type Choice struct {
	Value string
	words []string
}

// String returns the value.
func (c *Choice) String() string { return c.Value }

// Type is what help shows for a value: the words, or of many a name for them.
func (c *Choice) Type() string {
	if words := strings.Join(c.words, "|"); len(words) < 40 {
		return words
	}
	return "WORD"
}

// Set takes one of the words.
func (c *Choice) Set(s string) error {
	if !slices.Contains(c.words, s) {
		return fmt.Errorf("%q is none of %s", s, strings.Join(c.words, ", "))
	}
	c.Value = s
	return nil
}

// Choose adds such a flag; the first word is the default, unless that is "":
// then there is none.
func Choose(cmd *cobra.Command, name, help string, words ...string) *Choice {
	c := &Choice{Value: words[0], words: words}
	if words[0] == "" {
		c.words = words[1:]
	}
	words = c.words
	if c.Type() == "WORD" {
		help += ": " + strings.Join(words, ", ")
	}
	cmd.Flags().Var(c, name, help)
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// FormatFlag adds --format.
func FormatFlag(cmd *cobra.Command) *Choice {
	return Choose(cmd, "format", "output format; json is one object a line", "text", "json")
}

// completeFlags turns file names off as completions of every flag that has no
// completion of its own: shells would offer them.
func completeFlags(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		file := f.Annotations[cobra.BashCompFilenameExt] != nil || f.Annotations[cobra.BashCompSubdirsInDir] != nil
		if _, known := cmd.GetFlagCompletionFunc(f.Name); known || file || f.NoOptDefVal != "" {
			return
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions)
	})
	for _, sub := range cmd.Commands() {
		completeFlags(sub)
	}
}
