package fence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/userdb"
)

const lookupSQL = `
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relrowsecurity
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1)`

const columnsSQL = `
SELECT a.attname, format_type(a.atttypid, -1), a.attnotnull,
       CASE WHEN a.attidentity <> '' THEN 'identity'
            WHEN pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%' THEN 'sequence'
            WHEN pg_get_expr(d.adbin, d.adrelid) ~ '(gen_random_uuid|uuid_generate_v[1-5]|uuidv4)' THEN 'random'
            ELSE '' END,
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisvalid AND i.indkey[0] = a.attnum)
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`

// tree is the table with its partitions and children, of all levels.
const tree = `
WITH RECURSIVE tree(oid) AS (
  SELECT $1::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.oid)`

// unfencedSQL lists the tables of the tree that lack a trigger of the fence, each with the
// one to make it on: partitions have the triggers of the table they belong to, also those to
// come. Foreign tables are always listed: their triggers see no transaction of the other database.
// $2 is the function of the triggers, $4 the column that they have to read. The catalog knows that of
// the trigger that was made, and not of the copies on partitions. 'A' is ENABLE ALWAYS: it fires in
// sessions that apply the changes of another database too.
const unfencedSQL = tree + `
SELECT format('%I.%I', n.nspname, c.relname),
       CASE WHEN c.relispartition THEN $3 ELSE format('%I.%I', n.nspname, c.relname) END, c.relkind = 'f'
FROM tree JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'f' OR 2 > (
  SELECT count(*) FROM pg_trigger g
  WHERE g.tgrelid = c.oid AND g.tgfoid = to_regprocedure($2) AND g.tgenabled = 'A' AND EXISTS (
    WITH RECURSIVE made(oid, parent, relid) AS (
      SELECT g.oid, g.tgparentid, g.tgrelid
      UNION SELECT p.oid, p.tgparentid, p.tgrelid FROM made JOIN pg_trigger p ON p.oid = made.parent)
    SELECT FROM made JOIN pg_attribute a ON a.attrelid = made.relid AND a.attname = $4
    JOIN pg_depend d ON d.classid = 'pg_trigger'::regclass AND d.objid = made.oid
      AND d.refclassid = 'pg_class'::regclass AND d.refobjid = made.relid AND d.refobjsubid = a.attnum
    WHERE made.parent = 0))
ORDER BY c.oid <> $1, 1`

// bare is a table without the triggers. Its names are SQL.
type bare struct {
	name    string
	made    string // the table to make them on
	foreign bool
}

func (t *Table) unfenced(ctx context.Context) ([]bare, error) {
	rows, err := t.db.Pool.Query(ctx, unfencedSQL, t.oid, t.ident(refuseSuffix)+"()", t.ident(""), t.column)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (b bare, err error) {
		return b, row.Scan(&b.name, &b.made, &b.foreign)
	})
}

// why says what lets rows pass the fence of t, and what to do.
func (b bare) why(t *Table) string {
	if b.foreign {
		return fmt.Sprintf("%s, which belongs to %s, is in another database, whose transactions are not seen here: "+
			"detach it", b.name, t)
	}
	return fmt.Sprintf(`%s has no triggers on column %s, or they are disabled: run "allocator fence init" again`,
		b.name, t.column)
}

// holdersSQL lists the transactions with a lock that writers have. Those that attach a
// partition have a weaker one on the table it belongs to, as has VACUUM on tables with rows.
// A transaction that was prepared has no process; others may be seen without their state.
// The first column is the server, also where there is no such transaction.
const holdersSQL = tree + `, holders AS (
SELECT DISTINCT l.virtualtransaction, l.pid, p.gid, coalesce(a.usename, p.owner) AS role, a.application_name, a.state,
       coalesce(a.xact_start, p.prepared) AS since, a.query_start
FROM pg_locks l JOIN tree ON tree.oid = l.relation JOIN pg_class c ON c.oid = l.relation
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN (pg_locks x JOIN pg_prepared_xacts p ON p.transaction = x.transactionid AND x.pid IS NULL)
  ON l.pid IS NULL AND x.virtualtransaction = l.virtualtransaction
WHERE l.locktype = 'relation' AND l.granted
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
       OR l.mode = 'ShareUpdateExclusiveLock' AND c.relkind = 'p'))
SELECT ` + serverSQL + `, coalesce(virtualtransaction, ''), coalesce(pid, 0), coalesce(gid, ''),
       coalesce(role, '')::text, coalesce(application_name, ''), coalesce(state, ''), since, query_start
FROM (SELECT) one LEFT JOIN holders ON true ORDER BY since NULLS FIRST, virtualtransaction`

