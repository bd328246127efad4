package nemesis

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/real/rig"
)

var table = Table()

func names(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("n%d", i+1))
	}
	return out
}

func smoke() (out []Fault) {
	for _, f := range table {
		if f.Smoke {
			out = append(out, f)
		}
	}
	return out
}

// span is when an action's effects may last.
func span(a Action, t rig.Timing) (from, to int64) {
	f := Find(table, a.Fault)
	return a.AtMs, a.AtMs + lasting(f, a, t).Milliseconds()
}

// Whatever the seed: a quarter has no fault, all end in time, no node is a target
// twice at a time, at maximum two are, and faults of the whole cluster are exclusive.
func TestPlan(t *testing.T) {
	embedded := false
	defer func() {
		if !embedded {
			t.Error("no fault has the embedded node as its target")
		}
	}()
	for seed := range uint64(20) {
		for _, c := range []PlanConfig{
			{For: time.Minute, Faults: smoke(), Timing: rig.Brisk},
			{For: 105 * time.Second, Faults: smoke(), Timing: rig.Brisk},
			{For: 10 * time.Minute, Faults: table, Timing: rig.Brisk, Repeat: true},
			{For: 20 * time.Minute, Faults: table, Timing: rig.Default, Repeat: true},
			{For: 20 * time.Minute, Faults: table, Timing: rig.BriskInside, Repeat: true},
		} {
			c.Seed, c.Nodes = seed, names(3+int(seed%5))
			c.Embedded = c.Nodes[len(c.Nodes)-1]
			s := Plan(c)
			for _, a := range s.Actions {
				embedded = embedded || slices.Contains(a.Targets, c.Embedded)
				if Find(table, a.Fault).Server && slices.Contains(a.Targets, c.Embedded) {
					t.Errorf("seed %d: %s has the embedded node as its target", seed, a.Fault)
				}
			}
			if !reflect.DeepEqual(s, Plan(c)) {
				t.Fatalf("seed %d: two plans differ", seed)
			}
			fatal.If(t, s.Check(table, c.Nodes))
			if busy := s.Busy(table, c.Timing); busy > 1-calmShare+.001 {
				t.Errorf("seed %d, %v: faults for %.0f %% of the time", seed, c.For, 100*busy)
			}
			var ids []int64
			for i, a := range s.Actions {
				ids = append(ids, a.ID)
				from, to := span(a, c.Timing)
				if to > s.ForMs-closing.Milliseconds() || from < opening.Milliseconds() {
					t.Errorf("seed %d: %+v ends at %d of %d", seed, a, to, s.ForMs)
				}
				single := 0
				for j, b := range s.Actions {
					bFrom, bTo := span(b, c.Timing)
					if i == j || bTo <= from || to <= bFrom {
						continue
					}
					scopes := []Scope{Find(table, a.Fault).Scope, Find(table, b.Fault).Scope}
					if Find(table, a.Fault).Exclusive || Find(table, b.Fault).Exclusive {
						t.Errorf("seed %d: %s and %s at a time", seed, a.Fault, b.Fault)
					}
					for _, scope := range scopes {
						if scope != OneNode && scope != Extra {
							t.Errorf("seed %d: %s and %s at a time", seed, a.Fault, b.Fault)
						}
					}
					if slices.Equal(a.Targets, b.Targets) && scopes[0] == OneNode {
						t.Errorf("seed %d: %s and %s both target %v", seed, a.Fault, b.Fault, a.Targets)
					}
					if bFrom <= from && scopes[1] == OneNode {
						single++
					}
				}
				if single > atOnce-1 && Find(table, a.Fault).Scope == OneNode {
					t.Errorf("seed %d: more than %d nodes are targets at %d ms", seed, atOnce, from)
				}
			}
			slices.Sort(ids)
			if len(slices.Compact(slices.Clone(ids))) != len(ids) {
				t.Errorf("seed %d: IDs %v", seed, ids)
			}
		}
	}
}

// A fault of every class fits into a minute, all faults of CI into 105 s, and all that
// exist into 10 minutes, with members inside nodes too.
func TestPlanHasEveryClass(t *testing.T) {
	for seed := range uint64(200) {
		classes := map[Class]bool{}
		for _, a := range Plan(PlanConfig{Seed: seed, For: time.Minute, Faults: smoke(), Nodes: names(5), Timing: rig.Brisk}).Actions {
			classes[Find(table, a.Fault).Class] = true
		}
		for _, c := range Classes {
			if !classes[c] {
				t.Errorf("seed %d: a minute has no fault of class %s", seed, c)
			}
		}
		if s := Plan(PlanConfig{Seed: seed, For: 105 * time.Second, Faults: smoke(), Nodes: names(5), Timing: rig.Brisk}); len(s.LeftOut) > 0 {
			t.Errorf("seed %d: 105 s do not suffice for %v", seed, s.LeftOut)
		}
		if s := Plan(PlanConfig{Seed: seed, For: 10 * time.Minute, Faults: table, Nodes: names(5), Timing: rig.BriskInside}); len(s.LeftOut) > 0 {
			t.Errorf("seed %d: 10 minutes do not suffice for %v", seed, s.LeftOut)
		}
	}
}

// Each fault of the table is complete, and may refuse with what it must.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range table {
		if seen[f.Name] {
			t.Errorf("%s exists twice", f.Name)
		}
		seen[f.Name] = true
		if f.About == "" || !slices.Contains(Classes, f.Class) || f.Hold == nil || f.Begin == nil || f.Fired == nil || f.End == nil || f.Expect == nil {
			t.Errorf("%s is incomplete", f.Name)
			continue
		}
		for _, timing := range []rig.Timing{rig.Brisk, rig.BriskInside, rig.Default, rig.DefaultInside} {
			e := f.Expect(timing)
			minimum, maximum := f.Hold(timing)
			switch {
			case e.Text == "" || e.Settle <= 0 || minimum <= 0 || maximum < minimum:
				t.Errorf("%s: expects %+v within %v to %v", f.Name, e, minimum, maximum)
			case (f.Class == Etcd || f.Scope == Leader) && e.Settle < 1500*time.Millisecond+timing.Election:
				t.Errorf("%s: the next fault may begin before etcd has a leader", f.Name)
			case f.Scope == Quorum && e.Must == "" && maximum+election(timing) > windowLeft(timing):
				t.Errorf("%s lasts up to %v and an election: longer than windows do", f.Name, maximum)
			case e.Must != "" && !slices.Contains(e.May, e.Must):
				t.Errorf("%s must and may not refuse with %s", f.Name, e.Must)
			case e.Must != "" && minimum < e.Within+500*time.Millisecond:
				t.Errorf("%s ends %v after its deadline: too early to see it", f.Name, minimum-e.Within)
			}
		}
		if (f.Amount == nil) != (f.Unit == "") {
			t.Errorf("%s: an amount has a unit", f.Name)
		}
	}
}
