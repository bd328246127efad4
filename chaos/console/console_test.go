package console

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var (
	long  = flag.Bool("long", false, "also what takes minutes")
	shots = flag.String("shots", "", "directory for screenshots; empty: none")
)

// chromium returns the program, or skips the test.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("not run: no Chromium is installed (Debian: apt-get install chromium)")
	return ""
}

// cluster is a running "allocator dev".
type cluster struct {
	console string // URL
	api     string // host:port of the first node
	cmd     *exec.Cmd
}

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "console-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "allocator")
	out, err := exec.Command("go", "-C", "../..", "build", "-o", path, "./cmd/allocator").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func start(t *testing.T, args ...string) *cluster {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{cmd: exec.Command(path, append([]string{"dev", "--http-port", "0", "--grpc-port", "0", "--format", "json"}, args...)...)}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Signal(syscall.SIGCONT)
		_ = c.cmd.Process.Signal(os.Interrupt)
		_ = c.cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("dev printed nothing")
	}
	var line struct{ Console, HTTP string }
	if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	c.console, c.api = line.Console, line.HTTP
	go func() {
		for lines.Scan() {
		}
	}()
	return c
}

// tab is a tab of a browser that notes what goes wrong on a page.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu   sync.Mutex
	bad  []string
	away bool // failed requests are expected
}

func open(t *testing.T) *tab {
	t.Helper()
	path := chromium(t)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WindowSize(1160, 900))
	ctx, stop := chromedp.NewExecAllocator(t.Context(), options...)
	ctx, end := chromedp.NewContext(ctx)
	b := &tab{t: t, ctx: ctx}
	t.Cleanup(func() {
		end()
		stop()
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, what := range b.bad {
			t.Errorf("the browser reports: %s", what)
		}
	})
	chromedp.ListenTarget(ctx, func(e any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			b.bad = append(b.bad, e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if e.Entry.Level == log.LevelError && !(b.away && e.Entry.Source == log.SourceNetwork) {
				b.bad = append(b.bad, string(e.Entry.Source)+": "+e.Entry.Text+" "+e.Entry.URL)
			}
		case *page.EventJavascriptDialogOpening:
			b.bad = append(b.bad, "a dialog: "+e.Message)
		}
	})
	b.do(log.Enable(), runtime.Enable(), page.Enable())
	return b
}

