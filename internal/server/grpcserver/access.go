package grpcserver

import (
	"context"
	"crypto/tls"
	"errors"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/quota"
)

// method is what a gRPC method requires of its caller.
type method struct {
	server.Need
	stream bool  // the handler begins before the first message has arrived
	holds  int64 // bytes that an answer may hold while it is made
}

func require(scope access.Scope, on server.Surface) server.Need {
	return server.Need{Scope: scope, Surface: on}
}

// cluster is what an answer about a cluster of a thousand nodes holds, in bytes: less than a
// connection may, so that other calls of the same connection are not kept waiting for it.
const cluster = 512 << 10

// methods has every gRPC method. A method that is missing requires access.Admin; a
// test finds it.
var methods = map[string]method{
	pb.AllocatorService_Allocate_FullMethodName:       {Need: require(access.Issue, server.GRPCAllocate)},
	pb.AllocatorService_AllocateStream_FullMethodName: {Need: require(access.Issue, server.GRPCStream), stream: true},
	pb.AllocatorService_Describe_FullMethodName:       {Need: require(access.Read, server.GRPCDescribe)},
	pb.AllocatorService_GetWatermark_FullMethodName:   {Need: require(access.Read, server.GRPCWatermark)},
	pb.AllocatorService_WatchWatermark_FullMethodName: {Need: require(access.Read, server.GRPCWatermark), stream: true},
	pb.AdminService_GetCluster_FullMethodName:         {Need: require(access.Read, server.GRPCCluster), holds: cluster},
	pb.AdminService_Drain_FullMethodName:              {Need: require(access.Admin, server.GRPCDrain)},
	pb.AdminService_Undrain_FullMethodName:            {Need: require(access.Admin, server.GRPCUndrain)},
	pb.AdminService_WatchEvents_FullMethodName:        {Need: require(access.Read, server.GRPCEvents), stream: true},
	pb.AdminService_GetDebug_FullMethodName:           {Need: require(access.Read, server.GRPCCluster), stream: true},

	pb.WorkerService_AcquireWorker_FullMethodName: {Need: require(access.Worker, server.GRPCWorker)},
	pb.WorkerService_ExtendWorker_FullMethodName:  {Need: require(access.Worker, server.GRPCWorker)},
	pb.WorkerService_ReleaseWorker_FullMethodName: {Need: require(access.Worker, server.GRPCWorker)},

	// Load balancers and probes have no token.
	healthpb.Health_Check_FullMethodName: {Need: server.Need{Open: true}},
	healthpb.Health_List_FullMethodName:  {Need: server.Need{Open: true}},
	healthpb.Health_Watch_FullMethodName: {Need: server.Need{Open: true}, stream: true},

	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": {
		Need:   require(access.Read, server.GRPCOther),
		stream: true,
	},
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": {
		Need:   require(access.Read, server.GRPCOther),
		stream: true,
	},
}

func methodOf(name string) method {
	if m, ok := methods[name]; ok {
		return m
	}
	return method{Need: require(access.Admin, server.GRPCOther)}
}

// elsewhere returns the error of a method that an agent leaves to nodes, or nil.
func (s *Server) elsewhere(m method, name string) error {
	switch m.Surface {
	case server.GRPCAllocate, server.GRPCStream, server.GRPCDescribe, server.GRPCOther:
		return nil
	}
	err := s.service.Elsewhere(name)
	if err == nil || m.Open {
		return nil
	}
	s.service.NotFound(m.Surface, s.service.Begin())
	return status.Error(codes.Unimplemented, err.Error())
}