// owner begins the comment of what belongs to fences.
const owner = "Fence of allocator"

// check returns an error if something else than a part of a fence has the name of one, and says whether
// there is a part.
func (t *Table) check(ctx context.Context) (there bool, err error) {
	for _, o := range []struct{ find, catalog, name string }{
		{"to_regclass", "pg_class", t.ident(floorSuffix)},
		{"to_regclass", "pg_class", t.ident(limitSuffix)},
		{"to_regclass", "pg_class", t.ident(fenceSuffix)},
		{"to_regclass", "pg_class", t.ident(viewSuffix)},
		{"to_regprocedure", "pg_proc", t.ident(lateSuffix) + "(bigint)"},
		{"to_regprocedure", "pg_proc", t.ident(lateSuffix) + "(uuid)"},
		{"to_regprocedure", "pg_proc", t.ident(refuseSuffix) + "()"},
	} {
		var exists, ours bool
		err := t.db.Pool.QueryRow(ctx, fmt.Sprintf(`SELECT %[1]s($1) IS NOT NULL,
			starts_with(coalesce(obj_description(%[1]s($1), '%[2]s'), ''), $2)`, o.find, o.catalog), o.name, owner).
			Scan(&exists, &ours)
		if err != nil {
			return there, err
		}
		if exists && !ours {
			return there, userdb.Setup("there is another %s already, which is no part of a fence: rename it", o.name)
		}
		there = there || exists
	}
	return there, nil
}

// SQL returns the statements that make a fence, or what is missing of it. role, unless it is
// "", is granted what a mover needs. Integer IDs of rows are taken for those of space, unless a
// mover has said of which space they are.
func (t *Table) SQL(ctx context.Context, role string, space flake.Format) ([]string, error) {
	if _, err := t.check(ctx); err != nil {
		return nil, err
	}
	times, known, err := t.times(ctx)
	if userdb.Code(err) == "42P01" || userdb.Code(err) == "42501" {
		err = nil // There is no fence yet, or it is another one's, which its statements say.
	}
	if !known {
		times = line{ms: space.Epoch, perDay: PerDay(space)}
	}
	if err != nil {
		return nil, err
	}
	ahead, err := t.ahead(ctx, times, defaultAhead)
	if err == nil && ahead.Rows > 0 {
		what := ahead.of(t)
		if !t.wide && !known {
			what += "; if they have another layout or epoch than " + space.String() + ", name it with --layout"
		}
		err = userdb.Setup("%s", what)
	}
	if err != nil {
		return nil, err
	}
	unfenced, err := t.unfenced(ctx)
	if err != nil {
		return nil, err
	}
	triggers, err := t.triggersSQL(unfenced)
	return slices.Concat(t.objectsSQL(), triggers, t.grantsSQL(role)), err
}

