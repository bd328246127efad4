package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/gossiptest"
	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
)

// scripted is a Local whose clocks are wrong in a known way, so that a test can
// turn what a peer was told back into true time.
type scripted struct {
	begin  time.Time // true time at which raw was origin
	origin int64     // ns
	rate   float64   // of the raw clock against true time

	mu     sync.Mutex // guards the rest
	ahead  time.Duration
	status agreement.Status
	slow   time.Duration // how long the node takes before it can say its status
}

func (s *scripted) Clocks() clock.Snapshot {
	now := time.Now()
	raw := s.origin + int64(float64(now.Sub(s.begin))*s.rate)
	s.mu.Lock()
	defer s.mu.Unlock()
	return clock.Snapshot{Raw: raw, Issuing: now.Add(s.ahead).UnixNano() - raw, Wall: now.UnixNano() - raw}
}

func (s *scripted) Status() agreement.Status {
	s.mu.Lock()
	status, slow := s.status, s.slow
	s.mu.Unlock()
	time.Sleep(slow)
	return status
}

func (s *scripted) set(status agreement.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

func (s *scripted) setAhead(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead = d
}

func (s *scripted) slowDown(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slow = d
}

// when returns the true time at which the raw clock showed a value.
func (s *scripted) when(raw int64) time.Duration {
	return time.Duration(float64(raw-s.origin) / s.rate)
}

type node struct {
	*cluster.Cluster
	t        *gossiptest.Transport
	local    *scripted
	name     string
	instance string
	stop     context.CancelFunc
	done     chan error

	mu  sync.Mutex // guards got
	got []agreement.Exchange
}

// since returns the exchanges that came after a moment of true time.
func (n *node) since(t time.Time) (out []agreement.Exchange) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.got {
		if n.local.when(e.Sample.T4) >= t.Sub(n.local.begin) {
			out = append(out, e)
		}
	}
	return out
}

// scenario is a cluster in a bubble.
type scenario struct {
	t     *testing.T
	net   *gossiptest.Network
	begin time.Time
	nodes []*node
	alone bool // nodes are not told of each other when they start
}

// runScenario runs f in a bubble. When f returns, all nodes are stopped; the
// bubble panics if a goroutine is left then.
func runScenario(t *testing.T, f func(s *scenario)) {
	synctest.Test(t, func(t *testing.T) {
		s := &scenario{t: t, net: gossiptest.New(time.Now, 1), begin: time.Now()}
		defer func() {
			for _, n := range s.nodes {
				n.stop()
			}
			for _, n := range s.nodes {
				if err := <-n.done; err != nil {
					t.Errorf("%s: Run: %v", n.name, err)
				}
			}
			time.Sleep(30 * time.Second) // for timers of the library: the bubble's clock stops with us
		}()
		f(s)
	})
}

// start runs one more node that knows the addresses of all.
func (s *scenario) start(edit func(*cluster.Config)) *node {
	s.t.Helper()
	i := len(s.nodes)
	r := rand.New(rand.NewPCG(uint64(i), 7))
	n := &node{
		t: s.net.Listen(), name: fmt.Sprintf("node-%d", i), done: make(chan error, 1),
		local: &scripted{
			begin: s.begin, origin: 1 + r.Int64N(1e15), rate: 1 + (r.Float64()*2-1)*100e-6,
			ahead:  time.Duration(r.Int64N(int64(time.Second))),
			status: agreement.Status{SID: -1},
		},
	}
	var id [16]byte
	for j := range id {
		id[j] = byte(r.Uint32())
	}
	cfg := cluster.Config{
		Node: n.name, Instance: uuid.UUID(id).String(), Label: "allocator/test", Pool: "pool-1",
		Transport: n.t, Local: n.local, Logger: slog.New(slog.DiscardHandler),
		Random: rand.NewPCG(uint64(i), 11),
		OnExchange: func(e agreement.Exchange) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.got = append(n.got, e)
		},
	}
	if edit != nil {
		edit(&cfg)
	}
	c, err := cluster.New(cfg)
	fatal.If(s.t, err)
	n.Cluster, n.instance = c, cfg.Instance
	s.nodes = append(s.nodes, n)
	if !s.alone {
		s.seed()
	}
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	go func() { n.done <- c.Run(ctx) }()
	return n
}

