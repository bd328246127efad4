package console

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server/console"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/status/feed"
	"github.com/flakelease/allocator/internal/status/trend"
)

// event is one of a stream.
type event struct{ kind, data string }

// streamOf yields the events of a stream until the loop ends.
func streamOf(t *testing.T, url string) iter.Seq[event] {
	return func(yield func(event) bool) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		fatal.If(t, err)
		res, err := http.DefaultClient.Do(req)
		fatal.If(t, err)
		defer res.Body.Close()
		var e event
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			switch field, value, _ := strings.Cut(lines.Text(), ": "); field {
			case "event":
				e.kind = value
			case "data":
				e.data = value
			case "":
				if e.kind != "" && !yield(e) {
					return
				}
				e = event{}
			}
		}
	}
}

func decode[T any](t *testing.T, text string) (v T) {
	t.Helper()
	fatal.If(t, json.Unmarshal([]byte(text), &v))
	return v
}

// served is a console of a snapshot that the test changes.
type served struct {
	*httptest.Server
	feed    *feed.Feed
	console *console.Console

	mu       sync.Mutex
	snapshot status.Cluster
}

// serve serves a console of a snapshot, with streams and clocks.
func serve(t *testing.T, s status.Cluster, change ...func(*console.Config)) *served {
	t.Helper()
	out := &served{feed: feed.New(feed.Config{Boot: "boot"}), snapshot: s}
	src := clock.NewSystem(nil)
	snapshot := func(context.Context) status.Cluster {
		out.mu.Lock()
		defer out.mu.Unlock()
		now := out.snapshot
		now.Self.Now = int64(src.Now().Wall)
		now.Read = now.Self.Now
		now.Judge()
		return now
	}
	cfg := console.Config{
		Snapshot: snapshot,
		Since: func(c status.Cluster) map[string]int64 {
			since := map[string]int64{}
			for _, n := range c.Nodes {
				since[n.Instance] = c.Self.Now
			}
			return since
		},
		FalseSince: func() map[string]int64 { return nil },
		Describe: func(_ context.Context, text, _ string) (status.Decoded, error) {
			return status.Decoded{Problem: text}, nil
		},
		Node: node.New(node.Config{Name: s.Self.Name, Instance: "a"}, src, rand.NewPCG(1, 2)),
		Feed: out.feed, Format: flake.Default,
	}
	for _, f := range change {
		f(&cfg)
	}
	out.console = console.New(cfg)
	for i := range 3 {
		c := snapshot(t.Context())
		c.Self.Now += int64(i-2) * trend.Every.Milliseconds()
		out.console.Add(c)
	}
	out.Server = httptest.NewServer(out.console)
	t.Cleanup(func() {
		out.feed.End()
		out.Close()
	})
	return out
}

// send gives the streams a new snapshot, once there is one.
func (s *served) send(t *testing.T) {
	t.Helper()
	wait.Until(t, "a page opens a stream", func() bool {
		streams, _ := s.feed.Watching()
		return streams > 0
	})
	s.mu.Lock()
	now := s.snapshot
	s.mu.Unlock()
	now.Self.Now = time.Now().UnixMilli()
	now.Read = now.Self.Now
	now.Judge()
	s.feed.SetSnapshot(s.console.Picture(now))
}

// until sends snapshots until an expression is true: a page may have opened another stream since.
func (s *served) until(p *page, expression string) {
	p.t.Helper()
	p.poll(expression, func() (bool, error) {
		s.send(p.t)
		return eval[bool](p, "Boolean("+expression+")"), nil
	})
}

// size returns the snapshot of a cluster with as many sids, each held by a node of its own.
func size(sids int) status.Cluster {
	layout := "scalable"
	if sids > 32 {
		layout = "fleet"
	}
	now := time.Now().UnixMilli()
	s := status.Cluster{Space: "default", Layout: layout, PoolSize: sids, PoolSIDs: fmt.Sprintf("0-%d", sids-1), Era: 1,
		Self: status.Self{Name: "node-0", Instance: "i-0", Version: "v1.2.3", Ready: true, Term: 1, Ceil: now + 3_600_000, Verdict: "open",
			Clock: &status.Clock{State: "open", Finding: "agreed", Known: true, Uncertainty: 200, Limit: 250_000}}}
	for i := range sids {
		name, instance := fmt.Sprintf("node-%d", i), fmt.Sprintf("i-%d", i)
		s.Nodes = append(s.Nodes, status.Node{Instance: instance, Name: name, SID: i, Version: "v1.2.3", HTTP: "192.0.2.1:8080",
			Clock:  &status.PeerClock{Self: i == 0, Fresh: true, Verdict: "open", Offset: int64(i), Error: 300},
			Report: &status.Report{Rate: int64(1000 + i), Ceil: now + 3_600_000}})
		s.SIDs = append(s.SIDs, status.SID{SID: i, State: "held", Term: 1, Node: name, Instance: instance, Ceil: now + 3_600_000})
	}
	return s
}

// hostile is what somebody who can write to etcd may call a node, with n to tell them apart.
const hostile = `"'><img src=x onerror=alert(2)><script>alert(1)</script>`

