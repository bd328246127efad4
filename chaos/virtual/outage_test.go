package virtual

import (
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/etcdsim"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/tier"
)

// outages are the ways in which etcd can be away from all nodes, and come back.
var outages = map[string]struct {
	begin, end func(e *env)
	raced      bool // also with -race
}{
	"stopped": {
		func(e *env) { e.etcd.Stop() },
		func(e *env) {
			if err := e.etcd.Start(); err != nil {
				e.t.Error(err)
			}
		}, true,
	},
	"without a leader": {func(e *env) { e.etcd.LoseLeader() }, func(e *env) { e.etcd.ElectLeader() }, true},
	"partitioned":      {func(e *env) { e.each(e.net.Cut) }, func(e *env) { e.each(e.net.Heal) }, false},
	"requests lost":    {func(e *env) { e.each(e.net.Stall) }, func(e *env) { e.each(e.net.Flow) }, false},
	"replies lost": {
		func(e *env) { e.each(func(node, etcd string) { e.net.Stall(etcd, node) }) },
		func(e *env) { e.each(func(node, etcd string) { e.net.Flow(etcd, node) }) }, false,
	},
	"answers with errors": {
		func(e *env) { e.etcd.SetFault(func(etcdsim.Call) etcdsim.Fault { return etcdsim.Refused }) },
		func(e *env) { e.etcd.SetFault(nil) }, false,
	},
	"applied, answered with errors": {
		func(e *env) { e.etcd.SetFault(func(etcdsim.Call) etcdsim.Fault { return etcdsim.Failed }) },
		func(e *env) { e.etcd.SetFault(nil) }, false,
	},
	"hangs": {
		func(e *env) { e.etcd.SetFault(func(etcdsim.Call) etcdsim.Fault { return etcdsim.Hung }) },
		func(e *env) { e.etcd.SetFault(nil) }, false,
	},
	"applies late": {
		func(e *env) { e.etcd.SetFault(func(etcdsim.Call) etcdsim.Fault { return etcdsim.Late }) },
		func(e *env) { e.etcd.SetFault(nil) }, true,
	},
}

// each changes the link of every node to etcd.
func (e *env) each(f func(node, etcd string)) {
	for _, m := range e.nodes {
		f(m.host, etcdHost)
	}
}

// TestShortOutage: etcd may be away for 20 s, in whichever way, and no request is
// refused, then or afterwards.
//
// Incident T35 (no quorum, slow disks), docs/INCIDENTS.md.
func TestShortOutage(t *testing.T) {
	for name, o := range outages {
		if tier.Raced && !o.raced {
			continue
		}
		t.Run(name, func(t *testing.T) {
			run(t, func(e *env) {
				nodes := e.startAll(3)
				from := e.now()
				time.Sleep(17 * time.Second)
				o.begin(e)
				time.Sleep(20 * time.Second)
				o.end(e)
				time.Sleep(time.Minute)
				for _, m := range nodes {
					m.served(span{from, e.now()}, 2*time.Millisecond)
					m.toldOnce()
				}
			})
		})
	}
}

// toldOnce checks that the log has the beginning and the end of one outage of etcd,
// once each, with what was left of the window, and nothing else about it.
func (m *member) toldOnce() {
	m.env.t.Helper()
	log := m.log.String()
	for text, want := range map[string]int{
		`msg="calls to etcd fail: IDs are issued until the window ends" event=etcd_failing error=`: 1,
		`window_left=`: 2,
		`msg="calls to etcd succeed again" event=etcd_answers after=`: 1,
		"lease problem":            0,
		"reported another history": 0,
	} {
		if got := strings.Count(log, text); got != want {
			m.env.t.Errorf("%s logged %q %d times, want %d:\n%s", m.name, text, got, want, log)
		}
	}
}

// TestLongOutage: when etcd is away for longer than windows last, nodes serve to
// the end of them, refuse with WINDOW_EXHAUSTED, and serve again within seconds
// of its return.
//
// Incident T35 (no quorum), docs/INCIDENTS.md.
func TestLongOutage(t *testing.T) {
	tier.Check(t, "minutes without etcd in every way")
	slow(t)
	for name, o := range outages {
		t.Run(name, func(t *testing.T) {
			run(t, func(e *env) {
				nodes := e.startAll(3)
				from := e.now()
				time.Sleep(17 * time.Second)
				away := e.now()
				o.begin(e)
				time.Sleep(90 * time.Second)
				o.end(e)
				back := e.now()
				time.Sleep(time.Minute)
				for _, m := range nodes {
					m.served(span{from, away + 24*time.Second}, 2*time.Millisecond)
					out := m.reasons(span{away + 31*time.Second, back})
					// A late write counts once it is read back.
					if out["WINDOW_EXHAUSTED"] < 200 || len(out) != 1 {
						t.Errorf("%s: refusals while etcd was away: %v, want WINDOW_EXHAUSTED alone", m.name, out)
					}
					m.served(span{back + 8*time.Second, e.now()}, 2*time.Millisecond)
					m.toldOnce()
				}
			})
		})
	}
}

