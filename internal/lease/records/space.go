package records

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Space is one space in a DB. It has no state of its own.
type Space struct {
	Keys Keys
	DB   DB
}

// Load reads the whole space, linearizably and at one revision.
func (s Space) Load(ctx context.Context) (lease.View, error) {
	r, err := s.DB.Do(ctx, Txn{Then: s.allReads()})
	if err != nil {
		return lease.View{}, fmt.Errorf("load %s: %w", s.Keys, err)
	}
	return s.view(r), nil
}

// Read reads config, era, mark and one sid, linearizably and at one revision.
func (s Space) Read(ctx context.Context, sid flake.SID) (lease.View, error) {
	r, err := s.DB.Do(ctx, Txn{Then: s.reads(sid)})
	if err != nil {
		return lease.View{}, fmt.Errorf("read sid %d of %s: %w", sid, s.Keys, err)
	}
	return s.viewOf(sid, r), nil
}

// Commit carries out txn if all that it compares holds, and returns the sid as
// it is then. Not applied says that of this sending alone: after a connection
// broke the same txn may have been sent before by the client itself, and the
// view then carries its nonce.
//
// It returns lease.ErrTxn, or lease.ErrLeaseGone if the lease to put the holder
// on is gone: nothing was written. After any other error the outcome is unknown.
func (s Space) Commit(ctx context.Context, txn lease.Txn) (bool, lease.View, error) {
	if err := txn.Check(); err != nil {
		return false, lease.View{}, err
	}
	reads := s.reads(txn.SID) // They see the writes before them.
	r, err := s.DB.Do(ctx, Txn{If: s.compares(txn), Then: append(s.writes(txn), reads...), Else: reads})
	if err != nil {
		return false, lease.View{}, fmt.Errorf("%v sid %d of %s: %w", txn.Op, txn.SID, s.Keys, err)
	}
	return r.Applied, s.viewOf(txn.SID, r), nil
}

// PutMark carries out txn if all that it compares holds, and returns the mark as it is then.
// After an error the outcome is unknown.
func (s Space) PutMark(ctx context.Context, txn lease.MarkTxn) (bool, lease.Entry[lease.Mark], error) {
	cmps := append(unchanged(s.Keys.Config(), txn.Config), unchanged(s.Keys.Era(), txn.Era)...)
	cmps = append(cmps, unchanged(s.Keys.Mark(), txn.Seen)...)
	get := Op{Key: s.Keys.Mark()}
	put := Op{Do: Put, Key: s.Keys.Mark(), Raw: lease.Encode(txn.Mark)}
	r, err := s.DB.Do(ctx, Txn{If: cmps, Then: []Op{put, get}, Else: []Op{get}})
	if err != nil {
		return false, lease.Entry[lease.Mark]{}, fmt.Errorf("put the mark of %s: %w", s.Keys, err)
	}
	return r.Applied, s.view(r).Mark, nil
}

// compares returns what txn's operation requires; see lease.Op.
func (s Space) compares(txn lease.Txn) []Compare {
	holder, window := s.Keys.Holder(txn.SID), s.Keys.Window(txn.SID)
	cmps := unchanged(window, txn.Seen.Window)
	if !txn.Seen.Window.Exists() {
		// A ledger without a window: the ceiling was lost, and with it what was issued.
		cmps = append(cmps, noneUnder(s.Keys.ledgerOf(txn.SID)))
	}
	if txn.Op != lease.Release {
		cmps = append(cmps, unchanged(s.Keys.Config(), txn.Config)...)
		cmps = append(cmps, unchanged(s.Keys.Era(), txn.Era)...)
	}
	switch txn.Op {
	case lease.Acquire, lease.Rehold:
		cmps = append(cmps, absent(holder))
	case lease.Reclaim, lease.Expire:
		cmps = append(cmps, unchanged(holder, txn.Seen.Holder)...)
	case lease.Extend:
		cmps = append(cmps, Compare{Key: holder, Of: Lease, Number: int64(txn.Lease)})
	}
	if txn.Op.TakesHolder() {
		cmps = append(cmps, s.sameMark(txn.Mark))
	}
	return cmps
}

// sameMark compares the value of the mark: that others put it again is no reason to fail.
func (s Space) sameMark(seen lease.Entry[lease.Mark]) Compare {
	if !seen.Exists() {
		return absent(s.Keys.Mark())
	}
	return Compare{Key: s.Keys.Mark(), Of: Value, Raw: seen.Raw}
}

// markAgain puts the mark again, so that a raise from before does not come after this write.
func (s Space) markAgain(seen lease.Entry[lease.Mark]) []Op {
	if !seen.Exists() {
		return nil
	}
	return []Op{{Do: Put, Key: s.Keys.Mark(), Raw: seen.Raw}}
}

