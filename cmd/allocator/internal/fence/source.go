package fence

import (
	"context"
	"errors"
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
	behind := cmd.Flags().Duration("behind", 0,
		"stay at least so far behind the clock of the cluster: a row that is inserted within this time of drawing its "+
			"ID is not refused")
	ahead := cmd.Flags().Duration("ahead", 24*time.Hour,
		"refuse rows with IDs further ahead of the mark and of the database's clock")
	space := cli.SpaceFlags(cmd)
	connect := remote.SpaceClientsFlags(a, cmd)
	return func(log *slog.Logger) (fence.Source, func(), error) {
		switch {
		case *ahead < time.Minute:
			return nil, nil, cli.UsageError("--ahead is %v: it has to be at least 1m", *ahead)
		case *behind < 0:
			return nil, nil, cli.UsageError("--behind is %v: it has to be 0 or more", *behind)
		}
		if cmd.Flags().Changed("clock-lag") {
			switch {
			case *lag <= 0:
				return nil, nil, cli.UsageError("--clock-lag is %v: it has to be above 0", *lag)
			case *behind > 0:
				return nil, nil, cli.UsageError("--behind and --clock-lag were given: --clock-lag says both")
			case cmd.Flags().Changed("addr"):
				return nil, nil, cli.UsageError("--addr and --clock-lag were given: give one of them")
			}
			return clockSource{*lag, *ahead, space()}, func() {}, nil
		}
		options, err := connect(log)
		if err != nil {
			return nil, nil, err
		}
		source := &clusterSource{said: space(), ahead: *ahead, behind: *behind, log: log}
		disconnect := func() {
			for _, c := range source.spaces {
				_ = c.Close()
			}
		}
		for _, o := range options {
			c, err := client.New(o)
			if err != nil {
				disconnect()
				return nil, nil, cli.UsageError("--addr: %w", err)
			}
			source.spaces = append(source.spaces, c)
		}
		return source, disconnect, nil
	}
}

// clusterSource gives the lowest watermark of spaces, which have one layout and epoch. It is not safe for
// concurrent use.
type clusterSource struct {
	spaces []*client.Client
	said   flake.Format // it may be that of the spaces
	ahead  time.Duration
	behind time.Duration
	log    *slog.Logger
	told   bool // An unknown layout was logged.
}

func (c *clusterSource) Watermark(ctx context.Context) (fence.Mark, error) {
	w, err := client.LowestWatermark(ctx, c.spaces...)
	if err != nil {
		return fence.Mark{}, err
	}
	m, known := markOf(w, c.said, c.behind)
	m.Ahead = c.ahead
	switch {
	case known || w.ID == 0:
	case c.behind > 0:
		return fence.Mark{}, errors.New("the layout of the space is not known, so --behind cannot be kept: give " +
			"--layout and --epoch")
	case !c.told:
		c.told = true
		c.log.Warn("the layout of the space is not known, so integer IDs of the future are not refused: give " +
			"--layout and --epoch")
	}
	return m, nil
}

// markOf returns the mark of a watermark, at least behind the clock of the cluster. It reports whether the
// layout is known, which is the said one or a built-in one, as the ID of the watermark shows. Else the mark
// is the watermark.
func markOf(w client.Watermark, said flake.Format, behind time.Duration) (m fence.Mark, known bool) {
	m = fence.Mark{UnixMs: w.UnixMilli, ID: w.ID.Int64()}
	for _, b := range w.BlockedBy {
		m.BlockedBy = append(m.BlockedBy, b.Text)
	}
	formats := []flake.Format{said}
	for _, name := range flake.Layouts() {
		if f, err := flake.ParseFormat(name); err == nil {
			formats = append(formats, f)
		}
	}
	for _, f := range formats {
		// The ID is that of the first unit of time that begins at the watermark or after.
		id, err := f.Min(w.UnixMilli + f.Layout.Unit() - 1)
		if err != nil || id != w.ID {
			continue
		}
		m.PerDay = fence.PerDay(f)
		if early := behind - w.Lag; early > 0 {
			m.UnixMs -= early.Milliseconds()
			low, _ := f.Min(m.UnixMs) // It is 0 before the epoch.
			m.ID = low.Int64()
		}
		return m, true
	}
	return m, false
}

// clockSource gives marks some time behind the clock.
type clockSource struct {
	lag, ahead time.Duration
	space      flake.Format
}

func (c clockSource) Watermark(context.Context) (fence.Mark, error) {
	ms := time.Now().Add(-c.lag).UnixMilli()
	id, err := c.space.Min(ms)
	return fence.Mark{UnixMs: ms, ID: id.Int64(), PerDay: fence.PerDay(c.space), Ahead: c.ahead}, err
}
