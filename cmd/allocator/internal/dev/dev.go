// Package dev holds the command that runs a whole cluster on this machine.
package dev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/dev/duplicates"
	"github.com/flakelease/allocator/internal/dev/loopback"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/text"
)

// Ports of dev: node i adds i times portStep to each, and its admin port is next
// to its gRPC port.
const (
	devHTTPPort = 8080
	devGRPCPort = 9000 // where get and status ask by default
	devRESPPort = 6380
	portStep    = 10
	maxDevNodes = 90 // above, HTTP and gRPC ports would meet
)

const (
	// devReadyWithin is how long dev waits for its nodes, and devReadyEach how much
	// longer for each of them; three take well under 1 s, and 34 some 3 s. On a machine
	// with other work to do, or with the race detector, it is many times that.
	devReadyWithin = 20 * time.Second
	devReadyEach   = 3 * time.Second
	// devComparedWithin is how long it waits for them to know each other's clocks:
	// ready lines show it.
	devComparedWithin = 2 * time.Second
)

// Command returns "allocator dev".
func Command(a *cli.App) *cobra.Command {
	d := dev{App: a, restarted: make(chan struct{}, 1), wanted: make(chan struct{}), given: duplicates.NewChecker()}
	d.etcdState.Store("running")
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster on this machine: etcd and some nodes, in one process",
		Long: `Dev starts an etcd and some nodes on loopback, and prints how to call them. It is for trying
allocator out and for tests of programs that use it. Interrupt it to stop; twice, to stop
at once. The upper half of the sids is for workers: see "allocator worker run".

The console, whose link is printed, sets clocks, and stops, pauses and cuts off nodes and
etcd.`,
		Example: "  allocator dev\n  allocator dev --nodes 1 --data-dir ./data\n  allocator dev --layout twitter",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().IntVar(&d.nodes, "nodes", 3, "how many nodes")
	cmd.Flags().StringVar(&d.dir, "data-dir", "", "directory for etcd's data; without it, all data is lost at the end")
	cmd.Flags().IntVar(&d.httpPort, "http-port", devHTTPPort,
		"HTTP port of the first node; each further one is 10 higher; 0 takes any that are free")
	cmd.Flags().IntVar(&d.grpcPort, "grpc-port", devGRPCPort,
		"gRPC port of the first node, with its admin port next to it; each further one is 10 higher; 0 takes any "+
			"that are free")
	cmd.Flags().BoolVar(&d.resp, "resp", false,
		"answer Redis clients as well, on port 6380 and, for further nodes, 10 higher each; on any port that is "+
			"free if --http-port is 0")
	cmd.Flags().BoolVar(&d.verbose, "verbose", false, "show the log of the nodes")
	_ = cmd.MarkFlagDirname("data-dir")
	space := cli.SpaceFlags(cmd)
	format := cli.FormatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d.json, d.space = format.JSON(), space()
		if d.nodes < 1 || d.nodes > maxDevNodes {
			return cli.UsageError("--nodes is %d: it has to be at least 1, and at most %d", d.nodes, maxDevNodes)
		}
		a.DetachErr()
		return d.run(cmd.Context())
	}
	return cmd
}

// dev is a cluster in this process.
type dev struct {
	*cli.App
	nodes, httpPort, grpcPort int
	dir                       string
	verbose, json, resp       bool
	space                     flake.Format

	etcd    *etcdserver.Server
	daemons []*daemon.Daemon // as they were started first
	members []*member
	console string // URL

	breaking  sync.Mutex // held while etcd is stopped or started
	etcdState atomic.Value
	restarted chan struct{}       // etcd was
	wanted    chan struct{}       // closed by the first request of the console
	given     *duplicates.Checker // IDs that the nodes gave the client of the console
}

// etcdStarts is far more than etcd takes to start on an idle machine: about 1 s.
const etcdStarts = 30 * time.Second

