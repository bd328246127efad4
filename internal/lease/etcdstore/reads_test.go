package etcdstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// TestReadsAreLinearizable: no read lets a member of etcd answer from what it has
// itself, which may be old. A member that lags would look like a history that went
// back, and a ceiling that is gone like one that never was.
//
// Incident T36 (the stored time was read from a member that lags behind), docs/INCIDENTS.md.
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
	fatal.If(t, err)
	t.Cleanup(func() { client.Close() })
	s, err := New(client, "test", "linearizable")
	fatal.If(t, err)
	ctx := timeout(t, time.Minute)
	for what, read := range map[string]func() error{
		"load":   func() error { _, err := s.Load(ctx); return err },
		"read":   func() error { _, err := s.Read(ctx, 3); return err },
		"commit": func() error { _, _, err := s.Commit(ctx, lease.Txn{Op: lease.Release, SID: 3}); return err },
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

// TestHolderReadsWhatItNeeds: of a ledger that somebody filled, no more than it keeps,
// and of the last tenure's IDs one line.
func TestHolderReadsWhatItNeeds(t *testing.T) {
	var got atomic.Int64 // lines
	s := open(t, shared, grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, conn, o...)
		if r, ok := reply.(*etcdserverpb.RangeResponse); ok {
			got.Add(int64(len(r.Kvs)))
		}
		return err
	}))
	ctx := timeout(t, time.Minute)
	const kept = lease.LedgerKept
	for term := range int64(3 * kept) {
		line := lease.LedgerLine{Term: term, Instance: "i", Node: fmt.Sprint("n", term), Era: 1, Since: clock.Millis(100 * term)}
		if _, err := s.connected.Load().Put(ctx, s.Keys.Ledger(3, term), lease.Encode(line)); err != nil {
			t.Fatal(err)
		}
	}
	const last = 3*kept - 1
	for _, tt := range []struct {
		at    clock.Millis
		term  int64 // -1: none
		lines int64
	}{
		{100 * last, last, 1}, {100*last + 1e6, last, 1}, {100*last - 1, last - 1, kept},
		{100 * (last - kept + 1), last - kept + 1, kept}, {100*(last-kept+1) - 1, -1, kept},
	} {
		got.Store(0)
		line, found, err := s.Holder(ctx, 3, tt.at)
		if err != nil || found != (tt.term >= 0) || found && line.Term != tt.term || got.Load() != tt.lines {
			t.Errorf("at %d: term %d, %v, %v, %d lines read; want term %d and %d lines", tt.at, line.Term, found, err, got.Load(), tt.term, tt.lines)
		}
	}
	if _, found, err := s.Holder(ctx, 4, 0); found || err != nil {
		t.Errorf("a sid without a ledger: %v, %v", found, err)
	}
}
