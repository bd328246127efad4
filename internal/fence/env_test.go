package fence

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/userdb"
)

// env is a database, of which each test has a schema.
type env struct {
	url string
	db  Database
}

// server starts a PostgreSQL server. Its URL is that of the database postgres.
func server(t *testing.T) *postgres.Server {
	t.Helper()
	tier.Check(t, "a PostgreSQL server")
	return postgres.Start(t, "wal_level=logical", "max_prepared_transactions=20")
}

func open(t *testing.T, url string) Database {
	t.Helper()
	db, err := Open(url)
	fatal.If(t, err)
	t.Cleanup(db.Close)
	return db
}

// in returns a URL with a search path.
func in(url, schema string) string { return url + "&search_path=" + schema }

// fixture is a fenced table "events" in a schema of its own.
type fixture struct {
	*testing.T
	*Table
	url string
	db  Database
}

// fenced runs SQL, which makes the table, and makes its fence.
func (e env) fenced(t *testing.T, sql string) *fixture {
	t.Helper()
	f := e.bare(t, sql)
	table, err := f.db.Table(t.Context(), "events", "id")
	fatal.If(t, err)
	f.Table = table
	f.init()
	return f
}

// bare runs SQL in a schema of its own.
func (e env) bare(t *testing.T, sql string) *fixture {
	t.Helper()
	schema := strings.ToLower(strings.NewReplacer("/", "_", " ", "_", "#", "_", "(", "", ")", "").Replace(t.Name()))
	if _, err := e.db.Pool.Exec(t.Context(), "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, url: in(e.url, schema)}
	f.db = open(t, f.url)
	f.session().exec(sql)
	return f
}

func (f *fixture) init() {
	f.Helper()
	fatal.If(f, f.Init(f.Context(), "", flake.Default, func([]Holder) {}))
}

// session is a connection of a program.
type session struct {
	*testing.T
	*pgx.Conn
}

func (f *fixture) session() *session { f.Helper(); return connect(f.T, f.url) }

func connect(t *testing.T, url string) *session {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	fatal.If(t, err)
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	return &session{t, c}
}

func (s *session) exec(sql string, args ...any) {
	s.Helper()
	if _, err := s.Exec(s.Context(), sql, args...); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
}

// refused expects that the trigger refuses a row.
func (s *session) refused(sql string, args ...any) {
	s.Helper()
	if _, err := s.Exec(s.Context(), sql, args...); userdb.Code(err) != Refused {
		s.Fatalf("%s: %v, and not refused", sql, err)
	}
}

// ahead expects that the trigger refuses a row of the future, and says one of some words.
func (s *session) ahead(words, sql string) {
	s.Helper()
	_, err := s.Exec(s.Context(), sql)
	var e *pgconn.PgError
	if !errors.As(err, &e) || e.Code != RefusedAhead || !slices.ContainsFunc(strings.Split(words, "|"),
		func(word string) bool { return strings.Contains(e.Message+e.Hint, word) }) {
		s.Fatalf("%s: %v (%+v), and not refused with %q", sql, err, e, words)
	}
}

// read returns integers of a query.
func (s *session) read(sql string) []int64 {
	s.Helper()
	rows, err := s.Query(s.Context(), sql)
	if err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
	return ids
}

// complete expects rows in the view.
func (f *fixture) complete(want ...int64) {
	f.Helper()
	if got := f.session().read("SELECT id FROM events_complete ORDER BY id"); !slices.Equal(got, want) {
		f.Fatalf("the view has %v, want %v", got, want)
	}
}

// has expects the problems of the fence that begin or go on with these words.
func (f *fixture) has(words ...string) {
	f.Helper()
	s, err := f.Status(f.Context())
	found := len(s.Problems) == len(words)
	for i := range min(len(words), len(s.Problems)) {
		found = found && strings.Contains(s.Problems[i], words[i])
	}
	if err != nil || !found {
		f.Errorf("problems %q, want %q; %v", s.Problems, words, err)
	}
}

// at is the mark of an ID.
func at(id int64) Mark { return Mark{UnixMs: id, ID: id} }

// move is a move in progress.
type move struct {
	*fixture
	looks chan []Holder // of the last look
	ended chan error
}

// begin begins to move the fence to an ID, and returns when transactions were looked for.
func (f *fixture) begin(id int64) *move {
	f.Helper()
	floor, err := f.Raise(f.Context(), "test", at(id))
	fatal.If(f, err)
	m := &move{f, make(chan []Holder, 1), make(chan error, 1)}
	go func() {
		err := f.Wait(f.Context(), floor, func(left []Holder) {
			select {
			case <-m.looks:
			default:
			}
			m.looks <- left
		})
		if err == nil {
			err = f.Publish(f.Context(), floor)
		}
		m.ended <- err
	}()
	<-m.looks
	return m
}

// waits expects that the move waits for so many transactions from now on.
func (m *move) waits(n int) (left []Holder) {
	m.Helper()
	for range 2 { // The first list may have been made before.
		select {
		case left = <-m.looks:
		case err := <-m.ended:
			m.Fatalf("the move does not wait for %d transactions: it ended with %v", n, err)
		}
	}
	if len(left) != n {
		m.Fatalf("the move waits for %v, and not for %d", left, n)
	}
	return left
}

func (m *move) end() {
	m.Helper()
	select {
	case err := <-m.ended:
		fatal.If(m, err)
	case <-time.After(wait.Most):
		holders, err := m.Holders(m.Context())
		m.Fatalf("the move has not ended; holders now: %v, %v", holders, err)
	}
}

func (f *fixture) moveTo(id int64) { f.Helper(); f.begin(id).end() }
