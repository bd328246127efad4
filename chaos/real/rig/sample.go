package rig

import (
	"bytes"
	"context"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/internal/clock"
)

// Sample is the metrics of a node at a time.
type Sample struct {
	At      clock.Mono
	Run     int
	Up      bool               // the node answered
	Metrics map[string]float64 // keyed by name and labels: `allocator_clock_verdict{state="open"}`
	Reason  string             // why it is not ready
}

// Value returns a metric without labels, 0 if it is absent.
func (s *Sample) Value(name string) float64 {
	if s == nil {
		return 0
	}
	return s.Metrics["allocator_"+name]
}

// Has reports whether there is such a metric.
func (s *Sample) Has(name string) bool {
	if s == nil {
		return false
	}
	_, ok := s.Metrics["allocator_"+name]
	return ok
}

// Sum adds up a metric over its labels.
func (s *Sample) Sum(name string) (sum float64) {
	if s == nil {
		return 0
	}
	for key, v := range s.Metrics {
		if key == "allocator_"+name || strings.HasPrefix(key, "allocator_"+name+"{") {
			sum += v
		}
	}
	return sum
}

// Label returns the label value of a state metric that is 1.
func (s *Sample) Label(name string) string {
	if s == nil {
		return ""
	}
	for key, v := range s.Metrics {
		if rest, ok := strings.CutPrefix(key, "allocator_"+name+"{"); ok && v == 1 {
			_, value, _ := strings.Cut(rest, `="`)
			return strings.TrimSuffix(value, `"}`)
		}
	}
	return ""
}

// Sample returns the latest metrics of the node; nil before the first.
func (n *Node) Sample() *Sample { return n.sample.Load() }

// SID returns the sid that the node holds, or -1.
func (n *Node) SID() int {
	s := n.Sample()
	if s == nil || !s.Up {
		return -1
	}
	return int(s.Value("sid"))
}

// Scrape reads the metrics of the node now.
func (n *Node) Scrape(ctx context.Context) *Sample {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s := &Sample{At: n.rig.Now(), Run: n.Run()}
	body, err := n.get(ctx, "/metrics")
	if err == nil {
		s.Up, s.Metrics = true, parseMetrics(body)
		if s.Value("ready") == 0 {
			body, _ := n.get(ctx, "/readyz")
			s.Reason = string(reasonWord.Find(body))
		}
	}
	n.sample.Store(s)
	return s
}

var reasonWord = regexp.MustCompile(`\b[A-Z]+(_[A-Z]+)*\b`)

// parseMetrics reads the text form of Prometheus, of which it keeps our own
// series and no histogram.
func parseMetrics(body []byte) map[string]float64 {
	out := make(map[string]float64, 64)
	for line := range bytes.Lines(body) {
		if !bytes.HasPrefix(line, []byte("allocator_")) || bytes.Contains(line, []byte("_bucket{")) {
			continue
		}
		line = bytes.TrimSpace(line)
		i := bytes.LastIndexByte(line, ' ')
		if i < 0 {
			continue
		}
		if v, err := strconv.ParseFloat(string(line[i+1:]), 64); err == nil {
			out[string(line[:i])] = v
		}
	}
	return out
}

// Pauses of the observers.
const (
	sampleEvery = 200 * time.Millisecond
	leaderEvery = 500 * time.Millisecond
)

// observe samples the nodes and etcd's leader until ctx ends.
func (r *Rig) observe(ctx context.Context) {
	var all sync.WaitGroup
	for _, n := range r.Nodes {
		all.Go(func() {
			r.every(ctx, sampleEvery, func() { r.record(n, n.Scrape(ctx)) })
		})
	}
	all.Go(func() {
		last := ""
		r.every(ctx, leaderEvery, func() {
			name := ""
			leader := r.Op.Leader(ctx)
			if leader >= 0 {
				name = r.Etcds[leader].Name
			}
			r.leader.Store(int32(leader))
			if name != last {
				last = name
				_, _ = r.History.Write(history.Op{
					Process: history.Etcd,
					Type:    history.Info,
					F:       history.FLeader,
					Node:    name,
				})
			}
		})
	})
	all.Wait()
}

// Leader returns the number of etcd's leader as last seen, or -1.
func (r *Rig) Leader() int { return int(r.leader.Load()) }

func (r *Rig) every(ctx context.Context, pause time.Duration, do func()) {
	t := time.NewTicker(pause)
	defer t.Stop()
	for {
		do()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (r *Rig) record(n *Node, s *Sample) {
	out := &history.Sample{State: "down"}
	if s.Up {
		ms := func(name string) float64 { return s.Value(name) * 1000 }
		out = &history.Sample{
			Instance: n.instances.of(n, s.Run),
			State:    s.Label("lease_phase"),
			Reason:   s.Reason,
			Term:     int64(s.Value("term")),
			LeadMs:   int64(ms("window_remaining_seconds")),
			TTLMs:    int64(ms("lease_ttl_remaining_seconds")),
			OffsetMs: ms("clock_cluster_offset_seconds"),
			ErrorMs:  ms("clock_cluster_uncertainty_seconds"),
			SelfMs:   ms("clock_held_seconds"),
			Verdict:  s.Label("clock_verdict"),
			Issued:   int64(s.Value("ids_issued_total")),
			Refused:  int64(s.Sum("refusals_total")),
			Members:  int64(s.Sum("clock_nodes")),
			Tick:     ms("clock_tick_delay_seconds"),
			MarkMs:   int64(math.Round(ms("watermark_timestamp_seconds"))),
		}
		if sid := int64(s.Value("sid")); sid >= 0 {
			out.SID = &sid
		}
	} else if n.Running() {
		out.State = "silent"
	}
	_, _ = r.History.Write(history.Op{
		Process: history.Sampler,
		Type:    history.Info,
		F:       history.FSample,
		Node:    n.Name,
		Run:     n.RunName(),
		Sample:  out,
	})
}
