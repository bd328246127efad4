package config

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

// Option is one setting: its key in the file, which is also the flag's name,
// and what it is for.
type Option struct {
	Key     string   // such as lease.window
	Usage   string   // one line, with the bounds and choices
	Why     string   // the reason for the default, or a hint; one sentence or more
	Choices []string // the values that it has; nil: others too
	value   *Value
	def     string         // default, as Value reads it
	file    bool           // names a file
	checks  []func() error // what is wrong with the value; each sees an option that the others may refuse
}

// rule adds to an option what its values must be like.
type rule func(*Option)

// option returns the option of a field, with its default.
func option(key string, v *Value, def, usage, why string, rules ...rule) Option {
	o := Option{Key: key, value: v, def: def, Usage: usage, Why: why}
	for _, r := range rules {
		r(&o)
	}
	return o
}

// between allows low to high, written as values are.
func between(low, high string) rule {
	return func(o *Option) {
		o.Usage += "; " + low + " to " + high
		v := o.value
		checked(func(s string) error {
			if v.compare(low) < 0 || v.compare(high) > 0 {
				return fmt.Errorf("%s is out of range: it must be %s to %s", s, low, high)
			}
			return nil
		})(o)
	}
}

// oneOf allows these values alone.
func oneOf(values ...string) rule {
	return func(o *Option) {
		last := len(values) - 1
		o.Choices = values
		o.Usage += ": " + strings.Join(values[:last], ", ") + " or " + values[last]
		checked(func(s string) error {
			if !slices.Contains(values, s) {
				return fmt.Errorf("%q is none of %s", s, strings.Join(values, ", "))
			}
			return nil
		})(o)
	}
}

// whole allows multiples of a unit.
func whole(d *time.Duration, unit time.Duration, what string) rule {
	return func(o *Option) {
		o.Usage += ", " + what
		checked(func(s string) error {
			if *d%unit != 0 {
				return fmt.Errorf("%s is not in %s: round it", s, what)
			}
			return nil
		})(o)
	}
}

// checked allows what check, given the value as text, finds nothing wrong with.
func checked(check func(string) error) rule {
	return func(o *Option) {
		v := o.value
		o.checks = append(o.checks, func() error { return check(v.String()) })
	}
}

// address allows what check finds nothing wrong with, and no address.
func address(check func(string) error) rule {
	return checked(func(s string) error {
		if s == "" {
			return nil
		}
		return check(s)
	})
}

// ofFile marks an option that names a file.
func ofFile(o *Option) { o.file = true }

// Env returns the name of the option's variable.
func (o Option) Env() string { return EnvPrefix + envName.Replace(strings.ToUpper(o.Key)) }

// EnvPrefix starts the name of every variable that allocator reads.
const EnvPrefix = "ALLOCATOR_"

var envName = strings.NewReplacer(".", "_", "-", "_")

// text returns the option's value as people may see it.
func (o Option) text() string {
	s := o.value.String()
	if o.Key != "etcd.endpoints" {
		return s
	}
	parts := strings.Split(s, ",")
	for i, p := range parts {
		if u, err := url.Parse(p); err == nil && u.User != nil {
			parts[i] = u.Redacted() // refused by Validate, and shown before that
		}
	}
	return strings.Join(parts, ",")
}

