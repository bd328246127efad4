package history

import (
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// Each danger is counted where it happened, and not where something looks alike.
func TestDangers(t *testing.T) {
	held := func() *scenario { // n1 holds sid 3 until 5 s, and its window reaches to 9 s
		return newScenario().window(0, "n1#0", Window{SID: 3, Rev: 1, Term: 1, Base: 0, Ceil: 9000, Instance: "a"}).
			heldBy(0, "n1#0", Holder{SID: 3, Rev: 1, Instance: "a"})
	}
	lost := func() *scenario { return held().holder(5000, "", Holder{SID: 3, Rev: 2, Deleted: true}) }
	skewed := func() *scenario {
		return held().fault(1000, "clock-forward", Fault{Phase: FaultStart, ID: 1, Class: ClassClock, Targets: []string{"n1"}}).
			fault(1010, "clock-forward", Fault{Phase: FaultFired, ID: 1})
	}
	answer := func(s *scenario, from, to int64, run string) *scenario {
		return s.ask(from, 1).ok(to, 1, run, flakeAt(from, 0, 3), 1)
	}
	for name, tc := range map[string]struct {
		s    *scenario
		want Danger
	}{
		"a holder answers":                         {answer(held(), 100, 101, "n1#0"), Danger{}},
		"after its lease ended":                    {answer(lost(), 6000, 6001, "n1#0"), Danger{Zombies: 1}},
		"a call began before the lease ended":      {answer(lost(), 4999, 6001, "n1#0"), Danger{}},
		"after another became the holder":          {answer(lost().heldBy(5100, "n2#0", Holder{SID: 3, Rev: 3, Instance: "b"}), 6000, 6001, "n1#0"), Danger{Zombies: 1}},
		"the new holder answers":                   {answer(lost().heldBy(5100, "n2#0", Holder{SID: 3, Rev: 3, Instance: "b"}), 6000, 6001, "n2#0"), Danger{}},
		"it is not known who holds it":             {answer(lost().holder(5100, "n2", Holder{SID: 3, Rev: 3, Instance: "b"}), 6000, 6001, "n2#0"), Danger{}},
		"etcd's data was changed":                  {answer(lost().fault(5500, "x", Fault{Phase: FaultStart, ID: 9, Class: ClassData}), 6000, 6001, "n1#0"), Danger{}},
		"an extension in time":                     {held().window(8000, "n1#0", Window{SID: 3, Rev: 2, Term: 1, Base: 0, Ceil: 20_000, Instance: "a"}), Danger{}},
		"an extension too late":                    {held().window(9500, "n1#0", Window{SID: 3, Rev: 2, Term: 1, Base: 0, Ceil: 20_000, Instance: "a"}), Danger{Late: 1}},
		"given back too late":                      {held().window(9500, "n1#0", Window{SID: 3, Rev: 2, Term: 1, Base: 0, Ceil: 9000, Instance: "a", Released: true}), Danger{}},
		"another takes a sid whose window goes on": {held().window(6000, "n2#0", Window{SID: 3, Rev: 3, Term: 2, Base: 9000, Ceil: 20_000, Instance: "b"}), Danger{Shared: 1}},
		"another takes one whose window is over":   {held().window(9100, "n2#0", Window{SID: 3, Rev: 3, Term: 2, Base: 9000, Ceil: 20_000, Instance: "b"}), Danger{}},
		"another takes one that was given back": {held().window(5000, "n1#0", Window{SID: 3, Rev: 2, Term: 1, Base: 0, Ceil: 5000, Instance: "a", Released: true}).
			window(5100, "n2#0", Window{SID: 3, Rev: 3, Term: 2, Base: 5100, Ceil: 20_000, Instance: "b"}), Danger{}},
		"a wrong clock":               {answer(skewed(), 1100, 1101, "n1#0"), Danger{WrongClock: 1}},
		"another's is wrong":          {answer(skewed().heldBy(1050, "n2#0", Holder{SID: 3, Rev: 3, Instance: "b"}), 1100, 1101, "n2#0"), Danger{}},
		"a clock that is right again": {answer(skewed().fault(2000, "clock-forward", Fault{Phase: FaultStop, ID: 1}), 2100, 2101, "n1#0"), Danger{}},
	} {
		d := NewDangers()
		for _, op := range tc.s.ops {
			d.Add(&op)
		}
		if got := d.Count(); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}

// heldBy is holder, of a process that is known.
func (s *scenario) heldBy(ms int64, run string, h Holder) *scenario {
	return s.op(ms, Op{Process: Etcd, Type: Info, F: FHolder, Node: run[:2], Run: run, Holder: &h})
}

// The record in memory counts the same dangers.
func TestDangerOfAHistory(t *testing.T) {
	const at = clock.Millis(flake.DefaultEpoch) + 1000
	grant := func(process string, base, ceil, now clock.Millis, n clock.Mono) Grant {
		return Grant{Process: process, SID: 3, Base: at + base, Ceil: at + ceil, True: at + now, At: n}
	}
	issue := func(process string, n clock.Mono, off time.Duration) Issue {
		return Issue{Process: process, First: flakeAt(0, 0, 3), Count: 1, Stride: 32, Begin: n, End: n + 1, Off: off}
	}
	a := grant("a", 0, 1000, 0, 1)
	for name, tc := range map[string]struct {
		grants []Grant
		issues []Issue
		want   Danger
	}{
		"one process":                  {[]Grant{a, grant("a", 0, 2000, 900, 5)}, []Issue{issue("a", 9, time.Second)}, Danger{}},
		"extended too late":            {[]Grant{a, grant("a", 0, 3000, 1500, 5)}, nil, Danger{Late: 1}},
		"extended from where it ended": {[]Grant{a, grant("a", 1000, 3000, 1500, 5)}, nil, Danger{Late: 1}},
		"read again":                   {[]Grant{a, grant("a", 0, 1000, 1500, 5)}, nil, Danger{}},
		"acquired again":               {[]Grant{a, grant("a", 1500, 3000, 1500, 5)}, nil, Danger{}},
		"another, meanwhile":           {[]Grant{a, grant("b", 1000, 2000, 500, 5)}, nil, Danger{Shared: 1}},
		"another, afterwards":          {[]Grant{a, grant("b", 1000, 2000, 1500, 5)}, nil, Danger{}},
		"another, after it was given":  {[]Grant{a, grant("b", 500, 2000, 500, 5)}, nil, Danger{}},
		"answers of before and after":  {[]Grant{a, grant("b", 1000, 2000, 1500, 5)}, []Issue{issue("a", 3, 0), issue("b", 7, 0)}, Danger{}},
		"the former holder, later":     {[]Grant{a, grant("b", 1000, 2000, 1500, 5)}, []Issue{issue("a", 7, 0)}, Danger{Zombies: 1}},
		"a clock that is two s behind": {[]Grant{a}, []Issue{issue("a", 3, -2*time.Second)}, Danger{WrongClock: 1}},
	} {
		h := History{Format: flake.Default, Grants: tc.grants, Issues: tc.issues}
		if got := h.Danger(time.Second); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
	sum := Danger{Zombies: 1, Late: 2, Shared: 3, WrongClock: 4}
	sum.Add(sum)
	if sum != (Danger{2, 4, 6, 8}) || !strings.Contains(sum.String(), "had ended: 2;") || len(sum.Rows()) != 4 {
		t.Errorf("got %+v: %v", sum, sum)
	}
}
