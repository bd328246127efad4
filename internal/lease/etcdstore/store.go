package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

// Store is one space in etcd. It implements keeper.Store and has no state of its
// own but the client; it is safe for concurrent use.
type Store struct {
	// Timeout bounds each call whose context has no deadline. New sets 5 s: etcd itself times
	// a request out after 7 s. It is not changed while calls are under way.
	Timeout time.Duration

	keys      keys
	connected atomic.Pointer[clientv3.Client]
	problem   atomic.Pointer[error] // It is Connect's latest, while there is no client.
}

// New returns the space of that name under root. It sends nothing; the caller
// closes client. Without a client each call returns ErrNotConnected or the error of
// Connect, until Connect succeeds. It returns ErrName.
func New(client *clientv3.Client, root, space string) (*Store, error) {
	k, err := newKeys(root, space)
	if err != nil {
		return nil, err
	}
	s := &Store{keys: k, Timeout: callTimeout}
	s.connected.Store(client)
	s.problem.Store(&ErrNotConnected)
	return s, nil
}

// ErrNotConnected is returned for a call to a Store that has no client yet. Nothing was sent.
var ErrNotConnected = errors.New("etcdstore: not connected to etcd yet")

// Connect gives s a client, made by Dial. It returns the error of config or of Dial; each
// call to s returns the same one meanwhile. One caller at a time may connect, again after
// an error. It calls disconnect once no call to s is under way.
func (s *Store) Connect(config func() (Config, error)) (disconnect func(), err error) {
	c, err := config()
	if err != nil {
		s.problem.Store(&err)
		return nil, err
	}
	client, err := Dial(c)
	if err != nil {
		s.problem.Store(&err)
		return nil, err
	}
	s.connected.Store(client)
	return func() { _ = client.Close() }, nil
}

// client returns the client, or why there is none yet.
func (s *Store) client() (*clientv3.Client, error) {
	if c := s.connected.Load(); c != nil {
		return c, nil
	}
	return nil, *s.problem.Load()
}

// txn carries out then if all of cmps hold, and else otherwise.
func (s *Store) txn(
	ctx context.Context, cmps []clientv3.Cmp, then, otherwise []clientv3.Op,
) (*clientv3.TxnResponse, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	r, err := client.Txn(ctx).If(cmps...).Then(then...).Else(otherwise...).Commit()
	return r, because(ctx, err)
}

// get reads a key, or the keys that opts add.
func (s *Store) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	r, err := client.Get(ctx, key, opts...)
	return r, because(ctx, err)
}

// callTimeout bounds the opening of a watch, and by default each call.
const callTimeout = 5 * time.Second

// bounded returns ctx with a deadline: etcd's client would wait for a
// connection without end. An error of a call goes through because.
func (s *Store) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx = withAttempts(ctx)
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.Timeout)
}

// Load reads the whole space, linearizably and at one revision.
func (s *Store) Load(ctx context.Context) (lease.View, error) {
	r, err := s.txn(ctx, nil, s.allReads(), nil)
	if err != nil {
		return lease.View{}, fmt.Errorf("load %s: %w", s.keys, err)
	}
	return s.view(r), nil
}

