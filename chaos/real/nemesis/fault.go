// Package nemesis is the table of faults, their schedule, and the expected effect
// of each.
//
// A [Fault] is a value: what it needs, its targets, how it begins, how its effect is
// verified, how it is healed, and what nodes may answer meanwhile. A fault counts
// only once its effect was read back from the target: the clock status of a node,
// the counters of the network, the exit of a process. The history holds what is
// expected beside each fault, so that package history needs nothing else to check
// the run: the reason with which targets must refuse and by when, and those that they
// may answer with. All other nodes must issue throughout. Each target must answer again
// within 15 s of the end of the effects. A refusal in the quarter of a run that has no
// fault fails the run.
package nemesis

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/flakelease/allocator/chaos/real/netswitch"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/flake"
)

// Class groups faults by what they break.
type Class string

// The classes.
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

// Scope is which part of the cluster a fault targets.
type Scope uint8

// Scopes.
const (
	OneNode Scope = iota // one node, as if nothing is said; other faults may target others meanwhile
	Member               // an etcd member that does not lead
	Leader               // the etcd member that leads when the fault begins
	Quorum               // two etcd members
	Whole                // everything; no other fault runs meanwhile
	Extra                // an extra node, which must not disturb the cluster; other faults may run meanwhile
)

// Need is what a fault requires.
type Need uint8

// Needs.
const (
	Nothing     Need = iota
	ClockHook        // processes behind the clock hook
	OwnNetworks      // processes in networks of their own
)

// Expect is the expected effect of a fault, from its start until its effects have
// ended.
type Expect struct {
	// Must is the reason with which every target refuses, from Within after the start
	// until the fault is healed; "" is none.
	Must   string
	Within time.Duration
	// May are the reasons that targets may answer with. All other nodes issue IDs
	// throughout.
	May []string
	// Settle is how long effects may last after the healing.
	Settle time.Duration
	// Text describes it.
	Text string
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
	// Exclusive means that no other fault runs meanwhile, though the target is one
	// node: healing it affects all.
	Exclusive bool
	// Server faults need a server: what they expect begins before an embedded node
	// can answer.
	Server bool
	// EditsHistory faults rewind or edit etcd's data, which claim I1 excludes. They
	// must be detected.
	EditsHistory bool

	// Hold is how long it lasts, at least and at most.
	Hold func(t rig.Timing) (shortest, longest time.Duration)
	// Amount draws how much, in Unit; nil: there is no amount.
	Amount func(random *rand.Rand) int64
	Unit   string

	Expect func(t rig.Timing) Expect
	Begin  func(ctx context.Context, s *Injection) error
	// Fired returns what was read back that proves the effect, or an error while there
	// is none.
	Fired func(ctx context.Context, s *Injection) (string, error)
	// End heals. It is called whether Begin failed or not, and may be called again.
	End func(ctx context.Context, s *Injection) error
}

// Action is one planned fault.
type Action struct {
	ID      int64    `json:"id"`
	Fault   string   `json:"fault"`
	Targets []string `json:"targets,omitempty"` // known only from the beginning for Leader and Member faults
	AtMs    int64    `json:"at_ms"`             // milliseconds since the load began
	ForMs   int64    `json:"for_ms"`
	Amount  int64    `json:"amount,omitempty"`
	Unit    string   `json:"unit,omitempty"`
}

// Injection is an action in progress.
type Injection struct {
	*rig.Rig
	Action
	Fault *Fault
	Node  *rig.Node // the target if the scope is OneNode
	// Before are the metrics of the node before.
	Before *rig.Sample
	// Members are the targeted etcd members, by number.
	Members []int
	// Undo is set by Begin and called by End.
	Undo func() error
	// Seen is the effect that Begin saw; Fired returns it.
	Seen string
	// Healed is the effect of the healing that End saw.
	Healed      string
	base        uint64           // a counter before, or the targeted sid
	taken       []flake.SID      // sids that the harness holds
	replies     func() uint64    // counts false reports
	packets     *netswitch.Fault // nil: none in the network
	resume      func() error     // resumes a paused node
	stopClients func() error     // stops clients that the fault started
	// Snapshot is a copy of etcd from the beginning of the run.
	Snapshot rig.Snapshot
	// AlsoInject carries out a step of the healing that affects other nodes, and records
	// it in the history as an injection of its own.
	AlsoInject func(name, class string, targets []string, e Expect, do func() (effect string, err error)) error
}

// hold returns how long the action lasts.
func (s *Injection) hold() time.Duration { return time.Duration(s.ForMs) * time.Millisecond }

// amount returns the amount of an action in nanoseconds.
func (s *Injection) amount() time.Duration { return time.Duration(s.Amount) }

// random returns a source that the schedule determines.
func (s *Injection) random() *rand.Rand { return rand.New(rand.NewPCG(s.Seed, uint64(s.ID))) }

// undo calls Undo, once.
func (s *Injection) undo() error {
	if s.Undo == nil {
		return nil
	}
	err := s.Undo()
	s.Undo = nil
	return err
}

// errNotYet: there is no effect yet.
var errNotYet = errors.New("no effect seen yet")

// errNoTarget: there is no target.
var errNoTarget = errors.New("no target")

// Table returns every fault, by class.
func Table() (out []Fault) {
	for _, part := range []struct {
		class  Class
		faults []Fault
	}{
		{Processes, processFaults()}, {Clocks, clockFaults()}, {Etcd, etcdFaults()}, {Network, networkFaults()},
		{Data, dataFaults()}, {Cluster, clusterFaults()}, {"", takeoverFaults()},
	} {
		for _, f := range part.faults {
			f.Class = cmp.Or(f.Class, part.class)
			out = append(out, f)
		}
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

// after makes a Hold of two lengths beyond some time.
func after(what func(rig.Timing) time.Duration,
	shortest, longest time.Duration) func(rig.Timing) (time.Duration, time.Duration) {
	return func(t rig.Timing) (time.Duration, time.Duration) { return what(t) + shortest, what(t) + longest }
}

func leaseTTL(t rig.Timing) time.Duration { return t.TTL }
func window(t rig.Timing) time.Duration   { return t.Window }

// Reasons that the table names. Connection and timeout are what a client sees of a
// process that ended or is paused.
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

// unaffected expects that every node issues throughout.
func unaffected(settle time.Duration) func(rig.Timing) Expect {
	return func(rig.Timing) Expect {
		return Expect{Settle: settle, Text: "every call is answered with IDs"}
	}
}

// String returns the requirement as text.
func (n Need) String() string {
	switch n {
	case ClockHook:
		return "clock hook"
	case OwnNetworks:
		return "own networks"
	}
	return "-"
}
