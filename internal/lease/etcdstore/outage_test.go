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

	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/dev/devetcd"
	"github.com/flakelease/allocator/internal/lease"
)

var space = lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "pool"}

// hold makes the space and has instance a hold sid 1.
func hold(t *testing.T, s *Store) (lease.LeaseID, lease.View) {
	t.Helper()
	ctx := timeout(t, wait.Most)
	if _, _, err := s.Init(ctx, space, 1000); err != nil {
		t.Fatal(err)
	}
	id, err := s.Register(ctx, 0, time.Minute, lease.Registration{Instance: "a", Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	v, err := s.Read(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	return id, commit(t, s, lease.Acquire, id, v, "first")
}

// extension returns what instance a would write to sid 1 as v has it.
func extension(op lease.Op, id lease.LeaseID, v lease.View, nonce string) lease.Txn {
	w := v.SIDs[1].Window.Value
	w.Era, w.Term, w.Instance, w.Node, w.Nonce, w.State = 1, 1, "a", "n", nonce, lease.Active
	w.Base, w.Ceil = max(w.Ceil, 1000), max(w.Ceil, 1000)+1000
	return lease.Txn{Op: op, SID: 1, Seen: v.SIDs[1], Config: v.Config, Era: v.Era, Lease: id,
		Holder: lease.Holder{Instance: "a", Node: "n"}, Window: w}
}

func commit(t *testing.T, s *Store, op lease.Op, id lease.LeaseID, v lease.View, nonce string) lease.View {
	t.Helper()
	applied, now, err := s.Commit(timeout(t, wait.Most), extension(op, id, v, nonce))
	if err != nil || !applied {
		t.Fatalf("%v: got %v, %v, want it applied", op, applied, err)
	}
	return now
}

// await waits until the watch has reported.
func await(t *testing.T, changed <-chan struct{}) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was reported")
	}
}

// While etcd is away calls end with their deadline; when it is back the client finds it by itself.
func TestOutage(t *testing.T) {
	server, err := devetcd.Start(timeout(t, wait.Most), devetcd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	s := open(t, server)
	id, v := hold(t, s)
	ctx, stop := context.WithCancel(timeout(t, wait.Most))
	var calls atomic.Int32
	changed, ended := make(chan struct{}, 1000), make(chan error, 1)
	go func() {
		ended <- s.Watch(ctx, time.Minute, func(lease.Watched) { calls.Add(1); changed <- struct{}{} })
	}()
	await(t, changed)

	server.Stop()
	for name, call := range map[string]func(context.Context) error{
		"load":  func(ctx context.Context) error { _, err := s.Load(ctx); return err },
		"read":  func(ctx context.Context) error { _, err := s.Read(ctx, 1); return err },
		"alive": func(ctx context.Context) error { return s.KeepAlive(ctx, id) },
		"commit": func(ctx context.Context) error {
			_, _, err := s.Commit(ctx, extension(lease.Extend, id, v, "lost"))
			return err
		},
		"register": func(ctx context.Context) error {
			_, err := s.Register(ctx, 0, time.Minute, lease.Registration{Instance: "b"})
			return err
		},
		"revoke": func(ctx context.Context) error { return s.Revoke(ctx, id) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if err := call(ctx); err == nil || errors.Is(err, lease.ErrLeaseGone) {
			t.Errorf("%s without etcd: got %v, want an error that leaves the outcome open", name, err)
		}
		cancel()
	}
	if n := calls.Load(); n > 5 {
		t.Errorf("the watch reported %d times during the outage: it spins", n)
	}

	if err := server.Restart(timeout(t, wait.Most)); err != nil {
		t.Fatal(err)
	}
	if err := s.KeepAlive(timeout(t, wait.Most), id); err != nil {
		t.Errorf("keep alive after the outage: %v", err)
	}
	now, err := s.Read(timeout(t, wait.Most), 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := now.SIDs[1]; !got.Window.Same(v.SIDs[1].Window) || !got.Holder.Same(v.SIDs[1].Holder) {
		t.Errorf("after the outage: got %+v, want %+v", got, v.SIDs[1])
	}
	commit(t, s, lease.Extend, id, now, "after")
	for len(changed) > 0 {
		<-changed
	}
	if err := s.Revoke(ctx, id); err != nil {
		t.Fatal(err)
	}
	await(t, changed) // the watch survived
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("watch ended with %v", err)
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
	hold(t, s)
	await(t, changed)
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s, err := New(client, "test", "nobody")
	if err != nil {
		t.Fatal(err)
	}
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
