package grpcserver

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/status/feed"
)

const (
	heartbeatEvery = 2 * time.Second
	// slowAfter is how long a message may wait for the client to read those before it.
	slowAfter = 5 * time.Second
)

var (
	errNoFeed = status.Error(codes.Unimplemented, "this node has no stream of events")
	errSlow   = status.Errorf(codes.ResourceExhausted,
		"the stream was not read for %v: call again with after, the id of the latest event", slowAfter)
)

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
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() { ended <- s.sendEvents(ctx, cancel, events, stream) }() // Send waits for the client
	select {
	case err := <-ended:
		return err
	case <-ctx.Done(): // a Send that waits ends when this returns
		if cause := context.Cause(ctx); errors.Is(cause, errSlow) {
			return cause
		}
		return status.FromContextError(ctx.Err()).Err()
	}
}

// sendEvents sends what events has. It cancels ctx if a message waits too long.
func (s *Server) sendEvents(ctx context.Context, cancel context.CancelCauseFunc, events *feed.Stream,
	stream pb.AdminService_WatchEventsServer) error {
	late := time.AfterFunc(slowAfter, func() { cancel(errSlow) })
	defer late.Stop()
	send := func(m *pb.WatchEventsResponse) error {
		m.NowUnixMs = int64(s.issuer.Clock().Now().Wall)
		late.Reset(slowAfter)
		defer late.Stop()
		return stream.Send(m)
	}
	late.Stop()
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
