package etcdpod

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const self = "https://c:2380"

func listed(id uint64, name string) Listed {
	return Listed{ID: id, Name: name, Peers: []string{"https://" + name + ":2380"}}
}

func reports(a, b Data) map[string]Report {
	out := map[string]Report{}
	for name, d := range map[string]Data{"a": a, "b": b} {
		if d != "" {
			out[name] = Report{Name: name, Token: "1", Data: d}
		}
	}
	return out
}

func TestDecide(t *testing.T) {
	all := []Listed{listed(1, "a"), listed(2, "b"), listed(3, "c")}
	two := all[:2]
	for _, tc := range []struct {
		name string
		seen Seen
		want Do
		id   uint64
		why  string
	}{
		{"first start, nobody answers yet", Seen{Data: DataNone}, Wait, 0, "do not answer: a, b"},
		{"one other answers", Seen{Data: DataNone, Reports: reports(DataNone, "")}, Wait, 0, "do not answer: b"},
		{"nobody has data", Seen{Data: DataNone, Reports: reports(DataNone, DataNone)}, Intend, 0, ""},
		{"the others intend already", Seen{Data: DataNone, Reports: reports(DataIntended, DataIntended)}, Intend, 0, ""},
		{"not all intend", Seen{Data: DataIntended, Reports: reports(DataIntended, DataNone)}, Wait, 0, "not yet seen"},
		{"all intend", Seen{Data: DataIntended, Reports: reports(DataIntended, DataIntended)}, Bootstrap, 0, ""},
		{"one is ahead", Seen{Data: DataIntended, Reports: reports(DataPresent, DataIntended)}, Bootstrap, 0, ""},
		{"all are ahead, without a quorum", Seen{Data: DataIntended, Reports: reports(DataPresent, "")}, Bootstrap, 0, ""},
		{"intended, but nobody answers", Seen{Data: DataIntended}, Wait, 0, "do not answer: a, b"},
		{"intended, and the others went on without it", Seen{Data: DataIntended, List: all}, Remove, 3, ""},
		{"all intend, with a snapshot", Seen{Data: DataIntended, Reports: reports(DataIntended, DataIntended), Snapshot: "s"}, Restore, 0, ""},
		{"lost while the others have a quorum, with a snapshot", Seen{Data: DataNone, List: all, Snapshot: "s"}, Remove, 3, ""},
		{"another runs the cluster before", Seen{Data: DataNone, Reports: map[string]Report{"a": {"a", "0", DataPresent}, "b": {"b", "1", DataNone}}},
			Wait, 0, "a (0); stop all members"},

		{"a member of its own", Seen{Name: "c", Others: []string{}, Data: DataNone}, Intend, 0, ""},
		{"a member of its own, intended", Seen{Name: "c", Others: []string{}, Data: DataIntended}, Bootstrap, 0, ""},

		{"data", Seen{Data: DataPresent}, Start, 0, ""},
		{"data, and no quorum", Seen{Data: DataPresent, ID: 3}, Start, 0, ""},
		{"data, and listed", Seen{Data: DataPresent, ID: 3, List: all}, Start, 0, ""},
		{"data of unknown ID", Seen{Data: DataPresent, List: two}, Start, 0, ""},
		{"data, but removed", Seen{Data: DataPresent, ID: 3, List: two}, Discard, 3, ""},
		{"data, but replaced", Seen{Data: DataPresent, ID: 3, List: append(slices.Clone(two), listed(4, "c"))}, Discard, 3, ""},

		{"lost, and listed", Seen{Data: DataNone, List: all}, Remove, 3, "lost"},
		{"lost, and removed", Seen{Data: DataNone, List: two}, Add, 0, ""},
		{"lost, and added", Seen{Data: DataNone, List: append(slices.Clone(two), Listed{ID: 4, Peers: []string{self}, Learner: true})}, Join, 4, ""},
		{"lost again as a learner", Seen{Data: DataNone, List: append(slices.Clone(two), Listed{4, "c", []string{self}, true})}, Remove, 4, ""},
		{"a voter that never started", Seen{Data: DataNone, List: append(slices.Clone(two), Listed{ID: 4, Peers: []string{self}})}, Remove, 4, ""},
		{"two join at once", Seen{Data: DataNone, List: []Listed{listed(1, "a"), {5, "b", []string{"https://b:2380"}, true}}}, Wait, 0, "another member"},
		{"lost, and the quorum too", Seen{Data: DataNone, Reports: reports(DataPresent, DataNone)}, Wait, 0, "restore a snapshot"},
		{"lost, and the others do not answer", Seen{Data: DataNone, Reports: reports(DataPresent, "")}, Wait, 0, "do not answer: b"},
		{"a third member is added to one", Seen{Data: DataNone, List: all[:1]}, Add, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tc.seen
			s.Name, s.Peer, s.Token = "c", self, "1"
			if s.Others == nil {
				s.Others = []string{"a", "b"}
			}
			got := Decide(s)
			if got.Do != tc.want || got.Member != tc.id || !strings.Contains(got.Why, tc.why) || got.Why == "" {
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
	data    Data
	id      uint64 // in the data
	running bool   // etcd runs
	up      bool   // the program answers
}

// machines are a cluster and what raft has committed about its members.
type machines struct {
	all  []*machine
	list []Listed        // nil: there is no cluster
	held map[uint64]bool // IDs that have had data
	next uint64
}

// quorum returns the list if a quorum of its voters runs.
func (c *machines) quorum() []Listed {
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
		!slices.ContainsFunc(c.list, func(l Listed) bool { return l.Learner })
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
	s := Seen{Name: x.name, Peer: "https://" + x.name + ":2380", Token: "1", Data: x.data, ID: x.id, Reports: map[string]Report{}, List: c.quorum()}
	for _, y := range c.all {
		if y == x {
			continue
		}
		s.Others = append(s.Others, y.name)
		if y.up {
			s.Reports[y.name] = Report{y.name, "1", y.data}
		}
	}
	begin := func(id uint64) error {
		if c.held[id] {
			return fmt.Errorf("%s starts without data under ID %d, which has had data: %+v", x.name, id, s)
		}
		c.held[id] = true
		x.data, x.id, x.running = DataPresent, id, true
		return nil
	}
	switch step := Decide(s); step.Do {
	case Intend:
		x.data = DataIntended
	case Discard:
		x.data, x.id = DataNone, 0
	case Remove:
		c.list = slices.DeleteFunc(slices.Clone(c.list), func(l Listed) bool { return l.ID == step.Member })
	case Add:
		c.next++
		c.list = append(slices.Clone(c.list), Listed{ID: c.next, Peers: []string{s.Peer}, Learner: true})
	case Start:
		x.running = true
	case Bootstrap:
		if c.list == nil {
			for i, y := range c.all {
				c.list = append(c.list, listed(uint64(i+1), y.name))
			}
		}
		return begin(uint64(slices.Index(c.all, x) + 1))
	case Join:
		return begin(step.Member)
	}
	return nil
}

func randomStarts(r *rand.Rand) error {
	c := &machines{held: map[uint64]bool{}, next: 10}
	for _, n := range []string{"a", "b", "c"} {
		c.all = append(c.all, &machine{name: n, data: DataNone})
	}
	for range 400 {
		x := c.all[r.IntN(3)]
		switch r.IntN(12) {
		case 0:
			x.up, x.running = false, false
		case 1:
			// Volumes are lost one at a time: for two, only a restore helps.
			if c.whole() {
				x.up, x.running, x.data, x.id = false, false, DataNone, 0
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

func TestDefragment(t *testing.T) {
	three := []Condition{{"c", false, true, 100, 20}, {"a", true, true, 100, 20}, {"b", false, true, 100, 90}}
	got, err := Defragment(three, 50)
	if err != nil || !slices.Equal(got, []string{"c", "a"}) {
		t.Errorf("got %v, %v: want c, then the leader", got, err)
	}
	three[2].Healthy = false
	if got, err := Defragment(three, 50); err == nil {
		t.Errorf("got %v while a member is away", got)
	}
}

func TestExpired(t *testing.T) {
	files := []string{"2.snapshot", "1.snapshot", "4.snapshot", "3.snapshot.part", "lost+found", "0.snapshot"}
	if got := Expired(files, 2); !slices.Equal(got, []string{"0.snapshot", "1.snapshot"}) {
		t.Errorf("got %v", got)
	}
	if got := Expired(files, 9); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}
