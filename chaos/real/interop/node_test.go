package interop

import (
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// newNode returns a node that holds sid 7 for an hour, with its listeners.
func newNode(t *testing.T, guard *access.Guard) *servertest.Env {
	t.Helper()
	src := clock.NewSystem(nil)
	n := node.New(node.Config{
		Name: "node-a", Instance: "a-1",
		Gen:     gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 250, MaxStep: 255},
		MaxWait: 100 * time.Millisecond, MaxSkew: 250 * time.Millisecond,
	}, src, gen.Random())
	now := src.Now().Wall
	n.Begin(lease.Grant{SID: 7, Term: 1, Base: now, Ceil: now + 3_600_000})
	return servertest.NewOn(t, n, func(c *servertest.Config) { c.Guard = guard })
}
