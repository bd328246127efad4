// Package marker raises the record of the watermark. Every holder may: each lists the space when its
// turn comes, computes the mark that the list allows, and writes it if it says more than the last one.
package marker

import (
	"math"
	"slices"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Marker is what one process knows of the mark. The machine tells it of each mark that was read, of the
// first hold and of each list, and asks it when to list and what to write. It is owned by one goroutine.
type Marker struct {
	cfg lease.Config
	// last is the latest mark that was read, at readAt, and highest what statuses show: it never falls.
	last    lease.Entry[lease.Mark]
	highest lease.Mark
	readAt  clock.Mono
	// The node with the lowest sid raises the mark from raiseAt on; the others raise it later, or
	// from passAt on if their clocks are confirmed.
	raiseAt clock.Mono
	passAt  clock.Mono
	// heldSince is the elapsed time at which this process first held a sid.
	heldSince time.Duration
	txn       *lease.MarkTxn // It is to be written.
}

// New returns a marker that has read nothing.
func New(cfg lease.Config) Marker { return Marker{cfg: cfg} }

// Last returns the mark as it was read last.
func (m *Marker) Last() lease.Entry[lease.Mark] { return m.last }

// Highest returns the highest mark that was read, and when the last one was.
func (m *Marker) Highest() (lease.Mark, clock.Mono) { return m.highest, m.readAt }

// Forget forgets the mark of a history that was lost: revisions may come a second time.
func (m *Marker) Forget() { m.last = lease.Entry[lease.Mark]{} }

// Held notes that this process holds its first sid.
func (m *Marker) Held(elapsed time.Duration) { m.heldSince = elapsed }

// Read takes the mark of a view of the store, or of the watch, which may be behind.
func (m *Marker) Read(now clock.Reading, e lease.Entry[lease.Mark]) {
	if e.Exists() && e.Rev < m.last.Rev {
		return
	}
	m.readAt = now.Mono
	if e.Value.Nonce != m.last.Value.Nonce {
		// A write that leaves At as it is delays no other node: its writer may be unable to raise the mark.
		if e.Value.At > m.last.Value.At {
			m.raiseAt = now.Mono.Add(m.cfg.Mark.Every)
		}
		m.passAt = m.passes(now, e.Value)
	}
	m.last = e
	if e.Exists() && e.Err == nil && (e.Value.At >= m.highest.At || e.Value.Era > m.highest.Era) {
		m.highest = e.Value
	}
}

// Watched takes the marks among changes, unless the space is not known, and returns the others.
func (m *Marker) Watched(now clock.Reading, changes []lease.Change, known bool) []lease.Change {
	return slices.DeleteFunc(slices.Clone(changes), func(c lease.Change) bool {
		if known && c.Key == lease.ChangedMark {
			m.Read(now, c.Mark)
		}
		return c.Key == lease.ChangedMark
	})
}

// Written takes the answer to a write of the mark. Nothing depends on its outcome: the next
// one compares what it finds. Each acquisition between the list and the write has it fail, so it
// is repeated soon: with n acquisitions in a round trip, e to the power of n attempts are needed.
// With 50 acquisitions a second and 10 ms the mark is a second later at worst, with 50 ms 10 s
// later, with 100 a second and 50 ms 90 s (TestMarkBesideAcquisitions).
func (m *Marker) Written(now clock.Reading, ev lease.Marked) {
	m.Read(now, ev.Mark)
	if !ev.Applied {
		m.passAt = now.Mono.Add(m.cfg.RetryAfter)
	}
}

// turns is by how many more raises each holder waits than the one before, in the order of
// sids. That is a hint, so that one does it at a time: twice as long as the floors take to move.
const turns = 8

// Due returns when the space is listed to raise the mark, by the holder of a sid that may write ceilings.
// Nodes with lower sids raise the mark before it.
func (m *Marker) Due(sid flake.SID, holders []lease.Held, agreed bool) clock.Mono {
	if m.cfg.Mark.Every == 0 {
		return math.MaxInt64
	}
	rank := 0
	for _, o := range holders {
		if o.SID >= sid {
			break
		}
		if !o.Worker {
			rank++
		}
	}
	due := m.raiseAt.Add(m.cfg.Mark.Every * time.Duration(turns*rank))
	if agreed {
		due = min(due, m.passAt)
	}
	return due
}

// passes returns when what holds a mark back is no reason to wait any more, if the clock is confirmed.
// All nodes with confirmed clocks look at about that time: the node whose turn it is may have a clock
// that nobody confirms, and never pass a window.
func (m *Marker) passes(now clock.Reading, mark lease.Mark) clock.Mono {
	if len(mark.Blocked) == 0 || !mark.Blocked[0].Passes() {
		return math.MaxInt64
	}
	after := mark.Blocked[0].Ceil + clock.MillisOf(m.cfg.Mark.Grace) - now.Wall
	return now.Mono.Add(min(after, clock.MillisOf(time.Hour)).Duration() + m.cfg.Jitter(m.cfg.Mark.Every))
}

// stepLimit is by how much the mark may be raised at once, until the process has held a sid for so long.
const stepLimit = clock.StepLimit

// Raise computes the mark from a view of the whole space, and has it written if it says
// more than the last one. Only a process that holds a sid does that: the mark is then below
// a ceiling, and so below the floor of each later era.
func (m *Marker) Raise(now clock.Reading, v lease.View, sid flake.SID, agreed bool) {
	next := Next(m.cfg.Mark, v, now.Wall, agreed)
	m.raiseAt, m.passAt = now.Mono.Add(m.cfg.Mark.Every), m.passes(now, next)
	last, limit := v.Mark.Value, clock.MillisOf(stepLimit)
	known := max(last.At, v.Era.Value.Floor) + limit
	if until := untilRaised(now, last, limit); next.At > known && until > now.Wall &&
		now.Elapsed()-m.heldSince < stepLimit {
		// Nodes that were restarted under a wrong time source must not take the mark along: it
		// cannot come back, and nobody issues below it. No ceiling counts as passed there either.
		next = Next(m.cfg.Mark, v, now.Wall, false)
		next.At, next.Era = last.At, last.Era
		next.Blocked = []lease.Blocker{{
			SID:   sid,
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
		next = lease.Mark{At: m.highest.At}
	}
	next.Nonce, next.Node, next.Wall = m.cfg.Nonce(), m.cfg.Registration.Node, now.Wall
	m.txn = &lease.MarkTxn{Config: v.Config, Era: v.Era, Seen: v.Mark, Mark: next}
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

// Pending reports whether a mark is to be written.
func (m *Marker) Pending() bool { return m.txn != nil }

// Take returns the write that is pending, which is not any more then.
func (m *Marker) Take() lease.MarkTxn {
	txn := *m.txn
	m.txn = nil
	return txn
}
