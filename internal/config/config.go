// Package config holds the settings of a node: defaults and their reasons, where
// values come from, and the rules they must keep.
//
// A value comes from the first of these that gives one: a flag, an ALLOCATOR_
// variable, the YAML file, the default. A key that does not exist is an error
// wherever it stands, with the closest one that does: a misspelled setting must
// not be taken for its default. Variables that Kubernetes injects for a Service
// called allocator (ALLOCATOR_PORT and its like) are ignored.
//
// No other package reads the environment.
package config

import (
	"cmp"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
)

// Config is the configuration of one node. The option table in options.go names
// each field for people and gives the reason for its default.
type Config struct {
	Node      Node
	Space     string         // name of the space under Root
	Root      string         // first part of every key in etcd
	Layout    flake.Layout   // constant of the space
	Epoch     clock.Millis   // constant of the space, Unix ms
	SIDRange  lease.SIDRange // This node may take these sids; zero: all.
	Etcd      Etcd
	Lease     Lease
	Watermark Watermark
	Worker    Worker
	Issue     Issue
	Clock     Clock
	Listen    Listen
	Advertise Advertise
	Gossip    Gossip
	Cluster   Cluster
	TLS       ServerTLS
	Auth      Auth
	HTTP      HTTP
	Limit     Limit
	Log       Log
	Events    Events
	Drain     Drain
	Stop      Stop
	Console   Console
}

// Node is who this process is.
type Node struct {
	Name string // as people know it; need not be unique
}

// Etcd is how etcd is reached.
type Etcd struct {
	Endpoints    []string // URLs or host:port; host:port means http, or https with TLS files
	Username     string
	PasswordFile string // its content without a last line end is the password
	TLS          TLS
	DialTimeout  time.Duration // One attempt to connect may take this long.
	Inside       Inside
}

// Inside is the etcd that the nodes run themselves. Dir alone makes a node a member of it; with
// Join alone a node is a client of the members.
type Inside struct {
	Dir           string        // "": this node runs no etcd.
	Join          []string      // hosts of the members, without ports
	Address       string        // The host in Join that is this machine; "": found.
	ClientPort    int           // The port for clients is the same on all members.
	PeerPort      int           // The port for members is the same on all.
	Insecure      bool          // Members may listen beyond loopback without TLS.
	Quota         int64         // bytes of the database
	SnapshotEvery time.Duration // 0: no snapshots
	SnapshotKeep  int
	// SnapshotCommand is a program with its arguments, between spaces; a snapshot's path comes behind them.
	SnapshotCommand string
}

// TLS are PEM files; "" is none.
type TLS struct {
	CA, Cert, Key string
}

// Lease is the pace of the lease and window protocol.
type Lease struct {
	Window      time.Duration // W: how far ahead of the clock a ceiling is reserved
	ExtendEvery time.Duration // A ceiling is raised this often.
	TTL         time.Duration // etcd's lease ends this long after its last renewal; whole seconds.
	KeepAlive   time.Duration // etcd's lease is renewed this often.
	// The whole space is listed again this often, and more rarely where a watch reports its changes.
	ReloadEvery time.Duration
	CallTimeout time.Duration // One call to etcd may take this long.
}

// Watermark is how closely the watermark follows the clock.
type Watermark struct {
	Interval time.Duration // A node says this often which times it issues no more.
	Grace    time.Duration // A ceiling has passed for everybody so long after it.
}

// Worker is what workers may have: generators outside of the nodes.
type Worker struct {
	SIDRange  lease.SIDRange // Nodes leave these sids to workers; zero: none, and there are no workers.
	Window    time.Duration  // W of workers, whole seconds
	PerClient int            // workers that one client may hold; 0: as Quota says
}

// maxPerClient bounds the default of PerClient.
const maxPerClient = 128

// Quota returns how many workers one client may hold: by default half of the range, so that
// one client leaves some to others.
func (w Worker) Quota() int {
	if w.PerClient > 0 {
		return w.PerClient
	}
	return min(max(w.SIDRange.Len()/2, 1), maxPerClient)
}

// Issue bounds the IDs themselves.
type Issue struct {
	MaxLead time.Duration // IDs may run ahead of the clock by this; whole ms.
	MaxWait time.Duration // A request may wait this long for lead to shrink.
	MaxSkew time.Duration // Clocks of the cluster may differ by this.
}

// Cluster is what is known of the other nodes in advance.
type Cluster struct {
	Expect int // nodes with gossip that a start waits for, a few seconds; 0: nobody
}

// Clock is what is done about clocks that are wrong or unconfirmed.
type Clock struct {
	Policy string // what an unconfirmed clock may do after the grace: allow or refuse
}

