package admin

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/node"
)

// recoverCommand returns "allocator admin recover".
func recoverCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Begin a new era, after etcd was restored from a backup",
		Long: `Recover begins a new era of a space whose etcd forgot what it had confirmed: it was
restored from a backup, or lost a write. Nodes that noticed refuse with
HISTORY_REWOUND until then. No window of the new era begins below its floor, which
lies above everything that etcd, the nodes and the clock show to have been granted.

It must be run before any node can write to the restored etcd: see the runbook in
docs/how-to/restore-etcd.md. Nodes in the registry are asked what they have seen; name those
that run and are not in the backup's registry with --addr.`,
		Example: "  allocator admin recover --etcd.endpoints http://10.0.0.1:2379 --addr 10.0.0.5:9000,10.0.0.6:9000",
		Args:    cobra.NoArgs,
	}
	var floor timeFlag
	cmd.Flags().Var(&floor, "floor", "begin there, and not at the computed floor")
	addr := cmd.Flags().String("addr", "", "gRPC addresses of running nodes, comma-separated, besides those in the registry")
	yes := cmd.Flags().Bool("yes", false, "do not ask for confirmation")
	timeout := cmd.Flags().Duration("timeout", 10*time.Second, "how long to wait for etcd")
	format := cli.FormatFlag(cmd)
	load := a.Settings(cmd)
	dialing := remote.DialFlags(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d, err := dialing()
		if err != nil {
			return err
		}
		s, err := deployment.OpenSpace(a, "admin recover", load)
		if err != nil {
			return err
		}
		defer s.Close()
		progress := a.Progress()
		defer progress.End()
		progress.Set("reading the space from etcd")
		v, err := loadSpace(cmd.Context(), s, *timeout)
		if err != nil {
			return repairError(err, false)
		}
		progress.Set("asking nodes what they have seen")
		nodes := deployment.AskNodes(cmd.Context(), d, deployment.NodeAddrs(v.Nodes, *addr))
		progress.End()
		named := deployment.NamesOf(v.Nodes)
		var asked []repair.NodeReport
		for i, n := range nodes {
			if n.Err != nil {
				nodes[i].Name = named[n.Addr]
				continue
			}
			if pool := n.Cluster.Pool; pool != "" && v.Config.Err == nil && v.Config.Exists() && pool != v.Config.Value.Pool {
				return cli.UsageError("the node at %s is of another space (pool %s, and etcd has %s)", n.Addr, pool, v.Config.Value.Pool)
			}
			self := n.Cluster.Self
			asked = append(asked, repair.NodeReport{Name: n.Name, Era: self.Era, Highest: clock.Millis(self.Highest)})
		}
		plan, err := repair.NextEra(v, asked, clock.Millis(floor), s.Cfg.Slack(), deployment.WallNow())
		if v.Config.Exists() {
			showRecovery(a, v, nodes, plan)
		}
		if err != nil {
			return repairError(err, false)
		}
		e := plan.Era
		fmt.Fprintf(a.Err, "\nera %d would begin at %s, %v from now\n", e.Number, repair.At(e.Floor), until(e.Floor))
		if err := confirm(a, *yes, fmt.Sprintf("Begin era %d?", e.Number)); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		plan, wrote, err := s.Store.Recover(ctx, v, func(now lease.View) (repair.Era, error) {
			return repair.NextEra(now, asked, clock.Millis(floor), s.Cfg.Slack(), deployment.WallNow())
		})
		if err != nil {
			return repairError(err, wrote)
		}
		return printRecovered(a, v, nodes, plan, format.Value == "json")
	}
	return cmd
}

func loadSpace(ctx context.Context, s *deployment.Space, timeout time.Duration) (lease.View, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return s.Store.Load(ctx)
}

func until(t clock.Millis) time.Duration {
	return max(t-deployment.WallNow(), 0).Duration().Round(time.Second)
}

