package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/devetcd"
	"github.com/flakelease/allocator/internal/lease"
)

// Ports of dev: node i adds i times portStep to each, and its admin port is next
// to its gRPC port.
const (
	devHTTPPort = 8080
	devGRPCPort = 9000 // where get and status ask by default
	portStep    = 10
	maxDevNodes = 90 // above, HTTP and gRPC ports would meet
)

// devReadyWithin is how long dev waits for its nodes; they take well under 1 s.
const devReadyWithin = 30 * time.Second

func (a *app) devCommand() *cobra.Command {
	d := dev{app: a}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster on this machine: etcd and some nodes, in one process",
		Long: `Dev starts an etcd of its own and some nodes, all on loopback, and says how to call
them. It is for trying allocator out and for tests of programs that use it. Interrupt
it to stop; twice, to stop at once. Without --data-dir all is forgotten then.`,
		Example: "  allocator dev\n  allocator dev --nodes 1 --data-dir ./data",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().IntVar(&d.nodes, "nodes", 3, "how many nodes")
	cmd.Flags().StringVar(&d.dir, "data-dir", "", "folder that keeps etcd's data; without it, all is forgotten at the end")
	cmd.Flags().IntVar(&d.httpPort, "http-port", devHTTPPort, "HTTP port of the first node; each further one is 10 higher; 0 takes any that are free")
	cmd.Flags().IntVar(&d.grpcPort, "grpc-port", devGRPCPort, "gRPC port of the first node, with its admin port next to it; each further one is 10 higher; 0 takes any that are free")
	cmd.Flags().BoolVar(&d.verbose, "verbose", false, "show the log of the nodes")
	_ = cmd.MarkFlagDirname("data-dir")
	format := formatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d.json = format.value == "json"
		if d.nodes < 1 || d.nodes > maxDevNodes {
			return usage("--nodes is %d: 1 to %d", d.nodes, maxDevNodes)
		}
		return d.run(cmd.Context())
	}
	return cmd
}

// dev is a cluster in this process.
type dev struct {
	*app
	nodes, httpPort, grpcPort int
	dir                       string
	verbose, json             bool

	etcd    *devetcd.Server
	daemons []*daemon.Daemon
}

func (d *dev) run(ctx context.Context) error {
	dir := d.dir
	if dir != "" {
		var err error
		if dir, err = filepath.Abs(dir); err != nil {
			return err
		}
	}
	var err error
	d.etcd, err = devetcd.Start(ctx, devetcd.Config{Dir: dir, NoSync: dir == ""})
	switch {
	case ctx.Err() != nil:
		return &exitError{code: exitInterrupted}
	case err != nil && dir != "":
		return fmt.Errorf("%w\nDoes another «allocator dev» use %s? Choose another --data-dir, or remove it to begin anew", err, dir)
	case err != nil:
		return err
	}
	defer func() { _ = d.etcd.Close() }()

	for i := range d.nodes {
		one, err := daemon.New(d.config(i), versionOf().Version, logger(d.log(), d.err))
		if err != nil {
			return invalidSettings(err)
		}
		d.daemons = append(d.daemons, one)
	}
	// Fresh: this etcd is ours alone, and an old space in it is left as it is.
	if _, _, err := daemon.Init(ctx, d.config(0), true, logger(d.log(), d.err)); err != nil {
		return err
	}

	all, running := errgroup.WithContext(ctx)
	for i, one := range d.daemons {
		all.Go(func() error {
			err := one.Run(running)
			if err == nil && running.Err() == nil {
				err = errors.New("it ended on its own")
			}
			return d.explain(i, err)
		})
	}
	all.Go(func() error {
		select {
		case err := <-d.etcd.Failed():
			return fmt.Errorf("etcd: %w", err)
		case <-running.Done():
			return nil
		}
	})
	all.Go(func() error { return d.welcome(running) })

	<-running.Done()
	if ctx.Err() != nil {
		fmt.Fprintln(d.err, "stopping; interrupt again to stop at once")
	}
	if err := all.Wait(); err != nil {
		return err
	}
	d.farewell(dir)
	return nil
}

func (d *dev) log() config.Log {
	if d.verbose {
		return config.Log{Level: "info", Format: "text"}
	}
	return config.Log{Level: "error", Format: "text"} // alarms; what else goes wrong ends dev
}

// config returns what node i is told.
func (d *dev) config(i int) config.Config {
	c := config.Default()
	c.Node.Name = fmt.Sprintf("node-%d", i+1)
	c.Etcd.Endpoints = []string{d.etcd.Endpoint()}
	c.Drain.Timeout = 2 * time.Second // nobody here waits for a stream to end
	port := func(first, offset int) string {
		if first == 0 {
			return "127.0.0.1:0"
		}
		return fmt.Sprintf("127.0.0.1:%d", first+i*portStep+offset)
	}
	c.Listen = config.Listen{GRPC: port(d.grpcPort, 0), HTTP: port(d.httpPort, 0), Admin: port(d.grpcPort, 1), Gossip: "127.0.0.1:0"}
	return c
}

