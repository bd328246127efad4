// Package guard is the poison guard: a clock that is too far ahead must never write a ceiling, since a
// ceiling cannot be lowered. It says up to which wall time this process may write one.
//
//   - Live holders show the time. A node that has no majority to confirm its clock
//     acquires nothing far ahead of the latest that they wrote.
//   - Once a process has reserved, its own elapsed time shows how far its clock was set.
//     So do records and the floor of the era: a clock that was behind when the process
//     started may be set right.
//   - To a new process records do, with the floor of the era. Where no node has a sid, the
//     space may have been switched off: the downtime may be that long. It was not while a
//     node without gossip has one: nobody compares that node's clock, but unless a majority
//     confirms another, no clock is far ahead of all records. Where there is no record,
//     nothing shows the time.
//   - An operator may have accepted a later time, in this era.
package guard

import (
	"math"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/catalog"
)

const (
	// DowntimeLimit is how much later than all records a first ceiling may be written. 60 days: a space may be
	// switched off for a month.
	DowntimeLimit = 60 * 24 * time.Hour

	// holderSlack allows for the age of a live holder's record: it is rewritten every
	// few seconds while etcd answers, and within a second after an outage.
	holderSlack = 2 * time.Minute

	// limitSlack is what this guard allows beyond [clock.StepLimit]. The issuing clock keeps the
	// same limit, measured from another moment: it must be the first to stop.
	limitSlack = time.Minute
)

// Evidence is what the store and the peers show of the time.
type Evidence struct {
	catalog.Evidence
	Era lease.Era
	// Confirmed: a majority of the cluster confirms this clock.
	Confirmed bool
}

// Allowed returns up to which time an operator accepted clocks; 0: none. What was
// accepted in another era is void: its writes are compared with this one.
func (e Evidence) Allowed() clock.Millis {
	if a := e.Accepted; a.Err == nil && a.Value.Era == e.Era.Number {
		return a.Value.Until
	}
	return 0
}

// Guard has the times that one process has seen. The machine tells it of each list and each write that
// was confirmed, and asks before each write. It is owned by one goroutine.
type Guard struct {
	maxSkew time.Duration // A clock may be off by as much.
	// trusted follows the clock since the first ceiling was written from it. recorded is of
	// the latest time that records showed before that, and begun of the floor of the era: later
	// ones may follow our own step.
	trusted  clock.Reference
	recorded clock.Reference
	begun    clock.Reference
}

// New returns a guard that has seen nothing, of clocks that may be off by maxSkew.
func New(maxSkew time.Duration) Guard { return Guard{maxSkew: maxSkew} }

// Latest returns the latest wall time that a ceiling may be written at, and what
// it was measured from.
func (g *Guard) Latest(now clock.Reading, seen Evidence, acquiring bool) (until clock.Millis, of string) {
	listed := now.Mono.Sub(seen.At.Mono)
	holders := clock.Millis(0)
	if seen.HolderWall != 0 {
		holders = seen.HolderWall + clock.MillisOf(listed+holderSlack+g.maxSkew)
	}
	switch {
	case acquiring && holders != 0 && !seen.Confirmed:
		until, of = holders, "every live holder's"
	case g.trusted.Exists():
		own := now.Wall - clock.MillisOf(ahead(&g.trusted, now.Wall, now.Elapsed())) +
			clock.MillisOf(clock.StepLimit+limitSlack)
		until = max(own, holders, g.Recorded(now.Elapsed())+clock.MillisOf(limitSlack))
		of = "its own time before it was set"
	case holders != 0:
		until, of = holders+clock.MillisOf(clock.StepLimit), "every live holder's"
	case seen.WithoutGossip != 0 && !seen.Confirmed:
		latest := max(seen.LatestWall, seen.WithoutGossip)
		until, of = latest+clock.MillisOf(listed+holderSlack+clock.StepLimit), "the latest record in etcd"
	case seen.LatestWall != 0:
		until, of = seen.LatestWall+clock.MillisOf(listed+DowntimeLimit), "the latest record in etcd"
	default:
		return math.MaxInt64, ""
	}
	return max(until, seen.Allowed()), of
}

// Limit returns both latest times as of now, for who writes ceilings of others' sids.
func (g *Guard) Limit(now clock.Reading, seen Evidence) lease.Limit {
	l := lease.Limit{At: now.Mono}
	l.Extend, _ = g.Latest(now, seen, false)
	l.Acquire, _ = g.Latest(now, seen, true)
	return l
}

// Listed notes the time that the first list with a record shows, and the floor of the era.
func (g *Guard) Listed(now clock.Reading, seen Evidence) {
	if g.recorded.Exists() || g.begun.Exists() || g.trusted.Exists() {
		return
	}
	note := func(r *clock.Reference, at clock.Millis) {
		if at != 0 {
			r.Set(nanos(at), now.Elapsed())
		}
	}
	note(&g.recorded, seen.LatestWall)
	note(&g.begun, seen.Era.Floor)
	g.Overrule(now, seen.Confirmed)
}

// Overrule forgets the time that records showed if it is far ahead of a clock that a majority
// confirms: that of a node which was alone, and wrong, when this process started.
func (g *Guard) Overrule(now clock.Reading, confirmed bool) {
	if confirmed && g.recorded.Exists() && -ahead(&g.recorded, now.Wall, now.Elapsed()) > clock.StepLimit {
		g.recorded = clock.Reference{}
	}
}

// Recorded returns the time that records and the floor of the era showed before this process
// wrote its first, when elapsed time has passed, and StepLimit; 0 without any.
func (g *Guard) Recorded(elapsed time.Duration) (at clock.Millis) {
	for _, r := range []*clock.Reference{&g.recorded, &g.begun} {
		if r.Exists() {
			then := clock.Millis(-r.Ahead(0, elapsed) / time.Millisecond)
			at = max(at, then+clock.MillisOf(clock.StepLimit))
		}
	}
	return at
}

// Wrote notes that a write at that wall time was confirmed. The reference follows it
// slowly, unless the guard let the write pass for another reason. An unconfirmed write
// proves nothing: an era may have begun in which the time was not accepted.
func (g *Guard) Wrote(at clock.Millis, sent time.Duration) {
	if !g.trusted.Exists() || ahead(&g.trusted, at, sent) > clock.StepLimit+limitSlack {
		g.trusted.Set(nanos(at), sent)
		return
	}
	g.trusted.Follow(nanos(at), sent)
}

// ahead returns how far a wall clock is ahead of a reference, once elapsed time has passed.
func ahead(r *clock.Reference, wall clock.Millis, elapsed time.Duration) time.Duration {
	return r.Ahead(nanos(wall), elapsed)
}

func nanos(at clock.Millis) int64 { return int64(at) * int64(time.Millisecond) }
