// Package sql holds the commands that let databases make IDs by themselves, and read them.
package sql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/sqlid"
	"github.com/flakelease/allocator/internal/sqlread"
	"github.com/flakelease/allocator/internal/text"
	"github.com/flakelease/allocator/internal/userdb"
)

// Command returns "allocator sql".
func Command(a *cli.App) *cobra.Command {
	cmd := cli.Parent("sql", "Let a PostgreSQL database make IDs, as the default of a column",
		initCommand(a), runCommand(a), statusCommand(a), dropCommand(), functionsCommand(a))
	cmd.Long = `With "allocator sql init" a database has functions such as allocator.next_id(), for

  CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT allocator.next_id(), …)

and "allocator sql run" gives it IDs to hand out, a second's at a time: they are unique in the
whole space, whatever crashes, fails over or is copied. An INSERT waits for nobody.`
	return cmd
}

// holdFlag adds --hold, and returns what checks it.
func holdFlag(cmd *cobra.Command) func() (time.Duration, error) {
	hold := cmd.Flags().Duration("hold", 10*time.Second,
		"how long the database makes IDs after the last slice: while the runner, nodes or etcd are away")
	return func() (time.Duration, error) {
		if *hold < time.Second || *hold > 30*time.Second {
			return 0, cli.UsageError("--hold is %v: it has to be 1s to 30s", *hold)
		}
		return *hold, nil
	}
}

func initCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the functions in a database, or what is missing of them",
		Long: `Init makes the schema "allocator" with next_id(), next_uuid() and next_flake(), with functions
that read and convert IDs, and with five sequences and a table. It prints the SQL when it is done. It
may be run again. It needs no extension, no node, and the right to create a schema.`,
		Example: `  allocator sql init --database postgres://app@db1/shop
  allocator sql init --database postgres://app@db1/shop --layout twitter --runner ids --print-sql`,
		Args: cobra.NoArgs,
	}
	with := cli.DatabaseFlags(cmd, sqlid.Open)
	space := cli.SpaceFlags(cmd)
	writer := cmd.Flags().String("writer", "", "role that may make IDs; unless given, every role of the database")
	runner := cmd.Flags().String("runner", "",
		"role that will run \"allocator sql run\": it is granted what that needs")
	holding := holdFlag(cmd)
	printOnly := cmd.Flags().Bool("print-sql", false, "print the SQL and change nothing; needs no database")
	cmd.RunE = with(func(ctx context.Context, list []sqlid.Database) error {
		hold, err := holding()
		if err != nil {
			return err
		}
		f := space()
		if f.Layout.SIDBits() == 0 {
			return cli.UsageError("--layout %v has no sids: IDs of two databases would be equal", f.Layout)
		}
		if err := sqlread.Check(f); err != nil {
			return cli.UsageError("--layout: %w", err)
		}
		if *printOnly {
			list = nil
		}
		for _, d := range list {
			if err := d.Init(ctx, f, hold, *writer, *runner); err != nil {
				return cli.DatabaseError(ctx, err)
			}
		}
		_, err = fmt.Fprintf(a.Out, "BEGIN;\n%s;\nCOMMIT;\n", strings.Join(sqlid.SQL(f, hold, *writer, *runner), ";\n"))
		return err
	})
	return cmd
}

func runCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Give databases IDs to hand out",
		Long: `Run holds a worker number of the space for each database, and writes a slice into it each second:
an interval of time in which the number is nobody else's. It goes on until it is interrupted.

If it stops, or reaches no node, a database makes IDs for --hold more, and then refuses.
Several may run for one database, with different names: one works, and another goes on when
it has written nothing for --hold.`,
		Example: `  allocator sql run --database postgres://ids@db1/shop --database postgres://ids@db2/shop \
    --addr node1:9000,node2:9000 --metrics 127.0.0.1:9106`,
		Args: cobra.NoArgs,
	}
	with := cli.DatabaseFlags(cmd, sqlid.Open)
	connect := remote.ClientFlags(a, cmd)
	every := cmd.Flags().Duration("every", time.Second, "how often a slice is written, and how long it is")
	holding := holdFlag(cmd)
	host, _ := os.Hostname()
	name := cmd.Flags().String("name", "", "name of this process; unless given, the host's")
	listen := cli.MetricsFlag(cmd)
	cmd.RunE = with(func(ctx context.Context, list []sqlid.Database) error {
		hold, err := holding()
		switch {
		case err != nil:
			return err
		case *every < 20*time.Millisecond || *every > hold/2:
			return cli.UsageError("--every is %v: it has to be 20ms to half of --hold", *every)
		}
		a.DetachErr()
		log := cli.Logger(config.Log{Level: "info", Format: "text"}, a.Err)
		options, err := connect(log)
		if err != nil {
			return err
		}
		var runners []*sqlid.Runner
		for _, d := range list {
			if _, err := d.Format(ctx); errors.Is(err, userdb.ErrSetup) {
				return cli.DatabaseError(ctx, err)
			}
			runners = append(runners, sqlid.NewRunner(sqlid.Config{
				Database: d, Name: "sql " + cmp.Or(*name, host, "unnamed"), Client: options, Every: *every, Hold: hold,
				Log: log,
			}))
		}
		stop, err := collector(runners).Serve(ctx, *listen, log)
		if err != nil {
			return err
		}
		defer stop()
		var all sync.WaitGroup
		for _, r := range runners {
			all.Go(func() { r.Run(ctx) })
		}
		all.Wait()
		return nil
	})
	return cmd
}

func statusCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show whether databases make IDs, and for how long",
		Long:    `Status exits with 1 if a database would refuse to make an ID.`,
		Example: `  allocator sql status --database postgres://app@db1/shop`,
		Args:    cobra.NoArgs,
	}
	with := cli.DatabaseFlags(cmd, sqlid.Open)
	format := cli.FormatFlag(cmd)
	cmd.RunE = with(func(ctx context.Context, list []sqlid.Database) error {
		broken, err := cli.PrintStatuses(a, format, list, func(d sqlid.Database) (any, string, bool, error) {
			s, err := d.Status(ctx)
			return s, statusText(s), len(s.Problems) > 0, err
		})
		return cmp.Or(cli.DatabaseError(ctx, broken), err)
	})
	return cmd
}

// statusText returns a status as people read it.
func statusText(s sqlid.Status) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s%s\n", name, text.Printable(fmt.Sprintf(format, args...)))
	}
	line("database", "%s: IDs of %s", s.Database, s.Format)
	if s.At != nil {
		line("runner", "%s, worker %d, last slice %s", s.Runner, s.SID, s.At.UTC().Format(time.RFC3339))
	}
	if s.NextMs != 0 {
		at, _ := describe.AppendTime(nil, s.NextMs)
		line("next ID", "of %s; without another slice for %v more", at, time.Duration(s.LeftMs)*time.Millisecond)
	}
	for _, p := range s.Problems {
		line("problem", "%s", p)
	}
	b.WriteByte('\n')
	return b.String()
}

func dropCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drop",
		Short: "Remove the functions from a database",
		Long: `Drop removes the schema "allocator" of a database with all that init has made. It removes nothing
while a column has one of its functions as the default, and names the columns.`,
		Example: `  allocator sql drop --database postgres://app@db1/shop`,
		Args:    cobra.NoArgs,
	}
	with := cli.DatabaseFlags(cmd, sqlid.Open)
	cmd.RunE = with(func(ctx context.Context, list []sqlid.Database) error {
		for _, d := range list {
			if err := d.Drop(ctx); err != nil {
				return cli.DatabaseError(ctx, err)
			}
		}
		return nil
	})
	return cmd
}

func functionsCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "functions",
		Short: "Print the SQL that reads and converts IDs in a database",
		Long: `Functions prints the functions that give the time and the sid of an ID, the smallest ID of a time,
and the other forms, for a space of --layout. They need no extension and no node. Pipe it into
the shell of the database. For SQLite it prints expressions.`,
		Example: `  allocator sql functions --for mariadb --layout twitter | mariadb shop`,
		Args:    cobra.NoArgs,
	}
	database := cli.Choose(cmd, "for", "database", append([]string{""}, sqlread.Databases()...)...)
	space := cli.SpaceFlags(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		if database.Value == "" {
			return cli.UsageError("--for is not given: it has to be one of %s", strings.Join(sqlread.Databases(), ", "))
		}
		f := space()
		if err := sqlread.Check(f); err != nil {
			return cli.UsageError("--layout: %w", err)
		}
		_, err := io.WriteString(a.Out, sqlread.SQL(database.Value, "", f))
		return err
	}
	return cmd
}
