package protocol

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/catalog"
	"github.com/flakelease/allocator/internal/lease/guard"
	"github.com/flakelease/allocator/internal/lease/history"
	"github.com/flakelease/allocator/internal/lease/marker"
	"github.com/flakelease/allocator/internal/lease/session"
)

// within returns the sids of a space that the node may take.
func within(c lease.Config, s lease.Space) (lease.SIDRange, error) {
	r, err := s.SIDsOf(c.SIDRange)
	if err != nil {
		return r, err
	}
	return s.Workers(c.Workers, r)
}

// Machine is one process's side of the lease and window protocol.
//
// It keeps these rules (docs/DESIGN.md proves I1 from them):
//
//  1. A ceiling is passed on (Begin, Raise) only from a record that a response
//     of the store showed to be written by this process.
//  2. Every write compares the record it replaces. While an attempt's outcome is
//     unknown the machine reads back before anything else, and adopts the values
//     of the record, never those that were last asked for.
//  3. A sid is given back only after Sealed, with a ceiling above every ID.
//  4. Evidence that the store went back in time stops the machine until an
//     operator begins a new era.
//
// A Machine is owned by one goroutine.
type Machine struct {
	cfg lease.Config

	history history.History
	catalog catalog.Catalog
	session session.Session
	guard   guard.Guard
	marker  marker.Marker
	// within are the sids that this node may take. Until the history is known they are
	// given as if the space had no part.
	within lease.SIDRange

	// busy: the one request about records is outstanding. None is sent before next. try is
	// a write that is not settled yet.
	busy bool
	next clock.Mono
	try  *attempt

	life  life
	state state
	search
	gate lease.Gate
	output
}

// search is what this process has met while it looked for sids.
type search struct {
	everHeld bool // It has held one.
	standby  bool // There was none to choose when one was last looked for.
	beaten   bool // Another process was first when a free one was last asked for.
}

// output is what a machine says.
type output struct {
	problem string               // What the node waits for, for people.
	alarms  map[condition]string // The conditions that were raised and are not over.
	actions []lease.Action       // What the step under way has asked for.
}

// condition is something that lasts, and that one alarm is raised for.
type condition struct {
	kind lease.AlarmKind
	sid  int
}

// New returns a machine that has read nothing. It acts from the first Tick on.
func New(cfg lease.Config) *Machine {
	layout := lease.Space{Layout: cfg.Format.Layout}
	sids, err := within(cfg, layout)
	if err != nil { // The space may have other sids than its layout's first.
		sids = cmp.Or(cfg.SIDRange, layout.SIDs())
	}
	return &Machine{
		cfg:     cfg,
		session: session.New(cfg),
		history: history.New(cfg.Format),
		catalog: catalog.New(cfg),
		guard:   guard.New(cfg.MaxSkew),
		marker:  marker.New(cfg),
		within:  sids,
		state:   seeking{},
		gate:    lease.Gate{Open: !cfg.Gated},
		output:  output{alarms: map[condition]string{}},
	}
}

// Step advances m by one event and returns the actions to carry out.
//
// The contract with the shell:
//
//   - now was read before anything that the returned actions send, and does not
//     go back from step to step.
//   - Actions are carried out in order. Begin, Raise and Seal are finished before
//     the next action; requests to the store are only started.
//   - Each request is answered by exactly one event, with Err set if its outcome
//     is unknown: it may have been applied, or may still be. Answers are passed
//     on in the order of the requests. At most one request about records and one
//     about the lease are outstanding.
//   - A ceiling is durable before it is in a Begin or a Raise. The shell lets the
//     generator use no other.
//   - After Seal comes Sealed, with a ceiling above everything that was issued.
//   - Nothing follows Done or Fail: events after them are ignored.
func (m *Machine) Step(now clock.Reading, ev lease.Event) []lease.Action {
	m.actions = nil
	if m.life == stopped {
		return nil
	}
	m.take(now, ev)
	m.catalog.CatchUp(now.Mono, m.need())
	m.plan(now)
	return m.actions
}

// take notes what happened.
func (m *Machine) take(now clock.Reading, ev lease.Event) {
	switch ev := ev.(type) {
	case lease.Tick:
	case lease.Loaded:
		m.busy = false
		m.onLoaded(now, ev)
	case lease.Committed:
		m.busy = false
		m.onCommitted(now, ev)
	case lease.Marked:
		if m.busy = false; ev.Err != nil {
			m.unknownOutcome(now, ev.Err)
		} else {
			m.marker.Written(now, ev)
		}
	case lease.Registered, lease.KeptAlive, lease.Revoked:
		if err := m.session.Answered(now.Mono, ev, m.own() != nil); errors.Is(err, lease.ErrLeaseGone) {
			m.leaseGone(now)
		} else if err != nil {
			m.problem = err.Error()
		}
	case lease.Sealed:
		if h := m.hold(); h != nil && h.service == sealing {
			h.service, h.issued = sealed, ev.Ceil
		}
	case lease.Changed:
		m.catalog.Hint(now.Mono, m.need())
	case lease.Watched:
		ev.Changes = m.marker.Watched(now, ev.Changes, m.history.Known())
		m.catalog.Watched(now.Mono, ev, m.need())
	case lease.Gate:
		if ev.Open && !m.gate.Open {
			m.next = min(m.next, now.Mono)
			if m.hold() == nil { // What was listed while it was shut may be old.
				m.catalog.Replace(now.Mono)
			}
		}
		m.gate = ev
		m.guard.Overrule(now, ev.Confirmed)
	case lease.GiveUp:
		if h := m.hold(); h != nil {
			h.leave()
			m.next = min(m.next, now.Mono)
		}
	case lease.ReportedRevision:
		if m.history.Reported(ev) {
			m.catalog.AskBy(now.Mono)
		}
	case lease.Stop:
		m.life = stopping
		if h := m.hold(); h != nil {
			h.leave()
		}
		m.next = now.Mono // It gives back at once, even during the pause before a retry.
	default:
		panic(fmt.Sprintf("lease: unknown event %T", ev))
	}
}