func (d *dev) run(ctx context.Context) error {
	dir := d.dir
	if dir != "" {
		var err error
		if dir, err = filepath.Abs(dir); err != nil {
			return err
		}
	}
	var err error
	within, done := context.WithTimeout(ctx, etcdStarts)
	d.etcd, err = etcdserver.Start(within, etcdserver.Alone{Dir: dir, NoSync: dir == ""})
	done()
	switch {
	case ctx.Err() != nil:
		return cli.Exit(cli.ExitInterrupted, nil)
	case errors.Is(err, etcdserver.ErrInUse):
		return cli.Exit(cli.ExitInvalid,
			fmt.Errorf("--data-dir %s is in use by another process, such as another \"allocator dev\": stop that "+
				"one, or choose another --data-dir", dir))
	case err != nil && dir != "":
		return fmt.Errorf("%w\nIs the data in %s that of an etcd of this version? Choose another --data-dir, or "+
			"remove it to begin anew", err, dir)
	case err != nil:
		return err
	}
	defer func() { _ = d.etcd.Close() }()

	for i := range d.nodes {
		m := newMember(i, d.config(i).Node.Name)
		if m.daemon, err = d.node(m); err != nil {
			return cli.InvalidSettings(err)
		}
		d.members, d.daemons = append(d.members, m), append(d.daemons, m.daemon)
	}
	pages, err := d.listen(ctx)
	if err != nil {
		return err
	}
	// Fresh: this etcd is ours alone, and an old space in it is left as it is. Unnamed: programs go on over a restart
	// of dev, which loses its space.
	if _, _, err := daemon.Init(ctx, d.config(0), daemon.Beginning{Fresh: true, Unnamed: true},
		cli.Logger(d.log(), d.Err)); err != nil {
		return err
	}

	all, running := errgroup.WithContext(ctx)
	for i, m := range d.members {
		all.Go(func() error {
			return d.explain(i, m.run(running, func() (*daemon.Daemon, error) { return d.node(m) }))
		})
	}
	all.Go(func() error { return d.watchEtcd(running) })
	all.Go(func() error { return d.check(running) })
	all.Go(func() error { return d.servePages(running, pages) })
	all.Go(func() error { return d.announce(running) })

	<-running.Done()
	for _, m := range d.members {
		m.clocks.resume() // a paused node could not stop
		m.link.set(false)
	}
	if ctx.Err() != nil {
		fmt.Fprintln(d.Err, "stopping; interrupt again to stop at once")
	}
	if err := all.Wait(); err != nil {
		return err
	}
	d.summarize(dir)
	return nil
}

func (d *dev) log() config.Log {
	if d.verbose {
		return config.Log{Level: "info", Format: "text"}
	}
	return config.Log{Level: "error", Format: "text"} // alarms; what else goes wrong ends dev
}

// config returns the configuration of node i.
func (d *dev) config(i int) config.Config {
	c := config.Default()
	c.Node.Name = fmt.Sprintf("node-%d", i+1)
	c.Layout, c.Epoch = d.space.Layout, clock.Millis(d.space.Epoch)
	c.Etcd.Endpoints = []string{d.etcd.Endpoint()}
	if sids := (lease.Space{Layout: c.Layout}).SIDs(); d.nodes < sids.Len() {
		// Workers get the upper half of the sids, or what the nodes leave.
		c.Worker.SIDRange = lease.SIDRange{From: flake.SID(max(sids.Len()/2, d.nodes)), To: sids.To}
	}
	c.Console.Operate = true          // the listener is on loopback, and all is lost at the end
	c.Drain.Timeout = 2 * time.Second // no client here waits for a stream to end
	port := func(first, offset int) string {
		if first == 0 {
			return loopback.Address() // a node that is repaired finds it free
		}
		return fmt.Sprintf("127.0.0.1:%d", first+i*portStep+offset)
	}
	c.Listen = config.Listen{
		GRPC:   port(d.grpcPort, 0),
		HTTP:   port(d.httpPort, 0),
		Admin:  port(d.grpcPort, 1),
		Gossip: loopback.Any,
	}
	if d.resp {
		first := devRESPPort
		if d.httpPort == 0 {
			first = 0
		}
		c.Listen.RESP = port(first, 0)
	}
	return c
}

