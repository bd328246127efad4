package history

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// scenario is a run, given op by op. Times are in milliseconds; the observer's wall
// clock was the epoch's second 1000 at time 0.
type scenario struct{ ops []Op }

const began = 1_000_000 // ms past the epoch at time 0

func newScenario() *scenario {
	return &scenario{[]Op{{Process: Harness, Type: Info, F: FSetup, Setup: &Setup{Layout: "scalable", EpochMs: flake.DefaultEpoch,
		StartMs: flake.DefaultEpoch + began, MaxSkewMs: 250, MaxLeadMs: 250}}}}
}

// flakeAt makes an ID of sid s at a time of a scenario, in ms.
func flakeAt(ms, entropy int64, s flake.SID) flake.ID {
	id, err := flake.Default.Make(flake.DefaultEpoch+began+ms, uint32(entropy), s)
	if err != nil {
		panic(err)
	}
	return id
}

func (s *scenario) op(ms int64, op Op) *scenario {
	op.Time = clock.Mono(ms * 1e6)
	s.ops = append(s.ops, op)
	return s
}

func (s *scenario) ask(ms int64, process int) *scenario { return s.askAfter(ms, process, "", 0) }

func (s *scenario) askAfter(ms int64, process int, session string, after flake.ID) *scenario {
	return s.op(ms, Op{Process: fmt.Sprint(process), Type: Invoke, F: FAllocate, Session: session, After: after})
}

// ok answers with n IDs from first; run "n1#0" is one of node n1.
func (s *scenario) ok(ms int64, process int, run string, first flake.ID, n int64) *scenario {
	return s.op(ms, Op{Process: fmt.Sprint(process), Type: OK, F: FAllocate, Node: run[:2], Run: run, Block: Block{first, n, 32}})
}

// unknown answers with one ID, and does not say of which process it is.
func (s *scenario) unknown(ms int64, process int, id flake.ID) *scenario {
	return s.op(ms, Op{Process: fmt.Sprint(process), Type: OK, F: FAllocate, Block: Block{id, 1, 1}})
}

func (s *scenario) fail(ms int64, process int, node, reason string) *scenario {
	return s.op(ms, Op{Process: fmt.Sprint(process), Type: Fail, F: FAllocate, Node: node, Reason: reason})
}

func (s *scenario) fault(ms int64, f string, v Fault) *scenario {
	return s.op(ms, Op{Process: Nemesis, Type: Info, F: f, Fault: &v})
}

func (s *scenario) window(ms int64, run string, w Window) *scenario {
	w.Base += flake.DefaultEpoch + began
	w.Ceil += flake.DefaultEpoch + began
	return s.op(ms, Op{Process: Etcd, Type: Info, F: FWindow, Node: run[:2], Run: run, Window: &w})
}

func (s *scenario) holder(ms int64, node string, h Holder) *scenario {
	return s.op(ms, Op{Process: Etcd, Type: Info, F: FHolder, Node: node, Holder: &h})
}

func (s *scenario) sample(ms int64, node, verdict string) *scenario {
	return s.op(ms, Op{Process: Sampler, Type: Info, F: FSample, Node: node, Sample: &Sample{State: "serving", Verdict: verdict}})
}

// check gives the scenario to a checker, through a file.
func (s *scenario) check(t *testing.T, c Checker) Result {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b, WriterConfig{})
	for _, op := range s.ops {
		if _, err := w.Write(op); err != nil {
			t.Fatalf("%+v: %v", op, err)
		}
	}
	fatal.If(t, w.Flush())
	got, err := Suite{c}.Check(&b, nil)
	fatal.If(t, err)
	return got[0]
}

