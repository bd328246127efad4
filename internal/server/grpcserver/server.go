// Package grpcserver is the gRPC listener: IDs one call at a time and in streams,
// decoding, the cluster, draining, and the health service.
//
// Messages that carry IDs go through the codec of package wire; all others are as
// generated.
//
// ULIDs and UUIDs are texts here too: every language parses the text of a UUID, and
// languages differ in the order of its bytes. A stream has none of them, since what it
// holds for a client that does not read is bounded by the size of its answers. A count
// of 0 is refused as everywhere: proto3 cannot tell it from a count that is not given
// without making the field of generated code a pointer.
package grpcserver

import (
	"cmp"
	"context"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/operate"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/status/feed"
	"github.com/flakelease/allocator/internal/wire"
)

// Limits of connections. A request for IDs has about 20 bytes.
const (
	maxMessage     = 4 << 10
	maxHeaders     = 8 << 10
	maxStreams     = 100 // calls at once; RFC 9113 advises against less
	maxOpenStreams = 16  // calls at once that are streams: each may hold a window of requests and one of answers
	readBuffer     = 8 << 10
	connectTimeout = 5 * time.Second
	minPing        = 5 * time.Second // a client that pings more often is disconnected
	pingAfter      = time.Minute     // without any frame from the client
	pingTimeout    = 20 * time.Second
	idleTimeout    = 5 * time.Minute // without a call; pings do not count
	// streamWindow bounds what a client may send before it reads answers. With it set
	// the transport does not raise its window to megabytes by itself. It is the minimum
	// of the transport.
	streamWindow = 64 << 10
	connWindow   = 256 << 10
)

// Config is what a Server needs. Service is required, Draining at an agent, and the others at a node.
type Config struct {
	Service *server.Service
	Reader  *status.Reader
	Logger  *slog.Logger // nil: slog.Default
	Drainer *operate.Drainer
	Feed    *feed.Feed
	Debug   Debug
	// Draining has a channel that is closed when an agent stops. At a node it is the Drainer's.
	Draining func() <-chan struct{}
}

// Server has the gRPC services of one node. All methods are safe for concurrent use.
type Server struct {
	cfg      Config
	service  *server.Service
	describe func(ctx context.Context, text, kind string) (status.Decoded, error)
	issuer   server.Issuer
	log      *slog.Logger
	health   *health.Server
	constant wire.ConstantFields

	unauthenticated unauthenticated

	denied rate.Sometimes // It logs rejected calls with scope Admin.

	debugging sync.Mutex // held while debug runs for a caller
	serving   bool       // What the health service reports. Run's goroutine owns it.
}

// New returns a Server.
func New(cfg Config) *Server {
	if cfg.Drainer != nil {
		cfg.Draining = cfg.Drainer.Draining
	}
	issuer := cfg.Service.Issuer()
	s := &Server{
		cfg:      cfg,
		service:  cfg.Service,
		describe: status.Describer(cfg.Reader, cfg.Service),
		issuer:   issuer,
		log:      cmp.Or(cfg.Logger, slog.Default()),
		health:   health.NewServer(),
		constant: wire.NewConstantFields(issuer.About().Name, cfg.Service.Limits().Format),
		denied:   rate.Sometimes{First: 1, Interval: time.Second},

		unauthenticated: unauthenticated{watches: access.Places[*peer.Peer]{Each: maxHealthWatches}},
	}
	s.setHealth(false)
	return s
}

// GRPC returns a new gRPC server with all services registered. opts come after this
// package's own options. Credentials among them must be from WithQuota, or connections
// of a [quota.Listener] cost nothing.
//
// It does not recover from panics: a panic means that a claim does not hold, and
// then the process must not go on issuing.
func (s *Server) GRPC(opts ...grpc.ServerOption) *grpc.Server {
	opts = append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.ReadBufferSize(readBuffer),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connWindow),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.ForceServerCodecV2(codec{wire.NewCodec()}),
		// Goroutines that live on keep their grown stacks: 10 % more requests. A request
		// gets its own goroutine while all of them are busy, for example with streams.
		grpc.NumStreamWorkers(uint32(runtime.GOMAXPROCS(0))),
		// A connection whose client answers no ping, or makes no call, takes a place from
		// others. Clients connect again when they need to.
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time:              pingAfter,
			Timeout:           pingTimeout,
			MaxConnectionIdle: idleTimeout,
		}),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	}, opts...)
	if s.service.Guard().NeedsToken() {
		opts = append(opts, grpc.InTapHandle(s.tap))
	}
	g := grpc.NewServer(opts...)
	g.RegisterService(allocatorServiceDesc(), allocatorService{s: s})
	pb.RegisterAdminServiceServer(g, adminService{s: s})
	pb.RegisterWorkerServiceServer(g, workerService{s: s})
	healthpb.RegisterHealthServer(g, s.health)
	reflection.Register(g)
	return g
}

// Run makes the health service follow the node's readiness until ctx ends, and
// returns nil then.
func (s *Server) Run(ctx context.Context) error {
	for {
		_, changed := s.issuer.Watch()
		s.checkHealth()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// checkHealth sets the health service to the node's readiness now.
func (s *Server) checkHealth() {
	refusal := s.issuer.Ready()
	if s.serving == (refusal == nil) {
		return
	}
	s.serving = refusal == nil
	s.setHealth(s.serving)
	if s.serving {
		s.log.Info("ready")
	} else {
		s.log.Warn("not ready", "reason", refusal.Reason, "message", refusal.Message)
	}
}

// setHealth does no I/O: the health service has a goroutine for each watcher.
func (s *Server) setHealth(serving bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if serving {
		status = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", status)
	s.health.SetServingStatus(pb.AllocatorService_ServiceDesc.ServiceName, status)
}
