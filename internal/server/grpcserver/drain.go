package grpcserver

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/server"
)

// drainTimeout bounds a drain by a call: the release of the sid is a write and a
// revoke, each with retries.
const drainTimeout = 15 * time.Second

// release is what the node held at the first drain by a call.
type release struct {
	grant lease.Grant
	held  bool // the node held grant
}

// errNoDrain answers on a node whose program decides itself when it issues.
var errNoDrain = status.Error(codes.Unimplemented, "this node cannot be drained by a call: stop it with SIGTERM")

func (a adminService) Drain(ctx context.Context, _ *pb.DrainRequest) (*pb.DrainResponse, error) {
	s, began := a.s, a.s.service.Begin()
	if err := s.authorizeAdmin(ctx, pb.AdminService_Drain_FullMethodName); err != nil {
		return nil, err
	}
	res, err := s.DrainNode(ctx)
	if err == nil { // an error here is no refusal, and no other outcome of a request
		s.service.Done(server.GRPCDrain, nil, began)
	}
	return res, err
}

func (a adminService) Undrain(ctx context.Context, _ *pb.UndrainRequest) (*pb.UndrainResponse, error) {
	s, began := a.s, a.s.service.Begin()
	if err := s.authorizeAdmin(ctx, pb.AdminService_Undrain_FullMethodName); err != nil {
		return nil, err
	}
	was, err := s.UndrainNode()
	if err != nil {
		return nil, err
	}
	s.service.Done(server.GRPCUndrain, nil, began)
	cfg := s.node.Config()
	return &pb.UndrainResponse{Node: cfg.Name, Instance: string(cfg.Instance), WasDrained: was}, nil
}

// UndrainNode undoes DrainNode, and ends one that is under way. It reports whether the
// node was drained. Its error has a gRPC status.
func (s *Server) UndrainNode() (was bool, err error) {
	if s.drain == nil {
		return false, errNoDrain
	}
	s.mu.Lock()
	if s.giveUp != nil && !s.stopping {
		s.giveUp()
	}
	s.mu.Unlock()
	s.change.Lock() // a drain has ended
	defer s.change.Unlock()
	was = s.node.Stats().Draining
	if !s.readmit() {
		return false, status.Error(codes.FailedPrecondition, "the node is stopping: start it again")
	}
	if was {
		s.undrain()
		s.log.Info("drain undone by an operator", "node", s.node.Config().Name)
	}
	s.CheckHealth()
	return was, nil
}

// DrainNode drains once for all concurrent calls. It goes on when the callers leave, so
// that no drain stops halfway. Its error has a gRPC status.
func (s *Server) DrainNode(ctx context.Context) (*pb.DrainResponse, error) {
	if s.drain == nil {
		return nil, errNoDrain
	}
	result := s.drains.DoChan("", func() (any, error) {
		s.change.Lock()
		defer s.change.Unlock()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		before := s.beginDrain(cancel)
		s.log.Info("drain requested by an operator", "node", s.node.Config().Name, "held", before.held, "sid", before.grant.SID)
		s.refuse() // first: a window cannot be released while IDs are issued from it
		err := s.drain(ctx)
		switch {
		case context.Cause(ctx) == context.Canceled:
			return nil, status.Error(codes.Aborted, "the drain was undone by another call before it ended")
		case err != nil:
			s.log.Warn("release of the sid failed", "error", err)
			return nil, status.Errorf(codes.Internal, "the node refuses requests now, but the release of its sid failed: %v; stop the process, or wait for its lease to expire", err)
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

// beginDrain returns what the node held at the first drain, and keeps what ends this one.
func (s *Server) beginDrain(giveUp context.CancelFunc) release {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.giveUp = giveUp
	if s.released == nil {
		l := s.node.Stats().Lease
		s.released = &release{grant: l.Grant, held: l.Held}
	}
	return *s.released
}

// afterDrain returns the state in etcd, which is what the next holder reads.
func (s *Server) afterDrain(ctx context.Context, before release) (*pb.DrainResponse, error) {
	cfg := s.node.Config()
	res := &pb.DrainResponse{
		Node: cfg.Name, Instance: string(cfg.Instance), Sid: -1, IdsIssued: s.node.Stats().Issued,
	}
	if !before.held {
		return res, nil
	}
	res.Sid, res.Term = int32(before.grant.SID), before.grant.Term
	w, err := s.reader.Window(ctx, before.grant.SID)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "the node refuses requests now, but whether its sid %d was released is unknown: the read from etcd failed: %v; call Drain again", before.grant.SID, err)
	}
	switch {
	case w.Err != nil || !w.Exists():
	case w.Value.Term > before.grant.Term: // another holder has acquired it since
		res.Released = true
	case w.Value.Term == before.grant.Term && w.Value.Instance == cfg.Instance && w.Value.State == lease.Released:
		res.Released, res.CeilUnixMs = true, int64(w.Value.Ceil)
	}
	return res, nil
}