// TestNamesAreText: names from elsewhere and from callers are shown as they are, by the
// server and by the page, and nothing of them runs.
func TestNamesAreText(t *testing.T) {
	t.Parallel()
	now := time.Now().UnixMilli()
	peer := status.PeerClock{Verdict: "skewed", SID: 7, Fresh: true, Offset: 1500, Error: 300, Falseticker: true}
	cluster := status.Cluster{
		Space: hostile, Layout: "scalable", PoolSize: 32, PoolSIDs: "0-31", Era: 1,
		Self: status.Self{Name: hostile, Instance: "a", Version: hostile, Ready: true, SID: 3, Term: 1, Ceil: now + 290_000, Verdict: "open",
			Refused: map[string]int64{hostile: 3},
			Clock:   &status.Clock{State: "open", Finding: "agreed", Known: true, Offset: 500, Uncertainty: 200, Limit: 250_000}},
		Nodes: []status.Node{
			{Instance: "a", Name: hostile, SID: 3, Version: hostile, HTTP: hostile, Clock: &status.PeerClock{Self: true, Fresh: true, Verdict: "open"}},
			{Instance: "b", Name: hostile, SID: 7, Version: hostile, HTTP: hostile, Console: "javascript:alert(3)", Clock: &peer},
			{Instance: `c` + hostile, Name: hostile, SID: -1, Version: hostile, HTTP: hostile, Console: "data:text/html," + hostile, Clock: &status.PeerClock{Fresh: true, Verdict: "open", SID: -1}},
		},
		SIDs: []status.SID{
			{SID: 3, State: "held", Term: 1, Node: hostile, Instance: "a", Ceil: now + 250_000},
			{SID: 7, State: "held", Term: 2, Node: hostile, Instance: "b", Ceil: now + 200_000, Problem: hostile},
		},
	}
	breaker := &broken{console.Broken{Etcd: "running", Nodes: []console.BrokenNode{{Name: hostile, Message: hostile, Faults: hostile, Answer: hostile}}}}
	s := serve(t, cluster, func(c *console.Config) {
		c.Break = breaker
		c.Settings = []config.Setting{{Key: "node.name", Value: hostile, Source: hostile}}
		c.Conditions = func() []console.Condition { return []console.Condition{{Text: hostile}} }
	})
	s.feed.Observe(feed.State{Node: node.Stats{Name: hostile, Instance: "a"}})
	for _, name := range []string{"", "timeline", "pool", "clocks", "node", "events", "break"} {
		for _, options := range [][]option{nil, {withoutScripts}} {
			p := open(t, s.URL, name, options...)
			if options == nil {
				s.until(p, "probe.snapshots > 0 && document.querySelector('#live').textContent === 'live'")
				if name == "clocks" {
					p.until("document.querySelector('[data-chart=clocks] .u-legend')")
				}
				if name == "" {
					p.until("!document.querySelector('#past').hidden && document.querySelector('.u-legend')")
				}
			}
			if text := eval[string](p, "document.body.innerText + [...document.querySelectorAll('svg text')].map((e) => e.textContent).join()"); !strings.Contains(text, hostile) {
				t.Errorf("page %q does not show the name:\n%s", name, text)
			}
			if n := eval[int](p, "document.querySelectorAll('img, script:not([src^=\"/console/static/\"]), iframe, object').length"); n != 0 {
				t.Errorf("page %q has %d elements that the name asks for", name, n)
			}
			// A scheme that runs something is no link, even if the server had not refused it.
			if links := eval[[]string](p, `[...document.querySelectorAll("table a")].map((a) => a.href).filter((h) => !/^https?:|#ZgotmplZ$/.test(h))`); len(links) > 0 {
				t.Errorf("page %q has the links %q", name, links)
			}
			if name == "break" && options == nil {
				p.run(click(".card button[value=skew]"))
				p.until("document.querySelector('#problem').textContent.includes('onerror')")
			}
		}
	}
}

type broken struct{ state console.Broken }

func (b *broken) Broken() console.Broken                      { return b.state }
func (b *broken) Break(context.Context, string, string) error { return errHostile }

var errHostile = hostileError{}

type hostileError struct{}

func (hostileError) Error() string { return hostile }

// TestTokens: a page with tokens asks for one, shows none, and keeps it from scripts.
func TestTokens(t *testing.T) {
	t.Parallel()
	token, line, err := access.NewToken("reader", "read")
	fatal.If(t, err)
	tokens, err := access.ParseTokens([]byte(line))
	fatal.If(t, err)
	s := serve(t, size(32), func(c *console.Config) { c.Guard = access.New(access.Config{Tokens: tokens}) })
	p := open(t, s.URL, "clocks?x="+url.QueryEscape(hostile))
	if at := eval[string](p, "location.pathname"); at != "/console/login" {
		t.Fatalf("without a token it shows %s", at)
	}
	p.run(sendKeys("#token", "Wrong7Token"+hostile), click(".login button"))
	p.until(`document.readyState === "complete" && document.querySelector(".summary.bad")`)
	if html := eval[string](p, "document.documentElement.outerHTML"); strings.Contains(html, "Wrong7Token") {
		t.Errorf("the page repeats the token:\n%s", html)
	}
	p.run(sendKeys("#token", token), click(".login button"))
	p.until(`location.pathname === "/console/clocks" && location.search.startsWith("?x=")`)
	if html := eval[string](p, "document.documentElement.outerHTML + document.cookie"); strings.Contains(html, token) {
		t.Error("a script of the page can read the token")
	}
	s.send(t)
	p.until(`document.querySelector("#live").textContent === "live"`)
	p.run(click("header button"))
	p.until(`location.pathname === "/console/login"`)
}
