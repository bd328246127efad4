package protocol

import (
	"errors"
	"fmt"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/catalog"
)

// onCommitted handles the answer to a write.
func (m *Machine) onCommitted(now clock.Reading, ev lease.Committed) {
	if ev.Err != nil {
		if errors.Is(ev.Err, lease.ErrLeaseGone) && m.try != nil && m.try.lease == m.session.ID() {
			m.leaseGone(now) // A keepalive might report it much later, or never.
		}
		m.unknownOutcome(now, ev.Err)
		return
	}
	switch {
	case !m.checkHistory(now, ev.View):
	case m.try == nil: // It was of an Expire, and nothing depends on its outcome.
		for sid, s := range ev.View.SIDs {
			m.catalog.Put(sid, s)
		}
	default:
		m.settle(now, ev.View)
	}
	if m.try != nil {
		m.next = max(m.next, now.Mono.Add(m.cfg.RetryAfter/5)) // It was not applied, and is sent again.
	}
}

// unknownOutcome notes that a request got no answer. A write may have been
// applied, or may still be.
func (m *Machine) unknownOutcome(now clock.Reading, err error) {
	if !errors.Is(err, lease.ErrLeaseGone) { // That is an answer, and we register again.
		what := "does not answer"
		if errors.Is(err, lease.ErrRefused) {
			what = "refuses"
		}
		m.problem = fmt.Sprintf("etcd %s: %v", what, err)
	}
	m.next = now.Mono.Add(m.cfg.RetryAfter)
	if m.try != nil {
		m.try.unknown = true
	}
}

// settle learns from a view of the attempt's sid what became of the attempt.
func (m *Machine) settle(now clock.Reading, v lease.View) {
	try := m.try
	got := v.SIDs[try.sid]
	m.problem = ""
	if w, ours := try.nonces[got.Window.Value.Nonce]; ours && got.Window.Err == nil {
		m.adopt(now, w, got)
		return
	}
	h := m.own()
	if h != nil && h.sid != try.sid {
		h = nil // The attempt is about another sid than the one that we hold.
	}
	if h == nil && try.op == lease.Release {
		// A stray sid: the next list shows whether it is still to be released. An
		// attempt about it must not block those about the sid that we hold.
		m.abandon(now.Mono)
		return
	}
	if got.Window.Same(try.seen.Window) {
		// Not applied, and it still may be. The same record is asked for again,
		// unless no attempt of ours can change it any more.
		try.unknown = false
		switch {
		case got.Past && !got.Window.Exists():
			m.quarantine(try.sid, lease.PastWithoutWindow)
			m.abandon(now.Mono)
		case h != nil:
			m.checkHolder(now, h, got)
		case !got.Holder.Same(try.seen.Holder):
			m.beaten = true
			// Taken, or the holder to be replaced is gone: no attempt that compares
			// with the holder we saw can be applied any more.
			m.abandon(now.Mono)
		case got.Window.Exists() && got.Window.Err != nil:
			m.abandon(now.Mono)
		}
		return
	}
	// Another write came first: no attempt of ours can be applied any more.
	m.try = nil
	if h != nil {
		m.compareOwn(now, h, got)
		return
	}
	m.beaten = true
	m.abandon(now.Mono.Add(m.cfg.Jitter(catalog.MaxJitter / 10)))
}

// abandon forgets the attempt, and has the space listed at time reload before
// another sid is chosen.
func (m *Machine) abandon(reload clock.Mono) {
	m.try = nil
	m.catalog.Replace(reload)
}

// adopt takes over a record that this process wrote. Its values count, not
// those last asked for: an earlier attempt may have come first.
func (m *Machine) adopt(now clock.Reading, wrote write, got lease.SIDRecords) {
	sid, w := m.try.sid, got.Window.Value
	m.try = nil
	if wrote.op != lease.Release {
		m.guard.Wrote(w.Wall, wrote.sent)
	}
	switch wrote.op {
	case lease.Acquire, lease.Reclaim:
		m.begin(now, sid, got)
	case lease.Extend, lease.Rehold:
		h := m.hold()
		h.seen, h.ceil, h.record = got, max(h.ceil, w.Ceil), m.ownership(got)
		if h.record == oursNoKey {
			h.extendAt = now.Mono
		}
		if h.service < sealing {
			m.do(lease.Raise{Ceil: h.ceil})
		}
	case lease.Release:
		if h := m.hold(); h != nil && h.sid == sid {
			m.dropHold(now)
		} else {
			m.abandon(now.Mono)
		}
	}
	m.catalog.Put(sid, got)
}

// begin starts a hold of a sid that was acquired. The old one, if any, was lost.
func (m *Machine) begin(now clock.Reading, sid flake.SID, got lease.SIDRecords) {
	if !m.everHeld {
		m.marker.Held(now.Elapsed())
	}
	m.everHeld, m.beaten = true, false
	w, old := got.Window.Value, m.hold()
	h := &hold{
		sid: sid, term: w.Term, base: w.Base, ceil: w.Ceil, seen: got,
		extendAt: now.Mono.Add(m.cfg.ExtendEvery),
		record:   m.ownership(got),
	}
	if m.life == stopping || w.Era != m.era().Number {
		if old != nil && old.service != sealed {
			m.do(lease.Seal{})
		}
		h.service, h.issued = sealed, w.Base // Nothing of it is ever issued.
	} else {
		if old != nil && old.service != serving {
			h.leave()
		}
		m.do(lease.Begin{Grant: h.grant()})
	}
	m.state = h
	m.catalog.Acquired(now.Mono, m.need())
}
