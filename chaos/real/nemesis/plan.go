package nemesis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/flake"
)

// Schedule is the faults of a run and their times. It can be saved and repeated.
type Schedule struct {
	Seed    uint64       `json:"seed"`
	Nodes   int          `json:"nodes"`
	Format  flake.Format `json:"format"`
	ForMs   int64        `json:"for_ms"`
	Actions []Action     `json:"actions"`
	// LeftOut are faults that did not fit into the time.
	LeftOut []string `json:"left_out,omitempty"`
}

// PlanConfig is the input of Plan.
type PlanConfig struct {
	Seed   uint64
	For    time.Duration
	Faults []Fault // in no particular order
	Format flake.Format
	Nodes  []string
	// Embedded names the node that is no server; "": there is none.
	Embedded string
	Timing   rig.Timing
	Repeat   bool // repeat the faults while there is time
}

// Parts of a schedule.
const (
	opening   = 4 * time.Second         // time before the first fault
	closing   = 3 * time.Second         // time after the last fault
	minPause  = 1500 * time.Millisecond // shortest pause between groups
	calmShare = 0.25                    // share of the run without a fault
	atOnce    = 2                       // nodes that are targets at a time
	longest   = 32 * time.Second        // longest group, so that times without a fault are frequent
)

// group is faults that run in parallel.
type group struct {
	number  int64
	lanes   int      // faults of single nodes at a time; 0: one exclusive fault
	actions []Action // times count from the group's start
	lasts   time.Duration
}

// Plan makes a random schedule. The same config gives the same schedule.
//
// Faults of single nodes run in parallel, on different nodes and always on fewer
// than a majority; all others are exclusive. At least a quarter of the time has no
// fault. Faults that do not fit are left out: the longest first, and faults of
// single nodes last.
func Plan(c PlanConfig) Schedule {
	random := rand.New(rand.NewPCG(c.Seed, 0x5eed))
	out := Schedule{Seed: c.Seed, Nodes: len(c.Nodes), Format: c.Format, ForMs: c.For.Milliseconds()}
	room := c.For - opening - closing                      // faults and the pauses between them
	may := time.Duration(float64(c.For) * (1 - calmShare)) // faults alone
	var groups []group
	for {
		more := fitting(draw(random, c), room, may)
		for _, g := range more {
			room -= g.lasts + minPause
			may -= g.lasts
		}
		groups = append(groups, more...)
		if len(more) == 0 || !c.Repeat {
			break
		}
	}
	planned := map[string]bool{}
	at, pause := opening, minPause
	if len(groups) > 0 {
		pause += max(room, 0) / time.Duration(len(groups))
	}
	for _, g := range groups {
		for _, a := range g.actions {
			a.ID, a.AtMs = int64(len(out.Actions)+1), a.AtMs+at.Milliseconds()
			planned[a.Fault] = true
			out.Actions = append(out.Actions, a)
		}
		at += g.lasts + pause
	}
	for _, f := range c.Faults {
		if !planned[f.Name] {
			out.LeftOut = append(out.LeftOut, f.Name)
		}
	}
	slices.SortStableFunc(out.Actions, func(a, b Action) int { return int(a.AtMs - b.AtMs) })
	return out
}

// fitting returns the groups that fit, in the order given.
func fitting(groups []group, room, may time.Duration) (out []group) {
	order := slices.Clone(groups)
	slices.SortStableFunc(order, func(a, b group) int {
		if a.lanes != b.lanes {
			return b.lanes - a.lanes
		}
		return int(a.lasts - b.lasts)
	})
	chosen := map[int64]bool{}
	for _, g := range order {
		if g.lasts > may || g.lasts+minPause > room {
			continue
		}
		room -= g.lasts + minPause
		may -= g.lasts
		chosen[g.number] = true
	}
	for _, g := range groups {
		if chosen[g.number] {
			out = append(out, g)
		}
	}
	return out
}

// draw puts every fault into a group, once.
func draw(random *rand.Rand, c PlanConfig) (out []group) {
	var single, extra []Action
	for _, i := range random.Perm(len(c.Faults)) {
		f := &c.Faults[i]
		a := action(random, f, c.Timing)
		switch {
		case f.Scope == OneNode && !f.Exclusive:
			single = append(single, a)
		case f.Scope == Extra:
			extra = append(extra, a)
		default:
			if f.Scope == OneNode {
				a.Targets = []string{c.target(f, func() string { return c.Nodes[random.IntN(len(c.Nodes))] })}
			}
			out = append(out, group{actions: []Action{a}, lasts: lasting(f, a, c.Timing)})
		}
	}
	out = append(out, inParallel(random, c, single, extra)...)
	random.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	for i := range out {
		out[i].number = int64(i)
	}
	return out
}

// target draws until the node is one that the fault can be injected into.
func (c *PlanConfig) target(f *Fault, draw func() string) string {
	name := draw()
	for f.Server && name == c.Embedded {
		name = draw()
	}
	return name
}

func action(random *rand.Rand, f *Fault, t rig.Timing) Action {
	minimum, maximum := f.Hold(t)
	a := Action{Fault: f.Name, ForMs: minimum.Milliseconds()}
	if maximum > minimum {
		a.ForMs += random.Int64N((maximum - minimum).Milliseconds())
	}
	if f.Amount != nil {
		a.Amount, a.Unit = f.Amount(random), f.Unit
	}
	return a
}

func lasting(f *Fault, a Action, t rig.Timing) time.Duration {
	return time.Duration(a.ForMs)*time.Millisecond + f.Expect(t).Settle
}

// inParallel fills lanes with faults of single nodes, the longest first. A lane has
// nodes of its own, so that no node is a target twice at a time; one more lane is for
// faults of the extra node.
func inParallel(random *rand.Rand, c PlanConfig, actions, extra []Action) (out []group) {
	lanes := min(atOnce, max(1, (len(c.Nodes)-1)/2))
	order := random.Perm(len(c.Nodes))
	length := func(a Action) time.Duration { return lasting(Find(c.Faults, a.Fault), a, c.Timing) }
	slices.SortStableFunc(actions, func(a, b Action) int { return int(length(b) - length(a)) })
	for len(actions)+len(extra) > 0 {
		g := group{lanes: lanes}
		used, turn := make([]time.Duration, lanes+1), make([]int, lanes)
		put := func(lane int, a Action) {
			a.AtMs = used[lane].Milliseconds()
			used[lane] += length(a) + 200*time.Millisecond
			g.actions = append(g.actions, a)
			g.lasts = max(g.lasts, used[lane])
		}
		var later []Action
		for _, a := range actions {
			lane := 0
			for l := range lanes {
				if used[l] < used[lane] {
					lane = l
				}
			}
			if used[lane] > 0 && used[lane]+length(a) > max(longest, g.lasts) {
				later = append(later, a)
				continue
			}
			mine := order[lane*len(order)/lanes : (lane+1)*len(order)/lanes]
			a.Targets = []string{c.target(Find(c.Faults, a.Fault), func() string {
				turn[lane]++
				return c.Nodes[mine[(turn[lane]-1)%len(mine)]]
			})}
			put(lane, a)
		}
		for len(extra) > 0 && (used[lanes] == 0 || used[lanes]+length(extra[0]) <= g.lasts) {
			put(lanes, extra[0])
			extra = extra[1:]
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

// Check returns an error if the schedule names a fault or node that does not exist.
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
