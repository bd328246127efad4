package protocol

import (
	"fmt"
	"math"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/catalog"
	"github.com/flakelease/allocator/internal/text"
)

// plan decides what to ask for. It depends on the machine's state alone, so that
// a lost, a late and a slow reply all lead to the same next request.
func (m *Machine) plan(now clock.Reading) {
	if m.life == running {
		if a := m.session.Next(now.Mono, m.history.Known() && !m.isRewound()); a != nil {
			m.do(a)
		}
		if m.catalog.GiveUp(now.Mono, m.need()) {
			m.do(lease.Rewatch{})
		}
	}
	if m.busy || m.life == stopped {
		return
	}
	if h := m.hold(); h != nil && h.record == lost && h.service < sealing && now.Wall >= h.ceil {
		// Nothing is left of what was confirmed. Refusals should give the lost sid
		// as the reason, not a window that is used up.
		m.do(lease.Seal{})
		m.state = seeking{}
	}
	h := m.hold()
	switch {
	case m.isRewound():
		if m.life == stopping {
			m.end()
		} else if now.Mono >= max(m.next, m.catalog.Retry()) {
			m.load(now) // An operator may have begun a new era.
		}
	case m.try != nil && m.try.unknown:
		if now.Mono >= m.next {
			m.busy = true
			m.do(lease.Read{SID: m.try.sid})
		}
	case h != nil && h.service != serving:
		m.giveBack(now, h)
	case m.life == stopping:
		m.end()
	case now.Mono < m.next:
	case m.marker.Pending():
		m.busy = true
		m.do(lease.PutMark{Txn: m.marker.Take()})
	case now.Mono >= min(m.catalog.Due(m.need()), m.markDue()):
		m.load(now)
	case h != nil && h.record != lost:
		m.keep(now, h)
	default:
		m.seek(now)
	}
}

// markDue returns when the space is listed to raise the mark.
func (m *Machine) markDue() clock.Mono {
	h := m.own()
	if h == nil || h.record != ours || h.service != serving || !m.gate.Open {
		return math.MaxInt64
	}
	return m.marker.Due(h.sid, m.catalog.Summary(m.within).Holders, m.gate.Agreed)
}

// load lists the space.
func (m *Machine) load(now clock.Reading) {
	m.busy = true
	m.history.Listing()
	m.catalog.Ask(now.Mono, m.session.ID())
	m.do(lease.Load{})
}

// end revokes the lease and stops.
func (m *Machine) end() {
	a, done := m.session.End()
	switch {
	case a != nil:
		m.do(a)
	case done:
		m.life = stopped
		m.do(lease.Done{})
	}
}

// giveBack seals the hold and releases its sid.
func (m *Machine) giveBack(now clock.Reading, h *hold) {
	switch {
	case h.service < sealing:
		h.service = sealing
		m.do(lease.Seal{})
	case h.service == sealing:
	case h.record == lost: // There is nothing to release: the record is another process's.
		m.dropHold(now)
		m.plan(now)
	case now.Mono >= m.next:
		w := h.seen.Window.Value
		// Everything issued lies below h.issued, and below the confirmed ceiling
		// (I3): the smaller of both leaves the most to the next holder. The base of
		// an extended record is the ceiling before it, so the hold's first base
		// is put back.
		w.Base = h.base
		w.Ceil = min(w.Ceil, max(h.base, h.issued))
		w.State, w.Floor = lease.Released, w.Ceil
		m.commit(now, lease.Release, h.sid, h.seen, w)
	}
}

// dropHold forgets a hold that is sealed, and what was being written.
func (m *Machine) dropHold(now clock.Reading) {
	m.state, m.try, m.standby = seeking{}, nil, false
	m.catalog.Replace(now.Mono)
	m.next = now.Mono
}

// keep extends the window of a hold that is ours.
func (m *Machine) keep(now clock.Reading, h *hold) {
	// A clock that jumped forward, after a suspend or a step, may have passed the
	// ceiling before the next extension is due.
	if m.try == nil && now.Mono < h.extendAt && now.Wall < h.ceil {
		return
	}
	// Without a lease it registers first: the old holder key may be gone too.
	if !m.gate.Open || m.session.ID() == 0 {
		m.next = now.Mono.Add(m.cfg.RetryAfter)
		return
	}
	if m.poisoned(now, false) {
		// A machine that was paused without noticing finds the time of the others.
		m.catalog.AskBy(max(now.Mono, m.catalog.Evidence().At.Mono.Add(5*lease.SlowRetry)))
		return
	}
	op := lease.Extend
	if h.record == oursNoKey {
		if op = lease.Rehold; m.noMark() {
			m.next = now.Mono.Add(m.cfg.RetryAfter)
			m.catalog.AskBy(m.next)
			return
		}
	}
	h.extendAt = now.Mono.Add(m.cfg.ExtendEvery)
	w := h.seen.Window.Value
	w.Base, w.Ceil = w.Ceil, max(w.Ceil, now.Wall+clock.MillisOf(m.cfg.Window))
	// What the record says must hold from the moment it is sent.
	w.Floor = max(w.Floor, m.space().UnitStart(now.Wall))
	if op == lease.Rehold {
		w.Floor = max(w.Floor, m.marker.Last().Value.At)
	}
	m.do(lease.Lift{Floor: w.Floor})
	m.commit(now, op, h.sid, h.seen, w)
}

