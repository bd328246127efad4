// Package worker is the core of worker numbers. A worker is a generator outside of the
// nodes, such as a Snowflake library, that holds a sid of the space for a hard interval
// [NotBefore, NotAfter) of Unix milliseconds: it makes no ID with its number outside.
//
// A worker is a kind of holder. Its records and its transactions are those of the lease
// protocol, with the worker as the instance, and all of its state is in them. Nodes keep
// none: any node serves any call, two may serve the same worker at once, and a node that
// dies loses no worker. So this package upholds I1 to I4 of docs/DESIGN.md for workers by
// the same rule as package lease:
//
//   - Only a response of the store is knowledge. If a record has the worker's instance and
//     term and is active, then the worker owns [Since, Ceil) of that record, whoever wrote
//     it; else it owns nothing more than it was told before.
//   - A write whose outcome is unknown is followed by a read of the sid.
//   - A refusal has written nothing, except for ETCD_UNAVAILABLE, after which the same call
//     finds out.
//
// A [Call] is one request of a caller. The shell (package broker, and the simulation) asks
// Step what is next, carries that out, and passes the answer to the next Step, until it is
// Done or Refused. Package worker reads no clock and draws nothing at random: Config has
// both as functions.
package worker

import (
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// Config is what all calls of a node have in common. All fields are required.
type Config struct {
	// SIDs are the ones for workers.
	SIDs lease.SIDRange
	// Bounds has the worker's window: how far beyond the clock an interval reaches, and
	// the TTL of the worker's etcd lease. A caller's clock may be off by MaxSkew.
	Bounds lease.Bounds

	// Nonce returns a text that is unique at every call, across all processes.
	Nonce func() string
	// Random returns a number in [0, n).
	Random func(n int) int
}

// Knowledge is what the node that serves a call knows by itself at one moment: the status
// of its lease machine, up to which time that may write ceilings, and, unless it is nil, why
// the node writes none.
type Knowledge struct {
	Status lease.Status
	Limit  lease.Limit
	Closed *node.Refusal
}

// Request is what a caller asks for: Acquire, Extend or Release. A time of 0 was not said.
type Request interface{ request() }

type (
	// Acquire asks for a free sid.
	Acquire struct {
		Name string
		// Secret is the new worker's. If it was Given, the caller chose it, and an earlier
		// call may have acquired with it.
		Secret string
		Given  bool
		// Clock is what the caller's clock reads.
		Clock clock.Millis
		// TellsFloor: the worker tells a Floor at each extension, and keeps to that of each answer.
		TellsFloor bool
		// Owner pays. Quota is how many workers it may hold, this one included.
		Owner string
		Quota int
	}
	// Extend asks for a later end than NotAfter, which is the one that the caller knows. The
	// worker uses no ID of a time below Floor any more.
	Extend struct {
		Handle   Handle
		NotAfter clock.Millis
		Floor    clock.Millis
	}
	// Release gives the sid back. The worker made no ID at or after UsedUntil, and makes none.
	Release struct {
		Handle    Handle
		UsedUntil clock.Millis
	}
)

func (Acquire) request() {}
func (Extend) request()  {}
func (Release) request() {}

// Action is what a call needs next.
type Action interface{ action() }

// The actions. The first five are requests to the store, each answered by the Answer of
// the next Step. Done and Refused end the call.
type (
	// List asks for a view of the whole space: one that was begun after this with Fresh,
	// else one that may be a second old. The call does not change it.
	List struct{ Fresh bool }
	// Read asks for a view of one sid.
	Read struct{ SID flake.SID }
	// TakeLease asks for a lease.
	TakeLease struct{ TTL time.Duration }
	// KeepAlive asks for a lease to be renewed once.
	KeepAlive struct{ Lease lease.LeaseID }
	// Commit asks for a guarded write.
	Commit struct{ Txn lease.Txn }
	// Done is the answer to the caller: to Acquire and Extend a Worker, and to Release the
	// time before which no other holder begins. Revoke, if not 0, is a lease with no key on it.
	Done struct {
		Worker   Worker
		Reusable clock.Millis
		Revoke   lease.LeaseID
	}
	// Refused is the same where the call changed nothing.
	Refused struct {
		Refusal *node.Refusal
		Revoke  lease.LeaseID
	}
)

func (List) action()      {}
func (Read) action()      {}
func (TakeLease) action() {}
func (KeepAlive) action() {}
func (Commit) action()    {}
func (Done) action()      {}
func (Refused) action()   {}

// Answer is what the store answered to the latest action: a View to List, Read and Commit,
// a Lease to TakeLease. If Err is lease.ErrLeaseGone nothing was written, and with any other
// the outcome is unknown.
type Answer struct {
	View  lease.View
	Lease lease.LeaseID
	Err   error
}

// Worker is what a caller has acquired or extended: the interval [NotBefore, NotAfter),
// which may begin in the future. It uses no ID of a time below Floor from the answer on; 0: the
// watermark does not cover it. Now is what the node's clock reads.
type Worker struct {
	Handle    Handle
	Name      string
	NotBefore clock.Millis
	NotAfter  clock.Millis
	Floor     clock.Millis
	ExtendAt  clock.Millis
	Now       clock.Millis
}

// worker returns what a record, which is the caller's, gives it.
func (c Config) worker(now clock.Reading, secret string, sid flake.SID, w lease.Window) Worker {
	return Worker{
		Handle: Handle{SID: sid, Term: w.Term, Secret: secret}, Name: w.Node,
		NotBefore: w.Since, NotAfter: w.Ceil, Floor: w.Floor,
		ExtendAt: max(now.Wall, w.Ceil-clock.MillisOf(c.Bounds.WorkerWindow-c.Bounds.WorkerWindow/3)),
		Now:      now.Wall,
	}
}

// enough reports whether a ceiling is so far ahead that nothing has to be written. It is
// not at ExtendAt, by the clock of any node: that is a third of a window after a write,
// and this a quarter.
func (c Config) enough(now clock.Reading, ceil clock.Millis) bool {
	return ceil > now.Wall+clock.MillisOf(c.Bounds.WorkerWindow-c.Bounds.WorkerWindow/4)
}

// ceiling returns the ceiling that a write asks for.
func (c Config) ceiling(now clock.Reading, atLeast clock.Millis) clock.Millis {
	return max(atLeast, now.Wall+clock.MillisOf(c.Bounds.WorkerWindow))
}
