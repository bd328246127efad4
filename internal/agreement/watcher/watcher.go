// Package watcher is the shell around the machine of package agreement: it feeds
// it the keeper's status, peers' answers and time, and carries out its actions on
// the node, the keeper and gossip.
package watcher

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Clock is the issuing clock. clock.System is one.
type Clock interface {
	Snapshot() (clock.Snapshot, clock.Mono)
	Stats() clock.AnchorStats
}

// Keeper knows who is registered, and writes ceilings as the gate allows.
type Keeper interface {
	// Watch returns the status and a channel that is closed at its next change.
	Watch() (lease.Status, <-chan struct{})
	SetGate(lease.Gate)
	Notify(lease.Event)
}

// Node issues as the verdict allows.
type Node interface {
	SetVerdict(clock.Verdict)
}

// Gossip exchanges clocks with peers. cluster.Cluster is one.
type Gossip interface {
	Ask(instance string)
	SetPeers(peers []agreement.Peer)
	// Members returns how many are live, this node included, and our address.
	Members() (int, string)
}

// Config is what a watcher needs. All fields are required.
type Config struct {
	Machine agreement.Config
	Clock   Clock
	Keeper  Keeper
	Node    Node
	Logger  *slog.Logger
}

// Watcher judges this node's clock while Run runs. Its methods are safe for
// concurrent use.
type Watcher struct {
	cfg    Config
	events chan agreement.Event // what Run steps the machine by, besides time and the keeper
	ended  chan struct{}        // closed when Run returns

	passing sync.Mutex // held while peers are passed to gossip, so that the newest come last; locked before mu

	mu      sync.Mutex // guards the rest
	machine *agreement.Machine
	gossip  Gossip           // nil before gossip runs
	peers   []agreement.Peer // as gossip is to know them
	stepped chan struct{}    // closed after the machine's next step; nil: nobody watches
}

// eventQueue holds the answers of a burst, in which every peer replies at once.
// Gossip waits while it is full, and has a longer queue of its own.
const eventQueue = 64

// New returns a watcher; Run starts it.
func New(cfg Config) *Watcher {
	return &Watcher{
		cfg:     cfg,
		events:  make(chan agreement.Event, eventQueue),
		ended:   make(chan struct{}),
		machine: agreement.New(cfg.Machine),
	}
}

// SetGossip makes g the one to ask for exchanges.
func (w *Watcher) SetGossip(g Gossip) {
	w.passing.Lock()
	defer w.passing.Unlock()
	w.mu.Lock()
	w.gossip = g
	peers := w.peers
	w.mu.Unlock()
	g.SetPeers(peers)
}

// OnExchange takes a peer's answer, for cluster.Config.
func (w *Watcher) OnExchange(e agreement.Exchange) { w.send(e) }

// Drain keeps the node from writing ceilings, and has its sid given back, until Undrain.
func (w *Watcher) Drain() { w.send(agreement.Drain{}) }

// Undrain lets the node acquire a sid again.
func (w *Watcher) Undrain() { w.send(agreement.Undrain{}) }

func (w *Watcher) send(ev agreement.Event) {
	select {
	case w.events <- ev:
	case <-w.ended:
	}
}

// Run judges until ctx ends, and returns nil. It may be called once.
func (w *Watcher) Run(ctx context.Context) error {
	defer close(w.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	status, changed := w.cfg.Keeper.Watch()
	var ev agreement.Event = agreement.LeaseChanged{Status: status}
	for {
		w.step(ev, timer)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			status, changed = w.cfg.Keeper.Watch()
			ev = agreement.LeaseChanged{Status: status}
		case ev = <-w.events:
		case <-timer.C:
			ev = agreement.Tick{}
		}
	}
}

