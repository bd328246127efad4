package charttest

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// What Helm prints after an installation names what is still to be done, and nothing else.
func TestNotes(t *testing.T) {
	ci := ciValues(t)
	memory := ci["evaluation"]
	memory["etcd"].(map[string]any)["bundled"].(map[string]any)["persistence"] = map[string]any{"enabled": false}
	for _, tt := range []struct {
		name      string
		values    map[string]any
		at        occasion
		want, not []string
	}{
		{"external", ci["external"], install, []string{"auto-compaction-mode=periodic", "WARNING: the API has neither TLS nor tokens"}, nil},
		{"external", ci["external"], upgrade, []string{"An upgrade initializes nothing"}, nil},
		{"secure", ci["secure"], install, nil, []string{"WARNING"}},
		{"evaluation in memory", memory, install, []string{"HISTORY_REWOUND", "gossip has no key"}, nil},
	} {
		notes := mustRender(t, tt.values, tt.at).notes
		for _, w := range tt.want {
			if !strings.Contains(notes, w) {
				t.Errorf("%s, %s: the notes lack %q:\n%s", tt.name, tt.at.name, w, notes)
			}
		}
		for _, n := range tt.not {
			if strings.Contains(notes, n) {
				t.Errorf("%s, %s: the notes have %q:\n%s", tt.name, tt.at.name, n, notes)
			}
		}
	}
}

// The values by which docs/how-to/watch-it.md exposes the pages for operators serve them,
// with a token, through a Service that exists.
func TestConsoleBehindAnIngress(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/how-to/watch-it.md")
	fatal.If(t, err)
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(doc)
	if block == nil {
		t.Fatal("docs/how-to/watch-it.md has no values")
	}
	r := mustRender(t, with(t, string(block[1])), install)
	p, _ := nodePod(t, r)
	c, _ := settingsOf(t, r, p)
	if !c.ServesConsole() || c.Auth.TokenFile == "" {
		t.Errorf("served %t, tokens in %q", c.ServesConsole(), c.Auth.TokenFile)
	}
	plain := mustRender(t, with(t, ""), install)
	p, _ = nodePod(t, plain)
	if c, _ := settingsOf(t, plain, p); c.ServesConsole() {
		t.Error("without these values the pages are open to the cluster")
	}
	backend := regexp.MustCompile(`service: \{name: ([a-z-]+),`).FindSubmatch(block[1])
	if backend == nil || !r.has("Service/"+string(backend[1])) {
		t.Errorf("the ingress leads to %s, which does not exist", backend)
	}
}
