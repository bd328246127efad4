package watermark

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/ulid"
)

// start is 2026-02-01T00:00:00Z.
const start clock.Millis = 1_769_904_000_000

var cfg = Config{Interval: 5 * time.Second, Reload: 30 * time.Second, Vanished: 45 * time.Second}

// status returns that of a holder which has just read a mark.
func status(at clock.Millis) lease.Status {
	return lease.Status{
		Phase:    lease.Holding,
		Held:     true,
		MarkedAt: clock.Mono(time.Hour),
		Mark:     lease.Mark{At: at, Nonce: "n", Node: "node-b", Wall: at + 1000},
	}
}

// TestOf: the answer has what the record says, and what only this node knows.
func TestOf(t *testing.T) {
	silent := lease.Blocker{SID: 3, Node: "node-c", Why: lease.BlockedSilent, Floor: start + 5, Ceil: start + 30_000}
	for name, c := range map[string]struct {
		change func(*lease.Status)
		lag    time.Duration
		want   []lease.BlockWhy
		first  Blocker
		held   bool
	}{
		"it follows the clock": {lag: 6 * time.Second},
		"a holder is silent": {
			change: func(s *lease.Status) { s.Mark.Blocked = []lease.Blocker{silent} },
			lag:    20 * time.Second,
			want:   []lease.BlockWhy{lease.BlockedSilent},
			first:  Blocker{Node: "node-c", SID: 3, Since: int64(start + 5), Why: lease.BlockedSilent, Text: silent.String()},
		},
		"held for long": {
			change: func(s *lease.Status) { s.Mark.Blocked = []lease.Blocker{silent} },
			lag:    56 * time.Second,
			want:   []lease.BlockWhy{lease.BlockedSilent},
			first:  Blocker{Node: "node-c", SID: 3, Since: int64(start + 5), Why: lease.BlockedSilent, Text: silent.String()},
			held:   true,
		},
		"not yet for long": {lag: 55 * time.Second, want: []lease.BlockWhy{NotRaised},
			first: Blocker{SID: -1, Since: int64(start + 1000), Why: NotRaised,
				Text: "no node raises it: a node that holds a sid, and whose clock the others confirm, does"}},
		"an unreadable record": {
			change: func(s *lease.Status) {
				s.Mark.Blocked = []lease.Blocker{{SID: 4, Why: lease.BlockedUnreadable}}
			},
			want: []lease.BlockWhy{lease.BlockedUnreadable},
			first: Blocker{SID: 4, Since: int64(start), Why: lease.BlockedUnreadable,
				Text: `the record of sid 4 is unreadable: run "allocator admin release-sid 4"`},
		},
		"etcd is away": {
			change: func(s *lease.Status) { s.MarkedAt -= clock.Mono(15*time.Second + 1) },
			lag:    20 * time.Second,
			want:   []lease.BlockWhy{EtcdAway},
			first: Blocker{SID: -1, Since: int64(start + 5_000), Why: EtcdAway,
				Text: "this node has read nothing from etcd since 2026-02-01T00:00:05Z"},
		},
		"etcd was read lately": {change: func(s *lease.Status) { s.MarkedAt -= clock.Mono(15 * time.Second) }},
		"a standby reads less often": {change: func(s *lease.Status) {
			s.Held = false
			s.MarkedAt -= clock.Mono(45 * time.Second)
		}},
		"a standby has read nothing for too long": {
			change: func(s *lease.Status) {
				s.Held = false
				s.MarkedAt -= clock.Mono(45*time.Second + 1)
			},
			want: []lease.BlockWhy{EtcdAway},
			first: Blocker{SID: -1, Since: int64(start - 45_000), Why: EtcdAway,
				Text: "this node has read nothing from etcd since 2026-01-31T23:59:15Z"},
		},
		"etcd is away, and a holder was silent before": {
			change: func(s *lease.Status) {
				s.MarkedAt -= clock.Mono(20 * time.Second)
				s.Mark.Blocked = []lease.Blocker{silent}
			},
			lag:  20 * time.Second,
			want: []lease.BlockWhy{EtcdAway, lease.BlockedSilent},
			first: Blocker{SID: -1, Since: int64(start), Why: EtcdAway,
				Text: "this node has read nothing from etcd since 2026-02-01T00:00:00Z"},
		},
		"it was raised lately": {lag: 15 * time.Second},
		"nobody raises it": {lag: 15*time.Second + time.Millisecond, want: []lease.BlockWhy{NotRaised},
			first: Blocker{SID: -1, Since: int64(start + 1000), Why: NotRaised,
				Text: "no node raises it: a node that holds a sid, and whose clock the others confirm, does"}},
	} {
		st := status(start)
		if c.change != nil {
			c.change(&st)
		}
		now := clock.Reading{Wall: start + clock.MillisOf(c.lag), Mono: clock.Mono(time.Hour)}
		a, err := Of(st, now, flake.Default, cfg)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var whys []lease.BlockWhy
		for _, b := range a.BlockedBy {
			whys = append(whys, b.Why)
		}
		if !slices.Equal(whys, c.want) || len(whys) > 0 && a.BlockedBy[0] != c.first || a.Held != c.held {
			t.Errorf("%s: %+v", name, a)
		}
		if a.At != int64(start) || a.Lag != c.lag.Milliseconds() || a.Conditional != nil {
			t.Errorf("%s: %+v", name, a)
		}
		for _, why := range whys {
			if !slices.Contains(Whys, why) {
				t.Errorf("%s is not among %v", why, Whys)
			}
		}
	}
}

