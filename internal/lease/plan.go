package lease

import (
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// plan decides what to ask for, given what is known. It is a function of the
// machine's state alone, so that a lost reply, a late one and a slow one all
// lead back to the same place.
func (m *Machine) plan(now clock.Reading) {
	m.planLease(now)
	if m.busy || m.stopped {
		return
	}
	if t := m.tenure; t != nil && t.lost && !t.sealed && !t.sealAsked && now.Wall >= t.ceil {
		// Nothing is left of what was confirmed: it is not a window that is used
		// up but a sid that is lost.
		m.do(Seal{})
		m.tenure, m.dropping = nil, false
	}
	ending := m.stopping || m.dropping
	switch {
	case m.rewound != "":
		if m.stopping {
			m.end()
		} else if now.Mono >= m.next {
			m.load(now) // an operator may have begun a new era
		}
	case m.try != nil && m.try.unknown:
		if now.Mono >= m.next {
			m.busy = true
			m.do(Read{SID: m.try.sid})
		}
	case ending && m.tenure != nil:
		m.giveBack(now)
	case m.stopping:
		m.end()
	case now.Mono < m.next:
	case !m.config.Exists(), now.Mono >= m.reload:
		m.load(now)
	case m.tenure != nil && !m.tenure.lost:
		m.keep(now)
	default:
		m.seek(now)
	}
}

func (m *Machine) planLease(now clock.Reading) {
	if m.leaseBusy || m.stopping || now.Mono < m.leaseNext {
		return
	}
	switch {
	case m.lease != 0:
		m.leaseBusy, m.leaseSent = true, now.Mono
		m.do(KeepAlive{Lease: m.lease})
	case m.config.Exists() && m.rewound == "":
		m.leaseBusy, m.leaseSent = true, now.Mono
		m.do(Register{TTL: m.cfg.TTL, Registration: m.cfg.Registration})
	default: // the space is not known to be ours to register in
		m.leaseNext = now.Mono.Add(slowRetry)
	}
}

// slowRetry paces what only a person can change.
const slowRetry = time.Second

func (m *Machine) load(now clock.Reading) {
	m.busy, m.stale, m.reportedAtLoad = true, false, m.reported
	m.reload = now.Mono.Add(m.cfg.ReloadEvery + m.cfg.Jitter(m.cfg.ReloadEvery/5))
	m.do(Load{})
}

// end revokes the lease and stops.
func (m *Machine) end() {
	switch {
	case m.leaseBusy:
	case m.lease != 0:
		m.leaseBusy = true
		m.do(Revoke{Lease: m.lease})
	default:
		m.stopped = true
		m.do(Done{})
	}
}

// giveBack seals the tenure and releases its sid.
func (m *Machine) giveBack(now clock.Reading) {
	t := m.tenure
	switch {
	case !t.sealed && !t.sealAsked:
		t.sealAsked = true
		m.do(Seal{})
	case !t.sealed:
	case t.lost: // the record is not ours to change
		m.dropTenure(now)
		m.plan(now)
	case now.Mono >= m.next:
		w := t.seen.Window.Value
		// Everything issued lies below t.issued, and below the confirmed ceiling
		// (I3): the smaller of both gives back the most. An extended record's own
		// base is the ceiling before it, so the tenure's first one counts here.
		w.Base = t.base
		w.Ceil = min(w.Ceil, max(t.base, t.issued))
		w.State = Released
		m.commit(now, Release, t.sid, t.seen, w)
	}
}

func (m *Machine) dropTenure(now clock.Reading) {
	m.tenure, m.try = nil, nil
	m.dropping, m.listed, m.standby = false, false, false
	m.reload, m.next = now.Mono, now.Mono
}

// keep extends the window of a tenure in good standing.
func (m *Machine) keep(now clock.Reading) {
	t := m.tenure
	// A clock that moved on at once, after a suspend or a step, may have used the
	// window up before its time.
	if m.try == nil && now.Mono < t.extendAt && now.Wall < t.ceil {
		return
	}
	if !m.gateOpen {
		m.next = now.Mono.Add(m.cfg.RetryAfter)
		return
	}
	op := Extend
	if t.unheld {
		op = Rehold
	}
	if m.lease == 0 {
		m.next = now.Mono.Add(m.cfg.RetryAfter)
		return // the old holder key may be gone too; registering comes first
	}
	t.extendAt = now.Mono.Add(m.cfg.ExtendEvery)
	w := t.seen.Window.Value
	w.Base, w.Ceil = w.Ceil, max(w.Ceil, now.Wall+clock.MillisOf(m.cfg.Window))
	m.commit(now, op, t.sid, t.seen, w)
}

// seek acquires a sid, or waits for one.
func (m *Machine) seek(now clock.Reading) {
	switch {
	case m.lease == 0: // registering comes first
	case !m.gateOpen:
		m.next = now.Mono.Add(m.cfg.RetryAfter)
	case !m.mayReserve(now):
		m.next = now.Mono.Add(m.cfg.RetryAfter)
		m.listed, m.reload = false, min(m.reload, now.Mono.Add(slowRetry))
	case m.try != nil:
		// Nothing is known but that an attempt was not applied yet: the same
		// record is asked for again, so that no second sid can come to us.
		m.acquire(now, m.try.sid, m.try.seen)
	case !m.listed:
		m.reload = min(m.reload, now.Mono.Add(maxJitter))
	default:
		sid, ok := m.choose(now)
		if m.standby = !ok; ok {
			m.acquire(now, sid, m.sids[sid])
		} else {
			if m.stale { // while we registered, or while the list was on its way
				m.reload = min(m.reload, now.Mono.Add(m.cfg.Jitter(maxJitter)))
			}
			m.problem = m.noneFree()
		}
	}
}

func (m *Machine) acquire(now clock.Reading, sid flake.SID, seen SIDRecords) {
	op := Acquire
	if seen.Holder.Exists() {
		op = Reclaim
	}
	old := seen.Window.Value
	base := max(old.Ceil, m.era.Value.Floor, now.Wall)
	m.commit(now, op, sid, seen, Window{
		Term:     old.Term + 1,
		Instance: m.cfg.Registration.Instance,
		Node:     m.cfg.Registration.Node,
		Base:     base,
		// Not base+W: a node that takes a sid early must not push its ceiling
		// further out each time.
		Ceil:  max(base, now.Wall+clock.MillisOf(m.cfg.Window)),
		State: Active,
	})
}

func (m *Machine) commit(now clock.Reading, op Op, sid flake.SID, seen SIDRecords, w Window) {
	w.Era, w.Nonce, w.Wall = m.era.Value.Number, m.cfg.Nonce(), now.Wall
	if m.try != nil && m.try.sid != sid {
		panic(fmt.Sprintf("lease: a write of sid %d while one of sid %d is not settled", sid, m.try.sid))
	}
	if m.try == nil {
		m.try = &attempt{sid: sid, seen: seen, nonces: map[string]Op{}}
	}
	m.try.nonces[w.Nonce], m.try.lease = op, m.lease
	m.busy = true
	m.do(Commit{Txn: Txn{
		Op: op, SID: sid, Seen: seen, Config: m.config, Era: m.era, Lease: m.lease,
		Holder: Holder{Instance: m.cfg.Registration.Instance, Node: m.cfg.Registration.Node},
		Window: w,
	}})
}

// holderSlack is for the age of a live holder's record: it is rewritten every
// few seconds while etcd answers, and after an outage within a second.
const holderSlack = 2 * time.Minute

// mayReserve is the poison guard: a clock far ahead of every live holder's must
// never write a ceiling, for a ceiling cannot be taken back. Holders that are
// gone are no witness, or a space would not survive a night switched off.
//
// It guards acquiring alone. A process that holds a sid was let in by this
// guard, and its clock has only run on since; were extending guarded too, an
// etcd outage longer than the slack would leave every record too old for
// anybody to write the next.
func (m *Machine) mayReserve(now clock.Reading) bool {
	limit := m.holderWall + clock.MillisOf(now.Mono.Sub(m.seenAt)+holderSlack+m.cfg.MaxSkew)
	if m.confirmed || m.holderWall == 0 || now.Wall <= limit {
		m.over(AlarmClock, -1)
		return true
	}
	m.problem = fmt.Sprintf("this clock reads %s, at least %v ahead of every live holder's: set it right",
		now.Wall.Time().Format(time.RFC3339), (now.Wall - limit).Duration().Round(time.Second))
	m.alarmOnce(AlarmClock, -1, fmt.Sprintf("this clock is over %v ahead of every live holder's; no ceiling is written",
		holderSlack+m.cfg.MaxSkew))
	return false
}

// farAhead is how far beyond the clock a sound ceiling can lie: W by the rules,
// the writer's skew and ours, and the lead of the last ID.
func (m *Machine) farAhead() clock.Millis {
	return clock.MillisOf(m.cfg.Window + 2*m.cfg.MaxSkew + m.cfg.MaxLead)
}

// soundBy returns the latest ceiling that a sound clock can have written.
func (m *Machine) soundBy(now clock.Reading) clock.Millis {
	return max(now.Wall, m.era.Value.Floor) + m.farAhead()
}

// choose picks the sid to acquire. In order: the one this node's name had last
// and the free one with the lowest ceiling, if past; a predecessor of our name,
// once, when no free sid can be used now; then ours or the lowest, though its
// ceiling lies ahead: it is taken now and issues when the clock gets there. All of
// it within the sids that this node may take.
func (m *Machine) choose(now clock.Reading) (flake.SID, bool) {
	best, found, bestRank := flake.SID(0), false, 0
	reclaim, mayReclaim := flake.SID(0), false
	within := m.cfg.SIDRange.In(m.cfg.Format.Layout)
	for sid := within.From; sid < within.To; sid++ {
		s := m.sids[sid] // absent: never used
		if m.bad[sid] != "" {
			continue
		}
		own := s.Window.Exists() && s.Window.Value.Node == m.cfg.Registration.Node
		if s.Holder.Exists() {
			if !m.everHeld && !mayReclaim && s.Holder.Err == nil &&
				s.Holder.Value.Node == m.cfg.Registration.Node &&
				s.Holder.Value.Instance != m.cfg.Registration.Instance &&
				s.Window.Value.Ceil <= m.soundBy(now) { // or the predecessor's wrong clock would be ours to wait for
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
			rank == bestRank && s.Window.Value.Ceil < m.sids[best].Window.Value.Ceil {
			best, found, bestRank = sid, true, rank
		}
	}
	if mayReclaim && bestRank < 2 {
		return reclaim, true
	}
	if m.beaten && bestRank == 2 {
		return m.anyPast(now, within), true
	}
	return best, found
}

// anyPast picks one of the free sids whose ceilings have passed, of which there is
// one at least. Nodes that start together see one list and would all ask for the
// same sid, one of them with success; after a defeat each asks for another.
func (m *Machine) anyPast(now clock.Reading, within SIDRange) flake.SID {
	var past []flake.SID
	for sid := within.From; sid < within.To; sid++ {
		if s := m.sids[sid]; m.bad[sid] == "" && !s.Holder.Exists() && s.Window.Value.Ceil <= now.Wall {
			past = append(past, sid)
		}
	}
	return past[m.cfg.Jitter(time.Duration(len(past)))] // a number below that many
}
