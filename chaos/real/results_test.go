package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/nemesis"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/internal/audit/spool"
	"github.com/flakelease/allocator/internal/clock"
)

// A fault passes only if it had an effect and no check failed while it lasted.
func TestFaultVerdicts(t *testing.T) {
	good := nemesis.Outcome{Fired: true, Start: 1000, Stop: 2000, Over: 3000}
	at := func(ms int64) []history.Result {
		return []history.Result{{Check: "refusals", Verdict: history.Broken, Count: 1, Violations: []history.Violation{{At: clock.Mono(ms * 1e6), Detail: "a call failed"}}}}
	}
	thin := func(ms int64) []history.Result {
		return []history.Result{{Check: "suspicion", Verdict: history.Unknown, Count: 1, Violations: []history.Violation{{At: clock.Mono(ms * 1e6), Detail: "0 answers before it"}}}}
	}
	passed := []history.Result{{Check: "refusals", Verdict: history.Pass}}
	with := func(change func(*nemesis.Outcome)) nemesis.Outcome {
		o := good
		change(&o)
		return o
	}
	for _, tc := range []struct {
		name   string
		o      nemesis.Outcome
		checks []history.Result
		delays []Delay
		want   string
	}{
		{"everything passed", good, passed, nil, "pass"},
		{"a violation in its time", good, at(2500), nil, "fail"},
		{"a violation before it", good, at(999), nil, "pass"},
		{"a violation after it", good, at(3001), nil, "pass"},
		{"a violation at no time", good, at(0), nil, "unknown"},
		{"no effect", with(func(o *nemesis.Outcome) { o.Fired = false }), passed, nil, "unknown"},
		{"not healed", with(func(o *nemesis.Outcome) { o.Error = "end: no" }), passed, nil, "unknown"},
		{"the product did what it must not", with(func(o *nemesis.Outcome) { o.Error, o.Broken = "it is ready", true }), passed, nil, "fail"},
		{"interrupted", with(func(o *nemesis.Outcome) { o.Cut = true }), passed, nil, "unknown"},
		{"not started", nemesis.Outcome{Error: "nothing to hit"}, passed, nil, "unknown"},
		{"no effect and a violation", with(func(o *nemesis.Outcome) { o.Fired = false }), at(1500), nil, "fail"},
		{"an unknown check", good, []history.Result{{Check: "unique", Verdict: history.Unknown}}, nil, "unknown"},
		{"no refusal, and none is required", good, []history.Result{{Check: "deadlines", Verdict: history.Unknown}}, nil, "pass"},
		{"no refusal, and one is required", with(func(o *nemesis.Outcome) { o.Amount = 1 }), []history.Result{{Check: "deadlines", Verdict: history.Unknown}}, nil, "unknown"},
		{"too few calls before it", good, thin(1000), nil, "unknown"},
		{"too few calls before another fault", good, thin(5000), nil, "pass"},
		{"a violation while the machine was overloaded", good, at(1500), []Delay{{1000, 1400, 0}}, "unknown"},
		{"a violation long after that", good, at(2800), []Delay{{0, 2799 - delayEffect, 0}}, "fail"},
		{"a violation before that", good, at(1500), []Delay{{1501, 1800, 0}}, "fail"},
		{"an ID below the watermark while the machine was overloaded", good, []history.Result{{Check: "final", Verdict: history.Broken, Violations: []history.Violation{{At: 1500e6}}}}, []Delay{{1000, 1400, 0}}, "fail"},
		{"a duplicate while the machine was overloaded", good, []history.Result{{Check: "unique", Verdict: history.Broken, Violations: []history.Violation{{At: 1500e6}}}}, []Delay{{1000, 1400, 0}}, "fail"},
	} {
		f := FaultResult{Fault: "kill", Injections: []nemesis.Outcome{tc.o}}
		if tc.o.Amount != 0 {
			f.Must = "CLOCK_SKEW"
		}
		f.judge(tc.checks, tc.delays)
		if f.Verdict != tc.want {
			t.Errorf("%s: %s (%s), want %s", tc.name, f.Verdict, f.Reason, tc.want)
		}
	}
}

