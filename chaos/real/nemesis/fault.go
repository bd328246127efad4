// Package nemesis is the table of faults, when they strike, and what has to come
// of each.
//
// A [Fault] is a value: what it needs, whom it hits, how it begins, how it is seen
// to have taken effect, how it is healed, and what nodes may answer meanwhile. A
// fault counts only once its effect was read back from what it was done to: the
// node's own clock status, the counters of the network, the process's exit. What
// is expected stands in the history beside each fault, so that the checks of
// package history can judge the run alone.
package nemesis

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/flake"
)

// Class groups faults by what they break.
type Class string

// The classes. A run that claims all of them has seen each.
const (
	Processes Class = "process"
	Clocks    Class = "clock"
	Etcd      Class = "etcd"
	Network   Class = "network"
	Data      Class = "data"
	Cluster   Class = "cluster"
)

// Classes lists them in order.
var Classes = []Class{Processes, Clocks, Etcd, Network, Data, Cluster}

// Scope is whom a fault hits.
type Scope uint8

// Scopes.
const (
	OneNode Scope = iota // one node; others go on, and may be hit by other faults meanwhile
	Member               // an etcd member that does not lead
	Leader               // the etcd member that leads when the fault begins
	Quorum               // two etcd members
	Whole                // everything; nothing else is done meanwhile
	Aside                // nobody: what is added to the cluster must not disturb it, whatever else goes on
)

// Need is what a fault cannot do without.
type Need uint8

// Needs.
const (
	Nothing     Need = iota
	ClockHook        // processes behind the clock hook
	OwnNetworks      // processes in networks of their own
)

// Anything in May allows every reason.
const Anything = "*"

// Expect is what has to come of a fault, from its start until its effects are
// over.
type Expect struct {
	// Must is the reason that every target refuses with from Within after the
	// start until the fault is healed; "" is none.
	Must   string
	Within time.Duration
	// May are the reasons that answers of targets may have. Whoever is no target
	// answers IDs throughout.
	May []string
	// Settle is how long after the healing effects may last: then all is as before.
	Settle time.Duration
	// Word says it to people.
	Word string
}

// Fault is one way to break a cluster.
type Fault struct {
	Name  string
	About string
	Class Class
	Scope Scope
	Needs Need
	// Smoke faults are part of the profile that CI runs.
	Smoke bool
	// Alone says that healing it disturbs everybody, though it hits one node: nothing
	// else is done meanwhile.
	Alone bool
	// Outside faults are outside claim I1: history is rewound or edited. They have
	// to be noticed.
	Outside bool

	// Hold is how long it lasts.
	Hold func(t rig.Timing) (shortest, longest time.Duration)
	// Amount draws how much, in Unit; nil: there is nothing to draw.
	Amount func(random *rand.Rand) int64
	Unit   string

	Expect func(t rig.Timing) Expect
	Begin  func(ctx context.Context, s *Injection) error
	// Fired returns what was read back that proves the effect, or an error for as
	// long as there is nothing to see.
	Fired func(ctx context.Context, s *Injection) (string, error)
	// End heals. It is called however the fault went, and may be called again.
	End func(ctx context.Context, s *Injection) error
}

// Action is one planned fault.
type Action struct {
	ID      int64    `json:"id"`
	Fault   string   `json:"fault"`
	Targets []string `json:"targets,omitempty"` // of Leader and Member faults: known when it strikes
	AtMs    int64    `json:"at_ms"`             // since the load began
	ForMs   int64    `json:"for_ms"`
	Amount  int64    `json:"amount,omitempty"`
	Unit    string   `json:"unit,omitempty"`
}

// Injection is an action that is being carried out.
type Injection struct {
	*rig.Rig
	Action
	Fault *Fault
	Node  *rig.Node // of OneNode
	// Before is what the node's metrics said before.
	Before *rig.Sample
	// Hit are etcd's members that are hit, by number.
	Hit []int
	// Undo is what Begin leaves for End to call.
	Undo func() error
	// Seen is what Begin saw happen, for Fired to tell.
	Seen string
	// Healed is what End saw come of the healing.
	Healed string
	base   uint64        // a counter before, or the sid that was hit
	taken  []flake.SID   // that the harness holds
	heard  func() uint64 // counts what was done to others
	harm   *harm         // done to the network
	wake   func() error  // lets a node that stands go on
	quiet  func() error  // ends clients that the fault brought
	// Copy is a snapshot of etcd from the beginning of the run.
	Copy rig.Snapshot
	// Also carries out something that healing needs and that others notice, and
	// puts it into the history as an injection of its own.
	Also func(name, class string, targets []string, e Expect, do func() (effect string, err error)) error
}

// hold returns how long the action lasts.
func (s *Injection) hold() time.Duration { return time.Duration(s.ForMs) * time.Millisecond }

// amount returns the amount of an action in nanoseconds.
func (s *Injection) amount() time.Duration { return time.Duration(s.Amount) }

// random returns a source that the schedule fixes.
func (s *Injection) random() *rand.Rand { return rand.New(rand.NewPCG(s.Seed, uint64(s.ID))) }

// undo calls what Begin left, once.
func (s *Injection) undo() error {
	if s.Undo == nil {
		return nil
	}
	err := s.Undo()
	s.Undo = nil
	return err
}

// errNotYet says that an effect has not shown.
var errNotYet = errors.New("no effect seen yet")

// errNothing says that there is nothing to hit.
var errNothing = errors.New("nothing to hit")

// Table returns every fault, by class.
func Table() []Fault {
	var out []Fault
	for _, part := range [][]Fault{processFaults(), clockFaults(), etcdFaults(), networkFaults(), dataFaults(), clusterFaults(), takeoverFaults()} {
		out = append(out, part...)
	}
	return out
}

// Find returns the fault of that name, or nil.
func Find(table []Fault, name string) *Fault {
	for i := range table {
		if table[i].Name == name {
			return &table[i]
		}
	}
	return nil
}

// between makes a Hold of two lengths.
func between(shortest, longest time.Duration) func(rig.Timing) (time.Duration, time.Duration) {
	return func(rig.Timing) (time.Duration, time.Duration) { return shortest, longest }
}

// Reasons that the table names. Connection and timeout are what a client sees of
// a process that is gone or stands.
const (
	connection = "connection"
	timeout    = "timeout"
	starting   = "STARTING"
	draining   = "DRAINING"
	noSID      = "NO_SID"
	exhausted  = "WINDOW_EXHAUSTED"
	skew       = "CLOCK_SKEW"
	rewound    = "HISTORY_REWOUND"
	regression = "CLOCK_REGRESSION"
	tooFar     = "AFTER_TOO_FAR"
)

// unharmed expects that nobody notices.
func unharmed(settle time.Duration) func(rig.Timing) Expect {
	return func(rig.Timing) Expect {
		return Expect{Settle: settle, Word: "every call is answered with IDs"}
	}
}

// String returns what is needed in words.
func (n Need) String() string {
	switch n {
	case ClockHook:
		return "clock hook"
	case OwnNetworks:
		return "own networks"
	}
	return "-"
}
