package admin

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/operate"
)

// reserveCommand returns "allocator admin reserve".
func reserveCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reserve SIDS",
		Short: "Keep sids for generators outside of the cluster",
		Long: `No node and no worker takes the sids until "allocator admin unreserve" gives them back. A
generator outside may use one from the time of its ceiling on. A sid that is held is
refused: drain its node first.`,
		Example: "  allocator admin reserve 0-7 --reason 'order service, Java' --etcd.endpoints http://10.0.0.1:2379",
		Args:    cobra.ExactArgs(1),
	}
	c := changeFlags(a, cmd, false, "who has them; shown by status and doctor")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.ofSIDs(args[0], func(o *operate.Operator, sids lease.SIDSet) (operate.Plan, error) {
			return o.Reserve(cmd.Context(), sids, *c.reason)
		}, "Reserved: sids %v. No node or worker takes them.\n")
	}
	return cmd
}

// unreserveCommand returns "allocator admin unreserve".
func unreserveCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "unreserve SIDS",
		Short: "Give reserved sids to the cluster",
		Long: `Stop the generators that have the sids first. Nodes then issue above all of their IDs: above
the clock, or above --above if a generator was further ahead. If one runs on, IDs are issued
twice.`,
		Example: "  allocator admin unreserve 0-7 --etcd.endpoints http://10.0.0.1:2379",
		Args:    cobra.ExactArgs(1),
	}
	above := timeFlag(cmd, "above", "no ID of the sids carries this `TIME` or a later one")
	c := changeFlags(a, cmd, true, cli.WhyDone)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.ofSIDs(args[0], func(o *operate.Operator, sids lease.SIDSet) (operate.Plan, error) {
			return o.Unreserve(cmd.Context(), sids, *above)
		}, "Given to the cluster: sids %v.\n")
	}
	return cmd
}

// ofSIDs carries out the plan for the sids that arg names, and prints them with said.
func (c *change) ofSIDs(
	arg string, plan func(*operate.Operator, lease.SIDSet) (operate.Plan, error), said string,
) error {
	sids, err := lease.ParseSIDSet(arg)
	if err != nil {
		return cli.UsageError("%w", err)
	}
	p, done, err := c.do(func(o *operate.Operator) (operate.Plan, error) { return plan(o, sids) })
	if nothing := err == nil && len(p.Repairs) == 0; !done && !nothing {
		return err
	}
	return c.format.Print(c.a.Out, struct {
		SIDs    string `json:"sids"`
		Written int    `json:"written"` // records; the others were as they should be
	}{sids.String(), len(p.Repairs)}, fmt.Sprintf(said, sids))
}
