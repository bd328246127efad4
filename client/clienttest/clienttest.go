// Package clienttest has nodes for the tests of programs that use package client. They
// are in memory: no etcd, no port, no process.
//
//	node := clienttest.NewNode(clienttest.Options{})
//	c := clienttest.NewClient(t, client.Options{}, node)
//	id, err := c.Next(t.Context()) // the same ID in every run
//
// A Node issues as a real one does, and refuses a wrong count or an after that is too
// far ahead with the same answers: a test compares the two. It is deterministic: its
// clock begins at Start, moves with each request and with Advance, and with nothing
// else. What it does to a request, such as refusing it, is up to the test: see Refuse
// and Script.
//
// Calls that overlap, several nodes, and the sizes of blocks in mode Prefetch depend on
// the scheduler; IDs then differ from run to run, and are unique and in order all the
// same. So do the random bits of ULIDs and UUIDs, which the client draws.
package clienttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server/grpcserver"
	"github.com/flakelease/allocator/internal/wire"
)

// Start is what the clock of a Node shows at first.
var Start = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// maxLead and maxSkew are the defaults of issue.max-lead and issue.max-skew.
const (
	maxLead clock.Millis = 250
	maxSkew              = 250 * time.Millisecond
)

// Options describe a Node. The zero Options are valid; nodes that one client uses need
// different SIDs.
type Options struct {
	Name   string       // ""; "node-" and the SID
	SID    flake.SID    // in every ID
	Layout flake.Layout // The epoch is the layout's own; zero is flake.Scalable.
}

// Node is a node in memory. All methods are safe for concurrent use.
type Node struct {
	node   *node.Node
	format flake.Format
	clock  *manual

	mu       sync.Mutex // guards the rest, and issuing
	script   func(Request) Act
	requests int
}

// Request is a request for IDs.
type Request struct {
	Number int      // The first request to this node has number 1.
	Count  int      // The request is for this many IDs.
	After  flake.ID // All IDs must be greater; 0 sets no bound.
}

// Act is what becomes of a request. The zero Act is that it is served.
type Act struct {
	// Refuse, if set, is the answer. Reason is required, and the client sets Node.
	Refuse *client.Refusal
	// Lose issues the IDs and loses the answer: the client cannot know whether it was
	// served.
	Lose bool
	// Hang issues the IDs, and does not answer until the client gives up.
	Hang bool
}

// manual is a clock that Advance alone moves.
type manual struct{ passed atomic.Int64 } // nanoseconds since Start

func (m *manual) Now() clock.Reading {
	passed := time.Duration(m.passed.Load())
	return clock.Reading{Wall: clock.Millis(Start.UnixMilli()) + clock.MillisOf(passed), Mono: clock.Mono(passed)}
}

func (m *manual) Advance(d time.Duration) { m.passed.Add(int64(d)) }

// zeros always returns 0, so that IDs depend on nothing but requests.
type zeros struct{}

func (zeros) Uint64() uint64 { return 0 }

// NewNode returns a node that serves all requests. It panics if the layout does not have
// the SID.
func NewNode(o Options) *Node {
	o.Layout = cmp.Or(o.Layout, flake.Scalable)
	if int(o.SID) >= o.Layout.Holders() {
		panic(fmt.Sprintf("clienttest: layout %v has no sid %d", o.Layout, o.SID))
	}
	o.Name = cmp.Or(o.Name, fmt.Sprintf("node-%d", o.SID))
	begin := clock.Millis(Start.UnixMilli())
	n := &Node{format: flake.Format{Layout: o.Layout, Epoch: o.Layout.Epoch()}, clock: &manual{}}
	n.node = node.New(node.Config{
		Name: o.Name, Instance: lease.Instance(o.Name), MaxSkew: maxSkew,
		Gen: gen.Config{Layout: o.Layout, Epoch: clock.Millis(o.Layout.Epoch()), MaxLead: maxLead},
	}, n.clock, zeros{})
	const decades = 10 * 365 * 24 * time.Hour
	n.node.Begin(lease.Grant{SID: o.SID, Term: 1, Base: begin, Ceil: begin + clock.MillisOf(5*decades)})
	return n
}

// Refuse makes the node answer every later request with r, of which Reason is required.
func (n *Node) Refuse(r client.Refusal) {
	n.Script(func(Request) Act { return Act{Refuse: &r} })
}

// Serve makes the node serve every later request.
func (n *Node) Serve() { n.Script(nil) }

// Script makes do decide what becomes of every later request; nil: all are served. One
// request at a time is decided. do must not call the Node.
func (n *Node) Script(do func(Request) Act) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.script = do
}

