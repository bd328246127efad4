package daemon

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/internal/agreement/watcher"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/keeper"
	"github.com/flakelease/allocator/internal/metrics"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/grpcserver"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/server/inspect"
	"github.com/flakelease/allocator/internal/server/respserver"
)

// Daemon is one node with its servers. Run it once.
type Daemon struct {
	cfg     config.Config
	version string
	log     *slog.Logger

	host     Host
	instance lease.Instance
	clock    *clock.System
	watch    *watcher.Watcher
	node     *node.Node
	etcd     *etcd
	security *security

	listening chan struct{} // closed once addrs is set
	addrs     Addresses

	// Set by Run before anything that reads them starts.
	keeper    *keeper.Keeper
	service   *server.Service
	grpc      *grpcserver.Server
	http      http.Handler
	resp      *respserver.Server // nil: no such door
	metrics   *metrics.Metrics
	listeners listeners
	gossip    cluster.Transport // nil: none

	cluster atomic.Pointer[cluster.Cluster] // nil until gossip runs
}

// ErrNoEndpoints says that a node was not told where etcd is.
var ErrNoEndpoints = errors.New("daemon: no etcd endpoints are configured")

// New returns a node that has begun nothing: it holds no port and no connection.
// version is that of the program, for registrations and metrics.
//
// It returns ErrNoEndpoints, or the rules that cfg breaks.
func New(cfg config.Config, version string, log *slog.Logger) (*Daemon, error) {
	return NewOn(cfg, version, log, Host{})
}

// NewSkewed is New with a wall clock that is by ahead of the machine's. It shows
// what the others do about such a node; nothing that serves users calls it.
func NewSkewed(cfg config.Config, version string, log *slog.Logger, by time.Duration) (*Daemon, error) {
	return NewOn(cfg, version, log, Host{Clock: clock.NewSystem(clock.SystemConfig{Anchor: clock.AnchorConfig{StepHold: cfg.Clock.StepHold}, Ahead: by})})
}

// NewOn is New on another host than this machine.
func NewOn(cfg config.Config, version string, log *slog.Logger, host Host) (*Daemon, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(cfg.Etcd.Endpoints) == 0 {
		return nil, ErrNoEndpoints
	}
	host = host.orMachine(cfg)
	d := &Daemon{
		cfg: cfg, version: version, log: log, host: host,
		// Random, never the node's name: two processes with one instance would
		// take each other's writes for their own.
		instance:  lease.Instance(uuid.NewString()),
		clock:     host.Clock,
		listening: make(chan struct{}),
	}
	var err error
	if d.etcd, err = newEtcd(cfg, log); err != nil {
		return nil, err
	}
	d.etcd.cfg.Options = append(d.etcd.cfg.Options, host.Etcd...)
	if d.security, err = newSecurity(cfg, d.clock, log); err != nil {
		return nil, err
	}
	d.node = node.New(node.Config{
		Name: cfg.Node.Name, Instance: d.instance, Gen: cfg.Gen(),
		MaxWait: cfg.Issue.MaxWait, MaxSkew: cfg.Issue.MaxSkew,
	}, d.clock, gen.Random())
	return d, nil
}

// Listening returns a channel that is closed when the node answers on its ports.
func (d *Daemon) Listening() <-chan struct{} { return d.listening }

// Addresses returns where the node answers. It may be called once Listening is
// closed.
func (d *Daemon) Addresses() Addresses { return d.addrs }

// Clocks returns what the node knows of its clock and its peers'. It may be called
// once Listening is closed.
func (d *Daemon) Clocks() clock.Report { return d.watch.Report() }

// Node returns the part that issues IDs.
func (d *Daemon) Node() *node.Node { return d.node }

