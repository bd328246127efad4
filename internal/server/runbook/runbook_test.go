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
	const page = "# A title of `code`\n\nText with [a link](b.md#x), [none](../../c.go) and ![a picture](x.png).\n\n<picture>\n<source media=\"(prefers-color-scheme: dark)\" srcset=\"./x-dark.png\">\n<img alt=\"two colors & one\" src=\"./x.png\">\n</picture>\n\n<a id=\"WHY\"></a>It goes on.\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n"
	got, err := render("how-to/a.md", page, func(name string) bool { return name == "how-to/b.md" })
	const want = `<h1 id="a-title-of-code">A title of <code>code</code></h1>
<p>Text with <a href="b.md#x" rel="noreferrer">a link</a>, none and a picture.</p>
<p>two colors &amp; one</p>
<p><a id="WHY"></a>It goes on.</p>
<table>
<thead>
<tr>
<th>a</th>
<th>b</th>
</tr>
</thead>
<tbody>
<tr>
<td>1</td>
<td>2</td>
</tr>
</tbody>
</table>
`
	if err != nil || got.Title != "A title of code" || string(got.HTML) != want {
		t.Errorf("%v, %s\n%s", err, got.Title, got.HTML)
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
		if p.Title == "" || strings.Contains(string(p.HTML), "](") || strings.Contains(string(p.HTML), " style=") {
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
