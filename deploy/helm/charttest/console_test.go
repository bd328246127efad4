package charttest

import (
	"os"
	"regexp"
	"testing"
)

// The values by which docs/how-to/watch-it.md exposes the pages for operators serve them,
// with a token, through a Service that exists.
func TestConsoleBehindAnIngress(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/how-to/watch-it.md")
	if err != nil {
		t.Fatal(err)
	}
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
