package sqlid

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/userdb"
	"github.com/flakelease/allocator/ulid"
)

var scalable = flake.Format{Layout: flake.Scalable, Epoch: flake.DefaultEpoch}

// hold is so long that nothing expires in a test that does not ask for it.
const hold = time.Hour

// database is a database with the functions, and one that cuts slices for it.
type database struct {
	*testing.T
	Database
	url   string
	shape Shape
	after int64
	first int64 // the first word of the last slice
}

func server(t *testing.T) *postgres.Server {
	t.Helper()
	tier.Check(t, "a PostgreSQL server")
	return postgres.Start(t, "wal_level=replica", "max_prepared_transactions=4")
}

// at returns the database of a URL.
func at(t *testing.T, url string, f flake.Format) *database {
	t.Helper()
	d, err := Open(url)
	fatal.If(t, err)
	t.Cleanup(d.Close)
	return &database{T: t, Database: d, url: url, shape: Shape{Format: f, SID: 3}}
}

// made is at, with the functions made.
func made(t *testing.T, url string, f flake.Format) *database {
	t.Helper()
	d := at(t, url, f)
	fatal.If(t, d.Init(t.Context(), f, hold, "", ""))
	return d
}

// slice writes the next slice, of 10 ms.
func (d *database) slice() Slice {
	d.Helper()
	s, err := d.shape.Cut(time.Now().UnixMilli(), d.after, 10*time.Millisecond)
	if err == nil {
		d.after, d.first = s.ToMs, s.First
		_, err = d.Write(d.Context(), d.shape, s, hold, "test")
	}
	fatal.If(d, err)
	return s
}

// conn returns a session.
func (d *database) conn() *pgx.Conn {
	d.Helper()
	c, err := pgx.Connect(d.Context(), d.url)
	fatal.If(d, err)
	d.Cleanup(func() { _ = c.Close(context.WithoutCancel(d.Context())) })
	return c
}

// next returns an ID, or the SQLSTATE of the refusal.
func (d *database) next() (id int64, state string) {
	d.Helper()
	c := d.conn()
	defer func() { _ = c.Close(d.Context()) }()
	return draw(d.T, c)
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func draw(t *testing.T, c querier) (id int64, state string) {
	t.Helper()
	err := c.QueryRow(t.Context(), "SELECT allocator.next_id()").Scan(&id)
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return 0, e.Code
	}
	fatal.If(t, err)
	return id, ""
}

// set sets a sequence by hand.
func (d *database) set(sequence string, to int64) {
	d.Helper()
	if _, err := d.Pool.Exec(d.Context(), "SELECT setval('allocator."+sequence+"', $1)", to); err != nil {
		d.Fatal(err)
	}
}

// refuses expects a refusal.
func (d *database) refuses(state, why string) {
	d.Helper()
	if id, got := d.next(); got != state {
		d.Errorf("%s: ID %d, SQLSTATE %q, want %s", why, id, got, state)
	}
}

// TestNextID: sessions in all isolation levels, with transactions that are rolled back, draw beside slices that end
// all the time: no ID comes twice, those of a session rise, and each lies in a slice that was written.
func TestNextID(t *testing.T) {
	d := made(t, server(t).URL(), scalable)
	d.refuses(NoSlice, "before the first slice")
	written := []Slice{d.slice()}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	drawn := make([][]int64, 8)
	var total atomic.Int64 // drawn
	for i := range drawn {
		c := d.conn()
		level := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}[i%3]
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				tx, err := c.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
				if err != nil {
					t.Error(err)
					return
				}
				for range 1 + n%40 { // A long transaction has a snapshot from before many slices.
					if id, state := draw(t, tx); state == "" {
						drawn[i] = append(drawn[i], id)
						total.Add(1)
					} else if state != UsedUp {
						t.Errorf("SQLSTATE %s", state)
					} else {
						break
					}
				}
				_ = tx.Rollback(t.Context())
			}
		})
	}
	for !t.Failed() && (total.Load() < 1000 || len(written) < 100) {
		written = append(written, d.slice())
	}
	stop()
	all.Wait()
	seen := map[int64]bool{}
	for i, ids := range drawn {
		if !slices.IsSorted(ids) {
			t.Errorf("session %d: IDs do not rise", i)
		}
		for _, id := range ids {
			if seen[id] {
				history.Violated(t, "I10", "%d came twice", id)
				t.FailNow()
			}
			seen[id] = true
		}
	}
	for id := range seen {
		if !slices.ContainsFunc(written, func(s Slice) bool { return s.First <= id && id < s.Stop }) {
			history.Violated(t, "I10", "%d is of no slice", id)
			t.FailNow()
		}
	}
}

