package history

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flakelease/allocator/internal/clock"
)

// Traffic is how much must have been answered for a run to say anything.
type Traffic struct {
	Answers   int64 // in the whole run
	PerSecond int64 // answers in each of the five seconds before a fault
}

// DefaultTraffic is low: less than a client that asks ten times a second.
var DefaultTraffic = Traffic{Answers: 100, PerSecond: 10}

// Suspicion doubts the run itself. A run in which an enabled fault did not fire,
// or was not seen to, or in which too little was asked before one, is unknown:
// nothing was tried.
type Suspicion struct {
	want   Traffic
	setup  *Setup
	phases *Phases
	count  map[string]int // injections, by fault
	fired  map[string]int // It counts the injections whose effect was read back, by fault.
}

// NewSuspicion returns the check.
func NewSuspicion(want Traffic) *Suspicion {
	return &Suspicion{want: want, phases: NewPhases(), count: map[string]int{}, fired: map[string]int{}}
}

// Add takes everything.
func (s *Suspicion) Add(op *Op) {
	if op.Setup != nil {
		s.setup = op.Setup
	}
	s.phases.Add(op)
}

// Finish returns what is doubtful, with the start of the fault that it concerns.
// It never fails a run.
func (s *Suspicion) Finish() Result {
	r := Result{Check: "suspicion", Claim: "the run itself", Verdict: Pass}
	doubtAt := func(at clock.Mono, format string, args ...any) {
		r.Verdict = Unknown
		r.Count++
		if len(r.Violations) < maxListed {
			r.Violations = append(r.Violations, Violation{Claim: r.Claim, Detail: fmt.Sprintf(format, args...), At: at})
		}
	}
	doubt := func(format string, args ...any) { doubtAt(0, format, args...) }
	phases := s.phases.Finish().Phases
	for _, p := range phases {
		s.count[p.Fault]++
		if p.Fired {
			s.fired[p.Fault]++
		} else {
			doubtAt(p.Start, "%s (%d): no effect was read back", p.Fault, p.ID)
		}
		if p.Stop < 0 {
			doubtAt(p.Start, "%s (%d) was never healed", p.Fault, p.ID)
		}
		if need := float64(s.want.PerSecond) * p.Before.Seconds; float64(p.Before.OK) < need {
			doubtAt(p.Start, "%s (%d): %d answers in the %.1f s before it, fewer than %.0f", p.Fault, p.ID,
				p.Before.OK, p.Before.Seconds, need)
		}
	}
	if s.setup == nil {
		doubt("the history does not say what the run is")
	} else {
		for _, f := range s.setup.Faults {
			if s.count[f] == 0 {
				doubt("%s is enabled and was never injected", f)
			}
		}
	}
	answers := int64(0)
	for _, t := range s.phases.slots {
		answers += t.ok
	}
	if answers < s.want.Answers {
		doubt("%d answers in all, fewer than %d", answers, s.want.Answers)
	}
	var names []string
	for f := range s.count {
		names = append(names, fmt.Sprintf("%s %d/%d", f, s.fired[f], s.count[f]))
	}
	slices.Sort(names)
	r.Reason = fmt.Sprintf("%d answers; fired: %s", answers, strings.Join(names, ", "))
	if r.Verdict == Unknown {
		r.Reason = r.Violations[0].Detail
	}
	return r
}
