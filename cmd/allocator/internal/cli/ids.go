package cli

import (
	"bufio"
	"crypto/rand"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/describe"
)

// SpaceFlags adds the flags that describe the flakes' space, which a flake does not
// carry.
func SpaceFlags(cmd *cobra.Command) func() flake.Format {
	f := flake.Default
	layouts, own := clock.Millis(f.Epoch), clock.Millis(f.Epoch)
	cmd.Flags().Var(config.LayoutValue(&f.Layout, &layouts), "layout",
		"layout of the flakes' space: "+strings.Join(flake.Layouts(),
			", ")+", or bits such as 41/10/12,order=time-sid-seq,unit=1ms,epoch=2024-01-01")
	cmd.Flags().Var(config.EpochValue(&own), "epoch",
		"epoch of the flakes' space, as RFC 3339 or Unix milliseconds; unless given, the layout's own")
	// The flag exists and has no completion yet, so this cannot fail.
	_ = cmd.RegisterFlagCompletionFunc("layout",
		cobra.FixedCompletions(flake.Layouts(), cobra.ShellCompDirectiveNoFileComp))
	return func() flake.Format {
		f.Epoch = int64(layouts)
		if cmd.Flags().Changed("epoch") {
			f.Epoch = int64(own)
		}
		return f
	}
}

// AppendID appends a line with an ID in a form; in JSON an object, with more members behind it.
func AppendID(b []byte, id describe.ID, form string, f flake.Format, json bool, more string) ([]byte, error) {
	if json {
		b = append(b, `{"id":"`...)
	}
	b, err := describe.AppendForm(b, id, form, f)
	if json {
		b = append(append(append(b, '"'), more...), '}')
	}
	return append(b, '\n'), err
}

// InputError is what an invalid input is in JSON.
type InputError struct {
	Input string     `json:"input"`
	Error classError `json:"error"`
}

type classError struct {
	Class   string `json:"class"`
	Message string `json:"message"`
}

// InvalidInput returns the JSON of an input and of what is wrong with it.
func InvalidInput(input string, err error) InputError {
	return InputError{input, classError{describe.Class(err), err.Error()}}
}

// CountFlag adds --count, the same as the argument N.
func CountFlag(cmd *cobra.Command) *pflag.Flag {
	cmd.Flags().String("count", "", "how many, instead of N")
	return cmd.Flags().Lookup("count")
}

// CountOf returns N: an argument, --count, or 1.
func CountOf(args []string, flag *pflag.Flag) (int64, error) {
	switch {
	case len(args) > 0 && flag.Changed:
		return 0, UsageError("N is given twice, as an argument and as --count")
	case len(args) > 0:
		return ParseCount(args[0])
	case flag.Changed:
		return ParseCount(flag.Value.String())
	}
	return 1, nil
}

var (
	errDigits = errors.New("digits only")
	errBig    = errors.New("out of range")
)

// ParseWhole reads a whole number: ASCII digits, and a minus sign in front of
// them; no plus, no blanks, no underscores.
func ParseWhole(s string) (int64, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, errBig
	case err != nil || s[0] == '+':
		return 0, errDigits
	}
	return v, nil
}

const notCount = "N is %q: write a whole number, at least 1"

// ParseCount reads N, how many IDs are wanted: 1 or more.
func ParseCount(s string) (int64, error) {
	if n, err := ParseWhole(s); err == nil && n > 0 {
		return n, nil
	}
	return 0, UsageError(notCount, s)
}

// Random is crypto/rand, read ahead: a system call for each ID would cost more
// than all the rest.
func Random() io.Reader { return bufio.NewReaderSize(rand.Reader, 16<<10) }
