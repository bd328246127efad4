package lease

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// Config is what a machine needs to know. All durations are required; package
// config holds the defaults and the reasons for them.
type Config struct {
	Registration Registration // instance, node name and addresses of this process
	Format       flake.Format // the layout and epoch this node was configured for
	SIDRange     SIDRange     // that this node may take; zero: all

	Window         time.Duration // W: how far ahead of the clock a ceiling is reserved
	ExtendEvery    time.Duration // how often a ceiling is raised
	TTL            time.Duration // of the lease
	KeepAliveEvery time.Duration
	ReloadEvery    time.Duration // how often the whole space is listed again
	RetryAfter     time.Duration // pause after a store call failed
	MaxSkew        time.Duration // see the poison guard, plan.go
	MaxLead        time.Duration // how far IDs may run ahead of the clock

	// Gated says that somebody watches the clocks: no ceiling is written before
	// the first Gate event opens the gate.
	Gated bool

	Nonce  func() string                          // unique at every call, across all processes
	Jitter func(most time.Duration) time.Duration // random in [0, most)
}

// Machine is one process's side of the lease and window protocol.
//
// It keeps these rules (docs/DESIGN.md proves I1 from them):
//
//  1. A ceiling is passed on (Begin, Raise) only from a record that a response
//     of the store showed to be written by this process.
//  2. Every write names the record it replaces. While an attempt's outcome is
//     unknown the machine reads back before anything else, and adopts what the
//     record says, never what was last asked for.
//  3. A sid is given back only after Sealed, with a ceiling above every ID.
//  4. Evidence that the store went back in time stops the machine until an
//     operator begins a new era.
//
// A Machine is owned by one goroutine.
type Machine struct {
	cfg Config

	// What the store has said.
	config     Entry[Space]
	era        Entry[Era]
	cluster    uint64
	revision   int64                    // highest ever seen; answers arrive in order, so it may never fall
	sids       map[flake.SID]SIDRecords // as last listed
	listed     bool                     // sids is fresh enough to choose from
	standby    bool                     // there was nothing to choose, when last listed
	stale      bool                     // something has changed since the latest list was asked for
	holderWall clock.Millis             // latest wall time among live holders' records, when listed
	seenAt     clock.Mono               // when that was

	// Requests.
	busy      bool       // one about records is outstanding
	next      clock.Mono // no request about records before this
	reload    clock.Mono // list again at this time
	leaseBusy bool
	leaseNext clock.Mono
	leaseSent clock.Mono

	lease    LeaseID
	until    clock.Mono
	try      *attempt // a write not settled yet
	tenure   *tenure
	everHeld bool
	beaten   bool // another came first, when a free sid was last asked for

	bad            map[flake.SID]string
	gateOpen       bool
	confirmed      bool             // a majority confirms this clock
	reported       ReportedRevision // the latest point in history that peers say they have read
	reportedAtLoad ReportedRevision // that, when the outstanding request was sent
	nodes          []Registration
	dropping       bool // an era passed: give the sid back and start over
	stopping       bool
	stopped        bool
	rewound        string // why history is not believed; "" is fine
	lastEra        int64  // while rewound: only an era after this one clears it
	problem        string
	outcome        []Action // actions of the step under way
	told           map[condition]string
}

// condition is something that goes on, and is told of once.
type condition struct {
	kind AlarmKind
	sid  int
}

// attempt is a write against one version of a sid's records. Several writes of
// it may be on their way at once, since one whose reply was lost can still be
// applied: whichever is first changes the record, and no other can follow.
type attempt struct {
	sid     flake.SID
	seen    SIDRecords
	nonces  map[string]Op
	lease   LeaseID // that the latest write was to be put on
	unknown bool    // read back before doing anything else
}

// tenure is the machine's record of a hold; the generator's is gen.Tenure.
type tenure struct {
	sid       flake.SID
	term      int64
	base      clock.Millis
	ceil      clock.Millis // confirmed
	seen      SIDRecords   // our records as last confirmed
	extendAt  clock.Mono
	unheld    bool // our holder key is gone: rehold
	lost      bool // the record is another's; the confirmed window still serves
	sealAsked bool
	sealed    bool
	issued    clock.Millis // exclusive, once sealed
}

// NewMachine returns a machine that knows nothing. It acts from the first Tick on.
func NewMachine(cfg Config) *Machine {
	return &Machine{
		cfg:      cfg,
		bad:      map[flake.SID]string{},
		gateOpen: !cfg.Gated,
		told:     map[condition]string{},
	}
}

