package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/ulid"
)

// Directory is what the server reads of the store. Its calls honour ctx and are
// safe for concurrent use.
type Directory interface {
	// Load reads the whole space at one revision.
	Load(ctx context.Context) (lease.View, error)
	// Holder returns the line of the ledger that covers sid at a Unix time: the
	// last one that began at or before it. The result is false if there is none.
	Holder(ctx context.Context, sid flake.SID, at clock.Millis) (lease.LedgerLine, bool, error)
}

// DefaultMaxHTTPCount is how many IDs an HTTP request may ask for: a reply of
// 10,000 UUIDs has 390 kB. Larger blocks are for gRPC, where a block of any size
// has one small reply.
const DefaultMaxHTTPCount = 10_000

// healthEvery is how often readiness is looked at for the health service.
const healthEvery = 250 * time.Millisecond

// Config is what a server needs. Node, Directory and Space are required.
type Config struct {
	Node      *node.Node
	Directory Directory
	Space     string       // the name that operators know the space by
	Version   string       // of this binary
	Logger    *slog.Logger // nil: slog.Default

	// MaxHTTPCount is the most IDs of one HTTP request; 0 means
	// DefaultMaxHTTPCount. The node's own limit applies as well.
	MaxHTTPCount int

	// Drain gives the node's sid back, for an operator who asks for it over
	// gRPC; the server has made the node refuse before. It returns once etcd has
	// confirmed that, or the node held none, and may be called again. nil:
	// operators have to stop the process.
	Drain func(ctx context.Context) error

	// Clocks, if set, tells what is known of this node's clock and its peers'. It
	// must be safe for concurrent use.
	Clocks func() clock.Report

	// Guard turns callers away before the node is asked. nil: it lets everybody
	// through, at no cost.
	Guard *access.Guard

	// Observe, if set, is told how long each request took. It must not block.
	Observe func(surface string, took time.Duration)
}

// Validate returns an error that names the first field that cannot be.
func (c Config) Validate() error {
	switch {
	case c.Node == nil:
		return errors.New("server: config node: is required")
	case c.Directory == nil:
		return errors.New("server: config directory: is required")
	case c.Space == "":
		return errors.New("server: config space: is required")
	case c.MaxHTTPCount < 0:
		return fmt.Errorf("server: config max HTTP count: %d is negative", c.MaxHTTPCount)
	}
	return nil
}

// Server answers requests with the IDs and refusals of one node. All methods
// are safe for concurrent use.
type Server struct {
	cfg      Config
	node     *node.Node
	clock    clock.Source
	format   flake.Format
	log      *slog.Logger
	health   *health.Server
	stats    stats
	nodeJSON []byte // the node's name as a JSON string
	fixed    fixed  // what all gRPC answers share
	wide     bool   // the space's epoch lets every flake have a wide form
	maxHTTP  int    // largest count of an HTTP request

	strangers strangers

	drainOnce sync.Once
	draining  chan struct{} // closed by Drain

	drains  singleflight.Group // drains asked for over gRPC
	loads   singleflight.Group // reads of the whole space, at most one at a time
	lookups chan struct{}      // a slot for each read of the ledger under way
	mu      sync.Mutex         // guards the rest; never held across a read
	view    lease.View         // as last read
	readAt  clock.Mono         // when that read began
	read    bool               // view was ever read
	drained *drained           // set by the first drain asked for over gRPC
	serving bool               // what the health service was last told
}

// New returns a server that has begun nothing. It returns the errors of
// Config.Validate.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	g := cfg.Node.Config().Gen
	name, err := json.Marshal(cfg.Node.Config().Name)
	if err != nil {
		return nil, fmt.Errorf("server: node name: %w", err)
	}
	s := &Server{
		cfg:      cfg,
		node:     cfg.Node,
		clock:    cfg.Node.Clock(),
		format:   flake.Format{Layout: g.Layout, Epoch: int64(g.Epoch)},
		log:      cfg.Logger,
		health:   health.NewServer(),
		nodeJSON: name,
		maxHTTP:  cfg.MaxHTTPCount,
		draining: make(chan struct{}),
		lookups:  make(chan struct{}, maxLookups),
	}
	s.fixed = newFixed(cfg.Node.Config().Name, s.format)
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.maxHTTP == 0 {
		s.maxHTTP = DefaultMaxHTTPCount
	}
	s.maxHTTP = min(s.maxHTTP, g.MaxBlock())
	_, err1 := ulid.FromFlake(0, s.format.Epoch, 0)
	_, err2 := ulid.FromFlake(math.MaxInt64, s.format.Epoch, 0)
	s.wide = err1 == nil && err2 == nil
	s.tellHealth(healthpb.HealthCheckResponse_NOT_SERVING)
	return s, nil
}

// Run keeps the health service true to the node's readiness, until ctx ends. It
// returns nil then.
func (s *Server) Run(ctx context.Context) error {
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	for {
		s.CheckHealth()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// CheckHealth looks at the node's readiness now. Run calls it; so does whoever
// knows that readiness has just changed.
func (s *Server) CheckHealth() {
	s.mu.Lock()
	// Asked with mu held: an answer from before Drain must not be told after it.
	refusal := s.node.Ready()
	changed := s.serving != (refusal == nil)
	s.serving = refusal == nil
	if changed {
		s.tellHealth(servingStatus(s.serving))
	}
	s.mu.Unlock()
	switch {
	case changed && refusal == nil:
		s.log.Info("ready")
	case changed:
		s.log.Warn("not ready", "reason", refusal.Reason, "message", refusal.Message)
	}
}

func servingStatus(serving bool) healthpb.HealthCheckResponse_ServingStatus {
	if serving {
		return healthpb.HealthCheckResponse_SERVING
	}
	return healthpb.HealthCheckResponse_NOT_SERVING
}

// tellHealth does no I/O: watchers are told by goroutines of their own.
func (s *Server) tellHealth(st healthpb.HealthCheckResponse_ServingStatus) {
	s.health.SetServingStatus("", st)
	s.health.SetServingStatus(pb.AllocatorService_ServiceDesc.ServiceName, st)
}

// Drain makes the node refuse every later request, tells the health service so
// at once, and ends the streams after the answer they are sending. What was
// accepted before is finished; stopping the servers is for the caller.
func (s *Server) Drain() {
	s.node.Drain()
	s.CheckHealth()
	s.drainOnce.Do(func() { close(s.draining) })
}

// issue asks the node for IDs, unless nobody waits for them any more.
func (s *Server) issue(ctx context.Context, count int, after flake.ID) (gen.Block, error) {
	if err := ctx.Err(); err != nil {
		return gen.Block{}, err
	}
	return s.node.Next(ctx, count, after)
}

// outcomeOf returns the label of how a request ended.
func outcomeOf(err error) string {
	if err == nil {
		return outcomeOK
	}
	if r, ok := errors.AsType[*node.Refusal](err); ok {
		return string(r.Reason)
	}
	return outcomeCanceled
}

// refused makes a refusal that the server decides on, and counts it with the
// node's own.
func (s *Server) refused(reason node.Reason, message string, metadata map[string]string) *node.Refusal {
	return s.node.Refused(&node.Refusal{Reason: reason, Message: message, Metadata: metadata})
}