func (s *scenario) startAll(count int) {
	s.t.Helper()
	for range count {
		s.start(nil)
	}
}

// registered is what the registry has of nodes.
func registered(nodes ...*node) (peers []agreement.Peer) {
	for _, n := range nodes {
		peers = append(peers, agreement.Peer{
			Node: n.name, Instance: n.instance, GRPC: "g:1", Gossip: n.t.Addr(), Ask: true,
		})
	}
	return peers
}

// but returns nodes without n.
func but(n *node, nodes []*node) []*node {
	return slices.DeleteFunc(slices.Clone(nodes), func(o *node) bool { return o == n })
}

// seed tells every node of all others, as the registry would.
func (s *scenario) seed() {
	for _, n := range s.nodes {
		n.SetPeers(registered(but(n, s.nodes)...))
	}
}

// live returns who is a live member of gossip for n.
func (n *node) live() (peers []cluster.Peer) {
	return slices.DeleteFunc(n.Observe().Peers, func(p cluster.Peer) bool { return !p.Live })
}

func addrs(nodes ...*node) (out []string) {
	for _, n := range nodes {
		out = append(out, n.t.Addr())
	}
	return out
}

func (s *scenario) byName(name string) *node {
	for _, n := range s.nodes {
		if n.name == name {
			return n
		}
	}
	s.t.Fatalf("an exchange with %q, who is not of us", name)
	return nil
}

// sound checks what every exchange promises: the peer read its clocks within the
// bounds that come with the reading.
func (s *scenario) sound() {
	s.t.Helper()
	const rounding = 2 * time.Microsecond // of float64 near 1e15 ns
	for _, n := range s.nodes {
		for _, e := range n.since(s.begin) {
			p := s.byName(e.Node)
			read := p.local.when(e.Sample.Peer.Raw)
			from, to := n.local.when(e.Sample.T1)+e.Sample.Hold, n.local.when(e.Sample.T4)
			if read < from-rounding || read > to+rounding {
				s.t.Fatalf("%s asked %s: it read at %v, bounds [%v, %v]", n.name, p.name, read, from, to)
			}
			issuing := e.Sample.Peer.Raw + e.Sample.Peer.Issuing
			if want := s.begin.Add(read).Add(p.local.ahead).UnixNano(); issuing-want > 2000 || want-issuing > 2000 {
				s.t.Fatalf("%s asked %s: issuing clock %d, want %d", n.name, p.name, issuing, want)
			}
		}
	}
}

// even checks that since a moment every one of nodes heard every other at least
// each limit, up to now.
func (s *scenario) even(nodes []*node, since time.Time, limit time.Duration) {
	s.t.Helper()
	for _, n := range nodes {
		last := map[string]time.Duration{}
		start, end := since.Sub(s.begin), time.Since(s.begin)
		for _, e := range n.since(since) {
			at := n.local.when(e.Sample.T4)
			prev, ok := last[e.Node]
			if !ok {
				prev = start
			}
			if at-prev > limit {
				s.t.Errorf("%s heard nothing of %s for %v, up to %v", n.name, e.Node, at-prev, at)
			}
			last[e.Node] = at
		}
		for _, p := range nodes {
			if p == n {
				continue
			}
			if at, ok := last[p.name]; !ok {
				s.t.Errorf("%s never heard of %s", n.name, p.name)
			} else if end-at > limit {
				s.t.Errorf("%s heard of %s last at %v, now it is %v", n.name, p.name, at, end)
			}
		}
	}
}

