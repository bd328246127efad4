package report

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// view is what one picture needs of a history: all of it for the whole run, less
// than a second for the neighbourhood of a violation. It takes ops in order, in
// memory that does not grow with them.
type view struct {
	span
	setup   *history.Setup
	nodes   []*node
	leader  track
	faults  []*band
	calls   [outcomes]*tally
	took    *latencies
	near    *near // of a view of a violation
	skipped int   // nodes that there is no lane for
	hidden  int   // faults without a label
	lanes   []place

	byName  map[string]*node
	byID    map[int64]*band
	began   map[string]begun // calls in hand, by client
	dropped int              // faults that are not drawn
}

// node is the lane of one node.
type node struct {
	name         string
	state        track
	gate         track
	ids, refused *tally
	wall, offset *series // ms, as in history.Sample: SelfMs, OffsetMs
	low, high    *series // ms: the offset with its uncertainty
	lead, lease  *series // s
	calls        []call  // of a view of a violation
	more         int     // calls that are not kept
}

// band is one injection of a fault.
type band struct {
	name              string
	id                int64
	class             string
	targets           []string
	amount, effect    string
	from, fired, stop clock.Mono // −1: not seen
	settle            clock.Mono
	verdict           string
}

func (b *band) hits(name string) bool { return slices.Contains(b.targets, name) }

// until is when its effects may be over.
func (b *band) until(end clock.Mono) clock.Mono {
	if b.stop < 0 {
		return end
	}
	return min(b.stop+b.settle, end)
}

type begun struct {
	at    clock.Mono
	count int64
	after flake.ID
}

// call is one call in the neighbourhood of a violation.
type call struct {
	from, to clock.Mono
	outcome  int
	title    string
}

// Bounds of what is drawn.
const (
	mostNodes  = 12
	mostFaults = 400
	mostCalls  = 300   // of a node, near a violation
	mostInHand = 10000 // clients
)

func newView(from, to clock.Mono) *view {
	s := span{from, to}
	v := &view{span: s, took: newLatencies(s), byName: map[string]*node{}, byID: map[int64]*band{}, began: map[string]begun{}}
	for i := range v.calls {
		v.calls[i] = newTally(s)
	}
	return v
}

// node returns the lane of a node; nil if there are too many.
func (v *view) node(name string) *node {
	if n, ok := v.byName[name]; ok || name == "" {
		return n
	}
	if len(v.nodes) == mostNodes {
		v.skipped++
		if len(v.byName) < 1000 {
			v.byName[name] = nil
		}
		return nil
	}
	s := v.span
	n := &node{name: name, ids: newTally(s), refused: newTally(s), wall: newSeries(s), offset: newSeries(s), low: newSeries(s), high: newSeries(s), lead: newSeries(s), lease: newSeries(s)}
	v.nodes = append(v.nodes, n)
	v.byName[name] = n
	return n
}

func (v *view) add(op *history.Op) {
	switch {
	case op.Setup != nil:
		v.setup = op.Setup
		for _, name := range op.Setup.Nodes {
			v.node(name)
		}
	case op.Fault != nil:
		v.fault(op)
	case op.Sample != nil:
		v.sample(op)
	case op.F == history.FLeader:
		if op.Time > v.to {
			break
		}
		if op.Node == "" {
			v.leader.set(op.Time, "none", "none")
		} else {
			v.leader.set(op.Time, "leads", clip(op.Node, 24))
		}
	case op.F == history.FAllocate:
		v.call(op)
	}
	if v.near != nil {
		v.near.add(op)
	}
}

func (v *view) fault(op *history.Op) {
	f := op.Fault
	b := v.byID[f.ID]
	switch f.Phase {
	case history.FaultStart:
		if len(v.faults) == mostFaults {
			v.dropped++
			return
		}
		if op.Time > v.to {
			return
		}
		b = &band{name: clip(op.F, 40), id: f.ID, class: f.Class, from: op.Time, fired: -1, stop: -1, settle: clock.Mono(max(0, min(f.SettleMs, 1e9)) * 1e6)}
		for _, t := range f.Targets[:min(len(f.Targets), 32)] {
			b.targets = append(b.targets, clip(t, 24))
		}
		if f.Unit != "" {
			b.amount = fmt.Sprintf("%d %s", f.Amount, clip(f.Unit, 16))
			if f.Unit == "ns" {
				b.amount = time.Duration(f.Amount).Round(time.Microsecond).String()
			}
		}
		v.byID[f.ID] = b
		v.faults = append(v.faults, b)
	case history.FaultFired:
		if b != nil && b.fired < 0 {
			b.fired, b.effect = op.Time, clip(f.Effect, 200)
		}
	case history.FaultStop:
		if b != nil {
			b.stop = op.Time
			delete(v.byID, f.ID)
			if b.until(1<<62) < v.from { // long over where this view begins
				v.faults = slices.DeleteFunc(v.faults, func(o *band) bool { return o == b })
			}
		}
	}
}

