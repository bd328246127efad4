package lease

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flakelease/allocator/flake"
)

// SIDRange is the sids [From, To). The zero value sets no limit: as the range of a
// node it is all sids of the space, as the part of a space the first MaxSIDs of the
// layout.
type SIDRange struct {
	From, To flake.SID
}

// ParseSIDRange reads "first-last", both included, or a single sid. "" is every sid.
func ParseSIDRange(s string) (SIDRange, error) {
	if s == "" {
		return SIDRange{}, nil
	}
	first, last, both := strings.Cut(s, "-")
	if !both {
		last = first
	}
	a, errA := parseSID(first)
	b, errB := parseSID(last)
	switch {
	case errA != nil, errB != nil:
		return SIDRange{}, fmt.Errorf("%q is not a range of sids: write first-last, such as 0-23", s)
	case b < a:
		return SIDRange{}, fmt.Errorf("%q is empty: the last sid is below the first", s)
	}
	return SIDRange{From: a, To: b + 1}, nil
}

// MaxSIDs is how many sids a space has at most: every node keeps the records of all,
// and searches them.
const MaxSIDs = 1024

// ParsePart reads the sids that a space of layout l is created for, as "first-last".
// Its error says what to change.
func ParsePart(s string, l flake.Layout) (SIDRange, error) {
	r, err := ParseSIDRange(s)
	if err == nil && r.All() {
		err = errors.New("it is empty: write first-last, such as 0-255")
	}
	if err == nil {
		err = r.checkPart(l)
	}
	if err != nil {
		return SIDRange{}, err
	}
	return r, nil
}

// checkPart returns why no space of layout l has the part r, or nil.
func (r SIDRange) checkPart(l flake.Layout) error {
	switch {
	case r.All():
	case r.To <= r.From:
		return fmt.Errorf("sids from %d to %d are none", r.From, r.To)
	case int(r.To) > l.Holders():
		return fmt.Errorf("%v goes beyond sid %d, the last of layout %v: use lower ones", r, l.Holders()-1, l)
	case r.Len() > MaxSIDs:
		return fmt.Errorf("%v is %d sids, and a space has at most %d, since every node keeps the records of all: "+
			"use fewer", r, r.Len(), MaxSIDs)
	}
	return nil
}

// SIDs returns the sids of the space: its part, or the first MaxSIDs of the layout. No
// node takes another, since nodes of another space with the same format may.
func (s Space) SIDs() SIDRange {
	if s.Part.All() {
		return SIDRange{To: flake.SID(min(s.Layout.Holders(), MaxSIDs))}
	}
	return s.Part
}

// SIDsOf returns the sids that a node with range r may take: r, or all of the space.
//
// It returns a *RangeError if r has others.
func (s Space) SIDsOf(r SIDRange) (SIDRange, error) {
	of := s.SIDs()
	switch {
	case r.All():
		return of, nil
	case r.From < of.From || r.To > of.To:
		return SIDRange{}, &RangeError{Setting: "sid-range", Range: r, SIDs: of, Layout: s.Layout}
	}
	return r, nil
}

// RangeError reports that the range of a setting has sids that the space does not have.
// SIDs are those of the space.
type RangeError struct {
	Setting string
	Range   SIDRange
	SIDs    SIDRange
	Layout  flake.Layout
}

// Error names both ranges.
func (e *RangeError) Error() string {
	return fmt.Sprintf("%s %v is not within the sids of the space, %v: "+
		"configure a range within these, or another space", e.Setting, e.Range, e.SIDs.Of(e.Layout))
}

// Workers returns the sids of the space that are for workers, where r is set aside for
// them, and the sids of a node with range within that are left to it.
//
// It returns a *RangeError if r has sids that the space does not have, and ErrWorkers if
// it leaves the node none, or two ranges.
func (s Space) Workers(r, within SIDRange) (left SIDRange, err error) {
	of := s.SIDs()
	switch {
	case r.All() || within.To <= r.From || r.To <= within.From:
		left = within
	case r.From <= within.From:
		left = SIDRange{From: r.To, To: within.To}
	case r.To >= within.To:
		left = SIDRange{From: within.From, To: r.From}
	}
	switch {
	case !r.All() && (r.From < of.From || r.To > of.To):
		return SIDRange{}, &RangeError{Setting: "worker.sid-range", Range: r, SIDs: of, Layout: s.Layout}
	case left.Len() <= 0:
		return SIDRange{}, fmt.Errorf("%w: worker.sid-range is %v, and the node's sids are %v", ErrWorkers, r, within)
	}
	return left, nil
}

