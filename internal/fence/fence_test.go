package fence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/userdb"
)

const plain = `CREATE TABLE events (id bigint PRIMARY KEY, note text)`

// TestTraps has a test for each way in which a row could get below the end of the view, or a
// move could wait forever.
func TestTraps(t *testing.T) {
	s := server(t)
	e := env{s.URL(), open(t, s.URL())}
	for name, trap := range map[string]func(*testing.T, env){
		"late writer":          lateWriter,
		"snapshots":            snapshots,
		"prepared statement":   preparedStatement,
		"prepared transaction": preparedTransaction,
		"savepoint":            savepoint,
		"partitions":           partitions,
		"attached partition":   attachedPartition,
		"inheritance":          inheritance,
		"copy":                 copyIn,
		"on conflict":          onConflict,
		"replica":              replica,
		"update of the ID":     updateOfID,
		"other triggers":       otherTriggers,
		"truncate":             truncate,
		"search path":          searchPath,
		"recreated":            recreated,
		"lost floor":           lostFloor,
		"another column":       anotherColumn,
		"renamed column":       renamedColumn,
		"swapped tables":       swappedTables,
		"foreign partition":    foreignPartition,
		"uuid":                 wideIDs,
		"dead mover":           deadMover,
		"two movers":           twoMovers,
		"mover without locks":  stoppedMover,
		"init beside a mover":  initBesideMover,
		"marks":                marks,
		"init under load":      initUnderLoad,
		"status":               status,
		"rights":               rights,
		"future":               future,
		"rows of the future":   futureRows,
		"mover was away":       moverWasAway,
		"drop":                 drop,
		"wrong tables":         wrongTables,
	} {
		t.Run(name, func(t *testing.T) { trap(t, e) })
	}
}

// A writer that was there before is waited for; others go on meanwhile.
func lateWriter(t *testing.T, e env) {
	f := e.fenced(t, plain)
	late, other := f.session(), f.session()
	late.exec(`BEGIN`)
	late.exec(`INSERT INTO events VALUES (5)`)
	m := f.begin(10)
	m.waits(1)
	other.exec(`INSERT INTO events VALUES (11)`) // It does not queue behind the mover.
	other.refused(`INSERT INTO events VALUES (7)`)
	m.waits(1)
	f.complete()
	late.exec(`COMMIT`)
	m.end()
	f.complete(5)
	late.refused(`INSERT INTO events VALUES (9)`)
	late.exec(`INSERT INTO events VALUES (10)`)
	f.moveTo(12)
	f.complete(5, 10, 11)
}

// A transaction with an old snapshot sees the present floor.
func snapshots(t *testing.T, e env) {
	f := e.fenced(t, plain)
	for i, level := range []string{"REPEATABLE READ", "SERIALIZABLE", "READ COMMITTED"} {
		floor := int64(100 * (i + 1))
		w := f.session()
		w.exec(`BEGIN ISOLATION LEVEL ` + level)
		w.read(`SELECT count(*) FROM events`)
		f.moveTo(floor)
		w.exec(`SAVEPOINT s`)
		w.refused(`INSERT INTO events VALUES ($1)`, floor-1)
		w.exec(`ROLLBACK TO s`)
		w.exec(`INSERT INTO events VALUES ($1)`, floor)
		m := f.begin(floor + 1)
		m.waits(1)
		w.exec(`COMMIT`)
		m.end()
	}
	f.complete(100, 200, 300)
}

// The plan of a prepared statement is kept, and the floor in it is not.
func preparedStatement(t *testing.T, e env) {
	f := e.fenced(t, plain)
	w := f.session()
	w.exec(`SET plan_cache_mode = force_generic_plan`)
	if _, err := w.Prepare(t.Context(), "insert", `INSERT INTO events VALUES ($1)`); err != nil {
		t.Fatal(err)
	}
	for id := range 10 {
		w.exec("insert", id)
	}
	f.moveTo(50)
	w.refused("insert", 49)
	w.exec("insert", 50)
}

// PREPARE TRANSACTION before the move, and while it waits.
func preparedTransaction(t *testing.T, e env) {
	f := e.fenced(t, plain)
	w := f.session()
	w.exec(`BEGIN; INSERT INTO events VALUES (5); PREPARE TRANSACTION 'before'`)
	m := f.begin(10)
	if left := m.waits(1); left[0].Prepared != "before" || left[0].PID != 0 || left[0].Since == nil {
		t.Errorf("the holder is %+v", left[0])
	}
	w.exec(`BEGIN; INSERT INTO events VALUES (20); PREPARE TRANSACTION 'not waited for'`)
	m.waits(1)
	w.exec(`COMMIT PREPARED 'before'`)
	m.end()
	w.exec(`COMMIT PREPARED 'not waited for'`)
	f.complete(5)

	w.exec(`BEGIN; INSERT INTO events VALUES (21)`)
	m = f.begin(30)
	m.waits(1)
	w.exec(`PREPARE TRANSACTION 'meanwhile'`)
	m.waits(1)
	f.complete(5)
	w.exec(`COMMIT PREPARED 'meanwhile'`)
	m.end()
	f.complete(5, 20, 21)
}

func savepoint(t *testing.T, e env) {
	f := e.fenced(t, plain)
	w := f.session()
	w.exec(`BEGIN; SAVEPOINT a; INSERT INTO events VALUES (4); ROLLBACK TO a`)
	w.exec(`SAVEPOINT b; INSERT INTO events VALUES (5); RELEASE b`)
	m := f.begin(10)
	m.waits(1)
	w.exec(`SAVEPOINT c`)
	w.refused(`INSERT INTO events VALUES (6)`)
	w.exec(`ROLLBACK TO c`)
	w.exec(`COMMIT`)
	m.end()
	f.complete(5)
}

const partitioned = `
CREATE TABLE events (id bigint, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE part1 PARTITION OF events FOR VALUES IN (1);
CREATE TABLE part2 PARTITION OF events FOR VALUES IN (2) PARTITION BY LIST (k);
CREATE TABLE part22 PARTITION OF part2 FOR VALUES IN (2);`

func partitions(t *testing.T, e env) {
	f := e.fenced(t, partitioned)
	a, b := f.session(), f.session()
	a.exec(`BEGIN; INSERT INTO part22 VALUES (5, 2)`) // It has no lock on the table itself.
	b.exec(`BEGIN; INSERT INTO events VALUES (6, 1)`)
	m := f.begin(10)
	m.waits(2)
	a.exec(`COMMIT`)
	b.exec(`COMMIT`)
	m.end()
	f.complete(5, 6)
	a.refused(`INSERT INTO part22 VALUES (7, 2)`)
	a.refused(`INSERT INTO events VALUES (7, 1)`)
	a.refused(`UPDATE events SET k = 1 WHERE id = 5`) // It is inserted into the other partition.
	// One that comes later has the triggers, and is waited for.
	a.exec(`CREATE TABLE part3 PARTITION OF events FOR VALUES IN (3)`)
	a.refused(`INSERT INTO part3 VALUES (8, 3)`)
	a.exec(`BEGIN; CREATE TABLE part4 PARTITION OF events FOR VALUES IN (4); INSERT INTO part4 VALUES (11, 4)`)
	m = f.begin(20)
	m.waits(1)
	a.exec(`COMMIT`)
	m.end()
	f.complete(5, 6, 11)
	// One whose trigger is disabled stops the view, until init enables it.
	for _, disable := range []string{
		`ALTER TABLE part1 DISABLE TRIGGER events_fence_insert`,
		`ALTER TABLE part22 ENABLE TRIGGER events_fence_update`,
	} {
		a.exec(disable)
		if err := f.Publish(t.Context(), Floor{value: 25}); !errors.Is(err, ErrUnfenced) {
			t.Errorf("%s: %v", disable, err)
		}
		f.init()
	}
	f.moveTo(30)
}

