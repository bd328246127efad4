package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/flakelease/allocator/chaos/fatal"
)

var (
	long  = flag.Bool("long", false, "the longest page of every directory, wide and narrow, light and dark; not only the first of each directory of docs")
	shots = flag.String("shots", "", "directory to write pictures of pages into; empty: none")
)

const patience = 60 * time.Second

// browser starts Chromium, or skips the test.
func browser(t *testing.T) context.Context {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		t.Skip("not run: Chromium is not installed (Debian: apt-get install chromium)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.WSURLReadTimeout(patience))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox does not run as root
	}
	allocator, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	quiet := func(string, ...any) {} // it knows fewer events than newer browsers send
	ctx, stopTab := chromedp.NewContext(allocator, chromedp.WithErrorf(quiet), chromedp.WithLogf(quiet))
	t.Cleanup(stopTab)
	return ctx
}

type tab struct {
	t      *testing.T
	ctx    context.Context
	target *chromedp.Target
	root   string
}

// open opens a tab. Whatever the browser reports fails the test: an exception, a
// violation of the policy, a request that fails or goes to another host.
func open(t *testing.T, root string) *tab {
	t.Helper()
	b := &tab{t: t, ctx: browser(t), root: root}
	// The browser lives as long as the context of the first call.
	if err := chromedp.Do(b.ctx, chromedp.Func(func(_ context.Context, target *chromedp.Target) error {
		b.target = target
		return nil
	})); err != nil {
		t.Fatal(err)
	}
	b.on("Network.requestWillBeSent", func(e event) {
		if u := e.Request.URL; !strings.HasPrefix(u, root+"/") && !strings.HasPrefix(u, "data:") && u != "about:blank" && !favicon(u) {
			t.Errorf("a request to %s", u)
		}
	})
	b.on("Network.responseReceived", func(e event) {
		if e.Response.Status >= http.StatusBadRequest && !favicon(e.Response.URL) {
			t.Errorf("%s: %d", e.Response.URL, e.Response.Status)
		}
	})
	b.on("Log.entryAdded", func(e event) {
		if e.Entry.Level == "error" && e.Entry.Source != "network" {
			t.Errorf("%s: %s", e.Entry.Source, e.Entry.Text)
		}
	})
	b.on("Runtime.exceptionThrown", func(e event) { t.Errorf("an exception: %s", e.ExceptionDetails) })
	for _, domain := range []string{"Network", "Log", "Runtime", "Page"} {
		b.call(domain+".enable", nil)
	}
	return b
}

// favicon reports what browsers want for plain text.
func favicon(url string) bool { return strings.HasSuffix(url, "/favicon.ico") }

// event has what is read of the events of the browser's protocol.
type event struct {
	Request, Response struct {
		URL    string
		Status int
	}
	Entry            struct{ Level, Source, Text string }
	ExceptionDetails json.RawMessage
}

func (b *tab) on(method string, f func(event)) {
	events, stop := b.target.Subscribe(method)
	done := make(chan struct{})
	b.t.Cleanup(func() { stop(); <-done })
	go func() {
		defer close(done)
		for v := range events {
			var e event
			if err := json.Unmarshal(v, &e); err == nil {
				f(e)
			}
		}
	}()
}

func (b *tab) call(method string, params any) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := b.target.Call(ctx, method, params, nil); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	fatal.If(b.t, chromedp.Do(ctx, actions...))
}

// look is "light" or "dark", and a width in px.
type look struct {
	colors string
	width  int64
}

func (b *tab) look(l look) {
	b.do(chromedp.EmulateViewport(l.width, 900))
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": l.colors}}})
}

func (b *tab) visit(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.root + "/" + path))
	b.until("document.querySelector('#app').__vue_app__ && document.querySelector('h1')") // Vue has taken over the page
}

func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%.200s: %v", expression, err)
	}
	return v
}

func (b *tab) until(expression string) {
	b.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if ok && err == nil { // an error: the page is being loaded
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("not within %v: %s\nThe page shows %.500s", patience, expression, eval[string](b, "document.body.innerText"))
		}
	}
}

func (b *tab) shot(name string) {
	b.t.Helper()
	if *shots == "" {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.MkdirAll(*shots, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(*shots, name+".png"), png, 0o644)
	}
	if err != nil {
		b.t.Error(err)
	}
}

// serve returns the address of the site, without its last slash.
func serve(t *testing.T) string {
	t.Helper()
	below := strings.TrimSuffix(base, "/")
	s := httptest.NewServer(http.StripPrefix(below, http.FileServer(http.Dir(*site))))
	t.Cleanup(s.Close)
	return s.URL + below
}

// kinds returns the front page and a page of each kind.
func kinds(t *testing.T) []string {
	t.Helper()
	chosen, size := map[string]string{}, map[string]int{} // of each directory
	for _, name := range sources(t) {
		dir := filepath.Dir(name)
		if n := len(read(t, filepath.Join("../..", name))); *long && n > size[dir] || !*long && size[dir] == 0 && strings.HasPrefix(name, "docs/") {
			chosen[dir], size[dir] = page(name), n
		}
	}
	return append(slices.Sorted(maps.Values(chosen)), "index.html")
}

