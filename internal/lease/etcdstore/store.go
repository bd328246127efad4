package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/records"
)

// Store is one space in etcd. It implements keeper.Store and has no state of its
// own but the client; it is safe for concurrent use.
type Store struct {
	records.Space

	// Timeout bounds each request whose context has no deadline. New sets 5 s: etcd itself times
	// a request out after 7 s. It is not changed while calls are under way.
	Timeout time.Duration

	connected atomic.Pointer[clientv3.Client]
	problem   atomic.Pointer[error] // It is Connect's latest, while there is no client.
	acted     chan struct{}         // It has room for one: Watch saw an act, or may have missed one.
}

// ErrName is returned for a root or a space that is not 1 to 63 of a–z, 0–9, dot,
// dash and underscore, the first a letter or digit.
var ErrName = errors.New("etcdstore: not a valid name")

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// New returns the space of that name under root. It sends nothing; the caller
// closes client. Without a client each call returns ErrNotConnected or the error of
// Connect, until Connect succeeds. It returns ErrName.
func New(client *clientv3.Client, root, space string) (*Store, error) {
	for _, name := range []string{root, space} {
		if !nameForm.MatchString(name) {
			return nil, fmt.Errorf("%w: %.80q", ErrName, name)
		}
	}
	s := &Store{Timeout: callTimeout, acted: make(chan struct{}, 1)}
	s.Space = records.Space{Keys: records.Keys("/" + root + "/" + space + "/"), DB: s}
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

// Do carries out t; see [records.DB]. If etcd's client sent it twice, after a connection broke, the
// answer is to the second time. A single Get is no transaction: the client itself sends it again.
func (s *Store) Do(ctx context.Context, t records.Txn) (records.Answer, error) {
	if len(t.If) == 0 && len(t.Then) == 1 && t.Then[0].Do == records.Get {
		r, err := s.get(ctx, t.Then[0].Key, options(t.Then[0])...)
		if err != nil {
			return records.Answer{}, err
		}
		return answer(r.Header, true, (*etcdserverpb.RangeResponse)(r)), nil
	}
	client, err := s.client()
	if err != nil {
		return records.Answer{}, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	r, err := client.Txn(ctx).If(compares(t.If)...).Then(operations(t.Then)...).Else(operations(t.Else)...).Commit()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return records.Answer{}, lease.ErrLeaseGone
	case err != nil:
		return records.Answer{}, because(ctx, err)
	}
	var gets []*etcdserverpb.RangeResponse
	for _, op := range r.Responses {
		gets = append(gets, op.GetResponseRange()) // nil for another operation, which found nothing
	}
	return answer(r.Header, r.Succeeded, gets...), nil
}

func answer(h *etcdserverpb.ResponseHeader, applied bool, gets ...*etcdserverpb.RangeResponse) records.Answer {
	out := records.Answer{Cluster: h.ClusterId, Revision: h.Revision, Applied: applied}
	for _, get := range gets {
		if len(get.GetKvs()) == 0 {
			out.Counted += get.GetCount()
		}
		for _, kv := range get.GetKvs() {
			out.Found = append(out.Found, kvOf(kv))
		}
	}
	return out
}

func kvOf(kv *mvccpb.KeyValue) records.KV {
	return records.KV{
		Key:   string(kv.Key),
		Raw:   string(kv.Value),
		Rev:   kv.ModRevision,
		Lease: lease.LeaseID(kv.Lease),
	}
}

func compares(list []records.Compare) (out []clientv3.Cmp) {
	for _, c := range list {
		var cmp clientv3.Cmp
		switch c.Of {
		case records.Revision:
			cmp = clientv3.Compare(clientv3.ModRevision(c.Key), "=", c.Number)
		case records.Value:
			cmp = clientv3.Compare(clientv3.Value(c.Key), "=", c.Raw)
		case records.Lease:
			cmp = clientv3.Compare(clientv3.LeaseValue(c.Key), "=", c.Number)
		}
		if c.End != "" {
			cmp = cmp.WithRange(c.End)
		}
		out = append(out, cmp)
	}
	return out
}

// maxOps is how many operations etcd takes in a transaction, and in each one within, less those
// of the outer one; nestedOps is how many operations have in one within.
const (
	maxOps    = 128
	nestedOps = 80
)

// operations returns list as etcd's client has it. The puts that a long one begins with are in
// nested transactions.
func operations(list []records.Op) (out []clientv3.Op) {
	if len(list) > maxOps {
		puts := slices.IndexFunc(list, func(op records.Op) bool { return op.Do != records.Put })
		for some := range slices.Chunk(list[:puts], nestedOps) {
			out = append(out, clientv3.OpTxn(nil, operations(some), nil))
		}
		list = list[puts:]
	}
	for _, op := range list {
		switch op.Do {
		case records.Get, records.Count:
			out = append(out, clientv3.OpGet(op.Key, options(op)...))
		case records.Put:
			out = append(out, clientv3.OpPut(op.Key, op.Raw, options(op)...))
		case records.Delete:
			out = append(out, clientv3.OpDelete(op.Key, options(op)...))
		}
	}
	return out
}

func options(op records.Op) (out []clientv3.OpOption) {
	if op.End != "" {
		out = append(out, clientv3.WithRange(op.End))
	}
	if op.Last > 0 {
		down := clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend)
		out = append(out, clientv3.WithLimit(int64(op.Last)), down)
	}
	if op.Lease != 0 {
		out = append(out, clientv3.WithLease(clientv3.LeaseID(op.Lease)))
	}
	if op.Do == records.Count {
		out = append(out, clientv3.WithCountOnly())
	}
	return out
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

// callTimeout bounds the opening of a watch, and by default each request.
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
