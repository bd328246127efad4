package grpcserver

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/status/feed"
)

const heartbeatEvery = 2 * time.Second

var errNoFeed = status.Error(codes.Unimplemented, "this node has no stream of events")

// WatchEvents sends events until the caller leaves, reads too slowly or may not read any
// more, or the process stops.
func (a adminService) WatchEvents(req *pb.WatchEventsRequest, stream pb.AdminService_WatchEventsServer) error {
	s, began := a.s, a.s.service.Begin()
	if s.feed == nil {
		return errNoFeed
	}
	client := s.caller(stream.Context()).Owner()
	events, err := s.feed.Open(feed.From{After: req.GetAfter(), New: req.GetOnlyNew(), Client: client})
	if err != nil {
		refusal := s.issuer.Refused(server.StreamRefusal(err))
		s.service.Done(server.GRPCEvents, refusal, began)
		return statusOf(refusal)
	}
	defer events.Close()
	connOf(stream.Context()).Valid()
	s.service.Done(server.GRPCEvents, nil, began)
	return sending(stream.Context(), errSlow, func(ctx context.Context, send func(func() error) error) error {
		return s.sendEvents(ctx, events, func(m *pb.WatchEventsResponse) error {
			m.NowUnixMs = int64(s.issuer.Clock().Now().Wall)
			return send(func() error { return stream.Send(m) })
		})
	})
}

// sendEvents sends what events has.
func (s *Server) sendEvents(ctx context.Context, events *feed.Stream,
	send func(*pb.WatchEventsResponse) error) error {
	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	for begun := false; ; {
		batch, changed, err := events.Next()
		if err != nil {
			return statusOf(server.StreamRefusal(err))
		}
		if m := batch.Missed; m != nil {
			if err := send(&pb.WatchEventsResponse{Missed: &pb.MissedEvents{Count: m.Count, Why: m.Why}}); err != nil {
				return err
			}
		}
		for _, e := range batch.Entries {
			if err := send(&pb.WatchEventsResponse{Event: eventProto(e.Event)}); err != nil {
				return err
			}
		}
		if !batch.Empty() {
			continue
		}
		if !begun { // the caller has all that was kept
			if err := send(&pb.WatchEventsResponse{}); err != nil {
				return err
			}
			begun = true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-tick.C:
			if err := s.service.Guard().May(callerOf(ctx), access.Read); err != nil {
				return statusOf(s.service.Reject(err, callerOf(ctx),
					methods[pb.AdminService_WatchEvents_FullMethodName].Need, s.service.Begin()))
			}
			if err := send(&pb.WatchEventsResponse{}); err != nil {
				return err
			}
		}
	}
}

func eventProto(e feed.Event) *pb.Event {
	return &pb.Event{
		Id:         e.ID,
		AtUnixMs:   e.At,
		Node:       e.Node,
		Kind:       string(e.Kind),
		Sid:        int32(e.SID),
		Message:    e.Message,
		Attributes: e.Attributes,
	}
}
