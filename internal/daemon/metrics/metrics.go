package metrics

import (
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/keeper"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/watermark"
)

// Config is what the series are read from. All fields are required, but Clocks, Security
// and Gossip.
type Config struct {
	Node     *node.Node
	Keeper   *keeper.Keeper
	Clock    clock.Source
	Version  string
	Settings config.Config
	// Latencies has how long requests took.
	Latencies *Latencies
	// Requests returns the number of requests so far of each surface and outcome.
	Requests func() []server.Count
	// Clocks returns the measurements of this node's clock and its peers'. nil:
	// there are no such series.
	Clocks func() clock.Report
	// Marks reads the watermark. nil: there are no such series.
	Marks *watermark.Reader
	// Security returns the state of connections, certificates and tokens. nil: there
	// are no such series.
	Security func() Security
	// Inside returns the state of the node's member of etcd. nil: it has none, and there are no
	// such series.
	Inside func() inside.Health
	// Gossip returns the counters of gossip. nil: gossip is disabled.
	Gossip func() cluster.Stats
}

// compared returns the settings that alerts compare other series with, so that the
// alerts are right for every configuration, by their keys.
func compared(c config.Config) map[string]time.Duration {
	return map[string]time.Duration{
		"lease.window": c.Lease.Window, "lease.ttl": c.Lease.TTL, "issue.max-skew": c.Issue.MaxSkew,
		"issue.max-lead": c.Issue.MaxLead, "watermark.interval": c.Watermark.Interval,
	}
}

// latencyBuckets are upper bounds in seconds. A request takes about 10 µs, or up to
// 100 ms if it waits for the clock.
var latencyBuckets = []float64{
	10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1,
}

// New returns what has the series of the node, of the Go runtime and of the process.
func New(cfg Config) prometheus.Gatherer {
	c := collector{cfg: cfg, desc: map[string]*prometheus.Desc{}}
	for _, d := range definitions {
		if d.Name != issueLatency {
			c.desc[d.Name] = d.desc()
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(c, cfg.Latencies.all,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// Latencies has how long requests took.
type Latencies struct {
	all *prometheus.HistogramVec
	of  map[string]prometheus.Observer // by surface
}

// NewLatencies returns one for requests on these surfaces.
func NewLatencies(surfaces []string) *Latencies {
	i := slices.IndexFunc(definitions, func(d definition) bool { return d.Name == issueLatency })
	d := definitions[i]
	l := &Latencies{
		all: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: d.Name, Help: d.Help, Buckets: latencyBuckets,
		}, d.Labels),
		of: map[string]prometheus.Observer{},
	}
	for _, surface := range surfaces {
		l.of[surface] = l.all.WithLabelValues(surface)
	}
	return l
}

// Observe records how long a request on a surface took. It is safe for concurrent use.
func (l *Latencies) Observe(surface string, took time.Duration) {
	l.of[surface].Observe(took.Seconds())
}

// LatencyBounds are the upper bounds of the counts of Of; the last count has no bound.
var LatencyBounds = latencyBuckets

// Of returns how many requests on those surfaces took how long: one count for each of
// LatencyBounds, without those of the bounds before, and one more for what took longer.
func (l *Latencies) Of(surfaces []string) []uint64 {
	counts := make([]uint64, len(LatencyBounds)+1)
	for _, surface := range surfaces {
		var series dto.Metric
		if l.of[surface].(prometheus.Metric).Write(&series) != nil {
			continue // A histogram of one series always has its form.
		}
		h, before := series.GetHistogram(), uint64(0)
		for i, b := range h.GetBucket() {
			counts[i] += b.GetCumulativeCount() - before
			before = b.GetCumulativeCount()
		}
		counts[len(counts)-1] += h.GetSampleCount() - before
	}
	return counts
}

// collector makes series from what Stats returns at the time of a scrape.
type collector struct {
	cfg  Config
	desc map[string]*prometheus.Desc
}

// Describe sends the descriptions of all series.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.desc {
		ch <- d
	}
}

// The closed sets of labels.
var (
	alarmKinds = []lease.AlarmKind{
		lease.AlarmRewound, lease.AlarmLost, lease.AlarmOwnName, lease.AlarmQuarantined, lease.AlarmClock,
		lease.AlarmEra,
	}
	ops = []keeper.Op{
		keeper.OpLoad, keeper.OpRead, keeper.OpMark, keeper.OpRegister, keeper.OpKeepAlive, keeper.OpRevoke,
		keeper.Op(lease.Acquire.String()), keeper.Op(lease.Reclaim.String()), keeper.Op(lease.Extend.String()),
		keeper.Op(lease.Rehold.String()), keeper.Op(lease.Release.String()), keeper.Op(lease.Expire.String()),
	}
	phases = []lease.Phase{
		lease.Connecting, lease.Uninitialized, lease.Seeking, lease.Standby, lease.Holding, lease.Lost,
		lease.Rewound, lease.Releasing, lease.Stopped,
	}
	poolStates = []string{"held", "free", "quarantined", "reserved"}
)

