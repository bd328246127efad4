package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/feed"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/text"
)

// view is the cluster at one moment.
type view struct {
	status.Cluster
	// Events are the latest, the oldest first.
	Events []feed.Event `json:"events"`
}

// newView returns the view of c.
func newView(c status.Cluster, events []feed.Event) view {
	v := view{Cluster: c, Events: events}
	slices.SortFunc(v.Nodes, func(a, b status.Node) int { return strings.Compare(a.Label(), b.Label()) })
	return v
}

// eventOf returns an event as the feed of the node has it, with printable texts.
func eventOf(e *pb.Event) feed.Event {
	return feed.Event{
		ID:      text.Printable(e.GetId()),
		At:      e.GetAtUnixMs(),
		Node:    text.Printable(e.GetNode()),
		Kind:    feed.Kind(text.Printable(e.GetKind())),
		SID:     int(e.GetSid()),
		Message: text.Printable(e.GetMessage()),
	}
}

// left returns what remains of a window that ends at t, in ms.
func (v view) left(t int64) int64 { return max(t-v.Self.Now, 0) }

const (
	// problemsShown is how many problems are shown besides the worst.
	problemsShown = 3
	// sidsShown is how many sids are shown that no registered node holds.
	sidsShown = 8
	// reasonsShown is how many reasons of refusals are shown.
	reasonsShown = 4
)

// lines returns the view as text: the table of nodes from row skip on, at most room of
// them, and the latest events. room 0: all.
func (v view) lines(skip, room int) []string {
	out := []string{
		fmt.Sprintf("space %s as %s sees it at %s", v.Space, v.Self.Name, timeOfDay(v.Self.Now)),
		v.Summary.Text,
	}
	for _, p := range v.Problems[min(len(v.Problems), 1):min(len(v.Problems), 1+problemsShown)] {
		out = append(out, p.Text)
	}
	if line := v.WatermarkLine(); line != "" {
		out = append(out, line)
	}
	out = append(out, "")
	out = append(out, v.nodes(skip, room)...)
	out = append(out, v.sids()...)
	if work, own := v.Total().Work, v.refused(); len(work.Refused) > 0 || own != "" {
		out = append(out, "", "refused by all nodes: "+work.Refusals())
		if own != "" {
			out = append(out, own)
		}
	}
	if len(v.Events) > 0 {
		out = append(out, "")
	}
	for _, e := range v.Events {
		out = append(out, fmt.Sprintf("%s  %s  %s  %s", timeOfDay(e.At), e.Node, e.Kind, e.Message))
	}
	return out
}

func timeOfDay(unixMs int64) string { return time.UnixMilli(unixMs).UTC().Format("15:04:05") }

func (v view) nodes(skip, room int) []string {
	rows := [][]string{{"NODE", "SID", "TERM", "WINDOW", "", "CLOCK", "OFFSET", "IDS/S", "LEAD", "STATE"}}
	terms := map[int]int64{}
	for _, s := range v.SIDs {
		terms[s.SID] = s.Term
	}
	longest := int64(1)
	for _, n := range v.Nodes {
		longest = max(longest, v.left(n.Ceil))
	}
	nodes := v.Nodes[min(skip, len(v.Nodes)):]
	hidden := 0
	if room > 0 && len(nodes) > room {
		hidden, nodes = len(nodes)-room, nodes[:room]
	}
	for _, n := range nodes {
		rows = append(rows, v.cells(n, terms[n.SID], longest))
	}
	out := table(rows)
	if hidden > 0 {
		out = append(out, fmt.Sprintf("… %d more (arrow keys)", hidden))
	}
	return out
}

func (v view) cells(n status.Node, term, longest int64) []string {
	sid, terms, bar, left := "-", "-", "", "-"
	if n.SID >= 0 {
		ms := v.left(n.Ceil)
		sid, terms, left = strconv.Itoa(n.SID), strconv.FormatInt(term, 10), text.Seconds(ms)
		full := int((ms*barWidth + longest - 1) / longest)
		bar = strings.Repeat("█", full) + strings.Repeat("░", barWidth-full)
	}
	verdict, offset := "-", "-"
	if k := n.Clock; k != nil {
		verdict = k.Verdict
		switch {
		case k.Self:
		case !k.Fresh:
			verdict = "silent"
		default:
			offset = clock.FormatOffset(time.Duration(k.Offset)*time.Microsecond,
				time.Duration(k.Error)*time.Microsecond)
		}
		if k.Falseticker {
			offset += " FALSE"
		}
	}
	rate, lead := "-", "-"
	if r := n.Report; r != nil {
		rate, lead = strconv.FormatInt(r.Rate, 10), fmt.Sprintf("%dms", r.Lead)
	}
	return []string{n.Label(), sid, terms, bar, left, verdict, offset, rate, lead, n.What()}
}

const barWidth = 10

// sids returns the sids that no registered node holds.
func (v view) sids() []string {
	held := map[int]bool{}
	for _, n := range v.Nodes {
		held[n.SID] = true
	}
	rows := [][]string{{"SID", "STATE", "HOLDER", "USABLE IN", "PROBLEM"}}
	for _, s := range v.SIDs {
		if !held[s.SID] {
			rows = append(rows, []string{
				strconv.Itoa(s.SID), s.State, cli.OrDash(s.Node), text.Seconds(v.left(s.Ceil)), cli.OrDash(s.Problem),
			})
		}
	}
	if len(rows) == 1 {
		return nil
	}
	shown := min(len(rows), 1+sidsShown)
	out := append([]string{""}, table(rows[:shown])...)
	if more := len(rows) - shown; more > 0 {
		out = append(out, fmt.Sprintf("… %d more: allocator status", more))
	}
	return out
}

// refused returns a line of what the node asked refused since its start, the most frequent
// reason first; "" if that is nothing.
func (v view) refused() string {
	count := v.Self.Refused
	reasons := slices.DeleteFunc(slices.Collect(maps.Keys(count)), func(r string) bool { return count[r] == 0 })
	if len(reasons) == 0 {
		return ""
	}
	slices.SortFunc(reasons, func(a, b string) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b))
	})
	var parts []string
	for _, r := range reasons[:min(len(reasons), reasonsShown)] {
		parts = append(parts, fmt.Sprintf("%s %d", r, count[r]))
	}
	return "since " + v.Self.Name + " started, by it alone: " + strings.Join(parts, ", ")
}

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
