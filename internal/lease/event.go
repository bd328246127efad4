package lease

import (
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// Event is something that happened. Events are passed to [Machine.Step].
type Event interface{ event() }

// The events. Loaded, Committed, Registered, KeptAlive and Revoked answer the
// action of the same name, exactly once each; Err set means that the outcome is
// unknown, unless it is ErrLeaseGone.
type (
	// Tick lets time pass. The shell sends one no later than Machine.Wake returns.
	Tick struct{}
	// Loaded answers Load and Read.
	Loaded struct {
		View View
		Err  error
	}
	// Committed answers Commit.
	Committed struct {
		Applied bool
		View    View
		Err     error
	}
	// Registered answers Register.
	Registered struct {
		Lease LeaseID
		Err   error
	}
	// KeptAlive answers KeepAlive.
	KeptAlive struct{ Err error }
	// Revoked answers Revoke.
	Revoked struct{ Err error }
	// Sealed answers Seal: everything the tenure issued lies below Ceil, and it
	// issues nothing any more.
	Sealed struct{ Ceil clock.Millis }
	// Changed is a hint that something changed in the store.
	Changed struct{}
	// Gate reports whether clocks allow this node to write ceilings.
	Gate struct {
		Open bool
		// Confirmed is set while a majority of the cluster confirms this clock.
		// That is better evidence than the records in the store.
		Confirmed bool
	}
	// GiveUp asks for the sid to be given back while the node keeps running, so
	// that another node can take it. The next one is acquired when the gate is open.
	GiveUp struct{}
	// ReportedRevision is the latest point in history that a majority of peers
	// report to have read from the store. It counts as evidence only if a read
	// begun after the report shows an earlier point. A later era is later;
	// revisions compare within one era, since recovery from a backup begins a
	// new one.
	ReportedRevision struct {
		Era      int64
		Revision int64
	}
	// Stop asks for the sid to be given back and the lease to be revoked.
	Stop struct{}
)

func (Tick) event()             {}
func (Loaded) event()           {}
func (Committed) event()        {}
func (Registered) event()       {}
func (KeptAlive) event()        {}
func (Revoked) event()          {}
func (Sealed) event()           {}
func (Changed) event()          {}
func (Watched) event()          {}
func (Gate) event()             {}
func (GiveUp) event()           {}
func (ReportedRevision) event() {}
func (Stop) event()             {}

// After reports whether r is a later point in history than o.
func (r ReportedRevision) After(o ReportedRevision) bool {
	return r.Era > o.Era || r.Era == o.Era && r.Revision > o.Revision
}

// Watched is what a watch of the keys beside windows reports. Opened: the watch was
// opened at Revision, and changes before that may have been missed. Else: Changes are
// all since the report before, and the watch has reached Revision.
type Watched struct {
	Opened   bool
	Revision int64
	Changes  []Change // in the order of revisions, each revision whole
}

// Change is a key that was put or deleted.
type Change struct {
	Revision int64
	Key      ChangedKey
	SID      flake.SID     // of ChangedHolder
	Holder   Entry[Holder] // of ChangedHolder; absent: it was deleted
	Instance Instance      // of ChangedNode
	Node     Registration  // of ChangedNode; zero: it was deleted
}

// ChangedKey says what a Change is of.
type ChangedKey uint8

// The keys. A change of anything that is not kept has the list read again.
const (
	ChangedOther ChangedKey = iota
	ChangedHolder
	ChangedNode
)

// Action is something the shell must do, in the order returned by Step.
type Action interface{ action() }

// The actions. Requests to the store (Load, Read, Commit, Register, KeepAlive,
// Revoke) are started and answered later by an event; the machine has at most
// one request about records and one about the lease outstanding. Begin, Raise
// and Seal act on the generator at once, before anything after them.
type (
	// Load asks for a view of the whole space.
	Load struct{}
	// Read asks for a view of one sid, to learn what became of a write.
	Read struct{ SID flake.SID }
	// Commit asks for a guarded write.
	Commit struct{ Txn Txn }
	// Register asks for this node's registration on the lease, or if that is 0 on a
	// new lease of TTL.
	Register struct {
		Lease        LeaseID
		TTL          time.Duration
		Registration Registration
	}
	// KeepAlive asks for the lease to be renewed once.
	KeepAlive struct{ Lease LeaseID }
	// Revoke ends the lease.
	Revoke struct{ Lease LeaseID }
	// Begin starts issuing from a new tenure. A tenure still issuing is sealed first.
	Begin struct{ Grant Grant }
	// Raise lets the tenure issue up to a higher, confirmed ceiling.
	Raise struct{ Ceil clock.Millis }
	// Seal ends the tenure for good and asks for Sealed.
	Seal struct{}
	// Alarm reports to an operator something that should not have happened.
	Alarm struct {
		Kind    AlarmKind
		SID     int // -1: concerns no sid
		Message string
	}
	// Rewatch has the watch opened again: it has not reached what the store showed.
	Rewatch struct{}
	// Fail ends the node: the configuration is wrong and no retry can help.
	Fail struct{ Err error }
	// Done reports that everything was given back; nothing follows.
	Done struct{}
)

func (Load) action()      {}
func (Read) action()      {}
func (Commit) action()    {}
func (Register) action()  {}
func (KeepAlive) action() {}
func (Revoke) action()    {}
func (Begin) action()     {}
func (Raise) action()     {}
func (Seal) action()      {}
func (Alarm) action()     {}
func (Rewatch) action()   {}
func (Fail) action()      {}
func (Done) action()      {}

// Grant is a confirmed acquisition: the sid is ours for [Base, Ceil).
type Grant struct {
	SID        flake.SID
	Term       int64
	Base, Ceil clock.Millis // Unix ms
}

// String returns the grant as transcripts and logs show it.
func (g Grant) String() string {
	return fmt.Sprintf("sid=%d term=%d window=[%d,%d)", g.SID, g.Term, g.Base, g.Ceil)
}

// AlarmKind is a closed set, so that it can be a metric's label.
type AlarmKind string

// The alarms.
const (
	AlarmRewound     AlarmKind = "history_rewound"  // the store forgot something it had confirmed
	AlarmLost        AlarmKind = "sid_lost"         // another process took our sid
	AlarmOwnName     AlarmKind = "sid_lost_to_name" // … one that bears our node name
	AlarmQuarantined AlarmKind = "sid_quarantined"  // a sid's records cannot be trusted
	AlarmClock       AlarmKind = "clock_ahead"      // our clock is further ahead than is followed
	AlarmEra         AlarmKind = "era_changed"      // an operator began a new era
)

// Phase is what a node does about its sid.
type Phase uint8

// The phases.
//
//	Connecting ──▶ Uninitialized ──▶ Seeking ──▶ Holding ──▶ Releasing ──▶ Stopped
//	                                  ▲   ▼         │
//	                                Standby ◀── Lost┘        Rewound: until a new era
const (
	Connecting    Phase = iota // the store has not answered yet
	Uninitialized              // the space has no config: an operator must run init
	Seeking                    // about to acquire, or acquiring
	Standby                    // every sid is taken or unusable
	Holding                    // issuing, and extending
	Lost                       // another node has the sid; issuing up to the confirmed ceiling
	Rewound                    // history went back: nothing is issued
	Releasing                  // stopping
	Stopped
)

var phaseNames = [...]string{
	"connecting", "uninitialized", "seeking", "standby", "holding", "lost", "rewound", "releasing", "stopped",
}

// String returns the phase's name in lower case.
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return "unknown"
}

