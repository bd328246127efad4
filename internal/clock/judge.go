package clock

import (
	"cmp"
	"hash/fnv"
	"io"
	"math"
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/text"
)

// Finding is how the clocks of a cluster compare with ours at one moment.
type Finding uint8

// The findings.
const (
	Unconfirmed  Finding = iota // too few peers answered, or their estimates are too wide, to decide
	Agreed                      // a majority is within max_skew of us
	SelfFalse                   // no majority can agree with us, and a majority agrees without us
	ClusterSplit                // no majority can agree with us, nor does one agree without us
)

// String returns the finding's name as it is logged.
func (f Finding) String() string {
	return text.Name(f, "unconfirmed", "agreed", "self_false", "cluster_split")
}

// Opinion is what is known of the clocks of one registered name but our own.
type Opinion struct {
	Name string
	Estimate
	// Issues: by its newest answer it holds a sid, and its clock lets it issue.
	Issues bool
	// Ran: the same process agreed with our issuing clock before. No process follows a step that we do not,
	// so where its issuing clock differs now, its time went on and ours did not, or the other way round.
	Ran bool
}

// Input is what [Judge] judges by.
type Input struct {
	// Peers has one entry for each name registered in the store but our own,
	// for the newest process of that name, whether it answered or not: see
	// [Voters], which leaves out those without gossip. Leaving out those that
	// merely do not answer would let a node cut off from the others agree with itself.
	Peers   []Opinion
	Kernel  Sync          // what our kernel reports
	MaxSkew time.Duration // T, the distance up to which clocks agree

	// Held is how far ahead of our issuing clock our wall clock is, or lately was, in a step that is
	// not followed since it is beyond the limit of steps; 0: there is none.
	Held time.Duration
}

// Judgement is a finding and the numbers behind it. The zero value is that of
// no answers.
type Judgement struct {
	Finding Finding

	// Registered is n, us included; Quorum is Q = n/2 + 1. Each name is counted
	// once below, we ourselves under Agree: Registered is their sum.
	Registered, Quorum int
	Agree              int // surely within max_skew of us
	Disagree           int // surely further off
	Ambiguous          int // the estimate is too wide to decide
	Silent             int // did not answer lately
	// Started counts those in Ambiguous and Silent that started with the time of the step in Input.Held.
	Started int
	// Dissent counts those in Disagree, and the silent ones whose last answer, as old as it is, was surely
	// further off.
	Dissent int

	// Bound is the smallest distance within which a quorum, we included, surely
	// is from us; the greatest duration if fewer answered.
	Bound time.Duration

	// Calm: Agreed, and would be so at less than half of max_skew.
	Calm bool

	// Known reports that a quorum, we perhaps among it, agrees on the time: give
	// or take max_skew/2 each, or what less will do. It is never set for a node
	// alone. The cluster's time is then ours + Offset, within Uncertainty. If not
	// Known, Offset is where most of those that answered agree, for people to read.
	Known       bool
	Offset      time.Duration
	Uncertainty time.Duration

	// Disagreeing names those counted in Disagree. Falsetickers names those
	// whose clock is more than max_skew away from the cluster's, if that is
	// Known, or that the tie-break of two nodes found false. Both are sorted.
	Disagreeing, Falsetickers []string
}

