package agreement_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// falseClocks are what one node can report of its clocks.
var falseClocks = map[string]func(clock.Snapshot) clock.Snapshot{
	"an hour ahead": func(c clock.Snapshot) clock.Snapshot {
		c.Issuing += int64(time.Hour)
		c.Wall += int64(time.Hour)
		return c
	},
	"a little behind": func(c clock.Snapshot) clock.Snapshot {
		c.Issuing -= int64(300 * time.Millisecond)
		c.Wall -= int64(300 * time.Millisecond)
		return c
	},
	"unrelated values each time": func(c clock.Snapshot) clock.Snapshot {
		c.Raw = rand.Int64N(1e15)
		c.Issuing += rand.Int64N(int64(time.Hour))
		c.Wall -= rand.Int64N(int64(time.Hour))
		return c
	},
	"another offset each time": func(c clock.Snapshot) clock.Snapshot {
		c.Issuing += rand.Int64N(int64(2*time.Second)) - int64(time.Second)
		return c
	},
}

// TestFalsePeer: one node that reports false clocks stops nobody, and confirms nobody:
// a clock beside it that is wrong in the same way is refused all the same.
func TestFalsePeer(t *testing.T) {
	for _, n := range []int{3, 5} {
		for name, lie := range falseClocks {
			t.Run(fmt.Sprintf("%d nodes, %s", n, name), func(t *testing.T) {
				t.Parallel()
				runScenario(t, func(env *testEnv) {
					env.startAll(n - 1)
					time.Sleep(5 * time.Second)
					from := env.now()
					env.start(options{clocks: lie})
					time.Sleep(2 * time.Minute)
					for _, m := range env.members[:n-1] {
						m.served(from, env.now(), sound)
						if g := m.watch.Report().Gate; g.Shuts != 0 || g.Unverified > 2*time.Second {
							t.Errorf("%s: %+v", m.name, g)
						}
					}
				})
			})
		}
	}
	t.Run("confirms nobody", func(t *testing.T) {
		t.Parallel()
		runScenario(t, func(env *testEnv) {
			env.startAll(3)
			time.Sleep(5 * time.Second)
			env.start(options{clocks: falseClocks["an hour ahead"]})
			bad := env.start(options{off: time.Hour})
			bad.untilRefused(node.ClockSkew, 4*time.Second)
			from := env.now()
			time.Sleep(time.Minute)
			bad.refused(from, env.now(), node.ClockSkew)
			if wrote := bad.wrote(0, env.now()); len(wrote) != 0 {
				t.Errorf("it wrote %+v", wrote)
			}
		})
	})
}

// TestReportedRevisionOfOne: one peer's claim of a later history is an alarm and no more.
func TestReportedRevisionOfOne(t *testing.T) {
	runScenario(t, func(env *testEnv) {
		env.startAll(2)
		env.start(options{status: func(s agreement.Status) agreement.Status {
			s.Revision += 1_000_000
			s.Era += 7
			return s
		}})
		time.Sleep(time.Minute)
		for _, m := range env.members[:2] {
			m.served(5*time.Second, env.now(), sound)
			if !strings.Contains(m.log.String(), "a peer reported another history") {
				t.Errorf("%s was not alarmed", m.name)
			}
		}
	})
}

// TestReportedRevisionOfAQuorum: a node whose etcd was restored from a backup, and who was
// not there to see it, is told by its peers that they have read more, reads, and
// latches.
func TestReportedRevisionOfAQuorum(t *testing.T) {
	runScenario(t, func(env *testEnv) {
		env.startAll(3)
		time.Sleep(20 * time.Second)
		old := env.store.Snapshot()
		time.Sleep(20 * time.Second)
		rewound := storetest.NewMemory(1)
		rewound.Restore(old)
		from := env.now()
		late := env.start(options{store: rewound})
		late.untilReady(2 * time.Second)
		at := late.untilRefused(node.HistoryRewound, 30*time.Second)
		time.Sleep(20 * time.Second)
		late.refused(at, env.now(), node.HistoryRewound)
		if p := late.keeper.Status().Problem; !strings.Contains(p, "peers reported era 1 at revision") {
			t.Errorf("problem %q", p)
		}
		env.soundBut(late, from)
	})
}

// TestDuplicate: of two processes that claim one sid and term, the one that the
// record names goes on, and the other seals.
func TestDuplicate(t *testing.T) {
	slow := func(c *lease.Config) { c.ExtendEvery, c.ReloadEvery = 25*time.Second, time.Hour }
	claiming := func(of *atomic.Pointer[member]) func(agreement.Status) agreement.Status {
		return func(s agreement.Status) agreement.Status {
			if m := of.Load(); m != nil {
				if st := m.keeper.Status(); st.Held {
					s.SID, s.Term = int(st.Grant.SID), st.Grant.Term
				}
			}
			return s
		}
	}
	t.Run("the record is ours", func(t *testing.T) {
		runScenario(t, func(env *testEnv) {
			victim := env.start(options{keep: slow})
			env.start(options{})
			var claimed atomic.Pointer[member]
			claimed.Store(victim)
			env.start(options{status: claiming(&claimed)})
			time.Sleep(time.Minute)
			victim.served(5*time.Second, env.now(), sound)
			if !strings.Contains(victim.log.String(), "two processes claim one sid") {
				t.Error("it logged nothing")
			}
		})
	})
	t.Run("the record is the other's", func(t *testing.T) {
		runScenario(t, func(env *testEnv) {
			var claimed atomic.Pointer[member]
			victim := env.start(options{keep: slow})
			env.start(options{})
			other := env.start(options{status: claiming(&claimed)})
			time.Sleep(28 * time.Second) // just after it extended
			g := victim.keeper.Status().Grant
			v, err := env.store.Read(context.Background(), g.SID)
			fatal.If(t, err)
			rec := v.SIDs[g.SID].Window.Value
			rec.Instance, rec.Node, rec.Nonce = other.instance, other.name, "edited"
			env.store.Put(fmt.Sprintf("window/%d", g.SID), lease.Encode(rec))
			claimed.Store(victim)
			from := env.now()
			at := victim.untilRefused(node.HistoryRewound, 4*time.Second)
			if at-from > 4*time.Second {
				t.Errorf("sealed after %v", at-from)
			}
			env.soundBut(victim, 5*time.Second)
			if p := victim.verdict().Phase; p != clock.Confirmed {
				t.Errorf("phase %v", p)
			}
		})
	})
}