// explain adds to an error of node i what to do about it.
func (d *dev) explain(i int, err error) error {
	var busy *daemon.PortError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &busy):
		return fmt.Errorf("node-%d: %w", i+1, err)
	}
	clients, instead := "", "choose another --grpc-port"
	switch busy.Key {
	case "listen.http":
		instead = "choose another --http-port"
	case "listen.resp":
		clients, instead = "Redis clients of ", "leave --resp out"
	}
	_, port, _ := net.SplitHostPort(busy.Addr)
	return fmt.Errorf("port %s, for %snode-%d, is not available (%w): stop the program that uses it, or %s",
		port, clients, i+1, errors.Unwrap(busy.Err), instead)
}

// node returns a node, to be run once. After its first start it has the same ports.
func (d *dev) node(m *member) (*daemon.Daemon, error) {
	c, version, log := d.config(m.index), d.Build().Version, cli.Logger(d.log(), d.Err)
	m.mu.Lock()
	at := m.addrs
	m.mu.Unlock()
	if at.Admin != "" {
		c.Listen.GRPC, c.Listen.HTTP, c.Listen.RESP, c.Listen.Admin = at.GRPC, at.HTTP, at.RESP, at.Admin
	}
	return daemon.New(daemon.Config{
		Settings: c,
		Version:  version,
		Logger:   log.With("of", c.Node.Name),
		Host:     m.host(d),
	})
}

// announce waits until every node is ready or on standby, and prints how to use them.
func (d *dev) announce(ctx context.Context) error {
	within := devReadyWithin + time.Duration(len(d.daemons))*devReadyEach
	deadline := time.After(within)
	for _, one := range d.daemons {
		for wake := one.Listening(); !settled(one); {
			select {
			case <-ctx.Done():
				return nil
			case <-deadline:
				return fmt.Errorf("%s is not ready within %v: %w",
					one.Node().Config().Name, within, one.Node().Ready())
			case <-wake:
			}
			_, wake = one.Node().Watch()
		}
	}
	if !d.untilCompared(ctx) {
		return nil
	}
	for _, one := range d.daemons {
		if err := d.printNode(one); err != nil {
			return err
		}
	}
	if d.json {
		return nil
	}
	return d.printExamples(ctx)
}

// untilCompared waits until every node has compared its clock with the others',
// but not for long. It reports whether dev goes on.
func (d *dev) untilCompared(ctx context.Context) bool {
	deadline := time.After(devComparedWithin)
	for _, one := range d.daemons {
		for {
			changed := one.WatchClocks()
			if compared(one, len(d.daemons)) {
				break
			}
			select {
			case <-ctx.Done():
				return false
			case <-deadline:
				return true
			case <-changed:
			}
		}
	}
	return true
}

// compared reports whether a node has compared its clock with those of a majority of all, which agree.
func compared(one *daemon.Daemon, nodes int) bool {
	r := one.Clocks()
	return r.Gate.Judgement.Registered >= min(nodes, maxCompared) && r.Gate.Verdict.Phase == clock.Confirmed &&
		r.Gate.Judgement.Finding == clock.Agreed && (nodes > maxCompared || allOpen(r.Peers))
}

// allOpen reports whether all peers have said that clocks allow them to issue: until then
// the pages show them as refusing.
func allOpen(peers []clock.PeerReport) bool {
	return !slices.ContainsFunc(peers, func(p clock.PeerReport) bool { return p.Verdict != clock.Open })
}

// maxCompared is with how many others a node compares its clock, where there are as many.
const maxCompared = 32

// settled reports whether a node is ready, or cannot be until another ends.
func settled(one *daemon.Daemon) bool {
	select {
	case <-one.Listening():
	default:
		return false
	}
	return one.Node().Ready() == nil || isStandby(one)
}

func isStandby(one *daemon.Daemon) bool {
	l := one.Node().Stats().Lease
	return l.Phase == lease.Standby && l.Pool.Held == l.Pool.Size
}

// summarize prints what became of the sids and the data.
func (d *dev) summarize(dir string) {
	back := 0
	for _, m := range d.members {
		if l := m.daemon.Node().Stats().Lease; l.EverHeld && l.Phase == lease.Stopped {
			back++
		}
	}
	fmt.Fprintf(d.Err, "stopped; %s given back\n", text.Count(back, "sid"))
	if dir != "" {
		fmt.Fprintf(d.Err, "data is kept in %s: start again with --data-dir %s\n", dir, dir)
	}
}