// unary is the interceptor of unary calls. Without a guard only methods with scope Admin ask who calls.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (res any,
	err error) {
	defer func() { s.logRefused(ctx, err) }()
	m := methodOf(info.FullMethod)
	if err := s.elsewhere(m, info.FullMethod); err != nil {
		return nil, err
	}
	if !m.Open && (s.service.Guard() != nil || m.Scope == access.Admin) {
		caller, r := s.authorize(ctx, m.Need)
		if r != nil {
			return nil, StatusOf(r)
		}
		if m.Scope == access.Worker || m.Surface == server.GRPCWatermark { // The handler counts what each caller has.
			ctx = context.WithValue(ctx, callerKey{}, caller)
		}
	}
	if m.Surface == server.GRPCAllocate { // It counts its answers by itself.
		return next(ctx, req)
	}
	return countUnary(ctx, req, m, next)
}

// logRefused logs the status of a refusal, if the call names itself.
func (s *Server) logRefused(ctx context.Context, err error) {
	if err == nil || len(server.Named(header(ctx))) == 0 {
		return
	}
	name, _ := grpc.Method(ctx)
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			reason, message := node.ReasonOf(info.Reason), status.Convert(err).Message()
			s.service.LogRefused(reason, message, name, source(ctx), header(ctx))
		}
	}
}

// header returns the metadata of a call by name.
func header(ctx context.Context) func(name string) []string {
	return func(name string) []string { return metadata.ValueFromIncomingContext(ctx, name) }
}

// stream is the interceptor of streams. Those of IDs count their answers by themselves.
func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (
	err error) {
	defer func() { s.logRefused(stream.Context(), err) }()
	m := methodOf(info.FullMethod)
	if err := s.elsewhere(m, info.FullMethod); err != nil {
		return err
	}
	if m.Surface != server.GRPCStream {
		stream = &countedStream{stream, connOf(stream.Context()), m}
	}
	if m.Open {
		p, _ := peer.FromContext(stream.Context()) // All streams of a connection have the same.
		if !s.unauthenticated.watches.Take(p) {
			return status.Errorf(codes.ResourceExhausted,
				"too many health watches: the connection has %d already; close one of them", maxHealthWatches)
		}
		defer s.unauthenticated.watches.Give(p)
		return next(srv, stream)
	}
	if s.service.Guard() != nil {
		caller, r := s.authorize(stream.Context(), m.Need)
		if r != nil {
			return StatusOf(r)
		}
		stream = &authenticatedStream{stream, context.WithValue(stream.Context(), callerKey{}, caller), s, caller, m}
	}
	conn := connOf(stream.Context())
	if !conn.OpenStream(maxOpenStreams) {
		return status.Errorf(codes.ResourceExhausted,
			"too many streams: the connection has %d already; send more requests on each, or use another connection",
			maxOpenStreams)
	}
	defer conn.CloseStream()
	return next(srv, stream)
}

// tap is called when the headers of a call have arrived, before its message. It
// identifies the callers of unary methods, and sets a short deadline for those that
// are unauthenticated: the transport holds up to 64 KiB for each stream, without a
// time limit. They are rejected later, by the interceptor like all others.
//
// Rejecting them here would leave a timer behind for each call with a deadline: the
// transport does not stop it.
func (s *Server) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	n, ok := methods[info.FullMethodName]
	if !ok || n.stream {
		return ctx, nil
	}
	if !n.Open {
		caller, err := server.Identify(s.service.Guard(), access.Credentials{}, info.Header["authorization"])
		if err == nil {
			return context.WithValue(ctx, callerKey{}, caller), nil
		}
	}
	return s.unauthenticated.limitTime(ctx), nil
}

// Limits of what unauthenticated clients can make a node hold.
const (
	messageTime      = 5 * time.Second        // to send a message
	messageTimeBusy  = 100 * time.Millisecond // instead of messageTime, above busyCalls
	busyCalls        = 64                     // unauthenticated calls at once
	maxHealthWatches = 8                      // on one connection
)

// unauthenticated has the calls of unauthenticated clients.
type unauthenticated struct {
	calls   atomic.Int64 // under way
	watches access.Places[*peer.Peer]
}

