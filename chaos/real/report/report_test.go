package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

const ms = clock.Mono(time.Millisecond)

// fixture makes a run: its directory, its history so far, and its results.
type fixture struct {
	t   *testing.T
	dir string
	ops []history.Op
	run map[string]any
}

func newFixture(t *testing.T, nodes int) *fixture {
	s := &fixture{t: t, dir: t.TempDir(), run: map[string]any{"profile": "smoke", "seed": 7, "began": "2026-11-20T19:31:14Z", "took_ms": 60_000, "replay": "bin/chaos run --schedule x/schedule.json"}}
	setup := &history.Setup{Layout: "scalable", EpochMs: flake.Default.Epoch, StartMs: flake.Default.Epoch + 1_000_000, MaxSkewMs: 250, MaxLeadMs: 250, WindowMs: 5000,
		Versions: []string{"commit 0123456789ab", "go1.26", "linux/amd64, 2 cores", "uid 0"}, NotRun: []string{"net-impairment: needs own networks, not possible here"}}
	for i := range nodes {
		setup.Nodes = append(setup.Nodes, fmt.Sprintf("n%d", i+1))
	}
	s.add(history.Op{Process: history.Harness, Type: history.Info, F: history.FSetup, Setup: setup})
	s.add(history.Op{Process: history.Etcd, Type: history.Info, F: history.FLeader, Node: "e1"})
	return s
}

func (s *fixture) add(op history.Op) { s.ops = append(s.ops, op) }

// call is answered after a millisecond with count IDs of a sid, from a
// millisecond and an entropy on.
func (s *fixture) call(at clock.Mono, client int, node string, sid flake.SID, entropy, count int64) {
	process := strconv.Itoa(client)
	s.add(history.Op{Time: at, Process: process, Type: history.Invoke, F: history.FAllocate, Node: node, Via: "grpc", Block: history.Block{Count: count}})
	first := flake.ID((1_000_000+int64(at/ms))<<20 | entropy<<5 | int64(sid))
	s.add(history.Op{Time: at + ms, Process: process, Type: history.OK, F: history.FAllocate, Node: node, Run: node + "#1", Via: "grpc", Block: history.Block{First: first, Count: count, Stride: 32}})
}

func (s *fixture) sample(at clock.Mono, node string, sid int64) {
	s.add(history.Op{Time: at, Process: history.Sampler, Type: history.Info, F: history.FSample, Node: node, Run: node + "#1",
		Sample: &history.Sample{State: "holding", SID: &sid, Term: 1, LeadMs: 4800, TTLMs: 2900, Verdict: "open"}})
}

func (s *fixture) fault(name string, id int64, class string, from, to clock.Mono, targets ...string) {
	at := func(t clock.Mono, f history.Fault) {
		f.ID, f.Class, f.Targets = id, class, targets
		s.add(history.Op{Time: t, Process: history.Nemesis, Type: history.Info, F: name, Fault: &f})
	}
	at(from, history.Fault{Phase: history.FaultStart, SettleMs: 1000})
	at(from+50*ms, history.Fault{Phase: history.FaultFired, Effect: "seen to work"})
	at(to, history.Fault{Phase: history.FaultStop, SettleMs: 1000})
}

// history returns the ops as a file has them.
func (s *fixture) history() []byte {
	slices.SortStableFunc(s.ops, func(a, b history.Op) int { return int(a.Time - b.Time) })
	var out bytes.Buffer
	w := history.NewWriter(&out, history.WriterConfig{})
	for _, op := range s.ops {
		if _, err := w.Write(op); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		s.t.Fatal(err)
	}
	return out.Bytes()
}