// A node that starts hears of everyone within the first second, and then of each
// every two seconds.
func TestEveryoneExchanges(t *testing.T) {
	for _, count := range []int{3, 8, 32} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			runScenario(t, func(s *scenario) {
				s.net.SetLink(gossiptest.Link{Latency: time.Millisecond, Jitter: 2 * time.Millisecond})
				s.startAll(count)
				time.Sleep(time.Second)
				s.even(s.nodes, s.begin, time.Second)
				settled := time.Now()
				time.Sleep(time.Minute)
				// The phase is drawn once, the pace is the raw clock's.
				s.even(s.nodes, settled, 2*time.Second+10*time.Millisecond)
				s.sound()

				came := time.Now()
				joined := s.start(nil)
				time.Sleep(time.Second)
				if got := len(joined.since(came)); got < count {
					t.Errorf("a node that came later had %d exchanges within a second, want %d", got, count)
				}
				for _, n := range s.nodes[:count] {
					if !slices.ContainsFunc(n.since(came), func(e agreement.Exchange) bool { return e.Node == joined.name }) {
						t.Errorf("%s has not heard of the one that came later", n.name)
					}
				}
				for _, n := range s.nodes {
					st := n.Observe()
					for reason, dropped := range st.Dropped {
						// Pings may come before the news of who sends them.
						if dropped != 0 && reason != "not_member" {
							t.Errorf("%s dropped %d messages: %s", n.name, dropped, reason)
						}
					}
					for _, p := range st.Peers {
						if !p.Measured || p.Age > 2010*time.Millisecond || p.RTT <= 0 || p.RTT > 10*time.Millisecond {
							t.Errorf("%s on %s: %+v", n.name, p.Node, p)
						}
						if !p.Live || p.GRPC != "g:1" || p.Gossip != s.byName(p.Node).t.Addr() {
							t.Errorf("%s on %s: %+v", n.name, p.Node, p)
						}
					}
				}
			})
		})
	}
}

// A fleet that starts at once does not go on asking at once.
func TestPhasesSpread(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.startAll(32)
		time.Sleep(10 * time.Second)
		mark := time.Now()
		time.Sleep(2 * time.Second)
		eighths := make([]int, 8)
		for _, n := range s.nodes {
			for _, e := range n.since(mark) {
				eighths[min(7, int((n.local.when(e.Sample.T1)-mark.Sub(s.begin))/(250*time.Millisecond)))]++
			}
		}
		for _, got := range eighths {
			if all := 32 * 31; got > all/4 {
				t.Errorf("of %d pings in 2 s a quarter of a second each has %v", all, eighths)
				break
			}
		}
	})
}

// What a ping waits at the peer is in the hold, not in the bounds: the reading is
// as good as that of a peer that answers at once.
func TestHold(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.net.SetLink(gossiptest.Link{Latency: 3 * time.Millisecond})
		s.start(nil)
		const slow = 70 * time.Millisecond
		s.start(nil).local.slowDown(slow)
		time.Sleep(20 * time.Second)
		got := s.nodes[0].since(s.begin)
		if len(got) < 8 {
			t.Errorf("%d exchanges", len(got))
		}
		for _, e := range got {
			if e.Sample.Hold < slow-time.Millisecond || e.RTT() < 5900*time.Microsecond || e.RTT() > 6100*time.Microsecond {
				t.Errorf("held for %v, on the way for %v", e.Sample.Hold, e.RTT())
			}
		}
		s.sound()
	})
}

