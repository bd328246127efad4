package balance

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

const s = time.Second

// newPool returns a pool of n connected nodes, whose attempts take at most a second.
func newPool(n int) *Pool[*Node] {
	p := &Pool[*Node]{Attempt: s}
	for i := range n {
		p.Nodes = append(p.Nodes, &Node{Address: Address{"a", fmt.Sprint(i)}, ready: true})
	}
	return p
}

// asked returns which nodes are picked for the next calls.
func (p *Pool[M]) asked(now time.Duration, calls int, avoid M) (list []M) {
	var none M
	for range calls {
		if m, _ := p.Pick(now, avoid); m != none {
			list = append(list, m)
		}
	}
	return list
}

// TestPick: calls go to all nodes in turn, but not to one that is not connected, nor to the one that just
// failed where there is another.
func TestPick(t *testing.T) {
	p := newPool(3)
	for _, tc := range []struct {
		name  string
		ready string
		avoid *Node
		want  []int // of 30 calls, for each node
	}{
		{"all", "012", nil, []int{10, 10, 10}},
		{"but one", "012", p.Nodes[1], []int{10, 0, 20}},
		{"one is not connected", "12", nil, []int{0, 20, 10}},
		{"one is left", "1", p.Nodes[1], []int{0, 30, 0}},
		{"none", "", nil, []int{0, 0, 0}},
	} {
		for _, n := range p.Nodes {
			p.Ready(n, strings.Contains(tc.ready, n.Addr))
		}
		got := make([]int, 3)
		for _, n := range p.asked(s, 30, tc.avoid) {
			got[slices.Index(p.Nodes, n)]++
		}
		if !slices.Equal(got, tc.want) || p.Connected() != len(tc.ready) {
			t.Errorf("%s: asked %v times, want %v; %d are connected", tc.name, got, tc.want, p.Connected())
		}
	}
	if p.Changed(); p.Changed() {
		t.Error("a change is reported twice")
	}
	if p.Ready(p.Nodes[0], false); p.Changed() {
		t.Error("no change is reported as one")
	}
	if p.Ready(p.Nodes[0], true); !p.Changed() {
		t.Error("a new connection wakes nobody")
	}
}

// TestBreaker: a node that fails or refuses is not asked for some time, then by one call at a time until it
// serves. How long the pause is depends on how it fails.
func TestBreaker(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		name  string
		o     Outcome
		want  []time.Duration // of each time in a row
		other bool            // The connection is to be replaced.
	}{
		{"fails", Outcome{Kind: Failed}, []time.Duration{20 * ms, 40 * ms, 80 * ms, 160 * ms, 320 * ms, 640 * ms, s, s}, false},
		{"is silent", Outcome{Kind: Silent}, []time.Duration{s, 2 * s, 4 * s, 8 * s, 15 * s, 15 * s}, true},
		{"refuses", Outcome{Kind: Refused, Retry: 300 * ms}, []time.Duration{300 * ms, 300 * ms}, false},
		{"refuses without a delay", Outcome{Kind: Refused}, []time.Duration{s, s}, false},
		{"refuses for long", Outcome{Kind: TooFar, Retry: time.Hour}, []time.Duration{5 * s, 5 * s}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, now := newPool(1), time.Hour
			n := p.Nodes[0]
			tc.o.Err = io.EOF
			oneAt := func(after time.Duration, what string) {
				t.Helper()
				now += after - 1
				if got, wait := p.Pick(now, nil); got != nil || wait != 1 {
					t.Fatalf("%s: asked within %v, next in %v", what, after, wait)
				}
				now++
				if got := p.asked(now, 300, nil); len(got) != 1 {
					t.Fatalf("%s: asked by %d calls after %v, want one", what, len(got), after)
				}
			}
			for i, want := range tc.want {
				if other := p.Ended(n, now, tc.o); other != tc.other || n.Cause() != io.EOF || n.Paused(now) != want {
					t.Fatalf("time %d: paused for %v, another connection: %v", i, n.Paused(now), other)
				}
				oneAt(want, fmt.Sprint("time ", i))
			}
			oneAt(p.Attempt, "after a trial without an outcome")
			for _, kind := range []Kind{OfCall, Left} { // which end the trial, and another may begin
				p.Changed()
				if p.Ended(n, now, Outcome{Kind: kind}); !p.Changed() || len(p.asked(now, 5, nil)) != 1 {
					t.Errorf("kind %d does not end a trial", kind)
				}
			}
			p.Changed()
			if p.Ended(n, now, Outcome{}); !p.Changed() || len(p.asked(now, 5, nil)) != 5 || n.Cause() != nil {
				t.Error("it serves, and is not asked by all")
			}
			if p.Ended(n, now, Outcome{}); p.Changed() {
				t.Error("calls that wait are woken by each call that is served")
			}
			if p.Ended(n, now, tc.o); n.left(now) != tc.want[0] {
				t.Errorf("after it served it is not asked for %v, want %v", n.left(now), tc.want[0])
			}
		})
	}
}

