package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/bench"
	"github.com/flakelease/allocator/bench/services"
	"github.com/flakelease/allocator/chaos/fatal"
)

// The page is written only where others could measure the same.
func TestUnfit(t *testing.T) {
	even := []time.Duration{100, 104, 110}
	for name, tc := range map[string]struct {
		commit, load string
		spins        []time.Duration
		want         []string
	}{
		"fit":                     {"a1b2c3d4e5f6", "0.80", even, nil},
		"changes":                 {"a1b2c3d4e5f6-dirty", "0.80", even, []string{"commit or remove"}},
		"no repository":           {"unknown", "0.80", even, []string{"commit or remove"}},
		"busy":                    {"a1b2c3d4e5f6", "1.01", even, []string{"load average was 1.01"}},
		"no load average":         {"a1b2c3d4e5f6", "unknown", even, []string{"load average was unknown"}},
		"disturbed":               {"a1b2c3d4e5f6", "0.80", []time.Duration{100, 126}, []string{"once and"}},
		"not tried":               {"a1b2c3d4e5f6", "0.80", nil, []string{"not tried"}},
		"everything at once":      {"x-dirty", "9", []time.Duration{1, 9}, []string{"commit or remove", "load average", "once and"}},
		"a tag is a clean commit": {"v0.1.0", "0.00", even, nil},
	} {
		got := unfit(tc.commit, tc.load, 2, tc.spins)
		if len(got) != len(tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
			continue
		}
		for i, want := range tc.want {
			if !strings.Contains(got[i], want) {
				t.Errorf("%s: %q, want %q", name, got[i], want)
			}
		}
	}
	if got := spins(); len(got) < 10 {
		t.Errorf("%d times", len(got))
	}
}

// The numbers of a run are kept, each round of each case.
func TestKeep(t *testing.T) {
	r := report{
		began:   time.Unix(1.7e9, 0),
		results: []services.Result{{Case: services.Case{Group: "g", Name: "n"}, Samples: []services.Sample{{IDs: 5}, {IDs: 7}}}},
		curves:  []services.Curve{{Case: "c", Points: []services.Point{{Rate: 1000, P99: time.Millisecond}}}},
		times:   bench.Times{Cases: []bench.Case{{Group: "make", Library: "x"}}, Took: [][]float64{{40, 41}}},
	}
	dir := filepath.Join(t.TempDir(), "bench")
	fatal.If(t, r.keep(dir))
	files, err := filepath.Glob(filepath.Join(dir, "20231114-221320-*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%q, %v", files, err)
	}
	text, err := os.ReadFile(files[0])
	fatal.If(t, err)
	var n numbers
	if err := json.Unmarshal(text, &n); err != nil || n.Cases["g: n"][1].IDs != 7 || n.Curves[0].Points[0].P99 != time.Millisecond || n.InProcess["make: x"][1] != 41 {
		t.Errorf("%v: %s", err, text)
	}
}
