package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/text"
)

// Config is what a node needs to know; package config has the defaults.
type Config struct {
	Name     string // People know the node by this name.
	Instance lease.Instance
	Gen      gen.Config
	MaxWait  time.Duration // A request may wait this long for lead to shrink.
	MaxSkew  time.Duration // an AFTER_TOO_FAR within twice of it is worth a retry
}

// Node issues the IDs of one process. All methods are safe for concurrent use.
//
//  1. At most one tenure issues at a time: the old one is sealed before a new
//     one is published.
//  2. A new tenure starts above every ID the process issued before (I2).
type Node struct {
	// New sets these, and they never change.
	cfg   Config
	clock clock.Source
	rnd   rand.Source
	began clock.Mono

	// Every request reads state; it is stored with mu held. Requests raise the numbers below.
	state      atomic.Pointer[state]
	seen       atomic.Int64 // highest issuing clock ever read here, Unix ms
	issued     atomic.Int64 // IDs
	unverified atomic.Int64 // This many of issued were issued while no majority confirmed the clock.
	refused    [NumReasons]atomic.Int64

	reserved atomic.Int64 // highest ceiling ever confirmed to this process, Unix ms; keeper and broker raise it

	mu    sync.Mutex   // guards changes of state, and the rest
	high  clock.Millis // exclusive: everything issued by sealed tenures lies below
	timer *time.Timer  // closes state.changed when time alone changes readiness; nil: nobody watches, or none is needed
}

// New returns a node without a tenure: it refuses with STARTING. rnd must be
// safe for concurrent use; see gen.Random.
func New(cfg Config, src clock.Source, rnd rand.Source) *Node {
	n := &Node{cfg: cfg, clock: src, rnd: rnd, began: src.Now().Mono}
	n.state.Store(&state{changed: make(chan struct{})})
	return n
}

// Config returns what the node was made with.
func (n *Node) Config() Config { return n.cfg }

// About is what requests for IDs are checked against, and who answers them.
type About struct {
	Name     string
	Format   flake.Format // All IDs have it.
	MaxBlock int          // the largest count of a request
}

// About returns what is the same for every request.
func (n *Node) About() About {
	g := n.cfg.Gen
	return About{
		Name:     n.cfg.Name,
		Format:   flake.Format{Layout: g.Layout, Epoch: int64(g.Epoch)},
		MaxBlock: g.MaxBlock(),
	}
}

// Space returns what clients tell the space by; 0: it has no name, or none is known yet.
func (n *Node) Space() uint64 { return n.state.Load().space }

// Check returns the refusal of a request that has a wrong count or after, whoever is to answer it,
// or nil. It is not counted.
func (a About) Check(count int, after flake.ID) *Refusal {
	if count < 1 || count > a.MaxBlock {
		return refuse(InvalidCount, 0, "count is %d: ask for 1 to %d%s", count, a.MaxBlock,
			WhyLimit(a.Format.Layout, a.MaxBlock)).
			with("count", strconv.Itoa(count), "limit", strconv.Itoa(a.MaxBlock))
	}
	if after < 0 {
		return refuse(InvalidID, 0, "after is %d: an ID is never negative; send the last ID that you got", after)
	}
	if err := a.Format.Holds(after); err != nil {
		return refuse(InvalidID, 0, "after is no ID of this space: %v", err).with("class", "out_of_range")
	}
	return nil
}

// Clock returns the issuing clock.
func (n *Node) Clock() clock.Source { return n.clock }

// Try issues count IDs greater than after, or refuses, at once. now is the
// issuing clock, read once for this request; after 0 asks for nothing.
//
// The error is a *Refusal to errors.As. Try does not count it.
func (n *Node) Try(now clock.Reading, count int, after flake.ID) (gen.Block, error) {
	seen := clock.Millis(n.seen.Load())
	for now.Wall > seen {
		if n.seen.CompareAndSwap(int64(seen), int64(now.Wall)) {
			seen = now.Wall
			break
		}
		seen = clock.Millis(n.seen.Load())
	}
	s := n.state.Load()
	if s.tenure != nil && !s.draining && s.verdict.State == clock.Open && after >= 0 {
		b, err := s.tenure.Next(now.Wall, seen, count, after)
		if err == nil {
			n.issued.Add(int64(count))
			if !s.verdict.Confirmed() {
				n.unverified.Add(int64(count)) // I5 is not promised for these
			}
			return b, nil
		}
		return gen.Block{}, n.explain(s, count, after, err)
	}
	return gen.Block{}, n.refusal(s, count, after)
}

// Next issues like Try, and waits for lead to shrink: at most the node's
// MaxWait, and never beyond ctx. If the wait could not end in time it
// refuses at once, so that the caller gets the reason before its deadline.
//
// The error is a *Refusal, and is counted.
func (n *Node) Next(ctx context.Context, count int, after flake.ID) (gen.Block, error) {
	now := n.clock.Now()
	b, err := n.Try(now, count, after)
	if err == nil {
		return b, nil
	}
	return n.wait(ctx, now.Mono, count, after, err)
}