// A transaction that attaches a partition and inserts into it is waited for, though it began
// when nobody knew of the partition.
func attachedPartition(t *testing.T, e env) {
	f := e.fenced(t, partitioned)
	w := f.session()
	w.exec(`CREATE TABLE part3 (id bigint NOT NULL, k int NOT NULL, PRIMARY KEY (id, k))`)
	w.exec(`BEGIN; ALTER TABLE events ATTACH PARTITION part3 FOR VALUES IN (3); INSERT INTO part3 VALUES (5, 3)`)
	m := f.begin(10)
	m.waits(1)
	w.exec(`COMMIT`)
	m.end()
	f.complete(5)
}

func inheritance(t *testing.T, e env) {
	f := e.fenced(t, plain+`; CREATE TABLE child (CHECK (id > 0)) INHERITS (events)`)
	w := f.session()
	w.exec(`BEGIN; INSERT INTO child VALUES (5)`)
	m := f.begin(10)
	m.waits(1)
	w.exec(`COMMIT`)
	m.end()
	f.complete(5)
	w.refused(`INSERT INTO child VALUES (6)`)
	w.exec(`CREATE TABLE child2 () INHERITS (events)`)
	if err := f.Publish(t.Context(), Floor{value: 10}); !errors.Is(err, ErrUnfenced) || !strings.Contains(err.Error(), "child2") {
		t.Errorf("a child without triggers: %v", err)
	}
	f.init()
	w.refused(`INSERT INTO child2 VALUES (6)`)
	f.moveTo(20)
}

func copyIn(t *testing.T, e env) {
	f := e.fenced(t, plain)
	w := f.session()
	lines, in := io.Pipe()
	copied := make(chan error, 1)
	go func() {
		_, err := w.PgConn().CopyFrom(t.Context(), lines, `COPY events (id) FROM STDIN`)
		copied <- err
	}()
	_, _ = io.WriteString(in, "5\n6\n")
	wait.Until(t, "COPY has its lock", func() bool {
		holders, err := f.Holders(t.Context())
		return err == nil && len(holders) == 1
	})
	m := f.begin(10)
	m.waits(1)
	_ = in.Close()
	if err := <-copied; err != nil && userdb.Code(err) != Refused {
		t.Fatal(err)
	}
	m.end()
	_, err := w.PgConn().CopyFrom(t.Context(), strings.NewReader("30\n9\n31\n"), `COPY events (id) FROM STDIN`)
	if userdb.Code(err) != Refused {
		t.Errorf("COPY with a late row: %v", err)
	}
}

// A row that is not inserted is not refused, so that an insert may be repeated.
func onConflict(t *testing.T, e env) {
	f := e.fenced(t, plain)
	w := f.session()
	w.exec(`INSERT INTO events VALUES (5)`)
	f.moveTo(10)
	w.exec(`INSERT INTO events VALUES (5) ON CONFLICT DO NOTHING`)
	w.exec(`INSERT INTO events VALUES (5) ON CONFLICT (id) DO UPDATE SET note = 'again'`)
	w.refused(`INSERT INTO events VALUES (6) ON CONFLICT DO NOTHING`)
	w.refused(`INSERT INTO events VALUES (6) ON CONFLICT (id) DO UPDATE SET note = 'again'`)
	w.refused(`INSERT INTO events VALUES (5) ON CONFLICT (id) DO UPDATE SET id = 7`)
	if w.read(`SELECT current_setting('server_version_num')::bigint`)[0] >= 150000 {
		w.refused(`MERGE INTO events USING (VALUES (8)) v (id) ON events.id = v.id WHEN NOT MATCHED THEN INSERT VALUES (v.id)`)
	}
	f.complete(5)
}

// Changes that another database sent are refused too.
func replica(t *testing.T, e env) {
	f := e.fenced(t, plain)
	w := f.session()
	f.moveTo(10)
	w.exec(`SET session_replication_role = replica`)
	w.refused(`INSERT INTO events VALUES (5)`)

	w.exec(`RESET session_replication_role`)
	w.exec(`CREATE DATABASE publisher`)
	p := connect(t, strings.Replace(e.url, "/postgres?", "/publisher?", 1))
	p.exec(`CREATE SCHEMA trap; SET search_path = trap`)
	schema := strings.SplitN(f.String(), ".", 2)[0]
	p.exec(`ALTER SCHEMA trap RENAME TO ` + schema + `; SET search_path = ` + schema + `; ` + plain)
	p.exec(`CREATE PUBLICATION all_events FOR TABLE events`)
	p.exec(`SELECT pg_create_logical_replication_slot('fence', 'pgoutput')`)
	w.exec(fmt.Sprintf(`CREATE SUBSCRIPTION fence CONNECTION 'host=%s user=test dbname=publisher' PUBLICATION all_events
		WITH (create_slot = false, copy_data = false, slot_name = 'fence')`, strings.SplitN(e.url, "host=", 2)[1]))
	p.exec(`INSERT INTO events VALUES (20)`)
	wait.Until(t, "a row arrives", func() bool { return w.read(`SELECT count(*) FROM events`)[0] == 1 })
	p.exec(`INSERT INTO events VALUES (5)`)
	wait.Until(t, "a late row is refused", func() bool {
		return w.read(`SELECT apply_error_count FROM pg_stat_subscription_stats`)[0] > 0
	})
	f.moveTo(30)
	f.complete(20)
	w.exec(`ALTER SUBSCRIPTION fence DISABLE; ALTER SUBSCRIPTION fence SET (slot_name = NONE); DROP SUBSCRIPTION fence`)
	wait.Until(t, "the slot is free", func() bool {
		_, err := p.Exec(t.Context(), `SELECT pg_drop_replication_slot('fence')`)
		return err == nil
	})
}

func updateOfID(t *testing.T, e env) {
	f := e.fenced(t, plain)
	w := f.session()
	w.exec(`INSERT INTO events VALUES (5), (15)`)
	f.moveTo(10)
	w.exec(`UPDATE events SET note = 'changed'`)
	w.exec(`UPDATE events SET id = id`)
	w.refused(`UPDATE events SET id = 9 WHERE id = 15`)
	w.exec(`UPDATE events SET id = 16 WHERE id = 15`)
	w.exec(`BEGIN; UPDATE events SET id = 12 WHERE id = 16`)
	m := f.begin(20)
	m.waits(1)
	w.exec(`COMMIT`)
	m.end()
	f.complete(5, 12)
}

// A trigger that changes the ID, and has a name behind ours.
func otherTriggers(t *testing.T, e env) {
	f := e.fenced(t, plain)
	w := f.session()
	w.exec(`CREATE FUNCTION low() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.id := NEW.id - 100; RETURN NEW; END $$`)
	w.exec(`CREATE TRIGGER zzz BEFORE INSERT OR UPDATE ON events FOR EACH ROW EXECUTE FUNCTION low()`)
	f.moveTo(10)
	w.refused(`INSERT INTO events VALUES (109)`)
	w.exec(`INSERT INTO events VALUES (110)`)
	w.refused(`UPDATE events SET note = ''`)
}

