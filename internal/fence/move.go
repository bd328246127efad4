package fence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/userdb"
)

// Holder is a transaction with a lock that writers of the table have.
type Holder struct {
	Transaction string     `json:"transaction"`
	PID         int        `json:"pid,omitempty"`      // It is 0 for a prepared transaction.
	Prepared    string     `json:"prepared,omitempty"` // for COMMIT PREPARED
	User        string     `json:"user,omitempty"`
	Application string     `json:"application,omitempty"`
	State       string     `json:"state,omitempty"` // It is "" without the right to see it.
	Since       *time.Time `json:"since,omitempty"`
	QuerySince  *time.Time `json:"query_since,omitempty"`
}

// String returns what people need to find the transaction.
func (h Holder) String() string {
	if h.PID == 0 {
		return fmt.Sprintf("prepared transaction '%s' of %s", h.Prepared, h.User)
	}
	return fmt.Sprintf("pid %d (%s): %s", h.PID, strings.Trim(h.User+" "+h.Application, " "),
		cmp.Or(h.State, "state unknown without the role pg_read_all_stats"))
}

// Holders returns the transactions that have such a lock now, the oldest first.
func (t *Table) Holders(ctx context.Context) ([]Holder, error) {
	_, holders, err := t.look(ctx)
	return holders, err
}

// look returns the holders, and the server that has listed them.
func (t *Table) look(ctx context.Context) (server string, holders []Holder, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	rows, err := t.db.Pool.Query(ctx, holdersSQL, t.oid)
	if err != nil {
		return "", nil, err
	}
	var h Holder
	_, err = pgx.ForEachRow(rows, []any{
		&server, &h.Transaction, &h.PID, &h.Prepared, &h.User, &h.Application, &h.State, &h.Since, &h.QuerySince,
	}, func() error {
		if h.Transaction != "" { // Else there is none.
			holders = append(holders, h)
		}
		h = Holder{}
		return nil
	})
	return server, holders, err
}

// waiting is the transactions that a move waits for, by Holder.Transaction. nil has seen
// nothing.
type waiting map[string]Holder

// see takes the holders after the floor was raised, and then those of now, again and again. It returns
// those that are waited for, none if all have ended.
//
// PREPARE TRANSACTION may give the locks of a process to a transaction of another name. So
// when a process has none any more, all prepared ones are waited for: one may have its locks.
// A crash of the server gives a prepared one another name, and leaves it its identifier.
func (w *waiting) see(now []Holder) (left []Holder) {
	first, prepared := *w == nil, false
	prepares := map[string]bool{}
	present := map[string]bool{}
	for _, h := range now {
		present[h.Transaction] = true
	}
	for name, h := range *w {
		prepared = prepared || h.PID != 0 && !present[name]
		if h.PID == 0 && h.Prepared != "" {
			prepares[h.Prepared] = true
		}
	}
	next := waiting{}
	for _, h := range now {
		if _, known := (*w)[h.Transaction]; first || known || h.PID == 0 && (prepared || prepares[h.Prepared]) {
			next[h.Transaction] = h
			left = append(left, h)
		}
	}
	*w = next
	return left
}

// Floor is a floor that is in place.
type Floor struct {
	UnixMs   int64  // The floor is at least that time.
	Readable bool   // Everything below the floor is readable already.
	value    int64  // the ID, or of wide IDs the time
	server   string // the floor is in place there
}

// mover is how long a process that moves a fence keeps others from doing so. Two would do no
// harm.
const mover = 15 * time.Second

