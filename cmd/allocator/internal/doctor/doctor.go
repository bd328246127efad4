// Package doctor holds the command that checks a deployment. It gathers facts
// first and judges them afterwards; it changes nothing.
package doctor

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// Command returns "allocator doctor".
func Command(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check a deployment: etcd, the space, its nodes and clocks",
		Long: `Doctor checks what a deployment needs, and prints for each check its result and what to
do about a failure. It changes nothing. It exits with 1 if something fails, and with 3
if etcd cannot be reached.

Run it on the machine of a node: it compares this machine's clock with the nodes'.

With --draw it draws IDs from every node, and every address of a name, and checks that
they rise, carry the node's sid, decode to the present time, and are unique; then that each node
issues an ID above all others when asked to. With --addr this needs no etcd.`,
		Example: `  allocator doctor --etcd.endpoints http://10.0.0.1:2379,http://10.0.0.2:2379
  allocator doctor --draw 1000 --addr 10.0.0.5:9000,10.0.0.6:9000`,
		Args: cobra.NoArgs,
	}
	addrs := cmd.Flags().StringSlice("addr", nil, "gRPC addresses of nodes, comma-separated or given several times, besides those that are registered")
	draw := cmd.Flags().Int("draw", 0, "IDs to draw from each node; 0 is none")
	format := cli.FormatFlag(cmd)
	load := a.Settings(cmd)
	dialing := remote.DialFlags(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *draw < 0 || *draw > maxDraw {
			return cli.UsageError("--draw is %d: it has to be within 0 and %d", *draw, maxDraw)
		}
		d, err := dialing()
		if err != nil {
			return err
		}
		c, _, err := load()
		if err != nil {
			return err
		}
		var checks report
		reached, maxSkew := true, c.Issue.MaxSkew
		given := deployment.NodeAddrs(nil, strings.Join(*addrs, ","))
		if *draw == 0 || len(c.Etcd.Endpoints) > 0 || len(given) == 0 {
			s, err := deployment.OpenSpace(a, "doctor", load)
			if err != nil {
				return err
			}
			defer s.Close()
			f := gather(cmd.Context(), s, d, strings.Join(given, ","))
			checks, reached = examine(f), f.reached()
			given = deployment.NodeAddrs(f.view.Nodes, strings.Join(given, ","))
		}
		if *draw > 0 {
			all := drawFrom(cmd.Context(), resolve(cmd.Context(), given, net.DefaultResolver.LookupHost), *draw, d)
			checks.drawChecks(all, maxSkew+drawSlack, time.Now())
		}
		if format.Value == "json" {
			for _, c := range checks {
				if err := cli.PrintLine(a.Out, c); err != nil {
					return err
				}
			}
		} else if err := printChecks(a.Out, checks); err != nil {
			return err
		}
		switch {
		case !reached:
			return cli.Exit(cli.ExitUnavailable, nil)
		case slices.ContainsFunc(checks, func(c check) bool { return c.State == failed }):
			return cli.ErrInvalid
		}
		return nil
	}
	return cmd
}

// facts are what doctor found, before anything is judged.
type facts struct {
	want     lease.Space // layout and epoch as configured here
	space    string
	endpoint string // of etcd, for advice
	slack    clock.Millis
	maxSkew  time.Duration
	extend   time.Duration

	members []etcdstore.Member
	noSpace bool
	noSpaceErr,
	loadErr,
	compactErr,
	roleErr error
	compacted bool // revision 1 is compacted
	role      etcdstore.Role
	view      lease.View
	nodes     []deployment.NodeReport
	now       clock.Millis // this machine's clock when view was read
	kernel    clock.Kernel
	hint      func(message string) string // what to do about a node's error, "" if nothing is known
	gossip    map[string]error            // by address, what connecting to it gave
	access    map[string]access           // by address, of the nodes beyond this machine
}

// reached reports whether any endpoint answered.
func (f facts) reached() bool {
	return slices.ContainsFunc(f.members, func(m etcdstore.Member) bool { return m.Err == nil })
}

// gather collects the facts.
func gather(ctx context.Context, s *deployment.Space, d remote.Dialer, addr string) facts {
	sys := clock.NewSystem(clock.SystemConfig{})
	f := facts{
		want:  lease.Space{Layout: s.Cfg.Layout, Epoch: s.Cfg.Epoch},
		space: s.Cfg.Space, endpoint: strings.Join(s.Cfg.Etcd.Endpoints, ","),
		slack: s.Slack().Total(), maxSkew: s.Cfg.Issue.MaxSkew, extend: s.Cfg.Lease.ExtendEvery,
		kernel: sys.Kernel(), hint: d.Hint,
	}
	f.members = s.Store.Members(ctx, sys)
	if !f.reached() {
		return f
	}
	f.noSpace, f.noSpaceErr = s.Store.NoSpace(ctx)
	f.role, f.roleErr = s.Store.Role(ctx)
	f.now = sys.Now().Wall
	if f.view, f.loadErr = s.Store.Load(ctx); f.loadErr != nil {
		return f
	}
	f.compacted, f.compactErr = s.Store.Compacted(ctx, 1)
	f.nodes = deployment.AskNodes(ctx, d, deployment.NodeAddrs(f.view.Nodes, addr))
	f.access = probeAll(ctx, d, f.nodes)
	names := deployment.NamesOf(f.view.Nodes)
	for i, n := range f.nodes {
		if n.Name == "" {
			f.nodes[i].Name = names[n.Addr]
		}
	}
	f.gossip = dialAll(ctx, f.view.Nodes)
	return f
}

// dialTimeout is how long a gossip address may take to accept a connection.
const dialTimeout = 2 * time.Second

// dialAll connects to every gossip address that is registered.
func dialAll(ctx context.Context, nodes []lease.Registration) map[string]error {
	out := map[string]error{}
	var mu sync.Mutex // guards out
	var all sync.WaitGroup
	for _, n := range nodes {
		if n.Gossip == "" {
			continue
		}
		all.Go(func() {
			d := net.Dialer{Timeout: dialTimeout}
			conn, err := d.DialContext(ctx, "tcp", n.Gossip)
			if err == nil {
				_ = conn.Close()
			}
			mu.Lock()
			defer mu.Unlock()
			out[n.Gossip] = err
		})
	}
	all.Wait()
	return out
}
