// Package agreement decides whether this node's clock agrees with its cluster's:
// whether the node may issue, whether its keeper may write ceilings, when it gives
// its sid back, which side of a step of the wall clock is right, and what to make
// of a peer that reports a later revision of the store or claims our sid.
//
// It is a value: events and clock reads go in, actions come out. It starts no
// goroutine, reads no clock and logs nothing. Package watcher carries its actions
// out in a node; chaos/sim runs the same code in simulated clusters.
//
// It keeps no two IDs apart (I1); it keeps them close to real time (I5).
package agreement

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

const (
	// ExchangeEvery is how often the shell exchanges clocks with each peer besides
	// what [Ask] asks for: a clock that goes wrong is then noticed within 4 s, in
	// two exchanges.
	ExchangeEvery = 2 * time.Second

	// evaluateEvery is the time between two evaluations, and at least that between
	// two rounds of asking all peers out of turn.
	evaluateEvery = 250 * time.Millisecond

	// settleFor is the time from the first list of who is registered to the first
	// evaluation. Of nodes that start at the same moment the first to list the space
	// would see itself alone.
	settleFor = 20 * time.Millisecond

	// expectFor is how long a start waits for Config.Expect nodes, from its first list on.
	// Nodes that start together register within it. If they do not, one that restarts
	// while others are down must not wait for long.
	expectFor = 5 * time.Second

	// lapsedFor is how long a node still counts that left without giving its sid back,
	// from its last write on. Most partitions and restarts are over by then; for as long
	// a space whose other nodes crashed for good is unconfirmed.
	lapsedFor = 10 * time.Minute

	// wrongFor is how long a step beyond the limit is remembered after it was reverted, or after the
	// latest answer of a process that started with its time: that process may be restarted once more,
	// or have its clock set right later than ours.
	wrongFor = 10 * time.Minute

	// askSoon is for how long after a step of the wall clock peers are asked more
	// often. Nodes that stepped together then follow within one evaluation of each
	// other, and no gate shuts in between.
	askSoon = 3 * time.Second
)

// Config is what a machine needs.
type Config struct {
	Name     string
	Instance lease.Instance
	Gate     clock.GateConfig // MaxSkew is required

	// Expect is how many nodes with gossip there should be, this one included. A start
	// waits for them, but not for long; 0: it waits for nobody.
	Expect int
}

// Reading is one read of this node's clocks. Read Anchor after Clocks: then a
// suspend that Clocks shows is never missing in Anchor.
type Reading struct {
	Mono   clock.Mono
	Clocks clock.Snapshot
	Anchor clock.AnchorStats
}

// Status is what a node reports to its peers besides its clocks.
type Status struct {
	Verdict  clock.State
	SID      int          // the sid it holds; -1: none
	Term     int64        // Each hold of the sid has a greater term; 0: none is held.
	Era      int64        // the newest it has read; 0: none
	Cluster  uint64       // etcd's cluster ID; 0: not known yet
	Revision int64        // the highest it ever read from etcd; 0: none
	Ceiling  clock.Millis // the highest of any window it ever saw; 0: none
}

// Event is something that happened, for [Machine.Step].
type Event interface{ event() }

// The events.
type (
	// Tick lets time pass. The shell sends one when [Machine.Wake] is reached.
	Tick struct{}
	// LeaseChanged reports the keeper's status, at the start and after each change.
	LeaseChanged struct{ Status lease.Status }
	// Exchange is a peer's answer to our question. One of a process that is not counted
	// under that name is ignored.
	Exchange struct {
		Node   string // the peer's name
		Sample clock.Sample
		Status Status
	}
	// Drain keeps the node from writing ceilings and has its sid given back: an
	// operator drains it. Undrain undoes that.
	Drain   struct{}
	Undrain struct{}
)

func (Tick) event()         {}
func (LeaseChanged) event() {}
func (Exchange) event()     {}
func (Drain) event()        {}
func (Undrain) event()      {}