// Read reads config, era, mark and one sid, linearizably and at one revision.
func (s *Store) Read(ctx context.Context, sid flake.SID) (lease.View, error) {
	r, err := s.txn(ctx, nil, s.reads(sid), nil)
	if err != nil {
		return lease.View{}, fmt.Errorf("read sid %d of %s: %w", sid, s.keys, err)
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
func (s *Store) Commit(ctx context.Context, txn lease.Txn) (bool, lease.View, error) {
	if err := txn.Check(); err != nil {
		return false, lease.View{}, err
	}
	reads := s.reads(txn.SID) // They see the writes before them.
	r, err := s.txn(ctx, s.compares(txn), append(s.writes(txn), reads...), reads)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		err = lease.ErrLeaseGone
	}
	if err != nil {
		return false, lease.View{}, fmt.Errorf("%v sid %d of %s: %w", txn.Op, txn.SID, s.keys, err)
	}
	return r.Succeeded, s.viewOf(txn.SID, r), nil
}

// PutMark carries out txn if all that it compares holds, and returns the mark as it is then.
// After an error the outcome is unknown.
func (s *Store) PutMark(ctx context.Context, txn lease.MarkTxn) (bool, lease.Entry[lease.Mark], error) {
	cmps := append(unchanged(s.keys.config(), txn.Config), unchanged(s.keys.era(), txn.Era)...)
	cmps = append(cmps, unchanged(s.keys.mark(), txn.Seen)...)
	get := clientv3.OpGet(s.keys.mark())
	put := clientv3.OpPut(s.keys.mark(), lease.Encode(txn.Mark))
	r, err := s.txn(ctx, cmps, []clientv3.Op{put, get}, []clientv3.Op{get})
	if err != nil {
		return false, lease.Entry[lease.Mark]{}, fmt.Errorf("put the mark of %s: %w", s.keys, err)
	}
	return r.Succeeded, s.view(r).Mark, nil
}

// compares returns what txn's operation requires; see lease.Op.
func (s *Store) compares(txn lease.Txn) []clientv3.Cmp {
	holder, window := s.keys.holder(txn.SID), s.keys.window(txn.SID)
	cmps := unchanged(window, txn.Seen.Window)
	if !txn.Seen.Window.Exists() {
		// A ledger without a window: the ceiling was lost, and with it what was issued.
		cmps = append(cmps, absent(s.keys.ledgerOf(txn.SID)).WithPrefix())
	}
	if txn.Op != lease.Release {
		cmps = append(cmps, unchanged(s.keys.config(), txn.Config)...)
		cmps = append(cmps, unchanged(s.keys.era(), txn.Era)...)
	}
	switch txn.Op {
	case lease.Acquire, lease.Rehold:
		cmps = append(cmps, absent(holder))
	case lease.Reclaim:
		cmps = append(cmps, unchanged(holder, txn.Seen.Holder)...)
	case lease.Extend:
		cmps = append(cmps, clientv3.Compare(clientv3.LeaseValue(holder), "=", int64(txn.Lease)))
	}
	if txn.Op.TakesHolder() {
		cmps = append(cmps, s.sameMark(txn.Mark))
	}
	return cmps
}

// sameMark compares the value of the mark: that others put it again is no reason to fail.
func (s *Store) sameMark(seen lease.Entry[lease.Mark]) clientv3.Cmp {
	if !seen.Exists() {
		return absent(s.keys.mark())
	}
	return clientv3.Compare(clientv3.Value(s.keys.mark()), "=", seen.Raw)
}

// markAgain puts the mark again, so that a raise from before does not come after this write.
func (s *Store) markAgain(seen lease.Entry[lease.Mark]) []clientv3.Op {
	if !seen.Exists() {
		return nil
	}
	return []clientv3.Op{clientv3.OpPut(s.keys.mark(), seen.Raw)}
}

// unchanged compares a key with the entry read from it, by revision and by value,
// since an etcd restored from a backup uses its revisions a second time.
func unchanged[T any](key string, seen lease.Entry[T]) []clientv3.Cmp {
	if !seen.Exists() {
		return []clientv3.Cmp{absent(key)} // A value compare never holds for an absent key.
	}
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(key), "=", seen.Rev),
		clientv3.Compare(clientv3.Value(key), "=", seen.Raw),
	}
}

func absent(key string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
}

// writes returns what txn changes.
func (s *Store) writes(txn lease.Txn) []clientv3.Op {
	ops := []clientv3.Op{clientv3.OpPut(s.keys.window(txn.SID), lease.Encode(txn.Window))}
	switch holder := s.keys.holder(txn.SID); txn.Op {
	case lease.Acquire, lease.Reclaim, lease.Rehold:
		onLease := clientv3.WithLease(clientv3.LeaseID(txn.Lease))
		ops = append(ops, clientv3.OpPut(holder, lease.Encode(txn.Holder), onLease))
	case lease.Release:
		ops = append(ops, clientv3.OpDelete(holder))
	}
	if txn.Op.TakesHolder() {
		ops = append(ops, s.markAgain(txn.Mark)...)
	}
	if txn.Op == lease.Acquire || txn.Op == lease.Reclaim {
		line := txn.LedgerLine()
		ops = append(ops, clientv3.OpPut(s.keys.ledger(txn.SID, line.Term), lease.Encode(line)))
		if oldest := line.Term - lease.LedgerKept + 1; oldest > 1 {
			end := clientv3.WithRange(s.keys.ledger(txn.SID, oldest))
			ops = append(ops, clientv3.OpDelete(s.keys.ledgerOf(txn.SID), end))
		}
	}
	return ops
}

