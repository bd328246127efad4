package httpserver_test

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/quota"
	"github.com/flakelease/allocator/internal/server/httpserver"
)

// scopesOf has the scope of each route; "": open. A route that is missing fails the
// test: add it here with its scope.
var scopesOf = map[string]string{
	"POST /v1/ids":                "issue",
	"/v1/ids":                     "",
	"GET /v1/ids/{id}":            "read",
	"/v1/ids/{id}":                "",
	"GET /v1/cluster":             "read",
	"/v1/cluster":                 "",
	"POST /v1/workers":            "worker",
	"/v1/workers":                 "",
	"GET /v1/watermark":           "read",
	"/v1/watermark":               "",
	"GET /v1/events":              "read",
	"/v1/events":                  "",
	"POST /v1/workers/{worker}":   "worker",
	"DELETE /v1/workers/{worker}": "worker",
	"/v1/workers/{worker}":        "",
	"GET /openapi.yaml":           "",
	"GET /docs/{page...}":         "",
	"/openapi.yaml":               "",
	"/":                           "",
}

// TestEveryRouteRequiresItsScope: a caller without the scope is refused, and nothing is
// issued.
func TestEveryRouteRequiresItsScope(t *testing.T) {
	env, tokens, _ := servertest.NewGuarded(t, access.Config{})
	tokens["unknown"] = "allocator_UNKNOWN"
	env.Feed.End() // so that streams end
	for _, r := range httpserver.Routes(env.Service) {
		needs, ok := scopesOf[r.Pattern]
		if !ok {
			t.Errorf("nobody decided who may call %s", r.Pattern)
			continue
		}
		method, path, ok := strings.Cut(r.Pattern, " ")
		if !ok {
			method, path = "PUT", r.Pattern
		}
		worker := "16-1"
		if method == "POST" {
			worker += ":extend"
		}
		target := strings.NewReplacer("{id}", "02MVRE9KJ2642", "{worker}", worker).Replace(path)
		if method == "POST" {
			target += "?count=0" // so that nothing is issued when it is let through
		}
		for _, token := range servertest.Shown {
			want := servertest.Verdict(needs, token)
			var header []string
			if token != "" {
				header = []string{"Authorization", "Bearer " + tokens[token]}
			}
			res := env.Do(method, target, "", header...)
			p := servertest.ProblemIn(res)
			status := map[node.Reason]int{node.Unauthenticated: 401, node.PermissionDenied: 403}[want]
			refused := res.StatusCode == 401 || res.StatusCode == 403
			if refused != (want != 0) || refused && (res.StatusCode != status || p.Reason != want.String()) {
				t.Errorf("%s with a token of %q: %d %s, want %s", r.Pattern, token, res.StatusCode, p.Reason, want)
			}
			if challenge := res.Header.Get("WWW-Authenticate"); refused != strings.HasPrefix(challenge, "Bearer ") {
				t.Errorf("%s with a token of %q: WWW-Authenticate %q", r.Pattern, token, challenge)
			}
		}
	}
	if n := env.Node.Stats().Issued; n != 0 {
		t.Errorf("%d IDs issued", n)
	}
}

// TestUnreadAnswersCount: an answer counts for its connection while the client does not read,
// and no longer.
func TestUnreadAnswersCount(t *testing.T) {
	const (
		requests  = 800 // 28 MB of answers: more than the kernel keeps
		connBytes = 48 << 10
	)
	q := quota.New(quota.Config{Now: func() clock.Mono { return 0 }})
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := httpserver.NewServer(servertest.New(t).HTTP, slog.New(slog.DiscardHandler))
	go func() { _ = s.Serve(q.Listen(raw, quota.ListenerConfig{})) }()
	t.Cleanup(func() { _ = s.Close() })
	c, err := net.Dial("tcp", raw.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() {
		_, _ = io.WriteString(c, strings.Repeat("GET /openapi.yaml HTTP/1.1\r\nHost: node\r\n\r\n", requests))
	}()
	until := func(what string, done func(held int64) bool) {
		t.Helper()
		wait.Until(t, what, func() bool { held, _ := q.Held(); return done(held) })
	}
	until("an answer", func(held int64) bool { return held >= connBytes+30_000 })
	go func() { _, _ = io.Copy(io.Discard, c) }()
	until("read", func(held int64) bool { return held == connBytes })
}