// RTT is the time the two messages were on their way and in queues, without the
// time that the peer held the question.
func (e Exchange) RTT() time.Duration {
	return time.Duration(e.Sample.T4-e.Sample.T1) - e.Sample.Hold
}

// Peer is another process of the space, as it registered in the store. Gossip is where it is
// asked for its clocks, and where it is answered: only who can write to the store can change
// that, while whoever has the key of gossip can announce any address.
type Peer struct {
	Node     string
	Instance string
	GRPC     string // host:port; may be empty
	Gossip   string // host:port
	Ask      bool   // It is asked for its clocks regularly.
}

// Action is something the shell must do, in the order returned by Step.
type Action interface{ action() }

// The actions. The first five change something; the others are for the log.
type (
	// SetVerdict lets the node issue or refuse.
	SetVerdict struct{ Verdict clock.Verdict }
	// SetGate lets the keeper write ceilings or not.
	SetGate struct{ Gate lease.Gate }
	// Notify passes an event to the keeper: GiveUp, Changed or a reported revision.
	// It may be dropped: it comes again with the next evaluation while it is so.
	Notify struct{ Event lease.Event }
	// Ask has a peer asked for its clocks now, besides the regular exchanges.
	Ask struct{ Instance string }
	// SetPeers lists the other processes with gossip that are counted. No answer of any
	// other may be passed on.
	SetPeers struct{ Peers []Peer }

	// GateTransition is a change at the gate.
	GateTransition struct{ clock.Transition }
	// PeerClockJumped reports that a peer's sample contradicts the one before: one of
	// the two machines was paused, migrated or resumed.
	PeerClockJumped struct{ Node string }
	// Duplicate reports that two live processes claim one sid and term, which no
	// history of the store allows. The record in the store settles it.
	Duplicate struct {
		SID  int
		Term int64
		A, B Claim // A < B by instance
	}
	// HistoryReport is that a peer reported a later or another history of the
	// store than this node has read. It proves nothing by itself.
	HistoryReport struct {
		Node     string
		Instance string
		Kind     HistoryKind
		Era      int64
		Revision int64
		Cluster  uint64 // etcd's cluster ID
	}
)

func (SetVerdict) action()      {}
func (SetGate) action()         {}
func (Notify) action()          {}
func (Ask) action()             {}
func (SetPeers) action()        {}
func (GateTransition) action()  {}
func (PeerClockJumped) action() {}
func (Duplicate) action()       {}
func (HistoryReport) action()   {}

// Machine judges one node's clock. It is a value with one owner.
//
// The contract with the shell:
//
//  1. It sends LeaseChanged once at the start and after every change, Exchange for
//     every answer that came, and Tick when Wake is reached. A LeaseChanged may
//     cover several changes; the latest counts.
//  2. It carries out the actions of one Step in order, and before those of the
//     next: the latest SetVerdict and SetGate count.
//  3. Nothing is durable. Any action may be lost in a crash; a new machine begins
//     in phase Starting, in which the node refuses.
//  4. An Ask may be lost, its answer too: regular exchanges go on meanwhile.
//  5. Times of readings do not go back.
type Machine struct {
	cfg  Config
	gate *clock.Gate

	lease    lease.Status
	members  []clock.Member                        // all registered processes, and nodes that lapsed lately
	voters   []clock.Member                        // those the clock is judged by
	counted  map[string]string                     // the names of members, by instance
	records  map[lease.Instance]lease.Registration // what each member registered last
	setPeers []Peer                                // as last set
	most     most
	draining bool

	estimates  clock.Peers
	peers      map[string]*peer // by instance
	duplicates map[Duplicate]clock.Mono
	wrong      clock.Reference // the time of the latest step of our wall clock beyond the limit
	wrongAt    clock.Mono      // our wall clock, or a process that started with that time, had it last
	suspends   int64           // Estimates were last forgotten at this number of suspends of this machine.
	jumps      uint64          // discontinuities of all peers, of forgotten ones too

	wake    clock.Mono
	asked   clock.Mono // when all were last asked out of turn
	verdict clock.Verdict
	setGate lease.Gate // as last set
	out     []Action
}