// Collect sends all series but the latencies of requests.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	now := c.cfg.Clock.Now()
	n, k := c.cfg.Node.Stats(), c.cfg.Keeper.Stats()
	send := func(kind prometheus.ValueType, name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.desc[name], kind, v, labels...)
	}
	gauge := func(name string, v float64, labels ...string) { send(prometheus.GaugeValue, name, v, labels...) }
	counter := func(name string, v float64, labels ...string) { send(prometheus.CounterValue, name, v, labels...) }

	counter(idsIssued, float64(n.Issued))
	counter(idsUnverified, float64(n.Unverified))
	for _, r := range c.cfg.Requests() {
		counter(requests, float64(r.Requests), r.Surface, r.Outcome)
	}
	for _, r := range node.Reasons {
		counter(refusals, float64(n.Refused[r]), r.String())
	}
	gauge(ready, flag(c.cfg.Node.Ready() == nil))
	gauge(lead, max(n.Lead, 0).Duration().Seconds())
	gauge(windowRemaining, n.WindowLeft().Duration().Seconds())

	l := k.Lease
	if l.Lease != 0 {
		gauge(leaseRemaining, max(l.LeaseUntil.Sub(now.Mono), 0).Seconds())
	} else {
		gauge(leaseRemaining, 0)
	}
	if l.Held {
		gauge(sid, float64(l.Grant.SID))
		gauge(term, float64(l.Grant.Term))
	} else {
		gauge(sid, -1)
		gauge(term, 0)
	}
	gauge(era, float64(l.Era.Number))
	gauge(watermarkAt, float64(l.Mark.At)/1000)
	for _, p := range phases {
		gauge(phase, flag(p == l.Phase), p.String())
	}
	if l.Revision != 0 {
		pool := func(name string, p lease.Pool) {
			gauge(name, float64(p.Held), "held")
			gauge(name, float64(p.Quarantined), "quarantined")
			gauge(name, float64(p.Reserved), "reserved")
			gauge(name, float64(p.Free()), "free")
		}
		pool(poolSIDs, l.Pool)
		pool(workerSIDs, l.WorkerPool)
	}
	if c.cfg.Marks != nil {
		collectMark(c.cfg.Marks, gauge)
	}
	gauge(historyRewound, flag(l.Phase == lease.Rewound))
	for _, kind := range alarmKinds {
		counter(alarms, float64(k.Alarms[kind]), string(kind))
	}
	for _, op := range ops {
		s := k.Calls[op]
		ch <- prometheus.MustNewConstHistogram(c.desc[etcdLatency], s.Calls, s.Seconds, buckets(s), string(op))
		counter(etcdErrors, float64(s.Errors), string(op))
	}
	gauge(tickAge, max(now.Mono.Sub(c.cfg.Keeper.Ticked()), 0).Seconds())
	end := c.cfg.Node.Config().Gen.Epoch + clock.Millis(c.cfg.Node.Config().Gen.Layout.End())
	gauge(epochRemaining, float64(end-now.Wall)/1000) // 278 years are more than a Duration of any epoch holds
	for key, value := range compared(c.cfg.Settings) {
		gauge(settings, value.Seconds(), key)
	}
	gauge(nodeInfo, 1, c.cfg.Node.Config().Name, c.cfg.Settings.Space, fmt.Sprint(c.cfg.Node.Config().Gen.Layout))
	gauge(buildInfo, 1, c.cfg.Version)
	if c.cfg.Clocks != nil {
		collectClocks(c.cfg.Clocks(),
			lease.Space{Layout: c.cfg.Node.Config().Gen.Layout, Part: l.Space.Part}.SIDs(), gauge, counter)
	}
	if c.cfg.Security != nil {
		collectSecurity(c.cfg.Security(), now.Wall, gauge, counter)
	}
	if c.cfg.Inside != nil {
		collectInside(c.cfg.Inside(), c.cfg.Settings.Etcd.Inside.Quota, now.Wall, gauge)
	}
	var g cluster.Stats
	if c.cfg.Gossip != nil {
		g = c.cfg.Gossip()
	}
	counter(gossipExchanges, float64(g.Exchanges))
	counter(gossipUnanswered, float64(g.Unanswered))
	for _, reason := range cluster.DropReasons() {
		counter(gossipDropped, float64(g.Dropped[reason]), reason)
	}
}

// collectMark sends the series of the watermark.
func collectMark(marks *watermark.Reader, gauge func(name string, v float64, labels ...string)) {
	mark, err := marks.Read()
	if err == nil {
		gauge(watermarkLag, float64(mark.Lag)/1000)
		gauge(watermarkHeld, flag(mark.Held))
	}
	for _, why := range watermark.Whys {
		blocked := slices.ContainsFunc(mark.BlockedBy, func(b watermark.Blocker) bool { return b.Why == why })
		gauge(watermarkBlocked, flag(blocked), string(why))
	}
	gauge(watermarkReaders, float64(marks.Waiting()))
}

// collectInside sends the series about the member of etcd that the node runs, with its quota in bytes.
func collectInside(h inside.Health, quota int64, now clock.Millis,
	gauge func(name string, v float64, labels ...string)) {
	gauge(etcdMemberUp, flag(h.Up))
	gauge(etcdMembers, float64(h.Quorum.Voters), "voting")
	gauge(etcdMembers, float64(h.Quorum.Healthy), "answering")
	gauge(etcdDatabase, float64(h.Size))
	gauge(etcdQuota, float64(quota))
	if h.Free >= 0 {
		gauge(etcdFree, float64(h.Free))
	}
	gauge(etcdSnapshotFailing, flag(h.SnapshotFails != ""))
	for name, at := range map[string]time.Time{etcdSnapshotAge: h.Snapshot, etcdCopyAge: h.Copied} {
		if !at.IsZero() {
			gauge(name, now.Time().Sub(at).Seconds())
		}
	}
}

// buckets returns the keeper's cumulative counts by bound.
func buckets(s keeper.CallStats) map[float64]uint64 {
	out := make(map[float64]uint64, len(keeper.Buckets))
	for i, bound := range keeper.Buckets {
		if s.Buckets != nil {
			out[bound] = s.Buckets[i]
		} else {
			out[bound] = 0
		}
	}
	return out
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
