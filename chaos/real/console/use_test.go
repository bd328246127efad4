package console

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// phone is a screen of 360 px.
func phone(p *page) {
	p.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": true}, nil)
}

// key presses a key as a person does.
func (p *page) key(name string, code int, text string) {
	p.t.Helper()
	event := map[string]any{"type": "keyDown", "key": name, "code": name, "windowsVirtualKeyCode": code, "text": text}
	p.call("Input.dispatchKeyEvent", event, nil)
	event["type"] = "keyUp"
	delete(event, "text")
	p.call("Input.dispatchKeyEvent", event, nil)
}

func (p *page) enter() { p.key("Enter", 13, "\r") }

// offScreen lists what is beyond the edge of the screen and cannot be scrolled to in a box of its own.
const offScreen = `(() => {
  const boxed = (el) => { for (let e = el.parentElement; e; e = e.parentElement) if (/auto|scroll|hidden|clip/.test(getComputedStyle(e).overflowX) && e !== document.documentElement && e !== document.body) return true; };
  const out = [...document.body.querySelectorAll("*")].filter((el) => {
    const r = el.getBoundingClientRect();
    return r.width > 1 && r.right > innerWidth + 1 && !boxed(el);
  }).map((el) => el.tagName + "." + el.className + " " + el.textContent.slice(0, 40));
  if (document.documentElement.scrollWidth > innerWidth) out.push("the page scrolls sideways to " + document.documentElement.scrollWidth);
  return out;
})()`

// broken lists names of nodes that are on more than one line.
const brokenNames = `(() => {
  const out = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n = walk.nextNode(); n; n = walk.nextNode()) {
    if (!/^\s*node-\d\s*$/.test(n.data)) continue;
    const range = document.createRange();
    range.selectNodeContents(n);
    if (new Set([...range.getClientRects()].map((r) => r.top)).size > 1) out.push(n.parentElement.tagName + " " + n.data);
  }
  return out;
})()`

// TestPhone: at 360 px nothing is off the screen, tabs are one line that scrolls, rows are cards
// with the names of their columns, and names of nodes do not break. Without scripts tables scroll,
// and on a wide screen they are tables.
func TestPhone(t *testing.T) {
	t.Parallel()
	c := dev(t)
	c.settle()
	for _, look := range []struct {
		name    string
		options []option
	}{{"scripts", []option{phone}}, {"plain", []option{phone, withoutScripts}}, {"wide", nil}} {
		p := open(t, c.console, "", look.options...)
		for _, name := range []string{"", "timeline", "clocks", "node", "ids", "events", "operate", "drain", "break", "docs/reference/glossary.md"} {
			if name == "drain" { // the plan that follows on the page before
				p.run(click("button[value=drain]"))
				p.until(`document.querySelector("button[name=confirm]")`)
			} else {
				p.visit(name)
			}
			switch {
			case look.name == "plain" || name == "docs/reference/glossary.md":
			case name == "clocks":
				p.until("document.querySelector('.u-legend') && document.querySelectorAll('#clocks tr[data-key]').length === 3")
				if legend := eval[string](p, `document.querySelector(".u-legend").textContent`); !regexp.MustCompile(`\d\d:\d\d:\d\d.*\d`).MatchString(legend) {
					t.Errorf("%s: no pointer is there, and the legend says %q", look.name, legend)
				}
			case name == "ids":
				p.run(sendKeys("#id", "02MVRE9MT10N2"), click(".inspect button"))
				p.until(`document.readyState === "complete" && document.querySelector(".bits") !== null`)
			default:
				p.until("probe.snapshots > 1")
			}
			for _, what := range eval[[]string](p, offScreen) {
				t.Errorf("%s, page %q: off the screen: %s", look.name, name, what)
			}
			for _, what := range eval[[]string](p, brokenNames) {
				t.Errorf("%s, page %q: on two lines: %s", look.name, name, what)
			}
			if commands := eval[[]int](p, `[...document.querySelectorAll(".card pre")].map((pre) => Math.max(...[...pre.querySelectorAll("span")].map((word) => word.offsetHeight)))`); slices.ContainsFunc(commands, func(px int) bool { return px < 1 || px > 25 }) {
				t.Errorf("%s, page %q: words of commands on two lines, or none: %d px", look.name, name, commands)
			}
			if lines := eval[int](p, `new Set([...document.querySelectorAll("nav a")].map((a) => a.offsetTop)).size`); lines != 1 {
				t.Errorf("%s, page %q: tabs are %d lines", look.name, name, lines)
			}
			if name == "break" && look.name != "wide" && !eval[bool](p, `(() => { const a = document.querySelector("nav [aria-current]"), n = a.closest("nav"); n.scrollLeft = 1e4; const r = a.getBoundingClientRect(); return n.scrollWidth > n.clientWidth && r.right <= innerWidth && r.left >= 0; })()`) {
				t.Errorf("%s: the last tab cannot be scrolled to", look.name)
			}
			if look.name != "scripts" {
				if cards := eval[int](p, `[...document.querySelectorAll(".list")].filter((t) => t.tBodies[0].rows[0]?.offsetParent && !/^table-/.test(getComputedStyle(t.tBodies[0]).display)).length`); cards != 0 {
					t.Errorf("%s, page %q: %d tables are none", look.name, name, cards)
				}
				continue
			}
			if heads := eval[[]string](p, `[...document.querySelectorAll(".list thead th")].filter((th) => th.offsetParent && !th.querySelector(".word")).map((th) => th.textContent)`); len(heads) > 0 {
				t.Errorf("page %q: cards have a head of columns: %q", name, heads)
			}
			if bad := eval[[]string](p, `[...document.querySelectorAll(".list tbody tr:not(.none)")].filter((tr) => tr.offsetParent && [...tr.cells].some((td) => td.dataset.label && td.offsetParent &&
				(getComputedStyle(td, "::before").content !== JSON.stringify(td.dataset.label) || getComputedStyle(td).display !== "flex")) || tr.offsetParent && !tr.cells[1].dataset.label && !tr.cells[0].dataset.label).map((tr) => tr.textContent)`); len(bad) > 0 {
				t.Errorf("page %q: rows are no cards: %q", name, bad)
			}
		}
	}
}

