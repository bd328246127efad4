package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/agreement/watcher"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon/metrics"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/keeper"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/operate"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/console"
	"github.com/flakelease/allocator/internal/server/grpcserver"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/status/feed"
	"github.com/flakelease/allocator/internal/status/trend"
	"github.com/flakelease/allocator/internal/watermark"
	"github.com/flakelease/allocator/internal/worker/broker"
)

// Daemon is one node with its servers. Run it once.
//
// Its parts are made one after the other: by New, by Run when it listens, and then as lessee, answers and surfaces,
// each from those that are there. None is replaced, and each guards itself.
type Daemon struct {
	// Set by New, and never changed.
	cfg       config.Config
	sources   []config.Setting
	version   string
	log       *slog.Logger
	host      Host
	instance  lease.Instance
	clock     *clock.System
	node      *node.Node
	etcd      *etcd
	security  *security
	feed      *feed.Feed
	restored  chan lease.Act // It has room for one: who prepared the data of the member inside.
	inside    *inside.Inside // nil: none
	lines     *lines
	latencies *metrics.Latencies

	listening chan struct{} // closed once the node answers
	work      work          // It guards itself.

	// Set by Run before any part starts, and never changed then.
	addrs     Addresses
	listeners listeners
	gossip    cluster.Transport // nil: none
	lessee
	answers
	surfaces

	cluster atomic.Pointer[cluster.Cluster] // stored by runGossip once; nil until gossip runs
	// looked is the clock.Mono at which somebody last asked for the reports of nodes; 0: nobody did. Whoever
	// asks stores it.
	looked atomic.Int64
	asking singleflight.Group // Calls of askOnce share one question.
}

// lessee has the sid.
type lessee struct {
	keeper *keeper.Keeper
	watch  *watcher.Watcher
}

// answers knows what every surface answers.
type answers struct {
	service *server.Service
	reader  *status.Reader
	drainer *operate.Drainer
}

// surfaces are what others ask.
type surfaces struct {
	front
	metrics prometheus.Gatherer
	console *console.Console
}

// Config is what a Daemon needs. Logger is required.
type Config struct {
	Settings config.Config
	// Pages show them; nil: settings that differ from the default count as set by the program.
	Sources []config.Setting
	Version string // The program's version is in registrations and metrics.
	Logger  *slog.Logger
	Host    Host // the zero value: this machine
	// Program runs the member of etcd.inside, with "etcd run DIRECTORY" behind it; "": nothing does.
	Program string
}

// Host is what a node takes from the machine that it runs on. Fields that are not set
// are this machine's own; whole nodes in simulated time have others.
type Host struct {
	Clock  *clock.System
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Gossip opens the transport of gossip and returns the address for the other nodes.
	Gossip func(cluster.Config) (cluster.Transport, string, error)
	Etcd   []grpc.DialOption // Connections to etcd get these after the options from the settings.
	Break  console.Breaker   // It breaks the cluster that the node is in; nil: nothing does.
	Traces Traces
}

// Traces makes spans of what clients ask; the zero value: nothing does. Programs that embed a node trace their own way.
type Traces struct {
	GRPC []grpc.ServerOption
	HTTP func(http.Handler) http.Handler
}

// orMachine returns h with this machine's own in the fields that are not set.
func (h Host) orMachine() Host {
	if h.Clock == nil {
		h.Clock = clock.NewSystem(nil)
	}
	if h.Listen == nil {
		h.Listen = new(net.ListenConfig).Listen
	}
	if h.Gossip == nil {
		h.Gossip = cluster.Listen
	}
	return h
}

// ErrNoEndpoints says that the settings have no endpoints of etcd.
var ErrNoEndpoints = errors.New("daemon: no etcd endpoints are configured: set etcd.endpoints, or " +
	"etcd.inside and etcd.join")

