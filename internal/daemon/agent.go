package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/client/prom"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon/agent"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/adminserver"
	"github.com/flakelease/allocator/internal/server/grpcserver"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/text"
)

// AgentConfig is what an agent needs. All fields are required.
type AgentConfig struct {
	// Settings say where the agent listens and whom it limits; those of etcd, leases, clocks, TLS and
	// tokens have no effect.
	Settings config.Config
	Client   client.Options // NewAgent sets the mode, and what belongs to it.
	MaxAge   time.Duration  // An ID may be this old when it is issued.
	MaxWait  time.Duration  // A request may wait this long for a node.
	Version  string
	Logger   *slog.Logger
}

// Bounds of an agent's settings.
const (
	minAgentAge = 10 * time.Millisecond
	// minAttempt is twice the time for which a node holds a request by default: an attempt that
	// ends earlier takes a node for silent that is well.
	minAttempt   = 200 * time.Millisecond
	maxAgentAge  = time.Minute
	maxAgentWait = 10 * time.Second // client.DefaultTimeout, which bounds a request for a block
)

// Agent serves IDs of nodes to the processes of one machine. Run it once.
type Agent struct {
	// NewAgent sets these, and they never change.
	cfg      AgentConfig
	client   *client.Client
	security *security
	clock    *clock.System

	listening chan struct{} // closed once addrs is set
	addrs     Addresses
}

// NewAgent returns an agent that is not started. Its errors are those of the settings and of
// client.New.
func NewAgent(c AgentConfig) (*Agent, error) {
	// A file with the settings of serve does no harm.
	c.Settings.TLS, c.Settings.Auth, c.Settings.Gossip = config.ServerTLS{}, config.Default().Auth, config.Gossip{}
	cfg := c.Settings
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	switch l := cfg.Listen; {
	case l.GRPC == "" && l.HTTP == "" && l.RESP == "":
		return nil, &config.RuleError{Key: "listen.resp", Rule: "an agent has nowhere to listen: set listen.resp, " +
			"listen.http or listen.grpc, such as listen.resp=unix:/run/allocator/agent.sock"}
	case c.MaxAge < minAgentAge || c.MaxAge > maxAgentAge:
		return nil, fmt.Errorf("daemon: max-age: %v is out of range: it must be %v to %v", c.MaxAge, minAgentAge,
			maxAgentAge)
	case c.MaxWait <= 0 || c.MaxWait > maxAgentWait:
		return nil, fmt.Errorf("daemon: max-wait: %v is out of range: it must be above 0 and at most %v", c.MaxWait,
			maxAgentWait)
	}
	a := &Agent{cfg: c, listening: make(chan struct{}), clock: clock.NewSystem(nil)}
	var err error
	if a.security, err = newSecurity(cfg, a.clock, c.Logger); err != nil {
		return nil, err
	}
	o := c.Client
	o.Mode, o.MaxAge, o.RenewEarly = client.Prefetch, c.MaxAge, true
	o.AttemptTimeout = min(max(c.MaxWait/2, minAttempt), client.DefaultAttemptTimeout)
	if a.client, err = client.New(o); err != nil {
		return nil, err
	}
	return a, nil
}

// Listening returns a channel that is closed when the agent answers.
func (a *Agent) Listening() <-chan struct{} { return a.listening }

// Addresses returns the addresses of the listeners. It may be called when Listening is closed.
func (a *Agent) Addresses() Addresses { return a.addrs }

// Run serves until ctx ends, then stops in order and returns nil. It listens once a node has answered:
// what an ID of the space is, and how many a request may ask for, is known from there. A part that
// fails stops the agent the same way; Run returns its error.
func (a *Agent) Run(ctx context.Context) error {
	defer func() { _ = a.client.Close() }()
	about := a.learn(ctx)
	if ctx.Err() != nil {
		return nil
	}
	issuer := agent.New(agent.Config{
		About:   about,
		Source:  a.client,
		Clock:   a.clock,
		MaxWait: a.cfg.MaxWait,
		MaxAge:  a.cfg.MaxAge,
	})
	var ls listeners
	if err := ls.open(ctx, new(net.ListenConfig).Listen, a.security, a.cfg.Settings.Listen, &a.addrs); err != nil {
		return err
	}
	return a.serve(ctx, issuer, ls)
}

// learn asks nodes until one has told what their IDs are, or ctx ends.
func (a *Agent) learn(ctx context.Context) node.About {
	log := a.cfg.Logger
	log.Info("asking for the first IDs", "nodes", strings.Join(a.cfg.Client.Targets, ","))
	var said text.Said
	for {
		b, err := a.client.Block(ctx, 1)
		var limit int
		if err == nil {
			limit, err = a.limit(ctx)
		}
		switch {
		case err == nil:
			return node.About{Name: a.cfg.Settings.Node.Name, Format: b.Format, MaxBlock: limit}
		case ctx.Err() != nil:
			return node.About{}
		case said.New(err.Error(), a.clock.Now().Wall.Time()):
			log.Warn("no node gives IDs: the agent waits, and listens nowhere yet", "error", err)
		}
		select {
		case <-time.After(retryAfter):
		case <-ctx.Done():
		}
	}
}

