package console

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/status/feed"
)

// TestFeedKilled: a page is stale within 5 s of the last sign of life, and current again
// when the cluster goes on.
func TestFeedKilled(t *testing.T) {
	t.Parallel()
	c := dev(t)
	p := open(t, c.nodes[0].own(), "pool")
	p.until(`probe.snapshots > 1 && !document.body.classList.contains("stale")`)
	fatal.If(t, c.nodes[0].Signal(syscall.SIGSTOP))
	resume := sync.OnceFunc(func() { fatal.If(t, c.nodes[0].Signal(syscall.SIGCONT)) })
	t.Cleanup(resume)
	p.until(`document.body.classList.contains("stale")`)
	heard := eval[float64](p, "probe.heard")
	stale := p.marks(func(m mark) bool { return m.Name == "class" && m.Value == "stale" })
	after := (stale[len(stale)-1].T - heard) / 1e3
	t.Logf("stale %.1f s after the last sign of life", after)
	if s := p.read(); after > 5 || !strings.HasPrefix(s.Live, "stale") {
		t.Errorf("after %.1f s it shows %q", after, s.Live)
	}
	for _, element := range []string{"#summary .mark", "#sids .tag", "#sids .fill"} {
		rgb := eval[[]int](p, `((s) => (s.fill === "rgb(0, 0, 0)" ? s.backgroundColor : s.fill).match(/\d+/g).map(Number))(getComputedStyle(document.querySelector("`+element+`")))`)
		if len(rgb) < 3 || rgb[1] > rgb[0]+20 && rgb[1] > rgb[2]+10 {
			t.Errorf("%s of a stale page is green: %v", element, rgb)
		}
	}
	resume()
	p.until(`!document.body.classList.contains("stale") && document.querySelector("#live").textContent === "live"`)
	p.until(`document.querySelector("#summary").classList.contains("ok")`)
}

// proxy is between a browser and a node, and can be cut.
type proxy struct {
	*httptest.Server
	cut atomic.Bool

	mu    sync.Mutex
	after []string // where each stream was to begin
}

func newProxy(t *testing.T, target string) *proxy {
	to, err := url.Parse(target)
	fatal.If(t, err)
	p := &proxy{}
	forward := &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host }}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.cut.Load() {
			panic(http.ErrAbortHandler)
		}
		if r.URL.Path == "/console/feed" {
			after := r.Header.Get("Last-Event-ID")
			if after == "" {
				after = r.URL.Query().Get("after")
			}
			p.mu.Lock()
			p.after = append(p.after, after)
			p.mu.Unlock()
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Server.Close)
	return p
}

// TestReconnect: a page whose connection broke shows every event that happened meanwhile,
// and goes on from the last that it had.
func TestReconnect(t *testing.T) {
	t.Parallel()
	c := dev(t)
	between := newProxy(t, "http://"+c.nodes[0].Admin)
	p := open(t, between.URL, "events")
	p.until(`probe.snapshots > 0`)
	last := eval[string](p, `document.querySelector("#events tbody tr").dataset.key`)

	between.cut.Store(true)
	between.CloseClientConnections()
	p.until(`document.body.classList.contains("stale")`)
	res, err := http.PostForm(strings.TrimSuffix(c.console, "/")+"/break", url.Values{"target": {"node-3"}, "action": {"skew"}})
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%v %v", res, err)
	}
	_ = res.Body.Close()
	all := func() []feed.Event {
		return eventsOf(t, c.nodes[0])
	}
	for had := len(all()); len(all()) < had+2; { // node-3 is found wrong
	}
	between.cut.Store(false)
	want := all()
	p.until(fmt.Sprintf(`probe.ids.at(-1).split("-").at(-1) >= %s`, number(want[len(want)-1].ID)))
	p.until(`!document.body.classList.contains("stale")`)

	between.mu.Lock()
	after := slices.Clone(between.after)
	between.mu.Unlock()
	if len(after) < 2 || after[len(after)-1] != last {
		t.Errorf("the streams began after %q, want the last one after %q", after, last)
	}
	rows := p.read().Tables["events"]
	slices.Reverse(rows)
	want = all()[:len(rows)]
	for i, e := range want {
		if rows[i].Key != e.ID || rows[i].Cells[4] != e.Message || rows[i].Cells[2] != e.Node {
			t.Errorf("row %d is %q, the event is %+v", i, rows[i], e)
		}
	}
	if n, _ := strconv.Atoi(number(rows[len(rows)-1].Key)); n != len(rows) {
		t.Errorf("%d rows, the last is event %d", len(rows), n)
	}
	if missed := eval[string](p, `document.querySelector("#missed").textContent`); missed != "" {
		t.Errorf("the page says %q", missed)
	}
}

// number returns the number of an event of its process.
func number(id string) string { return id[strings.LastIndexByte(id, '-')+1:] }

// eventsOf reads all events from the API until its first heartbeat.
func eventsOf(t *testing.T, m member) (out []feed.Event) {
	t.Helper()
	for e := range streamOf(t, "http://"+m.HTTP+"/v1/events") {
		if e.kind == "heartbeat" {
			return out
		}
		if e.kind == "event" {
			out = append(out, decode[feed.Event](t, e.data))
		}
	}
	return out
}