// peer is what is known of one process besides the estimate of its clocks.
type peer struct {
	last   Exchange
	at     clock.Mono // when last was taken
	asked  clock.Mono // when the question was sent that last answers
	jumped bool       // last contradicts what was known before
	ran    bool       // it agreed with our issuing clock from its first answer on that showed that, or
	strays bool       // it did not: it may have started with another time, and be set to that again

	ahead      int64 // a revision it had read and we had not; 0: none
	aheadSince clock.Mono
	reported   map[HistoryKind]clock.Mono // when each kind was last reported
	claim      lease.ReportedRevision     // the later point in history that it claims to have read
	claimAt    clock.Mono
	claims     bool // claim and claimAt are set
}

// New returns a machine in phase Starting, in which the node refuses.
func New(cfg Config) *Machine {
	m := &Machine{
		cfg: cfg, gate: clock.NewGate(cfg.Gate), wake: math.MaxInt64,
		records: map[lease.Instance]lease.Registration{},
		peers:   map[string]*peer{}, duplicates: map[Duplicate]clock.Mono{},
	}
	m.verdict = m.gate.Verdict()
	return m
}

// Wake returns when the next Tick is due; the end of time while nothing is.
func (m *Machine) Wake() clock.Mono { return m.wake }

// Step advances m by one event, given a read of the clocks made after it, and
// returns the actions to carry out, in order.
func (m *Machine) Step(r Reading, ev Event) []Action {
	m.out = nil
	m.noticeSuspend(r)
	switch ev := ev.(type) {
	case LeaseChanged:
		first := ev.Status.Listed && !m.lease.Listed
		m.lease = ev.Status
		m.count(r)
		if first {
			m.wake = r.Mono.Add(expectFor)
		}
		if m.gate.Stats().Evaluations == 0 && m.lease.Listed && m.withGossip() >= m.cfg.Expect {
			m.wake = min(m.wake, r.Mono.Add(settleFor))
		}
	case Exchange:
		m.exchange(r, ev)
	case Drain:
		m.draining = true
	case Undrain:
		m.draining = false
	}
	if m.due(ev) {
		m.evaluate(r)
	}
	return m.out
}

// due reports whether to evaluate after ev. A start waits for answers and not for
// the next tick, once the first is over.
func (m *Machine) due(ev Event) bool {
	if !m.lease.Listed {
		return false
	}
	first := m.gate.Stats().Evaluations == 0 // it waits for the list to settle
	switch ev.(type) {
	case Tick:
		return true
	case Drain, Undrain:
		return !first
	case Exchange:
		return m.verdict.Phase == clock.Starting && !first
	}
	return false
}

// withGossip returns how many nodes with gossip are counted, this one included.
func (m *Machine) withGossip() int {
	names := map[string]bool{m.cfg.Name: true}
	for _, p := range m.members {
		if !p.NoGossip {
			names[p.Name] = true
		}
	}
	return len(names)
}

func (m *Machine) do(a Action) { m.out = append(m.out, a) }

// noticeSuspend forgets all estimates when the machine was suspended: they count
// from a raw clock that stopped meanwhile, and every peer would seem wrong by as
// much.
func (m *Machine) noticeSuspend(r Reading) {
	if r.Anchor.Suspends != m.suspends {
		m.suspends = r.Anchor.Suspends
		m.estimates.Forget()
	}
}