// Raise raises the floor to a mark and commits. The floor that it returns may be higher. If
// it fails the floor may have been raised, which does no harm.
//
// by names this process. It returns ErrOtherMover and ErrAhead. It returns ErrLowFloor after it has
// raised a floor that was below the end of the view.
func (t *Table) Raise(ctx context.Context, by string, m Mark) (f Floor, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	value, perDay := m.ID, m.PerDay
	if t.wide {
		value, perDay = m.UnixMs, dayMs
	}
	low := false
	err = pgx.BeginTxFunc(ctx, t.db.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		// A floor that is lost in a crash would let rows in that readers have passed: its commit
		// waits for the disk, also where others do not.
		if _, err := tx.Exec(ctx, `SELECT set_config('lock_timeout', '5s', true), set_config('synchronous_commit',
			replace(current_setting('synchronous_commit'), 'off', 'local'), true)`); err != nil {
			return err
		}
		var now time.Time
		var other string
		// Movers wait for each other here, so nobody lowers what another one has raised.
		err := tx.QueryRow(ctx, `SELECT mover, clock_timestamp() FROM `+t.ident(fenceSuffix)+` WHERE mover IN ('', $1)
			OR floor_at IS NULL OR floor_at NOT BETWEEN clock_timestamp() - $2::interval AND clock_timestamp()
			FOR UPDATE`, by, mover).
			Scan(&other, &now)
		if errors.Is(err, pgx.ErrNoRows) {
			return t.otherMover(ctx)
		}
		if err != nil {
			return err
		}
		if ahead := time.UnixMilli(m.UnixMs).Sub(now); ahead > maxAhead {
			return fmt.Errorf("%w by %v, and a floor is never lowered: compare the clocks of nodes and database",
				ErrAhead, ahead.Round(time.Second))
		}
		err = tx.QueryRow(ctx, `UPDATE `+t.ident(fenceSuffix)+` SET floor_ms = greatest(floor_ms, $1),
			floor_at = clock_timestamp(), mover = $2, mark_blocked_by = $3, ahead_ms = $4,
			ids_per_day = coalesce(nullif($5::bigint, 0), ids_per_day) RETURNING floor_ms`,
			m.UnixMs, by, strings.Join(m.BlockedBy, "; "), cmp.Or(m.Ahead, defaultAhead).Milliseconds(), perDay).
			Scan(&f.UnixMs)
		if err != nil {
			return err
		}
		end := t.readableSQL()
		err = tx.QueryRow(ctx, `SELECT CASE WHEN s.last_value < up.value THEN setval($2::regclass, up.value)
			ELSE s.last_value END, greatest(s.last_value, up.value) = `+end+`, s.last_value < `+end+`, `+serverSQL+`
			FROM `+t.ident(floorSuffix)+` s, `+t.ident(fenceSuffix)+` f,
			LATERAL (SELECT greatest($1, `+end+`)) up(value)`, value, t.ident(floorSuffix)).
			Scan(&f.value, &f.Readable, &low, &f.server)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, t.limitSQL())
		return err
	})
	if err == nil && low {
		err = fmt.Errorf("%w of %s until now: rows that came meanwhile can be missed by readers, who have to read "+
			"them again", ErrLowFloor, t)
	}
	return f, t.known(err)
}

// Leave lets another process move the fence at once.
func (t *Table) Leave(ctx context.Context, by string) error {
	_, err := t.db.Pool.Exec(ctx, `UPDATE `+t.ident(fenceSuffix)+` SET mover = '' WHERE mover = $1`, by)
	return err
}

// readableSQL is the end of the view as a value of the floor.
func (t *Table) readableSQL() string {
	if t.wide {
		return wideMs("f.readable")
	}
	return `f.readable`
}

func (t *Table) otherMover(ctx context.Context) error {
	var name string
	_ = t.db.Pool.QueryRow(ctx, `SELECT mover FROM `+t.ident(fenceSuffix)).Scan(&name) // It is only for the message.
	return fmt.Errorf("%w: %s; this one takes over when it has done nothing for %v", ErrOtherMover, name, mover)
}

