package grpcserver

import (
	"context"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/server"
	clusterstatus "github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/watermark"
)

// waitBytes is what a call that waits was measured to hold besides what frames count: 13 kB together.
const waitBytes = 8 << 10

// GetWatermark answers what the watermark is, and may wait before.
func (a allocatorService) GetWatermark(ctx context.Context, req *pb.GetWatermarkRequest) (*pb.Watermark, error) {
	wait := time.Duration(math.MaxInt64) // more than is allowed
	if ms := req.GetWaitMs(); ms <= watermark.MaxWait.Milliseconds() {
		wait = time.Duration(max(ms, -1)) * time.Millisecond
	}
	service, conn := a.s.service, connOf(ctx)
	if wait > 0 {
		conn.Rest(1)
		conn.Hold(waitBytes)
		defer func() {
			conn.Rest(-1)
			conn.Hold(-waitBytes)
		}()
	}
	mark, err := service.Watermark(ctx, a.s.caller(ctx).Owner(), flake.ID(req.GetAfter()), wait, conn.Valid)
	service.Done(server.GRPCWatermark, err, service.Begin()) // How long it waited says nothing.
	if err != nil {
		return nil, StatusOf(err)
	}
	a.s.name(ctx)
	return clusterstatus.WatermarkProto(mark), nil
}

// WatchWatermark sends the watermark until the caller leaves, reads too slowly or may not read
// any more, or the node cannot answer.
func (a allocatorService) WatchWatermark(_ *pb.WatchWatermarkRequest,
	stream pb.AllocatorService_WatchWatermarkServer) error {
	s := a.s
	caller := s.caller(stream.Context())
	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	err := sending(stream.Context(), errSlow, func(ctx context.Context, send func(func() error) error) error {
		return s.service.WatchWatermark(ctx, caller.Owner(), tick.C, func(mark *watermark.Shared, due bool) error {
			if err := s.service.Guard().May(caller, access.Read); due && err != nil {
				return s.issuer.Refused(server.AccessRefusal(err, caller, access.Read))
			}
			message, err := mark.Bytes(watermark.Message, func(a watermark.Answer) ([]byte, error) {
				return proto.Marshal(clusterstatus.WatermarkProto(a))
			})
			if err != nil {
				return err
			}
			return send(func() error { return stream.SendMsg(encoded(message)) })
		})
	})
	s.service.Done(server.GRPCWatermark, err, s.service.Begin())
	return StatusOf(err)
}
