package etcdstore

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/internal/lease"
)

// TestReadsAreLinearizable: no read lets a member of etcd answer from what it has
// itself, which may be old. A member that lags would look like a history that went
// back, and a ceiling that is gone like one that never was.
func TestReadsAreLinearizable(t *testing.T) {
	var mu sync.Mutex // guards the counts
	reads, stale := 0, 0
	var look func(*etcdserverpb.RequestOp)
	one := func(r *etcdserverpb.RangeRequest) {
		if reads++; r.Serializable {
			stale++
		}
	}
	look = func(op *etcdserverpb.RequestOp) {
		switch r := op.Request.(type) {
		case *etcdserverpb.RequestOp_RequestRange:
			one(r.RequestRange)
		case *etcdserverpb.RequestOp_RequestTxn:
			for _, op := range append(r.RequestTxn.Success, r.RequestTxn.Failure...) {
				look(op)
			}
		}
	}
	listen := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
		mu.Lock()
		switch r := req.(type) {
		case *etcdserverpb.RangeRequest:
			one(r)
		case *etcdserverpb.TxnRequest:
			look(&etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestTxn{RequestTxn: r}})
		}
		mu.Unlock()
		return invoke(ctx, method, req, reply, conn, o...)
	}
	client, err := Dial(Config{Endpoints: []string{shared.Endpoint()}, Options: []grpc.DialOption{grpc.WithChainUnaryInterceptor(listen)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	s, err := New(client, "test", "linearizable")
	if err != nil {
		t.Fatal(err)
	}
	ctx := timeout(t, time.Minute)
	for what, read := range map[string]func() error{
		"load":   func() error { _, err := s.Load(ctx); return err },
		"read":   func() error { _, err := s.Read(ctx, 3); return err },
		"commit": func() error { _, _, err := s.Commit(ctx, lease.Txn{Op: lease.Release, SID: 3}); return err },
		"ping":   func() error { _, _, err := s.Ping(ctx); return err },
		"survey": func() error { _, _, err := s.Survey(ctx, 3); return err },
		"holder": func() error { _, _, err := s.Holder(ctx, 3, 0); return err },
	} {
		mu.Lock()
		reads, stale = 0, 0
		mu.Unlock()
		if err := read(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		mu.Lock()
		if reads == 0 || stale > 0 {
			t.Errorf("%s: %d reads, %d of them may be old", what, reads, stale)
		}
		mu.Unlock()
	}
}