// Reports come from every peer that gives them, also from those whose clocks are not
// asked for, and only when they are asked for. Their clocks are exchanged as before.
func TestReports(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.start(nil)
		const says = "all is well"
		s.start(func(c *cluster.Config) { c.Report = func() []byte { return []byte(says) } })
		s.start(nil) // It gives no reports
		a := s.nodes[0]
		peers := registered(s.nodes[1:]...)
		peers[0].Ask = false
		a.SetPeers(peers)
		time.Sleep(10 * time.Second)
		asked := 0
		sent := func() (list []cluster.PeerReport) {
			all := a.Reports()
			if len(all) != 2 {
				t.Fatalf("%v, want both peers", all)
			}
			for _, r := range all {
				if r.Said != nil {
					list = append(list, r)
				}
				if r.Said != nil && r.Owed != 0 || r.Said == nil && asked > 0 && r.Owed < time.Duration(asked)*time.Second {
					t.Errorf("after %d requests: %+v", asked, r)
				}
			}
			return list
		}
		if got := sent(); len(got) != 0 {
			t.Errorf("before anybody asked: %v", got)
		}
		for range 3 {
			a.AskReports(cluster.AsksAtOnce)
			asked++
			time.Sleep(time.Second)
		}
		got := sent()
		if len(got) != 1 {
			t.Fatalf("%v", got)
		}
		for _, r := range got {
			if r.Peer.Node != "node-1" || string(r.Said) != says || r.Age <= 0 || r.Age > 1100*time.Millisecond {
				t.Errorf("%+v", r)
			}
		}
		if n := a.Observe().Dropped["unknown"]; n != 0 {
			t.Errorf("%d were not asked for", n)
		}
		if len(a.since(s.begin)) < 5 {
			t.Errorf("%d exchanges", len(a.since(s.begin)))
		}
	})
}

func TestTraffic(t *testing.T) {
	runScenario(t, func(s *scenario) {
		const count, limit = 32, 20_000.0 // bytes per second and node, both ways
		s.net.SetLink(gossiptest.Link{Latency: time.Millisecond})
		s.startAll(count)
		time.Sleep(20 * time.Second)
		total := func(n *node) float64 {
			tr := &n.t.Traffic
			// 28: the headers of IP and UDP, for what was sent and as much received.
			return float64(tr.Sent.Load() + tr.Received.Load() + 2*28*tr.Packets.Load())
		}
		before := make([]float64, count)
		for i, n := range s.nodes {
			before[i] = total(n)
		}
		const span = 40
		time.Sleep(span * time.Second)
		most := 0.0
		for i, n := range s.nodes {
			most = max(most, (total(n)-before[i])/span)
		}
		t.Logf("at most %.0f bytes/s a node, in and out", most)
		if most > limit {
			t.Errorf("%.0f bytes/s a node, at most %.0f", most, limit)
		}
	})
}

func TestPartitionHealsByRejoin(t *testing.T) {
	for name, tc := range map[string]struct {
		rejoin time.Duration
		heals  bool
	}{
		"rejoining": {0, true},
		"without":   {time.Hour, false}, // the library alone forgets for good: why there is a rejoin
	} {
		t.Run(name, func(t *testing.T) {
			runScenario(t, func(s *scenario) {
				s.net.SetLink(gossiptest.Link{Latency: time.Millisecond})
				for range 5 {
					s.start(func(c *cluster.Config) { c.Rejoin = tc.rejoin })
				}
				time.Sleep(10 * time.Second)
				a, b := s.nodes[:2], s.nodes[2:]
				s.net.Partition(addrs(a...), addrs(b...))
				time.Sleep(5 * time.Minute)
				for _, n := range s.nodes {
					want := len(b) - 1
					if slices.Contains(a, n) {
						want = len(a) - 1
					}
					if got := len(n.live()); got != want {
						t.Errorf("parted, %s knows %d peers, want %d", n.name, got, want)
					}
				}
				s.even(a, time.Now().Add(-time.Minute), 2010*time.Millisecond)
				s.even(b, time.Now().Add(-time.Minute), 2010*time.Millisecond)
				s.net.Heal()
				time.Sleep(25 * time.Second)
				if tc.heals {
					s.even(s.nodes, time.Now().Add(-3*time.Second), 3*time.Second)
				} else if got := len(s.nodes[0].live()); got != 1 {
					t.Errorf("it knows %d peers without rejoining", got)
				}
				s.sound()
			})
		})
	}
}