// Pages fit a phone, and axe-core finds nothing serious, in light and in dark.
func TestReadable(t *testing.T) {
	axe, err := os.ReadFile("../../bin/site/node_modules/axe-core/axe.min.js")
	fatal.If(t, err)
	b := open(t, serve(t))
	looks := []look{{"light", 1400}, {"dark", 375}}
	if *long {
		looks = append(looks, look{"dark", 1400}, look{"light", 375})
	}
	for _, look := range looks {
		b.look(look)
		for _, name := range kinds(t) {
			b.visit(name)
			b.shot(fmt.Sprintf("%s-%s-%d", strings.ReplaceAll(strings.TrimSuffix(name, ".html"), "/", "-"), look.colors, look.width))
			if wide := eval[int64](b, "document.documentElement.scrollWidth"); wide > look.width {
				t.Errorf("%s is %d px wide on a screen of %d", name, wide, look.width)
			}
			eval[int](b, string(axe)+"; 1")
			for _, found := range eval[[]struct {
				ID, Impact, Help string
				Nodes            []struct{ HTML, FailureSummary string }
			}](b, `axe.run(document, { preload: false, resultTypes: ["violations"] }).then((r) => JSON.parse(JSON.stringify(r.violations)))`) {
				if found.Impact != "serious" && found.Impact != "critical" {
					continue // of the documents: a step of two levels between headings, a table without a header
				}
				t.Errorf("%s, %s, %d: %s: %s (%s), %d times, first %s\n%s", name, look.colors, look.width, found.Impact, found.Help, found.ID, len(found.Nodes), found.Nodes[0].HTML, found.Nodes[0].FailureSummary)
			}
		}
	}
}

// The search finds the title of a page of each kind, and leads there.
func TestSearch(t *testing.T) {
	b := open(t, serve(t))
	for _, name := range kinds(t) {
		if name == "index.html" {
			continue // its title, the name of the program, is in every page
		}
		b.visit(name)
		title := eval[string](b, "document.querySelector('h1').innerText.replace('\u200b', '').trim()")
		b.do(chromedp.Click(chromedp.CSS(".DocSearch-Button")), chromedp.SendKeys(chromedp.CSS(".search-input"), title))
		if strings.HasPrefix(name, "docs/decisions/") {
			name = "docs/decisions/index.html" // the list of decisions has their titles
		}
		result := fmt.Sprintf(".results a[href^='%s%s']", base, strings.TrimSuffix(name, "index.html"))
		b.until(fmt.Sprintf("document.querySelector(%q)", result))
		b.shot("search-" + strings.ReplaceAll(strings.TrimSuffix(name, ".html"), "/", "-"))
		b.do(chromedp.Navigate("about:blank"))
	}
}

// The search shows what to do above why it is so.
func TestSearchOrder(t *testing.T) {
	b := open(t, serve(t))
	for _, words := range []string{"watermark", "fence", "clock step", "workers", "era", "restore", "token", "drain", "sid range", "epoch", "window", "gossip key", "postgres", "kubernetes", "redis", "uuid", "layout", "duplicate", "standby", "upgrade"} {
		b.visit("index.html")
		b.do(chromedp.Click(chromedp.CSS(".DocSearch-Button")), chromedp.SendKeys(chromedp.CSS(".search-input"), words))
		b.until("document.querySelectorAll('.results a').length > 3")
		first := eval[string](b, "new URL(document.querySelector('.results a').href).pathname")
		if strings.HasPrefix(first, base+"docs/decisions/") && first != base+"docs/decisions/" {
			t.Errorf("the first result for %q is %s", words, first)
		}
		b.do(chromedp.Navigate("about:blank"))
	}
}

// A link between pages, and the one to their Markdown, work when they are clicked.
func TestClick(t *testing.T) {
	b := open(t, serve(t))
	b.visit("index.html")
	b.do(chromedp.Click(chromedp.CSS(`.vp-doc a[href$="docs/DESIGN.html#claims"]`)))
	b.until("location.pathname === '" + base + "docs/DESIGN.html' && document.querySelector('h1').innerText.includes('Design')")
	b.do(chromedp.Click(chromedp.CSS("a.markdown")))
	b.until("location.pathname === '" + base + "docs/DESIGN.md'")
	if got := eval[string](b, "document.body.innerText"); !strings.HasPrefix(got, "# ") {
		t.Errorf("the Markdown begins with %.100q", got)
	}
}

// The menu leads to the page of the simulation, which runs under its own policy, and on to a rule.
func TestPlay(t *testing.T) {
	b := open(t, serve(t))
	b.visit("index.html")
	b.do(chromedp.Click(chromedp.CSS(".VPNavBarMenu a[href$='/play/']")))
	b.until("location.pathname === '" + base + "play/' && stepAt === 0 && view.ids > 0")
	b.shot("play")
	b.do(chromedp.Click(chromedp.CSS("#rules input[value=ceiling]")))
	b.until("rule === 'ceiling' && view.now > 0")
}
