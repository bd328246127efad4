package report

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

var hostile = []string{
	`</script><script>alert(1)</script>`, `"><svg onload=alert(1)>`, `' onmouseover='alert(1)`, `</title></svg><img src=x onerror=alert(1)>`, `]]>`, `<!--`, `--!>`,
	`{{.Replay}}`, "\x00\x01\x1b[31m", "\u202eevil", "\ufeff", "javascript:alert(1)", `</style><style>*{display:none}`, "&lt;&amp;&#0;", "https://example.org/x.js",
	strings.Repeat("W", 12_000), strings.Repeat("漢", 4000), "\n\n\n", "",
}

// allowed are the elements of the page and their attributes.
var allowed = map[string]string{
	"html": "lang", "head": "", "meta": "charset http-equiv content name", "title": "", "style": "", "body": "", "header": "", "main": "", "div": "class id hidden style", "span": "class style",
	"h1": "", "h2": "", "h3": "", "p": "class id", "nav": "", "a": "href", "section": "id class", "dl": "", "dt": "", "dd": "", "code": "", "ul": "", "li": "", "b": "class", "br": "",
	"i": "class style title", "u": "style", "details": "open", "summary": "", "table": "class", "thead": "", "tbody": "", "tr": "class", "th": "class", "td": "class", "script": "type id",
}

// numeric is what style attributes may hold.
var numeric = regexp.MustCompile(`^((left|width|top|height):(-?[0-9.]+%|calc\([0-9]+ \* var\(--row\)\))(;|$))*$`)

// TestHostileStrings puts strings that try to leave their place into every field
// there is.
func TestHostileStrings(t *testing.T) {
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 2))
		str := func() string {
			s := hostile[random.IntN(len(hostile))]
			if random.IntN(3) == 0 {
				s += hostile[random.IntN(len(hostile))]
			}
			return s
		}
		list := func() (out []string) {
			for range random.IntN(4) {
				out = append(out, str())
			}
			return out
		}
		s := newFixture(t, 1)
		s.dir = t.TempDir()
		setup := s.ops[0].Setup
		setup.Nodes, setup.Faults, setup.NotRun, setup.Versions, setup.Profile = append(list(), "n1"), list(), list(), list(), str()
		for i := range int64(60) {
			at := clock.Mono(random.Int64N(2000)) * ms
			node := str()
			s.fault("f"+str(), i, str(), at, at+clock.Mono(random.Int64N(900))*ms, list()...)
			s.ops[len(s.ops)-2].Fault.Effect = str()
			s.ops[len(s.ops)-3].Fault.Unit = str()
			sid := random.Int64()
			s.add(history.Op{Time: at, Process: history.Sampler, Type: history.Info, F: history.FSample, Node: node, Run: str(),
				Sample: &history.Sample{State: str(), Reason: str(), SID: &sid, Instance: str(), Verdict: str(), OffsetMs: wild(random), ErrorMs: wild(random), SelfMs: wild(random), LeadMs: random.Int64(), TTLMs: -random.Int64()}})
			s.add(history.Op{Time: at, Process: "p" + str(), Type: history.Invoke, F: history.FAllocate, Node: node, Via: str(), Session: str()})
			s.call(at, int(i), node, 1, 0, 1)
			s.add(history.Op{Time: at, Process: history.Etcd, Type: history.Info, F: history.FLeader, Node: str()})
			s.add(history.Op{Time: at, Process: history.Etcd, Type: history.Info, F: history.FHolder, Holder: &history.Holder{SID: 1, Instance: str()}})
		}
		check := func(name string) map[string]any {
			return map[string]any{"check": name, "claim": str(), "verdict": "fail", "reason": str(), "count": random.Int64(),
				"violations":   []any{map[string]any{"claim": str(), "detail": str(), "at_ns": 1_000_000_000}},
				"measurements": []any{map[string]any{"name": str(), "value": wild(random), "unit": str()}},
				"phases":       []any{map[string]any{"fault": str(), "targets": list(), "start_ns": random.Int64() - random.Int64(), "stop_ns": random.Int64(), "during": map[string]any{"ok": random.Int64(), "seconds": wild(random)}}}}
		}
		s.run = map[string]any{"verdict": str(), "why": list(), "profile": str(), "command": str(), "level": str(), "seed": random.Uint64() >> 12, "replay": str(), "broken": list(),
			"faults": []any{map[string]any{"fault": str(), "class": str(), "expected": str(), "must": str(), "verdict": str(), "reason": str(), "claims": map[string]string{"c": str()},
				"injections": []any{map[string]any{"id": 1, "targets": list(), "effect": str(), "error": str(), "start_ms": random.Int64(), "stop_ms": random.Int64()}}},
				map[string]any{"fault": str(), "verdict": "not run", "reason": str()}},
			"checks": []any{check("c"), check(str())}}
		s.results()
		s.put("history.jsonl", s.history())
		page := s.report()
		if n := strings.Count(strings.ToLower(page), "<script"); n != 3 {
			t.Fatalf("seed %d: %d scripts", seed, n)
		}
		chartData(t, page)
		for _, e := range elements(t, page) {
			attributes, ok := allowed[e["element"]]
			if !ok {
				t.Fatalf("seed %d: an element <%s>", seed, e["element"])
			}
			for a := range e {
				if a != "" && a != "element" && !slices.Contains(strings.Fields(attributes), a) {
					t.Fatalf("seed %d: <%s> has %s=%q", seed, e["element"], a, e[a])
				}
			}
			if e["element"] == "a" && !strings.HasPrefix(e["href"], "#") {
				t.Fatalf("seed %d: a link to %q", seed, e["href"])
			}
			if !numeric.MatchString(e["style"]) {
				t.Fatalf("seed %d: <%s> has style %q", seed, e["element"], e["style"])
			}
		}
		if len(page) > 3<<20 {
			t.Fatalf("seed %d: %d bytes", seed, len(page))
		}
	}
}

