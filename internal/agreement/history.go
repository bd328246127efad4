package agreement

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Claim is one side of a Duplicate.
type Claim struct {
	Node     string
	Instance string
	Era      int64
	Self     bool // it is this process
}

// HistoryKind is how a peer's history of the store differs from ours. It is a
// closed set, so that it can be a metric's label.
type HistoryKind string

// The kinds.
const (
	LaterRevision HistoryKind = "revision" // it reported a later revision, and a read 10 s later did not show it
	LaterEra      HistoryKind = "era"
	OtherCluster  HistoryKind = "cluster" // it reads another etcd cluster
)

const (
	// claimFresh is how long a peer's claim of a sid counts: three exchanges.
	claimFresh = 3 * ExchangeEvery
	// repeatAfter is how long the same finding is not reported again.
	repeatAfter = 10 * time.Second
	// revisionLag is by how much a read of ours may be later than a peer's report of
	// a later revision, and not show it: longer than that read can have been on its
	// way. While etcd does not answer us, nothing is known.
	revisionLag = 10 * time.Second
	// claimFor is how long a peer's claim of a later history counts.
	claimFor = 30 * time.Second
)

// findDuplicates compares p's claim of a sid with ours and those of other peers.
func (m *Machine) findDuplicates(now clock.Mono, p *peer) {
	s := p.last.Status
	if s.SID < 0 {
		return
	}
	claim := func(p *peer) Claim {
		return Claim{Node: p.last.Node, Instance: p.last.Sample.Instance, Era: p.last.Status.Era}
	}
	same := func(o Status) bool { return o.SID == s.SID && o.Term == s.Term }
	var others []Claim
	ours := m.Status()
	if same(ours) {
		others = append(others, Claim{Node: m.cfg.Name, Instance: string(m.cfg.Instance), Era: ours.Era, Self: true})
	}
	for _, o := range m.peers {
		if o != p && now.Sub(o.at) <= claimFresh && same(o.last.Status) {
			others = append(others, claim(o))
		}
	}
	slices.SortFunc(others, func(a, b Claim) int { return strings.Compare(a.Instance, b.Instance) })
	for _, o := range others {
		d := Duplicate{SID: s.SID, Term: s.Term, A: claim(p), B: o}
		if d.B.Instance < d.A.Instance {
			d.A, d.B = d.B, d.A
		}
		key := d
		key.A.Era, key.B.Era = 0, 0
		if at, ok := m.duplicates[key]; ok && now.Sub(at) <= repeatAfter {
			continue
		}
		m.duplicates[key] = now
		m.do(d)
		if o.Self {
			m.do(Notify{lease.Changed{}})
		}
	}
}

// compareHistory compares what p has read of the store with what we have read.
func (m *Machine) compareHistory(now clock.Mono, p *peer) {
	ours, theirs := m.Status(), p.last.Status
	report := func(k HistoryKind) {
		if at, ok := p.reported[k]; ok && now.Sub(at) < repeatAfter {
			return
		}
		p.reported[k] = now
		m.do(HistoryReport{
			Node: p.last.Node, Instance: p.last.Sample.Instance, Kind: k,
			Era: theirs.Era, Revision: theirs.Revision, Cluster: theirs.Cluster,
		})
		if k != OtherCluster { // revisions of two clusters do not compare
			p.claim, p.claimAt, p.claims = lease.ReportedRevision{Era: theirs.Era, Revision: theirs.Revision}, now, true
		}
	}
	if ours.Cluster != 0 && theirs.Cluster != 0 && theirs.Cluster != ours.Cluster {
		report(OtherCluster)
		p.ahead = 0
		return
	}
	if ours.Era != 0 && theirs.Era > ours.Era {
		report(LaterEra)
	}
	switch {
	case ours.Revision == 0 || p.ahead != 0 && ours.Revision >= p.ahead:
		p.ahead = 0
	case p.ahead != 0 && m.lease.ReadAt.Sub(p.aheadSince) >= revisionLag:
		report(LaterRevision)
	}
	if p.ahead == 0 && ours.Revision != 0 && theirs.Revision > ours.Revision {
		p.ahead, p.aheadSince = theirs.Revision, now
	}
}

// reportRevision notifies the keeper of the latest point in history that a quorum of
// the cluster claims to have read. What one peer claims is logged and no more.
func (m *Machine) reportRevision(now clock.Mono) {
	var claims []lease.ReportedRevision
	for _, v := range m.voters {
		if p := m.peers[v.Instance]; p != nil && p.claims && now.Sub(p.claimAt) < claimFor {
			claims = append(claims, p.claim)
		}
	}
	quorum := (len(m.voters)+1)/2 + 1
	if len(claims) < quorum {
		return
	}
	slices.SortFunc(claims, func(a, b lease.ReportedRevision) int {
		return -cmp.Or(cmp.Compare(a.Era, b.Era), cmp.Compare(a.Revision, b.Revision))
	})
	m.do(Notify{claims[quorum-1]})
}
