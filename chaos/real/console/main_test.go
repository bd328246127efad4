package console

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/devtest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/status"
)

var long = flag.Bool("long", false, "pages of the simulation, and more pages of the site")

// patience bounds each wait. What the console promises is measured by the page's clock.
const patience = 90 * time.Second

// programs is the directory that programs are built into.
var programs string

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // most of them wait for the browser
	flag.Parse()
	dir, err := os.MkdirTemp("", "console")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = dir
	code := m.Run()
	stopBrowser()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// ---- the browser

var (
	stopBrowser  = func() {}
	startBrowser = sync.OnceValues(func() (context.Context, error) {
		path := ""
		for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
			if found, err := exec.LookPath(name); err == nil {
				path = found
				break
			}
		}
		if path == "" {
			return nil, exec.ErrNotFound
		}
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.WindowSize(1400, 1000),
			chromedp.WSURLReadTimeout(patience))
		if os.Getuid() == 0 {
			options = append(options, chromedp.NoSandbox) // Chromium's sandbox does not run as root
		}
		allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
		quiet := func(string, ...any) {} // it knows fewer events than newer browsers send
		ctx, stopTab := chromedp.NewContext(allocator, chromedp.WithErrorf(quiet), chromedp.WithLogf(quiet))
		stopBrowser = func() { stopTab(); stop() }
		return ctx, chromedp.Do(ctx)
	})
)

//go:embed testdata/probe.js
var probe string

// page is a tab of its own browser profile.
type page struct {
	t     *testing.T
	ctx   context.Context
	tab   *chromedp.Target
	root  string // scheme, host and port of the console
	below string // path of its pages, with both slashes
	plain bool   // scripts do not run, the probe included

	mu       sync.Mutex
	problems []string // that the browser reported
	linked   string   // root of the node that a link leads to; "": none
}

// option changes a tab before it loads anything.
type option func(*page)

func withoutScripts(p *page) {
	p.plain = true
	p.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
}

func light(p *page) { p.scheme("light") }
func dark(p *page)  { p.scheme("dark") }

func (p *page) scheme(name string) {
	p.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": name}}}, nil)
}

// browser returns Chromium, or skips the test.
func browser(t *testing.T) context.Context {
	t.Helper()
	ctx, err := startBrowser()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("not run: Chromium is not installed (Debian: apt-get install chromium)")
	}
	if err != nil {
		t.Fatalf("Chromium did not start: %v", err)
	}
	return ctx
}

// open opens a path of the console at root. At the end of the test the browser must have
// reported nothing: no violation of the policy, no exception, no dialog, and no request
// to anywhere else.
func open(t *testing.T, root, path string, options ...option) *page {
	t.Helper()
	ctx, closeTab := chromedp.NewContext(browser(t), chromedp.WithNewBrowserContext())
	p := &page{t: t, ctx: ctx, root: strings.TrimSuffix(root, "/console/"), below: "/console/"}
	if err := chromedp.Do(ctx, chromedp.Func(func(_ context.Context, tab *chromedp.Target) error {
		p.tab = tab
		return nil
	})); err != nil {
		t.Fatal(err)
	}
	p.listen()
	for _, domain := range []string{"Log", "Audits", "Network", "Runtime", "Page"} {
		p.call(domain+".enable", nil, nil)
	}
	for _, o := range options {
		o(p)
	}
	if !p.plain {
		p.call("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": probe}, nil)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			violations, _ := chromedp.Run(ctx, chromedp.Evaluate[[]string]("window.probe ? probe.violations : []"))
			for _, v := range violations {
				p.problem("securitypolicyviolation " + v)
			}
		}
		closeTab()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, problem := range p.problems {
			t.Errorf("the browser reports: %s", problem)
		}
	})
	p.visit(path)
	return p
}

// maxProblems is how many a failure lists of one page.
const maxProblems = 5

func (p *page) problem(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.problems) < maxProblems {
		p.problems = append(p.problems, text)
	}
}

// listen notes what a page must not do.
func (p *page) listen() {
	on(p, "Log.entryAdded", func(e struct {
		Entry struct{ Level, Source, Text string }
	}) {
		if s := e.Entry.Source; s == "security" || s == "violation" || s == "javascript" || e.Entry.Level == "error" && s != "network" {
			p.problem(s + ": " + e.Entry.Text)
		}
	})
	on(p, "Audits.issueAdded", func(e struct {
		Issue struct {
			Code    string
			Details json.RawMessage
		}
	}) {
		if e.Issue.Code == "ContentSecurityPolicyIssue" {
			p.problem(e.Issue.Code + ": " + string(e.Issue.Details))
		}
	})
	on(p, "Runtime.exceptionThrown", func(e struct{ ExceptionDetails json.RawMessage }) {
		p.problem("an exception: " + string(e.ExceptionDetails))
	})
	on(p, "Page.javascriptDialogOpening", func(e struct{ Message string }) {
		p.problem("a dialog: " + e.Message)
		p.call("Page.handleJavaScriptDialog", map[string]any{"accept": true}, nil)
	})
	on(p, "Network.requestWillBeSent", func(e struct{ Request struct{ URL string } }) {
		p.mu.Lock()
		linked := p.linked
		p.mu.Unlock()
		if u := e.Request.URL; !strings.HasPrefix(u, p.root+"/") && !strings.HasPrefix(u, "data:") && u != "about:blank" && (linked == "" || !strings.HasPrefix(u, linked)) {
			p.problem("a request to " + u)
		}
	})
}

// on calls f with each event of the browser's protocol of one kind.
func on[E any](p *page, method string, f func(E)) {
	events, stop := p.tab.Subscribe(method)
	go func() {
		defer stop()
		for {
			select {
			case v, ok := <-events:
				if !ok {
					return
				}
				var e E
				if err := json.Unmarshal(v, &e); err != nil {
					p.problem(fmt.Sprintf("%s is not understood: %v", method, err))
					continue
				}
				f(e)
			case <-p.ctx.Done():
				return
			}
		}
	}()
}

