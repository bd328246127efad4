package interop

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
)

// empty is a store in which nobody ever held a sid.
type empty struct{}

func (empty) Load(context.Context) (lease.View, error) { return lease.View{}, errors.New("away") }

func (empty) Holder(context.Context, flake.SID, clock.Millis) (lease.LedgerLine, bool, error) {
	return lease.LedgerLine{}, false, nil
}

// newServer returns a server of a node that holds sid 7 for an hour.
func newServer(t *testing.T, guard *access.Guard) (*node.Node, *server.Server) {
	t.Helper()
	src := clock.NewSystem(clock.SystemConfig{Anchor: clock.AnchorConfig{StepHold: 10 * time.Second}})
	n := node.New(node.Config{
		Name: "node-a", Instance: "a-1",
		Gen:     gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 250, MaxStep: 255},
		MaxWait: 100 * time.Millisecond, MaxSkew: 250 * time.Millisecond,
	}, src, gen.Random())
	now := src.Now().Wall
	n.Begin(lease.Grant{SID: 7, Term: 1, Base: now, Ceil: now + 3_600_000})
	s, err := server.New(server.Config{Node: n, Directory: empty{}, Space: "test", Guard: guard, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return n, s
}