// NextNow is Next for callers that must not wait. If waits is true then Next would wait,
// nothing was decided and nothing is counted.
func (n *Node) NextNow(count int, after flake.ID) (b gen.Block, waits bool, err error) {
	if b, err = n.Try(n.clock.Now(), count, after); err == nil {
		return b, false, nil
	}
	if lead, ok := errors.AsType[*waitable](err); ok && lead.excess <= n.cfg.MaxWait {
		return gen.Block{}, true, nil
	}
	return gen.Block{}, false, n.count(err)
}

// wait tries again whenever the lead that refused has had time to shrink.
func (n *Node) wait(ctx context.Context, since clock.Mono, count int, after flake.ID, err error) (gen.Block, error) {
	until := since.Add(n.cfg.MaxWait)
	var timer *time.Timer
	for {
		var lead *waitable
		if !errors.As(err, &lead) {
			return gen.Block{}, n.count(err)
		}
		now := n.clock.Now()
		if lead.excess > until.Sub(now.Mono) {
			return gen.Block{}, n.count(lead.Refusal) // it would not be over in time
		}
		if end, ok := ctx.Deadline(); ok && time.Until(end) < lead.excess {
			return gen.Block{}, n.count(lead.Refusal)
		}
		if timer == nil {
			timer = time.NewTimer(lead.excess)
			defer timer.Stop()
		} else {
			timer.Reset(lead.excess)
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			return gen.Block{}, n.count(lead.Refusal)
		}
		var b gen.Block
		if b, err = n.Try(n.clock.Now(), count, after); err == nil {
			return b, nil
		}
	}
}

// waitable is a refusal that time alone undoes.
type waitable struct {
	*Refusal
	excess time.Duration // until the lead is within its limit
}

// Unwrap returns the refusal that callers see.
func (w *waitable) Unwrap() error { return w.Refusal }

func (n *Node) count(err error) error {
	var r *Refusal
	if errors.As(err, &r) {
		n.refused[r.Reason].Add(1)
		return r
	}
	return err
}

// Refused counts a refusal that was decided before the node was asked, such as
// a malformed ID, and returns it.
func (n *Node) Refused(r *Refusal) *Refusal {
	_ = n.count(r)
	return r
}

// refusal returns why a request is refused without a call of the generator.
func (n *Node) refusal(s *state, count int, after flake.ID) error {
	if r := n.About().Check(count, after); r != nil {
		return r
	}
	if r := n.closed(s); r != nil {
		return r
	}
	return refuse(NoSID, retryNoSID, "node %s has just lost or released its sid", n.cfg.Name)
}

// Pauses suggested to clients, where no better figure is known.
const (
	firstRetry   = 20 * time.Millisecond
	lastRetry    = 500 * time.Millisecond
	retryNoSID   = time.Second
	retryWindow  = time.Second
	retryClock   = time.Second
	retryRewound = 5 * time.Second
)

// Barred returns why the node writes no ceilings for others now, by precedence, or nil.
// One without a sid of its own does.
func (n *Node) Barred() *Refusal {
	s := n.state.Load()
	if r := n.barred(s); r != nil {
		return r
	}
	if !s.lease.Listed || !s.lease.GateOpen {
		return refuse(Starting, n.lasting(n.began),
			"node %s does not know the space and the clocks of the others yet%s", n.cfg.Name, because(s.lease.Problem))
	}
	return nil
}

// barred returns why the node neither issues nor writes ceilings, or nil.
func (n *Node) barred(s *state) *Refusal {
	switch l := s.lease; {
	case s.draining:
		return refuse(Draining, n.lasting(s.drained), "node %s is draining: try another node", n.cfg.Name)
	case l.Phase == lease.Rewound:
		return refuse(HistoryRewound, retryRewound, "%s", l.Problem)
	case s.verdict.State == clock.Skewed:
		return refuse(ClockSkew, retryClock, "clocks disagree: %s",
			disagreement(s.verdict)).with(skewMetadata(s.verdict)...)
	case s.verdict.State == clock.Unverified:
		return refuse(ClockUnverified, retryClock,
			"too few peers confirm the clock of node %s: check gossip between the nodes",
			n.cfg.Name).with(skewMetadata(s.verdict)...)
	}
	return nil
}

// closed returns why the node issues nothing at all, by precedence, or nil.
func (n *Node) closed(s *state) *Refusal {
	if r := n.barred(s); r != nil {
		return r
	}
	switch l := s.lease; {
	case s.tenure != nil:
		return nil
	case !l.EverHeld && l.Phase != lease.Standby:
		return refuse(Starting, n.lasting(n.began), "node %s has no window yet%s", n.cfg.Name, because(l.Problem))
	default:
		return refuse(NoSID, retryNoSID, "node %s holds no sid%s", n.cfg.Name, because(l.Problem)).
			with("pool_size", strconv.Itoa(l.Pool.Size), "pool_held",
				strconv.Itoa(l.Pool.Held), "sid_range", l.SIDs.String())
	}
}