// Each check finds what is planted, lets pass what only looks alike, and says
// unknown of a run that cannot show it.
func TestCheckers(t *testing.T) {
	unique := func() Checker { return NewUnique(0, nil) }
	intervals := func() Checker { return NewIntervals() }
	order := func() Checker { return NewOrder() }
	causal := func() Checker { return NewCausal() }
	reserved := func() Checker { return NewReserved() }
	holders := func() Checker { return NewHolders() }
	realTime := func() Checker { return NewRealTime() }
	truth := func() Checker { return NewTruth() }
	deadlines := func() Checker { return NewDeadlines() }
	refusals := func() Checker { return NewRefusals() }
	phases := func() Checker { return NewPhases() }

	clockFault := Fault{Phase: FaultStart, ID: 1, Class: ClassClock, Targets: []string{"n1"}, Must: "CLOCK_SKEW", DeadlineMs: 4000, May: []string{"NO_SID"}, SettleMs: 2000}
	stop := Fault{Phase: FaultStop, ID: 1}
	// skewed is a clock fault on n1 from 1 s to 10 s.
	skewed := func(between func(*scenario)) *scenario {
		s := newScenario().fault(1000, "step", clockFault)
		between(s)
		return s.fault(10_000, "step", stop)
	}
	// taken is a sid that n1 had, and n2 after it.
	taken := func() *scenario {
		return newScenario().window(0, "n1#0", Window{SID: 3, Rev: 5, Term: 1, Base: 0, Ceil: 100, Instance: "a"}).
			window(1, "n1#0", Window{SID: 3, Rev: 6, Term: 1, Base: 100, Ceil: 200, Instance: "a"}).
			ok(2, 1, "n1#0", flakeAt(50, 0, 3), 10).
			ok(3, 1, "n1#0", flakeAt(199, 0, 3), 10)
	}

	for _, tc := range []struct {
		name     string
		checker  func() Checker
		scenario *scenario
		want     Verdict
		count    int64
	}{
		{"unique: nothing", unique, newScenario(), Unknown, 0},
		{"unique: consecutive", unique, newScenario().ok(1, 1, "n1#0", flakeAt(1, 0, 3), 10).ok(1, 1, "n2#0", flakeAt(1, 10, 3), 10), Pass, 0},
		{"unique: one ID in common", unique, newScenario().ok(1, 1, "n1#0", flakeAt(1, 0, 3), 10).ok(1, 1, "n2#0", flakeAt(1, 9, 3), 10), Broken, 1},
		{"unique: the same numbers of two sids", unique, newScenario().ok(1, 1, "n1#0", flakeAt(1, 0, 3), 10).ok(1, 1, "n2#0", flakeAt(1, 0, 4), 10), Pass, 0},
		{"unique: an answer that was given twice", unique, newScenario().ok(1, 1, "n1#0", flakeAt(1, 0, 3), 1).ok(1, 1, "n1#0", flakeAt(1, 0, 3), 1), Broken, 1},

		{"intervals: one after the other", intervals, newScenario().ok(1, 1, "n1#0", flakeAt(1, 0, 3), 1).ok(1, 1, "n2#0", flakeAt(2, 0, 3), 1).ok(1, 1, "n1#0", flakeAt(3, 0, 3), 1), Pass, 0},
		{"intervals: one millisecond, no ID in common", intervals, newScenario().ok(1, 1, "n1#0", flakeAt(1, 0, 3), 1).ok(1, 1, "n2#0", flakeAt(1, 9, 3), 1), Broken, 1},
		{"intervals: a restart in the same millisecond", intervals, newScenario().ok(1, 1, "n1#0", flakeAt(1, 0, 3), 1).ok(1, 1, "n1#1", flakeAt(1, 9, 3), 1), Broken, 1},
		{"intervals: one millisecond of two sids", intervals, newScenario().ok(1, 1, "n1#0", flakeAt(1, 0, 3), 1).ok(1, 1, "n2#0", flakeAt(1, 9, 4), 1), Pass, 0},
		{"intervals: a block that runs into the next sid", intervals, newScenario().op(1, Op{Process: "1", Type: OK, F: FAllocate, Node: "n1", Run: "n1#0", Block: Block{flakeAt(1, 0, 3), 2, 1}}), Broken, 1},
		{"intervals: of a process that is not known", intervals, newScenario().ok(1, 1, "n1#0", flakeAt(1, 0, 3), 1).unknown(1, 1, flakeAt(1, 9, 3)), Pass, 0},
		{"unique: a process that is not known", unique, newScenario().ok(1, 1, "n1#0", flakeAt(1, 0, 3), 10).unknown(1, 2, flakeAt(1, 9, 3)), Broken, 1},
		{"intervals: nothing", intervals, newScenario(), Unknown, 0},

		{"order: rising", order, newScenario().ask(1, 1).ok(2, 1, "n1#0", flakeAt(1, 0, 3), 5).ask(3, 1).ok(4, 1, "n1#0", flakeAt(1, 5, 3), 5), Pass, 0},
		{"order: into the block before", order, newScenario().ask(1, 1).ok(2, 1, "n1#0", flakeAt(1, 0, 3), 5).ask(3, 1).ok(4, 1, "n1#0", flakeAt(1, 4, 3), 5), Broken, 1},
		{"order: a process that changed its sid", order, newScenario().ask(1, 1).ok(2, 1, "n1#0", flakeAt(2, 0, 3), 5).ask(3, 1).ok(4, 1, "n1#0", flakeAt(1, 0, 4), 5), Broken, 1},
		{"order: two calls at once", order, newScenario().ask(1, 1).ask(1, 2).ok(2, 1, "n1#0", flakeAt(2, 0, 3), 5).ok(3, 2, "n1#0", flakeAt(1, 0, 3), 5), Pass, 0},
		{"order: a sid across a restart", order, newScenario().ask(1, 1).ok(2, 1, "n1#0", flakeAt(2, 0, 3), 5).ask(3, 1).ok(4, 1, "n1#1", flakeAt(2, 3, 3), 5), Broken, 1},
		{"order: a sid across nodes, all below", order, newScenario().ask(1, 1).ok(2, 1, "n1#0", flakeAt(2, 0, 3), 5).ask(2, 1).ok(3, 1, "n1#0", flakeAt(9, 0, 3), 5).ask(3, 1).ok(4, 1, "n2#0", flakeAt(5, 0, 3), 5), Broken, 1},
		{"order: a former holder that still lives", order, newScenario().ask(1, 1).ok(2, 1, "n1#0", flakeAt(2, 0, 3), 5).ask(3, 1).ok(4, 1, "n2#0", flakeAt(9, 0, 3), 5).ask(5, 1).ok(6, 1, "n1#0", flakeAt(3, 0, 3), 5), Pass, 0},
		{"order: two nodes and two sids", order, newScenario().ask(1, 1).ok(2, 1, "n1#0", flakeAt(2, 0, 3), 5).ask(3, 1).ok(4, 1, "n2#0", flakeAt(1, 0, 4), 5), Pass, 0},
		{"order: a session over two nodes", order, newScenario().askAfter(1, 1, "s", 1).ok(2, 1, "n1#0", flakeAt(2, 0, 3), 5).askAfter(3, 1, "s", 1).ok(4, 1, "n2#0", flakeAt(1, 0, 4), 5), Broken, 1},
		{"order: a session that never said after", order, newScenario().askAfter(1, 1, "s", 0).ok(2, 1, "n1#0", flakeAt(2, 0, 3), 5).askAfter(3, 1, "s", 0).ok(4, 1, "n2#0", flakeAt(1, 0, 4), 5), Pass, 0},
		{"order: one answer", order, newScenario().ask(1, 1).ok(2, 1, "n1#0", flakeAt(1, 0, 3), 5), Unknown, 0},

		{"causal: greater by one", causal, newScenario().askAfter(1, 1, "", flakeAt(1, 0, 3)).ok(2, 1, "n1#0", flakeAt(1, 0, 3)+1, 1), Pass, 0},
		{"causal: the same", causal, newScenario().askAfter(1, 1, "", flakeAt(1, 0, 3)).ok(2, 1, "n1#0", flakeAt(1, 0, 3), 1), Broken, 1},
		{"causal: of another client", causal, newScenario().askAfter(1, 1, "", flakeAt(1, 0, 3)).ask(1, 2).ok(2, 2, "n1#0", flakeAt(0, 0, 3), 1), Unknown, 0},

		{"reserved: to the last millisecond", reserved, taken(), Pass, 0},
		{"reserved: below the base", reserved, taken().ok(9, 1, "n1#0", flakeAt(-1, 0, 3), 1), Broken, 1},
		{"reserved: at the ceiling", reserved, taken().ok(9, 1, "n1#0", flakeAt(200, 0, 3), 1), Broken, 1},
		{"reserved: a block that reaches the ceiling", reserved, taken().ok(9, 1, "n1#0", flakeAt(199, 1<<15-1, 3), 2), Broken, 1},
		{"reserved: somebody else's window", reserved, taken().ok(9, 1, "n2#0", flakeAt(60, 0, 3), 1), Broken, 1},
		{"reserved: another process of the node", reserved, taken().ok(9, 1, "n1#1", flakeAt(60, 0, 3), 1), Broken, 1},
		{"reserved: another sid", reserved, taken().ok(9, 1, "n1#0", flakeAt(60, 0, 4), 1), Broken, 1},
		{"reserved: a window told later", reserved, taken().ok(9, 1, "n1#0", flakeAt(200, 0, 3), 1).window(10, "n1#0", Window{SID: 3, Rev: 7, Term: 1, Base: 200, Ceil: 300, Instance: "a"}), Pass, 0},
		{"reserved: given back", reserved, taken().window(9, "n1#0", Window{SID: 3, Rev: 7, Term: 1, Base: 0, Ceil: 200, Released: true, Instance: "a"}), Pass, 0},
		{"reserved: gave back what it had used", reserved, taken().window(9, "n1#0", Window{SID: 3, Rev: 7, Term: 1, Base: 0, Ceil: 199, Released: true, Instance: "a"}), Broken, 1},
		{"reserved: a successor after that", reserved, taken().window(9, "n1#0", Window{SID: 3, Rev: 7, Term: 1, Base: 0, Ceil: 200, Released: true, Instance: "a"}).
			window(10, "n2#0", Window{SID: 3, Rev: 8, Term: 2, Base: 200, Ceil: 300, Instance: "b"}).ok(11, 1, "n2#0", flakeAt(200, 0, 3), 1), Pass, 0},
		{"reserved: a successor below the ceiling", reserved, taken().window(10, "n2#0", Window{SID: 3, Rev: 8, Term: 2, Base: 199, Ceil: 300, Instance: "b"}), Broken, 1},
		{"reserved: a term that falls", reserved, taken().window(10, "n2#0", Window{SID: 3, Rev: 8, Term: 0, Base: 200, Ceil: 300, Instance: "b"}), Broken, 1},
		{"reserved: a term of two", reserved, taken().window(10, "n2#0", Window{SID: 3, Rev: 8, Term: 1, Base: 200, Ceil: 300, Instance: "b"}), Broken, 1},
		{"reserved: etcd's data was rewound", reserved, taken().fault(9, "restore", Fault{Phase: FaultStart, ID: 1, Class: ClassData}).
			window(10, "n2#0", Window{SID: 3, Rev: 2, Term: 0, Base: 150, Ceil: 300, Instance: "b"}), Pass, 0},
		{"reserved: answered by a process that is not known", reserved, taken().unknown(9, 1, flakeAt(60, 0, 3)), Pass, 0},
		{"reserved: by such a process, in no window", reserved, taken().unknown(9, 1, flakeAt(200, 0, 3)), Broken, 1},
		{"reserved: by such a process, in another sid's window", reserved, taken().unknown(9, 1, flakeAt(60, 0, 4)), Broken, 1},
		{"reserved: no windows at all", reserved, newScenario().ok(9, 1, "n1#0", flakeAt(60, 0, 3), 1), Unknown, 0},

		{"holders: one after the other", holders, newScenario().holder(1, "n1", Holder{SID: 3, Instance: "a"}).holder(2, "n1", Holder{SID: 3, Instance: "a"}).
			holder(3, "n1", Holder{SID: 3, Deleted: true}).holder(4, "n2", Holder{SID: 3, Instance: "b"}), Pass, 0},
		{"holders: another before it was free", holders, newScenario().holder(1, "n1", Holder{SID: 3, Instance: "a"}).holder(4, "n2", Holder{SID: 3, Instance: "b"}), Broken, 1},
		{"holders: the next process of the node", holders, newScenario().holder(1, "n1", Holder{SID: 3, Instance: "a"}).holder(4, "n1", Holder{SID: 3, Instance: "b"}), Pass, 0},
		{"holders: two sids", holders, newScenario().holder(1, "n1", Holder{SID: 3, Instance: "a"}).holder(4, "n2", Holder{SID: 4, Instance: "b"}), Pass, 0},
		{"holders: etcd's data was rewound", holders, newScenario().holder(1, "n1", Holder{SID: 3, Instance: "a"}).fault(2, "restore", Fault{Phase: FaultStart, Class: ClassData}).
			holder(4, "n2", Holder{SID: 3, Instance: "b"}), Pass, 0},
		{"holders: no records", holders, newScenario(), Unknown, 0},

		{"real time: at the bound", realTime, newScenario().ask(1, 1).ok(2, 1, "n1#0", flakeAt(751, 0, 3), 1).ask(3, 1).ok(4, 1, "n2#0", flakeAt(1, 0, 4), 1), Pass, 0},
		{"real time: over it", realTime, newScenario().ask(1, 1).ok(2, 1, "n1#0", flakeAt(752, 0, 3), 1).ask(3, 1).ok(4, 1, "n2#0", flakeAt(1, 0, 4), 1), Broken, 1},
		{"real time: over it, at once", realTime, newScenario().ask(1, 1).ask(1, 2).ok(2, 1, "n1#0", flakeAt(752, 0, 3), 1).ok(4, 2, "n2#0", flakeAt(1, 0, 4), 1).ask(5, 1).ok(6, 1, "n1#0", flakeAt(900, 0, 3), 1), Pass, 0},
		{"real time: over it, unverified", realTime, newScenario().sample(1, "n2", "unverified").ask(1, 1).ok(2, 1, "n1#0", flakeAt(752, 0, 3), 1).ask(3, 1).ok(4, 1, "n2#0", flakeAt(1, 0, 4), 1).
			ask(5, 1).ok(6, 1, "n1#0", flakeAt(753, 0, 3), 1), Pass, 0},
		{"real time: over it, verified again", realTime, newScenario().sample(1, "n2", "unverified").ask(1, 1).ok(2, 1, "n1#0", flakeAt(752, 0, 3), 1).sample(3, "n2", VerdictOpen).ask(3, 1).ok(4, 1, "n2#0", flakeAt(1, 0, 4), 1), Broken, 1},
		{"real time: during a clock fault", realTime, skewed(func(s *scenario) {
			s.ask(2000, 1).ok(2001, 1, "n1#0", flakeAt(9000, 0, 3), 1).ask(2002, 1).ok(2003, 1, "n2#0", flakeAt(1, 0, 4), 1)
		}), Unknown, 0},
		{"real time: of another node during that", realTime, skewed(func(s *scenario) {
			s.ask(2000, 1).ok(2001, 1, "n2#0", flakeAt(3000, 0, 3), 1).ask(2002, 1).ok(2003, 1, "n3#0", flakeAt(1, 0, 4), 1)
		}), Broken, 1},
		{"real time: of a node that is not known", realTime, skewed(func(s *scenario) {
			s.ask(2000, 1).ok(2001, 1, "n2#0", flakeAt(3000, 0, 3), 1).ask(2002, 1).unknown(2003, 1, flakeAt(1, 0, 4)).
				ask(2004, 1).ok(2005, 1, "n2#0", flakeAt(3001, 0, 3), 1)
		}), Pass, 0},
		{"real time: four seconds after a clock fault", realTime, skewed(func(*scenario) {}).ask(14_001, 1).ok(14_001, 1, "n1#0", flakeAt(20_000, 0, 3), 1).ask(14_002, 1).ok(14_003, 1, "n2#0", flakeAt(1, 0, 4), 1), Broken, 1},
		{"real time: before that", realTime, skewed(func(*scenario) {}).ask(14_000, 1).ok(14_001, 1, "n1#0", flakeAt(20_000, 0, 3), 1).ask(14_002, 1).ok(14_003, 1, "n2#0", flakeAt(1, 0, 4), 1).
			ask(14_004, 1).ok(14_005, 1, "n2#0", flakeAt(2, 0, 4), 1), Pass, 0},

		{"truth: at the bound", truth, newScenario().ask(1000, 1).ok(1010, 1, "n1#0", flakeAt(1510, 0, 3), 1).ask(2000, 1).ok(2010, 1, "n1#0", flakeAt(1500, 0, 3), 1), Pass, 0},
		{"truth: ahead", truth, newScenario().ask(1000, 1).ok(1010, 1, "n1#0", flakeAt(1511, 0, 3), 1), Broken, 1},
		{"truth: behind", truth, newScenario().ask(1000, 1).ok(1010, 1, "n1#0", flakeAt(499, 0, 3), 1), Broken, 1},
		{"truth: the end of a block ahead", truth, newScenario().ask(1000, 1).ok(1010, 1, "n1#0", flakeAt(1510, 1<<15-1, 3), 2), Broken, 1},
		{"truth: of another node, ten minutes off during a clock fault", truth, skewed(func(s *scenario) {
			s.ask(2000, 1).ok(2001, 1, "n2#0", flakeAt(602_000, 0, 3), 1)
		}), Broken, 1},
		{"truth: of a node that is not known, in a clock fault", truth, skewed(func(s *scenario) { s.ask(2000, 1).unknown(2001, 1, flakeAt(9000, 0, 3)) }), Unknown, 0},
		{"truth: of a node that is not known", truth, newScenario().ask(1000, 1).unknown(1010, 1, flakeAt(1511, 0, 3)), Broken, 1},
		{"truth: of a node that is not known, while one is unverified", truth, newScenario().sample(1, "n2", "unverified").ask(1000, 1).unknown(1010, 1, flakeAt(1511, 0, 3)), Unknown, 0},
		{"truth: during a clock fault", truth, skewed(func(s *scenario) { s.ask(2000, 1).ok(2001, 1, "n1#0", flakeAt(9000, 0, 3), 1) }), Unknown, 0},

		{"deadlines: refused in time", deadlines, skewed(func(s *scenario) {
			s.ask(4999, 1).ok(5001, 1, "n1#0", flakeAt(1, 0, 3), 1).ask(5001, 1).fail(5002, 1, "n1", "CLOCK_SKEW")
		}), Pass, 0},
		{"deadlines: still answered", deadlines, skewed(func(s *scenario) {
			s.ask(2000, 1).fail(2002, 1, "n1", "CLOCK_SKEW").ask(5001, 1).ok(5002, 1, "n1#0", flakeAt(1, 0, 3), 1)
		}), Broken, 1},
		{"deadlines: another node answered", deadlines, skewed(func(s *scenario) {
			s.ask(2000, 1).fail(2002, 1, "n1", "CLOCK_SKEW").ask(5001, 1).ok(5002, 1, "n2#0", flakeAt(1, 0, 3), 1).ask(5003, 1).fail(5004, 1, "n1", "CLOCK_SKEW")
		}), Pass, 0},
		{"deadlines: another reason", deadlines, skewed(func(s *scenario) {
			s.ask(2000, 1).fail(2002, 1, "n1", "CLOCK_SKEW").ask(5001, 1).fail(5002, 1, "n1", "STARTING")
		}), Broken, 1},
		{"deadlines: a reason it may have", deadlines, skewed(func(s *scenario) {
			s.ask(2000, 1).fail(2002, 1, "n1", "CLOCK_SKEW").ask(5001, 1).fail(5002, 1, "n1", "NO_SID")
		}), Pass, 0},
		{"deadlines: answered after the stop", deadlines, skewed(func(s *scenario) {
			s.ask(5001, 1).fail(5002, 1, "n1", "CLOCK_SKEW")
		}).ask(10_001, 1).ok(10_002, 1, "n1#0", flakeAt(1, 0, 3), 1), Pass, 0},
		{"deadlines: refused, and asked no more after the deadline", deadlines, skewed(func(s *scenario) { s.ask(2000, 1).fail(2002, 1, "n1", "CLOCK_SKEW") }), Unknown, 0},
		{"deadlines: another node refused", deadlines, skewed(func(s *scenario) { s.ask(5001, 1).fail(5002, 1, "n2", "CLOCK_SKEW") }), Unknown, 0},
		{"deadlines: another node too, of another fault", deadlines, skewed(func(s *scenario) {
			s.fault(2000, "step", Fault{Phase: FaultStart, ID: 2, Targets: []string{"n2"}, Must: "CLOCK_SKEW", DeadlineMs: 1000})
			s.ask(5001, 1).fail(5002, 1, "n1", "CLOCK_SKEW").ask(5003, 1).ok(5004, 1, "n2#0", flakeAt(1, 0, 3), 1)
		}), Broken, 1},
		{"deadlines: of no particular node", deadlines, skewed(func(s *scenario) {
			s.fault(2000, "step", Fault{Phase: FaultStart, ID: 2, Must: "CLOCK_SKEW"}).ask(5001, 1).fail(5002, 1, "n1", "CLOCK_SKEW")
		}), Unknown, 0},
		{"deadlines: no requests", deadlines, skewed(func(*scenario) {}), Unknown, 0},
		{"deadlines: no such fault", deadlines, newScenario().ask(1, 1).fail(2, 1, "n1", "CLOCK_SKEW"), Unknown, 0},

		{"refusals: calm and answered", refusals, newScenario().ask(1, 1).ok(2, 1, "n1#0", flakeAt(1, 0, 3), 1), Pass, 0},
		{"refusals: refused in calm", refusals, newScenario().ask(1, 1).fail(2, 1, "n1", "CLOCK_SKEW"), Broken, 1},
		{"refusals: refused for what was asked", refusals, newScenario().ask(1, 1).fail(2, 1, "n1", "AFTER_TOO_FAR").ask(3, 1).fail(4, 1, "n1", "ENTROPY_OVERFLOW"), Pass, 0},
		{"refusals: lost in calm", refusals, newScenario().ask(1, 1).op(2, Op{Process: "1", Type: Info, F: FAllocate, Node: "n1", Reason: "deadline"}), Broken, 1},
		{"refusals: ended by the harness", refusals, newScenario().ask(1, 1).op(2, Op{Process: "1", Type: Info, F: FAllocate, Node: "n1", Reason: ReasonStopped}), Pass, 0},
		{"refusals: as a fault has it", refusals, skewed(func(s *scenario) { s.ask(2000, 1).fail(2001, 1, "n1", "CLOCK_SKEW") }).ask(13_000, 1).ok(13_001, 1, "n1#0", 5, 1), Pass, 0},
		{"refusals: of another node", refusals, skewed(func(s *scenario) { s.ask(2000, 1).fail(2001, 1, "n2", "CLOCK_SKEW") }).ask(13_000, 1).ok(13_001, 1, "n1#0", 5, 1), Broken, 1},
		{"refusals: as another node may", refusals, skewed(func(s *scenario) { s.ask(2000, 1).fail(2001, 1, "n2", "NO_SID") }).ask(13_000, 1).ok(13_001, 1, "n1#0", 5, 1), Broken, 1},
		{"refusals: as the other of two faults has it", refusals, skewed(func(s *scenario) {
			s.fault(1500, "kill", Fault{Phase: FaultStart, ID: 2, Class: ClassProcess, Targets: []string{"n2"}, May: []string{"*"}}).ask(2000, 1).fail(2001, 1, "n1", "STARTING").fault(9000, "kill", Fault{Phase: FaultStop, ID: 2})
		}).ask(13_000, 1).ok(13_001, 1, "n1#0", 5, 1), Broken, 1},
		{"refusals: as one of two faults of it has it", refusals, skewed(func(s *scenario) {
			s.fault(1500, "kill", Fault{Phase: FaultStart, ID: 2, Class: ClassProcess, Targets: []string{"n2", "n1"}, May: []string{"STARTING"}}).ask(2000, 1).fail(2001, 1, "n1", "STARTING").fault(9000, "kill", Fault{Phase: FaultStop, ID: 2})
		}).ask(13_000, 1).ok(13_001, 1, "n1#0", 5, 1), Pass, 0},
		{"refusals: a fault that is aimed at all", refusals, newScenario().fault(1, "cut", Fault{Phase: FaultStart, ID: 1, May: []string{"NO_SID"}}).ask(2, 1).fail(3, 1, "n2", "NO_SID").fault(4, "cut", stop).
			ask(13_000, 1).ok(13_001, 1, "n1#0", 5, 1), Pass, 0},
		{"refusals: by whichever node, and a fault has all of them", refusals, anyNode("n1", "n2"), Pass, 0},
		{"refusals: by whichever node, and a fault has one of two", refusals, anyNode("n1"), Broken, 1},
		{"refusals: as it may", refusals, skewed(func(s *scenario) { s.ask(2000, 1).fail(2001, 1, "n1", "NO_SID") }).ask(13_000, 1).ok(13_001, 1, "n1#0", 5, 1), Pass, 0},
		{"refusals: for another reason", refusals, skewed(func(s *scenario) { s.ask(2000, 1).fail(2001, 1, "n1", "STARTING") }).ask(13_000, 1).ok(13_001, 1, "n1#0", 5, 1), Broken, 1},
		{"refusals: while its effects last", refusals, skewed(func(*scenario) {}).ask(12_000, 1).fail(12_001, 1, "n1", "CLOCK_SKEW").ask(13_000, 1).ok(13_001, 1, "n1#0", 5, 1), Pass, 0},
		{"refusals: after that", refusals, skewed(func(*scenario) {}).ask(12_001, 1).fail(12_002, 1, "n1", "CLOCK_SKEW"), Broken, 1},
		{"refusals: never calm", refusals, newScenario().fault(0, "step", clockFault).ask(1, 1).ok(2, 1, "n1#0", 5, 1), Unknown, 0},

		{"availability: came back", phases, skewed(func(*scenario) {}).ask(11_000, 1).ok(30_000, 1, "n1#0", 5, 1), Pass, 0},
		{"availability: did not", phases, skewed(func(*scenario) {}).ask(11_000, 1).fail(30_000, 1, "n1", "STARTING"), Broken, 1},
		{"availability: only others came back", phases, skewed(func(s *scenario) { s.ask(1500, 1).fail(2000, 1, "n1", "CLOCK_SKEW") }).ask(11_000, 1).ok(11_001, 1, "n2#0", 5, 1).
			ask(26_900, 1).ok(26_901, 1, "n2#0", 6, 1).ask(26_902, 1).fail(27_002, 1, "n1", "STARTING"), Broken, 1},
		{"availability: while its effects may last", phases, skewed(func(s *scenario) { s.ask(1500, 1).fail(2000, 1, "n1", "CLOCK_SKEW") }).ask(26_900, 1).fail(26_999, 1, "n1", "STARTING"), Pass, 0},
		{"availability: hit again before it could", phases, skewed(func(s *scenario) { s.ask(1500, 1).fail(2000, 1, "n1", "CLOCK_SKEW") }).
			fault(12_000, "kill", Fault{Phase: FaultStart, ID: 2, Targets: []string{"n1"}}).ask(27_000, 1).fail(27_002, 1, "n1", "STARTING"), Pass, 0},
		{"availability: another was hit before it could", phases, skewed(func(s *scenario) { s.ask(1500, 1).fail(2000, 1, "n1", "CLOCK_SKEW") }).
			fault(12_000, "kill", Fault{Phase: FaultStart, ID: 2, Targets: []string{"n2"}}).ask(27_000, 1).fail(27_002, 1, "n1", "STARTING"), Broken, 1},
		{"availability: of etcd, nobody answered", phases, newScenario().fault(1, "cut", Fault{Phase: FaultStart, ID: 1, Targets: []string{"e1"}}).fault(2, "cut", stop).
			ask(11_000, 1).fail(30_000, 1, "n1", "STARTING"), Broken, 1},
		{"availability: of etcd, somebody answered", phases, newScenario().fault(1, "cut", Fault{Phase: FaultStart, ID: 1, Targets: []string{"e1"}}).fault(2, "cut", stop).
			ask(11_000, 1).ok(11_001, 1, "n1#0", 5, 1).ask(11_002, 1).fail(30_000, 1, "n2", "STARTING"), Pass, 0},
		{"availability: not asked for long", phases, skewed(func(*scenario) {}).ask(11_000, 1).fail(12_000, 1, "n1", "STARTING"), Pass, 0},
		{"availability: nothing happened", phases, newScenario().ask(1, 1).ok(2, 1, "n1#0", 5, 1), Unknown, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tc.scenario.check(t, tc.checker())
			if got.Verdict != tc.want || got.Count != tc.count || len(got.Violations) != int(tc.count) || got.Reason == "" {
				t.Errorf("got %+v, want %s with %d violations", got, tc.want, tc.count)
			}
		})
	}
}

