package grpcserver

import (
	"context"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/wire"
)

func (a allocatorService) Describe(ctx context.Context, req *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	s, began := a.s, a.s.service.Begin()
	res, err := s.describe(ctx, req.GetId(), req.GetKind())
	s.service.Done(server.GRPCDescribe, err, began)
	if err != nil {
		return nil, StatusOf(err)
	}
	return describeProto(res, s.service.Limits().Format), nil
}

func describeProto(d status.Decoded, f flake.Format) *pb.DescribeResponse {
	res := &pb.DescribeResponse{
		Kind:          string(d.ID.Kind),
		Layout:        wire.LayoutOf(f.Layout),
		LayoutBits:    f.Layout.String(),
		EpochUnixMs:   f.Epoch,
		HolderProblem: d.Problem,
	}
	if d.ID.Kind != describe.Flake {
		res.Ulid, res.Uuid = d.ID.Wide.String(), d.ID.Wide.UUID()
		res.UnixMs = d.ID.Wide.UnixMilli()
	}
	if d.HasFlake {
		v := d.Flake.Int64()
		res.Flake = &v
		res.Base32 = d.Flake.String()
		res.UnixMs = f.UnixMilli(d.Flake)
		res.TimestampMs = f.UnixMilli(d.Flake) - f.Epoch
		res.Randomness = int64(f.Entropy(d.Flake))
		res.Sid = int32(f.SID(d.Flake))
	}
	if h := d.Holder; h != nil {
		res.Holder = &pb.Holder{
			Node:        h.Node,
			Instance:    string(h.Instance),
			Term:        h.Term,
			SinceUnixMs: int64(h.Since),
			Worker:      h.Worker,
		}
	}
	return res
}

type adminService struct {
	pb.UnimplementedAdminServiceServer
	s *Server
}

func (a adminService) GetCluster(ctx context.Context, _ *pb.GetClusterRequest) (*pb.GetClusterResponse, error) {
	s, began := a.s, a.s.service.Begin()
	c, err := s.cfg.Reader.Cluster(ctx)
	s.service.Done(server.GRPCCluster, err, began)
	if err != nil {
		return nil, StatusOf(err)
	}
	return status.ToProto(c), nil
}