// TestCopy: IDs and commands have a button that copies exactly them, by keyboard too, and says so
// to screen readers.
func TestCopy(t *testing.T) {
	t.Parallel()
	c := dev(t)
	p := open(t, c.console, "ids")
	p.run(sendKeys("#id", "02MVRE9MT10N2"), click(".inspect button"))
	p.until(`document.readyState === "complete" && document.querySelectorAll("td.code .copy").length > 3`)
	const stub = `navigator.clipboard.writeText = async (t) => { window.got = t; }; 1`
	for _, of := range []struct{ element, text string }{
		{"td.code", `document.querySelector("td.code").innerText.trim()`},
		{".copied", `document.querySelector("pre").textContent.trim()`},
	} {
		eval[int](p, stub)
		want := eval[string](p, of.text)
		eval[int](p, `document.querySelector("`+of.element+` > .copy").focus(), 1`)
		p.enter()
		p.until(`window.got !== undefined && document.querySelector("#said").textContent === "copied"`)
		if got := eval[string](p, "window.got"); got != want || want == "" {
			t.Errorf("%s: copied %q, want %q", of.element, got, want)
		}
		p.until(`document.querySelector("#said").textContent === ""`)
		eval[int](p, `delete window.got, 1`)
	}
	eval[int](p, `navigator.clipboard.writeText = async () => { throw new Error("no"); }; document.querySelector("td.code > .copy").focus(), 1`)
	p.enter()
	p.until(`document.querySelector("#said").textContent.startsWith("not copied")`)
}

// TestMeanings: a word is explained in the sentence of the glossary, by mouse, keyboard and touch,
// with scripts and without.
func TestMeanings(t *testing.T) {
	t.Parallel()
	c := dev(t)
	glossary, err := os.ReadFile("../../../docs/reference/glossary.md")
	fatal.If(t, err)
	for _, options := range [][]option{nil, {withoutScripts}, {phone}} {
		p := open(t, c.console, "", options...)
		for word, name := range map[string]string{"term": "break", "verdict": "clocks", "lead": "node"} {
			found := regexp.MustCompile(`(?m)^\| \[` + word + `\]\([^)]*\) \| (.*) \|$`).FindSubmatch(glossary)
			if found == nil {
				t.Fatalf("the glossary lacks %s", word)
			}
			p.visit(name)
			button, says := `button[popovertarget=word-`+word+`]`, `document.querySelector("#word-`+word+`")`
			open := says + `.matches(":popover-open")`
			p.until(`document.querySelector("` + button + `")`)
			if eval[bool](p, open) {
				t.Errorf("%s is explained to who did not ask", word)
			}
			eval[bool](p, `document.querySelector("`+button+`").focus(), true`)
			p.enter()
			p.until(open)
			if got := eval[string](p, says+`.textContent`); got != word+": "+string(found[1])+". Glossary" {
				t.Errorf("%s is explained as %q, in the glossary as %q", word, got, found[1])
			}
			if !eval[bool](p, `(() => { const r = `+says+`.getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth && r.top >= 0 && r.bottom <= innerHeight; })()`) {
				t.Errorf("%s: the sentence is off the screen", word)
			}
			p.key("Escape", 27, "")
			p.until("!" + open)
		}
	}
}

// TestOperateSays: a plan says how many nodes will serve, and its button names the act.
func TestOperateSays(t *testing.T) {
	t.Parallel()
	c := dev(t)
	c.settle()
	p := open(t, c.console, "operate")
	if over := eval[[]string](p, `[...document.querySelectorAll(".copied")].filter((box) => {
		const button = box.querySelector(".copy").getBoundingClientRect(), words = document.createRange();
		words.selectNodeContents(box.querySelector("pre"));
		return [...words.getClientRects()].some((r) => r.right > button.left && r.left < button.right && r.bottom > button.top && r.top < button.bottom);
	}).map((box) => box.innerText)`); len(over) > 0 {
		t.Errorf("Copy lies over %q", over)
	}
	eval[bool](p, `(document.querySelector("button[value=drain]").click(), true)`)
	p.until(`document.querySelector("button[name=confirm]")`)
	if got := eval[string](p, `document.querySelector("button[name=confirm]").textContent`); got != "Drain node-1" {
		t.Errorf("%q", got)
	}
	eval[bool](p, `(document.querySelector("button[name=confirm]").click(), true)`)
	p.until(`document.querySelector(".summary.ok, [role=alert]").innerText.includes("drain node-1: done")`)
	p.until(`document.querySelector("#summary .text").textContent.includes("2 of 3 nodes serve")`)
	p.visit("operate")
	eval[bool](p, `(document.querySelector("button[value=undrain]").click(), true)`)
	p.until(`document.querySelector("button[name=confirm]").textContent === "Undrain node-1"`)
}
