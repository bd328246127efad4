package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
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

func pageOf(t *testing.T, res *Results) string {
	t.Helper()
	dir := t.TempDir()
	fatal.If(t, res.report(dir))
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	fatal.If(t, err)
	return string(page)
}

// TestReport: the page shows the verdict, each fault, each check with its violations, and the dangers.
func TestReport(t *testing.T) {
	res := runOf(history.Broken, faultOf("kill", "pass", true, false), faultOf("vm-pause", "fail", true), faultOf("suspend", notRun))
	res.Profile, res.Why, res.Broken, res.Danger = "smoke", []string{"unique: it broke"}, []string{"a client saw it"}, history.Danger{Zombies: 1234}
	res.Checks = append(res.Checks, history.Result{Check: "unique", Claim: "I1", Verdict: history.Broken, Count: 1500,
		Violations: []history.Violation{{Claim: "I1", Detail: "one ID twice", At: 30_001_000_001}}})
	page := pageOf(t, res)
	for _, want := range []string{
		"<title>fail: chaos smoke</title>", "2026-01-02 03:04:00 UTC, for 1m1s", "12,345,678", "commit abc, go9", "<li>unique: it broke</li>", "a client saw it",
		`<td>I1</td><td>unique</td><td class="n">30001000001</td><td>one ID twice</td>`, "1,500 violations",
		`<b>kill</b>`, `<td class="v pass">✓ pass</td><td class="n">1 of 2</td><td class="n">7,000</td><td class="n"></td><td class="n">1.2 s</td>`,
		`<td class="v fail">✗ fail</td><td class="n">1 of 1</td><td class="n">0</td><td class="n">2.5 s</td>`,
		"why | not run: suspend", `a process answered after its lease had ended</td><td class="n">1,234</td>`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in\n%s", want, page)
		}
	}
}

// TestReportOfHostileStrings: a name from a node's records stays text, and the page loads nothing.
func TestReportOfHostileStrings(t *testing.T) {
	for _, bad := range []string{`</title><script>alert(1)</script>`, `" onload="alert(1)`, `</style><img src=https://example.org/x>`, `{{.Replay}}`, "<!--", "]]>"} {
		res := runOf(history.Verdict(bad), faultOf(bad, bad, true))
		res.Profile, res.Why, res.Broken, res.Command, res.Replay, res.Level = bad, []string{bad}, []string{bad}, bad, bad, bad
		res.Setup.Versions, res.Setup.Layout = []string{bad}, bad
		f := &res.Faults[0]
		f.Expected, f.Must, f.Claims, f.Injections[0].Targets = bad, bad, map[string]string{bad: bad}, []string{bad}
		res.Checks = []history.Result{{Check: bad, Claim: bad, Verdict: history.Verdict(bad), Reason: bad,
			Violations: []history.Violation{{Claim: bad, Detail: bad}}, Measurements: []history.Measurement{{Name: bad, Unit: bad}},
			Phases: []history.FaultPhases{{Fault: bad, Targets: []string{bad}}}}}
		d := xml.NewDecoder(strings.NewReader(pageOf(t, res)))
		d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%q: the page is not well-formed: %v", bad, err)
			}
			e, ok := token.(xml.StartElement)
			if ok && (e.Name.Local == "script" || e.Name.Local == "img") {
				t.Errorf("%q: an element <%s>", bad, e.Name.Local)
			}
			for _, a := range e.Attr {
				if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "src" || a.Name.Local == "href" {
					t.Errorf("%q: <%s> has %s", bad, e.Name.Local, a.Name.Local)
				}
			}
		}
	}
}
