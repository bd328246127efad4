package etcdsim

import (
	"bytes"
	"maps"
	"slices"
	"sort"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// store is the data of etcd: every version of every key, and which keys are on
// which lease. It is not safe for concurrent use.
type store struct {
	revision  int64 // The last write made it; a new store is at revision 1.
	compacted int64 // history below it is gone
	keys      []string
	versions  map[string][]*mvccpb.KeyValue // The versions of a key are oldest first; a deletion has Version 0.
	events    []*mvccpb.Event               // all, in order; those of one revision in the order of its operations
	attached  map[int64]map[string]bool     // keys of a lease; an entry for every lease
}

func newStore() *store {
	return &store{revision: 1, versions: map[string][]*mvccpb.KeyValue{}, attached: map[int64]map[string]bool{}}
}

// clone returns a copy that shares nothing that changes.
func (s *store) clone() *store {
	c := &store{
		revision:  s.revision,
		compacted: s.compacted,
		keys:      slices.Clone(s.keys),
		events:    slices.Clone(s.events),
		versions:  maps.Clone(s.versions),
		attached:  map[int64]map[string]bool{},
	}
	for k, v := range c.versions {
		c.versions[k] = slices.Clone(v)
	}
	for id, keys := range s.attached {
		c.attached[id] = maps.Clone(keys)
	}
	return c
}

// span is the keys that a request names: one, [key, end), or all from key on.
func span(key, end []byte) func(string) bool {
	switch {
	case len(end) == 0:
		return func(k string) bool { return k == string(key) }
	case len(end) == 1 && end[0] == 0:
		return func(k string) bool { return k >= string(key) }
	}
	return func(k string) bool { return k >= string(key) && k < string(end) }
}

// find returns the key-values of a range as of a revision, in the order of keys.
func (s *store) find(key, end []byte, at int64) (out []*mvccpb.KeyValue) {
	in := span(key, end)
	for i := sort.SearchStrings(s.keys, string(key)); i < len(s.keys) && in(s.keys[i]); i++ {
		if kv := s.get(s.keys[i], at); kv != nil {
			out = append(out, kv)
		}
	}
	return out
}

// get returns a key's value as of a revision, or nil.
func (s *store) get(key string, at int64) *mvccpb.KeyValue {
	vs := s.versions[key]
	i := sort.Search(len(vs), func(i int) bool { return vs[i].ModRevision > at })
	if i == 0 || vs[i-1].Version == 0 {
		return nil
	}
	return vs[i-1]
}

// txn collects the changes of one request, which become one revision.
type txn struct {
	*store
	at int64 // what it writes
}

func (s *store) begin() *txn { return &txn{s, s.revision + 1} }

// end makes the changes, if any, the current revision.
func (t *txn) end() {
	if n := len(t.events); n > 0 && t.events[n-1].Kv.ModRevision == t.at {
		t.revision = t.at
	}
}

func (t *txn) put(key string, value []byte, lease int64) (prev *mvccpb.KeyValue) {
	prev = t.get(key, t.at)
	kv := &mvccpb.KeyValue{
		Key:            []byte(key),
		Value:          bytes.Clone(value),
		CreateRevision: t.at,
		ModRevision:    t.at,
		Version:        1,
		Lease:          lease,
	}
	if prev != nil {
		kv.CreateRevision, kv.Version = prev.CreateRevision, prev.Version+1
		delete(t.attached[prev.Lease], key)
	}
	if lease != 0 {
		t.attached[lease][key] = true
	}
	t.add(mvccpb.Event_PUT, kv, prev)
	return prev
}

func (t *txn) remove(kv *mvccpb.KeyValue) {
	delete(t.attached[kv.Lease], string(kv.Key))
	t.add(mvccpb.Event_DELETE, &mvccpb.KeyValue{Key: kv.Key, ModRevision: t.at}, kv)
}

func (t *txn) add(kind mvccpb.Event_EventType, kv, prev *mvccpb.KeyValue) {
	key := string(kv.Key)
	if t.versions[key] == nil {
		i := sort.SearchStrings(t.keys, key)
		t.keys = slices.Insert(t.keys, i, key)
	}
	t.versions[key] = append(t.versions[key], kv)
	t.events = append(t.events, &mvccpb.Event{Type: kind, Kv: kv, PrevKv: prev})
}

// since returns the events of a range from a revision on.
func (s *store) since(key, end []byte, from int64) (out []*mvccpb.Event) {
	in := span(key, end)
	i := sort.Search(len(s.events), func(i int) bool { return s.events[i].Kv.ModRevision >= from })
	for _, ev := range s.events[i:] {
		if in(string(ev.Kv.Key)) {
			out = append(out, ev)
		}
	}
	return out
}

func (s *store) compact(at int64) error {
	switch {
	case at <= s.compacted:
		return rpctypes.ErrGRPCCompacted
	case at > s.revision:
		return rpctypes.ErrGRPCFutureRev
	}
	s.compacted = at
	return nil
}

// The requests. Each returns its answer without a header, or why nothing was
// done; check comes first, and what passed it changes something or is a no-op.

func (s *store) checkRange(r *pb.RangeRequest) error {
	switch {
	case len(r.Key) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case r.Revision > s.revision:
		return rpctypes.ErrGRPCFutureRev
	case r.Revision != 0 && r.Revision < s.compacted:
		return rpctypes.ErrGRPCCompacted
	}
	return nil
}

// ask answers a range request. now is the revision that 0 stands for.
func (s *store) ask(r *pb.RangeRequest, now int64) *pb.RangeResponse {
	at := r.Revision
	if at == 0 {
		at = now
	}
	kvs := s.find(r.Key, r.RangeEnd, at)
	out := &pb.RangeResponse{Count: int64(len(kvs))}
	if r.CountOnly {
		return out
	}
	order(kvs, r.SortTarget, r.SortOrder)
	if n := int(r.Limit); n > 0 && n < len(kvs) {
		kvs, out.More = kvs[:n], true
	}
	for _, kv := range kvs {
		c := copyOf(kv)
		if r.KeysOnly {
			c.Value = nil
		}
		out.Kvs = append(out.Kvs, c)
	}
	return out
}

func copyOf(kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: kv.Key, Value: kv.Value, CreateRevision: kv.CreateRevision,
		ModRevision: kv.ModRevision, Version: kv.Version, Lease: kv.Lease}
}

