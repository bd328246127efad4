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

// Bounds that are no option's default.
const (
	maxName     = 63
	minTTL      = 2 * time.Second // etcd grants no lease under 1.5 election timeouts
	maxTTL      = time.Hour
	maxLead     = 10 * time.Second
	maxExpect   = 1024 // sids of the largest layout
	minInterval = 10 * time.Millisecond
)

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
	for _, n := range []struct{ key, name string }{{"node.name", c.Node.Name}, {"space", c.Space}, {"root", c.Root}} {
		rule(namePattern.MatchString(n.name), n.key, "%q is not a valid name: it must match %s", n.name, NamePattern)
	}
	rule(c.Node.Name != lease.Operator, "node.name",
		"%q is the name in records that operators wrote: use another one", c.Node.Name)
	rule(c.Layout.SIDBits() > 0, "layout",
		"%v has no sid, so two nodes could not share a space: use scalable or fleet", c.Layout)
	if c.Layout.SIDBits() > 0 {
		if err := c.Gen().Validate(); err != nil {
			rule(false, "epoch", "%v", err)
		}
	}
	rule(c.Epoch >= 0, "epoch", "%v is before 1970: ULIDs and UUIDs cannot hold such times; set a later one",
		c.Epoch.Time().Format(time.RFC3339))

	if c.Layout.SIDBits() > 0 {
		rule(c.SIDRange.All() || c.SIDRange.From < c.SIDRange.To, "sid-range",
			"the range is empty: write it as first-last, such as 0-23")
		rule(int(c.SIDRange.To) <= c.Layout.Holders(), "sid-range",
			"%v goes beyond sid %d, the last of layout %v: use a lower range", c.SIDRange, c.Layout.Holders()-1,
			c.Layout)
	}

	if c.Layout.SIDBits() > 0 {
		w := c.Worker.SIDRange
		rule(w.All() || w.From < w.To, "worker.sid-range", "the range is empty: write it as first-last, such as 24-31")
		rule(int(w.To) <= c.Layout.Holders(), "worker.sid-range",
			"%v goes beyond sid %d, the last of layout %v: use a lower range", w, c.Layout.Holders()-1, c.Layout)
		if within := c.SIDRange; !within.All() {
			_, err := lease.Space{
				Layout: c.Layout,
				Part:   lease.SIDRange{To: flake.SID(c.Layout.Holders())},
			}.Workers(w, within)
			rule(err == nil, "worker.sid-range", "%v", err)
		}
	}

	c.validateEtcd(rule)
	c.validateInside(rule)
	c.validateLease(rule)

	i := c.Issue
	rule(i.MaxLead >= 0 && i.MaxLead <= maxLead, "issue.max-lead",
		"%v is out of range: it must be 0 to %v", i.MaxLead, maxLead)
	rule(i.MaxLead%time.Millisecond == 0, "issue.max-lead",
		"%v is not a whole number of milliseconds: round it", i.MaxLead)
	rule(2*i.MaxLead <= c.Lease.Window, "issue.max-lead",
		"%v is more than half of lease.window (%v), so IDs ahead of the clock would use up the window: lower it, or "+
			"raise lease.window", i.MaxLead, c.Lease.Window)
	rule(i.MaxWait >= 0 && i.MaxWait <= time.Minute, "issue.max-wait",
		"%v is out of range: it must be 0 to 1m", i.MaxWait)
	rule(i.MaxSkew > 0 && i.MaxSkew <= time.Minute, "issue.max-skew",
		"%v is out of range: it must be above 0 and at most 1m", i.MaxSkew)
	maxBytes := c.Layout.MaxEntropySize()
	if !c.Layout.Random() {
		maxBytes = 2 // without effect
	}
	rule(i.EntropyBytes >= 0 && i.EntropyBytes <= maxBytes, "issue.entropy-bytes",
		"%d is out of range: it must be 0 to %d (layout %v)", i.EntropyBytes, maxBytes, c.Layout)

	for _, a := range []struct{ key, addr string }{{"listen.grpc", c.Listen.GRPC}, {"listen.http", c.Listen.HTTP},
		{"listen.resp", c.Listen.RESP}, {"listen.admin", c.Listen.Admin}, {"listen.gossip", c.Listen.Gossip}} {
		if a.addr == "" {
			continue
		}
		check := func() error { return checkAddress(a.addr, true) }
		if socket := unixsocket.Is(a.addr); socket && oneOf(a.key, "listen.grpc", "listen.http", "listen.resp") {
			check = func() error { return unixsocket.Check(a.addr) }
		} else if socket {
			check = func() error {
				return fmt.Errorf("%q is a Unix socket, and others have to reach this port: write host:port", a.addr)
			}
		}
		if err := check(); err != nil {
			rule(false, a.key, "%v", err)
		}
	}
	c.validateSockets(rule)
	for _, a := range []struct{ key, addr string }{{"advertise.grpc", c.Advertise.GRPC},
		{"advertise.http", c.Advertise.HTTP}} {
		if err := checkAddress(a.addr, false); a.addr != "" && err != nil {
			rule(false, a.key, "%v", err)
		}
	}
	if err := checkAddress(c.Advertise.Gossip, false); c.Advertise.Gossip != "" && err != nil {
		rule(false, "advertise.gossip", "%v", err)
	}
	if err := checkConsole(c.Advertise.Console); err != nil {
		rule(false, "advertise.console", "%v", err)
	}
	rule(c.Cluster.Expect >= 0 && c.Cluster.Expect <= maxExpect, "cluster.expect",
		"%d is out of range: it must be 0 to %d", c.Cluster.Expect, maxExpect)
	c.validateAccess(rule)
	rule(oneOf(c.Clock.Policy, "allow", "refuse"), "clock.policy", "%q is neither allow nor refuse", c.Clock.Policy)
	rule(c.Clock.StepHold > 0 && c.Clock.StepHold <= time.Hour, "clock.step-hold",
		"%v is out of range: it must be above 0 and at most 1h", c.Clock.StepHold)
	rule(c.Clock.StepLimit >= time.Minute &&
		c.Clock.StepLimit <= 24*time.Hour, "clock.step-limit", "%v is out of range: it must be 1m to 24h",
		c.Clock.StepLimit)
	rule(c.Clock.DowntimeLimit >= c.Clock.StepLimit &&
		c.Clock.DowntimeLimit <= 366*24*time.Hour, "clock.downtime-limit",
		"%v is out of range: it must be at least clock.step-limit, and at most 8784h", c.Clock.DowntimeLimit)
	rule(c.Clock.Grace > 0 && c.Clock.Grace <= time.Hour, "clock.grace",
		"%v is out of range: it must be above 0 and at most 1h", c.Clock.Grace)
	rule(oneOf(c.Console.Serve, "auto", "always", "never"), "console.serve",
		"%q is none of auto, always, never", c.Console.Serve)
	rule(oneOf(c.Log.Level, "debug", "info", "warn", "error"), "log.level",
		"%q is none of debug, info, warn, error", c.Log.Level)
	rule(oneOf(c.Log.Format, "text", "json"), "log.format", "%q is neither text nor json", c.Log.Format)
	for _, d := range []struct {
		key string
		d   time.Duration
	}{{"drain.delay", c.Drain.Delay}, {"drain.timeout", c.Drain.Timeout}, {"stop.timeout", c.Stop.Timeout}} {
		rule(d.d >= 0 && d.d <= time.Hour, d.key, "%v is out of range: it must be 0 to 1h", d.d)
	}
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
			if err := checkAddress(endpoint, false); err != nil {
				rule(false, "etcd.endpoints", "%v", err)
			}
			continue
		}
		u, err := url.Parse(endpoint)
		if err != nil {
			rule(false, "etcd.endpoints", "%v", err)
			continue
		}
		rule(u.User == nil, "etcd.endpoints",
			"%q contains credentials, which logs would show: use etcd.username and etcd.password-file", u.Redacted())
		rule(oneOf(u.Scheme, "http", "https"), "etcd.endpoints",
			"%q has an unknown scheme: use http or https", u.Redacted())
		if err := checkAddress(u.Host, false); err != nil {
			rule(false, "etcd.endpoints", "%v", err)
		}
		rule(u.Scheme != "http" || e.TLS == (TLS{}), "etcd.endpoints",
			"%q is http, but etcd.tls is set: use https, or remove etcd.tls", u.Redacted())
	}
	rule((e.Username == "") == (e.PasswordFile == ""), "etcd.username",
		"only one of etcd.username and etcd.password-file is set: set both or neither")
	rule((e.TLS.Cert == "") == (e.TLS.Key == ""), "etcd.tls.cert",
		"only one of etcd.tls.cert and etcd.tls.key is set: set both or neither")
	rule(e.DialTimeout > 0 && e.DialTimeout <= time.Minute, "etcd.dial-timeout",
		"%v is out of range: it must be above 0 and at most 1m", e.DialTimeout)
}

