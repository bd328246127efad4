package console

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"html"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/status/feed"
	"github.com/flakelease/allocator/internal/watermark"
)

// hostile is what somebody who can write to etcd may call a node.
const hostile = `<script>alert(1)</script>"'><img src=x onerror=alert(2)>`

const start = 1_795_000_000_000

// two is a cluster of the node that answers, and of one with a hostile name.
func two() status.Cluster {
	peer := status.PeerClock{Verdict: "open", SID: 7, Fresh: true, Offset: 1500, Error: 300}
	return status.Cluster{
		Read:  start,
		Space: "default", Layout: "scalable", PoolSize: 32, PoolSIDs: "0-31", Era: 1,
		Self: status.Self{Name: "node-1", Instance: "a", Ready: true, SID: 3, Term: 1, Ceil: start + 29_000, Now: start, Verdict: "open",
			Clock: &status.Clock{State: "open", Finding: "agreed", Known: true, Offset: 500, Uncertainty: 200, Limit: 250_000}},
		Nodes: []status.Node{
			{Instance: "a", Name: "node-1", SID: 3, Clock: &status.PeerClock{Self: true, Fresh: true, Verdict: "open"}},
			{Instance: "b", Name: hostile, SID: 7, Clock: &peer},
		},
		SIDs: []status.SID{
			{SID: 3, State: "held", Term: 1, Node: "node-1", Instance: "a", Base: start, Ceil: start + 25_000},
			{SID: 7, State: "held", Term: 2, Node: hostile, Instance: "b", Base: start, Ceil: start + 20_000, Problem: hostile},
		},
	}
}

// fixture returns a console of the cluster that c points to.
func fixture(c *status.Cluster, change ...func(*Config)) *Console {
	cfg := Config{
		Snapshot: func(context.Context) status.Cluster {
			judged := *c
			judged.Judge()
			return judged
		},
		Since: func(c status.Cluster) map[string]int64 {
			since := map[string]int64{}
			for _, n := range c.Nodes {
				since[n.Instance] = c.Self.Now
			}
			return since
		},
		FalseSince: func() map[string]int64 { return nil },
		Describe: func(context.Context, string, string) (status.Decoded, error) {
			return status.Decoded{Problem: hostile}, nil
		},
		Node:   node.New(node.Config{Name: "node-1", Instance: "a"}, clocktest.NewManual(start), rand.NewPCG(1, 2)),
		Feed:   feed.New(feed.Config{Boot: "boot"}),
		Format: flake.Default,
	}
	for _, f := range change {
		f(&cfg)
	}
	return New(cfg)
}

func do(c *Console, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://127.0.0.1:7947"+path, strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:5000"
	if body != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return w
}

// pages are all that have a template and can be seen.
var pages = []string{"", "timeline", "pool", "clocks", "node", "ids", "events", "break", "login", "nothing"}

// TestSize: a page with all that it loads is small.
func TestSize(t *testing.T) {
	var all bytes.Buffer
	total := 0
	for _, dir := range []string{"static", "templates"} {
		list, err := fs.ReadDir(files, dir)
		fatal.If(t, err)
		for _, f := range list {
			content, err := fs.ReadFile(files, dir+"/"+f.Name())
			fatal.If(t, err)
			all.Reset()
			z, _ := gzip.NewWriterLevel(&all, gzip.BestCompression)
			_, _ = z.Write(content)
			_ = z.Close()
			total += all.Len()
		}
	}
	if total > 80_000 || total < 10_000 {
		t.Errorf("%d bytes gzipped, want at most 80,000", total)
	}
}

