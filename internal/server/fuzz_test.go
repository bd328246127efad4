package server

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/gen"
)

var fuzzLimits = limits{count: 10_000, wide: true, format: flake.Default}

// checkOrder fails unless an order is one that can be sent on, and a fault one
// that can be told.
func checkOrder(t *testing.T, o order, bad *fault) {
	t.Helper()
	if bad != nil {
		if o != (order{}) || bad.message == "" || wires[bad.reason].http != 400 || len(bad.message) > 400 {
			t.Fatalf("%+v with fault %+v", o, bad)
		}
		return
	}
	if o.count < 1 || o.count > 10_000 || o.after < 0 || o.as >= numForms {
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
		if v.Count != nil && *v.Count != o.count || v.As != nil && *v.As != formNames[o.as] {
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
	for as := range numForms {
		r := new(reply)
		r.write(b, as, flake.DefaultEpoch, []byte(`"n"`), false)
		if n := testing.AllocsPerRun(20, func() { r.write(b, as, flake.DefaultEpoch, []byte(`"n"`), false) }); n > 0 {
			t.Errorf("%s: %v allocations for 1,000 IDs", formNames[as], n)
		}
	}
}
