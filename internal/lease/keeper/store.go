package keeper

import (
	"context"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

// Store is what the keeper asks of the store that holds a space. Package
// etcdstore is the real one, package storetest carries out the same transactions in memory, and the
// contract test in storetest says what both must do.
//
// After lease.ErrLeaseGone and lease.ErrTxn nothing was written. Any other error
// means that the outcome is unknown: a write may have been applied, or may still
// be. All methods end when ctx does, and are safe for concurrent use.
type Store interface {
	// Load reads the whole space, linearizably and at one revision. The records
	// of a space that was never initialized are absent; that is no error.
	Load(ctx context.Context) (lease.View, error)

	// Read reads config, era and one sid, linearizably and at one revision.
	Read(ctx context.Context, sid flake.SID) (lease.View, error)

	// Commit carries out txn whole, or not at all if a compare does not hold.
	// It reports which, with a view of the sid: after the write if applied
	// (holder and window then carry the revision of the write), else as found.
	// Not applied is about the last request alone: the record may have txn's own
	// nonce, if the client library had sent it before.
	Commit(ctx context.Context, txn lease.Txn) (applied bool, now lease.View, err error)

	// PutMark carries out txn, or nothing if a compare does not hold. It reports which, with
	// the mark as it is then.
	PutMark(ctx context.Context, txn lease.MarkTxn) (applied bool, now lease.Entry[lease.Mark], err error)

	// Register puts r on the lease id, which is not renewed by it. If id is 0, it
	// first takes a lease of ttl (whole seconds). A request of an earlier call that
	// arrives late does not replace a later one's registration. ErrLeaseGone: the
	// lease has expired or was revoked, and nothing was put.
	Register(ctx context.Context, id lease.LeaseID, ttl time.Duration, r lease.Registration) (lease.LeaseID, error)

	// KeepAlive renews the lease once. ErrLeaseGone: it has expired or was revoked.
	KeepAlive(ctx context.Context, id lease.LeaseID) error

	// Revoke ends the lease and deletes every key on it. It is no error if the lease
	// is gone already.
	Revoke(ctx context.Context, id lease.LeaseID) error

	// Watch reports every change of the keys beside windows and the ledger: config, era,
	// the accepted time, the mark, holders and registrations. It begins with a report that it was
	// opened, and opens it again by itself, with another, after whatever breaks it.
	// Where nothing changes it reports the revision that it has reached, at least each
	// progress. Watch blocks until ctx ends and returns its error.
	Watch(ctx context.Context, progress time.Duration, report func(lease.Watched)) error
}
