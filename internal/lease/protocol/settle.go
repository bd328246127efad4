package protocol

import (
	"errors"
	"fmt"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/catalog"
	"github.com/flakelease/allocator/internal/lease/history"
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
	case m.try == nil:
		m.expired(ev.View)
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

// onLoaded handles a view of the whole space, or of the sid of an unsettled write.
func (m *Machine) onLoaded(now clock.Reading, ev lease.Loaded) {
	m.catalog.Answered(now.Mono, ev.Err, m.hold() != nil)
	if ev.Err != nil {
		m.unknownOutcome(now, ev.Err)
		return
	}
	if !m.checkHistory(now, ev.View) {
		return
	}
	if m.try != nil && m.try.unknown {
		m.settle(now, ev.View)
		return
	}
	if loss, ok := m.history.Listed(ev.View); ok {
		m.rewind(now, loss)
		return
	}
	m.problem = ""
	found := m.catalog.Loaded(now, ev.View)
	asked, missing := m.catalog.Lease()
	m.session.Listed(now.Mono, asked, missing)
	for _, sid := range found {
		if why := m.catalog.Bad(sid); why != "" {
			m.distrusted(sid, why)
		} else if h := m.hold(); h == nil || h.sid != sid {
			m.releaseStray(now, sid, ev.View.SIDs[sid])
		}
	}
	m.guard.Listed(now, m.evidence())
	for c := range m.alarms {
		if c.kind == lease.AlarmQuarantined && m.catalog.Bad(flake.SID(c.sid)) == "" {
			m.over(c.kind, c.sid)
		}
	}
	if h := m.own(); h != nil && m.try == nil {
		m.compareOwn(now, h, ev.View.SIDs[h.sid])
	}
	if h := m.own(); now.Mono >= m.markDue() {
		m.marker.Raise(now, ev.View, h.sid, m.gate.Agreed)
	}
	m.expire(now)
}

// expired takes the answer: the records as they are now. Nothing depends on its outcome.
func (m *Machine) expired(v lease.View) {
	for sid, s := range v.SIDs {
		m.catalog.Put(sid, s)
	}
}

// checkHistory checks for evidence that this is another store, or the same one at
// an earlier point in history. It reports whether the rest of the view can be used.
func (m *Machine) checkHistory(now clock.Reading, v lease.View) bool {
	if st, ok := m.state.(rewound); ok {
		if !st.loss.Over(v) {
			m.next = now.Mono.Add(lease.SlowRetry)
			return false
		}
		if err := m.history.Resume(v); err != nil {
			return m.fail(err)
		}
		m.alarm(lease.AlarmEra, -1, "%s; etcd's history is trusted again", v.Era.Value.Begun())
		m.state = seeking{}
		m.catalog.TrustAll()
		m.marker.Forget()
	}
	known := m.history.Known()
	found := m.history.Check(v)
	if m.history.Has(v) {
		m.readAt = now.Mono
		m.marker.Read(now, v.Mark)
		m.catalog.Shown(now.Mono, v.Revision)
	}
	if m.history.Known() && !known {
		var err error
		if m.within, err = m.cfg.within(m.space()); err != nil {
			return m.fail(err)
		}
	}
	switch found := found.(type) {
	case history.Loss:
		m.rewind(now, found)
		return false
	case history.Unready:
		m.problem = found.Why
		m.next = now.Mono.Add(lease.SlowRetry)
		m.catalog.AskBy(m.next)
		return false
	case history.Unusable:
		return m.fail(found.Err)
	case history.Sound:
		if found.NewEra {
			m.alarm(lease.AlarmEra, -1, "%s", m.era().Begun())
			if h := m.hold(); h != nil {
				h.leave()
			}
			m.catalog.Stale()
		}
		if found.First {
			m.session.Hurry(now.Mono)
		}
	}
	return true
}

// fail ends the machine: no retry can help.
func (m *Machine) fail(err error) bool {
	m.life = stopped
	m.do(lease.Fail{Err: err})
	return false
}

// rewind stops all issuing until an operator begins an era after the loss.
func (m *Machine) rewind(now clock.Reading, loss history.Loss) {
	m.alarm(lease.AlarmRewound, -1, "%s", loss.Why)
	if h := m.hold(); h != nil && h.service != sealed {
		m.do(lease.Seal{})
	}
	m.state, m.try, m.standby = rewound{loss}, nil, false
	m.catalog.Stale()
	m.next = now.Mono.Add(lease.SlowRetry)
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

// ownership returns whether the holder key of a window of ours is there, under our
// present lease.
func (m *Machine) ownership(s lease.SIDRecords) ownership {
	if s.Holder.Exists() && s.Holder.Lease == m.session.ID() && s.Holder.Value.Instance == m.cfg.Registration.Instance {
		return ours
	}
	return oursNoKey
}

// checkHolder finds out why an extension was not applied though our window record
// is unchanged.
func (m *Machine) checkHolder(now clock.Reading, h *hold, got lease.SIDRecords) {
	switch {
	case !got.Holder.Exists():
		h.record = oursNoKey
	case got.Holder.Value.Instance != m.cfg.Registration.Instance:
		m.lose(now, h, got, "its holder key belongs to another process, but its window record to this one: "+
			"etcd's data was edited")
	case got.Holder.Lease != m.session.ID():
		// Ours, on an older lease: it expires with that lease.
		h.record = oursNoKey
		m.next = now.Mono.Add(m.cfg.RetryAfter)
	}
}

// compareOwn compares our sid's records, as the store has them, with those that
// we had confirmed.
func (m *Machine) compareOwn(now clock.Reading, h *hold, got lease.SIDRecords) {
	w := got.Window.Value
	switch {
	case got.Window.Same(h.seen.Window):
		if !got.Holder.Exists() && m.session.ID() != 0 {
			h.record, h.extendAt = oursNoKey, now.Mono
		}
	case !got.Window.Exists():
		m.rewind(now, m.history.Lost("the window record of sid %d is gone", h.sid))
	case got.Window.Err != nil:
		m.quarantine(h.sid, got.Window.Err.Error())
		m.lose(now, h, got, "its window record is unreadable")
	case w.TakenByOperator(): // That is no reason for an alarm.
		if w.State == lease.Quarantined {
			m.catalog.Distrust(h.sid, w.ByOperator())
		}
		h.record = lost
		m.abandon(now.Mono)
		m.problem = fmt.Sprintf("sid %d is given up: %s", h.sid, w.ByOperator())
	case w.Term < h.term:
		m.rewind(now, m.history.Lost("sid %d is at term %d, and we held term %d", h.sid, w.Term, h.term))
	case w.Term == h.term && w.Instance != m.cfg.Registration.Instance:
		m.rewind(now, m.history.Lost("term %d of sid %d, ours, belongs to another instance", h.term, h.sid))
	case w.Term == h.term && w.Ceil < h.ceil:
		m.rewind(now, m.history.Lost("the ceiling of sid %d went back from %d to %d", h.sid, h.ceil, w.Ceil))
	default:
		m.lose(now, h, got, "another process took it")
	}
}

// lose notes that a sid is no longer ours. The window confirmed to us can still be
// used: the process that took the sid began at or above its ceiling.
func (m *Machine) lose(now clock.Reading, h *hold, got lease.SIDRecords, why string) {
	h.record = lost
	m.abandon(now.Mono)
	if got.Window.Err == nil && got.Window.Value.Node == m.cfg.Registration.Node &&
		got.Window.Value.Instance != m.cfg.Registration.Instance {
		m.alarm(lease.AlarmOwnName, int(h.sid), "sid %d was taken by another process with the name %q: "+
			"give each node its own node.name", h.sid, m.cfg.Registration.Node)
		return
	}
	m.alarm(lease.AlarmLost, int(h.sid), "sid %d was lost: %s", h.sid, why)
}

// releaseStray gives back a sid that a late write acquired for us after we had
// given the attempt up. Nothing was issued from this term, but there may be IDs of
// an earlier one: the ceiling stays.
func (m *Machine) releaseStray(now clock.Reading, sid flake.SID, s lease.SIDRecords) {
	if m.busy || m.try != nil || s.Window.Value.Instance != m.cfg.Registration.Instance {
		return
	}
	w := s.Window.Value
	w.State, w.Floor = lease.Released, w.Ceil
	m.commit(now, lease.Release, sid, s, w)
}

// quarantine notes that a sid is not used because its records cannot be trusted.
func (m *Machine) quarantine(sid flake.SID, why string) {
	m.catalog.Distrust(sid, why)
	m.distrusted(sid, why)
}

func (m *Machine) distrusted(sid flake.SID, why string) {
	m.alarmOnce(lease.AlarmQuarantined, int(sid), fmt.Sprintf("sid %d is not used: %s", sid, why))
}