// call sends a command of the browser's protocol.
func (p *page) call(method string, params, result any) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := p.tab.Call(ctx, method, params, result); err != nil && p.ctx.Err() == nil {
		p.t.Errorf("%s: %v", method, err)
	}
}

// run carries actions out, or ends the test.
func (p *page) run(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	fatal.If(p.t, chromedp.Do(ctx, actions...))
}

func (p *page) visit(path string) {
	p.t.Helper()
	p.run(chromedp.Navigate(p.root + p.below + path))
}

// eval returns the value of an expression.
func eval[T any](p *page, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%.200s: %v", expression, err)
	}
	return v
}

// until waits for an expression to be true.
func (p *page) until(expression string) {
	p.t.Helper()
	p.poll(expression, func() (bool, error) {
		return chromedp.Run(p.ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
	})
}

// poll waits for f to be true, which is what the expression says.
func (p *page) poll(expression string, f func() (bool, error)) {
	p.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if ok, err := f(); ok && err == nil { // an error: the page is being loaded
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("not within %v: %s\nThe page shows %s", patience, expression, eval[string](p, "document.body.innerText"))
		}
	}
}

// press clicks a button of "Break it" as a person does.
func (p *page) press(target, action string) {
	p.t.Helper()
	card := fmt.Sprintf(".card[data-node=%q]", target)
	if target == "etcd" {
		card = ".card.etcd"
	}
	button := chromedp.CSS(fmt.Sprintf("%s button[value=%q]", card, action))
	p.run(chromedp.WaitEnabled(button), chromedp.ScrollIntoView(button), chromedp.Click(button))
}

func click(selector string) chromedp.Action[chromedp.Void] {
	return chromedp.Click(chromedp.CSS(selector))
}

func sendKeys(selector, keys string) chromedp.Action[chromedp.Void] {
	return chromedp.SendKeys(chromedp.CSS(selector), keys)
}

// shown is what a page shows.
type shown struct {
	Tables  map[string][]row             `json:"tables"`
	Tiles   map[string]string            `json:"tiles"`
	Cards   map[string]map[string]string `json:"cards"`
	Counter map[string]string            `json:"counter"`
	Summary string                       `json:"summary"`
	Level   string                       `json:"level"`
	Stale   bool                         `json:"stale"`
	Live    string                       `json:"live"`
}

type row struct {
	Key   string   `json:"key"`
	State string   `json:"state"`
	Cells []string `json:"cells"`
}

func (p *page) read() shown {
	p.t.Helper()
	return eval[shown](p, "probe.read()")
}

// mark is something that a page did, in ms by its clock.
type mark struct {
	T     float64 `json:"t"`
	In    string  `json:"in"`
	Key   string  `json:"key"`
	Name  string  `json:"name"`
	Value string  `json:"value"`
}

// marks are those of the page that match.
func (p *page) marks(match func(mark) bool) (out []mark) {
	p.t.Helper()
	for _, m := range eval[[]mark](p, "probe.log") {
		if match(m) {
			out = append(out, m)
		}
	}
	return out
}

// first returns the first mark from a time on that matches.
func (p *page) first(from float64, what string, match func(mark) bool) mark {
	p.t.Helper()
	list := p.marks(func(m mark) bool { return m.T >= from && match(m) })
	if len(list) == 0 {
		p.t.Fatalf("the page never showed %s", what)
	}
	return list[0]
}

// ---- the cluster

// buildDev builds the allocator with its dev command once.
var buildDev = sync.OnceValues(func() (string, error) {
	return build.Allocator(context.Background(), programs)
})

// cluster is a running "allocator dev".
type cluster struct {
	t       *testing.T
	nodes   []member
	console string // of no node: it stays when one is killed
}

type member struct{ devtest.Node }

// own is the console that the node itself serves.
func (m member) own() string { return "http://" + m.Admin + "/console/" }

// dev starts a cluster of three nodes, which ends with the test.
func dev(t *testing.T) *cluster {
	t.Helper()
	browser(t)
	path, err := buildDev()
	fatal.If(t, err)
	c := &cluster{t: t}
	for _, n := range devtest.Dev(t, path, 3) {
		c.nodes, c.console = append(c.nodes, member{n}), n.Console
	}
	return c
}

// settle waits until all is well: a node that has just started does not know all others.
func (c *cluster) settle() {
	c.t.Helper()
	wait.NoError(c.t, "all is well", func() error {
		if s := getJSON[status.Cluster](c.t, "http://"+c.nodes[0].HTTP+"/v1/cluster").Summary; s.Level != "ok" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// get returns the answer to a GET request.
func get(t *testing.T, url string) []byte {
	t.Helper()
	res, err := http.Get(url)
	fatal.If(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	fatal.If(t, err)
	return body
}

// getJSON decodes the answer to a GET request.
func getJSON[T any](t *testing.T, url string) (v T) {
	t.Helper()
	body := get(t, url)
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%s: %v\n%.300s", url, err, body)
	}
	return v
}

// issue asks a node for IDs and returns the status, and the reason of a refusal.
func (m member) issue(t *testing.T, count int) (status int, reason string) {
	t.Helper()
	res, err := http.Post(fmt.Sprintf("http://%s/v1/ids?count=%d", m.HTTP, count), "", nil)
	fatal.If(t, err)
	defer res.Body.Close()
	var problem struct {
		Reason string `json:"reason"`
	}
	_ = json.NewDecoder(res.Body).Decode(&problem)
	return res.StatusCode, problem.Reason
}
