package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
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

// story makes a run: its folder, its history so far, and its results.
type story struct {
	t   *testing.T
	dir string
	ops []history.Op
	run map[string]any
}

func newStory(t *testing.T, nodes int) *story {
	s := &story{t: t, dir: t.TempDir(), run: map[string]any{"profile": "smoke", "seed": 7, "began": "2026-11-20T19:31:14Z", "took_ms": 60_000, "replay": "bin/chaos run --schedule x/schedule.json"}}
	setup := &history.Setup{Layout: "scalable", EpochMs: flake.Default.Epoch, StartMs: flake.Default.Epoch + 1_000_000, MaxSkewMs: 250, MaxLeadMs: 250, WindowMs: 5000,
		Versions: []string{"commit 0123456789ab", "go1.26", "linux/amd64, 2 cores", "uid 0"}, NotRun: []string{"net-impairment: needs own networks, not possible here"}}
	for i := range nodes {
		setup.Nodes = append(setup.Nodes, fmt.Sprintf("n%d", i+1))
	}
	s.add(history.Op{Process: history.Harness, Type: history.Info, F: history.FSetup, Setup: setup})
	s.add(history.Op{Process: history.Etcd, Type: history.Info, F: history.FLeader, Node: "e1"})
	return s
}

func (s *story) add(op history.Op) { s.ops = append(s.ops, op) }

// call is answered after a millisecond with count IDs of a sid, from a
// millisecond and an entropy on.
func (s *story) call(at clock.Mono, client int, node string, sid flake.SID, entropy, count int64) {
	process := strconv.Itoa(client)
	s.add(history.Op{Time: at, Process: process, Type: history.Invoke, F: history.FAllocate, Node: node, Via: "grpc", Block: history.Block{Count: count}})
	first := flake.ID((1_000_000+int64(at/ms))<<20 | entropy<<5 | int64(sid))
	s.add(history.Op{Time: at + ms, Process: process, Type: history.OK, F: history.FAllocate, Node: node, Run: node + "#1", Via: "grpc", Block: history.Block{First: first, Count: count, Stride: 32}})
}

func (s *story) sample(at clock.Mono, node string, sid int64) {
	s.add(history.Op{Time: at, Process: history.Sampler, Type: history.Info, F: history.FSample, Node: node, Run: node + "#1",
		Sample: &history.Sample{State: "holding", SID: &sid, Term: 1, LeadMs: 4800, TTLMs: 2900, Verdict: "open"}})
}

func (s *story) fault(name string, id int64, class string, from, to clock.Mono, targets ...string) {
	at := func(t clock.Mono, f history.Fault) {
		f.ID, f.Class, f.Targets = id, class, targets
		s.add(history.Op{Time: t, Process: history.Nemesis, Type: history.Info, F: name, Fault: &f})
	}
	at(from, history.Fault{Phase: history.FaultStart, SettleMs: 1000})
	at(from+50*ms, history.Fault{Phase: history.FaultFired, Effect: "seen to work"})
	at(to, history.Fault{Phase: history.FaultStop, SettleMs: 1000})
}

