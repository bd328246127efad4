package sqlid

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/sqlread"
)

// SQLSTATEs of the functions, for programs.
const (
	NoSlice  = "AS001" // Nothing was written since the server started, or this is a copy.
	Expired  = "AS002" // The runner has written nothing for too long.
	UsedUp   = "AS003" // The slice has no IDs left.
	Occupied = "AS010" // Another runner writes slices here.
	Below    = "AS011" // The slice begins below the end of the last one.
	Changed  = "AS012" // What the functions need was changed, or the schema makes other IDs.
)

// comment begins the comment of the schema, and names its version.
const comment = "IDs of allocator 1, layout "

// commentOf is the comment of a schema.
func commentOf(f flake.Format) string {
	return comment + f.Layout.String() + ", epoch " + time.UnixMilli(f.Epoch).UTC().Format(time.RFC3339Nano)
}

// serverSQL is what a slice is bound to: the start of this server process, and the database and the file of the
// sequence. Another value means that the slice was written somewhere else, or before.
const serverSQL = `(((pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time()) * 1e6)::bigint ` +
	`# pg_catalog.hashtext(pg_catalog.pg_relation_filepath('allocator.word'))::bigint) & 9223372036854775807)`

// nowSQL is the clock of the database in Unix ms. date_part is faster than extract, whose result is numeric.
const nowSQL = `(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)`

// operator finds the operators of next_id, which are named with their schema there: the path of a session may have
// others, and a path of the function's own would cost more than all else. All have one precedence then.
var operator = regexp.MustCompile(` (<<|>>|<|=|&|\||-|\*) `)

// SQL returns the statements that make all of it, or what is missing. Writers may make IDs; "" is everybody. The
// runner, unless it is "", may write slices.
func SQL(f flake.Format, hold time.Duration, writer, runner string) []string {
	l := f.Layout
	low, sid, seq := l.LowBits(), l.SIDBits(), l.SequenceBits()
	// The ID of the word v.
	id := "v"
	if l.SIDFirst() {
		id = fmt.Sprintf("((v >> %d) << %d) | ((v & %d) << %d) | ((v >> %d) & %d)", low, low, int64(1)<<sid-1, seq, sid,
			int64(1)<<seq-1)
	}
	to := "PUBLIC"
	if writer != "" {
		to = pgx.Identifier{writer}.Sanitize()
	}
	r := strings.NewReplacer(
		"$now", nowSQL, "$server", serverSQL, "$id", id, "$to", to,
		"$step", fmt.Sprint(int64(1)<<sid), "$hold", fmt.Sprint(hold.Milliseconds()),
		"$sidMask", fmt.Sprint(int64(1)<<sid-1), "$signAndSid", fmt.Sprint(math.MinInt64|(int64(1)<<sid-1)),
		"$comment", strings.ReplaceAll(commentOf(f), "'", "''"),
	)
	var out []string
	for _, s := range statements {
		if s == readers {
			out = append(out, sqlread.Statements("postgresql", "allocator.", f)...)
			continue
		}
		s = r.Replace(s)
		if strings.Contains(s, "FUNCTION allocator.next_id()") {
			s = operator.ReplaceAllString(s, " OPERATOR(pg_catalog.$1) ")
		}
		out = append(out, s)
	}
	if runner != "" {
		role := pgx.Identifier{runner}.Sanitize()
		out = append(out, `GRANT USAGE ON SCHEMA allocator TO `+role,
			`GRANT SELECT, USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA allocator TO `+role,
			`GRANT SELECT, INSERT, UPDATE ON allocator.runner TO `+role,
			`GRANT EXECUTE ON FUNCTION allocator.slice, allocator.stop_slice TO `+role)
	}
	return out
}

// readers stands for the functions that read and convert IDs.
const readers = "readers"

