package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/watermark"
	"github.com/flakelease/allocator/internal/worker/broker"
	"github.com/flakelease/allocator/ulid"
)

// DefaultMaxTextCount is how many IDs a request over HTTP or RESP may ask for: an
// answer of 10,000 UUIDs has 390 kB. Larger blocks are for gRPC, where the answer
// has the same small size for every count.
const DefaultMaxTextCount = 10_000

// Config is what a Service needs. Node is required.
type Config struct {
	Node *node.Node
	// Guard rejects callers before the node is called. nil: everybody is let
	// through, at no cost.
	Guard *access.Guard
	// MaxTextCount is the maximum number of IDs of a request that is answered with
	// texts; 0: DefaultMaxTextCount. The node's own limit applies as well.
	MaxTextCount int
	// Broker serves workers, each client as many as WorkersPerClient. Required for listeners
	// with calls of workers.
	Broker           *broker.Broker
	WorkersPerClient int
	Watermark        watermark.Config
	// Observe, if set, gets the duration of each request. It must not block.
	Observe func(surface string, took time.Duration)
}

// Service answers requests with the IDs and refusals of one node. It is safe for
// concurrent use.
type Service struct {
	node    *node.Node
	guard   *access.Guard
	limits  Limits
	observe func(surface string, took time.Duration)
	stats   stats
	workers Workers
	marks   *watermark.Reader
}

// New returns a Service. The error names the field of cfg that is wrong.
func New(cfg Config) (*Service, error) {
	switch {
	case cfg.Node == nil:
		return nil, errors.New("server: config node: is required")
	case cfg.MaxTextCount < 0:
		return nil, fmt.Errorf("server: config max text count: %d is negative", cfg.MaxTextCount)
	case cfg.MaxTextCount == 0:
		cfg.MaxTextCount = DefaultMaxTextCount
	}
	g := cfg.Node.Config().Gen
	format := flake.Format{Layout: g.Layout, Epoch: int64(g.Epoch)}
	_, err1 := ulid.FromFlake(format, 0, 0)
	_, err2 := ulid.FromFlake(format, 1<<(int(g.Layout.TimeBits())+g.Layout.LowBits())-1, 0)
	return &Service{
		node: cfg.Node, guard: cfg.Guard, observe: cfg.Observe,
		workers: Workers{broker: cfg.Broker, node: cfg.Node, guard: cfg.Guard, perClient: cfg.WorkersPerClient},
		marks:   watermark.New(cfg.Node, cfg.Watermark),
		limits:  Limits{Count: min(cfg.MaxTextCount, g.MaxBlock()), Wide: err1 == nil && err2 == nil, Format: format},
	}, nil
}

// Node returns the node that issues.
func (s *Service) Node() *node.Node { return s.node }

// Guard returns what rejects callers; nil: nothing does.
func (s *Service) Guard() *access.Guard { return s.guard }

// Workers returns what serves workers.
func (s *Service) Workers() *Workers { return &s.workers }

// Limits returns the limits of a request for IDs as texts.
func (s *Service) Limits() Limits { return s.limits }

// Issue calls the node for a block, unless ctx has ended: then nobody would get
// the IDs. The error is a *node.Refusal, which is counted, or ctx's.
func (s *Service) Issue(ctx context.Context, count int, after flake.ID) (gen.Block, error) {
	if err := ctx.Err(); err != nil {
		return gen.Block{}, err
	}
	return s.node.Next(ctx, count, after)
}
