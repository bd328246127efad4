package load

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	allocatorv1 "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
)

// streams answers each request with the next ID, or breaks off.
type streams struct {
	allocatorv1.UnimplementedAllocatorServiceServer
	cut bool
}

func (s *streams) AllocateStream(stream allocatorv1.AllocatorService_AllocateStreamServer) error {
	first, _ := flake.Default.Make(flake.Default.Epoch+1000, 5, 3)
	for n := flake.ID(0); ; n++ {
		req, err := stream.Recv()
		if err != nil || s.cut {
			return err
		}
		if err := stream.Send(&allocatorv1.AllocateStreamResponse{Sequence: req.GetSequence(), Result: &allocatorv1.AllocateStreamResponse_Response{
			Response: &allocatorv1.AllocateResponse{First: int64(first + 32*n), Count: req.GetRequest().GetCount(), Stride: 32,
				Node: "n2", Layout: allocatorv1.Layout_LAYOUT_SCALABLE, EpochUnixMs: flake.DefaultEpoch}}}); err != nil {
			return err
		}
	}
}

// A stream that ended while nobody used it is opened anew, unnoticed; one that
// ends in the middle of a call is a call whose outcome nobody knows.
func TestStaleStream(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := lis.Addr().String()
	serve := func(l net.Listener, s *streams) *grpc.Server {
		srv := grpc.NewServer()
		allocatorv1.RegisterAllocatorServiceServer(srv, s)
		go func() { _ = srv.Serve(l) }()
		return srv
	}
	l := &Load{Format: flake.Default, Dial: new(net.Dialer).DialContext}
	k := l.asker(Stream, &Node{Name: "n1", GRPC: addr})
	defer k.close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	// The client knows of the end a moment before its stream does, so once in a while
	// the stream is not stale yet.
	srv, unnoticed := serve(lis, &streams{}), false
	for range 10 {
		for tries := 0; ; tries++ { // the first may meet a stream that is about to end
			a, err := k.ask(ctx, 2, 0)
			if err != nil || a.reason != "" && tries == 5 {
				t.Fatalf("%+v, %v", a, err)
			}
			if a.reason == "" {
				break
			}
		}
		srv.Stop()
		for conn := k.(*streamAsker).conn; conn.GetState() == connectivity.Ready && conn.WaitForStateChange(ctx, connectivity.Ready); {
		}
		time.Sleep(10 * time.Millisecond)
		if lis, err = net.Listen("tcp", addr); err != nil {
			t.Fatal(err)
		}
		srv = serve(lis, &streams{})
		a, err := k.ask(ctx, 3, 0)
		if err != nil {
			t.Fatal(err)
		}
		if unnoticed = a.reason == "" && a.block.Count == 3; unnoticed {
			break
		}
	}
	srv.Stop()
	if !unnoticed {
		t.Error("a stream that ended while idle failed the next call, each time")
	}
	if lis, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	cut := serve(lis, &streams{cut: true})
	defer cut.Stop()
	k = l.asker(Stream, &Node{Name: "n2", GRPC: lis.Addr().String()})
	defer k.close()
	if a, err := k.ask(ctx, 2, 0); err != nil || !a.info || a.reason == "" {
		t.Errorf("a stream that ended in a call: %+v, %v", a, err)
	}
}
