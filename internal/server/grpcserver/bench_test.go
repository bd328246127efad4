package grpcserver_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/quota"
	"github.com/flakelease/allocator/internal/server/grpcserver"
)

// BenchmarkServeAllocate is a unary call from the bytes of the request to those of the
// answer, without a connection.
func BenchmarkServeAllocate(b *testing.B) {
	env := newIssuing(b)
	request := []byte{0x08, 1}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := grpcserver.ServeAllocate(env.GRPC, b.Context(), request); err != nil {
			b.Fatal(err)
		}
	}
}

// newIssuing returns an environment on the clock of the machine.
func newIssuing(b *testing.B) *servertest.Env {
	src := clock.NewSystem(clock.SystemConfig{})
	now := src.Now().Wall
	n := node.New(node.Config{
		Name: "node-a", Instance: "a-1", MaxWait: time.Second,
		Gen: gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 250, MaxStep: 255},
	}, src, gen.Random())
	n.Begin(lease.Grant{SID: 7, Term: 1, Base: now, Ceil: now + 3_600_000})
	return servertest.NewOn(b, n, func(c *servertest.Config) { c.Observe = func(string, time.Duration) {} })
}

// BenchmarkConnection is one connection with a quota: a call at a time, 64 at a time, and a
// stream with 512 requests ahead.
func BenchmarkConnection(b *testing.B) {
	env, src := newIssuing(b), clock.NewSystem(clock.SystemConfig{})
	q := quota.New(quota.Config{Now: func() clock.Mono { return src.Now().Mono }, Memory: 1 << 30})
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	g := env.GRPC.GRPC(grpc.Creds(grpcserver.WithQuota(insecure.NewCredentials())))
	go func() { _ = g.Serve(q.Listen(raw, quota.ListenerConfig{})) }()
	b.Cleanup(g.Stop)
	conn, err := grpc.NewClient(raw.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	ids := pb.NewAllocatorServiceClient(conn)
	req := &pb.AllocateRequest{Count: 1}
	call := func() {
		if _, err := ids.Allocate(context.Background(), req); err != nil {
			b.Error(err)
		}
	}
	b.Run("unary", func(b *testing.B) {
		for b.Loop() {
			call()
		}
	})
	b.Run("unary, 64 at once", func(b *testing.B) {
		b.SetParallelism(32)
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				call()
			}
		})
	})
	b.Run("stream", func(b *testing.B) {
		s, err := ids.AllocateStream(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		ahead := make(chan struct{}, 512)
		go func() {
			for range b.N {
				ahead <- struct{}{}
				_ = s.Send(&pb.AllocateStreamRequest{Sequence: 1, Request: req})
			}
		}()
		for range b.N {
			if _, err := s.Recv(); err != nil {
				b.Fatal(err)
			}
			<-ahead
		}
	})
}
