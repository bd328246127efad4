package protocol

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/history"
)

// onCommitted handles the answer to a write.
func (m *Machine) onCommitted(now clock.Reading, ev lease.Committed) {
	if ev.Err != nil {
		if errors.Is(ev.Err, lease.ErrLeaseGone) && m.try != nil && m.try.lease == m.session.ID() {
			m.leaseGone(now) // a keepalive might report it much later, or never
		}
		m.unknownOutcome(now, ev.Err)
		return
	}
	if m.checkHistory(now, ev.View) {
		m.settle(now, ev.View)
	}
	if m.try != nil {
		m.next = max(m.next, now.Mono.Add(m.cfg.RetryAfter/5)) // not applied: retry after a pause
	}
}

// unknownOutcome notes that a request got no answer. A write may have been
// applied, or may still be.
func (m *Machine) unknownOutcome(now clock.Reading, err error) {
	if !errors.Is(err, lease.ErrLeaseGone) { // that is an answer, and we register again
		m.problem = fmt.Sprintf("etcd does not answer: %v", err)
	}
	m.next = now.Mono.Add(m.cfg.RetryAfter)
	if m.try != nil {
		m.try.unknown = true
	}
}

// onLoaded handles a view of the whole space, or of the sid of an unsettled write.
func (m *Machine) onLoaded(now clock.Reading, ev lease.Loaded) {
	listed := m.list.loading
	m.list.loading = false
	if ev.Err != nil {
		m.unknownOutcome(now, ev.Err)
		if listed {
			// If lists fail and small writes succeed, a window must still be
			// extended between the retries.
			first := m.cfg.RetryAfter
			if m.hold() != nil {
				first = lease.SlowRetry
			}
			m.reload, m.list.retry = now.Mono, now.Mono.Add(m.list.failed.Pause(first, lease.SlowestRetry, m.cfg.Jitter))
		}
		return
	}
	if listed {
		m.list.failed = lease.Retries{}
	}
	if m.try != nil && m.try.unknown {
		if m.checkHistory(now, ev.View) {
			m.settle(now, ev.View)
		}
		return
	}
	if !m.checkHistory(now, ev.View) {
		return
	}
	if loss, ok := m.history.Listed(ev.View); ok {
		m.rewind(now, loss)
		return
	}
	m.list.sids, m.list.nodes, m.list.fresh, m.list.at = ev.View.SIDs, ev.View.Nodes, true, now.Mono
	m.list.revision, m.list.number = ev.View.Revision, m.list.asked
	m.list.accepted, m.list.elapsed = ev.View.Accepted, now.Elapsed()
	m.problem = ""
	m.session.Listed(now.Mono, m.list.lease, !slices.ContainsFunc(m.list.nodes, func(r lease.Registration) bool {
		return r.Instance == m.cfg.Registration.Instance
	}))
	m.inspect(now)
	if h := m.own(); h != nil && m.try == nil {
		m.compareOwn(now, h, m.list.sids[h.sid])
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
		m.alarm(lease.AlarmEra, -1, "era %d began; etcd's history is trusted again", v.Era.Value.Number)
		m.state = seeking{}
		m.bad, m.list.summary = map[flake.SID]string{}, nil
	}
	known := m.history.Known()
	found := m.history.Check(v)
	if m.history.Has(v) {
		m.readAt = now.Mono
		m.checkWatch(now, v.Revision)
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
		m.reload = m.next
		return false
	case history.Unusable:
		return m.fail(found.Err)
	case history.Sound:
		if found.NewEra {
			m.alarm(lease.AlarmEra, -1, "era %d began", m.era().Number)
			if h := m.hold(); h != nil {
				h.leave()
			}
			m.list.fresh = false
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
	m.state, m.try = rewound{loss}, nil
	m.list.fresh, m.list.full = false, false
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
		h = nil // the attempt is not about the sid that we hold
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
			m.quarantine(try.sid, pastWithoutWindow)
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
	m.abandon(now.Mono.Add(m.cfg.Jitter(maxJitter / 10)))
}

// abandon forgets the attempt, and has the space listed at time reload before
// another sid is chosen.
func (m *Machine) abandon(reload clock.Mono) {
	m.try = nil
	m.list.fresh, m.reload = false, reload
}

// adopt takes over a record that this process wrote. Its values count, not
// those last asked for: an earlier attempt may have come first.
func (m *Machine) adopt(now clock.Reading, wrote write, got lease.SIDRecords) {
	sid, w := m.try.sid, got.Window.Value
	m.try = nil
	if wrote.op != lease.Release {
		m.trust(w.Wall, wrote.sent)
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
	if m.list.sids != nil {
		m.list.sids[sid], m.list.summary = got, nil
	}
}

// begin starts a hold of a sid that was acquired. The old one, if any, was lost.
func (m *Machine) begin(now clock.Reading, sid flake.SID, got lease.SIDRecords) {
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
		h.service, h.issued = sealed, w.Base // nothing of it is ever issued
	} else {
		if old != nil && old.service != serving {
			h.leave()
		}
		m.do(lease.Begin{Grant: h.grant()})
	}
	m.state = h
	if m.watch.open && !m.kept() { // what changed since the list is not known
		m.onChanged(now)
	}
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
		m.lose(now, h, got, "its holder key belongs to another process, but its window record to this one: etcd's data was edited")
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
	case w.State == lease.Quarantined: // an operator's decision, and no alarm
		m.bad[h.sid], m.list.summary = byOperator(w), nil
		h.record = lost
		m.abandon(now.Mono)
		m.problem = fmt.Sprintf("sid %d is given up: %s", h.sid, byOperator(w))
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
		m.alarm(lease.AlarmOwnName, int(h.sid), "sid %d was taken by another process with the name %q: give each node its own node.name",
			h.sid, m.cfg.Registration.Node)
		return
	}
	m.alarm(lease.AlarmLost, int(h.sid), "sid %d was lost: %s", h.sid, why)
}

// inspect goes through a fresh list: it finds the sids that cannot be used, and
// the latest time that a live holder's clock wrote.
func (m *Machine) inspect(now clock.Reading) {
	m.bad, m.list.summary, m.list.holderWall, m.list.latestWall = m.keepPasts(), nil, 0, 0
	for _, sid := range slices.Sorted(maps.Keys(m.list.sids)) { // in order, so that runs can be repeated
		s := m.list.sids[sid]
		w := s.Window.Value
		m.list.latestWall = max(m.list.latestWall, w.Wall) // 0 without a readable record
		switch {
		case !m.space().SIDs().Has(sid):
			delete(m.list.sids, sid) // not of this space: no node takes it
		case s.Window.Err != nil:
			m.quarantine(sid, s.Window.Err.Error())
		case s.Holder.Err != nil:
			m.quarantine(sid, s.Holder.Err.Error())
		case s.Window.Exists() && w.Era > m.era().Number:
			m.quarantine(sid, fmt.Sprintf("its record is of era %d, and this is era %d", w.Era, m.era().Number))
		case w.State == lease.Quarantined:
			m.bad[sid] = byOperator(w)
		case s.Holder.Exists() && !s.Window.Exists():
			m.quarantine(sid, "it has a holder but no window record")
		case s.Holder.Exists():
			if s.Holder.Value.Instance != m.cfg.Registration.Instance {
				// Nobody compares the clock of a holder without gossip, and it never
				// refuses: it may have been wrong for months. A sound node must not be
				// kept from starting by it.
				if w.Gossip {
					m.list.holderWall = max(m.list.holderWall, w.Wall)
				}
			} else if h := m.hold(); h == nil || h.sid != sid {
				m.releaseStray(now, sid, s)
			}
		case w.Ceil > m.soundBy(now, w.Worker):
			m.quarantine(sid, fmt.Sprintf("its ceiling is %s: a wrong clock wrote it, or this node's clock is far behind",
				w.Ceil.Time().Format(time.RFC3339)))
		}
	}
	// The era began no earlier than its floor says, give or take its slack: the only
	// record may be that of a clock which is years behind.
	recorded := max(m.list.latestWall, m.era().Floor)
	if m.list.latestWall != 0 {
		m.list.latestWall = recorded
	}
	if recorded != 0 && !m.recorded.Exists() && !m.trusted.Exists() {
		m.recorded.Set(int64(recorded)*int64(time.Millisecond), now.Elapsed())
	}
	for c := range m.alarms {
		if c.kind == lease.AlarmQuarantined && m.bad[flake.SID(c.sid)] == "" {
			m.over(c.kind, c.sid)
		}
	}
}

// pastWithoutWindow is a reason that only an attempt to acquire can find.
const pastWithoutWindow = "it has ledger lines but no window record"

// keepPasts keeps what a list of the space cannot show again, as long as the
// list does not show it repaired.
func (m *Machine) keepPasts() map[flake.SID]string {
	kept := map[flake.SID]string{}
	for sid, why := range m.bad {
		if why == pastWithoutWindow && !m.list.sids[sid].Window.Exists() {
			kept[sid] = why
		}
	}
	return kept
}

// releaseStray gives back a sid that a late write acquired for us after we had
// given the attempt up. Nothing was issued from this term, but there may be IDs of
// an earlier one: the ceiling stays.
func (m *Machine) releaseStray(now clock.Reading, sid flake.SID, s lease.SIDRecords) {
	if m.busy || m.try != nil || s.Window.Value.Instance != m.cfg.Registration.Instance {
		return
	}
	w := s.Window.Value
	w.State = lease.Released
	m.commit(now, lease.Release, sid, s, w)
}

// byOperator says that an operator quarantined a sid, with the reason that was given.
func byOperator(w lease.Window) string {
	if w.Reason == "" {
		return "an operator quarantined it"
	}
	return "an operator quarantined it: " + w.Reason
}

// quarantine notes that a sid is not used because its records cannot be trusted.
func (m *Machine) quarantine(sid flake.SID, why string) {
	m.bad[sid], m.list.summary = why, nil
	m.alarmOnce(lease.AlarmQuarantined, int(sid), fmt.Sprintf("sid %d is not used: %s", sid, why))
}