// Wait waits until the transactions have ended that had a lock of writers after Raise
// returned that floor. It asks for no lock itself: writers would queue behind it. look is
// called with those that are left, each time it has looked. It returns ErrOtherServer.
func (t *Table) Wait(ctx context.Context, f Floor, look func([]Holder)) error {
	var w waiting
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		server, holders, err := t.look(ctx)
		if err == nil && server != f.server {
			err = t.otherServer()
		}
		if err != nil {
			return err
		}
		left := w.see(holders)
		look(left)
		if len(left) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// viewOfSQL says whether the view $1 reads the table $2, and no other table has its name $3, to which
// programs write. Both can be dropped, renamed and made again, and the locks of another table say
// nothing about this one.
const viewOfSQL = `coalesce(to_regclass($3), $2::oid) = $2::oid AND EXISTS (
	SELECT FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
	WHERE r.ev_class = to_regclass($1) AND d.refclassid = 'pg_class'::regclass AND d.refobjid = $2::oid)`

// serverSQL names the process and the history that answer. After a failover a connection of the
// pool can lead to another server, which neither the floor nor the locks of writers have reached.
const serverSQL = `CASE WHEN pg_is_in_recovery() THEN 'a standby' ELSE format('%s/%s',
	extract(epoch FROM pg_postmaster_start_time()), left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)) END`

func (t *Table) otherServer() error {
	return fmt.Errorf("%w: %s was restarted, or another one took its place; the next move raises the floor again",
		ErrOtherServer, t.db)
}

// Publish ends the view at a floor, once Wait has returned nil for it. It returns ErrUnfenced
// and ErrOtherServer.
func (t *Table) Publish(ctx context.Context, f Floor) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	unfenced, err := t.unfenced(ctx)
	if err != nil {
		return err
	}
	if len(unfenced) > 0 {
		return fmt.Errorf("%w: %s", ErrUnfenced, unfenced[0].why(t))
	}
	var end any = f.value
	if t.wide {
		end = fmt.Sprintf("%012x%020x", f.value, 0)
	}
	var ours, there bool
	// What was waited for was written to the log before this place.
	err = t.db.Pool.QueryRow(ctx, `WITH seen AS (
		SELECT `+viewOfSQL+` AS ours, `+serverSQL+` = $6 AND last_value >= $7 AS there FROM `+t.ident(floorSuffix)+`
	), moved AS (
		UPDATE `+t.ident(fenceSuffix)+` SET readable = $4, readable_ms = $5, readable_at = clock_timestamp(),
			readable_lsn = pg_current_wal_insert_lsn() FROM seen WHERE readable < $4 AND ours AND there
	) SELECT ours, there FROM seen`, t.ident(viewSuffix), t.oid, t.ident(""), end, f.UnixMs, f.server, f.value).
		Scan(&ours, &there)
	switch {
	case err != nil:
		return t.known(err)
	case !ours:
		return userdb.Setup("%s is not the view of the table that this process found at its start: start it again",
			t.View())
	case !there:
		return t.otherServer()
	}
	return nil
}

// known explains errors that operators can do something about.
func (t *Table) known(err error) error {
	switch userdb.Code(err) {
	case "42P01":
		return userdb.Setup(`%s has no fence: run "allocator fence init --table %s"`, t, t)
	case "42501":
		return userdb.Setup(`%w: run "allocator fence init --table %s --role ROLE" with the role of this process`,
			err, t)
	case "25006":
		return userdb.Setup("%s takes no writes: is it a standby? Give the address of the primary", t.db)
	case "55P03":
		return fmt.Errorf("%w: another session has a lock on %s, perhaps a mover that is stopped", err,
			t.ident(fenceSuffix))
	}
	return err
}

// lockTries is how often Init tries to get the lock of the table. Between two tries it lets
// writers pass, who wait behind it for a second at most.
const lockTries = 30

// Init makes the fence of a table, or what is missing of it. It waits for writers in progress,
// a second at a time, and calls wait before each further try.
func (t *Table) Init(ctx context.Context, role string, space flake.Format, wait func([]Holder)) error {
	return t.change(ctx, role, func() ([]string, error) { return t.SQL(ctx, role, space) }, wait)
}

// Drop takes away what there is of the fence of a table, and waits as Init does. Its errors are those of
// DropSQL too.
func (t *Table) Drop(ctx context.Context, wait func([]Holder)) error {
	return t.change(ctx, "", func() ([]string, error) { return t.DropSQL(ctx) }, wait)
}

func (t *Table) change(
	ctx context.Context, role string, sql func() ([]string, error), wait func([]Holder),
) error {
	for try := 1; ; try++ {
		statements, err := sql()
		if err != nil {
			return err
		}
		err = pgx.BeginFunc(ctx, t.db.Pool, func(tx pgx.Tx) error {
			for _, s := range append([]string{`SET LOCAL lock_timeout = '1s'`}, statements...) {
				if _, err := tx.Exec(ctx, s); err != nil {
					return explain(err, s, role)
				}
			}
			return nil
		})
		if userdb.Code(err) != "55P03" {
			return err
		}
		holders, listed := t.Holders(ctx)
		switch {
		case listed != nil:
			return listed
		case try == lockTries:
			return fmt.Errorf("%w: %s was locked in %d tries by %v; end these transactions, or try again when fewer "+
				"write", ErrBusy, t, try, holders)
		}
		wait(holders)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
}

func explain(err error, statement, role string) error {
	first, _, _ := strings.Cut(statement, "\n")
	switch userdb.Code(err) {
	case "42501":
		return userdb.Setup("%s: %w: run it as the owner of the table, with CREATE on its schema", first, err)
	case "2BP01":
		return userdb.Setup("%s: %w: drop what uses it first", first, err)
	case "42704":
		return userdb.Setup("%w: CREATE ROLE %s LOGIN first", err, role)
	}
	return fmt.Errorf("%s: %w", first, err)
}
