package admin

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/operate"
)

// quarantineCommand returns "allocator admin quarantine".
func quarantineCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quarantine SID",
		Short: "Take a sid out of use",
		Long: `No node takes the sid until "allocator admin release-sid" gives it back. Its ceiling is
kept. A sid that a node holds needs --force: the node uses what was confirmed to it, and
then takes another sid.`,
		Example: "  allocator admin quarantine 7 --reason 'node-b had a bad clock' --etcd.endpoints " +
			"http://10.0.0.1:2379",
		Args: cobra.ExactArgs(1),
	}
	force := cmd.Flags().Bool("force", false, "also if a node holds it")
	c := changeFlags(a, cmd, false, "why; shown by status and doctor")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.ofSID(args[0], func(o *operate.Operator, sid flake.SID) (operate.Plan, error) {
			return o.Quarantine(cmd.Context(), sid, *c.reason, *force)
		}, func(w repair.Write) string {
			text := fmt.Sprintf("sid %d is quarantined: no node acquires it.", w.SID)
			if w.Seen.Holder.Exists() {
				text += fmt.Sprintf(" %s loses it within lease.window / 6, and issues IDs only within its "+
					"confirmed window, until %s.",
					w.Seen.Holder.Value.Node, repair.At(w.Window.Ceil))
			}
			return text + fmt.Sprintf("\n\"allocator admin release-sid %d\" returns it to the pool.", w.SID)
		})
	}
	return cmd
}

// releaseCommand returns "allocator admin release-sid".
func releaseCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release-sid SID",
		Short: "Repair a sid's record and give the sid back to the pool",
		Long: `Release-sid writes a new record for a sid that is quarantined, whose record is unreadable
or missing, or whose ceiling a wrong clock has set far in the future. The next holder begins
at its ceiling: the old one, or if that cannot be read a bound on what was granted.

A sid whose record is lost and which may have been reserved is reserved again, since a
generator outside of the cluster may use it. "allocator admin unreserve" gives it back.

--above asserts that no ID of this sid carries that time or a later one, and none will.
Only then is a readable ceiling lowered. If the assertion is wrong, IDs are issued twice.`,
		Example: "  allocator admin release-sid 7 --etcd.endpoints http://10.0.0.1:2379\n" +
			"  allocator admin release-sid 7 --above 2026-02-01T12:00:00Z --etcd.endpoints http://10.0.0.1:2379",
		Args: cobra.ExactArgs(1),
	}
	above := timeFlag(cmd, "above", "no ID of the sid carries this `TIME` or a later one")
	c := changeFlags(a, cmd, true, cli.WhyDone)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.ofSID(args[0], func(o *operate.Operator, sid flake.SID) (operate.Plan, error) {
			return o.ReleaseSID(cmd.Context(), sid, *above)
		}, func(w repair.Write) string {
			if w.Window.State == lease.Reserved {
				return fmt.Sprintf("sid %d is reserved again: no node acquires it.\n"+
					"\"allocator admin unreserve %d\" returns it to the pool.", w.SID, w.SID)
			}
			text := fmt.Sprintf("sid %d is free, with term %d and ceiling %s",
				w.SID, w.Window.Term, repair.At(w.Window.Ceil))
			if wait := w.Window.Ceil - w.Window.Wall; wait > 0 {
				text += fmt.Sprintf(": it can be acquired in %v", wait.Duration().Round(time.Second))
			}
			return text + ". Nodes that had listed it as quarantined use it within 30s."
		})
	}
	return cmd
}

// ofSID carries out the plan for the sid that arg names, and prints what was written.
func (c *change) ofSID(arg string, plan func(*operate.Operator, flake.SID) (operate.Plan, error),
	text func(repair.Write) string) error {
	sid, err := operate.ParseSID(arg)
	if err != nil {
		return cli.UsageError("%w", err)
	}
	p, done, err := c.do(func(o *operate.Operator) (operate.Plan, error) { return plan(o, sid) })
	if !done {
		return err
	}
	w := p.Repairs[0]
	return c.format.Print(c.a.Out, struct {
		SID    int    `json:"sid"`
		State  string `json:"state"`
		Term   int64  `json:"term"`
		Ceil   int64  `json:"ceil_unix_ms"`
		Reason string `json:"reason,omitempty"`
		Taken  string `json:"taken_from,omitempty"` // node that held it
	}{int(w.SID), string(w.Window.State), w.Window.Term, int64(w.Window.Ceil), w.Window.Reason,
		w.Seen.Holder.Value.Node}, text(w)+"\n")
}
