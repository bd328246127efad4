// Package agreement keeps a node's clock in agreement with its cluster's, or the
// node from issuing.
//
// It is the shell around the judgement of package clock: exchanges with peers
// come in from gossip, an evaluation several times a second judges them against
// the names registered in the store, and what follows is told to the node (may
// it issue), to the keeper (may it write ceilings, should it give its sid back)
// and to the issuing clock (which side of a step is right).
//
// It keeps no two IDs apart (I1); it keeps them close to real time (I5).
package agreement

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/lease"
)

// Clock is the issuing clock and what it is made of. clock.System is one.
type Clock interface {
	clock.Source
	clock.Clocks
	// UnixNano returns issuing time, in Unix ns, at a monotonic time just read.
	UnixNano(clock.Mono) int64
	Stats() clock.AnchorStats
}

// Keeper is what is told about ceilings, and asked who is registered.
type Keeper interface {
	Status() lease.Status
	SetGate(lease.Gate)
	Notify(lease.Event)
}

// Node is what is told whether it may issue.
type Node interface {
	SetVerdict(clock.Verdict)
}

// Config is what a watch needs. All fields are required, and so is Gate.MaxSkew.
type Config struct {
	Name     string
	Instance lease.Instance
	Clock    Clock
	Gate     clock.GateConfig
	Keeper   Keeper
	Node     Node
	Logger   *slog.Logger
}

// Watch judges this node's clock. Its methods are safe for concurrent use; the
// On… methods are for cluster.Config.
type Watch struct {
	cfg  Config
	gate *clock.Gate // owned by Run's goroutine

	resting atomic.Bool

	mu     sync.Mutex           // guards all below
	clocks clock.Peers          // what their answers say of their clocks
	peers  map[string]peer      // what else they said, by instance
	voters []clock.Member       // whom the clock is judged by
	claims map[string]claim     // later histories that peers claim, by instance
	report clock.GateStats      // as of the last evaluation
	gossip func() (int, string) // members and address; nil before gossip runs
	again  func(string)         // asks an instance again; nil before gossip runs
	jumps  uint64               // discontinuities of all peers, also of those forgotten
}

type peer struct {
	last   cluster.Exchange
	at     clock.Mono
	jumped bool // last contradicts what was known before
}

// asked returns when the question went out that last answers.
func (p peer) asked() clock.Mono { return p.at.Add(-time.Duration(p.last.Self.Raw - p.last.T1)) }

// claim is a point in the store's history that a peer has read and we have not.
type claim struct {
	rumour lease.ReportedRevision
	at     clock.Mono
}

// New returns a watch; Run starts it.
func New(cfg Config) *Watch {
	return &Watch{
		cfg: cfg, gate: clock.NewGate(cfg.Gate),
		peers: map[string]peer{}, claims: map[string]claim{},
	}
}

