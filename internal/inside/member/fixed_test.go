package member

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const self = "https://c:2380"

func listed(id uint64, name string) Member {
	return Member{ID: id, Name: name, Peers: []string{"https://" + name + ":2380"}}
}

func reports(a, b Holds) map[string]Report {
	out := map[string]Report{}
	for name, d := range map[string]Holds{"a": a, "b": b} {
		if d != "" {
			out[name] = Report{Name: name, Token: "1", Holds: d}
		}
	}
	return out
}

// restores are reports of members that begin with snapshots; "": without one.
func restores(a, b Holds, ofA, ofB string) map[string]Report {
	out := reports(a, b)
	for name, snapshot := range map[string]string{"a": ofA, "b": ofB} {
		r := out[name]
		r.Snapshot = snapshot
		out[name] = r
	}
	return out
}

func TestDecideFixed(t *testing.T) {
	all := []Member{listed(1, "a"), listed(2, "b"), listed(3, "c")}
	two := all[:2]
	for _, tc := range []struct {
		name string
		seen Fixed
		want Action
		id   uint64
		why  string
	}{
		{"first start, nobody answers yet", Fixed{Holds: HoldsNothing}, Wait, 0, "do not answer: a, b"},
		{"one other answers", Fixed{Holds: HoldsNothing, Reports: reports(HoldsNothing, "")}, Wait, 0, "do not answer: b"},
		{"nobody has data", Fixed{Holds: HoldsNothing, Reports: reports(HoldsNothing, HoldsNothing)}, Intend, 0, ""},
		{"the others intend already", Fixed{Holds: HoldsNothing, Reports: reports(HoldsIntent, HoldsIntent)}, Intend, 0, ""},
		{"one reports nothing that is known", Fixed{Holds: HoldsIntent, Reports: reports("later", HoldsIntent)}, Wait, 0, "do not answer: a"},
		{"not all intend", Fixed{Holds: HoldsIntent, Reports: reports(HoldsIntent, HoldsNothing)}, Wait, 0, "not yet seen"},
		{"all intend", Fixed{Holds: HoldsIntent, Reports: reports(HoldsIntent, HoldsIntent)}, Begin, 0, ""},
		{"one is ahead", Fixed{Holds: HoldsIntent, Reports: reports(HoldsData, HoldsIntent)}, Begin, 0, ""},
		{"all are ahead, without a quorum", Fixed{Holds: HoldsIntent, Reports: reports(HoldsData, "")}, Begin, 0, ""},
		{"intended, but nobody answers", Fixed{Holds: HoldsIntent}, Wait, 0, "do not answer: a, b"},
		{"intended, and the others went on without it", Fixed{Holds: HoldsIntent, Members: all}, Remove, 3, ""},
		{"all intend, with a snapshot", Fixed{Holds: HoldsIntent, Reports: restores(HoldsIntent, HoldsIntent, "s", "s"), Snapshot: "s"}, Restore, 0, ""},
		{"one has restored the snapshot", Fixed{Holds: HoldsIntent, Reports: restores(HoldsData, HoldsIntent, "s", "s"), Snapshot: "s"}, Restore, 0, ""},
		{"one has restored another snapshot", Fixed{Holds: HoldsIntent, Reports: restores(HoldsData, HoldsIntent, "s1", "s2"), Snapshot: "s2"},
			Wait, 0, "another snapshot than s2: a (s1); stop all members"},
		{"one has begun without the snapshot", Fixed{Holds: HoldsIntent, Reports: restores(HoldsIntent, HoldsData, "s", ""), Snapshot: "s"},
			Wait, 0, "another snapshot than s: b (none)"},
		{"one has restored a snapshot, and this has none", Fixed{Holds: HoldsIntent, Reports: restores(HoldsData, HoldsIntent, "s", "")},
			Wait, 0, "another snapshot than none: a (s)"},
		{"lost while the others have a quorum, with a snapshot", Fixed{Holds: HoldsNothing, Members: all, Snapshot: "s"}, Remove, 3, ""},
		{"another runs the cluster before", Fixed{Holds: HoldsNothing, Reports: map[string]Report{"a": {Name: "a", Token: "0", Holds: HoldsData}, "b": {Name: "b", Token: "1", Holds: HoldsNothing}}},
			Wait, 0, "a (0); stop all members"},

		{"a member of its own", Fixed{Name: "c", Others: []string{}, Holds: HoldsNothing}, Intend, 0, ""},
		{"a member of its own, intended", Fixed{Name: "c", Others: []string{}, Holds: HoldsIntent}, Begin, 0, ""},

		{"data", Fixed{Holds: HoldsData}, Start, 0, ""},
		{"data, and no quorum", Fixed{Holds: HoldsData, ID: 3}, Start, 0, ""},
		{"data, and listed", Fixed{Holds: HoldsData, ID: 3, Members: all}, Start, 0, ""},
		{"data of unknown ID", Fixed{Holds: HoldsData, Members: two}, Start, 0, ""},
		{"data, but removed", Fixed{Holds: HoldsData, ID: 3, Members: two}, Discard, 3, ""},
		{"data, but replaced", Fixed{Holds: HoldsData, ID: 3, Members: append(slices.Clone(two), listed(4, "c"))}, Discard, 3, ""},

		{"lost, and listed", Fixed{Holds: HoldsNothing, Members: all}, Remove, 3, "lost"},
		{"lost, and removed", Fixed{Holds: HoldsNothing, Members: two}, Add, 0, ""},
		{"lost, and added", Fixed{Holds: HoldsNothing, Members: append(slices.Clone(two), Member{ID: 4, Peers: []string{self}, Learner: true})}, Join, 4, ""},
		{"lost again as a learner", Fixed{Holds: HoldsNothing, Members: append(slices.Clone(two), Member{ID: 4, Name: "c", Peers: []string{self}, Learner: true})}, Remove, 4, ""},
		{"a voter that never started", Fixed{Holds: HoldsNothing, Members: append(slices.Clone(two), Member{ID: 4, Peers: []string{self}})}, Remove, 4, ""},
		{"two join at once", Fixed{Holds: HoldsNothing, Members: []Member{listed(1, "a"), {ID: 5, Name: "b", Peers: []string{"https://b:2380"}, Learner: true}}}, Wait, 0, "one at a time"},
		{"lost, and the quorum too", Fixed{Holds: HoldsNothing, Reports: reports(HoldsData, HoldsNothing)}, Wait, 0, "restore a snapshot"},
		{"lost, and the others do not answer", Fixed{Holds: HoldsNothing, Reports: reports(HoldsData, "")}, Wait, 0, "do not answer: b"},
		{"a third member is added to one", Fixed{Holds: HoldsNothing, Members: all[:1]}, Add, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tc.seen
			s.Name, s.Peer, s.Token = "c", self, "1"
			if s.Others == nil {
				s.Others = []string{"a", "b"}
			}
			got := s.Decide()
			if got.Action != tc.want || got.ID != tc.id || !strings.Contains(got.Why, tc.why) || got.Why == "" {
				t.Errorf("got %+v, want %s of %d because of %q", got, tc.want, tc.id, tc.why)
			}
		})
	}
}