// Judge compares the issuing clocks of the cluster with ours. An interval inside
// ±T agrees, one wholly outside disagrees, and any other does neither; we agree
// with ourselves. With n names registered and Q = n/2 + 1:
//
//	Agree ≥ Q          Agreed
//	Disagree ≥ n−Q+1   SelfFalse if Q of the others share a point, each widened by T/2; else ClusterSplit
//	otherwise          Unconfirmed
//
// So fewer than n−Q+1 false peers cannot make a good clock refuse: they are too
// few to outvote those that have not answered yet. Two nodes that disagree cannot
// decide who is wrong: both are split, unless one kernel is synchronized and the other
// is not, and then the latter's clock is the false one.
//
// A peer that issues nothing, and whose clock is where our own wall clock was set beyond the
// limit of steps, has started under the time source that we do not follow. It says no more than
// our wall clock did, and neither agrees nor disagrees: also if our time source is repaired first.
//
// Judge is pure and total: any input has a judgement.
//
// Source: docs/DESIGN.md, "Time". The tolerance halved as long as a quorum holds
// is that of TigerBeetle (src/vsr/clock.zig).
func Judge(in Input) Judgement {
	t := max(in.MaxSkew, 0)
	n := len(in.Peers) + 1
	j := Judgement{Registered: n, Quorum: n/2 + 1, Agree: 1}

	limit := around(0, t)
	others := make([]Interval, 0, n)
	bounds := append(make([]time.Duration, 0, n), 0) // our own
	for _, o := range in.Peers {
		i := o.Issuing
		if in.started(o) {
			j.Started++
			if o.Fresh {
				j.Ambiguous++
			} else {
				j.Silent++
			}
			continue
		}
		if i.valid() && !i.Meets(limit) {
			j.Dissent++
		}
		switch {
		case !o.usable():
			j.Silent++
			continue
		case i.Inside(limit):
			j.Agree++
		case !i.Meets(limit):
			j.Disagree++
			j.Disagreeing = append(j.Disagreeing, o.Name)
		default:
			j.Ambiguous++
		}
		others = append(others, o.Issuing)
		bounds = append(bounds, o.Issuing.Bound())
	}
	j.Bound = math.MaxInt64
	if len(bounds) >= j.Quorum {
		slices.Sort(bounds)
		j.Bound = bounds[j.Quorum-1]
	}
	j.cluster(in.Peers, others, t)

	switch {
	case j.Agree >= j.Quorum:
		j.Finding, j.Calm = Agreed, j.Bound < t/2 || n == 1
	case j.Disagree < n-j.Quorum+1:
		j.Finding = Unconfirmed
	case j.Known:
		// Q of the others, not of all: what disagrees does not touch our own
		// clock widened by T/2, so fewer than Q can share a point with it.
		j.Finding = SelfFalse
	default:
		j.Finding = ClusterSplit
	}
	if n == 2 && j.Finding == ClusterSplit {
		j.tieBreak(in.Kernel, in.Peers[0])
	}
	slices.Sort(j.Disagreeing)
	slices.Sort(j.Falsetickers)
	return j
}

// shows reports whether the issuing clock of o is evidence against a step beyond the limit: it is not that
// of a process which may have started under the time source that made the step.
func (o *Opinion) shows() bool { return o.Issues || o.Ran }

// started reports whether o is that of a process which started with the time of the step that we
// hold against. A step so short that a clock could agree with both sides of it shows nothing.
func (in *Input) started(o Opinion) bool {
	skew := max(in.MaxSkew, 0)
	return in.Held > 2*skew && !o.shows() && o.Issuing.valid() && o.Issuing.Inside(around(int64(in.Held), skew))
}

func (o *Opinion) usable() bool { return o.Fresh && o.Issuing.valid() }

// cluster computes the cluster's time, and whose clock differs from it.
func (j *Judgement) cluster(peers []Opinion, others []Interval, t time.Duration) {
	if len(others) == 0 {
		return
	}
	region, tolerance, ok := quorum(append(others, Interval{}), j.Quorum, int64(t/2))
	if !ok {
		region, _ = Marzullo(others)
	}
	j.Known = ok
	j.Offset = time.Duration(region.Mid())
	j.Uncertainty = time.Duration(plus(int64(region.Half()), tolerance))
	if !ok {
		return
	}
	good := region.Widen(int64(t))
	for _, o := range peers {
		if o.usable() && !o.Issuing.Meets(good) {
			j.Falsetickers = append(j.Falsetickers, o.Name)
		}
	}
}

// tieBreak settles the disagreement of two nodes by their kernels, where just
// one of the clocks is disciplined. Both nodes decide alike, as each has
// the other's status.
func (j *Judgement) tieBreak(ours Sync, peer Opinion) {
	switch {
	case ours == Synchronized && peer.Kernel == Unsynchronized:
		j.Finding, j.Calm = Agreed, true
		j.Falsetickers = []string{peer.Name}
	case ours == Unsynchronized && peer.Kernel == Synchronized:
		j.Finding = SelfFalse
	}
}

