package server_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/chaos/tier"
)

// empty answers every request with the same message: the minimum cost of a service with
// this library.
type empty struct {
	pb.UnimplementedAllocatorServiceServer
	response *pb.AllocateResponse
	streamed *pb.AllocateStreamResponse
}

func newEmpty() *empty {
	res := &pb.AllocateResponse{First: 1 << 60, Count: 1, Stride: 32, Node: "node-a", Sid: 7, Layout: 1, EpochUnixMs: 1_704_067_200_000}
	return &empty{response: res, streamed: &pb.AllocateStreamResponse{
		Sequence: 1, Result: &pb.AllocateStreamResponse_Response{Response: res},
	}}
}

func (e *empty) Allocate(context.Context, *pb.AllocateRequest) (*pb.AllocateResponse, error) {
	return e.response, nil
}

func (e *empty) AllocateStream(stream pb.AllocatorService_AllocateStreamServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		if err := stream.Send(e.streamed); err != nil {
			return err
		}
	}
}

// dialEmpty serves it with the settings that the library has by itself.
func dialEmpty(t testing.TB) *grpc.ClientConn {
	g := grpc.NewServer()
	pb.RegisterAllocatorServiceServer(g, newEmpty())
	return servertest.Dial(t, g)
}

// observed observes latencies, as a node does.
func observed(c *servertest.Config) { c.Observe = func(string, time.Duration) {} }

// discard is a ResponseWriter that costs nothing.
type discard struct {
	header http.Header
	status int
	body   []byte
}

func (d *discard) Header() http.Header { return d.header }
func (d *discard) WriteHeader(s int)   { d.status = s }
func (d *discard) Write(p []byte) (int, error) {
	d.body = append(d.body[:0], p...)
	return len(p), nil
}

// TestAllocations: a request for IDs allocates no more than a handler that does nothing,
// with the same library.
func TestAllocations(t *testing.T) {
	if tier.Raced {
		t.Skip("not run: under the race detector pools drop values on purpose")
	}
	env := servertest.New(t, observed)
	if id := env.Node.Space(); id != servertest.SpaceID {
		t.Fatalf("the node is of space %x", id)
	}

	t.Run("HTTP", func(t *testing.T) {
		mux := http.NewServeMux()
		mux.HandleFunc("POST /v1/ids", func(http.ResponseWriter, *http.Request) {})
		for _, target := range []string{
			"/v1/ids", "/v1/ids?count=1", "/v1/ids?count=10&as=int", "/v1/ids?count=3&as=ulid", "/v1/ids?count=3&as=uuid&after=1000000000",
		} {
			for _, accept := range []string{"", "text/plain"} {
				measure := func(h http.Handler) float64 {
					r := httptest.NewRequest(http.MethodPost, target, nil)
					if accept != "" {
						r.Header.Set("Accept", accept)
					}
					d := &discard{header: http.Header{}, body: make([]byte, 0, 1<<10)}
					n := testing.AllocsPerRun(500, func() { h.ServeHTTP(d, r) })
					if d.status != 0 {
						t.Fatalf("%s: %d %s", target, d.status, d.body)
					}
					return n
				}
				if got, minimum := measure(env.HTTP), measure(mux); got > minimum {
					t.Errorf("%s, %q: %v allocations, a handler that does nothing has %v", target, accept, got, minimum)
				}
			}
		}
	})

	// Client and connection are the same on both sides, so the difference is the handler.
	t.Run("gRPC", func(t *testing.T) {
		measure := func(conn *grpc.ClientConn) float64 {
			c, req := pb.NewAllocatorServiceClient(conn), &pb.AllocateRequest{Count: 1}
			return testing.AllocsPerRun(500, func() {
				if _, err := c.Allocate(t.Context(), req); err != nil {
					t.Error(err)
				}
			})
		}
		if got, minimum := measure(env.Dial()), measure(dialEmpty(t)); got > minimum {
			t.Errorf("%v allocations, a handler that does nothing has %v", got, minimum)
		} else {
			t.Logf("%v allocations, client included; a handler that does nothing: %v", got, minimum)
		}
	})

	t.Run("stream", func(t *testing.T) {
		measure := func(conn *grpc.ClientConn) float64 {
			s, err := pb.NewAllocatorServiceClient(conn).AllocateStream(t.Context())
			fatal.If(t, err)
			defer func() { _ = s.CloseSend() }()
			req := &pb.AllocateStreamRequest{Sequence: 1, Request: &pb.AllocateRequest{Count: 1}}
			var res pb.AllocateStreamResponse
			return testing.AllocsPerRun(500, func() {
				if err := s.Send(req); err != nil {
					t.Error(err)
				}
				if err := s.RecvMsg(&res); err != nil {
					t.Error(err)
				}
			})
		}
		if got, minimum := measure(env.Dial()), measure(dialEmpty(t)); got > minimum {
			t.Errorf("%v allocations, a handler that does nothing has %v", got, minimum)
		} else {
			t.Logf("%v allocations, client included; a handler that does nothing: %v", got, minimum)
		}
	})
}
