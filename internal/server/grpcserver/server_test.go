package grpcserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/server/grpcserver"
)

// TestDeadlinePassed calls the handler itself, since a client with a deadline
// that has passed does not send anything.
func TestDeadlinePassed(t *testing.T) {
	env := servertest.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), -time.Second)
	defer cancel()
	_, err := grpcserver.ServeAllocate(env.GRPC, ctx, []byte{0x08, 1})
	if status.Code(err) != codes.DeadlineExceeded || env.Node.Stats().Issued != 0 {
		t.Errorf("%v, %d IDs issued", err, env.Node.Stats().Issued)
	}
}

// TestStreamOrder: answers come in the order of requests, refusals in between,
// and the stream goes on after one.
//
// Incident T42 (a later batch below an earlier one), docs/INCIDENTS.md.
func TestStreamOrder(t *testing.T) {
	env := servertest.New(t)
	s, err := env.Client().AllocateStream(t.Context())
	fatal.If(t, err)
	const n = 500
	sent := make(chan error, 1)
	go func() {
		for i := range n {
			count := int32(1)
			if i%10 == 3 {
				count = 0
			}
			// Sequence numbers are the client's: they need not count up.
			if err := s.Send(&pb.AllocateStreamRequest{Sequence: int64(n - i), Request: &pb.AllocateRequest{Count: count}}); err != nil {
				sent <- err
				return
			}
		}
		sent <- s.CloseSend()
	}()
	last := flake.ID(0)
	for i := range n {
		res, err := s.Recv()
		fatal.If(t, err)
		if res.Sequence != int64(n-i) {
			t.Fatalf("answer %d has sequence %d", i, res.Sequence)
		}
		if refused := res.GetRefusal().GetReason() == pb.Reason_REASON_INVALID_COUNT; refused != (i%10 == 3) {
			t.Fatalf("answer %d: %v", i, res)
		}
		if r := res.GetResponse(); r != nil {
			if id := flake.ID(r.First); id <= last {
				t.Fatalf("answer %d: %d after %d", i, id, last)
			}
			last = flake.ID(r.First)
		}
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// TestStreamDrains: an idle stream is ended when the node drains, and what was
// asked before has its answer.
func TestStreamDrains(t *testing.T) {
	env := servertest.New(t)
	s, err := env.Client().AllocateStream(t.Context())
	fatal.If(t, err)
	fatal.If(t, s.Send(&pb.AllocateStreamRequest{Sequence: 1, Request: &pb.AllocateRequest{Count: 1}}))
	if res, err := s.Recv(); err != nil || res.GetResponse() == nil {
		t.Fatal(res, err)
	}
	env.Drainer.Stop()
	_, err = s.Recv()
	if status.Code(err) != codes.Unavailable || errorInfo(t, err).GetReason() != "DRAINING" {
		t.Errorf("ended with %v", err)
	}
	if n := env.Node.Stats().Issued; n != 1 {
		t.Errorf("%d IDs issued", n)
	}
}

// TestRun: the health service follows readiness at once, and ends with its context.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := servertest.New(t)
		h := healthpb.NewHealthClient(env.Dial())
		expect := func(want healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			synctest.Wait()
			for _, name := range []string{"", "allocator.v1.AllocatorService"} {
				res, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
				if err != nil || res.Status != want {
					t.Errorf("%q: %v, %v, want %v", name, res.GetStatus(), err, want)
				}
			}
		}
		expect(healthpb.HealthCheckResponse_NOT_SERVING) // nobody has looked yet
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- env.GRPC.Run(ctx) }()
		expect(healthpb.HealthCheckResponse_SERVING)
		for _, c := range []servertest.Condition{servertest.Skewed, servertest.Standby} {
			c.Set(env)
			expect(healthpb.HealthCheckResponse_NOT_SERVING)
			c.Cure(env)
			expect(healthpb.HealthCheckResponse_SERVING)
		}
		env.Drainer.Stop()
		expect(healthpb.HealthCheckResponse_NOT_SERVING)
		cancel()
		fatal.If(t, <-ended)
	})
}

func TestReflection(t *testing.T) {
	env := servertest.New(t)
	s, err := reflectpb.NewServerReflectionClient(env.Dial()).ServerReflectionInfo(t.Context())
	fatal.If(t, err)
	fatal.If(t, s.Send(&reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_ListServices{}}))
	res, err := s.Recv()
	fatal.If(t, err)
	names := make(map[string]bool)
	for _, svc := range res.GetListServicesResponse().GetService() {
		names[svc.Name] = true
	}
	for _, want := range []string{"allocator.v1.AllocatorService", "allocator.v1.AdminService", "grpc.health.v1.Health"} {
		if !names[want] {
			t.Errorf("%s is not listed", want)
		}
	}
}

// TestRequestLimits: what is too large is refused by the transport.
func TestRequestLimits(t *testing.T) {
	env := servertest.New(t)
	_, err := env.Client().Describe(t.Context(), &pb.DescribeRequest{Id: string(make([]byte, 65<<10))})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("65 KiB message: %v", err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x", string(make([]byte, 0)), "y", longText(17<<10))
	if _, err := env.Client().Allocate(ctx, &pb.AllocateRequest{Count: 1}); err == nil {
		t.Error("17 KiB of headers were taken")
	}
	if n := env.Node.Stats().Issued; n != 0 {
		t.Errorf("%d IDs issued", n)
	}
}

func longText(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'a'
	}
	return string(b)
}

