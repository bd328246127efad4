package broker_test

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/devetcd"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/worker"
	"github.com/flakelease/allocator/internal/worker/broker"
)

// TestThousandWorkers: 1,000 workers of three nodes that extend when they are told to for
// three minutes. Each costs at most 0.25 writes a second and, with the store in memory and
// its history, 20 kB.
func TestThousandWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t)
		const many, minutes = 1000, 3
		var nodes []*broker.Broker
		for range 3 {
			b, _ := c.node(lease.SIDRange{From: 24, To: 24 + many})
			nodes = append(nodes, b)
		}
		before := heap()
		all := make([]worker.Worker, many)
		client := broker.Client{Owner: "shop", Quota: many}
		for i := range all {
			var err error
			if all[i], err = nodes[i%3].Acquire(t.Context(), client, worker.Acquire{Name: fmt.Sprint("worker-", i)}); err != nil {
				t.Fatal(err)
			}
		}
		writes := func() int { return c.faulty.Calls("acquire") + c.faulty.Calls("extend") + c.faulty.Calls("rehold") }
		acquired, began := writes(), c.Now().Wall
		for c.Now().Wall < began+minutes*60_000 {
			for i, w := range all {
				if c.Now().Wall < w.ExtendAt {
					continue
				}
				var err error
				if all[i], err = nodes[(i+int(w.Now/1000))%3].Extend(t.Context(), client, worker.Extend{Handle: w.Handle, NotAfter: w.NotAfter}); err != nil {
					t.Fatalf("worker %d: %v", i, err)
				}
			}
			c.pass(time.Second)
		}
		rate := float64(writes()-acquired) / many / (minutes * 60)
		bytes := float64(heap()-before) / many
		t.Logf("%.3f writes a second and %.1f kB for each worker", rate, bytes/1000)
		if rate > 0.25 || rate < 0.03 {
			t.Errorf("%.3f writes a second for each worker, want at most 0.25", rate)
		}
		if bytes > 20_000 {
			t.Errorf("%.0f bytes for each worker, want at most 20,000", bytes)
		}
		runtime.KeepAlive(nodes)
	})
}

// heap returns the bytes that are in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkAcquireOnEtcd acquires and releases workers on an etcd of its own that syncs
// its disk, one after the other.
func BenchmarkAcquireOnEtcd(b *testing.B) {
	etcd, err := devetcd.Start(b.Context(), devetcd.Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = etcd.Close() }()
	client, err := etcdstore.Dial(etcdstore.Config{Endpoints: []string{etcd.Endpoint()}, DialTimeout: 3 * time.Second, Log: slog.DiscardHandler})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	store, err := etcdstore.New(client, "allocator", "bench")
	if err != nil {
		b.Fatal(err)
	}
	src := clock.NewSystem(clock.SystemConfig{})
	if _, _, err := store.Init(b.Context(), lease.Space{Layout: flake.Fleet, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "p"}, src.Now().Wall); err != nil {
		b.Fatal(err)
	}
	v, err := store.Load(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	status := lease.Status{Space: v.Config.Value, Era: v.Era.Value, Cluster: v.Cluster, Revision: v.Revision, Listed: true, GateOpen: true}
	n := node.New(node.Config{Name: "n", Gen: gen.Config{Layout: flake.Fleet, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 250}}, src, gen.Random())
	n.Report(status)
	broker := broker.New(broker.Config{
		SIDs: lease.SIDRange{From: 24, To: 1024}, Bounds: lease.Bounds{WorkerWindow: window, MaxSkew: 250 * time.Millisecond, MaxLead: 250 * time.Millisecond}, CallTimeout: 2 * time.Second,
		Node: n, Keeper: fixed{status}, Store: store, Logger: slog.New(slog.DiscardHandler),
	})
	many := benchClient
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		w, err := broker.Acquire(b.Context(), many, worker.Acquire{Name: "w", Secret: rand.Text()}) // with a secret of its own, as package worker does
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
		if _, err := broker.Release(b.Context(), many, w.Handle, w.NotBefore+1); err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// benchClient may call as often as it likes.
var benchClient = broker.Client{Owner: "bench", Quota: 1_000_000}

// fixed knows what it was given.
type fixed struct{ status lease.Status }

func (f fixed) Status() lease.Status { return f.status }
func (fixed) Limit() lease.Limit     { return lease.Limit{Extend: math.MaxInt64, Acquire: math.MaxInt64} }

var (
	_ broker.Store = (*etcdstore.Store)(nil)
	_ broker.Store = (*storetest.Memory)(nil)
)