// showRecovery prints what was found.
func showRecovery(a *cli.App, v lease.View, nodes []deployment.NodeReport, plan repair.Era) {
	fmt.Fprintf(a.Err, "etcd: cluster %x, revision %d\n", v.Cluster, v.Revision)
	switch era := v.Era.Value; {
	case !v.Era.Exists() || v.Era.Err != nil:
		fmt.Fprintln(a.Err, "era: missing or unreadable")
	case era.Cluster != v.Cluster:
		fmt.Fprintf(a.Err, "era: %d, begun on another cluster, %x: every node refuses\n", era.Number, era.Cluster)
	default:
		fmt.Fprintf(a.Err, "era: %d, begun on this cluster\n", era.Number)
		if !slices.ContainsFunc(nodes, func(w deployment.NodeReport) bool {
			return w.Cluster.Self.Refusing == node.HistoryRewound
		}) {
			fmt.Fprintln(a.Err, "no node that answers reports HISTORY_REWOUND: a new era may not be needed, and nodes issue no IDs until it begins")
		}
	}
	if plan.Highest > 0 {
		fmt.Fprintf(a.Err, "highest ceiling: %s, of %s\n", repair.At(plan.Highest), plan.HighestOf)
	}
	if len(nodes) > 0 {
		t := tabwriter.NewWriter(a.Err, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "\nNODE\tGRPC\tERA SEEN\tREVISION SEEN\tHIGHEST CEILING\tSTATE")
		for _, n := range nodes {
			self := n.Cluster.Self
			if n.Err != nil {
				fmt.Fprintf(t, "%s\t%s\t?\t?\t?\tnot reached: %s\n", cli.OrDash(n.Name), n.Addr, status.Convert(n.Err).Message())
				continue
			}
			state, ceil := "ready", "-"
			if !self.Ready {
				state = self.Message
			}
			if c := self.Highest; c > 0 {
				ceil = repair.At(clock.Millis(c))
			}
			fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\n", n.Name, n.Addr, self.Era, self.Revision, ceil, state)
		}
		_ = t.Flush()
	}
	for _, text := range plan.Warnings {
		fmt.Fprintf(a.Err, "warning: %s\n", text)
	}
	for _, n := range nodes {
		if n.Err != nil {
			fmt.Fprintf(a.Err, "warning: %s at %s was not reached: the floor is right only if its clock was right\n", cli.OrDash(n.Name), n.Addr)
		}
	}
	for _, r := range v.Nodes {
		if r.GRPC == "" {
			fmt.Fprintf(a.Err, "warning: %s has no gRPC listener and cannot be asked: the floor is right only if its clock was right\n", cli.OrDash(r.Node))
		}
	}
}

// printRecovered prints what happens next.
func printRecovered(a *cli.App, v lease.View, nodes []deployment.NodeReport, plan repair.Era, asJSON bool) error {
	e := plan.Era
	if !asJSON {
		_, err := fmt.Fprintf(a.Out, `era %d began, on cluster %x
Nodes notice within seconds: they give up what they hold, take sids anew, and refuse
(STARTING, NO_SID) until %s, %v from now.
Nodes that were stopped can be started.
`, e.Number, e.Cluster, repair.At(e.Floor), until(e.Floor))
		return err
	}
	unreached := []string{}
	for _, n := range nodes {
		if n.Err != nil {
			unreached = append(unreached, n.Addr)
		}
	}
	return cli.PrintLine(a.Out, struct {
		Era         int64    `json:"era"`
		PreviousEra int64    `json:"previous_era"`
		Floor       string   `json:"floor"`
		FloorUnixMs int64    `json:"floor_unix_ms"`
		ClusterID   string   `json:"cluster_id"`
		Revision    int64    `json:"revision"`
		Highest     int64    `json:"highest_ceil_unix_ms"`
		Unreached   []string `json:"unreached"`
		Warnings    []string `json:"warnings"`
	}{e.Number, v.Era.Value.Number, repair.At(e.Floor), int64(e.Floor), strconv.FormatUint(e.Cluster, 10),
		v.Revision, int64(plan.Highest), unreached, append([]string{}, plan.Warnings...)})
}