// reads returns the gets that viewOf takes a view of one sid from. The last one is of the
// ledger.
func (s *Store) reads(sid flake.SID) []clientv3.Op {
	return []clientv3.Op{
		clientv3.OpGet(s.keys.config()),
		clientv3.OpGet(s.keys.era()),
		clientv3.OpGet(s.keys.mark()),
		clientv3.OpGet(s.keys.holder(sid)),
		clientv3.OpGet(s.keys.window(sid)),
		clientv3.OpGet(s.keys.ledgerOf(sid), clientv3.WithPrefix(), clientv3.WithCountOnly()),
	}
}

// allReads returns the gets that view takes a view of the space from.
func (s *Store) allReads() []clientv3.Op {
	return []clientv3.Op{
		clientv3.OpGet(s.keys.config()),
		clientv3.OpGet(s.keys.era()),
		clientv3.OpGet(s.keys.accepted()),
		clientv3.OpGet(s.keys.mark()),
		clientv3.OpGet(s.keys.holders(), clientv3.WithPrefix()),
		clientv3.OpGet(s.keys.windows(), clientv3.WithPrefix()),
		clientv3.OpGet(s.keys.nodes(), clientv3.WithPrefix()),
	}
}

// viewOf returns the view of one sid that the reads in r give.
func (s *Store) viewOf(sid flake.SID, r *clientv3.TxnResponse) lease.View {
	v := s.view(r)
	seen := v.SIDs[sid]
	seen.Past = r.Responses[len(r.Responses)-1].GetResponseRange().Count > 0
	v.SIDs = map[flake.SID]lease.SIDRecords{sid: seen}
	v.Nodes = nil
	return v
}

// view returns what the gets in r found.
func (s *Store) view(r *clientv3.TxnResponse) lease.View {
	v := lease.View{
		Cluster:  r.Header.ClusterId,
		Revision: r.Header.Revision,
		SIDs:     make(map[flake.SID]lease.SIDRecords),
	}
	for _, op := range r.Responses {
		get, ok := op.Response.(*etcdserverpb.ResponseOp_ResponseRange)
		if !ok {
			continue
		}
		for _, kv := range get.ResponseRange.Kvs {
			s.add(&v, kv)
		}
	}
	return v
}

// add adds kv to v. A record that cannot be read is added with its error; unknown
// keys are ignored.
func (s *Store) add(v *lease.View, kv *mvccpb.KeyValue) {
	key := string(kv.Key)
	if key == s.keys.config() {
		v.Config = entry[lease.Space](kv)
	} else if key == s.keys.era() {
		v.Era = entry[lease.Era](kv)
	} else if key == s.keys.accepted() {
		v.Accepted = entry[lease.AcceptedTime](kv)
	} else if key == s.keys.mark() {
		v.Mark = entry[lease.Mark](kv)
	} else if sid, ok := sidUnder(key, s.keys.holders()); ok {
		seen := v.SIDs[sid]
		seen.Holder = entry[lease.Holder](kv)
		v.SIDs[sid] = seen
	} else if sid, ok := sidUnder(key, s.keys.windows()); ok {
		seen := v.SIDs[sid]
		seen.Window = entry[lease.Window](kv)
		v.SIDs[sid] = seen
	} else if name, ok := cutNonEmpty(key, s.keys.nodes()); ok {
		v.Nodes = append(v.Nodes, lease.NewRegistration(lease.Instance(name), kv.ModRevision, string(kv.Value)))
	}
}

func entry[T any](kv *mvccpb.KeyValue) lease.Entry[T] {
	return lease.NewEntry[T](kv.ModRevision, lease.LeaseID(kv.Lease), string(kv.Value))
}
