package grpcserver

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/operate"
	"github.com/flakelease/allocator/internal/server"
)

func (a adminService) Drain(ctx context.Context, _ *pb.DrainRequest) (*pb.DrainResponse, error) {
	s, began := a.s, a.s.service.Begin()
	d, err := s.cfg.Drainer.Drain(ctx)
	if err != nil { // It is no refusal, and no other outcome of a request.
		return nil, drainStatus(err)
	}
	s.service.Done(server.GRPCDrain, nil, began)
	self := s.issuer.Stats()
	res := &pb.DrainResponse{
		Node:       self.Name,
		Instance:   string(self.Instance),
		Sid:        -1,
		Term:       d.Term,
		Released:   d.Released,
		CeilUnixMs: int64(d.Ceil),
		IdsIssued:  d.Issued,
	}
	if d.Held {
		res.Sid = int32(d.SID)
	}
	return res, nil
}

func (a adminService) Undrain(_ context.Context, _ *pb.UndrainRequest) (*pb.UndrainResponse, error) {
	s, began := a.s, a.s.service.Begin()
	was, err := s.cfg.Drainer.Undrain()
	if err != nil {
		return nil, drainStatus(err)
	}
	s.service.Done(server.GRPCUndrain, nil, began)
	self := s.issuer.Stats()
	return &pb.UndrainResponse{Node: self.Name, Instance: string(self.Instance), WasDrained: was}, nil
}

// drainStatus returns an error of a drain or an undrain as a gRPC status.
func drainStatus(err error) error {
	switch {
	case errors.Is(err, operate.ErrUndone):
		return status.Error(codes.Aborted, err.Error())
	case errors.Is(err, operate.ErrStopping):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, operate.ErrNotReleased):
		return status.Error(codes.Internal, err.Error())
	}
	return status.FromContextError(err).Err()
}
