package console

import (
	"cmp"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/status/feed"
	"github.com/flakelease/allocator/internal/status/trend"
	"github.com/flakelease/allocator/internal/text"
)

// timelineView is what the timeline shows. Times are Unix ms.
type timelineView struct {
	First     int64 // From then on it is known what nodes did.
	Latest    int64 // the time of the latest sample; 0: there is none
	Stretches []trend.Stretch
	Away      []away
	Events    []feed.Event // They are about clocks.

	At, Span int64 // the middle of what is drawn, 0: it follows the latest sample; and how much is drawn
	BySID    bool  // A row is a sid, else a node.
	From, To int64 // are drawn

	Lanes  []*lane // the first shownLanes
	More   int     // So many are there, if not all are drawn.
	Height int64   // px
}

// away is a time in which etcd did not answer this node, in Unix ms.
type away struct {
	From  int64
	Until int64 // 0: it lasts
}

const (
	minute     = int64(time.Minute / time.Millisecond)
	hour       = 60 * minute
	usualSpan  = 15 * minute
	laneHeight = 44 // px
	shownLanes = 64
)

// timeline returns what is known of the last hour.
func (c *Console) timeline() (v timelineView) {
	c.past.mu.Lock()
	v.Stretches, v.Latest = c.past.history.Stretches()
	c.past.mu.Unlock()
	v.First = v.Latest - hour
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
	for i, e := range c.eventsSince(from, []feed.Kind{feed.EtcdFailing, feed.EtcdAnswers, feed.Started}) {
		lasts := len(out) > 0 && out[len(out)-1].Until == 0
		switch begins := e.Kind == feed.EtcdFailing; {
		case begins && !lasts:
			out = append(out, away{From: e.At})
		case !begins && lasts: // A process that ended has not seen it answer.
			out[len(out)-1].Until = e.At
		case e.Kind == feed.EtcdAnswers && i == 0:
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

// drawn returns what the timeline shows at an address.
func (c *Console) drawn(q url.Values) timelineView {
	v := c.timeline()
	v.Span, v.BySID = usualSpan, q.Get("by") == "sid"
	if s, err := strconv.ParseInt(q.Get("span"), 10, 32); err == nil {
		v.Span = min(max(s*1000, minute), hour)
	}
	past := max(minute*9/10, min(v.Span*9/10, v.Latest-v.First))
	v.From, v.To = v.Latest-past, v.Latest+past/9
	if at, err := time.Parse(time.RFC3339, q.Get("at")); err == nil {
		v.At = at.UnixMilli()
		v.From, v.To = v.At-v.Span/2, v.At+v.Span/2
	}
	if v.Lanes = v.lanes(); len(v.Lanes) > shownLanes {
		v.Lanes, v.More = v.Lanes[:shownLanes], len(v.Lanes)
	}
	v.Height = int64(max(1, len(v.Lanes)))*laneHeight + 18
	return v
}

func (c *Console) showTimeline(w http.ResponseWriter, r *http.Request) {
	c.show(w, r, http.StatusOK, "timeline", c.drawn(r.URL.Query()))
}

// serveStretches sends what changes on the page of the same address.
func (c *Console) serveStretches(w http.ResponseWriter, r *http.Request) {
	httpserver.Pay(r, quota.CostScrape)
	sendHTML(w, http.StatusOK, c.execute("timeline", "drawn", c.drawn(r.URL.Query())))
}

// shownStretches is how many of the latest stretches a page lists.
const shownStretches = 128

// Listed returns the stretches that the page lists, the latest first: all, or of the time that is drawn.
func (v timelineView) Listed() (out []trend.Stretch) {
	for _, s := range slices.Backward(v.Stretches) {
		if (v.At == 0 || s.From <= v.To && s.Until >= v.From) && len(out) < shownStretches {
			out = append(out, s)
		}
	}
	return out
}

// Outside reports whether nothing of what is drawn is kept.
func (v timelineView) Outside() bool { return v.From > v.Latest || v.To < v.First }

// address returns the address of another part of the timeline, in which all is known to be harmless.
func (v timelineView) address(at, span int64, bySID bool) template.URL {
	var q []string
	span = min(max(span, minute), hour)
	if at != 0 {
		at = min(max(at, v.Latest-hour), v.Latest)
		q = append(q, "at="+text.Millis(at))
	}
	if at != 0 || span != usualSpan {
		q = append(q, fmt.Sprintf("span=%d", span/1000))
	}
	if bySID {
		q = append(q, "by=sid")
	}
	return template.URL("?" + strings.Join(q, "&"))
}

// Zoom returns the address of so much of what is drawn.
func (v timelineView) Zoom(part float64) template.URL {
	return v.address(v.At, int64(float64(v.Span)*part), v.BySID)
}

// Move returns the address of a time that is later by so much of what is drawn.
func (v timelineView) Move(part float64) template.URL {
	return v.address((v.From+v.To)/2+int64(float64(v.Span)*part), v.Span, v.BySID)
}

// Turned returns the address of the same time with other rows.
func (v timelineView) Turned() template.URL { return v.address(v.At, v.Span, !v.BySID) }

// Follow returns the address of the latest sample.
func (v timelineView) Follow() template.URL { return v.address(0, v.Span, v.BySID) }

// bar is a time in a row. Places are percents of the width.
type bar struct {
	X, Width   string
	Used       string // So much of a window was used, and the rest is reserved, or was for a holder that is gone.
	Gone       bool
	Text, Says string // They are shown where there is room, and at a pointer.
}

// lane is a row of the timeline.
type lane struct {
	Name                         string
	Y                            int
	Held, Refused, Absent, Steps []bar
	tenures                      []*tenure
}

// tenure is what one process held. It lasts while until is 0, and was last seen to do something at seen.
type tenure struct {
	trend.Stretch
	seen, until int64
}

// place returns where a time is, as a percent of the width; outside of it, just beside it.
func (v timelineView) place(at int64) float64 {
	return min(max(float64(at-v.From)*100/float64(max(1, v.To-v.From)), -0.5), 100.5)
}

func percent(p float64) string { return strconv.FormatFloat(p, 'f', 2, 64) }

// bar returns the bar of a time; false: nothing of it is drawn.
func (v timelineView) bar(from, until int64, text string) (bar, bool) {
	x := v.place(from)
	b := bar{X: percent(x), Width: percent(v.place(until) - x), Text: text, Says: text}
	return b, until >= v.From && from <= v.To
}

// Outages returns when etcd was away.
func (v timelineView) Outages() (out []bar) {
	for _, a := range v.Away {
		if b, ok := v.bar(a.From, cmp.Or(a.Until, v.Latest), "etcd away"); ok {
			b.Says = "etcd is away"
			out = append(out, b)
		}
	}
	return out
}

// lanes returns the rows in the order of their names.
func (v timelineView) lanes() (out []*lane) {
	lanes := map[string]*lane{}
	for _, s := range v.Stretches {
		name := s.Node
		if v.BySID {
			name = fmt.Sprintf("sid %d", s.SID)
		}
		if v.BySID && s.SID < 0 {
			continue
		}
		l := lanes[name]
		if l == nil {
			l = &lane{Name: name}
			lanes[name], out = l, append(out, l)
		}
		absent := slices.Contains([]string{"silent", "standby", "unknown"}, s.What)
		if s.SID >= 0 {
			l.hold(s, absent, s.Until >= v.Latest)
		}
		switch b, ok := v.bar(s.From, s.Until, s.What); {
		case !ok || !absent && s.What == "serving":
		case absent && v.BySID:
			b.Text, b.Says = s.Node+" "+s.What, s.Node+" "+s.What
			l.Absent = append(l.Absent, b)
		case absent:
			l.Absent = append(l.Absent, b)
		default:
			b.Says = "refused, " + s.What
			l.Refused = append(l.Refused, b)
		}
	}
	number := func(l *lane) (string, int) { // node-10 comes after node-9
		text := strings.TrimRight(l.Name, "0123456789")
		n, _ := strconv.Atoi(l.Name[len(text):])
		return text, n
	}
	slices.SortFunc(out, func(a, b *lane) int {
		textA, a1 := number(a)
		textB, b1 := number(b)
		return cmp.Or(cmp.Compare(textA, textB), cmp.Compare(a1, b1))
	})
	for i, l := range out {
		l.Y = i * laneHeight
		for _, t := range l.tenures {
			if b, ok := v.tenure(t); ok {
				l.Held = append(l.Held, b)
			}
		}
	}
	v.steps(out)
	return out
}

// hold puts a stretch in which a node held a sid into its tenure, or begins one.
func (l *lane) hold(s trend.Stretch, absent, lasts bool) {
	var t *tenure
	for _, one := range slices.Backward(l.tenures) {
		if one.Instance == s.Instance && one.SID == s.SID && (one.Term == s.Term || one.Term == 0 || s.Term == 0) {
			t = one
			break
		}
	}
	if t == nil {
		t = &tenure{Stretch: s}
		l.tenures = append(l.tenures, t)
	}
	t.Ceil, t.Term = max(t.Ceil, s.Ceil, s.Until), cmp.Or(t.Term, s.Term)
	if !absent {
		t.seen = s.Until
	}
	if t.until = cmp.Or(t.seen, s.Until); lasts {
		t.until = 0
	}
}

// tenure returns the bar of a tenure.
func (v timelineView) tenure(t *tenure) (bar, bool) {
	name, who := fmt.Sprintf("sid %d", t.SID), ""
	if v.BySID {
		name, who = t.Node, t.Node+", "
	}
	b, ok := v.bar(t.From, t.Ceil, name)
	b.Used, b.Gone = percent(v.place(min(cmp.Or(t.until, v.Latest), t.Ceil))-v.place(t.From)), t.until != 0
	b.Says = fmt.Sprintf("%ssid %d, term %d: window from %s to %s", who, t.SID, t.Term, dayTime(t.From),
		dayTime(t.Ceil))
	if b.Gone {
		b.Says += ", holder gone"
	}
	return b, ok
}

// steps puts what happened to a clock into the row of its node, or of the first sid that the node held then.
func (v timelineView) steps(lanes []*lane) {
	last := make([]int64, len(lanes))
	for _, e := range v.Events {
		at := slices.IndexFunc(lanes, func(l *lane) bool {
			if !v.BySID {
				return l.Name == e.Node
			}
			return slices.ContainsFunc(l.tenures, func(t *tenure) bool {
				return t.Node == e.Node && t.From <= e.At && cmp.Or(t.until, v.Latest) >= e.At
			})
		})
		what := strings.ReplaceAll(string(e.Kind), "_", " ")
		if step := e.Attributes["step"]; step != "" {
			what = "clock " + step
		}
		if b, ok := v.bar(e.At, e.At, what); ok && at >= 0 {
			b.Says = dayTime(e.At) + ": " + what
			// On a phone a text needs a quarter of the width. The step before still says its own when pointed at.
			if n := len(lanes[at].Steps); n > 0 && int64(e.At)-last[at] < (v.To-v.From)/4 {
				lanes[at].Steps[n-1].Text = ""
			}
			last[at] = int64(e.At)
			lanes[at].Steps = append(lanes[at].Steps, b)
		}
	}
}

// roundTime is a round time, and how far its text may reach. Only a wide screen has room for each second one.
type roundTime struct {
	bar
	Minor bool
}

// Scale returns round times.
func (v timelineView) Scale() (out []roundTime) {
	step := int64(10_000)
	for _, s := range []int64{20_000, 30_000, minute, 2 * minute, 5 * minute, 10 * minute} {
		if step*8 < v.To-v.From {
			step = s
		}
	}
	for t := (v.From + step - 1) / step * step; v.Latest != 0 && t <= v.To; t += step {
		b, _ := v.bar(t, v.To, dayTime(t)[:8])
		out = append(out, roundTime{b, t/step%2 != 0})
	}
	return out
}

func dayTime(ms int64) string { return time.UnixMilli(ms).UTC().Format("15:04:05.0") }

// Now returns where the latest sample is.
func (v timelineView) Now() string { return percent(v.place(v.Latest)) }