func (s *fixture) put(name string, data []byte) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), data, 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// judged lets the real checks look at the history, and writes both files.
func (s *fixture) judged() {
	text := s.history()
	checks, err := history.NewSuite(1<<20, nil).Check(bytes.NewReader(text), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.run["checks"] = checks
	verdict := history.Pass
	for _, c := range checks {
		verdict = history.Worst(verdict, c.Verdict)
	}
	s.run["verdict"] = verdict
	s.results()
	s.put("history.jsonl", text)
}

func (s *fixture) results() {
	data, err := json.Marshal(s.run)
	if err != nil {
		s.t.Fatal(err)
	}
	s.put("results.json", data)
}

// report writes the page and returns it.
func (s *fixture) report() string {
	s.t.Helper()
	if err := Write(s.dir); err != nil {
		s.t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(s.dir, Name))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(data)
}

// elements reads a page as a browser would and returns its elements, with their
// texts in the attribute "". Contents of scripts and styles are no markup.
func elements(t *testing.T, page string) (out []map[string]string) {
	t.Helper()
	for _, name := range []string{"style", "script"} {
		page = regexp.MustCompile(`(?s)(<`+name+`[^>]*>).*?</`+name+`>`).ReplaceAllString(page, "$1</"+name+">")
	}
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	var open []int
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("the page is not well-formed: %v", err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			e := map[string]string{"element": x.Name.Local}
			for _, a := range x.Attr {
				e[a.Name.Local] = a.Value
			}
			open, out = append(open, len(out)), append(out, e)
		case xml.EndElement:
			open = open[:max(len(open)-1, 0)]
		case xml.CharData:
			for _, i := range open {
				out[i][""] += string(x)
			}
		}
	}
}

// chartData returns the JSON that the script of the page draws.
func chartData(t *testing.T, page string) (c struct {
	X     []float64
	Bands []struct {
		Name, Class, Targets string
		From, To, Until      float64
	}
	Violation *float64
	Calls     map[string][]*float64
	Latency   map[string][]*float64
	Reasons   []struct {
		Name string
		Rate []*float64
	}
	Nodes []struct {
		Name                                          string
		IDs, Window, Lease, Offset, Uncertainty, Wall []*float64
	}
}) {
	t.Helper()
	_, rest, _ := strings.Cut(page, `<script type="application/json" id="data">`)
	text, _, _ := strings.Cut(rest, "</script>")
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatalf("the data of the charts: %v: %.200s", err, text)
	}
	return c
}

func texts(elements []map[string]string, element, class string) (out []string) {
	for _, e := range elements {
		if e["element"] == element && slices.Contains(strings.Fields(e["class"]), class) {
			out = append(out, e[""])
		}
	}
	return out
}

// busy is a calm minute of three nodes with a fault in it.
func busy(t *testing.T) *fixture {
	s := newFixture(t, 3)
	for at := clock.Mono(0); at < 60_000*ms; at += 200 * ms {
		for i := range 3 {
			node := fmt.Sprintf("n%d", i+1)
			s.call(at+clock.Mono(i)*ms, i, node, flake.SID(i), 1, 10)
			s.sample(at+2*ms, node, int64(i))
		}
	}
	s.fault("kill", 1, "process", 20_000*ms, 25_000*ms, "n2")
	s.run["faults"] = []any{
		map[string]any{"fault": "kill", "class": "process", "verdict": "pass", "expected": "others serve", "claims": map[string]string{"unique": "pass"},
			"injections": []any{map[string]any{"id": 1, "fault": "kill", "targets": []string{"n2"}, "fired": true, "effect": "it ended", "start_ms": 20000, "stop_ms": 25000}}},
		map[string]any{"fault": "net-impairment", "class": "network", "verdict": "not run", "reason": "needs own networks, not possible here"},
		map[string]any{"fault": "byzantine-peer", "class": "cluster", "verdict": "unknown", "reason": "no effect was read back"},
	}
	return s
}