// unchanged compares a key with the entry read from it, by revision and by value,
// since an etcd restored from a backup uses its revisions a second time.
func unchanged[T any](key string, seen lease.Entry[T]) []Compare {
	if !seen.Exists() {
		return []Compare{absent(key)} // A value compare never holds for an absent key.
	}
	return []Compare{{Key: key, Of: Revision, Number: seen.Rev}, {Key: key, Of: Value, Raw: seen.Raw}}
}

func absent(key string) Compare { return Compare{Key: key, Of: Revision, Number: 0} }

// noneUnder compares that there is no key with a prefix, which ends with a slash.
func noneUnder(prefix string) Compare {
	return Compare{Key: prefix, End: after(prefix), Of: Revision, Number: 0}
}

// writes returns what txn changes.
func (s Space) writes(txn lease.Txn) []Op {
	if txn.Op == lease.Expire {
		// A database that is full takes deletions and refuses what puts: then live holders cannot write either.
		// The watch of others sees this key with the deletion, and has them list.
		return []Op{
			{Do: Delete, Key: s.Keys.Holder(txn.SID)},
			{Do: Put, Key: s.Keys.of(expired), Raw: fmt.Sprintf("sid %d", txn.SID)},
		}
	}
	ops := []Op{{Do: Put, Key: s.Keys.Window(txn.SID), Raw: lease.Encode(txn.Window)}}
	switch holder := s.Keys.Holder(txn.SID); txn.Op {
	case lease.Acquire, lease.Reclaim, lease.Rehold:
		ops = append(ops, Op{Do: Put, Key: holder, Raw: lease.Encode(txn.Holder), Lease: txn.Lease})
	case lease.Release:
		ops = append(ops, Op{Do: Delete, Key: holder})
	}
	if txn.Op.TakesHolder() {
		ops = append(ops, s.markAgain(txn.Mark)...)
	}
	if txn.Op == lease.Acquire || txn.Op == lease.Reclaim {
		line := txn.LedgerLine()
		ops = append(ops, Op{Do: Put, Key: s.Keys.Ledger(txn.SID, line.Term), Raw: lease.Encode(line)})
		if oldest := line.Term - lease.LedgerKept + 1; oldest > 1 {
			ops = append(ops, Op{Do: Delete, Key: s.Keys.ledgerOf(txn.SID), End: s.Keys.Ledger(txn.SID, oldest)})
		}
	}
	return ops
}

// reads returns the operations that viewOf takes a view of one sid from.
func (s Space) reads(sid flake.SID) []Op {
	ledger := s.Keys.ledgerOf(sid)
	return []Op{
		{Key: s.Keys.Config()},
		{Key: s.Keys.Era()},
		{Key: s.Keys.Mark()},
		{Key: s.Keys.Holder(sid)},
		{Key: s.Keys.Window(sid)},
		{Do: Count, Key: ledger, End: after(ledger)},
	}
}

// allReads returns the operations that view takes a view of the space from.
func (s Space) allReads() (ops []Op) {
	for _, name := range []string{config, era, accepted, mark} {
		ops = append(ops, Op{Key: s.Keys.of(name)})
	}
	for _, name := range []string{holders, windows, nodes} {
		ops = append(ops, under(s.Keys.of(name)))
	}
	return ops
}

// under gets all keys with a prefix, which ends with a slash.
func under(prefix string) Op { return Op{Key: prefix, End: after(prefix)} }

// ErrRemains is returned for a space that has no config but has an era, windows or
// a ledger: part of it was lost. To initialize it again would lose what its IDs mean
// and which were issued.
var ErrRemains = errors.New("the space has records but no config, so its data in etcd is incomplete: " +
	"restore etcd from a backup")

