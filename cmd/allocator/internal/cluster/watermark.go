package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/text"
	"github.com/flakelease/allocator/internal/watermark"
)

// followEvery is how often --follow asks, and followSays how often it prints one that has not
// changed.
const (
	followEvery = 500 * time.Millisecond
	followSays  = 5 * time.Second
)

// WatermarkCommand returns "allocator watermark".
func WatermarkCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watermark",
		Short: "Show which IDs can still appear, and who holds that back",
		Long: `Watermark prints a time and the smallest ID of it: no ID below that is issued in the space any
more, by any node. An indented line says who holds it back, if somebody does.

Each --addr has nodes of one space. With several it prints the lowest watermark, a cut through
all of them, and the ID is of the space that is lowest.

With --follow it goes on until it is interrupted. It never goes back.`,
		Example: `  allocator watermark
  allocator watermark --follow
  allocator watermark --addr eu-0:9000,eu-1:9000 --addr us-0:9000 --format json`,
		Args: cobra.NoArgs,
	}
	follow := cmd.Flags().BoolP("follow", "f", false, "go on with each change, and every 5 s")
	format := cli.FormatFlag(cmd)
	connect := remote.SpacesFlags(a, cmd, remote.DefaultAddr)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		spaces, err := connect()
		if err != nil {
			return err
		}
		for _, nodes := range spaces {
			defer nodes.Close()
		}
		w := markWatch{
			spaces:  spaces,
			highest: make([]watermark.Answer, len(spaces)),
			json:    format.JSON(),
			out:     a.Output(cmd.Context()),
			err:     a.Err,
		}
		if !*follow {
			mark, err := w.lowest(cmd.Context())
			if err != nil {
				return err
			}
			return w.print(mark)
		}
		return w.follow(cmd.Context())
	}
	return cmd
}

// markWatch prints the lowest watermark of spaces.
type markWatch struct {
	spaces  []*remote.Nodes
	highest []watermark.Answer // Each space has one here: another of its nodes may have read less.
	json    bool
	out     *bufio.Writer
	err     io.Writer
	final   bool // the latest error is one that no later request is without
}

func (w *markWatch) follow(ctx context.Context) error {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	var last watermark.Answer
	var printed time.Time
	said := ""
	for {
		mark, err := w.lowest(ctx)
		switch {
		case ctx.Err() != nil:
			return cli.ErrInterrupted
		case w.final:
			return err
		case err != nil && err.Error() != said:
			said = err.Error()
			fmt.Fprintf(w.err, "allocator: %s; asking again\n", said)
		case err == nil && (!watermark.Same(mark, last) || time.Since(printed) >= followSays):
			if err := w.print(mark); err != nil {
				return err
			}
			last, printed = mark, time.Now()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return cli.ErrInterrupted
		}
	}
}

// lowest returns the lowest watermark of all spaces.
func (w *markWatch) lowest(ctx context.Context) (watermark.Answer, error) {
	for i, nodes := range w.spaces {
		err := nodes.Ask(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
			m, err := pb.NewAllocatorServiceClient(conn).GetWatermark(ctx, &pb.GetWatermarkRequest{})
			switch grpcstatus.Code(err) {
			case codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
				w.final = true
			}
			if mark := status.WatermarkOf(m); err == nil && mark.At >= w.highest[i].At {
				w.highest[i] = mark
			}
			return err
		})
		if err != nil {
			return watermark.Answer{}, err
		}
	}
	lowest := w.highest[0]
	for _, mark := range w.highest[1:] {
		if mark.At < lowest.At {
			lowest = mark
		}
	}
	return lowest, nil
}

func (w *markWatch) print(m watermark.Answer) error {
	if w.json {
		if err := cli.PrintLine(w.out, m); err != nil {
			return err
		}
		return w.out.Flush()
	}
	fmt.Fprintf(w.out, "%s  %s  %s behind\n", text.Millis(m.At), m.Flake, text.Seconds(m.Lag))
	for _, b := range m.BlockedBy {
		fmt.Fprintf(w.out, "  %s, since %s: %s\n", b.Why, time.UnixMilli(b.Since).UTC().Format(time.TimeOnly), b.Text)
	}
	if c := m.Conditional; c != nil && c.Until > m.At-time.Hour.Milliseconds() {
		who := fmt.Sprintf("%s (sid %d), which vanished", c.Node, c.SID)
		if c.SID < 0 {
			who = "those of the history before this era"
		}
		fmt.Fprintf(w.out, "  conditional: nothing below %s comes of %s, if clocks go on\n",
			time.UnixMilli(c.Until).UTC().Format(time.TimeOnly), who)
	}
	if len(m.NotCovered) > 0 {
		fmt.Fprintf(w.out, "  not covered: sids %v, of generators outside of the nodes\n", m.NotCovered)
	}
	return w.out.Flush()
}