// DropSQL returns the statements that take away what there is of a fence, none if there is nothing. It
// returns ErrOtherMover while a mover works.
func (t *Table) DropSQL(ctx context.Context) ([]string, error) {
	there, err := t.check(ctx)
	if err != nil || !there {
		return nil, err
	}
	var by string
	err = t.db.Pool.QueryRow(ctx, `SELECT mover FROM `+t.ident(fenceSuffix)+` WHERE mover <> ''
		AND floor_at BETWEEN clock_timestamp() - $1::interval AND clock_timestamp()`, mover).Scan(&by)
	switch {
	case err == nil:
		return nil, fmt.Errorf("the fence of %s is in use: %w: stop %s first", t, ErrOtherMover, by)
	case !errors.Is(err, pgx.ErrNoRows) && userdb.Code(err) != "42P01":
		return nil, t.known(err)
	}
	return []string{
		`DROP VIEW IF EXISTS ` + t.ident(viewSuffix),
		`DROP FUNCTION IF EXISTS ` + t.ident(refuseSuffix) + `() CASCADE`, // with the triggers
		`DROP FUNCTION IF EXISTS ` + t.ident(lateSuffix) + `(bigint)`,
		`DROP FUNCTION IF EXISTS ` + t.ident(lateSuffix) + `(uuid)`,
		`DROP TABLE IF EXISTS ` + t.ident(fenceSuffix),
		`DROP SEQUENCE IF EXISTS ` + t.ident(limitSuffix),
		`DROP SEQUENCE IF EXISTS ` + t.ident(floorSuffix),
	}, nil
}

// idType returns the SQL type of the IDs.
func (t *Table) idType() string {
	if t.wide {
		return "uuid"
	}
	return "bigint"
}

// late returns the name of the function that says whether an ID is below the floor.
func (t *Table) late() string { return t.ident(lateSuffix) + "(" + t.idType() + ")" }

// literal returns the name of a part of the fence as a constant of SQL.
func (t *Table) literal(suffix string) string {
	return "'" + strings.ReplaceAll(t.ident(suffix), "'", "''") + "'::pg_catalog.regclass"
}