func (b *tab) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// eval returns the value of an expression in the page.
func eval[T any](b *tab, js string) (out T) {
	b.t.Helper()
	b.do(chromedp.Evaluate(js, &out, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	return out
}

// until waits for an expression to be true and returns how long it took.
func (b *tab) until(what, js string, within time.Duration) time.Duration {
	b.t.Helper()
	began := time.Now()
	for !eval[bool](b, js) {
		if time.Since(began) > within {
			b.t.Fatalf("%s: not within %v; the page says %q", what, within, eval[string](b, "document.querySelector('main').innerText"))
		}
		time.Sleep(50 * time.Millisecond)
	}
	b.t.Logf("%s after %v", what, time.Since(began).Round(10*time.Millisecond))
	return time.Since(began)
}

func (b *tab) shot(name string) {
	b.t.Helper()
	if *shots == "" {
		return
	}
	var png []byte
	b.do(chromedp.FullScreenshot(&png, 100))
	if err := os.MkdirAll(*shots, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*shots, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) expectAway(away bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away = away
}

func press(action, target string) string {
	return fmt.Sprintf(`document.querySelector('.card input[value=%q]').form.querySelector('button[value=%q]').click()`, target, action)
}

const live = `document.querySelector("#live").textContent === "live"`

// TestSkew is what a newcomer sees first: a node whose clock is wrong turns red and
// refuses, the others serve, no ID comes twice, and repairing heals it.
func TestSkew(t *testing.T) {
	b, c := open(t), start(t)
	b.do(chromedp.Navigate(c.console + "break"))
	answers := func(a string) string {
		return fmt.Sprintf(`document.querySelector("[data-node=node-2]").dataset.answer === %q`, a)
	}
	b.until("node 2 serves", live+"&&"+answers("OK"), 20*time.Second)
	b.do(chromedp.Evaluate(press("skew", "node-2"), nil))
	if took := b.until("it refuses", answers("CLOCK_SKEW"), 15*time.Second); took > 5*time.Second {
		t.Errorf("after %v, want 5 s", took)
	}
	b.until("its row is red", `[...document.querySelectorAll("#sids tr")].some((r) => r.dataset.state === "refusing" && r.cells[2].textContent === "node-2")`, 5*time.Second)
	if !eval[bool](b, `["node-1", "node-3"].every((n) => document.querySelector("[data-node=" + n + "]").dataset.answer === "OK")`) {
		t.Error("another node does not serve")
	}
	if got := eval[string](b, `document.querySelector("#summary .text").textContent`); !strings.HasPrefix(got, "node-2: the clock is wrong") {
		t.Errorf("the sentence is %q", got)
	}
	b.shot("break-red")
	b.do(chromedp.Evaluate(press("repair", "node-2"), nil))
	b.until("it is healed", answers("OK"), 60*time.Second)
	if n := eval[string](b, `document.querySelector("[data-broken=duplicates]").textContent`); n != "0" {
		t.Errorf("%s duplicates", n)
	}
}

// TestPages: each page shows in light and dark, without errors of the browser, and with
// nothing serious that axe-core finds; and what it shows is what the API answers.
func TestPages(t *testing.T) {
	b, c := open(t), start(t)
	axe := axeCore(t)
	for _, name := range []string{"", "clocks", "node", "ids?ids=02MVRE9MT10N2", "ids", "events", "operate", "break", "login"} {
		for _, scheme := range []string{"light", "dark"} {
			b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
				chromedp.Navigate(c.console+name))
			if name != "login" {
				b.until(name+" is live", live, 10*time.Second)
			}
			short, _, _ := strings.Cut(name, "?")
			b.shot(short + "-" + scheme)
			if axe == "" {
				continue
			}
			b.do(chromedp.Evaluate(axe, nil))
			found := eval[string](b, `axe.run().then((r) => r.violations.filter((v) => ["serious", "critical"].includes(v.impact)).map((v) => v.id + ": " + v.nodes.map((n) => n.target + " " + n.failureSummary).join("; ")).join("\n"))`)
			if found != "" {
				t.Errorf("axe-core, %q %s: %s", name, scheme, found)
			}
		}
	}
	b.do(chromedp.Navigate(c.console))
	b.until("pool is live", live+`&& document.querySelectorAll("#sids tbody tr[data-key]").length === 3`, 10*time.Second)
	shown := eval[string](b, `[...document.querySelectorAll("#sids tbody tr")].map((r) => [r.cells[0].textContent, r.cells[2].textContent, r.cells[3].textContent].join(" ")).join("\n")`)
	res, err := http.Get("http://" + c.api + "/v1/cluster")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct {
		SIDs []struct {
			SID, Term int
			Node      string
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, s := range answer.SIDs {
		want = append(want, fmt.Sprintf("%d %s %d", s.SID, s.Node, s.Term))
	}
	if shown != strings.Join(want, "\n") {
		t.Errorf("the page shows\n%s\nthe API answers\n%s", shown, strings.Join(want, "\n"))
	}
}

// axeCore returns the source of axe-core; "" where npm cannot get it.
func axeCore(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", dir, "axe-core@4.14.1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Logf("axe-core is not run: npm: %v %s", err, out)
		return ""
	}
	source, err := os.ReadFile(filepath.Join(dir, "node_modules/axe-core/axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	return string(source) + ";0"
}

// TestStale: a page whose node hangs says so within 5 s, and goes on without a gap.
func TestStale(t *testing.T) {
	b, c := open(t), start(t)
	b.do(chromedp.Navigate(c.console + "events"))
	b.until("live", live, 10*time.Second)
	b.expectAway(true)
	if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if took := b.until("stale", `document.body.classList.contains("stale") && document.querySelector("#live").textContent === "stale"`, 8*time.Second); took > 5*time.Second {
		t.Errorf("after %v, want 5 s", took)
	}
	time.Sleep(3 * time.Second) // the page opens its stream again, to nobody
	if err := c.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	b.until("live again", live, 15*time.Second)
	before := eval[int](b, `document.querySelectorAll("#events tbody tr").length`)
	if res, err := http.PostForm(c.console+"break", map[string][]string{"action": {"skew"}, "target": {"node-2"}}); err != nil || res.StatusCode != 200 {
		t.Fatal(err)
	}
	b.until("new events", fmt.Sprintf(`document.querySelectorAll("#events tbody tr").length > %d`, before), 15*time.Second)
	if gap := eval[string](b, `(() => {
		const n = [...document.querySelectorAll("#events tbody tr")].map((r) => Number(r.dataset.key.split("-").pop()));
		for (let i = 1; i < n.length; i++) if (n[i] !== n[i - 1] - 1) return n.join(" ");
		return "";
	})()`); gap != "" {
		t.Errorf("events are missing or twice: %s", gap)
	}
}

// TestNoJavaScript: pages are tables without it, and their buttons are forms.
func TestNoJavaScript(t *testing.T) {
	b, c := open(t), start(t)
	b.do(emulation.SetScriptExecutionDisabled(true))
	for path, want := range map[string]string{"": "#sids tr[data-key]", "clocks": "#clocks tr[data-key]", "node": "#conditions tr", "events": "#events tr[data-key]", "break": ".card button"} {
		var html string
		b.do(chromedp.Navigate(c.console+path), chromedp.WaitReady(want), chromedp.OuterHTML("main", &html))
		if !strings.Contains(html, "node-") && path != "node" {
			t.Errorf("%q shows no node", path)
		}
	}
	b.do(chromedp.Click(`.card[data-node=node-2] button[value=back]`), chromedp.WaitReady(".card"))
	var faults string
	b.do(chromedp.Text(`.card[data-node=node-2] .faults`, &faults))
	if !strings.Contains(faults, "set back 1h") {
		t.Errorf("the button did %q", faults)
	}
}

// TestEtcdStops: the windows end before everybody's eyes.
func TestEtcdStops(t *testing.T) {
	if !*long {
		t.Skip("not run: it takes a minute; give -long")
	}
	b, c := open(t), start(t)
	b.do(chromedp.Navigate(c.console + "break"))
	b.until("live", live, 10*time.Second)
	b.do(chromedp.Evaluate(press("stop", "etcd"), nil))
	b.until("the sentence says so", `document.querySelector("#summary").textContent.includes("etcd does not answer")`, 15*time.Second)
	b.until("windows have ended", `(() => { const r = [...document.querySelectorAll("#sids tr[data-key]")]; return r.length > 0 && r.every((r) => r.cells[6].textContent === "WINDOW_EXHAUSTED" && r.cells[4].textContent === "0.0 s"); })()`, 45*time.Second)
	b.until("and nodes refuse", `[...document.querySelectorAll(".card[data-node]")].every((c) => c.dataset.answer === "WINDOW_EXHAUSTED")`, 10*time.Second)
	b.shot("etcd-stopped")
	b.do(chromedp.Evaluate(press("repair", "etcd"), nil))
	b.until("they serve again", `[...document.querySelectorAll(".card[data-node]")].every((c) => c.dataset.answer === "OK")`, 60*time.Second)
}
