package clock

import "github.com/flakelease/allocator/internal/text"

// State is what the clocks of the cluster allow this node to do.
type State uint8

// The states of a verdict.
const (
	Open       State = iota // issue
	Skewed                  // refuse: this node, or the cluster, disagrees about the time
	Unverified              // refuse: too few peers have confirmed this clock, and policy is strict
)

// String returns the state's name in lower case.
func (s State) String() string { return text.Name(s, "open", "skewed", "unverified") }

// Verdict is the gate's answer: whether IDs may be issued now, and the numbers
// behind it. The zero value is open and unconfirmed.
type Verdict struct {
	State       State
	Offset      Millis  // peers' clock minus ours, as far as known
	Limit       Millis  // the offset at which a node refuses
	Uncertainty Millis  // the truth is within Offset ± Uncertainty, rounded up
	Phase       Phase   // The gate is in this phase, which is finer than State.
	Finding     Finding // what was last found; SelfFalse and ClusterSplit are why a gate is skewed
}

// Confirmed reports that a majority has confirmed this clock and I5 holds. IDs
// issued under a verdict that is Open without it are to be counted.
func (v Verdict) Confirmed() bool { return v.Phase == Confirmed }
