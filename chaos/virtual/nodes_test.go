package virtual

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status"
)

// TestCrash: nodes crash suddenly and are started again at once. Each serves
// within seconds, others are not affected, and no sid is lost permanently.
func TestCrash(t *testing.T) {
	run(t, func(e *env) {
		nodes := e.startAll(3)
		from := e.now()
		for i := range map[bool]int{false: 40, true: 10}[tier.Raced] { // more processes than there are sids
			time.Sleep(time.Duration(1+i%7) * time.Second)
			nodes[2].kill()
			again := e.start(options{name: nodes[2].name})
			again.untilReady(2 * time.Second)
			nodes[2] = again
		}
		for _, m := range nodes[:2] {
			m.served(span{from, e.now()}, 2*time.Millisecond)
		}
		time.Sleep(20 * time.Second)
		if st := nodes[0].d.Node().Stats().Lease; st.Pool.Held != 3 {
			t.Errorf("%d sids are held, want 3", st.Pool.Held)
		}
	})
}

// TestTwoOfOneName: two processes of one name, as two deployments may have, each hold a sid of their own.
func TestTwoOfOneName(t *testing.T) {
	run(t, func(e *env) {
		a := e.start(options{name: "twin"})
		a.untilReady(5 * time.Second)
		b := e.start(options{name: "twin"})
		b.untilReady(5 * time.Second)
		time.Sleep(30 * time.Second)
		if one, two := a.d.Node().Stats().Lease, b.d.Node().Stats().Lease; one.Grant.SID == two.Grant.SID || one.Pool.Held != 2 {
			t.Errorf("they hold sids %d and %d, and %d are held", one.Grant.SID, two.Grant.SID, one.Pool.Held)
		}
	})
}

// TestCrashOfAll: all nodes crash and start again, also while etcd is away.
func TestCrashOfAll(t *testing.T) {
	slow(t)
	run(t, func(e *env) {
		nodes := e.startAll(4)
		for i := range 6 {
			time.Sleep(time.Duration(3+5*i) * time.Second)
			if i%2 == 1 {
				e.etcd.Stop()
			}
			for _, m := range nodes {
				m.kill()
			}
			time.Sleep(time.Duration(i) * time.Second)
			var next []*member
			for _, m := range nodes {
				next = append(next, e.start(options{name: m.name}))
			}
			if i%2 == 1 {
				time.Sleep(2 * time.Second)
				fatal.If(t, e.etcd.Start())
			}
			for _, m := range next {
				m.untilReady(8 * time.Second)
			}
			nodes = next
		}
	})
}

// TestRollingRestart: each node in turn is stopped and started again, on a clock
// that is as wrong as clocks may be. It is ready at once, on time that the one
// before released, and clients of others are not affected.
func TestRollingRestart(t *testing.T) {
	run(t, func(e *env) {
		nodes := e.startAll(3)
		r := random(1)
		for range 5 {
			for i, m := range nodes {
				from := e.now()
				m.stop()
				for reason := range m.reasons(span{from, e.now()}) {
					if reason != "" && reason != "DRAINING" && reason != "connection" {
						t.Errorf("%s: %s while it stopped", m.name, reason)
					}
				}
				off := time.Duration(r.IntN(200)-100) * time.Millisecond
				again := e.start(options{name: m.name, off: off, pace: 10 * time.Millisecond})
				again.untilReady(time.Second)
				nodes[i] = again
				for j, o := range nodes {
					if j != i {
						o.served(span{from, e.now()}, 105*time.Millisecond)
					}
				}
			}
		}
		time.Sleep(5 * time.Second) // until all nodes have listed
		if st := nodes[0].d.Node().Stats().Lease; st.Pool.Held != 3 {
			t.Errorf("%d sids are held, want 3", st.Pool.Held)
		}
	})
}

// TestHandover: the one sid there is goes from node to node, and each has a clock
// that is 100 ms behind the last one's. None begins below what was issued.
func TestHandover(t *testing.T) {
	run(t, func(e *env) {
		e.onlyOneSID()
		last := e.start(options{off: 120 * time.Millisecond, pace: 10 * time.Millisecond})
		for i := range 6 {
			last.untilReady(5 * time.Second)
			next := e.start(options{off: time.Duration(i%2*2-1) * -120 * time.Millisecond, pace: 10 * time.Millisecond})
			time.Sleep(3 * time.Second)
			last.stop()
			last = next
		}
		last.untilReady(5 * time.Second)
	})
}

// TestDrainDelay: while load balancers look away, readiness is off and requests are served.
func TestDrainDelay(t *testing.T) {
	run(t, func(e *env) {
		m := e.start(options{set: func(c *config.Config) { c.Drain.Delay = 10 * time.Second }})
		m.untilReady(5 * time.Second)
		from := e.now()
		m.end()
		time.Sleep(9 * time.Second)
		m.served(span{from, e.now()}, 2*time.Millisecond)
		if r := m.d.Node().Ready(); r == nil || r.Reason != node.Draining {
			t.Errorf("while load balancers look away: readiness is %v, want DRAINING", r)
		}
		time.Sleep(2 * time.Second)
		if out := m.reasons(span{from + 11*time.Second, e.now()}); out[""] > 0 {
			t.Errorf("after the delay: %v", out)
		}
	})
}

