package console

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status/feed"
	"github.com/flakelease/allocator/internal/status/trend"
)

// bars are what the timeline says along all rows, which are 44 px high.
const bars = `(() => {
  const c = document.querySelector("#timeline"), r = c.getBoundingClientRect(), out = new Set();
  for (let y = 22; y < r.height - 18; y += 44) {
    for (let x = 0; x < r.width; x++) {
      c.dispatchEvent(new PointerEvent("pointermove", { clientX: r.x + x, clientY: r.y + y, bubbles: true }));
      out.add(document.querySelector("#moment").textContent);
    }
  }
  return [...out];
})()`

// stretchRow is a row of the table of stretches.
var stretchRow = regexp.MustCompile(`<tr data-key="(\S+) (\d+)" data-state="\w*"><th scope="row">(.*?)</th><td><span class="tag">(.*?)</span></td><td class="n">(.*?)</td><td class="n">(.*?)</td><td>.*?</td><td>(.*?)</td>`)

// stretchesOfNode2 returns those that a page knows, the oldest first, and the latest sample.
func stretchesOfNode2(t *testing.T, console string) (out []trend.Stretch, latest int64) {
	t.Helper()
	for _, row := range stretchRow.FindAllStringSubmatch(string(get(t, console+"stretches")), -1) {
		until, err := time.Parse("2006-01-02 15:04:05.000", row[7])
		fatal.If(t, err)
		latest = max(latest, until.UnixMilli())
		s := trend.Stretch{Node: row[3], Instance: row[1], What: row[4], Until: until.UnixMilli()}
		s.From, _ = strconv.ParseInt(row[2], 10, 64)
		s.Term, _ = strconv.ParseInt(row[6], 10, 64)
		if s.SID, err = strconv.Atoi(row[5]); err == nil && s.Node == "node-2" {
			out = append(out, s)
		}
	}
	slices.Reverse(out)
	return out, latest
}

// TestTimeline: the bar of a node that is killed ends, and that of its next tenure begins after
// it. An address shows the same moment after a reload, and on a phone.
func TestTimeline(t *testing.T) {
	t.Parallel()
	c := dev(t)
	c.settle()
	own := c.nodes[0].own()
	b := open(t, c.console, "break")
	until := func(what string, done func([]trend.Stretch, int64) bool) {
		t.Helper()
		wait.NoError(t, what, func() error {
			if list, latest := stretchesOfNode2(t, own); !done(list, latest) {
				return fmt.Errorf("%+v", list)
			}
			return nil
		})
	}
	serves := func(s trend.Stretch) bool { return s.Term > 0 && s.What == "serving" }
	var killed, next trend.Stretch
	until("it serves", func(list []trend.Stretch, _ int64) bool {
		return len(list) > 0 && serves(list[len(list)-1])
	})
	b.press("node-2", "kill")
	until("its tenure ends", func(list []trend.Stretch, latest int64) bool {
		return !slices.ContainsFunc(list, func(s trend.Stretch) bool { return s.Until == latest })
	})
	b.press("node-2", "repair")
	until("the next one begins", func(list []trend.Stretch, latest int64) bool {
		ended := true
		for _, s := range list {
			switch first := s.Instance == list[0].Instance; {
			case first && serves(s):
				killed = s
			case !first && serves(s) && next.Instance == "":
				next = s
			}
			ended = ended && (s.Instance != list[0].Instance || s.Until < latest)
		}
		return ended && next.Instance != ""
	})
	if next.From <= killed.Until || next.SID == killed.SID && next.Term <= killed.Term {
		t.Errorf("the next tenure is %+v, after %+v", next, killed)
	}

	at := time.UnixMilli(killed.Until).UTC().Format("2006-01-02T15:04:05.000Z")
	p := open(t, own, "timeline?span=240&at="+at)
	shows := func() []string {
		t.Helper()
		p.until(`document.querySelector("#timeline .lane") && document.querySelectorAll("#stretches tr[data-key]").length > 3`)
		bars := slices.DeleteFunc(eval[[]string](p, bars), func(said string) bool { return !strings.HasPrefix(said, "node-2: ") })
		has := func(words ...string) bool {
			return slices.ContainsFunc(bars, func(said string) bool {
				return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(said, w) })
			})
		}
		if !has(fmt.Sprintf("sid %d, term %d: ", killed.SID, killed.Term), "holder gone") || !has(fmt.Sprintf("sid %d, term ", next.SID), time.UnixMilli(next.From).UTC().Format("from 15:04:05")) {
			t.Errorf("the row of node-2 has %q", bars)
		}
		// What the next tenure shows changes with each window, also where it lies above the end of the former.
		grows := fmt.Sprintf("sid %d, term %d: ", next.SID, next.Term)
		return slices.DeleteFunc(bars, func(said string) bool {
			return !strings.Contains(said, "holder gone") || strings.Contains(said, grows)
		})
	}
	shows()
	p.run(click(`[data-zoom="0.5"]`))
	p.until(`location.search.includes("span=120")`)
	search := eval[string](p, "location.search")
	if q, err := url.ParseQuery(search[1:]); err != nil || q.Get("at") != at || q.Get("span") != "120" {
		t.Errorf("after a zoom the address has %s, want %s and 120 s", search, at)
	}
	p.until(`(({ from, to }) => to - from === 120e3)(document.querySelector("#timeline").dataset)`)
	before := shows()
	p.run(chromedp.Reload())
	if after := shows(); !slices.Equal(before, after) || eval[string](p, "location.search") != search {
		t.Errorf("after a reload it shows %q, before %q", after, before)
	}
	phone(p)
	p.run(chromedp.Reload())
	shows()
	if off := eval[[]string](p, offScreen); len(off) > 0 {
		t.Errorf("off the screen of a phone: %q", off)
	}
	p.run(click("#by"))
	p.until(`location.search.endsWith("&by=sid")`)
	p.run(chromedp.Reload())
	p.until(`document.querySelector("#timeline .lane") && document.querySelector("#by").ariaCurrent === "true"`)
	of := eval[[]string](p, bars)
	for _, s := range []trend.Stretch{killed, next} {
		if want := fmt.Sprintf("sid %d: node-2, sid %[1]d, term %d: window from", s.SID, s.Term); !slices.ContainsFunc(of, func(said string) bool { return strings.HasPrefix(said, want) }) {
			t.Errorf("the rows of sids have no %q: %q", want, of)
		}
	}
	p.run(click("#by"), click("#latest"), click(`[data-zoom="0.5"]`)) // It still follows.
	p.until(`location.search === "?span=60" && document.querySelector("#latest").hidden`)
	p.run(click(`[data-move="-0.5"]`))
	p.until(`location.search.startsWith("?at=")`)
	if span := eval[string](p, `new URLSearchParams(location.search).get("span")`); span != "60" {
		t.Errorf("after another zoom %s s are shown", span)
	}
}

