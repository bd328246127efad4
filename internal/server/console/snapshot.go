package console

import (
	"context"
	"strconv"
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
	// Conditions are those of readiness.
	Conditions []Condition `json:"conditions"`
	// FalseSince is since when the clock of a node is found wrong, by instance, in Unix ms.
	FalseSince map[string]int64 `json:"false_since_unix_ms"`
	// Mark is the line about the watermark; empty: it is not known.
	Mark string `json:"watermark_line"`
	// Since is since when nodes are in their states, by instance, in Unix ms.
	Since map[string]int64 `json:"since_unix_ms"`
	// Gone are the nodes that vanished and have not released their sids.
	Gone []status.Node `json:"gone"`
	// Total is what the nodes report together.
	Total status.Report `json:"total"`
	// Parts are those of the bar of sids.
	Parts []part `json:"sid_parts"`
}

// snapshot returns what the node knows now.
func (c *Console) snapshot(ctx context.Context) Snapshot { return c.Complete(c.cfg.Snapshot(ctx)) }

// Complete adds to the picture what the pages alone have.
func (c *Console) Complete(from status.Cluster) Snapshot {
	s := Snapshot{
		Cluster:    from,
		FalseSince: c.cfg.FalseSince(),
		Mark:       from.WatermarkLine(),
		Since:      c.cfg.Since(from),
		Gone:       append([]status.Node{}, from.Vanished()...),
		Total:      from.Total(),
		Parts:      parts(from.Use()),
	}
	for i, n := range s.Gone {
		s.Since[n.Instance], s.Gone[i].Started = n.Started, 0
	}
	if c.cfg.Conditions != nil {
		s.Conditions = c.cfg.Conditions()
	}
	return s
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

// Longest returns the longest time that is left of a window, in ms.
func (s Snapshot) Longest() (longest int64) {
	for _, r := range s.Rows() {
		longest = max(longest, r.Left)
	}
	return longest
}

// Standbys returns the nodes that wait for a sid.
func (s Snapshot) Standbys() (out []status.Node) {
	for _, n := range s.Nodes {
		if n.State == status.Standby {
			out = append(out, n)
		}
	}
	return out
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
	offset, uncertainty := n.Clock.Offset, n.Clock.Error
	if k := s.Self.Clock; k != nil && k.Known {
		offset -= k.Offset
		if n.Clock.Self {
			uncertainty = k.Uncertainty
		}
	}
	return clock.FormatOffset(micros(offset), micros(uncertainty))
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
	"percent": func(part, whole int64) int64 {
		if whole <= 0 {
			return 0
		}
		return min(100, part*100/whole)
	},
	"runbook":   func(page string) string { return documents + page },
	"thousands": thousands,
	"latency":   latency,
	"span":      span,
	"sub":       func(a, b int64) int64 { return a - b },
	"word":      word,
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