// limitTime returns the context of an unauthenticated call, with a deadline.
func (u *unauthenticated) limitTime(ctx context.Context) context.Context {
	limit := messageTime
	if u.calls.Add(1) > busyCalls {
		limit = messageTimeBusy
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	context.AfterFunc(ctx, func() { // the call has ended, or the limit has passed
		cancel()
		u.calls.Add(-1)
	})
	return ctx
}

// callerKey is the key of the access.Caller in the context of a call.
type callerKey struct{}

// authenticatedStream is a stream with an identified caller.
type authenticatedStream struct {
	grpc.ServerStream
	ctx    context.Context
	s      *Server
	caller access.Caller
	method method
}

func (a *authenticatedStream) Context() context.Context { return a.ctx }

// RecvMsg fails if the caller's token was revoked. Streams of IDs check that
// themselves, for each request.
func (a *authenticatedStream) RecvMsg(m any) error {
	if err := a.ServerStream.RecvMsg(m); err != nil || a.method.Surface == server.GRPCStream {
		return err
	}
	if err := a.s.service.Guard().May(a.caller, a.method.Scope); err != nil {
		return StatusOf(a.s.service.Reject(err, a.caller, a.method.Need, a.s.service.Begin()))
	}
	return nil
}

// callerOf returns the caller of a call; the zero Caller without a guard.
func callerOf(ctx context.Context) access.Caller {
	c, _ := ctx.Value(callerKey{}).(access.Caller)
	return c
}

// caller is callerOf, and without a guard the address or the user that the call comes from.
func (s *Server) caller(ctx context.Context) access.Caller {
	if s.service.Guard() != nil {
		return callerOf(ctx)
	}
	caller, _ := s.service.Guard().Identify(credentialsOf(ctx)) // never fails without a guard
	return caller
}

// admit returns the caller of a call, or the refusal of the call.
func (s *Server) admit(ctx context.Context, m server.Need) (access.Caller, *node.Refusal) {
	began, guard := s.service.Begin(), s.service.Guard()
	caller, ok := ctx.Value(callerKey{}).(access.Caller) // from tap
	var err error
	if !ok {
		var authorization []string
		if guard.NeedsToken() {
			authorization = metadata.ValueFromIncomingContext(ctx, "authorization")
		}
		caller, err = server.Identify(guard, credentialsOf(ctx), authorization)
	}
	if err == nil {
		err = guard.Allow(caller, m.Scope)
	}
	if !ok && errors.Is(err, access.ErrUnauthenticated) {
		connOf(ctx).Charge(quota.CostFailure)
	}
	return caller, s.service.Reject(err, caller, m, began)
}

// credentialsOf returns what the connection of a call shows of its caller.
func credentialsOf(ctx context.Context) access.Credentials {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return access.Credentials{}
	}
	info := p.AuthInfo
	if counted, ok := info.(connInfo); ok {
		info = counted.AuthInfo
	}
	var state *tls.ConnectionState
	if t, ok := info.(credentials.TLSInfo); ok {
		state = &t.State
	}
	return server.CredentialsOf(state, p.Addr.String())
}

// authorize is admit, and logs calls with scope Admin.
func (s *Server) authorize(ctx context.Context, n server.Need) (access.Caller, *node.Refusal) {
	caller, r := s.admit(ctx, n)
	if n.Scope != access.Admin {
		return caller, r
	}
	name, _ := grpc.Method(ctx)
	log := s.log.With("action", strings.ToLower(path.Base(name)), "caller", caller.Name(), "by", caller.Kind(),
		"from", source(ctx)).With(server.Named(header(ctx))...)
	if r == nil {
		log.Info(lease.Acted)
		return caller, r
	}
	// At most one in a second: clients that are rejected must not fill the log.
	s.denied.Do(func() { log.Warn(lease.Acted+" rejected", "reason", r.Reason) })
	return caller, r
}

// source returns the address of the client of a call.
func source(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}
