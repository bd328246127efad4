package lease

import (
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/text"
)

// Event is something that happened. Events are passed to [Machine.Step].
type Event interface{ event() }

// The events. Loaded, Committed, Marked, Registered, KeptAlive and Revoked answer the
// action of that name, exactly once each; Err set means that the outcome is
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
	// Marked answers PutMark, with the record as it is then.
	Marked struct {
		Applied bool
		Mark    Entry[Mark]
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
		// Agreed is Confirmed, or set for a node that is registered alone: its clock is the
		// only one.
		Agreed bool
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
func (Marked) event()           {}
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

// Watched is what a watch of the keys beside windows reports. With Opened, the watch was
// opened at Revision, and changes before that may have been missed. Otherwise Changes are
// all since the report before, and the watch has reached Revision.
type Watched struct {
	Opened   bool
	Revision int64
	// Changes are in the order of revisions, and each revision is whole.
	Changes []Change
}

// Change is a key that was put or deleted. A ChangedHolder has SID and Holder, a
// ChangedNode Instance and Node, and a ChangedMark Mark. A value that is zero was deleted.
type Change struct {
	Revision int64
	Key      ChangedKey
	SID      flake.SID
	Holder   Entry[Holder]
	Instance Instance
	Node     Registration
	Mark     Entry[Mark]
}

// ChangedKey is a kind of key.
type ChangedKey uint8

// The keys. A change of anything that is not kept has the list read again.
const (
	ChangedOther ChangedKey = iota
	ChangedHolder
	ChangedNode
	ChangedMark
)

// Action is something the shell must do, in the order returned by Step.
type Action interface{ action() }

// The actions. Requests to the store (Load, Read, Commit, PutMark, Register, KeepAlive,
// Revoke) are started and answered later by an event; the machine has at most
// one request about records and one about the lease outstanding. Begin, Lift, Raise
// and Seal act on the generator at once, before anything after them.
type (
	// Load asks for a view of the whole space.
	Load struct{}
	// Read asks for a view of one sid, to learn what became of a write.
	Read struct{ SID flake.SID }
	// Commit asks for a guarded write.
	Commit struct{ Txn Txn }
	// PutMark asks for a guarded write of the mark.
	PutMark struct{ Txn MarkTxn }
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
	// Lift has the tenure issue nothing below Floor from now on.
	Lift struct{ Floor clock.Millis }
	// Raise lets the tenure issue up to a higher, confirmed ceiling.
	Raise struct{ Ceil clock.Millis }
	// Seal ends the tenure for good and asks for Sealed.
	Seal struct{}
	// Alarm reports to an operator something that should not have happened.
	Alarm struct {
		Kind    AlarmKind
		SID     int // It is -1 where the alarm is not about a sid.
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
func (PutMark) action()   {}
func (Register) action()  {}
func (KeepAlive) action() {}
func (Revoke) action()    {}
func (Begin) action()     {}
func (Lift) action()      {}
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
	Base, Ceil clock.Millis
}

// String returns the grant as transcripts and logs show it.
func (g Grant) String() string {
	return fmt.Sprintf("sid=%d term=%d window=[%d,%d)", g.SID, g.Term, g.Base, g.Ceil)
}

// AlarmKind is a closed set, so that it can be a metric's label.
type AlarmKind string

// The alarms.
const (
	// AlarmRewound: the store forgot something that it had confirmed.
	AlarmRewound AlarmKind = "history_rewound"
	// AlarmLost: another process took our sid.
	AlarmLost AlarmKind = "sid_lost"
	// AlarmOwnName: another process with our node's name took our sid.
	AlarmOwnName AlarmKind = "sid_lost_to_name"
	// AlarmQuarantined: the records of a sid cannot be trusted.
	AlarmQuarantined AlarmKind = "sid_quarantined"
	// AlarmClock: our clock is further ahead than is followed.
	AlarmClock AlarmKind = "clock_ahead"
	// AlarmEra: an operator began a new era.
	AlarmEra AlarmKind = "era_changed"
)

// Phase is what a node does about its sid.
type Phase uint8

// The phases.
//
//	Connecting ──▶ Uninitialized ──▶ Seeking ──▶ Holding ──▶ Releasing ──▶ Stopped
//	                                  ▲   ▼         │
//	                                Standby ◀── Lost┘        Rewound: until a new era
const (
	Connecting    Phase = iota // The store has not answered yet.
	Uninitialized              // The space has no config: an operator must run init.
	Seeking                    // The node acquires a sid, or is about to.
	Standby                    // Every sid is taken or unusable.
	Holding                    // The node issues and extends.
	Lost                       // Another node has the sid; this one issues up to the confirmed ceiling.
	Rewound                    // History went back: nothing is issued.
	Releasing                  // The node stops.
	Stopped
)

// String returns the phase's name in lower case.
func (p Phase) String() string {
	return text.Name(p, "connecting", "uninitialized", "seeking", "standby", "holding", "lost", "rewound", "releasing",
		"stopped")
}

// Lapsed is a node that had gossip, held a sid, and neither renewed its lease nor gave
// the sid back: it crashed, or is cut off from the store. Wall is what its clock read at
// its last write, which has revision Rev, and Started when the process began, by the same clock;
// 0: not known.
type Lapsed struct {
	Node     string
	Instance Instance
	Started  clock.Millis
	Wall     clock.Millis
	Rev      int64
}

// Pool counts the sids of a range by what keeps them from being acquired. Only those that
// are Held have a holder.
type Pool struct{ Size, Held, Quarantined, Reserved int }

// Free returns how many can be acquired, now or once the clock has reached their ceilings.
func (p Pool) Free() int { return max(p.Size-p.Held-p.Quarantined-p.Reserved, 0) }

// Held is a sid with a holder, which is a node or a worker.
type Held struct {
	SID      flake.SID
	Instance Instance
	Node     string
	Worker   bool
}

// Status is a copy of what the machine knows, for people and for refusals. Slices and
// maps in it are shared: do not write to them.
type Status struct {
	Phase Phase
	// Problem is what the node waits for, for people. It is empty if it waits for nothing.
	Problem string

	// Held: the generator issues from Grant, or may until it is sealed. EverHeld: this
	// process has had a window. Idle: it holds no sid, and no write is in flight that could
	// acquire one.
	Held, EverHeld, Idle bool
	// Grant has the first base and the confirmed ceiling.
	Grant Grant
	Lease LeaseID
	// LeaseUntil is when the lease ends if it is never renewed, counted from
	// when the last renewal was sent. Nothing depends on it.
	LeaseUntil clock.Mono
	// GateOpen: ceilings may be written.
	GateOpen bool

	// What the store showed last. Revision was read at ReadAt.
	Space    Space
	Era      Era
	Cluster  uint64
	Revision int64
	ReadAt   clock.Mono

	// SIDs are those that this node may take. Until Space is known they are given as if
	// the space had no part.
	SIDs SIDRange
	// Workers are the sids that are for workers alone; the zero value is none.
	Workers SIDRange

	// Listed: the space was listed, the last time at RecordedAt. All below is of that list,
	// and of what the node has learned since, but the sizes: Pool counts SIDs, and WorkerPool
	// Workers. Quarantined has the reason of each such sid.
	Listed           bool
	RecordedAt       clock.Mono
	Pool, WorkerPool Pool
	Quarantined      map[flake.SID]string
	// Nodes are registered. Holders have a sid, and Lapsed left theirs without giving it
	// back; both are in the order of sids.
	Nodes   []Registration
	Holders []Held
	Lapsed  []Lapsed
	// Ceiling is the highest of any window; 0 is none.
	Ceiling clock.Millis
	// Accepted is up to which time an operator accepted clocks; 0 is none.
	Accepted clock.Millis
	// Mark is the highest watermark that was read, at MarkedAt; it is zero before the first one.
	Mark     Mark
	MarkedAt clock.Mono
	// Recorded is up to which time clocks may be followed at RecordedAt, by the records that
	// there were when the process started; 0 is none.
	Recorded clock.Millis
}

// Limit is up to which wall time this process may write ceilings, for itself and for
// workers: a copy of what the poison guard knew at monotonic time At. The zero value
// permits nothing.
type Limit struct {
	At              clock.Mono
	Extend, Acquire clock.Millis
}

// Permits reports whether a ceiling may be written at a later reading of the clock.
func (l Limit) Permits(now clock.Reading, acquiring bool) bool {
	until := l.Extend
	if acquiring {
		until = l.Acquire
	}
	// Not until + elapsed: until may be the end of time.
	return now.Wall-clock.MillisOf(now.Mono.Sub(l.At)) <= until
}
