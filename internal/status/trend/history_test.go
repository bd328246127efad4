package trend

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status"
)

const start clock.Millis = 1_795_000_000_000

// at returns the time of the i-th sample.
func at(i int) clock.Millis { return start + clock.Millis(i)*clock.MillisOf(Every) }

// serving returns a node that reports a rate.
func serving(name string, rate int64, work status.Work) status.Node {
	return status.Node{Instance: "i-" + name, Name: name, State: status.Serving, Report: &status.Report{Rate: rate, Work: work}}
}

func values(list []*int64) (out []int64) {
	for _, v := range list {
		if v == nil {
			out = append(out, -1)
		} else {
			out = append(out, *v)
		}
	}
	return out
}

// TestCourse: the cluster is the sum of what nodes report, and a latency that of the slowest.
func TestCourse(t *testing.T) {
	var h History
	if c := h.Course(time.Hour); len(c.Times) != 0 || c.Nodes == nil {
		t.Errorf("an empty history: %+v", c)
	}
	refused := map[string]int64{"CLOCK_SKEW": 10}
	h.Add(at(0), status.Cluster{Nodes: []status.Node{
		serving("a", 100, status.Work{P50: 20, P99: 90, Write: 700}),
		serving("b", 50, status.Work{P50: 30, P99: 80, Refused: refused}),
		{Instance: "i-c", Name: "c", State: status.Silent},
	}})
	h.Add(at(1), status.Cluster{Nodes: []status.Node{serving("a", 101, status.Work{})}})
	c := h.Course(15 * time.Minute)
	if !slices.Equal(c.Times, []int64{int64(at(0)), int64(at(1))}) || !slices.Equal(values(c.Rate), []int64{150, 101}) {
		t.Errorf("%v: %v", c.Times, values(c.Rate))
	}
	if len(c.Refused) != 1 || !slices.Equal(c.Refused["CLOCK_SKEW"], []float64{2, 0}) {
		t.Errorf("refused in a second %v", c.Refused)
	}
	if *c.P50[0] != 30 || *c.P99[0] != 90 || *c.Write[0] != 700 || c.P50[1] != nil || c.Write[1] != nil {
		t.Errorf("latencies %v %v %v", c.P50, c.P99, c.Write)
	}
	for i, want := range []struct {
		name string
		rate int64
	}{{"a", 100}, {"b", 50}, {"c", -1}} {
		if l := c.Nodes[i]; l.Name != want.name || !slices.Equal(values(l.Rate), []int64{want.rate}) {
			t.Errorf("line %d: %s %v, want %+v", i, l.Name, values(l.Rate), want)
		}
	}
}

// TestRateOfAll: the cluster's rate is not known before a node is, nor while one that answers has not reported. One that is
// silent issues nothing that anybody knows of.
func TestRateOfAll(t *testing.T) {
	var h History
	answers := func(fresh bool) status.Node {
		return status.Node{Instance: "i-b", Name: "b", Clock: &status.PeerClock{Fresh: fresh}}
	}
	a := serving("a", 100, status.Work{})
	for i, nodes := range [][]status.Node{{}, {a, answers(true)}, {a, serving("b", 50, status.Work{})}, {a, answers(true)}, {a, answers(false)}, {a}} {
		h.Add(at(i), status.Cluster{Nodes: nodes})
	}
	if got := values(h.Course(time.Hour).Rate); !slices.Equal(got, []int64{-1, -1, 150, -1, 100, 100}) {
		t.Errorf("%v", got)
	}
}

// TestHourIsKept: of any number of samples the last hour is kept, and of a node 15 minutes.
func TestHourIsKept(t *testing.T) {
	var h History
	const all = 3*samples + 17
	for i := range all {
		h.Add(at(i), status.Cluster{Nodes: []status.Node{serving("a", int64(i), status.Work{})}})
	}
	for span, want := range map[time.Duration]int{time.Hour: 720, 15 * time.Minute: 180} {
		c := h.Course(span)
		if len(c.Times) != want || len(c.Rate) != want || len(c.P50) != want {
			t.Fatalf("%v has %d samples, want %d", span, len(c.Times), want)
		}
		for i := range c.Times {
			if n := all - want + i; c.Times[i] != int64(at(n)) || *c.Rate[i] != int64(n) {
				t.Fatalf("%v, sample %d: %d at %d, want %d at %d", span, i, *c.Rate[i], c.Times[i], n, at(n))
			}
		}
	}
	line := values(h.Course(time.Hour).Nodes[0].Rate)
	if len(line) != 60 || line[59] != int64(all-2) || line[0] != int64(all-179) { // the means of three
		t.Errorf("%d values: %v", len(line), line)
	}
	h.Add(at(all), status.Cluster{})
	if got := values(h.Course(time.Hour).Nodes[0].Rate); got[58] == -1 {
		t.Errorf("a node that left has no line: %v", got)
	}
	for i := range lineSamples {
		h.Add(at(all+1+i), status.Cluster{})
	}
	if c := h.Course(time.Hour); len(c.Nodes) != 0 {
		t.Errorf("a node that left 15 minutes ago is kept: %v", values(c.Nodes[0].Rate))
	}
}

