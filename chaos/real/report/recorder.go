package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// Bounds of what is kept, whatever the length of the run.
const (
	maxSlots   = 400 // slots of time in a chart
	minSlot    = clock.Mono(250 * time.Millisecond)
	maxNodes   = 40
	maxReasons = 12
	maxPending = 10_000 // calls without an answer yet
)

// grid divides the time from one moment to another into equal slots.
type grid struct {
	from, to clock.Mono
	n        int
}

// slot returns the number of the slot that t is in; false outside.
func (g grid) slot(t clock.Mono) (int, bool) {
	if t < g.from || t > g.to {
		return 0, false
	}
	return min(int(float64(t-g.from)/float64(g.to-g.from)*float64(g.n)), g.n-1), true
}

// start returns when a slot begins.
func (g grid) start(slot int) clock.Mono {
	return g.from + clock.Mono(float64(g.to-g.from)*float64(slot)/float64(g.n))
}

// number is a value of a chart; NaN and infinities are null in JSON.
type number float64

// MarshalJSON writes five significant digits.
func (n number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(n), 'g', 5, 64), nil
}

// Gauge is a measured value over time. Of each slot it keeps the worst value, and
// in a slot without one the value before it, unless the node lost its sid or was down since.
type Gauge struct {
	slots   []float64 // NaN: none
	ended   []bool    // there was none at the end of the slot
	minimum bool      // the smallest value is the worst, not the one farthest from 0
	worst   float64   // the worst of all values; NaN: none
}

func newGauge(n int, minimum bool) *Gauge {
	return &Gauge{
		slots:   slices.Repeat([]float64{math.NaN()}, n),
		ended:   make([]bool, n),
		minimum: minimum,
		worst:   math.NaN(),
	}
}

// Worst returns the worst value as text.
func (g *Gauge) Worst() string {
	if math.IsNaN(g.worst) {
		return "–"
	}
	return measured(g.worst)
}

func (g *Gauge) set(slot int, v float64, none bool) {
	if g.ended[slot] = none; none {
		return
	}
	for _, to := range []*float64{&g.slots[slot], &g.worst} {
		if math.IsNaN(*to) || g.minimum && v < *to || !g.minimum && math.Abs(v) > math.Abs(*to) {
			*to = v
		}
	}
}

func (g *Gauge) values() []number {
	out, last := make([]number, len(g.slots)), math.NaN()
	for i, v := range g.slots {
		if !math.IsNaN(v) {
			last = v
		}
		out[i] = number(last)
		if g.ended[i] {
			last = math.NaN()
		}
	}
	return out
}

// counts are counts by slot; nil is none.
type counts []float64

func (c *counts) add(g grid, slot int, n float64) {
	if *c == nil {
		*c = make(counts, g.n)
	}
	(*c)[slot] += n
}

func (c counts) perSecond(g grid) []number {
	out := make([]number, g.n)
	for i, v := range c {
		out[i] = number(v / seconds(g.to-g.from) * float64(g.n))
	}
	return out
}

// histogram counts durations in steps of 5 %, from 10 µs to 50 s.
type histogram struct {
	counts []uint32
	n      int64
	max    float64
}

const (
	shortest   = 10e-6
	bucketStep = 1.05
	buckets    = 316
)

func (h *histogram) add(v float64) {
	if h.counts == nil {
		h.counts = make([]uint32, buckets)
	}
	i := int(math.Log(max(v, shortest)/shortest) / math.Log(bucketStep))
	h.counts[min(max(i, 0), buckets-1)]++
	h.n++
	h.max = max(h.max, v)
}

// quantile returns the value that a share q of all does not exceed, to within 5 %.
// The maximum is exact. Without values the answer is NaN.
func (h *histogram) quantile(q float64) float64 {
	if h.n == 0 {
		return math.NaN()
	}
	rank, seen := int64(math.Ceil(q*float64(h.n))), int64(0)
	for i, c := range h.counts {
		if seen += int64(c); seen >= rank && q < 1 {
			return min(shortest*math.Pow(bucketStep, float64(i)+.5), h.max)
		}
	}
	return h.max
}

// Outcomes of calls.
const (
	answered = iota
	refused
	unknown
)

var outcomeNames = [...]string{"answered", "refused", "unknown"}

// call is a call that was sent.
type call struct {
	at    clock.Mono
	count int64
	after flake.ID
}

// Node is what is recorded of one node.
type Node struct {
	Name                      string
	IDs                       int64
	Calls                     [len(outcomeNames)]int64
	Window, Lease             *Gauge // s
	Offset, Uncertainty, Wall *Gauge // ms

	states   track
	rate     counts    // IDs
	inFlight []segment // calls of a close-up
}

// Reason is a reason of refusals, or of unknown outcomes.
type Reason struct {
	Name        string
	Count       int64
	First, Last clock.Mono
	Nodes       map[string]int64
	rate        counts
}

// recorder keeps what the page shows of one span of a history. It takes ops in
// order, in memory that does not grow with their number.
type recorder struct {
	grid
	Nodes   []*Node
	Reasons []*Reason

	nodesLeft bool // there are more than fit
	leader    track
	faults    []*band
	outcomes  [len(outcomeNames)]counts
	latency   []histogram
	near      *near // set in a close-up

	open    map[int64]*band // faults that are not healed
	pending map[string]call // client to the call without an answer
}

func newRecorder(from, to clock.Mono) *recorder {
	n := int(max(1, min(maxSlots, (to-from)/minSlot)))
	return &recorder{
		grid:    grid{from, to, n},
		latency: make([]histogram, n),
		open:    map[int64]*band{},
		pending: map[string]call{},
	}
}

