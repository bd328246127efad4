// Package cluster holds the commands that call a cluster, such as get and status.
package cluster

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/wire"
	"github.com/flakelease/allocator/ulid"
)

// getBlock is how many IDs are asked for at a time, unless the node grants less. A
// reply has the same size whatever the count.
const getBlock = 10_000

// manyIDs is how many a command gets without --yes: they take seconds to print.
const manyIDs = 10_000_000

// GetCommand returns "allocator get".
func GetCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get [N]",
		Short: "Get N IDs from a node",
		Long: `Get prints N new IDs, one a line, in rising order. N is 1 if not given.

A node that is down or refuses is skipped at once. If all refuse and one names a time to
retry at, they are asked again until --timeout. Then get prints each answer and exits with
1, or with 3 if no node answered. An error of the caller, such as an --after in the future,
is not tried elsewhere.`,
		Example: `  allocator get
  allocator get 3 --as ulid
  allocator get --after 02MVQDZ9NFSQ0 --addr 10.0.0.5:9000,10.0.0.6:9000
  allocator get 1000 --format json`,
		Args: cobra.MaximumNArgs(1),
	}
	as := cli.Choose(cmd, "as", "form of the IDs; compare int as numbers, not as texts",
		"flake", "int", "ulid", "uuid")
	after := cmd.Flags().String("after", "", "an ID in any form: all IDs printed are greater")
	format := cli.FormatFlag(cmd)
	number := cli.CountFlag(cmd)
	yes := cmd.Flags().Bool("yes", false, fmt.Sprintf("get more than %d IDs", manyIDs))
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	connect := remote.NodesFlags(a, cmd, remote.DefaultAddr)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		n, err := cli.CountOf(args, number)
		if err != nil {
			return err
		}
		if n > manyIDs && !*yes {
			return cli.UsageError("N is %d, and more than %d is a mistake in most cases: give --yes to get them all",
				n, manyIDs)
		}
		least := describe.ID{Kind: describe.Flake} // 0: above nothing
		// Also an empty one: a variable that was not set must not undo the order.
		if cmd.Flags().Changed("after") {
			if least, err = describe.Parse(*after, describe.Auto, flake.Default); err != nil {
				return cli.UsageError("--after %s: %w", cli.Show(*after), err)
			}
		}
		nodes, err := connect()
		if err != nil {
			return err
		}
		defer nodes.Close()
		g := getter{as: as.Value, json: format.JSON(), out: a.Output(cmd.Context()), random: cli.Random()}
		got, err := g.get(cmd.Context(), nodes, n, least)
		if flushErr := g.out.Flush(); err == nil {
			err = flushErr
		} else if got > 0 && exitCode(err) != cli.ExitInterrupted && !errors.Is(err, syscall.EPIPE) {
			err = cli.Exit(exitCode(err), fmt.Errorf("got %d of %d IDs: %w", got, n, err))
		}
		return err
	}
	return cmd
}

// exitCode returns the code that err ends the program with.
func exitCode(err error) int {
	if e, ok := err.(*cli.ExitError); ok {
		return e.Code
	}
	return cli.ExitInvalid
}

// getter prints IDs as they come.
type getter struct {
	as     string
	json   bool
	out    *bufio.Writer
	random io.Reader
	space  flake.Format // The node's latest answer named this format.
	more   string       // It said this of itself, for JSON.
	line   []byte
}

// get prints n IDs greater than least and returns how many it did print.
func (g *getter) get(ctx context.Context, nodes *remote.Nodes, n int64, least describe.ID) (got int64, err error) {
	var after flake.ID
	if !least.IsWide() {
		after = least.Flake
	} else if after, err = g.narrow(ctx, nodes, least); err != nil {
		return 0, err
	}
	size := int64(getBlock)
	for got < n {
		var block *pb.AllocateResponse
		err := nodes.Ask(ctx, func(ctx context.Context, c *grpc.ClientConn) (err error) {
			for {
				count := min(n-got, size)
				block, err = pb.NewAllocatorServiceClient(c).Allocate(ctx,
					&pb.AllocateRequest{Count: int32(count), After: int64(after)})
				limit := granted(err)
				if limit < 1 || limit >= count {
					return err
				}
				size = limit
			}
		})
		if err != nil {
			return got, err
		}
		layout, err := wire.ParseLayout(block.GetLayout(), block.GetLayoutBits())
		if err != nil {
			return got, err
		}
		g.space = flake.Format{Layout: layout, Epoch: block.GetEpochUnixMs()}
		// Names have no character that JSON escapes.
		g.more = fmt.Sprintf(`,"node":%q,"sid":%d`, block.GetNode(), block.GetSid())
		for i := range int64(block.GetCount()) {
			// The next block may come from another node: only after orders it.
			after = flake.ID(block.GetFirst() + i*block.GetStride())
			if err := g.print(after); err != nil {
				return got, err
			}
			got++
		}
	}
	return got, nil
}

// granted returns the largest count that a refusal names, or 0.
func granted(err error) int64 {
	r := client.RefusalOf(err, "")
	if r == nil || r.Reason != client.InvalidCount {
		return 0
	}
	limit, _ := strconv.ParseInt(r.Metadata["limit"], 10, 64)
	return limit
}

// narrow asks a node for the flake within a wide ID: only it knows the epoch.
func (g *getter) narrow(ctx context.Context, nodes *remote.Nodes, id describe.ID) (flake.ID, error) {
	var parts *pb.DescribeResponse
	err := nodes.Ask(ctx, func(ctx context.Context, c *grpc.ClientConn) (err error) {
		parts, err = pb.NewAllocatorServiceClient(c).Describe(ctx, &pb.DescribeRequest{Id: id.Wide.UUID()})
		return err
	})
	if err != nil {
		return 0, err
	}
	if parts.Flake == nil {
		return 0, cli.UsageError("--after: %s has no flake in it: no allocator issued it", id.Wide)
	}
	return flake.ID(parts.GetFlake()), nil
}

func (g *getter) print(id flake.ID) error {
	shown := describe.ID{Kind: describe.Flake, Flake: id}
	if g.as == "ulid" || g.as == "uuid" {
		var bits [8]byte
		_, err := io.ReadFull(g.random, bits[:])
		if err == nil {
			shown.Kind = describe.ULID
			shown.Wide, err = ulid.FromFlake(g.space, id, binary.BigEndian.Uint64(bits[:]))
		}
		if err != nil {
			return err
		}
	}
	var err error
	if g.line, err = cli.AppendID(g.line[:0], shown, g.as, g.space, g.json, g.more); err != nil {
		return err
	}
	_, err = g.out.Write(g.line)
	return err
}
