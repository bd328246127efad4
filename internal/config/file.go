package config

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// YAML returns settings as a file that --config reads, each with its source as a
// comment.
func YAML(settings []Setting) string {
	var f file
	kinds := map[string]string{}
	for _, o := range Options() {
		kinds[o.Key] = o.value.Type()
	}
	for _, s := range settings {
		f.line(s.Key, scalarYAML(kinds[s.Key], s.Value)+"  # "+s.Source)
	}
	return f.String()
}

// Sample returns a file with every setting, its default and the reason, all commented out:
// what a file leaves out keeps the default of the version that runs.
func Sample() string {
	f := file{commented: true}
	f.WriteString(`# Every setting of allocator with its default and the reason, as a file for --config or
# ALLOCATOR_CONFIG. Take the "#" off a line to set it, and off the lines of the sections
# that it is in. "allocator docs sample" prints this file, and "allocator config print" shows
# every value and where it came from.
#
# A value comes from the first of these that gives one: a flag (--lease.window 1m), a
# variable (ALLOCATOR_LEASE_WINDOW=1m: the key in capitals, with _ in place of dots and
# dashes), the file, the default. Unknown keys are errors, in the file as in the
# environment. An empty variable counts as not set, except ALLOCATOR_ETCD_INSIDE: the node is
# a client then, whatever the file says. Variables that Kubernetes injects for a Service
# named allocator (ALLOCATOR_PORT…, ALLOCATOR_SERVICE_…, ALLOCATOR_…_TCP…) are ignored.
#
# Rules:
# - issue.max-lead is at most half of lease.window.
# - etcd.username and etcd.password-file are set together, as are etcd.tls.cert and
#   etcd.tls.key, and tls.cert and tls.key. tls.client-ca and tls.admin need these two.
# - Names of nodes, roots and spaces are of the form ` + NamePattern + `.
# - layout and epoch are those that the space was initialized with.

`)
	for _, o := range Options() {
		value := scalarYAML(o.value.Type(), o.text())
		if o.Key == "node.name" {
			value = "node-1"
			o.Usage += "; default: the host name"
		}
		f.sections(o.Key)
		fmt.Fprintf(&f, "#%s# %s\n#%s# Why: %s\n", f.indent(), o.Usage, f.indent(), o.Why)
		f.line(o.Key, value)
	}
	return f.String()
}

// file is a YAML file of which each section is written once, since options of one
// section follow each other.
type file struct {
	strings.Builder
	commented bool
	open      []string // the sections that the next line is in
}

// sections begins the sections of key that are not open, and ends the others.
func (f *file) sections(key string) {
	path := strings.Split(key, ".")
	path = path[:len(path)-1]
	same := 0
	for same < len(path) && same < len(f.open) && path[same] == f.open[same] {
		same++
	}
	for f.open = f.open[:same]; same < len(path); same++ {
		f.write(path[same] + ":")
		f.open = append(f.open, path[same])
	}
}

func (f *file) line(key, value string) {
	f.sections(key)
	f.write(key[strings.LastIndex(key, ".")+1:] + ": " + value)
}

func (f *file) indent() string { return strings.Repeat("  ", len(f.open)) }

func (f *file) write(text string) {
	if f.commented {
		f.WriteString("#")
	}
	f.WriteString(f.indent() + text + "\n")
}

// scalarYAML returns the text of a setting as YAML that the option reads again.
func scalarYAML(kind, text string) string {
	switch kind {
	case "int", "bool", "duration":
		return text
	}
	marshal := yaml.Marshal
	if strings.Contains(text, "\n") { // YAML would take several lines
		marshal = json.Marshal
	}
	b, err := marshal(text)
	if err != nil {
		panic(fmt.Sprintf("config: %q as YAML: %v", text, err)) // any text can be written
	}
	return strings.TrimSuffix(string(b), "\n")
}