// TestRestart: a node that refused, ended and is connected again is asked by one call at once; one whose
// connection was replaced since it was silent, or for which the client's last ID is too far ahead, is not.
func TestRestart(t *testing.T) {
	for kind, calls := range map[Kind]int{Refused: 1, TooFar: 0, Failed: 0, Silent: 0} {
		p, now := newPool(1), time.Hour
		n := p.Nodes[0]
		p.Ended(n, now, Outcome{Kind: kind, Err: io.EOF})
		p.Ready(n, true) // It is no news.
		if got := p.asked(now+1, 3, nil); len(got) != 0 {
			t.Errorf("kind %d: asked %d times in its pause", kind, len(got))
		}
		p.Ready(n, false)
		p.Ready(n, true)
		if got := p.asked(now+2, 3, nil); len(got) != calls {
			t.Errorf("kind %d: asked by %d calls after it was connected again, want %d", kind, len(got), calls)
		}
		if p.Ended(n, now+3, Outcome{}); len(p.asked(now+3, 3, nil)) != 3 {
			t.Errorf("kind %d: it serves, and is not asked by all", kind)
		}
	}
}

// TestFailuresOfOneTime: requests that were under way when another failed, or were sent over a connection
// before, count as no further failures in a row.
func TestFailuresOfOneTime(t *testing.T) {
	p, now := newPool(1), time.Hour
	n := p.Nodes[0]
	for i, tc := range []struct {
		after                     time.Duration
		o                         Outcome
		fails, failures, refusals int
	}{
		{0, Outcome{Kind: Failed}, 1, 1, 0},
		{FirstPause - 1, Outcome{Kind: Failed}, 1, 2, 0},
		{0, Outcome{Kind: Silent}, 1, 3, 0},
		{1, Outcome{Kind: Failed}, 2, 4, 0},
		{time.Minute, Outcome{Kind: Failed, Old: true}, 2, 5, 0},
		{0, Outcome{Kind: OfCall}, 2, 5, 1},
		{0, Outcome{Kind: Left}, 2, 5, 1},
		{0, Outcome{Kind: Refused}, 0, 5, 2}, // It answers.
		{time.Hour, Outcome{Kind: Silent}, 1, 6, 2},
	} {
		now += tc.after
		p.Ended(n, now, tc.o)
		if n.fails != tc.fails || n.Failures != int64(tc.failures) || n.Refusals != int64(tc.refusals) {
			t.Errorf("step %d: %d failures in a row of %d, %d refusals", i, n.fails, n.Failures, n.Refusals)
		}
	}
}

// TestDeadlinesOfCallers: callers whose deadlines pass are a failure of the node once no caller was
// answered for the time of an attempt.
func TestDeadlinesOfCallers(t *testing.T) {
	p, now := newPool(1), time.Hour
	n := p.Nodes[0]
	for i, tc := range []struct {
		after  time.Duration
		kind   Kind
		failed bool
	}{
		{0, Deadline, false}, {s / 2, Deadline, false}, {s / 2, Deadline, false}, {0, Served, false},
		{s, Deadline, false}, {s, Deadline, false}, {1, Deadline, true}, // one caller was answered
		{0, Served, false}, {0, Deadline, false}, {0, Refused, false}, {2 * s, Deadline, false},
	} {
		now += tc.after
		replace := p.Ended(n, now, Outcome{Kind: tc.kind})
		if replace != tc.failed || (n.fails == 1) != tc.failed || tc.failed && n.Paused(now) != FirstSilence {
			t.Errorf("step %d: %d failures, paused for %v", i, n.fails, n.Paused(now))
		}
	}
}

// TestCause: the refusal of a node is the reason that nodes are not asked, else what failed.
func TestCause(t *testing.T) {
	p, now := newPool(3), time.Hour
	far, no := errors.New("too far"), errors.New("no sid")
	is := func(what string, refusal, cause error) {
		t.Helper()
		if err, refusing := p.Cause(now); err != cmp.Or(refusal, cause) || refusing != (refusal != nil) {
			t.Errorf("%s: %v, refusing %v", what, err, refusing)
		}
	}
	is("at first", nil, nil)
	p.Ended(p.Nodes[0], now, Outcome{Kind: Failed, Err: io.EOF})
	is("one failed", nil, io.EOF)
	p.Ended(p.Nodes[1], now, Outcome{Kind: TooFar, Err: far, Retry: 2 * s})
	is("one refused", far, nil)
	now += 2 * s
	is("its delay has passed", nil, io.EOF)
	p.Ended(p.Nodes[2], now, Outcome{Kind: Refused, Err: no})
	is("another refuses", no, nil)
	// Once the client's last ID is another one, nodes are asked again that it was too far ahead for.
	p.Changed()
	p.Forgive()
	if got := p.asked(now, 5, p.Nodes[0]); !p.Changed() || len(got) != 5 || got[0] != p.Nodes[1] || p.Nodes[1].Cause() != nil {
		t.Errorf("asked %v", got)
	}
	is("one is forgiven", no, nil)
}