// TestClocks: the clock of a node is from the cluster's time, of 15 minutes, with a gap while it does not answer or is away.
func TestClocks(t *testing.T) {
	var h History
	cluster := func(fresh, known bool, names ...string) status.Cluster {
		c := status.Cluster{Self: status.Self{Now: 1000, Ceil: 8000, Clock: &status.Clock{Known: known, Offset: 2000}}}
		for i, name := range names {
			n := serving(name, 1, status.Work{})
			n.Clock = &status.PeerClock{Self: i == 0, Fresh: i == 0 || fresh, Offset: int64(i) * 2500}
			c.Nodes = append(c.Nodes, n)
		}
		return c
	}
	for i := range 200 {
		h.Add(at(i), cluster(true, true, "a", "b"))
	}
	h.Add(at(200), cluster(false, true, "a", "b"))
	h.Add(at(201), cluster(true, false, "a", "c"))
	times, clocks := h.Clocks()
	if len(times) != lineSamples || times[0] != int64(at(22)) || len(clocks) != 3 {
		t.Fatalf("%d times, %d clocks", len(times), len(clocks))
	}
	for i, want := range [][]float64{{-2, -2, -2, 0}, {0.5, 0.5, 0, 0}, {0, 0, 0, 0.5}} {
		for j, v := range clocks[i].Offsets[lineSamples-4:] {
			if v == nil && want[j] != 0 || v != nil && *v != want[j] {
				t.Errorf("%s, value %d: %v, want %v", clocks[i].Name, j, v, want[j])
			}
		}
	}
	if c := h.Course(time.Hour); *c.Left[0] != 7000 {
		t.Errorf("%d ms of the window were left", *c.Left[0])
	}
}

// TestBounded: whatever nodes report and however they are called, a history takes no more than
// maxBytes, which is less than 4 MB.
func TestBounded(t *testing.T) {
	const (
		sampleBytes  = 8 + 8 + 4*node.NumReasons + 4*4 + 8 // Fields of sample, with padding.
		lineBytes    = 512                                 // The fields of line, and its place in a map.
		stretchBytes = 128                                 // A Stretch, and its places in a list that grows.
		maxBytes     = samples*sampleBytes + MaxNodes*(lineSamples*4+2*maxName+lineBytes) + maxClocks*lineSamples*4 +
			maxStretches*(2*maxName+stretchBytes)
	)
	if maxBytes > 4<<20 {
		t.Fatalf("maxBytes is %d", maxBytes)
	}
	if int(unsafe.Sizeof(sample{})) > sampleBytes || int(unsafe.Sizeof(line{})) > lineSamples*4+lineBytes/2 ||
		int(unsafe.Sizeof(Stretch{})+2*unsafe.Sizeof(&Stretch{})) > stretchBytes {
		t.Errorf("a sample takes %d bytes, a line %d, a stretch %d",
			unsafe.Sizeof(sample{}), unsafe.Sizeof(line{}), unsafe.Sizeof(Stretch{}))
	}
	nodes := make([]status.Node, 0, 2*MaxNodes)
	many := map[string]int64{}
	for _, r := range node.Reasons {
		many[r.String()] = 1 << 40
	}
	for i := range 2 * MaxNodes {
		n := serving(strings.Repeat("x", 4*maxName), 1<<50, status.Work{Refused: many, P50: 1 << 50, P99: -1})
		n.Instance = fmt.Sprintf("%0*d", maxName, i)
		n.Clock = &status.PeerClock{Fresh: true, Offset: int64(i)}
		if i%512 > 0 {
			n.Report.Work.Refused = nil
		}
		nodes = append(nodes, n)
	}
	h := new(History)
	before := heap()
	for i := range samples + 20 {
		for n := range nodes {
			nodes[n].SID = i % 2 // Each begins another stretch.
		}
		h.Add(at(i), status.Cluster{Self: status.Self{Clock: new(status.Clock)}, Nodes: nodes[i%3 : MaxNodes+i%3+1]})
	}
	took := heap() - before
	t.Logf("%d bytes of at most %d", took, maxBytes)
	if took > int64(maxBytes) || len(h.nodes) != MaxNodes || h.clocks != maxClocks || len(h.stretches) != maxStretches {
		t.Errorf("it takes %d bytes, want at most %d; %d lines, %d stretches", took, maxBytes, len(h.nodes), len(h.stretches))
	}
	if c := h.Course(time.Hour); len(c.Nodes) != MaxNodes || *c.Rate[0] != (MaxNodes+1)<<50 {
		t.Errorf("%d nodes have a line; the rate of all is %d", len(c.Nodes), *c.Rate[0])
	}
	runtime.KeepAlive(nodes)
	runtime.KeepAlive(h)
}

// heap returns how many bytes of the heap are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
