package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
)

const start clock.Millis = 1_769_904_000_000

// zeros draws 0 always: what is issued then depends on nothing but what was
// issued before.
type zeros struct{}

func (zeros) Uint64() uint64 { return 0 }

func testConfig() Config {
	return Config{
		Name: "node-a", Instance: "a-1", MaxSkew: 250 * time.Millisecond,
		Gen: gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 3},
	}
}

// bubbleEpoch is before the year 2000, in which the clock of a test bubble starts.
const bubbleEpoch = 900_000_000_000

func grant(base, ceil clock.Millis) lease.Grant {
	return lease.Grant{SID: 7, Term: 1, Base: base, Ceil: ceil}
}

func holding() lease.Status {
	return lease.Status{Phase: lease.Holding, Held: true, EverHeld: true, Grant: grant(start, start+1000)}
}

// reasonOf returns the reason of a refusal, 0 for nil.
func reasonOf(t testing.TB, err error) Reason {
	t.Helper()
	if err == nil {
		return 0
	}
	r, ok := errors.AsType[*Refusal](err)
	if !ok {
		t.Fatalf("%T is no refusal: %v", err, err)
	}
	return r.Reason
}

// faults are all that can be wrong at once, a bit each, in order of precedence.
const (
	badCount_ = 1 << iota
	badAfter
	isDraining
	isRewound
	isSkewed
	isUnverified
	isStarting
	isStandby
	tooFar
	wentBack
	overflows
	isExhausted
	allFaults
)

var faultReasons = []Reason{
	InvalidCount, InvalidID, Draining, HistoryRewound, ClockSkew, ClockUnverified, Starting, NoSID,
	AfterTooFar, ClockRegression, EntropyOverflow, WindowExhausted,
}

// excludes lists faults that cannot be together: a verdict is one of two; a
// node that never held a sid is not one that lost it; rewound is a phase like
// those; and lead is put down to the clock or to demand.
var excludes = []int{isSkewed | isUnverified, isStarting | isStandby, wentBack | overflows}

// broken returns a node with the faults given and the request to send it.
func broken(faults int) (n *Node, clk *clocktest.Manual, count int, after flake.ID) {
	clk = clocktest.NewManual(start)
	n = New(testConfig(), clk, zeros{})
	g := grant(start, start+1000)
	if faults&isExhausted != 0 {
		g.Ceil = start + 2
	}
	n.Begin(g)
	st := holding()
	// 40,000 IDs end in the second millisecond, 40,000 more in the third.
	if _, err := n.Next(context.Background(), 40_000, 0); err != nil {
		panic(err)
	}
	count = 1
	if faults&isExhausted != 0 {
		count = 40_000
	}
	if faults&overflows != 0 {
		count = 98_304
	}
	if faults&wentBack != 0 {
		clk.Step(-time.Second)
	}
	if faults&tooFar != 0 {
		after = flake.ID(int64(start+100_000)-flake.DefaultEpoch) << 20
	}
	if faults&(isStarting|isStandby|isRewound) != 0 {
		n.Seal()
	}
	switch {
	case faults&isStarting != 0:
		st = lease.Status{Phase: lease.Seeking}
	case faults&isStandby != 0:
		st.Phase, st.Held = lease.Standby, false
	}
	if faults&isRewound != 0 {
		st.Phase = lease.Rewound
	}
	n.Report(st)
	switch {
	case faults&isSkewed != 0:
		n.SetVerdict(clock.Verdict{State: clock.Skewed})
	case faults&isUnverified != 0:
		n.SetVerdict(clock.Verdict{State: clock.Unverified})
	}
	if faults&isDraining != 0 {
		n.Drain()
	}
	if faults&badAfter != 0 {
		after = -1
	}
	if faults&badCount_ != 0 {
		count = 0
	}
	return n, clk, count, after
}