// Violations are counted, and a thousand are told.
func TestViolationsAreBounded(t *testing.T) {
	s := newScenario()
	for range 2 * maxListed {
		s.ask(1, 1).fail(2-1, 1, "n1", "STARTING")
	}
	if got := s.check(t, NewRefusals()); got.Count != 2*maxListed || len(got.Violations) != maxListed {
		t.Errorf("%d counted, %d told", got.Count, len(got.Violations))
	}
}

func TestPhasesMeasure(t *testing.T) {
	s := newScenario()
	p, e := 0, int64(0)
	// ten answers of 7 IDs each second, but 2 s to 4 s and, on n1, up to 4.5 s
	for ms := int64(0); ms < 8000; ms += 100 {
		switch ms {
		case 2000:
			s.fault(ms, "pause", Fault{Phase: FaultStart, ID: 9, Class: ClassProcess, Targets: []string{"n1"}})
			s.fault(ms, "pause", Fault{Phase: FaultFired, ID: 9})
		case 4000:
			s.fault(ms, "pause", Fault{Phase: FaultStop, ID: 9})
		}
		s.ask(ms, p)
		switch {
		case ms < 2000 || ms >= 4500:
			s.ok(ms+1, p, "n1#0", flake.ID(32*e), 7)
		case ms < 4000:
			s.fail(ms+1, p, "n1", "gone")
		default:
			s.ok(ms+1, p, "n2#0", flake.ID(32*e), 7)
		}
		e += 7
	}
	got := s.check(t, NewPhases()).Phases
	if len(got) != 1 {
		t.Fatalf("%+v", got)
	}
	g := got[0]
	if !g.Fired || g.Before.OK != 20 || g.Before.IDs != 140 || g.During.Failed != 20 || g.During.OK != 1 || g.After.OK != 39 || g.After.Failed != 0 {
		t.Errorf("%+v", g)
	}
	if g.FirstMs != 501 || g.BackMs != 0 {
		t.Errorf("first after %d ms, back after %d", g.FirstMs, g.BackMs)
	}
}

