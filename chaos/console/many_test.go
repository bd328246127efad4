package console

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/feed"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server/console"
	"github.com/flakelease/allocator/internal/server/inspect"
)

// hostile is what somebody who can write to etcd may call a node.
const every = time.Second // between two snapshots, as a node sends them

const hostile = `<img src=x onerror=alert(1)><script>alert(2)</script>"'`

// wide returns a snapshot of a cluster of 1,024 nodes at a time.
func wide(now int64) inspect.Snapshot {
	s := inspect.Snapshot{At: now, Read: now - 500, Cluster: inspect.Cluster{
		Space: "wide", Layout: "fleet", PoolSize: 1024, PoolSIDs: "0-1023",
		Self: inspect.Self{Name: hostile, Instance: "i-0", Ready: true, SID: 0, Ceil: now + 30_000, Now: now, Clock: &inspect.Clock{State: "open", Known: true, Limit: 250_000}},
	}}
	for i := range 1024 {
		id, name := fmt.Sprint("i-", i), fmt.Sprintf("node-%d %s", i, hostile)
		s.Nodes = append(s.Nodes, inspect.Node{Instance: id, Name: name, SID: i, Clock: &inspect.PeerClock{Fresh: true, Verdict: "open", SID: i, Offset: rand.Int64N(2000) - 1000, Error: 300},
			Report: &inspect.Report{Rate: rand.Int64N(100_000)}})
		s.SIDs = append(s.SIDs, inspect.SID{SID: i, State: "held", Term: 1, Node: name, Instance: id, Base: now, Ceil: now + 5000 + rand.Int64N(25_000)})
	}
	return s
}

// TestManySIDs: with 1,024 sids an update takes 50 ms of the page's thread at most, memory
// does not grow, and hostile names are text.
func TestManySIDs(t *testing.T) {
	b := open(t)
	f := feed.New(feed.Config{Boot: "boot"})
	at := int64(1_795_000_000_000)
	c := console.New(console.Config{
		Snapshot: func(context.Context) inspect.Snapshot { return wide(at) },
		Node:     node.New(node.Config{Name: "n", Instance: "i-0"}, clock.NewManual(clock.Millis(at)), rand.NewPCG(1, 2)),
		Feed:     f, Format: flake.Default, Clocks: func() clock.Report { return clock.Report{} },
	})
	server := httptest.NewServer(c)
	defer server.Close()
	defer f.End()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		began := time.Now()
		for ctx.Err() == nil {
			f.SetSnapshot(feed.JSON(c.Complete(wide(at + time.Since(began).Milliseconds()))))
			time.Sleep(every)
		}
	}()
	b.do(chromedp.Navigate(server.URL + console.Path))
	b.until("all sids are shown", live+`&& document.querySelectorAll("#sids tbody tr[data-key]").length === 128 && document.querySelectorAll("#grid .cell").length === 1024`, 20*time.Second)
	if eval[bool](b, `document.querySelector("main img, main script") !== null`) {
		t.Error("a name became HTML")
	}
	b.shot("pool-1024")

	length, growth := 15*time.Second, 5e6
	if *long {
		length = 10 * time.Minute
	}
	b.do(chromedp.Evaluate(`window.tasks = []; new PerformanceObserver((l) => window.tasks.push(...l.getEntries().map((e) => e.duration))).observe({ entryTypes: ["longtask"] }); 0`, nil))
	time.Sleep(3 * time.Second)
	before := heap(b)
	time.Sleep(length)
	after := heap(b)
	b.until("it is still live", live, 2*time.Second)
	tasks := eval[[]float64](b, "window.tasks")
	slow := 0
	for _, ms := range tasks {
		if ms > 100 {
			slow++ // the machine has other work to do: most have to be short, not each
		}
	}
	updates := int(length / (every))
	t.Logf("%d updates, %d tasks of more than 50 ms, %d of more than 100 ms, heap from %.1f to %.1f MB", updates, len(tasks), slow, before/1e6, after/1e6)
	if len(tasks) > updates/4 {
		t.Errorf("%d of %d updates took more than 50 ms: %v", len(tasks), updates, tasks)
	}
	if after-before > growth {
		t.Errorf("the heap grew by %.1f MB", (after-before)/1e6)
	}
}

// heap returns the bytes of live objects of the page.
func heap(b *tab) float64 {
	b.t.Helper()
	b.do(heapprofiler.CollectGarbage(), performance.Enable())
	var list []*performance.Metric
	b.do(chromedp.ActionFunc(func(ctx context.Context) (err error) {
		list, err = performance.GetMetrics().Do(ctx)
		return err
	}))
	for _, m := range list {
		if m.Name == "JSHeapUsedSize" {
			return m.Value
		}
	}
	b.t.Fatal("the browser has no JSHeapUsedSize")
	return 0
}
