package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

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
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
)

// need is what a gRPC method or an HTTP route asks of its caller.
type need struct {
	scope   access.Scope
	open    bool // nothing: scope does not count
	stream  bool // a gRPC method that does not wait for a message before it begins
	surface Surface
}

// needs has every gRPC method. One that is missing needs access.Admin; a test
// finds it.
var needs = map[string]need{
	pb.AllocatorService_Allocate_FullMethodName:       {scope: access.Issue, surface: GRPCAllocate},
	pb.AllocatorService_AllocateStream_FullMethodName: {scope: access.Issue, stream: true, surface: GRPCStream},
	pb.AllocatorService_Describe_FullMethodName:       {scope: access.Read, surface: GRPCDescribe},
	pb.AdminService_GetCluster_FullMethodName:         {scope: access.Read, surface: GRPCCluster},
	pb.AdminService_Drain_FullMethodName:              {scope: access.Admin, surface: GRPCDrain},

	// Load balancers and probes have no token, and learn that the node serves.
	healthpb.Health_Check_FullMethodName: {open: true},
	healthpb.Health_List_FullMethodName:  {open: true},
	healthpb.Health_Watch_FullMethodName: {open: true, stream: true},

	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      {scope: access.Read, stream: true, surface: GRPCOther},
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": {scope: access.Read, stream: true, surface: GRPCOther},
}

func needOf(method string) need {
	if n, ok := needs[method]; ok {
		return n
	}
	return need{scope: access.Admin, surface: GRPCOther}
}

// guards returns what turns gRPC calls away; nothing where nobody is.
func (s *Server) guards() []grpc.ServerOption {
	if s.cfg.Guard == nil {
		return nil
	}
	opts := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if n := needOf(info.FullMethod); !n.open {
				if _, r := s.admitGRPC(ctx, n); r != nil {
					return nil, statusOf(r)
				}
			}
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			n := needOf(info.FullMethod)
			if n.open {
				return s.strangers.watch(stream, func() error { return next(srv, stream) })
			}
			caller, r := s.admitGRPC(stream.Context(), n)
			if r != nil {
				return statusOf(r)
			}
			return next(srv, &knownStream{stream, context.WithValue(stream.Context(), callerKey{}, caller), s, caller, n})
		}),
	}
	if s.cfg.Guard.NeedsToken() {
		opts = append(opts, grpc.InTapHandle(s.tap))
	}
	return opts
}

// tap is called when the headers of a call have come, and before its message. It
// finds out whom a call with one message comes from, and gives strangers little
// time to send it: the transport holds 64 KiB for each stream, and would wait
// without end. They are turned away behind it, like everybody.
//
// To turn them away here would leave a timer behind for each call that has a
// deadline: the transport forgets to stop it.
func (s *Server) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	n, ok := needs[info.FullMethodName]
	if !ok || n.stream {
		return ctx, nil
	}
	if !n.open {
		token, err := bearer(info.Header["authorization"])
		if err == nil {
			var caller access.Caller
			if caller, err = s.cfg.Guard.Identify(access.Credentials{Token: token}); err == nil {
				return context.WithValue(ctx, callerKey{}, caller), nil
			}
		}
	}
	return s.strangers.hurry(ctx), nil
}

// Limits of what callers without a token can make a node hold.
const (
	strangerTime = 5 * time.Second        // to send a message
	crowdTime    = 100 * time.Millisecond // the same, where there are many
	crowd        = 64                     // strangers at once
	maxWatches   = 8                      // of a connection, of the health service
)

// strangers are the calls of callers without a token. The zero value has none.
type strangers struct {
	now     atomic.Int64 // calls under way
	mu      sync.Mutex   // guards watches
	watches map[*peer.Peer]int
}

// hurry returns the context of a stranger's call.
func (s *strangers) hurry(ctx context.Context) context.Context {
	limit := strangerTime
	if s.now.Add(1) > crowd {
		limit = crowdTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	context.AfterFunc(ctx, func() { // the call has ended, or its time
		cancel()
		s.now.Add(-1)
	})
	return ctx
}

// watch calls next, unless there are maxWatches on this connection already. All
// streams of one have the same peer.
func (s *strangers) watch(stream grpc.ServerStream, next func() error) error {
	p, _ := peer.FromContext(stream.Context())
	s.mu.Lock()
	if s.watches == nil {
		s.watches = map[*peer.Peer]int{}
	}
	full := s.watches[p] >= maxWatches
	if !full {
		s.watches[p]++
	}
	s.mu.Unlock()
	if full {
		return status.Errorf(codes.ResourceExhausted, "there are %d streams of this kind on the connection already", maxWatches)
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watches[p]--; s.watches[p] == 0 {
			delete(s.watches, p)
		}
	}()
	return next()
}

// callerKey finds the access.Caller in the context of a call.
type callerKey struct{}

// knownStream is a stream whose caller is known.
type knownStream struct {
	grpc.ServerStream
	ctx    context.Context
	s      *Server
	caller access.Caller
	need   need
}

func (k *knownStream) Context() context.Context { return k.ctx }

// RecvMsg receives nothing from a caller whose token was struck off. Streams of
// IDs see to that themselves.
func (k *knownStream) RecvMsg(m any) error {
	if err := k.ServerStream.RecvMsg(m); err != nil || k.need.surface == GRPCStream {
		return err
	}
	if err := k.s.cfg.Guard.May(k.caller, k.need.scope); err != nil {
		return statusOf(k.s.turnedAway(err, k.caller, k.need, k.s.began()))
	}
	return nil
}

// callerOf returns whom a call comes from; the zero Caller without a guard.
func callerOf(ctx context.Context) access.Caller {
	c, _ := ctx.Value(callerKey{}).(access.Caller)
	return c
}

// admitGRPC says who calls, or why the call is turned away.
func (s *Server) admitGRPC(ctx context.Context, n need) (access.Caller, *node.Refusal) {
	began := s.began()
	if caller, ok := ctx.Value(callerKey{}).(access.Caller); ok { // from tap
		return caller, s.turnedAway(s.cfg.Guard.Allow(caller, n.scope), caller, n, began)
	}
	var c access.Credentials
	var err error
	if s.cfg.Guard.NeedsToken() {
		c.Token, err = bearer(metadata.ValueFromIncomingContext(ctx, "authorization"))
	} else if p, ok := peer.FromContext(ctx); ok {
		if t, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			c.Certificate = certs.ClientName(&t.State)
		}
		if a, ok := p.Addr.(*net.TCPAddr); ok {
			c.Address = a.AddrPort().Addr()
		}
	}
	caller, err := s.admit(c, err, n.scope)
	return caller, s.turnedAway(err, caller, n, began)
}

