package console

import (
	"strings"
	"testing"
)

// TestMatrix: the node whose clock is skewed is red in its row and its column, and no other cell
// is, whichever node is asked. A page without scripts shows the same of what it has.
func TestMatrix(t *testing.T) {
	t.Parallel()
	c := dev(t)
	p := open(t, c.console, "break")
	p.until(`[...document.querySelectorAll(".card[data-node]")].every((c) => c.dataset.answer === "OK")`)
	p.visit("clocks")
	const states = `[...document.querySelectorAll("#matrix tbody tr")].map((tr) => [...tr.cells].slice(1).map((c) => c.dataset.state).join(" ")).join(", ")`
	p.until(states + ` === "self agree agree, agree self agree, agree agree self"`)
	p.visit("break")
	p.press("node-2", "skew")
	const skewed = `"self far agree, far self far, agree far self"`
	for _, root := range []string{c.console, c.nodes[1].own()} {
		p := open(t, root, "clocks")
		p.until(states + ` === ` + skewed)
		if got := eval[string](p, `document.querySelector("#matrix tbody tr:nth-child(2) td:nth-child(2)").textContent`); !strings.HasPrefix(got, "-1") && !strings.HasPrefix(got, "-9") || !strings.HasSuffix(got, "s far") {
			t.Errorf("node-2 measures node-1 as %q, want about -1000.0ms, far", got)
		}
		p.shot("clocks-matrix-" + map[bool]string{true: "dev", false: "node-2"}[root == c.console])
	}
	plain := open(t, c.console, "clocks", withoutScripts)
	if got := eval[string](plain, states); got != "self far agree, far self far, agree far self" {
		t.Errorf("without scripts the matrix is %s", got)
	}
}
