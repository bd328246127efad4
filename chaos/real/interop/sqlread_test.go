package interop

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/sqlread"
	"github.com/flakelease/allocator/ulid"
)

// engine is how a database is asked for what functions return. Columns come as the first three give them, in rows.
type engine struct {
	time, uuid string // How a time and a UUID are printed; $ is the value.
	literal    string // how a UUID is written
	random     bool   // It has to_uuid.
	until      int    // The year of the first time that it does not have.
	run        func(t *testing.T, sql string) string
	use        string // SQL with functions in indexes, generated columns and partitions
	prints     string
}

var engines = map[string]engine{
	"postgresql": {
		time: "to_char($ AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS')", uuid: "$", literal: "'$'::uuid",
		random: true, until: 4000, // From 4253 on a multiple of an interval is no whole ms.
		run: func(t *testing.T, sql string) string { return postgres.Start(t).Psql(t, sql) },
		use: `CREATE TABLE t (id bigint PRIMARY KEY, ms bigint GENERATED ALWAYS AS (id_ms(id)) STORED) PARTITION BY RANGE (id);
CREATE TABLE t20 PARTITION OF t FOR VALUES FROM (id_first('2026-11-20Z')) TO (id_first('2026-11-21Z'));
CREATE INDEX ON t (id_time(id));
INSERT INTO t VALUES (95552449898644130);
SET enable_seqscan = off;
SELECT ms, tableoid::regclass FROM t WHERE id_time(id) > '2026-11-20Z' AND id >= id_first('2026-11-20Z');
EXPLAIN (COSTS OFF) SELECT FROM t20 WHERE id >= id_first('2026-11-20Z') AND id < id_first('2026-11-21Z');`,
		prints: `(?s)^1795193117338\|t20\n.*Index Cond`,
	},
	"mysql": {
		time: "$", uuid: "LOWER(INSERT(INSERT(INSERT(INSERT(HEX($), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))",
		literal: "UNHEX(REPLACE('$', '-', ''))", random: true, until: 10000,
		run: inMariaDB,
		use: `CREATE TABLE t (id BIGINT UNSIGNED PRIMARY KEY, $ms, $sid, KEY (ms))
PARTITION BY RANGE (id) (PARTITION p19 VALUES LESS THAN (95489202585600000), PARTITION p20 VALUES LESS THAN MAXVALUE);
INSERT INTO t (id) VALUES (95552449898644130);
SELECT ms, sid FROM t WHERE id >= id_first('2026-11-20') AND id < id_first('2026-11-21');
EXPLAIN SELECT * FROM t WHERE id >= id_first('2026-11-20') AND id < id_first('2026-11-21');`,
		prints: `^1795193117338\t2\n.*\trange\tPRIMARY\t`,
	},
	"sqlite": {
		time: "$", uuid: "$", literal: "'$'", random: true, until: 10000,
		run: inSQLite,
		use: `CREATE TABLE t (id INTEGER PRIMARY KEY, made TEXT AS ($id_time));
CREATE INDEX i ON t ($id_ms);
INSERT INTO t VALUES (95552449898644130);
SELECT made FROM t INDEXED BY i WHERE $id_ms = 1795193117338;`,
		prints: `^2026-11-20 16:45:17.338\n$`,
	},
	"clickhouse": {
		time: "$", uuid: "$", literal: "toUUID('$')", until: 2299,
		run: func(t *testing.T, sql string) string { return output(t, sql, tool(t, "clickhouse"), "local") },
		use: `CREATE TABLE t (id UInt64, made ALIAS id_time(id)) ENGINE = MergeTree PARTITION BY toYYYYMM(id_time(id)) ORDER BY id;
INSERT INTO t VALUES (95552449898644130);
SELECT made, _partition_id FROM t WHERE id >= id_first('2026-11-20') AND id < id_first('2026-11-21');`,
		prints: `^2026-11-20 16:45:17.338\t202611\n$`,
	},
}

