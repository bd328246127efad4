package virtual

import (
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/etcdsim"
)

// outages are the ways in which etcd can be away from all nodes, and come back.
var outages = map[string]struct {
	begin, end func(w *world)
	raced      bool // also with -race
}{
	"stopped": {
		func(w *world) { w.etcd.Stop() },
		func(w *world) {
			if err := w.etcd.Start(); err != nil {
				w.t.Error(err)
			}
		}, true,
	},
	"without a leader": {func(w *world) { w.etcd.LoseLeader() }, func(w *world) { w.etcd.ElectLeader() }, true},
	"silent":           {func(w *world) { w.each(w.net.Cut) }, func(w *world) { w.each(w.net.Heal) }, false},
	"does not hear":    {func(w *world) { w.each(w.net.Stall) }, func(w *world) { w.each(w.net.Flow) }, false},
	"is not heard": {
		func(w *world) { w.each(func(node, etcd string) { w.net.Stall(etcd, node) }) },
		func(w *world) { w.each(func(node, etcd string) { w.net.Flow(etcd, node) }) }, false,
	},
	"answers with errors": {
		func(w *world) { w.etcd.SetFault(func(etcdsim.Call) etcdsim.Fault { return etcdsim.Refused }) },
		func(w *world) { w.etcd.SetFault(nil) }, false,
	},
	"applies, and answers with errors": {
		func(w *world) { w.etcd.SetFault(func(etcdsim.Call) etcdsim.Fault { return etcdsim.Failed }) },
		func(w *world) { w.etcd.SetFault(nil) }, false,
	},
	"hangs": {
		func(w *world) { w.etcd.SetFault(func(etcdsim.Call) etcdsim.Fault { return etcdsim.Hung }) },
		func(w *world) { w.etcd.SetFault(nil) }, false,
	},
	"applies late": {
		func(w *world) { w.etcd.SetFault(func(etcdsim.Call) etcdsim.Fault { return etcdsim.Late }) },
		func(w *world) { w.etcd.SetFault(nil) }, true,
	},
}

// each does something to the link of every node with etcd.
func (w *world) each(f func(node, etcd string)) {
	for _, m := range w.nodes {
		f(m.host, etcdHost)
	}
}

// TestShortOutage: etcd may be away for 20 s, in whichever way, and nobody is
// refused, neither then nor afterwards.
//
// Incident T35 (no quorum, slow disks), docs/INCIDENTS.md.
func TestShortOutage(t *testing.T) {
	for name, o := range outages {
		if raced && !o.raced {
			continue
		}
		t.Run(name, func(t *testing.T) {
			tell(t, func(w *world) {
				nodes := w.startAll(3)
				from := w.now()
				time.Sleep(17 * time.Second)
				o.begin(w)
				time.Sleep(20 * time.Second)
				o.end(w)
				time.Sleep(time.Minute)
				for _, m := range nodes {
					m.served(during{from, w.now()}, 2*time.Millisecond)
				}
			})
		})
	}
}

// TestLongOutage: when etcd is away for longer than windows last, nodes serve to
// the end of them, refuse with WINDOW_EXHAUSTED, and serve again within seconds
// of its return.
//
// Incident T35 (no quorum), docs/INCIDENTS.md.
func TestLongOutage(t *testing.T) {
	slow(t)
	for name, o := range outages {
		t.Run(name, func(t *testing.T) {
			tell(t, func(w *world) {
				nodes := w.startAll(3)
				from := w.now()
				time.Sleep(17 * time.Second)
				away := w.now()
				o.begin(w)
				time.Sleep(90 * time.Second)
				o.end(w)
				back := w.now()
				time.Sleep(time.Minute)
				for _, m := range nodes {
					m.served(during{from, away + 24*time.Second}, 2*time.Millisecond)
					out := m.reasons(during{away + 31*time.Second, back})
					// A late write counts once it is read back, and what is read is true.
					if out["WINDOW_EXHAUSTED"] < 200 || len(out) != 1 {
						t.Errorf("%s: refusals while etcd was away: %v, want WINDOW_EXHAUSTED alone", m.name, out)
					}
					m.served(during{back + 8*time.Second, w.now()}, 2*time.Millisecond)
				}
			})
		})
	}
}

