package server

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/lease"
)

// drainTimeout bounds a drain asked for over gRPC: sealing is instant, and
// giving the sid back is a write and a revoke, each tried more than once.
const drainTimeout = 15 * time.Second

// drained is what an operator's drain found and left.
type drained struct {
	grant lease.Grant
	held  bool // grant is what the node held when it was first asked
}

func (a adminService) Drain(ctx context.Context, _ *pb.DrainRequest) (*pb.DrainResponse, error) {
	s, began := a.s, a.s.began()
	if s.cfg.Drain == nil {
		return nil, status.Error(codes.Unimplemented, "this node cannot be drained by a call: stop it with SIGTERM")
	}
	res, err := s.drainByCall(ctx)
	if err == nil { // an error is no refusal, and nothing of a request's outcomes
		s.done(GRPCDrain, outcomeOK, began)
	}
	return res, err
}

// drainByCall drains once for all who ask at the same time, and goes on when
// they leave: half a drain is worse than a late answer.
func (s *Server) drainByCall(ctx context.Context) (*pb.DrainResponse, error) {
	s.mu.Lock()
	if s.drained == nil {
		l := s.node.Stats().Lease
		s.drained = &drained{grant: l.Grant, held: l.Held}
	}
	before := *s.drained
	s.mu.Unlock()
	s.Drain() // refuse first: what is issued from here on could not be given back
	result := s.drains.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		s.log.Info("drained by an operator", "node", s.node.Config().Name, "held", before.held, "sid", before.grant.SID)
		if err := s.cfg.Drain(ctx); err != nil {
			s.log.Warn("the sid could not be given back", "error", err)
			return nil, status.Errorf(codes.Internal, "the node refuses from now on, but its sid could not be given back: %v", err)
		}
		return s.afterDrain(ctx, before)
	})
	select {
	case r := <-result:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*pb.DrainResponse), nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// afterDrain says what etcd's record has, which is what the next holder goes by.
func (s *Server) afterDrain(ctx context.Context, before drained) (*pb.DrainResponse, error) {
	cfg := s.node.Config()
	res := &pb.DrainResponse{
		Node: cfg.Name, Instance: string(cfg.Instance), Sid: -1, IdsIssued: s.node.Stats().Issued,
	}
	if !before.held {
		return res, nil
	}
	res.Sid, res.Term = int32(before.grant.SID), before.grant.Term
	v, err := s.cfg.Directory.Load(ctx)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "the node is drained, but whether its sid %d was given back is unknown: %v", before.grant.SID, err)
	}
	w := v.SIDs[before.grant.SID].Window
	switch {
	case w.Err != nil || !w.Exists():
	case w.Value.Term > before.grant.Term: // somebody has taken it since
		res.Released = true
	case w.Value.Term == before.grant.Term && w.Value.Instance == cfg.Instance && w.Value.State == lease.Released:
		res.Released, res.CeilUnixMs = true, int64(w.Value.Ceil)
	}
	return res, nil
}
