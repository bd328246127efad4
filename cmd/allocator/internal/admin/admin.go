// Package admin holds the commands that repair a space and take nodes out of
// service. Each shows what it found before it writes, and asks.
package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/text"
)

// Command returns "allocator admin".
func Command(a *cli.App) *cobra.Command {
	return cli.Parent("admin", "Repair a space, and take nodes out of service",
		drainCommand(a), undrainCommand(a), recoverCommand(a),
		quarantineCommand(a), releaseCommand(a), reserveCommand(a), unreserveCommand(a), acceptCommand(a))
}

// drainWithin is how long `admin drain` waits: the node itself gives up after 15 s.
const drainWithin = 20 * time.Second

// drainCommand returns "allocator admin drain".
func drainCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Take one node out of service, and leave it running",
		Long: `Drain makes a node refuse with DRAINING, turns its readiness off and gives its sid
back, so that another node can use it at once. The process stays until it is stopped;
it serves again after ` + "`allocator admin undrain`" + ` or a restart. To stop a node, SIGTERM does
all of this. Call from the node's own machine, or with a token or certificate of scope admin.`,
		Example: "  allocator admin drain --addr 10.0.0.5:9000",
		Args:    cobra.NoArgs,
	}
	format := cli.FormatFlag(cmd)
	ask := oneNode(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var r *pb.DrainResponse
		if err := ask(func(ctx context.Context, admin pb.AdminServiceClient) (err error) {
			r, err = admin.Drain(ctx, &pb.DrainRequest{})
			return err
		}); err != nil {
			return err
		}
		if err := printDrained(a, format, r); err != nil || r.GetSid() < 0 || r.GetReleased() {
			return err
		}
		return cli.ErrInvalid
	}
	return cmd
}

// undrainCommand returns "allocator admin undrain".
func undrainCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "undrain",
		Short: "Put a drained node back into service",
		Long: `The node acquires a sid, not always the one it had, and is ready when it has one. A drain
that is under way is ended. For a node that was not drained nothing changes.`,
		Example: "  allocator admin undrain --addr 10.0.0.5:9000",
		Args:    cobra.NoArgs,
	}
	format := cli.FormatFlag(cmd)
	ask := oneNode(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var r *pb.UndrainResponse
		if err := ask(func(ctx context.Context, admin pb.AdminServiceClient) (err error) {
			r, err = admin.Undrain(ctx, &pb.UndrainRequest{})
			return err
		}); err != nil {
			return err
		}
		text := "%s was not drained: nothing changed.\n"
		if r.GetWasDrained() {
			text = "%s is back in service: it acquires a sid, and is ready when it has one. See `allocator status`.\n"
		}
		return format.Print(a.Out, struct {
			Node       string `json:"node"`
			Instance   string `json:"instance"`
			WasDrained bool   `json:"was_drained"`
		}{r.GetNode(), r.GetInstance(), r.GetWasDrained()}, fmt.Sprintf(text, r.GetNode()))
	}
	return cmd
}

// oneNode adds the flags of a command for one node to cmd, and returns what calls it.
func oneNode(a *cli.App, cmd *cobra.Command) func(call func(context.Context, pb.AdminServiceClient) error) error {
	connect := remote.NodesFlags(a, cmd, remote.DefaultAddr)
	timeout := cmd.Flags().Lookup("timeout")
	timeout.DefValue = drainWithin.String()
	_ = timeout.Value.Set(timeout.DefValue)
	return func(call func(context.Context, pb.AdminServiceClient) error) error {
		nodes, err := connect()
		if err != nil {
			return err
		}
		defer nodes.Close()
		if len(nodes.Addrs) != 1 {
			return cli.UsageError("%s takes one node: --addr names %d", cmd.Name(), len(nodes.Addrs))
		}
		return nodes.Ask(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
			return call(ctx, pb.NewAdminServiceClient(conn))
		})
	}
}

func printDrained(a *cli.App, format *cli.Choice, r *pb.DrainResponse) error {
	what := "it held no sid"
	switch {
	case r.GetReleased() && r.GetCeilUnixMs() > 0:
		what = fmt.Sprintf("sid %d (term %d) was given back, usable from %s", r.GetSid(), r.GetTerm(),
			repair.At(clock.Millis(r.GetCeilUnixMs())))
	case r.GetReleased():
		what = fmt.Sprintf("sid %d (term %d) was given back, and another node has it now", r.GetSid(), r.GetTerm())
	case r.GetSid() >= 0:
		what = fmt.Sprintf("sid %d (term %d) was NOT given back: it is free when the node's lease ends, and usable "+
			"when its window has passed", r.GetSid(), r.GetTerm())
	}
	return format.Print(a.Out, struct {
		Node       string `json:"node"`
		Instance   string `json:"instance"`
		SID        int32  `json:"sid"` // The node held this sid; -1 is none.
		Term       int64  `json:"term"`
		Released   bool   `json:"released"`
		CeilUnixMs int64  `json:"ceil_unix_ms"`
		Issued     int64  `json:"ids_issued"`
	}{r.GetNode(), r.GetInstance(), r.GetSid(), r.GetTerm(), r.GetReleased(), r.GetCeilUnixMs(), r.GetIdsIssued()},
		fmt.Sprintf("%s is drained: %s; %s issued.\nIt refuses with DRAINING until it is restarted, or "+
			"`allocator admin undrain` puts it back into service.\n",
			r.GetNode(), what, text.Count(int(r.GetIdsIssued()), "ID")))
}
