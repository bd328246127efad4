package console

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/text"
)

// Snapshot is what the pages show: the picture of the cluster, as GET /v1/cluster has it,
// and what the pages alone have.
type Snapshot struct {
	status.Cluster
	Conditions []Condition      // Conditions are those of readiness.
	FalseSince map[string]int64 // FalseSince is since when the clock of a node is found wrong, by instance, in Unix ms.
	Mark       string           // Mark is the line about the watermark; empty: it is not known.
	Since      map[string]int64 // Since is since when nodes are in their states, by instance, in Unix ms.
	Gone       []status.Node    // Gone are the nodes that vanished and have not released their sids.
	Total      status.Report    // Total is what the nodes report together.
	Parts      []part           // Parts are those of the bar of sids.
	Grid       bool             // Each sid is shown.

	most  int // Tables have at most so many rows; 0: any number.
	lines map[string][]string
}

// complete adds to the picture what the pages alone have.
func (c *Console) complete(from status.Cluster) Snapshot {
	s := Snapshot{
		Cluster:    from,
		FalseSince: c.cfg.FalseSince(),
		Mark:       from.WatermarkLine(),
		Since:      c.cfg.Since(from),
		Gone:       append([]status.Node{}, from.Vanished()...),
		Total:      from.Total(),
		Parts:      parts(from.Use()),
		lines:      c.past.lines(),
	}
	for i, n := range s.Gone {
		s.Since[n.Instance], s.Gone[i].Started = n.Started, 0
	}
	if c.cfg.Conditions != nil {
		s.Conditions = c.cfg.Conditions()
	}
	return s
}

// Cut returns the number of rows that a table would have if it has fewer; else "".
func (s Snapshot) Cut(rows int) string {
	if s.most == 0 || rows <= s.most {
		return ""
	}
	return fmt.Sprintf("%d of %d", s.most, rows)
}

// Most returns the nodes that a table has.
func (s Snapshot) Most(nodes []status.Node) []status.Node {
	if s.most == 0 {
		return nodes
	}
	return nodes[:min(len(nodes), s.most)]
}

// Measured returns the nodes of the page of clocks: where the table cannot have all, first those with a clock.
func (s Snapshot) Measured() []status.Node {
	if s.most == 0 || len(s.Nodes) <= s.most {
		return s.Nodes
	}
	has := func(n status.Node) bool { return n.Clock != nil }
	return slices.Concat(filter(s.Nodes, has), filter(s.Nodes, func(n status.Node) bool { return !has(n) }))
}

// filter returns the nodes for which ok is true.
func filter(nodes []status.Node, ok func(status.Node) bool) (out []status.Node) {
	for _, n := range nodes {
		if ok(n) {
			out = append(out, n)
		}
	}
	return out
}

// ReadAgo says how long ago the sids were read from etcd.
func (s Snapshot) ReadAgo() string {
	if s.Read == 0 {
		return "never"
	}
	return text.Seconds(max(0, s.Self.Now-s.Read)) + " ago"
}

// row is a sid in the table of sids.
type row struct {
	status.SID
	State  string       // as status.SIDState has it
	Left   int64        // The window lasts this many ms more.
	Holder *status.Node // nil if no registered node holds it
}

// Rows returns the sids that were ever used, in order.
func (s Snapshot) Rows() (out []row) {
	nodes := map[string]*status.Node{}
	for i := range s.Nodes {
		nodes[s.Nodes[i].Instance] = &s.Nodes[i]
	}
	for _, sid := range s.SIDs {
		r := row{SID: sid}
		if sid.State == status.Held {
			r.Holder = nodes[sid.Instance]
		}
		r.State, r.Left = status.SIDState(sid, r.Holder, s.Self.Now), max(0, sid.End(r.Holder)-s.Self.Now)
		out = append(out, r)
	}
	return out
}

// Shown returns the rows that the table has: where there are too many, first those that are not simply held.
func (s Snapshot) Shown() []row {
	rows := s.Rows()
	if s.most == 0 || len(rows) <= s.most {
		return rows
	}
	last := func(r row) int {
		if r.State == status.Held {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(last(a), last(b)) })
	return rows[:s.most]
}

// Count returns how many sids are in one of the states. A sid whose holder refuses, or whose
// window has ended, is held too.
func (s Snapshot) Count(state string) (n int) {
	for _, r := range s.Rows() {
		if r.State == state || state == status.Held && r.SID.State == state {
			n++
		}
	}
	return n
}

// Longest returns the length of a window, or the longest time that is left of one, in ms.
func (s Snapshot) Longest() int64 {
	longest := s.Self.Window
	for _, r := range s.Rows() {
		longest = max(longest, r.Left)
	}
	return longest
}

// Standbys returns the nodes that wait for a sid.
func (s Snapshot) Standbys() []status.Node {
	return filter(s.Nodes, func(n status.Node) bool { return n.State == status.Standby })
}

// PagesOf returns the URL of the pages of another node; "" if it has none.
func (s Snapshot) PagesOf(n status.Node) string {
	if n.Instance == s.Self.Instance {
		return ""
	}
	return n.Console
}

// Offset writes how far the clock of a node is from the cluster's time, or from this node's
// while that is not known.
func (s Snapshot) Offset(n status.Node) string {
	if n.Clock == nil {
		return "–"
	}
	offset, uncertainty := s.offset(n)
	return clock.FormatOffset(micros(offset), micros(uncertainty))
}

// offset returns what Offset writes of a clock that was measured, in µs.
func (s Snapshot) offset(n status.Node) (offset, uncertainty int64) {
	offset, uncertainty = n.Clock.Offset, n.Clock.Error
	if k := s.Self.Clock; k != nil && k.Known {
		offset -= k.Offset
		if n.Clock.Self {
			uncertainty = k.Uncertainty
		}
	}
	return offset, uncertainty
}

// utc returns a Unix time in ms as people read it; "–" for 0.
func utc(ms int64) string {
	if ms == 0 {
		return "–"
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05.000")
}

// functions are those of the templates.
var functions = map[string]any{
	"seconds": text.Seconds,
	"utc":     utc,
	"offset": func(us, uncertainty int64) string {
		return clock.FormatOffset(micros(us), micros(uncertainty))
	},
	"micros": func(us int64) string { return micros(us).String() },
	"age":    func(us int64) string { return text.Seconds(us / 1000) },
	"live":   func() template.HTML { return liveMark },
	"still":  func() template.HTML { return stillMark },
	"percent": func(part, whole int64) int64 {
		if whole <= 0 {
			return 0
		}
		return min(100, part*100/whole)
	},
	"runbook":   func(page string) string { return documents + page },
	"thousands": thousands,
	"split":     func(s string) []string { return strings.Split(s, " ") },
	"latency":   latency,
	"span":      span,
	"sub":       func(a, b int64) int64 { return a - b },
	"meanings":  sync.OnceValue(meanings),
}

// documents is where the console serves the documents of the program.
const documents = Path + "docs/"

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// thousands writes n with a comma before each three digits.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
