package console

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// What a page of 1,024 sids may cost.
const (
	maxTask   = 100     // ms of processor time that a task of the page's thread takes, beside other work; 50 alone
	maxGrowth = 5 << 20 // bytes of its heap, in the 600 snapshots of ten minutes
)

// TestManySIDs: a page of 1,024 sids is light. It gets the snapshots of a minute as fast as
// it takes them, and with -long those of ten minutes in ten minutes.
func TestManySIDs(t *testing.T) {
	s := serve(t, size(1024))
	p := open(t, s.URL, "pool")
	p.until("!document.querySelector('#sidgrid').hidden")
	p.run(click("#sidgrid summary"))
	eval[bool](p, "probe.lean = true")
	sent := 0
	update := func() {
		t.Helper()
		sent++
		s.mu.Lock()
		// The server reads those before.
		s.snapshot.SIDs, s.snapshot.Nodes = slices.Clone(s.snapshot.SIDs), slices.Clone(s.snapshot.Nodes)
		for i := range s.snapshot.SIDs {
			s.snapshot.SIDs[i].Ceil += 1000
			report := *s.snapshot.Nodes[i].Report
			report.Rate = int64(1000 + (sent*31+i)%977)
			s.snapshot.Nodes[i].Report = &report
		}
		s.mu.Unlock()
		s.send(t)
	}
	taken := func(n int) { p.until(fmt.Sprintf("probe.snapshots >= %d", n)) }
	p.until("document.querySelector('#live').textContent === 'live'")
	for i := range 30 { // what is compiled and cached once is there
		update()
		taken(i + 1)
	}
	shown := p.read()
	if len(shown.Tables["sids"]) != 128 || shown.Tiles["sids held"] != "1024 of 1024" || eval[int](p, "document.querySelectorAll('#grid .cell[data-state=held]').length") != 1024 {
		t.Fatalf("%d rows, %v", len(shown.Tables["sids"]), shown.Tiles)
	}
	p.shot("pool-1024")

	tasks := p.tasks(func() {
		for range 10 {
			update()
			taken(sent)
			time.Sleep(600 * time.Millisecond) // two ticks, and their frames
		}
	})
	if len(tasks) < 20 {
		t.Fatalf("the browser traced %d tasks", len(tasks))
	}
	slices.Sort(tasks)
	t.Logf("of %d tasks during 10 updates the longest took %.1f ms", len(tasks), tasks[len(tasks)-5:])
	if longest := tasks[len(tasks)-1]; longest > maxTask {
		t.Errorf("a task took %.1f ms, want at most %d ms", longest, maxTask)
	}

	before := p.heap()
	limit, snapshots := float64(maxGrowth)/5, 60 // a fifth, for a tenth: what the engine itself keeps varies
	if *long {
		limit, snapshots = maxGrowth, 600
	}
	for range snapshots {
		update()
		if *long {
			time.Sleep(time.Second)
		}
		taken(sent)
	}
	growth := p.heap() - before
	t.Logf("the heap has %.2f MB, and grew by %.2f MB in %d snapshots", before/(1<<20), growth/(1<<20), snapshots)
	if growth > limit {
		t.Errorf("the heap grew by %.0f bytes, want at most %.0f", growth, limit)
	}
}

// tasks returns the processor time of each task of the page's thread while f runs, in ms.
func (p *page) tasks(f func()) (took []float64) {
	p.t.Helper()
	ended := make(chan string, 1)
	on(p, "Tracing.tracingComplete", func(e struct{ Stream string }) { ended <- e.Stream })
	p.call("Tracing.start", map[string]any{"transferMode": "ReturnAsStream", "traceConfig": map[string]any{
		"includedCategories": []string{"disabled-by-default-devtools.timeline", "toplevel", "__metadata"}}}, nil)
	f()
	p.call("Tracing.end", nil, nil)
	var text strings.Builder
	select {
	case stream := <-ended:
		for eof := false; !eof; {
			var part struct {
				Data string `json:"data"`
				EOF  bool   `json:"eof"`
			}
			p.call("IO.read", map[string]any{"handle": stream}, &part)
			text.WriteString(part.Data)
			eof = part.EOF || p.t.Failed()
		}
	case <-time.After(patience):
		p.t.Fatal("the browser does not end its trace")
	}
	type thread struct{ PID, TID int }
	trace := decode[struct {
		TraceEvents []struct {
			thread
			Name string
			Took float64 `json:"tdur"` // µs
			Args struct{ Name any }
		}
	}](p.t, text.String())
	pages := map[thread]bool{}
	for _, e := range trace.TraceEvents {
		if e.Name == "thread_name" && e.Args.Name == "CrRendererMain" {
			pages[e.thread] = true
		}
	}
	for _, e := range trace.TraceEvents {
		if pages[e.thread] && strings.HasSuffix(e.Name, "RunTask") && e.Took > 0 {
			took = append(took, e.Took/1e3)
		}
	}
	return took
}

// heap returns how many bytes of the page's heap are in use.
func (p *page) heap() float64 {
	p.t.Helper()
	for range 2 { // what finalizers hold goes with the second
		p.call("HeapProfiler.collectGarbage", nil, nil)
	}
	var usage struct {
		UsedSize float64 `json:"usedSize"`
	}
	p.call("Runtime.getHeapUsage", nil, &usage)
	return usage.UsedSize
}