// TestTimelineKeeps: an address of a time that the node does not keep says so, a row that refuses is marked in the table,
// an outage of etcd that began before the first sample is drawn, and a tap says what it hits.
func TestTimelineKeeps(t *testing.T) {
	t.Parallel()
	cluster := size(3)
	cluster.Nodes[1].Report.Refusing = node.ClockSkew
	s := serve(t, cluster)
	away := clock.Millis(time.Now().Add(-2 * time.Minute).UnixMilli())
	s.feed.Observe(feed.State{EtcdFails: true, EtcdSince: away, Node: node.Stats{Name: "node-0", Instance: "i-0", Now: away}})
	p := open(t, s.URL, "timeline?span=240&at="+time.Now().Add(-2*time.Hour).UTC().Format("2006-01-02T15:04:05.000Z"))
	p.until(`document.querySelector("#timeline .lane") && document.querySelectorAll("#stretches tr[data-key]").length === 0`)
	if said := eval[string](p, `((e) => e.checkVisibility() ? e.textContent : "")(document.querySelector("#kept"))`); !strings.Contains(said, "this node keeps the time from "+time.Now().UTC().Format("2006-")) {
		t.Errorf("two hours ago it says %q", said)
	}
	p.run(click("#latest"))
	p.until(`!document.querySelector("#kept").checkVisibility()`)
	for _, options := range [][]option{nil, {withoutScripts}} {
		p := open(t, s.URL, "timeline", options...)
		p.until(`document.querySelectorAll("#stretches tr[data-key]").length === 3`)
		if states := eval[string](p, `[...document.querySelectorAll("#stretches tr[data-key]")].map((r) => r.cells[0].textContent + " " + r.dataset.state).sort().join()`); states != "node-0 serving,node-1 refusing,node-2 serving" {
			t.Errorf("the rows are %s", states)
		}
	}
	if said := eval[[]string](p, bars); !slices.Contains(said, "node-0: etcd is away") {
		t.Errorf("without etcd the timeline says %q", said)
	}
	for _, part := range []float64{0.25, 0.95} { // It begins with the first sample.
		at := eval[struct{ X, Y float64 }](p, fmt.Sprintf(`((r) => ({ X: r.x + r.width * %v, Y: r.y + 22 }))(document.querySelector("#timeline").getBoundingClientRect())`, part))
		p.call("Input.dispatchTouchEvent", map[string]any{"type": "touchStart", "touchPoints": []any{map[string]any{"x": at.X, "y": at.Y}}}, nil)
		p.until(`document.querySelector("#moment").textContent.startsWith("node-0: ")`)
		p.call("Input.dispatchTouchEvent", map[string]any{"type": "touchEnd", "touchPoints": []any{}}, nil)
		eval[bool](p, `(document.querySelector("#moment").textContent = "", true)`)
	}
	// A reason is written where the bar of the refusals is as wide.
	if shown := eval[[]bool](p, `(() => {
		const f = document.querySelector("#timeline .refused foreignObject");
		return [30, 200].map((width) => {
			f.setAttribute("width", width);
			return f.querySelector(".label span").getBoundingClientRect().top < f.getBoundingClientRect().bottom;
		});
	})()`); !slices.Equal(shown, []bool{false, true}) {
		t.Errorf("the reason is written in a bar of 30 px: %v, and of 200 px", shown)
	}
}