// options returns every option, bound to the fields of c.
func (c *Config) options() []Option {
	e, l, i := &c.Etcd, &c.Listen, &c.Etcd.Inside
	text, duration, number, list, yes := stringValue, durationValue, intValue, listValue, boolValue
	return []Option{
		option("node.name", text(&c.Node.Name), "", "name of this node",
			"Give each node its own: two of one name count as one where clocks are compared. A node that "+
				"restarts under its name prefers the sid it had.", checked(checkName)),
		option("space", text(&c.Space), "default", "name of the space: IDs are unique within one",
			"One cluster needs one space, so its name rarely matters.", checked(checkName)),
		option("root", text(&c.Root), "allocator", "first part of every key in etcd",
			"The etcd role needs the prefix /root/space/ and no other.", checked(checkName)),
		// Before epoch: a layout sets the epoch too, which a setting of its own replaces.
		option("layout", LayoutValue(&c.Layout, &c.Epoch), flake.Scalable.String(),
			"what the bits of IDs mean: scalable (32 holders), fleet (1024), twitter, discord, instagram, "+
				"sonyflake, leaf, baidu, js53, or bits such as 41/10/12,order=time-sid-seq,unit=1ms",
			"The Ulid-Flake specification's layout for clusters. Fixed when the space is initialized."),
		option("epoch", EpochValue(&c.Epoch), "2024-01-01T00:00:00Z",
			"time that IDs count from, as RFC 3339 or Unix milliseconds; unless set, the layout's own",
			"The Ulid-Flake specification's epoch; IDs last 278 years from it. Fixed when the space is initialized."),
		option("sid-range", SIDsValue(&c.SIDRange), "",
			"sids that this node may take, as first-last; empty: all of the space",
			"Two kinds of node in one space, such as servers and programs that embed a node, need a range "+
				"each, such as 0-23 and 24-31: then neither can use up the sids of the other."),

		option("etcd.endpoints", list(&e.Endpoints), "", "etcd members, comma-separated, as URLs or host:port",
			"serve needs them. Name every member, so that the loss of one has no effect."),
		option("etcd.username", text(&e.Username), "", "etcd user; with etcd.password-file",
			"No password authentication: a client certificate is safer."),
		option("etcd.password-file", text(&e.PasswordFile), "", "file with the etcd user's password",
			"A file, so that no process list or log shows it.", ofFile),
		option("etcd.tls.ca", text(&e.TLS.CA), "", "PEM file of the authorities that sign etcd's certificates",
			"The system's roots, when an endpoint is https.", ofFile),
		option("etcd.tls.cert", text(&e.TLS.Cert), "",
			"PEM file of the client certificate for etcd; with etcd.tls.key", "No client certificate.", ofFile),
		option("etcd.tls.key", text(&e.TLS.Key), "", "PEM file of the client certificate's key",
			"No client certificate.", ofFile),
		option("etcd.inside", text(&i.Dir), "",
			"directory for an etcd that this node runs itself; with etcd.join of all its members",
			"The node is a client of etcd.endpoints, or of etcd.join. Three nodes with etcd inside need no "+
				"other cluster. One alone has the only copy of its data, and listens on a Unix socket in it, unless "+
				"etcd.address is set."),
		option("etcd.join", list(&i.Join), "",
			"hosts of the nodes with etcd inside, comma-separated: the same on all nodes",
			"Three, or five to survive the loss of two. With etcd.inside the members begin a cluster; later "+
				"starts go by the data. A node without etcd.inside is a client of these."),
		option("etcd.address", text(&i.Address), "", "the host in etcd.join that is this machine",
			"The one whose address this machine has."),
		option("etcd.port-clients", number(&i.ClientPort), "2379",
			"port of etcd inside for nodes, the same on all members; the next one is for the other members",
			"etcd's own.", between("1", "65534")),
		option("etcd.insecure", yes(&i.Insecure), "false", "let etcd inside listen beyond loopback without TLS",
			"Who reaches its ports could change what nodes were granted. \"allocator etcd certs\" makes the "+
				"files for etcd.tls."),
		option("etcd.snapshot-command", text(&i.SnapshotCommand), "",
			"program that copies the hourly snapshot of etcd inside elsewhere: words between spaces, no shell, and "+
				"the path of the snapshot as the last argument",
			"Snapshots are on the disk that they are to replace. It runs once the snapshot was read and found whole, "+
				"for at most 30m, and is an event and an alert where it ends with another code than 0."),

		option("lease.window", duration(&c.Lease.Window), "30s",
			"how far ahead of the clock milliseconds are reserved",
			"Nodes keep issuing while etcd is unavailable, for at least five sixths of this time. The "+
				"sid of a crashed node is unusable for as long.", between("1s", "24h")),
		option("lease.ttl", duration(&c.Lease.TTL), "15s",
			"how long after its last renewal a node's sid counts as free",
			"A pause or an etcd leader change should cost no sid: four renewals in a row may fail. Uniqueness does "+
				"not depend on it.", between("2s", "1h"), whole(&c.Lease.TTL, time.Second, "whole seconds")),
		option("watermark.interval", duration(&c.Watermark.Interval), "5s",
			"how often a node says at least which times it issues no more",
			"The watermark is behind the clock by this and a quarter. A node extends its window as often: "+
				"with 1s that is one small write a second.", between("10ms", "1h")),

		option("worker.sid-range", SIDsValue(&c.Worker.SIDRange), "",
			"sids for workers, generators outside of the nodes, as first-last; empty: there are no workers",
			"Set it to the same range on all nodes, at an end of the sids. Nodes leave it alone, so that "+
				"workers cannot use up the nodes' sids."),
		option("worker.window", duration(&c.Worker.Window), "1m",
			"how far ahead of the clock a worker's interval reaches",
			"A worker goes on for 40s to 60s without a node or etcd, and writes to etcd each 20s. The number "+
				"of a killed one is unusable for a minute.",
			between("2s", "24h"), whole(&c.Worker.Window, time.Second, "whole seconds")),
		option("worker.per-client", number(&c.Worker.PerClient), "0",
			"workers that one client may hold at once; 0: half of worker.sid-range, at most 128; workers=N in "+
				"a token's line replaces it",
			"A client is a token's name, else a certificate's, else an address (of IPv6 a /64). A program "+
				"needs one worker per process.", between("0", strconv.Itoa(lease.MaxSIDs))),

		option("issue.max-lead", duration(&c.Issue.MaxLead), "250ms",
			"how far IDs may run ahead of the clock; 0 is the specification's literal rule",
			"Absorbs bursts of 8 million IDs and clock corrections of a quarter second without a refusal.",
			between("0s", "10s"), whole(&c.Issue.MaxLead, time.Millisecond, "whole milliseconds")),
		option("issue.max-skew", duration(&c.Issue.MaxSkew), "250ms", "how far the cluster's clocks may differ",
			"NTP keeps machines within some 10ms. A quarter second is a fault.", between("1ms", "1m")),
		option("clock.policy", text(&c.Clock.Policy), "allow",
			"what to do when too few peers confirm the clock for a minute",
			"Most partitions are shorter, and IDs are unique either way. Choose refuse if an ID far from real time "+
				"is worse than none.", oneOf("allow", "refuse")),

		option("listen.grpc", text(&l.GRPC), "127.0.0.1:9000",
			"host:port of the gRPC API, or a Unix socket as unix:/path; empty: none",
			"Loopback. Before you open it with :9000, see tls.cert and auth.token-file. A Unix socket is "+
				"never encrypted: listen.socket-mode says who may connect.", address(checkSocketOrPort)),
		option("listen.http", text(&l.HTTP), "127.0.0.1:8080",
			"host:port of the HTTP API, or a Unix socket as unix:/path; empty: none", "As listen.grpc.",
			address(checkSocketOrPort)),
		option("listen.resp", text(&l.RESP), "",
			"host:port for Redis clients, such as 127.0.0.1:6380, or a Unix socket as unix:/path; empty: none",
			"An unused port should not be open.", address(checkSocketOrPort)),
		option("listen.socket-mode", modeValue(&l.Socket.Mode), "0660", "permissions of the Unix sockets, in octal",
			"The user and the group of the socket may connect. 0666 is for every program of the machine, and "+
				"of the containers that the socket is mounted into."),
		option("listen.socket-group", text(&l.Socket.Group), "",
			"group of the Unix sockets, by name or number; empty: the group of the process",
			"Set it to a group that the programs are in, and the node too."),
		option("listen.admin", text(&l.Admin), "127.0.0.1:7947",
			"host:port of /metrics, /livez and /readyz; empty: none",
			"Loopback; probes and scrapers on other machines need :7947. The port follows that of gossip, "+
				"and IANA has not assigned it.", address(checkPort)),
		option("listen.gossip", text(&l.Gossip), "127.0.0.1:7946",
			"ip:port of gossip, UDP and TCP; empty: none, and no peer can confirm this clock",
			"Loopback; beyond it gossip needs a key (gossip.key-file).", address(checkPort)),
		option("listen.insecure", yes(&l.Insecure), "false",
			"allow the API beyond loopback without TLS and without tokens",
			"Everybody who reaches the ports could issue IDs and see the cluster. Turn it on where a network "+
				"policy, a mesh or a firewall decides who reaches them."),
		option("advertise.grpc", text(&c.Advertise.GRPC), "", "host:port at which others reach the gRPC API",
			"The address listened on; set it where that is not reachable, such as :9000 or behind NAT.",
			address(checkAdvertised)),
		option("advertise.http", text(&c.Advertise.HTTP), "", "host:port at which others reach the HTTP API",
			"As advertise.grpc.", address(checkAdvertised)),
		option("advertise.console", text(&c.Advertise.Console), "",
			"host:port, http://host:port or https://host:port at which browsers reach the console; none: "+
				"other nodes' pages have no link to it",
			"The address of listen.admin, if the console is served there and the other nodes' machines reach "+
				"it: not on loopback, unless gossip is on loopback too. Set it for a proxy in front of the node.",
			checked(checkConsole)),
		option("advertise.gossip", text(&c.Advertise.Gossip), "", "ip:port at which other nodes reach gossip",
			"The address listened on, or with none the machine's private address.", address(checkAdvertised)),
		option("gossip.key-file", text(&c.Gossip.KeyFile), "",
			"file with the keys of gossip: base64 of 16, 24 or 32 random bytes, one a line",
			"The first key encrypts and all decrypt, so that keys can be changed in three steps; the file is "+
				"read again every 5s.", ofFile),
		option("gossip.insecure", yes(&c.Gossip.Insecure), "false", "allow gossip beyond loopback without a key",
			"Without a key, any program on the network could pose as a peer and make nodes refuse for their clocks."),
		option("cluster.expect", number(&c.Cluster.Expect), "0",
			"nodes with gossip that should be there, this one included; a start waits for them, at most 5s, "+
				"and pages and doctor miss those that are not; 0: any number",
			"The first node to start is alone, and its clock is believed. Set it to the number of nodes: of "+
				"nodes that start together, one with a wrong clock then issues nothing.", between("0", "1024")),

		option("tls.cert", text(&c.TLS.Cert), "",
			"PEM file of the certificate, with its chain, that the API's ports show; with tls.key",
			"With a certificate the ports accept TLS 1.3 only. The files are read again every 5s; open "+
				"connections stay.", ofFile),
		option("tls.key", text(&c.TLS.Key), "", "PEM file of the certificate's key", "No encryption.", ofFile),
		option("tls.client-ca", text(&c.TLS.ClientCA), "",
			"PEM file of the authorities that sign clients' certificates; every client must then have one",
			"No certificate is required. Clients with one may issue, read and hold workers, unless it names "+
				"other scopes (URI urn:allocator:scope:admin) or auth.token-file is set.", ofFile),
		option("tls.admin", yes(&c.TLS.Admin), "false", "use TLS on the admin port too, with the same files",
			"Probes and scrapers rarely have a certificate."),
		option("auth.token-file", text(&c.Auth.TokenFile), "",
			"file with the tokens that callers may show: a name, scopes and SHA-256 a line",
			"Without it every client that can connect may issue and read. \"allocator token new\" makes "+
				"tokens; the file has their hashes alone, and is read again every 5s.", ofFile),
		option("auth.open-admin", text(&c.Auth.OpenAdmin), "loopback",
			"who may drain a node and read its profiles without a token or certificate of scope admin",
			"Whoever is on the machine could stop the process as well. Choose none where a proxy on the "+
				"machine passes on the calls of others. With auth.token-file tokens alone count.",
			oneOf("loopback", "none", "any")),
		option("http.hosts", list(&c.HTTP.Hosts), "",
			"names that HTTP requests may have in Host, besides the node's own, comma-separated; "+
				".example.com is all names under it, * any",
			"Against DNS rebinding. A port without TLS and tokens allows only the node's own names: addresses, "+
				"names without a dot, advertised names, and those under .localhost, .svc, .cluster.local and "+
				".internal. One with TLS (the admin port: tls.admin) or tokens allows any, unless this is set. "+
				"Add the name of your ingress or proxy."),
		option("limit.requests-per-second", number(&c.Limit.RequestsPerSecond), "0",
			"requests that one client may make each second, also at once, whatever their count; 0 is no limit",
			"No limit: one node serves some 100,000 a second. A client is a token's name, else a "+
				"certificate's, else an address (of IPv6 a /64).", between("0", "10000000")),
		option("limit.connections", number(&c.Limit.Connections), "4096",
			"connections that each port keeps at once, a quarter of them of one address (of IPv6 a /64); further "+
				"ones are closed; 0 is no limit",
			"Some 50 kB each; clients need one. The limit of open files has to be above it. Raise it if all "+
				"clients come through one proxy or NAT.", between("0", "1000000")),

		option("log.level", text(&c.Log.Level), "info", "minimum severity of messages logged",
			"Changes of state, and no single requests.", oneOf("debug", "info", "warn", "error")),
		option("log.format", text(&c.Log.Format), "text", "form of log lines on stderr",
			"Readable on a terminal; collectors prefer json.", oneOf("text", "json")),
		option("events.file", text(&c.Events.File), "",
			"file for the node's events, a line of JSON each, 30 MiB and as much in FILE.1; none: only in memory",
			"events.jsonl in etcd.inside; without that none. Set it, to another file for each node, so that you can "+
				"see what happened before a restart."),
		option("drain.delay", duration(&c.Drain.Delay), "0s",
			"how long to keep serving after readiness is off, when stopping",
			"Behind a load balancer, use the time it takes to notice: 5s in Kubernetes.", between("0s", "1h")),
		option("console.serve", text(&c.Console.Serve), "auto", "pages for operators on the admin port, at /console/",
			"auto serves them where listen.admin is on loopback, or has TLS (tls.admin) and auth.token-file "+
				"or tls.client-ca. Choose always behind a proxy that encrypts, with auth.token-file.",
			oneOf("auto", "always", "never")),
		option("console.operate", yes(&c.Console.Operate), "false",
			"a page that drains the node, and quarantines and releases sids, for callers with scope admin",
			"A page that is left open should change nothing."),
	}
}

