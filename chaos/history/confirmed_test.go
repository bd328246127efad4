package history

import (
	"testing"
	"time"
)

// An answer from above the ceiling that was confirmed when it came is found, though
// a later window covers it; a record that was told a little late accuses nobody.
func TestConfirmed(t *testing.T) {
	const lag = 100 * time.Millisecond
	first := Window{SID: 3, Rev: 5, Term: 1, Base: 0, Ceil: 200, Instance: "a"}
	next := Window{SID: 3, Rev: 7, Term: 1, Base: 200, Ceil: 900, Instance: "a"}
	// used answers one ID of a millisecond, of sid 3, at a time of the scenario.
	used := func(at, ms int64) *scenario {
		return newScenario().window(0, "n1#0", first).ok(at, 1, "n1#0", flakeAt(ms, 0, 3), 1)
	}
	byNode := func(s *scenario) *scenario { // etcd's record names the node alone
		for i := range s.ops {
			if s.ops[i].Window != nil {
				s.ops[i].Run = ""
			}
		}
		return s
	}
	for _, tc := range []struct {
		name  string
		s     *scenario
		want  Verdict
		count int64
	}{
		{"within the window", used(50, 199).sample(400, "n1", "open"), Pass, 0},
		{"above it, and the next was seen just in time", used(250, 250).window(350, "n1#0", next).sample(600, "n1", "open"), Pass, 0},
		{"above it, and the next was seen later than it can have been written", used(250, 250).window(351, "n1#0", next), Broken, 1},
		{"above it, and other ops came before the next", used(250, 250).sample(340, "n1", "open").sample(360, "n1", "open").window(370, "n1#0", next), Broken, 1},
		{"above it for a while", used(250, 250).ok(290, 1, "n1#0", flakeAt(290, 0, 3), 1).ok(350, 1, "n1#0", flakeAt(350, 0, 3), 1).window(395, "n1#0", next), Broken, 2},
		{"above it, and no window follows", used(250, 250).sample(400, "n1", "open"), Broken, 1},
		{"above it at the end of the run", used(250, 250).sample(300, "n1", "open"), Pass, 0},
		{"a block that reaches beyond", newScenario().window(0, "n1#0", first).ok(50, 1, "n1#0", flakeAt(199, 1<<15-1, 3), 2).window(200, "n1#0", next), Broken, 1},
		{"the next is another process's", used(250, 250).window(300, "n2#0", next).sample(400, "n1", "open"), Broken, 1},
		{"the next is of another sid", used(250, 250).window(300, "n1#0", Window{SID: 4, Rev: 7, Term: 1, Base: 200, Ceil: 900, Instance: "a"}).sample(400, "n1", "open"), Broken, 1},
		{"the next leaves a gap", used(250, 250).window(300, "n1#0", Window{SID: 3, Rev: 7, Term: 1, Base: 251, Ceil: 900, Instance: "a"}).sample(400, "n1", "open"), Broken, 1},
		{"the next is one that is given back", used(250, 250).window(300, "n1#0", Window{SID: 3, Rev: 7, Term: 1, Base: 0, Ceil: 300, Released: true, Instance: "a"}).sample(400, "n1", "open"), Broken, 1},
		{"given back before the answer came", newScenario().window(0, "n1#0", first).window(60, "n1#0", Window{SID: 3, Rev: 6, Term: 1, Base: 0, Ceil: 51, Released: true, Instance: "a"}).
			ok(70, 1, "n1#0", flakeAt(50, 0, 3), 1).sample(400, "n1", "open"), Pass, 0},
		{"etcd names the node alone, in time", byNode(used(250, 250).window(350, "n1#0", next).sample(600, "n1", "open")), Pass, 0},
		{"etcd names the node alone, too late", byNode(used(250, 250).window(351, "n1#0", next)), Broken, 1},
		{"no windows at all", newScenario().ok(9, 1, "n1#0", flakeAt(60, 0, 3), 1).sample(400, "n1", "open"), Unknown, 0},
		{"no answers", newScenario().window(0, "n1#0", first), Unknown, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tc.s.check(t, NewConfirmed(lag))
			if got.Verdict != tc.want || got.Count != tc.count {
				t.Errorf("got %+v, want %s with %d violations", got, tc.want, tc.count)
			}
		})
	}
	// What is told of the answer is the time of the answer, so that a fault may be blamed.
	if got := used(250, 250).window(351, "n1#0", next).check(t, NewConfirmed(lag)); got.Violations[0].At != 250e6 {
		t.Errorf("the violation is at %v, want 250 ms", time.Duration(got.Violations[0].At))
	}
}
