package sqlid

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/userdb"
)

// Errors of this package. Others are those of connections.
var (
	// ErrOccupied is the error of a slice where another runner writes them.
	ErrOccupied = errors.New("another runner writes slices there")
	// ErrBelow is the error of a slice that begins below the end of the last one.
	ErrBelow = errors.New("a slice there ends later")
)

// callTimeout bounds each call of the database: a process of the server can be stopped.
const callTimeout = 10 * time.Second

// Database is a PostgreSQL database. Its methods are safe for concurrent use.
type Database struct{ *userdb.DB }

// Open returns a database that contacts nobody yet; see [userdb.Open].
func Open(url string) (Database, error) {
	db, err := userdb.Open(url, "allocator sql")
	return Database{db}, err
}

// Format returns the format of the IDs that the schema makes, as its comment has it. It returns a [userdb.ErrSetup] if
// there is no schema, or one that is not ours.
func (d Database) Format(ctx context.Context) (flake.Format, error) {
	f, found, err := d.format(ctx)
	if err == nil && !found {
		err = userdb.Setup(`%s has no schema "allocator": run "allocator sql init" for it`, d)
	}
	return f, err
}

func (d Database) format(ctx context.Context) (f flake.Format, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var version int
	var recovery bool
	var says *string
	err = d.Pool.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),
		(SELECT coalesce(obj_description(oid, 'pg_namespace'), '') FROM pg_namespace WHERE nspname = 'allocator')`).
		Scan(&version, &recovery, &says)
	if err != nil {
		return f, false, d.failed(err)
	}
	return formatOf(d.String(), version, recovery, says)
}

// formatOf returns the format of a database of a name from what its server says; says is nil if there is no schema.
func formatOf(d string, version int, recovery bool, says *string) (f flake.Format, found bool, err error) {
	switch {
	case version < 150000:
		return f, false, userdb.Setup("%s is PostgreSQL %d: 15 or later has sequences that a crash empties", d,
			version/10000)
	case recovery:
		return f, false, userdb.Setup("%s is a standby, and takes no writes: give the address of the primary", d)
	case says == nil:
		return f, false, nil
	}
	text, ok := strings.CutPrefix(*says, comment)
	layout, epoch, cut := strings.Cut(text, ", epoch ")
	if !ok || !cut {
		return f, true, userdb.Setup(
			`%s has a schema "allocator" that is not ours (its comment is %.60q): rename it`, d, *says)
	}
	at, err := time.Parse(time.RFC3339Nano, epoch)
	if err == nil {
		f.Layout, err = flake.ParseLayout(layout)
	}
	if f.Epoch = at.UnixMilli(); err != nil {
		return f, true, userdb.Setup("the schema of %s was made by another version (%.80q): %v", d, *says, err)
	}
	return f, true, nil
}

// Init makes the schema, or what is missing of it, in one transaction.
func (d Database) Init(ctx context.Context, f flake.Format, hold time.Duration, writer, runner string) error {
	had, found, err := d.format(ctx)
	switch {
	case err != nil:
		return err
	case found && had != f:
		return userdb.Setup("the schema of %s makes IDs of %v, and not of %v: drop it first", d, had, f)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return pgx.BeginFunc(ctx, d.Pool, func(tx pgx.Tx) error {
		for _, s := range SQL(f, hold, writer, runner) {
			if _, err := tx.Exec(ctx, s); err != nil {
				return d.failed(fmt.Errorf("%w, in: %.60s…", err, s))
			}
		}
		return nil
	})
}

// failed names the database, says in words what failed, and gives errors that an operator has to act on their kind.
func (d Database) failed(err error) error {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return userdb.Broken(d.String(), err)
	}
	switch e.Code {
	case Occupied:
		return fmt.Errorf("%s: %w: %s", d, ErrOccupied, e.Message)
	case Changed:
		return userdb.Setup("%s: %s: %s", d, e.Message, e.Hint)
	case "42501", "42883", "42P01", "3F000": // rights; a function, a table, a schema that is not there
		return userdb.Setup(`%s: %s: run "allocator sql init" again, as the owner, with --runner and this role`,
			d, e.Message)
	case "25006":
		return userdb.Setup("%s is a standby, and takes no writes", d)
	case "55P03":
		return fmt.Errorf("%s: %s: transactions use the schema, so run the command again later", d, e.Message)
	}
	return fmt.Errorf("%s: %w", d, err)
}

// Written is what is known of a slice after Write.
type Written struct {
	Server  int64 // It was written to this server.
	Least   int64 // After an ErrBelow: the word that the slice has to begin at or above.
	Unknown bool  // It may be written, or be written yet.
}

// Write writes a slice of a shape in the name of a runner. It may be used for hold, and at most for hold and
// callTimeout from the call on, whenever the server comes to it: hold is counted from a reading of its clock.
func (d Database) Write(ctx context.Context, shape Shape, s Slice, hold time.Duration, name string) (w Written,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := d.Pool.Acquire(ctx)
	if err != nil {
		return w, d.failed(err)
	}
	defer conn.Release()
	var until int64
	err = conn.QueryRow(ctx, `SELECT `+nowSQL+`::bigint + $1::bigint`, hold.Milliseconds()).Scan(&until)
	if err != nil {
		return w, d.failed(err)
	}
	err = conn.QueryRow(ctx, `SELECT allocator.slice($1, $2, $3, $4, $5, $6, $7)`, s.First, s.Stop, until,
		hold.Milliseconds(), name, int(shape.SID), commentOf(shape.Format)).Scan(&w.Server)
	var e *pgconn.PgError
	if errors.As(err, &e) && e.Code == Below {
		if w.Least, err = strconv.ParseInt(e.Detail, 10, 64); err == nil {
			err = ErrBelow
			if e.Hint != "" {
				err = fmt.Errorf("%w, %s", err, e.Hint)
			}
		}
		return w, err
	}
	err = d.failed(err)
	w.Unknown = err != nil && !errors.Is(err, ErrOccupied) && !errors.Is(err, userdb.ErrSetup)
	return w, err
}

// End ends the slice that the database uses, if it is of the worker that sent the slice last, whose first word is
// given, and returns the server; -1 with an error.
func (d Database) End(ctx context.Context, last int64) (server int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := d.Pool.QueryRow(ctx, `SELECT allocator.stop_slice($1)`, last).Scan(&server); err != nil {
		return -1, d.failed(err)
	}
	return server, nil
}

// Drop removes the schema. It returns a [userdb.ErrSetup], and removes nothing, if a column or anything else uses it
// still.
func (d Database) Drop(ctx context.Context) error {
	if _, found, err := d.format(ctx); err != nil || !found {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	rows, err := d.Pool.Query(ctx, `
