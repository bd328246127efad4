package server

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
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

// Issuer is what requests for IDs are answered from: a node, or an agent, which holds IDs of nodes.
// Its methods are safe for concurrent use.
type Issuer interface {
	// Next issues count IDs that are greater than after, next to each other, and may wait for that.
	// The error is a *node.Refusal, which is counted.
	Next(ctx context.Context, count int, after flake.ID) (gen.Block, error)
	// Try is Next that does not wait, and counts no refusal. now is the clock of Clock.
	Try(now clock.Reading, count int, after flake.ID) (gen.Block, error)
	// NextNow is Next for callers that must not wait. If waits is true then Next would wait,
	// nothing was decided and nothing is counted.
	NextNow(count int, after flake.ID) (b gen.Block, waits bool, err error)
	// Refused counts a refusal that was decided before Next, and returns it.
	Refused(r *node.Refusal) *node.Refusal
	// Ready returns nil if a request for one ID would be served now, or else why not.
	Ready() *node.Refusal
	// Watch returns what Ready does, and a channel that is closed when that changes.
	Watch() (*node.Refusal, <-chan struct{})
	About() node.About
	// Space returns what clients tell the space by, as lease.Space.ID; 0: no answer names one yet.
	Space() uint64
	Clock() clock.Source
	Stats() node.Stats
}

// Config is what a Service needs: a Node, or an Agent and its Nodes.
type Config struct {
	Node *node.Node
	// Agent issues instead of a node, and answers nothing but requests for IDs. Nodes are the
	// addresses of those who answer the rest, for people.
	Agent Issuer
	Nodes []string
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
	Logger           *slog.Logger // It gets refusals of requests that name themselves; nil: nothing does.
	// Observe, if set, gets the duration of each request. It must not block.
	Observe func(surface string, took time.Duration)
}

// Service answers requests with the IDs and refusals of one issuer. It is safe for
// concurrent use.
type Service struct {
	cfg     Config
	issuer  Issuer
	limits  Limits
	stats   stats
	refused *rate.Limiter     // limits LogRefused
	marks   *watermark.Reader // nil at an agent

	waits, streams access.Places[string] // Callers of marks take these.
}

// New returns a Service.
func New(cfg Config) *Service {
	issuer := cfg.Agent
	if cfg.Node != nil {
		issuer = cfg.Node
	}
	about := issuer.About()
	layout := about.Format.Layout
	_, err1 := ulid.FromFlake(about.Format, 0, 0)
	_, err2 := ulid.FromFlake(about.Format, 1<<(int(layout.TimeBits())+layout.LowBits())-1, 0)
	s := &Service{
		cfg: cfg, issuer: issuer,
		refused: rate.NewLimiter(rate.Every(refusedEvery), refusedLines),
		limits: Limits{
			Count:  min(cmp.Or(cfg.MaxTextCount, DefaultMaxTextCount), about.MaxBlock),
			Wide:   err1 == nil && err2 == nil,
			Format: about.Format,
		},
		waits:   access.Places[string]{Each: 1024, All: 4096},
		streams: access.Places[string]{Each: 64, All: 960},
	}
	if cfg.Node != nil {
		s.marks = watermark.New(cfg.Node, cfg.Watermark)
	}
	return s
}

// Issuer returns what issues.
func (s *Service) Issuer() Issuer { return s.issuer }

// Elsewhere returns who answers what was asked for if the Service is an agent's, which does not; nil if it is a node's.
func (s *Service) Elsewhere(what string) error {
	if s.cfg.Node != nil {
		return nil
	}
	return fmt.Errorf("%s: an agent issues and decodes IDs, and nodes answer this: ask one of %s", what,
		strings.Join(s.cfg.Nodes, ", "))
}

// Guard returns what rejects callers; nil: nothing does.
func (s *Service) Guard() *access.Guard { return s.cfg.Guard }

// Workers returns what serves workers.
func (s *Service) Workers() Workers { return Workers{s} }

// Limits returns the limits of a request for IDs as texts.
func (s *Service) Limits() Limits { return s.limits }

// Issue calls the issuer for a block, unless ctx has ended: then nobody would get
// the IDs. The error is a *node.Refusal, which is counted, or ctx's.
func (s *Service) Issue(ctx context.Context, count int, after flake.ID) (gen.Block, error) {
	if err := ctx.Err(); err != nil {
		return gen.Block{}, err
	}
	return s.issuer.Next(ctx, count, after)
}
