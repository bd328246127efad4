package grpcserver_test

import (
	"bytes"
	"context"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
)

// released has etcd say that sid 7 is released.
func released(env *servertest.Env) {
	rec := lease.Window{
		Era: 1, Term: 1, Instance: "a-1", Node: "node-a", Nonce: "n",
		Base: servertest.Start, Ceil: servertest.Start + 5, State: lease.Released, Wall: servertest.Start,
	}
	env.Dir.Set(func(d *servertest.Directory) {
		d.View = lease.View{SIDs: map[flake.SID]lease.SIDRecords{7: {Window: lease.NewEntry[lease.Window](9, 0, lease.Encode(rec))}}}
	})
}

// The node refuses before its sid is given back, and stays, until it is undrained. The rules are in
// internal/operate.
func TestDrain(t *testing.T) {
	var env *servertest.Env
	var calls atomic.Int32
	undone := 0
	env = servertest.New(t, func(c *servertest.Config) {
		c.Undrain = func() { undone++ }
		c.Drain = func(context.Context) error {
			if r := env.Node.Ready(); r == nil || r.Reason != node.Draining {
				t.Errorf("the sid is given back while the node is ready: %v", r)
			}
			if calls.Add(1) == 1 {
				env.Node.Seal()
				env.Node.Report(lease.Status{Phase: lease.Stopped, EverHeld: true})
				released(env)
			}
			return nil
		}
	})
	if _, err := env.Client().Allocate(t.Context(), &pb.AllocateRequest{Count: 3}); err != nil {
		t.Fatal(err)
	}
	stream, err := env.Client().AllocateStream(t.Context())
	fatal.If(t, err)
	want := &pb.DrainResponse{Node: "node-a", Instance: "a-1", Sid: 7, Term: 1, Released: true, CeilUnixMs: int64(servertest.Start) + 5, IdsIssued: 3}
	for range 2 { // a second call says the same
		got, err := env.Admin().Drain(t.Context(), &pb.DrainRequest{})
		fatal.If(t, err)
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
	_, err = env.Client().Allocate(t.Context(), &pb.AllocateRequest{Count: 1})
	if status.Code(err) != codes.Unavailable || env.Node.Stats().Issued != 3 {
		t.Errorf("%v, %d issued", err, env.Node.Stats().Issued)
	}
	if got := env.Service.Stats(); !hasCount(got, "grpc_drain", "OK", 2) {
		t.Errorf("counted %v", got)
	}
	for _, was := range []bool{true, false} {
		got, err := env.Admin().Undrain(t.Context(), &pb.UndrainRequest{})
		if err != nil || got.WasDrained != was || got.Node != "node-a" || got.Instance != "a-1" || undone != 1 {
			t.Errorf("undrained: %v, %v, %d times", got, err, undone)
		}
	}
	if r := env.Node.Ready(); r != nil && r.Reason == node.Draining {
		t.Errorf("undrained: %v", r)
	}
	env.Drainer.Stop()
	if _, err := env.Admin().Undrain(t.Context(), &pb.UndrainRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("undrained, of a node that stops: %v", err)
	}
}

// Without tokens and certificates, a node is drained from its own machine alone. Who calls
// is logged.
func TestDrainFromElsewhere(t *testing.T) {
	for _, tc := range []struct {
		from    string
		guard   access.Config
		allowed bool
	}{
		{"127.0.0.1", access.Config{}, true},
		{"10.1.2.3", access.Config{}, false},
		{"10.1.2.3", access.Config{Rate: 100, Now: func() clock.Mono { return 0 }}, false},
		{"10.1.2.3", access.Config{OpenAdmin: access.OpenToAll}, true},
		{"127.0.0.1", access.Config{OpenAdmin: access.OpenToNobody}, false},
	} {
		var log bytes.Buffer
		env := servertest.New(t, func(c *servertest.Config) {
			c.From, c.Guard, c.Log = netip.MustParseAddr(tc.from), access.New(tc.guard), &log
			c.Drain, c.Undrain = func(context.Context) error { return nil }, func() {}
		})
		named := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "deploy-7")
		_, err1 := env.Admin().Drain(named, &pb.DrainRequest{})
		drained := env.Node.Stats().Draining
		_, err2 := env.Admin().Undrain(t.Context(), &pb.UndrainRequest{})
		if want := map[bool]codes.Code{true: codes.OK, false: codes.PermissionDenied}[tc.allowed]; status.Code(err1) != want || status.Code(err2) != want || drained != tc.allowed {
			t.Errorf("%+v: %v, %v, drained %t", tc, err1, err2, drained)
		}
		want := "msg=\"action of an operator\" action=drain caller=" + tc.from + "/32 by=address from=" + tc.from + ":1 request=deploy-7\n"
		if !tc.allowed {
			want = "level=WARN msg=\"action of an operator rejected\" action=drain caller=" + tc.from + "/32 by=address from=" + tc.from + ":1 request=deploy-7 reason=PERMISSION_DENIED\n"
		}
		if !strings.Contains(log.String(), want) || !tc.allowed && strings.Count(log.String(), "rejected") != 1 {
			t.Errorf("%+v: the log has no %s:\n%s", tc, want, &log)
		}
		if _, err := env.Client().Allocate(t.Context(), &pb.AllocateRequest{Count: 1}); err != nil {
			t.Errorf("%+v: afterwards: %v", tc, err)
		}
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

// A drain that fails says so, and one that is undone meanwhile is aborted.
func TestDrainFails(t *testing.T) {
	for _, tc := range []struct {
		hook, read error
		want       string
	}{
		{servertest.ErrAway, nil, "release of its sid failed: etcd is away"},
		{nil, servertest.ErrAway, "the read from etcd failed: etcd is away"},
	} {
		env := servertest.New(t, func(c *servertest.Config) { c.Drain = func(context.Context) error { return tc.hook } })
		env.Dir.Set(func(d *servertest.Directory) { d.Err = tc.read })
		_, err := env.Admin().Drain(t.Context(), &pb.DrainRequest{})
		if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got %v, want %q", err, tc.want)
		}
	}
	var env *servertest.Env
	env = servertest.New(t, func(c *servertest.Config) {
		c.Drain = func(ctx context.Context) error {
			go func() { _, _ = env.Admin().Undrain(t.Context(), &pb.UndrainRequest{}) }()
			<-ctx.Done()
			return ctx.Err()
		}
	})
	if _, err := env.Admin().Drain(t.Context(), &pb.DrainRequest{}); status.Code(err) != codes.Aborted {
		t.Errorf("undone meanwhile: %v", err)
	}
}

// What a process has seen stays known when etcd has forgotten it: recovery goes by it.
func TestSelfRemembers(t *testing.T) {
	env := servertest.New(t)
	env.Node.Raise(servertest.Start + 60_000)
	env.Node.Seal()
	env.Node.Report(lease.Status{Phase: lease.Rewound, Era: lease.Era{Number: 3}, Revision: 77, Cluster: 1 << 63})
	env.Dir.Set(func(d *servertest.Directory) {
		d.View.Era = lease.NewEntry[lease.Era](2, 0, lease.Encode(lease.Era{Number: 2}))
		d.View.Revision = 5
	})
	got, err := env.Admin().GetCluster(t.Context(), &pb.GetClusterRequest{})
	fatal.If(t, err)
	self := got.GetSelf()
	if got.Era != 2 || self.Era != 3 || self.Revision != 77 || self.ClusterId != 1<<63 || self.HighestCeilUnixMs != int64(servertest.Start)+60_000 {
		t.Errorf("got %v", got)
	}
	if res := env.Do("GET", "/v1/cluster", ""); res.StatusCode != 200 {
		t.Errorf("HTTP: %d", res.StatusCode)
	}
}