// Listen is where the node answers, as host:port; port 0 is any free one, and ""
// is no such listener. GRPC, HTTP and RESP may be Unix sockets, as unix:/path.
type Listen struct {
	GRPC, HTTP, Admin string
	RESP              string // "" is none
	Socket            Socket
	Gossip            string // UDP and TCP, as ip:port; "" is no gossip
	Insecure          bool   // listen beyond loopback without TLS and tokens
}

// Socket is who may connect to the Unix sockets.
type Socket struct {
	Mode  fs.FileMode // permissions
	Group string      // its name or number; "": that of the process
}

// Advertise is the addresses given to others, as host:port; "" is the address
// listened on, unless that is a Unix socket: others cannot reach it.
type Advertise struct {
	GRPC, HTTP, Gossip string
	Console            string // host:port or URL of the pages for operators; "none": not given to others
}

// Gossip is how gossip is kept among ourselves.
type Gossip struct {
	KeyFile  string // keys in base64, a line each, the first is the one written with
	Insecure bool   // listen beyond loopback without a key
}

// ServerTLS is how our own ports are encrypted; PEM files, "" is none.
type ServerTLS struct {
	Cert, Key string
	ClientCA  string // authorities of client certificates, which are then required
	Admin     bool   // the admin port too
}

// Auth is who may call.
type Auth struct {
	TokenFile  string        // "": everybody who can connect
	StaleAfter time.Duration // Tokens are accepted this long while the file cannot be read.
	// OpenAdmin is who may make admin calls without a token or certificate of that scope: loopback, none or any.
	OpenAdmin string
}

// HTTP is what requests over HTTP must be like.
type HTTP struct {
	Hosts []string // names allowed in Host, besides those of the node; empty: see CheckHost and CheckAdminHost
}

// Limit is how much one client, or all of a port, may ask for; 0 is no limit.
type Limit struct {
	RequestsPerSecond int // The limit is for each client, and of those at once too.
	Connections       int // The limit is for each port.
	// ConnectionsPerSource is of one address (of IPv6 a /64) at one port.
	ConnectionsPerSource int
}

// Console is who sees the pages for operators on the admin port.
type Console struct {
	Serve   string // auto, always or never
	Operate bool   // with a page that changes something
}

// Log is what is logged to stderr, and how.
type Log struct {
	Level  string // debug, info, warn or error
	Format string // text or json
}

// Events is where the events of the node are kept.
type Events struct {
	File string // "": beside the data of etcd inside, if there is any
}

// EventsFile returns the file of the node's events; "": there is none.
func (c Config) EventsFile() string {
	switch file := c.Events.File; {
	case file == "none", file == "" && c.Etcd.Inside.Dir == "":
		return ""
	case file == "":
		return filepath.Join(c.Etcd.Inside.Dir, "events.jsonl")
	}
	return c.Events.File
}

// Drain is how requests are let go when the node stops.
type Drain struct {
	Delay   time.Duration // serve on after readiness is off
	Timeout time.Duration // then, for requests in flight
}

// Stop is how the sid is given back when the node stops.
type Stop struct {
	Timeout time.Duration
}

// Times and bounds that nobody has a reason to set.
const (
	callTimeout = 2 * time.Second // above etcd's usual leader change, about 1s
	minGrace    = 5 * time.Second
)

// Default returns the configuration of a node without any settings.
func Default() Config {
	c := Config{
		Etcd: Etcd{
			DialTimeout: 3 * time.Second, // The next member must be tried long before a window runs out.
			Inside: Inside{
				// The most that etcd advises. 1,000 nodes need 20 MB, and 100,000 workers 6 GB, for the history of
				// an hour.
				Quota: 8 << 30,
				// A day of snapshots, which are small. After a restore nodes need a new era whatever its age.
				SnapshotEvery: time.Hour, SnapshotKeep: 24,
			},
		},
		Lease: Lease{ReloadEvery: 30 * time.Second}, // A watch reports changes at once.
		// Waiting 100ms costs a caller less than a refusal that it must retry.
		Issue: Issue{MaxWait: 100 * time.Millisecond},
		Auth:  Auth{StaleAfter: 5 * time.Minute}, // A file system may hang, or be mounted again.
		Drain: Drain{Timeout: 10 * time.Second},  // Calls take milliseconds; streams end when clients close them.
		Stop:  Stop{Timeout: 5 * time.Second},    // two attempts and some reserve
	}
	for _, o := range c.options() {
		if err := o.value.Set(o.def); err != nil {
			panic(fmt.Sprintf("config: default of %s: %v", o.Key, err))
		}
	}
	c.Node.Name = hostname()
	c.derive()
	return c
}