// count finds who is counted: the registered nodes, and those that lapsed lately.
//
// A node that crashed or is cut off from the store is no longer registered when its
// lease has run out. Were it not counted, a node that the others are cut off from would
// be a majority by itself: confirmed, and free to follow any step of its wall clock.
func (m *Machine) count(r Reading) {
	if !m.lease.Listed {
		return
	}
	members := lease.Members(m.lease.Nodes, m.lapsed(r))
	for _, r := range m.lease.Nodes {
		m.records[r.Instance] = r
	}
	if !slices.Equal(members, m.members) {
		m.members = members
		m.voters = clock.Voters(m.cfg.Name, m.members)
		m.estimates.Retain(m.members)
		m.counted = make(map[string]string, len(members))
		for _, c := range members {
			m.counted[c.Instance] = c.Name
		}
		gone := func(instance string) bool { _, counts := m.counted[instance]; return !counts }
		maps.DeleteFunc(m.peers, func(id string, _ *peer) bool { return gone(id) })
		maps.DeleteFunc(m.records, func(id lease.Instance, _ lease.Registration) bool { return gone(string(id)) })
	}
	if partners := m.partners(); !slices.Equal(partners, m.setPeers) {
		m.setPeers = partners
		m.do(SetPeers{partners})
	}
}

// lapsed returns the nodes that count though they lapsed: those of the last ten minutes,
// newest first, but no more than make up for the registered nodes that are missing from the
// most that there were at one time. So programs that crash one after the other, each under a
// name of its own, do not take the majority from the nodes that live.
func (m *Machine) lapsed(r Reading) []lease.Lapsed {
	now := clock.Millis((r.Clocks.Raw + r.Clocks.Issuing) / int64(time.Millisecond))
	names := map[string]bool{m.cfg.Name: true}
	for _, n := range m.lease.Nodes {
		if n.Node == "" || n.Gossip != "" {
			names[n.Node] = true
		}
	}
	most := m.most.registered(r.Mono, names, m.lease.Lapsed)
	all := slices.Clone(m.lease.Lapsed)
	slices.SortStableFunc(all, func(a, b lease.Lapsed) int { return cmp.Compare(b.Wall, a.Wall) })
	counted := map[string]bool{}
	return slices.DeleteFunc(all, func(l lease.Lapsed) bool {
		if names[l.Node] || now-l.Wall > clock.MillisOf(lapsedFor) ||
			!counted[l.Node] && len(names)+len(counted) >= most {
			return true
		}
		counted[l.Node] = true
		return false
	})
}

// partners returns the processes to exchange clocks with, at the addresses that they
// registered. One that lapsed keeps its last: it may only be cut off from the store. Of two
// at one address only the newer can answer.
func (m *Machine) partners() (out []Peer) {
	newest, voters := map[string]int64{}, map[string]bool{}
	for _, v := range m.voters {
		voters[v.Name] = true
	}
	for _, r := range m.members {
		addr := m.records[lease.Instance(r.Instance)].Gossip
		newest[addr] = max(newest[addr], r.Since)
	}
	for _, r := range m.members {
		known := m.records[lease.Instance(r.Instance)]
		if known.Gossip == "" || r.Instance == string(m.cfg.Instance) {
			continue
		}
		out = append(out, Peer{
			Node:     r.Name,
			Instance: r.Instance,
			GRPC:     known.GRPC,
			Gossip:   known.Gossip,
			Ask:      r.Since == newest[known.Gossip] && voters[r.Name],
		})
	}
	return out
}