// A run passes only if every check and every injected fault does; what was not run
// never counts as a pass.
func TestRunVerdicts(t *testing.T) {
	pass := history.Result{Check: "unique", Verdict: history.Pass}
	broken := func(check string, ms ...int64) history.Result {
		r := history.Result{Check: check, Verdict: history.Broken, Count: int64(len(ms))}
		for _, at := range ms {
			r.Violations = append(r.Violations, history.Violation{At: clock.Mono(at * 1e6)})
		}
		return r
	}
	late, unlisted := broken("final", 1500), broken("refusals", 1500)
	late.Violations[0].Timed, unlisted.Count = true, 2
	injected := FaultResult{Fault: "kill", Verdict: "pass", Injections: []nemesis.Outcome{{}}}
	for _, tc := range []struct {
		name string
		res  Results
		want history.Verdict
	}{
		{"all pass", Results{Checks: []history.Result{pass}, Faults: []FaultResult{injected, {Verdict: notRun}}}, history.Pass},
		{"nothing was checked", Results{}, history.Unknown},
		{"a claim is broken", Results{Checks: []history.Result{pass, {Verdict: history.Broken}}}, history.Broken},
		{"a claim is unknown", Results{Checks: []history.Result{pass, {Verdict: history.Unknown}}}, history.Unknown},
		{"broken beats unknown", Results{Checks: []history.Result{{Verdict: history.Unknown}, {Verdict: history.Broken}}}, history.Broken},
		{"a client found a violation", Results{Checks: []history.Result{pass}, Broken: []string{"a gap"}}, history.Broken},
		{"a fault is unknown", Results{Checks: []history.Result{pass}, Faults: []FaultResult{{Verdict: "unknown"}}}, history.Unknown},
		{"a fault failed", Results{Checks: []history.Result{pass}, Faults: []FaultResult{{Verdict: "fail"}}}, history.Broken},
		{"it was interrupted", Results{Checks: []history.Result{pass}, Why: []string{"the run was interrupted"}}, history.Unknown},
		{"the machine was paused and a call was late", Results{Stalls: []string{"9s"}, Delays: []Delay{{1000, 10_000, 9000}}, Checks: []history.Result{broken("refusals", 1500)}}, history.Unknown},
		{"the same soon after", Results{Stalls: []string{"9s"}, Delays: []Delay{{1000, 10_000, 9000}}, Checks: []history.Result{broken("refusals", 32_000)}}, history.Unknown},
		{"another was late before", Results{Stalls: []string{"9s"}, Delays: []Delay{{1000, 10_000, 9000}}, Checks: []history.Result{broken("refusals", 500, 1500)}}, history.Broken},
		{"another was late long after", Results{Stalls: []string{"9s"}, Delays: []Delay{{1000, 10_000, 9000}}, Checks: []history.Result{broken("refusals", 1500, 32_001)}}, history.Broken},
		{"the machine was paused and an ID was issued twice", Results{Stalls: []string{"9s"}, Checks: []history.Result{{Check: "unique", Verdict: history.Broken}}}, history.Broken},
		{"the machine was paused and an ID was below the watermark", Results{Stalls: []string{"9s"}, Checks: []history.Result{broken("final", 1500)}}, history.Broken},
		{"the same, and a holder's end may have been seen late", Results{Stalls: []string{"9s"}, Delays: []Delay{{1000, 10_000, 9000}}, Checks: []history.Result{late}}, history.Unknown},
		{"the same while the machine was overloaded", Results{Delays: []Delay{{1000, 2000, 0}}, Checks: []history.Result{late}}, history.Unknown},
		{"the same long after", Results{Delays: []Delay{{10_000, 12_000, 0}}, Checks: []history.Result{late}}, history.Broken},
		{"more calls were late than are listed", Results{Delays: []Delay{{1000, 2000, 0}}, Checks: []history.Result{unlisted}}, history.Broken},
		{"the machine was paused and all passed", Results{Stalls: []string{"9s"}, Checks: []history.Result{pass}}, history.Unknown},
		{"a call was late while the machine was overloaded", Results{Delays: []Delay{{1000, 2000, 0}}, Checks: []history.Result{broken("refusals", 1500)}}, history.Unknown},
		{"another was late when it was not", Results{Delays: []Delay{{1000, 2000, 0}}, Checks: []history.Result{broken("refusals", 1500, 7000)}}, history.Broken},
		{"an ID was issued twice while the machine was overloaded", Results{Delays: []Delay{{1000, 2000, 0}}, Checks: []history.Result{broken("unique", 1500)}}, history.Broken},
		{"the machine was overloaded and all passed", Results{Delays: []Delay{{1000, 2000, 0}}, Checks: []history.Result{pass}}, history.Pass},
		{"no refusal was required", Results{Checks: []history.Result{pass, {Check: "deadlines", Verdict: history.Unknown}}, Faults: []FaultResult{injected}}, history.Pass},
		{"a refusal was required and not seen", Results{Checks: []history.Result{pass, {Check: "deadlines", Verdict: history.Unknown}},
			Faults: []FaultResult{{Verdict: "pass", Must: "CLOCK_SKEW", Injections: []nemesis.Outcome{{}}}}}, history.Unknown},
	} {
		tc.res.judge()
		if tc.res.Verdict != tc.want {
			t.Errorf("%s: %s (%v), want %s", tc.name, tc.res.Verdict, tc.res.Why, tc.want)
		}
	}
	unknown := func(check string) history.Result { return history.Result{Check: check, Verdict: history.Unknown} }
	for want, res := range map[string]Results{
		"final": {Checks: []history.Result{unknown("final"), pass, unknown("deadlines")}},
		"":      {Checks: []history.Result{unknown("suspicion"), unknown("deadlines"), pass}},
	} {
		if res.judge(); res.Undecided != want {
			t.Errorf("undecided is %q, want %q", res.Undecided, want)
		}
		for _, late := range []Results{{Stalls: []string{"9s"}, Checks: res.Checks}, {Delays: []Delay{{1, 2, 1}}, Checks: res.Checks}} {
			if late.judge(); late.Undecided != "" {
				t.Errorf("on a late machine undecided is %q", late.Undecided)
			}
		}
	}
}

