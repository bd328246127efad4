package daemon_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/node"
)

// TestDrainByCall: an operator drains one of two nodes. Its sid is given back to
// the last ID, it refuses and takes no other, and its clock still counts. Undrained, it
// acquires a sid and issues.
func TestDrainByCall(t *testing.T) {
	c := settings(t, shared.Endpoint())
	initSpace(t, c)
	a := start(t, c)
	until(t, 10*time.Second, "the first node issues", func() bool { return a.Node().Ready() == nil })
	conn, err := grpc.NewClient(a.Addresses().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := a.Node().Next(t.Context(), 10, 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := pb.NewAdminServiceClient(conn).Drain(ctx, &pb.DrainRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !r.GetReleased() || r.GetSid() != 0 || r.GetCeilUnixMs() == 0 {
		t.Errorf("drained: %v", r)
	}
	if _, err := pb.NewAdminServiceClient(conn).Drain(ctx, &pb.DrainRequest{}); err != nil {
		t.Errorf("draining again: %v", err)
	}
	time.Sleep(time.Second) // it could have taken another sid in it
	s := a.Node().Stats()
	if s.Holding || s.Lease.Held || !s.Lease.Idle {
		t.Errorf("a second after: %+v", s.Lease)
	}
	if got := a.Node().Ready(); got == nil || got.Reason != node.Draining {
		t.Errorf("refuses with %v, want DRAINING", got)
	}
	if len(s.Lease.Nodes) == 0 {
		t.Error("it is no longer registered: its clock does not count any more")
	}
	for _, was := range []bool{true, false} {
		u, err := pb.NewAdminServiceClient(conn).Undrain(ctx, &pb.UndrainRequest{})
		if err != nil || u.GetWasDrained() != was {
			t.Fatalf("undrained: %v, %v", u, err)
		}
		until(t, 10*time.Second, "it issues again", func() bool { _, err := a.Node().Next(t.Context(), 1, 0); return err == nil })
	}
}

// TestFloorAboveWorkers: the IDs of a space that takes the place of a lost one begin above
// all that nodes of the lost one granted, to themselves and to workers (I1). The longer
// window decides, whichever it is.
func TestFloorAboveWorkers(t *testing.T) {
	for name, windows := range map[string]struct{ node, worker time.Duration }{
		"worker": {30 * time.Second, time.Minute},
		"node":   {2 * time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			c := settings(t, shared.Endpoint())
			c.Lease.Window, c.Worker.Window = windows.node, windows.worker
			before := time.Now()
			_, v, err := daemon.Init(t.Context(), c, daemon.Beginning{}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			// A clock that is max-skew ahead granted it, to one that is max-lead ahead of that.
			granted := before.Add(max(windows.node, windows.worker) + 2*c.Issue.MaxSkew + c.Issue.MaxLead)
			if floor := v.Era.Value.Floor.Time(); floor.Before(granted.Truncate(time.Millisecond)) {
				t.Errorf("IDs begin %v below what a node can have granted", granted.Sub(floor))
			}
		})
	}
}
