package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/text"
	"github.com/flakelease/allocator/internal/unixsocket"
)

// RuleError is a setting that breaks a rule.
type RuleError struct {
	Key  string // the setting to change
	Rule string // what it breaks, and why that matters
}

// Error names both.
func (e *RuleError) Error() string { return "config: " + e.Key + ": " + e.Rule }

const maxName = 63

// NamePattern is the form of the names of nodes, roots and spaces.
const NamePattern = `[a-z0-9][a-z0-9._-]{0,62}`

var namePattern = regexp.MustCompile(`^` + NamePattern + `$`)

// Validate returns every rule that c breaks as RuleErrors, joined, or nil.
// Whether etcd endpoints are given is for callers that need them.
func (c Config) Validate() error {
	var errs []error
	rule := func(ok bool, key, format string, args ...any) {
		if !ok {
			errs = append(errs, &RuleError{Key: key, Rule: fmt.Sprintf(format, args...)})
		}
	}
	for _, o := range c.options() {
		for _, check := range o.checks {
			err := check()
			rule(err == nil, o.Key, "%v", err)
		}
	}
	rule(c.Node.Name != lease.Operator, "node.name",
		"%q is the name in records that operators wrote: use another one", c.Node.Name)
	rule(c.Layout.SIDBits() > 0, "layout",
		"%v has no sid, so two nodes could not share a space: use scalable or fleet", c.Layout)
	rule(c.Epoch >= 0, "epoch", "%v is before 1970: ULIDs and UUIDs cannot hold such times; set a later one",
		c.Epoch.Time().Format(time.RFC3339))

	if holders := c.Layout.Holders(); c.Layout.SIDBits() > 0 {
		err := c.Gen().Validate()
		rule(err == nil, "epoch", "%v", err)
		part := func(r lease.SIDRange, key, example string) {
			rule(r.All() || r.From < r.To, key, "the range is empty: write it as first-last, such as %s", example)
			rule(int(r.To) <= holders, key, "%v goes beyond sid %d, the last of layout %v: use a lower range", r,
				holders-1, c.Layout)
		}
		part(c.SIDRange, "sid-range", "0-23")
		part(c.Worker.SIDRange, "worker.sid-range", "24-31")
		if !c.SIDRange.All() {
			whole := lease.Space{Layout: c.Layout, Part: lease.SIDRange{To: flake.SID(holders)}}
			_, err = whole.Workers(c.Worker.SIDRange, c.SIDRange)
			rule(err == nil, "worker.sid-range", "%v", err)
		}
	}

	c.validateEtcd(rule)
	c.validateInside(rule)
	window, unit, lead := c.Lease.Window, time.Duration(c.Layout.Unit())*time.Millisecond, c.Issue.MaxLead
	rule(2*unit <= window, "lease.window",
		"%v is less than two units of time of layout %v, and only units that lie in a window as a whole are used: "+
			"raise it to %v", window, c.Layout, 2*unit)
	rule(2*lead <= window, "issue.max-lead",
		"%v is more than half of lease.window (%v), so IDs ahead of the clock would use up the window: lower it, or "+
			"raise lease.window", lead, window)
	c.validateSockets(rule)
	c.validateAccess(rule)
	rule(c.Listen.Gossip == "" || loopback(c.Listen.Gossip) || c.Gossip.KeyFile != "" || c.Gossip.Insecure,
		"gossip.key-file", "gossip on %s, beyond loopback, needs a key: set it to a file from \"allocator gossip "+
			"keygen\", or listen on 127.0.0.1, or set gossip.insecure=true where only nodes reach the port",
		c.Listen.Gossip)
	return errors.Join(errs...)
}