// evaluate judges the clock, and does what follows.
func (m *Machine) evaluate(r Reading) {
	m.wake = r.Mono.Add(evaluateEvery)
	if len(m.lease.Lapsed) > 0 {
		m.count(r) // one may count no more
	}
	maps.DeleteFunc(m.duplicates, func(_ Duplicate, at clock.Mono) bool { return r.Mono.Sub(at) > repeatAfter })
	in := clock.Input{
		Peers:   m.opinions(r),
		Kernel:  r.Clocks.Kernel,
		MaxSkew: m.cfg.Gate.MaxSkew,
		Held:    m.held(r),
	}
	j := clock.Judge(in)
	if j.Started > 0 {
		m.wrongAt = r.Mono
	}
	v, transitions := m.gate.Step(r.Mono, j)
	for _, t := range transitions {
		m.do(GateTransition{t})
	}
	if v != m.verdict && v.Phase != clock.Starting {
		m.do(SetVerdict{v})
	}
	m.verdict = v
	if m.stale(r, j) && r.Mono.Sub(m.asked) >= evaluateEvery {
		m.asked = r.Mono
		for _, p := range m.voters {
			m.do(Ask{p.Instance})
		}
	}
	gate := lease.Gate{
		Open:      m.gate.MayReserve() && !m.draining,
		Confirmed: j.Finding == clock.Agreed && j.Registered > 1,
		Agreed:    j.Finding == clock.Agreed,
	}
	if gate != m.setGate {
		m.setGate = gate
		m.do(SetGate{gate})
	}
	// Those who started under a wrong time source must not find a space that nobody holds a sid
	// of: they would take it for one that was switched off. Their clocks may be set right later than ours.
	if m.lease.Held && (m.draining || m.gate.ReleaseDue() && in.Held == 0) {
		m.do(Notify{lease.GiveUp{}})
	}
	m.reportRevision(r.Mono)
}

// held returns how far ahead of our issuing clock the time of a step beyond the limit is, while our
// wall clock is there and for wrongFor afterwards; 0: there is none. All clocks of a cluster are never
// set right at one moment: the judgement after our own is set back is still made with answers from
// before the peers' are.
func (m *Machine) held(r Reading) time.Duration {
	issuing, elapsed := r.Clocks.Raw+r.Clocks.Issuing, time.Duration(r.Mono)+r.Anchor.Asleep
	if s := r.Anchor; s.Blocked { // The wall clock of the same tick: that of this reading may be set right already.
		m.wrong.Set(issuing+int64(s.Held-s.Slewing), elapsed)
		m.wrongAt = r.Mono
	}
	if !m.wrong.Exists() || r.Mono.Sub(m.wrongAt) > wrongFor {
		return 0
	}
	return max(-m.wrong.Ahead(issuing, elapsed), 0)
}

// stale reports that the peers' last answers may be out of date: they disagree,
// and the second look must not find what the first one found; or the wall clock
// was set, and theirs may have been too.
func (m *Machine) stale(r Reading, j clock.Judgement) bool {
	disagree := j.Finding == clock.SelfFalse || j.Finding == clock.ClusterSplit
	s := r.Anchor
	return disagree && m.verdict.Phase != clock.Shut || s.Pending && r.Mono.Sub(s.Since) < askSoon
}

func (m *Machine) opinions(r Reading) []clock.Opinion {
	out := m.estimates.Opinions(m.voters, r.Clocks.Raw, r.Clocks.Issuing)
	for i, v := range m.voters {
		if p := m.peers[v.Instance]; p != nil {
			out[i].Issues = p.last.Status.SID >= 0 && p.last.Status.Verdict == clock.Open
			if skew := int64(m.cfg.Gate.MaxSkew); out[i].Fresh && !p.ran {
				p.strays = p.strays || !out[i].Issuing.Meets(clock.Interval{Lo: -skew, Hi: skew})
				p.ran = !p.strays && out[i].Issuing.Inside(clock.Interval{Lo: -skew, Hi: skew})
			}
			out[i].Ran = p.ran
		}
	}
	return out
}