// TestPrecedence: of every mix of faults, the first is the reason, and the
// refusal changes nothing (I7).
func TestPrecedence(t *testing.T) {
	mixes := 0
	for faults := range allFaults {
		possible := true
		for _, e := range excludes {
			possible = possible && faults&e != e
		}
		if !possible {
			continue
		}
		mixes++
		want := Reason(0)
		for i, r := range faultReasons {
			if faults&(1<<i) != 0 {
				want = r
				break
			}
		}
		n, clk, count, after := broken(faults)
		before := n.Stats()
		_, err := n.Next(context.Background(), count, after)
		if got := reasonOf(t, err); got != want {
			t.Fatalf("faults %012b: %q, want %q", faults, got, want)
		}
		if want == 0 {
			continue
		}
		st := n.Stats()
		if st.Issued != before.Issued || st.Lead != before.Lead || st.Ceil != before.Ceil || st.Holding != before.Holding {
			t.Fatalf("faults %012b: the refusal changed %+v to %+v", faults, before, st)
		}
		if st.Refused[want] != 1 {
			t.Fatalf("faults %012b: counted %d times", faults, st.Refused[want])
		}
		if _, err := n.Try(clk.Now(), count, after); reasonOf(t, err) != want || n.Stats().Refused[want] != 1 {
			t.Fatalf("faults %012b: Try returns %v, or counts", faults, err)
		}
	}
	if mixes != 1728 {
		t.Errorf("%d mixes", mixes) // 2^12 · (3/4)^3
	}
}

// TestReady: ready is when one ID would be issued, and the reason is the one a
// request would get.
func TestReady(t *testing.T) {
	for faults := range allFaults {
		if faults&(badCount_|badAfter|tooFar|overflows) != 0 {
			continue // of a request, not of the node
		}
		n, clk, _, _ := broken(faults)
		if faults&isExhausted != 0 && faults&wentBack == 0 {
			clk.Advance(2 * time.Millisecond)
		}
		r := n.Ready()
		_, err := n.Next(context.Background(), 1, 0)
		want := reasonOf(t, err)
		if got := reasonOf(t, asError(r)); got != want {
			t.Errorf("faults %012b: Ready has %q, a request gets %q", faults, got, want)
		}
	}
	// A window that has not begun.
	n := New(testConfig(), clocktest.NewManual(start), zeros{})
	n.Report(holding())
	n.Begin(grant(start+500, start+1000))
	_, err := n.Next(context.Background(), 1, 0)
	if got := reasonOf(t, asError(n.Ready())); got != Starting || reasonOf(t, err) != Starting {
		t.Errorf("before the first window: Ready has %q, a request gets %v", got, err)
	}
}

// TestPauseOfAStart: clients come back soon to a node that has just begun, or has just been drained and may restart, and
// less often to one that waits for long.
func TestPauseOfAStart(t *testing.T) {
	clk := clocktest.NewManual(start)
	clk.Advance(time.Hour)
	n := New(testConfig(), clk, zeros{})
	for _, step := range []struct {
		passes, want time.Duration
		drain        bool
	}{
		{0, 20 * time.Millisecond, false}, {60 * time.Millisecond, 60 * time.Millisecond, false},
		{60 * time.Millisecond, 120 * time.Millisecond, false}, {time.Minute, 500 * time.Millisecond, false},
		{time.Minute, 20 * time.Millisecond, true}, {60 * time.Millisecond, 60 * time.Millisecond, false},
		{time.Minute, 500 * time.Millisecond, false},
	} {
		if clk.Advance(step.passes); step.drain {
			n.Drain()
		}
		if r := n.Ready(); r.RetryAfter != step.want || n.Barred().RetryAfter != step.want {
			t.Errorf("%v later: retry after %v, for a worker %v, want %v", step.passes, r.RetryAfter, n.Barred().RetryAfter,
				step.want)
		}
	}
}

func asError(r *Refusal) error {
	if r == nil {
		return nil
	}
	return r
}

