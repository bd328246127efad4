package check

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// dashboard is the part of Grafana's model that is checked here.
type dashboard struct {
	Templating struct {
		List []struct {
			Type  string `json:"type"`
			Query any    `json:"query"`
		} `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Grid        grid   `json:"gridPos"`
	Targets     []struct {
		RefID  string `json:"refId"`
		Expr   string `json:"expr"`
		Legend string `json:"legendFormat"`
	} `json:"targets"`
	Fields struct {
		Defaults struct {
			Unit       string `json:"unit"`
			Thresholds struct {
				Steps []struct {
					Value *float64 `json:"value"`
				} `json:"steps"`
			} `json:"thresholds"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

// grid is a panel's place: 24 columns, and rows as needed.
type grid struct{ X, Y, W, H int }

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	fatal.If(t, json.Unmarshal([]byte(readFile(t, dashboardFile)), &d))
	return d
}

// query is an expression of the dashboard.
type query struct{ panel, expr, legend string }

// variableValues stands in for the values that Grafana inserts for variables.
var variableValues = strings.NewReplacer("$namespace", ".*", "$job", ".*", "$instance", ".*", "$space", ".*", "$__rate_interval", "1m")

// queries returns the expressions of panels and the queries of variables.
func queries(t *testing.T) (out []query, variables []string) {
	t.Helper()
	d := readDashboard(t)
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			q.Expr = variableValues.Replace(q.Expr)
			if strings.Contains(q.Expr, "$") {
				t.Errorf("panel %q uses a variable that the dashboard does not have: %s", p.Title, q.Expr)
			}
			out = append(out, query{p.Title, q.Expr, q.Legend})
		}
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			variables = append(variables, fmt.Sprint(v.Query.(map[string]any)["query"]))
		}
	}
	if len(out) < 30 || len(variables) < 3 {
		t.Fatalf("found %d queries and %d variables", len(out), len(variables))
	}
	return out, variables
}

// units are the names that Grafana knows of those used here; with a misspelt one it
// shows bare numbers.
var units = []string{"short", "s", "percentunit", "reqps", "bytes"}

func TestPanelsAreComplete(t *testing.T) {
	titles := map[string]bool{}
	for _, p := range readDashboard(t).Panels {
		if titles[p.Title] || p.Title == "" {
			t.Errorf("panel %q: title is used twice or empty", p.Title)
		}
		titles[p.Title] = true
		if p.Type == "row" {
			continue
		}
		if len(p.Description) < 15 {
			t.Errorf("panel %q: description is %q", p.Title, p.Description)
		}
		if unit := p.Fields.Defaults.Unit; !slices.Contains(units, unit) {
			t.Errorf("panel %q: unit %q is not one of %q", p.Title, unit, units)
		}
		if len(p.Targets) == 0 {
			t.Errorf("panel %q has no query", p.Title)
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if q.Legend == "" || refs[q.RefID] {
				t.Errorf("panel %q: query %q has no legend, or its refId is used twice", p.Title, q.RefID)
			}
			refs[q.RefID] = true
		}
		for i, s := range p.Fields.Defaults.Thresholds.Steps {
			if (s.Value == nil) != (i == 0) || i > 1 && *s.Value <= *p.Fields.Defaults.Thresholds.Steps[i-1].Value {
				t.Errorf("panel %q: step %d of the thresholds is not above the one before", p.Title, i)
			}
		}
	}
	if len(titles) < 30 {
		t.Errorf("found %d panels", len(titles))
	}
}

// The dashboard shows what nodes expose of their members of etcd: it is the part of them that operators look after.
func TestMembersAreShown(t *testing.T) {
	board := readFile(t, dashboardFile)
	names := regexp.MustCompile(`allocator_etcd_\w+`).FindAllString(readFile(t, "../../../internal/daemon/metrics/definitions.go"), -1)
	if len(names) < 8 {
		t.Errorf("nodes expose %q", names)
	}
	for _, name := range names {
		if !strings.Contains(board, name+"{") && !strings.Contains(board, name+"_bucket{") {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// misplaced returns the titles of panels that overlap, are wider than 24 columns, or
// share an ID.
func misplaced(panels []panel) (out []string) {
	taken, ids := map[[2]int]bool{}, map[int]bool{}
	for _, p := range panels {
		bad := ids[p.ID] || p.Grid.W < 1 || p.Grid.H < 1 || p.Grid.X+p.Grid.W > 24
		ids[p.ID] = true
		for x := p.Grid.X; x < p.Grid.X+p.Grid.W; x++ {
			for y := p.Grid.Y; y < p.Grid.Y+p.Grid.H; y++ {
				bad = bad || taken[[2]int{x, y}]
				taken[[2]int{x, y}] = true
			}
		}
		if bad {
			out = append(out, p.Title)
		}
	}
	return out
}

func TestPanelsDoNotOverlap(t *testing.T) {
	if bad := misplaced(readDashboard(t).Panels); len(bad) > 0 {
		t.Errorf("panels overlap, are too wide or share an ID: %q", bad)
	}
	for what, p := range map[string]panel{
		"overlap":   {ID: 2, Grid: grid{11, 7, 12, 8}},
		"too wide":  {ID: 2, Grid: grid{20, 0, 8, 8}},
		"shared ID": {ID: 1, Grid: grid{12, 0, 1, 1}},
	} {
		if bad := misplaced([]panel{{ID: 1, Grid: grid{0, 0, 12, 8}}, p}); len(bad) == 0 {
			t.Errorf("%s is not found", what)
		}
	}
}