// TestLeaderChanges: etcd changes its leader again and again, which ends streams,
// leaves writes open and gives leases their time anew. No request is refused; a node
// that crashed meanwhile still loses its sid.
//
// Incident T35 (a lock of etcd, and its leader changes), docs/INCIDENTS.md.
func TestLeaderChanges(t *testing.T) {
	run(t, func(e *env) {
		nodes := e.startAll(4)
		from := e.now()
		for i := range 12 {
			time.Sleep(time.Duration(7+i) * time.Second)
			e.etcd.LoseLeader()
			time.Sleep(time.Duration(1+i%4) * time.Second)
			e.etcd.ElectLeader()
			if i == 6 {
				nodes[3].kill()
			}
		}
		for _, m := range nodes[:3] {
			m.served(span{from, e.now()}, 2*time.Millisecond)
		}
		if st := nodes[0].d.Node().Stats().Lease; st.Pool.Held != 3 {
			t.Errorf("%d sids are held, want 3: that of the crashed node is free", st.Pool.Held)
		}
	})
}

// TestOneNodeCutOff: one node and etcd do not reach each other, both ways or one.
// It serves to the end of its window, the others always, and it serves again when
// the link is back.
//
// Incidents T15 (cut off from the registry, and not from clients) and T35 (a
// partition that is one-way), docs/INCIDENTS.md.
func TestOneNodeCutOff(t *testing.T) {
	for name, ways := range map[string]struct{ cut, heal func(e *env, host string) }{
		"both ways": {func(e *env, h string) { e.net.Cut(h, etcdHost) }, func(e *env, h string) { e.net.Heal(h, etcdHost) }},
		"requests":  {func(e *env, h string) { e.net.Stall(h, etcdHost) }, func(e *env, h string) { e.net.Flow(h, etcdHost) }},
		"replies":   {func(e *env, h string) { e.net.Stall(etcdHost, h) }, func(e *env, h string) { e.net.Flow(etcdHost, h) }},
	} {
		if tier.Raced && name != "replies" {
			continue
		}
		for long, refused := range map[time.Duration]bool{20 * time.Second: false, 70 * time.Second: true} {
			t.Run(name+" for "+long.String(), func(t *testing.T) {
				run(t, func(e *env) {
					nodes := e.startAll(3)
					from := e.now()
					time.Sleep(13 * time.Second)
					cut := e.now()
					ways.cut(e, nodes[1].host)
					time.Sleep(long)
					ways.heal(e, nodes[1].host)
					back := e.now()
					time.Sleep(time.Minute)
					for _, m := range []*member{nodes[0], nodes[2]} {
						m.served(span{from, e.now()}, 2*time.Millisecond)
					}
					if !refused {
						nodes[1].served(span{from, e.now()}, 2*time.Millisecond)
						return
					}
					nodes[1].served(span{from, cut + 24*time.Second}, 2*time.Millisecond)
					if out := nodes[1].reasons(span{cut + 32*time.Second, back}); out[""] > 0 || len(out) == 0 {
						t.Errorf("while cut off: %v", out)
					}
					nodes[1].served(span{back + 8*time.Second, e.now()}, 2*time.Millisecond)
				})
			})
		}
	}
}

// TestRewound: etcd comes back with an older state. Nodes refuse from their first
// read on, until an operator has begun a new era.
//
// Incident T33 (restored from an old snapshot), docs/INCIDENTS.md.
func TestRewound(t *testing.T) {
	run(t, func(e *env) {
		nodes := e.startAll(3)
		time.Sleep(20 * time.Second)
		old := e.etcd.Save()
		time.Sleep(40 * time.Second)
		e.etcd.Stop()
		e.etcd.Restore(old, 0)
		fatal.If(t, e.etcd.Start())
		back := e.now()
		time.Sleep(time.Minute)
		for _, m := range nodes {
			out := m.reasons(span{back + 7*time.Second, e.now()})
			if out["HISTORY_REWOUND"] < 100 || len(out) != 1 {
				t.Errorf("%s: %v, want HISTORY_REWOUND alone", m.name, out)
			}
		}
	})
}

// TestHealthAtTheEndOfAWindow: while etcd is away nothing happens in a node but that time
// passes, or that its clock is set. The health service follows at once when that ends the
// window.
func TestHealthAtTheEndOfAWindow(t *testing.T) {
	for name, step := range map[string]time.Duration{"time passes": 0, "the clock is set": 9 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			run(t, func(e *env) {
				m := e.startAll(1)[0]
				e.etcd.Stop()
				time.Sleep(5 * time.Second)
				m.clocks.Step(step)
				n := m.d.Node()
				for st := n.Stats(); st.Now < st.Ceil; st = n.Stats() {
					time.Sleep(time.Millisecond)
				}
				if n.Stats().Ceil-clocktest.TrueMillis(e.now()) > 1000 == (step == 0) {
					t.Fatalf("the window ended at %v, of %+v", e.now(), n.Stats())
				}
				time.Sleep(10 * time.Millisecond)
				lines := m.log.String()
				if last := lines[strings.LastIndex(lines, "ready"):]; !strings.Contains(last, "reason=WINDOW_EXHAUSTED") {
					t.Errorf("10 ms after the end of the window: %s", last)
				}
				fatal.If(t, e.etcd.Start())
				m.untilReady(20 * time.Second)
			})
		})
	}
}