// TestTurns: whatever happens, a node is asked in its pause by nobody, after it by one call until that ends or
// times out, and there is no pause that does not end.
func TestTurns(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		p, now := newPool(1+rnd.IntN(3)), time.Hour
		trial, until := map[*Node]time.Duration{}, map[*Node]time.Duration{}
		var open []*Node // requests
		for range 300 {
			now += time.Duration(rnd.IntN(300)) * time.Millisecond
			n, wait := p.Pick(now, p.Nodes[0])
			if n == nil && (wait <= 0 || wait > s) {
				t.Fatalf("seed %d: nobody is asked, next in %v", seed, wait)
			}
			if n != nil {
				if now < until[n] || now < trial[n] {
					t.Fatalf("seed %d: asked %v early, in a trial for %v", seed, until[n]-now, trial[n]-now)
				}
				if until[n] > 0 {
					trial[n] = now + p.Attempt
				}
				open = append(open, n)
			}
			for len(open) > 0 && rnd.IntN(2) == 0 {
				i := rnd.IntN(len(open))
				n := open[i]
				open = slices.Delete(open, i, i+1)
				o := Outcome{Kind: Kind(rnd.IntN(8)), Retry: time.Duration(rnd.IntN(9000)) * time.Millisecond, Err: io.EOF}
				p.Ended(n, now, o)
				trial[n] = 0
				if o.Kind == Served {
					until[n] = 0
				} else if left := n.Paused(now); left > 0 {
					until[n] = now + left
				}
				if n.Paused(now) > lastSilence {
					t.Fatalf("seed %d: paused for %v", seed, n.Paused(now))
				}
			}
		}
	}
}

// TestChoose: addresses that are found are used, each once; those of a target that was not found stay.
// Of too many, those that are connected stay, and the others differ.
func TestChoose(t *testing.T) {
	p := &Pool[*Node]{}
	use := func(list []Address) (gone []*Node) {
		var nodes []*Node
		for _, a := range list {
			if i := slices.IndexFunc(p.Nodes, func(n *Node) bool { return n.Address == a }); i >= 0 {
				nodes = append(nodes, p.Nodes[i])
				continue
			}
			nodes = append(nodes, &Node{Address: a})
		}
		return p.Use(nodes)
	}
	fail := map[string]error{"": nil, "a": io.EOF, "b": io.EOF}
	for i, tc := range []struct{ found, failed, want string }{
		{"a1 a2 b2", "", "a1 a2"}, {"a2 b3", "", "a2 b3"}, {"b4", "a", "b4 a2"}, {"", "ab", "b4 a2"}, {"a2", "", "a2"},
	} {
		var found []Address
		for f := range strings.FieldsSeq(tc.found) {
			found = append(found, Address{f[:1], f[1:]})
		}
		failed := map[string]error{}
		for f := range strings.SplitSeq(tc.failed, "") {
			failed[f] = fail[f]
		}
		before := p.Nodes
		got := p.Choose(found, failed, rand.Shuffle)
		gone := use(got)
		if s := strings.NewReplacer("[", "", "]", "", "{", "", "}", "", "a ", "a", "b ", "b").Replace(fmt.Sprint(got)); s != tc.want || !p.Changed() {
			t.Errorf("lookup %d: %s, want %s", i, s, tc.want)
		}
		for _, n := range before {
			if slices.Contains(gone, n) == slices.Contains(p.Nodes, n) {
				t.Errorf("lookup %d: %v is gone: %v", i, n.Address, slices.Contains(gone, n))
			}
		}
	}
	var many []Address
	for i := range 3 * MaxNodes {
		many = append(many, Address{"a", fmt.Sprint(i)})
	}
	use([]Address{{"a", "1"}, many[47]})
	p.Ready(p.Nodes[1], true)
	seen := map[Address]bool{}
	for range 20 {
		got := p.Choose(slices.Clone(many), nil, rand.Shuffle)
		if len(got) != MaxNodes || got[0] != many[47] {
			t.Fatalf("%d of %d addresses are used: %v", len(got), len(many), got)
		}
		for _, a := range got {
			seen[a] = true
		}
	}
	if len(seen) < 2*MaxNodes {
		t.Errorf("the same %d of %d addresses are used each time", len(seen), len(many))
	}
	if got := p.Choose(slices.Clone(many[:MaxNodes]), nil, nil); !slices.Equal(got, many[:MaxNodes]) {
		t.Errorf("%d of %d addresses are used", len(got), MaxNodes)
	}
}
