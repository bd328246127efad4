package repair

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/text"
)

const (
	// AcceptFor is how far beyond the operator's clock a time is accepted, if no time
	// is given: as long as nodes may take to follow.
	AcceptFor = time.Hour

	// maxBy bounds who wrote a record, in bytes.
	maxBy = 120
)

// Acceptance is a time to accept, and what it was derived from.
type Acceptance struct {
	// Accepted is to be written over the one in the view.
	Accepted lease.AcceptedTime
	// Before counts now; it is zero if none does. Done says that it is enough, and that
	// there is nothing to write.
	Before lease.AcceptedTime
	Done   bool
	// Latest is the latest time that a record shows, and LatestOf says whose that is. Those of
	// sids that an operator took show none, nor does one whose ceiling a wrong clock wrote.
	Latest   clock.Millis
	LatestOf string
	Warnings []string
}

// AcceptTime returns the acceptance of times up to until, or up to AcceptFor from now
// if that is 0. bounds say how far a sound ceiling may be ahead of the clock.
// A view of the whole space is needed. In an era only a later time replaces an earlier
// one, so that what a node has read once stays true.
//
// It returns ErrNotInitialized or ErrRefused.
func AcceptTime(v lease.View, until clock.Millis, bounds lease.Bounds, by Author) (Acceptance, error) {
	if err := usable(v, v.Config.Value.SIDs().From); err != nil {
		return Acceptance{}, err
	}
	era := v.Era.Value.Number
	out := Acceptance{Accepted: lease.AcceptedTime{Era: era, Until: until, Nonce: by.Nonce, By: by.By(), At: by.Now}}
	recorded := false
	sound := bounds.SoundBy(by.Now, v.Era.Value, true)
	for _, sid := range slices.Sorted(maps.Keys(v.SIDs)) {
		s := v.SIDs[sid]
		w := s.Window
		recorded = recorded || w.Exists() && w.Err == nil
		if w.Err == nil && s.ShowsTime(sound) && w.Value.Wall > out.Latest {
			out.Latest, out.LatestOf = w.Value.Wall, fmt.Sprintf("node %q with sid %d", w.Value.Node, sid)
		}
	}
	if floor := v.Era.Value.Floor; !recorded && floor > 0 {
		recorded, out.Latest, out.LatestOf = true, floor, "the floor of the era" // As nodes count it.
	}
	switch a := v.Accepted; {
	case a.Err != nil:
		out.Warnings = append(out.Warnings, fmt.Sprintf("the accepted time is unreadable (%v) and is replaced", a.Err))
	case a.Value.Era == era:
		out.Before = a.Value
	}
	reads, enough := until, until // Clocks that read so are to be followed once so much is accepted.
	if until == 0 {
		reads, enough = by.Now, by.Now+clock.MillisOf(AcceptFor/2)
		out.Accepted.Until = by.Now + clock.MillisOf(AcceptFor)
	}
	switch {
	case out.Before.Until >= enough:
		out.Done = true
	case !recorded:
		return out, refuse("there is nothing to accept: no record shows a time, so nodes start from any clock")
	case reads <= out.Latest:
		return out, refuse("there is nothing to accept: %s recorded %s already, and %s is not later. "+
			"If that record is of a wrong clock, see \"Windows and sids of a bad clock\" in "+
			"docs/how-to/repair-clocks.md; "+
			"if this machine's clock is wrong, set it right", out.LatestOf, At(out.Latest), At(reads))
	case reads <= out.Latest+clock.MillisOf(clock.StepLimit):
		return out, refuse("there is nothing to accept: %s recorded %s, "+
			"and nodes follow a clock that reads %s by themselves (up to %v ahead)",
			out.LatestOf, At(out.Latest), At(reads), clock.StepLimit)
	}
	if ahead := (out.Accepted.Until - by.Now).Duration(); !out.Done && ahead > 24*time.Hour {
		out.Warnings = append(out.Warnings, fmt.Sprintf("the time is %s ahead of this machine's clock: "+
			"until then nodes follow clocks that are wrong by as much, and sids they reserve cannot be used before",
			text.Span(ahead)))
	}
	return out, nil
}