// RESTART IDENTITY sets the sequences of the table back, of which the floor is none.
func truncate(t *testing.T, e env) {
	f := e.fenced(t, plain)
	w := f.session()
	f.moveTo(10)
	w.exec(`TRUNCATE events RESTART IDENTITY`)
	w.refused(`INSERT INTO events VALUES (5)`)
	w.exec(`BEGIN; TRUNCATE events`)
	m := f.begin(20)
	m.waits(1)
	w.exec(`COMMIT`)
	m.end()
}

// A table that was dropped and made again has other locks.
func recreated(t *testing.T, e env) {
	f := e.fenced(t, plain)
	w := f.session()
	f.moveTo(10)
	w.exec(`ALTER TABLE events RENAME TO old`) // The view is still that of the same table.
	f.moveTo(20)
	w.exec(`DROP TABLE old CASCADE; ` + plain)
	floor, err := f.Raise(t.Context(), "test", at(30))
	fatal.If(t, err)
	if err := f.Publish(t.Context(), floor); !errors.Is(err, userdb.ErrSetup) {
		t.Errorf("without its table: %v", err)
	}
	again, err := f.db.Table(t.Context(), "events", "id")
	if err == nil {
		err = again.Init(t.Context(), "", flake.Default, nil)
	}
	fatal.If(t, err)
	if err := f.Publish(t.Context(), floor); !errors.Is(err, userdb.ErrSetup) || !strings.Contains(err.Error(), "start it again") {
		t.Errorf("with another table of that name: %v", err)
	}
	w.refused(`INSERT INTO events VALUES (19)`)
	f.Table = again
	f.moveTo(40)
}

// A server to which rows were brought and sequences were not has its floor after init.
func lostFloor(t *testing.T, e env) {
	for _, column := range []string{"bigint", "uuid"} {
		t.Run(column, func(t *testing.T) {
			f := e.fenced(t, `CREATE TABLE events (id `+column+` PRIMARY KEY)`)
			f.moveTo(50)
			raised, err := f.Raise(t.Context(), "test", at(60))
			fatal.If(t, err)
			f.session().exec(`ALTER SEQUENCE events_fence_floor RESTART WITH 7`)
			if err := f.Publish(t.Context(), raised); !errors.Is(err, ErrOtherServer) {
				t.Errorf("a floor that is not there: %v", err)
			}
			f.has("the floor is below the end of the view")
			// The end of the view counts, and not the time of a mark that was raised and lost.
			f.session().exec(`UPDATE events_fence SET readable_ms = 30`)
			f.init()
			if floor := f.session().read(`SELECT last_value FROM events_fence_floor`)[0]; floor != 50 {
				t.Errorf("the floor is %d", floor)
			}
			// A mover raises it as well, and says once that it was low.
			f.session().exec(`ALTER SEQUENCE events_fence_floor RESTART WITH 7`)
			if _, err := f.Raise(t.Context(), "test", at(40)); !errors.Is(err, ErrLowFloor) {
				t.Errorf("a floor below the end of the view: %v", err)
			}
			if floor, err := f.Raise(t.Context(), "test", at(40)); err != nil || floor.value != 50 {
				t.Errorf("the floor is %+v, %v", floor, err)
			}
			f.has()
		})
	}
}

// The triggers read the column that the view reads, whichever init was run for last.
func anotherColumn(t *testing.T, e env) {
	for _, kind := range []string{"", "PARTITION BY RANGE (id)", "INHERITS"} {
		t.Run(kind, func(t *testing.T) {
			const columns = `id bigint NOT NULL, other bigint NOT NULL`
			tables := 2
			sql := `CREATE TABLE events (` + columns + `)`
			switch kind {
			case "INHERITS":
				sql += `; CREATE TABLE child (` + columns + `) INHERITS (events); CREATE INDEX ON child (other)`
			case "":
				tables = 1
			default: // The columns of the partition have other numbers.
				sql += ` ` + kind + `; CREATE TABLE part (gone int, other bigint NOT NULL, id bigint NOT NULL);
					ALTER TABLE part DROP gone; ALTER TABLE events ATTACH PARTITION part DEFAULT`
			}
			f := e.fenced(t, sql+`; CREATE INDEX ON events (id); CREATE INDEX ON events (other)`)
			f.moveTo(10)
			f.has()
			other, err := f.db.Table(t.Context(), "events", "other")
			fatal.If(t, err)
			if err := other.Publish(t.Context(), Floor{value: 20}); !errors.Is(err, ErrUnfenced) {
				t.Errorf("a mover for the other column: %v", err)
			}
			fatal.If(t, other.Init(t.Context(), "", flake.Default, func([]Holder) {}))
			f.session().refused(`INSERT INTO events (id, other) VALUES (11, 9)`)
			f.session().exec(`INSERT INTO events (id, other) VALUES (9, 11)`)
			if err := f.Publish(t.Context(), Floor{value: 20}); !errors.Is(err, ErrUnfenced) {
				t.Errorf("a mover for the first column: %v", err)
			}
			f.has(slices.Repeat([]string{"has no triggers on column id"}, tables)...)
			f.Table = other
			f.has()
			f.moveTo(20)
		})
	}
}

// A column of the same name is not the one that triggers and view read.
func renamedColumn(t *testing.T, e env) {
	f := e.fenced(t, plain)
	f.moveTo(10)
	f.session().exec(`ALTER TABLE events RENAME COLUMN id TO old_id;
		ALTER TABLE events ADD COLUMN id bigint NOT NULL;
		CREATE UNIQUE INDEX ON events (id)`)
	if err := f.Publish(t.Context(), Floor{value: 20}); !errors.Is(err, ErrUnfenced) {
		t.Errorf("a mover: %v", err)
	}
	f.session().exec(`DROP VIEW events_complete`)
	f.init()
	f.session().refused(`INSERT INTO events (id, old_id) VALUES (9, 11)`)
	f.session().exec(`INSERT INTO events (id, old_id) VALUES (11, 9)`)
	f.has()
	f.moveTo(20)
}

// A table that takes the name of a fenced one has no fence, and the view does not read it.
func swappedTables(t *testing.T, e env) {
	f := e.fenced(t, plain)
	f.moveTo(10)
	raised, err := f.Raise(t.Context(), "test", at(20))
	fatal.If(t, err)
	f.session().exec(`CREATE TABLE events_new (LIKE events INCLUDING ALL);
		ALTER TABLE events RENAME TO events_old; ALTER TABLE events_new RENAME TO events`)
	if err := f.Publish(t.Context(), raised); !errors.Is(err, userdb.ErrSetup) {
		t.Errorf("beside a table that the view does not read: %v", err)
	}
	if end := f.session().read(`SELECT readable FROM events_fence`)[0]; end != 10 {
		t.Errorf("the view moves beside a table that it does not read, to %d", end)
	}
	if f.Table, err = f.db.Table(t.Context(), "events", "id"); err != nil {
		t.Fatal(err)
	}
	f.has("events has no triggers on column id", "events_complete reads another table")
	f.init()
	f.has()
	f.moveTo(20)
}