// TestBeginStartsAbove: a new tenure seals the old one and starts above all that
// the process issued, whatever its sid and base are (I2).
//
// Incident T38 (two generators in one process with one sid), docs/INCIDENTS.md.
func TestBeginStartsAbove(t *testing.T) {
	clk := clocktest.NewManual(start)
	n := New(testConfig(), clk, zeros{})
	n.Report(holding())
	n.Begin(lease.Grant{SID: 9, Term: 1, Base: start, Ceil: start + 1000})
	first, err := n.Next(context.Background(), 98_304, 0) // leads by 2 ms
	fatal.If(t, err)
	old := n.state.Load().tenure
	n.Begin(lease.Grant{SID: 3, Term: 5, Base: start - 1000, Ceil: start + 1000})
	if _, err := old.Next(start, start, 1, 0); !errors.Is(err, gen.ErrSealed) {
		t.Errorf("the old tenure still issues: %v", err)
	}
	second, err := n.Next(context.Background(), 1, 0)
	fatal.If(t, err)
	if second.First <= first.Last() || second.SID != 3 {
		t.Errorf("%v of the new sid is not above %v of the old", second.First, first.Last())
	}
	if got, want := flake.Default.UnixMilli(second.First), int64(start+3); got != want {
		t.Errorf("the new tenure begins at %d, want %d", got, want)
	}

	// All of the new window may lie below: then it is empty until raised.
	n.Begin(lease.Grant{SID: 4, Term: 1, Base: start - 1000, Ceil: start})
	if _, err := n.Next(context.Background(), 1, 0); reasonOf(t, err) == 0 {
		t.Error("issued from a window below what was issued")
	}
	n.Raise(start + 1000)
	clk.Advance(5 * time.Millisecond)
	third, err := n.Next(context.Background(), 1, 0)
	if err != nil || third.First <= second.First {
		t.Errorf("%v, %v is not above %v", third, err, second.First)
	}
	// Sealed with nothing in between: still above.
	if ceil := n.Seal(); ceil <= clock.Millis(flake.Default.UnixMilli(third.First)) {
		t.Errorf("sealed at %d", ceil)
	}
	n.Begin(lease.Grant{SID: 5, Term: 1, Base: start - 1000, Ceil: start - 500})
	n.Raise(start + 1000)
	if b, err := n.Next(context.Background(), 1, 0); err != nil || b.First <= third.First {
		t.Errorf("%v, %v is not above %v", b, err, third.First)
	}
}

// TestUnusedTenure: a tenure that issued nothing does not delay the next.
func TestUnusedTenure(t *testing.T) {
	n := New(testConfig(), clocktest.NewManual(start), zeros{})
	n.Begin(grant(start+900, start+1000))
	n.Begin(grant(start, start+1000))
	b, err := n.Next(context.Background(), 1, 0)
	if err != nil || flake.Default.UnixMilli(b.First) != int64(start) {
		t.Errorf("%v, %v", b, err)
	}
}

// TestNextAllocates holds the issue path to its promise.
func TestNextAllocates(t *testing.T) {
	n := New(testConfig(), clock.NewSystem(nil), gen.Random())
	now := n.clock.Now().Wall
	n.Begin(grant(now, now+1_000_000))
	n.SetVerdict(clock.Verdict{Phase: clock.Confirmed, Finding: clock.Agreed, Limit: 250}) // The gate is a comparison.
	ctx := context.Background()
	for name, f := range map[string]func() error{
		"Try":  func() error { _, err := n.Try(n.clock.Now(), 1, 0); return err },
		"Next": func() error { _, err := n.Next(ctx, 1, 0); return err },
	} {
		var failed error
		if allocs := testing.AllocsPerRun(1000, func() {
			if err := f(); err != nil {
				failed = err
			}
		}); allocs != 0 || failed != nil {
			t.Errorf("%s: %v allocations, %v", name, allocs, failed)
		}
	}
}

// waitNode returns a node on a clock that runs with the test's bubble, whose
// lead is used up: IDs lie 5 ms beyond what is allowed.
func waitNode(t *testing.T, maxWait time.Duration) *Node {
	cfg := testConfig()
	cfg.MaxWait, cfg.Gen.Epoch = maxWait, bubbleEpoch
	n := New(cfg, clock.NewSystem(nil), zeros{})
	now := n.clock.Now().Wall
	n.Begin(lease.Grant{SID: 1, Term: 1, Base: now + 8, Ceil: now + 1_000_000})
	n.Report(lease.Status{Phase: lease.Holding, EverHeld: true})
	return n
}