// A fault that this machine does not support, or that does not fit, is not run, and its result states why.
func TestNotRun(t *testing.T) {
	needs := map[string]nemesis.Need{}
	for _, f := range nemesis.Table() {
		needs[f.Name] = f.Needs
	}
	for _, able := range []bool{false, true} {
		r := &runner{opts: &options{lasts: time.Minute}, rig: &rig.Rig{Config: rig.Config{Timing: rig.Brisk, Clocks: able, Embedded: "embedded"}}}
		for i := range 5 {
			r.rig.Nodes = append(r.rig.Nodes, &rig.Node{Process: &rig.Process{Name: fmt.Sprintf("n%d", i+1)}})
		}
		r.plan(1, nemesis.Table(), false, nil)
		injected := map[string]bool{}
		for _, a := range r.schedule.Actions {
			injected[a.Fault] = true
		}
		var outcomes []nemesis.Outcome
		for name := range injected {
			outcomes = append(outcomes, nemesis.Outcome{Action: nemesis.Action{Fault: name}, Fired: true, Start: 1, Stop: 2, Over: 3})
		}
		for _, f := range faultResults(outcomes, nil, r.notRun, nil, rig.Brisk) {
			impossible := needs[f.Fault] == nemesis.OwnNetworks || needs[f.Fault] == nemesis.ClockHook && !able
			switch {
			case impossible && (f.Verdict != notRun || !strings.Contains(f.Reason, "not supported on this machine")):
				t.Errorf("%s, which is impossible: %s (%s)", f.Fault, f.Verdict, f.Reason)
			case !impossible && injected[f.Fault] != (f.Verdict == "pass"):
				t.Errorf("%s, planned %v: %s (%s)", f.Fault, injected[f.Fault], f.Verdict, f.Reason)
			case !injected[f.Fault] && !impossible && !strings.Contains(f.Reason, "does not fit"):
				t.Errorf("%s was left out: %q", f.Fault, f.Reason)
			}
		}
		if len(injected) == 0 {
			t.Error("nothing is planned")
		}

		// The same of a schedule that came from another machine.
		old := nemesis.Schedule{Nodes: 5, Actions: []nemesis.Action{{Fault: "net-impairment"}, {Fault: "kill"}, {Fault: "suspend"}}}
		r.notRun = nil
		r.plan(1, nil, false, &old)
		left := 2
		if !able {
			left = 1
		}
		if len(r.schedule.Actions) != left || len(r.notRun) != 3-left || len(old.Actions) != 3 {
			t.Errorf("of an old schedule: %+v, not run %q", r.schedule.Actions, r.notRun)
		}
	}
}

