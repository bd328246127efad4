package embed

import (
	"context"

	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/server/grpcserver"
)

// Workers returns what gives worker numbers to other generators of this program, straight
// from etcd and without a server:
//
//	w, err := worker.Open(ctx, worker.Config{Service: a.Workers()})
//
// The setting worker.sid-range says which sids they take; the allocator holds one of its
// own range besides. Close the workers before the allocator. The errors are those of the
// other calls.
func (a *Allocator) Workers() pb.WorkerServiceClient { return workers{a} }

type workers struct{ a *Allocator }

// caller is this program: each that embeds a node has a quota of its own.
func (w workers) caller() access.Caller { return access.Program(w.a.node.Config().Name) }

// AcquireWorker, ExtendWorker and ReleaseWorker take no options of gRPC.

func (w workers) AcquireWorker(ctx context.Context, req *pb.AcquireWorkerRequest,
	_ ...grpc.CallOption) (*pb.Worker, error) {
	got, err := w.a.daemon.Workers().Acquire(ctx, w.caller(), grpcserver.AcquireRequest(req))
	if err != nil {
		return nil, w.a.refusal(err)
	}
	return grpcserver.WorkerProto(got), nil
}

func (w workers) ExtendWorker(ctx context.Context, req *pb.ExtendWorkerRequest,
	_ ...grpc.CallOption) (*pb.Worker, error) {
	got, err := w.a.daemon.Workers().Extend(ctx, w.caller(), "", req.GetHandle(), grpcserver.ExtendRequest(req))
	if err != nil {
		return nil, w.a.refusal(err)
	}
	return grpcserver.WorkerProto(got), nil
}

func (w workers) ReleaseWorker(ctx context.Context, req *pb.ReleaseWorkerRequest,
	_ ...grpc.CallOption) (*pb.ReleaseWorkerResponse, error) {
	at, err := w.a.daemon.Workers().Release(ctx, w.caller(), "", req.GetHandle(), req.GetUsedUntilUnixMs())
	if err != nil {
		return nil, w.a.refusal(err)
	}
	return &pb.ReleaseWorkerResponse{ReusableFromUnixMs: int64(at)}, nil
}
