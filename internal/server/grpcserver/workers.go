package grpcserver

import (
	"context"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/worker"
)

type workerService struct {
	pb.UnimplementedWorkerServiceServer
	s *Server
}

func (w workerService) AcquireWorker(ctx context.Context, req *pb.AcquireWorkerRequest) (*pb.Worker, error) {
	return callWorker(ctx, w.s, func(c access.Caller) (*pb.Worker, error) {
		got, err := w.s.service.Workers().Acquire(ctx, c, AcquireRequest(req))
		return WorkerProto(got), err
	})
}

func (w workerService) ExtendWorker(ctx context.Context, req *pb.ExtendWorkerRequest) (*pb.Worker, error) {
	return callWorker(ctx, w.s, func(c access.Caller) (*pb.Worker, error) {
		got, err := w.s.service.Workers().Extend(ctx, c, "", req.GetHandle(), ExtendRequest(req))
		return WorkerProto(got), err
	})
}

func (w workerService) ReleaseWorker(ctx context.Context,
	req *pb.ReleaseWorkerRequest) (*pb.ReleaseWorkerResponse, error) {
	return callWorker(ctx, w.s, func(c access.Caller) (*pb.ReleaseWorkerResponse, error) {
		at, err := w.s.service.Workers().Release(ctx, c, "", req.GetHandle(), req.GetUsedUntilUnixMs())
		return &pb.ReleaseWorkerResponse{ReusableFromUnixMs: int64(at)}, err
	})
}

// callWorker makes a worker's call, which its connection pays for.
func callWorker[T any](ctx context.Context, s *Server, call func(access.Caller) (*T, error)) (*T, error) {
	began := s.service.Begin()
	connOf(ctx).Charge(quota.CostWrite)
	res, err := call(s.caller(ctx))
	s.service.Done(server.GRPCWorker, err, began)
	s.name(ctx) // A node of another space refuses too: it does not know the worker.
	if err != nil {
		return nil, StatusOf(err)
	}
	return res, nil
}

// WorkerProto returns the message of a worker.
func WorkerProto(w worker.Worker) *pb.Worker {
	return &pb.Worker{
		Id: w.Handle.ID(), Worker: uint32(w.Handle.SID), Term: w.Handle.Term, Name: w.Name,
		NotBeforeUnixMs: int64(w.NotBefore), NotAfterUnixMs: int64(w.NotAfter), ExtendAtUnixMs: int64(w.ExtendAt),
		NowUnixMs: int64(w.Now), Handle: w.Handle.String(), FloorUnixMs: int64(w.Floor),
	}
}

// AcquireRequest returns what a caller of gRPC asks for.
func AcquireRequest(req *pb.AcquireWorkerRequest) worker.Acquire {
	return worker.Acquire{
		Name:       req.GetName(),
		Secret:     req.GetSecret(),
		Clock:      clock.Millis(req.GetClockUnixMs()),
		TellsFloor: req.GetTellsFloor(),
	}
}

// ExtendRequest returns what a caller of gRPC asks for, without the handle.
func ExtendRequest(req *pb.ExtendWorkerRequest) worker.Extend {
	return worker.Extend{
		NotAfter: clock.Millis(req.GetNotAfterUnixMs()),
		Floor:    clock.Millis(req.GetFloorUnixMs()),
	}
}
