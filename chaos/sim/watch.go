package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// watch is what a process knows of its clock and its peers': the anchor, the
// estimates, the judgement and the gate, tied together as packages clock.System,
// cluster and agreement do it.
type watch struct {
	anchor  *clock.Anchor
	gate    *clock.Gate
	peers   clock.Peers
	known   map[string]*acquaintance // by instance; never iterated
	nodes   []lease.Registration     // that voters was worked out from
	voters  []clock.Member
	verdict clock.Verdict
	told    lease.Gate
	begun   bool
	asked   clock.Mono // when peers were last asked out of turn
	nonce   int64
	offered map[int64]int64 // questions on their way: nonce to T1
}

// acquaintance is what a peer said besides its clocks.
type acquaintance struct {
	asked   clock.Mono // when the question went out that it answered last
	jumped  bool
	ahead   int64 // a revision it had read and we had not; 0: none
	aheadAt clock.Mono
	claim   lease.ReportedRevision
	claimAt clock.Mono
	claimed bool
}

// Paces of the real shells.
const (
	echoEvery     = 2 * time.Second
	evaluateEvery = 250 * time.Millisecond
	startingEvery = 20 * time.Millisecond
	askSoon       = 3 * time.Second
	claimFor      = 30 * time.Second
	revisionLag   = 10 * time.Second
)

func (t *watch) begin(p *process) {
	t.anchor = clock.NewAnchor(clock.AnchorConfig{}, p.readings())
	if p.w.plan.mode == Unclocked {
		p.node.SetVerdict(clock.Verdict{State: clock.Open})
		if !p.w.plan.rawClock {
			p.plan(p.w.plan.tickEvery, tick)
		}
		return
	}
	t.gate = clock.NewGate(clock.GateConfig{MaxSkew: p.w.plan.maxSkew, Strict: p.w.plan.strict})
	t.known, t.offered = map[string]*acquaintance{}, map[int64]int64{}
	t.verdict = t.gate.Verdict()
	p.node.SetVerdict(t.verdict)
	p.plan(p.w.plan.tickEvery, tick)
	p.plan(startingEvery, evaluate)
	p.plan(startingEvery, echo)
}

// tickAnchor compares the wall clock with issuing time.
func (p *process) tickAnchor() {
	w, t := p.w, &p.watch
	p.plan(w.plan.tickEvery, tick)
	witness := clock.PeerVote{Vote: clock.VoteAlone} // unclocked: follow what the wall clock says
	if w.plan.mode != Unclocked {
		witness = p.witness()
	}
	for _, e := range t.anchor.Tick(p.readings(), clock.Kernel{}, witness) {
		w.points.anchor(e)
		if e.Kind == clock.Suspended {
			t.peers.Forget()
		}
		if e.Kind != clock.Nudged {
			w.note(p, "clock "+e.Kind.String()+", held %d us, jump %d us", int64(e.Held)/1000, int64(e.Jump)/1000)
		}
	}
}

// witness says which side of a step others agree with.
func (p *process) witness() clock.PeerVote {
	t := &p.watch
	s := t.anchor.Stats()
	if !s.Pending || !p.status.Listed {
		return clock.PeerVote{}
	}
	opinions := p.opinions()
	for i, m := range t.voters {
		if opinions[i].Fresh && t.known[m.Instance].asked < s.Since {
			return clock.PeerVote{}
		}
	}
	says := clock.Arbitrate(opinions, -int64(s.Slewing), int64(s.Held-s.Slewing), p.w.plan.maxSkew)
	return clock.PeerVote{Vote: says, Held: s.Held}
}

// opinions returns what is known of the clocks of the registered names that count.
func (p *process) opinions() []clock.Opinion {
	t := &p.watch
	if nodes := p.status.Nodes; len(nodes) != len(t.nodes) || len(nodes) > 0 && &nodes[0] != &t.nodes[0] {
		t.nodes = nodes
		members := lease.Members(nodes)
		t.voters = clock.Voters(p.host.node, members)
		t.peers.Retain(members)
	}
	r := p.readings()
	return t.peers.Opinions(t.voters, r.Raw, t.anchor.UnixNano(r.Mono)-r.Raw)
}