// objectsSQL returns what makes the floor, the limit, their functions and the view.
func (t *Table) objectsSQL() []string {
	least, perDay, value := "0", int64(0), "NEW.%s"
	last := func(suffix string) string {
		return "pg_catalog.pg_sequence_last_value(" + t.literal(suffix) + ")"
	}
	floor, limit := last(floorSuffix), last(limitSuffix)
	if t.wide {
		least, perDay, value = "'00000000-0000-0000-0000-000000000000'", dayMs, wideMs("NEW.%s")
		uuid := `pg_catalog.rpad(pg_catalog.lpad(pg_catalog.to_hex(%s), 12, '0'), 32, '0')::pg_catalog.uuid`
		floor, limit = fmt.Sprintf(uuid, floor), fmt.Sprintf(uuid, limit)
	}
	column := pgx.Identifier{t.column}.Sanitize()
	columns := make([]string, len(t.columns))
	for i, c := range t.columns {
		columns[i] = pgx.Identifier{c}.Sanitize()
	}
	of := "'" + strings.ReplaceAll(fmt.Sprintf("%s on %s.", owner, t), "'", "''") + "'"
	return []string{
		fmt.Sprintf(`CREATE SEQUENCE IF NOT EXISTS %s MINVALUE 0 START 0`, t.ident(floorSuffix)),
		fmt.Sprintf(`COMMENT ON SEQUENCE %s IS %s`, t.ident(floorSuffix), of),
		fmt.Sprintf(`CREATE SEQUENCE IF NOT EXISTS %s MINVALUE 0 START 0`, t.ident(limitSuffix)),
		fmt.Sprintf(`COMMENT ON SEQUENCE %s IS %s`, t.ident(limitSuffix), of),
		fmt.Sprintf(`CREATE TABLE IF NOT EXISTS %s (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  readable %s NOT NULL DEFAULT %s,
  readable_ms bigint NOT NULL DEFAULT 0,
  readable_lsn pg_lsn,
  readable_at timestamptz,
  floor_ms bigint NOT NULL DEFAULT 0,
  floor_at timestamptz,
  ids_per_day bigint NOT NULL DEFAULT %d,
  ahead_ms bigint NOT NULL DEFAULT %d,
  mover text NOT NULL DEFAULT '',
  mark_blocked_by text NOT NULL DEFAULT ''
) WITH (fillfactor = 20)`, t.ident(fenceSuffix), t.idType(), least, perDay, defaultAhead.Milliseconds()),
		fmt.Sprintf(`COMMENT ON TABLE %s IS %s`, t.ident(fenceSuffix), of),
		fmt.Sprintf(`INSERT INTO %s DEFAULT VALUES ON CONFLICT DO NOTHING`, t.ident(fenceSuffix)),
		// Movers raise the floor under this lock: nobody lowers what one has raised meanwhile.
		fmt.Sprintf(`SELECT FROM %s FOR UPDATE`, t.ident(fenceSuffix)),
		// Logical replication and some dumps bring rows to another server, and no sequences.
		fmt.Sprintf(`SELECT setval(%s, greatest(s.last_value, %s)) FROM %s s, %s f`,
			t.literal(floorSuffix), t.readableSQL(), t.ident(floorSuffix), t.ident(fenceSuffix)),
		t.limitSQL(),
		fmt.Sprintf(`CREATE OR REPLACE FUNCTION %s(id %s) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $fence$
BEGIN
  -- A sequence shows its present value to every snapshot. No query is run: that would cost much more.
  RETURN id OPERATOR(pg_catalog.<) %s
    OR id OPERATOR(pg_catalog.>=) %s;
END $fence$`, t.ident(lateSuffix), t.idType(), floor, limit),
		fmt.Sprintf(`COMMENT ON FUNCTION %s IS %s`, t.late(), of),
		fmt.Sprintf(`GRANT EXECUTE ON FUNCTION %s TO PUBLIC`, t.late()),
		fmt.Sprintf(`CREATE OR REPLACE FUNCTION %s() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fence$
DECLARE
  now_ms bigint := extract(epoch FROM clock_timestamp()) * 1000;
  id_ms numeric;
  most bigint;
BEGIN
  IF NEW.%[2]s < %[3]s THEN
    RAISE EXCEPTION 'row refused: ID %% in %% is below the fence, and readers may have passed it', NEW.%[2]s,
        TG_TABLE_NAME
      USING ERRCODE = '%[4]s', HINT = 'Draw a new ID and run the transaction again.', TABLE = TG_TABLE_NAME;
  END IF;
  SELECT floor_ms + (%[5]s::numeric - last_value) * %[6]d / ids_per_day, ahead_ms INTO id_ms, most
  FROM %[7]s, %[8]s;
  IF id_ms <= now_ms + most THEN -- The limit was not moved for some time.
    RETURN NULL;
  END IF;
  RAISE EXCEPTION 'row refused: ID %% in %% is of %%, and no reader would get it before', NEW.%[2]s, TG_TABLE_NAME,
      to_char(to_timestamp(least(id_ms, 8e15) / 1000) AT TIME ZONE 'UTC', 'FMYYYY-MM-DD')
    USING ERRCODE = '%[9]s', HINT = 'It is probably ' || %[10]s || '.', TABLE = TG_TABLE_NAME;
END $fence$`, t.ident(refuseSuffix), column, floor, Refused, fmt.Sprintf(value, column), dayMs, t.ident(fenceSuffix),
			t.ident(floorSuffix), RefusedAhead, t.probablySQL(column)),
		fmt.Sprintf(`COMMENT ON FUNCTION %s() IS %s`, t.ident(refuseSuffix), of),
		fmt.Sprintf("CREATE OR REPLACE VIEW %s AS\nSELECT %s\nFROM %s WHERE %s < (SELECT readable FROM %s)",
			t.ident(viewSuffix), strings.Join(columns, ", "), t.ident(""), column, t.ident(fenceSuffix)),
		fmt.Sprintf(`COMMENT ON VIEW %s IS %s`, t.ident(viewSuffix), of),
	}
}

// limitSQL moves the limit to the right distance from the floor, if the distance is known.
func (t *Table) limitSQL() string {
	return fmt.Sprintf(`SELECT setval(%s,
  least(s.last_value + f.ahead_ms::numeric * f.ids_per_day / %d, 9223372036854775807)::bigint)
FROM %s s, %s f WHERE f.ids_per_day > 0`, t.literal(limitSuffix), dayMs, t.ident(floorSuffix), t.ident(fenceSuffix))
}

