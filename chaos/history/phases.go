package history

import (
	"fmt"
	"slices"

	"github.com/flakelease/allocator/internal/clock"
)

// FaultPhases is how the cluster served clients before, during and after a fault.
type FaultPhases struct {
	Fault   string     `json:"fault"`
	ID      int64      `json:"id"`
	Targets []string   `json:"targets,omitempty"`
	Start   clock.Mono `json:"start_ns"`
	Stop    clock.Mono `json:"stop_ns"` // −1: it was never healed
	Fired   bool       `json:"fired"`

	Before Served `json:"before"` // at most five seconds, from the fault before on
	During Served `json:"during"`
	After  Served `json:"after"` // at most five seconds, up to the next fault

	// FirstMs is the time from the stop until each target that is a node had answered a call made since;
	// −1: not seen.
	FirstMs int64 `json:"first_ms"`
	// BackMs is the time from the stop until a second of 95 % of the rate before; −1: not before the next fault.
	BackMs int64 `json:"back_ms"`
}

// Served counts calls that ended in a phase.
type Served struct {
	Seconds float64 `json:"seconds"`
	OK      int64   `json:"ok"`
	Failed  int64   `json:"failed"`  // refused
	Unknown int64   `json:"unknown"` // outcome
	IDs     int64   `json:"ids"`
}

// Share returns which share of calls was answered with IDs, in percent; false if
// there were none.
func (s Served) Share() (float64, bool) {
	all := s.OK + s.Failed + s.Unknown
	return 100 * float64(s.OK) / float64(max(all, 1)), all > 0
}

const (
	slot          = clock.Mono(100e6) // what rates are counted by
	around        = 50                // slots considered before a start and after a stop
	steady        = 10                // slots that a rate must hold for
	backTo        = .95               // A rate has recovered when it is this part of the rate before.
	recoveryLimit = clock.Mono(15e9)  // from a stop: a cluster that serves no client by then has not recovered
)

// tally is what ended in one slot.
type tally struct{ ok, failed, unknown, ids int64 }

// Phases measures availability and recovery, and fails a run in which a target
// of a fault did not come back after it was healed, while it was asked: within
// 15 s of the end of its effects. Of targets that are no nodes, such as members of
// etcd, only whether any node answers can be seen.
type Phases struct {
	findings
	calls
	faults
	slots []tally
	all   []*healing
	open  []*healing      // those that later calls may still end
	nodes map[string]bool // Clients call these nodes.
	ended clock.Mono
}

// healing is a fault whose recovery is watched.
type healing struct {
	*injection
	back map[string]*comeback // by node
}

// comeback is what became of one node after the stop, or of all together, by the
// name "", where no target is a node.
type comeback struct {
	first clock.Mono // answer to a call made after the stop; −1: none yet
	until clock.Mono // the end of the last call made after the stop
	moot  bool       // hit again before it could answer
}

// NewPhases returns the check.
func NewPhases() *Phases { return &Phases{nodes: map[string]bool{}} }

// Add takes calls and faults.
func (p *Phases) Add(op *Op) {
	p.ended = op.Time
	if i := p.faults.take(op); i != nil {
		switch op.Fault.Phase {
		case FaultStart:
			p.again(i)
			p.all = append(p.all, &healing{injection: i, back: map[string]*comeback{}})
		case FaultStop:
			p.healed(i)
		}
	}
	if op.isCall() && op.Node != "" {
		p.nodes[op.Node] = true
	}
	a, done := p.calls.take(op)
	if !done || op.Reason == ReasonStopped {
		return
	}
	at := int(op.Time / slot)
	for len(p.slots) <= at {
		p.slots = append(p.slots, tally{})
	}
	t := &p.slots[at]
	switch op.Type {
	case OK:
		t.ok++
		t.ids += op.Block.Count
	case Fail:
		t.failed++
	default:
		t.unknown++
	}
	kept := p.open[:0]
	for _, h := range p.open {
		if a.at > h.end()+2*recoveryLimit {
			continue
		}
		kept = append(kept, h)
		if a.at < h.stopped {
			continue
		}
		for node, c := range h.back {
			if node == "" || node == op.Node {
				c.until = op.Time
				if op.Type == OK && c.first < 0 {
					c.first = op.Time
				}
			}
		}
	}
	p.open = kept
}

