package member

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A cluster whose members start, crash and lose their data in any order begins once, and nobody who has
// had data starts without them under the same ID: neither where a lost member is replaced, nor where a person
// is asked, who replaces it.
func TestRandomStarts(t *testing.T) {
	for _, replaces := range []bool{false, true} {
		for seed := range uint64(3000) {
			r := rand.New(rand.NewPCG(seed, 28))
			if err := randomStarts(&machines{replaces: replaces, r: r, held: map[uint64]bool{}, next: 10}); err != nil {
				t.Fatalf("lost members are replaced: %v, seed %d: %v", replaces, seed, err)
			}
		}
	}
}

// machine is a member with its disk.
type machine struct {
	name    string
	data    Holds
	id      uint64 // in the data
	running bool   // etcd runs
	up      bool   // the program answers
	view    []Member
	start   *Machine // nil: it is not starting
	event   Event    // what start gets next
}

// machines are a cluster and what raft has committed about its members.
type machines struct {
	all      []*machine
	list     []Member        // nil: there is no cluster
	held     map[uint64]bool // IDs that have had data
	next     uint64
	replaces bool // The machines are pods. Else a person is asked.
	r        *rand.Rand
}

// quorum returns the list if a quorum of its voters runs.
func (c *machines) quorum() []Member {
	voters, alive := c.voters()
	if voters > 0 && alive > voters/2 {
		return c.list
	}
	return nil
}

func (c *machines) voters() (voters, alive int) {
	for _, l := range c.list {
		if l.Learner {
			continue
		}
		voters++
		if slices.ContainsFunc(c.all, func(x *machine) bool { return x.running && x.id == l.ID }) {
			alive++
		}
	}
	return voters, alive
}

// commit changes the list, which no more than a majority has at once.
func (c *machines) commit(list []Member) {
	c.list = list
	voters, _ := c.voters()
	n := 0
	for _, i := range c.r.Perm(len(c.all)) {
		if x := c.all[i]; x.running && n <= voters/2 {
			n++
			x.view = list
		}
	}
}

// add adds a learner in the place of the member with an ID, if there is one.
func (c *machines) add(x *machine, instead uint64) {
	c.next++
	rest := slices.DeleteFunc(slices.Clone(c.list), func(m Member) bool { return m.ID == instead })
	c.commit(append(rest, learner(c.next, x.name)))
}

// whole reports whether all members run and vote.
func (c *machines) whole() bool {
	return len(c.list) == len(c.all) && !slices.ContainsFunc(c.all, func(x *machine) bool { return !x.running }) &&
		!slices.ContainsFunc(c.list, func(l Member) bool { return l.Learner })
}

// step lets a machine do one thing.
func (c *machines) step(x *machine) error {
	if !x.running {
		x.up = true
		return c.starts(x)
	}
	if c.quorum() == nil {
		return nil
	}
	x.view = c.list
	list := slices.Clone(c.list)
	switch i := find(list, x.id); {
	case i < 0:
		x.running, x.up = false, false // It was removed.
	case !list[i].Started():
		list[i].Name, list[i].Clients = x.name, []string{client(x.name)}
		c.commit(list)
	case list[i].Learner:
		list[i].Learner = false
		c.commit(list)
	}
	return nil
}

// begin starts a machine without data.
func (c *machines) begin(x *machine, id uint64) error {
	if c.held[id] {
		return fmt.Errorf("%s starts without data under ID %d, which has had data: %+v of %+v", x.name, id, x, c.list)
	}
	c.held[id] = true
	x.data, x.id = HoldsData, id
	x.run()
	return nil
}

// founds starts a machine as a founder of the cluster.
func (c *machines) founds(x *machine) error {
	x.view = []Member{begun(1, "a"), begun(2, "b"), begun(3, "c")}
	if c.list == nil {
		c.list = x.view
	}
	return c.begin(x, uint64(slices.Index(c.all, x)+1))
}

// run starts etcd, and ends the start.
func (x *machine) run() { x.running, x.start = true, nil }

