package protocol

import (
	"fmt"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/history"
)

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
	if m.history.Read(now.Mono, v) {
		m.marker.Read(now, v.Mark)
		m.catalog.Shown(now.Mono, v.Revision)
	}
	if m.history.Known() && !known {
		var err error
		if m.within, err = within(m.cfg, m.space()); err != nil {
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

// quarantine notes that a sid is not used because its records cannot be trusted.
func (m *Machine) quarantine(sid flake.SID, why string) {
	m.catalog.Distrust(sid, why)
	m.distrusted(sid, why)
}

func (m *Machine) distrusted(sid flake.SID, why string) {
	m.alarmOnce(lease.AlarmQuarantined, int(sid), fmt.Sprintf("sid %d is not used: %s", sid, why))
}
