package grpcserver

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/wire"
)

type allocatorService struct {
	pb.UnimplementedAllocatorServiceServer
	s *Server
}

// allocatorServiceDesc is the generated service, except for Allocate: its messages
// are a request and a response of package wire.
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

// call is a unary request for IDs and its response: one allocation for both.
type call struct {
	request  wire.Request
	response wire.Response
}

// serveAllocate is the handler of Allocate.
func serveAllocate(srv any, ctx context.Context, read func(any) error,
	interceptor grpc.UnaryServerInterceptor) (any, error) {
	c := new(call)
	if err := read(&c.request); err != nil {
		return nil, err
	}
	s := srv.(allocatorService).s
	if interceptor == nil || s.service.Guard() == nil { // Nobody else has to see the call.
		res, err := s.serve(ctx, c)
		s.logRefused(ctx, err)
		return res, err
	}
	info := &grpc.UnaryServerInfo{Server: srv, FullMethod: pb.AllocatorService_Allocate_FullMethodName}
	return interceptor(ctx, &c.request, info, func(ctx context.Context, _ any) (any, error) { return s.serve(ctx, c) })
}

// serve returns c's response; its error is a gRPC status.
func (s *Server) serve(ctx context.Context, c *call) (any, error) {
	if c.request.Form != 0 {
		return s.serveTexts(ctx, c)
	}
	began := s.service.Begin()
	b, err := s.service.Issue(ctx, int(c.request.Count), flake.ID(c.request.After))
	s.service.Done(server.GRPCAllocate, err, began)
	conn := connOf(ctx)
	if server.Valid(err) {
		conn.Valid()
	}
	if err != nil {
		return nil, StatusOf(err)
	}
	c.response.Block, c.response.Constant, c.response.Space = wire.Block(b), &s.constant, s.issuer.Space()
	return &c.response, nil
}

// serveTexts is serve for a request with a form.
//
// It issues nothing until there is room for the answer.
func (s *Server) serveTexts(ctx context.Context, c *call) (any, error) {
	req, began, limits := &c.request, s.service.Begin(), s.service.Limits()
	o, bad := server.NewOrder(req.Count, req.Form, limits)
	if bad != nil {
		s.service.Done(server.GRPCAllocate, s.issuer.Refused(bad), began)
		return nil, StatusOf(bad)
	}
	conn, counted := connOf(ctx), int64(o.Count)*textBytes+answerBytes
	if err := conn.Answer(ctx, counted); err != nil {
		s.service.Done(server.GRPCAllocate, err, began)
		return nil, status.FromContextError(err).Err()
	}
	b, err := s.service.Issue(ctx, o.Count, flake.ID(req.After))
	s.service.Done(server.GRPCAllocate, err, began)
	if server.Valid(err) {
		conn.Valid()
	}
	if err != nil {
		conn.Took(counted)
		return nil, StatusOf(err)
	}
	c.response.Block, c.response.Constant, c.response.Space = wire.Block(b), &s.constant, s.issuer.Space()
	var random [8 * textsInTurn]byte
	made := 0
	texts := c.response.BytesWithTexts(o.As.Len(), func(to []byte, id flake.ID) []byte {
		at := made % textsInTurn
		if at == 0 && made > 0 {
			runtime.Gosched()
		}
		if at == 0 && o.As.Wide() {
			_, _ = rand.Read(random[:]) // never fails: on an error it ends the process
		}
		made++
		return o.As.Append(to, id, limits.Format, binary.NativeEndian.Uint64(random[8*at:]))
	})
	return &answer{encoded: texts, conn: conn, counted: counted}, nil
}

