// Package fence shows that readers of fenced tables get every committed row once and in
// order, from a real PostgreSQL under faults, and that other ways to read lose rows in the
// same run. Tests call it with a source of IDs and of marks.
package fence

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/fence"
)

// The tables of each database: one with its fence, and one each whose fence lacks a part.
const (
	whole     = "events"
	noWait    = "no_wait"
	noTrigger = "no_trigger"
)

const (
	interval = 100 * time.Millisecond // Fences are moved so often.
	pause    = 800 * time.Millisecond // the longest delay of a writer that is in time
)

// Config says where IDs and marks come from. All fields but Faults and Program are required.
type Config struct {
	Next func(context.Context) (flake.ID, error) // It gives IDs to writers.
	// Mark gives the marks of the fences that lack a part. Those of the whole fence come from
	// the program that Mover starts.
	Mark  func(context.Context) (fence.Mark, error)
	Mover []string // "allocator fence run" and its flags for marks
	// Faults injects faults into what gives IDs and marks, until ctx ends. It calls all once each of
	// them has had its turn.
	Faults func(ctx context.Context, all func())

	Writers int
	Program []string      // Its processes call Writers; some of them are killed and stopped.
	For     time.Duration // Writers begin transactions for so long, and until all faults had their turn.
	Late    time.Duration // Some insert up to this long after they drew an ID.
	Settle  time.Duration // Readers pass the last ID within this.
}

// run is a server with two databases, and its writers.
type run struct {
	*testing.T
	Config
	urls [2]string
	pool [2]*pgxpool.Pool // Faults and judges use it.

	committed, refused, failed atomic.Int64
	killed, stopped            atomic.Int64 // processes of writers
}

// Run has writers that wait between drawing an ID, inserting and committing, at all
// levels of isolation. Processes of the server and movers are stopped and killed. Readers of
// the fenced table, and one of both databases, get each row once and in order. Readers
// without a fence, and with a fence that does not wait or has no trigger, lose rows.
func Run(t *testing.T, cfg Config) {
	t.Helper()
	s := postgres.Start(t, "max_connections=250", "max_prepared_transactions=100", "restart_after_crash=on")
	r := &run{T: t, Config: cfg}
	s.Psql(t, "CREATE DATABASE other")
	for i, name := range []string{"postgres", "other"} {
		var err error
		r.urls[i] = strings.Replace(s.URL(), "/postgres?", "/"+name+"?", 1)
		if r.pool[i], err = pgxpool.New(t.Context(), r.urls[i]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.pool[i].Close)
	}
	r.create()

	ctx, stop := context.WithCancel(t.Context())
	var background sync.WaitGroup
	defer background.Wait()
	defer stop()
	for range 2 {
		background.Go(func() { r.mover(ctx) })
	}
	for i := range r.urls {
		background.Go(func() { r.move(ctx, i, noWait) })
		background.Go(func() { r.move(ctx, i, noTrigger) })
	}
	readers := r.readers()
	for _, to := range readers {
		background.Go(func() { to.run(ctx, r) })
	}
	parts := &parts{of: r}
	background.Go(func() { parts.run(ctx) })

	// Writers end before faults do, so that what they leave behind is met with faults.
	writing, enough := context.WithCancel(ctx)
	defer enough()
	var writers, faults sync.WaitGroup
	if cfg.Program != nil {
		for range processes {
			writers.Go(func() { r.process(writing) })
		}
	}
	for range cfg.Writers {
		writers.Go(func() {
			for writing.Err() == nil {
				r.write(ctx, writing)
			}
		})
	}
	faults.Go(func() { r.faults(writing) })
	had := make(chan struct{})
	if cfg.Faults == nil {
		close(had)
	} else {
		faults.Go(func() { cfg.Faults(writing, sync.OnceFunc(func() { close(had) })) })
	}
	time.Sleep(cfg.For)
	select {
	case <-had:
	case <-time.After(cfg.Settle):
		t.Fatalf("some faults did not have their turn within %v more", cfg.Settle)
	}
	enough()
	writers.Wait()
	faults.Wait()
	r.settle(readers)
	stop()
	background.Wait()
	t.Logf("%d transactions committed, %d refused by the trigger, %d failed",
		r.committed.Load(), r.refused.Load(), r.failed.Load())
	if cfg.Program != nil {
		t.Logf("processes of writers were killed %d times and stopped %d times", r.killed.Load(), r.stopped.Load())
		if r.killed.Load() == 0 || r.stopped.Load() == 0 {
			t.Error("no process of writers was killed, or none was stopped")
		}
	}
	if r.refused.Load() == 0 {
		t.Error("no row was refused: the trigger was not tested")
	}
	for _, to := range readers {
		r.judge(to)
	}
	parts.log(readers)
}

