package grpcserver

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"google.golang.org/grpc"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/operate"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/status"
)

// deadStream is one whose handler has returned: nothing may be sent on it.
type deadStream struct {
	grpc.ServerStream
	t *testing.T
}

func (deadStream) Context() context.Context { return context.Background() }
func (deadStream) RecvMsg(any) error        { return nil }
func (d deadStream) SendMsg(any) error {
	d.t.Error("sent on a stream that has ended")
	return nil
}

type noDirectory struct{ status.Directory }

// TestEndedStreamIssuesNothing: no ID is issued for a request that was received, but
// not answered before the stream ended.
func TestEndedStreamIssuesNothing(t *testing.T) {
	const now = 1_769_904_000_000
	n := node.New(node.Config{
		Name: "a", Gen: gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 3},
	}, clocktest.NewManual(now), gen.Random())
	n.Begin(lease.Grant{SID: 1, Term: 1, Base: now, Ceil: now + 1000})
	service := server.New(server.Config{Node: n})
	reader := status.New(status.Config{Node: n, Directory: noDirectory{}, Space: "s"})
	drainer := operate.NewDrainer(operate.DrainConfig{Node: n})
	s := New(Config{Service: service, Reader: reader, Drainer: drainer, Logger: slog.New(slog.DiscardHandler)})
	r := newResponder(s, deadStream{t: t})
	r.end()
	r.request.Count = 1
	err := r.answer(t.Context())
	if !errors.Is(err, errEnded) || n.Stats().Issued != 0 {
		t.Errorf("%v, %d IDs issued", err, n.Stats().Issued)
	}
}