// need returns what the catalog is used for now.
//
// A node that is about to acquire needs no new list: the answer to its write
// shows a change, and it lists again if there is nothing to choose. A node that
// the gate keeps from acquiring lists again, to know whose clocks to compare, and so
// does one whose clock is too far ahead: an operator may have accepted the time. A
// change of a holder's own sid is in the answer to its next extension.
func (m *Machine) need() (n catalog.Need) {
	switch {
	case m.standby, !m.gate.Open, m.alarms[condition{lease.AlarmClock, -1}] != "":
		n.Haste = catalog.Soon
	case m.hold() != nil:
		n.Haste = catalog.Spread
	}
	if h := m.own(); h != nil {
		n.Keep, n.SID = true, h.sid
	}
	return n
}

// leaseGone notes that our lease has ended, and every key on it.
func (m *Machine) leaseGone(now clock.Reading) {
	m.session.Gone(now.Mono)
	if h := m.own(); h != nil {
		h.record = oursNoKey
	}
}

func (o *output) do(a lease.Action) { o.actions = append(o.actions, a) }

// alarm raises an alarm for something that happened.
func (o *output) alarm(kind lease.AlarmKind, sid int, format string, args ...any) {
	o.do(lease.Alarm{Kind: kind, SID: sid, Message: fmt.Sprintf(format, args...)})
}

// alarmOnce raises an alarm for a condition, and again only when its text
// changes or when the condition was over in between.
func (o *output) alarmOnce(kind lease.AlarmKind, sid int, text string) {
	c := condition{kind, sid}
	if o.alarms[c] == text {
		return
	}
	o.alarms[c] = text
	o.do(lease.Alarm{Kind: kind, SID: sid, Message: text})
}

// over notes the end of a condition.
func (o *output) over(kind lease.AlarmKind, sid int) { delete(o.alarms, condition{kind, sid}) }

// Wake returns when the machine next wants a Tick, if nothing happens before.
func (m *Machine) Wake() clock.Mono {
	wake := m.catalog.Evidence().At.Mono.Add(time.Hour)
	if m.life == running {
		wake = min(wake, m.catalog.WatchDue())
	}
	if !m.session.Busy() && m.life == running {
		wake = min(wake, m.session.Wake())
	}
	if m.busy || m.life != running && m.session.Busy() {
		return wake
	}
	at := m.catalog.Due(m.need())
	h := m.hold()
	unsettled := m.try != nil && (m.own() != nil || m.try.unknown || m.session.ID() != 0)
	switch {
	case m.isRewound():
		at = m.catalog.Retry()
	case m.life != running, h != nil && h.service != serving, unsettled:
		at = m.next
	case m.own() != nil:
		at = min(at, h.extendAt, m.markDue())
	}
	return min(wake, max(at, m.next))
}

// Status returns a copy of what m knows.
func (m *Machine) Status() lease.Status {
	sum, seen := m.catalog.Summary(m.within), m.evidence()
	mark, markedAt := m.marker.Highest()
	s := lease.Status{
		Phase:       m.phase(),
		EverHeld:    m.everHeld,
		Lease:       m.session.ID(),
		LeaseUntil:  m.session.Until(),
		Space:       m.space(),
		Era:         m.era(),
		Cluster:     m.history.Cluster(),
		Revision:    m.history.Revision(),
		ReadAt:      m.history.ReadAt(),
		SIDs:        m.within,
		Pool:        sum.Pool,
		Workers:     m.cfg.Workers,
		WorkerPool:  sum.Workers,
		Quarantined: sum.Quarantined,
		Nodes:       m.catalog.Nodes(),
		Holders:     sum.Holders,
		Lapsed:      sum.Lapsed,
		Listed:      m.catalog.Listed(),
		Idle:        m.hold() == nil && m.try == nil,
		GateOpen:    m.gate.Open,
		Ceiling:     sum.Ceiling,
		Accepted:    seen.Allowed(),
		Mark:        mark,
		MarkedAt:    markedAt,
		Recorded:    m.guard.Recorded(seen.At.Elapsed()),
		RecordedAt:  seen.At.Mono,
		Problem:     m.problem,
	}
	switch st := m.state.(type) {
	case *hold:
		if st.service != sealed {
			s.Held, s.Ceiling, s.Grant = true, max(s.Ceiling, st.ceil), st.grant()
		}
	case rewound:
		s.Problem = st.loss.Why
	}
	return s
}

// Limit returns up to which time ceilings may be written now, which is the reading of the latest Step.
func (m *Machine) Limit(now clock.Reading) lease.Limit { return m.guard.Limit(now, m.evidence()) }

func (m *Machine) phase() lease.Phase {
	switch m.life {
	case stopped:
		return lease.Stopped
	case stopping:
		return lease.Releasing
	}
	switch st := m.state.(type) {
	case rewound:
		return lease.Rewound
	case *hold:
		if st.record == lost {
			return lease.Lost
		}
		return lease.Holding
	}
	switch {
	case m.history.Revision() == 0:
		return lease.Connecting
	case !m.history.Known():
		return lease.Uninitialized
	case m.standby:
		return lease.Standby
	default:
		return lease.Seeking
	}
}
