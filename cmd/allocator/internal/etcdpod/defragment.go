package etcdpod

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

func defragmentCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "defragment",
		Short: "Defragment one member after the other, the leader last, and end the alarm of a full quota",
		Args:  cobra.NoArgs,
	}
	least := leastFlag(cmd)
	connect := adminFlags(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, endpoints, err := connect()
		if err != nil {
			return err
		}
		defer c.Close()
		if err := defragment(cmd.Context(), a.Out, c, endpoints, *least); err != nil {
			return cli.Exit(cli.ExitUnavailable, err)
		}
		return nil
	}
	return cmd
}

func leastFlag(cmd *cobra.Command) *int64 {
	return cmd.Flags().Int64("least", 64<<20, "leave a member alone whose database would shrink by fewer bytes")
}

// defragment prints what it does to out.
func defragment(ctx context.Context, out io.Writer, c *etcdstore.Group, endpoints []string, least int64) error {
	ask := func(ctx context.Context) []member.Status { return c.Ask(ctx, endpoints...) }
	d, err := meet.PlanDefragmentation(ctx, c, ask, least)
	for _, line := range d.Found() {
		fmt.Fprintln(out, line)
	}
	if err != nil {
		return err
	}
	return d.Run(ctx, out)
}
