package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/internal/load"
)

// summary is what a history shows.
type summary struct {
	checks  []history.Result
	calls   int64
	ids     int64
	answers map[string]int64     // node to answers
	start   time.Time            // when the clients began, by the clock that all containers share with us
	lastOK  map[string]time.Time // last answer of each node to clients pinned to it
	refused map[string]int64     // reason to calls; failed: lost
	bySDK   map[string]int64     // refused or lost, by cause, for callers of the SDK alone
	slowest time.Duration        // slowest request of the SDK
}

// summarize reads a history.
func summarize(r io.Reader) (*summary, error) {
	s := &summary{
		answers: map[string]int64{},
		lastOK:  map[string]time.Time{},
		refused: map[string]int64{},
		bySDK:   map[string]int64{},
	}
	suite := history.Suite{history.NewUnique(256<<20, nil), history.NewOrder(), history.NewCausal()}
	asked := map[string]time.Duration{}
	for in := history.NewReader(r); ; {
		var op history.Op
		err := in.Read(&op)
		if errors.Is(err, io.EOF) {
			s.checks = suite.Finish()
			return s, nil
		}
		if err != nil {
			return nil, err
		}
		suite.Add(&op)
		s.add(&op, asked)
	}
}

func (s *summary) add(op *history.Op, asked map[string]time.Duration) {
	if op.Setup != nil {
		s.start = time.UnixMilli(op.Setup.StartMs)
	}
	if op.F != history.FAllocate {
		return
	}
	at := time.Duration(op.Time)
	if op.Type == history.Invoke {
		asked[op.Process] = at
		return
	}
	s.calls++
	if op.Via == load.SDK {
		s.slowest = max(s.slowest, at-asked[op.Process])
	}
	if op.Type == history.OK {
		s.ids += op.Block.Count
		s.answers[op.Node]++
		if op.Via != load.SDK {
			s.lastOK[op.Node] = s.start.Add(at)
		}
		return
	}
	s.refused[op.Reason]++
	if op.Via == load.SDK {
		s.bySDK[op.Reason]++
	}
}

// judge prints the summary, and returns what is wrong with it. A history of few
// calls shows nothing.
func (s *summary) judge(t *test, minimum int64) error {
	t.logf("%d calls, %d IDs; answers by node: %s; refused or lost: %s", s.calls, s.ids, table(s.answers),
		table(s.refused))
	t.logf("callers of the SDK: refused or lost: %s; slowest call %v", table(s.bySDK),
		s.slowest.Round(time.Millisecond))
	var errs []error
	if s.calls < minimum {
		errs = append(errs, fmt.Errorf("%d calls show nothing: want %d", s.calls, minimum))
	}
	for _, c := range s.checks {
		t.logf("%s %s: %s: %s", c.Claim, c.Check, c.Verdict, c.Reason)
		if c.Verdict != history.Pass {
			errs = append(errs,
				fmt.Errorf("%s: %s: %d violations, first %+v", c.Check, c.Verdict, c.Count, c.Violations))
		}
	}
	return errors.Join(errs...)
}

func (s *summary) noRefusalBySDK() error {
	if len(s.bySDK) > 0 {
		return fmt.Errorf("callers of the SDK saw refusals or failures: %s", table(s.bySDK))
	}
	return nil
}

func table(m map[string]int64) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	if parts == nil {
		return "none"
	}
	return strings.Join(parts, ", ")
}