// Run serves until ctx ends, then stops in order and returns nil. Whatever
// cannot go on ends the node the same way: Run then returns what it was.
func (d *Daemon) Run(ctx context.Context) error {
	if err := plausible(d.clock.Read().WallMillis(), d.cfg.Epoch, buildTime()); err != nil {
		return err
	}
	if err := d.listen(ctx); err != nil {
		return err
	}
	if err := d.build(); err != nil {
		d.closeListeners()
		return err
	}

	// What still has work to do when ctx ends lives on contexts of its own.
	inner := context.WithoutCancel(ctx)
	ending, fail := context.WithCancel(ctx)
	defer fail()
	keeping, stopKeeper := context.WithCancel(inner)
	defer stopKeeper()
	watching, stopWatching := context.WithCancel(inner)
	defer stopWatching()

	var all errgroup.Group
	start := func(what string, f func() error) {
		all.Go(func() error {
			defer fail() // whichever ends first ends the rest
			if err := f(); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		})
	}
	s := servers{
		grpc:  d.grpc.GRPC(d.security.grpcOptions()...),
		http:  httpserver.NewServer(d.http, d.log),
		admin: httpserver.NewServer(d.AdminHandler(), d.log),
	}
	s.http.TLSConfig = d.security.config("h2", "http/1.1")
	s.http.WriteTimeout += d.cfg.Issue.MaxWait
	if d.cfg.TLS.Admin {
		s.admin.TLSConfig = d.security.config("h2", "http/1.1")
	}
	if d.cfg.PProf {
		s.admin.WriteTimeout = 0 // a profile takes as long as it was asked to
	}
	for _, door := range []struct {
		what  string
		l     net.Listener
		serve func(net.Listener) error
	}{
		{"gRPC", d.listeners.grpc, s.grpc.Serve}, {"HTTP", d.listeners.http, serveHTTP(s.http)},
		{"RESP", d.listeners.resp, d.serveRESP}, {"admin", d.listeners.admin, serveHTTP(s.admin)},
	} {
		if door.l != nil {
			start(door.what, func() error { return ignoreClosed(door.serve(door.l)) })
		}
	}
	start("health", func() error { return d.grpc.Run(watching) })
	start("etcd", func() error { return d.etcd.connect(watching) })
	start("security", func() error { return d.security.run(watching) })
	start("explain", func() error { return d.explain(watching) })
	start("clock", func() error { return d.clock.Run(watching, d.watch.PeerVote, d.tellStep) })
	start("agreement", func() error { return d.watch.Run(watching) })
	gossiping, stopGossip := context.WithCancel(inner)
	defer stopGossip()
	start("gossip", func() error { return d.runGossip(gossiping) })
	kept := make(chan struct{})
	start("lease", func() error {
		defer close(kept)
		select {
		case <-d.etcd.tried:
		case <-keeping.Done():
			return nil
		}
		return d.keeper.Run(keeping)
	})
	for _, problem := range d.cfg.Exposed() {
		d.log.Warn("insecure: " + problem)
	}
	close(d.listening)
	d.log.Info("listening", "node", d.cfg.Node.Name, "instance", d.instance, "space", d.cfg.Space,
		"grpc", d.addrs.GRPC, "http", d.addrs.HTTP, "admin", d.addrs.Admin, "resp", d.addrs.RESP, "version", d.version)

	<-ending.Done()
	d.drain(s)
	stopKeeper()
	<-kept // bounded by stop.timeout and one call
	stopGossip()
	stopWatching()
	s.close()
	err := all.Wait()
	d.etcd.close()
	d.log.Info("stopped", "node", d.cfg.Node.Name, "issued", d.node.Stats().Issued)
	return err
}

// build makes the parts that need the addresses.
func (d *Daemon) build() error {
	l := d.cfg.Lease
	d.keeper = keeper.New(keeper.Config{
		Machine: lease.Config{
			Registration: lease.Registration{
				Instance: d.instance, Node: d.cfg.Node.Name, Version: d.version,
				GRPC: d.addrs.AdvertisedGRPC, HTTP: d.addrs.AdvertisedHTTP, Gossip: d.addrs.Gossip,
				SIDRange: d.cfg.SIDRange.String(),
			},
			Gated:    true,
			Format:   d.cfg.Format(),
			SIDRange: d.cfg.SIDRange,
			Window:   l.Window, ExtendEvery: l.ExtendEvery, TTL: l.TTL, KeepAliveEvery: l.KeepAlive,
			ReloadEvery: l.ReloadEvery, RetryAfter: retryAfter,
			MaxSkew: d.cfg.Issue.MaxSkew, MaxLead: d.cfg.Issue.MaxLead,
			Nonce:  rand.Text,
			Jitter: jitter,
		},
		Store: d.etcd, Generator: d.node, Clock: d.clock, Logger: d.log,
		CallTimeout: l.CallTimeout, StopTimeout: d.cfg.Stop.Timeout,
	})
	policy := clock.GateConfig{MaxSkew: d.cfg.Issue.MaxSkew, Grace: d.cfg.Clock.Grace, Strict: d.cfg.Clock.Policy == "refuse"}
	d.watch = watcher.New(watcher.Config{
		Name: d.cfg.Node.Name, Instance: d.instance, Clock: d.clock, Gate: policy,
		Keeper: d.keeper, Node: d.node, Logger: d.log,
	})
	var err error
	d.service, err = server.New(server.Config{
		Node: d.node, Guard: d.security.guard,
		Observe: func(surface string, took time.Duration) { d.metrics.Observe(surface, took) },
	})
	if err != nil {
		return err
	}
	inspector, err := inspect.New(inspect.Config{
		Node: d.node, Directory: d.etcd, Space: d.cfg.Space, Version: d.version, Logger: d.log, Clocks: d.watch.Report,
	})
	if err != nil {
		return err
	}
	d.grpc, err = grpcserver.New(grpcserver.Config{Service: d.service, Inspector: inspector, Logger: d.log, Drain: d.rest})
	if err != nil {
		return err
	}
	if d.http, err = httpserver.New(httpserver.Config{Service: d.service, Inspector: inspector}); err != nil {
		return err
	}
	if d.listeners.resp != nil {
		if d.resp, err = respserver.New(respserver.Config{
			Service: d.service, Inspector: inspector, Version: d.version, Logger: d.log, MaxConnections: d.cfg.Limit.Connections,
		}); err != nil {
			return err
		}
	}
	d.metrics = metrics.New(metrics.Config{
		Node: d.node, Keeper: d.keeper, Clock: d.clock, Version: d.version, Space: d.cfg.Space,
		Settings: metrics.Settings{Window: l.Window, TTL: l.TTL, MaxSkew: d.cfg.Issue.MaxSkew, MaxLead: d.cfg.Issue.MaxLead},
		Clocks:   d.watch.Report, Gossip: d.gossipStats, Security: d.securityReport,
		Requests: func(yield func(string, string, int64)) {
			for _, c := range d.service.Stats() {
				yield(c.Surface, c.Outcome, c.Requests)
			}
		},
	})
	return nil
}

