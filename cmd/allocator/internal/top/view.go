package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/text"
)

// view is the cluster at one moment.
type view struct {
	Space    string     `json:"space"`
	At       int64      `json:"at_unix_ms"` // by the clock of the node asked
	Asked    string     `json:"asked"`      // that node
	Summary  string     `json:"summary"`
	Problems []string   `json:"problems"`
	Nodes    []nodeRow  `json:"nodes"`
	SIDs     []sidRow   `json:"sids"` // those that no registered node holds
	Refused  []refusals `json:"refused"`
	Events   []event    `json:"events"` // the latest, the oldest first
}

type nodeRow struct {
	Name      string `json:"name"`
	SID       int32  `json:"sid"` // -1: none
	Term      int64  `json:"term"`
	WindowMs  int64  `json:"window_remaining_ms"`
	Verdict   string `json:"verdict"`
	Offset    int64  `json:"offset_us"`
	Error     int64  `json:"error_us"`
	False     bool   `json:"falseticker"`
	Fresh     bool   `json:"fresh"` // its clock was measured lately
	Reported  bool   `json:"reported"`
	PerSecond int64  `json:"ids_per_second"` // the rest is as it reported, AgeMs ago
	LeadMs    int64  `json:"lead_ms"`
	Refusing  string `json:"refusing,omitempty"`
	AgeMs     int64  `json:"age_ms"`
	Self      bool   `json:"self"` // it is the node asked
}

type sidRow struct {
	SID      int32  `json:"sid"`
	State    string `json:"state"`
	Holder   string `json:"holder"`
	WindowMs int64  `json:"window_remaining_ms"`
	Problem  string `json:"problem,omitempty"`
}

// refusals are those of the node asked, by reason.
type refusals struct {
	Reason    string `json:"reason"`
	Count     int64  `json:"count"`
	PerSecond int64  `json:"per_second"`
}

type event struct {
	ID      string `json:"id"`
	At      int64  `json:"at_unix_ms"`
	Node    string `json:"node"`
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// staleAfter is the age from which on a report is not shown as of now.
const staleAfter = 5 * time.Second

// newView returns the view of c. before is the answer of the same node before it, nil
// without one; rates are counted from it.
func newView(c, before *pb.GetClusterResponse, events []*pb.Event) view {
	self := c.GetSelf()
	v := view{Space: c.GetSpace(), At: self.GetNowUnixMs(), Asked: text.Printable(self.GetName()), Nodes: []nodeRow{}, SIDs: []sidRow{}, Refused: []refusals{}, Events: []event{}, Problems: []string{}}
	sids := map[int32]*pb.Sid{}
	for _, s := range c.GetSids() {
		sids[s.GetSid()] = s
	}
	held := map[int32]bool{}
	for _, n := range c.GetNodes() {
		row := nodeRow{Name: text.Printable(n.GetName()), SID: n.GetSid(), Self: n.GetInstance() == self.GetInstance(), Verdict: "unknown"}
		ceil := int64(0)
		if s := sids[n.GetSid()]; s != nil {
			ceil, row.Term = s.GetCeilUnixMs(), s.GetTerm()
		}
		if p := n.GetClock(); p != nil {
			row.Verdict, row.Offset, row.Error, row.False, row.Fresh = p.GetVerdict(), p.GetOffsetUs(), p.GetErrorUs(), p.GetFalseticker(), p.GetFresh()
		}
		if r := n.GetReport(); r != nil && r.GetAgeMs() < staleAfter.Milliseconds() {
			row.Reported, row.PerSecond, row.LeadMs, row.AgeMs = true, r.GetIdsPerSecond(), r.GetLeadMs(), r.GetAgeMs()
			if reason := r.GetRefusing(); reason != pb.Reason_REASON_UNSPECIFIED {
				row.Refusing = node.Reason(reason).String()
			}
			ceil = max(ceil, r.GetCeilUnixMs())
		}
		if row.SID >= 0 {
			held[row.SID] = true
			row.WindowMs = max(ceil-v.At, 0)
		}
		v.Nodes = append(v.Nodes, row)
	}
	slices.SortFunc(v.Nodes, func(a, b nodeRow) int { return strings.Compare(a.Name, b.Name) })
	for _, s := range c.GetSids() {
		if !held[s.GetSid()] {
			v.SIDs = append(v.SIDs, sidRow{s.GetSid(), s.GetState(), text.Printable(s.GetNode()), max(s.GetCeilUnixMs()-v.At, 0), text.Printable(s.GetProblem())})
		}
	}
	v.refused(self, before)
	for _, e := range events {
		v.Events = append(v.Events, event{text.Printable(e.GetId()), e.GetAtUnixMs(), text.Printable(e.GetNode()), text.Printable(e.GetKind()), text.Printable(e.GetMessage())})
	}
	v.summarize(c)
	return v
}

// refused adds the refusals of the node asked, the most frequent first.
func (v *view) refused(self *pb.NodeStatus, before *pb.GetClusterResponse) {
	was := before.GetSelf()
	took := self.GetNowUnixMs() - was.GetNowUnixMs()
	for reason, n := range self.GetRefused() {
		r := refusals{Reason: text.Printable(reason), Count: n}
		if was.GetInstance() == self.GetInstance() && took > 0 {
			r.PerSecond = (n - was.GetRefused()[reason]) * 1000 / took
		}
		if n > 0 {
			v.Refused = append(v.Refused, r)
		}
	}
	slices.SortFunc(v.Refused, func(a, b refusals) int {
		return cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(b.Count, a.Count), strings.Compare(a.Reason, b.Reason))
	})
}