// A cluster whose members start, crash and lose their volumes in any order begins once, and
// nobody who has had data starts without them under the same ID.
func TestRandomStarts(t *testing.T) {
	for seed := range uint64(3000) {
		if err := randomStarts(rand.New(rand.NewPCG(seed, 28))); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// machine is a pod with its volume.
type machine struct {
	name    string
	data    Holds
	id      uint64 // in the data
	running bool   // etcd runs
	up      bool   // the program answers
}

// machines are a cluster and what raft has committed about its members.
type machines struct {
	all  []*machine
	list []Member        // nil: there is no cluster
	held map[uint64]bool // IDs that have had data
	next uint64
}

// quorum returns the list if a quorum of its voters runs.
func (c *machines) quorum() []Member {
	voters, alive := 0, 0
	for _, l := range c.list {
		if l.Learner {
			continue
		}
		voters++
		if slices.ContainsFunc(c.all, func(x *machine) bool { return x.running && x.id == l.ID }) {
			alive++
		}
	}
	if voters > 0 && alive > voters/2 {
		return c.list
	}
	return nil
}

// whole reports whether all members run and vote.
func (c *machines) whole() bool {
	return len(c.list) == len(c.all) && !slices.ContainsFunc(c.all, func(x *machine) bool { return !x.running }) &&
		!slices.ContainsFunc(c.list, func(l Member) bool { return l.Learner })
}

// step lets a machine do one thing.
func (c *machines) step(x *machine) error {
	if x.running {
		for i, l := range c.list {
			if l.ID == x.id && c.quorum() != nil {
				c.list[i].Learner, c.list[i].Name = false, x.name // started, and promoted
			}
		}
		return nil
	}
	x.up = true
	s := Fixed{Name: x.name, Peer: "https://" + x.name + ":2380", Token: "1", Holds: x.data, ID: x.id, Reports: map[string]Report{}, Members: c.quorum()}
	for _, y := range c.all {
		if y == x {
			continue
		}
		s.Others = append(s.Others, y.name)
		if y.up {
			s.Reports[y.name] = Report{Name: y.name, Token: "1", Holds: y.data}
		}
	}
	begin := func(id uint64) error {
		if c.held[id] {
			return fmt.Errorf("%s starts without data under ID %d, which has had data: %+v", x.name, id, s)
		}
		c.held[id] = true
		x.data, x.id, x.running = HoldsData, id, true
		return nil
	}
	switch step := s.Decide(); step.Action {
	case Intend:
		x.data = HoldsIntent
	case Discard:
		x.data, x.id = HoldsNothing, 0
	case Remove:
		c.list = slices.DeleteFunc(slices.Clone(c.list), func(l Member) bool { return l.ID == step.ID })
	case Add:
		c.next++
		c.list = append(slices.Clone(c.list), Member{ID: c.next, Peers: []string{s.Peer}, Learner: true})
	case Start:
		x.running = true
	case Begin:
		if c.list == nil {
			for i, y := range c.all {
				c.list = append(c.list, listed(uint64(i+1), y.name))
			}
		}
		return begin(uint64(slices.Index(c.all, x) + 1))
	case Join:
		return begin(step.ID)
	}
	return nil
}

func randomStarts(r *rand.Rand) error {
	c := &machines{held: map[uint64]bool{}, next: 10}
	for _, n := range []string{"a", "b", "c"} {
		c.all = append(c.all, &machine{name: n, data: HoldsNothing})
	}
	for range 400 {
		x := c.all[r.IntN(3)]
		switch r.IntN(12) {
		case 0:
			x.up, x.running = false, false
		case 1:
			// Volumes are lost one at a time: for two, only a restore helps.
			if c.whole() {
				x.up, x.running, x.data, x.id = false, false, HoldsNothing, 0
			}
		default:
			if err := c.step(x); err != nil {
				return err
			}
		}
	}
	// Left alone, they all come back.
	for range 200 {
		for _, x := range c.all {
			if err := c.step(x); err != nil {
				return err
			}
		}
	}
	if !c.whole() {
		return fmt.Errorf("not all come back: %+v", c.list)
	}
	return nil
}
