package grpcserver

import (
	"context"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/grpcserver/wire"
	"github.com/flakelease/allocator/internal/status"
)

func (a allocatorService) Describe(ctx context.Context, req *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	s, began := a.s, a.s.service.Begin()
	res, err := s.reader.Describe(ctx, req.GetId(), req.GetKind())
	s.service.Done(server.GRPCDescribe, err, began)
	if err != nil {
		return nil, statusOf(err)
	}
	connOf(ctx).Valid()
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
		res.Holder = &pb.Holder{Node: h.Node, Instance: string(h.Instance), Term: h.Term, SinceUnixMs: int64(h.Since), Worker: h.Worker}
	}
	return res
}

type adminService struct {
	pb.UnimplementedAdminServiceServer
	s *Server
}

func (a adminService) GetCluster(ctx context.Context, _ *pb.GetClusterRequest) (*pb.GetClusterResponse, error) {
	s, began := a.s, a.s.service.Begin()
	c, err := s.reader.Cluster(ctx)
	s.service.Done(server.GRPCCluster, err, began)
	if err != nil {
		return nil, statusOf(err)
	}
	connOf(ctx).Valid()
	return clusterProto(c), nil
}

func clusterProto(c status.Cluster) *pb.GetClusterResponse {
	res := &pb.GetClusterResponse{
		Space: c.Space, Pool: c.Pool, Layout: wire.LayoutOf(c.LayoutValue), LayoutBits: c.LayoutValue.String(), EpochUnixMs: c.EpochUnixMs,
		Era: c.Era, EraFloorUnixMs: c.EraFloorUnixMs, Revision: c.Revision,
		Problem: c.Problem, PoolSize: int32(c.PoolSize), PoolSids: c.PoolSIDs, WorkerSids: c.WorkerSIDs,
		Self: &pb.NodeStatus{
			Name: c.Self.Name, Instance: c.Self.Instance, Ready: c.Self.Ready,
			Refusing: pb.Reason(c.Self.Refusing), Message: c.Self.Message,
			Sid: int32(c.Self.SID), Term: c.Self.Term, CeilUnixMs: c.Self.Ceil,
			NowUnixMs: c.Self.Now, Verdict: c.Self.Verdict, IdsIssued: c.Self.Issued,
			Era: c.Self.Era, Revision: c.Self.Revision, ClusterId: c.Self.Cluster, HighestCeilUnixMs: c.Self.Highest,
			Clock: clockProto(c.Self.Clock), Draining: c.Self.Draining, BaseUnixMs: c.Self.Base, LeadMs: c.Self.Lead,
			IdsPerSecond: c.Self.Rate, IdsUnverified: c.Self.Unverified, Refused: c.Self.Refused,
		},
	}
	for _, n := range c.Nodes {
		res.Nodes = append(res.Nodes, &pb.Node{
			Instance: n.Instance, Name: n.Name, Version: n.Version,
			GrpcAddress: n.GRPC, HttpAddress: n.HTTP, ConsoleUrl: n.Console, Sid: int32(n.SID), SidRange: n.SIDRange, Clock: peerClockProto(n.Clock), Report: reportProto(n.Report),
		})
	}
	for _, sid := range c.SIDs {
		res.Sids = append(res.Sids, &pb.Sid{
			Sid: int32(sid.SID), State: sid.State, Term: sid.Term, Node: sid.Node, Instance: sid.Instance,
			BaseUnixMs: sid.Base, CeilUnixMs: sid.Ceil, Problem: sid.Problem, WrittenUnixMs: sid.Written, Unreleased: sid.Unreleased, Worker: sid.Worker, Owner: sid.Owner,
		})
	}
	return res
}

func reportProto(r *status.Report) *pb.NodeReport {
	if r == nil {
		return nil
	}
	return &pb.NodeReport{
		IdsPerSecond: r.Rate, LeadMs: r.Lead, CeilUnixMs: r.Ceil, Refusing: pb.Reason(r.Refusing), AgeMs: r.Age,
	}
}

func clockProto(v *status.Clock) *pb.Clock {
	if v == nil {
		return nil
	}
	return &pb.Clock{
		State: v.State, Phase: v.Phase, Finding: v.Finding,
		Known: v.Known, OffsetUs: v.Offset, UncertaintyUs: v.Uncertainty, LimitUs: v.Limit,
		Registered: int32(v.Registered), Quorum: int32(v.Quorum),
		Agree: int32(v.Agree), Disagree: int32(v.Disagree), Ambiguous: int32(v.Ambiguous), Silent: int32(v.Silent),
		Falsetickers: v.Falsetickers, Shuts: int64(v.Shuts), UnverifiedUs: v.Unverified,
		StepsForward: v.StepsForward, StepsBack: v.StepsBack, StepPending: v.StepPending, StepBlocked: v.StepBlocked,
		HeldUs: v.Held, Suspends: v.Suspends, Stalls: v.Stalls,
		Kernel:        &pb.KernelClock{Known: v.Kernel.Known, Synchronized: v.Kernel.Synchronized, MaxErrorUs: v.Kernel.MaxError},
		GossipMembers: int32(v.GossipMembers), GossipAddress: v.GossipAddress,
	}
}

func peerClockProto(v *status.PeerClock) *pb.PeerClock {
	if v == nil {
		return nil
	}
	return &pb.PeerClock{
		Verdict: v.Verdict, Sid: int32(v.SID), Fresh: v.Fresh, OffsetUs: v.Offset, ErrorUs: v.Error,
		WallOffsetUs: v.Wall, RttUs: v.RTT, AgeUs: v.Age, Self: v.Self, Falseticker: v.Falseticker,
	}
}
