package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/status/feed"
	"github.com/flakelease/allocator/internal/text"
)

// EventsCommand returns "allocator events".
func EventsCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happened in the cluster, and follow what happens",
		Long: `Events prints what one node has noticed, the oldest first: of sids, clocks, refusals, etcd,
files and nodes. A node keeps about the latest 2,000 in memory, and with events.file also those from
before its start.

With --follow it goes on until it is interrupted, and connects again if the connection
breaks. Events that were missed are reported on stderr, and with --format json as a line
with "missed".`,
		Example: `  allocator events
  allocator events --since 12h
  allocator events --follow --new
  allocator events --follow --format json | jq 'select(.kind == "refusing")'`,
		Args: cobra.NoArgs,
	}
	follow := cmd.Flags().BoolP("follow", "f", false, "go on with what happens")
	onlyNew := cmd.Flags().Bool("new", false, "with --follow: leave out what happened before")
	after := cmd.Flags().String("after", "", "the id of an event: only what happened after it")
	since := cmd.Flags().Duration("since", 0, "only what happened within this time, such as 12h; 0: all")
	format := cli.FormatFlag(cmd)
	connect := remote.NodesFlags(a, cmd, remote.DefaultAddr)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case *onlyNew && !*follow:
			return cli.UsageError("--new leaves nothing to print: give --follow too")
		case *since < 0:
			return cli.UsageError("--since is %v: it has to be above 0", *since)
		case *onlyNew && *after != "":
			return cli.UsageError("give --new or --after, not both")
		}
		nodes, err := connect()
		if err != nil {
			return err
		}
		defer nodes.Close()
		w := eventWatch{nodes: nodes, out: a.Out, err: a.Err, json: format.JSON(), follow: *follow,
			from: &pb.WatchEventsRequest{After: *after, OnlyNew: *onlyNew}}
		if *since > 0 {
			w.first = time.Now().Add(-*since).UnixMilli()
		}
		return w.run(cmd.Context())
	}
	return cmd
}

// eventWatch prints events of one node after the other.
type eventWatch struct {
	nodes    *remote.Nodes
	out, err io.Writer
	json     bool
	follow   bool
	from     *pb.WatchEventsRequest
	first    int64 // Earlier events are left out, Unix ms.
	seen     bool  // An event has come.
	begun    bool  // a node has answered
	broken   bool  // it was said that the stream broke
}

const (
	// silentAfter is how long a stream may be silent: nodes send something every 2 s.
	silentAfter = 6 * time.Second
	// againAfter is the pause before the next node is called.
	againAfter = time.Second
)

// errAll ends a stream that was asked for what is kept alone.
var errAll = errors.New("all events were printed")

func (w *eventWatch) run(ctx context.Context) error {
	began := time.Now()
	for i := 0; ; i++ {
		at := i % len(w.nodes.Conns)
		err := w.watch(ctx, at)
		switch code := status.Code(err); {
		case errors.Is(err, errAll):
			return nil
		case ctx.Err() != nil:
			return cli.ErrInterrupted
		case code == codes.Unknown: // An error without a gRPC status comes from printing.
			return err
		case code == codes.Unauthenticated, code == codes.PermissionDenied, code == codes.Unimplemented,
			code == codes.InvalidArgument:
			return cli.Exit(cli.ExitInvalid,
				fmt.Errorf("node at %s: %s", w.nodes.Addrs[at], status.Convert(err).Message()))
		case !w.begun && at == len(w.nodes.Conns)-1 && time.Since(began) > w.nodes.Timeout,
			!w.follow && at == len(w.nodes.Conns)-1:
			return w.nodes.Unavailable(at, err)
		case w.follow && w.begun && !w.broken:
			w.broken = true
			fmt.Fprintf(w.err, "allocator: the stream of the node at %s broke: %s; connecting again\n",
				w.nodes.Addrs[at], status.Convert(err).Message())
		}
		select {
		case <-time.After(againAfter):
		case <-ctx.Done():
			return cli.ErrInterrupted
		}
	}
}

// watch prints the events of one node until its stream ends.
func (w *eventWatch) watch(ctx context.Context, at int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(silentAfter, func() { cancel(status.Error(codes.Unavailable, "it was silent")) })
	defer silent.Stop()
	stream, err := pb.NewAdminServiceClient(w.nodes.Conns[at]).WatchEvents(ctx, w.from)
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		switch {
		case err != nil && ctx.Err() != nil && context.Cause(ctx) != ctx.Err():
			return context.Cause(ctx)
		case err == io.EOF:
			return status.Error(codes.Unavailable, "it ended")
		case err != nil:
			return err
		}
		silent.Reset(silentAfter)
		if w.begun = true; w.broken {
			w.broken = false
			fmt.Fprintf(w.err, "allocator: connected again, to the node at %s\n", w.nodes.Addrs[at])
		}
		switch {
		case m.GetMissed() != nil:
			err = w.printMissed(m.GetMissed())
		case m.GetEvent() != nil:
			w.from = &pb.WatchEventsRequest{After: m.GetEvent().GetId()}
			happened := m.GetEvent().GetAtUnixMs()
			if !w.seen && w.first > 0 && happened >= w.first {
				fmt.Fprintf(w.err, "allocator: the node at %s has no events before %s; its events.file may have some\n",
					w.nodes.Addrs[at], time.UnixMilli(happened).UTC().Format(time.RFC3339))
			}
			if w.seen = true; happened < w.first {
				continue
			}
			err = w.printEvent(m.GetEvent())
		case !w.follow:
			return errAll
		}
		if err != nil {
			return err
		}
	}
}

// printEvent prints an event, in JSON as over HTTP.
func (w *eventWatch) printEvent(e *pb.Event) error {
	if w.json {
		attributes := e.GetAttributes()
		if attributes == nil {
			attributes = map[string]string{}
		}
		return cli.PrintLine(w.out, feed.Event{
			ID: e.GetId(), At: e.GetAtUnixMs(), Node: e.GetNode(), Kind: feed.Kind(e.GetKind()), SID: int(e.GetSid()),
			Message: e.GetMessage(), Attributes: attributes,
		})
	}
	_, err := fmt.Fprintln(w.out, eventText(e))
	return err
}

// eventText is an event on a line. Its texts come from another machine.
func eventText(e *pb.Event) string {
	reason := ""
	if r := e.GetAttributes()["reason"]; r != "" {
		reason = r + ": "
	}
	return fmt.Sprintf("%s  %-12s  %-18s  %s", text.Millis(e.GetAtUnixMs()),
		text.Printable(e.GetNode()), text.Printable(e.GetKind()), text.Printable(reason+e.GetMessage()))
}

func (w *eventWatch) printMissed(m *pb.MissedEvents) error {
	if w.json {
		return cli.PrintLine(w.out, map[string]feed.Missed{"missed": {Count: m.GetCount(), Why: m.GetWhy()}})
	}
	count := "events"
	if m.GetCount() >= 0 {
		count = text.Count(int(m.GetCount()), "event")
	}
	_, err := fmt.Fprintf(w.err, "allocator: missed %s: %s\n", count, text.Printable(m.GetWhy()))
	return err
}
