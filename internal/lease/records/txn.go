package records

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/lease"
)

// DB carries out transactions, each whole, in one order, and linearizably.
type DB interface {
	// Do carries out t. It returns lease.ErrLeaseGone, with nothing written, if a key was to be
	// put on a lease that is gone. After any other error the outcome is unknown.
	Do(ctx context.Context, t Txn) (Answer, error)

	// Grant takes a lease of ttl, rounded up to whole seconds. After an error one may exist; nothing
	// is on it, and it expires by itself.
	Grant(ctx context.Context, ttl time.Duration) (lease.LeaseID, error)

	// Revoke ends the lease and deletes every key on it. It is no error if the lease is gone.
	Revoke(ctx context.Context, id lease.LeaseID) error
}

// Txn has Then carried out if all of If hold, and Else otherwise. The operations are carried out
// in order: a Get sees what was put before it. No list puts a key twice, or puts one that it deletes.
type Txn struct {
	If         []Compare
	Then, Else []Op
}

// Compare holds if what it names of Key is as given. With End it must hold for each key
// in [Key, End). Of an absent key the revision and the lease are 0, and no value compares.
type Compare struct {
	Key, End string
	Of       Property
	Number   int64  // It is compared with Revision and Lease.
	Raw      string // It is compared with Value.
}

// Property is what a Compare is about.
type Property uint8

// The properties.
const (
	Revision Property = iota // The last write of the key made it.
	Value
	Lease
)

// Op is an operation on Key, or on all keys in [Key, End).
type Op struct {
	Do       Verb
	Key, End string
	Raw      string        // Put writes this value.
	Lease    lease.LeaseID // Put writes it on this lease; 0: on none.
	Last     int           // Get returns at most so many keys, the last one first; 0: all, in order.
}

// Verb is what an Op does.
type Verb uint8

// The verbs.
const (
	Get Verb = iota
	Count
	Put    // It takes one key.
	Delete // Nothing to delete is no error.
)

// Answer is the outcome of a Txn.
type Answer struct {
	Cluster  uint64 // This is etcd's cluster ID.
	Revision int64  // The store has it after the transaction.
	Applied  bool   // Then was carried out, not Else.
	Found    []KV   // All Gets found these, in their order.
	Counted  int64  // All Counts counted so many keys.
}

// KV is a key as it was read.
type KV struct {
	Key, Raw string
	Rev      int64
	Lease    lease.LeaseID

	// Kept keeps what Raw was decoded to, for a DB that has the KV found again; nil: nothing is kept.
	Kept *atomic.Value
}
