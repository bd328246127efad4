package console

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/status/feed"
	"github.com/flakelease/allocator/internal/status/trend"
	"github.com/flakelease/allocator/internal/text"
)

// past is the last hour of the cluster as this node saw it.
type past struct {
	mu      sync.Mutex // guards the rest
	history trend.History
	drawn   map[string][]string // as lines returns it; nil: it is to be made
}

// Add adds a sample of the cluster to the history. They come each trend.Every.
func (c *Console) Add(s status.Cluster) {
	c.past.mu.Lock()
	defer c.past.mu.Unlock()
	c.past.history.Add(clock.Millis(s.Self.Now), s)
	c.past.drawn = nil
}

// History returns what the pages draw, for programs.
func (c *Console) History() any {
	c.past.mu.Lock()
	defer c.past.mu.Unlock()
	stretches, _ := c.past.history.Stretches()
	times, clocks := c.past.history.Clocks()
	return map[string]any{"course": c.past.history.Course(time.Hour), "stretches": stretches,
		"clock_times": times, "clocks": clocks}
}

// lines returns the rates of nodes as lines, by instance. They are made once for each sample.
func (p *past) lines() map[string][]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drawn == nil {
		p.drawn = map[string][]string{}
		for _, l := range p.history.Course(0).Nodes {
			p.drawn[l.Instance] = linesOf(l.Rate)
		}
	}
	return p.drawn
}

// charts are the lines over time that a page draws.
type charts struct {
	Times  []float64        `json:"times"` // Unix s
	Span   float64          `json:"span"`  // s
	Charts map[string]chart `json:"charts"`
	Marks  []moment         `json:"marks"` // what happened in the same time, the oldest first
}

type chart struct {
	Labels   []string     `json:"labels"`
	Lists    [][]*float64 `json:"lists"` // one for each label; null: not known
	Unit     string       `json:"unit"`
	FromZero bool         `json:"from_zero"`
}

func (c *chart) add(label string, list []*float64) {
	c.Labels, c.Lists = append(c.Labels, label), append(c.Lists, list)
}

type moment struct {
	At   float64 `json:"at"`
	Bad  bool    `json:"bad"`
	Text string  `json:"text"`
}

// spans are what a page may ask for.
var spans = map[string]time.Duration{"15m": 15 * time.Minute, "1h": time.Hour}

func (c *Console) serveCharts(w http.ResponseWriter, r *http.Request) {
	httpserver.Pay(r, quota.CostScrape)
	span, ok := spans[cmp.Or(r.URL.Query().Get("span"), "15m")]
	if !ok {
		c.fail(w, r, http.StatusBadRequest, "span is 15m or 1h")
		return
	}
	c.past.mu.Lock()
	course := c.past.history.Course(span)
	times, clocks := c.past.history.Clocks()
	c.past.mu.Unlock()
	out := charts{Span: span.Seconds(), Charts: map[string]chart{}, Times: []float64{}, Marks: []moment{}}
	switch r.URL.Query().Get("page") {
	case "clocks":
		offsets := chart{Unit: " ms", Labels: []string{}, Lists: [][]*float64{}}
		for _, k := range clocks {
			offsets.add(k.Name[:min(len(k.Name), 30)], k.Offsets)
		}
		out.Charts["clocks"], course.Times = offsets, times
	case "node":
		left := chart{Unit: " s", FromZero: true}
		left.add("window left", scaled(course.Left, 1000))
		out.Charts["window"] = left
	default:
		zero := chart{FromZero: true}
		rate, refused, latency, etcd := zero, zero, zero, zero
		rate.add("IDs/s", scaled(course.Rate, 1))
		if len(course.Refused) == 0 {
			course.Refused["none"] = make([]float64, len(course.Times))
		}
		for _, reason := range slices.Sorted(maps.Keys(course.Refused)) {
			list := make([]*float64, 0, len(course.Times))
			for _, v := range course.Refused[reason] {
				list = append(list, &v)
			}
			refused.add(reason, list)
		}
		latency.add("p50", scaled(course.P50, 1000))
		latency.add("p99", scaled(course.P99, 1000))
		etcd.add("write", scaled(course.Write, 1000))
		out.Charts = map[string]chart{"rate": rate, "refused": refused, "latency": latency, "etcd": etcd}
		if len(course.Times) > 0 {
			for _, e := range c.eventsSince(course.Times[0], nil) {
				out.Marks = append(out.Marks, moment{float64(e.At) / 1000, bad.MatchString(string(e.Kind)),
					fmt.Sprintf("%s %s: %s: %s", utc(e.At)[11:19], e.Node, e.Kind, e.Message)})
			}
		}
	}
	for _, at := range course.Times {
		out.Times = append(out.Times, float64(at)/1000)
	}
	sendJSON(w, http.StatusOK, out)
}

