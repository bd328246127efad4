package protocol

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// plan decides what to ask for. It depends on the machine's state alone, so that
// a lost, a late and a slow reply all lead to the same next request.
func (m *Machine) plan(now clock.Reading) {
	if m.life == running {
		if a := m.session.Next(now.Mono, m.history.Known() && !m.isRewound()); a != nil {
			m.do(a)
		}
	}
	m.planWatch(now)
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
		} else if now.Mono >= max(m.next, m.list.retry) {
			m.load(now) // an operator may have begun a new era
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
	case now.Mono >= m.reloadAt():
		m.load(now)
	case h != nil && h.record != lost:
		m.keep(now, h)
	default:
		m.seek(now)
	}
}

func (m *Machine) load(now clock.Reading) {
	m.busy = true
	m.history.Listing()
	m.list.changed, m.list.spread, m.list.lease = false, 0, m.session.ID()
	if len(m.list.later) > 0 { // this list does not have these, if no other follows
		m.list.number = 0
	}
	m.list.loading, m.list.asked, m.list.later = true, m.watch.number, nil
	m.list.again = now.Mono.Add(m.cfg.ReloadEvery + m.cfg.Jitter(m.cfg.ReloadEvery/5))
	m.list.kept = keptFor/2*m.cfg.ReloadEvery + m.cfg.Jitter(keptFor*m.cfg.ReloadEvery) // nodes that started together do not list together
	m.reload = never
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
	case h.record == lost: // the record is another process's
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
		w.State = lease.Released
		m.commit(now, lease.Release, h.sid, h.seen, w)
	}
}

// dropHold forgets a hold that is sealed, and what was being written.
func (m *Machine) dropHold(now clock.Reading) {
	m.state, m.try = seeking{}, nil
	m.list.fresh, m.list.full = false, false
	m.reload, m.next = now.Mono, now.Mono
}

// keep extends the window of a hold that is ours.
func (m *Machine) keep(now clock.Reading, h *hold) {
	// A clock that jumped forward, after a suspend or a step, may have passed the
	// ceiling before the next extension is due.
	if m.try == nil && now.Mono < h.extendAt && now.Wall < h.ceil {
		return
	}
	if !m.gate.Open {
		m.next = now.Mono.Add(m.cfg.RetryAfter)
		return
	}
	if m.session.ID() == 0 {
		m.next = now.Mono.Add(m.cfg.RetryAfter)
		return // register first: the old holder key may be gone too
	}
	if m.poisoned(now, false) {
		// A machine that was paused without noticing finds the time of the others.
		m.reload = min(m.reload, max(now.Mono, m.list.at.Add(5*lease.SlowRetry)))
		return
	}
	op := lease.Extend
	if h.record == oursNoKey {
		op = lease.Rehold
	}
	h.extendAt = now.Mono.Add(m.cfg.ExtendEvery)
	w := h.seen.Window.Value
	w.Base, w.Ceil = w.Ceil, max(w.Ceil, now.Wall+clock.MillisOf(m.cfg.Window))
	m.commit(now, op, h.sid, h.seen, w)
}

// seek acquires a sid, or waits for one.
func (m *Machine) seek(now clock.Reading) {
	switch {
	case m.session.ID() == 0: // register first
	case !m.gate.Open:
		m.next = now.Mono.Add(m.cfg.RetryAfter)
	case m.poisoned(now, true):
		m.list.fresh, m.reload = false, min(m.reload, now.Mono.Add(lease.SlowRetry))
	case m.try != nil:
		// An attempt was not applied yet and still may be. The same record is
		// asked for again, so that this process cannot get a second sid.
		m.acquire(now, m.try.sid, m.try.seen)
	case !m.list.fresh:
		m.reload = min(m.reload, now.Mono.Add(maxJitter))
	default:
		sid, ok := m.choose(now)
		m.list.full = !ok
		if ok {
			m.acquire(now, sid, m.list.sids[sid])
			return
		}
		if m.list.changed { // while we registered, or while the list was on its way
			m.reload = min(m.reload, now.Mono.Add(m.cfg.Jitter(maxJitter)))
		}
		m.problem = m.noneFree()
	}
}

func (m *Machine) acquire(now clock.Reading, sid flake.SID, seen lease.SIDRecords) {
	op := lease.Acquire
	if seen.Holder.Exists() {
		op = lease.Reclaim
	}
	old := seen.Window.Value
	base := max(old.Ceil, m.era().Floor, now.Wall)
	m.commit(now, op, sid, seen, lease.Window{
		Term:     old.Term + 1,
		Instance: m.cfg.Registration.Instance,
		Node:     m.cfg.Registration.Node,
		Base:     base,
		// Not base+W: a node that takes a sid early must not push its ceiling
		// further out each time.
		Ceil:  max(base, now.Wall+clock.MillisOf(m.cfg.Window)),
		State: lease.Active,
	})
}