// Init creates the space: config, era 1 with that floor, in Unix ms, and the records of
// reserved sids. It reports whether it did, with a view of the whole space as it is then. A
// space that has a config stays as it is; the caller compares it.
//
// It returns ErrRemains, with nothing changed. After any other error the space
// may have been created.
func (s Space) Init(
	ctx context.Context, space lease.Space, floor clock.Millis, reserved ...lease.Reservation,
) (created bool, now lease.View, err error) {
	before, err := s.Load(ctx) // It has the cluster ID, which the era records.
	if err != nil || before.Config.Exists() {
		return false, before, err
	}
	nothing := []Compare{
		absent(s.Keys.Config()),
		absent(s.Keys.Era()),
		noneUnder(s.Keys.of(windows)),
		noneUnder(s.Keys.of(ledgers)),
	}
	first := lease.Era{Number: 1, Floor: floor, Cluster: before.Cluster}
	puts := []Op{
		{Do: Put, Key: s.Keys.Config(), Raw: lease.Encode(space)},
		{Do: Put, Key: s.Keys.Era(), Raw: lease.Encode(first)},
	}
	for _, r := range reserved {
		line := lease.Txn{Window: r.Window}.LedgerLine()
		puts = append(puts,
			Op{Do: Put, Key: s.Keys.Window(r.SID), Raw: lease.Encode(r.Window)},
			Op{Do: Put, Key: s.Keys.Ledger(r.SID, line.Term), Raw: lease.Encode(line)})
	}
	r, err := s.DB.Do(ctx, Txn{If: nothing, Then: append(puts, s.allReads()...), Else: s.allReads()})
	if err != nil {
		return false, lease.View{}, fmt.Errorf("initialize %s: %w", s.Keys, err)
	}
	now = s.view(r)
	if !now.Config.Exists() {
		return false, now, fmt.Errorf("initialize %s: %w", s.Keys, ErrRemains)
	}
	return r.Applied, now, nil
}

// Holder returns who held sid at that time, in Unix ms: the last line of its
// ledger that began by then. It reports false if the ledger, which keeps
// lease.LedgerKept lines, has none so old.
//
// It returns an error if a line that may be the answer cannot be read.
func (s Space) Holder(ctx context.Context, sid flake.SID, at clock.Millis) (lease.LedgerLine, bool, error) {
	lines := under(s.Keys.ledgerOf(sid))
	for _, lines.Last = range []int{1, lease.LedgerKept - 1} { // Most IDs that are asked for are recent.
		r, err := s.DB.Do(ctx, Txn{Then: []Op{lines}})
		if err != nil {
			return lease.LedgerLine{}, false, fmt.Errorf("read ledger of sid %d of %s: %w", sid, s.Keys, err)
		}
		for _, kv := range r.Found { // The latest is first, and a later term never began earlier.
			t, err := lease.Decode[lease.LedgerLine](kv.Raw)
			if err != nil {
				return lease.LedgerLine{}, false, fmt.Errorf("read %s: %w", kv.Key, err)
			}
			if t.Since <= at {
				return t, true, nil
			}
			lines.End = kv.Key
		}
		if len(r.Found) < lines.Last {
			break
		}
	}
	return lease.LedgerLine{}, false, nil
}

// Register puts r on the lease id, or if that is 0 on a new lease of ttl, rounded up
// to whole seconds. After an error a new lease may exist; it is not renewed, and
// expires by itself. etcd grants no lease shorter than 1.5 election timeouts (2 s).
// It returns lease.ErrLeaseGone if the lease has expired or was revoked.
func (s Space) Register(
	ctx context.Context, id lease.LeaseID, ttl time.Duration, r lease.Registration,
) (lease.LeaseID, error) {
	on, finish, err := s.StartRegister(ctx, id, ttl, r)
	if err == nil {
		err = finish(ctx)
	}
	if err == nil {
		return on, nil
	}
	if id == 0 && on != 0 { // Only the registration can be on this lease.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = s.DB.Revoke(ctx, on)
	}
	return 0, err
}

// StartRegister does what Register does before it writes: it takes the lease and reads the node's
// key. finish writes if the key is still the same: otherwise a late request of an earlier
// registration would move the key to a lease that is not renewed, and the node would disappear
// from the registry. finish may be called late, or twice.
func (s Space) StartRegister(ctx context.Context, id lease.LeaseID, ttl time.Duration, r lease.Registration) (
	on lease.LeaseID, finish func(context.Context) error, err error,
) {
	if id == 0 {
		if id, err = s.DB.Grant(ctx, ttl); err != nil {
			return 0, nil, err
		}
	}
	failed := func(err error) error {
		return fmt.Errorf("register %s on lease %x: %w", r.Instance, int64(id), err)
	}
	key := s.Keys.Node(r.Instance)
	seen, err := s.DB.Do(ctx, Txn{Then: []Op{{Key: key}}})
	if err != nil {
		return id, nil, failed(err)
	}
	same := absent(key)
	if len(seen.Found) > 0 {
		same.Number = seen.Found[0].Rev
	}
	put := Txn{If: []Compare{same}, Then: []Op{{Do: Put, Key: key, Raw: lease.Encode(r), Lease: id}}}
	return id, func(ctx context.Context) error {
		switch done, err := s.DB.Do(ctx, put); {
		case err != nil:
			return failed(err)
		case !done.Applied:
			return failed(errOvertaken)
		}
		return nil
	}, nil
}

var errOvertaken = errors.New("another registration of this instance was written first")
