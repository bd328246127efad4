package collector

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/open-telemetry/opentelemetry-collector-contrib/receiver/sqlqueryreceiver"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/fence"
)

// read starts a receiver with the settings that a Collector's file would have, and returns
// what gives the IDs it has read.
func read(t *testing.T, server *postgres.Server, from string) func() []int64 {
	t.Helper()
	factory := sqlqueryreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig()
	err := component.UnmarshalConfig(confmap.NewFromStringMap(map[string]any{
		"driver":              "postgres",
		"datasource":          fmt.Sprintf("host=%s user=test dbname=postgres sslmode=disable", server.Dir),
		"collection_interval": "50ms",
		"queries": []any{map[string]any{
			"sql":                  "SELECT id FROM " + from + " WHERE id > $1 ORDER BY id",
			"tracking_column":      "id",
			"tracking_start_value": "0",
			"logs":                 []any{map[string]any{"body_column": "id"}},
		}},
	}), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var sink consumertest.LogsSink
	r, err := factory.CreateLogsReceiver(t.Context(), receivertest.NewNopCreateSettings(), cfg, &sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Shutdown(context.WithoutCancel(t.Context())) })
	return func() (ids []int64) {
		for _, logs := range sink.AllLogs() {
			for i := range logs.ResourceLogs().Len() {
				records := logs.ResourceLogs().At(i).ScopeLogs().At(0).LogRecords()
				for j := range records.Len() {
					id, err := strconv.ParseInt(records.At(j).Body().AsString(), 10, 64)
					if err != nil {
						t.Error(err)
					}
					ids = append(ids, id)
				}
			}
		}
		return ids
	}
}

// clock gives marks behind the clock.
type clock time.Duration

func (c clock) Watermark(context.Context) (fence.Mark, error) {
	ms := time.Now().Add(-time.Duration(c)).UnixMilli()
	id, err := flake.Default.Min(ms)
	return fence.Mark{UnixMs: ms, ID: id.Int64()}, err
}

// The receiver reads the view and gets each row once and in order; beside it one of the same
// settings reads the table and loses rows.
func TestCollector(t *testing.T) {
	tier.Check(t, "a PostgreSQL server under load")
	server := postgres.Start(t)
	server.Psql(t, "CREATE TABLE events (id bigint PRIMARY KEY)")
	db, err := fence.Open(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	table, err := db.Table(t.Context(), "events", "id")
	if err == nil {
		err = table.Init(t.Context(), "", func([]fence.Holder) {})
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var moving sync.WaitGroup
	defer moving.Wait()
	defer stop()
	movers := fence.NewMovers(fence.Config{
		Tables:   []*fence.Table{table},
		Source:   clock(300 * time.Millisecond),
		Interval: 50 * time.Millisecond,
		Name:     "test",
		Log:      slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	moving.Go(func() { movers.Run(ctx) })
	complete, naive := read(t, server, "events_complete"), read(t, server, "events")

	pool, err := pgxpool.New(t.Context(), server.URL()+"&pool_max_conns=20")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var last, refused atomic.Int64
	next := func() int64 {
		smallest, _ := flake.Default.Min(time.Now().UnixMilli())
		for {
			was := last.Load()
			if id := max(was+1, smallest.Int64()); last.CompareAndSwap(was, id) {
				return id
			}
		}
	}
	insert := func() error {
		id := next()
		time.Sleep(time.Duration(rand.Int64N(int64(320 * time.Millisecond)))) // A writer may be slow.
		tx, err := pool.Begin(t.Context())
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		if _, err := tx.Exec(t.Context(), "INSERT INTO events VALUES ($1)", id); err != nil {
			if strings.Contains(err.Error(), fence.Refused) {
				refused.Add(1)
				return nil
			}
			return err
		}
		time.Sleep(time.Duration(rand.Int64N(int64(500 * time.Millisecond))))
		return tx.Commit(t.Context())
	}
	var writers sync.WaitGroup
	each := tier.Of(t, "rows of a writer", 0, 12, 200)
	for range 16 {
		writers.Go(func() {
			for range each {
				if err := insert(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()

	rows, err := pool.Query(t.Context(), "SELECT id FROM events ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	var want []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		want = append(want, id)
	}
	for deadline := time.Now().Add(30 * time.Second); len(complete()) < len(want); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			break
		}
	}
	got := complete()
	if !slices.Equal(got, want) {
		t.Errorf("of %d rows the receiver got %d from the view; in order: %v", len(want), len(got), slices.IsSorted(got))
	}
	fromTable := len(naive())
	if fromTable >= len(want) {
		t.Errorf("from the table it got %d of %d rows: the test shows nothing", fromTable, len(want))
	}
	t.Logf("%d rows, %d refused; from the view %d, from the table %d", len(want), refused.Load(), len(got), fromTable)
}