// explain says what to do about the error of node i.
func (d *dev) explain(i int, err error) error {
	var busy *daemon.PortError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &busy):
		flag := "--grpc-port"
		if busy.Key == "listen.http" {
			flag = "--http-port"
		}
		_, port, _ := net.SplitHostPort(busy.Addr)
		return fmt.Errorf("port %s, for node-%d, cannot be had (%w): stop what uses it, or choose another %s",
			port, i+1, errors.Unwrap(busy.Err), flag)
	}
	return fmt.Errorf("node-%d: %w", i+1, err)
}

// welcome waits until every node is ready or stands by, and says how to use them.
func (d *dev) welcome(ctx context.Context) error {
	deadline := time.After(devReadyWithin)
	for _, one := range d.daemons {
		for !settled(one) {
			select {
			case <-ctx.Done():
				return nil
			case <-deadline:
				return fmt.Errorf("%s is not ready within %v: %w", one.Node().Config().Name, devReadyWithin, one.Node().Ready())
			case <-time.After(5 * time.Millisecond):
			}
		}
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

// settled reports whether a node is ready, or cannot be until another ends.
func settled(one *daemon.Daemon) bool {
	select {
	case <-one.Listening():
	default:
		return false
	}
	return one.Node().Ready() == nil || standsBy(one)
}

func standsBy(one *daemon.Daemon) bool {
	l := one.Node().Stats().Lease
	return l.Phase == lease.Standby && l.PoolHeld == l.PoolSize
}

func (d *dev) printNode(one *daemon.Daemon) error {
	st, at := one.Node().Stats(), one.Addresses()
	line := struct {
		Node  string `json:"node"`
		State string `json:"state"`
		SID   int    `json:"sid"` // -1: none
		HTTP  string `json:"http"`
		GRPC  string `json:"grpc"`
		Admin string `json:"admin"`
		Etcd  string `json:"etcd"`
	}{st.Name, "ready", int(st.Lease.Grant.SID), at.HTTP, at.GRPC, at.Admin, d.etcd.Endpoint()}
	if !st.Lease.Held {
		line.State, line.SID = "standby", -1
	}
	if d.json {
		return printLine(d.out, line)
	}
	sid := fmt.Sprintf("sid %-3d", line.SID)
	if line.SID < 0 {
		sid = fmt.Sprintf("all %d sids are taken: takes over when one is free ", st.Lease.PoolSize)
	}
	_, err := fmt.Fprintf(d.out, "%-7s %-8s %s http %s  grpc %s  admin %s\n", line.State, line.Node, sid, line.HTTP, line.GRPC, line.Admin)
	return err
}

// printExamples prints calls that work when pasted, with an ID made now.
func (d *dev) printExamples(ctx context.Context) error {
	first := d.daemons[0]
	for _, one := range d.daemons {
		if one.Node().Ready() == nil {
			first = one
			break
		}
	}
	block, err := first.Node().Next(ctx, 1, 0)
	if err != nil {
		return fmt.Errorf("first ID: %w", err)
	}
	at, addr := first.Addresses(), ""
	if at.GRPC != defaultAddr {
		addr = " --addr " + at.GRPC
	}
	var b strings.Builder
	fmt.Fprintf(&b, `
Try, in another terminal:

  curl -X POST http://%[1]s/v1/ids
  curl -X POST -H 'Accept: text/plain' 'http://%[1]s/v1/ids?count=3&as=ulid'
  curl http://%[1]s/v1/ids/%[2]s
  curl http://%[1]s/v1/cluster

or

  allocator get 3 --as ulid%[3]s
  allocator parse %[2]s --addr %[4]s
  allocator status%[3]s

etcd is at %[5]s. Ctrl-C stops everything.
`, at.HTTP, block.First, addr, at.GRPC, d.etcd.Endpoint())
	_, err = fmt.Fprint(d.out, b.String())
	return err
}

// farewell says what became of the sids and the data.
func (d *dev) farewell(dir string) {
	back := 0
	for _, one := range d.daemons {
		if l := one.Node().Stats().Lease; l.EverHeld && l.Phase == lease.Stopped {
			back++
		}
	}
	fmt.Fprintf(d.err, "stopped; %s given back\n", count(back, "sid"))
	if dir != "" {
		fmt.Fprintf(d.err, "data is kept in %s: start again with --data-dir %s\n", dir, dir)
	}
}
