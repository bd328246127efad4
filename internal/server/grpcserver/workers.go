package grpcserver

import (
	"context"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/worker"
)

type workerService struct {
	pb.UnimplementedWorkerServiceServer
	s *Server
}

func (w workerService) AcquireWorker(context.Context, *pb.AcquireWorkerRequest) (*pb.Worker, error) {
	return nil, w.off()
}

func (w workerService) ExtendWorker(_ context.Context, req *pb.ExtendWorkerRequest) (*pb.Worker, error) {
	return nil, w.handle(req.GetHandle())
}

func (w workerService) ReleaseWorker(_ context.Context, req *pb.ReleaseWorkerRequest) (*pb.ReleaseWorkerResponse, error) {
	return nil, w.handle(req.GetHandle())
}

func (w workerService) handle(text string) error {
	if _, err := worker.ParseHandle(text); err != nil {
		began := w.s.service.Begin()
		r := w.s.node.Refused(&node.Refusal{Reason: node.InvalidFormat, Message: err.Error()})
		w.s.service.Done(server.GRPCWorker, r, began)
		return statusOf(r)
	}
	return w.off()
}

// off refuses: no sids are set aside for workers.
func (w workerService) off() error {
	began := w.s.service.Begin()
	r := w.s.node.Refused(&node.Refusal{Reason: node.WorkersOff,
		Message: "no sids are set aside for workers: set worker.sid-range on all nodes"})
	w.s.service.Done(server.GRPCWorker, r, began)
	return statusOf(r)
}
