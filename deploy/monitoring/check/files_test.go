package check

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/flakelease/allocator/chaos/fatal"
)

// top is the repository.
const top = "../../.."

const (
	rulesFile     = "../rules.yaml"
	rulesTests    = "../rules_test.yaml"
	dashboardFile = "../dashboard.json"
	alertsPage    = top + "/docs/reference/alerts.md"
	runbooks      = "https://github.com/flakelease/allocator/blob/main/docs/reference/alerts.md#"
)

// rule is a rule as Prometheus reads it.
type rule struct {
	Record      string            `json:"record"`
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	KeepFiring  string            `json:"keep_firing_for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	fatal.If(t, err)
	return string(b)
}

// rules returns all rules, in order.
func rules(t *testing.T) (out []rule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []rule `json:"rules"`
		} `json:"groups"`
	}
	fatal.If(t, yaml.UnmarshalStrict([]byte(readFile(t, rulesFile)), &file))
	for _, g := range file.Groups {
		out = append(out, g.Rules...)
	}
	if len(out) < 40 {
		t.Fatalf("found %d rules", len(out))
	}
	return out
}

func alerts(t *testing.T) []rule {
	t.Helper()
	return slices.DeleteFunc(rules(t), func(r rule) bool { return r.Alert == "" })
}

func TestAlertsAreComplete(t *testing.T) {
	names := map[string]bool{}
	for _, a := range alerts(t) {
		if names[a.Alert] || !regexp.MustCompile(`^Allocator[A-Z][A-Za-z]+$`).MatchString(a.Alert) {
			t.Errorf("%s: the name is used twice or does not begin with Allocator", a.Alert)
		}
		names[a.Alert] = true
		if s := a.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, s) || len(a.Labels) != 1 {
			t.Errorf("%s: labels %v: want only a severity", a.Alert, a.Labels)
		}
		if d, err := time.ParseDuration(a.For); err != nil || d < 0 {
			t.Errorf("%s: for %q: %v", a.Alert, a.For, err)
		}
		for _, key := range []string{"summary", "description"} {
			if len(a.Annotations[key]) < 20 {
				t.Errorf("%s: %s is %q", a.Alert, key, a.Annotations[key])
			}
		}
		if got, want := a.Annotations["runbook_url"], runbooks+strings.ToLower(a.Alert); got != want {
			t.Errorf("%s: runbook_url is %s, want %s", a.Alert, got, want)
		}
		if len(a.Annotations) != 3 {
			t.Errorf("%s: annotations %v", a.Alert, a.Annotations)
		}
	}
}

// Each alert has a section, or an item of a list, that says how urgent it is and what to do.
func TestAlertsHaveSections(t *testing.T) {
	section := regexp.MustCompile(`(?m)^### (Allocator\w+)\n\*(\w+)\.\* (?:.*\n)*?(?:\n|\z)`)
	severities := map[string]string{}
	for _, m := range section.FindAllStringSubmatch(readFile(t, alertsPage), -1) {
		if severities[m[1]] != "" {
			t.Errorf("alerts.md has %s twice", m[1])
		}
		severities[m[1]] = m[2]
		if !regexp.MustCompile(`(?m)^- \*\*(Check and do|Do):\*\* \S`).MatchString(m[0]) {
			t.Errorf("alerts.md does not say what to do about %s", m[1])
		}
	}
	item := regexp.MustCompile(`(?m)^- <a id="(allocator\w+)"></a>\*\*(Allocator\w+)\*\*, \*(\w+)\*: .+ \*\*Do:\*\* .+$`)
	for _, m := range item.FindAllStringSubmatch(readFile(t, alertsPage), -1) {
		if severities[m[2]] != "" || m[1] != strings.ToLower(m[2]) {
			t.Errorf("alerts.md has %s twice, or under the anchor %s", m[2], m[1])
		}
		severities[m[2]] = m[3]
	}
	for _, a := range alerts(t) {
		if got, want := severities[a.Alert], a.Labels["severity"]; got != want {
			t.Errorf("alerts.md gives %s the severity %q, the rule %q", a.Alert, got, want)
		}
		delete(severities, a.Alert)
	}
	for name := range severities {
		t.Errorf("alerts.md has a section %s, but there is no such alert", name)
	}
}

// Each alert has tests for promtool: one in which it fires, and one in which it does not.
func TestAlertsHaveTests(t *testing.T) {
	var file struct {
		Tests []struct {
			Name  string `json:"name"`
			Exprs []struct {
				Expr string `json:"expr"`
				Want []any  `json:"exp_samples"`
			} `json:"promql_expr_test"`
		} `json:"tests"`
	}
	fatal.If(t, yaml.Unmarshal([]byte(readFile(t, rulesTests)), &file))
	fires, quiet := map[string]bool{}, map[string]bool{}
	asked := regexp.MustCompile(`^ALERTS\{alertname="(\w+)", alertstate="firing"\}$`)
	for _, test := range file.Tests {
		for _, e := range test.Exprs {
			if m := asked.FindStringSubmatch(e.Expr); m != nil {
				fires[m[1]] = fires[m[1]] || len(e.Want) > 0
				quiet[m[1]] = quiet[m[1]] || len(e.Want) == 0
			}
		}
	}
	for _, a := range alerts(t) {
		if !fires[a.Alert] || !quiet[a.Alert] {
			t.Errorf("rules_test.yaml: %s: fires: %v, does not fire: %v", a.Alert, fires[a.Alert], quiet[a.Alert])
		}
	}
}

// Inhibition rules name alerts that there are, and are equal by labels that both have: a rule with a label that only one
// side has inhibits nothing. A critical alert may be inhibited by critical ones alone.
func TestInhibitionRules(t *testing.T) {
	var file struct {
		Rules []struct {
			Source []string `json:"source_matchers"`
			Target []string `json:"target_matchers"`
			Equal  []string `json:"equal"`
		} `json:"inhibit_rules"`
	}
	if err := yaml.UnmarshalStrict([]byte(readFile(t, "../alertmanager.yaml")), &file); err != nil || len(file.Rules) < 3 {
		t.Fatalf("%d rules: %v", len(file.Rules), err)
	}
	severities := map[string]string{}
	for _, a := range alerts(t) {
		severities[a.Alert] = a.Labels["severity"]
	}
	tests := readFile(t, rulesTests)
	named := func(matchers, equal []string) (severity string) {
		m := regexp.MustCompile(`^alertname(=|=~)"(Allocator)\(?([\w|]+)\)?"$`).FindStringSubmatch(strings.Join(matchers, " "))
		if m == nil {
			t.Fatalf("%q names no alerts", matchers)
		}
		for name := range strings.SplitSeq(m[3], "|") {
			name = m[2] + name
			if severities[name] == "" {
				t.Errorf("there is no alert %s", name)
			}
			if severities[name] == "critical" || severity == "" {
				severity = severities[name]
			}
			sample := regexp.MustCompile(`labels: 'ALERTS\{alertname="` + name + `", .*`).FindString(tests)
			for _, label := range equal {
				if !strings.Contains(sample, " "+label+`="`) {
					t.Errorf("%s has no label %s", name, label)
				}
			}
		}
		return severity
	}
	for _, r := range file.Rules {
		if source, target := named(r.Source, r.Equal), named(r.Target, r.Equal); target == "critical" && source != "critical" {
			t.Errorf("%q inhibit the critical alerts of %q", r.Source, r.Target)
		}
	}
}
