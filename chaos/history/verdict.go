package history

import (
	"errors"
	"fmt"
	"io"

	"github.com/flakelease/allocator/internal/audit"
	"github.com/flakelease/allocator/internal/clock"
)

// Verdict is the outcome of a check of a run.
type Verdict string

// Verdicts. Unknown is no weak Pass: the run was not able to show it.
const (
	Pass    Verdict = "pass"
	Broken  Verdict = "fail"
	Unknown Verdict = "unknown"
)

// Worst returns the verdict of several taken together: one failure fails, and
// what is not known of one is not known of all. None is Unknown.
func Worst(vs ...Verdict) Verdict {
	out := Pass
	if len(vs) == 0 {
		out = Unknown
	}
	for _, v := range vs {
		switch {
		case v == Broken:
			return Broken
		case v != Pass:
			out = Unknown
		}
	}
	return out
}

// Result is what one check found in one run.
type Result struct {
	Check        string         `json:"check"`
	Claim        string         `json:"claim"` // I1 … I8, or what else is promised
	Verdict      Verdict        `json:"verdict"`
	Reason       string         `json:"reason"`               // what was checked; for unknown, what was missing
	Count        int64          `json:"count"`                // Count includes the violations that are not listed.
	Violations   []Violation    `json:"violations,omitempty"` // the first thousand
	Measurements []Measurement  `json:"measurements,omitempty"`
	Phases       []FaultPhases  `json:"phases,omitempty"`  // Only the check of availability lists phases.
	Refused      []FirstRefusal `json:"refused,omitempty"` // Only the check of deadlines lists first refusals.
}

// FirstRefusal is how soon a target of a fault refused as it had to.
type FirstRefusal struct {
	Fault   string `json:"fault"`
	ID      int64  `json:"id"`
	Node    string `json:"node"`
	AfterMs int64  `json:"after_ms"` // from the fault's start to the end of the call
}

// Measurement is a number that a check measured.
type Measurement struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// Checker checks a run op by op. A Checker is a value of one goroutine, and
// what Add is given is not kept. Finish is called once, at the end.
type Checker interface {
	Add(op *Op)
	Finish() Result
}

// Suite is several checkers over one run.
type Suite []Checker

// NewSuite returns every check of this package. spool is where the check of
// uniqueness puts what passes memory bytes; nil keeps it all in memory.
func NewSuite(memory int64, spool audit.Spool) Suite {
	return Suite{
		NewUnique(memory, spool), NewIntervals(), NewOrder(), NewCausal(), NewReserved(), NewConfirmed(DefaultLag),
		NewHolders(),
		NewRealTime(), NewTruth(), NewFinal(), NewDeadlines(), NewRefusals(), NewPhases(), NewSuspicion(DefaultTraffic),
	}
}

// Add gives op to each checker.
func (s Suite) Add(op *Op) {
	for _, c := range s {
		c.Add(op)
	}
}

// Finish returns what each found, in order.
func (s Suite) Finish() []Result {
	out := make([]Result, 0, len(s))
	for _, c := range s {
		out = append(out, c.Finish())
	}
	return out
}

// Check reads a history to its end and returns what the suite found. Of a
// history that is cut short or damaged, the part before is checked, and the error
// comes with the results. If dangers is not nil, it is given each op, too.
func (s Suite) Check(r io.Reader, dangers *Dangers) ([]Result, error) {
	in := NewReader(r)
	var op Op
	for {
		if err := in.Read(&op); errors.Is(err, io.EOF) {
			return s.Finish(), nil
		} else if err != nil {
			return s.Finish(), err
		}
		s.Add(&op)
		if dangers != nil {
			dangers.Add(&op)
		}
	}
}

// findings counts violations, and formats only those that are listed.
type findings struct {
	count int64
	list  []Violation
}

func (f *findings) add(claim string, at clock.Mono, format string, args ...any) {
	f.count++
	if len(f.list) < maxListed {
		f.list = append(f.list, Violation{Claim: claim, Detail: fmt.Sprintf(format, args...), At: at})
	}
}

// result returns what a check found; missing is what the run lacked, if anything.
func (f *findings) result(check, claim, seen, missing string) Result {
	r := Result{Check: check, Claim: claim, Verdict: Pass, Reason: seen, Count: f.count, Violations: f.list}
	switch {
	case f.count > 0:
		r.Verdict = Broken
	case missing != "":
		r.Verdict, r.Reason = Unknown, missing
	}
	return r
}

// who names the process that answered op, as well as it is known.
func (op *Op) who() string {
	switch {
	case op.Run != "":
		return op.Run
	case op.Node != "":
		return op.Node
	}
	return "process " + op.Process
}

// isCall reports whether op is part of a client's call.
func (op *Op) isCall() bool { return op.F == FAllocate && op.Process != Nemesis }