// guarded returns h behind what its route asks of callers.
func (s *Server) guarded(n need, h http.HandlerFunc) http.HandlerFunc {
	if s.cfg.Guard == nil || n.open {
		return h
	}
	return func(w http.ResponseWriter, r *http.Request) {
		began := s.began()
		var c access.Credentials
		var err error
		if s.cfg.Guard.NeedsToken() {
			c.Token, err = bearer(r.Header["Authorization"])
		} else {
			c.Certificate = certs.ClientName(r.TLS)
			if a, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
				c.Address = a.Addr()
			}
		}
		caller, err := s.admit(c, err, n.scope)
		if refusal := s.turnedAway(err, caller, n, began); refusal != nil {
			if challenge := challengeOf(err); challenge != "" {
				w.Header().Set("WWW-Authenticate", challenge)
			}
			problemOf(refusal).write(w)
			return
		}
		h(w, r)
	}
}

// bearer returns the token of a call's Authorization headers. More than one is
// malformed: a proxy may have looked at the other.
func bearer(headers []string) (string, error) {
	switch len(headers) {
	case 0:
		return "", nil
	case 1:
		return access.Bearer(headers[0])
	}
	return "", access.ErrMalformed
}

// admit asks the guard, unless err says already what is wrong.
func (s *Server) admit(c access.Credentials, err error, scope access.Scope) (access.Caller, error) {
	if err != nil {
		return access.Caller{}, err
	}
	caller, err := s.cfg.Guard.Identify(c)
	if err != nil {
		return access.Caller{}, err
	}
	return caller, s.cfg.Guard.Allow(caller, scope)
}

// turnedAway makes a refusal of what a guard said, and counts it; nil for nil.
func (s *Server) turnedAway(err error, caller access.Caller, n need, began clock.Mono) *node.Refusal {
	if err == nil {
		return nil
	}
	r := s.node.Refused(AccessRefusal(err, caller, n.scope))
	s.done(n.surface, outcomeOf(r), began)
	return r
}

// AccessRefusal returns the refusal for an error of a guard, for every door to
// give the same one. It is not counted yet.
func AccessRefusal(err error, caller access.Caller, scope access.Scope) *node.Refusal {
	if limited, ok := errors.AsType[*access.LimitedError](err); ok {
		return &node.Refusal{Reason: node.RateLimited, RetryAfter: limited.RetryAfter,
			Message: "this client asks more often than this node allows"}
	}
	switch {
	case errors.Is(err, access.ErrPermissionDenied):
		return &node.Refusal{Reason: node.PermissionDenied,
			Message:  "the token of " + caller.Name() + " does not have the scope " + scope.String(),
			Metadata: map[string]string{"scope": scope.String()}}
	case errors.Is(err, access.ErrNoToken):
		return &node.Refusal{Reason: node.Unauthenticated, Message: "no token was sent: send «Authorization: Bearer TOKEN»"}
	case errors.Is(err, access.ErrMalformed):
		return &node.Refusal{Reason: node.Unauthenticated, Message: "the credentials are malformed: send «Authorization: Bearer TOKEN», once"}
	}
	return &node.Refusal{Reason: node.Unauthenticated, Message: "the token is not known here: it is wrong, or was withdrawn"}
}

// challengeOf returns the value of WWW-Authenticate.
//
// Source: RFC 6750, section 3.
func challengeOf(err error) string {
	const bearer = `Bearer realm="allocator"`
	switch {
	case errors.Is(err, access.ErrUnknownToken):
		return bearer + `, error="invalid_token"`
	case errors.Is(err, access.ErrUnauthenticated):
		return bearer
	case errors.Is(err, access.ErrPermissionDenied):
		return bearer + `, error="insufficient_scope"`
	}
	return ""
}
