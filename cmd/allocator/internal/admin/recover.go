package admin

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/operate"
)

// recoverCommand returns "allocator admin recover".
func recoverCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Begin a new era, after etcd was restored from a backup",
		Long: `Recover begins a new era of a space whose etcd forgot what it had confirmed. Run it before
any node can write to the restored etcd: the runbook is docs/how-to/restore-etcd.md.

No window of the new era begins below its floor, which lies above everything that etcd, the
nodes and the clock show to have been granted. Nodes in the registry are asked. Name those
that run and are not in the backup's registry with --addr.`,
		Example: "  allocator admin recover --etcd.endpoints http://10.0.0.1:2379 --addr 10.0.0.5:9000,10.0.0.6:9000",
		Args:    cobra.NoArgs,
	}
	floor := timeFlag(cmd, "floor", "begin at this `TIME`, and not at the computed floor")
	addrs := cmd.Flags().StringSlice("addr", nil,
		"gRPC addresses of running nodes, comma-separated, besides those in the registry")
	c := changeFlags(a, cmd, true, cli.WhyDone)
	dialing := remote.DialFlags(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d, err := dialing()
		if err != nil {
			return err
		}
		if err := d.MayCall(deployment.NodeAddrs(nil, *addrs)...); err != nil {
			return err
		}
		c.ask = func(ctx context.Context, s *deployment.Space, v lease.View) operate.Answers {
			progress := a.Progress()
			defer progress.End()
			progress.Set("asking nodes what they have seen")
			return answersOf(v, deployment.AskNodes(ctx, d, deployment.NodeAddrs(v.Nodes, *addrs)), s.Cfg.Issue.MaxSkew)
		}
		p, done, err := c.do(func(o *operate.Operator) (operate.Plan, error) {
			return o.Recover(cmd.Context(), *floor)
		})
		if !done {
			return err
		}
		return c.printRecovered(p)
	}
	return cmd
}

// answersOf returns what nodes answered, and those that cannot be asked. A majority confirms
// this machine's clock if it may read the same as theirs, give or take maxSkew.
func answersOf(v lease.View, reports []deployment.NodeReport, maxSkew time.Duration) operate.Answers {
	var out operate.Answers
	named := deployment.NamesOf(v.Nodes)
	agree := 0
	for _, r := range reports {
		name, registered := named[r.Addr]
		n := operate.Node{Name: name, GRPC: r.Addr, Registered: registered}
		if r.Err != nil {
			n.State = "not reached: " + status.Convert(r.Err).Message()
			out.Nodes = append(out.Nodes, n)
			continue
		}
		self := r.Cluster.Self
		n.Name, n.Answered, n.Pool, n.State = r.Name, true, r.Cluster.Pool, "ready"
		n.Era, n.Revision, n.Highest = self.Era, self.Revision, clock.Millis(self.Highest)
		if !self.Ready {
			n.State = self.Message
			n.Refusing = self.Refusing
		}
		if lo, hi := r.Offset(); lo <= maxSkew && hi >= -maxSkew {
			agree++
		}
		out.Nodes = append(out.Nodes, n)
	}
	for _, r := range v.Nodes {
		if r.GRPC == "" {
			out.Nodes = append(out.Nodes,
				operate.Node{Name: r.Node, Registered: true, State: "it has no gRPC listener"})
		}
	}
	out.Confirmed = 2*agree > len(out.Nodes)
	return out
}

// printRecovered prints what happens next.
func (c *change) printRecovered(p operate.Plan) error {
	e := p.Era.Era
	unreached := []string{}
	for _, n := range p.Nodes {
		if !n.Answered {
			unreached = append(unreached, cmp.Or(n.GRPC, n.Name))
		}
	}
	return c.format.Print(c.a.Out, struct {
		Era         int64    `json:"era"`
		PreviousEra int64    `json:"previous_era"`
		Floor       string   `json:"floor"`
		FloorUnixMs int64    `json:"floor_unix_ms"`
		ClusterID   string   `json:"cluster_id"`
		Revision    int64    `json:"revision"`
		Highest     int64    `json:"highest_ceil_unix_ms"`
		Unreached   []string `json:"unreached"`
		Warnings    []string `json:"warnings"`
	}{e.Number, p.View.Era.Value.Number, repair.At(e.Floor), int64(e.Floor), strconv.FormatUint(e.Cluster, 10),
		p.View.Revision, int64(p.Era.Highest), unreached, append([]string{}, p.Warnings...)},
		fmt.Sprintf(`era %d began, on cluster %x
Nodes notice within seconds: they give up what they hold, take sids anew, and refuse
(STARTING, NO_SID) until %s, %v from now.
Nodes that were stopped can be started.
`, e.Number, e.Cluster, repair.At(e.Floor), max(e.Floor-deployment.WallNow(), 0).Duration().Round(time.Second)))
}
