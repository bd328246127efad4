package console

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status"
)

// TestMembersOfEtcd: a page that was opened before anybody had asked etcd's members shows them once they have answered.
func TestMembersOfEtcd(t *testing.T) {
	t.Parallel()
	s := serve(t, size(3))
	p := open(t, s.URL, "", phone)
	s.send(t)
	p.until("probe.snapshots > 0")
	if eval[bool](p, `document.querySelector("#etcd").checkVisibility()`) {
		t.Error("without members their table is shown")
	}
	s.mu.Lock()
	s.snapshot.Etcd = &status.Etcd{Endpoints: 2, Answer: 1, Members: []status.EtcdMember{{Endpoint: "https://etcd-1:2379", Leads: true}, {Endpoint: "https://etcd-2:2379", Problem: "no answer"}}}
	s.mu.Unlock()
	s.send(t)
	p.until(`document.querySelector("#etcd").checkVisibility() && document.querySelector("#etcd tbody").innerText.replace(/\s+/g, " ").includes("https://etcd-1:2379")`)
	if rows := p.read().Tables["etcd"]; len(rows) != 2 || rows[0].Cells[1] != "leader" || rows[1].Cells[1] != "no answer" {
		t.Errorf("the members are %+v", rows)
	}
}

// TestUptimeBelowASecond: a node that has just started has the uptime that the page has without scripts.
func TestUptimeBelowASecond(t *testing.T) {
	t.Parallel()
	s := serve(t, size(3))
	p := open(t, s.URL, "")
	for end := time.Now().Add(patience); ; {
		s.mu.Lock()
		s.snapshot.Nodes[1].Started = time.Now().UnixMilli() - 300
		s.mu.Unlock()
		had := eval[int](p, "probe.snapshots")
		s.send(t)
		p.until(fmt.Sprintf("probe.snapshots > %d", had))
		p.until(`document.querySelector("#nodes tr[data-key='i-1']")`)
		uptime := eval[string](p, `document.querySelector("#nodes tr[data-key='i-1']").cells[9].textContent`)
		if uptime == "0s" {
			return
		}
		if time.Now().After(end) { // A slow machine may take longer than what is shown.
			t.Fatalf("after less than a second the uptime is %q", uptime)
		}
	}
}

// TestBarOfSIDs: sids for workers do not look free, in the bar and in the grid.
func TestBarOfSIDs(t *testing.T) {
	t.Parallel()
	cluster := size(3)
	cluster.PoolSize, cluster.PoolSIDs, cluster.WorkerSIDs = 32, "0-31", "16-31"
	s := serve(t, cluster)
	p := open(t, s.URL, "")
	s.send(t)
	p.until(`document.querySelector("#sidparts").innerText.replace(/\s+/g, " ") === "3 nodes 16 for workers 13 free"`)
	widths := eval[string](p, `[...document.querySelectorAll("#sidbar rect")].map((r) => [r.dataset.state, r.getAttribute("x"), r.getAttribute("width")].join(" ")).join(", ")`)
	if widths != "held 0 3, worker 3 16, free 19 13" {
		t.Errorf("the bar has %s", widths)
	}
	p.run(click("#sidgrid summary"))
	s.until(p, `document.querySelectorAll("#grid .cell").length === 32`)
	if states := eval[string](p, `[...document.querySelectorAll("#grid .cell")].map((c) => c.dataset.state[0]).join("")`); states != "hhh"+strings.Repeat("n", 13)+strings.Repeat("w", 16) {
		t.Errorf("the grid has %s", states)
	}
}

