// Package agent issues IDs that nodes issued to it before. It stands between a cluster and the
// processes of one machine: they ask it over a socket, and it holds blocks of the SDK's client, so
// that nearly no request costs a call to a node.
//
// An [Agent] is a server.Issuer, as a node is: listeners put the same checks in front of it and
// give the same answers. What it promises:
//
//   - No ID is issued twice: each comes from the client once (I1).
//   - IDs rise from call to call, and exceed the after of a request (I2, I6).
//   - An ID was issued to the agent at most the client's MaxAge before the request.
//   - A refusal of a node passes unchanged: its reason, message, delay and metadata.
//
// IDs that the agent holds when it ends are lost, and nothing else: it keeps no state.
//
// The package does no I/O of its own. Its clock and its client are arguments, and the shell that
// opens sockets is package daemon.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/node"
)

// Source is where IDs come from: a *client.Client in mode Prefetch.
type Source interface {
	// PrefetchedAfter returns n IDs above after that are there, without a wait.
	PrefetchedAfter(n int, after flake.ID) (client.Block, bool)
	// BlockAfter returns n IDs above after, and waits for a node if it has to.
	BlockAfter(ctx context.Context, n int, after flake.ID) (client.Block, error)
}

// Config is what an Agent needs. All fields are required.
type Config struct {
	About  node.About
	Source Source
	Clock  clock.Source
	// MaxWait is how long a request may wait for a node, where no ID is there.
	MaxWait time.Duration
	// MaxAge is that of the Source.
	MaxAge time.Duration
}

// Agent issues the IDs of a Source. All methods are safe for concurrent use.
type Agent struct {
	cfg     Config
	issued  atomic.Int64
	refused [node.NumReasons]atomic.Int64
	used    atomic.Int64 // clock.Mono of the last request that waited, or was seen by Run
	stopped atomic.Bool
	space   atomic.Uint64

	mu      sync.Mutex    // guards the rest
	problem *node.Refusal // why the last request for a block failed; nil: it did not
	noted   clock.Mono    // when that was
	probing bool          // Run is asking for a block
	changed chan struct{} // closed when problem becomes another
}

// New returns an Agent.
func New(cfg Config) *Agent {
	return &Agent{cfg: cfg, changed: make(chan struct{})}
}

// About returns what requests are checked against.
func (a *Agent) About() node.About { return a.cfg.About }

// Space returns the ID of the space of the nodes, once one has named it.
func (a *Agent) Space() uint64 { return a.space.Load() }

// Clock returns the clock of the machine.
func (a *Agent) Clock() clock.Source { return a.cfg.Clock }

// Try issues IDs that are there.
func (a *Agent) Try(_ clock.Reading, count int, after flake.ID) (gen.Block, error) {
	if a.stopped.Load() || after != 0 && a.cfg.About.Check(count, after) != nil {
		return gen.Block{}, errNotThere
	}
	b, ok := a.cfg.Source.PrefetchedAfter(count, after)
	if !ok {
		return gen.Block{}, errNotThere
	}
	a.issued.Add(int64(count))
	return a.blockOf(b), nil
}

// NextNow is Next for callers that must not wait: waits says that Next would ask a node.
func (a *Agent) NextNow(count int, after flake.ID) (b gen.Block, waits bool, err error) {
	b, err = a.Try(clock.Reading{}, count, after)
	return b, err != nil, nil
}

var errNotThere = errors.New("agent: no such block is there")

// blockOf returns a block of the client as listeners take it.
func (a *Agent) blockOf(b client.Block) gen.Block {
	if b.SpaceID != 0 && a.space.Load() != b.SpaceID {
		a.space.Store(b.SpaceID)
	}
	return gen.Block{First: b.First, Count: b.Count, Stride: b.Stride, SID: b.SID}
}