// TestForms: the ID is the smallest of its millisecond, in each form, and the condition and
// the sids that are left out are said.
func TestForms(t *testing.T) {
	st := status(start)
	st.Mark.Rests = lease.Blocker{SID: 9, Node: "node\x1b", Ceil: start - 5}
	st.Mark.Uncovered = "3-4,8"
	a, err := Of(st, clock.Reading{Wall: start - 1000}, flake.Default, cfg)
	fatal.If(t, err)
	id, _ := flake.Default.Make(int64(start), 0, 0)
	wide, _ := ulid.FromFlake(flake.Default, id, 0)
	want := Answer{
		At:          int64(start),
		Int:         id.Int64(),
		Flake:       id.String(),
		ULID:        wide.String(),
		UUID:        wide.UUID(),
		Conditional: &Condition{Node: lease.Printable("node\x1b"), SID: 9, Until: int64(start - 5)},
		BlockedBy:   []Blocker{},
		NotCovered:  []int{3, 4, 8},
	}
	if d := cmp.Diff(want, a); d != "" {
		t.Error(d)
	}
	if !a.Complete(id-1) || a.Complete(id) {
		t.Error("an ID is complete if it is below the watermark")
	}
	st.Mark.Rests = lease.Blocker{Why: lease.BlockedEra, Ceil: start - 5}
	if a, err = Of(st, clock.Reading{Wall: start}, flake.Default, cfg); err != nil || *a.Conditional != (Condition{SID: -1, Until: int64(start - 5)}) {
		t.Errorf("after a new era: %+v, %v", a.Conditional, err)
	}
}

// TestFirst: in every layout no ID with a time below the watermark is at or above the first
// ID, and every ID of a time at or above it is.
func TestFirst(t *testing.T) {
	for _, name := range flake.Layouts() {
		f, err := flake.ParseFormat(name)
		fatal.If(t, err)
		unit, last := f.Layout.Unit(), f.Epoch+f.Layout.End()-1
		for range 200 {
			at := f.Epoch + rand.Int64N(f.Layout.End())
			got := First(f, at)
			for _, near := range []int64{at - unit, at - 1, at, at + 1, at + unit} {
				if near < f.Epoch || near > last {
					continue
				}
				low, _ := f.Min(near)
				high, _ := f.Max(near)
				if started := f.UnixMilli(low); started < at && high >= got || started >= at && low < got {
					t.Fatalf("%s: first of %d is %d; IDs of %d are %d to %d", name, at, got, near, low, high)
				}
			}
		}
		if got := First(f, f.Epoch-1); got != 0 {
			t.Errorf("%s: before the epoch it is %d", name, got)
		}
		if most, _ := f.Max(last); First(f, last+2*unit) != most {
			t.Errorf("%s: after the end it is %d", name, First(f, last+2*unit))
		}
	}
}

