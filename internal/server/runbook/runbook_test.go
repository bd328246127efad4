package runbook

import (
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/flakelease/allocator/internal/node"
)

func TestRender(t *testing.T) {
	const page = "# A title\n\n<!-- run -->\n```sh\necho **x** <b>\n```\n\nText with `a*b|c` and [a link](b.md#x), [none](../../c.go), **bold** and *more*.\n" +
		"<a id=\"WHY\"></a>It goes on <script>.\n\n- one\n- two `x`\n\n1. first\n\n| a | b |\n|---|---|\n| 1 \\| 2 | ![alt](x.png) |\n"
	got := render("how-to/a.md", page, func(name string) bool { return name == "how-to/b.md" })
	want := `<h1 id="a-title">A title</h1>
<pre>echo **x** &lt;b&gt;
</pre>
<p>Text with <code>a*b|c</code> and <a href="b.md#x" rel="noreferrer">a link</a>, none, <strong>bold</strong> and <em>more</em>.
<a id="WHY"></a>It goes on &lt;script&gt;.
</p>
<ul><li>one
<li>two <code>x</code>
</ul>
<ol><li>first
</ol>
<table><tr><th>a</th><th>b</th></tr>
<tr><td>1 | 2</td><td>[alt]</td></tr>
</table>
`
	if got.Title != "A title" || string(got.HTML) != want {
		t.Errorf("%s\n%s", got.Title, got.HTML)
	}
}

// TestPages: every document can be shown, and every link in one leads somewhere.
func TestPages(t *testing.T) {
	href, id := regexp.MustCompile(`<a href="([^"]*)"`), regexp.MustCompile(` id="([^"]*)"`)
	ids := map[string]bool{}
	for name, p := range pages() {
		ids[name] = true
		for _, m := range id.FindAllStringSubmatch(string(p.HTML), -1) {
			ids[name+"#"+m[1]] = true
		}
	}
	if len(pages()) < 30 {
		t.Errorf("%d pages", len(pages()))
	}
	for name, p := range pages() {
		if p.Title == "" || strings.ContainsAny(string(p.HTML), "\x00\x01") || strings.Contains(string(p.HTML), "](") {
			t.Errorf("%s: %.300s", name, p.HTML)
		}
		for _, m := range href.FindAllStringSubmatch(string(p.HTML), -1) {
			if strings.HasPrefix(m[1], "https://") {
				continue
			}
			page, fragment, found := strings.Cut(m[1], "#")
			target := name
			if page != "" {
				target = path.Join(path.Dir(name), page)
			}
			if found {
				target += "#" + fragment
			}
			if !ids[target] {
				t.Errorf("%s: there is no %s", name, m[1])
			}
		}
	}
	for _, r := range node.Reasons {
		if !ids["reference/refusals.md#"+r.String()] {
			t.Errorf("nothing to read about %s", r)
		}
	}
}

func TestServe(t *testing.T) {
	for name, want := range map[string]int{"how-to/repair-sids.md": 200, "": 404, "../docs.go": 404, "how-to": 404, "how-to/nothing.md": 404} {
		w := httptest.NewRecorder()
		Serve(w, name)
		if w.Code != want || want == 200 && !strings.Contains(w.Body.String(), "<title>Repair sids</title>") {
			t.Errorf("%s: %d %.200s", name, w.Code, w.Body)
		}
	}
}
