package flake

import (
	"fmt"
	"strings"

	"github.com/flakelease/allocator/internal/crockford"
)

// A Change is one byte that Repair read as another or left out.
type Change struct {
	At   int  // index in the text given to Repair
	From byte // I, L or O in either case, or a hyphen
	To   byte // what it was read as; 0 if it was left out
}

// String describes the change, as in `"l" at byte 3 read as "1"` or `hyphen at byte 4
// left out`.
func (c Change) String() string {
	if c.To == 0 {
		return fmt.Sprintf("hyphen at byte %d left out", c.At)
	}
	return fmt.Sprintf("%s at byte %d read as %s", crockford.Quote(c.From), c.At, crockford.Quote(c.To))
}

// Repair returns s as ParseLenient reads it, hyphens left out and I and L read
// as 1 and O as 0, and each byte that this changed, in the order of s. Characters
// keep their case and all other bytes stay: whether the result is an ID is for
// Parse to say, and Repair(s) followed by Parse is ParseLenient(s).
//
// Where there is nothing to repair it returns s itself and no changes, without
// an allocation. The result is never longer than s.
func Repair(s string) (fixed string, changes []Change) {
	var b strings.Builder
	done := 0 // bytes of s that are in b
	for i := range len(s) {
		c, keep := crockford.Meant(s[i])
		if keep && c == s[i] {
			continue
		}
		if changes == nil {
			b.Grow(len(s))
		}
		b.WriteString(s[done:i])
		done = i + 1
		if !keep {
			changes = append(changes, Change{At: i, From: s[i]})
			continue
		}
		b.WriteByte(c)
		changes = append(changes, Change{At: i, From: s[i], To: c})
	}
	if changes == nil {
		return s, nil
	}
	b.WriteString(s[done:])
	return b.String(), changes
}
