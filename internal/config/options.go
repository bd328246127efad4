package config

import (
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Option is one setting: its key in the file, which is also the flag's name,
// and what it is for.
type Option struct {
	Key   string // such as lease.extend-every
	Usage string // one line
	Why   string // the reason for the default, or a hint; one sentence or more
	value *Value
	file  bool // names a file
}

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
	l, i := &c.Lease, &c.Issue
	return []Option{
		{
			Key:   "node.name",
			value: stringValue(&c.Node.Name),
			Usage: "name of this node",
			Why: "Give each node its own: two of one name count as one where clocks are compared. A node that " +
				"restarts under its name prefers the sid it had.",
		},
		{Key: "space", value: stringValue(&c.Space),
			Usage: "name of the space: IDs are unique within one",
			Why:   "One cluster needs one space, so its name rarely matters."},
		{
			Key:   "root",
			value: stringValue(&c.Root),
			Usage: "first part of every key in etcd",
			Why:   "The etcd role needs the prefix /root/space/ and no other.",
		},
		// Before epoch: a layout sets the epoch too, which a setting of its own replaces.
		{
			Key:   "layout",
			value: LayoutValue(&c.Layout, &c.Epoch),
			Usage: "what the bits of IDs mean: scalable (32 holders), fleet (1024), twitter, discord, instagram, " +
				"sonyflake, leaf, baidu, js53, or bits such as 41/10/12,order=time-sid-seq,unit=1ms",
			Why: "The Ulid-Flake specification's layout for clusters. Fixed when the space is initialized.",
		},
		{
			Key:   "epoch",
			value: EpochValue(&c.Epoch),
			Usage: "time that IDs count from, as RFC 3339 or Unix milliseconds; unless set, the layout's own",
			Why: "The Ulid-Flake specification's epoch; IDs last 278 years from it. Fixed when the space is " +
				"initialized.",
		},

		{
			Key:   "sid-range",
			value: SIDsValue(&c.SIDRange),
			Usage: "sids that this node may take, as first-last; empty: all of the space",
			Why: "Two kinds of node in one space, such as servers and programs that embed a node, need a range " +
				"each, such as 0-23 and 24-31: then neither can use up the sids of the other.",
		},

		{
			Key:   "etcd.endpoints",
			value: listValue(&c.Etcd.Endpoints),
			Usage: "etcd members, comma-separated, as URLs or host:port",
			Why:   "serve needs them. Name every member, so that the loss of one has no effect.",
		},
		{Key: "etcd.username", value: stringValue(&c.Etcd.Username),
			Usage: "etcd user; with etcd.password-file",
			Why:   "No password authentication: a client certificate is safer."},
		{
			Key:   "etcd.password-file",
			value: stringValue(&c.Etcd.PasswordFile),
			file:  true,
			Usage: "file with the etcd user's password",
			Why:   "A file, so that no process list or log shows it.",
		},
		{Key: "etcd.tls.ca", value: stringValue(&c.Etcd.TLS.CA), file: true,
			Usage: "PEM file of the authorities that sign etcd's certificates",
			Why:   "The system's roots, when an endpoint is https."},
		{Key: "etcd.tls.cert", value: stringValue(&c.Etcd.TLS.Cert), file: true,
			Usage: "PEM file of the client certificate for etcd; with etcd.tls.key",
			Why:   "No client certificate."},
		{Key: "etcd.tls.key", value: stringValue(&c.Etcd.TLS.Key), file: true,
			Usage: "PEM file of the client certificate's key",
			Why:   "No client certificate."},
		{
			Key:   "etcd.inside",
			value: stringValue(&c.Etcd.Inside.Dir),
			Usage: "directory for an etcd that this node runs itself; with etcd.join of all its members",
			Why: "The node is a client of etcd.endpoints, or of etcd.join. Three nodes with etcd inside need no " +
				"other cluster. One alone has the only copy of its data, and listens on a Unix socket in it, unless " +
				"etcd.address is set.",
		},
		{
			Key:   "etcd.join",
			value: listValue(&c.Etcd.Inside.Join),
			Usage: "hosts of the nodes with etcd inside, comma-separated: the same on all nodes",
			Why: "Three, or five to survive the loss of two. With etcd.inside the members begin a cluster; later " +
				"starts go by the data. A node without etcd.inside is a client of these.",
		},
		{Key: "etcd.address", value: stringValue(&c.Etcd.Inside.Address),
			Usage: "the host in etcd.join that is this machine",
			Why:   "The one whose address this machine has."},
		{Key: "etcd.port-clients", value: intValue(&c.Etcd.Inside.ClientPort),
			Usage: "port of etcd inside for nodes, the same on all members",
			Why:   "etcd's own."},
		{Key: "etcd.port-members", value: intValue(&c.Etcd.Inside.PeerPort),
			Usage: "port of etcd inside for the other members, the same on all",
			Why:   "etcd's own."},
		{
			Key:   "etcd.insecure",
			value: boolValue(&c.Etcd.Inside.Insecure),
			Usage: "let etcd inside listen beyond loopback without TLS",
			Why: "Who reaches its ports could change what nodes were granted. \"allocator etcd certs\" makes the " +
				"files for etcd.tls.",
		},
		{
			Key:   "etcd.quota",
			value: sizeValue(&c.Etcd.Inside.Quota),
			Usage: "size of the database of etcd inside above which it refuses writes, such as 2GiB",
			Why:   "etcd's own. A thousand nodes need some 20 MB, since history is compacted after an hour.",
		},
		{
			Key:   "etcd.snapshot-every",
			value: durationValue(&c.Etcd.Inside.SnapshotEvery),
			Usage: "how often etcd inside writes a snapshot into its directory; 0 is never",
			Why:   "A snapshot is some MB. After a restore nodes need a new era whatever its age.",
		},
		{Key: "etcd.snapshot-keep", value: intValue(&c.Etcd.Inside.SnapshotKeep),
			Usage: "how many snapshots are kept; older ones are deleted",
			Why:   "A day of them."},
		{
			Key:   "etcd.dial-timeout",
			value: durationValue(&c.Etcd.DialTimeout),
			Usage: "how long one attempt to connect to an etcd member may take",
			Why:   "The next member must be tried long before a window runs out.",
		},

		{
			Key:   "lease.window",
			value: durationValue(&l.Window),
			Usage: "how far ahead of the clock milliseconds are reserved",
			Why: "Nodes keep issuing while etcd is unavailable, for this time less lease.extend-every. The sid of " +
				"a crashed node is unusable for as long.",
		},
		{
			Key:   "lease.extend-every",
			value: durationValue(&l.ExtendEvery),
			Usage: "how often more milliseconds are reserved",
			Why:   "One small write per node each 5s; at least 25s of window are always left.",
		},
		{
			Key:   "lease.ttl",
			value: durationValue(&l.TTL),
			Usage: "how long after its last renewal a node's sid counts as free, whole seconds",
			Why:   "A pause or an etcd leader change should cost no sid. Uniqueness does not depend on it.",
		},
		{Key: "lease.keepalive", value: durationValue(&l.KeepAlive),
			Usage: "how often the lease is renewed",
			Why:   "Four renewals in a row may fail before the lease runs out."},
		{
			Key:   "lease.reload-every",
			value: durationValue(&l.ReloadEvery),
			Usage: "how often the whole space is read again without a watch",
			Why: "The watch of a node that holds a sid must be as far as the node's transactions within this " +
				"time. Such a node reads the space again after 10 to 30 times this.",
		},
		{
			Key:   "lease.call-timeout",
			value: durationValue(&l.CallTimeout),
			Usage: "how long one call to etcd may take",
			Why:   "Above etcd's usual leader change (about 1s), and several attempts fit into a window.",
		},

		{
			Key:   "watermark.interval",
			value: durationValue(&c.Watermark.Interval),
			Usage: "how often a node says at least which times it issues no more",
			Why: "The watermark is behind the clock by this and a quarter. A node extends its window as often: " +
				"with 1s that is one small write a second.",
		},
		{
			Key:   "watermark.grace",
			value: durationValue(&c.Watermark.Grace),
			Usage: "how long after the window of a vanished holder the watermark passes it",
			Why:   "For clocks that differ, and for a request that was under way when its process was paused.",
		},

		{
			Key:   "worker.sid-range",
			value: SIDsValue(&c.Worker.SIDRange),
			Usage: "sids for workers, generators outside of the nodes, as first-last; empty: there are no workers",
			Why: "Set it to the same range on all nodes, at an end of the sids. Nodes leave it alone, so that " +
				"workers cannot use up the nodes' sids.",
		},
		{
			Key:   "worker.window",
			value: durationValue(&c.Worker.Window),
			Usage: "how far ahead of the clock a worker's interval reaches, whole seconds",
			Why: "A worker goes on for 40s to 60s without a node or etcd, and writes to etcd each 20s. The number " +
				"of a killed one is unusable for a minute.",
		},
		{
			Key:   "worker.per-client",
			value: intValue(&c.Worker.PerClient),
			Usage: "workers that one client may hold at once; 0: half of worker.sid-range, at most 128; workers=N in " +
				"a token's line replaces it",
			Why: "A client is a token's name, else a certificate's, else an address (of IPv6 a /64). A program " +
				"needs one worker per process.",
		},

		{
			Key:   "issue.max-lead",
			value: durationValue(&i.MaxLead),
			Usage: "how far IDs may run ahead of the clock, whole milliseconds; 0 is the specification's literal rule",
			Why:   "Absorbs bursts of 8 million IDs and clock corrections of a quarter second without a refusal.",
		},
		{Key: "issue.max-wait", value: durationValue(&i.MaxWait),
			Usage: "how long a request may wait until IDs are within issue.max-lead again before it is refused",
			Why:   "Waiting 100ms costs a caller less than a refusal that it must retry."},
		{
			Key:   "issue.entropy-bytes",
			value: intValue(&i.EntropyBytes),
			Usage: "random bytes of the step between requests in one millisecond: 0, 1 or 2",
			Why: "The specification's default: a step of 1 to 255 (1 to 7 in fleet). 0 makes the next ID " +
				"predictable, 2 leaves room for fewer requests in a millisecond.",
		},
		{
			Key:   "issue.max-skew",
			value: durationValue(&i.MaxSkew),
			Usage: "how far the cluster's clocks may differ",
			Why:   "NTP keeps machines within some 10ms. A quarter second is a fault.",
		},

		{Key: "clock.step-hold", value: durationValue(&c.Clock.StepHold),
			Usage: "how long a node without peers keeps its time after its wall clock was set",
			Why:   "A mistake is often undone by then. With peers, a majority of them decides instead."},
		{
			Key:   "clock.step-limit",
			value: durationValue(&c.Clock.StepLimit),
			Usage: "how far a running node follows a wall clock that is set ahead, in all; beyond it, see " +
				"\"allocator admin accept-time\"",
			Why: "No slip of NTP is that large; a wrong time source or time zone is larger.",
		},
		{
			Key:   "clock.downtime-limit",
			value: durationValue(&c.Clock.DowntimeLimit),
			Usage: "how much later than the latest record in etcd a node may start in a space that no node uses; " +
				"beyond it, see \"allocator admin accept-time\"",
			Why: "A space may be switched off for a month; a clock that is years ahead would make its sids " +
				"useless for years.",
		},
		{Key: "clock.grace", value: durationValue(&c.Clock.Grace),
			Usage: "how long a node may issue while too few peers confirm its clock, whatever the policy",
			Why:   "Most partitions are shorter than a minute, and good clocks drift by some 10ms in it."},
		{Key: "clock.policy", value: stringValue(&c.Clock.Policy),
			Usage: "what to do after clock.grace: allow or refuse",
			Why:   "IDs are unique either way. Choose refuse if an ID far from real time is worse than none."},

		{
			Key:   "listen.grpc",
			value: stringValue(&c.Listen.GRPC),
			Usage: "host:port of the gRPC API, or a Unix socket as unix:/path; empty: none",
			Why: "Loopback. Before you open it with :9000, see tls.cert and auth.token-file. A Unix socket is " +
				"never encrypted: listen.socket-mode says who may connect.",
		},
		{
			Key:   "listen.http",
			value: stringValue(&c.Listen.HTTP),
			Usage: "host:port of the HTTP API, or a Unix socket as unix:/path; empty: none",
			Why:   "As listen.grpc.",
		},
		{
			Key:   "listen.resp",
			value: stringValue(&c.Listen.RESP),
			Usage: "host:port for Redis clients, such as 127.0.0.1:6380, or a Unix socket as unix:/path; empty: none",
			Why:   "An unused port should not be open.",
		},
		{
			Key:   "listen.socket-mode",
			value: modeValue(&c.Listen.Socket.Mode),
			Usage: "permissions of the Unix sockets, in octal",
			Why: "The user and the group of the socket may connect. 0666 is for every program of the machine, and " +
				"of the containers that the socket is mounted into.",
		},
		{Key: "listen.socket-owner", value: stringValue(&c.Listen.Socket.Owner),
			Usage: "user that owns the Unix sockets, by name or number; empty: the user of the process",
			Why:   "Only the root user may give a file away."},
		{Key: "listen.socket-group", value: stringValue(&c.Listen.Socket.Group),
			Usage: "group of the Unix sockets, by name or number; empty: the group of the process",
			Why:   "Set it to a group that the programs are in, and the node too."},
		{
			Key:   "listen.admin",
			value: stringValue(&c.Listen.Admin),
			Usage: "host:port of /metrics, /livez and /readyz; empty: none",
			Why: "Loopback; probes and scrapers on other machines need :7947. The port follows that of gossip, " +
				"and IANA has not assigned it.",
		},
		{
			Key:   "listen.gossip",
			value: stringValue(&c.Listen.Gossip),
			Usage: "ip:port of gossip, UDP and TCP; empty: none, and no peer can confirm this clock",
			Why:   "Loopback; beyond it gossip needs a key (gossip.key-file).",
		},
		{
			Key:   "listen.insecure",
			value: boolValue(&c.Listen.Insecure),
			Usage: "allow the API beyond loopback without TLS and without tokens",
			Why: "Everybody who reaches the ports could issue IDs and see the cluster. Turn it on where a network " +
				"policy, a mesh or a firewall decides who reaches them.",
		},
		{Key: "advertise.grpc", value: stringValue(&c.Advertise.GRPC),
			Usage: "host:port at which others reach the gRPC API",
			Why:   "The address listened on; set it where that is not reachable, such as :9000 or behind NAT."},
		{
			Key:   "advertise.http",
			value: stringValue(&c.Advertise.HTTP),
			Usage: "host:port at which others reach the HTTP API",
			Why:   "As advertise.grpc.",
		},
		{
			Key:   "advertise.console",
			value: stringValue(&c.Advertise.Console),
			Usage: "host:port, http://host:port or https://host:port at which browsers reach the console; none: " +
				"other nodes' pages have no link to it",
			Why: "The address of listen.admin, if the console is served there and the other nodes' machines reach " +
				"it: not on loopback, unless gossip is on loopback too. Set it for a proxy in front of the node.",
		},
		{Key: "advertise.gossip", value: stringValue(&c.Advertise.Gossip),
			Usage: "ip:port at which other nodes reach gossip",
			Why:   "The address listened on, or with none the machine's private address."},
		{
			Key:   "gossip.key-file",
			value: stringValue(&c.Gossip.KeyFile),
			file:  true,
			Usage: "file with the keys of gossip: base64 of 16, 24 or 32 random bytes, one a line",
			Why: "The first key encrypts and all decrypt, so that keys can be changed in three steps; the file is " +
				"read again every 5s.",
		},
		{
			Key:   "gossip.insecure",
			value: boolValue(&c.Gossip.Insecure),
			Usage: "allow gossip beyond loopback without a key",
			Why: "Without a key, any program on the network could pose as a peer and make nodes refuse for " +
				"their clocks.",
		},
		{
			Key:   "cluster.expect",
			value: intValue(&c.Cluster.Expect),
			Usage: "nodes with gossip that should be there, this one included; a start waits for them, at most 5s, " +
				"and pages and doctor miss those that are not; 0: any number",
			Why: "The first node to start is alone, and its clock is believed. Set it to the number of nodes: of " +
				"nodes that start together, one with a wrong clock then issues nothing.",
		},

		{
			Key:   "tls.cert",
			value: stringValue(&c.TLS.Cert),
			file:  true,
			Usage: "PEM file of the certificate, with its chain, that the API's ports show; with tls.key",
			Why: "With a certificate the ports accept TLS 1.3 only. The files are read again every 5s; open " +
				"connections stay.",
		},
		{Key: "tls.key", value: stringValue(&c.TLS.Key), file: true,
			Usage: "PEM file of the certificate's key",
			Why:   "No encryption."},
		{
			Key:   "tls.client-ca",
			value: stringValue(&c.TLS.ClientCA),
			file:  true,
			Usage: "PEM file of the authorities that sign clients' certificates; every client must then have one",
			Why: "No certificate is required. Clients with one may issue, read and hold workers, unless it names " +
				"other scopes (URI urn:allocator:scope:admin) or auth.token-file is set.",
		},
		{
			Key:   "tls.admin",
			value: boolValue(&c.TLS.Admin),
			Usage: "use TLS on the admin port too, with the same files",
			Why:   "Probes and scrapers rarely have a certificate.",
		},
		{
			Key:   "auth.token-file",
			value: stringValue(&c.Auth.TokenFile),
			file:  true,
			Usage: "file with the tokens that callers may show: a name, scopes and SHA-256 a line",
			Why: "Without it every client that can connect may issue and read. \"allocator token new\" makes " +
				"tokens; the file has their hashes alone, and is read again every 5s.",
		},
		{
			Key:   "auth.stale-after",
			value: durationValue(&c.Auth.StaleAfter),
			Usage: "how long tokens are accepted while auth.token-file cannot be read; every token is rejected then",
			Why: "A file that cannot be read hides what was revoked. Five minutes outlast a file system that " +
				"hangs or is mounted again.",
		},
		{
			Key:   "auth.open-admin",
			value: stringValue(&c.Auth.OpenAdmin),
			Usage: "who may drain a node and read its profiles without a token or certificate of scope admin: " +
				"loopback, none or any",
			Why: "Whoever is on the machine could stop the process as well. Choose none where a proxy on the " +
				"machine passes on the calls of others. With auth.token-file tokens alone count.",
		},
		{
			Key:   "http.hosts",
			value: listValue(&c.HTTP.Hosts),
			Usage: "names that HTTP requests may have in Host, besides the node's own, comma-separated; " +
				".example.com is all names under it, * any",
			Why: "Against DNS rebinding. A port without TLS and tokens allows only the node's own names: addresses, " +
				"names without a dot, advertised names, and those under .localhost, .svc, .cluster.local and " +
				".internal. One with TLS (the admin port: tls.admin) or tokens allows any, unless this is set. " +
				"Add the name of your ingress or proxy.",
		},
		{
			Key:   "limit.requests-per-second",
			value: intValue(&c.Limit.RequestsPerSecond),
			Usage: "requests that one client may make each second, whatever their count; 0 is no limit",
			Why: "No limit: one node serves some 100,000 a second. A client is a token's name, else a " +
				"certificate's, else an address (of IPv6 a /64).",
		},
		{Key: "limit.burst", value: intValue(&c.Limit.Burst),
			Usage: "requests that one client may make at once after a pause; 0 is limit.requests-per-second",
			Why:   "The requests of a second."},
		{
			Key:   "limit.connections",
			value: intValue(&c.Limit.Connections),
			Usage: "connections that each port keeps at once; further ones are closed; 0 is no limit",
			Why:   "Some 50 kB each; clients need one. The limit of open files has to be above it.",
		},
		{
			Key:   "limit.connections-per-source",
			value: intValue(&c.Limit.ConnectionsPerSource),
			Usage: "connections that one address (of IPv6 a /64) may have at each port; 0 is no limit",
			Why:   "No address takes all. Raise it if all clients come through one proxy or NAT.",
		},
		{
			Key:   "limit.memory",
			value: sizeValue(&c.Limit.Memory),
			Usage: "memory that connections and their unfinished calls may hold, such as 200MiB; above it the " +
				"newest are closed; 0 chooses it",
			Why: "Two fifths of GOMEMLIMIT, else of the control group's limit, else 1 GiB. The rest is for the " +
				"process itself and for garbage.",
		},

		{
			Key:   "log.level",
			value: stringValue(&c.Log.Level),
			Usage: "minimum severity of messages logged: debug, info, warn or error",
			Why:   "Changes of state, and no single requests.",
		},
		{Key: "log.format", value: stringValue(&c.Log.Format),
			Usage: "form of log lines on stderr: text or json",
			Why:   "Readable on a terminal; collectors prefer json."},
		{
			Key:   "drain.delay",
			value: durationValue(&c.Drain.Delay),
			Usage: "how long to keep serving after readiness is off, when stopping",
			Why:   "Behind a load balancer, use the time it takes to notice: 5s in Kubernetes.",
		},
		{Key: "drain.timeout", value: durationValue(&c.Drain.Timeout),
			Usage: "how long requests in flight may take, when stopping",
			Why:   "Calls take milliseconds; streams end when their clients close them."},
		{
			Key:   "stop.timeout",
			value: durationValue(&c.Stop.Timeout),
			Usage: "how long giving the sid back to etcd may take, when stopping",
			Why:   "Two attempts and some reserve. Afterwards the next holder waits for the window to pass.",
		},
		{
			Key:   "console.serve",
			value: stringValue(&c.Console.Serve),
			Usage: "pages for operators on the admin port, at /console/: auto, always or never",
			Why: "auto serves them where listen.admin is on loopback, or has TLS (tls.admin) and auth.token-file " +
				"or tls.client-ca. Choose always behind a proxy that encrypts, with auth.token-file.",
		},
		{
			Key:   "console.operate",
			value: boolValue(&c.Console.Operate),
			Usage: "a page that drains the node, and quarantines and releases sids, for callers with scope admin",
			Why:   "A page that is left open should change nothing.",
		},
		{
			Key:   "pprof",
			value: boolValue(&c.PProf),
			Usage: "serve /debug/pprof on the admin port",
			Why:   "Profiles show what the process is doing and use its time. They need scope admin.",
		},
	}
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
		def := ""
		if o.Key == "node.name" {
			def = "host name" // so that help and references are the same everywhere
		}
		f := fs.VarPF(o.value, o.Key, "", o.Usage)
		if def != "" {
			f.DefValue = def
		}
		if o.value.IsBoolFlag() {
			f.NoOptDefVal = "true"
		}
	}
}
