package daemon_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/flakelease/allocator/api/allocator/v1"
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
