// Package fence holds the commands that make a table of PostgreSQL readable by "id > last".
package fence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/fence"
	"github.com/flakelease/allocator/internal/text"
)

// Command returns "allocator fence".
func Command(a *cli.App) *cobra.Command {
	cmd := cli.Parent("fence", "Let readers page through a PostgreSQL table by ID and miss no row",
		initCommand(a), runCommand(a), statusCommand(a), dropCommand(a))
	cmd.Long = `Readers that poll "WHERE id > last ORDER BY id" miss rows that are committed after larger
IDs. A fence is a view of the table that ends where everything below is committed, a
trigger that refuses rows with IDs below that, and this program, which moves it.`
	return cmd
}

// tableFlags adds the flags that say which tables are meant, and returns what makes a command of a function of these
// tables in each database.
func tableFlags(cmd *cobra.Command) func(f func(context.Context, []*fence.Table) error) func(
	*cobra.Command, []string) error {
	with := cli.DatabaseFlags(cmd, fence.Open)
	names := cmd.Flags().StringArray("table", nil,
		"`name` of a table in each database, as in public.events; may be given several times")
	column := cmd.Flags().String("column", "id", "column with the IDs, bigint or uuid")
	return func(f func(context.Context, []*fence.Table) error) func(*cobra.Command, []string) error {
		return with(func(ctx context.Context, list []fence.Database) error {
			if len(*names) == 0 {
				return cli.UsageError("no table was given: give --table, as in --table public.events")
			}
			var tables []*fence.Table
			for _, d := range list {
				for _, name := range *names {
					t, err := d.Table(ctx, name, *column)
					if err != nil {
						return failed(ctx, err)
					}
					tables = append(tables, t)
				}
			}
			return f(ctx, tables)
		})
	}
}

// failed returns err with its exit code.
func failed(ctx context.Context, err error) error {
	if errors.Is(err, fence.ErrBusy) || errors.Is(err, fence.ErrOtherMover) {
		return cli.Exit(cli.ExitInvalid, err)
	}
	return cli.DatabaseError(ctx, err)
}

// initCommand returns "allocator fence init".
func initCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the fence of a table, or what is missing of it",
		Long: `Init makes, beside a table events, the view events_complete, the row events_fence, the
sequences events_fence_floor and events_fence_limit, two functions, and two triggers on the
table. It prints the SQL when it is done. It may be run again, as after columns were added.

It refuses a table with rows more than a day ahead of now, which no reader of the view would
get: the times of integer IDs are those of --layout.

It has to be run by the owner of the table. The triggers need a lock that waits for
writers and that writers wait for; init gives up after a second, and tries again.`,
		Example: `  allocator fence init --database postgres://app@db1/shop --table events --print-sql
  allocator fence init --database postgres://app@db1/shop --table events --role fence`,
		Args: cobra.NoArgs,
	}
	with := tableFlags(cmd)
	role := cmd.Flags().String("role", "", "role that will run \"allocator fence run\": it is granted what that needs")
	printOnly := cmd.Flags().Bool("print-sql", false, "print the SQL and change nothing")
	space := cli.SpaceFlags(cmd)
	cmd.RunE = with(func(ctx context.Context, tables []*fence.Table) error {
		for _, t := range tables {
			statements, err := t.SQL(ctx, *role, space())
			if err != nil {
				return failed(ctx, err)
			}
			if !*printOnly {
				if err := t.Init(ctx, *role, space(), waits(a, t)); err != nil {
					return failed(ctx, err)
				}
			}
			if err := printSQL(a.Out, t, statements); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}

// waits returns what says that a change of a table waits for transactions.
func waits(a *cli.App, t *fence.Table) func([]fence.Holder) {
	return func(holders []fence.Holder) {
		oldest := "which have ended"
		if len(holders) > 0 {
			oldest = "the oldest: " + text.Printable(holders[0].String())
		}
		_, _ = fmt.Fprintf(a.Err, "allocator: waiting for %d transactions on %s, %s\n", len(holders), t, oldest)
	}
}

// dropCommand returns "allocator fence drop".
func dropCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drop",
		Short: "Take the fence of a table away",
		Long: `Drop takes away what init has made: the view, the triggers, the functions, the row and the
sequences. It prints the SQL. The table and its rows stay. A table without a fence is no
error. Stop "allocator fence run" for the table first: drop refuses while it works.

Late rows are accepted from then on, and programs that read the view fail.`,
		Example: `  allocator fence drop --database postgres://app@db1/shop --table events`,
		Args:    cobra.NoArgs,
	}
	with := tableFlags(cmd)
	yes := cmd.Flags().Bool("yes", false, "do not ask for confirmation")
	printOnly := cmd.Flags().Bool("print-sql", false, "print the SQL and change nothing")
	cmd.RunE = with(func(ctx context.Context, tables []*fence.Table) error {
		for _, t := range tables {
			statements, err := t.DropSQL(ctx)
			if err != nil {
				return failed(ctx, err)
			}
			if len(statements) == 0 {
				if _, err := fmt.Fprintf(a.Out, "-- %s in %s has no fence\n", t, t.Database()); err != nil {
					return err
				}
				continue
			}
			if err := printSQL(a.Out, t, statements); err != nil {
				return err
			}
			if *printOnly {
				continue
			}
			question := fmt.Sprintf("The fence of %s in %s and the view %s go away.", t, t.Database(), t.View())
			if err := cli.Confirm(a, *yes, question); err != nil {
				return err
			}
			if err := t.Drop(ctx, waits(a, t)); err != nil {
				return failed(ctx, err)
			}
		}
		return nil
	})
	return cmd
}

