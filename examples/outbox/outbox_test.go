package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/flakelease/allocator/chaos/devtest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/chaos/proc"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/client/clienttest"
	"github.com/flakelease/allocator/examples/internal/rig"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// reader is a reader of events as the comment of event says.
type reader struct {
	last map[flake.ID]flake.ID // by order
	had  []event
}

func (r *reader) read(_ context.Context, events []event) error {
	for _, e := range events {
		if e.ID > r.last[e.Order] {
			r.last[e.Order] = e.ID
			r.had = append(r.had, e)
		}
	}
	return nil
}

// Two servers change the same orders and two relays publish, a node and a relay are
// killed: no request fails, and a reader gets each event once, in the order of its order.
func TestOutboxThroughFaults(t *testing.T) {
	database := "DATABASE_URL=" + postgres.Start(t).URL()
	c := rig.NewCluster(t)
	program := rig.Build(t, "outbox")
	var urls []string
	for range 2 {
		at := loopback.Address()
		p := devtest.Start(t, []string{database, "NODES=" + strings.Join(c.GRPC, ","), "LISTEN=" + at}, program, "serve")
		p.Answers(t, http.StatusNotFound, "http://"+at)
		urls = append(urls, "http://"+at)
	}
	topic := filepath.Join(t.TempDir(), "topic")
	var relays []*proc.Process
	for range 2 {
		relays = append(relays, devtest.Start(t, []string{database}, "sh", "-c", `exec "$0" relay >>"$1"`, program, topic))
	}

	const writers, each, payments = 4, 40, 4
	post := func(url string) (id flake.ID) {
		res, err := http.Post(url, "", nil)
		if err != nil {
			t.Error(err)
			return 0
		}
		defer res.Body.Close()
		var made struct{ ID flake.ID }
		if res.StatusCode == http.StatusCreated {
			err = json.NewDecoder(res.Body).Decode(&made)
		}
		if err != nil || res.StatusCode >= 300 {
			t.Errorf("POST %s: %s, %v", url, res.Status, err)
		}
		return made.ID
	}
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for n := range each {
				id := post(urls[w%2] + "/orders")
				if id == 0 {
					return
				}
				var paying sync.WaitGroup
				for i := range payments {
					paying.Go(func() { post(fmt.Sprintf("%s/orders/%v/pay", urls[i%2], id)) })
				}
				paying.Wait()
				if w == 0 && n == each/3 {
					c.Nodes[0].Kill()
				}
				if w == 0 && n == each/2 {
					relays[0].Kill()
				}
			}
		})
	}
	all.Wait()

	const want = writers * each * (1 + payments)
	var r reader
	lines := 0
	for began := time.Now(); len(r.had) < want && time.Since(began) < wait.Most; time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(topic)
		fatal.If(t, err)
		r, lines = reader{last: map[flake.ID]flake.ID{}}, 0
		for line := range bytes.Lines(text) {
			var e event
			if json.Unmarshal(line, &e) != nil { // cut off by the kill
				continue
			}
			lines++
			_ = r.read(t.Context(), []event{e})
		}
	}
	if len(r.had) != want {
		t.Errorf("the reader had %d events, not %d", len(r.had), want)
	}
	t.Logf("%d events, published %d times", len(r.had), lines)
}

func open(t *testing.T) *pgxpool.Pool {
	db, err := pgxpool.New(t.Context(), postgres.Start(t).URL())
	fatal.If(t, err)
	t.Cleanup(db.Close)
	fatal.If(t, createTables(t.Context(), db))
	return db
}

// An event whose transaction commits late, below one that was published, is published. A
// reader of the table that goes on above the last ID does not get it.
func TestLateCommit(t *testing.T) {
	db := open(t)
	ids := clienttest.NewClient(t, client.Options{}, clienttest.NewNode(clienttest.Options{}))
	o := &orders{db: db, ids: ids}
	ctx := t.Context()

	early, err := ids.Next(ctx)
	fatal.If(t, err)
	tx, err := db.Begin(ctx)
	fatal.If(t, err)
	fatal.If(t, announce(ctx, tx, event{early, early, "new"}))
	late, err := o.create(ctx)
	fatal.If(t, err)
	r := reader{last: map[flake.ID]flake.ID{}}
	var last int64 // of a reader that goes on above it
	var above []int64
	naive := func() {
		t.Helper()
		rows, err := db.Query(ctx, `SELECT id FROM outbox WHERE id > $1 ORDER BY id`, last)
		fatal.If(t, err)
		got, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		fatal.If(t, err)
		if above = append(above, got...); len(above) > 0 {
			last = above[len(above)-1]
		}
	}
	for range 2 {
		naive()
		// The relay fails once after it published, and publishes again.
		failed := errors.New("no confirmation")
		if _, err := relayOnce(ctx, db, func(ctx context.Context, e []event) error { _ = r.read(ctx, e); return failed }); !errors.Is(err, failed) {
			t.Fatal(err)
		}
		if n, err := relayOnce(ctx, db, r.read); n != 1 || err != nil {
			t.Fatalf("%d events, %v", n, err)
		}
		_ = tx.Commit(ctx) // the second time it is over
	}
	if want := []event{{late, late, "new"}, {early, early, "new"}}; !slices.Equal(r.had, want) {
		t.Errorf("published %v, not %v", r.had, want)
	}
	if !slices.Equal(above, []int64{late.Int64()}) {
		t.Errorf("a reader that goes on above the last ID got %v: the test shows nothing", above)
	}
}

// Events of an order have rising IDs though nodes with different clocks issue them, and a
// change that fails leaves nothing.
func TestEventsOfAnOrderRise(t *testing.T) {
	db := open(t)
	ahead := clienttest.NewNode(clienttest.Options{SID: 1})
	ahead.Advance(100 * time.Millisecond)
	behind := clienttest.NewNode(clienttest.Options{SID: 2})
	one := &orders{db: db, ids: clienttest.NewClient(t, client.Options{}, ahead)}
	two := &orders{db: db, ids: clienttest.NewClient(t, client.Options{}, behind)}
	id, err := one.create(t.Context())
	fatal.If(t, err)
	for i := range 10 {
		fatal.If(t, []*orders{one, two}[i%2].change(t.Context(), id, fmt.Sprint(i)))
	}
	behind.Refuse(client.Refusal{Reason: client.ClockSkew})
	two.ids = clienttest.NewClient(t, client.Options{Timeout: time.Second}, behind)
	if err := two.change(t.Context(), id, "refused"); !errors.Is(err, &client.Refusal{Reason: client.ClockSkew}) {
		t.Errorf("a refusal: %v", err)
	}
	if err := one.change(t.Context(), id+1, "unknown"); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("an order that is not there: %v", err)
	}
	r := reader{last: map[flake.ID]flake.ID{}}
	if _, err := relayOnce(t.Context(), db, r.read); err != nil {
		t.Fatal(err)
	}
	states := ""
	for _, e := range r.had {
		states += " " + e.State
	}
	if states != " new 0 1 2 3 4 5 6 7 8 9" {
		t.Errorf("states in the order of IDs:%s", states)
	}
}