// noMark reports whether the mark cannot be read: no holder key is put then, since tenures begin above it.
func (m *Machine) noMark() bool {
	err := m.marker.Last().Err
	if err != nil {
		m.problem = fmt.Sprintf("the record of the watermark is unreadable (%v): run \"allocator admin recover\"", err)
	}
	return err != nil
}

// poisoned reports whether the guard lets no ceiling be written by this clock, raises
// the alarm, and has the evidence read again.
func (m *Machine) poisoned(now clock.Reading, acquiring bool) bool {
	until, of := m.guard.Latest(now, m.evidence(), acquiring)
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

// expire has the key of a dead holder deleted. What follows is what follows the end of its lease: the
// mark passes it, the sid is free, and the holder, if it lives, has to take the key up again. The clock
// is one that a ceiling may be written by, so that none which is far ahead of live holders' takes the
// records of these for evidence no more. So a process without a sid takes a free one first.
func (m *Machine) expire(now clock.Reading) {
	until, _ := m.guard.Latest(now, m.evidence(), true)
	if m.busy || m.try != nil || m.life != running || !m.gate.Open || now.Undecided || now.Wall > until ||
		m.session.ID() == 0 || m.hold() != nil && m.hold().service != serving {
		return
	}
	sid, ok := m.catalog.Dead(now)
	free := false
	if m.own() == nil { // A holder asks for no other sid.
		_, free = m.choose(now)
	}
	if !ok || free && m.hold() == nil {
		return
	}
	m.busy = true
	m.do(lease.Commit{Txn: lease.Txn{
		Op:     lease.Expire,
		SID:    sid,
		Seen:   m.catalog.SIDs()[sid],
		Config: m.history.Config(),
		Era:    m.history.Era(),
	}})
}

// seek acquires a sid, or waits for one.
func (m *Machine) seek(now clock.Reading) {
	switch {
	case m.session.ID() == 0: // It registers first.
	case !m.gate.Open, now.Undecided:
		// A ceiling stays: while it is not known which side of a step is right, none is written with the time of
		// one. A hold is extended, for its clock is held to what it was before.
		m.next = now.Mono.Add(m.cfg.RetryAfter)
	case m.poisoned(now, true), m.noMark():
		m.catalog.Stale()
		m.catalog.AskBy(now.Mono.Add(lease.SlowRetry))
	case m.try != nil:
		// An attempt was not applied yet and still may be. The same record is
		// asked for again, so that this process cannot get a second sid.
		m.acquire(now, m.try.sid, m.try.seen)
	case !m.catalog.Fresh():
		m.catalog.AskBy(now.Mono.Add(catalog.MaxJitter))
	default:
		// An operator who lowers the floor has to leave a window, so that the next list is soon enough.
		if wait := m.cfg.Early(now.Wall, m.era()); wait > 0 {
			m.problem = m.era().Begins(now.Wall)
			m.catalog.AskBy(now.Mono.Add(wait))
			return
		}
		sid, ok := m.choose(now)
		m.standby = !ok
		if ok {
			m.acquire(now, sid, m.catalog.SIDs()[sid])
			return
		}
		if m.catalog.Changed() { // It did while we registered, or while the list was on its way.
			m.catalog.AskBy(now.Mono.Add(m.cfg.Jitter(catalog.MaxJitter)))
		}
		m.problem = m.noneFree()
	}
}

func (m *Machine) acquire(now clock.Reading, sid flake.SID, seen lease.SIDRecords) {
	op := lease.Acquire
	if seen.Holder.Exists() {
		op = lease.Reclaim
	}
	old, mark := seen.Window.Value, m.marker.Last().Value
	base := max(old.Ceil, m.era().Floor, now.Wall, mark.At)
	m.commit(now, op, sid, seen, lease.Window{
		Term:     old.Term + 1,
		Instance: m.cfg.Registration.Instance,
		Node:     m.cfg.Registration.Node,
		Base:     base,
		// Not base+W: a node that takes a sid early must not push its ceiling
		// further out each time.
		Ceil:  max(base, now.Wall+clock.MillisOf(m.cfg.Window)),
		State: lease.Active,
		Floor: base,
		Prior: old.Priors(mark),
	})
}

func (m *Machine) commit(now clock.Reading, op lease.Op, sid flake.SID, seen lease.SIDRecords, w lease.Window) {
	w.Era, w.Nonce, w.Wall = m.era().Number, m.cfg.Nonce(), now.Wall
	w.Gossip, w.Started = m.cfg.Registration.Gossip != "", m.cfg.Registration.Started
	if m.try != nil && m.try.sid != sid {
		panic(fmt.Sprintf("lease: a write of sid %d while one of sid %d is not settled", sid, m.try.sid))
	}
	if m.try == nil {
		m.try = &attempt{sid: sid, seen: seen, nonces: map[string]write{}}
	}
	m.try.nonces[w.Nonce] = write{op, now.Elapsed()}
	m.try.op, m.try.lease = op, m.session.ID()
	m.busy = true
	m.do(lease.Commit{Txn: lease.Txn{
		Op: op, SID: sid, Seen: seen, Config: m.history.Config(), Era: m.history.Era(), Mark: m.marker.Last(),
		Lease:  m.session.ID(),
		Holder: lease.Holder{Instance: m.cfg.Registration.Instance, Node: m.cfg.Registration.Node},
		Window: w,
	}})
}

// choose picks the sid to acquire, among those that this node may take. In order:
//
//   - a free one whose ceiling has passed: the one that this node's name had
//     last, else the one with the lowest ceiling, or any if another process was
//     first to take that: nodes that start together see the same list, and must not
//     all ask for one sid again;
//   - once in a process's life, one held by an earlier process of this node's name;
//   - any other free one, in the same order: it is acquired now, and issues once
//     the clock has reached its ceiling.
func (m *Machine) choose(now clock.Reading) (flake.SID, bool) {
	sids, name := m.catalog.SIDs(), m.cfg.Registration.Node
	past, later := lease.Free(sids, m.within, now.Wall, func(sid flake.SID) bool { return m.catalog.Bad(sid) != "" })
	own := lease.LastOf(name, false, past, sids)
	switch {
	case len(own) > 0:
		return lease.Lowest(own, sids), true
	case len(past) > 0 && m.beaten:
		return past[m.cfg.Jitter(time.Duration(len(past)))], true
	case len(past) > 0:
		return lease.Lowest(past, sids), true
	}
	// Of a sid with a later ceiling we would wait for a time that a wrong clock wrote.
	sound := m.cfg.SoundBy(now.Wall, m.era(), false)
	for sid := m.within.From; sid < m.within.To && !m.everHeld; sid++ {
		s := sids[sid]
		if h := s.Holder; h.Exists() && h.Err == nil && m.catalog.Bad(sid) == "" && s.Window.Value.Ceil <= sound &&
			h.Value.Node == name && !h.Value.Worker && h.Value.Instance != m.cfg.Registration.Instance {
			return sid, true
		}
	}
	if own = lease.LastOf(name, false, later, sids); len(own) > 0 {
		later = own
	}
	if len(later) == 0 {
		return 0, false
	}
	return lease.Lowest(later, sids), true
}

// noneFree returns a message for people: no sid can be taken, and who has them.
func (m *Machine) noneFree() string {
	of := ""
	switch {
	case !m.cfg.SIDRange.All():
		of = fmt.Sprintf(" in %s (sid-range)", m.within)
	case !m.cfg.Workers.All():
		of = fmt.Sprintf(" in %s (the sids that are not for workers)", m.within)
	case !m.space().Part.All():
		of = fmt.Sprintf(" in %s (the sids of the space)", m.within)
	}
	sids := m.catalog.SIDs()
	said := fmt.Sprintf("no sid%s %s", of, lease.Taken(sids, m.within, m.catalog.Summary(m.within).Pool.Quarantined))
	for sid := m.within.From; sid < m.within.To; sid++ {
		h, end := sids[sid].Holder, sids[sid].Window.Value.Ceil
		if h.Exists() && end != 0 && end+clock.MillisOf(2*m.cfg.MaxSkew) <= m.catalog.Evidence().At.Wall {
			return said + fmt.Sprintf("; %s holds sid %d and has not extended its window, which ended at %s: "+
				"if it is dead, the sid is free two or three windows later, or at once by "+
				"\"allocator admin quarantine %d --force\" and \"allocator admin release-sid %d\"",
				lease.Printable(h.Value.Node), sid, end.Time().UTC().Format(time.RFC3339), sid, sid)
		}
	}
	return said
}