// machine returns the start of x from its disk.
func (c *machines) machine(x *machine) *Machine {
	own := Own{Host: x.name, Node: x.name, Process: x.name, Join: []string{"a", "b", "c"}, Peer: peer(x.name), Founds: 7,
		Intends: x.data == HoldsIntent, Replaces: c.replaces}
	if x.data != HoldsData {
		return NewMachine(own, nil)
	}
	return NewMachine(own, &Data{Host: x.name, Peer: own.Peer, Cluster: 7, ID: x.id})
}

// starts carries out one step of a start.
func (c *machines) starts(x *machine) error {
	if x.start == nil {
		x.start, x.event = c.machine(x), Tick{}
	}
	step := x.start.Step(x.event)
	x.event = Done{}
	switch step.Action {
	case Ask:
		x.event = c.heard(x)
	case List:
		x.event = Failed{errors.New("no majority")}
		if list := c.quorum(); list != nil {
			x.event = Listed(runs(7, list...))
		}
	case Wait:
		x.event = Tick{}
		return c.person(x, step)
	case Intend:
		x.data = HoldsIntent
	case Discard:
		x.data, x.id = HoldsNothing, 0
	case Remove, Add:
		if c.quorum() == nil {
			x.event = Failed{errors.New("no majority")}
		} else if step.Action == Remove {
			c.commit(slices.DeleteFunc(slices.Clone(c.list), func(l Member) bool { return l.ID == step.ID }))
		} else if c.place(x) < 0 { // One that was added already is no error.
			c.add(x, 0)
		}
	case Start:
		x.run()
	case Begin:
		return c.founds(x)
	case Join:
		return c.begin(x, step.ID)
	default:
		return fmt.Errorf("%s is to %s: %+v", x.name, step.Action, step)
	}
	return nil
}

// place returns where the list has x; -1: nowhere.
func (c *machines) place(x *machine) int {
	return slices.IndexFunc(c.list, func(m Member) bool { return slices.Contains(m.Peers, peer(x.name)) })
}

// heard is what the others answer: pods their reports or what a majority says, nodes what each knows.
func (c *machines) heard(x *machine) Heard {
	if list := c.quorum(); c.replaces && list != nil {
		return Heard{"a majority": runs(7, list...)}
	}
	heard := Heard{}
	for _, y := range c.all {
		switch {
		case y == x:
		case c.replaces && y.up:
			heard[y.name] = Report{Name: y.name, Token: "1", Holds: y.data}.Answer(Report{Token: "1"}, []string{"a", "b", "c"})
		case !c.replaces && y.running:
			heard[y.name] = runs(7, y.view...)
		case !c.replaces && y.up && y.data != HoldsData:
			heard[y.name] = waits(y.name, func(w *Waiting) { w.Intends = y.data == HoldsIntent })
		default:
			heard[y.name] = Answer{Err: errors.New("down")}
		}
	}
	return heard
}

// person does what a step that waits says.
func (c *machines) person(x *machine, step Step) error {
	var refusal *Refusal
	if !errors.As(step.Err, &refusal) {
		return nil
	}
	lost := c.place(x)
	switch {
	case c.replaces || refusal.Reason != Removed && refusal.Reason != Lost:
		return step.Err
	case refusal.Reason == Removed:
		*x = machine{name: x.name, data: HoldsNothing}
	case c.quorum() != nil && lost >= 0:
		c.add(x, c.list[lost].ID)
	}
	return nil
}

func randomStarts(c *machines) error {
	for _, n := range []string{"a", "b", "c"} {
		c.all = append(c.all, &machine{name: n, data: HoldsNothing})
	}
	early := false // A disk was lost before the cluster began.
	for range 400 {
		x := c.all[c.r.IntN(3)]
		switch c.r.IntN(12) {
		case 0:
			x.up, x.running, x.start = false, false, nil
		case 1:
			// Disks are lost one at a time: for two, only a restore helps.
			if c.whole() || c.list == nil && !early {
				early = true
				*x = machine{name: x.name, data: HoldsNothing}
			}
		default:
			if err := c.step(x); err != nil {
				return err
			}
		}
	}
	// Left alone, they all come back.
	for range 800 {
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