func (v *view) sample(op *history.Op) {
	n := v.node(op.Node)
	if n == nil {
		return
	}
	s, t := op.Sample, op.Time
	if t <= v.to {
		class, text := stateOf(s)
		n.state.set(t, class, text)
		class, text = gateOf(s)
		n.gate.set(t, class, text)
	}
	switch s.State {
	case "down", "silent":
		for _, line := range []*series{n.wall, n.offset, n.low, n.high, n.lead, n.lease} {
			line.gap(t)
		}
	default:
		n.wall.add(t, s.SelfMs)
		n.offset.add(t, s.OffsetMs)
		n.low.add(t, s.OffsetMs-s.ErrorMs)
		n.high.add(t, s.OffsetMs+s.ErrorMs)
		n.lead.add(t, float64(s.LeadMs)/1e3)
		n.lease.add(t, float64(s.TTLMs)/1e3)
	}
}

// stateOf returns the kind of state that a sample tells, and its words.
func stateOf(s *history.Sample) (class, text string) {
	sid := ""
	if s.SID != nil {
		sid = fmt.Sprintf("sid %d", *s.SID)
		if s.Term > 0 {
			sid += fmt.Sprintf(" term %d", s.Term)
		}
	}
	reason := clip(s.Reason, 40)
	switch {
	case s.State == "down" || s.State == "silent":
		return s.State, s.State
	case reason != "" && sid != "":
		return "refusing", reason + " · " + sid
	case reason == "NO_SID" || reason == "STARTING":
		return "standby", reason
	case reason != "":
		return "refusing", reason
	case sid != "":
		return "holding", sid
	}
	return "standby", clip(s.State, 40)
}

// gateOf returns what the gate says of the clocks; nothing while it is open.
func gateOf(s *history.Sample) (class, text string) {
	switch s.Verdict {
	case "open", "":
		return "", ""
	}
	return "gate", "clock " + clip(s.Verdict, 20)
}

func (v *view) call(op *history.Op) {
	if op.Type == history.Invoke {
		if len(v.began) < mostInHand {
			v.began[op.Process] = begun{op.Time, op.Block.Count, op.After}
		}
		return
	}
	b, ok := v.began[op.Process]
	delete(v.began, op.Process)
	if !ok {
		return
	}
	outcome := unclear
	switch op.Type {
	case history.OK:
		outcome = answered
	case history.Fail:
		outcome = refused
	}
	v.calls[outcome].add(op.Time, 1)
	v.took.add(op.Time, seconds(op.Time-b.at), outcome)
	n := v.node(op.Node)
	if n == nil {
		return
	}
	switch outcome {
	case answered:
		n.ids.add(op.Time, float64(op.Block.Count))
	case refused:
		n.refused.add(op.Time, 1)
	}
	if v.near != nil && op.Time >= v.from && b.at <= v.to {
		if len(n.calls) == mostCalls {
			n.more++
			return
		}
		n.calls = append(n.calls, call{b.at, op.Time, outcome, fmt.Sprintf("client %s: %s", clip(op.Process, 12), v.near.words(op, &b))})
	}
}

// judged takes the verdicts of strikes from the results.
func (v *view) judged(r *run) {
	verdicts := map[int64]string{}
	for _, f := range r.Faults {
		for _, s := range f.Injections {
			verdicts[s.ID] = f.Verdict
		}
	}
	for _, b := range v.faults {
		b.verdict = verdicts[b.id]
	}
}

// near gathers the ops around a violation: those next to it, the last ones before
// and the first ones after.
type near struct {
	at     clock.Mono
	detail string
	format flake.Format
	before []opRow // a ring
	next   int
	after  []opRow
	calls  map[string]begun
	left   int // not shown
}

// opRow is one op in words.
type opRow struct {
	Ms, At    string
	Who, What string
	Class     string
	Named     bool // the violation names the process
}

// Bounds of the table of ops.
const (
	mostBefore = 120
	mostAfter  = 60
)

func (n *near) add(op *history.Op) {
	if op.Setup != nil {
		n.format = op.Setup.Format()
	}
	var b *begun
	if op.F == history.FAllocate {
		if n.calls == nil {
			n.calls = map[string]begun{}
		}
		if op.Type == history.Invoke {
			if len(n.calls) < mostInHand {
				n.calls[op.Process] = begun{op.Time, op.Block.Count, op.After}
			}
		} else if x, ok := n.calls[op.Process]; ok {
			b = &x
			delete(n.calls, op.Process)
		}
	}
	if op.Time < n.at-around || op.Time > n.at+around || op.Setup != nil {
		return
	}
	row := opRow{Ms: fmt.Sprintf("%+.3f", float64(op.Time-n.at)/1e6), At: fmt.Sprintf("%.6f", seconds(op.Time)), What: n.words(op, b), Named: n.names(op)}
	row.Class, row.Who = "seen", clip(cmp.Or(op.Run, op.Node, op.Process), 40)
	switch {
	case op.F == history.FAllocate:
		row.Class = op.Type.String()
		row.Who += " ← client " + clip(op.Process, 12)
	case op.Fault != nil:
		row.Class = "fault"
	}
	switch {
	case op.Time <= n.at && len(n.before) < mostBefore:
		n.before = append(n.before, row)
	case op.Time <= n.at:
		n.before[n.next] = row
		n.next = (n.next + 1) % mostBefore
		n.left++
	case len(n.after) < mostAfter:
		n.after = append(n.after, row)
	default:
		n.left++
	}
}

// rows returns what was gathered, in order.
func (n *near) rows() []opRow {
	out := slices.Concat(n.before[n.next:], n.before[:n.next])
	out = append(out, opRow{Ms: "0", At: fmt.Sprintf("%.6f", seconds(n.at)), Class: "here", What: "the violation was seen"})
	return append(out, n.after...)
}
