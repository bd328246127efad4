package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

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
func (s *Store) Init(
	ctx context.Context, space lease.Space, floor clock.Millis, reserved ...lease.Reservation,
) (created bool, now lease.View, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	before, err := s.Load(ctx) // It has the cluster ID, which the era records.
	if err != nil || before.Config.Exists() {
		return false, before, err
	}
	era := lease.Era{Number: 1, Floor: floor, Cluster: before.Cluster}
	nothing := []clientv3.Cmp{
		absent(s.keys.config()),
		absent(s.keys.era()),
		absent(s.keys.windows()).WithPrefix(),
		absent(s.keys.ledgers()).WithPrefix(),
	}
	puts := []clientv3.Op{
		clientv3.OpPut(s.keys.config(), lease.Encode(space)),
		clientv3.OpPut(s.keys.era(), lease.Encode(era)),
	}
	for some := range slices.Chunk(reserved, reservedAtOnce) {
		puts = append(puts, s.reserve(some))
	}
	r, err := s.txn(ctx, nothing, append(puts, s.allReads()...), s.allReads())
	if err != nil {
		return false, lease.View{}, fmt.Errorf("initialize %s: %w", s.keys, err)
	}
	now = s.view(r)
	if !now.Config.Exists() {
		return false, now, fmt.Errorf("initialize %s: %w", s.keys, ErrRemains)
	}
	return r.Succeeded, now, nil
}

// reservedAtOnce is how many sids reserve has in one of the nested transactions: etcd takes
// 128 operations in a transaction and in each one within, less those of the outer one.
const reservedAtOnce = 40

// reserve returns the operation that writes the records of reserved sids.
func (s *Store) reserve(some []lease.Reservation) clientv3.Op {
	var puts []clientv3.Op
	for _, r := range some {
		line := lease.Txn{Window: r.Window}.LedgerLine()
		puts = append(puts,
			clientv3.OpPut(s.keys.window(r.SID), lease.Encode(r.Window)),
			clientv3.OpPut(s.keys.ledger(r.SID, line.Term), lease.Encode(line)))
	}
	return clientv3.OpTxn(nil, puts, nil)
}

// Holder returns who held sid at that time, in Unix ms: the last line of its
// ledger that began by then. It reports false if the ledger, which keeps
// lease.LedgerKept lines, has none so old.
//
// It returns an error if a line that may be the answer cannot be read.
func (s *Store) Holder(ctx context.Context, sid flake.SID, at clock.Millis) (lease.LedgerLine, bool, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	end := clientv3.GetPrefixRangeEnd(s.keys.ledgerOf(sid))
	for _, limit := range []int64{1, lease.LedgerKept - 1} { // Most IDs that are asked for are recent.
		r, err := s.get(ctx, s.keys.ledgerOf(sid), clientv3.WithRange(end), clientv3.WithLimit(limit),
			clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))
		if err != nil {
			return lease.LedgerLine{}, false, fmt.Errorf("read ledger of sid %d of %s: %w", sid, s.keys, err)
		}
		for _, kv := range r.Kvs { // The latest is first, and a later term never began earlier.
			t, err := lease.Decode[lease.LedgerLine](string(kv.Value))
			if err != nil {
				return lease.LedgerLine{}, false, fmt.Errorf("read %s: %w", kv.Key, err)
			}
			if t.Since <= at {
				return t, true, nil
			}
			end = string(kv.Key)
		}
		if !r.More {
			break
		}
	}
	return lease.LedgerLine{}, false, nil
}

// Ping makes one linearizable read, which a majority of etcd must answer, and
// returns etcd's cluster ID and revision.
func (s *Store) Ping(ctx context.Context) (cluster uint64, revision int64, err error) {
	r, err := s.get(ctx, s.keys.config(), clientv3.WithCountOnly())
	if err != nil {
		return 0, 0, fmt.Errorf("ping: %w", err)
	}
	return r.Header.ClusterId, r.Header.Revision, nil
}

// statusTimeout bounds the status call to one endpoint.
const statusTimeout = 2 * time.Second

// Version returns the version of the first endpoint that answers, such as "3.6.5".
func (s *Store) Version(ctx context.Context) (string, error) {
	client, err := s.client()
	if err != nil {
		return "", err
	}
	var errs []error
	for _, endpoint := range client.Endpoints() {
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		r, err := client.Status(ctx, endpoint)
		cancel()
		if err == nil {
			return r.Version, nil
		}
		errs = append(errs, fmt.Errorf("version of %s: %w", endpoint, err))
	}
	return "", errors.Join(errs...)
}

// cutNonEmpty returns what follows prefix in key, if anything does.
func cutNonEmpty(key, prefix string) (string, bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	return rest, ok && rest != ""
}