// create makes the tables and their fences.
func (r *run) create() {
	for i := range r.urls {
		parts := ` PARTITION BY HASH (id);
			CREATE TABLE %[1]s_0 PARTITION OF %[1]s FOR VALUES WITH (MODULUS 2, REMAINDER 0);
			CREATE TABLE %[1]s_1 PARTITION OF %[1]s FOR VALUES WITH (MODULUS 2, REMAINDER 1)`
		if i == 0 {
			parts = ``
		}
		db, err := fence.Open(r.urls[i])
		fatal.If(r, err)
		defer db.Close()
		for _, name := range []string{whole, noWait, noTrigger} {
			sql := "CREATE TABLE " + name + " (id bigint PRIMARY KEY)" + strings.ReplaceAll(parts, "%[1]s", name)
			if _, err := r.pool[i].Exec(r.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				r.Fatal(err)
			}
			table, err := db.Table(r.Context(), name, "id")
			fatal.If(r, err)
			fatal.If(r, table.Init(r.Context(), "", flake.Default, func([]fence.Holder) {}))
		}
		if _, err := r.pool[i].Exec(r.Context(), "DROP TRIGGER no_trigger_fence_insert ON no_trigger"); err != nil {
			r.Fatal(err)
		}
	}
}

// settle waits until all readers of views have passed the last ID.
func (r *run) settle(readers []*reader) {
	end, err := r.Next(r.Context())
	fatal.If(r, err)
	for deadline := time.Now().Add(r.Settle); ; time.Sleep(50 * time.Millisecond) {
		behind := 0
		for i := range r.pool {
			r.endPrepared(r.Context(), i, 0)
		}
		for _, to := range readers {
			if to.view != to.table && to.past.Load() < end.Int64() {
				behind++
			}
		}
		if behind == 0 {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("%d readers have not passed the last ID", behind)
		}
	}
}

// parts is how far a view lags behind the clock at any time, and how far and why at each move.
type parts struct {
	of                   *run
	lag, age, mark, wait []time.Duration
}

func (p *parts) run(ctx context.Context) {
	raisedTo := map[int64]time.Time{} // when the floor was raised to a time
	var last time.Time
	for ; ctx.Err() == nil; Sleep(ctx, 20*time.Millisecond) {
		var ms, floor int64
		var raised, moved, now time.Time
		err := p.of.pool[0].QueryRow(ctx, `SELECT floor_ms, floor_at, readable_ms, readable_at, clock_timestamp()
			FROM events_fence`).Scan(&floor, &raised, &ms, &moved, &now)
		if err != nil {
			continue // It was not moved yet, or the server recovers.
		}
		p.lag = append(p.lag, now.Sub(time.UnixMilli(ms)))
		if _, known := raisedTo[floor]; !known {
			raisedTo[floor] = raised
		}
		if at, known := raisedTo[ms]; known && moved.After(last) {
			last = moved
			p.age = append(p.age, moved.Sub(time.UnixMilli(ms)))
			p.mark = append(p.mark, at.Sub(time.UnixMilli(ms)))
			p.wait = append(p.wait, moved.Sub(at))
		}
	}
}

func (p *parts) log(readers []*reader) {
	var poll []time.Duration
	for _, to := range readers {
		poll = append(poll, to.poll...)
	}
	p.of.Logf("the view lags behind the clock by %s; when it moved by %s, of which "+
		"the mark %s, transactions %s; readers saw that it had moved after %s",
		Percentiles(p.lag), Percentiles(p.age), Percentiles(p.mark), Percentiles(p.wait), Percentiles(poll))
	if len(poll) == 0 || len(p.wait) == 0 {
		p.of.Error("the parts of the lag were not measured")
	}
}

// Percentiles returns the median and the 99th percentile of times.
func Percentiles(of []time.Duration) string {
	if len(of) == 0 {
		return "never"
	}
	slices.Sort(of)
	return fmt.Sprintf("p50 %v, p99 %v", of[len(of)/2].Round(time.Millisecond),
		of[len(of)*99/100].Round(time.Millisecond))
}

// Sleep waits for a random time up to limit, mostly a short one.
func Sleep(ctx context.Context, limit time.Duration) {
	x := rand.Float64()
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(x * x * x * float64(limit))):
	}
}