// TestRefusals: a node that cannot know the watermark says so, and does not answer one.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		st   lease.Status
		want node.Reason
		says string
	}{
		"rewound": {lease.Status{Phase: lease.Rewound, Problem: "history went back", Mark: status(start).Mark},
			node.HistoryRewound, "history went back"},
		"uninitialized": {lease.Status{Phase: lease.Uninitialized, Problem: "run init"}, node.Starting, "run init"},
		"connecting":    {lease.Status{Phase: lease.Connecting}, node.Starting, "no watermark yet"},
		"it waits for the era": {lease.Status{Phase: lease.Holding, Mark: lease.Mark{Nonce: "n", Blocked: []lease.Blocker{
			{Why: lease.BlockedEra, Ceil: start}}}}, node.Starting, "the era began"},
		"a new era": {lease.Status{Phase: lease.Holding, Era: lease.Era{Number: 2}, Mark: lease.Mark{Era: 1, At: start}},
			node.Starting, "era 2 began, and the last one is of era 1"},
		"of an era that this node has not read": {lease.Status{Phase: lease.Holding, Era: lease.Era{Number: 1}, Mark: lease.Mark{Era: 2, At: start}},
			node.Starting, "the last one is of era 2"},
		"a new era that is waited for": {lease.Status{Phase: lease.Holding, Era: lease.Era{Number: 2}, Mark: lease.Mark{Era: 1, At: start,
			Blocked: []lease.Blocker{{Why: lease.BlockedEra, Ceil: start}}}}, node.Starting, "the era began"},
		"none raised": {lease.Status{Phase: lease.Standby}, node.Starting, "seconds after"},
	} {
		a, err := Of(c.st, clock.Reading{Wall: start}, flake.Default, cfg)
		var r *node.Refusal
		if !errors.As(err, &r) || r.Reason != c.want || !strings.Contains(r.Message, c.says) || r.RetryAfter == 0 {
			t.Errorf("%s: %v", name, err)
		}
		if a.At != 0 {
			t.Errorf("%s: answered %+v", name, a)
		}
	}
}

// reader returns one of a node that has read no mark yet.
func reader() (*Reader, *node.Node) {
	n := node.New(node.Config{
		Name: "node-a",
		Gen:  gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch)},
	}, clocktest.NewManual(start), gen.Random())
	return New(n, cfg), n
}

// TestWait: a wait ends when the watermark is above the ID and not when it is at it, at the
// end of its time with the watermark as it is then, and when the node stops.
func TestWait(t *testing.T) {
	id := First(flake.Default, int64(start))
	type result struct {
		a    Answer
		err  error
		took time.Duration
	}
	for name, c := range map[string]struct {
		marks  []clock.Millis
		end    func(*Reader, context.CancelFunc)
		took   time.Duration
		wantAt clock.Millis
		err    error
	}{
		"it passes":         {marks: []clock.Millis{start - 1, start, start + 1, start + 2}, took: 3 * time.Second, wantAt: start + 1},
		"it never does":     {marks: []clock.Millis{start - 1, start}, took: 30 * time.Second, wantAt: start},
		"the node stops":    {marks: []clock.Millis{start}, end: func(r *Reader, _ context.CancelFunc) { r.End() }, took: 2 * time.Second, wantAt: start},
		"the caller leaves": {marks: []clock.Millis{start}, end: func(_ *Reader, cancel context.CancelFunc) { cancel() }, took: 2 * time.Second, err: context.Canceled},
		"it is rewound": {marks: []clock.Millis{start, 0}, took: 2 * time.Second,
			err: &node.Refusal{Reason: node.HistoryRewound}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, n := reader()
				n.Report(status(start - 5))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				began, got := time.Now(), make(chan result, 1)
				go func() {
					a, err := r.Wait(ctx, id, 30*time.Second)
					got <- result{a, err, time.Since(began)}
				}()
				for _, at := range c.marks {
					time.Sleep(time.Second)
					synctest.Wait()
					if waiting := r.Waiting(); waiting != int64(1-len(got)) {
						t.Errorf("%d callers wait, and %d have been answered", waiting, len(got))
					}
					st := status(at)
					if at == 0 {
						st.Phase = lease.Rewound
					}
					n.Report(st)
				}
				if c.end != nil {
					time.Sleep(time.Second)
					c.end(r, cancel)
				}
				res := <-got
				if waiting := r.Waiting(); waiting != 0 {
					t.Errorf("%d callers wait after the end", waiting)
				}
				if res.took != c.took || !errors.Is(res.err, c.err) || res.a.At != int64(c.wantAt) {
					t.Errorf("after %v: %+v, %v", res.took, res.a, res.err)
				}
			})
		})
	}
}

// TestCheck: what no wait can answer is refused with a reason that says what to do.
func TestCheck(t *testing.T) {
	r, _ := reader()
	r.format.Layout = flake.JS53
	for name, c := range map[string]struct {
		after flake.ID
		wait  time.Duration
		want  node.Reason
	}{
		"nothing":             {0, 0, 0},
		"an ID":               {1 << 52, 0, 0},
		"the longest wait":    {1, MaxWait, 0},
		"too long":            {1, MaxWait + 1, node.InvalidFormat},
		"negative":            {1, -1, node.InvalidFormat},
		"for nothing":         {0, time.Second, node.InvalidFormat},
		"a negative ID":       {-1, 0, node.InvalidID},
		"of another layout":   {1 << 53, time.Second, node.InvalidID},
		"of no layout at all": {1<<63 - 1, 0, node.InvalidID},
	} {
		switch bad := r.Check(c.after, c.wait); {
		case bad == nil && c.want != 0, bad != nil && bad.Reason != c.want:
			t.Errorf("%s: %v", name, bad)
		case bad != nil && bad.Message == "":
			t.Errorf("%s: no message", name)
		}
	}
}

