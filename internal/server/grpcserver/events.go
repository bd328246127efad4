package grpcserver

import (
	"context"
	"errors"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/status/feed"
)

const heartbeatEvery = 2 * time.Second

// WatchEvents sends events until the caller leaves, reads too slowly or may not read any
// more, or the process stops.
func (a adminService) WatchEvents(req *pb.WatchEventsRequest, stream pb.AdminService_WatchEventsServer) error {
	s, began := a.s, a.s.service.Begin()
	client := s.caller(stream.Context()).Owner()
	events, err := s.cfg.Feed.Open(feed.From{After: req.GetAfter(), New: req.GetOnlyNew(), Client: client})
	if err != nil {
		refusal := s.issuer.Refused(server.StreamRefusal(err))
		s.service.Done(server.GRPCEvents, refusal, began)
		return StatusOf(refusal)
	}
	defer events.Close()
	connOf(stream.Context()).Valid()
	s.service.Done(server.GRPCEvents, nil, began)
	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	err = sending(stream.Context(), errSlow, func(ctx context.Context, send func(func() error) error) error {
		err := events.Follow(ctx, tick.C, func(b feed.Batch) error {
			if err := s.service.Guard().May(callerOf(ctx), access.Read); b.Empty() && err != nil {
				return s.service.Reject(err, callerOf(ctx),
					methods[pb.AdminService_WatchEvents_FullMethodName].Need, s.service.Begin())
			}
			for _, m := range messagesOf(b) {
				m.NowUnixMs = int64(s.issuer.Clock().Now().Wall)
				if err := send(func() error { return stream.Send(m) }); err != nil {
					return err
				}
			}
			return nil
		})
		if errors.Is(err, feed.ErrEnded) {
			return server.StreamRefusal(err)
		}
		return err
	})
	return StatusOf(err)
}

// messagesOf returns a batch as gRPC has it. An empty one is a sign of life.
func messagesOf(b feed.Batch) (out []*pb.WatchEventsResponse) {
	if b.Empty() {
		return []*pb.WatchEventsResponse{{}}
	}
	if m := b.Missed; m != nil {
		out = append(out, &pb.WatchEventsResponse{Missed: &pb.MissedEvents{Count: m.Count, Why: m.Why}})
	}
	for _, e := range b.Entries {
		out = append(out, &pb.WatchEventsResponse{Event: eventProto(e.Event)})
	}
	return out
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
