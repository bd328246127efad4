package protocol_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// TestTranscripts runs the scenarios in testdata. A scenario is a list of commands,
// followed by the actions of the machine:
//
//	# A comment.
//	pass 1s
//	a tick 5s
//	----
//	extend sid=0 term=1 window=[30000,35000) over revision 7
//	RAISE ceil=35000
//
// Times are in ms since the scenario began. Actions in lower case are requests to
// the store, those in upper case are calls of the generator, alarms and the end.
//
// The commands are the keys of worldCommands, and of nodeCommands after the name of
// a process. Processes are named a, b, … in the order of their start.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := newScenario(t)
		defer s.checkClaims()
		datadriven.RunTest(t, path, func(_ *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for line := range strings.Lines(d.String()) {
				out.WriteString(s.run(line))
			}
			return out.String()
		})
	})
}

// scenario is a cluster, and what the commands of a transcript say about it.
type scenario struct {
	t     *testing.T
	w     *cluster
	mem   *storetest.Memory
	procs map[string]*process
	next  map[*process]plannedFault
	saved storetest.Snapshot
	// others are the leases of processes that no command names, in the order in which they came.
	others []lease.LeaseID
	// outside is a claim that does not hold in this scenario, because history is rewound in it.
	outside string
}

// plannedFault is the outcome of a process's next request. If kind is set, it is that of
// the next request whose line in the transcript begins so.
type plannedFault struct {
	outcome outcome
	kind    string
}

func newScenario(t *testing.T) *scenario {
	mem := storetest.NewMemory(1)
	start := clock.Millis(flake.DefaultEpoch + 1_000_000_000)
	s := &scenario{
		t:     t,
		mem:   mem,
		procs: map[string]*process{},
		next:  map[*process]plannedFault{},
		w:     &cluster{store: mem, window: 30 * time.Second, clock: clocktest.NewManual(start), began: start},
	}
	s.w.hist.Format = flake.Default
	s.w.fault = func(p *process, a lease.Action) outcome {
		n, ok := s.next[p]
		if !ok || n.kind != "" && !strings.HasPrefix(s.w.show(a), n.kind) {
			return answered
		}
		delete(s.next, p)
		return n.outcome
	}
	return s
}

// checkClaims fails the test if the scenario breaks a claim.
func (s *scenario) checkClaims() {
	for _, v := range s.w.hist.Check() {
		if v.Claim != s.outside {
			history.Violated(s.t, v.Claim, "%s", v.Detail)
		}
	}
}

// run carries out a line of a transcript and returns what it prints.
func (s *scenario) run(line string) string {
	s.t.Helper()
	words := strings.Fields(line)
	if len(words) == 0 || strings.HasPrefix(words[0], "#") {
		return ""
	}
	if do, ok := worldCommands[words[0]]; ok {
		do(s, args{s.t, words[1:]})
		return ""
	}
	p := s.procs[words[0]]
	if p == nil || len(words) < 2 || nodeCommands[words[1]] == nil {
		s.t.Fatalf("unknown command %q", line)
	}
	p.log = nil
	printed := nodeCommands[words[1]](s, p, args{s.t, words[2:]})
	for _, l := range p.log {
		printed += l + "\n"
	}
	return printed
}

// space returns the space of all scenarios, with a part of the sids.
func (s *scenario) space(part lease.SIDRange) lease.Space {
	return lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "pool-1", Part: part}
}

// load returns all records of the store.
func (s *scenario) load() lease.View {
	s.t.Helper()
	v, err := s.mem.Load(context.Background())
	s.check(err)
	return v
}

func (s *scenario) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestFormatMismatch: a node whose format is not the space's ends.
//
// Incident T41 (another epoch or layout in one cluster), docs/INCIDENTS.md.
func TestFormatMismatch(t *testing.T) {
	s := newScenario(t)
	_, _, err := s.mem.Init(context.Background(), lease.Space{Layout: flake.Fleet, Epoch: 1, Pool: "p"}, 0)
	s.check(err)
	p := s.w.start("n1")
	p.step(lease.Tick{})
	var format *lease.FormatError
	if !errors.As(p.failure, &format) {
		t.Fatalf("got %v, want a FormatError", p.failure)
	}
	for _, word := range []string{"fleet", "scalable", "epoch 1"} {
		if !strings.Contains(format.Error(), word) {
			t.Errorf("%q does not name %q", format, word)
		}
	}
}