// A node that registers later is dialled when it is heard of, not at the next
// round; and addresses that nobody answers at, or that are none, hold nothing up.
func TestNewPeersAreDialledAtOnce(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.net.SetLink(gossiptest.Link{Latency: time.Millisecond})
		s.alone = true
		s.startAll(3)
		time.Sleep(20 * time.Second)
		if st := s.nodes[0].Observe(); len(st.Peers) != 0 || st.Joined != 0 {
			t.Fatalf("it found %+v by itself", st)
		}
		silent := s.net.Listen()
		s.net.Partition([]string{silent.Addr()}, addrs(s.nodes...))
		told := registered(s.nodes[1:]...)
		for i, addr := range []string{"nonsense", "10.9.9.9:7946", silent.Addr()} {
			told = append(told, agreement.Peer{
				Node: addr, Instance: uuid.NewMD5(uuid.Nil, []byte{byte(i)}).String(), Gossip: addr, Ask: true,
			})
		}
		s.nodes[1].SetPeers(registered(s.nodes[0], s.nodes[2]))
		s.nodes[2].SetPeers(registered(s.nodes[:2]...))
		s.nodes[0].SetPeers(told)
		time.Sleep(time.Second)
		s.even(s.nodes, time.Now().Add(-time.Second), time.Second)
		// What it heard before is no news, and waits for the next round.
		time.Sleep(4 * time.Second)
		tried := s.nodes[0].Observe().JoinFailures
		s.nodes[0].SetPeers(told)
		time.Sleep(time.Second)
		if got := s.nodes[0].Observe().JoinFailures; got != tried || tried != 2 {
			t.Errorf("%d dials failed, then %d", tried, got)
		}
	})
}

// A ping that comes before the news of who sent it is answered with the news, and not only when it is sent again. It may
// have waited for most of a second, by a clock that is faster than the asker's, and beside pings that nobody sent.
func TestPingBeforeNewsIsAnswered(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.alone = true
		for _, rate := range []float64{1 + 100e-6, 1 - 100e-6} {
			s.start(func(c *cluster.Config) { c.Local.(*scripted).rate = rate })
		}
		old, fresh := s.nodes[0], s.nodes[1]
		s.net.Partition(addrs(old), addrs(fresh)) // nor does gossip bring the news
		pings := 0
		s.net.Tap(func(from, to string, p []byte) {
			if from != fresh.t.Addr() {
				return
			}
			p, pings = slices.Clone(p), pings+1
			for range map[int]int{1: 600, 4: 1}[pings] {
				go s.net.Inject(from, to, p)
			}
		})
		fresh.SetPeers(registered(old))
		time.Sleep(2300 * time.Millisecond) // The fourth ping came after 1.4 s.
		s.net.Heal()
		old.SetPeers(registered(fresh))
		time.Sleep(time.Millisecond)
		if got := fresh.since(s.begin); !slices.ContainsFunc(got, func(e agreement.Exchange) bool {
			return e.Sample.Hold >= 890*time.Millisecond
		}) {
			t.Errorf("the last ping was not answered: %+v, %v", got, fresh.Observe().Dropped)
		}
		s.sound()
	})
	runScenario(t, func(s *scenario) { // Gossip brings the news.
		s.net.SetLink(gossiptest.Link{Latency: time.Millisecond})
		s.alone = true
		s.startAll(2)
		s.nodes[1].SetPeers(registered(s.nodes[0]))
		time.Sleep(100 * time.Millisecond)
		if got := s.nodes[1].since(s.begin); len(got) == 0 || got[0].Sample.Hold == 0 {
			t.Errorf("the first ping was not answered: %+v", got)
		}
		s.sound()
	})
}

// Whoever is dialled tells of all members, so a node that starts dials a few of its
// seeds and not each: the whole list would come as often.
func TestFewPeersAreDialled(t *testing.T) {
	runScenario(t, func(s *scenario) {
		const count = 40
		s.net.SetLink(gossiptest.Link{Latency: time.Millisecond})
		s.startAll(count)
		time.Sleep(30 * time.Second)
		n := s.start(nil)
		time.Sleep(5 * time.Second)
		st := n.Observe()
		if got := len(n.live()); got != count {
			t.Errorf("it knows %d of %d peers", got, count)
		}
		if st.Joins > 16 { // eight at once, and some that were begun before the first had answered
			t.Errorf("it dialled %d of %d seeds", st.Joins, count)
		}
	})
}

