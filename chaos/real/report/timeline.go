package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/internal/clock"
)

// band is one injection of a fault: a segment of the timeline and a band in the
// charts.
type band struct {
	Name    string `json:"name"`
	Class   string `json:"class"`
	Targets string `json:"targets"`
	From    number `json:"from"`  // s
	To      number `json:"to"`    // when the fault was healed
	Until   number `json:"until"` // effects may last

	id              int64
	targets         []string
	amount, effect  string
	verdict         outcome
	from, fired, to clock.Mono // −1: not seen
	settle          clock.Mono
}

// className returns the class of a fault, if it is one that has a color.
func className(class string) string {
	switch class {
	case "process", "clock", "etcd", "network", "data", "cluster":
		return class
	case "records":
		return "data"
	}
	return "other"
}

func (r *recorder) fault(op *history.Op) {
	f := op.Fault
	b := r.open[f.ID]
	switch {
	case f.Phase == history.FaultStart && op.Time <= r.to:
		b = &band{
			Name:    clip(op.F, 40),
			Class:   className(f.Class),
			Targets: targetNames(f.Targets),
			id:      f.ID,
			from:    op.Time,
			fired:   -1,
			to:      -1,
			settle:  clock.Mono(max(0, min(f.SettleMs, 1e9)) * 1e6),
		}
		for _, t := range f.Targets[:min(len(f.Targets), 64)] {
			b.targets = append(b.targets, clip(t, 40))
		}
		switch f.Unit {
		case "":
		case "ns":
			b.amount = time.Duration(f.Amount).Round(time.Microsecond).String()
		default:
			b.amount = fmt.Sprintf("%d %s", f.Amount, clip(f.Unit, 16))
		}
		r.open[f.ID] = b
		r.faults = append(r.faults, b)
	case b == nil:
	case f.Phase == history.FaultFired && b.fired < 0:
		b.fired, b.effect = op.Time, clip(f.Effect, 200)
	case f.Phase == history.FaultStop:
		b.to = op.Time
		delete(r.open, f.ID)
		if b.to+b.settle < r.from { // over before this span begins
			r.faults = slices.DeleteFunc(r.faults, func(o *band) bool { return o == b })
		}
	}
}

// bands returns the faults of the span by time, with their verdicts.
func (r *recorder) bands(res *results) []*band {
	verdicts := map[int64]string{}
	for _, f := range res.Faults {
		for _, s := range f.Injections {
			verdicts[s.ID] = f.Verdict
		}
	}
	slices.SortStableFunc(r.faults, func(a, b *band) int { return int(a.from - b.from) })
	for _, b := range r.faults {
		until := min(b.to+b.settle, r.to)
		if b.to < 0 {
			b.to, until = r.to, r.to
		}
		b.verdict = outcomeOf(verdicts[b.id])
		b.From, b.To, b.Until = number(seconds(b.from)), number(seconds(b.to)), number(seconds(until))
	}
	return append([]*band{}, r.faults...)
}

func (b *band) title() string {
	seen := "no effect seen"
	if b.fired >= 0 {
		seen = fmt.Sprintf("effect seen at %.2f s: %s", seconds(b.fired), b.effect)
	}
	return fmt.Sprintf("#%d %s %s %s: %.2f to %.2f s, effects may last until %.2f s; %s; %s", b.id, b.Name, b.Targets,
		b.amount, b.From, b.To, b.Until, seen, b.verdict.Text)
}

// state is the state of a node, from the best to the worst.
type state int

const (
	holding state = iota
	clocksRejected
	standby
	refusing
	unreachable
	down
)

var stateClasses = [...]string{"holding", "rejected", "standby", "refusing", "unreachable", "down"}

// stateOf returns the state that a sample reports, and its text.
func stateOf(s *history.Sample) (state, string) {
	sid := ""
	if s.SID != nil {
		sid = fmt.Sprintf("sid %d", *s.SID)
		if s.Term > 0 {
			sid += fmt.Sprintf(" term %d", s.Term)
		}
	}
	reason := clip(s.Reason, 40)
	switch {
	case s.State == "down":
		return down, "down"
	case s.State == "silent":
		return unreachable, "no answer"
	case reason == "NO_SID" || reason == "STARTING":
		return standby, reason
	case reason != "":
		return refusing, strings.TrimSpace(reason + " " + sid)
	case s.Verdict != "open" && s.Verdict != "":
		return clocksRejected, "clocks " + clip(s.Verdict, 20) + " " + sid
	case sid != "":
		return holding, sid
	}
	return standby, clip(s.State, 40)
}

// trackSlots is into how many pieces the states of a track are divided.
const trackSlots = 400

// track is a state over time: of each slot the worst.
type track struct {
	slots [trackSlots]mark
	last  mark
	next  int // the first slot after the last state
}

type mark struct {
	known bool
	state state
	text  string
}

