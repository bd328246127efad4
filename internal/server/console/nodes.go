package console

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
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
	mu      sync.Mutex // guards history
	history trend.History
}

// Add adds a sample of the cluster to the history. They come each trend.Every.
func (c *Console) Add(s status.Cluster) {
	c.past.mu.Lock()
	defer c.past.mu.Unlock()
	c.past.history.Add(clock.Millis(s.Self.Now), s)
}

// serveHistory serves the clocks of the last 15 minutes.
func (c *Console) serveHistory(w http.ResponseWriter, r *http.Request) {
	httpserver.Pay(r, quota.CostScrape/10)
	type line struct {
		Name     string     `json:"name"`
		Instance string     `json:"instance"`
		Offsets  []*float64 `json:"offsets_ms"`
	}
	view := struct {
		Times []int64 `json:"times_unix_ms"`
		Lines []line  `json:"lines"`
	}{[]int64{}, []line{}}
	c.past.mu.Lock()
	times, clocks := c.past.history.Clocks()
	c.past.mu.Unlock()
	view.Times = append(view.Times, times...)
	for _, k := range clocks {
		view.Lines = append(view.Lines, line{k.Name, k.Instance, k.Offsets})
	}
	sendJSON(w, http.StatusOK, view)
}

// pastView is what the charts of the page show.
type pastView struct {
	trend.Course
	// Events are those that the node still has of the same time, the oldest first.
	Events []feed.Event `json:"events"`
}

// spans are what a page may ask for.
var spans = map[string]time.Duration{"15m": 15 * time.Minute, "1h": time.Hour}

func (c *Console) servePast(w http.ResponseWriter, r *http.Request) {
	httpserver.Pay(r, quota.CostScrape)
	span, ok := spans[cmp.Or(r.URL.Query().Get("span"), "15m")]
	if !ok {
		c.fail(w, r, http.StatusBadRequest, "span is 15m or 1h")
		return
	}
	c.past.mu.Lock()
	view := pastView{Course: c.past.history.Course(span), Events: []feed.Event{}}
	c.past.mu.Unlock()
	if len(view.Times) > 0 {
		view.Events = c.eventsSince(view.Times[0], nil)
	}
	sendJSON(w, http.StatusOK, view)
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

// timelineView is what the timeline shows.
type timelineView struct {
	First     int64           `json:"first_unix_ms"`  // From then on it is known what nodes did.
	Latest    int64           `json:"latest_unix_ms"` // the time of the latest sample; 0: there is none
	Stretches []trend.Stretch `json:"stretches"`
	Away      []away          `json:"etcd_away"`
	Events    []feed.Event    `json:"events"` // They are about clocks.
}

// away is a time in which etcd did not answer this node, in Unix ms.
type away struct {
	From  int64 `json:"from_unix_ms"`
	Until int64 `json:"until_unix_ms"` // 0: it lasts
}

// timeline returns what is known of the last hour.
func (c *Console) timeline() (v timelineView) {
	c.past.mu.Lock()
	v.Stretches, v.Latest = c.past.history.Stretches()
	c.past.mu.Unlock()
	v.First = v.Latest - time.Hour.Milliseconds()
	if len(v.Stretches) > 0 { // in the order in which they began
		v.First = max(v.First, v.Stretches[0].From)
	}
	v.Away = c.etcdAway(v.First)
	v.Events = c.eventsSince(v.First, []feed.Kind{feed.ClockStep, feed.ClockSuspend, feed.ClockStall})
	return v
}

// etcdAway returns when etcd did not answer this node from a time on. What ends with the first event began before that
// time, as far as is known: the event that began it is older, or was dropped.
func (c *Console) etcdAway(from int64) []away {
	out := []away{}
	for i, e := range c.eventsSince(from, []feed.Kind{feed.EtcdFailing, feed.EtcdAnswers}) {
		lasts := len(out) > 0 && out[len(out)-1].Until == 0
		switch begins := e.Kind == feed.EtcdFailing; {
		case begins && !lasts:
			out = append(out, away{From: e.At})
		case !begins && lasts:
			out[len(out)-1].Until = e.At
		case !begins && i == 0:
			out = append(out, away{from, e.At})
		}
	}
	if c.cfg.Feed == nil {
		return out
	}
	if since := c.cfg.Feed.EtcdFails(); since != 0 && (len(out) == 0 || out[len(out)-1].Until != 0) {
		out = append(out, away{From: since})
	}
	return out
}

func (c *Console) showTimeline(w http.ResponseWriter, r *http.Request) {
	if c.cfg.Snapshot == nil {
		c.show(w, r, http.StatusOK, "timeline", nil)
		return
	}
	list := c.timeline().Stretches
	slices.Reverse(list)
	c.show(w, r, http.StatusOK, "timeline", list[:min(len(list), shownStretches)])
}

// shownStretches is how many of the latest stretches a page lists.
const shownStretches = 128

func (c *Console) serveStretches(w http.ResponseWriter, r *http.Request) {
	httpserver.Pay(r, quota.CostScrape)
	sendJSON(w, http.StatusOK, c.timeline())
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
	out := slices.Concat(s.Gone, s.Nodes)
	serves := func(n status.Node) int {
		if n.State == status.Serving {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(out, func(a, b status.Node) int { return serves(a) - serves(b) })
	return out
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