// TestSnapshots: a transaction with an old snapshot uses the slice of now.
func TestSnapshots(t *testing.T) {
	d := made(t, server(t).URL(), scalable)
	d.shape.SID = 0 // A slice may begin with the word at which the last one ended.
	d.slice()
	tx, err := d.conn().BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	fatal.If(t, err)
	if _, state := draw(t, tx); state != "" {
		t.Fatal(state)
	}
	for range 100 {
		s := d.slice()
		if id, state := draw(t, tx); state != "" || id < s.First || id >= s.Stop {
			t.Fatalf("%d, %s of %+v", id, state, s)
		}
	}
}

// TestCopies: after a crash, a restart, a promotion, in a base backup and in a copy of the database there are no IDs
// before a new slice; the server that all of them are of goes on.
func TestCopies(t *testing.T) {
	s := server(t)
	d := made(t, s.URL(), scalable)
	d.slice()
	standby := s.Standby(t)
	copied := at(t, standby.URL(), scalable)
	if _, err := copied.Write(t.Context(), d.shape, Slice{}, hold, "test"); !errors.Is(err, userdb.ErrSetup) {
		t.Errorf("a slice for a standby: %v", err)
	}
	fatal.If(t, standby.Promote())
	copied.refuses(NoSlice, "promoted")
	zombie, state := d.next()
	if state != "" {
		t.Errorf("the old primary: %s", state)
	}
	copied.after = d.after // It is the same runner.
	copied.slice()
	if id, state := copied.next(); state != "" || id <= zombie {
		t.Errorf("%d, %s beside %d of the old primary", id, state, zombie)
	}

	d.Pool.Reset() // no session may use the database that is copied
	s.Psql(t, "CREATE DATABASE empty")
	wait.NoError(t, "the copy", func() error {
		empty := strings.Replace(s.URL(), "/postgres?", "/empty?", 1)
		_, err := at(t, empty, scalable).Pool.Exec(t.Context(), "CREATE DATABASE other TEMPLATE postgres")
		return err
	})
	at(t, strings.Replace(s.URL(), "/postgres?", "/other?", 1), scalable).refuses(NoSlice, "a copy of the database")
	before, _ := d.next()
	for _, mode := range []string{"fast", "immediate", "kill"} {
		if mode == "kill" { // The server recovers without a new process of its own.
			kill(t, d.conn(), d.conn())
		} else {
			s.Restart(t, mode)
		}
		d.Pool.Reset()
		wait.NoError(t, "recovered", func() error { return d.Pool.Ping(t.Context()) })
		d.refuses(NoSlice, "restart "+mode)
		d.slice()
		if id, state := d.next(); state != "" || id <= before {
			t.Errorf("after restart %s: %d, %s, and %d before", mode, id, state, before)
		}
	}
}

// kill kills the process of a session, and returns when the server has noticed: it ends the other one.
func kill(t *testing.T, c, other *pgx.Conn) {
	t.Helper()
	fatal.If(t, syscall.Kill(int(c.PgConn().PID()), syscall.SIGKILL))
	wait.NoError(t, "the crash", func() error {
		if other.Ping(t.Context()) == nil {
			return errors.New("the session goes on")
		}
		return nil
	})
}

