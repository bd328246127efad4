package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/keeper"
)

// lingering is a store whose calls go on for a while after their caller gave up.
type lingering struct {
	keeper.Store
	read, watch time.Duration
	open        atomic.Int64 // calls
}

func (l *lingering) Load(ctx context.Context) (lease.View, error) {
	l.open.Add(1)
	defer l.open.Add(-1)
	<-ctx.Done()
	time.Sleep(l.read)
	return lease.View{}, ctx.Err()
}

func (l *lingering) Watch(ctx context.Context, progress time.Duration, report func(lease.Watched)) error {
	l.open.Add(1)
	defer l.open.Add(-1)
	err := l.Store.Watch(ctx, progress, report)
	time.Sleep(l.watch)
	return err
}

// TestRunEndsItsCalls: when Run returns, no call to the store is under way, and the watch is over.
func TestRunEndsItsCalls(t *testing.T) {
	for _, read := range []time.Duration{time.Millisecond, 10 * time.Second} { // Run waits for a release at most 3 s.
		synctest.Test(t, func(t *testing.T) {
			store := &lingering{Store: initialized(t), read: read, watch: time.Second}
			b := newBench("n1", store, bubbleClock{time.Now()}, 30*time.Second)
			err := b.run(func() {
				time.Sleep(10 * time.Millisecond)
				if n := store.open.Load(); n != 2 {
					t.Fatalf("%d calls are under way, want a read and the watch", n)
				}
			})
			if n := store.open.Load(); err != nil || n != 0 {
				t.Errorf("%v, %d calls are under way after Run", err, n)
			}
		})
	}
}

// TestLoopPassesOn: what is told to a keeper reaches its machine, the latest gate alone, and the
// machine's limit is passed on.
func TestLoopPassesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := storetest.NewMemory(1)
		src := bubbleClock{time.Now()}
		b := newBench("n1", mem, src, 30*time.Second)
		if b.keeper.Limit().Permits(src.Now(), false) {
			t.Error("ceilings may be written before Run")
		}
		b.keeper.SetGate(lease.Gate{Open: true})
		b.keeper.SetGate(lease.Gate{})
		err := b.run(func() {
			pass(mem, 3*time.Second) // The loop takes what it is told in any order, and has nothing to acquire yet.
			initialize(t, mem)
			pass(mem, 10*time.Second)
			if st := b.keeper.Status(); st.GateOpen || st.Held {
				t.Errorf("with a gate that was shut: %+v", st)
			}
			b.keeper.SetGate(lease.Gate{Open: true})
			pass(mem, time.Second)
			before := b.keeper.Status()
			if !before.Held || before.Grant.Term != 1 {
				t.Fatalf("after it was opened: %+v", before)
			}
			if !b.keeper.Limit().Permits(src.Now(), false) || b.keeper.Limit().At != b.keeper.Ticked() {
				t.Errorf("limit %+v at %v", b.keeper.Limit(), src.Now())
			}
			b.keeper.Notify(lease.GiveUp{})
			pass(mem, 5*time.Second)
			if after := b.keeper.Status(); !after.Held || after.Grant.SID == before.Grant.SID && after.Grant.Term == 1 {
				t.Errorf("after it gave its sid up: %+v", after)
			}
		})
		fatal.If(t, err)
	})
}

// TestLog: a person reads in the log what became of the sid, and what an operator did is no error.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := storetest.NewMemory(1)
		src := bubbleClock{time.Now()}
		log, out := keeper.Lines()
		b := newLogged("n1", mem, src, 30*time.Second, log)
		err := b.run(func() {
			pass(mem, time.Second)
			if _, _, err := mem.Init(t.Context(), lease.Space{
				Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "p",
			}, 0); err != nil {
				t.Fatal(err)
			}
			pass(mem, 10*time.Second)
			v, _ := mem.Load(t.Context())
			mem.Put("era", lease.Encode(lease.Era{Number: 2, Floor: src.Now().Wall, Cluster: v.Cluster}))
			pass(mem, 30*time.Second)
			mem.Delete("era")
			pass(mem, 10*time.Second)
		})
		fatal.If(t, err)
		var got []string
		for line := range strings.Lines(out.String()) {
			short := regexp.MustCompile(`^level=(\w+) msg=("[^"]*"|\w+) (\w+=\w+)`).FindString(line)
			if got = append(got, short); short == "" {
				t.Errorf("%q", line)
			}
		}
		want := []string{
			`level=INFO msg="lease keeper started" phase=connecting`,
			`level=INFO msg="lease phase changed" phase=uninitialized`,
			`level=INFO msg="lease phase changed" phase=seeking`,
			`level=INFO msg="lease phase changed" phase=holding`,
			`level=WARN msg=alarm kind=era_changed`,
			`level=INFO msg="lease phase changed" phase=seeking`,
			`level=INFO msg="lease phase changed" phase=holding`,
			`level=ERROR msg=alarm kind=history_rewound`,
			`level=INFO msg="lease phase changed" phase=rewound`,
			`level=INFO msg="lease phase changed" phase=releasing`,
			`level=INFO msg="lease phase changed" phase=stopped`,
		}
		if !slices.Equal(got, want) {
			t.Errorf("logged\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if n := b.keeper.Stats().Alarms; n[lease.AlarmEra] != 1 || n[lease.AlarmRewound] != 1 {
			t.Errorf("alarms %v", n)
		}
	})
}

