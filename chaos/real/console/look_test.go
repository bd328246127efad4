package console

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// axe returns the source of axe-core, or skips the test.
func axe(t *testing.T) string {
	t.Helper()
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("not run: npm is not installed")
	}
	dir := t.TempDir()
	fatal.If(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "npm"))))
	if out, err := exec.CommandContext(t.Context(), npm, "ci", "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund").CombinedOutput(); err != nil {
		t.Skipf("not run: npm ci: %v\n%s", err, out)
	}
	source, err := os.ReadFile(filepath.Join(dir, "node_modules", "axe-core", "axe.min.js"))
	fatal.If(t, err)
	return string(source)
}

// accessible fails if axe-core, whose source is given, finds something of one of the impacts;
// no impacts: anything.
func (p *page) accessible(axe, where string, impacts ...string) {
	p.t.Helper()
	eval[int](p, axe+"; 1")
	for _, found := range eval[[]struct {
		ID, Impact, Help string
		Nodes            []struct{ HTML, FailureSummary string }
	}](p, `axe.run(document, { preload: false, resultTypes: ["violations"] }).then((r) => JSON.parse(JSON.stringify(r.violations)))`) {
		if len(impacts) == 0 || slices.Contains(impacts, found.Impact) {
			p.t.Errorf("%s: %s: %s (%s), %d times, first %s\n%s", where, found.Impact, found.Help, found.ID, len(found.Nodes), found.Nodes[0].HTML, found.Nodes[0].FailureSummary)
		}
	}
}

// TestAccessible: axe-core finds nothing on any page, in light and dark.
func TestAccessible(t *testing.T) {
	t.Parallel()
	source := axe(t)
	c := dev(t)
	c.settle()
	for _, look := range []struct {
		name    string
		options []option
	}{{"light", nil}, {"dark", []option{dark}}} {
		p := open(t, c.console, "", look.options...)
		for _, name := range []string{"", "timeline", "pool", "clocks", "node", "ids", "events", "operate", "recover", "break", "login", "nothing"} {
			if name == "recover" { // the plan that follows on the page before
				p.run(click("button[value=recover]"))
				p.until(`document.querySelectorAll("#asked tr[data-key]").length === 3 && document.querySelector(".missing").innerText.includes("may not be needed") && !document.querySelector("button[name=confirm]")`)
			} else {
				p.visit(name)
			}
			switch name {
			case "ids":
				p.run(sendKeys("#id", "02MVRE9MT10N2"), click(".inspect button"))
				p.until(`document.readyState === "complete" && document.querySelector(".bits") !== null`)
			case "clocks", "node":
				p.until("document.querySelector('.u-legend')")
			case "":
				p.until("!document.querySelector('#past').hidden && document.querySelector('#sparks polyline') && getComputedStyle(document.querySelector('.sparkline')).fill === 'none'")
				p.run(click("#sidgrid summary"))
			case "timeline":
				p.until("document.querySelector('#timeline .lane')")
			case "pool", "events", "operate", "break":
				p.until("probe.snapshots > 1")
			}
			if name == "node" {
				p.run(click("summary"))
			}
			p.accessible(source, look.name+", page "+name)
		}
	}
}
