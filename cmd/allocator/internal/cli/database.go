package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/internal/userdb"
)

// DatabaseFlag adds --database, and returns its values.
func DatabaseFlag(cmd *cobra.Command) *[]string {
	return cmd.Flags().StringArray("database", []string{""},
		"`URL` of a PostgreSQL database, or key=value pairs; may be given several times. What it leaves out comes "+
			"from PGHOST, PGPASSWORD and so on, and from ~/.pgpass")
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
