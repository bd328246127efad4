package nemesis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/flakelease/allocator/chaos/rig"
)

// Schedule is what a run does and when. It can be written down and played again.
type Schedule struct {
	Seed    uint64   `json:"seed"`
	Nodes   int      `json:"nodes"`
	ForMs   int64    `json:"for_ms"`
	Actions []Action `json:"actions"`
	// LeftOut are faults that the time did not suffice for.
	LeftOut []string `json:"left_out,omitempty"`
}

// PlanConfig says what to plan.
type PlanConfig struct {
	Seed   uint64
	For    time.Duration
	Faults []Fault // in no particular order
	Nodes  []string
	Timing rig.Timing
	Repeat bool // go round again for as long as there is time
	Lanes  int  // how many nodes may be hit at once; 0: 2
}

// Parts of a schedule.
const (
	opening      = 4 * time.Second         // calm before the first fault
	closing      = 3 * time.Second         // calm after the last one, in which everybody serves
	pauseAtLeast = 1500 * time.Millisecond // calm at least between groups
	shareOfCalm  = 0.25                    // of the whole run
)

// group is faults that go on side by side.
type group struct {
	actions []Action // times count from the group's start
	lasts   time.Duration
}

// Plan draws a schedule. The same config gives the same schedule.
//
// Faults of single nodes go on side by side, on different nodes and never on as
// many as a majority could lack; all others are alone. At least a quarter of the
// time is calm.
func Plan(c PlanConfig) Schedule {
	random := rand.New(rand.NewPCG(c.Seed, 0x5eed))
	out := Schedule{Seed: c.Seed, Nodes: len(c.Nodes), ForMs: c.For.Milliseconds()}
	lanes := c.Lanes
	if lanes == 0 {
		lanes = 2
	}
	at := opening
	id := int64(0)
	planned := map[string]bool{}
	var busy time.Duration
	for round := 0; ; round++ {
		groups := draw(random, c, lanes)
		fitted := false
		for _, g := range groups {
			start := at
			if len(planned) > 0 {
				start += gap(at, busy, g.lasts)
			}
			if start+g.lasts+closing > c.For {
				continue // another may fit
			}
			at, fitted = start, true
			for _, a := range g.actions {
				id++
				a.ID, a.AtMs = id, a.AtMs+at.Milliseconds()
				planned[a.Fault] = true
				out.Actions = append(out.Actions, a)
			}
			at += g.lasts
			busy += g.lasts
		}
		if !fitted || !c.Repeat {
			break
		}
	}
	for _, f := range c.Faults {
		if !planned[f.Name] {
			out.LeftOut = append(out.LeftOut, f.Name)
		}
	}
	slices.SortStableFunc(out.Actions, func(a, b Action) int { return int(a.AtMs - b.AtMs) })
	return out
}

// gap returns how much calm is due before the next group.
func gap(at, busy, next time.Duration) time.Duration {
	// busy+next of the time until its end may be shareOfCalm short of all.
	end := time.Duration(float64(busy+next) / (1 - shareOfCalm))
	return max(pauseAtLeast, end-at-next-closing)
}

// draw puts every fault into a group, once.
func draw(random *rand.Rand, c PlanConfig, lanes int) (out []group) {
	var single []Action
	for _, i := range random.Perm(len(c.Faults)) {
		f := &c.Faults[i]
		a := action(random, f, c.Timing)
		if f.Scope == OneNode {
			single = append(single, a)
			continue
		}
		out = append(out, group{actions: []Action{a}, lasts: lasting(f, a, c.Timing)})
	}
	if len(single) > 0 {
		out = append(out, sideBySide(random, c, single, min(lanes, max(1, (len(c.Nodes)-1)/2)))...)
	}
	random.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func action(random *rand.Rand, f *Fault, t rig.Timing) Action {
	least, most := f.Hold(t)
	a := Action{Fault: f.Name, ForMs: least.Milliseconds()}
	if most > least {
		a.ForMs += random.Int64N((most - least).Milliseconds())
	}
	if f.Amount != nil {
		a.Amount, a.Unit = f.Amount(random), f.Unit
	}
	return a
}

func lasting(f *Fault, a Action, t rig.Timing) time.Duration {
	return time.Duration(a.ForMs)*time.Millisecond + f.Expect(t).Settle
}

// sideBySide fills lanes with faults of single nodes, the longest first. A lane
// has nodes of its own, so that no node is hit twice at a time.
func sideBySide(random *rand.Rand, c PlanConfig, actions []Action, lanes int) (out []group) {
	const most = 40 * time.Second // a group of more would leave no calm for long
	order := random.Perm(len(c.Nodes))
	slices.SortStableFunc(actions, func(a, b Action) int {
		return int(lasting(Find(c.Faults, b.Fault), b, c.Timing) - lasting(Find(c.Faults, a.Fault), a, c.Timing))
	})
	for len(actions) > 0 {
		var g group
		used := make([]time.Duration, lanes)
		turn := make([]int, lanes)
		var later []Action
		for _, a := range actions {
			lane := 0
			for l := range used {
				if used[l] < used[lane] {
					lane = l
				}
			}
			d := lasting(Find(c.Faults, a.Fault), a, c.Timing)
			if used[lane] > 0 && used[lane]+d > max(most, g.lasts) {
				later = append(later, a)
				continue
			}
			mine := order[lane*len(order)/lanes : (lane+1)*len(order)/lanes]
			a.Targets = []string{c.Nodes[mine[turn[lane]%len(mine)]]}
			turn[lane]++
			a.AtMs = used[lane].Milliseconds()
			used[lane] += d + 200*time.Millisecond
			g.actions = append(g.actions, a)
			g.lasts = max(g.lasts, used[lane])
		}
		out = append(out, g)
		actions = later
	}
	return out
}

// Busy returns the share of the run in which some fault's effects may last.
func (s Schedule) Busy(table []Fault, t rig.Timing) float64 {
	type edge struct {
		at   int64
		step int
	}
	var edges []edge
	for _, a := range s.Actions {
		f := Find(table, a.Fault)
		if f == nil {
			continue
		}
		edges = append(edges, edge{a.AtMs, 1}, edge{a.AtMs + lasting(f, a, t).Milliseconds(), -1})
	}
	slices.SortFunc(edges, func(a, b edge) int { return int(a.at - b.at) })
	var busy int64
	open := 0
	for i, e := range edges {
		if open > 0 {
			busy += e.at - edges[i-1].at
		}
		open += e.step
	}
	return float64(busy) / float64(max(s.ForMs, 1))
}

// Check returns an error if the schedule names faults or nodes that are not
// there.
func (s Schedule) Check(table []Fault, nodes []string) error {
	for _, a := range s.Actions {
		if Find(table, a.Fault) == nil {
			return fmt.Errorf("schedule: action %d: there is no fault %q", a.ID, a.Fault)
		}
		for _, t := range a.Targets {
			if !slices.Contains(nodes, t) {
				return fmt.Errorf("schedule: action %d: there is no node %q", a.ID, t)
			}
		}
		if a.AtMs < 0 || a.ForMs < 0 {
			return fmt.Errorf("schedule: action %d: negative time", a.ID)
		}
	}
	return nil
}
