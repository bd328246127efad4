package fence

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/fence"
)

// sourceFlags adds the flags that say where marks come from, and returns what gives it, with what
// ends its connections.
func sourceFlags(a *cli.App, cmd *cobra.Command) func(*slog.Logger) (fence.Source, func(), error) {
	lag := cmd.Flags().Duration("clock-lag", 0,
		"follow this machine's clock so far behind, instead of a cluster's watermark")
	space := cli.SpaceFlags(cmd)
	connect := remote.SpaceClientsFlags(a, cmd)
	return func(log *slog.Logger) (fence.Source, func(), error) {
		if cmd.Flags().Changed("clock-lag") {
			switch {
			case *lag <= 0:
				return nil, nil, cli.UsageError("--clock-lag is %v: it has to be above 0", *lag)
			case cmd.Flags().Changed("addr"):
				return nil, nil, cli.UsageError("--addr and --clock-lag were given: give one of them")
			}
			return clockSource{*lag, space()}, func() {}, nil
		}
		options, err := connect(log)
		if err != nil {
			return nil, nil, err
		}
		var spaces clusterSource
		disconnect := func() {
			for _, c := range spaces {
				_ = c.Close()
			}
		}
		for _, o := range options {
			c, err := client.New(o)
			if err != nil {
				disconnect()
				return nil, nil, cli.UsageError("--addr: %w", err)
			}
			spaces = append(spaces, c)
		}
		return spaces, disconnect, nil
	}
}

// clusterSource gives the lowest watermark of spaces, which have one layout and epoch.
type clusterSource []*client.Client

func (c clusterSource) Watermark(ctx context.Context) (fence.Mark, error) {
	w, err := client.LowestWatermark(ctx, c...)
	if err != nil {
		return fence.Mark{}, err
	}
	m := fence.Mark{UnixMs: w.UnixMilli, ID: w.ID.Int64()}
	for _, b := range w.BlockedBy {
		m.BlockedBy = append(m.BlockedBy, b.Text)
	}
	return m, nil
}

// clockSource gives marks some time behind the clock.
type clockSource struct {
	lag   time.Duration
	space flake.Format
}

func (c clockSource) Watermark(context.Context) (fence.Mark, error) {
	ms := time.Now().Add(-c.lag).UnixMilli()
	id, err := c.space.Min(ms)
	return fence.Mark{UnixMs: ms, ID: id.Int64()}, err
}
