package cluster

import (
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// Duplicate says that two live processes claim one sid and term, which no
// history of the store allows. Whoever is not in the sid's window record has to
// stop using it.
type Duplicate struct {
	SID  int
	Term int64
	A, B Claim // A < B by instance
}

// Claim is one side of a Duplicate.
type Claim struct {
	Node     string
	Instance string
	Era      int64
	Self     bool // it is this process
}

// Witness says that a peer knows of a later or another history of the store
// than this node. It proves nothing by itself: a linearizable read begun after
// it tells.
type Witness struct {
	Peer     Member
	Kind     WitnessKind
	Revision int64
	Era      int64
	Cluster  uint64 // etcd's cluster ID
	Ceiling  clock.Millis
}

// WitnessKind is a closed set, so that it can be a metric's label.
type WitnessKind string

// What a peer has seen and we have not.
const (
	WitnessRevision WitnessKind = "revision" // a higher revision, 10 s ago, and we still have not
	WitnessEra      WitnessKind = "era"      // a later era
	WitnessCluster  WitnessKind = "cluster"  // another etcd cluster
)

const (
	// claimFresh is how long a claim counts, in raw ns: three intervals.
	claimFresh = int64(6 * time.Second)
	// repeatAfter is how long the same finding is not told again, in raw ns.
	repeatAfter = int64(10 * time.Second)
	// revisionLag is how long we may be behind a peer's revision, in raw ns.
	// Every holder writes each 5 s, so that within two of those we have read a
	// later one unless our etcd has forgotten some.
	revisionLag = int64(10 * time.Second)
	// forgetAfter is how long a silent peer is remembered, in raw ns.
	forgetAfter = int64(60 * time.Second)
)

// reports keeps what peers last said, and finds what contradicts it. One
// goroutine owns it. Times are the local raw clock, in ns.
type reports struct {
	self Claim // without era
	by   map[string]*report
	told map[Duplicate]int64 // eras left out; when it was last told
}

type report struct {
	peer    Member
	status  Status
	at      int64
	ahead   int64 // a revision we had not read when the peer reported it; 0: none
	aheadAt int64
	told    map[WitnessKind]int64
}

func newReports(node, instance string) *reports {
	return &reports{
		self: Claim{Node: node, Instance: instance, Self: true},
		by:   map[string]*report{}, told: map[Duplicate]int64{},
	}
}

// observe takes in a peer's report, made at time now, and returns what this
// node should look into. self is where this node stands at that time.
func (r *reports) observe(now int64, self Status, from Member, said Status) (dups []Duplicate, hints []Witness) {
	r.prune(now)
	p := r.by[from.Instance]
	if p == nil {
		p = &report{told: map[WitnessKind]int64{}}
		r.by[from.Instance] = p
	}
	p.peer, p.status, p.at = from, said, now
	return r.duplicates(now, self, p), p.witness(now, self)
}

func (r *reports) prune(now int64) {
	for id, p := range r.by {
		if now-p.at > forgetAfter {
			delete(r.by, id)
		}
	}
	for d, at := range r.told {
		if now-at > repeatAfter {
			delete(r.told, d)
		}
	}
}

// duplicates compares p's claim with those of everybody else.
func (r *reports) duplicates(now int64, self Status, p *report) (out []Duplicate) {
	if p.status.SID < 0 {
		return nil
	}
	claim := func(m Member, s Status) Claim { return Claim{Node: m.Node, Instance: m.Instance, Era: s.Era} }
	same := func(s Status) bool { return s.SID == p.status.SID && s.Term == p.status.Term }
	found := func(other Claim) {
		d := Duplicate{SID: p.status.SID, Term: p.status.Term, A: claim(p.peer, p.status), B: other}
		if d.B.Instance < d.A.Instance {
			d.A, d.B = d.B, d.A
		}
		key := d
		key.A.Era, key.B.Era = 0, 0
		if _, ok := r.told[key]; !ok {
			r.told[key] = now
			out = append(out, d)
		}
	}
	if same(self) {
		mine := r.self
		mine.Era = self.Era
		found(mine)
	}
	for _, other := range r.by {
		if other != p && now-other.at <= claimFresh && same(other.status) {
			found(claim(other.peer, other.status))
		}
	}
	return out
}

// witness compares what p knows of the store with what we know.
func (p *report) witness(now int64, self Status) (out []Witness) {
	hint := func(k WitnessKind) {
		if at, ok := p.told[k]; ok && now-at < repeatAfter {
			return
		}
		p.told[k] = now
		s := p.status
		out = append(out, Witness{
			Peer: p.peer, Kind: k, Revision: s.Revision, Era: s.Era, Cluster: s.Cluster, Ceiling: s.Ceiling,
		})
	}
	s := p.status
	if self.Cluster != 0 && s.Cluster != 0 && s.Cluster != self.Cluster {
		hint(WitnessCluster) // revisions of two clusters compare with nothing
		p.ahead = 0
		return out
	}
	if self.Era != 0 && s.Era > self.Era {
		hint(WitnessEra)
	}
	switch {
	case self.Revision == 0 || p.ahead != 0 && self.Revision >= p.ahead:
		p.ahead = 0
	case p.ahead != 0 && now-p.aheadAt >= revisionLag:
		hint(WitnessRevision)
	}
	if p.ahead == 0 && self.Revision != 0 && s.Revision > self.Revision {
		p.ahead, p.aheadAt = s.Revision, now
	}
	return out
}