func TestPlantedViolation(t *testing.T) {
	s := busy(t)
	s.call(30_000*ms+40*ms, 7, "n3", 1, 5, 1) // an ID of n2's block of 30.001 s
	last := &s.ops[len(s.ops)-1]
	last.Block.First = flake.ID((1_000_000+30_001)<<20 | 5<<5 | 1)
	s.judged()
	page := s.report()
	all := elements(t, page)
	if got := texts(all, "div", "badge"); len(got) != 1 || !strings.Contains(got[0], "fail") {
		t.Errorf("badge %q", got)
	}
	if !strings.Contains(page, `id="violation"`) || len(texts(all, "div", "timeline")) != 2 {
		t.Fatal("there is no close-up of the violation")
	}
	if data := chartData(t, page); data.Violation == nil || *data.Violation < 30 || *data.Violation > 30.1 {
		t.Errorf("the charts show the violation at %v; the duplicate came at 30.041 s", data.Violation)
	}
	named, here := 0, 0
	for _, e := range all {
		class := strings.Fields(e["class"])
		if e["element"] == "tr" && slices.Contains(class, "named") && slices.Contains(class, "ok") {
			named++ // the run that answered stands in the text of the violation
		}
		if e["element"] == "tr" && slices.Contains(class, "here") {
			here++
		}
	}
	if named == 0 || here != 1 {
		t.Errorf("%d answers are marked as the violation's, and its moment %d times", named, here)
	}
	if !strings.Contains(page, "client 7") {
		t.Error("the call that got the duplicate is not in the table")
	}
	answers := 0
	for _, e := range all {
		if e["element"] == "i" && e["class"] == "answered" && strings.Contains(e["title"], "client") {
			answers++
		}
	}
	if answers < 3 {
		t.Errorf("%d calls are drawn around the violation", answers)
	}
}

func TestWholeRun(t *testing.T) {
	s := busy(t)
	s.run["danger"] = history.Danger{Zombies: 1234}
	s.judged()
	page := s.report()
	all := elements(t, page)
	if strings.Contains(page, `id="violation"`) || len(texts(all, "div", "timeline")) != 1 {
		t.Error("a violation is shown where there is none")
	}
	lanes := texts(all, "div", "lane")
	for i, want := range []string{"faults", "etcd leader", "n1", "n2", "n3"} {
		if i >= len(lanes) || !strings.HasPrefix(lanes[i], want) {
			t.Errorf("no lane %q among %q", want, lanes)
		}
	}
	if got := texts(all, "i", "fault"); !slices.Contains(got, "kill n2") {
		t.Errorf("labels of faults: %q", got)
	}
	if got := texts(all, "i", "hit"); len(got) != 2 { // one of the legend
		t.Errorf("%d marks of a target, want one", len(got)-1)
	}
	data := chartData(t, page)
	if len(data.Bands) != 1 || data.Bands[0].Name != "kill" || data.Bands[0].From != 20 || data.Bands[0].To != 25 || data.Bands[0].Until != 26 {
		t.Errorf("bands %+v", data.Bands)
	}
	if len(data.Nodes) != 3 || len(data.X) != len(data.Nodes[0].IDs) || *data.Nodes[2].Window[5] != 4.8 || *data.Nodes[2].Lease[5] != 2.9 {
		t.Errorf("nodes %+v", data.Nodes)
	}
	total := 0.0
	for _, n := range data.Nodes {
		for _, rate := range n.IDs {
			total += *rate * 60 / float64(len(data.X))
		}
	}
	if math.Abs(total-9000) > 90 {
		t.Errorf("the charts show %v IDs, 9000 were issued", total)
	}
	verdicts := slices.Concat(texts(all, "b", "pass"), texts(all, "b", "unknown"), texts(all, "b", "notrun"))
	for _, want := range []string{"pass", "unknown", "not run"} {
		if !slices.ContainsFunc(verdicts, func(v string) bool { return strings.Contains(v, want) }) {
			t.Errorf("no verdict %q among %q", want, verdicts)
		}
	}
	for _, want := range []string{"0123456789ab", "--schedule x/schedule.json", "uid 0", "needs own networks, not possible here", "2026-11-20 19:31:14 UTC",
		"sid 2 term 1", "no ID is issued twice", "tests of the codecs show it",
		`a process answered after its lease had ended</td><td class="n">1` + "\u202f" + `234</td>`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	own := strings.ReplaceAll(page, embedded(t, "vendored/uPlot.iife.min.js"), "")
	for _, bad := range []string{"http://", "https://", "src=", "url(", "@import", "fetch(", "XMLHttp"} {
		if strings.Contains(own, bad) {
			t.Errorf("the page is not self-contained: %q", bad)
		}
	}
	if again := s.report(); again != page {
		t.Error("the same directory gave another page")
	}
}

func embedded(t *testing.T, name string) string {
	t.Helper()
	b, err := files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestVendored compares the library with what its page states.
func TestVendored(t *testing.T) {
	text, err := os.ReadFile("vendored/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"uPlot.iife.min.js", "uPlot.min.css"} {
		sum := fmt.Sprintf("`%s` | `%x`", name, sha256.Sum256([]byte(embedded(t, "vendored/"+name))))
		if !strings.Contains(string(text), sum) {
			t.Errorf("vendored/README.md does not state %s", sum)
		}
	}
}

// TestLabelsDoNotOverlap draws 20 faults within a minute.
func TestLabelsDoNotOverlap(t *testing.T) {
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 1))
		g := grid{0, 60_000 * ms, 1}
		var all []segment
		for range 20 {
			from := clock.Mono(random.Int64N(59_000)) * ms
			all = append(all, newSegment(g, from, from+clock.Mono(100+random.Int64N(9000))*ms, "fault", fmt.Sprintf("net-gossip-%d n3", random.IntN(1000)), ""))
		}
		packed, rows := pack(all)
		if len(packed) != 20 || rows > maxLaneRows {
			t.Errorf("seed %d: %d of 20 faults, in %d rows", seed, len(packed), rows)
		}
		reach := func(s segment) (from, to float64) {
			from, to = s.from, s.from+max(s.size, characters*float64(len(s.Text)))
			if strings.HasSuffix(s.Class, " flip") {
				from, to = s.from+s.size-characters*float64(len(s.Text)), s.from+s.size
			}
			return from, to
		}
		for i, a := range packed {
			from, to := reach(a)
			if from < 0 || to > 100 {
				t.Errorf("seed %d: a label reaches from %v to %v", seed, from, to)
			}
			for _, b := range packed[:i] {
				if start, end := reach(b); a.Row == b.Row && from < end && start < to {
					t.Errorf("seed %d: labels overlap: %+v and %+v", seed, a, b)
				}
			}
		}
	}
}

