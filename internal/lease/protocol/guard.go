package protocol

import (
	"fmt"
	"math"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/text"
)

const (
	// holderSlack allows for the age of a live holder's record: it is rewritten every
	// few seconds while etcd answers, and within a second after an outage.
	holderSlack = 2 * time.Minute

	// limitSlack is what this guard allows beyond StepLimit. The issuing clock keeps the
	// same limit, measured from another moment: it must be the first to stop.
	limitSlack = time.Minute
)

// poisoned is the poison guard: a clock that is too far ahead must never write a
// ceiling, since a ceiling cannot be lowered. It reports whether this clock is, raises
// the alarm, and has the evidence read again.
func (m *Machine) poisoned(now clock.Reading, acquiring bool) bool {
	until, of := m.latestWall(now, acquiring)
	if now.Wall <= until {
		m.over(lease.AlarmClock, -1)
		return false
	}
	m.problem = fmt.Sprintf("this clock reads %s, at least %s ahead of %s: correct it; "+
		"if it is right, run \"allocator admin accept-time\"",
		now.Wall.Time().Format(time.RFC3339), text.Span((now.Wall - until).Duration()), of)
	m.alarmOnce(lease.AlarmClock, -1, "this clock is too far ahead of "+of+"; no ceiling is written")
	m.next = now.Mono.Add(m.cfg.RetryAfter)
	return true
}

// latestWall returns the latest wall time that a ceiling may be written at, and what
// it was measured from.
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
func (m *Machine) latestWall(now clock.Reading, acquiring bool) (until clock.Millis, of string) {
	seen := m.catalog.Evidence()
	listed := now.Mono.Sub(seen.At.Mono)
	holders := clock.Millis(0)
	if seen.HolderWall != 0 {
		holders = seen.HolderWall + clock.MillisOf(listed+holderSlack+m.cfg.MaxSkew)
	}
	switch {
	case acquiring && holders != 0 && !m.gate.Confirmed:
		until, of = holders, "every live holder's"
	case m.trusted.Exists():
		own := now.Wall - clock.MillisOf(m.ahead(now)) + clock.MillisOf(m.cfg.StepLimit+limitSlack)
		until = max(own, holders, m.recordedAt(now.Elapsed())+clock.MillisOf(limitSlack))
		of = "its own time before it was set"
	case holders != 0:
		until, of = holders+clock.MillisOf(m.cfg.StepLimit), "every live holder's"
	case seen.WithoutGossip != 0 && !m.gate.Confirmed:
		latest := max(seen.LatestWall, seen.WithoutGossip)
		until, of = latest+clock.MillisOf(listed+holderSlack+m.cfg.StepLimit), "the latest record in etcd"
	case seen.LatestWall != 0:
		until, of = seen.LatestWall+clock.MillisOf(listed+m.cfg.DowntimeLimit), "the latest record in etcd"
	default:
		return math.MaxInt64, ""
	}
	return max(until, m.accepted()), of
}

// record notes the time that the first list with a record shows, and the floor of the era.
func (m *Machine) record(now clock.Reading) {
	note := func(r *clock.Reference, at clock.Millis) {
		if at != 0 {
			r.Set(int64(at)*int64(time.Millisecond), now.Elapsed())
		}
	}
	if !m.recorded.Exists() && !m.begun.Exists() && !m.trusted.Exists() {
		note(&m.recorded, m.catalog.Evidence().LatestWall)
		note(&m.begun, m.era().Floor)
		m.overrule(now)
	}
}

// overrule forgets the time that records showed if it is far ahead of a clock that a majority
// confirms: that of a node which was alone, and wrong, when this process started.
func (m *Machine) overrule(now clock.Reading) {
	ahead := -m.recorded.Ahead(int64(now.Wall)*int64(time.Millisecond), now.Elapsed())
	if m.gate.Confirmed && m.recorded.Exists() && ahead > m.cfg.StepLimit {
		m.recorded = clock.Reference{}
	}
}

// recordedAt returns the time that records and the floor of the era showed before this process
// wrote its first, when elapsed time has passed, and StepLimit; 0 without any.
func (m *Machine) recordedAt(elapsed time.Duration) (at clock.Millis) {
	for _, r := range []*clock.Reference{&m.recorded, &m.begun} {
		if r.Exists() {
			then := clock.Millis(-r.Ahead(0, elapsed) / time.Millisecond)
			at = max(at, then+clock.MillisOf(m.cfg.StepLimit))
		}
	}
	return at
}

// accepted returns up to which time an operator accepted clocks; 0: none. What was
// accepted in another era is void: its writes are compared with this one.
func (m *Machine) accepted() clock.Millis {
	if a := m.catalog.Evidence().Accepted; a.Err == nil && a.Value.Era == m.era().Number {
		return a.Value.Until
	}
	return 0
}

// ahead returns how far the wall clock is ahead of where it would be if nobody had
// set it since it was trusted.
func (m *Machine) ahead(now clock.Reading) time.Duration {
	return m.trusted.Ahead(int64(now.Wall)*int64(time.Millisecond), now.Elapsed())
}

// trust notes that a write at that wall time was confirmed. The reference follows it
// slowly, unless the guard let the write pass for another reason. An unconfirmed write
// proves nothing: an era may have begun in which the time was not accepted.
func (m *Machine) trust(at clock.Millis, sent time.Duration) {
	wall := int64(at) * int64(time.Millisecond)
	if !m.trusted.Exists() || m.trusted.Ahead(wall, sent) > m.cfg.StepLimit+limitSlack {
		m.trusted.Set(wall, sent)
		return
	}
	m.trusted.Follow(wall, sent)
}

// Limit returns the limit as of now, which is the reading of the latest Step.
func (m *Machine) Limit(now clock.Reading) lease.Limit {
	l := lease.Limit{At: now.Mono}
	l.Extend, _ = m.latestWall(now, false)
	l.Acquire, _ = m.latestWall(now, true)
	return l
}