// evaluate judges the clock, and tells node and machine what follows.
func (p *process) evaluate() {
	w, t := p.w, &p.watch
	if !p.status.Listed {
		p.plan(startingEvery, evaluate)
		return
	}
	now := p.readings().Mono
	j := clock.Judge(clock.Input{Peers: p.opinions(), MaxSkew: w.plan.maxSkew})
	before := t.verdict.Phase
	verdict, transitions := t.gate.Step(now, j)
	for _, tr := range transitions {
		w.points.gate(tr)
	}
	t.verdict = verdict
	if verdict.Phase == clock.Starting {
		p.plan(startingEvery, evaluate)
	} else {
		p.plan(evaluateEvery, evaluate)
		p.node.SetVerdict(verdict)
	}
	if verdict.Phase == clock.Confirmed && before != clock.Confirmed && w.plan.mute*2 >= len(w.hosts) && j.Registered > 1 {
		w.points.hit(OutnumberedByMute)
	}
	if verdict.Phase != before {
		w.note(p, "gate "+verdict.Phase.String()+" on "+j.Finding.String()+", offset %d us, %d registered", int64(j.Offset)/1000, int64(j.Registered))
	}
	s := t.anchor.Stats()
	disagree := (j.Finding == clock.SelfFalse || j.Finding == clock.ClusterSplit) && verdict.Phase != clock.Shut
	if (disagree || s.Pending && now.Sub(s.Since) < askSoon) && now.Sub(t.asked) >= evaluateEvery {
		t.asked = now
		for _, m := range t.voters {
			p.ask(m.Instance)
		}
	}
	gate := lease.Gate{Open: t.gate.MayReserve(), Confirmed: j.Finding == clock.Agreed && j.Registered > 1}
	if gate != t.told {
		t.told = gate
		p.tell(gate)
	}
	if p.status.Held && t.gate.ReleaseDue() {
		w.points.hit(GaveUp)
		p.tell(lease.GiveUp{})
	}
	p.passRumour(now)
}

// passRumour tells the machine what a quorum claims to have read.
func (p *process) passRumour(now clock.Mono) {
	t := &p.watch
	var claims []lease.ReportedRevision
	for _, m := range t.voters {
		if a := t.known[m.Instance]; a != nil && a.claimed && now.Sub(a.claimAt) < claimFor {
			claims = append(claims, a.claim)
		}
	}
	quorum := (len(t.voters)+1)/2 + 1
	if len(claims) < quorum {
		return
	}
	slices.SortFunc(claims, func(a, b lease.ReportedRevision) int {
		return -cmp.Or(cmp.Compare(a.Era, b.Era), cmp.Compare(a.Revision, b.Revision))
	})
	p.w.points.hit(Rumoured)
	p.tell(claims[quorum-1])
}

// network carries gossip.
type network struct {
	parts  [2]uint64     // hosts that hear each other, as bits of their number modulo 64
	parted time.Duration // until then
	oneWay bool          // only what the first part sends to the second is lost
}

// cutGossip splits the hosts in two for a while, perhaps one way only.
func (w *world) cutGossip() {
	w.net.parts = [2]uint64{}
	for i := range w.hosts {
		w.net.parts[w.rng.IntN(2)] |= 1 << (i % 64)
	}
	w.net.oneWay = w.rng.IntN(2) == 0
	w.net.parted = w.now + w.logTime(time.Second, 2*time.Minute)
	w.note(nil, "gossip is cut until %d", int64(w.net.parted))
}

// part returns which side of a cut the host is on.
func (w *world) part(h *host) int {
	i := slices.Index(w.hosts, h)
	if i < 0 {
		i = 0
	}
	return int(w.net.parts[1] >> (i % 64) & 1)
}

// send carries a message from one process to another, once, twice or not at all.
func (w *world) send(from, to *process, deliver func()) {
	if from.host.mute || to.host.mute {
		return
	}
	pl := &w.plan
	noisy := w.stage == trouble
	if noisy {
		if w.now < w.net.parted {
			a, b := w.part(from.host), w.part(to.host)
			if a != b && (!w.net.oneWay || a == 0) {
				return
			}
		}
		if w.chance(pl.gossipLost) {
			return
		}
	}
	times := 1
	if noisy && w.chance(pl.gossipTwice) {
		times = 2
	}
	for range times {
		d := pl.gossipLatency/2 + w.upTo(pl.gossipLatency)
		if noisy && w.chance(pl.gossipSlow) {
			d += w.logTime(time.Millisecond, 3*time.Second)
		}
		to.in(d, deliver)
	}
}

