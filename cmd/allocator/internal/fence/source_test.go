package fence

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/fence"
)

// space is a node that answers a watermark.
type space struct {
	pb.UnimplementedAllocatorServiceServer
	at  int64
	lag int64
	low uint // bits below the time
}

func (s space) GetWatermark(context.Context, *pb.GetWatermarkRequest) (*pb.Watermark, error) {
	return &pb.Watermark{UnixMs: s.at, LagMs: s.lag, Int: s.at << s.low, BlockedBy: []*pb.WatermarkBlocker{{Text: "somebody"}}}, nil
}

func serve(t *testing.T, s space) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	g := grpc.NewServer()
	pb.RegisterAllocatorServiceServer(g, s)
	t.Cleanup(g.Stop)
	go func() { _ = g.Serve(l) }()
	return l.Addr().String()
}

// TestSeveralSpaces: fences follow the lowest watermark of all spaces whose rows are in a table.
func TestSeveralSpaces(t *testing.T) {
	high, low := space{at: 30, low: 10}, space{at: 20, low: 10}
	source := sourceOf(t, "--addr", serve(t, high), "--addr", serve(t, low)+","+serve(t, low))
	m, err := source.Watermark(t.Context())
	if err != nil || m.UnixMs != 20 || m.ID != 20<<10 || strings.Join(m.BlockedBy, "") != "somebody" {
		t.Errorf("%+v, %v", m, err)
	}
}

// sourceOf returns the source of these flags.
func sourceOf(t *testing.T, flags ...string) fence.Source {
	t.Helper()
	cmd := &cobra.Command{}
	connect := sourceFlags(&cli.App{Out: io.Discard, Err: io.Discard}, cmd)
	fatal.If(t, cmd.ParseFlags(flags))
	source, disconnect, err := connect(slog.New(slog.DiscardHandler))
	fatal.If(t, err)
	t.Cleanup(disconnect)
	return source
}

// TestMarkOf: with --behind the mark is so far behind the clock of the node that answers, or further, and its
// ID is of the layout that the watermark shows.
func TestMarkOf(t *testing.T) {
	const at = int64(1_790_000_000_003)
	for _, tc := range []struct {
		space       string
		lag, behind time.Duration
		want        int64 // ms
	}{
		{"scalable", 75 * time.Millisecond, 0, at},
		{"scalable", 75 * time.Millisecond, 5 * time.Second, at - 4925},
		{"scalable", 5 * time.Second, 5 * time.Second, at},
		{"scalable", 5001 * time.Millisecond, 5 * time.Second, at},
		{"twitter", time.Second, 2 * time.Second, at - 1000},
		{"sonyflake", time.Second, 2 * time.Second, at - 1000},
		{"baidu,epoch=2026-01-01", time.Second, 4 * time.Second, at - 3000}, // said
		{"twitter,epoch=2025-06-01", time.Second, 0, -at},                   // nobody says it
		{"twitter,epoch=2025-06-01", time.Second, 2 * time.Second, -at},
	} {
		f, err := flake.ParseFormat(tc.space)
		fatal.If(t, err)
		said := flake.Default
		if strings.HasPrefix(tc.space, "baidu") {
			said = f
		}
		id, err := f.Min(at + f.Layout.Unit() - 1)
		fatal.If(t, err)
		m, known := markOf(client.Watermark{UnixMilli: at, ID: id, Lag: tc.lag}, said, tc.behind)
		want := fence.Mark{UnixMs: at, ID: id.Int64()}
		if tc.want > 0 {
			want.UnixMs, want.PerDay = tc.want, fence.PerDay(f)
		}
		if tc.want > 0 && tc.want < at {
			low, err := f.Min(tc.want)
			fatal.If(t, err)
			want.ID = low.Int64()
		}
		if known != (tc.want > 0) || fmt.Sprint(m) != fmt.Sprint(want) {
			t.Errorf("%+v: %+v, known %v; want %+v", tc, m, known, want)
		}
	}
}

// TestLayoutNotKnown: a layout that nobody has said stops --behind, and nothing else.
func TestLayoutNotKnown(t *testing.T) {
	addr := serve(t, space{at: 1_790_000_000_000, low: 9})
	if m, err := sourceOf(t, "--addr", addr, "--ahead", "2h").Watermark(t.Context()); err != nil || m.PerDay != 0 || m.Ahead != 2*time.Hour {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := sourceOf(t, "--addr", addr, "--behind", "5s").Watermark(t.Context()); err == nil || !strings.Contains(err.Error(), "give --layout") {
		t.Errorf("--behind: %v", err)
	}
	if m, err := sourceOf(t, "--clock-lag", "1m", "--ahead", "2h").Watermark(t.Context()); err != nil || m.PerDay != fence.PerDay(flake.Default) || m.Ahead != 2*time.Hour {
		t.Errorf("of the clock: %+v, %v", m, err)
	}
	said := []string{"--addr", addr, "--behind", "5s", "--layout", "41/4/5", "--epoch", "1970-01-01T00:00:00Z"}
	if m, err := sourceOf(t, said...).Watermark(t.Context()); err != nil || m.ID != (1_790_000_000_000-5000)<<9 || m.Ahead != 24*time.Hour {
		t.Errorf("with its layout: %+v, %v", m, err)
	}
}