// Bounds of etcd inside.
const (
	maxMembers      = 7 // etcd's advice
	minQuota        = 64 << 20
	maxQuota        = 8 << 30 // etcd warns above it
	minSnapshot     = time.Minute
	maxSnapshot     = 168 * time.Hour
	maxSnapshotKeep = 1000
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
				"etcd.port-clients and etcd.port-members are the same on all", host)
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
	for _, p := range []struct {
		key  string
		port int
	}{{"etcd.port-clients", i.ClientPort}, {"etcd.port-members", i.PeerPort}} {
		rule(p.port > 0 && p.port < 1<<16, p.key, "%d is not a port: it must be 1 to 65535", p.port)
	}
	rule(i.ClientPort != i.PeerPort, "etcd.port-members", "%d is etcd.port-clients too: choose another", i.PeerPort)
	rule(i.Quota >= minQuota && i.Quota <= maxQuota, "etcd.quota",
		"%d is out of range: it must be 64MiB to 8GiB", i.Quota)
	rule(i.SnapshotEvery == 0 || i.SnapshotEvery >= minSnapshot && i.SnapshotEvery <= maxSnapshot,
		"etcd.snapshot-every", "%v is out of range: it must be %v to %v, or 0 for none",
		i.SnapshotEvery, minSnapshot, maxSnapshot)
	rule(i.SnapshotKeep >= 1 && i.SnapshotKeep <= maxSnapshotKeep, "etcd.snapshot-keep",
		"%d is out of range: it must be 1 to %d", i.SnapshotKeep, maxSnapshotKeep)
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