func TestSuspicion(t *testing.T) {
	busy := func() *scenario {
		s := newScenario()
		s.ops[0].Setup.Faults = []string{"kill"}
		for ms := int64(0); ms < 2000; ms += 50 {
			s.ask(ms, 1).ok(ms, 1, "n1#0", flakeAt(ms, 0, 3), 1)
		}
		return s
	}
	start, fired, stop := Fault{Phase: FaultStart, ID: 1}, Fault{Phase: FaultFired, ID: 1}, Fault{Phase: FaultStop, ID: 1}
	for _, tc := range []struct {
		name     string
		scenario *scenario
		want     Verdict
	}{
		{"all is well", busy().fault(2000, "kill", start).fault(2001, "kill", fired).fault(2002, "kill", stop), Pass},
		{"never injected", busy(), Unknown},
		{"did not fire", busy().fault(2000, "kill", start).fault(2002, "kill", stop), Unknown},
		{"another one fired", busy().fault(2000, "kill", start).fault(2001, "kill", Fault{Phase: FaultFired, ID: 2}).fault(2002, "kill", stop), Unknown},
		{"never healed", busy().fault(2000, "kill", start).fault(2001, "kill", fired), Unknown},
		{"too little before it", busy().fault(9000, "kill", start).fault(9001, "kill", fired).fault(9002, "kill", stop), Unknown},
		{"too little in all", newScenario().fault(0, "kill", start).fault(1, "kill", fired).fault(2, "kill", stop), Unknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.scenario.check(t, NewSuspicion(Traffic{Answers: 30, PerSecond: 10})); got.Verdict != tc.want || got.Reason == "" {
				t.Errorf("got %+v, want %s", got, tc.want)
			}
		})
	}
}

