package embed_test

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/embed"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/worker"
)

// refusing calls refused when no worker is given.
type refusing struct {
	pb.WorkerServiceClient
	refused func()
}

func (r refusing) AcquireWorker(
	ctx context.Context, req *pb.AcquireWorkerRequest, opts ...grpc.CallOption,
) (*pb.Worker, error) {
	res, err := r.WorkerServiceClient.AcquireWorker(ctx, req, opts...)
	if err != nil {
		r.refused()
	}
	return res, err
}

// A program with its own node needs no server for the worker numbers of its other
// generators.
func TestWorkers(t *testing.T) {
	c := newSpace(t)
	cfg := program(c, "shop")
	cfg.Settings = map[string]string{"worker.sid-range": "30-31"}
	a := open(t, cfg)
	var list []*worker.Worker
	for i := range 2 {
		tells := i == 0
		w, err := worker.Open(t.Context(), worker.Config{Name: "legacy", Service: a.Workers(), Watermark: tells})
		fatal.If(t, err)
		list = append(list, w)
		if err := w.Permit(time.Now().UnixMilli()); err != nil || w.Number() < 30 || w.Number() > 31 {
			t.Errorf("worker %s: %v", w.ID(), err)
		}
		at := look(t, c).SIDs[flake.SID(w.Number())]
		if !at.Holder.Exists() || at.Holder.Value.Node != "legacy" || at.Holder.Value.Owner != "embed:"+a.Status().Node {
			t.Errorf("worker %s is held by %+v", w.ID(), at.Holder.Value)
		}
		if floor := at.Window.Value.Floor; (floor > 0) != tells {
			t.Errorf("worker %s, which tells floors: %v, has the floor %d", w.ID(), tells, floor)
		}
	}
	if list[0].Number() == list[1].Number() {
		t.Errorf("both workers are %d", list[0].Number())
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := worker.Open(ctx, worker.Config{Service: refusing{a.Workers(), cancel}}); !errors.Is(err, &client.Refusal{Reason: client.NoWorker}) {
		t.Errorf("a third of two: %v", err)
	}
	for _, w := range list {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	w, err := worker.Open(t.Context(), worker.Config{Service: a.Workers()})
	if err != nil {
		t.Fatalf("after a release: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := w.Permit(time.Now().UnixMilli()); err != nil { // the interval is its own
		t.Errorf("after the allocator was closed: %v", err)
	}
	if err := w.Close(); !errors.Is(err, embed.ErrClosed) {
		t.Errorf("released by a closed allocator: %v", err)
	}
}
