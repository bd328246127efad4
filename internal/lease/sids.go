package lease

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flakelease/allocator/flake"
)

// SIDRange is the sids [From, To) that a process may take; the zero value is
// every sid of the layout. A node neither takes nor waits for nor reclaims a sid
// outside its range. The ranges of nodes may overlap without harm to any claim,
// since a sid is always taken by a compare in the store.
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

// MaxSIDs is how many sids a space uses unless told otherwise: every node keeps the
// records of all, and searches them.
const MaxSIDs = 1024

// parseSID reads a sid of any layout, in digits alone.
func parseSID(s string) (flake.SID, error) {
	n, err := strconv.ParseUint(s, 10, 22)
	return flake.SID(n), err
}

// All reports whether r is every sid of whatever layout.
func (r SIDRange) All() bool { return r == SIDRange{} }

// In returns r with its bounds: the first MaxSIDs of layout l if r is every sid. Sids outside
// the layout are cut off.
func (r SIDRange) In(l flake.Layout) SIDRange {
	all := SIDRange{To: flake.SID(l.Holders())}
	if r.All() {
		return SIDRange{To: min(all.To, MaxSIDs)}
	}
	return SIDRange{From: min(r.From, all.To), To: min(r.To, all.To)}
}

// Has reports whether sid is in r, whose bounds [SIDRange.In] has set.
func (r SIDRange) Has(sid flake.SID) bool { return r.From <= sid && sid < r.To }

// Len returns how many sids r has, whose bounds In has set.
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

// pool counts the sids that m may take: how many there are, how many of them have
// a holder, and how many of the rest are quarantined.
func (m *Machine) pool() (size, held, bad int) {
	within := m.cfg.SIDRange.In(m.cfg.Format.Layout)
	for sid, s := range m.list.sids {
		if within.Has(sid) && s.Holder.Exists() {
			held++
		}
	}
	for sid := range m.bad {
		if within.Has(sid) && !m.list.sids[sid].Holder.Exists() {
			bad++
		}
	}
	return within.Len(), held, bad
}

// holdersNamed is how many holders the message about a full pool names.
const holdersNamed = 8

// noneFree returns a message for people: no sid can be taken, and who has them.
func (m *Machine) noneFree() string {
	within := m.cfg.SIDRange.In(m.cfg.Format.Layout)
	size, held, bad := m.pool()
	of := ""
	if !m.cfg.SIDRange.All() {
		of = fmt.Sprintf(" in %s (sid-range)", m.cfg.SIDRange)
	}
	type holder struct {
		node string
		sids int
	}
	var holders []holder // each name once, in the order of sids
	for sid := within.From; sid < within.To; sid++ {
		h := m.list.sids[sid].Holder
		if !h.Exists() {
			continue
		}
		name := cmp.Or(h.Value.Node, "unknown")
		i := slices.IndexFunc(holders, func(o holder) bool { return o.node == name })
		if i < 0 {
			i, holders = len(holders), append(holders, holder{node: name})
		}
		holders[i].sids++
	}
	var names []string
	for i, h := range holders {
		switch {
		case i == holdersNamed:
			names = append(names, fmt.Sprintf("and %d more", len(holders)-i))
		case i > holdersNamed:
		case h.sids > 1:
			names = append(names, fmt.Sprintf("%s (%d)", h.node, h.sids))
		default:
			names = append(names, h.node)
		}
	}
	by := ""
	if len(names) > 0 {
		by = " by " + strings.Join(names, ", ")
	}
	return fmt.Sprintf("no sid%s is free: %d of %d are held%s, %d quarantined", of, held, size, by, bad)
}