// Requests returns how many requests the node got, whatever became of them.
func (n *Node) Requests() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.requests
}

// Advance moves the node's clock forward.
func (n *Node) Advance(d time.Duration) { n.clock.Advance(d) }

// Now returns what the node's clock shows.
func (n *Node) Now() time.Time { return n.clock.Now().Wall.Time() }

// Register adds the node to a gRPC server, for a program that connects to an address
// instead of a *client.Client from here.
func (n *Node) Register(s grpc.ServiceRegistrar) {
	pb.RegisterAllocatorServiceServer(s, service{node: n})
}

// NewClient returns a client of nodes, which is closed when the test ends. It replaces
// o.Targets and the dialer; node number i, from 1 on, has the address 192.0.2.i:9000 in
// errors and stats.
func NewClient(t testing.TB, o client.Options, nodes ...*Node) *client.Client {
	t.Helper()
	listeners := map[string]*bufconn.Listener{}
	o.Targets = nil
	for i, n := range nodes {
		addr := fmt.Sprintf("192.0.2.%d:9000", i+1) // reserved for documentation: nothing is there
		l := bufconn.Listen(1 << 20)
		s := grpc.NewServer(grpc.Creds(insecure.NewCredentials()))
		n.Register(s)
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		t.Cleanup(func() {
			s.Stop()
			if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				t.Errorf("clienttest: %v", err)
			}
		})
		listeners[addr] = l
		o.Targets = append(o.Targets, addr)
	}
	o.DialOptions = append(o.DialOptions,
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return listeners[addr].DialContext(ctx)
		}))
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // before the servers stop
	return c
}

// service is the wire contract of a Node.
type service struct {
	pb.UnimplementedAllocatorServiceServer
	node *Node
}

// serve decides what becomes of a request, and issues IDs for it unless it is refused.
func (n *Node) serve(req *pb.AllocateRequest) (*pb.AllocateResponse, *node.Refusal, Act) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.requests++
	count, after := int(req.GetCount()), flake.ID(req.GetAfter())
	var act Act
	if n.script != nil {
		act = n.script(Request{Number: n.requests, Count: count, After: after})
	}
	if by := act.Refuse; by != nil {
		r := &node.Refusal{Message: by.Message, RetryAfter: by.RetryAfter, Metadata: by.Metadata}
		if r.Reason = node.ReasonOf(string(by.Reason)); r.Reason == 0 {
			panic(fmt.Sprintf("clienttest: there is no reason %q to refuse with", by.Reason))
		}
		return nil, r, act
	}
	// Each request begins in a unit of time of its own: the IDs do not depend on how many
	// were asked for before.
	unit := time.Duration(n.format.Layout.Unit()) * time.Millisecond
	n.clock.Advance(unit)
	b, err := n.node.Try(n.clock.Now(), count, after)
	if r := (*node.Refusal)(nil); errors.As(err, &r) {
		return nil, r, act
	}
	n.clock.Advance(time.Duration(count>>n.format.Layout.SequenceBits()) * unit)
	return &pb.AllocateResponse{
		First:       b.First.Int64(),
		Count:       int32(b.Count),
		Stride:      b.Stride,
		Node:        n.node.Config().Name,
		Sid:         int32(b.SID),
		Layout:      wire.LayoutOf(n.format.Layout),
		LayoutBits:  wire.LayoutBits(n.format.Layout),
		EpochUnixMs: n.format.Epoch,
	}, nil, act
}

// Allocate serves a unary request.
func (s service) Allocate(ctx context.Context, req *pb.AllocateRequest) (*pb.AllocateResponse, error) {
	res, refusal, act := s.node.serve(req)
	switch {
	case refusal != nil:
		return nil, grpcserver.StatusOf(refusal)
	case act.Lose || act.Hang:
		return nil, act.noAnswer(ctx)
	}
	return res, nil
}

// AllocateStream serves the requests of a stream.
func (s service) AllocateStream(stream pb.AllocatorService_AllocateStreamServer) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		res, refusal, act := s.node.serve(req.GetRequest())
		out := &pb.AllocateStreamResponse{Sequence: req.GetSequence()}
		switch {
		case refusal != nil:
			out.Result = &pb.AllocateStreamResponse_Refusal{Refusal: grpcserver.RefusalProto(refusal)}
		case act.Lose || act.Hang:
			return act.noAnswer(stream.Context())
		default:
			out.Result = &pb.AllocateStreamResponse_Response{Response: res}
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

// noAnswer ends a request whose answer is lost, or does not come while the client waits.
func (a Act) noAnswer(ctx context.Context) error {
	if a.Hang {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Error(codes.Unavailable, "the answer is lost")
}