func TestWait(t *testing.T) {
	for _, c := range []struct {
		name     string
		maxWait  time.Duration
		deadline time.Duration // 0: none
		cancel   time.Duration // 0: never
		want     Reason
		took     time.Duration
	}{
		{"long enough", 100 * time.Millisecond, 0, 0, 0, 5 * time.Millisecond},
		{"just long enough", 5 * time.Millisecond, 0, 0, 0, 5 * time.Millisecond},
		{"too short: no use in waiting", 4 * time.Millisecond, 0, 0, NoSID, 0},
		{"none", 0, 0, 0, NoSID, 0},
		{"deadline in time", 100 * time.Millisecond, 50 * time.Millisecond, 0, 0, 5 * time.Millisecond},
		{"deadline too soon: refused before it", 100 * time.Millisecond, 3 * time.Millisecond, 0, NoSID, 0},
		{"canceled meanwhile", 100 * time.Millisecond, 0, 2 * time.Millisecond, NoSID, 2 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := waitNode(t, c.maxWait)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.deadline > 0 {
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, cancel)
				}
				began := time.Now()
				_, err := n.Next(ctx, 1, 0)
				took := time.Since(began)
				if got := reasonOf(t, err); got != c.want || took < c.took || took > c.took+time.Millisecond {
					t.Errorf("%q after %v, want %q after %v", got, took, c.want, c.took)
				}
			})
		})
	}
}

// TestNextNow: what Next would wait for is said and not counted, a refusal is, and neither waits.
func TestNextNow(t *testing.T) {
	for maxWait, waits := range map[time.Duration]bool{100 * time.Millisecond: true, 5 * time.Millisecond: true,
		4 * time.Millisecond: false, 0: false} {
		synctest.Test(t, func(t *testing.T) {
			n := waitNode(t, maxWait)
			_, got, err := n.NextNow(1, 0)
			if refused := n.Stats().Refused[NoSID]; got != waits || (err == nil) != waits || (refused == 0) != waits {
				t.Errorf("max wait %v: waits %v, %v, %d refusals", maxWait, got, err, refused)
			}
			time.Sleep(5 * time.Millisecond)
			if b, got, err := n.NextNow(1, 0); got || err != nil || b.Count != 1 {
				t.Errorf("after the wait: %v, %v, %v", b, got, err)
			}
		})
	}
}

// TestWaitEnds: a request that waits for lead is refused as soon as the reason changes.
func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := waitNode(t, 100*time.Millisecond)
		time.AfterFunc(time.Millisecond, n.Drain)
		began := time.Now()
		_, err := n.Next(t.Context(), 1, 0)
		if got := reasonOf(t, err); got != Draining || time.Since(began) > 6*time.Millisecond {
			t.Errorf("%q after %v", got, time.Since(began))
		}
	})
}

// TestAfterIsWaitedFor: an after slightly beyond the lead is served late rather
// than refused, and above it (I6).
func TestAfterIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.MaxWait, cfg.Gen.Epoch = 100*time.Millisecond, bubbleEpoch
		n := New(cfg, clock.NewSystem(nil), zeros{})
		now := n.clock.Now().Wall
		n.Begin(grant(now, now+1000))
		after := flake.ID(int64(now+50)-bubbleEpoch) << 20
		b, err := n.Next(t.Context(), 1, after)
		if err != nil || b.First <= after {
			t.Errorf("%v, %v", b, err)
		}
	})
}

// TestAfterOfAnotherSpace: an after with bits that no ID of the layout has is the
// caller's mistake, whether the node holds a sid or not.
func TestAfterOfAnotherSpace(t *testing.T) {
	cfg := testConfig()
	cfg.Gen.Layout = flake.JS53
	n := New(cfg, clocktest.NewManual(start), zeros{})
	for _, held := range []bool{false, true} {
		if held {
			n.Begin(grant(start, start+1000))
			n.Report(holding())
		}
		_, err := n.Try(n.clock.Now(), 1, 1<<53)
		if r := (*Refusal)(nil); !errors.As(err, &r) || r.Reason != InvalidID || r.Metadata["class"] != "out_of_range" {
			t.Errorf("held %v: %v", held, err)
		}
		want := Starting
		if held {
			want = AfterTooFar
		}
		if _, err := n.Try(n.clock.Now(), 1, 1<<53-1); reasonOf(t, err) != want {
			t.Errorf("held %v: the last ID of the layout: %v", held, err)
		}
	}
}