// A network that loses a fifth and delays at random costs samples, never
// members, and makes none wrong.
func TestLossyNetwork(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.net.SetLink(gossiptest.Link{Latency: 5 * time.Millisecond, Jitter: 200 * time.Millisecond, Loss: 0.2})
		s.startAll(5)
		time.Sleep(10 * time.Second)
		mark := time.Now()
		const span = 120
		time.Sleep(span * time.Second)
		for _, n := range s.nodes {
			// Each of ping and pong is lost one time in five.
			got, want := len(n.since(mark)), 4*span/2*64/100
			if got < want*3/4 || got > want*5/4 {
				t.Errorf("%s had %d exchanges, want about %d", n.name, got, want)
			}
			st := n.Observe()
			if st.Unanswered == 0 || st.Left != 0 || len(n.live()) != 4 {
				t.Errorf("%s: %d unanswered, %d peers gone, %d there", n.name, st.Unanswered, st.Left, len(n.live()))
			}
		}
		s.sound()
	})
}

// Where only one direction works, pings arrive and replies do not.
func TestOneWayCut(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.net.SetLink(gossiptest.Link{Latency: time.Millisecond})
		s.startAll(3)
		time.Sleep(5 * time.Second)
		a, b := s.nodes[0], s.nodes[1]
		s.net.SetLinkBetween(b.t.Addr(), a.t.Addr(), gossiptest.Link{Cut: true})
		time.Sleep(time.Second)
		mark := time.Now()
		time.Sleep(10 * time.Second)
		for _, n := range []*node{a, b} {
			for _, e := range n.since(mark) {
				if e.Node != "node-2" {
					t.Errorf("%s had an exchange with %s over a link that works one way", n.name, e.Node)
				}
			}
		}
		s.sound()
	})
}

func TestOtherPoolsAreKeptOut(t *testing.T) {
	for name, edit := range map[string]func(*cluster.Config){
		"another pool":  func(c *cluster.Config) { c.Pool = "pool-2" },
		"another label": func(c *cluster.Config) { c.Label = "allocator/other" },
	} {
		t.Run(name, func(t *testing.T) {
			runScenario(t, func(s *scenario) {
				s.startAll(3)
				time.Sleep(time.Second)
				s.alone = true
				outsider := s.start(edit)
				// Its store lists them, and theirs does not list it.
				outsider.SetPeers(registered(s.nodes[:3]...))
				time.Sleep(time.Minute)
				if st := outsider.Observe(); len(outsider.live()) != 0 || st.JoinFailures == 0 || st.Exchanges != 0 {
					t.Errorf("the outsider got in: %+v", st)
				}
				for _, n := range s.nodes[:3] {
					st := n.Observe()
					if len(n.live()) != 2 || st.Joined != 2 || st.Left != 0 || st.Exchanges < 50 {
						t.Errorf("%s: %+v", n.name, st)
					}
					if name == "another pool" && st.RefusedPool == 0 {
						t.Errorf("%s refused nobody", n.name)
					}
				}
			})
		})
	}
}

// Nor do they get in by gossip: packets of theirs that come here by mistake, as
// when an address is given to another pod, make them no members.
func TestStrayGossipIsRefused(t *testing.T) {
	runScenario(t, func(s *scenario) {
		other := func(c *cluster.Config) { c.Pool = "pool-2" }
		us := s.start(nil)
		var mu sync.Mutex
		var theirs [][]byte
		s.net.Tap(func(from, _ string, p []byte) {
			mu.Lock()
			defer mu.Unlock()
			if from != us.t.Addr() {
				theirs = append(theirs, slices.Clone(p))
			}
		})
		a, b := s.start(other), s.start(other)
		time.Sleep(20 * time.Second)
		s.net.Tap(nil)
		if !slices.ContainsFunc(a.live(), func(p cluster.Peer) bool { return p.Node == b.name }) {
			t.Fatalf("they do not gossip with each other: %+v", a.Observe())
		}
		refused := us.Observe().RefusedPool
		mu.Lock()
		for _, p := range theirs {
			s.net.Inject(b.t.Addr(), us.t.Addr(), p)
		}
		mu.Unlock()
		synctest.Wait()
		if st := us.Observe(); len(us.live()) != 0 || st.Joined != 0 || st.RefusedPool == refused {
			t.Errorf("after %d packets of theirs: %+v", len(theirs), st)
		}
	})
}