// Arbitrate decides between two times for our issuing clock, each given as what
// would be added to it in ns: old is where it was before a step of the wall
// clock (0 as long as it is held there), stepped is where the wall clock is now.
//
// The peers' wall clocks decide, since all that stepped together still hold their
// old issuing clocks. A peer is for a candidate if its interval is within
// maxSkew of it and wholly nearer to it than to the other. Our own vote goes with
// either, as in [Judge]; a candidate is chosen if it alone reaches the quorum of
// all names registered. If as many issue with the time of stepped, or agreed with us
// before and have it now, standbys too, the vote is VoteIssued: not the cluster was set,
// but our clock alone. A process that was started since has its clock there and issues
// nothing: it is no evidence of that.
func Arbitrate(peers []Opinion, old, stepped int64, maxSkew time.Duration) Vote {
	if len(peers) == 0 {
		return VoteAlone
	}
	low, high := around(min(old, stepped), maxSkew), around(max(old, stepped), maxSkew)
	between := Interval{old, stepped}.Mid()
	low.Hi, high.Lo = min(low.Hi, minus(between, 1)), max(high.Lo, plus(between, 1))
	need := (len(peers)+1)/2 + 1
	forLow, forHigh, issued := 1, 1, 1
	for _, o := range peers {
		if !o.Fresh || !o.Wall.valid() {
			continue
		}
		if o.Wall.Inside(low) {
			forLow++
		}
		if o.Wall.Inside(high) {
			forHigh++
		}
		if old < stepped && o.shows() && o.Wall.Inside(high) && o.Issuing.Inside(high) {
			issued++
		}
	}
	switch isLow, isHigh := forLow >= need, forHigh >= need; {
	case isLow == isHigh:
		return VoteNone
	case isLow == (old < stepped):
		return VoteOld
	case issued >= need:
		return VoteIssued
	default:
		return VoteNew
	}
}

// Member is a process registered in the store.
type Member struct {
	Name     string // A node keeps its name when it restarts.
	Instance string // Each start of a node has a new instance.
	Since    int64  // a number that grows from one registration to the next, as the store's create revision does
	NoGossip bool   // it exchanges clocks with nobody
}

// How many take part in judging clocks. Up to maxJudged names everybody echoes
// with everybody; above it, each with jurors of them.
const (
	maxJudged = 64
	jurors    = 31
)

// Voters returns whom the node called self judges its clock by, in the order
// of names: of each name but its own the process registered last. Above 64 names,
// its own included, that is 31 of them, which no one picks: the highest by a hash
// of both names (rendezvous hashing), so that few change as nodes come and go.
//
// Names whose newest process has no gossip are left out, since a majority must not
// depend on clocks that nobody can read. But where all others are without gossip,
// they all count: a node that can exchange clocks with none of the others is not
// alone, for they issue too. A node without gossip itself is unconfirmed in either
// case, unless it is alone.
//
// They are what [Input].Peers has an entry for, and the peers to exchange with.
func Voters(self string, registered []Member) []Member {
	newest := make(map[string]Member, len(registered))
	for _, m := range registered {
		if old, ok := newest[m.Name]; m.Name != self && (!ok || newer(m, old)) {
			newest[m.Name] = m
		}
	}
	out := make([]Member, 0, len(newest))
	for _, m := range newest {
		out = append(out, m)
	}
	if audible := slices.DeleteFunc(slices.Clone(out), func(m Member) bool { return m.NoGossip }); len(audible) > 0 {
		out = audible
	}
	byName := func(a, b Member) int { return cmp.Compare(a.Name, b.Name) }
	if len(out)+1 > maxJudged {
		slices.SortFunc(out, func(a, b Member) int {
			return cmp.Or(cmp.Compare(rendezvous(self, b.Name), rendezvous(self, a.Name)), byName(a, b))
		})
		out = out[:jurors]
	}
	slices.SortFunc(out, byName)
	return out
}

// newer orders two processes of one name; the instance settles what cannot
// happen, so that the order of a list never matters.
func newer(a, b Member) bool {
	return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Instance, b.Instance)) > 0
}

// rendezvous returns the weight of a voter for a judge.
func rendezvous(judge, voter string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, judge) // a hash takes everything
	_, _ = h.Write([]byte{0})       // "ab"+"c" is not "a"+"bc"
	_, _ = io.WriteString(h, voter)
	x := h.Sum64() // FNV leaves names alike in all but the last character close together: mix
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
