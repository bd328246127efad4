package main

import (
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/nemesis"
)

func runOf(verdict history.Verdict, faults ...FaultResult) *Results {
	return &Results{Verdict: verdict, Began: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC), TookMs: 61_000, Seed: 9, IDs: 12_345_678,
		Command: "bin/chaos run --dir /tmp/x --for 1m", Setup: &history.Setup{Versions: []string{"commit abc", "go9"}}, Faults: faults,
		Checks: []history.Result{{Check: "availability", Phases: []history.FaultPhases{{Fault: "kill", FirstMs: 1234, During: history.Served{IDs: 7000}}, {Fault: "kill", FirstMs: -1}}},
			{Check: "deadlines", Refused: []history.FirstRefusal{{Fault: "vm-pause", AfterMs: 2500}, {Fault: "vm-pause", AfterMs: 1500}}}}}
}

func faultOf(name, verdict string, fired ...bool) FaultResult {
	f := FaultResult{Fault: name, Verdict: verdict, Reason: "why | " + verdict}
	for _, b := range fired {
		f.Injections = append(f.Injections, nemesis.Outcome{Fired: b})
	}
	return f
}

// The table has every injected fault with the worst of its verdicts, and names the
// others.
func TestTableOfRuns(t *testing.T) {
	one := runOf(history.Pass, faultOf("kill", "pass", true, true), faultOf("vm-pause", notRun), faultOf("suspend", notRun))
	two := runOf(history.Unknown, faultOf("kill", "unknown", false), faultOf("vm-pause", "fail", true), faultOf("suspend", notRun))
	two.Why = []string{"this machine was paused"}
	got := table([]*Results{one, two})
	for _, want := range []string{
		"- 2026-01-02 03:04 UTC, **pass**: 12,345,678 IDs in 1m1s, seed 9; `bin/chaos run --for 1m`; commit abc, go9\n",
		"**unknown** (this machine was paused): ",
		"| 2/3 | 14,000 | unknown: why \\| unknown |  | 1.2 s |\n",
		"| 1/1 | 0 | unknown: why \\| fail | 2.5 s |  |\n", // an unknown run fails nothing
		"**Not run**, why \\| not run: `suspend`.\n",
		"**Not run**, added after these runs: `kill-ttl`,",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	one.Faults[2].Reason = notInProfile
	if got := table([]*Results{one}); !strings.Contains(got, "**Not run**: 1 other fault") || strings.Contains(got, "`suspend`") {
		t.Errorf("faults outside the profile are not counted:\n%s", got)
	}
	if strings.Contains(got, "| `suspend` |") {
		t.Error("a fault that was not run has a row")
	}
	if got := table([]*Results{one}); !strings.Contains(got, "| 2/2 | 7,000 | pass |") {
		t.Errorf("%s", got)
	}
	broken := table([]*Results{runOf(history.Broken, faultOf("kill", "fail", true)), one})
	if !strings.Contains(broken, "| 3/3 | 14,000 | fail: why \\| fail |") {
		t.Errorf("a pass replaces a failure:\n%s", broken)
	}
}
