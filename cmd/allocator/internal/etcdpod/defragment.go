package etcdpod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/member"
)

// defragmentLimit bounds the defragmentation of one member, which answers nobody meanwhile.
const defragmentLimit = 5 * time.Minute

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
	var full bool
	if err := call(ctx, func(ctx context.Context) (err error) { full, err = c.NoSpace(ctx); return err }); err != nil {
		return err
	}
	if full {
		fmt.Fprintln(out, "the quota of a member is full: compacting first")
		if err := call(ctx, func(ctx context.Context) error { return c.Compact(ctx, endpoints[0]) }); err != nil {
			return err
		}
		least = 0
	}
	before := c.Ask(ctx, endpoints...)
	for _, m := range before {
		fmt.Fprintf(out, "%s: answers %t, leader %t, %d bytes, of which %d are used\n", m.Endpoint, m.Err == nil,
			m.Leads, m.Size, m.InUse)
	}
	targets, err := member.Defragment(before, least)
	if err != nil {
		return err
	}
	for _, e := range targets {
		limited, cancel := context.WithTimeout(ctx, defragmentLimit)
		err := c.Defragment(limited, e)
		cancel()
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: defragmented\n", e)
		// The next one only when all are healthy again.
		if err := settled(ctx, c, endpoints); err != nil {
			return fmt.Errorf("after %s: %w", e, err)
		}
	}
	if len(targets) == 0 {
		fmt.Fprintf(out, "no database would shrink by %d bytes\n", least)
	}
	if full {
		if err := call(ctx, c.Disarm); err != nil {
			return err
		}
		fmt.Fprintln(out, "the alarm has ended: etcd takes writes again")
	}
	return nil
}

// settled waits until all members are healthy.
func settled(ctx context.Context, c *etcdstore.Group, endpoints []string) error {
	for range 60 {
		if _, err := member.Defragment(c.Ask(ctx, endpoints...), 0); err == nil {
			return nil
		}
		if err := pause(ctx, again); err != nil {
			return err
		}
	}
	return errors.New("a member is not healthy: the others are left alone")
}
