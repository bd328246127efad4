package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/internal/userdb"
)

// DatabaseFlags adds --database, and returns what makes a command of a function of the databases, which are closed
// when it returns.
func DatabaseFlags[D interface {
	fmt.Stringer
	Close()
}](cmd *cobra.Command, open func(url string) (D, error)) func(
	f func(ctx context.Context, list []D) error) func(*cobra.Command, []string) error {
	urls := cmd.Flags().StringArray("database", []string{""},
		"`URL` of a PostgreSQL database, or key=value pairs; may be given several times. What it leaves out comes "+
			"from PGHOST, PGPASSWORD and so on, and from ~/.pgpass")
	return func(f func(context.Context, []D) error) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, _ []string) error {
			var list []D
			defer func() {
				for _, d := range list {
					d.Close()
				}
			}()
			for _, url := range *urls {
				d, err := open(url)
				if err != nil {
					return UsageError("--database: %w", err)
				}
				twice := slices.ContainsFunc(list, func(o D) bool { return o.String() == d.String() })
				if list = append(list, d); twice {
					return UsageError("--database: %s is named twice", d)
				}
			}
			return f(cmd.Context(), list)
		}
	}
}

// PrintStatuses prints what read returns of each of list, for programs or as text, and fails if one is bad. One that
// cannot be read hides no other.
func PrintStatuses[T any](
	a *App, format *Choice, list []T, read func(T) (status any, text string, bad bool, err error),
) (broken, err error) {
	sound := true
	for _, one := range list {
		s, text, bad, err := read(one)
		if err != nil {
			broken = errors.Join(broken, err)
			continue
		}
		sound = sound && !bad
		if err := format.Print(a.Out, s, text); err != nil {
			return nil, err
		}
	}
	if !sound {
		err = ErrInvalid
	}
	return broken, err
}

// DatabaseError returns an error of a database with its exit code.
func DatabaseError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return ErrInterrupted
	case errors.Is(err, userdb.ErrSetup):
		return Exit(ExitUsage, err)
	case userdb.Unreachable(err):
		err = fmt.Errorf("no PostgreSQL answers: give --database postgres://USER@HOST/NAME, or set PGHOST\n%w",
			err)
	}
	return Exit(ExitUnavailable, err)
}
