package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/node"
)

// serve answers a request, and plans the next.
func (p *process) serve() {
	sim := p.sim
	p.plan(sim.upTo(2*sim.plan.pace), client)
	if sim.stage == trouble && sim.chance(sim.plan.slowClient) {
		// The request has read the clock, and then the scheduler forgets it.
		now, begin, read := p.Now(), sim.moment(), sim.now
		n, after := p.wish()
		p.in(sim.logTime(time.Millisecond, 10*time.Second), func() { p.try(now, begin, read, n, after) })
		return
	}
	p.serveNow()
}

// serveNow reports whether the process issued IDs.
func (p *process) serveNow() bool {
	n, after := p.wish()
	return p.try(p.Now(), p.sim.moment(), p.sim.now, n, after)
}

// wish is what a client asks for.
func (p *process) wish() (n int, after flake.ID) {
	sim := p.sim
	n = 1 + sim.rng.IntN(5)
	switch {
	case sim.stage == trouble && sim.chance(sim.plan.greedy):
		n = 1 + sim.rng.IntN(gen.Config{Layout: sim.plan.format.Layout, MaxLead: millis(sim.plan.maxLead)}.MaxBlock())
	case sim.plan.mode != Calm && sim.rng.IntN(16) == 0:
		n = 1 + sim.rng.IntN(min(1000, 1<<sim.plan.format.Layout.SequenceBits()))
	}
	if sim.chance(sim.plan.follow) {
		after = sim.recent[sim.rng.IntN(len(sim.recent))]
		if sim.plan.mode != Calm && sim.rng.IntN(8) == 0 { // an ID of another space, or of none
			ms, low := int64(sim.trueMillis())-sim.plan.format.Epoch+sim.rng.Int64N(2000),
				sim.plan.format.Layout.LowBits()
			after = flake.ID(ms/int64(sim.plan.unit())<<low | sim.rng.Int64N(1<<low))
		}
	}
	return n, after
}

// try asks the node for n IDs, and holds the answer against what it must be.
func (p *process) try(now clock.Reading, begin clock.Mono, read time.Duration, n int, after flake.ID) bool {
	sim := p.sim
	watched := sim.rng.IntN(4) == 0 && p.during == nil
	var before node.Stats
	if watched {
		before = p.node.Stats()
	}
	b, err := p.node.Try(now, n, after)
	if err != nil {
		sim.refused(p, err)
		if watched {
			p.same(before, p.node.Stats(), err)
		}
		return false
	}
	sim.see(p.host, Happening{
		Kind: "issue", Process: p.name, SID: b.SID, First: b.First, Count: b.Count,
		Stride: b.Stride,
	})
	sim.note(p, "issues %d from %d of sid %d", int64(b.Count), int64(b.First), int64(b.SID))
	if sim.trace.out != nil {
		sim.say(p, fmt.Sprintf("  that is %v to %v", b.First, b.Last()))
	}
	if b.First <= after {
		sim.violate("I6", "%s issued %v, asked for IDs after %v", p.name, b.First, after)
	}
	if p.latched {
		sim.violate("rewound", "%s issued %v while it believes that history went back", p.name, b.First)
	}
	// A process that does not know the era yet may issue from a window from before the repair.
	late := sim.stage == repaired && sim.plan.format.UnixMilli(b.First) < int64(sim.floor)
	if sim.stage != repaired || late {
		sim.highest = max(sim.highest, b.Last())
	} else if b.First <= sim.highest {
		sim.violate("I1", "%s issued %v after the repair, not above %v of before", p.name, b.First, sim.highest)
	}
	if late && sim.now > sim.knownBy {
		sim.violate("recover", "%s issued %v, below the floor of an era that it must know", p.name, b.First)
	}
	p.checkIssued(b, read)
	p.checkMark(b, now.Wall)
	if sim.stage != tampered && !late {
		sim.terms.add(sim, p, b)
	}
	if h := sim.record(); h != nil && !late {
		h.Issues = append(h.Issues, history.Issue{
			Process: p.name, First: b.First, Count: b.Count, Stride: b.Stride, Begin: begin, End: sim.moment(),
			Off: p.host.offTruth(sim.now),
		})
		if sim.plan.mode == Calm {
			h.Issues = latest(h.Issues, keptBlocks)
		}
	} else {
		sim.outside++
	}
	sim.recent[sim.rng.IntN(len(sim.recent))] = b.Last()
	return true
}