// Next issues count IDs above after. It waits for a node where they are not there, at most MaxWait
// and never beyond ctx.
//
// The error is a *node.Refusal, and is counted.
func (a *Agent) Next(ctx context.Context, count int, after flake.ID) (gen.Block, error) {
	if b, err := a.Try(clock.Reading{}, count, after); err == nil {
		return b, nil
	}
	return a.wait(ctx, count, after)
}

// wait is Next where the IDs are not there, or after says more than that they rise.
func (a *Agent) wait(ctx context.Context, count int, after flake.ID) (gen.Block, error) {
	if r := a.cfg.About.Check(count, after); r != nil {
		return gen.Block{}, a.Refused(r)
	}
	if a.stopped.Load() {
		return gen.Block{}, a.Refused(stopping())
	}
	now := a.cfg.Clock.Now().Mono
	a.used.Store(int64(now))
	if r := a.known(now); r != nil {
		return gen.Block{}, a.Refused(r)
	}
	if ctx.Err() != nil { // The caller does not wait: what is known is the answer.
		return gen.Block{}, a.Refused(cmp.Or(a.Ready(), unasked()))
	}
	limited, cancel := context.WithTimeout(ctx, a.cfg.MaxWait)
	defer cancel()
	b, err := a.cfg.Source.BlockAfter(limited, count, after)
	if err != nil {
		r := a.refusalOf(err, after)
		// The caller did not end it, and one that asks for less would fare no better.
		if own(r) && ctx.Err() == nil && (count == 1 || r.Reason != node.NoNode) {
			a.note(r)
		}
		return gen.Block{}, a.Refused(r)
	}
	a.note(nil)
	a.issued.Add(int64(count))
	return a.blockOf(b), nil
}

// known returns the problem where a request need not wait to learn that it lasts: it is not older than
// the delay that nodes named, or Run is asking. Else each request would wait for MaxWait, and soon all
// processes of the machine would wait.
func (a *Agent) known(now clock.Mono) *node.Refusal {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.problem; r != nil && (a.probing || now.Sub(a.noted) < cmp.Or(r.RetryAfter, retryNoNode)) {
		return r
	}
	return nil
}

// own reports whether a refusal says something about the agent or its nodes, and not about one
// request.
func own(r *node.Refusal) bool {
	switch r.Reason {
	case node.InvalidCount, node.InvalidID, node.InvalidFormat, node.AfterTooFar, node.EntropyOverflow:
		return false
	}
	return true
}

// refusalOf returns an error of the client, to a request with after, as a refusal: that of a node if
// one refused, and else NO_NODE.
func (a *Agent) refusalOf(err error, after flake.ID) *node.Refusal {
	r, refused := errors.AsType[*client.Refusal](err)
	switch {
	case !refused && errors.Is(err, client.ErrClosed):
		return stopping()
	case !refused:
		return noNode(retryNoNode, "the agent %s has no IDs, and got none from its nodes: %v", a.cfg.About.Name, err)
	}
	var its *node.Refusal
	switch reason := node.ReasonOf(string(r.Reason)); {
	case r.Reason == client.AfterTooFar && after == 0: // The after is the last ID of the agent.
		its = noNode(max(r.RetryAfter, retryNoNode), "the last ID of the agent %s is ahead of the clock of node %s: "+
			"check the clocks of the nodes, and if one was wrong and is right now, restart the agent. The node says: "+
			"%s", a.cfg.About.Name, r.Node, r.Message)
	case reason != 0:
		return &node.Refusal{Reason: reason, Message: r.Message, RetryAfter: r.RetryAfter, Metadata: r.Metadata}
	default:
		its = noNode(cmp.Or(max(r.RetryAfter, 0), retryNoNode), "node %s refused for %.60s, a reason that the agent "+
			"%s does not know: update the agent. The node says: %s", r.Node, r.Reason, a.cfg.About.Name, r.Message)
	}
	its.Metadata = map[string]string{"node_reason": string(r.Reason)}
	return its
}