// TestPagesAskNobodyElse: each page has the policy that forbids it, and nothing that the
// policy would stop.
func TestPagesAskNobodyElse(t *testing.T) {
	cluster := two()
	c := fixture(&cluster, func(c *Config) { c.Break = new(breaker) })
	for _, p := range pages {
		w := do(c, "GET", Path+p, "")
		csp := w.Header().Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'none'; ") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") {
			t.Errorf("%s: policy %q", p, csp)
		}
		body := w.Body.String()
		for _, m := range regexp.MustCompile(`(?:src|action)="([^"]*)"`).FindAllStringSubmatch(body, -1) {
			if !strings.HasPrefix(m[1], Path) {
				t.Errorf("%s loads %s", p, m[1])
			}
		}
		if m := regexp.MustCompile(`<script>|<style|style="|\son[a-z]+="`).FindString(body); m != "" {
			t.Errorf("%s has %s in the page", p, m)
		}
		if want := map[string]int{"nothing": 404}[p]; w.Code != max(want, 200) {
			t.Errorf("%s: HTTP %d", p, w.Code)
		}
	}
	for _, name := range []string{"console.js", "charts.js", "timeline.js", "console.css"} {
		content, _ := fs.ReadFile(files, "static/"+name)
		if m := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|@import|url\(|eval\(`).FindString(string(content)); m != "" {
			t.Errorf("%s has %s", name, m)
		}
		w := do(c, "GET", Path+"static/"+name, "")
		if w.Code != 200 || do(c, "GET", Path+"static/"+name, "", "If-None-Match", w.Header().Get("ETag")).Code != 304 {
			t.Errorf("%s: HTTP %d", name, w.Code)
		}
	}
}

// TestNamesAreText: what comes from etcd and from callers is never HTML.
func TestNamesAreText(t *testing.T) {
	cluster := two()
	c := fixture(&cluster, func(c *Config) {
		c.Break = &breaker{state: Broken{Nodes: []BrokenNode{{Name: hostile, Message: hostile}}}}
	})
	for _, body := range []string{
		do(c, "GET", Path, "").Body.String(), do(c, "GET", Path+"pool", "").Body.String(), do(c, "GET", Path+"clocks", "").Body.String(), do(c, "GET", Path+"break", "").Body.String(),
		do(c, "POST", Path+"ids", url.Values{"id": {hostile}}.Encode()).Body.String(),
		do(c, "POST", Path+"ids", url.Values{"id": {"02MVRE9MT10N2"}}.Encode()).Body.String(),
		do(c, "GET", Path+"login?to="+url.QueryEscape(`/console/"><script>`), "").Body.String(),
	} {
		if strings.Contains(body, "<script>") || strings.Contains(body, "<img") {
			t.Errorf("a hostile text is HTML:\n%s", body)
		}
	}
	if body := do(c, "GET", Path, "").Body.String(); !strings.Contains(body, "&lt;script&gt;alert(1)") {
		t.Errorf("the name is not shown:\n%s", body)
	}
}

// guarded returns a console that wants a token, and tokens by scope.
func guarded(t *testing.T, cluster *status.Cluster) (*Console, map[string]string, *access.Guard) {
	t.Helper()
	list, tokens := servertest.Tokens(t, "read", "issue", "admin")
	guard := access.New(access.Config{Tokens: list})
	return fixture(cluster, func(c *Config) { c.Guard, c.Break = guard, new(breaker) }), tokens, guard
}

func TestLogin(t *testing.T) {
	cluster := two()
	c, tokens, guard := guarded(t, &cluster)
	for _, p := range pages[:7] {
		if w := do(c, "GET", Path+p, ""); w.Code != 303 || !strings.HasPrefix(w.Header().Get("Location"), Path+"login?to=") {
			t.Errorf("%s without a token: HTTP %d to %s", p, w.Code, w.Header().Get("Location"))
		}
	}
	for _, p := range []string{"charts", "stretches", "feed", "break/state"} {
		if w := do(c, "GET", Path+p, "", "Accept", "application/json"); w.Code != 401 || strings.Contains(w.Body.String(), "node-1") {
			t.Errorf("%s without a token: HTTP %d %s", p, w.Code, w.Body)
		}
	}
	const moment = "timeline?at=2026-11-24T06:00:00.000Z&span=240"
	asked := do(c, "GET", Path+moment, "").Header().Get("Location")
	form := do(c, "GET", asked, "").Body.String()
	if want := `name="to" value="` + html.EscapeString(Path+moment) + `"`; !strings.Contains(form, want) {
		t.Errorf("the login for %s leads to %s, whose form lacks %s:\n%s", moment, asked, want, form)
	}
	for token, want := range map[string]int{"": 401, "allocator_MISTAKEN": 401, tokens["issue"]: 403} {
		w := do(c, "POST", Path+"login", url.Values{"token": {token}, "to": {Path}}.Encode())
		if w.Code != want || w.Header().Get("Set-Cookie") != "" || token != "" && strings.Contains(w.Body.String(), token) {
			t.Errorf("login with %q: HTTP %d, want %d", token, w.Code, want)
		}
	}
	w := do(c, "POST", Path+"login", url.Values{"token": {" " + tokens["read"] + "\n"}, "to": {Path + "clocks"}}.Encode())
	if w.Code != 303 || w.Header().Get("Location") != Path+"clocks" {
		t.Fatalf("login: HTTP %d to %s", w.Code, w.Header().Get("Location"))
	}
	set := w.Result().Cookies()[0]
	if !set.HttpOnly || set.SameSite != http.SameSiteStrictMode || set.Path != Path || set.Secure {
		t.Errorf("cookie %v", set)
	}
	if w := do(c, "POST", Path+"login", url.Values{"token": {tokens["read"]}}.Encode(), "X-Forwarded-Proto", "https"); !w.Result().Cookies()[0].Secure {
		t.Error("the cookie of a page over TLS is sent in clear")
	}
	if strings.Contains(set.Value, tokens["read"]) || len(set.Value) < 26 {
		t.Errorf("the cookie has the token: %s", set.Value)
	}
	kept := set.Name + "=" + set.Value
	if w := do(c, "GET", Path+"clocks", "", "Cookie", kept); w.Code != 200 || !strings.Contains(w.Body.String(), "Log out") {
		t.Errorf("with the cookie: HTTP %d", w.Code)
	}
	if w := do(c, "POST", Path+"break", "action=kill&target=node-1", "Cookie", kept); w.Code != 403 {
		t.Errorf("an action with scope read: HTTP %d", w.Code)
	}
	admin := logIn(c, tokens["admin"])
	if w := do(c, "POST", Path+"break", "action=kill&target=node-1", "Cookie", admin, "Sec-Fetch-Site", "cross-site"); w.Code != 403 {
		t.Errorf("an action from another site: HTTP %d", w.Code)
	}
	if w := do(c, "POST", Path+"break", "action=kill&target=node-1", "Cookie", admin); w.Code != 303 {
		t.Errorf("an action with scope admin: HTTP %d", w.Code)
	}
	if w := do(c, "GET", Path, "", "Cookie", set.Name+"="+tokens["read"]); w.Code != 303 {
		t.Errorf("the token as a cookie: HTTP %d", w.Code)
	}
	if w := do(c, "POST", Path+"logout", "", "Cookie", kept); w.Result().Cookies()[0].MaxAge >= 0 {
		t.Error("the cookie is kept")
	}
	if w := do(c, "GET", Path, "", "Cookie", kept); w.Code != 303 {
		t.Errorf("after the logout: HTTP %d", w.Code)
	}
	guard.SetTokens(access.Stale())
	if w := do(c, "GET", Path, "", "Cookie", admin); w.Code != 303 {
		t.Errorf("after the token was revoked: HTTP %d", w.Code)
	}
}

// logIn logs in, and returns the header Cookie of the session.
func logIn(c *Console, token string) string {
	set := do(c, "POST", Path+"login", url.Values{"token": {token}}.Encode()).Result().Cookies()[0]
	return set.Name + "=" + set.Value
}

// TestSessionsEnd: a session ends after twelve hours, and one caller does not end those of
// others, however often it logs in.
func TestSessionsEnd(t *testing.T) {
	cluster := two()
	src := clocktest.NewManual(start)
	c, tokens, guard := guarded(t, &cluster)
	c = fixture(&cluster, func(c *Config) {
		c.Guard, c.Node = guard, node.New(node.Config{Name: "node-1", Instance: "a"}, src, rand.NewPCG(1, 2))
	})
	open := func(header string) bool { return do(c, "GET", Path, "", "Cookie", header).Code == 200 }
	admin, first := logIn(c, tokens["admin"]), logIn(c, tokens["read"])
	for range maxOwn - 1 {
		logIn(c, tokens["read"])
	}
	if !open(admin) || !open(first) {
		t.Error("a session ended early")
	}
	logIn(c, tokens["read"])
	if open(first) || !open(admin) || len(c.sessions.list) != maxOwn+1 {
		t.Errorf("%d sessions", len(c.sessions.list))
	}
	src.Advance(sessionFor - time.Millisecond)
	if !open(admin) {
		t.Error("it ended early")
	}
	src.Advance(time.Millisecond)
	if open(admin) || len(c.sessions.list) != 0 {
		t.Error("it goes on after twelve hours")
	}
	s := &New(c.cfg).sessions
	for i := range maxSessions + 1 {
		caller, _ := access.New(access.Config{Rate: 1, Now: func() clock.Mono { return 0 }}).Identify(access.Credentials{Certificate: fmt.Sprint(i)})
		s.add(caller, caller.Name(), 0)
	}
	if len(s.list) != maxSessions {
		t.Errorf("%d sessions", len(s.list))
	}
}

// TestOtherSites: what a page of another site causes is refused, and following a link is not.
func TestOtherSites(t *testing.T) {
	cluster := two()
	c := fixture(&cluster)
	for _, tc := range []struct {
		path, site, mode, dest string
		want                   int
	}{
		{"", "cross-site", "navigate", "document", 200},
		{"", "cross-site", "navigate", "iframe", 403},
		{"", "cross-site", "no-cors", "image", 403},
		{"charts", "cross-site", "cors", "empty", 403},
		{"feed", "cross-site", "navigate", "document", 403},
		{"charts", "same-origin", "cors", "empty", 200},
		{"", "none", "navigate", "document", 200},
	} {
		if w := do(c, "GET", Path+tc.path, "", "Sec-Fetch-Site", tc.site, "Sec-Fetch-Mode", tc.mode, "Sec-Fetch-Dest", tc.dest); w.Code != tc.want {
			t.Errorf("%+v: HTTP %d", tc, w.Code)
		}
	}
}

// TestTarget: a login leads to a page of the console, and nowhere else.
func TestTarget(t *testing.T) {
	for to, want := range map[string]string{
		"": Path, Path + "ids": Path + "ids", "//evil.example/console/": Path, "https://evil.example": Path,
		Path + "login": Path, Path + "logout": Path, "/console\\evil": Path, Path + "x#y": Path,
		Path + "timeline?at=2026-11-24T06:00:00.000Z&span=240": Path + "timeline?at=2026-11-24T06:00:00.000Z&span=240",
		Path + "login?to=x": Path, "?" + Path: Path, "//evil.example?" + Path: Path, Path + "x?\\y": Path,
	} {
		if got := target(to); got != want {
			t.Errorf("%q leads to %q, want %q", to, got, want)
		}
	}
}

// breaker notes what it is asked for.
type breaker struct {
	state Broken
	done  []string
}

func (b *breaker) Broken() Broken { return b.state }

func (b *breaker) Break(_ context.Context, action, target string) error {
	b.done = append(b.done, action+" "+target)
	return nil
}

// TestWhoHoldsTheWatermarkBack: the page that breaks a cluster and that of the pool say it, when they
// are loaded and with each snapshot.
func TestWhoHoldsTheWatermarkBack(t *testing.T) {
	cluster := two()
	cluster.Watermark = &watermark.Answer{At: start - 20_500, Lag: 20_500, BlockedBy: []watermark.Blocker{
		{Node: "node-2", SID: 7, Since: start - 20_500, Why: "silent", Text: "node node-2 (sid 7) is paused"},
	}}
	c := fixture(&cluster, func(c *Config) { c.Break = new(breaker) })
	const want = "20.5s behind: node node-2 (sid 7) is paused"
	for _, p := range []string{"break", "pool"} {
		body := do(c, "GET", Path+p, "").Body.String()
		if line := regexp.MustCompile(`id="watermark"[^>]*>([^<]*)<`).FindStringSubmatch(body); line == nil || !strings.HasSuffix(line[1], want) {
			t.Errorf("%s: %q", p, line)
		}
	}
}

// TestNoNode: where no node runs, what broke them can be repaired.
func TestNoNode(t *testing.T) {
	b := &breaker{state: Broken{Etcd: "stopped", Nodes: []BrokenNode{{Name: "node-1", State: "stopped"}}}}
	c := New(Config{Format: flake.Default, Break: b})
	for _, p := range pages {
		if w := do(c, "GET", Path+p, ""); p != "nothing" && p != "login" && !strings.Contains(w.Body.String(), noNode) {
			t.Errorf("%s: HTTP %d %s", p, w.Code, w.Body)
		}
	}
	do(c, "POST", Path+"break", "action=repair&target=node-1")
	if !slices.Equal(b.done, []string{"repair node-1"}) {
		t.Errorf("%q", b.done)
	}
}

// TestNothingToBreak: a node has no such page unless it is a demonstration.
func TestNothingToBreak(t *testing.T) {
	cluster := two()
	c := fixture(&cluster)
	for _, method := range []string{"GET", "POST"} {
		if w := do(c, method, Path+"break", ""); w.Code < 400 {
			t.Errorf("%s: HTTP %d", method, w.Code)
		}
	}
	if strings.Contains(do(c, "GET", Path, "").Body.String(), "Break it") {
		t.Error("there is a link to it")
	}
}

// TestAddressesThatPeopleType: the address of the first page by its name leads to it, and that of an ID shows it.
func TestAddressesThatPeopleType(t *testing.T) {
	cluster := two()
	c := fixture(&cluster)
	if w := do(c, "GET", Path+"nodes", ""); w.Code != http.StatusFound || w.Header().Get("Location") != Path {
		t.Errorf("HTTP %d to %q", w.Code, w.Header().Get("Location"))
	}
	if w := do(c, "GET", Path+"ids?id=01XA2VP000007", ""); !strings.Contains(w.Body.String(), "01XA2VP000007") || w.Code != http.StatusOK {
		t.Errorf("an ID in the address: HTTP %d", w.Code)
	}
}

func snapshotOf(c *Console) Snapshot { return c.complete(c.cfg.Snapshot(context.Background())) }

// TestHeadline: each page begins with the sentence about the cluster, and where to read on.
func TestHeadline(t *testing.T) {
	cluster := two()
	c := fixture(&cluster)
	shows := func(parts ...string) {
		t.Helper()
		for _, p := range []string{"", "clocks", "node"} {
			body := do(c, "GET", Path+p, "").Body.String()
			for _, part := range parts {
				if !strings.Contains(body, part) {
					t.Errorf("page %q does not have %s:\n%s", p, part, body)
				}
			}
		}
	}
	shows(`class="summary ok"`, "All is well: 2 nodes serve, every window lasts 20.0s or longer.")
	cluster.Nodes[0].Clock.Self, cluster.Self.Refusing = true, node.ClockSkew
	shows(`class="summary bad"`, "node-1: the clock is wrong, so it refuses. 1 of 2 nodes serve.", "docs/how-to/repair-clocks.md#one-clock-is-wrong")
}

// TestEtcdAway: what was read last is marked as stale within 5 s, and its windows end.
func TestEtcdAway(t *testing.T) {
	cluster := two()
	c := fixture(&cluster)
	if s := snapshotOf(c); s.Stale() || len(s.Rows()) != 2 || s.Rows()[0].Left != 29_000 || s.Count("held") != 2 {
		t.Fatalf("%+v", s)
	}
	cluster.Self.Now = start + 5000
	s := snapshotOf(c)
	if !s.Stale() || s.Rows()[1].Left != 15_000 || !strings.Contains(s.Summary.Text, "the first in 15.0s") {
		t.Errorf("%+v", s)
	}
	cluster.Self.Now, cluster.Self.Ready, cluster.Self.Refusing = start+30_000, false, node.WindowExhausted
	s = snapshotOf(c)
	if rows := s.Rows(); rows[0].State != status.HeldEnded || rows[1].Holder.Refusing != node.WindowExhausted {
		t.Errorf("%+v", rows)
	}
	if s.Count("held") != 2 || s.Count("exhausted") != 2 || !strings.Contains(s.Summary.Text, "nobody issues") {
		t.Errorf("%+v", s)
	}
}

// TestOffsetsAreFromTheClustersTime: the node that answers has an offset too.
func TestOffsetsAreFromTheClustersTime(t *testing.T) {
	cluster := two()
	s := snapshotOf(fixture(&cluster))
	if a, b := s.Offset(s.Nodes[0]), s.Offset(s.Nodes[1]); a != "-0.5ms ±0.2ms" || b != "+1.0ms ±0.3ms" {
		t.Errorf("%s, %s", a, b)
	}
}

// TestIDs: no digit is lost.
func TestIDs(t *testing.T) {
	cluster := two()
	c := fixture(&cluster)
	one := do(c, "POST", Path+"ids", url.Values{"id": {"9223372036854775807"}}.Encode()).Body.String()
	for _, want := range []string{"7ZZZZZZZZZZZZ", "9223372036854775807", "0x7FFFFFFFFFFFFFFF", ">31<", ">http://HOST:PORT/v1/ids/9223372036854775807<"} {
		if !strings.Contains(strings.ToUpper(one), strings.ToUpper(want)) {
			t.Errorf("no %s in\n%s", want, one)
		}
	}
	for id, want := range map[string]string{
		"f47ac10b-58cc-4372-a567-0e02b2c3d479": "uuid without a time",
		"nonsense":                             "nonsense",
		"123":                                  "0 ms after the epoch: is it a number of a sequence?",
	} {
		body := do(c, "GET", Path+"ids?id="+id, "").Body.String() // as in a link
		if !strings.Contains(body, want) || strings.Contains(body, "4933-") {
			t.Errorf("no %q in\n%s", want, body)
		}
	}
	if w := do(c, "POST", Path+"ids", "id="+strings.Repeat("x", maxForm)); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("a large form: HTTP %d", w.Code)
	}
}

