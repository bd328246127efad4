package clock_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/internal/clock"
)

// lie is how a faulty node answers.
type lie int

const (
	honest      lie = iota
	badClock        // truthful about a clock that is far off
	newAnswer       // raw clock elsewhere each time
	steppingLie     // issuing clock elsewhere each time
	twoFaced        // another clock for each asker
	playback        // its first answer, always
	holdLie         // claims to have held the question as long as can be, and is off by as much as it likes
	lies
)

// fixture is a cluster over virtual time: machines, links, and what each node
// makes of the others.
type fixture struct {
	r      *rand.Rand
	nodes  []*node
	group  []int // nodes of different groups cannot hear each other
	net    network
	lost   float64
	at     int64 // ns
	quorum int

	members []clock.Member
}

type node struct {
	*machine
	lie
	peers clock.Peers
	gate  *clock.Gate
	first []clock.Sample // for playback
	since int            // s since when it has been able to hear a quorum of good clocks; -1 if it cannot
}

func newFixture(seed uint64) *fixture {
	r := rand.New(rand.NewPCG(seed, 13))
	n := 3 + r.IntN(7)
	w := &fixture{r: r, net: networks[r.IntN(3)], lost: r.Float64() * .1, quorum: n/2 + 1, group: make([]int, n)}
	liars := r.IntN(n - w.quorum + 1)
	for i := range n {
		nd := &node{machine: newMachine(r), gate: clock.NewGate(clock.GateConfig{Strict: true}), first: make([]clock.Sample, n), since: -1}
		nd.issuing = 1_700_000_000_000_000_000 - nd.origin + r.Int64N(120*ms) - 60*ms // within 60 ms of the truth
		if i < liars {
			nd.lie = lie(1 + r.IntN(int(lies)-1))
			nd.issuing += (600 + r.Int64N(10_000_000)) * ms * (r.Int64N(2)*2 - 1)
		}
		w.nodes = append(w.nodes, nd)
		w.members = append(w.members, clock.Member{Name: fmt.Sprint(i), Instance: fmt.Sprint(i)})
	}
	return w
}

func (w *fixture) String() string {
	s := ""
	for i, nd := range w.nodes {
		s += fmt.Sprintf(" %d:%d/%d", i, nd.lie, w.group[i])
	}
	return fmt.Sprintf("%v, %s, node:lie/group%s", time.Duration(w.at), w.net.name, s)
}

// ask makes an exchange, unless it is lost.
func (w *fixture) ask(from, to int) {
	if w.group[from] != w.group[to] || w.r.Float64() < w.lost {
		return
	}
	a, b := w.nodes[from], w.nodes[to]
	s, _ := w.net.exchange(w.r, a.machine, b.machine, w.at+w.r.Int64N(400*ms))
	switch b.lie {
	case newAnswer:
		s.Peer.Raw += w.r.Int64N(7_200_000*ms) - 3_600_000*ms
	case steppingLie:
		s.Peer.Issuing += w.r.Int64N(7_200_000*ms) - 3_600_000*ms
	case twoFaced:
		s.Peer.Issuing += int64(from) * 3_600_000 * ms
	case playback:
		if a.first[to].T4 == 0 {
			a.first[to] = s
		}
		s.Peer = a.first[to].Peer
	case holdLie:
		s.Hold = time.Duration(s.T4 - s.T1)
		s.Peer.Issuing += w.r.Int64N(4000*ms) - 2000*ms
	}
	s.Instance = fmt.Sprint(to)
	_, _ = a.peers.Add(s)
}

func (w *fixture) judge(i int) clock.Judgement {
	nd := w.nodes[i]
	now := w.at + 990*ms
	opinions := nd.peers.Opinions(clock.Voters(fmt.Sprint(i), w.members), nd.raw(now), nd.issuing)
	return clock.Judge(clock.Input{Peers: opinions, MaxSkew: limit})
}

// hears counts the nodes with good clocks, other than i, that i can hear.
func (w *fixture) hears(i int) (good int) {
	for j, nd := range w.nodes {
		if j != i && nd.lie == honest && w.group[i] == w.group[j] {
			good++
		}
	}
	return good
}

// TestHistories: in random histories of 3 to 9 nodes with fewer liars than would
// be a majority's match, with partitions, losses, drift and suspends,
//
//   - no node with a good clock ever refuses for skew, whomever it can hear;
//   - none that has been able to hear a majority of good clocks, its own among
//     them, for 15 s refuses at all, strict as the policy is;
//   - one with a bad clock that has been able to hear a majority of good ones for
//     15 s refuses, and knows that it is the false one.
func TestHistories(t *testing.T) {
	histories := map[bool]uint64{false: 200, true: 20}[tier.Raced]
	var served, refused, cut int // that the conditions were met at all
	for seed := range histories {
		w, slept := newFixture(seed), 0 // slept is when a node last did, s: the others then have to hear it twice
		for s := range 300 {
			w.at = int64(s) * 1000 * ms
			if w.r.IntN(40) == 0 {
				for i := range w.group {
					w.group[i] = w.r.IntN(1 + w.r.IntN(3))
				}
			}
			if w.r.IntN(30) == 0 { // a suspend: raw stops, the issuing clock is put right
				nd, long := w.nodes[w.r.IntN(len(w.nodes))], w.r.Int64N(20_000*ms)
				slept = s
				nd.origin -= long
				nd.issuing += long
				nd.peers.Forget()
			}
			for i := range w.nodes {
				for j := range w.nodes {
					if i != j && (s+i+j)%2 == 0 || i != j && s == 0 {
						w.ask(i, j)
					}
				}
			}
			for i, nd := range w.nodes {
				v, _ := nd.gate.Step(clock.Mono(w.at), w.judge(i))
				hears := w.hears(i)
				if nd.lie == honest {
					hears++
				}
				if hears < w.quorum {
					nd.since = -1
				} else if nd.since < 0 {
					nd.since = s
				}
				settled := nd.since >= 0 && s-nd.since >= 15
				switch {
				case nd.lie == honest && v.State == clock.Skewed:
					t.Fatalf("seed %d, %v: good node %d refuses: %+v", seed, w, i, nd.gate.Stats())
				case nd.lie == honest && settled:
					served++
					if v.State != clock.Open {
						t.Fatalf("seed %d, %v: good node %d with a majority is %+v: %+v", seed, w, i, v, nd.gate.Stats().Judgement)
					}
				case nd.lie != honest && settled:
					refused++
					if j := nd.gate.Stats().Judgement; v.State != clock.Skewed || j.Finding != clock.SelfFalse && s-slept > 5 {
						t.Fatalf("seed %d, %v: bad node %d is %+v: %+v", seed, w, i, v, j)
					}
				case v.State == clock.Unverified:
					cut++
				}
			}
		}
	}
	if served == 0 || refused == 0 || cut == 0 {
		t.Errorf("%d good and %d bad nodes were settled, %d cut off: the test tests nothing", served, refused, cut)
	}
	t.Logf("node-seconds: %d good with a majority, %d bad with one, %d cut off", served, refused, cut)
}
