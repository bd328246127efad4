package admin

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/operate"
)

// acceptCommand returns "allocator admin accept-time".
func acceptCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "accept-time",
		Short: "Let nodes follow clocks that are further ahead than they follow by themselves",
		Long: `Accept-time is for clocks that are right and that nodes do not follow: every clock was set
ahead by more than 10 minutes, or the space was switched off for longer than 60 days.
Nodes then follow clocks up to the accepted time within a minute.

Run it on a machine whose clock you trust. If the clocks are wrong, repair the time source
instead: time that was used in IDs cannot be taken back. Nodes serve meanwhile.

The acceptance counts in the present era.`,
		Example: "  allocator admin accept-time --etcd.endpoints http://10.0.0.1:2379 --dry-run\n" +
			"  allocator admin accept-time --etcd.endpoints http://10.0.0.1:2379",
		Args: cobra.NoArgs,
	}
	until := timeFlag(cmd, "until", "accept clocks up to this `TIME`, and not up to an hour from now")
	c := changeFlags(a, cmd, true, cli.WhyDone)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, done, err := c.do(func(o *operate.Operator) (operate.Plan, error) {
			return o.AcceptTime(cmd.Context(), *until)
		})
		if err != nil || !done && !p.Acceptance.Done {
			return err
		}
		return c.printAccepted(p.Acceptance, done)
	}
	return cmd
}

// printAccepted prints the time that is accepted: the one that was written, or the one that
// was before.
func (c *change) printAccepted(a repair.Acceptance, written bool) error {
	t := a.Accepted
	text := fmt.Sprintf(`clocks up to %s are accepted, in era %d
Nodes whose clocks read no later follow them within a minute; "allocator status" shows it.
`, repair.At(t.Until), t.Era)
	if !written {
		t = a.Before
		text = fmt.Sprintf("nothing was written: %q accepted clocks up to %s already, at %s\n", t.By,
			repair.At(t.Until), repair.At(t.At))
	}
	return c.format.Print(c.a.Out, struct {
		Written     bool   `json:"written"`
		Era         int64  `json:"era"`
		Until       string `json:"until"`
		UntilUnixMs int64  `json:"until_unix_ms"`
		By          string `json:"by"`
		AtUnixMs    int64  `json:"at_unix_ms"`
		Latest      int64  `json:"latest_record_unix_ms"`
	}{written, t.Era, repair.At(t.Until), int64(t.Until), t.By, int64(t.At), int64(a.Latest)}, text)
}