// A partition of another database has triggers, and locks and transactions that nobody sees here.
func foreignPartition(t *testing.T, e env) {
	f := e.fenced(t, `CREATE TABLE events (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
		CREATE TABLE near PARTITION OF events FOR VALUES FROM (0) TO (1000);
		CREATE FOREIGN DATA WRAPPER away; CREATE SERVER away FOREIGN DATA WRAPPER away`)
	f.moveTo(10)
	// A unique index forbids foreign partitions.
	f.session().exec(`ALTER TABLE events DROP CONSTRAINT events_pkey; CREATE INDEX ON ONLY events (id);
		CREATE FOREIGN TABLE far PARTITION OF events FOR VALUES FROM (1000) TO (2000) SERVER away`)
	f.has("far, which belongs to")
	if err := f.Publish(t.Context(), Floor{value: 20}); !errors.Is(err, ErrUnfenced) || !strings.Contains(err.Error(), "detach it") {
		t.Errorf("the view moves: %v", err)
	}
}

// A writer's own operators and tables are not those of the trigger.
func searchPath(t *testing.T, e env) {
	f := e.fenced(t, plain)
	w := f.session()
	f.moveTo(10)
	w.exec(`CREATE FUNCTION never(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT false';
		CREATE OPERATOR < (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = never);
		CREATE TEMPORARY TABLE events_fence_floor (last_value bigint)`)
	w.exec(`SELECT set_config('search_path', current_schema || ', pg_catalog', false)`)
	w.refused(`INSERT INTO events VALUES (5)`)
}

func wideIDs(t *testing.T, e env) {
	f := e.fenced(t, `CREATE TABLE events (id uuid PRIMARY KEY)`)
	w := f.session()
	id := func(ms int64, rest string) string { return fmt.Sprintf("%08x-%04x-%s", ms>>16, ms&0xffff, rest) }
	const smallest, greatest = "0000-0000-000000000000", "7fff-bfff-ffffffffffff"
	w.exec(`INSERT INTO events VALUES ($1), ($2), ($3)`, id(99_999, greatest), id(100_000, smallest), id(100_000, greatest))
	f.moveTo(100_000)
	w.refused(`INSERT INTO events VALUES ($1)`, id(99_999, "7fff-bfff-fffffffffffe"))
	w.exec(`INSERT INTO events VALUES ($1)`, id(100_000, "0000-8000-000000000000"))
	if n := w.read(`SELECT count(*) FROM events_complete`)[0]; n != 1 {
		t.Errorf("%d rows below the end of the view", n)
	}
	f.has()
	f.moveTo(100_001)
	if n := w.read(`SELECT count(*) FROM events_complete`)[0]; n != 4 {
		t.Errorf("%d rows below the end of the view", n)
	}
	if floor, err := f.Raise(t.Context(), "test", at(100_001)); err != nil || !floor.Readable {
		t.Errorf("the same mark again: %+v, %v", floor, err)
	}
}

// markOf is the mark of a time in a space.
func markOf(space flake.Format, at time.Time) Mark {
	id, err := space.Min(at.UnixMilli())
	if err != nil {
		panic(err)
	}
	return Mark{UnixMs: at.UnixMilli(), ID: id.Int64(), PerDay: PerDay(space)}
}

// idsOf returns what makes IDs of a column of that type.
func idsOf(column string, space flake.Format) func(time.Time) string {
	return func(at time.Time) string {
		if column == "uuid" {
			ms := at.UnixMilli()
			return fmt.Sprintf("'%08x-%04x-7000-8000-000000000000'", ms>>16, ms&0xffff)
		}
		return fmt.Sprint(markOf(space, at).ID)
	}
}