// derive sets what follows from settings.
func (c *Config) derive() {
	l := &c.Lease
	// A window is extended early enough that a lost call and the one after it, each with its whole time, are
	// in time.
	l.ExtendEvery = l.Window / 6
	l.CallTimeout = min(l.Window/5, callTimeout)
	l.KeepAlive = l.TTL / 5 // Four renewals in a row may fail.
	// Clocks may differ, and a request may be under way when its process is paused.
	c.Watermark.Grace = max(minGrace, 2*c.Issue.MaxSkew)
	c.Etcd.Inside.PeerPort = c.Etcd.Inside.ClientPort + 1
	// No address takes all. 0 stays no limit.
	c.Limit.ConnectionsPerSource = (c.Limit.Connections + 3) / 4
}

// Options returns every option in the order of the reference.
func Options() []Option {
	c := Default()
	return c.options()
}

// AddFlags adds a flag for each option to fs. Load takes those that were set.
//
// With keys, only these have one.
func AddFlags(fs *pflag.FlagSet, keys ...string) {
	scratch := Default()
	for _, o := range scratch.options() {
		if len(keys) > 0 && !slices.Contains(keys, o.Key) {
			continue
		}
		f := fs.VarPF(o.value, o.Key, "", o.Usage)
		if o.Key == "node.name" {
			f.DefValue = "host name" // so that help and references are the same everywhere
		}
		if o.value.IsBoolFlag() {
			f.NoOptDefVal = "true"
		}
	}
}
