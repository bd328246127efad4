package metrics_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon/metrics"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/keeper"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/status/feed"
	"github.com/flakelease/allocator/internal/watermark"
)

// rig is a node with a keeper on a store in memory.
type rig struct {
	node    *node.Node
	keeper  *keeper.Keeper
	latency *metrics.Latencies
	metrics prometheus.Gatherer
	clocks  *clock.Report // that the series are made of
	run     func()        // the keeper, until the test ends; returns when the node is ready
}

func newRig(t *testing.T) *rig {
	t.Helper()
	cfg := config.Default()
	cfg.Space, cfg.Etcd.Inside.Quota = "orders", 1000
	src := clock.NewSystem(nil)
	store := storetest.NewMemory(7)
	if _, _, err := store.Init(t.Context(), lease.Space{Layout: cfg.Layout, Epoch: cfg.Epoch, Pool: "p"}, 0); err != nil {
		t.Fatal(err)
	}
	n := node.New(node.Config{Name: "a", Instance: "i", Gen: cfg.Gen(), MaxWait: cfg.Issue.MaxWait, MaxSkew: cfg.Issue.MaxSkew}, src, gen.Random())
	nonce := 0
	k := keeper.New(keeper.Config{
		Machine: lease.Config{
			Registration: lease.Registration{Instance: "i", Node: "a"}, Format: cfg.Format(),
			Bounds: cfg.Bounds(), ExtendEvery: cfg.Lease.ExtendEvery, TTL: cfg.Lease.TTL,
			KeepAliveEvery: cfg.Lease.KeepAlive, ReloadEvery: cfg.Lease.ReloadEvery,
			RetryAfter: 10 * time.Millisecond,
			Nonce:      func() string { nonce++; return fmt.Sprint(nonce) },
			Jitter:     func(most time.Duration) time.Duration { return rand.N(most) },
		},
		Store: store, Generator: n, Clock: src, Logger: slog.New(slog.DiscardHandler),
		CallTimeout: time.Second, StopTimeout: time.Second,
	})
	r := &rig{node: n, keeper: k, clocks: troubled(), latency: metrics.NewLatencies([]string{"grpc_allocate"})}
	r.metrics = metrics.New(metrics.Config{
		Node: n, Keeper: k, Marks: marks(cfg), Clock: src, Version: "v1.2.3", Latencies: r.latency,
		Settings: cfg,
		Clocks:   func() clock.Report { return *r.clocks },
		Inside: func() inside.Health {
			return inside.Health{Up: true, Quorum: member.Quorum{Voters: 3, Healthy: 2}, Size: 100, Free: 500, Snapshot: time.Unix(1, 0), Copied: time.Unix(1, 0)}
		},
		Security: func() metrics.Security {
			return metrics.Security{
				Listeners:    map[string]quota.Stats{"grpc": {Open: 4, Refused: 9, Slowed: 3, Closed: map[string]int64{"room": 2}}},
				Files:        map[string]feed.Files{"tls": {Reloads: 2}, "tokens": {Failing: true}},
				Certificates: map[string]time.Time{"server": src.Now().Wall.Time().Add(time.Hour)},
			}
		},
		Gossip: func() cluster.Stats {
			return cluster.Stats{Exchanges: 40, Unanswered: 3, Dropped: map[string]uint64{"forged": 2}}
		},
		Requests: func() []server.Count {
			return []server.Count{{Surface: "grpc_allocate", Outcome: "OK", Requests: 3}, {Surface: "grpc_allocate", Outcome: "NO_SID"}}
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
		wait.Until(t, "the node is ready", func() bool { return n.Ready() == nil })
	}
	return r
}

// marks reads a watermark that a node holds back.
func marks(cfg config.Config) *watermark.Reader {
	now := clock.Millis(flake.DefaultEpoch + 100_000)
	n := node.New(node.Config{Name: "a", Gen: cfg.Gen()}, clocktest.NewManual(now), gen.Random())
	n.Report(lease.Status{Held: true, Mark: lease.Mark{At: now - 2500, Nonce: "n",
		Blocked: []lease.Blocker{{SID: 3, Node: "b", Why: lease.BlockedSilent, Floor: now - 2500}}}})
	return watermark.New(n, watermark.Config{Interval: cfg.Watermark.Interval, Vanished: cfg.VanishedDelay()})
}

// troubled is a report with a figure of each kind.
func troubled() *clock.Report {
	peer := func(name string, sid int, term int64, offset time.Duration) clock.PeerReport {
		return clock.PeerReport{Name: name, Fresh: true, SID: sid, Term: term, Offset: offset, Error: 2 * time.Millisecond}
	}
	silent := peer("e", 9, 1, time.Hour)
	silent.Fresh = false
	return &clock.Report{
		Gate: clock.GateStats{
			Verdict: clock.Verdict{State: clock.Skewed, Phase: clock.Shut},
			Judgement: clock.Judgement{
				Finding: clock.SelfFalse, Registered: 7, Quorum: 4, Agree: 1, Disagree: 4, Ambiguous: 1, Silent: 1,
				Known: true, Offset: -750 * time.Millisecond, Uncertainty: 3 * time.Millisecond, Falsetickers: []string{"c", "d"},
			},
			Shuts: 5, Unverified: 90 * time.Second,
		},
		Anchor: clock.AnchorStats{
			StepsForward: 11, StepsBack: 12, NudgesForward: 13, NudgesBack: 14, Suspends: 15, Stalls: 16,
			Pending: true, Held: 1500 * time.Millisecond, TickDelay: 100 * time.Millisecond,
		},
		Kernel: clock.Kernel{Known: true, Synchronized: true, MaxError: 8 * time.Millisecond},
		Peers: []clock.PeerReport{
			peer("b", 4, 1, 250*time.Millisecond),
			peer("c", 5, 6, time.Second), peer("d", 5, 7, 2*time.Second), // both claim sid 5: the later term counts
			silent, peer("f", -1, 0, time.Hour), peer("g", 32, 1, time.Hour), // no such sid in this layout
		},
		Gossip: 6, Discontinuities: 17,
	}
}

// gather returns the value of each series, by name and labels.
func (r *rig) gather(t *testing.T) (values map[string]float64, families map[string]*dto.MetricFamily) {
	t.Helper()
	list, err := r.metrics.Gather()
	fatal.If(t, err)
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
	r.latency.Observe("grpc_allocate", 20*time.Microsecond)
	counts := r.latency.Of([]string{"grpc_allocate"})
	if counts[1] != 1 || counts[0] != 0 || counts[2] != 0 || len(counts) != len(metrics.LatencyBounds)+1 {
		t.Errorf("a request of 20 µs is counted as %v", counts)
	}
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
		"allocator_watermark_lag_seconds":                  2.5,
		"allocator_watermark_held":                         0,
		"allocator_watermark_blocked silent":               1,
		"allocator_watermark_blocked vanished":             0,
		"allocator_watermark_readers":                      0,
		"allocator_setting_seconds watermark.interval":     5,
		"allocator_alarms_total history_rewound":           0,
		"allocator_etcd_call_duration_seconds acquire":     1,
		"allocator_build_info v1.2.3":                      1,
		"allocator_connections grpc":                       4,
		"allocator_connections_refused_total grpc":         9,
		"allocator_connections_slowed_total grpc":          3,
		"allocator_connections_closed_total room grpc":     2,
		"allocator_reload_failing tokens":                  1,
		"allocator_reload_failing tls":                     0,
		"allocator_reloads_total tls":                      2,
		"allocator_etcd_member_up":                         1,
		"allocator_etcd_members voting":                    3,
		"allocator_etcd_members answering":                 2,
		"allocator_etcd_database_bytes":                    100,
		"allocator_etcd_quota_bytes":                       1000,
		"allocator_etcd_disk_free_bytes":                   500,
		"allocator_node_info scalable a orders":            1,
		"allocator_setting_seconds lease.window":           30,
		"allocator_setting_seconds lease.ttl":              15,
		"allocator_setting_seconds issue.max-skew":         0.25,
	} {
		if got, ok := after[key]; !ok || got != want {
			t.Errorf("after: %s = %v (present %v), want %v", key, got, ok, want)
		}
	}
	for key := range after {
		name, ok := strings.CutPrefix(key, "allocator_setting_seconds ")
		if ok && !slices.ContainsFunc(config.Options(), func(o config.Option) bool { return o.Key == name }) {
			t.Errorf("%s: there is no such setting", key)
		}
	}
	for key, bounds := range map[string][2]float64{
		"allocator_window_remaining_seconds":                 {1, 30},
		"allocator_lease_ttl_remaining_seconds":              {1, 15},
		"allocator_keeper_tick_age_seconds":                  {0, 15},
		"allocator_epoch_remaining_seconds":                  {1e9, float64((1<<43 - 1)) / 1000},
		"allocator_tls_certificate_remaining_seconds server": {3000, 3601},
	} {
		if got := after[key]; got < bounds[0] || got > bounds[1] {
			t.Errorf("after: %s = %v, want within %v", key, got, bounds)
		}
	}
	for _, reason := range node.Reasons {
		if _, ok := after["allocator_refusals_total "+reason.String()]; !ok {
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
		want := dto.MetricType_GAUGE // as the reference says
		switch {
		case strings.HasSuffix(d.Name, "_total"):
			want = dto.MetricType_COUNTER
		case strings.HasSuffix(d.Name, "_duration_seconds"):
			want = dto.MetricType_HISTOGRAM
		}
		if f.GetType() != want {
			t.Errorf("%s is a %s, and its name says %s", d.Name, f.GetType(), want)
		}
	}
}

// TestSeriesOfClocks: sids are the only labels that peers bring, each comes once,
// and what is not known is not told.
func TestSeriesOfClocks(t *testing.T) {
	r := newRig(t)
	got, families := r.gather(t)
	for key, want := range map[string]float64{
		"allocator_clock_verdict open": 0, "allocator_clock_verdict skewed": 1, "allocator_clock_verdict unverified": 0,
		"allocator_clock_phase shut": 1, "allocator_clock_phase confirmed": 0,
		"allocator_clock_finding self_false": 1, "allocator_clock_finding agreed": 0,
		"allocator_clock_nodes agree": 1, "allocator_clock_nodes disagree": 4,
		"allocator_clock_nodes ambiguous": 1, "allocator_clock_nodes silent": 1,
		"allocator_clock_quorum": 4, "allocator_clock_falsetickers": 2,
		"allocator_clock_cluster_offset_seconds": -0.75, "allocator_clock_cluster_uncertainty_seconds": 0.003,
		"allocator_clock_offset_seconds 4": 0.25, "allocator_clock_uncertainty_seconds 4": 0.002,
		"allocator_clock_offset_seconds 5": 2,
		"allocator_clock_shuts_total":      5, "allocator_clock_unverified_seconds_total": 90,
		"allocator_clock_discontinuities_total": 17,
		"allocator_clock_steps_total forward":   11, "allocator_clock_steps_total back": 12,
		"allocator_clock_nudges_total forward": 13, "allocator_clock_nudges_total back": 14,
		"allocator_clock_suspends_total": 15, "allocator_clock_stalls_total": 16,
		"allocator_clock_step_pending": 1, "allocator_clock_held_seconds": 1.5, "allocator_clock_tick_delay_seconds": 0.1,
		"allocator_clock_kernel_synchronized": 1, "allocator_clock_kernel_max_error_seconds": 0.008,
		"allocator_gossip_members": 6, "allocator_gossip_exchanges_total": 40, "allocator_gossip_unanswered_total": 3,
		"allocator_gossip_dropped_total forged": 2, "allocator_gossip_dropped_total stale": 0,
	} {
		if v, ok := got[key]; !ok || v != want {
			t.Errorf("%s = %v (present %v), want %v", key, v, ok, want)
		}
	}
	if n := len(families["allocator_clock_offset_seconds"].GetMetric()); n != 2 {
		t.Errorf("offsets of %d peers, want those of sids 4 and 5", n)
	}

	*r.clocks = clock.Report{} // before the first evaluation, on a kernel that does not say
	got, families = r.gather(t)
	for _, name := range []string{
		"allocator_clock_cluster_offset_seconds", "allocator_clock_cluster_uncertainty_seconds", "allocator_clock_offset_seconds",
		"allocator_clock_uncertainty_seconds", "allocator_clock_kernel_synchronized", "allocator_clock_kernel_max_error_seconds",
	} {
		if families[name] != nil {
			t.Errorf("%s is told and not known", name)
		}
	}
	for key, want := range map[string]float64{
		"allocator_clock_verdict unverified": 1, "allocator_clock_verdict open": 0, "allocator_clock_phase starting": 1,
		"allocator_clock_steps_total forward": 0, "allocator_clock_shuts_total": 0,
	} {
		if v, ok := got[key]; !ok || v != want {
			t.Errorf("at the start: %s = %v (present %v), want %v", key, v, ok, want)
		}
	}
}

func TestLint(t *testing.T) {
	families, err := newRig(t).metrics.Gather()
	fatal.If(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	fatal.If(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
