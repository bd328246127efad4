package clienttest_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/daemontest"
	"github.com/flakelease/allocator/chaos/etcdsim"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/client/clienttest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/daemon"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probe"))
}

// answer is what a request got, without what differs from run to run.
type answer struct {
	code, reason, message, metadata string
	retry                           bool
	count                           int32
	stride                          int64
	layout                          pb.Layout
	epoch                           int64
	sid                             int32
	above                           bool // the first ID exceeds after
}

func block(res *pb.AllocateResponse, after int64) answer {
	return answer{code: "OK", count: res.Count, stride: res.Stride, layout: res.Layout, epoch: res.EpochUnixMs,
		sid: int32(flake.Default.SID(flake.ID(res.First))) - res.Sid, above: res.First > after}
}

func keys(m map[string]string) string { return strings.Join(slices.Sorted(maps.Keys(m)), " ") }

// exact is the message without its numbers.
func exact(message string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("0123456789.hmsµ", r) {
			return -1
		}
		return r
	}, message)
}

func unary(t *testing.T, c pb.AllocatorServiceClient, req *pb.AllocateRequest) answer {
	t.Helper()
	res, err := c.Allocate(t.Context(), req)
	if err == nil {
		return block(res, req.After)
	}
	s := status.Convert(err)
	a := answer{code: s.Code().String(), message: exact(s.Message())}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			a.reason, a.metadata = d.Domain+" "+d.Reason, keys(d.Metadata)
		case *errdetails.RetryInfo:
			a.retry = d.RetryDelay.AsDuration() > 0
		}
	}
	return a
}

func streamed(t *testing.T, stream pb.AllocatorService_AllocateStreamClient, number int64, req *pb.AllocateRequest) answer {
	t.Helper()
	fatal.If(t, stream.Send(&pb.AllocateStreamRequest{Sequence: number, Request: req}))
	res, err := stream.Recv()
	fatal.If(t, err)
	if res.Sequence != number {
		t.Errorf("answer %d to request %d", res.Sequence, number)
	}
	if r := res.GetRefusal(); r != nil {
		return answer{reason: r.Reason.String(), message: exact(r.Message), metadata: keys(r.Metadata), retry: r.RetryAfterMs > 0}
	}
	return block(res.GetResponse(), req.After)
}

