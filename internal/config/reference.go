package config

import (
	"fmt"
	"strings"
)

// Reference returns the page of all options, as Markdown.
func Reference() string {
	var b strings.Builder
	b.WriteString(`# Configuration

A value comes from the first of these that gives one: a flag (` + "`--lease.window 1m`" + `), a variable
(` + "`ALLOCATOR_LEASE_WINDOW=1m`" + `: the key in capitals, with ` + "`_`" + ` in place of dots and dashes), the YAML
file named by ` + "`--config`" + ` or ` + "`ALLOCATOR_CONFIG`" + `, the default. In the file a dot is a level:

` + "```yaml\nlease:\n  window: 1m\n```" + `

Unknown keys are errors, in the file as in the environment. An empty variable counts as not set. Variables that
Kubernetes injects for a Service named allocator (` + "`ALLOCATOR_PORT…`, `ALLOCATOR_SERVICE_…`," + `
` + "`ALLOCATOR_…_TCP…`" + `) are ignored. ` + "`allocator config print`" + ` shows every value and where it came from.

| key | default | what it is |
|---|---|---|
`)
	options := Options()
	for _, o := range options {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", o.Key, o.defaultText(), o.Usage)
	}
	b.WriteString("\n## Why these defaults\n\n")
	for _, o := range options {
		fmt.Fprintf(&b, "- `%s`: %s\n", o.Key, o.Why)
	}
	b.WriteString(`
## Rules

- ` + "`lease.window` > `lease.extend-every` + 2 × `lease.call-timeout`" + `: one lost call must not refuse requests.
- ` + "`lease.ttl`" + ` is in whole seconds, at least 2s, and ` + "`lease.keepalive`" + ` at most a third of it.
- ` + "`issue.max-lead`" + ` is at most 10s and half of ` + "`lease.window`" + `.
- ` + "`etcd.username` and `etcd.password-file`" + ` are set together, as are ` + "`etcd.tls.cert`" + ` and
  ` + "`etcd.tls.key`" + `, and ` + "`tls.cert` and `tls.key`" + `. ` + "`tls.client-ca` and `tls.admin`" + ` need these
  two.
- ` + "`limit.burst` needs `limit.requests-per-second`" + `.
- Names of nodes, roots and spaces are of the form ` + "`" + NamePattern + "`" + `.
- ` + "`layout`, `epoch`" + ` must be what the space was initialized with: a node that differs ends with an error
  that prints both.
`)
	return b.String()
}

// defaultText returns the default as the reference shows it, the same on every
// machine.
func (o Option) defaultText() string {
	if o.Key == "node.name" {
		return "the host name"
	}
	if s := o.text(); s != "" {
		return "`" + s + "`"
	}
	return "–"
}
