package metrics_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/keeper"
	"github.com/flakelease/allocator/internal/lease/leasetest"
	"github.com/flakelease/allocator/internal/metrics"
	"github.com/flakelease/allocator/internal/node"
)

var update = flag.Bool("update", false, "rewrite the reference page")

// rig is a node with a keeper on a store in memory.
type rig struct {
	node    *node.Node
	keeper  *keeper.Keeper
	metrics *metrics.Metrics
	run     func() // the keeper, until the test ends; returns when the node is ready
}

func newRig(t *testing.T) *rig {
	t.Helper()
	cfg := config.Default()
	src := clock.NewSystem()
	store := leasetest.NewMemory(7)
	if _, _, err := store.Init(t.Context(), lease.Space{Layout: cfg.Layout, Epoch: cfg.Epoch, Pool: "p"}, 0); err != nil {
		t.Fatal(err)
	}
	n := node.New(node.Config{Name: "a", Instance: "i", Gen: cfg.Gen(), MaxWait: cfg.Issue.MaxWait, MaxSkew: cfg.Issue.MaxSkew}, src, gen.Random())
	nonce := 0
	k := keeper.New(keeper.Config{
		Machine: lease.Config{
			Registration: lease.Registration{Instance: "i", Node: "a"}, Format: cfg.Format(),
			Window: cfg.Lease.Window, ExtendEvery: cfg.Lease.ExtendEvery, TTL: cfg.Lease.TTL,
			KeepAliveEvery: cfg.Lease.KeepAlive, ReloadEvery: cfg.Lease.ReloadEvery,
			RetryAfter: 10 * time.Millisecond, MaxSkew: cfg.Issue.MaxSkew, MaxLead: cfg.Issue.MaxLead,
			Nonce:  func() string { nonce++; return fmt.Sprint(nonce) },
			Jitter: func(most time.Duration) time.Duration { return rand.N(most) },
		},
		Store: store, Generator: n, Clock: src, Logger: slog.New(slog.DiscardHandler),
		CallTimeout: time.Second, StopTimeout: time.Second,
	})
	r := &rig{node: n, keeper: k}
	r.metrics = metrics.New(metrics.Config{
		Node: n, Keeper: k, Clock: src, Version: "v1.2.3",
		Requests: func(yield func(string, string, int64)) {
			yield("grpc_allocate", "OK", 3)
			yield("grpc_allocate", "NO_SID", 0)
		},
	})
	r.run = func() {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- k.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		for deadline := time.Now().Add(5 * time.Second); n.Ready() != nil; {
			if time.Now().After(deadline) {
				t.Fatalf("not ready: %v", n.Ready())
			}
			time.Sleep(time.Millisecond)
		}
	}
	return r
}

// gather returns the value of each series, by name and labels.
func (r *rig) gather(t *testing.T) (values map[string]float64, families map[string]*dto.MetricFamily) {
	t.Helper()
	list, err := r.metrics.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	values, families = map[string]float64{}, map[string]*dto.MetricFamily{}
	for _, f := range list {
		families[f.GetName()] = f
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				values[key] = m.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				values[key] = m.GetGauge().GetValue()
			case dto.MetricType_HISTOGRAM:
				values[key] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return values, families
}

func TestSeriesOfARunningNode(t *testing.T) {
	r := newRig(t)
	before, _ := r.gather(t)
	for key, want := range map[string]float64{
		"allocator_ready": 0, "allocator_sid": -1, "allocator_window_remaining_seconds": 0,
		"allocator_lease_phase connecting": 1, "allocator_etcd_call_duration_seconds acquire": 0,
		"allocator_etcd_call_errors_total load": 0,
	} {
		if got, ok := before[key]; !ok || got != want {
			t.Errorf("before: %s = %v (present %v), want %v", key, got, ok, want)
		}
	}
	if _, ok := before["allocator_pool_sids free"]; ok {
		t.Error("before: says how many sids are free without having asked")
	}

	r.run()
	if _, err := r.node.Next(t.Context(), 5, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.node.Next(t.Context(), 0, 0); err == nil {
		t.Fatal("count 0 was not refused")
	}
	r.metrics.Observe("grpc_allocate", 20*time.Microsecond)
	after, families := r.gather(t)
	for key, want := range map[string]float64{
		"allocator_ids_issued_total":                       5,
		"allocator_refusals_total INVALID_COUNT":           1,
		"allocator_refusals_total NO_SID":                  0,
		"allocator_requests_total OK grpc_allocate":        3,
		"allocator_request_duration_seconds grpc_allocate": 1,
		"allocator_ready":                                  1,
		"allocator_sid":                                    0,
		"allocator_term":                                   1,
		"allocator_era":                                    1,
		"allocator_lease_phase holding":                    1,
		"allocator_lease_phase connecting":                 0,
		"allocator_pool_sids held":                         1,
		"allocator_pool_sids free":                         31,
		"allocator_pool_sids quarantined":                  0,
		"allocator_history_rewound":                        0,
		"allocator_alarms_total history_rewound":           0,
		"allocator_etcd_call_duration_seconds acquire":     1,
		"allocator_build_info v1.2.3":                      1,
	} {
		if got, ok := after[key]; !ok || got != want {
			t.Errorf("after: %s = %v (present %v), want %v", key, got, ok, want)
		}
	}
	for key, bounds := range map[string][2]float64{
		"allocator_window_remaining_seconds":    {25, 30},
		"allocator_lease_ttl_remaining_seconds": {10, 15},
		"allocator_keeper_tick_age_seconds":     {0, 5},
		"allocator_epoch_remaining_seconds":     {1e9, float64(flake.MaxTimestamp) / 1000},
	} {
		if got := after[key]; got < bounds[0] || got > bounds[1] {
			t.Errorf("after: %s = %v, want within %v", key, got, bounds)
		}
	}
	for _, reason := range node.Reasons {
		if _, ok := after["allocator_refusals_total "+string(reason)]; !ok {
			t.Errorf("no series of reason %s", reason)
		}
	}
	if families["go_goroutines"] == nil || families["process_start_time_seconds"] == nil {
		t.Error("series of the runtime or of the process are missing")
	}

	for _, d := range metrics.Definitions() {
		f := families[d.Name]
		if f == nil {
			t.Errorf("%s is defined and not served", d.Name)
			continue
		}
		kind := map[dto.MetricType]string{
			dto.MetricType_COUNTER: "counter", dto.MetricType_GAUGE: "gauge", dto.MetricType_HISTOGRAM: "histogram",
		}[f.GetType()]
		if kind != d.Kind {
			t.Errorf("%s is a %s, defined as a %s", d.Name, kind, d.Kind)
		}
	}
}

func TestLint(t *testing.T) {
	families, err := newRig(t).metrics.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestReferenceIsCurrent(t *testing.T) {
	const path = "../../docs/reference/metrics.md"
	if *update {
		if err := os.WriteFile(path, []byte(metrics.Reference()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(metrics.Reference(), string(got)); diff != "" {
		t.Errorf("%s is out of date: run go test ./internal/metrics -update\n%s", path, diff)
	}
}
