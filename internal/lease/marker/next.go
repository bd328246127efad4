package marker

import (
	"cmp"
	"maps"
	"slices"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/text"
)

// maxBlockers is how many causes a record names.
const maxBlockers = 4

// maxName bounds the names in a record, in bytes: it has as many sids as a space besides.
const maxName = 64

// Next returns the mark that the view of a whole space allows, with all but Nonce, Node and Wall. now is what a clock
// reads that is confirmed or not; without a confirmed one no ceiling counts as passed.
//
// The mark is at most the floor of each holder. So one that holds a sid in v itself never
// raises it above its own floor.
func Next(r lease.MarkRules, v lease.View, now clock.Millis, confirmed bool) lease.Mark {
	last := v.Mark.Value
	n := sum{MarkRules: r, now: now, confirmed: confirmed, era: v.Era.Value, last: last, rests: last.Rests}
	n.begin()
	for _, sid := range slices.Sorted(maps.Keys(v.SIDs)) {
		n.add(sid, v.SIDs[sid])
	}
	return n.mark()
}

// sum is what holds the next mark back, of the sids that were added so far.
type sum struct {
	lease.MarkRules
	now       clock.Millis
	confirmed bool
	era       lease.Era
	last      lease.Mark

	rests     lease.Blocker
	waits     []lease.Blocker
	uncovered lease.SIDSet
}

// passed reports whether nothing is issued below ceil any more by a clock that goes on.
func (n *sum) passed(ceil clock.Millis) bool {
	return n.confirmed && ceil+clock.MillisOf(n.Grace) <= n.now
}

// gone reports whether h issues nothing below its ceiling any more, if its clock goes on. The
// mark says then that it rests on that.
func (n *sum) gone(h lease.Blocker) bool {
	switch {
	case h.Ceil <= n.rests.Ceil:
		return true
	case n.passed(h.Ceil):
		n.rests = h
		return true
	}
	return false
}

// wait adds h, unless the mark has passed it, before or now.
func (n *sum) wait(h lease.Blocker) {
	if h.Ceil > n.last.At && !n.gone(h) {
		n.waits = append(n.waits, h)
	}
}

// begin adds the floor of the era. Of holders in a history that was lost nothing is known but that they
// are below it. Era 1 is the first of its space.
func (n *sum) begin() {
	begins := lease.Blocker{Why: lease.BlockedEra, Floor: n.last.At, Ceil: n.era.Floor}
	if n.last.Era != n.era.Number && !(n.era.Number == 1 && n.passed(n.era.Floor)) && !n.gone(begins) {
		n.waits = append(n.waits, begins)
	}
}

// add adds who holds a sid, and who held it before.
func (n *sum) add(sid flake.SID, s lease.SIDRecords) {
	w := s.Window.Value
	h := lease.Blocker{SID: sid, Node: text.Cut(w.Node, maxName), Floor: w.Floor, Ceil: w.Ceil, Worker: w.Worker}
	// A holder from an earlier era can no longer extend the sid: it counts as vanished.
	held := s.Holder.Exists() && w.Era == n.era.Number
	switch {
	case !s.Window.Exists() && !s.Holder.Exists():
		return
	case !s.Window.Exists(), s.Window.Err != nil: // Whoever holds a sid without a record may issue on.
		n.waits = append(n.waits, lease.Blocker{SID: sid, Why: lease.BlockedUnreadable})
	case w.State == lease.Reserved:
		n.uncovered.Add(sid)
	case !w.Covered():
		h.Why = lease.BlockedVanished
		if w.Unsealed() && (held || !n.gone(h)) {
			n.uncovered.Add(sid)
		}
	case !w.Unsealed():
	case held:
		h.Why = lease.BlockedSilent
		if w.Worker && n.now < w.Wall+(w.Ceil-w.Wall)/2 { // It extends after a third of its window.
			h.Why = lease.BlockedWorker
		}
		n.waits = append(n.waits, h)
	default:
		h.Why = lease.BlockedVanished
		n.wait(h)
	}
	p := w.Prior
	before := lease.Blocker{SID: sid, Why: lease.BlockedReplaced}
	before.Node, before.Floor, before.Ceil = text.Cut(p.Node, maxName), p.Floor, p.Ceil
	n.wait(before)
	before.Node, before.Floor, before.Ceil, before.Worker = text.Cut(p.Worker, maxName), 0, p.Uncovered, true
	if !n.gone(before) {
		n.uncovered.Add(sid)
	}
}

// mark returns the mark once all sids were added.
func (n *sum) mark() lease.Mark {
	slices.SortFunc(n.waits, func(a, b lease.Blocker) int {
		return cmp.Or(cmp.Compare(a.Floor, b.Floor), cmp.Compare(a.SID, b.SID))
	})
	next := lease.Mark{Era: n.era.Number, At: n.last.At, Rests: n.rests, Uncovered: n.uncovered.String()}
	if len(n.waits) > 0 {
		next.At = max(n.last.At, n.waits[0].Floor)
	}
	if next.At < n.era.Floor {
		next.Era = n.last.Era
	}
	for _, h := range n.waits {
		if h.Floor < n.now-clock.MillisOf(n.Late) && len(next.Blocked) < maxBlockers {
			next.Blocked = append(next.Blocked, h)
		}
	}
	return next
}
