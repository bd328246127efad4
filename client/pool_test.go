package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// TestNextNOfASmallLimit: NextN and NextULIDs send as many requests as the limit of
// the cluster requires.
func TestNextNOfASmallLimit(t *testing.T) {
	t.Parallel()
	for limit, n := range map[int]int{10_000: 25_001, 1: 3} {
		f := newFake(t, 1)
		f.limit = fmt.Sprint(limit)
		f.act(func(_ context.Context, _ int64, req *pb.AllocateRequest) act {
			if int(req.Count) > limit {
				return act{refuse: client.InvalidCount}
			}
			return act{}
		})
		for _, mode := range modes {
			c := dial(t, client.Options{Targets: []string{f.addr}, Mode: mode})
			ids := make([]flake.ID, n)
			if err := c.NextN(t.Context(), ids); err != nil {
				t.Fatalf("%v: %v", mode, err)
			}
			for i := 1; i < len(ids); i++ {
				if ids[i] <= ids[i-1] {
					t.Fatalf("%v: ID %d is %v, after %v", mode, i, ids[i], ids[i-1])
				}
			}
			wides := make([]ulid.ID, n)
			if err := c.NextULIDs(t.Context(), wides); err != nil || !slices.IsSortedFunc(wides, ulid.ID.Compare) || wides[0].IsZero() {
				t.Fatalf("%v: %v, %d wide IDs", mode, err, n)
			}
			if _, err := c.Block(t.Context(), limit+1); !errors.Is(err, &client.Refusal{Reason: client.InvalidCount}) {
				t.Errorf("%v: a block above the limit: %v", mode, err)
			}
		}
	}
}

// TestNoWideForm: a space whose epoch has no wide IDs gives an error, and not some of them.
func TestNoWideForm(t *testing.T) {
	t.Parallel()
	f := newFake(t, 1)
	f.always(act{mangle: func(r *pb.AllocateResponse) { r.EpochUnixMs = -1 << 50 }})
	c := dial(t, client.Options{Targets: []string{f.addr}})
	if err := c.NextULIDs(t.Context(), make([]ulid.ID, 3)); !errors.Is(err, ulid.ErrBeforeEpoch) {
		t.Errorf("%v", err)
	}
	if _, err := c.NextULID(t.Context()); !errors.Is(err, ulid.ErrBeforeEpoch) {
		t.Errorf("%v", err)
	}
}

// TestDialOptionsAreChecked: New returns the error of an option that gRPC rejects,
// whether targets are addresses or names.
func TestDialOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"127.0.0.1:1", "nodes.example:1"} {
		c, err := client.New(client.Options{Targets: []string{target},
			DialOptions: []grpc.DialOption{grpc.WithDefaultServiceConfig("{bad")}})
		if err == nil {
			_ = c.Close()
			t.Errorf("%s: taken", target)
		}
	}
}

// TestIPv6: IPv6 addresses work as targets, also with a zone.
func TestIPv6(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("not run: this machine has no IPv6: %v", err)
	}
	f := newFake(t, 1)
	s := grpc.NewServer()
	pb.RegisterAllocatorServiceServer(s, f)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	defer func() { s.Stop(); <-ended }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, host := range []string{"::1", "::1%lo"} {
		if probe, err := net.Dial("tcp", net.JoinHostPort(host, port)); err != nil {
			t.Logf("not run for %s: %v", host, err)
			continue
		} else {
			_ = probe.Close()
		}
		c := dial(t, client.Options{Targets: []string{net.JoinHostPort(host, port)}})
		if _, err := c.Next(t.Context()); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
}