// askPeers asks everybody whom the clock is judged by.
func (p *process) askPeers() {
	pace := echoEvery
	if !p.watch.begun {
		pace = startingEvery // until it is known whom to ask
	}
	if p.status.Listed {
		p.opinions()
		p.watch.begun = true
		for _, m := range p.watch.voters {
			p.ask(m.Instance)
		}
		pace = echoEvery
	}
	p.plan(pace, echo)
}

// answer is a peer's clocks and where it stands.
type answer struct {
	site    clock.Snapshot
	hold    time.Duration
	held    bool
	sid     int64
	term    int64
	era     int64
	cluster uint64
	rev     int64
}

// ask sends a question to the process of that instance.
func (p *process) ask(instance string) {
	w, t := p.w, &p.watch
	peer := w.find(instance)
	if peer == nil {
		return
	}
	t.nonce++
	nonce := t.nonce
	if len(t.offered) > 256 {
		clear(t.offered)
	}
	t.offered[nonce] = p.readings().Raw
	w.send(p, peer, func() {
		received := peer.readings().Raw
		peer.in(w.upTo(time.Millisecond), func() {
			a := peer.answer()
			a.hold = time.Duration(a.site.Raw - received)
			w.send(peer, p, func() { p.learn(peer, nonce, a) })
		})
	})
}

// find returns the live process of that instance.
func (w *world) find(instance string) *process {
	for i := len(w.processes) - 1; i >= 0; i-- {
		if p := w.processes[i]; p.name == instance {
			if p.gone {
				return nil
			}
			return p
		}
	}
	return nil
}

func (p *process) answer() answer {
	r, w := p.readings(), p.w
	a := answer{
		site: clock.Snapshot{Raw: r.Raw, Issuing: p.watch.anchor.UnixNano(r.Mono) - r.Raw, Wall: r.Wall - r.Raw},
		era:  p.status.Era.Number, cluster: p.status.Cluster, rev: p.status.Revision,
	}
	if p.status.Held && p.status.Phase == lease.Holding {
		a.held, a.sid, a.term = true, int64(p.status.Grant.SID), p.status.Grant.Term
	}
	if w.plan.liar && p.host == w.hosts[0] && w.stage == trouble {
		lie := int64(w.logTime(time.Millisecond, time.Hour) * w.sign())
		a.site.Issuing += lie
		a.site.Wall += lie
		a.rev += 1000
		w.points.hit(Lied)
	}
	return a
}

// learn takes a peer's answer.
func (p *process) learn(peer *process, nonce int64, a answer) {
	w, t := p.w, &p.watch
	t1, ok := t.offered[nonce]
	if !ok {
		return // a second copy
	}
	delete(t.offered, nonce)
	r := p.readings()
	change, err := t.peers.Add(clock.Sample{Instance: peer.name, T1: t1, T4: r.Raw, Hold: a.hold, Peer: a.site})
	if err != nil {
		return
	}
	k := t.known[peer.name]
	if k == nil {
		k = &acquaintance{}
		t.known[peer.name] = k
	}
	jumped := change == clock.Discontinuity
	if jumped {
		w.points.hit(Discontinuous)
	}
	if jumped && !k.jumped {
		p.ask(peer.name)
	}
	k.jumped = jumped
	k.asked = r.Mono.Add(-time.Duration(r.Raw - t1))
	p.compare(k, a, r.Mono)
}

// compare looks whether a peer knows of a later history than we do, or claims
// our sid.
func (p *process) compare(k *acquaintance, a answer, now clock.Mono) {
	s := &p.status
	if a.held && s.Held && s.Phase == lease.Holding && a.sid == int64(s.Grant.SID) && a.term == s.Grant.Term {
		p.w.points.hit(Duplicated)
		p.tell(lease.Changed{})
	}
	claim := func() { k.claim, k.claimAt, k.claimed = lease.ReportedRevision{Era: a.era, Revision: a.rev}, now, true }
	switch {
	case s.Cluster != 0 && a.cluster != 0 && a.cluster != s.Cluster:
		k.ahead = 0
		return
	case s.Era.Number != 0 && a.era > s.Era.Number:
		claim()
	}
	switch {
	case s.Revision == 0 || k.ahead != 0 && s.Revision >= k.ahead:
		k.ahead = 0
	case k.ahead != 0 && now.Sub(k.aheadAt) >= revisionLag:
		claim()
	}
	if k.ahead == 0 && s.Revision != 0 && a.rev > s.Revision {
		k.ahead, k.aheadAt = a.rev, now
	}
}