// realNode returns a connection to a node that the daemon runs.
func realNode(t *testing.T) *grpc.ClientConn {
	t.Helper()
	e, endpoint, err := etcdsim.OnLoopback()
	fatal.If(t, err)
	t.Cleanup(e.Close)
	s := daemontest.Settings(t, "node-0", endpoint)
	s.Issue.MaxWait = 0 // a node in memory does not wait: nothing moves its clock meanwhile
	daemontest.Init(t, s)
	d := daemontest.Start(t, s, daemon.Host{})
	wait.Until(t, "ready", func() bool { return d.Node().Ready() == nil })
	conn, err := grpc.NewClient(d.Addresses().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	fatal.If(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// inMemory returns a connection to n.
func inMemory(t *testing.T, n *clienttest.Node) *grpc.ClientConn {
	t.Helper()
	l, s := bufconn.Listen(1<<16), grpc.NewServer()
	n.Register(s)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///node", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	fatal.If(t, err)
	t.Cleanup(func() { _ = conn.Close(); s.Stop(); <-served })
	return conn
}

// TestAnswersAreThoseOfANode: a Node gives the answers of a real node, byte for byte but
// for times and numbers.
func TestAnswersAreThoseOfANode(t *testing.T) {
	n := clienttest.NewNode(clienttest.Options{})
	real, fake := realNode(t), inMemory(t, n)
	at := func(now time.Time, ahead time.Duration) int64 {
		return (now.Add(ahead).UnixMilli() - flake.DefaultEpoch) << 20
	}
	for name, req := range map[string]func(now time.Time) *pb.AllocateRequest{
		"one":      func(time.Time) *pb.AllocateRequest { return &pb.AllocateRequest{Count: 1} },
		"largest":  func(time.Time) *pb.AllocateRequest { return &pb.AllocateRequest{Count: 1_000_000} },
		"too many": func(time.Time) *pb.AllocateRequest { return &pb.AllocateRequest{Count: 1_000_001} },
		"none":     func(time.Time) *pb.AllocateRequest { return &pb.AllocateRequest{} },
		"negative": func(time.Time) *pb.AllocateRequest { return &pb.AllocateRequest{Count: -1} },
		"after": func(now time.Time) *pb.AllocateRequest {
			return &pb.AllocateRequest{Count: 3, After: at(now, 100*time.Millisecond)}
		},
		"ahead": func(now time.Time) *pb.AllocateRequest {
			return &pb.AllocateRequest{Count: 3, After: at(now, 600*time.Millisecond)}
		},
		"far ahead": func(now time.Time) *pb.AllocateRequest {
			return &pb.AllocateRequest{Count: 3, After: at(now, time.Hour)}
		},
		"not an ID":  func(time.Time) *pb.AllocateRequest { return &pb.AllocateRequest{Count: 1, After: -1} },
		"both wrong": func(time.Time) *pb.AllocateRequest { return &pb.AllocateRequest{Count: 0, After: -1} },
		"count first": func(now time.Time) *pb.AllocateRequest {
			return &pb.AllocateRequest{Count: -1, After: at(now, time.Hour)}
		},
	} {
		want := unary(t, pb.NewAllocatorServiceClient(real), req(time.Now()))
		got := unary(t, pb.NewAllocatorServiceClient(fake), req(n.Now()))
		if got != want {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
		a, err1 := pb.NewAllocatorServiceClient(real).AllocateStream(t.Context())
		b, err2 := pb.NewAllocatorServiceClient(fake).AllocateStream(t.Context())
		fatal.If(t, errors.Join(err1, err2))
		for i := range int64(2) { // a refusal leaves the stream open
			if want, got := streamed(t, a, 7+i, req(time.Now())), streamed(t, b, 7+i, req(n.Now())); got != want {
				t.Errorf("%s, on a stream:\n got %+v\nwant %+v", name, got, want)
			}
		}
	}
}

// TestDeterministic: the same calls get the same IDs in every run.
func TestDeterministic(t *testing.T) {
	for _, mode := range []client.Mode{client.Coalesce, client.Direct} {
		for range 3 {
			n := clienttest.NewNode(clienttest.Options{SID: 7})
			c := clienttest.NewClient(t, client.Options{Mode: mode}, n)
			var got []string
			for i := range 3 {
				id, err := c.Next(t.Context())
				fatal.If(t, err)
				if got = append(got, id.String()); i == 1 {
					n.Advance(time.Second)
				}
			}
			b, err := c.Block(t.Context(), 100_000)
			fatal.If(t, err)
			got = append(got, b.String())
			if want := []string{"01TT8HD010007", "01TT8HD020007", "01TT8HDZB0007", "100000 IDs from 01TT8HDZC0007 to 01TT8HDZF1MZ7 of node-7, sid 7"}; !slices.Equal(got, want) {
				t.Fatalf("%v: %q, want %q", mode, got, want)
			}
			if n.Requests() != 4 {
				t.Errorf("%d requests", n.Requests())
			}
		}
	}
}

// TestActs: refusals arrive as they were given, and what a node loses or does not answer
// is served by another.
func TestActs(t *testing.T) {
	for _, mode := range []client.Mode{client.Coalesce, client.Direct, client.Prefetch} {
		t.Run(mode.String(), func(t *testing.T) {
			a, b := clienttest.NewNode(clienttest.Options{}), clienttest.NewNode(clienttest.Options{SID: 1, Name: "b"})
			c := clienttest.NewClient(t, client.Options{Mode: mode, AttemptTimeout: 50 * time.Millisecond}, a, b)
			both := func(act clienttest.Act) {
				for _, n := range []*clienttest.Node{a, b} {
					n.Script(func(clienttest.Request) clienttest.Act { return act })
				}
			}
			both(clienttest.Act{Refuse: &client.Refusal{Reason: client.PermissionDenied, Message: "no", Metadata: map[string]string{"scope": "issue"}}})
			_, err := c.Next(t.Context())
			var r *client.Refusal
			if !errors.As(err, &r) || r.Reason != client.PermissionDenied || r.Message != "no" || r.Metadata["scope"] != "issue" ||
				!strings.HasPrefix(r.Node, "192.0.2.") {
				t.Errorf("got %#v", err)
			}
			for name, act := range map[string]clienttest.Act{"lost": {Lose: true}, "hanging": {Hang: true}} {
				a.Script(func(clienttest.Request) clienttest.Act { return act })
				b.Serve()
				for range 5 {
					c.Reset(c.Last()) // which drops what was prefetched
					if id, err := c.Next(t.Context()); err != nil || flake.Default.SID(id) != 1 {
						t.Fatalf("%s: %v, %v", name, id, err)
					}
				}
			}
			both(clienttest.Act{})
			c.Reset(c.Last())
			a.Refuse(client.Refusal{Reason: client.NoSID, RetryAfter: 3 * time.Second})
			b.Refuse(client.Refusal{Reason: client.NoSID, RetryAfter: 3 * time.Second})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { _, err := c.Next(ctx); ended <- err }()
			wait.Until(t, "both nodes have refused", func() bool {
				nodes := c.Stats().Nodes
				return nodes[0].Backoff > 0 && nodes[1].Backoff > 0
			})
			cancel()
			if err := <-ended; !errors.Is(err, &client.Refusal{Reason: client.NoSID}) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestMistakesPanic(t *testing.T) {
	defer func() {
		if r := recover(); r != "clienttest: layout scalable has no sid 32" {
			t.Errorf("got %v", r)
		}
	}()
	clienttest.NewNode(clienttest.Options{SID: 32})
}