// probablySQL says what an ID of the future probably is.
func (t *Table) probablySQL(column string) string {
	if t.wide {
		return `CASE substr(NEW.` + column + `::text, 15, 1) WHEN '7' THEN 'of a clock that is ahead'
      ELSE 'a UUID of version ' || substr(NEW.` + column + `::text, 15, 1) || ', which does not begin with a time' END`
	}
	var layouts []string
	for _, name := range flake.Layouts() {
		if f, err := flake.ParseFormat(name); err == nil {
			l := f.Layout
			layouts = append(layouts, fmt.Sprintf("('%s', %d, %d, %d)", name, f.Epoch, l.Unit(), l.LowBits()))
		}
	}
	return fmt.Sprintf(`coalesce((SELECT 'an ID of layout ' || name
      FROM (VALUES %s) layout(name, epoch, unit, low)
      WHERE epoch + (NEW.%s >> low)::numeric * unit BETWEEN now_ms - %d AND now_ms + most LIMIT 1),
      CASE WHEN id_ms < now_ms + %[3]d THEN 'of a clock or an epoch that is wrong'
      ELSE 'an ID of another layout or epoch, or a number that is no ID' END)`,
		strings.Join(layouts, ", "), column, 366*dayMs)
}

// SQLSTATEs of rows that the trigger refuses.
const (
	Refused      = "AF001" // below the floor
	RefusedAhead = "AF002" // above the limit
)

// triggersSQL returns what makes the triggers of tables that lack them. AFTER sees IDs that
// other triggers have changed, and not the rows that ON CONFLICT leaves out; a condition
// that is false queues nothing.
func (t *Table) triggersSQL(unfenced []bare) (out []string, err error) {
	var tables []string
	for _, b := range unfenced {
		switch {
		case b.foreign:
			return nil, userdb.Setup("%s", b.why(t))
		case !slices.Contains(tables, b.made):
			tables = append(tables, b.made)
		}
	}
	column, late, refuse := pgx.Identifier{t.column}.Sanitize(), t.ident(lateSuffix), t.ident(refuseSuffix)
	for _, on := range tables {
		for _, g := range []struct{ suffix, event, when string }{
			{insertSuffix, "INSERT", fmt.Sprintf("%s(NEW.%s)", late, column)},
			{updateSuffix, "UPDATE", fmt.Sprintf("NEW.%[1]s <> OLD.%[1]s AND %[2]s(NEW.%[1]s)", column, late)},
		} {
			name := pgx.Identifier{t.name + g.suffix}.Sanitize()
			out = append(out,
				fmt.Sprintf("CREATE OR REPLACE TRIGGER %s AFTER %s ON %s\nFOR EACH ROW WHEN (%s) EXECUTE FUNCTION %s()",
					name, g.event, on, g.when, refuse),
				fmt.Sprintf(`ALTER TABLE %s ENABLE ALWAYS TRIGGER %s`, on, name))
		}
	}
	return out, nil
}

// grantsSQL returns what a role needs to move the fence.
func (t *Table) grantsSQL(role string) []string {
	if role == "" {
		return nil
	}
	to := pgx.Identifier{role}.Sanitize()
	return []string{
		fmt.Sprintf(`GRANT USAGE ON SCHEMA %s TO %s`, pgx.Identifier{t.schema}.Sanitize(), to),
		fmt.Sprintf(`GRANT SELECT, UPDATE ON TABLE %s TO %s`, t.ident(fenceSuffix), to),
		fmt.Sprintf(`GRANT SELECT, UPDATE ON SEQUENCE %s, %s TO %s`, t.ident(floorSuffix), t.ident(limitSuffix), to),
		// It looks for IDs of the future.
		fmt.Sprintf(`GRANT SELECT (%s) ON TABLE %s TO %s`, pgx.Identifier{t.column}.Sanitize(), t.ident(""), to),
	}
}
