package server

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/node"
)

// Limits of gRPC connections. A request of ours has 20 bytes.
const (
	maxMessage     = 64 << 10
	maxHeaders     = 16 << 10
	maxStreams     = 250
	connectTimeout = 5 * time.Second
	minPing        = 5 * time.Second // a client that pings more often is disconnected
	pingAfter      = time.Minute     // without a word from a client
	pingTimeout    = 20 * time.Second
	// streamWindow bounds what a client may send ahead of our answers. Setting
	// it also keeps the transport from raising it to megabytes on its own.
	streamWindow = 64 << 10
	connWindow   = 1 << 20
)

// NewGRPC returns a gRPC server with all services registered, not yet serving.
// Further options, such as credentials, come after this package's own.
//
// It recovers from no panic: one says that a claim does not hold, and a process
// of which that is so must not go on issuing.
func (s *Server) NewGRPC(opts ...grpc.ServerOption) *grpc.Server {
	opts = append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connWindow),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.ForceServerCodecV2(newCodec()),
		// Goroutines that stay, with stacks that have grown: a tenth more requests.
		// Where all are busy, with streams say, a request gets one of its own.
		grpc.NumStreamWorkers(uint32(runtime.GOMAXPROCS(0))),
		// Whoever answers no ping is gone, and its connection is somebody else's.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
	}, append(s.guards(), opts...)...)
	g := grpc.NewServer(opts...)
	g.RegisterService(allocatorServiceDesc(), allocatorService{s: s})
	pb.RegisterAdminServiceServer(g, adminService{s: s})
	healthpb.RegisterHealthServer(g, s.health)
	reflection.Register(g)
	return g
}

type allocatorService struct {
	pb.UnimplementedAllocatorServiceServer
	s *Server
}

// allocatorServiceDesc is the service as generated, but for the one method whose
// messages are not made anew for each request.
func allocatorServiceDesc() *grpc.ServiceDesc {
	desc := pb.AllocatorService_ServiceDesc
	desc.Methods = slices.Clone(desc.Methods)
	for i := range desc.Methods {
		if desc.Methods[i].MethodName == "Allocate" {
			desc.Methods[i].Handler = serveAllocate
		}
	}
	return &desc
}

// serveAllocate answers a unary request for IDs. What it returns goes back to
// the pool once the codec has written it.
func serveAllocate(srv any, ctx context.Context, read func(any) error, through grpc.UnaryServerInterceptor) (any, error) {
	c := calls.Get().(*call)
	c.ask.streamed = false
	if err := read(&c.ask); err != nil {
		calls.Put(c)
		return nil, err
	}
	s := srv.(allocatorService).s
	if through == nil {
		return s.allocate(ctx, c)
	}
	info := &grpc.UnaryServerInfo{Server: srv, FullMethod: pb.AllocatorService_Allocate_FullMethodName}
	return through(ctx, &c.ask, info, func(ctx context.Context, _ any) (any, error) { return s.allocate(ctx, c) })
}

// allocate returns c's answer, or gives c back and returns an error.
func (s *Server) allocate(ctx context.Context, c *call) (any, error) {
	b, err := s.allocated(ctx, c.ask.count, c.ask.after)
	if err != nil {
		calls.Put(c)
		return nil, err
	}
	c.answer = answer{block: b, fixed: &s.fixed, call: c}
	return &c.answer, nil
}

// allocated issues a block; its error is one of gRPC.
func (s *Server) allocated(ctx context.Context, count int32, after int64) (gen.Block, error) {
	began := s.began()
	b, err := s.issue(ctx, int(count), flake.ID(after))
	s.done(GRPCAllocate, outcomeOf(err), began)
	if err != nil {
		return gen.Block{}, statusOf(err)
	}
	return b, nil
}

// Allocate is what serveAllocate does, for callers without a connection.
func (a allocatorService) Allocate(ctx context.Context, req *pb.AllocateRequest) (*pb.AllocateResponse, error) {
	b, err := a.s.allocated(ctx, req.GetCount(), req.GetAfter())
	if err != nil {
		return nil, err
	}
	return a.s.response(b), nil
}

func (s *Server) response(b gen.Block) *pb.AllocateResponse {
	return &pb.AllocateResponse{
		First:       b.First.Int64(),
		Count:       int32(b.Count),
		Stride:      b.Stride,
		Node:        s.node.Config().Name,
		Sid:         int32(b.SID),
		Layout:      layoutOf(s.format.Layout),
		EpochUnixMs: s.format.Epoch,
	}
}

// layoutOf returns the wire's number of a layout: 0 is taken for "unspecified".
func layoutOf(l flake.Layout) pb.Layout { return pb.Layout(l) + 1 }