// node returns the record of a node; nil if there are too many.
func (r *recorder) node(name string) *Node {
	name = clip(name, 40)
	i := slices.IndexFunc(r.Nodes, func(n *Node) bool { return n.Name == name })
	switch {
	case name == "":
		return nil
	case i >= 0:
		return r.Nodes[i]
	case len(r.Nodes) == maxNodes:
		r.nodesLeft = true
		return nil
	}
	n := &Node{
		Name:        name,
		Window:      newGauge(r.n, true),
		Lease:       newGauge(r.n, true),
		Offset:      newGauge(r.n, false),
		Uncertainty: newGauge(r.n, false),
		Wall:        newGauge(r.n, false),
	}
	r.Nodes = append(r.Nodes, n)
	return n
}

func (r *recorder) add(op *history.Op) {
	switch {
	case op.Setup != nil:
		for _, name := range op.Setup.Nodes {
			r.node(name)
		}
	case op.Fault != nil:
		r.fault(op)
	case op.Sample != nil:
		r.sample(op)
	case op.F == history.FLeader:
		state, text := holding, clip(op.Node, 24)
		if text == "" {
			state, text = refusing, "none"
		}
		r.leader.set(r.grid, op.Time, state, text)
	case op.F == history.FAllocate:
		r.call(op)
	}
	if r.near != nil {
		r.near.add(op)
	}
}

func (r *recorder) sample(op *history.Op) {
	n, s := r.node(op.Node), op.Sample
	if n == nil {
		return
	}
	state, text := stateOf(s)
	n.states.set(r.grid, op.Time, state, text)
	if i, ok := r.slot(op.Time); ok {
		none := state >= unreachable || s.SID == nil
		n.Window.set(i, float64(s.LeadMs)/1e3, none)
		n.Lease.set(i, float64(s.TTLMs)/1e3, none)
		n.Offset.set(i, s.OffsetMs, none)
		n.Uncertainty.set(i, s.ErrorMs, none)
		n.Wall.set(i, s.SelfMs, none)
	}
}

func (r *recorder) call(op *history.Op) {
	if op.Type == history.Invoke {
		if len(r.pending) < maxPending {
			r.pending[op.Process] = call{op.Time, op.Block.Count, op.After}
		}
		return
	}
	began, ok := r.pending[op.Process]
	delete(r.pending, op.Process)
	if !ok {
		return
	}
	outcome := unknown
	switch op.Type {
	case history.OK:
		outcome = answered
	case history.Fail:
		outcome = refused
	}
	n := r.node(op.Node)
	if n != nil && r.near != nil && op.Time >= r.from && began.at <= r.to && len(n.inFlight) < maxInFlight {
		title := fmt.Sprintf("client %s: %s", clip(op.Process, 12), r.near.callText(op, &began))
		n.inFlight = append(n.inFlight, newSegment(r.grid, began.at, op.Time, outcomeNames[outcome], "", title))
	}
	i, ok := r.slot(op.Time)
	if !ok {
		return
	}
	r.outcomes[outcome].add(r.grid, i, 1)
	r.latency[i].add(seconds(op.Time - began.at))
	if n != nil {
		n.Calls[outcome]++
	}
	if outcome != answered {
		r.reason(cmp.Or(clip(op.Reason, 40), "no reason")).add(r.grid, op.Time, i, n)
	} else if n != nil {
		n.IDs += op.Block.Count
		n.rate.add(r.grid, i, float64(op.Block.Count))
	}
}

func (r *recorder) reason(name string) *Reason {
	for _, name := range []string{name, "other"} {
		if i := slices.IndexFunc(r.Reasons, func(w *Reason) bool { return w.Name == name }); i >= 0 {
			return r.Reasons[i]
		}
		if len(r.Reasons) < maxReasons || name == "other" {
			r.Reasons = append(r.Reasons, &Reason{Name: name, First: -1, Nodes: map[string]int64{}})
			break
		}
	}
	return r.Reasons[len(r.Reasons)-1]
}

func (w *Reason) add(g grid, t clock.Mono, slot int, n *Node) {
	if w.Count++; w.First < 0 {
		w.First = t
	}
	w.Last = t
	w.rate.add(g, slot, 1)
	if n != nil {
		w.Nodes[n.Name]++
	}
}

// charts is what the script of the page draws: values by slot.
type charts struct {
	X         []number            `json:"x"` // start of each slot, in seconds
	Bands     []*band             `json:"bands"`
	Violation any                 `json:"violation"` // in seconds, or null
	Calls     map[string][]number `json:"calls"`     // per second, by outcome
	Latency   map[string][]number `json:"latency"`   // ms, by quantile
	Reasons   []any               `json:"reasons"`   // name, then per second
	Nodes     []map[string]any    `json:"nodes"`
}

func (r *recorder) charts(bands []*band) *charts {
	c := &charts{Bands: bands, Calls: map[string][]number{}, Latency: map[string][]number{}}
	for i, name := range outcomeNames {
		c.Calls[name] = r.outcomes[i].perSecond(r.grid)
	}
	for i := range r.n {
		c.X = append(c.X, number(seconds(r.start(i))))
		for name, q := range map[string]float64{"p50": .5, "p99": .99, "max": 1} {
			c.Latency[name] = append(c.Latency[name], number(r.latency[i].quantile(q)*1e3))
		}
	}
	for _, w := range r.Reasons {
		c.Reasons = append(c.Reasons, map[string]any{"name": w.Name, "rate": w.rate.perSecond(r.grid)})
	}
	for _, n := range r.Nodes {
		c.Nodes = append(c.Nodes,
			map[string]any{"name": n.Name, "ids": n.rate.perSecond(r.grid), "window": n.Window.values(),
				"lease":  n.Lease.values(),
				"offset": n.Offset.values(), "uncertainty": n.Uncertainty.values(), "wall": n.Wall.values()})
	}
	return c
}
