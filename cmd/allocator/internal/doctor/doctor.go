// Package doctor holds the command that checks a deployment. It gathers facts
// first and judges them afterwards; it changes nothing.
package doctor

import (
	"cmp"
	"context"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/cmd/allocator/internal/doctor/draw"
	"github.com/flakelease/allocator/cmd/allocator/internal/doctor/report"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
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
if etcd cannot be reached. docs/reference/doctor.md lists the checks.

Run it on the machine of a node: it compares this machine's clock with the nodes'. If etcd
does not answer, it asks the node of these settings, or those of --addr, how much of its
window each node has left.

--draw checks IDs of every node, and of every address of a name. With --addr this needs no
etcd.`,
		Example: `  allocator doctor --etcd.endpoints http://10.0.0.1:2379,http://10.0.0.2:2379
  allocator doctor --draw 1000 --addr 10.0.0.5:9000,10.0.0.6:9000`,
		Args: cobra.NoArgs,
	}
	addrs := cmd.Flags().StringSlice("addr", nil,
		"gRPC addresses of nodes, comma-separated or given several times, besides those that are registered")
	expect := cmd.Flags().Int("expect-nodes", 0, "fail unless at least so many nodes answer; 0: cluster.expect")
	count := cmd.Flags().Int("draw", 0, "IDs to draw from each node; 0 is none")
	format := cli.FormatFlag(cmd)
	load := a.Settings(cmd)
	files := remote.FileFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *count < 0 || *count > draw.Max {
			return cli.UsageError("--draw is %d: it has to be within 0 and %d", *count, draw.Max)
		}
		if *expect < 0 {
			return cli.UsageError("--expect-nodes is %d: it has to be 0 or more", *expect)
		}
		d, err := files().Anyway(a, cli.Logger(config.Log{Level: "error"}, a.Err))
		if err != nil {
			return err
		}
		c, _, err := load()
		if err != nil {
			return err
		}
		progress := a.Progress()
		defer progress.End()
		var checks report.Report
		reached, maxSkew := true, c.Issue.MaxSkew
		given := deployment.NodeAddrs(nil, *addrs)
		if err := d.MayCall(given...); err != nil {
			return err
		}
		if *count == 0 || len(c.Etcd.Addresses()) > 0 || len(given) == 0 {
			s, err := deployment.ViewSpace(a, "doctor", load)
			if err != nil {
				return err
			}
			defer s.Close()
			f := gather(cmd.Context(), s, d, given, progress)
			f.certificates = append(f.certificates, ofFiles(s.Cfg, files())...)
			f.expect = cmp.Or(*expect, s.Cfg.Cluster.Expect)
			checks, reached = examine(f), f.reached()
			given = deployment.NodeAddrs(f.registered, given)
		}
		if *count > 0 {
			progress.Set("drawing IDs from %d nodes", len(given))
			checks = append(checks, draw.Checks(cmd.Context(), given, *count, maxSkew, d)...)
		}
		progress.End()
		if format.JSON() {
			for _, c := range checks {
				if err := cli.PrintLine(a.Out, c); err != nil {
					return err
				}
			}
		} else if err := checks.Print(a.Out); err != nil {
			return err
		}
		switch {
		case !reached:
			return cli.Exit(cli.ExitUnavailable, nil)
		case checks.Failed():
			return cli.ErrInvalid
		}
		return nil
	}
	return cmd
}

// facts are what doctor found, before anything is judged.
type facts struct {
	want    lease.Space    // layout and epoch as configured here
	sids    lease.SIDRange // sid-range as configured here
	space   string
	slack   clock.Millis
	maxSkew time.Duration
	extend  time.Duration
	expect  int // nodes; 0: any number

	members []member.Status
	own     bool                     // The members are inside nodes.
	mutual  bool                     // They take calls with certificates of their authority alone.
	syncs   map[string]time.Duration // by host: within this time 99 of 100 writes were on disk
	// snapshots are those of this machine, the latest first, and due is how often there is to be one; 0:
	// it has no member, or writes none.
	snapshots []meet.Snapshot
	due       time.Duration
	copies    bool      // etcd.snapshot-command is set on this machine.
	copied    time.Time // when the latest verified copy was written; zero: there is none
	noSpace   bool
	noSpaceErr,
	loadErr,
	compactErr,
	roleErr error
	compacted  bool // revision 1 is compacted
	role       etcdstore.Role
	view       lease.View
	registered []lease.Registration // as etcd has them; if it does not answer, as nodes last read them
	nodes      []deployment.NodeReport
	now        clock.Millis // this machine's clock when view was read
	kernel     clock.Kernel
	hint       func(message string) string // what to do about a node's error, "" if nothing is known
	gossip     map[string]error            // by address, what connecting to it gave
	// certificates are those of this machine, and those that members and nodes show.
	certificates []certificate
	socket       bool              // The member is alone, and listens on a socket of its user.
	open, openDo string            // why others than members may write etcd, and what to do
	free         int64             // bytes on the disk of the member of this machine; -1: not known, or it has none
	access       map[string]access // by address, of the nodes beyond this machine
}

// reached reports whether any endpoint answered.
func (f facts) reached() bool {
	return slices.ContainsFunc(f.members, func(m member.Status) bool { return m.Err == nil })
}

// gather collects the facts.
func gather(ctx context.Context, s *deployment.Space, d remote.Dialer, given []string, progress *cli.Progress) facts {
	sys := clock.NewSystem(nil)
	f := facts{
		want: lease.Space{Layout: s.Cfg.Layout, Epoch: s.Cfg.Epoch},
		sids: s.Cfg.SIDRange, space: s.Cfg.Space,
		slack: s.Cfg.Bounds().Slack(), maxSkew: s.Cfg.Issue.MaxSkew, extend: s.Cfg.ExtendEvery(),
		kernel: sys.Kernel(), hint: d.Hint, free: -1, now: sys.Now().Wall,
	}
	progress.Set("asking the members of etcd")
	group, err := s.Store.Group()
	if f.members = []member.Status{{Err: err}}; err == nil {
		f.members = group.Members(ctx, sys)
	}
	if e := s.Cfg.Etcd; len(e.Endpoints) == 0 {
		f.own, f.mutual = true, e.TLS.CA != "" && e.TLS.Cert != ""
		f.syncs = inside.SyncTimes(ctx, e)
		if e.Inside.Dir != "" {
			f.due = e.Inside.SnapshotEvery
			f.snapshots, _ = inside.Dir(e.Inside.Dir).Snapshots().List(sys.Now().Wall.Time()) // none are a finding
			f.copies, f.copied = e.Inside.SnapshotCommand != "", inside.Dir(e.Inside.Dir).Copied().At
			f.socket = e.Socket() != ""
			f.open, f.openDo = certs.OpenEtcd(e.TLS.CA, s.Cfg.TLS.ClientCA, nil)
			f.free = inside.Dir(e.Inside.Dir).Free()
		}
	}
	if f.reached() {
		progress.Set("reading the space from etcd")
		within, cancel := context.WithTimeout(ctx, s.Store.Timeout)
		defer cancel()
		f.noSpace, f.noSpaceErr = group.NoSpace(within)
		f.role, f.roleErr = s.Store.Role(ctx)
		f.now = sys.Now().Wall
		if f.view, f.loadErr = s.Store.Load(ctx); f.loadErr == nil {
			f.compacted, f.compactErr = s.Store.Compacted(ctx, 1)
			f.registered = f.view.Nodes
		}
	}
	addrs := deployment.NodeAddrs(f.registered, given)
	progress.Set("asking %d nodes", len(addrs))
	f.nodes = deployment.AskNodes(ctx, d, addrs)
	if !f.reached() || f.loadErr != nil {
		f.askAround(ctx, d, cmp.Or(s.Cfg.Advertise.GRPC, s.Cfg.Listen.GRPC))
	}
	progress.Set("calling %d nodes without credentials", len(f.nodes))
	f.access = probeAll(ctx, d, f.nodes)
	names := deployment.NamesOf(f.registered)
	for i, n := range f.nodes {
		f.nodes[i].Name = cmp.Or(n.Name, names[n.Addr])
	}
	f.certificates = shown(ctx, s.Cfg.Etcd, d, f.members, f.nodes)
	for _, c := range f.certificates {
		if f.open == "" && strings.HasPrefix(c.where, "member ") {
			f.open, f.openDo = certs.OpenEtcd("", "", c.Certificate)
		}
	}
	progress.Set("connecting to the gossip addresses of %d nodes", len(f.registered))
	f.gossip = dialAll(ctx, f.registered)
	return f
}

// askAround finds the nodes without etcd: those that were asked already, or the one that
// is configured here, know the others.
func (f *facts) askAround(ctx context.Context, d remote.Dialer, own string) {
	if len(f.nodes) == 0 {
		if f.nodes = deployment.AskNodes(ctx, d, []string{own}); f.nodes[0].Err != nil {
			f.nodes = nil // perhaps there is none on this machine
		}
	}
	asked := map[string]bool{}
	known := map[string]bool{}
	for _, n := range f.nodes {
		asked[n.Addr] = true
		for _, other := range n.Cluster.Nodes {
			if !known[other.Instance] {
				known[other.Instance] = true
				f.registered = append(f.registered, lease.Registration{
					Instance: lease.Instance(other.Instance),
					Node:     other.Name,
					GRPC:     other.GRPC,
				})
			}
			asked[other.GRPC] = asked[other.GRPC] || other.Instance == n.Cluster.Self.Instance
		}
	}
	others := slices.DeleteFunc(deployment.NodeAddrs(f.registered, nil), func(addr string) bool { return asked[addr] })
	f.nodes = append(f.nodes, deployment.AskNodes(ctx, d, others)...)
}

// dialTimeout is how long a gossip address may take to accept a connection.
const dialTimeout = 2 * time.Second

// dialAll connects to every gossip address that is registered.
func dialAll(ctx context.Context, nodes []lease.Registration) map[string]error {
	out := map[string]error{}
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n lease.Registration) bool { return n.Gossip == "" })
	for i, err := range deployment.Each(nodes, func(n lease.Registration) error {
		conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", n.Gossip)
		if err == nil {
			_ = conn.Close()
		}
		return err
	}) {
		out[nodes[i].Gossip] = err
	}
	return out
}