// Rows that no reader would get for days are refused, and it is said what their IDs probably are.
func future(t *testing.T, e env) {
	twitter := flake.Format{Layout: flake.Twitter, Epoch: flake.Twitter.Epoch()}
	baidu := flake.Format{Layout: flake.Baidu, Epoch: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	for _, tc := range []struct {
		name, column string
		space        flake.Format
		more         map[string]string // IDs that are refused, and what they probably are
	}{
		{"uuid", "uuid", flake.Default, map[string]string{
			"'f47ac10b-58cc-4372-a567-0e02b2c3d479'": "a UUID of version 4",
			"'ffffffff-ffff-ffff-ffff-ffffffffffff'": "version f",
		}},
		{"bigint", "bigint", flake.Default, map[string]string{
			fmt.Sprint(markOf(twitter, time.Now()).ID): "an ID of layout twitter",
			"9223372036854775807":                      "a number that is no ID",
		}},
		{"seconds", "bigint", baidu, map[string]string{"9223372036854775807": "a number that is no ID"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := e.fenced(t, `CREATE TABLE events (id `+tc.column+` PRIMARY KEY, note text)`)
			w, id, now := f.session(), idsOf(tc.column, tc.space), time.Now()
			// Before the first mark nothing is known of integers.
			early := id(now.AddDate(0, 1, 0))
			if tc.column == "uuid" {
				w.ahead("of a clock that is ahead", `INSERT INTO events VALUES (`+early+`)`)
			} else {
				w.exec(`INSERT INTO events VALUES (` + early + `); DELETE FROM events`)
			}
			mark := markOf(tc.space, now)
			raise := func(ahead time.Duration) {
				mark.Ahead = ahead
				if _, err := f.Raise(t.Context(), "test", mark); err != nil {
					t.Fatal(err)
				}
			}
			raise(0)
			w.exec(`INSERT INTO events VALUES (` + id(now.Add(time.Second)) + `), (` + id(now.Add(23*time.Hour)) + `)`)
			w.ahead(" would get it before", `INSERT INTO events VALUES (`+id(now.Add(25*time.Hour))+`)`)
			w.ahead("is ahead|is wrong", `UPDATE events SET id = `+id(now.Add(48*time.Hour))+` WHERE id = `+id(now.Add(time.Second)))
			w.ahead(now.AddDate(0, 0, 9).UTC().Format(time.DateOnly), `INSERT INTO events VALUES (`+id(now.AddDate(0, 0, 9))+`)`)
			for id, probably := range tc.more {
				w.ahead(probably, `INSERT INTO events VALUES (`+id+`)`)
			}
			raise(72 * time.Hour)
			w.exec(`INSERT INTO events VALUES (` + id(now.Add(71*time.Hour)) + `)`)
			w.ahead("", `INSERT INTO events VALUES (`+id(now.Add(73*time.Hour))+`)`)
			w.refused(`INSERT INTO events VALUES (` + id(now.Add(-2*time.Second)) + `)`)
			raise(time.Hour)
			w.ahead("", `INSERT INTO events VALUES (`+id(now.Add(2*time.Hour))+`)`)
			mark.PerDay = 0 // A mover that does not know it forgets nothing.
			raise(0)
			w.ahead("", `INSERT INTO events VALUES (`+id(now.Add(25*time.Hour))+`)`)
		})
	}
}

// While no mover works, rows of now are not those of the future.
func moverWasAway(t *testing.T, e env) {
	for _, column := range []string{"bigint", "uuid"} {
		t.Run(column, func(t *testing.T) {
			f := e.fenced(t, `CREATE TABLE events (id `+column+` PRIMARY KEY)`)
			w, id, now := f.session(), idsOf(column, flake.Default), time.Now()
			if _, err := f.Raise(t.Context(), "test", markOf(flake.Default, now.AddDate(0, 0, -30))); err != nil {
				t.Fatal(err)
			}
			w.exec(`INSERT INTO events VALUES (` + id(now) + `), (` + id(now.Add(23*time.Hour)) + `)`)
			w.ahead("", `INSERT INTO events VALUES (`+id(now.Add(25*time.Hour))+`)`)
		})
	}
}

// Rows that were there are counted, and the first of them is named.
func futureRows(t *testing.T, e env) {
	for _, column := range []string{"bigint", "uuid"} {
		t.Run(column, func(t *testing.T) {
			f := e.fenced(t, `CREATE TABLE events (id `+column+` PRIMARY KEY)`)
			w, id, now := f.session(), idsOf(column, flake.Default), time.Now()
			if _, err := f.Raise(t.Context(), "test", markOf(flake.Default, now)); err != nil {
				t.Fatal(err)
			}
			w.exec(`INSERT INTO events VALUES (` + id(now.Add(50*time.Minute)) + `)`)
			f.has()
			first := now.Add(2 * time.Hour)
			w.exec(`INSERT INTO events VALUES (` + id(first) + `), (` + id(now.Add(3*time.Hour)) + `)`)
			f.has("2 rows ahead of now, the first of " + first.UTC().Format("2006-01-02T15:04"))
			f.init() // Clocks may differ by a day.
			w.exec(`ALTER TABLE events DISABLE TRIGGER USER`)
			for n := range maxAheadRows {
				w.exec(`INSERT INTO events VALUES (` + id(now.AddDate(0, 0, 9+n)) + `)`)
			}
			w.exec(`ALTER TABLE events ENABLE ALWAYS TRIGGER events_fence_insert;
				ALTER TABLE events ENABLE ALWAYS TRIGGER events_fence_update`)
			f.has("1000 or more rows ahead of now, the first of " + first.UTC().Format("2006-01-02T15:04"))
			// The mover has said which times IDs have.
			err := f.Init(t.Context(), "", flake.Format{Layout: flake.Twitter, Epoch: flake.Twitter.Epoch()}, nil)
			if want := now.AddDate(0, 0, 9).UTC().Format(time.DateOnly); !errors.Is(err, userdb.ErrSetup) || !strings.Contains(err.Error(), want) {
				t.Errorf("init: %v, and not with %s", err, want)
			}
			marks := make(counting, 1)
			marks <- now.UnixMilli() + 1
			movers := NewMovers(Config{
				Tables:   []*Table{f.Table},
				Source:   marks,
				Interval: time.Millisecond,
				Name:     "test",
				Log:      slog.New(slog.DiscardHandler),
			})
			stop := running(t, movers)
			wait.Until(t, "the mover counts them", func() (found bool) {
				movers.Stats(func(_ *Table, s Stats) { found = s.Ahead.Rows == maxAheadRows })
				return found
			})
			stop()
		})
	}
}

// Drop takes away all that init has made, and nothing else; it may be repeated.
func drop(t *testing.T, e env) {
	f := e.fenced(t, partitioned)
	objects := func() int64 {
		return f.session().read(`SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = current_schema::regnamespace)
			+ (SELECT count(*) FROM pg_proc WHERE pronamespace = current_schema::regnamespace)
			+ (SELECT count(*) FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid
				WHERE relnamespace = current_schema::regnamespace)`)[0]
	}
	fenced := objects()
	f.moveTo(10)
	w := f.session()
	w.refused(`INSERT INTO events VALUES (5, 1)`)
	if err := f.Drop(t.Context(), nil); !errors.Is(err, ErrOtherMover) || !strings.Contains(err.Error(), "stop test first") {
		t.Errorf("while a mover works: %v", err)
	}
	// A time of the future is none at which a mover worked.
	w.exec(`UPDATE events_fence SET floor_at = clock_timestamp() + interval '1 h'`)
	w.exec(`BEGIN; INSERT INTO events VALUES (15, 1)`)
	waited := 0
	if err := f.Drop(t.Context(), func([]Holder) { waited++; w.exec(`COMMIT`) }); err != nil || waited != 1 {
		t.Errorf("%v; waited %d times", err, waited)
	}
	w.exec(`INSERT INTO events VALUES (5, 1)`)
	bare := objects()
	if bare >= fenced {
		t.Errorf("%d of %d objects are left", bare, fenced)
	}
	for _, half := range []string{``, `DROP TABLE events_fence`, `DROP VIEW events_complete`, `DROP SEQUENCE events_fence_limit`} {
		if half != "" {
			f.init()
			w.exec(half + ` CASCADE`)
		}
		if err := f.Drop(t.Context(), nil); err != nil || objects() != bare {
			t.Errorf("after %q: %v, %d of %d objects", half, err, objects(), bare)
		}
	}
	f.init()
	w.exec(`CREATE VIEW recent AS SELECT * FROM events_complete`)
	if err := f.Drop(t.Context(), nil); !errors.Is(err, userdb.ErrSetup) || !strings.Contains(err.Error(), "drop what uses it first") {
		t.Errorf("below another view: %v", err)
	}
	w.exec(`DROP VIEW recent`)
	fatal.If(t, f.Drop(t.Context(), nil))
	w.exec(`CREATE TABLE events_fence (note text)`)
	if err := f.Drop(t.Context(), nil); !errors.Is(err, userdb.ErrSetup) {
		t.Errorf("another table of that name: %v", err)
	}
}

// A mover that dies between its steps leaves a fence that the next one moves.
func deadMover(t *testing.T, e env) {
	f := e.fenced(t, plain)
	w := f.session()
	w.exec(`BEGIN; INSERT INTO events VALUES (5)`)
	if _, err := f.Raise(t.Context(), "dead", at(10)); err != nil {
		t.Fatal(err)
	}
	_, err := f.Raise(t.Context(), "test", at(11))
	if !errors.Is(err, ErrOtherMover) || !strings.Contains(err.Error(), "dead") {
		t.Errorf("another one moves the fence: %v", err)
	}
	f.complete()
	w.refused(`INSERT INTO events VALUES (6)`)
	w.exec(`ROLLBACK`)
	// A time of the future, which a clock that was ahead has left, keeps nobody away for longer.
	f.session().exec(`UPDATE events_fence SET floor_at = clock_timestamp() + interval '1 h'`)
	if _, err := f.Raise(t.Context(), "test", at(10)); err != nil {
		t.Errorf("beside a mover of the future: %v", err)
	}
	f.session().exec(`UPDATE events_fence SET floor_at = clock_timestamp() - interval '16 s', mover = 'dead'`)
	w.exec(`BEGIN; INSERT INTO events VALUES (12)`)
	// A lower mark than the dead one's: what it left is in place and is published.
	m := f.begin(9)
	m.waits(1)
	w.exec(`COMMIT`)
	m.end()
	var end int64
	if end = w.read(`SELECT readable FROM events_fence`)[0]; end != 10 {
		t.Errorf("the view ends at %d", end)
	}
	fatal.If(t, f.Leave(t.Context(), "test"))
	if _, err := f.Raise(t.Context(), "next", at(20)); err != nil {
		t.Errorf("after a mover left: %v", err)
	}
	fatal.If(t, f.Leave(t.Context(), "next"))
	marks := make(counting, 1)
	marks <- 1
	movers := NewMovers(Config{
		Tables:   []*Table{f.Table},
		Source:   marks,
		Interval: time.Millisecond,
		Name:     "running",
		Log:      slog.New(slog.DiscardHandler),
	})
	stop := running(t, movers)
	moved := false
	wait.Until(t, "it moves", func() bool {
		movers.Stats(func(_ *Table, s Stats) { moved = s.Moves > 0 })
		return moved
	})
	stop()
	if _, err := f.Raise(t.Context(), "next", at(30)); err != nil {
		t.Errorf("after a mover was stopped: %v", err)
	}
}

// Two movers that do not know of each other never lower the floor.
func twoMovers(t *testing.T, e env) {
	f := e.fenced(t, plain)
	ctx, stop := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	for n := range int64(2) {
		go func() {
			var err error
			for id := n * 7; id < 1000 && err == nil; id += 2 + n {
				var floor Floor
				if floor, err = f.Raise(t.Context(), "test", at(id)); err == nil && floor.value < id {
					err = fmt.Errorf("raised to %d, and the floor is %+v", id, floor)
				}
				if err == nil {
					err = f.Publish(t.Context(), floor)
				}
			}
			errs <- err
		}()
	}
	go func() {
		for range 2 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		stop()
	}()
	w, last, lastEnd := f.session(), int64(0), int64(0)
	for ctx.Err() == nil {
		floor, end := w.read(`SELECT last_value FROM events_fence_floor`)[0], w.read(`SELECT readable FROM events_fence`)[0]
		if floor < last || end < lastEnd {
			t.Fatalf("the floor went from %d to %d, the end of the view from %d to %d", last, floor, lastEnd, end)
		}
		last, lastEnd = floor, end
	}
}

// A mover that is stopped in a transaction keeps other movers, and no writer or reader.
func stoppedMover(t *testing.T, e env) {
	f := e.fenced(t, plain)
	stopped, w := f.session(), f.session()
	stopped.exec(`BEGIN; SELECT FROM events_fence FOR UPDATE; SELECT setval('events_fence_floor', 10)`)
	w.exec(`INSERT INTO events VALUES (10)`)
	w.refused(`INSERT INTO events VALUES (9)`)
	f.complete()
	if _, err := f.Raise(t.Context(), "test", at(20)); userdb.Code(err) != "55P03" {
		t.Errorf("another mover: %v", err)
	}
	stopped.exec(`ROLLBACK`) // The floor stays.
	w.refused(`INSERT INTO events VALUES (9)`)
	f.moveTo(20)
	f.complete(10)
}

// Init waits for a mover that is raising the floor, and so lowers nothing.
func initBesideMover(t *testing.T, e env) {
	f := e.fenced(t, plain)
	f.moveTo(20)
	moving, w := f.session(), f.session()
	moving.exec(`BEGIN; SELECT FROM events_fence FOR UPDATE; SELECT setval('events_fence_floor', 10)`)
	waited := false
	err := f.Init(t.Context(), "", flake.Default, func([]Holder) {
		if waited {
			return
		}
		waited = true
		if floor := w.read(`SELECT last_value FROM events_fence_floor`)[0]; floor != 10 {
			t.Errorf("beside a mover init set the floor to %d", floor)
		}
		moving.exec(`ROLLBACK`)
	})
	if floor := w.read(`SELECT last_value FROM events_fence_floor`)[0]; err != nil || !waited || floor != 20 {
		t.Errorf("init waited: %v; the floor is %d, %v", waited, floor, err)
	}
}

// A mark that is far ahead is not followed: it could never be taken back.
func marks(t *testing.T, e env) {
	f := e.fenced(t, plain)
	now := time.Now()
	if _, err := f.Raise(t.Context(), "test", Mark{UnixMs: now.Add(time.Hour).UnixMilli(), ID: 1 << 60}); !errors.Is(err, ErrAhead) {
		t.Errorf("a mark of the next hour: %v", err)
	}
	f.session().exec(`INSERT INTO events VALUES (5)`)
	if _, err := f.Raise(t.Context(), "test", Mark{UnixMs: now.UnixMilli(), ID: 1, BlockedBy: []string{"node-2", "node-3"}}); err != nil {
		t.Error(err)
	}
	if s, err := f.Status(t.Context()); err != nil || s.MarkBlockedBy != "node-2; node-3" {
		t.Errorf("status %+v, %v", s, err)
	}
}

// Init does not make writers wait for long behind a transaction that it waits for itself.
func initUnderLoad(t *testing.T, e env) {
	f := e.bare(t, plain)
	table, err := f.db.Table(t.Context(), "events", "id")
	fatal.If(t, err)
	w, other := f.session(), f.session()
	w.exec(`BEGIN; INSERT INTO events VALUES (5)`)
	tries := 0
	err = table.Init(t.Context(), "", flake.Default, func(holders []Holder) {
		if tries++; len(holders) != 1 {
			t.Errorf("waits for %v", holders)
		}
		other.exec(`INSERT INTO events VALUES ($1)`, 10+tries)
		if tries == 2 {
			w.exec(`COMMIT`)
		}
	})
	if err != nil || tries != 2 {
		t.Fatalf("%d tries, %v", tries, err)
	}
	f.Table = table
	f.moveTo(10)
	f.complete(5)
}

func status(t *testing.T, e env) {
	f := e.fenced(t, plain)
	if s, err := f.Status(t.Context()); err != nil || s.ReadableAt != nil || s.Mover != "" {
		t.Errorf("before the first move: %+v, %v", s, err)
	}
	w, later := f.session(), f.session()
	w.exec(`SET application_name = 'importer'; BEGIN; INSERT INTO events VALUES (5)`)
	m := f.begin(10)
	m.waits(1)
	later.exec(`BEGIN; INSERT INTO events VALUES (11)`)
	s, err := f.Status(t.Context())
	if err != nil || len(s.BlockedBy) != 1 || s.FloorUnixMs != 10 || s.ReadableUnixMs != 0 || s.LagMs < 1e12 {
		t.Fatalf("status %+v, %v", s, err)
	}
	h := s.BlockedBy[0]
	if h.PID != int(w.PgConn().PID()) || h.State != "idle in transaction" || h.Application != "importer" || h.Since == nil || h.QuerySince == nil {
		t.Errorf("the holder is %+v", h)
	}
	w.exec(`PREPARE TRANSACTION 'after the floor was raised'`)
	m.waits(1)
	s, err = f.Status(t.Context())
	if err != nil || len(s.BlockedBy) != 1 || s.BlockedBy[0].Prepared != "after the floor was raised" {
		t.Errorf("status of a transaction that was prepared meanwhile: %+v, %v", s, err)
	}
	w.exec(`COMMIT PREPARED 'after the floor was raised'`)
	m.end()
	if s, err = f.Status(t.Context()); err != nil || len(s.BlockedBy) != 0 || s.Readable != "10" || s.ReadableLSN == "" || s.Mover != "test" {
		t.Errorf("status %+v, %v", s, err)
	}
	w.exec(`BEGIN; INSERT INTO events VALUES (12)`)
	w.exec(`PREPARE TRANSACTION 'after the view has reached the floor'`)
	if s, err = f.Status(t.Context()); err != nil || len(s.BlockedBy) != 0 {
		t.Errorf("nothing is waited for: %+v, %v", s, err)
	}
	w.exec(`COMMIT PREPARED 'after the view has reached the floor'`)
	// A mover whose mark is behind lowers neither the floor nor its time, which the view of wide IDs is restored from.
	if low, err := f.Raise(t.Context(), "test", Mark{UnixMs: 5, ID: 5}); err != nil || low.UnixMs != 10 || low.value != 10 {
		t.Errorf("a lower mark gives the floor %+v, %v", low, err)
	}
}

// The role of a mover can move the fence and nothing else.
func rights(t *testing.T, e env) {
	f := e.fenced(t, plain)
	f.session().exec(`CREATE ROLE mover LOGIN; CREATE ROLE writer LOGIN; CREATE ROLE reader LOGIN`)
	as := func(role string) string { return strings.Replace(f.url, "//test@", "//"+role+"@", 1) }
	db := open(t, as("mover"))
	if _, err := db.Table(t.Context(), "events", "id"); !errors.Is(err, userdb.ErrSetup) {
		t.Errorf("a role without rights: %v", err)
	}
	f.session().exec(`GRANT USAGE ON SCHEMA ` + strings.Split(f.String(), ".")[0] + ` TO mover, writer, reader`)
	table, err := db.Table(t.Context(), "events", "id")
	fatal.If(t, err)
	if _, err := table.Raise(t.Context(), "test", at(1)); !errors.Is(err, userdb.ErrSetup) || !strings.Contains(err.Error(), "--role") {
		t.Errorf("a role without rights: %v", err)
	}
	if err := table.Init(t.Context(), "", flake.Default, nil); !errors.Is(err, userdb.ErrSetup) {
		t.Errorf("init by another one than the owner: %v", err)
	}
	if err := f.Init(t.Context(), "nobody", flake.Default, nil); !errors.Is(err, userdb.ErrSetup) {
		t.Errorf("init for a role that does not exist: %v", err)
	}
	fatal.If(t, f.Init(t.Context(), "mover", flake.Default, nil))
	f.session().exec(`GRANT INSERT ON events TO writer; GRANT SELECT ON events_complete TO reader`)
	w := connect(t, as("writer"))
	w.exec(`BEGIN; INSERT INTO events VALUES (5)`)
	m := (&fixture{T: t, Table: table, url: as("mover"), db: db}).begin(10)
	m.waits(1)
	w.exec(`COMMIT`)
	m.end()
	w.refused(`INSERT INTO events VALUES (6)`)
	if _, err := table.Raise(t.Context(), "test", markOf(flake.Default, time.Now())); err != nil {
		t.Fatal(err)
	}
	w.ahead("is no ID", `INSERT INTO events VALUES (1::bigint << 62)`)
	f.session().exec(`ALTER TABLE events DISABLE TRIGGER USER; INSERT INTO events VALUES (1::bigint << 62);
		ALTER TABLE events ENABLE ALWAYS TRIGGER events_fence_insert;
		ALTER TABLE events ENABLE ALWAYS TRIGGER events_fence_update`)
	// It may read the IDs, to look for those of the future.
	if s, err := table.Status(t.Context()); err != nil || len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "1 row ahead") {
		t.Errorf("%q, %v", s.Problems, err)
	}
	f.session().exec(`DELETE FROM events WHERE id = 1::bigint << 62`)
	if got := connect(t, as("reader")).read(`SELECT id FROM events_complete`); len(got) != 1 {
		t.Errorf("the reader has %v", got)
	}
	for role, sql := range map[string][]string{
		"mover":  {`SELECT note FROM events`, `SELECT FROM events_complete`, `INSERT INTO events VALUES (20)`, `DELETE FROM events_fence`},
		"writer": {`SELECT setval('events_fence_floor', 100)`, `UPDATE events_fence SET readable = 100`, `SELECT FROM events_complete`},
		"reader": {`SELECT FROM events`, `SELECT FROM events_fence`},
	} {
		for _, sql := range sql {
			if _, err := connect(t, as(role)).Exec(t.Context(), sql); userdb.Code(err) != "42501" {
				t.Errorf("%s as %s: %v", sql, role, err)
			}
		}
	}
}