func (c Config) validateSockets(rule func(bool, string, string, ...any)) {
	key := map[string]string{} // Each path has the setting that named it first.
	for _, a := range []struct{ key, addr string }{{"listen.grpc", c.Listen.GRPC}, {"listen.http", c.Listen.HTTP},
		{"listen.resp", c.Listen.RESP}} {
		path, socket := unixsocket.Path(a.addr)
		if !socket {
			continue
		}
		path = filepath.Clean(path)
		rule(key[path] == "", a.key, "%s is the socket of %s too: use another path", path, key[path])
		key[path] = a.key
	}
	rule(len(key) == 0 || c.Listen.Socket.Mode&0o600 == 0o600, "listen.socket-mode",
		"%04o shuts out the owner of the socket: write 0600, 0660 or 0666", c.Listen.Socket.Mode)
}

func (c Config) validateEtcd(rule func(bool, string, string, ...any)) {
	e := c.Etcd
	for _, endpoint := range e.Endpoints {
		if !strings.Contains(endpoint, "://") {
			err := checkAddress(endpoint, false)
			rule(err == nil, "etcd.endpoints", "%v", err)
			continue
		}
		u, err := url.Parse(endpoint)
		if err != nil {
			rule(false, "etcd.endpoints", "%v", err)
			continue
		}
		rule(u.User == nil, "etcd.endpoints",
			"%q contains credentials, which logs would show: use etcd.username and etcd.password-file", u.Redacted())
		rule(u.Scheme == "http" || u.Scheme == "https", "etcd.endpoints",
			"%q has an unknown scheme: use http or https", u.Redacted())
		err = checkAddress(u.Host, false)
		rule(err == nil, "etcd.endpoints", "%v", err)
		rule(u.Scheme != "http" || e.TLS == (TLS{}), "etcd.endpoints",
			"%q is http, but etcd.tls is set: use https, or remove etcd.tls", u.Redacted())
	}
	rule((e.Username == "") == (e.PasswordFile == ""), "etcd.username",
		"only one of etcd.username and etcd.password-file is set: set both or neither")
	rule((e.TLS.Cert == "") == (e.TLS.Key == ""), "etcd.tls.cert",
		"only one of etcd.tls.cert and etcd.tls.key is set: set both or neither")
}

// Bounds of etcd inside.
const (
	maxMembers = 7 // etcd's advice
	// minInsideTTL is 1.5 times the election timeout of etcd inside, the shortest lease that it grants.
	minInsideTTL = 3 * time.Second
)

func (c Config) validateInside(rule func(bool, string, string, ...any)) {
	e, i := c.Etcd, c.Etcd.Inside
	inside := i.Dir != ""
	rule(!inside || len(e.Endpoints) == 0, "etcd.inside",
		"etcd.endpoints is set too, and a node uses either an etcd of yours or its own: remove one")
	rule(len(i.Join) == 0 || len(e.Endpoints) == 0, "etcd.join",
		"etcd.endpoints is set too: remove one; etcd.join names the nodes with etcd inside")
	seen := map[string]bool{}
	for _, host := range i.Join {
		rule(net.ParseIP(host) != nil || hostPattern.MatchString(host) && host != "*" && host[0] != '.', "etcd.join",
			"%q is not a host: write addresses or names without scheme and port, such as 10.0.0.1; "+
				"etcd.port-clients is the same on all", host)
		name := strings.ToLower(host)
		if ip := net.ParseIP(host); ip != nil {
			name = ip.String()
		}
		rule(!seen[name], "etcd.join", "%s is named twice: each member needs an address of its own", host)
		seen[name] = true
	}
	rule(len(i.Join) <= maxMembers, "etcd.join", "%d members are more than %d, each of which takes part in every "+
		"write: let the other nodes be clients, without etcd.inside", len(i.Join), maxMembers)
	rule(!inside || i.Address == "" || len(i.Join) == 0 || slices.Contains(i.Join, i.Address), "etcd.address",
		"%q is not in etcd.join (%s): write it as it stands there", i.Address, strings.Join(i.Join, ","))
	rule(inside || i.SnapshotCommand == "", "etcd.snapshot-command",
		"this node has no etcd inside, so it would copy nothing: set etcd.inside, or remove it")
	if !inside {
		return
	}
	rule(c.Lease.TTL >= minInsideTTL, "lease.ttl", "%v is shorter than the %v that etcd inside grants: raise it",
		c.Lease.TTL, minInsideTTL)
	t := e.TLS
	rule(t == (TLS{}) || t.CA != "" && t.Cert != "" && t.Key != "", "etcd.tls.ca",
		"members need all of etcd.tls.ca, etcd.tls.cert and etcd.tls.key: they show their certificate to each other; "+
			"\"allocator etcd certs\" makes them")
	var open []string
	for _, host := range i.Join {
		if !loopback(net.JoinHostPort(host, "0")) {
			open = append(open, host)
		}
	}
	rule(len(open) == 0 || t != (TLS{}) || i.Insecure, "etcd.insecure",
		"who reaches %s could change what nodes were granted, without TLS: make certificates with \"allocator etcd "+
			"certs\" and set etcd.tls, or set etcd.insecure=true where only trusted programs reach the ports",
		strings.Join(open, " and "))
}