// summarize finds what is wrong, and says so in one sentence.
func (v *view) summarize(c *pb.GetClusterResponse) {
	wrong := func(format string, args ...any) { v.Problems = append(v.Problems, fmt.Sprintf(format, args...)) }
	if p := c.GetProblem(); p != "" {
		wrong("%s", text.Printable(p))
	}
	serving, standby := 0, 0
	for _, n := range v.Nodes {
		switch {
		case n.Refusing == "NO_SID":
			standby++ // a standby is there to wait
		case n.Refusing != "":
			wrong("%s refuses: %s", n.Name, n.Refusing)
		case n.False:
			wrong("%s has a wrong clock", n.Name)
		case n.Verdict != "unknown" && !n.Fresh:
			wrong("%s does not answer by gossip", n.Name)
		case n.SID < 0:
			standby++
		default:
			serving++
		}
	}
	quarantined := 0
	for _, s := range v.SIDs {
		if s.State == "quarantined" {
			quarantined++
		}
	}
	if quarantined > 0 {
		wrong("%s quarantined", text.Count(quarantined, "sid"))
	}
	switch {
	case len(v.Nodes) == 0 && len(v.Problems) == 0:
		v.Summary = "no node is registered"
	case len(v.Problems) == 0:
		v.Summary = fmt.Sprintf("all is well: %s with a sid", text.Count(serving, "node"))
	default:
		v.Summary = strings.Join(v.Problems[:min(len(v.Problems), 4)], "; ")
		if more := len(v.Problems) - 4; more > 0 {
			v.Summary += fmt.Sprintf("; and %d more", more)
		}
	}
	if standby > 0 {
		v.Summary += fmt.Sprintf("; %s without one", text.Count(standby, "node"))
	}
}

// lines returns the view as text: the table of nodes from row skip on, at most room of
// them, and the latest events. room 0: all.
func (v view) lines(skip, room int) []string {
	out := []string{fmt.Sprintf("space %s as %s sees it at %s", v.Space, v.Asked, time.UnixMilli(v.At).UTC().Format("15:04:05")), v.Summary, ""}
	rows := [][]string{{"NODE", "SID", "TERM", "WINDOW", "", "CLOCK", "OFFSET", "IDS/S", "LEAD", "STATE"}}
	longest := int64(1)
	for _, n := range v.Nodes {
		longest = max(longest, n.WindowMs)
	}
	nodes := v.Nodes[min(skip, len(v.Nodes)):]
	hidden := 0
	if room > 0 && len(nodes) > room {
		hidden, nodes = len(nodes)-room, nodes[:room]
	}
	for _, n := range nodes {
		rows = append(rows, n.cells(longest))
	}
	out = append(out, table(rows)...)
	if hidden > 0 {
		out = append(out, fmt.Sprintf("… %d more (arrow keys)", hidden))
	}
	if len(v.SIDs) > 0 {
		out = append(out, "")
		rows = [][]string{{"SID", "STATE", "HOLDER", "USABLE IN", "PROBLEM"}}
		for _, s := range v.SIDs[:min(len(v.SIDs), 8)] {
			rows = append(rows, []string{strconv.Itoa(int(s.SID)), s.State, cli.OrDash(s.Holder), seconds(s.WindowMs), cli.OrDash(s.Problem)})
		}
		out = append(out, table(rows)...)
		if more := len(v.SIDs) - 8; more > 0 {
			out = append(out, fmt.Sprintf("… %d more: allocator status", more))
		}
	}
	if len(v.Refused) > 0 {
		var parts []string
		for _, r := range v.Refused[:min(len(v.Refused), 4)] {
			parts = append(parts, fmt.Sprintf("%s %d (%d/s)", r.Reason, r.Count, r.PerSecond))
		}
		out = append(out, "", "refused by "+v.Asked+": "+strings.Join(parts, ", "))
	}
	if len(v.Events) > 0 {
		out = append(out, "")
	}
	for _, e := range v.Events {
		out = append(out, fmt.Sprintf("%s  %s  %s  %s", time.UnixMilli(e.At).UTC().Format("15:04:05"), e.Node, e.Kind, e.Message))
	}
	return out
}

func (n nodeRow) cells(longest int64) []string {
	sid, term, bar, left := "-", "-", "", "-"
	if n.SID >= 0 {
		sid, term, left = strconv.Itoa(int(n.SID)), strconv.FormatInt(n.Term, 10), seconds(n.WindowMs)
		full := int((n.WindowMs*barWidth + longest - 1) / longest)
		bar = strings.Repeat("█", full) + strings.Repeat("░", barWidth-full)
	}
	verdict, offset := n.Verdict, "-"
	switch {
	case n.Self:
	case !n.Fresh && n.Verdict != "unknown":
		verdict = "silent"
	case n.Fresh:
		offset = clock.FormatOffset(time.Duration(n.Offset)*time.Microsecond, time.Duration(n.Error)*time.Microsecond)
	}
	if n.False {
		offset += " FALSE"
	}
	rate, lead, state := "-", "-", "no report"
	if n.Reported {
		rate, lead, state = strconv.FormatInt(n.PerSecond, 10), fmt.Sprintf("%dms", n.LeadMs), "serves"
	}
	if n.Refusing != "" {
		state = n.Refusing
	}
	return []string{n.Name, sid, term, bar, left, verdict, offset, rate, lead, state}
}

const barWidth = 10

// table returns rows with their columns aligned. Widths are in characters.
func table(rows [][]string) []string {
	widths := map[int]int{}
	for _, r := range rows {
		for i, cell := range r {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	var out []string
	for _, r := range rows {
		var b strings.Builder
		for i, cell := range r {
			b.WriteString(cell)
			if i < len(r)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-len([]rune(cell))+2))
			}
		}
		out = append(out, strings.TrimRight(b.String(), " "))
	}
	return out
}

func seconds(ms int64) string { return fmt.Sprintf("%.1fs", float64(ms)/1000) }
