package protocol

import (
	"fmt"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

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