func TestDescribeGRPC(t *testing.T) {
	env := servertest.New(t)
	env.Dir.Tenure = &lease.LedgerLine{Term: 4, Instance: "a-1", Node: "node-a", Era: 1, Since: servertest.Start - 10}
	id := servertest.At(servertest.Start, 3<<5|7)
	for _, text := range []string{id.String(), servertest.Decimal(id), servertest.Wide(id).String(), servertest.Wide(id).UUID()} {
		res, err := env.Client().Describe(t.Context(), &pb.DescribeRequest{Id: text})
		fatal.If(t, err)
		if res.GetFlake() != id.Int64() || res.Base32 != id.String() || res.UnixMs != int64(servertest.Start) || res.Randomness != 3 ||
			res.Sid != 7 || res.Layout != pb.Layout_LAYOUT_SCALABLE || res.EpochUnixMs != flake.DefaultEpoch ||
			res.TimestampMs != int64(servertest.Start)-flake.DefaultEpoch {
			t.Errorf("%s: %v", text, res)
		}
		if h := res.Holder; h.GetNode() != "node-a" || h.GetTerm() != 4 || h.GetSinceUnixMs() != int64(servertest.Start-10) {
			t.Errorf("%s: holder %v", text, h)
		}
	}
	for text, want := range map[string]string{"nonsense": "INVALID_ID", "": "INVALID_ID"} {
		_, err := env.Client().Describe(t.Context(), &pb.DescribeRequest{Id: text})
		if got := errorInfo(t, err); got.GetReason() != want || got.GetMetadata()["class"] != "bad_length" {
			t.Errorf("%q: %+v", text, got)
		}
	}
	_, err := env.Client().Describe(t.Context(), &pb.DescribeRequest{Id: "1", Kind: "x"})
	if got := errorInfo(t, err); got.GetReason() != "INVALID_FORMAT" {
		t.Errorf("%+v", got)
	}
}

// errorInfo returns the ErrorInfo of a status.
func errorInfo(t *testing.T, err error) *errdetails.ErrorInfo {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	t.Fatalf("error without ErrorInfo: %v", err)
	return nil
}

// TestAllocateAllocations: a unary request allocates the call, and what gRPC keeps of the
// answer: its bytes, the buffer around them, and the list of buffers. The test itself
// allocates a buffer and the function that reads it.
func TestAllocateAllocations(t *testing.T) {
	env, request := servertest.New(t), []byte{0x08, 1}
	n := testing.AllocsPerRun(500, func() {
		if _, err := grpcserver.ServeAllocate(env.GRPC, t.Context(), request); err != nil {
			t.Error(err)
		}
	})
	if n > 4+2 {
		t.Errorf("%v allocations, want 4 and the test's 2", n)
	}
}

// TestForms: a form that does not exist is refused, and so is any form on a stream,
// which stays open; texts are bounded like those of the other listeners.
func TestForms(t *testing.T) {
	env := servertest.New(t, func(c *servertest.Config) { c.MaxTextCount = 100 })
	reason := func(err error) string {
		r := client.RefusalOf(err, "")
		if r == nil {
			return fmt.Sprint(err)
		}
		return string(r.Reason) + ": " + r.Message
	}
	for _, tc := range []struct {
		count int32
		form  pb.Form
		want  string
	}{
		{1, 5, `INVALID_FORMAT: form is 5: use FORM_FLAKE, FORM_INT, FORM_ULID or FORM_UUID`},
		{1, -1, `INVALID_FORMAT: form is -1: use FORM_FLAKE, FORM_INT, FORM_ULID or FORM_UUID`},
		{101, pb.Form_FORM_UUID, `INVALID_COUNT: count is "101": ask for 1 to 100`},
		{0, pb.Form_FORM_INT, `INVALID_COUNT: count is "0": ask for 1 to 100`},
		{-1, 7, `INVALID_COUNT: count is "-1": ask for 1 to 100`},
	} {
		if _, err := env.Client().Allocate(t.Context(), &pb.AllocateRequest{Count: tc.count, Form: tc.form}); reason(err) != tc.want {
			t.Errorf("%d as %v: %s", tc.count, tc.form, reason(err))
		}
	}
	if _, err := env.Client().Allocate(t.Context(), &pb.AllocateRequest{Count: 101}); err != nil {
		t.Errorf("a block above the limit of texts: %v", err)
	}
	stream, err := env.Client().AllocateStream(t.Context())
	fatal.If(t, err)
	for i, form := range []pb.Form{pb.Form_FORM_ULID, 9, 0} {
		fatal.If(t, stream.Send(&pb.AllocateStreamRequest{
			Sequence: int64(i),
			Request:  &pb.AllocateRequest{Count: 1, Form: form},
		}))
		res, err := stream.Recv()
		if err != nil || res.Sequence != int64(i) {
			t.Fatalf("%v, %v", res, err)
		}
		if refused := res.GetRefusal().GetReason() == pb.Reason_REASON_INVALID_FORMAT; refused != (form != 0) {
			t.Errorf("form %v: %v", form, res)
		}
	}
}
