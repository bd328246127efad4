package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
)

// serverExchanges runs the tests of internal/server and returns what they recorded.
func serverExchanges(t *testing.T, root string) (out []servertest.Exchange) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "exchanges")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1",
		"./internal/server", "./internal/status", "./internal/server/httpserver", "-args", "-exchanges", file)
	cmd.Dir = root
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go test ./internal/server: %v\n%s", err, text)
	}
	data, err := os.ReadFile(file)
	fatal.If(t, err)
	for line := range bytes.Lines(data) {
		var e servertest.Exchange
		fatal.If(t, json.Unmarshal(line, &e))
		out = append(out, e)
	}
	return out
}

// openapi.yaml is a valid document of OpenAPI 3.1, and every HTTP answer that the tests
// of internal/server receive is one that it describes.
func TestOpenAPI(t *testing.T) {
	root, err := build.Root(t.Context())
	fatal.If(t, err)
	contract, err := os.ReadFile(filepath.Join(root, "api/openapi.yaml"))
	fatal.If(t, err)
	// The library's router takes a parameter for a whole segment of a path.
	contract = bytes.Replace(contract, []byte("{id}:extend:\n"), []byte("{id}/:extend:\n"), 1)
	doc, err := openapi3.NewLoader().LoadFromData(contract)
	fatal.If(t, err)
	fatal.If(t, doc.Validate(t.Context(), openapi3.EnableSchemaPatternValidation()))
	if !doc.IsOpenAPI31OrLater() {
		t.Errorf("version %s", doc.OpenAPI)
	}
	router, err := legacy.NewRouter(doc)
	fatal.If(t, err)

	checked := 0
	for _, e := range serverExchanges(t, root) {
		if len(e.Body) > 400<<10 {
			continue // more IDs than by default, which the contract does not describe
		}
		if e.Status == http.StatusNotFound || e.Status == http.StatusMethodNotAllowed {
			continue // the contract has neither, and the route cannot be told from it
		}
		req, err := http.NewRequestWithContext(t.Context(), e.Method, strings.Replace(e.URL, ":extend", "/:extend", 1), nil)
		fatal.If(t, err)
		if strings.HasPrefix(req.URL.Path, "/docs/") {
			continue // documents for people, to which types of problems link
		}
		route, params, err := router.FindRoute(req)
		if err != nil && e.Status == http.StatusMisdirectedRequest {
			continue // a name in Host is refused whatever the route is
		}
		if err != nil {
			t.Errorf("%s: %s %s: %d, but the contract has no such route: %v", e.Test, e.Method, e.URL, e.Status, err)
			continue
		}
		in := &openapi3filter.ResponseValidationInput{
			RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route},
			Status:                 e.Status,
			Header:                 e.Header,
			Options:                &openapi3filter.Options{IncludeResponseStatus: true},
		}
		in.SetBodyBytes(e.Body)
		if err := openapi3filter.ValidateResponse(context.Background(), in); err != nil {
			t.Errorf("%s: %s %s: %d is not what the contract describes: %v\n%.600s", e.Test, e.Method, e.URL, e.Status, err, e.Body)
		}
		checked++
	}
	if checked < 200 {
		t.Errorf("only %d answers were validated", checked)
	}
	t.Logf("%d answers validated", checked)
}
