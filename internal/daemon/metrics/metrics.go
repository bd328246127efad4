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

// Config is what the series are read from. All fields are required, but Inside.
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
	// Clocks returns the measurements of this node's clock and its peers'.
	Clocks func() clock.Report
	Marks  *watermark.Reader // It reads the watermark.
	// Security returns the state of connections, certificates and tokens.
	Security func() Security
	// Inside returns the state of the node's member of etcd. nil: it has none, and there are no
	// such series.
	Inside func() inside.Health
	// Gossip returns the counters of gossip, which are 0 while it does not run.
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

// LatencyBounds are the upper bounds of the counts of Latencies.Of, in seconds; the last count has no bound. A request
// takes about 10 µs, or up to 100 ms if it waits for the clock.
var LatencyBounds = []float64{
	10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1,
}

// New returns what has the series of the node, of the Go runtime and of the process.
func New(cfg Config) prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{cfg}, cfg.Latencies.all,
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
	l := &Latencies{
		all: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: issueLatency.Name, Help: issueLatency.Help, Buckets: LatencyBounds,
		}, issueLatency.Labels),
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

// Of returns how many requests on those surfaces took how long: one count for each of
// LatencyBounds, without those of the bounds before, and one more for what took longer.
func (l *Latencies) Of(surfaces []string) []uint64 {
	counts := make([]uint64, len(LatencyBounds)+1)
	for _, surface := range surfaces {
		var one dto.Metric
		if l.of[surface].(prometheus.Metric).Write(&one) != nil {
			continue // A histogram of one series always has its form.
		}
		h, before := one.GetHistogram(), uint64(0)
		for i, b := range h.GetBucket() {
			counts[i] += b.GetCumulativeCount() - before
			before = b.GetCumulativeCount()
		}
		counts[len(counts)-1] += h.GetSampleCount() - before
	}
	return counts
}

// collector makes series from what Stats returns at the time of a scrape.
type collector struct{ cfg Config }

// Describe sends the descriptions of all series.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range definitions {
		if d != issueLatency {
			ch <- d.desc
		}
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
	out := sink(ch)

	out.send(idsIssued, float64(n.Issued))
	out.send(idsUnverified, float64(n.Unverified))
	for _, r := range c.cfg.Requests() {
		out.send(requests, float64(r.Requests), r.Surface, r.Outcome)
	}
	for _, r := range node.Reasons {
		out.send(refusals, float64(n.Refused[r]), r.String())
	}
	out.flag(ready, c.cfg.Node.Ready() == nil)
	out.send(lead, max(n.Lead, 0).Duration().Seconds())
	out.send(windowRemaining, n.WindowLeft().Duration().Seconds())

	l := k.Lease
	if l.Lease != 0 {
		out.send(leaseRemaining, max(l.LeaseUntil.Sub(now.Mono), 0).Seconds())
	} else {
		out.send(leaseRemaining, 0)
	}
	if l.Held {
		out.send(sid, float64(l.Grant.SID))
		out.send(term, float64(l.Grant.Term))
	} else {
		out.send(sid, -1)
		out.send(term, 0)
	}
	out.send(era, float64(l.Era.Number))
	out.send(watermarkAt, float64(l.Mark.At)/1000)
	for _, p := range phases {
		out.flag(phase, p == l.Phase, p.String())
	}
	if l.Revision != 0 {
		pool := func(name *definition, p lease.Pool) {
			out.send(name, float64(p.Held), "held")
			out.send(name, float64(p.Quarantined), "quarantined")
			out.send(name, float64(p.Reserved), "reserved")
			out.send(name, float64(p.Free()), "free")
		}
		pool(poolSIDs, l.Pool)
		pool(workerSIDs, l.WorkerPool)
	}
	collectMark(c.cfg.Marks, out)
	out.flag(historyRewound, l.Phase == lease.Rewound)
	for _, kind := range alarmKinds {
		out.send(alarms, float64(k.Alarms[kind]), string(kind))
	}
	for _, op := range ops {
		s := k.Calls[op]
		ch <- prometheus.MustNewConstHistogram(etcdLatency.desc, s.Calls, s.Seconds, buckets(s), string(op))
		out.send(etcdErrors, float64(s.Errors), string(op))
	}
	out.send(tickAge, max(now.Mono.Sub(c.cfg.Keeper.Ticked()), 0).Seconds())
	end := c.cfg.Node.Config().Gen.Epoch + clock.Millis(c.cfg.Node.Config().Gen.Layout.End())
	out.send(epochRemaining, float64(end-now.Wall)/1000) // 278 years are more than a Duration of any epoch holds
	for key, value := range compared(c.cfg.Settings) {
		out.send(settings, value.Seconds(), key)
	}
	out.send(nodeInfo, 1, c.cfg.Node.Config().Name, c.cfg.Settings.Space, fmt.Sprint(c.cfg.Node.Config().Gen.Layout))
	out.send(buildInfo, 1, c.cfg.Version)
	collectClocks(c.cfg.Clocks(),
		lease.Space{Layout: c.cfg.Node.Config().Gen.Layout, Part: l.Space.Part}.SIDs(), out)
	collectSecurity(c.cfg.Security(), now.Wall, out)
	if c.cfg.Inside != nil {
		collectInside(c.cfg.Inside(), c.cfg.Settings.Etcd.Inside.Quota, now.Wall, out)
	}
	g := c.cfg.Gossip()
	out.send(gossipExchanges, float64(g.Exchanges))
	out.send(gossipUnanswered, float64(g.Unanswered))
	for _, reason := range cluster.DropReasons() {
		out.send(gossipDropped, float64(g.Dropped[reason]), reason)
	}
}

// collectMark sends the series of the watermark.
func collectMark(marks *watermark.Reader, out sink) {
	mark, err := marks.Read()
	if err == nil {
		out.send(watermarkLag, float64(mark.Lag)/1000)
		out.flag(watermarkHeld, mark.Held)
	}
	for _, why := range watermark.Whys {
		blocked := slices.ContainsFunc(mark.BlockedBy, func(b watermark.Blocker) bool { return b.Why == why })
		out.flag(watermarkBlocked, blocked, string(why))
	}
	out.send(watermarkReaders, float64(marks.Waiting()))
}

// collectInside sends the series about the member of etcd that the node runs, with its quota in bytes.
func collectInside(h inside.Health, quota int64, now clock.Millis, out sink) {
	out.flag(etcdMemberUp, h.Up)
	out.send(etcdMembers, float64(h.Quorum.Voters), "voting")
	out.send(etcdMembers, float64(h.Quorum.Healthy), "answering")
	out.send(etcdDatabase, float64(h.Size))
	out.send(etcdQuota, float64(quota))
	if h.Free >= 0 {
		out.send(etcdFree, float64(h.Free))
	}
	out.flag(etcdSnapshotFailing, h.SnapshotFails != "")
	for name, at := range map[*definition]time.Time{etcdSnapshotAge: h.Snapshot, etcdCopyAge: h.Copied} {
		if !at.IsZero() {
			out.send(name, now.Time().Sub(at).Seconds())
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