// TestLeaderChanges: etcd changes its leader again and again, which ends streams,
// leaves writes open and gives leases their time anew. Nobody is refused; a node
// that crashed meanwhile still loses its sid.
//
// Incident T35 (a lock of etcd, and its leader changes), docs/INCIDENTS.md.
func TestLeaderChanges(t *testing.T) {
	tell(t, func(w *world) {
		nodes := w.startAll(4)
		from := w.now()
		for i := range 12 {
			time.Sleep(time.Duration(7+i) * time.Second)
			w.etcd.LoseLeader()
			time.Sleep(time.Duration(1+i%4) * time.Second)
			w.etcd.ElectLeader()
			if i == 6 {
				nodes[3].kill()
			}
		}
		for _, m := range nodes[:3] {
			m.served(during{from, w.now()}, 2*time.Millisecond)
		}
		if st := nodes[0].d.Node().Stats().Lease; st.PoolHeld != 3 {
			t.Errorf("%d sids are held, want 3: that of the crashed node is free", st.PoolHeld)
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
	for name, ways := range map[string]struct{ cut, heal func(w *world, host string) }{
		"both ways": {func(w *world, h string) { w.net.Cut(h, etcdHost) }, func(w *world, h string) { w.net.Heal(h, etcdHost) }},
		"requests":  {func(w *world, h string) { w.net.Stall(h, etcdHost) }, func(w *world, h string) { w.net.Flow(h, etcdHost) }},
		"replies":   {func(w *world, h string) { w.net.Stall(etcdHost, h) }, func(w *world, h string) { w.net.Flow(etcdHost, h) }},
	} {
		if raced && name != "replies" {
			continue
		}
		for long, refused := range map[time.Duration]bool{20 * time.Second: false, 70 * time.Second: true} {
			t.Run(name+" for "+long.String(), func(t *testing.T) {
				tell(t, func(w *world) {
					nodes := w.startAll(3)
					from := w.now()
					time.Sleep(13 * time.Second)
					cut := w.now()
					ways.cut(w, nodes[1].host)
					time.Sleep(long)
					ways.heal(w, nodes[1].host)
					back := w.now()
					time.Sleep(time.Minute)
					for _, m := range []*member{nodes[0], nodes[2]} {
						m.served(during{from, w.now()}, 2*time.Millisecond)
					}
					if !refused {
						nodes[1].served(during{from, w.now()}, 2*time.Millisecond)
						return
					}
					nodes[1].served(during{from, cut + 24*time.Second}, 2*time.Millisecond)
					if out := nodes[1].reasons(during{cut + 32*time.Second, back}); out[""] > 0 || len(out) == 0 {
						t.Errorf("while cut off: %v", out)
					}
					nodes[1].served(during{back + 8*time.Second, w.now()}, 2*time.Millisecond)
				})
			})
		}
	}
}

// TestRewound: etcd comes back with an older state. Nodes refuse from their first
// look on, and go on refusing: an operator has to say what is true.
//
// Incident T33 (restored from an old snapshot), docs/INCIDENTS.md.
func TestRewound(t *testing.T) {
	tell(t, func(w *world) {
		nodes := w.startAll(3)
		time.Sleep(20 * time.Second)
		old := w.etcd.Save()
		time.Sleep(40 * time.Second)
		w.etcd.Stop()
		w.etcd.Restore(old, 0)
		if err := w.etcd.Start(); err != nil {
			t.Fatal(err)
		}
		back := w.now()
		time.Sleep(time.Minute)
		for _, m := range nodes {
			out := m.reasons(during{back + 7*time.Second, w.now()})
			if out["HISTORY_REWOUND"] < 100 || len(out) != 1 {
				t.Errorf("%s: %v, want HISTORY_REWOUND alone", m.name, out)
			}
		}
	})
}
