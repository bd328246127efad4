// Package sqlid shows claim I10 with real PostgreSQL servers under faults: no ID that a database ever answered comes
// twice, and other ways to make IDs in a database answer some twice in the same run. A test calls it with
// runners of slices and the faults of what they depend on.
package sqlid

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/fence"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/sqlid"
)

// Process is "allocator sql run" for the databases of a server.
type Process interface {
	Start(more ...string) error
	Kill() error
	Pause() error
	Resume() error
}

// Fault is done once in each round. Do returns when its effect was there and has ended; the run then waits until
// the databases make IDs again.
type Fault struct {
	Name string
	Do   func(ctx context.Context) error
}

// Config is what a run needs from outside.
type Config struct {
	Format flake.Format
	Hold   time.Duration    // The runners have it.
	Write  func(history.Op) // It takes the calls of all writers.
	// Runner returns a process that is not started, for a server.
	Runner  func(name string, databases []string) Process
	Faults  func(*Run) []Fault // They concern nodes, etcd and clocks.
	Writers int
	Rounds  int
}

// databases are those of each server.
var databases = []string{"postgres", "other"}

// Run is a run of servers, their runners and writers.
type Run struct {
	*testing.T
	Config
	ctx   context.Context // It ends when the writers stop.
	names atomic.Int64    // servers so far
	all   sync.WaitGroup

	mu    sync.Mutex // guards all below
	live  []*server  // Writers use them.
	main  *server
	ids   map[string]int // by level of isolation, and by what became of their transaction
	said  map[string]int // SQLSTATEs of refusals and errors
	twice map[string]*history.Unique
}

// server is a server with two databases.
type server struct {
	*postgres.Server
	name    string
	urls    []string
	pools   []*pgxpool.Pool // Faults and judges use them.
	runners []Process
	issued  atomic.Int64 // IDs
}

// Check runs writers while servers, their processes and their runners are killed and stopped, standbys are promoted
// beside their primaries, and servers are copied. All IDs that were answered go to cfg.Write. The
// test fails if a fault did not happen, or if the ways that have to answer IDs twice do not.
func Check(t *testing.T, cfg Config) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &Run{
		T: t, Config: cfg, ctx: ctx, ids: map[string]int{}, said: map[string]int{},
		twice: map[string]*history.Unique{},
	}
	defer r.all.Wait()
	defer stop()
	first := postgres.Start(t, "max_connections=200", "restart_after_crash=on")
	first.Psql(t, "CREATE DATABASE other")
	s := r.server(first)
	for i, url := range s.urls {
		d, err := sqlid.Open(url)
		fatal.If(t, err)
		fatal.If(t, d.Init(ctx, cfg.Format, cfg.Hold, "", ""))
		d.Close()
		r.exec(s, i, "CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT allocator.next_id(), at int DEFAULT 0)")
		for _, other := range others {
			r.exec(s, i, other.sql(cfg.Format))
		}
	}
	r.main = s
	r.serve(s)
	for n := range cfg.Writers {
		r.all.Go(func() { r.write(n) })
	}
	r.Issues(s, "its start")
	r.all.Go(r.stopBackends)

	happened := map[string]int{}
	all := append(r.faults(), cfg.Faults(r)...)
	for range cfg.Rounds {
		for _, f := range all {
			began := time.Now()
			for _, pool := range r.main.pools {
				pool.Reset() // The fault before has ended its connections.
			}
			if err := f.Do(ctx); err != nil {
				t.Fatalf("%s: %v", f.Name, err)
			}
			r.Issues(r.main, f.Name)
			happened[f.Name]++
			t.Logf("%s: over after %v", f.Name, time.Since(began).Round(10*time.Millisecond))
		}
	}
	stop()
	r.all.Wait()
	for _, f := range all {
		t.Logf("fault %q: %d times", f.Name, happened[f.Name])
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Logf("IDs: %v", r.ids)
	t.Logf("refusals and errors by SQLSTATE: %v", r.said)
	for _, what := range append(slices.Clone(levels), committed, rolledBack, toSavepoint) {
		if r.ids[what] == 0 {
			t.Errorf("no ID was answered: %s", what)
		}
	}
	for _, state := range []string{sqlid.NoSlice, sqlid.Expired} {
		if r.said[state] == 0 {
			t.Errorf("no ID was refused with %s", state)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.twice)) {
		found := r.twice[name].Finish()
		t.Logf("beside it, %s: %s", name, found.Reason)
		if found.Verdict != history.Broken {
			t.Errorf("%s answers no ID twice: the run shows nothing", name)
		}
	}
	if len(r.twice) != len(others) {
		t.Errorf("%d of %d other ways were tried", len(r.twice), len(others))
	}
}