// AllocateStream answers until the client closes its side, the connection ends or
// the node drains.
//
// One goroutine receives, issues and sends in turn. Send blocks while the client's
// flow-control window is full, and then no further request is received: IDs are
// issued only for answers that can be sent. The handler's own goroutine ends an
// idle stream when the node drains.
func (a allocatorService) AllocateStream(stream pb.AllocatorService_AllocateStreamServer) error {
	r := newResponder(a.s, stream)
	ended := make(chan error, 1)
	go func() { ended <- r.run() }()
	select {
	case err := <-ended:
		return err
	case <-a.s.cfg.Draining():
		r.end() // waits for the answer that is being sent
		return StatusOf(&node.Refusal{
			Reason: node.Draining,
			Message: "the node is draining: requests without an answer issued nothing; try " +
				"another node",
		})
	}
}

// responder answers the requests of one stream. It uses one request and one response
// for all of them: SendMsg returns when it has copied the bytes.
type responder struct {
	s        *Server
	stream   grpc.ServerStream
	request  wire.Request
	response response
	caller   access.Caller
	conn     *quota.Conn
	ahead    *ahead

	mu    sync.Mutex // guards ended; held from issuing until the answer is sent
	ended bool       // the handler returns: nothing more is issued or sent
}

func newResponder(s *Server, stream grpc.ServerStream) *responder {
	conn := connOf(stream.Context())
	a := newAhead(conn)
	return &responder{
		s:        s,
		stream:   stream,
		request:  wire.Request{Streamed: true},
		response: response{wire.Response{Streamed: true, Constant: &s.constant}, a},
		caller:   callerOf(stream.Context()),
		conn:     conn,
		ahead:    a,
	}
}

func (r *responder) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
}

func (r *responder) run() error {
	ctx := r.stream.Context()
	defer r.ahead.end(ctx)
	for {
		if err := r.ahead.wait(ctx); err != nil {
			return status.FromContextError(err).Err()
		}
		err := r.stream.RecvMsg(&r.request)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.answer(ctx); err != nil {
			return err
		}
	}
}

var errEnded = errors.New("grpcserver: stream has ended")

// answer answers r.request.
func (r *responder) answer(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return errEnded
	}
	service := r.s.service
	began := service.Begin()
	if err := service.Guard().Allow(r.caller, access.Issue); err != nil {
		return r.reject(err, began)
	}
	if r.request.Form != 0 {
		bad := r.s.issuer.Refused(server.Malformed("a form is given on a stream: use Allocate for texts"))
		service.Done(server.GRPCStream, bad, began)
		return r.refuse(bad)
	}
	b, err := service.Issue(ctx, int(r.request.Count), flake.ID(r.request.After))
	service.Done(server.GRPCStream, err, began)
	if server.Valid(err) {
		r.conn.Valid()
	}
	if err != nil {
		refusal, ok := errors.AsType[*node.Refusal](err)
		if !ok {
			return StatusOf(err)
		}
		return r.refuse(refusal)
	}
	r.response.Sequence, r.response.Block, r.response.Space = r.request.Sequence, wire.Block(b), r.s.issuer.Space()
	return r.stream.SendMsg(&r.response)
}

// reject answers a request that the guard did not let through. A rate limit refuses
// this one request; a revoked token ends the stream.
func (r *responder) reject(err error, began clock.Mono) error {
	refusal := r.s.service.Reject(err, r.caller, methods[pb.AllocatorService_AllocateStream_FullMethodName].Need, began)
	if refusal.Reason != node.RateLimited {
		return StatusOf(refusal)
	}
	return r.refuse(refusal)
}

func (r *responder) refuse(refusal *node.Refusal) error {
	ctx, name := r.stream.Context(), pb.AllocatorService_AllocateStream_FullMethodName
	r.s.service.LogRefused(refusal.Reason, refusal.Message, name, source(ctx), header(ctx))
	counted := int64(2 * answerBytes)
	r.conn.More(counted)
	return r.stream.SendMsg(&answer{message: &pb.AllocateStreamResponse{
		Sequence: r.request.Sequence, Result: &pb.AllocateStreamResponse_Refusal{Refusal: RefusalProto(refusal)},
	}, conn: r.conn, counted: counted})
}
