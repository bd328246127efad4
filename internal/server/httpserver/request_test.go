package httpserver

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/api"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
)

var fuzzLimits = server.Limits{Count: 10_000, Wide: true, Format: flake.Default}

// checkOrder fails unless an order is one that can be sent on, and a fault one
// that can be told.
func checkOrder(t *testing.T, o server.Order, bad *fault) {
	t.Helper()
	if bad != nil {
		if o != (server.Order{}) || bad.refusal.Message == "" || server.WireOf(bad.refusal.Reason).Status() != 400 || len(bad.refusal.Message) > 400 {
			t.Fatalf("%+v with fault %+v", o, bad)
		}
		return
	}
	if o.Count < 1 || o.Count > 10_000 || o.After < 0 || o.As > server.UUID {
		t.Fatalf("order %+v", o)
	}
}

func FuzzQuery(f *testing.F) {
	for _, s := range []string{
		"", "count=1&as=ulid&after=0", "count=1&count=2", "count=%31", "&&", "=", "a=b", "count=9999999999999999999999",
		"after=01XA2VP000037", "after=%", "as=flake;count=1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		o, bad := parseOrder(raw, "", nil, fuzzLimits)
		checkOrder(t, o, bad)
	})
}

func FuzzBody(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"count":1,"as":"ulid","after":"0"}`, `{"count":1}{}`, `{"count":1e1}`, `null`, `{"count":{"count":1}}`,
		`{"count":1,"Count":2}`, "{\"as\":\"\xff\"}", `{"after":"\u0030"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		o, bad := parseOrder("", "application/json", body, fuzzLimits)
		checkOrder(t, o, bad)
		if bad != nil || len(body) == 0 {
			return
		}
		// What we take, package json takes as well, and reads the same.
		var v struct {
			Count *int    `json:"count"`
			As    *string `json:"as"`
			After *string `json:"after"`
		}
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%q: taken as %+v, but %v", body, o, err)
		}
		if v.Count != nil && *v.Count != o.Count || v.As != nil && *v.As != o.As.String() {
			t.Fatalf("%q: %+v", body, o)
		}
	})
}

func FuzzAccept(f *testing.F) {
	f.Add("text/plain;q=0.5, */*")
	f.Fuzz(func(t *testing.T, accept string) {
		if wantsText(accept) && !strings.Contains(accept, "*") && !strings.Contains(strings.ToLower(accept), "text/plain") {
			t.Fatalf("%q asks for text", accept)
		}
	})
}

// TestReplyAllocations: the texts of IDs go into one buffer that is used again.
func TestReplyAllocations(t *testing.T) {
	b := gen.Block{First: 1 << 40, Count: 1000, Stride: 32}
	for as := server.Flake; as <= server.Number; as++ {
		r := new(reply)
		r.write(b, as, flake.Default, []byte(`"n"`), false)
		if n := testing.AllocsPerRun(20, func() { r.write(b, as, flake.Default, []byte(`"n"`), false) }); n > 0 {
			t.Errorf("%s: %v allocations for 1,000 IDs", as, n)
		}
	}
}

func TestWantsText(t *testing.T) {
	for accept, want := range map[string]bool{
		"": false, "*/*": false, "application/json": false, "text/plain": true, "text/*": true,
		"text/plain, */*": true, "text/plain, application/json": false,
		"text/plain;q=0.5, application/json": false, "text/plain, application/json;q=0.9": true,
		"text/plain;q=0": false, "*/*, text/plain;q=0": false, "text/plain; charset=utf-8": true,
		"text/html": false, "text/plain;q=x": false, "text/plain;q=NaN": false, ",,;": false, "TEXT/PLAIN": true,
	} {
		if got := wantsText(accept); got != want {
			t.Errorf("%q: %t, want %t", accept, got, want)
		}
	}
}

// TestRetryAfterRoundsUp: a retry must not come too early.
func TestRetryAfterRoundsUp(t *testing.T) {
	for after, want := range map[time.Duration]string{
		0: "", time.Nanosecond: "1", time.Millisecond: "1", time.Second: "1", 1001 * time.Millisecond: "2", 5 * time.Second: "5",
	} {
		rec := httptest.NewRecorder()
		problemOf(&node.Refusal{Reason: node.ClockSkew, RetryAfter: after}).write(rec)
		if got := rec.Header().Get("Retry-After"); got != want {
			t.Errorf("%v: Retry-After %q, want %q", after, got, want)
		}
	}
}

// TestReasonsInOpenAPI: openapi.yaml lists the reasons of package node.
func TestReasonsInOpenAPI(t *testing.T) {
	list := regexp.MustCompile(`(?s)\n    Reason:\n.*?enum:\n(.*?)\n    Problem:`).FindSubmatch(api.OpenAPI)
	if list == nil {
		t.Fatal("openapi.yaml has no list of reasons")
	}
	var got []node.Reason
	for line := range strings.Lines(string(list[1])) {
		got = append(got, node.ReasonOf(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "-"))))
	}
	want := slices.Clone(node.Reasons)
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("openapi.yaml lists %v, want %v", got, want)
	}
}
