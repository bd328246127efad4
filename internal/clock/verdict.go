package clock

// State is what the clocks of the cluster allow this node to do.
type State uint8

// The states of a verdict.
const (
	Open       State = iota // issue
	Skewed                  // refuse: this node, or the cluster, disagrees about the time
	Unverified              // refuse: too few peers have confirmed this clock, and policy is strict
)

// String returns the state's name in lower case.
func (s State) String() string {
	switch s {
	case Open:
		return "open"
	case Skewed:
		return "skewed"
	case Unverified:
		return "unverified"
	}
	return "unknown"
}

// Verdict is the gate's answer: whether IDs may be issued now, and the figures
// behind it. The zero value is open.
type Verdict struct {
	State  State
	Offset Millis // peers' clock minus ours, as far as known
	Limit  Millis // the offset at which a node refuses
}