func TestLeaving(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.net.SetLink(gossiptest.Link{Latency: time.Millisecond})
		s.startAll(4)
		time.Sleep(5 * time.Second)
		leaver := s.nodes[3]
		began := time.Now()
		leaver.stop()
		if err := <-leaver.done; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 1100*time.Millisecond {
			t.Errorf("leaving took %v", took)
		}
		leaver.done <- nil
		time.Sleep(time.Second) // a death would take four or more to be noticed
		for _, n := range s.nodes[:3] {
			if st := n.Observe(); len(n.live()) != 2 || st.Left != 1 {
				t.Errorf("%s has %d peers, %d left", n.name, len(n.live()), st.Left)
			}
		}
		time.Sleep(time.Minute)
		s.even(s.nodes[:3], time.Now().Add(-30*time.Second), 2010*time.Millisecond)
	})
}

// Leaving has a deadline also where nobody hears it.
func TestLeavingUnreachable(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.startAll(3)
		time.Sleep(3 * time.Second)
		s.net.SetLink(gossiptest.Link{Cut: true})
		began := time.Now()
		s.nodes[0].stop()
		err := <-s.nodes[0].done
		if took := time.Since(began); err != nil || took > 5*time.Second {
			t.Errorf("leaving took %v: %v", took, err)
		}
		s.nodes[0].done <- nil
	})
}

// A node that comes back after a crash, with another instance and address.
func TestRestart(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.net.SetLink(gossiptest.Link{Latency: time.Millisecond})
		s.startAll(3)
		time.Sleep(5 * time.Second)
		s.net.Partition(addrs(s.nodes[2]), addrs(s.nodes[:2]...)) // as dead as can be
		back := s.start(func(c *cluster.Config) { c.Node = "node-2" })
		back.name = "node-2"
		s.nodes[2].name = "the dead"
		time.Sleep(time.Second)
		if got := len(back.since(s.begin)); got < 2 {
			t.Errorf("it had %d exchanges within a second", got)
		}
	})
}

// A node whose own state makes no message says so once, and is not measured.
func TestInvalidStatus(t *testing.T) {
	runScenario(t, func(s *scenario) {
		var log bytes.Buffer
		s.start(nil)
		broken := s.start(func(c *cluster.Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
		})
		broken.local.set(agreement.Status{SID: -7})
		time.Sleep(30 * time.Second)
		if got := len(s.nodes[0].since(s.begin)); got != 0 {
			t.Errorf("%d exchanges with it", got)
		}
		synctest.Wait() // nobody writes to log while it is read
		if got := strings.Count(log.String(), "cannot be sent"); got != 1 || broken.Observe().SendFailures < 10 {
			t.Errorf("logged %d times, %d failures\n%s", got, broken.Observe().SendFailures, &log)
		}
	})
}

// What a node reports of itself reaches its peers with its clocks.
func TestStatusArrives(t *testing.T) {
	runScenario(t, func(s *scenario) {
		s.startAll(2)
		want := agreement.Status{Verdict: clock.Skewed, SID: 4, Term: 9, Era: 2, Cluster: 5, Revision: 100, Ceiling: 7}
		s.nodes[0].local.set(want)
		time.Sleep(5 * time.Second)
		got := s.nodes[1].since(time.Now().Add(-2100 * time.Millisecond))
		if len(got) == 0 || got[len(got)-1].Status != want || got[len(got)-1].Node != "node-0" {
			t.Errorf("got %+v", got)
		}
	})
}