func TestPartialRuns(t *testing.T) {
	whole := busy(t).history()
	for name, c := range map[string]struct {
		results, history []byte
		want             string
	}{
		"killed before it was judged":    {nil, whole, "There is no results.json"},
		"killed in the middle of a line": {nil, whole[:len(whole)/2+7], "can be read up to line"},
		"nothing happened":               {[]byte(`{"verdict":"unknown","cut":true}`), nil, "There is no history.jsonl"},
		"an empty history":               {[]byte(`{"verdict":"unknown"}`), []byte{}, "history.jsonl is empty"},
		"only noise":                     {[]byte(`{"verdict":`), []byte("\x00\xff\n{}\n"), "results.json cannot be read"},
		"ended by Ctrl-C":                {[]byte(`{"verdict":"unknown","cut":true,"why":["the run was ended before its time"]}`), whole[:bytes.LastIndexByte(whole[:len(whole)/3], '\n')+1], "The run was interrupted"},
		"one op":                         {nil, whole[:bytes.IndexByte(whole, '\n')+1], "There is no results.json"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &fixture{t: t, dir: t.TempDir()}
			if c.results != nil {
				s.put("results.json", c.results)
			}
			if c.history != nil {
				s.put("history.jsonl", c.history)
			}
			page := s.report()
			all := elements(t, page)
			if !strings.Contains(page, c.want) {
				t.Errorf("the page does not say %q", c.want)
			}
			if got := texts(all, "div", "badge"); len(got) != 1 || strings.Contains(got[0], "pass") {
				t.Errorf("badge %q of a run that shows nothing", got)
			}
			for _, e := range all {
				if strings.Contains(e["style"], "NaN") || strings.Contains(e["style"], "Inf") {
					t.Errorf("style %q", e["style"])
				}
			}
		})
	}
	if err := Write(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty directory gave %v", err)
	}
}