// PeerVote returns which side of a pending step of the wall clock the peers agree
// with, for the issuing clock.
func (m *Machine) PeerVote(r Reading) clock.PeerVote {
	m.noticeSuspend(r)
	s := r.Anchor
	if !s.Pending || !m.lease.Listed {
		return clock.PeerVote{}
	}
	opinions := m.opinions(r)
	for i, v := range m.voters {
		if opinions[i].Fresh && m.peers[v.Instance].asked < s.Since {
			// An answer from before the step is about another wall clock: the peer's
			// may have been set as well. And if those who answer first were counted,
			// chance would decide which side of an even split is followed.
			return clock.PeerVote{}
		}
	}
	vote := clock.Arbitrate(opinions, -int64(s.Slewing), int64(s.Held-s.Slewing), m.cfg.Gate.MaxSkew)
	accepted := m.lease.Accepted
	if m.lease.Recorded != 0 { // our clock was behind when we started, and others have shown it
		accepted = max(accepted, m.lease.Recorded+clock.MillisOf(r.Mono.Sub(m.lease.RecordedAt)))
	}
	return clock.PeerVote{Vote: vote, Held: s.Held, Accepted: accepted}
}

// exchange takes a peer's answer.
//
// One that contradicts what was known counts for nothing until the next one fits
// it. That one is asked for at once, or a fault would be noticed seconds later;
// but only once of a peer whose every answer contradicts the one before.
func (m *Machine) exchange(r Reading, e Exchange) {
	if name, counts := m.counted[e.Sample.Instance]; !counts || name != e.Node {
		return // Whoever has the key of gossip could say anything.
	}
	change, err := m.estimates.Add(e.Sample)
	if err != nil {
		return // counted by the estimator
	}
	p := m.peers[e.Sample.Instance]
	if p == nil {
		p = &peer{reported: map[HistoryKind]clock.Mono{}}
		m.peers[e.Sample.Instance] = p
	}
	before := p.jumped
	p.last, p.at, p.jumped = e, r.Mono, change == clock.Discontinuity
	p.asked = r.Mono.Add(-time.Duration(r.Clocks.Raw - e.Sample.T1))
	if p.jumped {
		m.jumps++
		if !before {
			m.do(PeerClockJumped{e.Node})
			m.do(Ask{e.Sample.Instance})
		}
	}
	m.findDuplicates(r.Mono, p)
	m.compareHistory(r.Mono, p)
}

// Verdict returns the verdict of the latest evaluation.
func (m *Machine) Verdict() clock.Verdict { return m.verdict }

// Voters returns whom the clock is judged by, in the order of names. The caller
// does not write to it.
func (m *Machine) Voters() []clock.Member { return m.voters }

// Status returns what this node reports to its peers.
func (m *Machine) Status() Status {
	l := &m.lease
	s := Status{
		Verdict: m.verdict.State, SID: -1,
		Era: l.Era.Number, Cluster: l.Cluster, Revision: l.Revision, Ceiling: l.Ceiling,
	}
	if l.Held && l.Phase == lease.Holding {
		s.SID, s.Term = int(l.Grant.SID), l.Grant.Term
	}
	return s
}

// Report returns what is known, for people and metrics. The shell adds what it
// knows of gossip.
func (m *Machine) Report(r Reading) clock.Report {
	m.noticeSuspend(r)
	out := clock.Report{
		Now:    clock.Millis((r.Clocks.Raw + r.Clocks.Issuing) / int64(time.Millisecond)),
		Gate:   m.gate.Stats(),
		Anchor: r.Anchor, Kernel: r.Anchor.Kernel, Gossip: 1,
		Discontinuities: m.jumps,
	}
	for i, o := range m.opinions(r) {
		v := m.voters[i]
		p := clock.PeerReport{Name: v.Name, Instance: v.Instance, Fresh: o.Fresh, SID: -1, Verdict: clock.Unverified}
		if known, ok := m.peers[v.Instance]; ok {
			s := known.last.Status
			p.Offset, p.Error = time.Duration(o.Issuing.Mid()), o.Issuing.Half()
			p.Wall, p.Kernel = time.Duration(o.Wall.Mid()), o.Kernel
			p.RTT, p.Age = known.last.RTT(), r.Mono.Sub(known.at)
			p.SID, p.Term, p.Verdict, p.Stats = s.SID, s.Term, s.Verdict, m.estimates.Stats(v.Instance)
		}
		out.Peers = append(out.Peers, p)
	}
	return out
}
