package console

import (
	"strconv"
	"testing"
)

// TestSkew presses "skew" and "repair" of node-2, as a newcomer does first.
func TestSkew(t *testing.T) {
	t.Parallel()
	c := dev(t)
	p := open(t, c.console, "break")
	p.until(`[...document.querySelectorAll(".card[data-node]")].every((c) => c.dataset.answer === "OK")`)
	sid := strconv.Itoa(c.nodes[1].SID)
	p.press("node-2", "skew")
	p.until(`document.querySelector(".card[data-node=node-2]").dataset.answer === "CLOCK_SKEW" && document.querySelector("#sids tr[data-key='` + sid + `']").dataset.state === "refusing"`)
	pressed := p.first(0, "the click", func(m mark) bool { return m.In == "click" && m.Value == "skew" }).T
	refused := p.first(pressed, "a refusal", func(m mark) bool { return m.Key == "node-2" && m.Name == "data-answer" && m.Value == "CLOCK_SKEW" }).T
	red := p.first(pressed, "a red row", func(m mark) bool { return m.In == "sids" && m.Key == sid && m.Value == "refusing" }).T
	t.Logf("refused after %.1f s, the row is red after %.1f s", (refused-pressed)/1e3, (red-pressed)/1e3)
	if limit := 15e3; refused-pressed > limit || red-pressed > limit { // 3 s on an idle machine
		t.Errorf("not within %.0f s", limit/1e3)
	}
	for what, element := range map[string]string{"card": ".card[data-node=node-2]", "row": "#sids tr[data-key='" + sid + "'] td"} {
		rgb := eval[[]int](p, `getComputedStyle(document.querySelector("`+element+`")).backgroundColor.match(/\d+/g).map(Number)`)
		if len(rgb) < 3 || rgb[0] < rgb[1]+8 || rgb[0] < rgb[2]+8 {
			t.Errorf("the %s is not red: %v", what, rgb)
		}
	}
	if status, reason := c.nodes[1].issue(t, 1); status != 503 || reason != "CLOCK_SKEW" {
		t.Errorf("the API of node-2: %d %s", status, reason)
	}
	p.until(`document.querySelector("#summary").classList.contains("bad") && document.querySelector("#summary .text").textContent.includes("node-2")`)

	p.press("node-2", "repair")
	p.until(`document.querySelector(".card[data-node=node-2]").dataset.answer === "OK" && document.querySelector("#summary").classList.contains("ok")`)
	repaired := p.first(pressed, "the click", func(m mark) bool { return m.In == "click" && m.Value == "repair" }).T
	healed := p.first(repaired, "an answer", func(m mark) bool { return m.Key == "node-2" && m.Value == "OK" }).T
	t.Logf("healed %.1f s after it was repaired", (healed-repaired)/1e3)
	for _, m := range p.marks(func(m mark) bool {
		return m.T > pressed && m.Name == "data-answer" && m.Key != "node-2" || m.Name == "data-bad" && m.Value != "0"
	}) {
		t.Errorf("after %.1f s: %s %s %s", (m.T-pressed)/1e3, m.Key, m.Name, m.Value)
	}
	if s := p.read(); s.Counter["duplicates"] != "0" || s.Counter["ids"] == "0" {
		t.Errorf("the counter shows %v", s.Counter)
	}
}

// growth is how much a bar may grow while its window only ends, in % of it: a snapshot that
// came late over a busy machine was shown as that much older than the next.
const growth = 5

// TestEtcdStopped: while etcd is away the bars drain, and when one is empty its node
// refuses with WINDOW_EXHAUSTED.
func TestEtcdStopped(t *testing.T) {
	t.Parallel()
	c := dev(t)
	p := open(t, c.console, "break")
	p.until(`[...document.querySelectorAll(".card[data-node]")].every((c) => c.dataset.answer === "OK")`)
	p.press("etcd", "stop")
	p.until(`document.querySelector("#summary .text").textContent.startsWith("etcd does not answer")`)
	p.until(`[...document.querySelectorAll(".card[data-node]")].every((c) => c.dataset.answer === "WINDOW_EXHAUSTED")`)
	p.until(`[...document.querySelectorAll("#sids tr")].every((r) => !r.dataset.key || r.dataset.state === "exhausted")`)
	stopped := p.first(0, "the click", func(m mark) bool { return m.In == "click" && m.Value == "stop" }).T
	for _, n := range c.nodes {
		sid := strconv.Itoa(n.SID)
		if status, reason := n.issue(t, 1); status != 503 || reason != "WINDOW_EXHAUSTED" {
			t.Errorf("the API of %s: %d %s", n.Name, status, reason)
		}
		empty := p.first(stopped, "an empty bar", func(m mark) bool { return m.In == "sids" && m.Key == sid && m.Value == "exhausted" }).T
		refused := p.first(stopped, "a refusal", func(m mark) bool { return m.Key == n.Name && m.Value == "WINDOW_EXHAUSTED" }).T
		t.Logf("%s: the bar was empty after %.1f s, the first refusal came after %.1f s", n.Name, (empty-stopped)/1e3, (refused-stopped)/1e3)
		if apart := refused - empty; apart < -3000 || apart > 3000 {
			t.Errorf("%s refuses %.1f s after its bar is empty", n.Name, apart/1e3)
		}
		widths := p.marks(func(m mark) bool { return m.In == "sids" && m.Key == sid && m.Name == "width" && m.T > stopped+5000 })
		last := 101.0
		for _, m := range widths {
			w, err := strconv.ParseFloat(m.Value, 64)
			if err != nil || w > last+growth {
				t.Errorf("%s: the bar grew from %.1f to %s", n.Name, last, m.Value)
			}
			last = w
		}
		if last != 0 || len(widths) < 10 {
			t.Errorf("%s: the bar has %d widths, the last is %.1f", n.Name, len(widths), last)
		}
	}
	p.press("etcd", "repair")
	p.until(`[...document.querySelectorAll(".card[data-node]")].every((c) => c.dataset.answer === "OK") && document.querySelector("#summary").classList.contains("ok")`)
	if s := p.read(); s.Counter["duplicates"] != "0" {
		t.Errorf("the counter shows %v", s.Counter)
	}
}
