package grpcserver_test

import (
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server/grpcserver"
)

// BenchmarkServeAllocate is a unary call from the bytes of the request to those of the
// answer, without a connection.
func BenchmarkServeAllocate(b *testing.B) {
	src := clock.NewSystem(clock.SystemConfig{})
	now := src.Now().Wall
	n := node.New(node.Config{
		Name: "node-a", Instance: "a-1", MaxWait: time.Second,
		Gen: gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 250, MaxStep: 255},
	}, src, gen.Random())
	n.Begin(lease.Grant{SID: 7, Term: 1, Base: now, Ceil: now + 3_600_000})
	env := servertest.NewOn(b, n, func(c *servertest.Config) { c.Observe = func(string, time.Duration) {} })
	request := []byte{0x08, 1}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := grpcserver.ServeAllocate(env.GRPC, b.Context(), request); err != nil {
			b.Fatal(err)
		}
	}
}