// history returns the ops as a file has them.
func (s *story) history() []byte {
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

func (s *story) put(name string, data []byte) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), data, 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// judged lets the real checks look at the history, and writes both files.
func (s *story) judged() {
	text := s.history()
	checks, err := history.NewSuite(1<<20, nil).Check(bytes.NewReader(text))
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

func (s *story) results() {
	data, err := json.Marshal(s.run)
	if err != nil {
		s.t.Fatal(err)
	}
	s.put("results.json", data)
}

// report writes the page and returns it.
func (s *story) report() string {
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
// texts in the attribute "".
func elements(t *testing.T, page string) (out []map[string]string) {
	t.Helper()
	before, rest, _ := strings.Cut(page, "<script>") // what scripts hold is no markup
	_, after, _ := strings.Cut(rest, "</script>")
	_, style, _ := strings.Cut(before, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	d := xml.NewDecoder(strings.NewReader(strings.Replace(before, style, "", 1) + after))
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
			if len(open) > 0 {
				out[open[len(open)-1]][""] += string(x)
			}
		}
	}
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
func busy(t *testing.T) *story {
	s := newStory(t, 3)
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
	if !strings.Contains(page, `id="first"`) || strings.Count(page, "<svg") != 2 {
		t.Fatal("there is no picture of the violation")
	}
	at, err := strconv.ParseFloat(attribute(all, "svg", 0, "data-from"), 64)
	if err != nil || at < 29.5 || at > 30 {
		t.Errorf("the picture begins at %v s (%v); the duplicate came at 30.041 s", at, err)
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
	if texts(all, "path", "violation") == nil {
		t.Error("its moment is not in the picture")
	}
}

func attribute(all []map[string]string, element string, n int, name string) string {
	for _, e := range all {
		if e["element"] == element {
			if n == 0 {
				return e[name]
			}
			n--
		}
	}
	return ""
}

func TestWholeRun(t *testing.T) {
	s := busy(t)
	s.judged()
	page := s.report()
	all := elements(t, page)
	if strings.Contains(page, `id="first"`) || strings.Count(page, "<svg") != 1 {
		t.Error("a violation is shown where there is none")
	}
	for _, want := range []string{"n1", "n2", "n3", "etcd leader", "latency", "calls/s"} {
		if !slices.Contains(texts(all, "text", "name"), want) {
			t.Errorf("no lane %q among %q", want, texts(all, "text", "name"))
		}
	}
	if got := texts(all, "text", "label"); len(got) != 1 || !strings.HasPrefix(got[0], "kill n2") {
		t.Errorf("fault labels %q", got)
	}
	if len(texts(all, "rect", "band")) != 1 || len(texts(all, "rect", "hit")) != 1 {
		t.Error("one band through all lanes and one darker piece were to be drawn")
	}
	verdicts := texts(all, "span", "verdict")
	for _, want := range []string{"pass", "unknown", "not run"} {
		if !slices.ContainsFunc(verdicts, func(v string) bool { return strings.Contains(v, want) }) {
			t.Errorf("no verdict %q among %q", want, verdicts)
		}
	}
	for _, want := range []string{"0123456789ab", "--schedule x/schedule.json", "uid 0", "needs own networks, not possible here", "2026-11-20 19:31:14 UTC",
		"sid 2 term 1", "p99", "no ID is issued twice", "tests of the codecs show it"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for _, bad := range []string{"http://", "https://", "src=", "url(", "@import"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page is not self-contained: %q", bad)
		}
	}
	if again := s.report(); again != page {
		t.Error("the same folder gave another page")
	}
}

// TestLabelsStandApart packs 20 faults of a minute, on nine nodes.
func TestLabelsStandApart(t *testing.T) {
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 1))
		s := newStory(t, 9)
		s.dir = t.TempDir()
		for i := range int64(20) {
			from := clock.Mono(random.Int64N(55_000)) * ms
			s.fault(fmt.Sprintf("net-gossip-%d", random.IntN(1000)), i, classes[random.IntN(len(classes))], from, from+clock.Mono(100+random.Int64N(9000))*ms, fmt.Sprintf("n%d", 1+i%9))
		}
		s.sample(60_000*ms, "n1", 1)
		s.put("history.jsonl", s.history())
		all := elements(t, s.report())
		type box struct{ from, to, y float64 }
		var boxes []box
		for _, e := range all {
			if e["element"] == "text" && e["class"] == "label" {
				x, _ := strconv.ParseFloat(e["x"], 64)
				y, _ := strconv.ParseFloat(e["y"], 64)
				boxes = append(boxes, box{x, x + textWidth(e[""]), y})
			}
		}
		if len(boxes) != 20 {
			t.Errorf("seed %d: %d of 20 faults have a label", seed, len(boxes))
		}
		for i, a := range boxes {
			if a.from < left || a.to > right {
				t.Errorf("seed %d: a label reaches from %v to %v", seed, a.from, a.to)
			}
			for _, b := range boxes[:i] {
				if a.y-b.y < 12 && b.y-a.y < 12 && a.from < b.to && b.from < a.to {
					t.Errorf("seed %d: labels overlap: %v and %v", seed, a, b)
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
		"only noise":                     {[]byte(`{"verdict":`), []byte("\x00\xff\n{}\n"), "is not what the harness writes"},
		"ended by Ctrl-C":                {[]byte(`{"verdict":"unknown","cut":true,"why":["the run was ended before its time"]}`), whole[:bytes.LastIndexByte(whole[:len(whole)/3], '\n')+1], "ended before its time"},
		"one op":                         {nil, whole[:bytes.IndexByte(whole, '\n')+1], "There is no results.json"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &story{t: t, dir: t.TempDir()}
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
			if strings.Contains(page, "NaN") || strings.Contains(page, "Inf") {
				t.Error("a number on the page is none")
			}
		})
	}
	if err := Write(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty folder gave %v", err)
	}
}