// ahead is a clock that is an hour ahead.
type ahead struct{ clock.Source }

func (a ahead) Now() clock.Reading {
	r := a.Source.Now()
	r.Wall += clock.MillisOf(time.Hour)
	return r
}

// TestProblemWithNumbers: a problem in which the numbers change each second is logged once a minute.
func TestProblemWithNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, src := initialized(t), bubbleClock{time.Now()}
		wall := src.Now().Wall
		mem.Put("window/3", lease.Encode(lease.Window{
			Era: 1, Term: 1, Instance: "x", Node: "x", Nonce: "x", Base: wall, Ceil: wall + 30_000, State: lease.Active, Wall: wall, Gossip: true,
		}))
		mem.Put("holder/3", lease.Encode(lease.Holder{Instance: "x", Node: "x"}))
		log, out := keeper.Lines()
		b := newLogged("n1", mem, ahead{src}, 30*time.Second, log)
		seen := map[string]bool{}
		err := b.run(func() {
			for range 150 {
				pass(mem, time.Second)
				seen[b.keeper.Status().Problem] = true
			}
		})
		if got := strings.Count(out.String(), `msg="lease problem"`); err != nil || got != 3 || len(seen) < 100 {
			t.Errorf("%v: %d texts are logged %d times in 150 s, want 3:\n%s", err, len(seen), got, out)
		}
	})
}

// TestProblems: a problem of another kind in the same phase is logged once, unless it is an outage, which is an
// event.
func TestProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := initialized(t)
		for sid := range 32 {
			mem.Put(fmt.Sprintf("window/%d", sid), "damaged")
		}
		store := storetest.NewFaulty(mem, nil)
		log, out := keeper.Lines()
		b := newLogged("n1", store, bubbleClock{time.Now()}, 30*time.Second, log)
		logged := func(what, text string, times int) {
			t.Helper()
			pass(mem, 20*time.Second)
			if got := out.String(); strings.Count(got, text) != times {
				t.Errorf("%s was logged as\n%s", what, got)
			}
			out.Reset()
		}
		err := b.run(func() {
			pass(mem, 7*time.Second)
			if st := b.keeper.Status(); st.Phase != lease.Standby {
				t.Fatalf("%+v", st)
			}
			out.Reset()
			mem.Put("holder/3", lease.Encode(lease.Holder{Instance: "x", Node: "x"}))
			logged("another count", `level=WARN msg="lease problem" phase=standby problem=`, 1)
			store.SetScript(storetest.Every(storetest.NotApplied))
			logged("an outage", "problem", 0)
		})
		fatal.If(t, err)
	})
}

// TestWatchOpensAgain: a watch that breaks is opened again, and one that shows less than
// transactions is ended. In an outage it shows as much as they do, and nothing is said of it.
func TestWatchOpensAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := initialized(t)
		faulty := storetest.NewFaulty(mem, nil)
		store := &breaking{Store: faulty}
		log, out := keeper.Lines()
		b := newLogged("n1", store, bubbleClock{time.Now()}, 30*time.Second, log)
		err := b.run(func() {
			pass(mem, time.Second)
			if n := store.opened.Load(); n != 3 {
				t.Errorf("the watch was opened %d times", n)
			}
			pass(mem, 5*time.Second)
			faulty.SetScript(storetest.Every(storetest.NotApplied))
			pass(mem, 2*time.Minute)
			if got := out.String(); strings.Contains(got, "watch of etcd opened again") || store.opened.Load() < 4 {
				t.Errorf("in an outage the watch was opened %d times, and logged was\n%s", store.opened.Load(), got)
			}
			faulty.SetScript(nil)
			pass(mem, 2*time.Minute)
			if n := store.opened.Load(); n < 4 {
				t.Errorf("a watch that reports nothing was opened %d times", n)
			}
			if got := out.String(); !strings.Contains(got, `level=WARN msg="watch of etcd opened again: `) {
				t.Errorf("logged\n%s", got)
			}
		})
		fatal.If(t, err)
	})
}

// breaking is a store whose first two watches break, and whose others report nothing.
type breaking struct {
	keeper.Store
	opened atomic.Int64
}

func (s *breaking) Watch(ctx context.Context, _ time.Duration, report func(lease.Watched)) error {
	n := s.opened.Add(1)
	if n < 3 {
		return errors.New("the connection broke")
	}
	report(lease.Watched{Opened: true, Revision: 1})
	<-ctx.Done()
	return ctx.Err()
}