// Step advances m by one event at time now, read before anything that the
// actions send, and returns the actions to carry out in order.
func (m *Machine) Step(now clock.Reading, ev Event) []Action {
	m.outcome = nil
	if m.stopped {
		return nil
	}
	switch ev := ev.(type) {
	case Tick:
	case Loaded:
		m.busy = false
		m.onLoaded(now, ev)
	case Committed:
		m.busy = false
		m.onCommitted(now, ev)
	case Registered:
		m.leaseBusy = false
		if ev.Err != nil {
			m.problem = fmt.Sprintf("registering in etcd: %v", ev.Err)
			m.leaseNext = now.Mono.Add(m.cfg.RetryAfter)
			break
		}
		m.lease = ev.Lease
		m.renewed(now)
	case KeptAlive:
		m.leaseBusy = false
		switch {
		case ev.Err == nil:
			m.renewed(now)
		case errors.Is(ev.Err, ErrLeaseGone):
			m.leaseGone(now)
		default:
			m.leaseNext = now.Mono.Add(m.cfg.RetryAfter)
		}
	case Revoked:
		m.leaseBusy = false
		m.lease = 0 // a lease that could not be revoked runs out by itself
	case Sealed:
		if t := m.tenure; t != nil && t.sealAsked && !t.sealed {
			t.sealed, t.issued = true, ev.Ceil
		}
	case Changed:
		// Who is about to acquire anyway learns from the write itself, or lists anew
		// if there is nothing to choose. Who is kept from it by clocks has to know
		// whose clocks there are.
		m.stale = true
		switch {
		case m.standby, !m.gateOpen:
			m.reload = min(m.reload, now.Mono.Add(m.cfg.Jitter(maxJitter)))
		case m.tenure != nil:
			// All holders hear of every change, and each list has all of them: the
			// more there are, the longer they take. What concerns our own sid the
			// next extension shows.
			spread := maxJitter / 8 * time.Duration(m.cfg.Format.Layout.Holders())
			m.reload = min(m.reload, now.Mono.Add(m.cfg.Jitter(spread)))
		}
	case Gate:
		if ev.Open && !m.gateOpen {
			m.next = min(m.next, now.Mono)
			if m.tenure == nil { // what was listed while it was shut may be old
				m.listed, m.reload = false, now.Mono
			}
		}
		m.gateOpen, m.confirmed = ev.Open, ev.Confirmed
	case GiveUp:
		if m.tenure != nil {
			m.dropping = true
			m.next = min(m.next, now.Mono)
		}
	case ReportedRevision:
		if ev.after(m.reported) {
			m.reported = ev
			m.reload = min(m.reload, now.Mono)
		}
	case Stop:
		m.stopping = true
		m.next = now.Mono // give back at once, even where a retry was being waited for
	default:
		panic(fmt.Sprintf("lease: unknown event %T", ev))
	}
	m.plan(now)
	return m.outcome
}

// maxJitter spreads the nodes that wait for the same key.
const maxJitter = 500 * time.Millisecond

// renewed notes that the lease was granted or renewed. Its end is counted from
// when the request was sent, since the store may have acted at any time since.
func (m *Machine) renewed(now clock.Reading) {
	m.until = m.leaseSent.Add(m.cfg.TTL)
	m.leaseNext = max(now.Mono, m.leaseSent.Add(m.cfg.KeepAliveEvery))
}

func (m *Machine) do(a Action) { m.outcome = append(m.outcome, a) }

// alarm tells of an event.
func (m *Machine) alarm(kind AlarmKind, sid int, format string, args ...any) {
	m.do(Alarm{Kind: kind, SID: sid, Message: fmt.Sprintf(format, args...)})
}

// alarmOnce tells of a condition, and again only when its text changes or when
// it was over in between; see over.
func (m *Machine) alarmOnce(kind AlarmKind, sid int, text string) {
	c := condition{kind, sid}
	if m.told[c] == text {
		return
	}
	m.told[c] = text
	m.do(Alarm{Kind: kind, SID: sid, Message: text})
}

// over notes the end of a condition.
func (m *Machine) over(kind AlarmKind, sid int) { delete(m.told, condition{kind, sid}) }

// Wake returns when the machine next wants a Tick, if nothing happens before.
func (m *Machine) Wake() clock.Mono {
	wake := m.seenAt.Add(time.Hour)
	if !m.leaseBusy && !m.stopping {
		wake = min(wake, m.leaseNext)
	}
	if !m.busy && !(m.stopping && m.leaseBusy) {
		at := m.reload
		t := m.tenure
		switch held := t != nil && !t.lost; {
		case m.rewound != "", m.stopping, m.dropping && t != nil, m.try != nil && (held || m.try.unknown || m.lease != 0):
			at = m.next
		case held:
			at = min(at, t.extendAt)
		}
		wake = min(wake, max(at, m.next))
	}
	return wake
}

// Status returns a copy of what m knows.
func (m *Machine) Status() Status {
	s := Status{
		Phase:       m.phase(),
		EverHeld:    m.everHeld,
		Lease:       m.lease,
		LeaseUntil:  m.until,
		Space:       m.config.Value,
		Era:         m.era.Value,
		Cluster:     m.cluster,
		Revision:    m.revision,
		SIDRange:    m.cfg.SIDRange,
		Quarantined: maps.Clone(m.bad),
		Nodes:       m.nodes,
		Listed:      m.sids != nil,
		Idle:        m.tenure == nil && m.try == nil,
		GateOpen:    m.gateOpen,
		Problem:     m.problem,
	}
	if t := m.tenure; t != nil && !t.sealed {
		s.Held, s.Ceiling = true, t.ceil
		s.Grant = Grant{SID: t.sid, Term: t.term, Base: t.base, Ceil: t.ceil}
	}
	s.PoolSize, s.PoolHeld, s.PoolBad = m.pool()
	for _, sid := range m.sids {
		s.Ceiling = max(s.Ceiling, sid.Window.Value.Ceil)
	}
	if m.rewound != "" {
		s.Problem = m.rewound
	}
	return s
}

func (m *Machine) phase() Phase {
	switch t := m.tenure; {
	case m.stopped:
		return Stopped
	case m.stopping:
		return Releasing
	case m.rewound != "":
		return Rewound
	case t != nil && t.lost:
		return Lost
	case t != nil:
		return Holding
	case m.revision == 0:
		return Connecting
	case !m.config.Exists():
		return Uninitialized
	case m.standby:
		return Standby
	default:
		return Seeking
	}
}