// TestGossipCut: nodes without gossip go on issuing, as the policy "allow" states, and are confirmed
// again when gossip is back.
func TestGossipCut(t *testing.T) {
	run(t, func(e *env) {
		nodes := e.startAll(3)
		from := e.now()
		time.Sleep(10 * time.Second)
		a := []string{nodes[0].gossip.Addr()}
		b := []string{nodes[1].gossip.Addr(), nodes[2].gossip.Addr()}
		e.gossip.Partition(a, b)
		time.Sleep(3 * time.Minute)
		if v := nodes[0].d.Clocks().Gate.Verdict; v.Phase == clock.Confirmed {
			t.Errorf("cut off for minutes: %+v", v)
		}
		if v := nodes[1].d.Clocks().Gate.Verdict; v.Phase != clock.Confirmed {
			t.Errorf("in a majority: %+v", v)
		}
		e.gossip.Heal()
		time.Sleep(time.Minute)
		for _, m := range nodes {
			m.served(span{from, e.now()}, 2*time.Millisecond)
			if v := m.d.Clocks().Gate.Verdict; v.Phase != clock.Confirmed {
				t.Errorf("%s: %+v", m.name, v)
			}
		}
	})
}

// TestClocks: a wrong clock of one node affects that node only, and no ID.
func TestClocks(t *testing.T) {
	t.Run("wrong from the start", func(t *testing.T) {
		run(t, func(e *env) {
			nodes := e.startAll(3)
			from := e.now()
			bad := e.start(options{off: time.Second})
			time.Sleep(10 * time.Second)
			time.Sleep(time.Minute)
			out := bad.reasons(span{from, e.now()})
			if out["CLOCK_SKEW"] < 200 || out[""] > 0 {
				t.Errorf("a node a second ahead: %v, want CLOCK_SKEW", out)
			}
			for _, m := range nodes {
				m.served(span{from, e.now()}, 2*time.Millisecond)
			}
			bad.clocks.Step(-time.Second)
			bad.untilReady(40 * time.Second)
		})
	})
	for _, step := range []time.Duration{-24 * time.Hour, -time.Second, 300 * time.Millisecond, time.Second, time.Hour} {
		if tier.Raced && step != -time.Second {
			continue
		}
		t.Run("stepped by "+step.String(), func(t *testing.T) {
			run(t, func(e *env) {
				nodes := e.startAll(3)
				from := e.now()
				time.Sleep(10 * time.Second)
				nodes[0].clocks.Step(step)
				time.Sleep(2 * time.Minute)
				for _, m := range nodes {
					m.served(span{from, e.now()}, 5*time.Millisecond)
				}
				// A crash: the next process finds the wrong clock, and the windows of the last.
				nodes[0].kill()
				again := e.start(options{name: nodes[0].name, off: step})
				back := e.now()
				time.Sleep(time.Minute)
				if out := again.reasons(span{back, e.now()}); out[""] > 0 {
					t.Errorf("started on a clock that is %v off: %v", step, out)
				}
				for _, m := range nodes[1:] {
					m.served(span{from, e.now()}, 5*time.Millisecond)
				}
			})
		})
	}
}

// TestMoreNodesThanSIDs: the 33rd node has no sid, and serves when another leaves.
//
// Incident T20 (the index of the 33rd wrapped onto a live one), docs/INCIDENTS.md.
func TestMoreNodesThanSIDs(t *testing.T) {
	tier.Check(t, "33 whole nodes")
	slow(t)
	run(t, func(e *env) {
		nodes := make([]*member, 0, 33)
		for range 33 {
			nodes = append(nodes, e.start(options{pace: 2 * time.Second}))
		}
		time.Sleep(10 * time.Second)
		var standby []*member
		for _, m := range nodes {
			if !m.d.Node().Stats().Holding {
				standby = append(standby, m)
			}
		}
		if len(standby) != 1 {
			t.Fatalf("%d nodes have no sid, want 1", len(standby))
		}
		if out := standby[0].reasons(span{e.now() - 5*time.Second, e.now()}); out["NO_SID"] < 2 || len(out) != 1 {
			t.Errorf("the one that has no sid: %v, want NO_SID", out)
		}
		for _, m := range nodes {
			if m != standby[0] {
				m.stop()
				break
			}
		}
		standby[0].untilReady(5 * time.Second)
	})
}

// TestSinceWhen: a node says since when it and others are in a state, whether it serves its pages or not.
func TestSinceWhen(t *testing.T) {
	for serve, known := range map[string]time.Duration{"always": 10 * time.Second, "never": 65 * time.Second} {
		run(t, func(e *env) {
			var asked []*grpc.ClientConn
			for range 2 {
				m := e.start(options{set: func(c *config.Config) { c.Console.Serve, c.Auth.OpenAdmin = serve, "any" }})
				m.untilReady(5 * time.Second)
				asked = append(asked, m.dial())
				defer asked[len(asked)-1].Close()
			}
			time.Sleep(known)
			if _, err := pb.NewAdminServiceClient(asked[1]).Drain(e.t.Context(), &pb.DrainRequest{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(known)
			for i, conn := range asked {
				c, err := status.Ask(e.t.Context(), conn)
				if want := "node-2: drained or stopping, so it refuses (since "; err != nil || !strings.HasPrefix(c.Problems[0].Text, want) {
					t.Errorf("console.serve is %s, and node %d says %+v, %v; want %s…", serve, i+1, c.Problems, err, want)
				}
			}
		})
	}
}