var parameter = regexp.MustCompile(`:(id|at|uuid|flake|ulid)\b`)

// expressions are those of SQLite, by their names.
func expressions(f flake.Format) map[string]string {
	all := map[string]string{}
	for _, s := range sqlread.Statements("sqlite", "", f) {
		at := strings.LastIndex(s, " AS ")
		all[s[at+4:]] = strings.TrimPrefix(s[:at], "SELECT ")
	}
	return all
}

// known are the vectors of the project that functions take.
type known struct {
	Flakes []struct {
		Int    string `json:"int"`
		Base32 string `json:"base32"`
		Ms     int64  `json:"unix_ms"`
		SID    int    `json:"sid"`
	} `json:"flake_scalable"`
	ULIDs []struct {
		ULID string `json:"ulid"`
		UUID string `json:"uuid"`
	} `json:"ulid"`
	V7 []struct {
		ULID string `json:"ulid"`
		UUID string `json:"uuid"`
	} `json:"uuid_v7"`
	BadFlakes []struct {
		Input string `json:"input"`
	} `json:"flake_invalid_strings"`
	BadULIDs []struct {
		Input string `json:"input"`
	} `json:"ulid_invalid_strings"`
}

// TestSQLFunctions: functions of databases read and convert IDs as packages flake and ulid do, and the vectors say, in
// every layout; and they can be used where a database takes none but those that always return the same.
func TestSQLFunctions(t *testing.T) {
	var vectors known
	text, err := os.ReadFile("../../../testdata/vectors/vectors.json")
	if err == nil {
		err = json.Unmarshal(text, &vectors)
	}
	fatal.If(t, err)
	for name, e := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sql strings.Builder
			var want []string
			var f flake.Format
			var expr map[string]string
			call := func(function, arg string) string {
				if name == "postgresql" && function == "uuid_time" {
					function = "id_time"
				}
				if name != "sqlite" {
					return function + "(" + arg + ")"
				}
				return "(" + parameter.ReplaceAllString(expr[function], arg) + ")"
			}
			as := func(form, value string) string { return strings.ReplaceAll(form, "$", value) }
			row := func(line string, columns ...string) {
				fmt.Fprintf(&sql, "SELECT %s;\n", strings.Join(columns, ", "))
				want = append(want, line)
			}
			day := func(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05.000") }
			ofUUID := func(u ulid.ID) {
				uuid := as(e.literal, u.UUID())
				back := ""
				if id, err := u.Flake(f); err == nil {
					back = fmt.Sprint(int64(id))
				}
				row(fmt.Sprintf("%s|%s|%s", back, u, u.UUID()), call("from_uuid", uuid), call("to_ulid", uuid),
					as(e.uuid, call("from_ulid", "'"+strings.ToLower(u.String())+"'")))
				if u.Time().Year() < e.until && u.UnixMilli() >= 0 {
					row(day(u.Time()), as(e.time, call("uuid_time", uuid)))
				}
			}
			r := rand.New(rand.NewPCG(5, 6))
			for _, layout := range append(flake.Layouts(), "28/22/13,order=time-sid-seq,unit=1s,epoch=2018-12-22", "41/3/6,epoch=1970-01-01", "scalable") {
				f, err = flake.ParseFormat(layout)
				if err == nil {
					err = sqlread.Check(f)
				}
				if err != nil {
					t.Fatal(layout, err)
				}
				expr = expressions(f)
				if name != "sqlite" {
					sql.WriteString(sqlread.SQL(name, "", f))
				}
				l := f.Layout
				for i := range 8 {
					id := flake.ID(r.Uint64() >> (64 - l.TimeBits() - l.LowBits()))
					if i < 2 {
						id = flake.ID(int64(i) * (1<<(l.TimeBits()+l.LowBits()) - 1))
					}
					ms := f.UnixMilli(id)
					row(fmt.Sprintf("%d|%d|%s|%d", ms, f.SID(id), id, int64(id)), call("id_ms", fmt.Sprint(int64(id))),
						call("id_sid", fmt.Sprint(int64(id))), call("to_flake", fmt.Sprint(int64(id))),
						call("from_flake", "'"+strings.ToLower(id.String())+"'"))
					if e.random {
						row(fmt.Sprint(int64(id)), call("from_uuid", call("to_uuid", fmt.Sprint(int64(id)))))
					}
					if at := time.UnixMilli(ms); at.UTC().Year() < e.until {
						low, _ := f.Min(ms)
						first, err := f.Min(ms + l.Unit())
						if err != nil {
							first = low + 1<<l.LowBits()
						}
						if first < 0 {
							first = 1<<63 - 1
						}
						row(fmt.Sprintf("%s|%d|%d|%s", day(at), low, first, wideFirst(ms)), as(e.time, call("id_time", fmt.Sprint(int64(id)))),
							call("id_first", instant(name, at)), call("id_first", instant(name, at.Add(time.Millisecond))),
							as(e.uuid, call("uuid_first", instant(name, at))))
					}
					u, err := ulid.FromFlake(f, id, r.Uint64())
					if err != nil {
						t.Fatal(layout, err)
					}
					ofUUID(u)
				}
				row("0|00000000-0000-0000-0000-000000000000", call("id_first", instant(name, time.Unix(-3e8, 0))),
					as(e.uuid, call("uuid_first", instant(name, time.Unix(-3e8, 0)))))
			}
			for _, v := range vectors.Flakes {
				row(fmt.Sprintf("%d|%d|%s|%s", v.Ms, v.SID, v.Base32, v.Int), call("id_ms", v.Int), call("id_sid", v.Int),
					call("to_flake", v.Int), call("from_flake", "'"+v.Base32+"'"))
			}
			for _, v := range append(vectors.ULIDs, vectors.V7...) {
				row(v.ULID+"|"+v.UUID, call("to_ulid", as(e.literal, v.UUID)), as(e.uuid, call("from_ulid", "'"+v.ULID+"'")))
				u, err := ulid.Parse(v.ULID)
				fatal.If(t, err)
				ofUUID(u)
			}
			for _, v := range vectors.BadFlakes {
				row("", call("from_flake", "'"+v.Input+"'"))
			}
			for _, v := range vectors.BadULIDs {
				row("", as(e.uuid, call("from_ulid", "'"+v.Input+"'")))
			}
			got := strings.Split(strings.NewReplacer("\t", "|", "NULL", "", `\N`, "").Replace(e.run(t, sql.String())), "\n")
			for i, line := range want {
				if i >= len(got) || got[i] != line {
					t.Fatalf("row %d of %d: got %q, want %q", i, len(want), got[min(i, len(got)-1)], line)
				}
			}

			f = flake.Default
			functions, use := sqlread.SQL(name, "", f), e.use
			switch name {
			case "sqlite":
				for name, expr := range expressions(f) {
					use = strings.ReplaceAll(use, "$"+name, parameter.ReplaceAllString(expr, "id"))
				}
				functions = ""
			case "mysql":
				for _, column := range []string{"ms", "sid"} {
					_, line, _ := strings.Cut(functions, "--   "+column+" ")
					line, _, _ = strings.Cut(line, "\n")
					use = strings.ReplaceAll(use, "$"+column, column+" "+line)
				}
			}
			if got := e.run(t, functions+use); !regexp.MustCompile(e.prints).MatchString(got) {
				t.Errorf("where functions are used: got\n%s", got)
			}
		})
	}
}

// instant returns how a time is written.
func instant(database string, at time.Time) string {
	switch database {
	case "postgresql":
		return at.UTC().Format("'2006-01-02 15:04:05.000Z'")
	case "sqlite":
		return fmt.Sprint(at.UnixMilli())
	}
	return at.UTC().Format("'2006-01-02 15:04:05.000'")
}

// wideFirst is the first UUID of a time.
func wideFirst(ms int64) string {
	u, _ := ulid.Min(ms)
	return u.UUID()
}