// step advances the machine, sets the timer to when it wants to wake, and carries
// out its actions.
func (w *Watcher) step(ev agreement.Event, timer *time.Timer) {
	w.mu.Lock()
	r := w.read()
	actions := w.machine.Step(r, ev)
	wait := w.machine.Wake().Sub(r.Mono)
	if w.stepped != nil {
		close(w.stepped)
		w.stepped = nil
	}
	gossip := w.gossip
	w.mu.Unlock()
	timer.Reset(wait)
	for _, a := range actions {
		switch a := a.(type) {
		case agreement.SetVerdict:
			w.cfg.Node.SetVerdict(a.Verdict)
		case agreement.SetGate:
			w.cfg.Keeper.SetGate(a.Gate)
		case agreement.Notify:
			w.cfg.Keeper.Notify(a.Event)
		case agreement.Ask:
			if gossip != nil {
				gossip.Ask(a.Instance)
			}
		case agreement.SetPeers:
			w.setPeers(a.Peers)
		default:
			w.log(a)
		}
	}
}

// setPeers passes the peers on, now or when gossip comes.
func (w *Watcher) setPeers(peers []agreement.Peer) {
	w.passing.Lock()
	defer w.passing.Unlock()
	w.mu.Lock()
	w.peers = peers
	gossip := w.gossip
	w.mu.Unlock()
	if gossip != nil {
		gossip.SetPeers(peers)
	}
}

// read reads the clocks. It is called with mu held, so that the times that the
// machine is given never go back.
func (w *Watcher) read() agreement.Reading {
	c, mono := w.cfg.Clock.Snapshot()
	return agreement.Reading{Mono: mono, Clocks: c, Anchor: w.cfg.Clock.Stats()}
}

// log writes what the other actions report.
func (w *Watcher) log(a agreement.Action) {
	log := w.cfg.Logger
	switch a := a.(type) {
	case agreement.GateTransition:
		if a.Kind == clock.PhaseChanged {
			return // An event tells it.
		}
		level, j := slog.LevelInfo, a.Judgement
		if a.Kind == clock.Warned || a.Kind == clock.ReleaseDue {
			level = slog.LevelWarn
		}
		log.Log(context.Background(), level, "clock gate changed", "change", a.Kind.String(), "phase", a.To.String(),
			"finding", j.Finding.String(), "offset", j.Offset.String(), "uncertainty", j.Uncertainty.String(),
			"agree", j.Agree, "disagree", j.Disagree, "silent", j.Silent, "registered", j.Registered, "falsetickers",
			j.Falsetickers)
	case agreement.PeerClockJumped:
		log.Warn("a clock jumped: one of two machines was paused, migrated or resumed", "peer", a.Node)
	case agreement.Duplicate:
		log.Error("two processes claim one sid; the record in etcd settles it",
			"sid", a.SID, "term", a.Term, "a", a.A.Node, "b", a.B.Node)
	case agreement.HistoryReport:
		log.Warn("a peer reported another history of etcd than this node has read",
			"peer", a.Node, "kind", a.Kind, "era", a.Era, "revision", a.Revision, "cluster", a.Cluster)
	}
}

// PeerVote returns the peers' vote on a step of the wall clock, for clock.System.
func (w *Watcher) PeerVote() clock.PeerVote {
	if !w.cfg.Clock.Stats().Pending {
		return clock.PeerVote{} // nothing to vote on: nearly always
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.machine.PeerVote(w.read())
}

// Status returns what this node reports to its peers, for cluster.Local.
func (w *Watcher) Status() agreement.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.machine.Status()
}

// Watch returns a channel that is closed when Report next has something new.
func (w *Watcher) Watch() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stepped == nil {
		w.stepped = make(chan struct{})
	}
	return w.stepped
}

// Report returns what is known, for people and metrics.
func (w *Watcher) Report() clock.Report {
	w.mu.Lock()
	r := w.machine.Report(w.read())
	gossip := w.gossip
	w.mu.Unlock()
	if gossip != nil {
		r.Gossip, r.Address = gossip.Members()
	}
	return r
}