SELECT DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid)
FROM pg_depend d JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid
WHERE p.pronamespace = 'allocator'::regnamespace AND d.deptype IN ('n', 'a')
  AND NOT (d.classid = 'pg_proc'::regclass
           AND d.objid IN (SELECT oid FROM pg_proc WHERE pronamespace = 'allocator'::regnamespace))
ORDER BY 1 LIMIT 10`)
	if err != nil {
		return d.failed(err)
	}
	used, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return d.failed(err)
	}
	if len(used) > 0 {
		return userdb.Setup("%s uses it still: %s; give the columns another default first", d,
			strings.Join(used, ", "))
	}
	return d.failed(pgx.BeginFunc(ctx, d.Pool, func(tx pgx.Tx) error {
		// While it waits for sessions that have used the schema, all others wait behind it.
		_, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '1s'`)
		if err == nil {
			_, err = tx.Exec(ctx, `DROP SCHEMA allocator CASCADE`)
		}
		return err
	}))
}

// Status is what a database says of its IDs.
type Status struct {
	Database string     `json:"database"`
	Format   string     `json:"format"`
	Runner   string     `json:"runner"` // "": none has written a slice since the server started
	SID      int        `json:"sid"`
	At       *time.Time `json:"written_at"`
	NextMs   int64      `json:"next_unix_ms"` // the time of the next ID; 0: there is none
	LeftMs   int64      `json:"left_ms"`      // For so long IDs are made without another slice.
	Problems []string   `json:"problems"`
}

// Status reads the status. It has problems if next_id would refuse, or if clocks differ by more than the hold.
func (d Database) Status(ctx context.Context) (Status, error) {
	f, err := d.Format(ctx)
	if err != nil {
		return Status{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s := Status{Database: d.String(), Format: f.String(), SID: -1, Problems: []string{}}
	var word, stop, until, now int64
	var here bool
	err = d.Pool.QueryRow(ctx, `
SELECT (SELECT last_value FROM allocator.word), coalesce(pg_sequence_last_value('allocator.stop'), 0),
       coalesce(pg_sequence_last_value('allocator.until'), 0), (`+nowSQL+`)::bigint,
       coalesce(pg_sequence_last_value('allocator.server') = `+serverSQL+`, false),
       coalesce(r.name, ''), coalesce(r.sid, -1), CASE WHEN r.at > '-infinity' THEN r.at END
FROM (SELECT) one LEFT JOIN allocator.runner r ON true`).Scan(&word, &stop, &until, &now, &here, &s.Runner, &s.SID,
		&s.At)
	switch {
	case err != nil:
		return s, d.failed(err)
	case !here || stop == 0:
		s.Problems = append(s.Problems,
			`no runner has written a slice since the server started: start "allocator sql run"`)
	case until == 0:
		s.Problems = append(s.Problems, `the runner was stopped: start "allocator sql run"`)
	case until <= now:
		s.Problems = append(s.Problems, `the slice has expired: see the log of "allocator sql run"`)
	case word >= stop:
		s.Problems = append(s.Problems, "the slice is used up until the next one comes")
	default:
		s.NextMs, s.LeftMs = f.UnixMilli(flake.ID(word)), until-now
	}
	return s, nil
}