// Addresses returns the endpoints of etcd: those given, or else the members in etcd.join.
func (e Etcd) Addresses() []string {
	if len(e.Endpoints) > 0 || len(e.Inside.Join) == 0 && e.Inside.Dir == "" {
		return e.Endpoints
	}
	hosts := e.Inside.Join
	if len(hosts) == 0 {
		hosts = []string{cmp.Or(e.Inside.Address, "127.0.0.1")}
	}
	urls := make([]string, len(hosts))
	for i, host := range hosts {
		urls[i] = e.ClientURL(host)
	}
	return urls
}

// Socket returns the Unix socket at which a member without etcd.join, etcd.address and TLS listens, which
// other users of the machine cannot open; "": there is none, also where its path would be too long for one.
func (e Etcd) Socket() string {
	const longest = 100 // The system takes a few bytes more.
	if e.Inside.Dir == "" || len(e.Inside.Join) > 0 || e.Inside.Address != "" || e.TLS != (TLS{}) {
		return ""
	}
	dir, err := filepath.Abs(e.Inside.Dir)
	if path := filepath.Join(dir, "sockets", "clients"); err == nil && len(path) <= longest {
		return path
	}
	return ""
}

// ClientURL returns the URL that nodes call a member at.
func (e Etcd) ClientURL(host string) string {
	if path := e.Socket(); path != "" {
		return "unix://" + path
	}
	return e.url(host, e.Inside.ClientPort)
}

// PeerURL returns the URL that members call each other at.
func (e Etcd) PeerURL(host string) string { return e.url(host, e.Inside.PeerPort) }

func (e Etcd) url(host string, port int) string {
	scheme := "http"
	if e.TLS != (TLS{}) {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// Format returns what the bits of the node's IDs mean.
func (c Config) Format() flake.Format {
	return flake.Format{Layout: c.Layout, Epoch: int64(c.Epoch)}
}

// Gen returns how the node's IDs are made.
func (c Config) Gen() gen.Config {
	return gen.Config{
		Layout:  c.Layout,
		Epoch:   c.Epoch,
		MaxLead: clock.MillisOf(c.Issue.MaxLead),
		MaxStep: c.Layout.MaxStep(1), // the specification's default: a step of 1 to 255, in fleet to 7
	}
}

// Bounds returns what bounds how far ahead of the clock the space's nodes reserve, for themselves and
// for workers. A floor above the clock by its Slack is above all that they granted.
func (c Config) Bounds() lease.Bounds {
	return lease.Bounds{
		Window:       c.Lease.Window,
		WorkerWindow: c.Worker.Window,
		MaxSkew:      c.Issue.MaxSkew,
		MaxLead:      c.Issue.MaxLead,
	}
}

// ExtendEvery returns how often a node extends its window, and says with that which times it
// issues no more.
func (c Config) ExtendEvery() time.Duration { return min(c.Lease.ExtendEvery, c.Watermark.Interval) }

// MarkRules returns how the watermark is computed: it is raised by a part of what the floors move, and a floor
// is late once the write after it was to come and had its time.
func (c Config) MarkRules() lease.MarkRules {
	every := c.ExtendEvery()
	return lease.MarkRules{Every: every / 4, Grace: c.Watermark.Grace, Late: every + c.Lease.CallTimeout}
}

// VanishedDelay returns how long a holder that vanished delays the watermark at most: by its
// window and the grace, and until others have noticed.
func (c Config) VanishedDelay() time.Duration {
	window := c.Lease.Window
	if !c.Worker.SIDRange.All() {
		window = max(window, c.Worker.Window)
	}
	return window + c.Watermark.Grace + vanishedSlack
}

// vanishedSlack is for what comes after that: two raises, and calls that fail.
const vanishedSlack = 10 * time.Second

// StopWithin returns the longest that a node takes to stop: what a supervisor
// must grant it between asking and killing.
func (c Config) StopWithin() time.Duration {
	within := c.Drain.Delay + c.Drain.Timeout + c.Stop.Timeout + closeSlack
	if c.Etcd.Inside.Dir != "" {
		within += InsideStop
	}
	return within
}

// InsideStop is how long the etcd inside may take to stop, after the node gave its sid back.
const InsideStop = 10 * time.Second

// closeSlack is for what follows once the sid is given back: leaving gossip (1 s), and a scrape of
// the admin port under way (0.5 s).
const closeSlack = 2 * time.Second

var notInNames = regexp.MustCompile(`[^a-z0-9._-]+`)

// hostname returns the machine's name in the form a node name has.
func hostname() string {
	name, err := os.Hostname()
	name = notInNames.ReplaceAllString(strings.ToLower(name), "-")
	name = strings.TrimLeft(name, "._-")
	if err != nil || name == "" {
		return "node"
	}
	return name[:min(len(name), maxName)]
}
