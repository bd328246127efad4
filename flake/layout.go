package flake

import (
	"fmt"
	"strconv"
)

// A Layout is how the 20 low bits of an ID are split into entropy and sid.
// It is a constant of a space, as the epoch is: IDs do not carry it.
type Layout uint8

// The layouts. Their numbers are stored and go over the wire: never reuse one.
const (
	Scalable   Layout = iota // 15 bits of entropy, 5 of sid: 32 holders
	Standalone               // 20 bits of entropy, no sid: one holder, offline tools only
	Fleet                    // 10 bits of entropy, 10 of sid: 1,024 holders; not in the specification
	layouts                  // how many there are
)

// entropyBits and layoutNames are indexed by Layout; the sid has the other bits.
var (
	entropyBits = [layouts]uint8{Scalable: 15, Standalone: 20, Fleet: 10}
	layoutNames = [layouts]string{Scalable: "scalable", Standalone: "standalone", Fleet: "fleet"}
)

func (l Layout) known() bool { return l < layouts }

// EntropyBits returns the width of the entropy field; 0 for an unknown layout.
func (l Layout) EntropyBits() int {
	if !l.known() {
		return 0
	}
	return int(entropyBits[l])
}

// SIDBits returns the width of the sid field; 0 for an unknown layout.
func (l Layout) SIDBits() int {
	if !l.known() {
		return 0
	}
	return LowBits - int(entropyBits[l])
}

// Holders returns how many sids there are, 0 to Holders−1; 0 for an unknown
// layout.
func (l Layout) Holders() int {
	if !l.known() {
		return 0
	}
	return 1 << l.SIDBits()
}

// String returns the layout's name in lower case.
func (l Layout) String() string {
	if !l.known() {
		return "Layout(" + strconv.Itoa(int(l)) + ")"
	}
	return layoutNames[l]
}

// ParseLayout returns the layout of a name as String gives it, in that case.
// It returns ErrLayout.
func ParseLayout(s string) (Layout, error) {
	for l, name := range layoutNames {
		if s == name {
			return Layout(l), nil
		}
	}
	return 0, fmt.Errorf("%w %q", ErrLayout, s)
}

// AppendText appends the layout's name to b. It returns ErrLayout for an
// unknown layout, and b unchanged.
func (l Layout) AppendText(b []byte) ([]byte, error) {
	if !l.known() {
		return b, fmt.Errorf("%w %d", ErrLayout, uint8(l))
	}
	return append(b, layoutNames[l]...), nil
}

// MarshalText returns the layout's name. It returns ErrLayout for an unknown
// layout.
func (l Layout) MarshalText() ([]byte, error) { return l.AppendText(nil) }

// UnmarshalText sets l as ParseLayout reads b. After an error l is unchanged.
func (l *Layout) UnmarshalText(b []byte) error {
	v, err := ParseLayout(string(b))
	if err != nil {
		return err
	}
	*l = v
	return nil
}
