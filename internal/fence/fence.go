// Package fence makes a table of PostgreSQL readable by "id > last" without losing a row,
// in spite of transactions that commit late: readers read a view that ends where everything
// below is committed.
//
// A table has a floor, which only rises. A trigger refuses rows with IDs below it. A mover
// raises the floor to a mark, waits until every transaction has ended that held a lock of
// writers on the table after that, and then moves the end of the view to the mark. Writers
// take their lock before the trigger reads the floor, and PostgreSQL makes a transaction
// visible before it frees its locks. So a writer that the mover did not wait for sees the
// raised floor, and each row below the end of the view is visible with it.
//
// That holds for any mark, on any clock: a mark that is too high costs refusals and no rows.
// The floor is a sequence, since every transaction sees its present value, whatever its
// snapshot is. The end of the view is a row, since it has to belong to a snapshot.
//
// The package is a shell: it decides only in waiting. Commands call it, and give the Source.
package fence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/flakelease/allocator/internal/userdb"
)

// Mark is a time below which no more IDs are expected.
type Mark struct {
	UnixMs int64
	// ID is the smallest integer ID of that millisecond. Tables with wide IDs do not need it.
	ID int64
	// PerDay is how much larger integer IDs are a day later; 0: not known, so that integer IDs of the
	// future are not refused.
	PerDay int64
	// Ahead is how far above the mark, and ahead of the database's clock, IDs are refused; 0: a day.
	Ahead time.Duration
	// BlockedBy says what holds the mark back, for people.
	BlockedBy []string
}

// Source gives marks. They need not rise, and a wrong one loses no row.
type Source interface {
	Watermark(ctx context.Context) (Mark, error)
}

// Errors of this package. Others are those of connections.
var (
	// ErrBusy is the error of Init when writers held the table all the time.
	ErrBusy = errors.New("the table is in use")
	// ErrOtherMover is the error of Raise when another process moves the fence.
	ErrOtherMover = errors.New("another process moves it")
	// ErrUnfenced is the error of Publish when rows can be inserted past the trigger.
	ErrUnfenced = errors.New("rows can be inserted past the fence")
	// ErrOtherServer is the error of Wait and Publish when another server answers than the one where
	// the floor was raised.
	ErrOtherServer = errors.New("the floor that was raised is not there any more")
	// ErrLowFloor is the error of Raise for a floor that was below the end of the view, as in a copy of
	// a database without its sequences.
	ErrLowFloor = errors.New("the floor was below the end of the view")
	// ErrAhead is the error of Raise for a mark that lies ahead of the database's clock.
	ErrAhead = errors.New("the mark is ahead of the database's clock")
)

// callTimeout bounds each call of the database. A process of the server can be stopped.
const callTimeout = 30 * time.Second

// maxAhead is how far a mark may be ahead of the database's clock. The floor cannot be
// lowered, so a wrong mark would refuse all rows until its time.
const maxAhead = time.Minute

// Database is a PostgreSQL database. Its methods are safe for concurrent use.
type Database struct{ *userdb.DB }

// Open returns a database that contacts nobody yet; see [userdb.Open].
func Open(url string) (Database, error) {
	db, err := userdb.Open(url, "allocator fence")
	return Database{db}, err
}

// Table is a table that has a fence or can have one.
type Table struct {
	db      Database
	oid     uint32
	schema  string
	name    string
	column  string
	wide    bool // The IDs are uuid and not bigint.
	columns []string
}

// String returns the name of the table, with its schema.
func (t *Table) String() string { return t.schema + "." + t.name }

// Database returns the name of its database.
func (t *Table) Database() string { return t.db.String() }

// View returns the name of the view that readers read.
func (t *Table) View() string { return t.String() + viewSuffix }

// Names of what a fence consists of: that of the table with a suffix.
const (
	fenceSuffix  = "_fence"
	floorSuffix  = "_fence_floor"
	limitSuffix  = "_fence_limit"
	lateSuffix   = "_fence_late"
	refuseSuffix = "_fence_refuse"
	insertSuffix = "_fence_insert"
	updateSuffix = "_fence_update"
	viewSuffix   = "_complete"

	maxName = 63 - len(insertSuffix) // PostgreSQL cuts longer names off.
)