// TestForeignIDs: an ID of another region's space has a sid that this one does not have. The smallest
// ID of a time has none, and may be waited for in each.
func TestForeignIDs(t *testing.T) {
	r, n := reader()
	of := func(sid flake.SID, entropy uint32) flake.ID {
		id, err := flake.Default.Make(int64(start), entropy, sid)
		fatal.If(t, err)
		return id
	}
	if bad := r.Check(of(3, 1), 0); bad != nil {
		t.Errorf("of a space that was not read yet: %v", bad)
	}
	st := status(start)
	st.Space = lease.Space{Layout: flake.Scalable, Pool: "p", Part: lease.SIDRange{From: 8, To: 16}}
	n.Report(st)
	for id, foreign := range map[flake.ID]bool{
		of(8, 1): false, of(15, 0): false, First(flake.Default, int64(start)): false, 1: false, 0: false,
		of(7, 1): true, of(16, 0): true, of(31, 9): true,
	} {
		bad := r.Check(id, 0)
		if (bad != nil) != foreign || foreign && (bad.Reason != node.InvalidID || !strings.Contains(bad.Message, "sids 8-15 of 32")) {
			t.Errorf("%d: %v", id, bad)
		}
	}
}

// TestShared: an answer is made and encoded once for all who watch, for a quarter of a second, and tells them
// whether it says something new.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, n := reader()
		src := n.Clock().(*clocktest.Manual)
		encoded := 0
		watch := func(says int64) *Shared {
			t.Helper()
			a, _, err := r.Watch()
			fatal.If(t, err)
			b, _ := a.Bytes(JSON, func(a Answer) ([]byte, error) { encoded++; return fmt.Append(nil, a.At-int64(start)), nil })
			got := string(b)
			if got != fmt.Sprint(says) {
				t.Errorf("the watermark is %s, want %d", got, says)
			}
			return a
		}
		if _, _, err := r.Watch(); err == nil {
			t.Error("there is none, and it was answered")
		}
		n.Report(status(start))
		first := watch(0)
		if !first.Differs(nil) || watch(0) != first || encoded != 1 {
			t.Errorf("the answer was made again, encoded %d times", encoded)
		}
		n.Report(status(start)) // as the lease does with each list
		if watch(0) != first {
			t.Error("a status that says the same made another answer")
		}
		src.Advance(sharedFor)
		older := watch(0)
		if older == first || older.Differs(first) || older.Lag != first.Lag+sharedFor.Milliseconds() {
			t.Errorf("after %v: %+v, and before %+v", sharedFor, older.Answer, first.Answer)
		}
		if watch(0) != older {
			t.Error("the second answer was made again too")
		}
		if got, _ := older.Bytes(Message, func(Answer) ([]byte, error) { return []byte("m"), nil }); string(got) != "m" {
			t.Errorf("in another form the answer is %q", got)
		}
		n.Report(status(start + 7))
		if risen := watch(7); !risen.Differs(older) {
			t.Error("a higher watermark is nothing new")
		}
		st := status(start + 9)
		st.Phase = lease.Rewound
		n.Report(st)
		if _, _, err := r.Watch(); err == nil {
			t.Error("the answer of before was given after the history was rewound")
		}
	})
}

// TestSame: a stream sends what differs in more than the lag.
func TestSame(t *testing.T) {
	base := func() Answer {
		a, _ := Of(status(start), clock.Reading{Wall: start + 1000, Mono: clock.Mono(time.Hour)}, flake.Default, cfg)
		return a
	}
	later := base()
	later.Lag += 500
	if !Same(base(), later) {
		t.Error("the lag alone is no change")
	}
	changes := map[string]func(*Answer){
		"mark":      func(a *Answer) { a.At++ },
		"blocked":   func(a *Answer) { a.BlockedBy = []Blocker{{Node: "x"}} },
		"condition": func(a *Answer) { a.Conditional = &Condition{} },
		"uncovered": func(a *Answer) { a.NotCovered = []int{1} },
	}
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		other := base()
		changes[name](&other)
		if Same(base(), other) {
			t.Errorf("%s: it is a change", name)
		}
	}
}