func TestDelays(t *testing.T) {
	l := &delayMonitor{}
	ms := func(n int64) clock.Mono { return clock.Mono(n * 1e6) }
	last := ms(0)
	for _, at := range []int64{20, 260, 510, 760, 1100, 8000} { // 250 ms late at 510 and 760, and later more
		last = l.tick(last, ms(at))
	}
	if got := l.all(); len(got) != 1 || got[0] != (Delay{260, 8000, 6900}) {
		t.Errorf("late %+v", got)
	}
	l.list = nil
	for i := range int64(2 * maxDelays) {
		l.tick(ms(10_000*i), ms(10_000*i+300))
	}
	if got := l.all(); len(got) != maxDelays || got[maxDelays-1].ToMs != 10_000*(2*maxDelays-1)+300 {
		t.Errorf("%d kept, the last %+v", len(got), got[len(got)-1])
	}
}

func TestUsage(t *testing.T) {
	for _, args := range []string{"", "nothing", "run --nodes 2", "run --for 1s", "run --fault no-such --loopback", "run --seed x", "run --schedule /no/such --loopback",
		"run --schedule x --seed 1", "run again", "verify", "verify a b", "verify /no/such", "table", "table /no/such", "list it", "soak --fault no-such --loopback", "run --no-such"} {
		if got := run(strings.Fields(args)); got != exitUsage {
			t.Errorf("chaos %s: exit %d, want %d", args, got, exitUsage)
		}
	}
	if got := run([]string{"run", "--loopback", "--dir", "/proc/none"}); got != exitFail {
		t.Errorf("chaos run that cannot begin: exit %d", got)
	}
	if got := run([]string{"list"}); got != exitPass {
		t.Errorf("chaos list: exit %d", got)
	}
}

func TestChoose(t *testing.T) {
	table := nemesis.Table()
	got, err := choose(table, []string{"kill", "etcd", "kill"})
	fatal.If(t, err)
	var names []string
	for _, f := range got {
		names = append(names, f.Name)
	}
	if names[0] != "kill" || !slices.Contains(names, "etcd-leader-kill") || slices.Contains(names, "etcd-restored") || len(slices.Compact(names)) != len(got) {
		t.Errorf("chose %v", names)
	}
	if all, err := choose(table, []string{"all"}); err != nil || len(all) != len(table) {
		t.Errorf("all are %d of %d: %v", len(all), len(table), err)
	}
}

// A history that needs more room than the search for duplicates may use is an error.
func TestLimited(t *testing.T) {
	dir, err := spool.NewDir(t.TempDir(), nil)
	fatal.If(t, err)
	f, err := (&limited{dir, 10}).Create()
	fatal.If(t, err)
	defer f.Close()
	if n, err := f.Write(make([]byte, 10)); n != 10 || err != nil {
		t.Error(n, err)
	}
	if _, err := f.Write(make([]byte, 1)); err == nil {
		t.Error("a byte too many was written")
	}
}