// ident returns the name of a part of the fence, or with "" of the table, as SQL has it.
func (t *Table) ident(suffix string) string {
	return pgx.Identifier{t.schema, t.name + suffix}.Sanitize()
}

// Table looks a table up, with the column that has the IDs. It returns a [userdb.ErrSetup] if the
// table cannot have a fence.
func (d Database) Table(ctx context.Context, name, column string) (*Table, error) {
	t := &Table{db: d, column: column}
	if err := d.primary(ctx); err != nil {
		return nil, err
	}
	var kind, persistence string
	var security bool
	err := d.Pool.QueryRow(ctx, lookupSQL, name).Scan(&t.oid, &t.schema, &t.name, &kind, &persistence, &security)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, userdb.Setup("there is no table %q in %s: give --table SCHEMA.NAME, and --database with the right "+
			"database", name, d)
	case userdb.Code(err) == "42501":
		return nil, userdb.Setup("%w: grant USAGE on the schema of %q to this role", err, name)
	case userdb.Code(err) != "":
		return nil, userdb.Setup("%q is no name of a table: %w; write SCHEMA.NAME, with double quotes where SQL "+
			"needs them", name, err)
	case err != nil:
		return nil, err
	case kind != "r" && kind != "p":
		return nil, userdb.Setup("%s is no table: give the table, which the view is made for", t)
	case persistence == "t":
		return nil, userdb.Setup("%s is temporary, so no other session writes or reads it", t)
	case len(t.name) > maxName:
		return nil, userdb.Setup("the name of %s is longer than %d bytes, so PostgreSQL would cut off %s%s: rename it",
			t, maxName, t.name, insertSuffix)
	case security:
		return nil, userdb.Setup("%s has row security, and a view reads with the rights of its owner: disable it, "+
			"or fence a table without it", t)
	}
	if err := t.readColumns(ctx); err != nil {
		return nil, err
	}
	return t, nil
}

// primary returns an error if fences cannot be moved here.
func (d Database) primary(ctx context.Context) error {
	var version int
	var recovery bool
	err := d.Pool.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, pg_is_in_recovery()`).
		Scan(&version, &recovery)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", d, err)
	case recovery:
		return userdb.Setup("%s is a standby, and takes no writes: give the address of the primary. "+
			"Readers may read the view on standbys", d)
	case version < 140000:
		return userdb.Setup("%s is PostgreSQL %d: fences need 14 or later", d, version/10000)
	}
	return nil
}

// readColumns reads the columns and checks the one with the IDs.
func (t *Table) readColumns(ctx context.Context) error {
	rows, err := t.db.Pool.Query(ctx, columnsSQL, t.oid)
	if err != nil {
		return err
	}
	var name, typ, makes string
	var notNull, indexed, found bool
	_, err = pgx.ForEachRow(rows, []any{&name, &typ, &notNull, &makes, &indexed}, func() error {
		t.columns = append(t.columns, name)
		if name != t.column {
			return nil
		}
		found, t.wide = true, typ == "uuid"
		switch {
		case typ != "uuid" && typ != "bigint":
			return userdb.Setup("column %s of %s is %s: IDs are bigint or uuid; give another --column, or another type",
				name, t, typ)
		case !notNull:
			return userdb.Setup("column %s of %s may be null, and no reader would get such a row: "+
				"ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", name, t, t.ident(""), pgx.Identifier{name}.Sanitize())
		case makes == "random":
			return userdb.Setup("column %s of %s has random UUIDs by default, which no reader of the view would get: "+
				"let programs draw IDs, and ALTER TABLE %s ALTER COLUMN %s DROP DEFAULT", name, t, t.ident(""),
				pgx.Identifier{name}.Sanitize())
		case makes != "":
			return userdb.Setup("column %s of %s has numbers of a sequence, and the fence would refuse all of them: "+
				"let programs draw IDs first, as in docs/how-to/move-from-bigserial.md", name, t)
		case !indexed:
			return userdb.Setup("no index of %s begins with column %s, so each read of the view would read the whole "+
				"table: CREATE UNIQUE INDEX ON %s (%s)", t, name, t.ident(""), pgx.Identifier{name}.Sanitize())
		}
		return nil
	})
	if err == nil && !found {
		err = userdb.Setup("%s has no column %q: give --column, one of %s", t, t.column, strings.Join(t.columns, ", "))
	}
	return err
}