// TestLargeLayout: a page of a layout with 1,024 sids, of which three are used, is about its
// nodes: the bar takes a line, and the grid behind it less than half of a screen.
func TestLargeLayout(t *testing.T) {
	t.Parallel()
	cluster := size(3)
	cluster.Layout, cluster.PoolSize, cluster.PoolSIDs = "twitter", 1024, "0-1023"
	s := serve(t, cluster)
	p := open(t, s.URL, "")
	s.send(t)
	p.until(`document.querySelector("#sidgrid").checkVisibility()`)
	height := func(selector string) float64 {
		return eval[float64](p, fmt.Sprintf("document.querySelector(%q).getBoundingClientRect().height", selector))
	}
	if h := height(".sidbar"); h > 90 {
		t.Errorf("the bar takes %.0f pixels", h)
	}
	if n := eval[int](p, `document.querySelectorAll("#grid .cell").length`); n != 0 {
		t.Errorf("a closed grid has %d cells", n)
	}
	p.run(click("#sidgrid summary"))
	s.until(p, `document.querySelectorAll("#grid .cell").length === 1024`)
	if h := height("#grid"); h > 360 {
		t.Errorf("the grid takes %.0f pixels", h)
	}
	if free := eval[bool](p, `document.querySelector("#grid").children[500].title === "sid 500: free"`); !free {
		t.Error("a cell does not say what it is")
	}
}

// TestNodesOnPhone: nothing is beside the screen of a phone, and the charts are as wide as it.
func TestNodesOnPhone(t *testing.T) {
	t.Parallel()
	cluster := size(3)
	cluster.Etcd = &status.Etcd{Endpoints: 3, Answer: 3, Leader: "https://etcd-1.example.com:2379"}
	s := serve(t, cluster)
	p := open(t, s.URL, "")
	p.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": true}, nil)
	s.send(t)
	p.run(chromedp.Reload())
	p.until(`document.querySelectorAll(".charts canvas").length === 4`)
	if w := eval[int](p, "document.documentElement.scrollWidth"); w > 390 {
		t.Errorf("the page is %d pixels wide", w)
	}
}

// TestSwapKeeps: what a page is sent takes from nobody the focus, a selection, what was opened, or the place to which the
// page was scrolled, even where the row of the focus moves.
func TestSwapKeeps(t *testing.T) {
	t.Parallel()
	cluster := size(40)
	for i := range cluster.Nodes {
		cluster.Nodes[i].Console = fmt.Sprintf("http://127.0.0.1:9/%d", i)
	}
	s := serve(t, cluster)
	p := open(t, s.URL, "")
	s.send(t)
	p.run(click("#sidgrid summary"))
	s.until(p, `document.querySelectorAll("#grid .cell").length === 40`)
	eval[bool](p, `(() => {
		const row = (key) => document.querySelector("#nodes tr[data-key=" + key + "]");
		row("i-30").querySelector("a").focus();
		const range = document.createRange();
		range.selectNodeContents(row("i-7").cells[8]);
		getSelection().removeAllRanges();
		getSelection().addRange(range);
		scrollTo(0, 300);
		window.kept = row("i-7");
		window.wasAt = window.kept.getBoundingClientRect().top;
		return true;
	})()`)
	s.mu.Lock()
	s.snapshot.Nodes[30].Report.Refusing, s.snapshot.Nodes[3].Report.Rate = node.ClockSkew, 987654
	s.mu.Unlock()
	s.until(p, `document.querySelector("#nodes tbody tr").dataset.key === "i-30" && document.body.innerText.includes("987,654")`)
	for what, is := range map[string]string{
		"the focus":      `document.activeElement === document.querySelector("#nodes tr[data-key=i-30] a")`,
		"the selection":  `getSelection().toString().trim() === "v1.2.3"`,
		"what is open":   `document.querySelector("#sidgrid").open && document.querySelectorAll("#grid .cell").length === 40`,
		"the place":      `Math.abs(window.kept.getBoundingClientRect().top - window.wasAt) < 3`,
		"the row itself": `window.kept === document.querySelector("#nodes tr[data-key=i-7]")`,
	} {
		if !eval[bool](p, is) {
			t.Errorf("%s was lost: scrolled to %v, %q is selected", what, eval[float64](p, "scrollY"), eval[string](p, "getSelection().toString()"))
		}
	}
}