// New returns a node that is not started: it has no port and no connection.
//
// It returns ErrNoEndpoints, or the rules that the settings break.
func New(c Config) (*Daemon, error) {
	cfg, kept := c.Settings, new(lines)
	log := slog.New(slog.NewMultiHandler(c.Logger.Handler(), slog.NewTextHandler(kept, nil)))
	c.Logger = log
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(cfg.Etcd.Addresses()) == 0 {
		return nil, ErrNoEndpoints
	}
	if c.Sources == nil {
		c.Sources = cfg.List()
	}
	host := c.Host.orMachine()
	d := &Daemon{
		cfg: cfg, sources: c.Sources, version: c.Version, log: log, host: host,
		// Random, never the node's name: two processes with one instance would
		// take each other's writes for their own.
		instance:  lease.Instance(uuid.NewString()),
		clock:     host.Clock,
		lines:     kept,
		listening: make(chan struct{}),
		restored:  make(chan lease.Act, 1),
	}
	d.feed = feed.New(feed.Config{Boot: string(d.instance[:8])})
	d.work.meter, d.latencies = trend.NewMeter(metrics.LatencyBounds), metrics.NewLatencies(server.Surfaces())
	var err error
	var etcdCerts *certs.Client
	if d.etcd, etcdCerts, err = newEtcd(cfg, log); err != nil {
		return nil, err
	}
	d.etcd.dial.Options = append(d.etcd.dial.Options, host.Etcd...)
	if cfg.Etcd.Inside.Dir != "" {
		if d.inside, err = newInside(c, d.etcd.dial, d.restored); err != nil {
			return nil, err
		}
	}
	if d.security, err = newSecurity(cfg, d.clock, log); err != nil {
		return nil, err
	}
	d.security.etcd = etcdCerts
	d.node = node.New(node.Config{
		Name: cfg.Node.Name, Instance: d.instance, Gen: cfg.Gen(),
		MaxWait: cfg.Issue.MaxWait, MaxSkew: cfg.Issue.MaxSkew,
	}, d.clock, gen.Random())
	return d, nil
}

// Listening returns a channel that is closed when the node answers on its ports.
func (d *Daemon) Listening() <-chan struct{} { return d.listening }

// Addresses returns the addresses of the listeners. It may be called when Listening is
// closed.
func (d *Daemon) Addresses() Addresses { return d.addrs }

// Clocks returns the measurements of the node's clock and its peers'. It may be called
// when Listening is closed.
func (d *Daemon) Clocks() clock.Report { return d.watch.Report() }

// WatchClocks returns a channel that is closed when Clocks has something new. It may be
// called when Listening is closed.
func (d *Daemon) WatchClocks() <-chan struct{} { return d.watch.Watch() }

// Node returns the part that issues IDs.
func (d *Daemon) Node() *node.Node { return d.node }

// Marks returns what reads the watermark. It may be called when Listening is closed.
func (d *Daemon) Marks() *watermark.Reader { return d.service.Marks() }

// Workers returns what serves workers.
func (d *Daemon) Workers() server.Workers { return d.service.Workers() }