// TestLargestCount: the refusal of a larger count says why there is a limit.
func TestLargestCount(t *testing.T) {
	for layout, want := range map[flake.Layout]string{
		flake.Scalable: "count is 98305: ask for 1 to 98304",
		flake.Twitter:  "count is 4097: ask for 1 to 4096, which is what a sid has in 1ms of layout twitter",
		flake.JS53:     "count is 129: ask for 1 to 128, which is what a sid has in 1ms of layout js53",
	} {
		cfg := testConfig()
		cfg.Gen.Layout = layout
		n := New(cfg, clocktest.NewManual(start), zeros{})
		n.Begin(grant(start, start+1000))
		n.Report(holding())
		limit := cfg.Gen.MaxBlock()
		b, err := n.Next(t.Context(), limit, 0)
		if err != nil || b.Count != limit {
			t.Errorf("%v: %+v, %v", layout, b, err)
		}
		_, err = n.Next(t.Context(), limit+1, 0)
		if r := (*Refusal)(nil); !errors.As(err, &r) || r.Reason != InvalidCount || r.Message != want || r.Metadata["limit"] != strconv.Itoa(limit) {
			t.Errorf("%v: %v", layout, err)
		}
	}
}

// TestChangingTenures: requests race the keeper. Each is answered or refused,
// no ID comes twice, and those of one caller rise (I1, I2).
func TestChangingTenures(t *testing.T) {
	cfg := testConfig()
	cfg.Gen.MaxLead, cfg.MaxWait = 250, 50*time.Millisecond
	n := New(cfg, clock.NewSystem(nil), gen.Random())
	n.Report(holding())
	ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
	defer cancel()

	var all sync.WaitGroup
	const callers = 4
	var served sync.WaitGroup // every caller has got something, however busy the machine is
	served.Add(callers)
	all.Go(func() {
		time.Sleep(300 * time.Millisecond) // of changes
		served.Wait()
		cancel()
	})
	all.Go(func() { // the keeper
		for sid := flake.SID(0); ctx.Err() == nil; sid = (sid + 1) % 32 {
			now := n.clock.Now().Wall
			n.Begin(lease.Grant{SID: sid, Term: 1, Base: now, Ceil: now + 100})
			n.Raise(now + 200)
			if sid%3 == 0 {
				ceil := n.Seal()
				if again := n.Seal(); again > ceil {
					t.Errorf("sealed at %d, then at %d", ceil, again)
				}
			}
			n.Ready()
			n.Stats()
		}
	})
	var issued [callers][]gen.Block
	for c := range callers {
		all.Go(func() {
			done := sync.OnceFunc(served.Done)
			defer done()
			for ctx.Err() == nil {
				b, err := n.Next(ctx, 1+c*10, 0)
				if err == nil {
					issued[c] = append(issued[c], b)
					done()
				} else if r := reasonOf(t, err); r == InvalidCount || r == InvalidID {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	seen := make(map[flake.ID]bool)
	total := 0
	for c, blocks := range issued {
		last := flake.ID(0)
		for _, b := range blocks {
			if b.First <= last {
				history.Violated(t, "I2", "caller %d: %v after %v", c, b.First, last)
				t.FailNow()
			}
			last = b.Last()
			for i := range b.Count {
				if seen[b.At(i)] {
					history.Violated(t, "I1", "%v was issued twice", b.At(i))
					t.FailNow()
				}
				seen[b.At(i)] = true
				total++
			}
		}
	}
	if got := n.Stats().Issued; got != int64(total) || total == 0 {
		t.Errorf("counted %d, issued %d", got, total)
	}
}

// TestReasons: each reason has a name and a counter.
func TestReasons(t *testing.T) {
	n := New(testConfig(), clocktest.NewManual(start), zeros{})
	for _, r := range Reasons {
		got := n.Refused(&Refusal{Reason: r})
		if n.Stats().Refused[r] != 1 || !errors.Is(fmt.Errorf("x: %w", got), &Refusal{Reason: r}) {
			t.Errorf("reason %d, %s, is not counted", int(r), r)
		}
		var read struct{ R Reason }
		b, err := json.Marshal(struct{ R Reason }{r})
		if err != nil || string(b) != `{"R":"`+r.String()+`"}` || json.Unmarshal(b, &read) != nil || read.R != r {
			t.Errorf("reason %d is %s in JSON, %v, and read back %v", int(r), b, err, read.R)
		}
		if errors.Is(got, &Refusal{Reason: r%Reason(len(Reasons)) + 1}) {
			t.Errorf("%s is taken for another reason", r)
		}
	}
	for r, want := range map[Reason]string{0: "", Reason(NumReasons): strconv.Itoa(NumReasons), -1: "-1"} {
		if got := r.String(); got != want || ReasonOf(got) != 0 {
			t.Errorf("reason %d, which is none, is called %q", int(r), got)
		}
	}
	var r Reason
	if err := r.UnmarshalText([]byte("NO_SUCH")); err == nil {
		t.Errorf("NO_SUCH is read as %v", r)
	}
}

// TestStatsOfTenure: the counters show the tenure, and the highest ceiling also after it:
// a repair of a restored etcd goes by it.
func TestStatsOfTenure(t *testing.T) {
	n := New(testConfig(), clocktest.NewManual(start), zeros{})
	n.Begin(grant(start, start+1000))
	if st := n.Stats(); !st.Holding || st.SID != 7 || st.Base != start || st.Ceil != start+1000 || st.Reserved != start+1000 {
		t.Errorf("holding: %+v", st)
	}
	n.Raise(start + 2000)
	n.Seal()
	if st := n.Stats(); st.Holding || st.SID != 0 || st.Ceil != 0 || st.Reserved != start+2000 {
		t.Errorf("sealed: %+v", st)
	}
}

// TestImpossibleGrant: a grant that cannot be is a claim that does not hold.
func TestImpossibleGrant(t *testing.T) {
	n := New(testConfig(), clocktest.NewManual(start), zeros{})
	defer func() {
		if recover() == nil || n.Stats().Holding {
			t.Error("a node issues from a grant of a sid that does not exist")
		}
	}()
	n.Begin(lease.Grant{SID: 32, Term: 1, Base: start, Ceil: start + 1000})
}

// TestAfterThatIsNoSkew: an after within twice the skew can pass after a wait, and one
// beyond is wrong, whatever the time.
func TestAfterThatIsNoSkew(t *testing.T) {
	for ahead, retry := range map[clock.Millis]bool{503: true, 504: false} { // 2 x MaxSkew and MaxLead
		n := New(testConfig(), clocktest.NewManual(start), zeros{})
		n.Begin(grant(start, start+1000))
		_, err := n.Next(context.Background(), 1, flake.ID(int64(start+ahead)-flake.DefaultEpoch)<<20)
		if r, ok := errors.AsType[*Refusal](err); !ok || r.Reason != AfterTooFar || (r.RetryAfter > 0) != retry {
			t.Errorf("%d ms ahead: %+v", ahead, err)
		}
	}
}

// TestAfterCenturiesAhead: an after that is further ahead than any duration is refused at once.
func TestAfterCenturiesAhead(t *testing.T) {
	long, err := flake.ParseLayout("50/5/8")
	fatal.If(t, err)
	cfg := testConfig()
	cfg.Gen.Layout, cfg.MaxWait = long, time.Second
	for years := 100; years < 30_000; years += 100 {
		n := New(cfg, clocktest.NewManual(start), zeros{})
		n.Begin(grant(start, start+1000))
		after, err := flake.Format{Layout: long, Epoch: flake.DefaultEpoch}.Max(int64(start) + int64(years)*365*24*3_600_000)
		fatal.If(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		began := time.Now()
		_, err = n.Next(ctx, 1, after)
		cancel()
		if r, ok := errors.AsType[*Refusal](err); !ok || r.Reason != AfterTooFar || r.RetryAfter != 0 {
			t.Fatalf("%d years ahead: %+v after %v", years, err, time.Since(began))
		}
	}
}

// TestUnverifiedIsCounted: IDs issued while no majority confirms the clock are
// counted separately, and others are not.
func TestUnverifiedIsCounted(t *testing.T) {
	src := clocktest.NewManual(clock.Millis(flake.DefaultEpoch + 1_000_000))
	n := New(Config{Name: "n", Instance: "i", Gen: gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 250, MaxStep: 255}},
		src, gen.Random())
	n.Begin(lease.Grant{SID: 1, Term: 1, Base: src.Now().Wall, Ceil: src.Now().Wall + 30_000})
	for i, v := range []clock.Verdict{
		{State: clock.Open, Phase: clock.Confirmed}, {State: clock.Open, Phase: clock.Grace}, {State: clock.Open, Phase: clock.Unproven},
	} {
		n.SetVerdict(v)
		if _, err := n.Try(src.Now(), 10, 0); err != nil {
			t.Fatal(err)
		}
		if got, want := n.Stats().Unverified, int64(10*i); got != want {
			t.Errorf("after IDs under phase %v: %d unverified, want %d", v.Phase, got, want)
		}
	}
}