func (c Config) validateAccess(rule func(bool, string, string, ...any)) {
	t := c.TLS
	rule((t.Cert == "") == (t.Key == ""), "tls.cert", "only one of tls.cert and tls.key is set: set both or neither")
	rule(t.ClientCA == "" || t.Cert != "", "tls.client-ca",
		"client certificates need TLS: set tls.cert and tls.key as well")
	rule(!t.Admin || t.Cert != "", "tls.admin", "the admin port has no certificate: set tls.cert and tls.key as well")
	open := c.beyondLoopback()
	rule(len(open) == 0 || c.Listen.Insecure || t.Cert != "" || c.Auth.TokenFile != "", "listen.insecure",
		"everybody who reaches %s could issue IDs, without TLS and without a token: set auth.token-file and "+
			"tls.cert, or listen on loopback, or set listen.insecure=true where only trusted programs reach the port",
		strings.Join(open, " and "))
	for _, h := range c.HTTP.Hosts {
		rule(hostPattern.MatchString(h), "http.hosts",
			"%q is not a host name: write names without scheme and port, .example.com for all names under it, or *", h)
	}
}

var hostPattern = regexp.MustCompile(`^(\*|\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)$`)

// CheckHost reports whether the Host header of requests to listen.http is checked: where it
// is configured, and where nothing else keeps a web page from reading the answers.
//
// No web page reaches a Unix socket, and clients of one write any name there.
func (c Config) CheckHost() bool {
	return !unixsocket.Is(c.Listen.HTTP) && c.checkHost(c.TLS.Cert != "")
}

// CheckAdminHost reports the same of listen.admin, which has TLS only with tls.admin.
func (c Config) CheckAdminHost() bool { return c.checkHost(c.TLS.Admin) }

func (c Config) checkHost(encrypted bool) bool {
	return len(c.HTTP.Hosts) > 0 || !encrypted && c.Auth.TokenFile == ""
}

// ServesConsole reports whether the admin port has the pages for operators.
func (c Config) ServesConsole() bool {
	switch c.Console.Serve {
	case "always":
		return true
	case "auto":
		return c.Listen.Admin != "" && loopback(c.Listen.Admin) ||
			c.TLS.Admin && (c.Auth.TokenFile != "" || c.TLS.ClientCA != "")
	}
	return false
}

// Exposed returns what an unauthenticated client on the network could do with the API as it is
// configured, a sentence each with what to change; none for one on loopback. A
// node starts all the same: encryption may be the business of a mesh or a proxy.
func (c Config) Exposed() (problems []string) {
	open := c.beyondLoopback()
	if len(open) == 0 {
		return nil
	}
	where, drain := strings.Join(open, " and "), ""
	if c.Auth.OpenAdmin == "any" {
		drain = " and drain the node"
	}
	plain := c.TLS.Cert == ""
	switch {
	case plain && c.Auth.TokenFile != "":
		problems = append(problems, "tokens are sent unencrypted, and anyone who reads one can use it: set tls.cert "+
			"and tls.key, or listen on loopback: "+where)
	case plain:
		problems = append(problems, "the API is open to the network without TLS: set tls.cert and tls.key, or "+
			"listen on loopback: "+where)
	}
	if c.Auth.TokenFile == "" && c.TLS.ClientCA == "" {
		problems = append(problems, "any client that can connect may issue IDs"+drain+": set auth.token-file or "+
			"tls.client-ca, or listen on loopback: "+where)
	}
	return problems
}