// Run serves until ctx ends, then stops in order and returns nil. A part that fails stops
// the node the same way; Run returns its error.
func (d *Daemon) Run(ctx context.Context) error {
	if err := checkClock(d.clock.Read().WallMillis(), d.cfg.Epoch, d.cfg.Layout, buildTime()); err != nil {
		return err
	}
	if err := d.listen(ctx); err != nil {
		return err
	}
	d.build()
	grpcServer, httpServer, adminServer := d.servers()

	// A stop goes through these lines from the last to the first.
	l := newLifecycle(ctx, d.log)
	if d.inside != nil {
		l.start("etcd inside", config.InsideStop, d.inside.Run)
	}
	l.onStop("etcd client", stepTimeout, func(context.Context) error {
		d.reader.End()
		d.etcd.disconnect()
		return nil
	})
	l.onStop("admin connections", adminTimeout, func(ctx context.Context) error { return stopAdmin(ctx, adminServer) })
	serveOn(l, "admin listener", d.listeners.admin, serveHTTP(adminServer))
	l.start("etcd connection", stepTimeout, d.etcd.connect)
	l.start("certificates and tokens", stepTimeout, d.security.run)
	l.start("certificates that end", stepTimeout, func(ctx context.Context) error {
		return certs.WarnOfEnds(ctx, d.log, d.leaves)
	})
	l.start("log of what the node waits for", stepTimeout, d.logWaiting)
	l.start("clock", stepTimeout, func(ctx context.Context) error {
		return d.clock.Run(ctx, d.watch.PeerVote, func(clock.AnchorEvent) { d.node.Reconsider() })
	})
	l.start("clock agreement", stepTimeout, d.watch.Run)
	l.start("health", stepTimeout, d.grpc.Run)
	d.keepEvents(l)
	l.start("acts of operators", stepTimeout, d.runActs)
	l.start("events", stepTimeout, d.runFeed)
	l.start("samples", stepTimeout, d.runSamples)
	l.start("gossip", gossipTimeout, d.runGossip)
	l.start("lease", d.cfg.Stop.Timeout+d.cfg.Lease.CallTimeout+stepTimeout, d.runLease) // seal, release, revoke
	l.onStop("requests in flight", d.cfg.Drain.Timeout,
		func(ctx context.Context) error { return finishRequests(ctx, grpcServer, httpServer, d.resp) })
	serveOn(l, "gRPC listener", d.listeners.grpc, grpcServer.Serve)
	serveOn(l, "HTTP listener", d.listeners.http, serveHTTP(httpServer))
	serveOn(l, "RESP listener", d.listeners.resp, d.serveRESP)
	l.onStop("new requests", stepTimeout, func(context.Context) error {
		d.drainer.Stop()
		d.feed.End()
		d.service.Marks().End()
		return nil
	})
	l.onStop("readiness", d.cfg.Drain.Delay+stepTimeout, func(context.Context) error {
		if d.cfg.Drain.Delay > 0 { // Probes fail, and load balancers notice in that time.
			d.node.Leave()
			time.Sleep(d.cfg.Drain.Delay)
		}
		return nil
	})

	for _, problem := range d.cfg.Exposed() {
		d.log.Warn("insecure: " + problem)
	}
	if problem := d.cfg.Etcd.Exposed(); problem != "" {
		d.log.Warn("insecure: " + problem)
	}
	if problem, do := d.openEtcd(); problem != "" {
		d.log.Warn("insecure: "+problem, "do", do)
	}
	close(d.listening)
	d.log.Info("listening", "node", d.cfg.Node.Name, "instance", d.instance, "space", d.cfg.Space,
		"grpc", d.addrs.GRPC, "http", d.addrs.HTTP, "admin", d.addrs.Admin, "resp", d.addrs.RESP, "version", d.version,
		"callers", d.security.callers())

	<-l.ending.Done()
	d.log.Info("stopping", "node", d.cfg.Node.Name, "delay", d.cfg.Drain.Delay, "timeout", d.cfg.Drain.Timeout)
	err := l.stop()
	d.log.Info("stopped", "node", d.cfg.Node.Name, "issued", d.node.Stats().Issued)
	return err
}

const (
	// stepTimeout is when a step of a stop that waits for nothing outside the process
	// is logged as timed out.
	stepTimeout = time.Second
	// adminTimeout is for a scrape that is under way; no other request to the admin port
	// is worth a wait.
	adminTimeout = 500 * time.Millisecond
	// gossipTimeout is for leaving gossip, which tells the other nodes.
	gossipTimeout = 5 * time.Second
)

// runLease leases a sid until ctx ends, and releases it then.
func (d *Daemon) runLease(ctx context.Context) error {
	select {
	case <-d.etcd.tried:
	case <-ctx.Done():
		return nil
	}
	return d.keeper.Run(ctx)
}

// build makes the parts that depend on the addresses.
func (d *Daemon) build() {
	d.lessee = d.newLessee()
	d.answers = d.newAnswers()
	d.surfaces = d.newSurfaces()
}

// machine returns the settings of the lease.
func (d *Daemon) machine() lease.Config {
	l := d.cfg.Lease
	return lease.Config{
		Registration: lease.Registration{
			Instance: d.instance,
			Node:     d.cfg.Node.Name,
			Version:  d.version,
			GRPC:     d.addrs.AdvertisedGRPC,
			HTTP:     d.addrs.AdvertisedHTTP,
			Gossip:   d.addrs.Gossip,
			Console:  d.addrs.AdvertisedConsole,
			SIDRange: d.cfg.SIDRange.String(),
			Started:  d.clock.Read().WallMillis(),
		},
		Gated:          true,
		Format:         d.cfg.Format(),
		SIDRange:       d.cfg.SIDRange,
		Workers:        d.cfg.Worker.SIDRange,
		Bounds:         d.cfg.Bounds(),
		ExtendEvery:    d.cfg.ExtendEvery(),
		TTL:            l.TTL,
		KeepAliveEvery: l.KeepAlive,
		ReloadEvery:    l.ReloadEvery,
		RetryAfter:     retryAfter,
		Mark:           d.cfg.MarkRules(),
		Nonce:          rand.Text,
		Jitter:         jitter,
	}
}

