package protocol

import (
	"fmt"
	"math"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// readMark takes the mark of a view of the store, or of the watch, which may be behind.
func (m *Machine) readMark(now clock.Mono, e lease.Entry[lease.Mark]) {
	if e.Exists() && e.Rev < m.mark.Rev {
		return
	}
	m.markRead = now
	if e.Value.Nonce != m.mark.Value.Nonce {
		m.markAt = now.Add(m.markPause()) // Somebody raises it.
	}
	m.mark = e
	if e.Exists() && e.Err == nil && e.Value.At >= m.marked.At {
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
func (m *Machine) watchedMark(now clock.Mono, ev lease.Watched) lease.Watched {
	rest := ev.Changes[:0:0]
	for _, c := range ev.Changes {
		if c.Key == lease.ChangedMark && m.history.Known() && !m.isRewound() {
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
// One that vanishes holds the mark back by its window anyway.
const markSteps = 8

// markPause returns for how long this process leaves the mark to others.
func (m *Machine) markPause() time.Duration {
	rank := 0
	if h := m.own(); h != nil {
		for _, o := range m.summary().Holders {
			if !o.Worker && o.SID < h.sid {
				rank++
			}
		}
	}
	return m.cfg.MarkEvery * time.Duration(1+rank*markSteps)
}

// markDue returns when the space is listed to raise the mark.
func (m *Machine) markDue() clock.Mono {
	if h := m.own(); h == nil || h.record != ours || h.service != serving || m.cfg.MarkEvery == 0 || !m.gate.Open {
		return math.MaxInt64
	}
	return m.markAt
}

// raiseMark computes the mark from a view of the whole space, and has it written if it says
// more than the last one. Only a process that holds a sid does that: the mark is then below
// a ceiling, and so below the floor of each later era.
func (m *Machine) raiseMark(now clock.Reading, v lease.View) {
	h := m.own()
	if now.Mono < m.markDue() {
		return
	}
	m.markAt = now.Mono.Add(m.markPause())
	if m.try != nil || !v.SIDs[h.sid].Window.Same(h.seen.Window) {
		m.markAt = now.Mono.Add(m.cfg.RetryAfter) // The floor that is being written counts.
		return
	}
	next := v.NextMark(now.Wall, m.gate.Agreed, m.cfg.Mark)
	known := max(v.Mark.Value.At, v.Era.Value.Floor) + clock.MillisOf(m.cfg.StepLimit)
	if next.At > known && now.Elapsed()-m.heldSince < m.cfg.StepLimit {
		// Nodes that were restarted under a wrong time source must not take the mark along: it
		// cannot come back, and nobody issues below it. No ceiling counts as passed there either.
		last := v.Mark.Value
		next = v.NextMark(now.Wall, false, m.cfg.Mark)
		next.At, next.Era = last.At, last.Era
		next.Blocked = []lease.Blocker{{
			SID:   h.sid,
			Node:  m.cfg.Registration.Node,
			Why:   lease.BlockedDowntime,
			Floor: next.At,
			Ceil:  h.ceil,
		}}
		// It is said once: each write puts off those that may take the mark along.
		if len(last.Blocked) > 0 && last.Blocked[0].Why == lease.BlockedDowntime && last.Uncovered == next.Uncovered {
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

// onMarked handles the answer to a write of the mark. Nothing depends on its outcome: the next
// one compares what it finds.
func (m *Machine) onMarked(now clock.Reading, ev lease.Marked) {
	if ev.Err != nil {
		m.unknownOutcome(now, ev.Err)
		return
	}
	m.readMark(now.Mono, ev.Mark)
	if !ev.Applied {
		m.markAt = now.Mono.Add(m.cfg.RetryAfter)
	}
}