// Exposed says who else reaches the member of this machine, and what to do; empty: nobody does.
func (e Etcd) Exposed() string {
	if e.Inside.Dir == "" || e.TLS != (TLS{}) || e.Socket() != "" {
		return ""
	}
	way := "; a member that is alone needs neither etcd.address nor ports"
	if e.Inside.Address == "" && len(e.Inside.Join) == 0 {
		way = ", or choose another directory: the path of etcd.inside is too long for sockets, which need no ports"
	}
	return "who reaches the ports of etcd inside, also from this machine, may change what nodes were granted: set " +
		"etcd.tls" + way
}

// beyondLoopback returns the API's listeners that other machines can reach, with their
// addresses.
func (c Config) beyondLoopback() (open []string) {
	for _, a := range []struct{ key, addr string }{{"listen.grpc", c.Listen.GRPC}, {"listen.http", c.Listen.HTTP},
		{"listen.resp", c.Listen.RESP}} {
		if a.addr != "" && !loopback(a.addr) && checkAddress(a.addr, true) == nil {
			open = append(open, a.key+" ("+a.addr+")")
		}
	}
	return open
}

// loopback reports whether an address to listen on is this machine's alone.
func loopback(addr string) bool {
	if unixsocket.Is(addr) {
		return true
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// NoConsole is the value of advertise.console for no link.
const NoConsole = "none"

// checkConsole returns what is wrong with advertise.console.
func checkConsole(text string) error {
	if text == "" || text == NoConsole {
		return nil
	}
	if !strings.Contains(text, "://") {
		return checkAddress(text, false)
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" ||
		len(u.Scheme+"://"+u.Host) != len(text) {
		return fmt.Errorf("%q is not a URL such as https://node-1.example.com:7947: it has no user, path or query",
			text)
	}
	if u.Port() == "" {
		return nil // The scheme has a default port.
	}
	return checkAddress(u.Host, false)
}

// AdvertisedConsole returns the URL of the node's pages for browsers, without a path, if
// the admin port has the given address for others; "": none.
func (c Config) AdvertisedConsole(admin string) string {
	scheme := "http://"
	if c.TLS.Admin {
		scheme = "https://"
	}
	switch text := c.Advertise.Console; {
	case text == NoConsole, c.Listen.Admin == "", !c.ServesConsole():
		return ""
	case strings.Contains(text, "://"):
		return text
	case text != "":
		return scheme + text
	case loopback(c.Listen.Admin) && !loopback(c.Listen.Gossip): // the other nodes may be on other machines
		return ""
	}
	return scheme + admin
}

// checkAddress returns what is wrong with a host:port. One to listen on may have
// no host and port 0.
func checkAddress(addr string, listen bool) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return errors.New(text.NotHostPort(addr, "PORT"))
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 && !listen {
		return fmt.Errorf("%q: the port must be %d to 65535", addr, map[bool]int{true: 0, false: 1}[listen])
	}
	if host == "" && !listen {
		return fmt.Errorf("%q has no host: write host:port", addr)
	}
	return nil
}

// checkName returns what is wrong with the name of a node, a root or a space.
func checkName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("%q is not a valid name: it must match %s", name, NamePattern)
	}
	return nil
}

// checkPort returns what is wrong with an address to listen on, for others than the machine's own programs.
func checkPort(addr string) error {
	if unixsocket.Is(addr) {
		return fmt.Errorf("%q is a Unix socket, and others have to reach this port: write host:port", addr)
	}
	return checkAddress(addr, true)
}

// checkSocketOrPort returns what is wrong with an address to listen on.
func checkSocketOrPort(addr string) error {
	if unixsocket.Is(addr) {
		return unixsocket.Check(addr)
	}
	return checkAddress(addr, true)
}

func checkAdvertised(addr string) error { return checkAddress(addr, false) }