// lasting suggests a pause as long as a start or a stop has lasted since it began. Most end within 100 ms: had clients
// to wait for longer, three nodes that restart within that time would all be paused.
func (n *Node) lasting(began clock.Mono) time.Duration {
	return min(max(n.clock.Now().Mono.Sub(began), firstRetry), lastRetry)
}

func because(problem string) string {
	if problem == "" {
		return ""
	}
	return ": " + problem
}

// disagreement says why a gate is shut.
func disagreement(v clock.Verdict) string {
	switch v.Finding {
	case clock.ClusterSplit:
		return "no majority of the nodes agrees on the time; check NTP on all of them"
	case clock.SelfFalse:
		return fmt.Sprintf("the cluster's time minus this node's is %v, at most %v is allowed; check NTP on this node",
			v.Offset.Duration(), v.Limit.Duration())
	}
	if v.Offset.Duration().Abs() <= v.Limit.Duration() {
		return "the clock is right again; the node issues when a majority has agreed with it for some seconds"
	}
	return fmt.Sprintf("the cluster's time minus this node's was %v, at most %v is allowed; the node issues again "+
		"when a majority has agreed with its clock for some seconds",
		v.Offset.Duration(), v.Limit.Duration())
}

func skewMetadata(v clock.Verdict) []string {
	return []string{"offset_ms", fmt.Sprint(int64(v.Offset)), "limit_ms", fmt.Sprint(int64(v.Limit))}
}

// WhyLimit returns what follows the largest count in a refusal: why it is that, where
// the layout sets it; else nothing.
func WhyLimit(l flake.Layout, limit int) string {
	if !l.SIDFirst() || limit < 1<<l.SequenceBits() {
		return ""
	}
	return fmt.Sprintf(", which is what a sid has in %v of layout %v", time.Duration(l.Unit())*time.Millisecond, l)
}

// explain turns an error of the generator into a refusal.
func (n *Node) explain(s *state, count int, after flake.ID, err error) error {
	// By the request and not by the error: a sealed tenure does not check the count,
	// and the caller's mistake takes precedence.
	if r := n.About().Check(count, after); r != nil {
		return r
	}
	var lead *gen.LeadError
	switch {
	case errors.As(err, &lead):
		return n.explainLead(s, lead)
	case errors.Is(err, gen.ErrCeiling):
		return refuse(WindowExhausted, retryWindow, "the window reserved in etcd is used up%s",
			because(s.lease.Problem)).
			with("ceil_unix_ms", fmt.Sprint(int64(s.tenure.Ceil())))
	case errors.Is(err, gen.ErrSealed):
		// Sealed after the state was loaded: another tenure, or the reason why there is
		// none, will be published very soon.
		return &waitable{
			Refusal: refuse(NoSID, lastRetry, "node %s is releasing or replacing its sid", n.cfg.Name),
			excess:  time.Millisecond,
		}
	}
	panic(fmt.Sprintf("node: unknown error of the generator: %v", err))
}

func (n *Node) explainLead(s *state, e *gen.LeadError) *waitable {
	excess := e.Excess().Duration()
	w := &waitable{excess: excess}
	var retry time.Duration
	switch retry = excess; {
	case errors.Is(e, gen.ErrAfterTooFar):
		if excess > 2*n.cfg.MaxSkew {
			retry = 0 // not skew: the ID is wrong, or another space's
		}
		w.Refusal = refuse(AfterTooFar, retry, "after is %s ahead of this node's clock, at most %v is allowed",
			text.Span(e.Lead.Duration()), e.Limit.Duration())
	case errors.Is(e, gen.ErrRegression):
		w.Refusal = refuse(ClockRegression, retry,
			"the clock went back: new IDs would be %s ahead of it, at most %v is allowed",
			text.Span(e.Lead.Duration()), e.Limit.Duration())
	case errors.Is(e, gen.ErrNotBegun) && s.lease.Grant.Term > 0 && n.issued.Load() == 0:
		w.Refusal = refuse(Starting, retry, "the first window of node %s begins in %v", n.cfg.Name, excess)
	case errors.Is(e, gen.ErrNotBegun):
		w.Refusal = refuse(NoSID, retry, "the window of the new sid of node %s begins in %v", n.cfg.Name, excess)
	default:
		w.Refusal = refuse(EntropyOverflow, retry,
			"more IDs were requested than the clock allows: new IDs would be %v ahead of it, at most %v is allowed",
			e.Lead.Duration(), e.Limit.Duration())
	}
	w.Refusal = w.with("lead_ms", fmt.Sprint(int64(e.Lead)), "limit_ms", fmt.Sprint(int64(e.Limit)),
		"excess_ms", fmt.Sprint(int64(e.Excess())))
	return w
}