// TestFields: the bits of each layout are all there, once.
func TestFields(t *testing.T) {
	for _, name := range []string{"scalable", "fleet", "twitter", "sonyflake", "js53"} {
		l, err := flake.ParseLayout(name)
		fatal.If(t, err)
		f := flake.Format{Layout: l, Epoch: l.Epoch()}
		id, err := describe.Parse("4503599627370495", describe.Auto, f)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		one := take(id, f)
		bits, sid := "", 0
		for _, b := range one.Bits {
			bits += b.Bits
			if b.Name == "sid" {
				sid = len(b.Bits)
			}
		}
		if len(bits) != 64 || strings.Count(bits, "1") != 52 || sid != l.SIDBits() {
			t.Errorf("%s: %+v", name, one.Bits)
		}
	}
}

// TestRunbooks: what a banner says to do is in the program, and needs no token.
func TestRunbooks(t *testing.T) {
	cluster := two()
	cluster.SIDs = append(cluster.SIDs, status.SID{SID: 9, State: status.Quarantined})
	c := fixture(&cluster)
	m := regexp.MustCompile(`href="(/console/docs/[^"#]+)#([^"]+)"[^>]*>what to do`).FindStringSubmatch(do(c, "GET", Path, "").Body.String())
	if m == nil {
		t.Fatal("the banner has no link")
	}
	c, _, _ = guarded(t, &cluster)
	if w := do(c, "GET", m[1], ""); w.Code != 200 || !strings.Contains(w.Body.String(), `id="`+m[2]+`"`) || strings.Contains(w.Body.String(), "node-1") {
		t.Errorf("%s: HTTP %d %.300s", m[1], w.Code, w.Body)
	}
	if w := do(c, "GET", Path+"docs/nothing.md", ""); w.Code != 404 {
		t.Errorf("HTTP %d", w.Code)
	}
	if w := do(c, "GET", Path+"nodes", ""); w.Code != 302 || w.Header().Get("Location") != Path {
		t.Errorf("the address that a reader of the menu guesses: HTTP %d, to %s", w.Code, w.Header().Get("Location"))
	}
}

// TestMeanings: the words that pages explain are explained as in the glossary, and pages mark no others.
func TestMeanings(t *testing.T) {
	glossary, err := os.ReadFile("../../../docs/reference/glossary.md")
	fatal.If(t, err)
	pages, err := fs.Glob(files, "templates/*.html")
	fatal.If(t, err)
	for _, page := range pages {
		text, err := files.ReadFile(page)
		fatal.If(t, err)
		for _, marked := range regexp.MustCompile(`{{template "word" "(\w+)"}}`).FindAllSubmatch(text, -1) {
			if !slices.Contains(explained, string(marked[1])) {
				t.Errorf("%s: %q is not explained", page, marked[1])
			}
		}
	}
	for _, m := range meanings() {
		if !regexp.MustCompile(`(?m)^\| \[`+m.Word+`\]\([^)]*\) \| `+regexp.QuoteMeta(m.Says)+` \|$`).Match(glossary) || len(m.Says) < 20 {
			t.Errorf("%q is explained as %q", m.Word, m.Says)
		}
	}
}
