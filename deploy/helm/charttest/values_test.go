package charttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/config"
)

// schema is the part of a JSON schema that is checked here.
type schema struct {
	Description          string            `json:"description"`
	Type                 any               `json:"type"`
	Properties           map[string]schema `json:"properties"`
	AdditionalProperties any               `json:"additionalProperties"`
}

func readSchema(t testing.TB) schema {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	fatal.If(t, err)
	var s schema
	fatal.If(t, json.Unmarshal(text, &s))
	return s
}

func defaultValues(t testing.TB) (map[string]any, []byte) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	fatal.If(t, err)
	var v map[string]any
	fatal.If(t, yaml.UnmarshalStrict(text, &v))
	return v, text
}

// Every value is in the schema, and every name in the schema is a value. Unknown names
// are refused everywhere.
func TestValuesAndSchema(t *testing.T) {
	values, _ := defaultValues(t)
	var walk func(path string, s schema, v map[string]any)
	walk = func(path string, s schema, v map[string]any) {
		if s.AdditionalProperties != false {
			t.Errorf("%s: the schema allows unknown names", path)
		}
		for name := range v {
			sub, ok := s.Properties[name]
			if !ok {
				t.Errorf("%s.%s is not in the schema", path, name)
				continue
			}
			if m, ok := v[name].(map[string]any); ok && sub.Properties != nil && !free(path, name) {
				walk(path+"."+name, sub, m)
			}
		}
		for name, sub := range s.Properties {
			if _, ok := v[name]; !ok && (path != "" || name != "global" && name != "enabled" && name != "extraArgs") {
				t.Errorf("%s.%s is in the schema, but not in values.yaml", path, name)
			}
			if len(sub.Description) < 4 || !strings.HasSuffix(sub.Description, ".") {
				t.Errorf("%s.%s: the description is %q", path, name, sub.Description)
			}
		}
	}
	walk("", readSchema(t), values)
}

// free reports whether the names in a value are not all set by default.
func free(path, name string) bool { return path == "" && name == "config" || path == ".probes" }

// Descriptions in the schema are those of values.yaml.
func TestDescriptionsAgree(t *testing.T) {
	_, text := defaultValues(t)
	root := readSchema(t)
	var path []string
	comment, found := "", 0
	comments := regexp.MustCompile(`^ *# -- (.*)$`)
	keys := regexp.MustCompile(`^( *)([A-Za-z][A-Za-z0-9]*):`)
	for line := range strings.Lines(string(text)) {
		if m := comments.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			comment = strings.ReplaceAll(m[1], "`", "")
			continue
		}
		m := keys.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		path = append(path[:len(m[1])/2], m[2])
		if comment == "" {
			continue
		}
		s := root
		for _, name := range path {
			s = s.Properties[name]
		}
		if s.Description != comment {
			t.Errorf("%s:\nvalues.yaml: %s\nschema:      %s", strings.Join(path, "."), comment, s.Description)
		}
		comment = ""
		found++
	}
	if found < 150 {
		t.Errorf("found only %d comments", found)
	}
}

// values.config has exactly those settings of a node for which the chart has no value
// of its own, so a new setting is in one of the two.
func TestConfigKeys(t *testing.T) {
	have := map[string]string{}
	var walk func(prefix string, s schema)
	walk = func(prefix string, s schema) {
		for name, sub := range s.Properties {
			if key := prefix + name; sub.Properties != nil {
				walk(key+".", sub)
			} else {
				have[key] = sub.Description
			}
		}
	}
	walk("", readSchema(t).Properties["config"])
	own := regexp.MustCompile(`^(node|space|root|layout|epoch|etcd|listen|advertise|gossip|log|drain|tls|auth|sid-range|worker\.sid-range)\b`)
	for _, o := range config.Options() {
		_, ok := have[o.Key]
		switch {
		case own.MatchString(o.Key) && ok:
			t.Errorf("config.%s also has a value of its own", o.Key)
		case !own.MatchString(o.Key) && !ok:
			t.Errorf("the setting %s has no value: add it to config in values.schema.json", o.Key)
		case ok && *update:
			replaceDescription(t, have[o.Key], strings.ToUpper(o.Usage[:1])+o.Usage[1:]+".")
		case ok && !strings.EqualFold(strings.TrimSuffix(have[o.Key], "."), o.Usage):
			t.Errorf("config.%s is described as %q, want %q: run go test -update", o.Key, have[o.Key], o.Usage)
		}
		delete(have, o.Key)
	}
	for key := range have {
		t.Errorf("config.%s is not a setting of a node", key)
	}
}

// The chart passes to agents the flags that they have, and no others.
func TestFlagsOfAgents(t *testing.T) {
	pages, err := printed()
	fatal.If(t, err)
	text, err := os.ReadFile(filepath.Join(chartDir, "templates", "_validate.tpl"))
	fatal.If(t, err)
	_, list, _ := strings.Cut(string(text), "$flags := list")
	list, _, _ = strings.Cut(list, "-}}")
	have := strings.Fields(strings.ReplaceAll(list, `"`, ""))
	var want []string
	for _, m := range regexp.MustCompile(`(?m)^ {6}--([a-z.-]+) `).FindAllStringSubmatch(pages[1], -1) {
		want = append(want, m[1])
	}
	if !slices.Equal(have, want) {
		t.Errorf("agent.extraArgs may have the flags\n%q\nand agents have\n%q", have, want)
	}
}

// replaceDescription writes a description in the schema anew.
func replaceDescription(t *testing.T, old, is string) {
	t.Helper()
	path := filepath.Join(chartDir, "values.schema.json")
	text, err := os.ReadFile(path)
	fatal.If(t, err)
	text = bytes.ReplaceAll(text, fmt.Appendf(nil, `"description": %q`, old), fmt.Appendf(nil, `"description": %q`, is))
	fatal.If(t, os.WriteFile(path, text, 0o644))
}

// Every setting in values.config reaches the node.
func TestConfigIsPassedOn(t *testing.T) {
	text := ""
	var walk func(indent string, s schema)
	walk = func(indent string, s schema) {
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			sub := s.Properties[name]
			if sub.Properties != nil {
				text += indent + name + ":\n"
				walk(indent+"  ", sub)
				continue
			}
			text += fmt.Sprintf("%s%s: %s\n", indent, name, map[any]string{"boolean": "true", "integer": "2", "array": "[a.example]"}[sub.Type])
		}
	}
	walk("  ", readSchema(t).Properties["config"])
	for name, v := range map[string]string{"policy": "refuse", "serve": "never", "window": "2m", "ttl": "21s", "max-lead": "100ms", "max-skew": "200ms",
		"interval": "4s", "file": "/events/events.jsonl"} {
		text = regexp.MustCompile(`(?m)^( +`+name+`:) *$`).ReplaceAllString(text, "$1 "+v)
	}
	text += "extraVolumeMounts: [{name: events, mountPath: /events}]\n"
	r := mustRender(t, with(t, "config:\n"+text), install)
	p, _ := nodePod(t, r)
	c, settings := settingsOf(t, r, p)
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	def := map[string]string{}
	for _, o := range config.Options() {
		def[o.Key] = o.Why
	}
	passed := 0
	for _, s := range settings {
		if strings.HasPrefix(s.Source, "file") {
			passed++
		}
	}
	if passed < 15 {
		t.Errorf("only %d settings reached the node", passed)
	}
}