// statements make the schema. $-words are replaced by SQL.
var statements = []string{
	`SET LOCAL search_path = pg_catalog, pg_temp`, // Bodies that begin with RETURN keep what names mean here.
	`DO $f$ BEGIN
  IF to_regnamespace('allocator') IS NOT NULL
    AND obj_description(to_regnamespace('allocator'), 'pg_namespace') IS DISTINCT FROM '$comment' THEN
    RAISE EXCEPTION 'there is a schema "allocator" that is not ours, or makes IDs of another layout or epoch'
      USING ERRCODE = '` + Changed + `', HINT = 'Rename it, or run "allocator sql drop".';
  END IF;
END $f$`,
	`CREATE SCHEMA IF NOT EXISTS allocator`,
	`COMMENT ON SCHEMA allocator IS '$comment'`,
	`GRANT USAGE ON SCHEMA allocator TO $to`,
	// The word of the next ID. Words of a slice rise by one sequence number.
	`CREATE UNLOGGED SEQUENCE IF NOT EXISTS allocator.word INCREMENT BY $step MINVALUE 0 START 0`,
	// Words from this one on may be used …
	`CREATE UNLOGGED SEQUENCE IF NOT EXISTS allocator.first MINVALUE 0 START 0`,
	// … that are below this one; it is never reached before.
	`CREATE UNLOGGED SEQUENCE IF NOT EXISTS allocator.stop MINVALUE 0 START 0`,
	// They may be used until this time by the clock of the database, in Unix ms …
	`CREATE UNLOGGED SEQUENCE IF NOT EXISTS allocator.until MINVALUE 0 START 0`,
	// … on this server.
	`CREATE UNLOGGED SEQUENCE IF NOT EXISTS allocator.server MINVALUE 0 START 0`,
	`REVOKE ALL ON ALL SEQUENCES IN SCHEMA allocator FROM PUBLIC, $to`,
	`GRANT SELECT ON ALL SEQUENCES IN SCHEMA allocator TO $to`,
	`GRANT USAGE ON SEQUENCE allocator.word TO $to`,
	// Who writes slices: for people, and so that two do not take turns.
	`CREATE UNLOGGED TABLE IF NOT EXISTS allocator.runner (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  name text NOT NULL, sid int NOT NULL, at timestamptz NOT NULL
) WITH (fillfactor = 20)`,
	`GRANT SELECT ON allocator.runner TO $to`, // for "allocator sql status"
	// It says why there is no ID, or finds one: a slice that is written just now makes sessions look twice.
	`CREATE OR REPLACE FUNCTION allocator.again() RETURNS bigint LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp AS $f$
DECLARE here boolean; stop bigint; v bigint; low bigint; until bigint;
BEGIN
  FOR i IN 1..8 LOOP
    here := $server = pg_sequence_last_value('allocator.server');
    stop := pg_sequence_last_value('allocator.stop');
    v := nextval('allocator.word');
    low := pg_sequence_last_value('allocator.first');
    until := pg_sequence_last_value('allocator.until');
    IF here AND v < stop AND v >= low AND (v # low) & $sidMask = 0 AND $now < until THEN
      RETURN $id;
    END IF;
  END LOOP;
  IF here IS NOT TRUE OR stop IS NULL THEN
    RAISE EXCEPTION 'no ID: no runner has written a slice here since this server started'
      USING ERRCODE = '` + NoSlice + `', HINT = 'Start "allocator sql run" for this database.';
  ELSIF until = 0 THEN
    RAISE EXCEPTION 'no ID: the runner was stopped'
      USING ERRCODE = '` + Expired + `', HINT = 'Start "allocator sql run" for this database.';
  ELSIF $now >= until THEN
    RAISE EXCEPTION 'no ID: the runner has written no slice for % s',
        round((($now - until) / 1000)::numeric + $hold / 1000.0, 1)
      USING ERRCODE = '` + Expired + `', HINT = 'See the log of "allocator sql run", and "allocator sql status".';
  ELSIF v < stop THEN
    RAISE EXCEPTION 'no ID: a slice is being written, or something else has set the sequences of schema allocator'
      USING ERRCODE = '` + UsedUp + `', HINT = 'Run the transaction again: the next slice sets them right.';
  END IF;
  RAISE EXCEPTION 'no ID: the slice of this second is used up'
    USING ERRCODE = '` + UsedUp + `', HINT = 'Run the transaction again: the next slice comes within a second.';
END $f$`,
	// It is the same in a whole session, unless the sequence has another file, which makes a session plan again what
	// has the sequence as an argument. IMMUTABLE has a session compute it once a plan.
	`CREATE OR REPLACE FUNCTION allocator.this_server(word regclass) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN $server`,
	`CREATE OR REPLACE FUNCTION allocator.next_id() RETURNS bigint LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $f$
DECLARE -- The order matters: see the package sqlid.
  stop bigint := CASE
    WHEN allocator.this_server('allocator.word') = pg_catalog.pg_sequence_last_value('allocator.server')
    THEN pg_catalog.pg_sequence_last_value('allocator.stop') END;
  v bigint := pg_catalog.nextval('allocator.word');
BEGIN
  -- At or above the first word, and of the same sid: the difference has neither the sign nor bits of the sid.
  IF (v < stop) AND (((v - pg_catalog.pg_sequence_last_value('allocator.first')) & '$signAndSid'::bigint) = 0)
    AND ($now < pg_catalog.pg_sequence_last_value('allocator.until')) THEN
    RETURN $id;
  END IF;
  RETURN allocator.again();
END $f$`,
	// It returns the server, and refuses a slice that comes too late, or is of another space.
	`CREATE OR REPLACE FUNCTION allocator.slice(first bigint, stop_at bigint, until_at bigint, hold_ms bigint,
  name_of text, sid_of int, format_of text) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
DECLARE r allocator.runner; last bigint;
BEGIN
  LOCK TABLE allocator.runner IN EXCLUSIVE MODE; -- one at a time, also without a row
  SELECT * INTO r FROM allocator.runner;
  IF r.name <> name_of AND r.at > clock_timestamp() - hold_ms * interval '1 ms' AND r.at <= clock_timestamp() THEN
    RAISE EXCEPTION 'runner % wrote a slice here % ago', r.name, clock_timestamp() - r.at
      USING ERRCODE = '` + Occupied + `';
  END IF;
  IF obj_description('allocator'::regnamespace, 'pg_namespace') IS DISTINCT FROM format_of THEN
    RAISE EXCEPTION 'the schema was made again, for IDs of another layout or epoch'
      USING ERRCODE = '` + Changed + `', HINT = 'give the runner --addr of their space.';
  END IF;
  IF (SELECT count(*) FROM pg_class c JOIN pg_sequence s ON s.seqrelid = c.oid
      WHERE c.relnamespace = 'allocator'::regnamespace AND c.relpersistence = 'u' AND s.seqcache = 1 AND NOT s.seqcycle
        AND s.seqincrement = CASE c.relname WHEN 'word' THEN $step ELSE 1 END) < 5 THEN
    RAISE EXCEPTION 'a sequence of schema allocator was changed: it is logged, or has a cache or another increment'
      USING ERRCODE = '` + Changed + `', HINT = 'run "allocator sql drop" and "allocator sql init"';
  END IF;
  IF $now >= until_at THEN
    RAISE EXCEPTION 'the slice comes too late' USING ERRCODE = '` + Expired + `';
  END IF;
  last := pg_sequence_last_value('allocator.stop');
  IF first < last THEN
    RAISE EXCEPTION 'the slice begins below the end of the last one' USING ERRCODE = '` + Below + `', DETAIL = last,
      HINT = CASE WHEN r.name = name_of AND r.sid <> sid_of THEN
        format('which %s wrote with worker %s: if it runs still, give each runner its own --name', r.name, r.sid)
        ELSE '' END;
  END IF;
  INSERT INTO allocator.runner VALUES (true, name_of, sid_of, clock_timestamp())
  ON CONFLICT (one) DO UPDATE SET name = excluded.name, sid = excluded.sid, at = excluded.at;
  -- No error takes these back. Without the last one the slice is not used.
  PERFORM setval('allocator.first', first);
  PERFORM setval('allocator.word', first, false);
  PERFORM setval('allocator.until', until_at);
  PERFORM setval('allocator.server', $server);
  PERFORM setval('allocator.stop', stop_at);
  RETURN $server;
END $f$`,
	// It ends the slice of a runner that stops, and returns the server. The slice is none of another runner, which may
	// have the same name: it begins where the last one of the sid that stops does, or before.
	`CREATE OR REPLACE FUNCTION allocator.stop_slice(last bigint) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $f$
DECLARE low bigint;
BEGIN
  LOCK TABLE allocator.runner IN EXCLUSIVE MODE;
  low := pg_sequence_last_value('allocator.first');
  IF low <= last AND (low # last) & $sidMask = 0 THEN
    UPDATE allocator.runner SET at = '-infinity';
    PERFORM setval('allocator.until', 0);
  END IF;
  RETURN $server;
END $f$`,
	readers,
	`CREATE OR REPLACE FUNCTION allocator.next_uuid() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN allocator.to_uuid(allocator.next_id())`,
	`CREATE OR REPLACE FUNCTION allocator.next_flake() RETURNS text LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN allocator.to_flake(allocator.next_id())`,
	`GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA allocator TO $to`,
	`REVOKE EXECUTE ON FUNCTION allocator.slice, allocator.stop_slice FROM PUBLIC, $to`,
}
