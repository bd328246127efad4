package main

import (
	"bytes"
	"os"
	"slices"
	"testing"
)

func TestFileIsCurrent(t *testing.T) {
	want, err := JSON()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("dashboard.json is another: run go run ./deploy/monitoring/dashboard > deploy/monitoring/dashboard.json && make chart-files")
	}
}

// units of Grafana that are used here; a misspelt one shows bare figures.
var units = []string{"short", "s", "percentunit", "reqps", "bytes"}

func TestPanelsAreComplete(t *testing.T) {
	titles := map[string]bool{}
	for _, r := range rows {
		for _, p := range r.panels {
			if titles[p.title] || p.title == "" {
				t.Errorf("panel %q comes twice, or has no title", p.title)
			}
			titles[p.title] = true
			if len(p.help) < 15 {
				t.Errorf("panel %q does not say what it shows", p.title)
			}
			if !slices.Contains(units, p.unit) {
				t.Errorf("panel %q has the unit %q, which is none of %q", p.title, p.unit, units)
			}
			if len(p.queries) == 0 {
				t.Errorf("panel %q asks nothing", p.title)
			}
			for _, q := range p.queries {
				if q.legend == "" {
					t.Errorf("panel %q has a series without a name", p.title)
				}
			}
			for i, s := range p.steps {
				if i > 0 && s.from <= p.steps[i-1].from {
					t.Errorf("panel %q: thresholds %v do not rise", p.title, p.steps)
				}
			}
		}
	}
	if len(titles) < 30 {
		t.Errorf("looked at %d panels", len(titles))
	}
}

// overlaps returns pairs of panels that lie on each other or beyond the 24 columns,
// and numbers that come twice.
func overlaps(panels []jsonAny) (out []any) {
	taken, ids := map[[2]int]any{}, map[any]bool{}
	for _, p := range panels {
		if ids[p["id"]] {
			out = append(out, p["id"])
		}
		ids[p["id"]] = true
		at := p["gridPos"].(jsonAny)
		for x := at["x"].(int); x < at["x"].(int)+at["w"].(int); x++ {
			for y := at["y"].(int); y < at["y"].(int)+at["h"].(int); y++ {
				if taken[[2]int{x, y}] != nil || x >= 24 {
					out = append(out, p["title"])
				}
				taken[[2]int{x, y}] = p["id"]
			}
		}
	}
	return out
}

func TestPanelsDoNotOverlap(t *testing.T) {
	if bad := overlaps(build(rows).Panels); len(bad) > 0 {
		t.Errorf("panels overlap or share a number: %v", bad)
	}
	for what, at := range map[string][2]jsonAny{
		"overlap":  {grid(0, 0, 12, 8), grid(11, 7, 12, 8)},
		"too wide": {grid(0, 0, 12, 8), grid(20, 0, 8, 8)},
	} {
		if len(overlaps([]jsonAny{{"id": 1, "gridPos": at[0]}, {"id": 2, "gridPos": at[1]}})) == 0 {
			t.Errorf("%s is not found", what)
		}
	}
	if len(overlaps([]jsonAny{{"id": 1, "gridPos": grid(0, 0, 1, 1)}, {"id": 1, "gridPos": grid(1, 0, 1, 1)}})) == 0 {
		t.Error("one number for two panels is not found")
	}
}
