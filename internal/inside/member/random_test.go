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
	for name, decides := range map[string]func(*machines, *machine) error{"replace": (*machines).replaces, "ask": (*machines).asks} {
		for seed := range uint64(3000) {
			r := rand.New(rand.NewPCG(seed, 28))
			if err := randomStarts(&machines{decides: decides, r: r, held: map[uint64]bool{}, next: 10}); err != nil {
				t.Fatalf("%s, seed %d: %v", name, seed, err)
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
	seen    map[string]Answer // since the program started
}

// machines are a cluster and what raft has committed about its members.
type machines struct {
	all     []*machine
	list    []Member        // nil: there is no cluster
	held    map[uint64]bool // IDs that have had data
	next    uint64
	decides func(*machines, *machine) error
	r       *rand.Rand
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
		return c.decides(c, x)
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
	x.data, x.id, x.running = HoldsData, id, true
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

// replaces is what the program of a pod does.
func (c *machines) replaces(x *machine) error {
	own := Own{Host: x.name, Node: x.name, Process: x.name, Join: []string{"a", "b", "c"}, Peer: peer(x.name), Intends: x.data == HoldsIntent, Replaces: true}
	seen := map[string]Answer{}
	if list := c.quorum(); list != nil {
		seen["a majority"] = runs(7, list...)
	} else {
		for _, y := range c.all {
			if y != x && y.up {
				seen[y.name] = Report{Name: y.name, Token: "1", Holds: y.data}.Answer(Report{Token: "1"}, own.Join)
			}
		}
	}
	var data *Data
	if x.data == HoldsData {
		data = &Data{Host: x.name, Peer: own.Peer, ID: x.id}
	}
	step, err := Decide(own, data, seen)
	if err != nil {
		return err
	}
	switch step.Action {
	case Intend:
		x.data = HoldsIntent
	case Discard:
		x.data, x.id = HoldsNothing, 0
	case Remove:
		c.commit(slices.DeleteFunc(slices.Clone(c.list), func(l Member) bool { return l.ID == step.ID }))
	case Add:
		c.add(x, 0)
	case Start:
		x.running = true
	case Begin:
		return c.founds(x)
	case Join:
		return c.begin(x, step.ID)
	}
	return nil
}

// asks is what a node does, and the person whom it asks.
func (c *machines) asks(x *machine) error {
	own := Own{Host: x.name, Node: "node-" + x.name, Process: x.name, Join: []string{"a", "b", "c"}, Peer: peer(x.name), Founds: 7, Intends: x.data == HoldsIntent}
	if x.seen == nil {
		x.seen = map[string]Answer{}
	}
	for _, y := range c.all {
		a := Answer{Err: errors.New("down")}
		if y.running {
			a = runs(7, y.view...)
		} else if y.up && y.data != HoldsData {
			a = waits(y.name, func(w *Waiting) { w.Intends = y.data == HoldsIntent })
		}
		if y != x && (a.Err == nil || x.seen[y.name].Waiting == nil) {
			x.seen[y.name] = a
		}
	}
	var data *Data
	if x.data == HoldsData {
		data = &Data{Host: x.name, Peer: peer(x.name), Cluster: 7, ID: x.id}
	}
	step, err := Decide(own, data, x.seen)
	if step.Action == Join {
		if c.quorum() == nil {
			return nil
		}
		step, err = Decide(own, nil, map[string]Answer{"a majority": runs(7, c.list...)})
	}
	var refusal *Refusal
	errors.As(err, &refusal)
	lost := slices.IndexFunc(c.list, func(m Member) bool { return slices.Contains(m.Peers, peer(x.name)) })
	switch {
	case refusal != nil && refusal.Reason == Removed:
		x.data, x.id, x.up, x.seen = HoldsNothing, 0, false, nil
	case refusal != nil && refusal.Reason == Lost && c.quorum() != nil && lost >= 0:
		c.add(x, c.list[lost].ID)
	case refusal != nil && refusal.Reason != Lost:
		return err
	case step.Action == Add && c.quorum() != nil:
		if at := slices.IndexFunc(c.list, func(m Member) bool { return slices.Contains(m.Peers, peer(x.name)) }); at < 0 {
			c.add(x, 0)
		}
	case step.Action == Intend:
		x.data = HoldsIntent
	case step.Action == Start:
		x.running = true
	case step.Action == Begin:
		return c.founds(x)
	case step.Action == Join:
		return c.begin(x, step.ID)
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
			x.up, x.running, x.seen = false, false, nil
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