// wild returns a number of any size that JSON can hold.
func wild(r *rand.Rand) float64 {
	v := math.Pow(10, r.Float64()*600-300)
	if r.IntN(2) == 0 {
		v = -v
	}
	return v
}

// TestSizeIsBounded is a run of eight hours with more of everything than is drawn.
func TestSizeIsBounded(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	s := newFixture(t, maxNodes+3)
	const hours = 8 * 3_600_000
	states := []string{"holding", "seeking", "down", "rewound"}
	var injections []any
	for i := range int64(3000) {
		at := clock.Mono(i*hours/3000) * ms
		s.fault("net-gossip-block", i, []string{"process", "clock", "etcd"}[random.IntN(3)], at, at+5000*ms, "n1", "n2")
		injections = append(injections, map[string]any{"id": i, "fault": "net-gossip-block", "fired": true, "targets": []string{"n1"}, "start_ms": i, "stop_ms": i + 5})
	}
	for i := range int64(40_000) {
		at := clock.Mono(i*hours/40_000) * ms
		node := fmt.Sprintf("n%d", 1+i%43)
		s.call(at, int(i%90), node, flake.SID(i%20), 1, 1+random.Int64N(1000))
		s.sample(at, node, random.Int64N(20))
		x := s.ops[len(s.ops)-1].Sample
		x.State, x.SelfMs, x.OffsetMs, x.LeadMs, x.TTLMs = states[random.IntN(4)], wild(random), random.NormFloat64()*1e3, random.Int64N(5000), random.Int64N(3000)
	}
	phases := make([]history.FaultPhases, 3000)
	s.run["faults"] = []any{map[string]any{"fault": "net-gossip-block", "verdict": "pass", "injections": injections}}
	s.run["checks"] = []history.Result{{Check: "availability", Claim: "availability", Verdict: history.Broken, Count: 1, Phases: phases,
		Violations: []history.Violation{{Claim: "availability", Detail: "n1", At: hours / 2 * ms}}}}
	s.results()
	s.put("history.jsonl", s.history())
	page := s.report()
	t.Logf("%d bytes", len(page))
	if len(page) > 3<<20 {
		t.Errorf("%d bytes", len(page))
	}
	for _, want := range []string{"Only 40 nodes are drawn", "Only the first 400 injections are drawn; 2600 are not", "2600 more are not shown", "3000 in all; the first 6 are listed"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}

// TestResultsOfTheHarness compares the fields that are read with those that the
// harness writes.
func TestResultsOfTheHarness(t *testing.T) {
	want := history.Result{Check: "unique", Claim: "I1", Verdict: history.Broken, Reason: "seen", Count: 3, Violations: []history.Violation{{Claim: "I1", Detail: "twice", At: 5}}}
	data, _ := json.Marshal(map[string]any{"checks": []history.Result{want}, "faults": []any{map[string]any{"fault": "kill", "injections": []any{map[string]any{"start_ms": 5, "stop_ms": 9}}}}})
	var r results
	if err := r.decode(data); err != nil {
		t.Fatal(err)
	}
	late := history.Violation{Claim: "no false refusal", Detail: "late", At: 1}
	r.Checks = append([]history.Result{{Check: "refusals", Verdict: history.Broken, Violations: []history.Violation{late}}}, r.Checks...)
	first := r.firstViolation()
	if first == nil || first.At != 5 || first.Detail != "twice" || first.Check != "unique" {
		t.Errorf("got %+v", first)
	}
	if s := r.Faults[0].Injections[0]; s.Start != 5 || s.Stop != 9 {
		t.Errorf("got %+v", s)
	}
}
