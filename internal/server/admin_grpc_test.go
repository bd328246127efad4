package server_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
)

func (w *world) admin() pb.AdminServiceClient { return pb.NewAdminServiceClient(w.dial()) }

// record sets what etcd has of sid 7.
func (w *world) record(change func(*lease.Window)) {
	rec := lease.Window{
		Era: 1, Term: 1, Instance: "a-1", Node: "node-a", Nonce: "n",
		Base: start, Ceil: start + 5, State: lease.Released, Wall: start,
	}
	change(&rec)
	w.dir.set(func(d *directory) {
		d.view = lease.View{SIDs: map[flake.SID]lease.SIDRecords{7: {Window: lease.NewEntry[lease.Window](9, 0, lease.Encode(rec))}}}
	})
}

func TestDrainWithoutHook(t *testing.T) {
	w := newWorld(t)
	_, err := w.admin().Drain(t.Context(), &pb.DrainRequest{})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "SIGTERM") {
		t.Errorf("got %v", err)
	}
	if r := w.node.Ready(); r != nil {
		t.Errorf("the node was changed all the same: %v", r)
	}
}

// The node refuses before its sid is given back, and stays.
func TestDrain(t *testing.T) {
	var w *world
	var calls atomic.Int32
	w = newWorld(t, func(c *server.Config) {
		c.Drain = func(context.Context) error {
			if r := w.node.Ready(); r == nil || r.Reason != node.Draining {
				t.Errorf("the sid is given back while the node is ready: %v", r)
			}
			if calls.Add(1) == 1 {
				w.node.Seal()
				w.node.Report(lease.Status{Phase: lease.Stopped, EverHeld: true})
				w.record(func(*lease.Window) {})
			}
			return nil
		}
	})
	if _, err := w.client().Allocate(t.Context(), &pb.AllocateRequest{Count: 3}); err != nil {
		t.Fatal(err)
	}
	stream, err := w.client().AllocateStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := &pb.DrainResponse{Node: "node-a", Instance: "a-1", Sid: 7, Term: 1, Released: true, CeilUnixMs: int64(start) + 5, IdsIssued: 3}
	for range 2 { // a second call says the same
		got, err := w.admin().Drain(t.Context(), &pb.DrainRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != want.String() {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if calls.Load() != 2 {
		t.Errorf("asked to drain %d times", calls.Load())
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("a stream ends with %v", err)
	}
	_, err = w.client().Allocate(t.Context(), &pb.AllocateRequest{Count: 1})
	if status.Code(err) != codes.Unavailable || w.node.Stats().Issued != 3 {
		t.Errorf("%v, %d issued", err, w.node.Stats().Issued)
	}
	if got := w.server.Stats(); !hasCount(got, "grpc_drain", "OK", 2) {
		t.Errorf("counted %v", got)
	}
}

func hasCount(list []server.Count, surface, outcome string, n int64) bool {
	for _, c := range list {
		if c.Surface == surface && c.Outcome == outcome && c.Requests == n {
			return true
		}
	}
	return false
}

// What etcd has is the answer, whatever the hook says.
func TestDrainTellsWhatEtcdHas(t *testing.T) {
	for _, tc := range []struct {
		name     string
		change   func(*lease.Window)
		released bool
		ceil     clock.Millis
	}{
		{"given back", func(*lease.Window) {}, true, start + 5},
		{"still active", func(w *lease.Window) { w.State = lease.Active }, false, 0},
		{"another's, of our term", func(w *lease.Window) { w.Instance = "b-1" }, false, 0},
		{"an older term", func(w *lease.Window) { w.Term = 0 }, false, 0}, // unreadable, that is
		{"taken since", func(w *lease.Window) { w.Term, w.Instance, w.State = 2, "b-1", lease.Active }, true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, func(c *server.Config) { c.Drain = func(context.Context) error { return nil } })
			w.record(tc.change)
			got, err := w.admin().Drain(t.Context(), &pb.DrainRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if got.Sid != 7 || got.Released != tc.released || got.CeilUnixMs != int64(tc.ceil) {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestDrainOfAStandby(t *testing.T) {
	w := newWorld(t, func(c *server.Config) { c.Drain = func(context.Context) error { return nil } })
	w.node.Seal()
	w.node.Report(lease.Status{Phase: lease.Standby})
	got, err := w.admin().Drain(t.Context(), &pb.DrainRequest{})
	if err != nil || got.Sid != -1 || got.Released {
		t.Errorf("%v, %v", got, err)
	}
}

// A drain that fails says so, and the node refuses all the same.
func TestDrainFails(t *testing.T) {
	for _, tc := range []struct {
		name       string
		hook, read error
		want       string
	}{
		{"hook", errAway, nil, "could not be given back: etcd is away"},
		{"read", nil, errAway, "is unknown: etcd is away"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, func(c *server.Config) { c.Drain = func(context.Context) error { return tc.hook } })
			w.dir.set(func(d *directory) { d.err = tc.read })
			_, err := w.admin().Drain(t.Context(), &pb.DrainRequest{})
			if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if r := w.node.Ready(); r == nil || r.Reason != node.Draining {
				t.Errorf("ready: %v", r)
			}
		})
	}
}

// A drain goes on when the caller leaves, and whoever asks meanwhile waits for
// the same one.
func TestDrainOutlivesItsCaller(t *testing.T) {
	var calls atomic.Int32
	began, finish, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	w := newWorld(t, func(c *server.Config) {
		c.Drain = func(ctx context.Context) error {
			calls.Add(1)
			close(began)
			<-finish
			ended <- ctx.Err()
			return nil
		}
	})
	w.record(func(*lease.Window) {})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := w.admin().Drain(ctx, &pb.DrainRequest{})
		first <- err
	}()
	<-began
	cancel()
	if err := <-first; status.Code(err) != codes.Canceled {
		t.Errorf("the first caller: %v", err)
	}
	second := make(chan error, 1)
	go func() {
		_, err := w.admin().Drain(t.Context(), &pb.DrainRequest{})
		second <- err
	}()
	select {
	case err := <-second:
		t.Fatalf("the second call did not wait: %v", err)
	case <-time.After(50 * time.Millisecond): // long enough to be there, on any machine that matters
	}
	close(finish)
	if err := errors.Join(<-ended, <-second); err != nil {
		t.Error(err)
	}
	if calls.Load() != 1 {
		t.Errorf("drained %d times", calls.Load())
	}
}

// What a process has seen stays known when etcd has forgotten it: recovery goes by it.
func TestSelfRemembers(t *testing.T) {
	w := newWorld(t)
	w.node.Raise(start + 60_000)
	w.node.Seal()
	w.node.Report(lease.Status{Phase: lease.Rewound, Era: lease.Era{Number: 3}, Revision: 77, Cluster: 1 << 63})
	w.dir.set(func(d *directory) {
		d.view.Era = lease.NewEntry[lease.Era](2, 0, lease.Encode(lease.Era{Number: 2}))
		d.view.Revision = 5
	})
	got, err := w.admin().GetCluster(t.Context(), &pb.GetClusterRequest{})
	if err != nil {
		t.Fatal(err)
	}
	self := got.GetSelf()
	if got.Era != 2 || self.Era != 3 || self.Revision != 77 || self.ClusterId != 1<<63 || self.HighestCeilUnixMs != int64(start)+60_000 {
		t.Errorf("got %v", got)
	}
	if res := w.do("GET", "/v1/cluster", ""); res.StatusCode != 200 {
		t.Errorf("HTTP: %d", res.StatusCode)
	}
}
