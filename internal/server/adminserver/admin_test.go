package adminserver_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/server/adminserver"
)

func TestEndpoints(t *testing.T) {
	env := servertest.New(t)
	var alive error
	h := adminserver.New(adminserver.Config{
		Node: env.Node, Ready: env.Node.Ready, Alive: func() error { return alive }, Clocks: noClocks,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics\n") }),
	})
	from := "10.0.0.1:5"
	get := func(target string) (int, string) {
		rec := httptest.NewRecorder()
		req := httptest.NewRequest("GET", target, nil)
		req.RemoteAddr = from
		h.ServeHTTP(rec, req)
		return rec.Code, rec.Body.String()
	}
	expect := func(target string, status int, parts ...string) {
		t.Helper()
		code, text := get(target)
		if code != status || slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(text, p) }) {
			t.Errorf("%s: %d %q, want %d %q", target, code, text, status, parts)
		}
	}
	expect("/livez", 200, "ok")
	expect("/readyz", 200, "ok")
	expect("/readyz?verbose", 200, "[+] draining", "[+] clock", "[+] sid: 7", "[+] window: 30s", "[+] lead", "ok")
	expect("/metrics", 200, "metrics")
	expect("/debug/pprof/", 404)
	expect("/v1/ids", 404, "this is the admin port", "listen.http")
	servertest.Skewed.Set(env)
	expect("/readyz", 503, "CLOCK_SKEW", "900ms")
	expect("/readyz?verbose", 503, "[-] clock: verdict ", "[+] sid: 7")
	expect("/livez", 200, "ok") // liveness has nothing to do with skew
	servertest.Standby.Set(env)
	expect("/readyz?verbose", 503, "[-] sid: none held of 0-31, lease standby")
	env.Drainer.Stop()
	expect("/readyz", 503, "DRAINING")
	alive = servertest.ErrAway
	expect("/livez", 503, servertest.ErrAway.Error())

	h = adminserver.New(adminserver.Config{Node: env.Node, Ready: env.Node.Ready, Alive: func() error { return nil }, Clocks: noClocks, Profiles: true})
	expect("/debug/pprof/", 403, "PERMISSION_DENIED", "auth.open-admin")
	for path, want := range map[string]int{"/debug/pprof/cmdline": 403, "/readyz": 503} {
		for _, dest := range []string{"document", "image"} { // a link, and something that a page loads
			rec, req := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
			req.RemoteAddr = "127.0.0.1:5"
			req.Header.Set("Sec-Fetch-Site", "cross-site")
			req.Header.Set("Sec-Fetch-Mode", map[string]string{"document": "navigate", "image": "no-cors"}[dest])
			req.Header.Set("Sec-Fetch-Dest", dest)
			h.ServeHTTP(rec, req)
			if dest == "image" {
				want = 403
			}
			if rec.Code != want || rec.Header().Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s of another site, as %s: %d %v", path, dest, rec.Code, rec.Header())
			}
		}
	}
	expect("/debug/pprof/heap", 403)
	from = "127.0.0.1:5"
	expect("/debug/pprof/", 200, "goroutine")
	h = adminserver.New(adminserver.Config{Node: env.Node, Ready: env.Node.Ready, Alive: func() error { return nil }, Clocks: noClocks, Profiles: true, Guard: access.New(access.Config{OpenAdmin: access.OpenToNobody})})
	expect("/debug/pprof/", 403)
	from = "10.0.0.1:5"
	expect("/metrics", 404)
	expect("/livez", 200)
}

// deadlines is an answer that notes until when it has to be written.
type deadlines struct {
	*httptest.ResponseRecorder
	at time.Time
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.at = at
	return nil
}

// A profile takes as long as it is asked for, and then has the time to be written that other answers have.
func TestProfileOutlastsWriteTimeout(t *testing.T) {
	h := adminserver.New(adminserver.Config{Node: servertest.New(t).Node, Profiles: true})
	ctx := context.WithValue(t.Context(), http.ServerContextKey, &http.Server{WriteTimeout: time.Hour})
	req := httptest.NewRequestWithContext(ctx, "GET", "/debug/pprof/trace?seconds=0.01", nil)
	req.RemoteAddr = "127.0.0.1:5"
	rec, least := &deadlines{httptest.NewRecorder(), time.Time{}}, time.Now().Add(time.Hour+10*time.Millisecond)
	if h.ServeHTTP(rec, req); rec.Code != 200 || rec.at.Before(least) {
		t.Errorf("%d, to be written by %v, want %v or later", rec.Code, rec.at, least)
	}
}

// TestReadyShowsClocks: a probe that fails because of a clock shows the measurements.
func TestReadyShowsClocks(t *testing.T) {
	report := clock.Report{
		Gate: clock.GateStats{
			Verdict:   clock.Verdict{State: clock.Skewed, Phase: clock.Shut, Limit: 250},
			Judgement: clock.Judgement{Finding: clock.SelfFalse, Known: true, Offset: -1500 * time.Millisecond, Uncertainty: 300*time.Microsecond + 1},
		},
		Anchor: clock.AnchorStats{Pending: true, Held: 700 * time.Millisecond},
	}
	env, clocks := servertest.New(t), func() clock.Report { return report }
	env.Node.SetVerdict(clock.Verdict{State: clock.Skewed, Phase: clock.Shut})
	if got, want := conditions(t, env, clocks)["clock"], "[-] clock: verdict skewed (shut, self_false), the cluster's time minus this node's is -1500.0ms ±0.4ms,"+
		" limit 250ms, a step of the wall clock by 700ms is held back"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	report.Gate.Verdict = clock.Verdict{Phase: clock.Grace, Limit: 250}
	report.Gate.Judgement = clock.Judgement{Finding: clock.Unconfirmed}
	report.Anchor = clock.AnchorStats{}
	env.Node.SetVerdict(report.Gate.Verdict)
	if got, want := conditions(t, env, clocks)["clock"], "[+] clock: verdict open (grace, unconfirmed), limit 250ms"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestReadyBeforeWindow: the time left of a window that begins later is its length.
func TestReadyBeforeWindow(t *testing.T) {
	env := servertest.New(t)
	env.Node.Seal()
	env.Node.Begin(lease.Grant{SID: 7, Term: 2, Base: servertest.Start + 60_000, Ceil: servertest.Start + 70_000})
	if got, want := conditions(t, env, noClocks)["window"], "[+] window: 10s left"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// conditions returns the lines of /readyz?verbose by name.
func conditions(t *testing.T, env *servertest.Env, clocks func() clock.Report) map[string]string {
	t.Helper()
	out := map[string]string{}
	rec := httptest.NewRecorder()
	adminserver.New(adminserver.Config{Node: env.Node, Ready: env.Node.Ready, Clocks: clocks}).ServeHTTP(rec, httptest.NewRequest("GET", "/readyz?verbose", nil))
	for line := range strings.Lines(rec.Body.String()) {
		line = strings.TrimSpace(line)
		if _, text, ok := strings.Cut(line, "] "); ok {
			about, _, _ := strings.Cut(text, ":")
			out[about] = line
		}
	}
	return out
}

// noClocks are those before the first evaluation.
func noClocks() clock.Report { return clock.Report{} }
