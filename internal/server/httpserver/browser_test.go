package httpserver_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/internal/server/httpserver"
)

// A page of another site can have a browser send requests without asking anybody: none of
// them issues an ID. Programs, and pages of the node's own origin, are served.
func TestCrossOriginRequests(t *testing.T) {
	env := servertest.New(t)
	for _, tc := range []struct {
		name   string
		header []string
		status int
	}{
		{"a program", nil, 200},
		{"a form of another site", []string{"Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"}, 403},
		{"another name of the same site", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"an old browser", []string{"Origin", "https://evil.example"}, 403},
		{"a page without an origin", []string{"Origin", "null"}, 403},
		{"the same origin", []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://example.com"}, 200},
		{"the address bar", []string{"Sec-Fetch-Site", "none"}, 200},
	} {
		before := env.Node.Stats().Issued
		res := env.Do("POST", "/v1/ids?count=1", "", tc.header...)
		issued := env.Node.Stats().Issued - before
		if res.StatusCode != tc.status || (issued == 1) != (tc.status == 200) {
			t.Errorf("%s: status %d, %d IDs issued", tc.name, res.StatusCode, issued)
		}
		if p := servertest.ProblemIn(res); tc.status == 403 && p.Reason != "PERMISSION_DENIED" {
			t.Errorf("%s: %+v", tc.name, p)
		}
	}
}

// TestOtherSitesRead: a page of another site can start no stream and no read either.
func TestOtherSitesRead(t *testing.T) {
	env := servertest.New(t)
	for _, tc := range []struct {
		path, site, mode, dest string
		status                 int
	}{
		{"/v1/cluster", "cross-site", "cors", "empty", 403},
		{"/v1/cluster", "same-site", "no-cors", "image", 403}, // another port of the same host
		{"/v1/cluster", "cross-site", "navigate", "document", 403},
		{"/v1/events", "cross-site", "no-cors", "empty", 403},
		{"/openapi.yaml", "cross-site", "navigate", "document", 200},
		{"/openapi.yaml", "cross-site", "cors", "empty", 403},
		{"/v1/cluster", "same-origin", "cors", "empty", 200},
		{"/v1/cluster", "none", "navigate", "document", 200},
	} {
		res := env.Do("GET", tc.path, "", "Sec-Fetch-Site", tc.site, "Sec-Fetch-Mode", tc.mode, "Sec-Fetch-Dest", tc.dest)
		if res.StatusCode != tc.status {
			t.Errorf("%+v: %d", tc, res.StatusCode)
		}
	}
}

// A page whose name its owner made an address of this node is recognized by that name.
func TestHosts(t *testing.T) {
	own := httpserver.NewHosts("ids.example.com", ".example.org", "UPPER.example.net.")
	for host, allowed := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:8080": true, "[::1]:8080": true, "[::1]": true, "10.0.0.1:80": true, "[fe80::1%25eth0]:80": true,
		"localhost": true, "localhost:8080": true, "a.localhost": true, "LOCALHOST:1": true,
		"allocator:8080": true, "allocator.ids.svc": true, "allocator.ids.svc.cluster.local:8080": true, "node-1.ec2.internal": true,
		"ids.example.com": true, "IDS.example.com.:443": true, "x.example.org": true, "upper.example.net": true,
		"evil.example": false, "evil.example:8080": false, "example.com": false, "x.ids.example.com": false, "example.org": false,
		"evilexample.org": false, "evil.svc.example": false, "127.0.0.1.evil.example": false, "localhost.evil.example": false,
		"127.0.0.1:8080:1": false, "": false, ":80": false, ".": false,
	} {
		if own.Allow(host) != allowed {
			t.Errorf("%q: allowed %t", host, !allowed)
		}
	}
	if !httpserver.NewHosts("a.example", httpserver.AnyHost).Allow("evil.example") {
		t.Error("* does not allow every name")
	}

	env := servertest.New(t, func(c *servertest.Config) { c.Hosts = own })
	for _, target := range []string{"POST /v1/ids", "GET /v1/cluster", "GET /v1/ids/0", "GET /openapi.yaml", "GET /nothing"} {
		method, path, _ := strings.Cut(target, " ")
		req := httptest.NewRequest(method, path, nil)
		req.Host = "evil.example"
		res := env.Send(req)
		if p := servertest.ProblemIn(res); res.StatusCode != http.StatusMisdirectedRequest || !strings.Contains(p.Detail, "evil.example") || !strings.Contains(p.Help, "http.hosts") {
			t.Errorf("%s: %d %+v", target, res.StatusCode, p)
		}
		req.Host = "ids.example.com"
		if res := env.Send(req); res.StatusCode == http.StatusMisdirectedRequest {
			t.Errorf("%s by its own name: %d", target, res.StatusCode)
		}
	}
	if n := env.Node.Stats().Issued; n != 1 {
		t.Errorf("%d IDs were issued, want 1", n)
	}
	rec := httptest.NewRecorder()
	admin := own.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret") }))
	req := httptest.NewRequest("GET", "/metrics", nil)
	req.Host = "evil.example:7947"
	if admin.ServeHTTP(rec, req); rec.Code != http.StatusMisdirectedRequest || strings.Contains(rec.Body.String(), "secret") {
		t.Errorf("admin port: %d %s", rec.Code, rec.Body)
	}
}
