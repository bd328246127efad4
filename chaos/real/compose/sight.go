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
)

// sight is what a history shows.
type sight struct {
	checks  []history.Result
	calls   int64
	ids     int64
	answers map[string]int64     // by node
	start   time.Time            // of the clients, by the clock that all containers share with us
	lastOK  map[string]time.Time // by node, of clients pinned to it
	refused map[string]int64     // by reason, or failed
	library map[string]int64     // the same of the library's callers alone
	slowest time.Duration        // of a call of the library's
}

// look reads a history.
func look(r io.Reader) (*sight, error) {
	s := &sight{answers: map[string]int64{}, lastOK: map[string]time.Time{}, refused: map[string]int64{}, library: map[string]int64{}}
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

func (s *sight) add(op *history.Op, asked map[string]time.Duration) {
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
	if op.Via == viaLibrary {
		s.slowest = max(s.slowest, at-asked[op.Process])
	}
	if op.Type == history.OK {
		s.ids += op.Block.Count
		s.answers[op.Node]++
		if op.Via != viaLibrary {
			s.lastOK[op.Node] = s.start.Add(at)
		}
		return
	}
	s.refused[op.Reason]++
	if op.Via == viaLibrary {
		s.library[op.Reason]++
	}
}

// judge prints what was seen, and returns what is wrong with it. A history of few
// calls shows nothing.
func (s *sight) judge(t *test, least int64) error {
	t.say("%d calls, %d IDs; answers by node: %s; refused or lost: %s", s.calls, s.ids, table(s.answers), table(s.refused))
	t.say("callers of the library: refused or lost: %s; slowest call %v", table(s.library), s.slowest.Round(time.Millisecond))
	var errs []error
	if s.calls < least {
		errs = append(errs, fmt.Errorf("%d calls show nothing: want %d", s.calls, least))
	}
	for _, c := range s.checks {
		t.say("%s %s: %s: %s", c.Claim, c.Check, c.Verdict, c.Reason)
		if c.Verdict != history.Pass {
			errs = append(errs, fmt.Errorf("%s: %s: %d violations, first %+v", c.Check, c.Verdict, c.Count, c.Violations))
		}
	}
	return errors.Join(errs...)
}

func (s *sight) noRefusalOfLibrary() error {
	if len(s.library) > 0 {
		return fmt.Errorf("callers of the library saw refusals or failures: %s", table(s.library))
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