// Bounds of the limits. Beyond them a limit is a mistake, or none.
const (
	maxRate        = 10_000_000
	maxConnections = 1_000_000
	minMemory      = 16 << 20
)

func (c Config) validateAccess(rule func(bool, string, string, ...any)) {
	t, l := c.TLS, c.Limit
	rule((t.Cert == "") == (t.Key == ""), "tls.cert", "only one of tls.cert and tls.key is set: set both or neither")
	rule(t.ClientCA == "" || t.Cert != "", "tls.client-ca",
		"client certificates need TLS: set tls.cert and tls.key as well")
	rule(!t.Admin || t.Cert != "", "tls.admin", "the admin port has no certificate: set tls.cert and tls.key as well")
	open := c.beyondLoopback()
	rule(len(open) == 0 || c.Listen.Insecure || t.Cert != "" || c.Auth.TokenFile != "", "listen.insecure",
		"everybody who reaches %s could issue IDs, without TLS and without a token: set auth.token-file and "+
			"tls.cert, or listen on loopback, or set listen.insecure=true where only trusted programs reach the port",
		strings.Join(open, " and "))
	rule(c.Auth.StaleAfter >= 10*time.Second &&
		c.Auth.StaleAfter <= 7*24*time.Hour, "auth.stale-after", "%v is out of range: it must be 10s to 168h",
		c.Auth.StaleAfter)
	rule(oneOf(c.Auth.OpenAdmin, "loopback", "none", "any"), "auth.open-admin",
		"%q is none of loopback, none, any", c.Auth.OpenAdmin)
	for _, h := range c.HTTP.Hosts {
		rule(hostPattern.MatchString(h), "http.hosts",
			"%q is not a host name: write names without scheme and port, .example.com for all names under it, or *", h)
	}
	rule(l.RequestsPerSecond >= 0 && l.RequestsPerSecond <= maxRate, "limit.requests-per-second",
		"%d is out of range: it must be 0 to %d", l.RequestsPerSecond, maxRate)
	rule(l.Burst >= 0 && l.Burst <= maxRate, "limit.burst", "%d is out of range: it must be 0 to %d", l.Burst, maxRate)
	rule(l.Burst == 0 || l.RequestsPerSecond > 0, "limit.burst",
		"it has no effect without a rate: set limit.requests-per-second as well")
	rule(l.Connections >= 0 && l.Connections <= maxConnections, "limit.connections",
		"%d is out of range: it must be 0 to %d", l.Connections, maxConnections)
	rule(l.ConnectionsPerSource >= 0 && l.ConnectionsPerSource <= maxConnections, "limit.connections-per-source",
		"%d is out of range: it must be 0 to %d", l.ConnectionsPerSource, maxConnections)
	rule(l.Memory == 0 || l.Memory >= minMemory, "limit.memory",
		"%d is too little: it must be at least 16MiB, or 0", l.Memory)
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

func (c Config) validateLease(rule func(bool, string, string, ...any)) {
	l := c.Lease
	for _, d := range []struct {
		key string
		d   time.Duration
	}{{"lease.extend-every", l.ExtendEvery}, {"lease.keepalive", l.KeepAlive}, {"lease.reload-every", l.ReloadEvery},
		{"lease.call-timeout", l.CallTimeout}, {"watermark.interval", c.Watermark.Interval}} {
		rule(d.d >= minInterval && d.d <= time.Hour, d.key, "%v is out of range: it must be %v to 1h", d.d, minInterval)
	}
	rule(l.Window > 0 && l.Window <= lease.MaxWindow, "lease.window",
		"%v is out of range: it must be above 0 and at most %v", l.Window, lease.MaxWindow)
	unit := time.Duration(c.Layout.Unit()) * time.Millisecond
	rule(2*unit <= l.Window, "lease.window",
		"%v is less than two units of time of layout %v, and only units that lie in a window as a whole are used: "+
			"raise it to %v", l.Window, c.Layout, 2*unit)
	// One attempt may be lost and read back, and the next must still be in time.
	rule(l.Window > l.ExtendEvery+2*l.CallTimeout, "lease.window",
		"%v is not more than lease.extend-every + 2 × lease.call-timeout (%v), so one lost call to etcd would make "+
			"the node refuse requests: raise it, or lower those",
		l.Window, l.ExtendEvery+2*l.CallTimeout)
	least := 2 * c.Issue.MaxSkew
	rule(c.Watermark.Grace >= least && c.Watermark.Grace <= time.Hour, "watermark.grace",
		"%v is out of range: it must be twice issue.max-skew (%v) to 1h", c.Watermark.Grace, least)
	w := c.Worker.Window
	rule(w >= minTTL && w <= lease.MaxWindow, "worker.window",
		"%v is out of range: it must be %v to %v", w, minTTL, lease.MaxWindow)
	rule(w%time.Second == 0, "worker.window",
		"%v is not a whole number of seconds, the unit of etcd leases: round it", w)
	rule(c.Worker.PerClient >= 0 && c.Worker.PerClient <= lease.MaxSIDs, "worker.per-client",
		"%d is out of range: it must be 0 to %d", c.Worker.PerClient, lease.MaxSIDs)
	rule(l.TTL >= minTTL && l.TTL <= maxTTL, "lease.ttl",
		"%v is out of range: it must be %v to %v", l.TTL, minTTL, maxTTL)
	rule(l.TTL%time.Second == 0, "lease.ttl",
		"%v is not a whole number of seconds, the unit of etcd leases: round it", l.TTL)
	rule(l.KeepAlive <= l.TTL/3, "lease.keepalive",
		"%v is more than a third of lease.ttl (%v), so two failed renewals would lose the lease: lower it, or raise "+
			"lease.ttl", l.KeepAlive, l.TTL)
}

func oneOf(s string, of ...string) bool {
	for _, o := range of {
		if s == o {
			return true
		}
	}
	return false
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
	if err != nil || !oneOf(u.Scheme, "http", "https") || u.Host == "" || len(u.Scheme+"://"+u.Host) != len(text) {
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