// SetGossip lets reports tell how many members gossip has, and where we are.
func (w *Watch) SetGossip(f func() (members int, address string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gossip = f
}

// SetAsk says how to have a peer asked for its clocks at once.
func (w *Watch) SetAsk(f func(instance string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.again = f
}

// Rest keeps the node from writing ceilings for good, and has its sid given
// back: an operator drains it.
func (w *Watch) Rest() { w.resting.Store(true) }

// Figures of the loop.
const (
	evaluateEvery = 250 * time.Millisecond
	startingEvery = 20 * time.Millisecond // so that a start waits for echoes and not for us
	claimFor      = 30 * time.Second      // a peer's claim of a later history counts
)

// Run evaluates until ctx ends, and returns nil.
func (w *Watch) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var told lease.Gate
	var asked clock.Mono // when peers were last asked out of turn
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		timer.Reset(evaluateEvery)
		st := w.cfg.Keeper.Status()
		if !st.Listed { // who there is to agree with is not known
			timer.Reset(startingEvery)
			continue
		}
		now := w.cfg.Clock.Now().Mono
		judgement := clock.Judge(clock.Input{
			Peers: w.opinions(st.Nodes), Kernel: clock.SyncOf(w.cfg.Clock.Kernel()), MaxSkew: w.cfg.Gate.MaxSkew,
		})
		verdict, transitions := w.gate.Step(now, judgement)
		for _, t := range transitions {
			w.log(t)
		}
		if verdict.Phase == clock.Starting {
			timer.Reset(startingEvery)
		} else {
			w.cfg.Node.SetVerdict(verdict)
		}
		if w.wondering(now, verdict, judgement) && now.Sub(asked) >= evaluateEvery {
			asked = now
			w.askAll()
		}
		resting := w.resting.Load()
		gate := lease.Gate{
			Open:      w.gate.MayReserve() && !resting,
			Confirmed: judgement.Finding == clock.Agreed && judgement.Registered > 1,
		}
		if gate != told {
			w.cfg.Keeper.SetGate(gate)
			told = gate
		}
		if st.Held && (resting || w.gate.ReleaseDue()) {
			w.cfg.Keeper.Notify(lease.GiveUp{})
		}
		w.passRumour(now)
		w.mu.Lock()
		w.report = w.gate.Stats()
		w.mu.Unlock()
	}
}

// askSoon is for how long after a step of the wall clock peers are asked more
// often. Those who stepped too then follow within one evaluation of each other,
// and no gate shuts over the moment between.
const askSoon = 3 * time.Second

// wondering reports that what peers said last may be out of date: they disagree,
// and the second look must not find what the first one found; or the wall clock
// was set, and theirs may have been too.
func (w *Watch) wondering(now clock.Mono, v clock.Verdict, j clock.Judgement) bool {
	disagree := j.Finding == clock.SelfFalse || j.Finding == clock.ClusterSplit
	s := w.cfg.Clock.Stats()
	return disagree && v.Phase != clock.Shut || s.Pending && now.Sub(s.Since) < askSoon
}

// askAll asks all whom the clock is judged by, now.
func (w *Watch) askAll() {
	w.mu.Lock()
	again, voters := w.again, w.voters
	w.mu.Unlock()
	if again == nil {
		return
	}
	for _, m := range voters {
		again(m.Instance)
	}
}

// opinions returns what is known of the clocks of the registered names that count.
func (w *Watch) opinions(nodes []lease.Registration) []clock.Opinion {
	members := lease.Members(nodes)
	voters := clock.Voters(w.cfg.Name, members)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.voters = voters
	w.clocks.Retain(members)
	for instance := range w.peers {
		if !slices.ContainsFunc(members, func(m clock.Member) bool { return m.Instance == instance }) {
			delete(w.peers, instance)
			delete(w.claims, instance)
		}
	}
	return w.estimates()
}

// estimates is called with mu held.
func (w *Watch) estimates() []clock.Opinion {
	c := w.Clocks()
	return w.clocks.Opinions(w.voters, c.Raw, c.Issuing-c.Raw)
}

// Witness answers the issuing clock's question which side of a step others agree
// with.
func (w *Watch) Witness() clock.PeerVote {
	s := w.cfg.Clock.Stats()
	if !s.Pending || !w.cfg.Keeper.Status().Listed {
		return clock.PeerVote{}
	}
	w.mu.Lock()
	opinions, heard := w.estimates(), true
	for i, m := range w.voters {
		heard = heard && (!opinions[i].Fresh || w.peers[m.Instance].asked() >= s.Since)
	}
	w.mu.Unlock()
	if !heard {
		// What was said before the step was of other wall clocks: theirs may have
		// been set as well. And were those counted who answer first, then which
		// side of an even split is followed would be chance.
		return clock.PeerVote{}
	}
	says := clock.Arbitrate(opinions, -int64(s.Slewing), int64(s.Held-s.Slewing), w.cfg.Gate.MaxSkew)
	return clock.PeerVote{Vote: says, Held: s.Held}
}