// healed begins to watch how the targets come back.
func (p *Phases) healed(i *injection) {
	for n := len(p.all) - 1; n >= 0; n-- {
		h := p.all[n]
		if h.injection != i || len(h.back) > 0 {
			continue
		}
		for _, t := range i.fault.Targets {
			if p.nodes[t] {
				h.back[t] = &comeback{first: -1}
			}
		}
		if len(h.back) == 0 {
			h.back[""] = &comeback{first: -1}
		}
		p.open = append(p.open, h)
		return
	}
}

// again notes that nodes are hit once more: what they do from now on says nothing
// of the faults before.
func (p *Phases) again(i *injection) {
	for _, h := range p.open {
		for node, c := range h.back {
			if c.first < 0 && node != "" && i.targets(node) {
				c.moot = true
			}
		}
	}
}

// comesBack returns the last of the first answers, and who did not come back.
func (h *healing) comesBack() (first clock.Mono, missing []string) {
	first = -1
	late := false
	for node, c := range h.back {
		if c.first >= 0 {
			first = max(first, c.first)
			continue
		}
		late = true
		if !c.moot && c.until > h.end()+recoveryLimit {
			missing = append(missing, node)
		}
	}
	if late {
		first = -1
	}
	slices.Sort(missing)
	return first, missing
}

func (p *Phases) sum(from, to int) Served {
	s := Served{Seconds: float64(to-from) * seconds(slot)}
	for i := max(from, 0); i < min(to, len(p.slots)); i++ {
		s.OK += p.slots[i].ok
		s.Failed += p.slots[i].failed
		s.Unknown += p.slots[i].unknown
		s.IDs += p.slots[i].ids
	}
	return s
}

// Finish measures each fault's phases.
func (p *Phases) Finish() Result {
	end := int(p.ended/slot) + 1
	var rows []FaultPhases
	var total Served
	for n, h := range p.all {
		row := FaultPhases{
			Fault:   h.f,
			ID:      h.fault.ID,
			Targets: h.fault.Targets,
			Start:   h.at,
			Stop:    h.stopped,
			Fired:   h.fired,
			FirstMs: -1,
			BackMs:  -1,
		}
		start, stop := int(h.at/slot), end
		if h.stopped >= 0 {
			stop = int(h.stopped/slot) + 1
		}
		from, next := max(start-around, 0), min(stop+around, end)
		for m, other := range p.all {
			if m == n {
				continue
			}
			if other.stopped >= 0 && other.stopped <= h.at {
				from = max(from, min(int(other.stopped/slot)+1, start))
			}
			if other.at >= h.stopped && h.stopped >= 0 {
				next = min(next, max(int(other.at/slot), stop))
			}
		}
		row.Before, row.During, row.After = p.sum(from, start), p.sum(start, stop), p.sum(stop, next)
		total.OK += row.During.OK
		total.Failed += row.During.Failed
		total.Unknown += row.During.Unknown
		first, missing := h.comesBack()
		if first >= 0 {
			row.FirstMs = int64(first-h.stopped) / 1e6
		}
		if h.stopped >= 0 && row.Before.Seconds > 0 && row.Before.OK > 0 {
			want := backTo * float64(row.Before.IDs) / row.Before.Seconds * steady * seconds(slot)
			for i := stop; i+steady <= next; i++ {
				if float64(p.sum(i, i+steady).IDs) >= want {
					row.BackMs = int64(i-stop) * int64(slot) / 1e6
					break
				}
			}
		}
		for _, node := range missing {
			who := node + " had not"
			if node == "" {
				who = "no client had"
			}
			p.add("availability", h.stopped,
				"%s (%d) was healed at %.3f s, its effects were over at %.3f s, and %.3f s later %s answered",
				h.f, h.fault.ID, seconds(h.stopped), seconds(h.end()), seconds(h.back[node].until-h.end()), who)
		}
		rows = append(rows, row)
	}
	missing := ""
	if len(p.all) == 0 {
		missing = "no fault was injected"
	}
	reason := fmt.Sprintf("%d faults", len(p.all))
	if share, ok := total.Share(); ok {
		reason = fmt.Sprintf("%d faults, %.3f %% of calls answered during them", len(p.all), share)
	}
	r := p.result("availability", "availability", reason, missing)
	r.Phases = rows
	whole := p.sum(0, end)
	if share, ok := whole.Share(); ok {
		r.Measurements = []Measurement{{"answered", share, "%"}, {"rate", float64(whole.IDs) / whole.Seconds, "IDs/s"}}
	}
	return r
}
