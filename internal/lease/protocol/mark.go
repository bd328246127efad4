package protocol

import (
	"fmt"
	"math"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// readMark takes the mark of a view of the store, or of the watch, which may be behind.
func (m *Machine) readMark(now clock.Reading, e lease.Entry[lease.Mark]) {
	if e.Exists() && e.Rev < m.mark.Rev {
		return
	}
	m.markRead = now.Mono
	if e.Value.Nonce != m.mark.Value.Nonce {
		// A write that leaves At as it is delays no other node: its writer may be unable to raise the mark.
		if e.Value.At > m.mark.Value.At {
			m.markAt = now.Mono.Add(m.cfg.MarkEvery)
		}
		m.passAt = m.passes(now, e.Value)
	}
	m.mark = e
	if e.Exists() && e.Err == nil && (e.Value.At >= m.marked.At || e.Value.Era > m.marked.Era) {
		m.marked = e.Value
	}
}

// noMark reports whether the mark cannot be read. A sid is then not acquired, since it would
// have to begin above the mark.
func (m *Machine) noMark() bool {
	if m.mark.Err == nil {
		return false
	}
	m.problem = fmt.Sprintf("the record of the watermark is unreadable (%v): run \"allocator admin recover\"",
		m.mark.Err)
	return true
}

// watchedMark takes the marks of a report, and returns the rest of it.
func (m *Machine) watchedMark(now clock.Reading, ev lease.Watched) lease.Watched {
	rest := ev.Changes[:0:0]
	for _, c := range ev.Changes {
		if c.Key == lease.ChangedMark && m.history.Known() {
			m.readMark(now, c.Mark)
		} else if c.Key != lease.ChangedMark {
			rest = append(rest, c)
		}
	}
	ev.Changes = rest
	return ev
}

// markSteps is by how many more raises each holder waits than the one before, in the order of
// sids. That is a hint, so that one does it at a time: twice as long as the floors take to move.
const markSteps = 8

// markRank returns how many nodes with lower sids are there, which raise the mark before this one.
func (m *Machine) markRank(own flake.SID) (rank int) {
	for _, o := range m.summary().Holders {
		if o.SID >= own {
			break
		}
		if !o.Worker {
			rank++
		}
	}
	return rank
}

// passes returns when what holds a mark back is no reason to wait any more, if the clock is confirmed.
// All nodes whose clocks are look at that time, give or take: the one whose turn it is may have a clock
// that nobody confirms, and never pass a window.
func (m *Machine) passes(now clock.Reading, mark lease.Mark) clock.Mono {
	if len(mark.Blocked) == 0 || !mark.Blocked[0].Passes() {
		return math.MaxInt64
	}
	after := mark.Blocked[0].Ceil + clock.MillisOf(m.cfg.Mark.Grace) - now.Wall
	return now.Mono.Add(min(after, clock.MillisOf(time.Hour)).Duration() + m.cfg.Jitter(m.cfg.MarkEvery))
}

// markDue returns when the space is listed to raise the mark.
func (m *Machine) markDue() clock.Mono {
	h := m.own()
	if h == nil || h.record != ours || h.service != serving || m.cfg.MarkEvery == 0 || !m.gate.Open {
		return math.MaxInt64
	}
	due := m.markAt.Add(m.cfg.MarkEvery * time.Duration(markSteps*m.markRank(h.sid)))
	if m.gate.Agreed {
		due = min(due, m.passAt)
	}
	return due
}

// raiseMark computes the mark from a view of the whole space, and has it written if it says
// more than the last one. Only a process that holds a sid does that: the mark is then below
// a ceiling, and so below the floor of each later era.
func (m *Machine) raiseMark(now clock.Reading, v lease.View) {
	h := m.own()
	if now.Mono < m.markDue() {
		return
	}
	next := v.NextMark(now.Wall, m.gate.Agreed, m.cfg.Mark)
	m.markAt, m.passAt = now.Mono.Add(m.cfg.MarkEvery), m.passes(now, next)
	last, limit := v.Mark.Value, clock.MillisOf(m.cfg.StepLimit)
	known := max(last.At, v.Era.Value.Floor) + limit
	if until := untilRaised(now, last, limit); next.At > known && until > now.Wall &&
		now.Elapsed()-m.heldSince < m.cfg.StepLimit {
		// Nodes that were restarted under a wrong time source must not take the mark along: it
		// cannot come back, and nobody issues below it. No ceiling counts as passed there either.
		next = v.NextMark(now.Wall, false, m.cfg.Mark)
		next.At, next.Era = last.At, last.Era
		next.Blocked = []lease.Blocker{{
			SID:   h.sid,
			Node:  m.cfg.Registration.Node,
			Why:   lease.BlockedDowntime,
			Floor: next.At,
			Ceil:  until,
		}}
		if b := last.Blocked; len(b) > 0 && b[0].Why == lease.BlockedDowntime && b[0].Ceil == until &&
			last.Uncovered == next.Uncovered {
			return
		}
	}
	if v.Mark.Err != nil || v.Mark.Exists() && !next.Says(v.Mark.Value) {
		return
	}
	if !v.Mark.Exists() {
		// A holder that came before there was a record has not put it again: the next raise
		// counts those.
		next = lease.Mark{At: m.marked.At}
	}
	next.Nonce, next.Node, next.Wall = m.cfg.Nonce(), m.cfg.Registration.Node, now.Wall
	m.markTxn = &lease.MarkTxn{Config: v.Config, Era: v.Era, Seen: v.Mark, Mark: next}
}

// untilRaised returns the wall time from which a mark that is far behind may be taken along. The first process
// that finds it behind says so, limit ahead of its clock, and those after it keep to that: so the mark goes on
// though each of them ends before it has held a sid for so long. A clock that is far from what was said, before
// or after it, begins anew.
func untilRaised(now clock.Reading, last lease.Mark, limit clock.Millis) clock.Millis {
	if len(last.Blocked) > 0 && last.Blocked[0].Why == lease.BlockedDowntime {
		if said := last.Blocked[0].Ceil; now.Wall-limit < said && said <= now.Wall+limit {
			return said
		}
	}
	return now.Wall + limit
}

// onMarked handles the answer to a write of the mark. Nothing depends on its outcome: the next
// one compares what it finds. Each acquisition between the list and the write has it fail, so it
// is repeated soon: with n acquisitions in a round trip, e to the power of n attempts are needed.
// With 50 acquisitions a second and 10 ms the mark is a second later at worst, with 50 ms 10 s
// later, with 100 a second and 50 ms 90 s (TestMarkBesideAcquisitions).
func (m *Machine) onMarked(now clock.Reading, ev lease.Marked) {
	if ev.Err != nil {
		m.unknownOutcome(now, ev.Err)
		return
	}
	m.readMark(now, ev.Mark)
	if !ev.Applied {
		m.passAt = now.Mono.Add(m.cfg.RetryAfter)
	}
}
