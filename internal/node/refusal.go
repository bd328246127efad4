package node

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Reason is why a request was refused: a value of the enum Reason in allocator.proto,
// from which its constants are made. 0 is no reason: the request is served.
//
// Where several hold, identity comes before content, so that an unauthenticated client
// learns nothing from how a request is read, and content before the state of the node.
type Reason int

// NumReasons is the length of an array with an element for every Reason and for 0.
const NumReasons = len(reasonNames)

// Reasons lists every reason.
var Reasons = func() []Reason {
	all := make([]Reason, 0, NumReasons-1)
	for r := Reason(1); r < Reason(NumReasons); r++ {
		all = append(all, r)
	}
	return all
}()

// ReasonOf returns the reason with a name, or 0 if there is none.
func ReasonOf(name string) Reason {
	return Reason(max(0, slices.Index(reasonNames[:], name)))
}

// String returns the reason's name in allocator.proto without its prefix, and "" for 0.
// Of a later version's reason it is the number.
func (r Reason) String() string {
	if r < 0 || int(r) >= NumReasons {
		return strconv.Itoa(int(r))
	}
	return reasonNames[r]
}

// MarshalText returns the name.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText sets r to the reason with a name. It fails if there is none.
func (r *Reason) UnmarshalText(name []byte) error {
	if *r = ReasonOf(string(name)); *r == 0 && len(name) > 0 {
		return fmt.Errorf("node: no reason is called %q", name)
	}
	return nil
}

// Refusal is the error of a request that issued nothing and changed nothing.
type Refusal struct {
	Reason  Reason
	Message string // for a person: what is wrong and what to do
	// RetryAfter is the time after which the same request can succeed; 0: waiting
	// does not help.
	RetryAfter time.Duration
	// Metadata holds the values behind the message, for a program.
	Metadata map[string]string
}

// Error returns the reason and the message.
func (r *Refusal) Error() string { return fmt.Sprintf("%s: %s", r.Reason, r.Message) }

// Is makes errors.Is(err, &Refusal{Reason: x}) ask for the reason alone.
func (r *Refusal) Is(target error) bool {
	t, ok := target.(*Refusal)
	return ok && t.Reason == r.Reason
}

func refuse(reason Reason, retry time.Duration, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, RetryAfter: retry, Message: fmt.Sprintf(format, args...)}
}

// with adds metadata, given as key, value, key, value.
func (r *Refusal) with(pairs ...string) *Refusal {
	r.Metadata = make(map[string]string, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		r.Metadata[pairs[i]] = pairs[i+1]
	}
	return r
}