// retryAfter is the pause after a failed call to etcd: short beside a window,
// and long enough that 1,024 waiting nodes are no load.
const retryAfter = 250 * time.Millisecond

// jitter returns a random duration in [0, most).
func jitter(most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	return mathrand.N(most)
}

// stuckAfter is when a keeper's loop that has not turned counts as stuck. It
// turns once a second, and only a bug or a starved process keeps it.
const stuckAfter = 30 * time.Second

// alive reports whether the process's loops turn. It knows nothing of etcd: to
// restart a node because etcd is away would lose its window.
func (d *Daemon) alive() error {
	last := d.keeper.Ticked()
	if last == 0 { // still connecting
		return nil
	}
	if age := d.clock.Now().Mono.Sub(last); age > stuckAfter {
		return fmt.Errorf("the keeper's loop has not turned for %v", age.Round(time.Second))
	}
	return nil
}

// servers are what answers on the three ports.
type servers struct {
	grpc        *grpc.Server
	http, admin *http.Server
}

// serveHTTP returns what serves s on a listener, over TLS if s has certificates.
func serveHTTP(s *http.Server) func(net.Listener) error {
	return func(l net.Listener) error {
		if s.TLSConfig == nil {
			return s.Serve(l)
		}
		return s.ServeTLS(l, "", "")
	}
}

// serveRESP is serveHTTP for the RESP door.
func (d *Daemon) serveRESP(l net.Listener) error {
	if c := d.security.config(); c != nil {
		l = tls.NewListener(l, c)
	}
	return d.resp.Serve(l)
}

// drain takes the node out of service: nothing is being answered when it
// returns, and later requests are refused.
func (d *Daemon) drain(s servers) {
	d.log.Info("stopping", "node", d.cfg.Node.Name, "delay", d.cfg.Drain.Delay, "timeout", d.cfg.Drain.Timeout)
	if d.cfg.Drain.Delay > 0 {
		d.node.Leave()
		d.grpc.CheckHealth()
		time.Sleep(d.cfg.Drain.Delay) // load balancers look away meanwhile
	}
	d.grpc.Drain()

	ctx, cancel := context.WithTimeout(context.Background(), d.cfg.Drain.Timeout)
	defer cancel()
	var both errgroup.Group
	both.Go(func() error { return s.http.Shutdown(ctx) })
	both.Go(func() error {
		finished := make(chan struct{})
		go func() { s.grpc.GracefulStop(); close(finished) }()
		select {
		case <-finished:
			return nil
		case <-ctx.Done():
			s.grpc.Stop() // and GracefulStop returns
			<-finished
			return ctx.Err()
		}
	})
	if d.resp != nil {
		both.Go(func() error { return d.resp.Shutdown(ctx) })
	}
	if err := both.Wait(); err != nil {
		d.log.Warn("requests were cut off: they took longer than drain.timeout", "timeout", d.cfg.Drain.Timeout)
	}
}

// close ends what drain left: connections that were cut off, and the admin port.
func (s servers) close() {
	_ = s.http.Close()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	_ = s.admin.Shutdown(ctx)
	_ = s.admin.Close()
}

// adminTimeout is for a scrape under way; there is no other use of the port that
// is worth a wait.
const adminTimeout = 500 * time.Millisecond

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, respserver.ErrClosed) {
		return nil
	}
	return err
}