// set states what holds from a time on; times do not decrease.
func (k *track) set(g grid, t clock.Mono, s state, text string) {
	g.n = trackSlots
	i, inside := g.slot(t)
	if !inside && t > g.to {
		return
	}
	k.fill(i)
	m := mark{true, s, text}
	if k.next <= i || k.slots[i].state <= s || !inside {
		k.slots[i] = m
	}
	k.last, k.next = m, max(k.next, i+1)
}

// fill lets the last state hold up to a slot.
func (k *track) fill(to int) {
	for ; k.next < to; k.next++ {
		k.slots[k.next] = k.last
	}
}

func (k *track) segments(g grid) (out []segment) {
	g.n = trackSlots
	k.fill(trackSlots)
	for i, j := 0, 0; i < trackSlots; i = j {
		for j = i; j < trackSlots && k.slots[j] == k.slots[i]; j++ {
		}
		m := k.slots[i]
		if !m.known {
			continue
		}
		s := newSegment(g, g.start(i), g.start(j), stateClasses[m.state], m.text,
			fmt.Sprintf("%s: %.2f to %.2f s", m.text, seconds(g.start(i)), seconds(g.start(j))))
		if s.size < characters*float64(len(m.text)) {
			s.Text = ""
		}
		out = append(out, s)
	}
	return out
}

// timeline is lanes of segments over one span of time.
type timeline struct {
	Ticks []segment
	Lanes []lane
	Marks []string // positions of violations, in percent
	grid  grid
}

type lane struct {
	Name     string
	Rows     int
	Segments []segment
}

// segment is a box of a lane; its place is in percent of the width.
type segment struct {
	Left, Width        string
	Row                int
	Class, Text, Title string
	from, size         float64
}

func newSegment(g grid, from, to clock.Mono, class, text, title string) segment {
	percent := func(t clock.Mono) float64 { return min(100, max(0, float64(t-g.from)/float64(g.to-g.from)*100)) }
	left := percent(from)
	size := percent(to) - left
	return segment{
		Left:  fmt.Sprintf("%.3f", left),
		Width: fmt.Sprintf("%.3f", size),
		Class: class,
		Text:  text,
		Title: title,
		from:  left,
		size:  size,
	}
}

func (t *timeline) mark(at clock.Mono) {
	t.Marks = append(t.Marks, newSegment(t.grid, at, at, "", "", "").Left)
}

// Bounds of a lane.
const (
	maxLaneRows = 14
	maxInFlight = 300 // calls of a node
	characters  = .68 // width of a character, in percent
)

// pack puts segments into the first row that has room for them and their text, and
// leaves out the text where no row has, and the segment if it has none.
func pack(segments []segment) (out []segment, rows int) {
	var ends []float64
	for _, s := range segments {
		text := characters * float64(len(s.Text))
		from, end := s.from, s.from+max(s.size, text)
		if text > s.size && end > 100 {
			s.Class += " flip" // the text ends where the segment does
			from, end = s.from+s.size-text, s.from+s.size
		}
		for s.Row = 0; s.Row < len(ends) && ends[s.Row] > from; s.Row++ {
		}
		if s.Row == maxLaneRows {
			continue
		}
		if s.Row == len(ends) {
			ends = append(ends, 0)
		}
		ends[s.Row] = end + .3
		out = append(out, s)
	}
	return out, len(ends)
}

func (r *recorder) timeline(bands []*band) *timeline {
	t := &timeline{grid: r.grid}
	for i := range 6 {
		at := r.from + (r.to-r.from)*clock.Mono(i)/5
		t.Ticks = append(t.Ticks,
			newSegment(r.grid, at, at, "", time.Duration(at).Round(10*time.Millisecond).String(), ""))
	}
	var faults []segment
	for _, b := range bands {
		text := strings.TrimSpace(b.Name + " " + b.Targets)
		if b.verdict.Class != "pass" {
			text = b.verdict.Symbol + " " + text
		}
		faults = append(faults, newSegment(r.grid, b.from, b.to, "fault "+b.Class, text, b.title()))
	}
	faults, rows := pack(faults)
	t.Lanes = []lane{{"faults", max(1, rows), faults}, {"etcd leader", 1, r.leader.segments(r.grid)}}
	for _, n := range r.Nodes {
		l := lane{Name: n.Name, Segments: n.states.segments(r.grid)}
		for _, b := range bands {
			if slices.Contains(b.targets, n.Name) {
				l.Segments = append(l.Segments, newSegment(r.grid, b.from, b.to, "hit "+b.Class, "", b.title()))
			}
		}
		calls, rows := pack(n.inFlight)
		for _, c := range calls {
			c.Row++
			l.Segments = append(l.Segments, c)
		}
		l.Rows = 1 + rows
		t.Lanes = append(t.Lanes, l)
	}
	return t
}