// AllocateStream answers until the client closes its side, the connection ends
// or the node drains.
//
// One goroutine receives, issues and sends in turn. Send blocks once the
// client's flow-control window is full, and no further request is received
// then: IDs are issued only for answers that can be sent. The second goroutine,
// the handler's own, is there to end an idle stream when the node drains.
func (a allocatorService) AllocateStream(stream pb.AllocatorService_AllocateStreamServer) error {
	t := newTurn(a.s, stream)
	ended := make(chan error, 1)
	go func() { ended <- t.answerAll() }()
	select {
	case err := <-ended:
		return err
	case <-a.s.draining:
		t.end() // waits for the answer that is being sent
		return statusOf(&node.Refusal{
			Reason: node.Draining, Message: "the node is shutting down: requests without an answer were not served",
		})
	}
}

// turn answers the requests of one stream, until it is ended. Its messages are
// used for one request after the other: Send returns once it has their bytes.
type turn struct {
	s      *Server
	stream grpc.ServerStream
	ask    ask
	answer answer
	caller access.Caller

	mu    sync.Mutex // guards ended; held from issuing until the answer is sent
	ended bool       // the handler has returned, or is about to: issue and send nothing
}

func newTurn(s *Server, stream grpc.ServerStream) *turn {
	return &turn{s: s, stream: stream, ask: ask{streamed: true}, answer: answer{streamed: true, fixed: &s.fixed},
		caller: callerOf(stream.Context())}
}

func (t *turn) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
}

func (t *turn) answerAll() error {
	ctx := t.stream.Context()
	for {
		err := t.stream.RecvMsg(&t.ask)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := t.serve(ctx); err != nil {
			return err
		}
	}
}

var errEnded = errors.New("server: stream has ended")

// serve answers t.ask.
func (t *turn) serve(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return errEnded
	}
	s, began := t.s, t.s.began()
	if err := s.cfg.Guard.Allow(t.caller, access.Issue); err != nil {
		return t.turnAway(err, began)
	}
	b, err := s.issue(ctx, int(t.ask.count), flake.ID(t.ask.after))
	s.done(GRPCStream, outcomeOf(err), began)
	if err != nil {
		r, ok := errors.AsType[*node.Refusal](err)
		if !ok {
			return statusOf(err)
		}
		return t.stream.SendMsg(&pb.AllocateStreamResponse{
			Sequence: t.ask.sequence, Result: &pb.AllocateStreamResponse_Refusal{Refusal: refusalOf(r)},
		})
	}
	t.answer.sequence, t.answer.block = t.ask.sequence, b
	return t.stream.SendMsg(&t.answer)
}

// turnAway answers a request that the guard did not let through: a rate is a
// matter of the one request, and a token that was struck off one of the stream.
func (t *turn) turnAway(err error, began clock.Mono) error {
	r := t.s.turnedAway(err, t.caller, needs[pb.AllocatorService_AllocateStream_FullMethodName], began)
	if r.Reason != node.RateLimited {
		return statusOf(r)
	}
	return t.stream.SendMsg(&pb.AllocateStreamResponse{
		Sequence: t.ask.sequence, Result: &pb.AllocateStreamResponse_Refusal{Refusal: refusalOf(r)},
	})
}

func (a allocatorService) Describe(ctx context.Context, req *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	s, began := a.s, a.s.began()
	res, err := s.describe(ctx, req.GetId(), req.GetKind())
	s.done(GRPCDescribe, outcomeOf(err), began)
	if err != nil {
		return nil, statusOf(err)
	}
	return res.proto(s.format), nil
}

func (d decoded) proto(f flake.Format) *pb.DescribeResponse {
	res := &pb.DescribeResponse{
		Kind:          string(d.id.Kind),
		Layout:        layoutOf(f.Layout),
		EpochUnixMs:   f.Epoch,
		HolderProblem: d.problem,
	}
	if d.id.Kind != describe.Flake {
		res.Ulid, res.Uuid = d.id.Wide.String(), d.id.Wide.UUID()
		res.UnixMs = d.id.Wide.UnixMilli()
	}
	if d.hasFlake {
		v := d.flake.Int64()
		res.Flake = &v
		res.Base32 = d.flake.String()
		res.UnixMs = f.UnixMilli(d.flake)
		res.TimestampMs = d.flake.Timestamp()
		res.Randomness = int64(f.Entropy(d.flake))
		res.Sid = int32(f.SID(d.flake))
	}
	if h := d.holder; h != nil {
		res.Holder = &pb.Holder{Node: h.Node, Instance: string(h.Instance), Term: h.Term, SinceUnixMs: int64(h.Since)}
	}
	return res
}

type adminService struct {
	pb.UnimplementedAdminServiceServer
	s *Server
}

func (a adminService) GetCluster(ctx context.Context, _ *pb.GetClusterRequest) (*pb.GetClusterResponse, error) {
	s, began := a.s, a.s.began()
	c, err := s.cluster(ctx)
	s.done(GRPCCluster, outcomeOf(err), began)
	if err != nil {
		return nil, statusOf(err)
	}
	return c.proto(), nil
}
