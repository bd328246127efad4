package main

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/flakelease/allocator/api/allocator/v1"
)

// stubNode answers Allocate as its func says.
type stubNode struct {
	pb.UnimplementedAllocatorServiceServer
	allocate func(context.Context) error
	asked    atomic.Int32
}

func (s *stubNode) Allocate(ctx context.Context, r *pb.AllocateRequest) (*pb.AllocateResponse, error) {
	s.asked.Add(1)
	if err := s.allocate(ctx); err != nil {
		return nil, err
	}
	return &pb.AllocateResponse{First: r.GetAfter() + 32, Count: r.GetCount(), Stride: 32, Node: "stub", Layout: pb.Layout_LAYOUT_SCALABLE, EpochUnixMs: 1_704_067_200_000}, nil
}

// stub starts a node and returns its address.
func stub(t *testing.T, allocate func(context.Context) error) (*stubNode, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	node, server := &stubNode{allocate: allocate}, grpc.NewServer()
	pb.RegisterAllocatorServiceServer(server, node)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return node, l.Addr().String()
}

func refusing(t *testing.T, code codes.Code, reason string, retry time.Duration) func(context.Context) error {
	t.Helper()
	st := status.New(code, "because")
	st, err := st.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "allocator"})
	if err == nil && retry > 0 {
		st, err = st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(retry)})
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(context.Context) error { return st.Err() }
}

func answering(context.Context) error { return nil }

func allocator(args ...string) (code int, stdout, stderr string) {
	var out, errs strings.Builder
	code = run(context.Background(), args, strings.NewReader(""), &out, &errs, nil)
	return code, out.String(), errs.String()
}

// A node that is there and says nothing costs its share of the time, once: the
// blocks after it are asked of whoever answered.
func TestSilentNodeIsPassedOver(t *testing.T) {
	silent, silentAddr := stub(t, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	good, goodAddr := stub(t, answering)
	code, out, errs := allocator("get", "25000", "--timeout", "4s", "--addr", silentAddr+","+goodAddr)
	if code != exitOK || strings.Count(out, "\n") != 25_000 || errs != "" {
		t.Fatalf("exit code %d, %d lines, stderr %q", code, strings.Count(out, "\n"), errs)
	}
	if silent.asked.Load() != 1 || good.asked.Load() != 3 {
		t.Errorf("the silent one was asked %d times, the other %d; want 1 and 3", silent.asked.Load(), good.asked.Load())
	}
}

func TestRefusalsAreTriedElsewhere(t *testing.T) {
	for _, c := range []struct {
		code   codes.Code
		reason string
		retry  time.Duration
	}{
		{codes.Unavailable, "NO_SID", 0}, {codes.Unavailable, "CLOCK_SKEW", time.Second}, {codes.ResourceExhausted, "ENTROPY_OVERFLOW", time.Millisecond},
		{codes.Unimplemented, "", 0}, // what a proxy without a node says
		{codes.ResourceExhausted, "RATE_LIMITED", time.Minute}, {codes.FailedPrecondition, "AFTER_TOO_FAR", time.Minute},
	} {
		_, bad := stub(t, refusing(t, c.code, c.reason, c.retry))
		_, good := stub(t, answering)
		if code, out, errs := allocator("get", "--addr", bad+","+good); code != exitOK || len(out) != 14 || errs != "" {
			t.Errorf("%s: exit code %d, %q, stderr %q", c.reason, code, out, errs)
		}
	}
}

func TestCallersFaultsAreNot(t *testing.T) {
	for reason, code := range map[string]codes.Code{
		"INVALID_COUNT": codes.InvalidArgument, "UNAUTHENTICATED": codes.Unauthenticated,
		"PERMISSION_DENIED": codes.PermissionDenied, "AFTER_TOO_FAR": codes.FailedPrecondition,
	} {
		_, bad := stub(t, refusing(t, code, reason, 0))
		good, goodAddr := stub(t, answering)
		got, out, errs := allocator("get", "--addr", bad+","+goodAddr)
		if got != exitInvalid || out != "" || errs != "allocator: node at "+bad+" refused: "+reason+": because\n" || good.asked.Load() != 0 {
			t.Errorf("%s: exit code %d, %q, stderr %q; the other was asked %d times", reason, got, out, errs, good.asked.Load())
		}
	}
}

// A refusal that will pass is waited for, when nobody else can.
func TestRefusalsThatPass(t *testing.T) {
	no := refusing(t, codes.Unavailable, "STARTING", 20*time.Millisecond)
	asked := 0
	_, late := stub(t, func(ctx context.Context) error {
		if asked++; asked < 4 {
			return no(ctx)
		}
		return nil
	})
	code, out, errs := allocator("get", "--addr", late, "--addr", "127.0.0.1:1")
	if code != exitOK || len(out) != 14 || errs != "" || asked != 4 {
		t.Errorf("exit code %d, %q, stderr %q after %d questions", code, out, errs, asked)
	}

	_, never := stub(t, refusing(t, codes.Unavailable, "STARTING", 20*time.Millisecond))
	code, out, errs = allocator("get", "--timeout", "3s", "--addr", "127.0.0.1:1,"+never)
	if code != exitInvalid || out != "" || !strings.Contains(errs, "node at "+never+" refused: STARTING: because") || !strings.Contains(errs, "node at 127.0.0.1:1 ") {
		t.Errorf("exit code %d, %q, stderr %q", code, out, errs)
	}
}

// A refusal is told, even if our time ends while the node is asked again.
func TestRefusalBeforeTimeIsUp(t *testing.T) {
	no := refusing(t, codes.Unavailable, "STARTING", 20*time.Millisecond)
	asked := 0
	_, silent := stub(t, func(ctx context.Context) error {
		if asked++; asked == 1 {
			return no(ctx)
		}
		<-ctx.Done()
		return ctx.Err()
	})
	code, out, errs := allocator("get", "--timeout", "3s", "--addr", silent)
	if code != exitInvalid || out != "" || !strings.Contains(errs, "node at "+silent+" refused: STARTING: because") {
		t.Errorf("exit code %d, %q, stderr %q", code, out, errs)
	}
}

// What was printed before a failure counts, and is said.
func TestPartOfTheIDs(t *testing.T) {
	asked := 0
	_, addr := stub(t, func(context.Context) error {
		if asked++; asked > 1 {
			return refusing(t, codes.Unavailable, "DRAINING", 0)(t.Context())
		}
		return nil
	})
	code, out, errs := allocator("get", "15000", "--addr", addr)
	if code != exitInvalid || strings.Count(out, "\n") != getBlock || !strings.HasPrefix(errs, "allocator: got 10000 of 15000 IDs: node at ") {
		t.Errorf("exit code %d, %d lines, stderr %q", code, strings.Count(out, "\n"), errs)
	}
}