func (m *Machine) commit(now clock.Reading, op lease.Op, sid flake.SID, seen lease.SIDRecords, w lease.Window) {
	w.Era, w.Nonce, w.Wall = m.era().Number, m.cfg.Nonce(), now.Wall
	w.Gossip = m.cfg.Registration.Gossip != ""
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
		Op: op, SID: sid, Seen: seen, Config: m.history.Config(), Era: m.history.Era(), Lease: m.session.ID(),
		Holder: lease.Holder{Instance: m.cfg.Registration.Instance, Node: m.cfg.Registration.Node},
		Window: w,
	}})
}

// choose picks the sid to acquire, among those that this node may take. In order:
//
//   - a free one whose ceiling has passed: the one that this node's name had
//     last, else the one with the lowest ceiling;
//   - once in a process's life, one held by an earlier process of this node's name;
//   - any other free one, in the same order: it is acquired now, and issues once
//     the clock has reached its ceiling.
func (m *Machine) choose(now clock.Reading) (flake.SID, bool) {
	best, found, bestRank := flake.SID(0), false, 0
	reclaim, mayReclaim := flake.SID(0), false
	for sid := m.within.From; sid < m.within.To; sid++ {
		s := m.list.sids[sid] // absent: never used
		if m.bad[sid] != "" {
			continue
		}
		own := s.Window.Exists() && !s.Window.Value.Worker && s.Window.Value.Node == m.cfg.Registration.Node
		if s.Holder.Exists() {
			if !m.everHeld && !mayReclaim && s.Holder.Err == nil && !s.Holder.Value.Worker &&
				s.Holder.Value.Node == m.cfg.Registration.Node &&
				s.Holder.Value.Instance != m.cfg.Registration.Instance &&
				s.Window.Value.Ceil <= m.soundBy(now, false) { // else we would wait for a ceiling that a wrong clock wrote
				reclaim, mayReclaim = sid, true
			}
			continue
		}
		rank := 0
		if s.Window.Value.Ceil <= now.Wall {
			rank = 2
		}
		if own {
			rank++
		}
		if !found || rank > bestRank ||
			rank == bestRank && s.Window.Value.Ceil < m.list.sids[best].Window.Value.Ceil {
			best, found, bestRank = sid, true, rank
		}
	}
	if mayReclaim && bestRank < 2 {
		return reclaim, true
	}
	if m.beaten && bestRank == 2 {
		return m.anyPast(now), true
	}
	return best, found
}

// anyPast picks at random among the free sids whose ceilings have passed, of which
// there is at least one. Nodes that start together see the same list and would all
// ask for the same sid; one gets it, and the others must not ask for one sid again.
func (m *Machine) anyPast(now clock.Reading) flake.SID {
	var past []flake.SID
	for sid := m.within.From; sid < m.within.To; sid++ {
		if s := m.list.sids[sid]; m.bad[sid] == "" && !s.Holder.Exists() && s.Window.Value.Ceil <= now.Wall {
			past = append(past, sid)
		}
	}
	return past[m.cfg.Jitter(time.Duration(len(past)))] // a random index
}

// holdersNamed is how many holders the message about a full pool names.
const holdersNamed = 8

// noneFree returns a message for people: no sid can be taken, and who has them.
func (m *Machine) noneFree() string {
	within := m.within
	of, sum := "", m.summarize()
	switch {
	case !m.cfg.SIDRange.All():
		of = fmt.Sprintf(" in %s (sid-range)", within)
	case !m.cfg.Workers.All():
		of = fmt.Sprintf(" in %s (the sids that are not for workers)", within)
	case !m.space().Part.All():
		of = fmt.Sprintf(" in %s (the sids of the space)", within)
	}
	type holder struct {
		node string
		sids int
	}
	var holders []holder // each name once, in the order of sids
	for sid := within.From; sid < within.To; sid++ {
		h := m.list.sids[sid].Holder
		if !h.Exists() {
			continue
		}
		name := cmp.Or(h.Value.Node, "unknown")
		i := slices.IndexFunc(holders, func(o holder) bool { return o.node == name })
		if i < 0 {
			i, holders = len(holders), append(holders, holder{node: name})
		}
		holders[i].sids++
	}
	var names []string
	for i, h := range holders {
		switch {
		case i == holdersNamed:
			names = append(names, fmt.Sprintf("and %d more", len(holders)-i))
		case i > holdersNamed:
		case h.sids > 1:
			names = append(names, fmt.Sprintf("%s (%d)", h.node, h.sids))
		default:
			names = append(names, h.node)
		}
	}
	by := ""
	if len(names) > 0 {
		by = " by " + strings.Join(names, ", ")
	}
	return fmt.Sprintf("no sid%s is free: %d of %d are held%s, %d quarantined", of, sum.held, sum.size, by, sum.bad)
}
