package fence

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// hold is how long a change lasts: movers that do not see it move the view meanwhile.
const hold = 4 * pause

// setup is a change of the fenced table that stops its view, and what makes the fence again. Each has SQL
// that says whether it was done, since a server that crashes does not say it.
type setup struct {
	name       string
	db         int
	do, done   string
	undo, gone string
}

// setups returns the changes. fences has, for each database and column, the statements that make the fence.
func setups(fences [2]map[string]string) (all []setup) {
	for db, of := range fences {
		all = append(all, setup{
			name: "init for another column",
			db:   db,
			do:   of["other"],
			done: `pg_get_viewdef('events_complete'::regclass) LIKE '%other < %'`,
			undo: of["id"],
			gone: `pg_get_viewdef('events_complete'::regclass) LIKE '%id < %'`,
		})
	}
	return append(all, setup{
		name: "another table takes the name",
		do: `LOCK TABLE events; CREATE TABLE events_new (LIKE events INCLUDING ALL);
			INSERT INTO events_new SELECT id FROM events;
			ALTER TABLE events RENAME TO events_old; ALTER TABLE events_new RENAME TO events`,
		done: `to_regclass('events_old') IS NOT NULL`,
		// Nothing has refused late rows meanwhile: those below the end of the view are not held against it.
		undo: fences[0]["id"] + `; DELETE FROM events e USING events_fence f
			WHERE e.id < f.readable AND NOT EXISTS (SELECT FROM events_old o WHERE o.id = e.id);
			DROP TABLE events_old`,
		gone: `to_regclass('events_old') IS NULL`,
	}, setup{
		name: "a foreign table below it",
		// It has both triggers, as a partition would have them.
		do: `CREATE FOREIGN TABLE far () INHERITS (events) SERVER away;
			CREATE TRIGGER events_fence_insert AFTER INSERT ON far
				FOR EACH ROW WHEN (events_fence_late(NEW.id)) EXECUTE FUNCTION events_fence_refuse();
			CREATE TRIGGER events_fence_update AFTER UPDATE ON far
				FOR EACH ROW WHEN (events_fence_late(NEW.id)) EXECUTE FUNCTION events_fence_refuse();
			ALTER TABLE far ENABLE ALWAYS TRIGGER events_fence_insert;
			ALTER TABLE far ENABLE ALWAYS TRIGGER events_fence_update`,
		done: `to_regclass('far') IS NOT NULL`,
		undo: `DROP FOREIGN TABLE far`,
		gone: `to_regclass('far') IS NULL`,
	})
}

// change makes each change in turn and undoes it, until writing ends. all is called once each of them has
// had its turn. In between the view does not move: it ends at the floor of before at most.
func (r *run) change(ctx, writing context.Context, changes []setup, all func()) {
	for turn := 0; writing.Err() == nil; turn++ {
		c, began := changes[turn%len(changes)], time.Now()
		r.until(ctx, c.db, c.do, c.done)
		var floor, end int64
		r.read(ctx, c.db, "SELECT last_value FROM events_fence_floor", &floor)
		select {
		case <-ctx.Done():
		case <-time.After(hold):
		}
		r.read(ctx, c.db, "SELECT readable FROM events_fence", &end)
		if end > floor {
			r.Errorf("%s: the view ends at %d, and the floor was %d", c.name, end, floor)
		}
		r.until(ctx, c.db, c.undo, c.gone)
		r.changed.Add(1)
		r.Logf("%s in database %d: made good after %v", c.name, c.db, time.Since(began).Round(time.Millisecond))
		if turn == len(changes)-1 {
			all()
		}
		Sleep(writing, time.Second)
	}
}

// until runs statements in a transaction until the condition says that they have their effect: transactions
// of writers are in their way, and faults.
func (r *run) until(ctx context.Context, db int, statements, condition string) {
	for done := false; ctx.Err() == nil; Sleep(ctx, 50*time.Millisecond) {
		if r.read(ctx, db, "SELECT "+condition, &done); done || ctx.Err() != nil {
			return
		}
		// An error is one of a lock or of a fault, or else the condition stays false and the test ends.
		_, _ = r.pool[db].Exec(ctx, "SET LOCAL lock_timeout = '3s'; "+statements, pgx.QueryExecModeSimpleProtocol)
	}
}

// read reads a value, as soon as the server answers.
func (r *run) read(ctx context.Context, db int, query string, into any) {
	for ctx.Err() == nil && r.pool[db].QueryRow(ctx, query).Scan(into) != nil {
		Sleep(ctx, 50*time.Millisecond)
	}
}
