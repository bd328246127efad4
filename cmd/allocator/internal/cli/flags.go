package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flakelease/allocator/internal/text"
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
		meant := ""
		if near := text.Nearest(s, c.words); near != "" {
			meant = ": did you mean " + near + "?"
		}
		return fmt.Errorf("%q is none of %s%s", s, strings.Join(c.words, ", "), meant)
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

// JSON reports whether --format is json.
func (c *Choice) JSON() bool { return c.Value == "json" }

// Print writes v as JSON on a line of its own if --format is json, and else text.
func (c *Choice) Print(w io.Writer, v any, text string) error {
	if c.JSON() {
		return PrintLine(w, v)
	}
	_, err := io.WriteString(w, text)
	return err
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
}

// mistake says what is wrong with a command line, and what may have been meant.
func mistake(cmd *cobra.Command, err error) string {
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok && strings.Contains(err.Error(), "missing unit") {
		return fmt.Sprintf("--%s is %q, without a unit: write %[2]ss for seconds", e.GetFlag().Name, e.GetValue())
	}
	e, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err.Error()
	}
	switch short := e.GetSpecifiedShortnames(); {
	case short == "":
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := text.Nearest(e.GetSpecifiedName(), names); near != "" {
			return err.Error() + ": did you mean --" + near + "?"
		}
	case strings.Trim(short[:1], "0123456789") != "":
	case cmd.Use == cmd.Name()+" [N]":
		return fmt.Sprintf(notCount, "-"+short)
	default:
		return err.Error() + "\nWrite -- in front of a number below 0."
	}
	return err.Error()
}

// nameArguments makes commands name the argument that is missing or one too many; cobra counts them.
func nameArguments(cmd *cobra.Command) {
	check := cmd.Args
	if check == nil || cmd.HasSubCommands() {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		named := strings.Fields(cmd.Use)[1:]
		err := check(cmd, args)
		if err == nil || slices.Contains(named, "[flags]") { // It takes a command line, and says itself what it lacks.
			return err
		}
		if i := slices.IndexFunc(named, func(s string) bool { return s[0] == '-' }); i >= 0 {
			named = named[:i] // The rest are flags.
		}
		usage := strings.Join(append([]string{cmd.CommandPath()}, named...), " ")
		if len(args) < len(named) {
			return fmt.Errorf("%s is missing: write %s", named[len(args)], usage)
		}
		return fmt.Errorf("%q is one argument too many: write %s", args[len(named)], usage)
	}
}

// Parent returns a command that only has others.
func Parent(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short}
	cmd.AddCommand(commands...)
	return cmd
}