// ErrWorkers says that the sids for workers leave a node none, or two ranges.
var ErrWorkers = errors.New("no one range of sids is left for the node: move worker.sid-range to an end of the sids, " +
	"or give the node a sid-range beside it")

// Of returns r as people are shown the sids of a space, such as "0-255 of 1024".
func (r SIDRange) Of(l flake.Layout) string { return fmt.Sprintf("%v of %d", r, l.Holders()) }

// SIDSet is sids as ranges, in order: between two of them is a sid that it does not have.
type SIDSet []SIDRange

// ParseSIDSet reads ranges as ParseSIDRange does, separated by commas, in any order. It has
// at least one sid, and at most MaxSIDs.
func ParseSIDSet(s string) (set SIDSet, err error) {
	var ranges []SIDRange
	for part := range strings.SplitSeq(s, ",") {
		r, err := ParseSIDRange(part)
		if err == nil && r.All() {
			err = fmt.Errorf("%q has an empty range: write sids such as 0-7,12", s)
		}
		if err != nil {
			return nil, err
		}
		ranges = append(ranges, r)
	}
	slices.SortFunc(ranges, func(a, b SIDRange) int { return int(a.From) - int(b.From) })
	for _, r := range ranges {
		if last := len(set) - 1; last >= 0 && r.From <= set[last].To {
			set[last].To = max(set[last].To, r.To)
		} else {
			set = append(set, r)
		}
	}
	if n := set.Len(); n > MaxSIDs {
		return nil, fmt.Errorf("%q is %d sids, and a space has at most %d", s, n, MaxSIDs)
	}
	return set, nil
}

// Add adds a sid that is above all others of s.
func (s *SIDSet) Add(sid flake.SID) {
	if last := len(*s) - 1; last >= 0 && (*s)[last].To == sid {
		(*s)[last].To++
		return
	}
	*s = append(*s, SIDRange{From: sid, To: sid + 1})
}

// Names reports whether m says that it does not cover sid. A text that cannot be read names none.
func (m Mark) Names(sid flake.SID) bool {
	set, err := ParseSIDSet(m.Uncovered)
	return err == nil && slices.ContainsFunc(set, func(r SIDRange) bool { return r.Has(sid) })
}

// Len returns how many sids s has.
func (s SIDSet) Len() (n int) {
	for _, r := range s {
		n += r.Len()
	}
	return n
}

// Each yields the sids of s in order.
func (s SIDSet) Each(yield func(flake.SID) bool) {
	for _, r := range s {
		for sid := r.From; sid < r.To; sid++ {
			if !yield(sid) {
				return
			}
		}
	}
}

// String returns s as ParseSIDSet reads it; "" if it is empty.
func (s SIDSet) String() string {
	var ranges []string
	for _, r := range s {
		ranges = append(ranges, r.String())
	}
	return strings.Join(ranges, ",")
}

// parseSID reads a sid of any layout, in digits alone.
func parseSID(s string) (flake.SID, error) {
	n, err := strconv.ParseUint(s, 10, 22)
	return flake.SID(n), err
}

// All reports whether r sets no limit.
func (r SIDRange) All() bool { return r == SIDRange{} }

// Has reports whether sid is in r, which is not the zero value.
func (r SIDRange) Has(sid flake.SID) bool { return r.From <= sid && sid < r.To }

// Len returns how many sids r has; 0 for the zero value.
func (r SIDRange) Len() int { return int(r.To) - int(r.From) }

// String returns r as ParseSIDRange reads it.
func (r SIDRange) String() string {
	switch {
	case r.All():
		return ""
	case r.Len() == 1:
		return strconv.Itoa(int(r.From))
	}
	return fmt.Sprintf("%d-%d", r.From, r.To-1)
}

// MarshalText returns what String returns.
func (r SIDRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText sets r as ParseSIDRange reads b. After an error r is unchanged.
func (r *SIDRange) UnmarshalText(b []byte) error {
	v, err := ParseSIDRange(string(b))
	if err == nil {
		*r = v
	}
	return err
}