// bad is found in the kinds of events that say of something that it got worse.
var bad = regexp.MustCompile(`refusing|silent|failing|lost|shut|false|rewound|step|suspend|stall|standby|drained|left`)

// scaled returns values divided by a number.
func scaled[N int64 | uint32](list []*N, by float64) []*float64 {
	out := make([]*float64, len(list))
	for i, v := range list {
		if v != nil {
			f := float64(*v) / by
			out[i] = &f
		}
	}
	return out
}

// eventsSince returns the events of some kinds, or of all, from a time on that the node still has, the oldest first.
func (c *Console) eventsSince(at int64, kinds []feed.Kind) []feed.Event {
	out := []feed.Event{}
	if c.cfg.Feed != nil {
		events, _ := c.cfg.Feed.Latest(math.MaxInt)
		for _, e := range events {
			if e.At >= at && (kinds == nil || slices.Contains(kinds, e.Kind)) {
				out = append(out, e)
			}
		}
	}
	return out
}

// latency writes µs with two digits; 0 is none.
func latency(us int64) string {
	switch {
	case us == 0:
		return "–"
	case us < 1000:
		return fmt.Sprintf("%d µs", us)
	case us < 100_000:
		return fmt.Sprintf("%.1f ms", float64(us)/1000)
	case us < 1_000_000:
		return fmt.Sprintf("%d ms", us/1000)
	}
	return fmt.Sprintf("%.1f s", float64(us)/1e6)
}

// Written returns how long ago this node's latest write to etcd was.
func (s Snapshot) Written() string {
	if at := s.Self.Work.Written; at != 0 {
		return text.Seconds(max(0, s.Self.Now-at)) + " ago"
	}
	return "never"
}

// Worst returns the nodes in the order of the page: those that do not serve first, and of these those that vanished.
func (s Snapshot) Worst() []status.Node {
	serves := func(n status.Node) bool { return n.State == status.Serving }
	rest := func(n status.Node) bool { return !serves(n) }
	return slices.Concat(s.Gone, filter(s.Nodes, rest), filter(s.Nodes, serves))
}

// part is a part of the bar of sids.
type part struct {
	State string `json:"state"` // It has the color of this state.
	Text  string `json:"text"`
	At    int    `json:"at"` // Before it are so many sids.
	Count int    `json:"count"`
}

// parts returns those of the bar of sids.
func parts(u status.SIDUse) (out []part) {
	at := 0
	for _, p := range []part{
		{State: "held", Text: text.Count(u.Nodes, "node"), Count: u.Nodes},
		{State: "worker", Text: fmt.Sprintf("%d for workers", u.Workers), Count: u.Workers},
		{State: "waiting", Text: fmt.Sprintf("%d waiting", u.Waiting), Count: u.Waiting},
		{State: "quarantined", Text: fmt.Sprintf("%d quarantined", u.Quarantined), Count: u.Quarantined},
		{State: "reserved", Text: fmt.Sprintf("%d reserved", u.Reserved), Count: u.Reserved},
		{State: "free", Text: fmt.Sprintf("%d free", u.Free), Count: u.Free},
	} {
		p.At = at
		at += p.Count
		if p.Count > 0 || p.State == "held" || p.State == "free" {
			out = append(out, p)
		}
	}
	return out
}

// span writes a time in ms as people say it; "–" for less than 1.
func span(ms int64) string {
	if ms < 1 {
		return "–"
	}
	return text.Span((time.Duration(ms) * time.Millisecond).Truncate(time.Second))
}