// limit returns how many IDs a request may ask for, which the refusal of a request for none names.
func (a *Agent) limit(ctx context.Context) (int, error) {
	_, err := pb.NewAllocatorServiceClient(a.client.Conn()).Allocate(ctx, &pb.AllocateRequest{})
	r, ok := errors.AsType[*client.Refusal](err)
	if !ok || r.Reason != client.InvalidCount {
		if err == nil {
			err = errors.New("a request for no IDs was served: check that the address is that of a node")
		}
		return 0, err
	}
	var limit int
	if _, err := fmt.Sscan(r.Metadata["limit"], &limit); err != nil || limit < 1 {
		return 0, fmt.Errorf("node %s names no limit of a request (%.40q): check that it is a node", r.Node,
			r.Metadata["limit"])
	}
	return limit, nil
}

// serve answers on ls until ctx ends.
func (a *Agent) serve(ctx context.Context, issuer *agent.Agent, ls listeners) error {
	stopping := make(chan struct{}) // closed when requests are refused
	f, admin := a.front(issuer, ls, stopping)
	log, cfg := a.cfg.Logger, a.cfg.Settings
	grpcServer, httpServer := f.grpc.GRPC(a.security.grpcOptions(cfg.Listen.GRPC)...), httpserver.NewServer(f.http, log)
	// A stop goes through these lines from the last to the first.
	l := newLifecycle(ctx, log)
	l.onStop("admin connections", adminTimeout, func(ctx context.Context) error { return stopAdmin(ctx, admin) })
	serveOn(l, "admin listener", ls.admin, serveHTTP(admin))
	l.start("quotas", stepTimeout, a.security.run)
	l.start("health", stepTimeout, f.grpc.Run)
	l.start("fresh IDs", stepTimeout, issuer.Run)
	l.onStop("requests in flight", cfg.Drain.Timeout,
		func(ctx context.Context) error { return finishRequests(ctx, grpcServer, httpServer, f.resp) })
	serveOn(l, "gRPC listener", ls.grpc, grpcServer.Serve)
	serveOn(l, "HTTP listener", ls.http, serveHTTP(httpServer))
	serveOn(l, "RESP listener", ls.resp, f.resp.Serve)
	l.onStop("new requests", stepTimeout, func(context.Context) error {
		close(stopping)
		issuer.Stop()
		return nil
	})
	for _, problem := range cfg.Exposed() {
		log.Warn("insecure: " + problem)
	}
	close(a.listening)
	about := issuer.About()
	log.Info("listening", "agent", about.Name, "grpc", a.addrs.GRPC, "http", a.addrs.HTTP, "resp", a.addrs.RESP,
		"admin", a.addrs.Admin, "layout", about.Format.Layout, "limit", about.MaxBlock, "version", a.cfg.Version)
	<-l.ending.Done()
	log.Info("stopping", "agent", about.Name, "timeout", cfg.Drain.Timeout)
	err := l.stop()
	log.Info("stopped", "agent", about.Name, "issued", issuer.Stats().Issued)
	return err
}

// front returns what answers clients, and the server of the admin port.
func (a *Agent) front(issuer *agent.Agent, ls listeners, stopping <-chan struct{}) (f front, admin *http.Server) {
	cfg, log := a.cfg.Settings, a.cfg.Logger
	service := server.New(server.Config{
		Agent:  issuer,
		Nodes:  a.cfg.Client.Targets,
		Guard:  a.security.guard,
		Logger: log,
	})
	hosts := func(check bool) *httpserver.Hosts {
		if !check {
			return nil
		}
		return httpserver.NewHosts(cfg.HTTP.Hosts...)
	}
	f = newFront(grpcserver.Config{
		Service:  service,
		Logger:   log,
		Draining: func() <-chan struct{} { return stopping },
	}, hosts(cfg.CheckHost()), ls, a.security, a.cfg.Version)
	reg := prometheus.NewRegistry()
	reg.MustRegister(prom.New(a.client, nil), agentRequests(service))
	probes := adminserver.New(adminserver.Config{
		Ready:   issuer.Ready,
		Alive:   func() error { return nil },
		Metrics: promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}),
	})
	return f, httpserver.NewServer(hosts(cfg.CheckAdminHost()).Handler(probes), log)
}

var agentRequestsDesc = prometheus.NewDesc("allocator_requests_total",
	"Requests that were answered or refused, by surface and outcome.", []string{"surface", "code"}, nil)

// agentRequests collects the counts of an agent's own requests that are not 0; those to nodes are the client's.
func agentRequests(service *server.Service) prometheus.CollectorFunc {
	return func(out chan<- prometheus.Metric) {
		for _, c := range service.Stats() {
			if c.Requests > 0 {
				out <- prometheus.MustNewConstMetric(agentRequestsDesc, prometheus.CounterValue, float64(c.Requests),
					c.Surface, c.Outcome)
			}
		}
	}
}
