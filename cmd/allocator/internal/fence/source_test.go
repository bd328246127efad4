package fence

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

// space is a node that answers a watermark.
type space struct {
	pb.UnimplementedAllocatorServiceServer
	at int64
}

func (s space) GetWatermark(context.Context, *pb.GetWatermarkRequest) (*pb.Watermark, error) {
	return &pb.Watermark{UnixMs: s.at, Int: s.at << 10, BlockedBy: []*pb.WatermarkBlocker{{Text: "somebody"}}}, nil
}

func serve(t *testing.T, at int64) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	pb.RegisterAllocatorServiceServer(s, space{at: at})
	t.Cleanup(s.Stop)
	go func() { _ = s.Serve(l) }()
	return l.Addr().String()
}

// TestSeveralSpaces: fences follow the lowest watermark of all spaces whose rows are in a table.
func TestSeveralSpaces(t *testing.T) {
	cmd := &cobra.Command{}
	a := &cli.App{Out: io.Discard, Err: io.Discard}
	connect := sourceFlags(a, cmd)
	if err := cmd.ParseFlags([]string{"--addr", serve(t, 30), "--addr", serve(t, 20) + "," + serve(t, 20)}); err != nil {
		t.Fatal(err)
	}
	source, disconnect, err := connect(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer disconnect()
	m, err := source.Watermark(t.Context())
	if err != nil || m.UnixMs != 20 || m.ID != 20<<10 || strings.Join(m.BlockedBy, "") != "somebody" {
		t.Errorf("%+v, %v", m, err)
	}
}