// noNode returns a refusal of the agent's own.
func noNode(retry time.Duration, format string, args ...any) *node.Refusal {
	return &node.Refusal{Reason: node.NoNode, RetryAfter: retry, Message: fmt.Sprintf(format, args...)}
}

// retryNoNode is the delay before a retry where no node named one.
const retryNoNode = 500 * time.Millisecond

// unasked is the refusal of a request that no node was asked for, behind one of its pipeline that was
// refused.
func unasked() *node.Refusal {
	return noNode(time.Millisecond, "the agent would have to ask a node, which it does for no more requests of a "+
		"pipeline after one was refused: send the request again")
}

func stopping() *node.Refusal {
	return &node.Refusal{
		Reason:     node.Draining,
		RetryAfter: retryNoNode,
		Message:    "the agent is stopping: retry when it has started again",
	}
}

// Refused counts a refusal, and returns it.
func (a *Agent) Refused(r *node.Refusal) *node.Refusal {
	a.refused[r.Reason].Add(1)
	return r
}

// note keeps the outcome of a request for a block.
func (a *Agent) note(r *node.Refusal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	same := (r == nil) == (a.problem == nil)
	a.problem, a.noted = r, a.cfg.Clock.Now().Mono
	if !same {
		close(a.changed)
		a.changed = make(chan struct{})
	}
}

// probe says whether Run is asking for a block.
func (a *Agent) probe(is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.probing = is
}

// Ready returns nil if the last request for a block was served, and else its refusal.
func (a *Agent) Ready() *node.Refusal {
	r, _ := a.Watch()
	return r
}

// Watch returns what Ready does, and a channel that is closed when the agent becomes ready, or ceases
// to be.
func (a *Agent) Watch() (*node.Refusal, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped.Load() {
		return stopping(), a.changed
	}
	return a.problem, a.changed
}

// Stop has the agent refuse every later request. What it holds is lost.
func (a *Agent) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.stopped.Swap(true) {
		close(a.changed)
		a.changed = make(chan struct{})
	}
}

// Stats returns counters. Those of what only nodes have are zero.
func (a *Agent) Stats() node.Stats {
	st := node.Stats{
		Name:     a.cfg.About.Name,
		Issued:   a.issued.Load(),
		Now:      a.cfg.Clock.Now().Wall,
		Draining: a.stopped.Load(),
	}
	for _, r := range node.Reasons {
		st.Refused[r] = a.refused[r].Load()
	}
	return st
}

// warmFor is for how long after the last request IDs are kept fresh.
const warmFor = time.Minute

// Run keeps fresh IDs there while there are requests, and asks whether nodes serve again from the
// moment on that they do not, until ctx ends. It returns nil then.
//
// The IDs that it takes for that, two in MaxAge, are lost.
func (a *Agent) Run(ctx context.Context) error {
	every := a.cfg.MaxAge / 2
	interval := every
	tick := time.NewTicker(interval)
	defer tick.Stop()
	issued := a.issued.Load()
	for {
		r, changed := a.Watch()
		next := every
		if r != nil {
			next = min(every, retryNoNode)
		}
		if next != interval {
			interval = next
			tick.Reset(interval)
		}
		select {
		case <-tick.C:
		case <-changed:
		case <-ctx.Done():
			return nil
		}
		now := a.cfg.Clock.Now().Mono
		if n := a.issued.Load(); n != issued {
			issued = n
			a.used.Store(int64(now))
		}
		used := clock.Mono(a.used.Load())
		if warm := used > 0 && now.Sub(used) < warmFor; warm || a.Ready() != nil {
			a.warm(ctx)
		}
	}
}

// warm takes an ID.
func (a *Agent) warm(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, a.cfg.MaxWait)
	defer cancel()
	a.probe(true)
	defer a.probe(false)
	switch _, err := a.cfg.Source.BlockAfter(limited, 1, 0); {
	case err == nil:
		a.note(nil)
	case ctx.Err() == nil:
		a.note(a.refusalOf(err, 0))
	}
}