// Lapsed is a node that had gossip, held a sid, and neither renewed its lease nor gave
// the sid back: it crashed, or is cut off from the store.
type Lapsed struct {
	Node     string
	Instance Instance
	Wall     clock.Millis // its clock at its last write
	Rev      int64        // of that write
}

// Held is a sid with a holder.
type Held struct {
	SID      flake.SID
	Instance Instance
	Node     string
	Worker   bool // the holder is a worker, not a node
}

// Status is a copy of what the machine knows, for people and for refusals.
type Status struct {
	Phase    Phase
	Held     bool  // the generator issues from Grant, or may until it is sealed
	EverHeld bool  // this process has had a window
	Grant    Grant // the first base and the confirmed ceiling
	Lease    LeaseID
	// LeaseUntil is when the lease ends if it is never renewed, counted from
	// when the last renewal was sent. Nothing depends on it.
	LeaseUntil  clock.Mono
	Space       Space
	Era         Era
	Cluster     uint64
	Revision    int64
	ReadAt      clock.Mono           // when Revision was read
	SIDs        SIDRange             // that this node may take; until Space is known, as if that had no part
	PoolSize    int                  // how many these are
	PoolHeld    int                  // of these, with a holder, when last listed
	PoolBad     int                  // of these, quarantined and without a holder
	Workers     SIDRange             // sids that are for workers alone; zero: none
	WorkersHeld int                  // of these, with a holder, when last listed
	WorkersBad  int                  // of these, quarantined and without a holder
	Quarantined map[flake.SID]string // why a sid is not used
	Nodes       []Registration       // who is registered, when last listed; do not write
	Holders     []Held               // who has which sid, when last listed, in the order of sids; do not write
	Lapsed      []Lapsed             // nodes with gossip that left without giving their sid back, in the order of sids
	Listed      bool                 // the space has been listed
	Idle        bool                 // no sid held, and no write in flight that could acquire one
	GateOpen    bool                 // ceilings may be written
	Ceiling     clock.Millis         // the highest of any window, when last listed; 0: none
	Accepted    clock.Millis         // up to which time an operator accepted clocks, when last listed; 0: none
	Recorded    clock.Millis         // up to which time clocks may be followed, as records showed when the process started, at RecordedAt; 0: there was none
	RecordedAt  clock.Mono           // when the space was last listed
	Problem     string               // what the node waits for, for people; empty if nothing
}