// server returns a server that nobody uses yet.
func (r *Run) server(of *postgres.Server) *server {
	s := &server{Server: of, name: fmt.Sprintf("s%d", r.names.Add(1))}
	for _, name := range databases {
		url := strings.Replace(of.URL(), "/postgres?", "/"+name+"?", 1)
		pool, err := pgxpool.New(context.WithoutCancel(r.ctx), url+"&application_name="+fence.Judge)
		fatal.If(r, err)
		r.Cleanup(pool.Close)
		s.urls, s.pools = append(s.urls, url), append(s.pools, pool)
	}
	return s
}

// serve starts two runners for a server, of which one works, and lets writers use it.
func (r *Run) serve(s *server) {
	for _, name := range []string{"a", "b"} {
		p := r.Runner(s.name+name, s.urls)
		fatal.If(r, p.Start())
		s.runners = append(s.runners, p)
	}
	r.mu.Lock()
	r.live = append(r.live, s)
	r.mu.Unlock()
}

// remove takes a server away from writers, and ends it.
func (r *Run) remove(s *server) {
	r.mu.Lock()
	r.live = slices.DeleteFunc(r.live, func(o *server) bool { return o == s })
	r.mu.Unlock()
	for _, p := range s.runners {
		if err := p.Kill(); err != nil {
			r.Error(err)
		}
	}
	s.Stop(r.T)
}

// most is how long the run waits for one event.
const most = 2 * time.Minute

// until waits for an event.
func (r *Run) until(what string, ok func() bool) {
	r.Helper()
	for began := time.Now(); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > most {
			r.Fatalf("waited %v for this: %s", most, what)
		}
	}
}

// Issues waits until writers have got IDs from a server once more.
func (r *Run) Issues(s *server, after string) {
	r.Helper()
	before := s.issued.Load()
	r.until(s.name+" issues after "+after, func() bool { return s.issued.Load() >= before+100 })
}

// Refused returns how often a refusal or error was answered.
func (r *Run) Refused(state string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said[state]
}

// Main returns the runners of the server that lasts.
func (r *Run) Main() []Process { return r.main.runners }

// Until waits for a refusal of this kind from now on.
func (r *Run) Until(state string) {
	r.Helper()
	before := r.Refused(state)
	r.until("a refusal with "+state, func() bool { return r.Refused(state) > before })
}

func (r *Run) exec(s *server, db int, sql string) {
	r.Helper()
	if _, err := s.pools[db].Exec(r.ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		r.Fatal(err)
	}
}

// stopBackends stops processes of servers for up to a second, wherever they are, and terminates some.
func (r *Run) stopBackends() {
	for n := 0; r.ctx.Err() == nil; n++ {
		fence.Sleep(r.ctx, 500*time.Millisecond)
		s := r.pick()
		pid, err := fence.Backend(r.ctx, s.pools[n%2])
		if err != nil {
			continue // The server is down.
		}
		if n%8 == 7 {
			_, _ = s.pools[n%2].Exec(r.ctx, "SELECT pg_terminate_backend($1)", pid) // It may have ended.
			continue
		}
		stopped(r.ctx, pid, time.Second)
	}
}
