package server_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
)

// empty answers everything with the same, and does nothing for it: the least
// that a service costs with this library.
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
	return dial(t, g)
}

// dial serves g until the test ends and returns a connection.
func dial(t testing.TB, g *grpc.Server) *grpc.ClientConn {
	l := bufconn.Listen(1 << 16)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	conn, err := grpc.NewClient("passthrough:///node", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// observed has a world note latencies, as a node does.
func observed(c *server.Config) { c.Observe = func(string, time.Duration) {} }

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

// TestAllocations: on the way of a request for IDs nothing is allocated beyond
// what the library allocates around a handler that does nothing.
func TestAllocations(t *testing.T) {
	if raced {
		t.Skip("not run: pools forget on purpose under the race detector")
	}
	w := newWorld(t, observed)

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
				if got, least := measure(w.http), measure(mux); got > least {
					t.Errorf("%s, %q: %v allocations, a handler that does nothing has %v", target, accept, got, least)
				}
			}
		}
	})

	// What gRPC takes and keeps: the bytes, the buffer around them, and the list
	// with it. The test's own are a buffer and the function it reads with.
	t.Run("codec", func(t *testing.T) {
		request := []byte{0x08, 1}
		n := testing.AllocsPerRun(500, func() {
			if _, err := w.server.ServeAllocate(t.Context(), request); err != nil {
				t.Error(err)
			}
		})
		if n > 3+2 {
			t.Errorf("%v allocations, want 3 and the test's 2", n)
		}
	})

	// Client and connection are the same on both sides, so what differs is ours.
	t.Run("gRPC", func(t *testing.T) {
		measure := func(conn *grpc.ClientConn) float64 {
			c, req := pb.NewAllocatorServiceClient(conn), &pb.AllocateRequest{Count: 1}
			return testing.AllocsPerRun(500, func() {
				if _, err := c.Allocate(t.Context(), req); err != nil {
					t.Error(err)
				}
			})
		}
		if got, least := measure(w.dial()), measure(dialEmpty(t)); got > least {
			t.Errorf("%v allocations, a handler that does nothing has %v", got, least)
		} else {
			t.Logf("%v allocations, client included; a handler that does nothing: %v", got, least)
		}
	})

	t.Run("stream", func(t *testing.T) {
		measure := func(conn *grpc.ClientConn) float64 {
			s, err := pb.NewAllocatorServiceClient(conn).AllocateStream(t.Context())
			if err != nil {
				t.Fatal(err)
			}
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
		if got, least := measure(w.dial()), measure(dialEmpty(t)); got > least {
			t.Errorf("%v allocations, a handler that does nothing has %v", got, least)
		} else {
			t.Logf("%v allocations, client included; a handler that does nothing: %v", got, least)
		}
	})
}

// Each beside a handler that does nothing, on the same library and client.

func BenchmarkUnary(b *testing.B) {
	bench := func(b *testing.B, conn *grpc.ClientConn) {
		c, req := pb.NewAllocatorServiceClient(conn), &pb.AllocateRequest{Count: 1}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Allocate(b.Context(), req); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("ours", func(b *testing.B) { bench(b, dial(b, live(b).NewGRPC())) })
	b.Run("empty", func(b *testing.B) { bench(b, dialEmpty(b)) })
}

func BenchmarkStream16(b *testing.B) {
	bench := func(b *testing.B, conn *grpc.ClientConn) {
		s, err := pb.NewAllocatorServiceClient(conn).AllocateStream(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		req := &pb.AllocateStreamRequest{Sequence: 1, Request: &pb.AllocateRequest{Count: 1}}
		var res pb.AllocateStreamResponse
		b.ReportAllocs()
		for b.Loop() {
			for range 16 {
				if err := s.Send(req); err != nil {
					b.Fatal(err)
				}
			}
			for range 16 {
				if err := s.RecvMsg(&res); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.Run("ours", func(b *testing.B) { bench(b, dial(b, live(b).NewGRPC())) })
	b.Run("empty", func(b *testing.B) { bench(b, dialEmpty(b)) })
}

func BenchmarkHTTP(b *testing.B) {
	bench := func(b *testing.B, h http.Handler) {
		r := httptest.NewRequest(http.MethodPost, "/v1/ids?count=1", strings.NewReader(""))
		r.ContentLength = 0
		d := &discard{header: http.Header{}, body: make([]byte, 0, 1<<10)}
		b.ReportAllocs()
		for b.Loop() {
			h.ServeHTTP(d, r)
		}
	}
	b.Run("ours", func(b *testing.B) { bench(b, live(b).HTTP()) })
	b.Run("empty", func(b *testing.B) {
		mux := http.NewServeMux()
		mux.HandleFunc("POST /v1/ids", func(http.ResponseWriter, *http.Request) {})
		bench(b, mux)
	})
}

// live returns the server of a node on the machine's clock, whose window no
// benchmark exhausts.
func live(b *testing.B) *server.Server {
	src := clock.NewSystem(clock.SystemConfig{})
	now := src.Now().Wall
	n := node.New(node.Config{
		Name: "node-a", Instance: "a-1", MaxWait: time.Second,
		Gen: gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 250, MaxStep: 255},
	}, src, gen.Random())
	n.Begin(lease.Grant{SID: 7, Term: 1, Base: now, Ceil: now + 3_600_000})
	cfg := server.Config{Node: n, Directory: &directory{}, Space: "test", Logger: slog.New(slog.DiscardHandler)}
	observed(&cfg)
	s, err := server.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	return s
}