func wrongTables(t *testing.T, e env) {
	f := e.bare(t, `
CREATE TABLE ints (id int PRIMARY KEY);
CREATE TABLE texts (key text PRIMARY KEY);
CREATE TABLE nulls (id bigint);
CREATE TABLE keyless (id bigint NOT NULL, k int PRIMARY KEY); CREATE INDEX ON keyless (k, id);
CREATE TABLE serial (id bigserial PRIMARY KEY);
CREATE TABLE random (id uuid PRIMARY KEY DEFAULT gen_random_uuid());
CREATE TABLE ahead (id uuid PRIMARY KEY); INSERT INTO ahead VALUES ('f47ac10b-58cc-4372-a567-0e02b2c3d479');
CREATE TABLE later (id bigint PRIMARY KEY); INSERT INTO later VALUES (2124454377811877890);
CREATE TABLE identity (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);
CREATE TABLE secured (id bigint PRIMARY KEY); ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
CREATE VIEW view AS SELECT * FROM ints;
CREATE TABLE taken (id bigint PRIMARY KEY); CREATE TABLE taken_fence (x int);
CREATE TABLE called (id bigint PRIMARY KEY);
CREATE FUNCTION called_fence_refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END';
CREATE TABLE a234567890123456789012345678901234567890123456789_ (id bigint PRIMARY KEY);
CREATE TABLE "Größe ""x""" ("Ü" bigint PRIMARY KEY);
CREATE FOREIGN DATA WRAPPER elsewhere; CREATE SERVER elsewhere FOREIGN DATA WRAPPER elsewhere;
CREATE TABLE spread (id bigint NOT NULL) PARTITION BY RANGE (id); CREATE INDEX ON ONLY spread (id);
CREATE FOREIGN TABLE far PARTITION OF spread FOR VALUES FROM (0) TO (10) SERVER elsewhere;
`)
	for name, want := range map[string]string{
		"nothing": "no table", "x.y.z.w": "", `"`: "no name of a table", "ints": "is integer", "texts": `one of key`,
		"nulls": "SET NOT NULL", "keyless": "CREATE UNIQUE INDEX", "serial": "sequence", "identity": "sequence", "random": "DROP DEFAULT", "ahead": "of 10488-", "later": "than scalable, name it with --layout", "secured": "row security", "view": "is no table",
		"taken": "taken_fence", "called": "called_fence_refuse", "a234567890123456789012345678901234567890123456789_": "",
		"spread": "another database",
	} {
		table, err := f.db.Table(t.Context(), name, "id")
		if err == nil {
			err = table.Init(t.Context(), "", flake.Default, nil)
		}
		if name[0] == 'a' && err == nil {
			continue // the longest name
		}
		if !errors.Is(err, userdb.ErrSetup) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	table, err := f.db.Table(t.Context(), `"Größe ""x"""`, "Ü")
	if err == nil {
		err = table.Init(t.Context(), "", flake.Default, nil)
	}
	if err != nil {
		t.Errorf("a name with quotes: %v", err)
	}
	if _, err := Open("postgres://test:secret@127.0.0.1/x?sslmode=perhaps"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a wrong URL: %v", err)
	}
	if _, err := open(t, "postgres://test@/postgres?host=/nowhere").Table(t.Context(), "x", "id"); err == nil || errors.Is(err, userdb.ErrSetup) {
		t.Errorf("no server: %v", err)
	}
}

// What a standby has replayed is as sound as on the primary, and is moved there alone.
func TestStandby(t *testing.T) {
	s := server(t)
	e := env{s.URL(), open(t, s.URL())}
	f := e.fenced(t, plain)
	w := f.session()
	w.exec(`INSERT INTO events VALUES (5), (15)`)
	f.moveTo(10)
	st, err := f.Status(t.Context())
	fatal.If(t, err)
	behind := s.Standby(t)
	_, err = open(t, behind.URL()).Table(t.Context(), f.String(), "id")
	if !errors.Is(err, userdb.ErrSetup) || !strings.Contains(err.Error(), "standby") {
		t.Errorf("a standby: %v", err)
	}
	r := connect(t, behind.URL())
	past := func(lsn string) bool {
		return r.read(fmt.Sprintf(`SELECT (pg_last_wal_replay_lsn() >= '%s')::int`, lsn))[0] == 1
	}
	wait.Until(t, "the standby is past the LSN", func() bool { return past(st.ReadableLSN) })
	view := `SELECT id FROM ` + f.View() + ` ORDER BY id`
	wait.Until(t, "the view has its rows", func() bool { return len(r.read(view)) == 1 })

	// A standby that is paused lacks the rows, and its view ends before them.
	r.exec(`SELECT pg_wal_replay_pause()`)
	wait.Until(t, "replay is paused", func() bool {
		return r.read(`SELECT (pg_get_wal_replay_pause_state() = 'paused')::int`)[0] == 1
	})
	w.exec(`INSERT INTO events VALUES (16)`)
	f.moveTo(20)
	if st, err = f.Status(t.Context()); err != nil || past(st.ReadableLSN) {
		t.Errorf("a standby that is paused is past %s, %v", st.ReadableLSN, err)
	}
	if got := r.read(view); len(got) != 1 {
		t.Errorf("the view of the standby has %v", got)
	}
	r.exec(`SELECT pg_wal_replay_resume()`)
	wait.Until(t, "the standby goes on", func() bool { return past(st.ReadableLSN) })
	if n := len(r.read(fmt.Sprintf(`SELECT id FROM %s WHERE id < %s`, f, st.Readable))); n != 3 {
		t.Errorf("past the LSN the standby has %d of 3 rows", n)
	}
	wait.Until(t, "its view follows", func() bool { return len(r.read(view)) == 3 })
}

// TestFailover: a mover that was stopped in a move goes on with a server that took over, and that the
// raise had not reached. It moves no end of a view there before it has raised the floor.
func TestFailover(t *testing.T) {
	s := server(t)
	e := env{s.URL(), open(t, s.URL())}
	f := e.fenced(t, plain)
	f.session().exec(`INSERT INTO events VALUES (5)`)
	f.moveTo(10)
	lsn := f.session().read(`SELECT pg_current_wal_lsn() - '0/0'`)[0]
	next := s.Standby(t)
	r := connect(t, next.URL())
	wait.Until(t, "the standby has the first move", func() bool {
		return r.read(`SELECT pg_last_wal_replay_lsn() - '0/0'`)[0] >= lsn
	})
	r.exec(`ALTER SYSTEM SET primary_conninfo = ''`)
	r.exec(`SELECT pg_reload_conf()`)
	wait.Until(t, "the standby receives nothing", func() bool {
		return r.read(`SELECT count(*) FROM pg_stat_wal_receiver`)[0] == 0
	})

	floor, err := f.Raise(t.Context(), "test", at(20))
	if err == nil {
		err = f.Wait(t.Context(), floor, func([]Holder) {})
	}
	fatal.If(t, err)
	r.exec(`SELECT pg_promote()`)
	f.url = strings.Replace(f.url, s.Dir, next.Dir, 1)
	f.Table.db = open(t, f.url) // A pool with two hosts, an address that moves, and PgBouncer do that.
	if err := f.Wait(t.Context(), floor, func([]Holder) {}); !errors.Is(err, ErrOtherServer) {
		t.Errorf("locks of another server: %v", err)
	}
	if err := f.Publish(t.Context(), floor); !errors.Is(err, ErrOtherServer) {
		t.Errorf("a floor that is not there: %v", err)
	}
	if end := f.session().read(`SELECT readable FROM events_fence`)[0]; end != 10 {
		t.Errorf("the view ends at %d, and the floor is 10", end)
	}
	f.session().exec(`INSERT INTO events VALUES (15)`)
	f.moveTo(20)
	f.complete(5, 15)
	f.session().refused(`INSERT INTO events VALUES (16)`)
}

// TestSynchronousStandby: a commit that waits for a synchronous standby is not visible, and is
// waited for, also by a mover that does not wait for standbys itself.
func TestSynchronousStandby(t *testing.T) {
	s := server(t)
	e := env{s.URL(), open(t, s.URL())}
	f := e.fenced(t, plain)
	r := connect(t, s.Standby(t).URL())
	receiver := int64(0)
	wait.Until(t, "the standby receives", func() bool {
		pids := r.read(`SELECT pid FROM pg_stat_wal_receiver WHERE status = 'streaming'`)
		if len(pids) == 1 {
			receiver = pids[0]
		}
		return receiver != 0
	})
	w, look := f.session(), f.session()
	look.exec(`ALTER SYSTEM SET synchronous_standby_names = '*'`)
	look.exec(`SELECT pg_reload_conf()`)
	wait.Until(t, "the standby is synchronous", func() bool {
		return look.read(`SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'`)[0] == 1
	})
	look.exec(`CHECKPOINT`) // Commits wait from when the checkpointer has read its settings, which it does first.
	fatal.If(t, syscall.Kill(int(receiver), syscall.SIGSTOP))
	resume := func() { _ = syscall.Kill(int(receiver), syscall.SIGCONT) }
	t.Cleanup(resume)
	w.exec(`BEGIN; INSERT INTO events VALUES (5)`)
	committed := make(chan error, 1)
	go func() {
		_, err := w.Exec(t.Context(), `COMMIT`)
		committed <- err
	}()
	wait.Until(t, "the commit waits for the standby", func() bool {
		return look.read(`SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)[0] == 1
	})
	f.Table.db = open(t, f.url+"&synchronous_commit=local")
	m := f.begin(10)
	m.waits(1)
	f.complete()
	if n := look.read(`SELECT count(*) FROM events`)[0]; n != 0 {
		t.Errorf("%d rows are visible", n)
	}
	resume()
	fatal.If(t, <-committed)
	m.end()
	f.complete(5)
}

// TestCrash: what readers have passed stays refused after the server crashed, also where commits
// do not wait for the disk. The end of the view may go back; the floor may not.
func TestCrash(t *testing.T) {
	tier.Check(t, "a PostgreSQL server")
	s := postgres.Start(t, "synchronous_commit=off", "wal_writer_delay=10000", "autovacuum=off")
	e := env{s.URL(), open(t, s.URL())}
	f := e.fenced(t, plain)
	f.session().exec(`CHECKPOINT`)
	f.session().exec(`INSERT INTO events VALUES (5)`)
	f.moveTo(10)
	f.complete(5)
	victim := f.session()
	fatal.If(t, syscall.Kill(int(victim.PgConn().PID()), syscall.SIGKILL))
	wait.Until(t, "the server is back", func() bool {
		c, err := pgx.Connect(t.Context(), f.url)
		if err != nil {
			return false
		}
		defer func() { _ = c.Close(t.Context()) }()
		_, err = c.Exec(t.Context(), `INSERT INTO events VALUES (9)`)
		if err == nil {
			t.Fatal("after the crash a row is accepted that readers have passed")
		}
		return userdb.Code(err) == Refused
	})
}
