package console

import (
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/flakelease/allocator/chaos/fatal"
)

const siteDir = "../../../bin/docs"

// openSite opens a tab for the site of the documents, and returns the path that the site
// was built for. An answer that is an error fails the test.
func openSite(t *testing.T) (p *page, base string) {
	t.Helper()
	if base = os.Getenv("DOCS_BASE"); base == "" {
		t.Skip("not run: without DOCS_BASE, for which make docs has built a site")
	}
	s := httptest.NewServer(http.StripPrefix(strings.TrimSuffix(base, "/"), http.FileServer(http.Dir(siteDir))))
	t.Cleanup(s.Close)
	return open(t, s.URL, "index.html", func(p *page) {
		p.plain, p.below = true, base
		on(p, "Network.responseReceived", func(e struct {
			Response struct {
				URL    string
				Status int
			}
		}) {
			if e.Response.Status >= http.StatusBadRequest && !strings.HasSuffix(e.Response.URL, "/favicon.ico") { // which browsers want for plain text
				p.problem(fmt.Sprintf("%s: %d", e.Response.URL, e.Response.Status))
			}
		})
	}), base
}

// readPage opens a page of the site, and waits until Vue has taken it over.
func (p *page) readPage(name string) {
	p.t.Helper()
	p.visit(name)
	p.until("document.querySelector('#app').__vue_app__ && document.querySelector('h1')")
}

// search types words into the search.
func (p *page) search(words string) {
	p.t.Helper()
	p.run(click(".DocSearch-Button"), sendKeys(".search-input", words))
}

// kinds returns the front page and a page of each kind: the first of each directory of
// docs, or, with -long, the longest of each directory.
func kinds(t *testing.T) []string {
	t.Helper()
	chosen, size := map[string]string{}, map[string]int64{} // of each directory
	fatal.If(t, fs.WalkDir(os.DirFS(siteDir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".md" { // each page's Markdown is beside it
			return err
		}
		info, err := d.Info()
		dir := path.Dir(name)
		if err == nil && (*long && info.Size() > size[dir] || !*long && size[dir] == 0 && strings.HasPrefix(name, "docs/")) {
			chosen[dir], size[dir] = strings.TrimSuffix(name, ".md")+".html", info.Size()
			if path.Base(name) == "README.md" {
				chosen[dir] = path.Join(dir, "index.html")
			}
		}
		return err
	}))
	return append(slices.Sorted(maps.Values(chosen)), "index.html")
}

// Pages fit a phone, and axe-core finds nothing serious, in light and in dark.
func TestSiteReadable(t *testing.T) {
	p, _ := openSite(t)
	source := axe(t)
	for i, width := range []int64{1400, 375, 1400, 375} {
		name, scheme := "light", light
		if i == 1 || i == 2 {
			name, scheme = "dark", dark
		}
		if i > 1 && !*long {
			break
		}
		scheme(p)
		p.run(chromedp.EmulateViewport(width, 900))
		for _, file := range kinds(t) {
			p.readPage(file)
			if wide := eval[int64](p, "document.documentElement.scrollWidth"); wide > width {
				t.Errorf("%s is %d px wide on a screen of %d", file, wide, width)
			}
			// Less is of the documents: a step of two levels between headings, a table without a header.
			p.accessible(source, fmt.Sprintf("%s, %s, %d px", file, name, width), "serious", "critical")
		}
	}
}

// The search finds the title of a page of each kind, and leads there.
func TestSiteSearch(t *testing.T) {
	p, base := openSite(t)
	for _, name := range kinds(t) {
		if name == "index.html" {
			continue // its title, the name of the program, is in every page
		}
		p.readPage(name)
		p.search(eval[string](p, "document.querySelector('h1').innerText.replace('\u200b', '').trim()"))
		if strings.HasPrefix(name, "docs/decisions/") {
			name = "docs/decisions/index.html" // the list of decisions has their titles
		}
		result := fmt.Sprintf(".results a[href^='%s%s']", base, strings.TrimSuffix(name, "index.html"))
		p.until(fmt.Sprintf("document.querySelector(%q)", result))
		p.run(chromedp.Navigate("about:blank"))
	}
}

// The search shows what to do above why it is so.
func TestSiteSearchOrder(t *testing.T) {
	p, base := openSite(t)
	for _, words := range []string{"watermark", "fence", "clock step", "workers", "era", "restore", "token", "drain", "sid range", "epoch", "window", "gossip key", "postgres", "kubernetes", "redis", "uuid", "layout", "duplicate", "standby", "upgrade"} {
		p.readPage("index.html")
		p.search(words)
		p.until("document.querySelectorAll('.results a').length > 3")
		first := eval[string](p, "new URL(document.querySelector('.results a').href).pathname")
		if strings.HasPrefix(first, base+"docs/decisions/") && first != base+"docs/decisions/" {
			t.Errorf("the first result for %q is %s", words, first)
		}
		p.run(chromedp.Navigate("about:blank"))
	}
}

// A link between pages, and the one to their Markdown, work when they are clicked. The menu
// leads to the page of the simulation, which runs under its own policy, and on to a rule.
func TestSiteClick(t *testing.T) {
	p, base := openSite(t)
	p.readPage("index.html")
	p.run(click(`.vp-doc a[href$="docs/DESIGN.html#claims"]`))
	p.until("location.pathname === '" + base + "docs/DESIGN.html' && document.querySelector('h1').innerText.includes('Design')")
	p.run(click("a.markdown"))
	p.until("location.pathname === '" + base + "docs/DESIGN.md'")
	if got := eval[string](p, "document.body.innerText"); !strings.HasPrefix(got, "# ") {
		t.Errorf("the Markdown begins with %.100q", got)
	}
	p.readPage("index.html")
	p.run(click(".VPNavBarMenu a[href$='/play/']"))
	p.until("location.pathname === '" + base + "play/' && stepAt === 0 && view.ids > 0")
	p.run(click("#rules input[value=ceiling]"))
	p.until("rule === 'ceiling' && view.now > 0")
}