func (d *Daemon) newLessee() (l lessee) {
	l.keeper = keeper.New(keeper.Config{
		Machine: d.machine(), Store: d.etcd.store, Generator: d.node, Clock: d.clock, Logger: d.log,
		CallTimeout: d.cfg.Lease.CallTimeout, StopTimeout: d.cfg.Stop.Timeout,
	})
	l.watch = watcher.New(watcher.Config{
		Machine: agreement.Config{
			Name: d.cfg.Node.Name, Instance: d.instance, Expect: d.cfg.Cluster.Expect,
			Gate: clock.GateConfig{MaxSkew: d.cfg.Issue.MaxSkew, Strict: d.cfg.Clock.Policy == "refuse"},
		},
		Clock: d.clock, Keeper: l.keeper, Node: d.node, Logger: d.log,
	})
	return l
}

func (d *Daemon) newAnswers() (a answers) {
	l := d.cfg.Lease
	a.service = server.New(server.Config{
		Node: d.node, Guard: d.security.guard, WorkersPerClient: d.cfg.Worker.Quota(), Logger: d.log,
		Watermark: watermark.Config{
			Interval: d.cfg.Watermark.Interval,
			Reload:   l.ReloadEvery,
			Vanished: d.cfg.VanishedDelay(),
		},
		Broker: broker.New(broker.Config{
			SIDs: d.cfg.Worker.SIDRange, Bounds: d.cfg.Bounds(),
			CallTimeout: l.CallTimeout, Node: d.node, Keeper: d.keeper, Store: d.etcd.store, Logger: d.log,
		}),
		Observe: d.latencies.Observe,
	})
	a.reader = status.New(status.Config{
		Node:      d.node,
		Directory: d.etcd.store,
		Space:     d.cfg.Space,
		Version:   d.version,
		Logger:    d.log,
		Clocks:    d.watch.Report,
		Reports:   d.reports,
		Ask:       d.askOnce,
		Members:   d.etcdMembers,
		Work:      d.lately,
		Callers:   d.callers,
		Marks:     a.service.Marks(),
		Bounds:    d.cfg.Bounds(),
		Expected:  d.cfg.Cluster.Expect,
	})
	a.drainer = operate.NewDrainer(operate.DrainConfig{
		Node: d.node, Release: d.release, Resume: d.resume, Window: a.reader.Window,
	})
	return a
}

func (d *Daemon) newSurfaces() (s surfaces) {
	s.front = newFront(grpcserver.Config{
		Service: d.service,
		Reader:  d.reader,
		Drainer: d.drainer,
		Logger:  d.log,
		Feed:    d.feed,
		Debug:   d.debug,
	}, d.hosts(d.cfg.CheckHost()), d.listeners, d.security, d.version)
	var member func() inside.Health
	if d.inside != nil {
		member = d.inside.Health
	}
	s.metrics = metrics.New(metrics.Config{
		Inside:    member,
		Node:      d.node,
		Keeper:    d.keeper,
		Marks:     d.service.Marks(),
		Clock:     d.clock,
		Version:   d.version,
		Settings:  d.cfg,
		Clocks:    d.watch.Report,
		Gossip:    d.gossipStats,
		Security:  d.securityReport,
		Latencies: d.latencies,
		Requests:  d.service.Stats,
	})
	s.console = d.newConsole()
	return s
}

// retryAfter is the pause after a failed call to etcd: short compared with a window, and
// long enough that 1,024 waiting nodes are no load.
const retryAfter = 250 * time.Millisecond

// jitter returns a random duration in [0, limit).
func jitter(limit time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	return mathrand.N(limit)
}

// stuckAfter is when the keeper's loop counts as blocked. It runs once a second; only a
// bug or a process without CPU time stops it.
const stuckAfter = 30 * time.Second

// alive returns an error if the keeper's loop is blocked. It does not depend on etcd: a
// restart of the node while etcd is unavailable would lose its window.
func (d *Daemon) alive() error {
	last := d.keeper.Ticked()
	if last == 0 { // still connecting
		return nil
	}
	if age := d.clock.Now().Mono.Sub(last); age > stuckAfter {
		return fmt.Errorf("the lease keeper's loop is blocked since %v: restart the process", age.Round(time.Second))
	}
	return nil
}
