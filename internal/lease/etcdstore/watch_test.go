package etcdstore

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

var space = lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "pool"}

// await waits until the watch has reported.
func await(t *testing.T, changed <-chan struct{}) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(wait.Most):
		t.Fatal("nothing was reported")
	}
}

// brokenStream is a watch that etcd ends, or whose connection breaks.
type brokenStream struct {
	grpc.ClientStream
	err error
}

func (b brokenStream) RecvMsg(m any) error {
	m.(*etcdserverpb.WatchResponse).Canceled = true
	return b.err
}

func TestWatchOpensAgain(t *testing.T) {
	var opened atomic.Int32
	s := open(t, shared, grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		stream, err := next(ctx, d, cc, method, opts...)
		switch opened.Add(1) {
		case 1:
			return brokenStream{stream, nil}, err
		case 2:
			return brokenStream{stream, io.EOF}, err
		}
		return stream, err
	}))
	ctx, stop := context.WithCancel(timeout(t, wait.Most))
	changed, ended := make(chan struct{}, 100), make(chan error, 1)
	began := time.Now()
	go func() { ended <- s.Watch(ctx, time.Minute, func(lease.Watched) { changed <- struct{}{} }) }()
	await(t, changed)
	if n := opened.Load(); n != 3 {
		t.Errorf("the watch was opened %d times, want 3", n)
	}
	if took := time.Since(began); took < 2*reopenDelay {
		t.Errorf("two broken watches were opened again within %v, want a pause of %v each", took, reopenDelay)
	}
	if _, _, err := s.Init(ctx, space, 1000); err != nil {
		t.Fatal(err)
	}
	await(t, changed)
	await(t, s.Acted()) // An act may have come before the watch.
	fatal.If(t, s.Record(ctx, lease.Act{Action: "it", By: "alice@db-1", At: 1, Nonce: "a"}))
	await(t, s.Acted())
	stop()
	<-ended
}

// etcd's own clock ends leases; the memory store's is moved by hand.
func TestLeaseExpires(t *testing.T) {
	t.Parallel()
	s := open(t, shared)
	ctx := timeout(t, wait.Most)
	changed := s.connected.Load().Watch(ctx, s.Keys.Node("a"), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	<-changed // It is open: nothing is missed however long the next call takes.
	id, err := s.Register(ctx, 0, 5*time.Second, lease.Registration{Instance: "a"})
	fatal.If(t, err)
	if r := <-changed; len(r.Events) != 1 || r.Events[0].Type != clientv3.EventTypeDelete {
		t.Errorf("got %+v, want the registration deleted", r)
	}
	if err := s.KeepAlive(ctx, id); !errors.Is(err, lease.ErrLeaseGone) {
		t.Errorf("keep alive: got %v, want ErrLeaseGone", err)
	}
}

// Without a deadline of the caller's a call has one of ours.
func TestCallsAreBounded(t *testing.T) {
	t.Parallel()
	client, err := Dial(Config{Endpoints: []string{"http://127.0.0.1:1"}})
	fatal.If(t, err)
	defer client.Close()
	s, err := New(client, "test", "nobody")
	fatal.If(t, err)
	s.Timeout = 100 * time.Millisecond
	done := make(chan error, 3)
	go func() { _, err := s.Load(t.Context()); done <- err }()
	go func() { done <- s.KeepAlive(t.Context(), 1) }()
	go func() { _, _, err := s.Init(t.Context(), space, 0); done <- err }()
	for range 3 {
		select {
		case err := <-done:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a call to nobody: %v", err)
			}
		case <-time.After(wait.Most):
			t.Fatal("a call has no deadline")
		}
	}
}