// The whole suite on a run in which everything that can be shown is shown.
func TestSuitePasses(t *testing.T) {
	s := newScenario()
	s.ops[0].Setup.Faults = []string{"step"}
	s.window(0, "n1#0", Window{SID: 3, Rev: 1, Term: 1, Base: 0, Ceil: 60_000, Instance: "a"}).window(0, "n2#0", Window{SID: 4, Rev: 2, Term: 1, Base: 0, Ceil: 60_000, Instance: "b"})
	s.holder(0, "n1", Holder{SID: 3, Instance: "a"})
	after := flake.ID(1)
	s.ops = append(s.ops, Op{F: FSample, Process: Sampler, Type: Info, Node: "n1", Sample: &Sample{State: "holding", MarkMs: flake.DefaultEpoch + began}})
	for ms := int64(0); ms < 30_000; ms += 20 {
		switch ms {
		case 5000:
			s.fault(ms, "step", Fault{Phase: FaultStart, ID: 1, Class: ClassClock, Targets: []string{"n1"}, Must: "CLOCK_SKEW", DeadlineMs: 4000, SettleMs: 1000})
			s.fault(ms, "step", Fault{Phase: FaultFired, ID: 1})
		case 15_000:
			s.fault(ms, "step", Fault{Phase: FaultStop, ID: 1})
		}
		s.askAfter(ms, 1, "s", after)
		switch {
		case ms >= 7000 && ms < 15_000 && ms%40 == 0:
			s.fail(ms+1, 1, "n1", "CLOCK_SKEW")
		case ms%40 == 0:
			after = flakeAt(ms, 0, 3)
			s.ok(ms+1, 1, "n1#0", after, 10)
		default:
			after = flakeAt(ms, 0, 4)
			s.ok(ms+1, 1, "n2#0", after, 10)
		}
		after += 9 * 32
	}
	var b []byte
	for _, op := range s.ops {
		text, _ := op.encode()
		b = append(b, text...)
		b = append(b, '\n')
	}
	got, err := NewSuite(0, nil).Check(bytes.NewReader(b), nil)
	fatal.If(t, err)
	var names []string
	for _, r := range got {
		names = append(names, r.Check)
		if r.Verdict != Pass {
			t.Errorf("%+v", r)
		}
	}
	if slices.Sort(names); len(slices.Compact(names)) != 14 {
		t.Errorf("checks: %q", names)
	}

	// Cut short, the rest is judged and the cut is told.
	if got, err := NewSuite(0, nil).Check(bytes.NewReader(b[:len(b)/2]), nil); err == nil || got[0].Verdict != Pass {
		t.Errorf("%v, %+v", err, got[0])
	}
}

func TestWorst(t *testing.T) {
	for _, tc := range []struct {
		in   []Verdict
		want Verdict
	}{
		{nil, Unknown}, {[]Verdict{Pass, Pass}, Pass}, {[]Verdict{Pass, Unknown}, Unknown},
		{[]Verdict{Unknown, Broken, Pass}, Broken}, {[]Verdict{"not run", Pass}, Unknown},
	} {
		if got := Worst(tc.in...); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.in, got, tc.want)
		}
	}
}

// anyNode is a run of two nodes in which a fault of the targets exhausts their windows, and a call
// that names no node is refused so.
func anyNode(targets ...string) *scenario {
	s := newScenario()
	s.ops[0].Setup.Nodes = []string{"n1", "n2"}
	s.fault(1, "quorum", Fault{Phase: FaultStart, ID: 1, Targets: targets, Must: "WINDOW_EXHAUSTED"})
	s.ask(2, 1).op(3, Op{Process: "1", Type: Info, F: FAllocate, Via: "sdk", Reason: "WINDOW_EXHAUSTED"})
	s.fault(4, "quorum", Fault{Phase: FaultStop, ID: 1, Targets: targets})
	return s.ask(5, 1).ok(6, 1, "n1#0", 5, 1)
}