// same checks I7, as far as a node's stats show its state.
func (p *process) same(a, b node.Stats, err error) {
	if a.Issued != b.Issued || a.Base != b.Base || a.Ceil != b.Ceil || a.Lead != b.Lead || a.Holding != b.Holding ||
		a.SID != b.SID || a.Reserved != b.Reserved || a.Verdict != b.Verdict || a.Unverified != b.Unverified {
		p.sim.violate("I7", "%s refused (%v), and its stats went from %+v to %+v", p.name, err, a, b)
	}
}

// reasonPoints are refusals that a run must have seen.
var reasonPoints = []struct {
	reason node.Reason
	point  Point
}{
	{node.WindowExhausted, WindowExhausted}, {node.ClockSkew, ClockSkew}, {node.ClockUnverified, ClockUnverified},
	{node.ClockRegression, ClockRegression}, {node.EntropyOverflow, EntropyOverflow}, {node.AfterTooFar, AfterTooFar},
	{node.HistoryRewound, HistoryRewound}, {node.NoSID, NoSID}, {node.Draining, Draining},
}

func (sim *simulation) refused(p *process, err error) {
	var r *node.Refusal
	if !errors.As(err, &r) {
		sim.violate("I7", "%s failed without a reason: %v", p.name, err)
		return
	}
	for _, x := range reasonPoints {
		if x.reason == r.Reason {
			sim.points.hit(x.point)
		}
	}
	sim.note(p, "refuses: "+r.Reason.String())
	sim.see(p.host, Happening{Kind: "refuse", Process: p.name, What: r.Reason.String()})
}

// terms keeps the smallest and the largest ID of each hold of a sid: IDs of one
// sid rise from holder to holder (I2), however late a holder serves.
type terms struct {
	list []hold
	of   map[string]int // by process, its latest hold; never iterated
}

type hold struct {
	process     string
	cut         clock.Millis // it gave the sid back with this ceiling; 0: it did not
	sid         flake.SID
	number      int // It is the value of process.holds during this hold.
	repaired    bool
	first, last flake.ID
}

func (t *terms) add(sim *simulation, p *process, b gen.Block) {
	if t.of == nil {
		t.of = map[string]int{}
	}
	i, ok := t.of[p.name]
	if !ok || t.list[i].number != p.holds || t.list[i].repaired != (sim.stage == repaired) {
		i = len(t.list)
		t.of[p.name] = i
		t.list = append(t.list, hold{p.name, 0, b.SID, p.holds, sim.stage == repaired, b.First, b.Last()})
	}
	if b.First < t.list[i].last && b.First != t.list[i].first {
		sim.violate("I2", "%s issued %v of sid %d after %v", p.name, b.First, b.SID, t.list[i].last)
	}
	t.list[i].last = max(t.list[i].last, b.Last())
	if cut := t.list[i].cut; cut != 0 && sim.ends(b.Last()) > cut {
		sim.violate("I4",
			"%s issued %v of sid %d, which it gave back with the ceiling %d", p.name, b.Last(), b.SID, cut)
	}
}

// release notes that etcd has a sid as given back: all that was issued, and all
// that ever will be, is below its ceiling.
func (t *terms) release(sim *simulation, p *process, sid flake.SID, ceil clock.Millis) {
	i, ok := t.of[p.name]
	if !ok || t.list[i].sid != sid || t.list[i].repaired != (sim.stage == repaired) {
		return // after a repair, old ceilings mean nothing: the era's floor is above them
	}
	t.list[i].cut = ceil
	if last := t.list[i].last; sim.ends(last) > ceil {
		sim.violate("I4", "%s gave sid %d back with the ceiling %d, and had issued %v", p.name, sid, ceil, last)
	}
}

// ends returns the end of an ID's unit of time.
func (sim *simulation) ends(id flake.ID) clock.Millis {
	return clock.Millis(sim.plan.format.UnixMilli(id)) + sim.plan.unit()
}

// check returns the holds of one sid that interleave.
func (t *terms) check() (out []string) {
	list := slices.Clone(t.list)
	slices.SortFunc(list, func(a, b hold) int {
		if a.sid != b.sid {
			return int(a.sid) - int(b.sid)
		}
		return int(min(max(a.first-b.first, -1), 1))
	})
	for i := 1; i < len(list); i++ {
		if a, b := list[i-1], list[i]; a.sid == b.sid && b.first <= a.last && len(out) < 5 {
			out = append(out, fmt.Sprintf("sid %d: %s issued %v to %v, and %s from %v",
				a.sid, a.process, a.first, a.last, b.process, b.first))
		}
	}
	return out
}