// OnExchange takes a peer's answer.
//
// One that contradicts what was known counts for nothing until the next one fits
// it. That is asked for at once, or a fault would be noticed seconds later; but
// not again and again of a peer that tells another story each time.
func (w *Watch) OnExchange(e cluster.Exchange) {
	if again := w.exchange(e); again != nil {
		again(e.Peer.Instance)
	}
}

// exchange returns how to ask the peer again, if that is needed.
func (w *Watch) exchange(e cluster.Exchange) (again func(string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change, err := w.clocks.Add(clock.Sample{
		Instance: e.Peer.Instance, T1: e.T1, T4: e.Self.Raw, Hold: e.Hold,
		Peer: clock.Snapshot{
			Raw: e.Clocks.Raw, Issuing: e.Clocks.Issuing - e.Clocks.Raw, Wall: e.Clocks.Wall - e.Clocks.Raw,
			Kernel: clock.SyncOf(clock.Kernel{Known: e.Status.Kernel.Known, Synchronized: e.Status.Kernel.Synchronized}),
		},
	})
	if err != nil {
		return nil // counted by the estimator
	}
	before, jumped := w.peers[e.Peer.Instance].jumped, change == clock.Discontinuity
	w.peers[e.Peer.Instance] = peer{e, w.cfg.Clock.Now().Mono, jumped}
	if jumped {
		w.jumps++
	}
	if !jumped || before {
		return nil
	}
	w.cfg.Logger.Warn("a clock jumped: one of two machines was paused, migrated or resumed", "peer", e.Peer.Node)
	return w.again
}

// OnDuplicate takes the news that two live processes claim one sid and term. The
// record in the store settles it: whoever it does not name finds out by looking.
func (w *Watch) OnDuplicate(d cluster.Duplicate) {
	w.cfg.Logger.Error("two processes claim one sid; the record in etcd settles it",
		"sid", d.SID, "term", d.Term, "a", d.A.Node, "b", d.B.Node)
	if d.A.Self || d.B.Self {
		w.cfg.Keeper.Notify(lease.Changed{})
	}
}

// OnWitness takes a peer's word of a later history.
func (w *Watch) OnWitness(c cluster.Witness) {
	level := slog.LevelWarn
	if st := w.cfg.Keeper.Status(); c.Kind == cluster.WitnessRevision && !(st.Held && st.GateOpen) {
		level = slog.LevelDebug // who writes nothing reads rarely: the read that follows tells
	}
	w.cfg.Logger.Log(context.Background(), level, "a peer has seen another history of etcd than we have", "peer", c.Peer.Node, "kind", c.Kind,
		"era", c.Era, "revision", c.Revision, "cluster", c.Cluster)
	if c.Kind == cluster.WitnessCluster {
		return // revisions of another cluster say nothing about ours
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claims[c.Peer.Instance] = claim{lease.ReportedRevision{Era: c.Era, Revision: c.Revision}, w.cfg.Clock.Now().Mono}
}

// passRumour tells the keeper of the latest point in history that a quorum of
// the cluster claims to have read. One peer's word is told to nobody but the log.
func (w *Watch) passRumour(now clock.Mono) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var claims []lease.ReportedRevision
	for _, m := range w.voters {
		if c, ok := w.claims[m.Instance]; ok && now.Sub(c.at) < claimFor {
			claims = append(claims, c.rumour)
		}
	}
	quorum := (len(w.voters)+1)/2 + 1
	if len(claims) < quorum {
		return
	}
	slices.SortFunc(claims, func(a, b lease.ReportedRevision) int {
		return -cmp.Or(cmp.Compare(a.Era, b.Era), cmp.Compare(a.Revision, b.Revision))
	})
	w.cfg.Keeper.Notify(claims[quorum-1])
}

// log tells of a transition, once.
func (w *Watch) log(t clock.Transition) {
	j := t.Judgement
	level := slog.LevelInfo
	if t.To == clock.Shut || t.To == clock.Strict || t.Kind == clock.Warned || t.Kind == clock.ReleaseDue {
		level = slog.LevelWarn
	}
	w.cfg.Logger.Log(context.Background(), level, "clock "+t.Kind.String(), "from", t.From.String(), "to", t.To.String(),
		"finding", j.Finding.String(), "offset", j.Offset.String(), "uncertainty", j.Uncertainty.String(),
		"agree", j.Agree, "disagree", j.Disagree, "silent", j.Silent, "registered", j.Registered, "falsetickers", j.Falsetickers)
}

// Report returns what is known, for people and metrics.
func (w *Watch) Report() clock.Report {
	r := clock.Report{Now: w.cfg.Clock.Now().Wall, Anchor: w.cfg.Clock.Stats(), Kernel: w.cfg.Clock.Kernel(), Gossip: 1}
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Gate, r.Discontinuities = w.report, w.jumps
	if w.gossip != nil {
		r.Gossip, r.Address = w.gossip()
	}
	now := w.cfg.Clock.Now().Mono
	for i, o := range w.estimates() {
		m := w.voters[i]
		p := clock.PeerReport{Name: m.Name, Instance: m.Instance, Fresh: o.Fresh, SID: -1, Verdict: clock.Unverified}
		if known, ok := w.peers[m.Instance]; ok {
			s := known.last.Status
			p.Offset, p.Error = time.Duration(o.Issuing.Mid()), o.Issuing.Half()
			p.Wall, p.Kernel = time.Duration(o.Wall.Mid()), o.Kernel
			p.RTT, p.Age = known.last.RTT(), now.Sub(known.at)
			p.SID, p.Term, p.Verdict, p.Stats = s.SID, s.Term, s.Verdict, w.clocks.Stats(m.Instance)
		}
		r.Peers = append(r.Peers, p)
	}
	return r
}

// Suspended tells that the machine slept: every estimate counts from a raw clock
// that stood still meanwhile, and all peers would seem wrong by as much.
func (w *Watch) Suspended() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clocks.Forget()
}