func printSQL(out io.Writer, t *fence.Table, statements []string) error {
	_, err := fmt.Fprintf(out, "-- %s in %s\nBEGIN;\nSET LOCAL lock_timeout = '1s';\n%s;\nCOMMIT;\n", t, t.Database(),
		strings.Join(statements, ";\n"))
	return err
}

// runCommand returns "allocator fence run".
func runCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Move the fences of tables",
		Long: `Run moves the fences of all tables to the watermark of the cluster at --addr, again and
again until it is interrupted. A wrong watermark loses no row: one that is too high makes
the trigger refuse more rows. While no node answers the views stay.

Each --addr has nodes of one space. With several, of one layout and epoch, fences follow the
lowest watermark: rows with IDs of all these spaces are in one table.

The watermark is up to 5 s behind the clock, and often less, so a row that is inserted some
seconds after its ID was drawn can be refused. With --behind 5s no row is for 5 s.

With --clock-lag it needs no node. It then follows this machine's clock, some time behind,
so it works with UUIDv7s of any origin: rows with IDs older than that are refused.

Rows with IDs further ahead than --ahead are refused too, since no reader would get them.

Several may run, with different names. One works, and another goes on 15 s after it has
stopped.`,
		Example: `  allocator fence run --database postgres://fence@db1/shop --database postgres://fence@db2/shop \
    --table events --addr node1:9000,node2:9000 --metrics 127.0.0.1:9105`,
		Args: cobra.NoArgs,
	}
	with := tableFlags(cmd)
	connect := sourceFlags(a, cmd)
	interval := cmd.Flags().Duration("interval", time.Second, "how often fences are moved")
	host, _ := os.Hostname()
	name := cmd.Flags().String("name", "",
		"name of this process: one with another name waits until this has done nothing for 15 s; unless given, the "+
			"host's")
	listen := cli.MetricsFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *interval < 10*time.Millisecond {
			return cli.UsageError("--interval is %v: it has to be at least 10ms", *interval)
		}
		a.DetachErr()
		log := cli.Logger(config.Log{Level: "info", Format: "text"}, a.Err)
		source, disconnect, err := connect(log)
		if err != nil {
			return err
		}
		defer disconnect()
		return with(func(ctx context.Context, tables []*fence.Table) error {
			for _, t := range tables {
				if _, err := t.Status(ctx); err != nil {
					return failed(ctx, err)
				}
			}
			m := fence.NewMovers(fence.Config{
				Tables:   tables,
				Source:   source,
				Interval: *interval,
				Name:     cmp.Or(*name, host, "unnamed"),
				Log:      log,
			})
			stop, err := collector(m).Serve(ctx, *listen, log)
			if err != nil {
				return err
			}
			defer stop()
			for _, t := range tables {
				log.Info("moves a fence", "database", t.Database(), "table", t.String(), "view", t.View())
			}
			m.Run(ctx)
			return nil
		})(cmd, args)
	}
	return cmd
}

// statusCommand returns "allocator fence status".
func statusCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how far the views reach, and what holds them back",
		Long: `Status shows for each table the end of its view, how long ago that is, and the
transactions that are waited for. It exits with 1 if readers can miss rows.

What it sees of other roles' transactions needs membership in pg_read_all_stats.`,
		Example: `  allocator fence status --database postgres://fence@db1/shop --table events`,
		Args:    cobra.NoArgs,
	}
	with := tableFlags(cmd)
	format := cli.FormatFlag(cmd)
	cmd.RunE = with(func(ctx context.Context, tables []*fence.Table) error {
		broken, err := cli.PrintStatuses(a, format, tables, func(t *fence.Table) (any, string, bool, error) {
			s, err := t.Status(ctx)
			if err != nil {
				return nil, "", false, fmt.Errorf("%s in %s: %w", t, t.Database(), err)
			}
			return s, statusText(s), len(s.Problems) > 0, nil
		})
		return cmp.Or(failed(ctx, broken), err)
	})
	return cmd
}

// statusText returns a status as people read it.
func statusText(s fence.Status) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-11s%s\n", name, text.Printable(fmt.Sprintf(format, args...)))
	}
	line("table", "%s in %s", s.Table, s.Database)
	if s.ReadableAt == nil {
		line("readable", "nothing yet: the fence was never moved")
	} else {
		at, _ := describe.AppendTime(nil, s.ReadableUnixMs)
		line("readable", "to %s, %v ago: IDs below %s", at, time.Duration(s.LagMs)*time.Millisecond, s.Readable)
		line("lsn", "%s", s.ReadableLSN)
	}
	if s.Mover == "" {
		line("mover", `none: start "allocator fence run"`)
	} else {
		line("mover", "%s, last seen %s", s.Mover, cli.Relative(*s.FloorAt, s.Now))
	}
	for _, h := range s.BlockedBy {
		line("blocked by", "%s%s%s", h, since(", transaction began ", h.Since, s.Now),
			since(", query ", h.QuerySince, s.Now))
	}
	if s.MarkBlockedBy != "" {
		line("watermark", "held back by %s", s.MarkBlockedBy)
	}
	for _, p := range s.Problems {
		line("problem", "%s", p)
	}
	b.WriteByte('\n')
	return b.String()
}

func since(what string, t *time.Time, now time.Time) string {
	if t == nil {
		return ""
	}
	return what + cli.Relative(*t, now)
}