func order(kvs []*mvccpb.KeyValue, by pb.RangeRequest_SortTarget, how pb.RangeRequest_SortOrder) {
	if how == pb.RangeRequest_NONE && by == pb.RangeRequest_KEY {
		return // as they are
	}
	slices.SortStableFunc(kvs, func(a, b *mvccpb.KeyValue) int {
		d := 0
		switch by {
		case pb.RangeRequest_KEY:
			d = bytes.Compare(a.Key, b.Key)
		case pb.RangeRequest_VERSION:
			d = int(a.Version - b.Version)
		case pb.RangeRequest_CREATE:
			d = int(a.CreateRevision - b.CreateRevision)
		case pb.RangeRequest_MOD:
			d = int(a.ModRevision - b.ModRevision)
		case pb.RangeRequest_VALUE:
			d = bytes.Compare(a.Value, b.Value)
		}
		if how == pb.RangeRequest_DESCEND {
			return -d
		}
		return d
	})
}

func (s *store) checkPut(r *pb.PutRequest) error {
	switch {
	case len(r.Key) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case r.IgnoreLease || r.IgnoreValue:
		return errMissing
	}
	return nil
}

func (s *store) checkLease(r *pb.PutRequest) error {
	if r.Lease != 0 && s.attached[r.Lease] == nil {
		return rpctypes.ErrGRPCLeaseNotFound
	}
	return nil
}

func (t *txn) carryPut(r *pb.PutRequest) *pb.PutResponse {
	prev := t.put(string(r.Key), r.Value, r.Lease)
	if !r.PrevKv {
		prev = nil
	}
	return &pb.PutResponse{PrevKv: prev}
}

func (t *txn) carryDelete(r *pb.DeleteRangeRequest) *pb.DeleteRangeResponse {
	kvs := t.find(r.Key, r.RangeEnd, t.at)
	out := &pb.DeleteRangeResponse{Deleted: int64(len(kvs))}
	for _, kv := range kvs {
		t.remove(kv)
		if r.PrevKv {
			out.PrevKvs = append(out.PrevKvs, kv)
		}
	}
	return out
}