// Clocks reads this node's clocks, for cluster.Local and for estimates.
//
// They are read one after the other, and a pause in between would show as an
// error of one against the other that no round trip bounds. So the raw clock is
// read on both sides, and again if they are far apart.
func (w *Watch) Clocks() cluster.Clocks { return ReadClocks(w.cfg.Clock) }

// ReadClocks is Watch.Clocks, for before there is a watch.
func ReadClocks(c Clock) cluster.Clocks {
	for attempt := 1; ; attempt++ {
		r := c.Read()
		out := cluster.Clocks{Raw: r.Raw, Issuing: c.UnixNano(r.Mono), Wall: r.Wall}
		if c.Read().Raw-r.Raw < int64(closeTogether) || attempt == readAttempts {
			return out
		}
	}
}

// Bounds of ReadClocks. Two reads take about 2 µs.
const (
	closeTogether = 50 * time.Microsecond
	readAttempts  = 4
)

// Status is what this node tells its peers, for cluster.Local.
func (w *Watch) Status() cluster.Status {
	st, k := w.cfg.Keeper.Status(), w.cfg.Clock.Kernel()
	w.mu.Lock()
	verdict := w.report.Verdict.State
	w.mu.Unlock()
	s := cluster.Status{
		Kernel:  cluster.Kernel{Known: k.Known, Synchronized: k.Synchronized, MaxError: k.MaxError},
		Verdict: verdict, SID: -1, Era: st.Era.Number, Cluster: st.Cluster, Revision: st.Revision, Ceiling: st.Ceiling,
	}
	if st.Held && st.Phase == lease.Holding {
		s.SID, s.Term = int(st.Grant.SID), st.Grant.Term
	}
	return s
}