// TestRefusals: each reason has its SQLSTATE, and a runner sees what was changed by hand.
func TestRefusals(t *testing.T) {
	s := server(t)
	d := made(t, s.URL(), flake.Format{Layout: flake.JS53, Epoch: flake.DefaultEpoch})
	written := d.slice()
	for range (written.ToMs - written.FromMs) * 128 {
		if _, state := d.nextOf(d.Pool); state != "" {
			t.Fatalf("the slice has fewer IDs than its bits: %s", state)
		}
	}
	d.refuses(UsedUp, "all of it drawn")
	cut, _ := d.shape.Cut(time.Now().UnixMilli(), d.after, time.Second)
	if w, err := d.Write(t.Context(), d.shape, cut, 0, "test"); err == nil || !w.Unknown {
		t.Fatalf("a slice that comes when its hold is over: %+v, %v", w, err)
	}
	d.refuses(UsedUp, "that slice")
	d.slice()
	d.set("until", time.Now().UnixMilli()-1)
	d.refuses(Expired, "the hold is over")
	if w, err := d.Write(t.Context(), d.shape, cut, hold, "test"); !errors.Is(err, ErrBelow) || w.Unknown {
		t.Errorf("a slice below the last: %v", err)
	}
	twin := Shape{Format: d.shape.Format, SID: d.shape.SID + 1}
	if _, err := d.Write(t.Context(), twin, cut, hold, "test"); !errors.Is(err, ErrBelow) || !strings.Contains(err.Error(), "with worker 3: if it runs still, give each runner its own --name") {
		t.Errorf("a slice of another runner of this name: %v", err)
	}
	for i := range 3 {
		here := d.slice()
		v := []int64{1, here.First - 20*d.shape.Step(), here.First + 1}[i]
		d.set("word", v) // as a dump of the data does
		d.refuses(UsedUp, fmt.Sprintf("the word was set to %d", v))
		d.slice()
		if _, state := d.next(); state != "" {
			t.Errorf("the next slice: %s", state)
		}
	}
	cut, _ = d.shape.Cut(time.Now().UnixMilli(), d.after, time.Second)
	if _, err := d.Write(t.Context(), d.shape, cut, hold, "other"); !errors.Is(err, ErrOccupied) {
		t.Errorf("a second runner: %v", err)
	}
	other := d.shape
	other.Format.Epoch++
	if w, err := d.Write(t.Context(), other, cut, hold, "test"); !errors.Is(err, userdb.ErrSetup) || w.Unknown {
		t.Errorf("a slice of another space: %v", err)
	}
	before := written.First
	for _, last := range []int64{before - before&(d.shape.Step()-1), before, d.first - d.shape.Step(), d.first + 1} {
		if _, err := d.End(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		if _, state := d.next(); state != "" {
			t.Errorf("a runner whose last slice began at %d ended the one from %d: %s", last, d.first, state)
		}
		if _, err := d.Write(t.Context(), d.shape, cut, hold, "other"); !errors.Is(err, ErrOccupied) {
			t.Errorf("a second runner, after the end of one from %d: %v", last, err)
		}
	}
	if _, err := d.End(t.Context(), d.first+d.shape.Step()); err != nil { // The reply to its last slice was lost.
		t.Fatal(err)
	}
	d.refuses(Expired, "ended")
	if s, err := d.Status(t.Context()); err != nil || !slices.ContainsFunc(s.Problems, func(p string) bool {
		return strings.Contains(p, "was stopped")
	}) {
		t.Errorf("status after the end: %+v, %v", s, err)
	}
	if _, err := d.Write(t.Context(), d.shape, cut, hold, "other"); err != nil {
		t.Errorf("after the end: %v", err)
	}
	if _, err := d.conn().Exec(t.Context(), "BEGIN READ ONLY; SELECT allocator.next_id()"); err == nil || !strings.Contains(err.Error(), "read-only transaction") {
		t.Errorf("read only: %v", err)
	}
	for _, change := range []string{
		"ALTER SEQUENCE allocator.word CACHE 10", "ALTER SEQUENCE allocator.stop SET LOGGED", "ALTER SEQUENCE allocator.word INCREMENT 1",
		"ALTER SEQUENCE allocator.word CYCLE",
	} {
		d := made(t, newDatabase(t, s), scalable)
		d.slice()
		if _, err := d.conn().Exec(t.Context(), change); err != nil {
			t.Fatal(err)
		}
		cut, _ := d.shape.Cut(time.Now().UnixMilli(), d.after, time.Second)
		if _, err := d.Write(t.Context(), d.shape, cut, hold, "test"); !errors.Is(err, userdb.ErrSetup) {
			t.Errorf("%s: %v", change, err)
		}
	}
	reset := made(t, newDatabase(t, s), scalable)
	reset.slice()
	open := reset.conn() // It has computed before which server it is on.
	if _, state := reset.nextOf(open); state != "" {
		t.Fatal(state)
	}
	if _, err := reset.conn().Exec(t.Context(), "ALTER SEQUENCE allocator.word RESTART"); err != nil {
		t.Fatal(err)
	}
	reset.refuses(NoSlice, "the word began again")
	if _, state := reset.nextOf(open); state != NoSlice {
		t.Errorf("the word began again, in an open session: %q", state)
	}
	if _, err := reset.conn().Exec(t.Context(), "UPDATE allocator.runner SET at = clock_timestamp() + interval '1 h'"); err != nil {
		t.Fatal(err)
	}
	cut, _ = reset.shape.Cut(time.Now().UnixMilli(), reset.after, time.Second)
	if _, err := reset.Write(t.Context(), reset.shape, cut, hold, "other"); err != nil {
		t.Errorf("after the clock was set back: %v", err)
	}
	if _, state := reset.nextOf(open); state != "" {
		t.Errorf("a slice after the word began again, in an open session: %q", state)
	}
}

func (d *database) nextOf(c querier) (int64, string) { d.Helper(); return draw(d.T, c) }

var databases int

// newDatabase returns the URL of a new one.
func newDatabase(t *testing.T, s *postgres.Server) string {
	t.Helper()
	databases++
	name := fmt.Sprint("d", databases)
	s.Psql(t, "CREATE DATABASE "+name)
	return strings.Replace(s.URL(), "/postgres?", "/"+name+"?", 1)
}

// TestSetup: init may run again, keeps a schema that is not its own or of another layout, and drop keeps one in use.
func TestSetup(t *testing.T) {
	s := server(t)
	d := made(t, s.URL(), scalable)
	d.slice()
	if err := d.Init(t.Context(), scalable, hold, "", ""); err != nil {
		t.Error(err)
	}
	if _, state := d.next(); state != "" {
		t.Errorf("init took the slice: %s", state)
	}
	other := flake.Format{Layout: flake.Twitter, Epoch: flake.Twitter.Epoch()}
	if err := d.Init(t.Context(), other, hold, "", ""); !errors.Is(err, userdb.ErrSetup) {
		t.Errorf("another layout: %v", err)
	}
	if _, err := d.conn().Exec(t.Context(), "BEGIN; "+strings.Join(SQL(other, hold, "", ""), ";")); err == nil {
		t.Error("the SQL of another layout was run")
	}
	s.Psql(t, "CREATE ROLE app LOGIN; CREATE ROLE ids LOGIN; CREATE ROLE nobody LOGIN; CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT allocator.next_id())")
	if err := d.Drop(t.Context()); !errors.Is(err, userdb.ErrSetup) || !strings.Contains(err.Error(), "orders") {
		t.Errorf("drop of a schema in use: %v", err)
	}
	s.Psql(t, "INSERT INTO orders DEFAULT VALUES; ALTER TABLE orders ALTER id DROP DEFAULT")
	tx, err := d.conn().Begin(t.Context())
	fatal.If(t, err)
	if _, state := draw(t, tx); state != "" {
		t.Fatal(state)
	}
	if err := d.Drop(t.Context()); err == nil || !strings.Contains(err.Error(), "run the command again later") {
		t.Errorf("drop beside a transaction: %v", err)
	}
	_ = tx.Rollback(t.Context())
	if err := d.Drop(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := d.Format(t.Context()); !errors.Is(err, userdb.ErrSetup) {
		t.Errorf("after the drop: %v", err)
	}
	fatal.If(t, d.Init(t.Context(), scalable, hold, "app", "ids"))
	as := func(role string) *database {
		return at(t, strings.Replace(d.url, "test@", role+"@", 1), scalable)
	}
	runner := as("ids")
	runner.slice()
	if _, state := as("app").next(); state != "" {
		t.Errorf("the writer: %s", state)
	}
	if s, err := as("app").Status(t.Context()); err != nil || len(s.Problems) > 0 {
		t.Errorf("status for the writer: %+v, %v", s, err)
	}
	for _, sql := range []string{"nextval('allocator.stop')", "nextval('allocator.first')", "setval('allocator.word', 1)"} {
		if _, err := as("app").Pool.Exec(t.Context(), "SELECT "+sql); err == nil {
			t.Errorf("the writer may %s", sql)
		}
	}
	cut, _ := d.shape.Cut(time.Now().UnixMilli(), runner.after, time.Second)
	if _, err := as("app").Write(t.Context(), d.shape, cut, hold, "test"); !errors.Is(err, userdb.ErrSetup) {
		t.Errorf("a slice by the writer: %v", err)
	}
	as("nobody").refuses("42501", "a role without rights")
	s.Psql(t, "CREATE DATABASE empty")
	bare := at(t, strings.Replace(as("nobody").url, "/postgres?", "/empty?", 1), scalable)
	if err := bare.Init(t.Context(), scalable, hold, "", ""); !errors.Is(err, userdb.ErrSetup) {
		t.Errorf("init without the right to make a schema: %v", err)
	}
	s.Psql(t, "DROP SCHEMA allocator CASCADE; CREATE SCHEMA allocator")
	if err := d.Init(t.Context(), scalable, hold, "", ""); !errors.Is(err, userdb.ErrSetup) {
		t.Errorf("another's schema: %v", err)
	}
}

// hostile makes a session find other functions and operators than those of PostgreSQL.
const hostile = `CREATE SCHEMA mine;
CREATE FUNCTION mine.no(bigint, bigint) RETURNS boolean LANGUAGE sql RETURN NOT false;
CREATE FUNCTION mine.no(float8, bigint) RETURNS boolean LANGUAGE sql RETURN true;
CREATE FUNCTION mine.zero(bigint, int) RETURNS bigint LANGUAGE sql RETURN 0;
CREATE FUNCTION mine.clock_timestamp() RETURNS timestamptz LANGUAGE sql RETURN timestamptz '1970-01-01';
CREATE FUNCTION mine.nextval(regclass) RETURNS bigint LANGUAGE sql RETURN 7;
CREATE FUNCTION mine.pg_sequence_last_value(regclass) RETURNS bigint LANGUAGE sql RETURN 7;
CREATE OPERATOR mine.< (FUNCTION = mine.no, LEFTARG = bigint, RIGHTARG = bigint);
CREATE OPERATOR mine.< (FUNCTION = mine.no, LEFTARG = float8, RIGHTARG = bigint);
CREATE OPERATOR mine.>> (FUNCTION = mine.zero, LEFTARG = bigint, RIGHTARG = int);
SET search_path = mine, pg_catalog`

// TestLayouts: in every layout a database makes IDs of its slice, whatever other functions a session finds, and bounds
// of times that no ID has are bounds. chaos/real/interop has the other functions.
func TestLayouts(t *testing.T) {
	s := server(t)
	for _, name := range append(flake.Layouts(), "28/22/13,epoch=2018-12-22,unit=1s") {
		l, err := flake.ParseLayout(name)
		if err != nil || l.SIDBits() == 0 {
			continue
		}
		d := made(t, newDatabase(t, s), flake.Format{Layout: l, Epoch: flake.DefaultEpoch})
		f, c := d.shape.Format, d.conn()
		var first, last, before, never int64
		var old, end string
		if err := c.QueryRow(t.Context(), `SELECT allocator.id_first('infinity'), allocator.id_first('-infinity'),
			allocator.id_first('1900-01-01'), allocator.id_first('290000-01-01'), allocator.uuid_first('1900-01-01'),
			allocator.uuid_first('infinity')`).Scan(&last, &first, &before, &never, &old, &end); err != nil || first != 0 ||
			before != 0 || last != math.MaxInt64 || never <= 1<<(l.TimeBits()+l.LowBits())-1 && never != math.MaxInt64 ||
			old != "00000000-0000-0000-0000-000000000000" || end != "ffffffff-ffff-0000-0000-000000000000" {
			t.Errorf("%s: bounds %d, %d, %d, %d, %s, %s: %v", name, first, before, last, never, old, end, err)
		}
		if _, err := c.Exec(t.Context(), hostile); err != nil {
			t.Fatal(err)
		}
		w := d.slice()
		for range 3 {
			var text, wide string
			if err := c.QueryRow(t.Context(), "SELECT allocator.next_flake(), allocator.next_uuid()::text").Scan(&text, &wide); err != nil {
				t.Fatal(name, err)
			}
			id, err := flake.Parse(text)
			u, wrong := ulid.ParseUUID(wide)
			of, foreign := u.Flake(f)
			if err != nil || wrong != nil || foreign != nil || of <= id {
				t.Errorf("%s: %s, %v, %v, %v", name, text, err, wrong, foreign)
			}
			for _, id := range []flake.ID{id, of} {
				if f.SID(id) != 3 || f.UnixMilli(id) < w.FromMs || f.UnixMilli(id) >= w.ToMs {
					t.Errorf("%s: ID %d", name, id)
				}
			}
		}
	}
}
