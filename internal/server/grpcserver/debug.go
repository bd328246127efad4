package grpcserver

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/server"
)

// Debug passes what explains a fault to send, as files, until ctx ends or send fails. With profile it takes one of
// the processor for that time, and adds the goroutines. It is called by one caller at a time.
type Debug func(ctx context.Context, profile time.Duration, send func(name string, data []byte) error) error

const (
	maxProfile = 10 * time.Second
	// debugTime is how long a call may take besides its profile: a caller that reads slowly keeps others out. One
	// that does not read at all does so for slowAfter. A node that is overloaded needs time too.
	debugTime = 30 * time.Second
	// debugPart is how many bytes of a file are in a message.
	debugPart = 32 << 10
)

func (a adminService) GetDebug(req *pb.GetDebugRequest, stream pb.AdminService_GetDebugServer) error {
	s := a.s
	profile := time.Duration(req.GetProfileMs()) * time.Millisecond
	switch {
	case profile < 0 || profile > maxProfile:
		return status.Errorf(codes.InvalidArgument, "profile_ms is %d: it must be 0 to %d", req.GetProfileMs(),
			maxProfile.Milliseconds())
	case !s.debugging.TryLock():
		return status.Error(codes.ResourceExhausted,
			"another caller is sent these files now: call again in 30 s")
	}
	if s.service.Guard().May(s.caller(stream.Context()), access.Admin) != nil {
		profile = 0
	}
	ctx, cancel := context.WithTimeout(stream.Context(), profile+debugTime)
	defer cancel()
	err := sending(ctx, errUnread, func(ctx context.Context, send func(func() error) error) error {
		defer s.debugging.Unlock()
		return s.cfg.Debug(ctx, profile, func(name string, data []byte) error {
			for part := range slices.Chunk(data, debugPart) {
				message := &pb.DebugPart{Name: name, Data: part}
				if err := errors.Join(ctx.Err(), send(func() error { return stream.Send(message) })); err != nil {
					return err
				}
			}
			return nil
		})
	})
	s.service.Done(server.GRPCCluster, err, s.service.Begin()) // How long it took says nothing.
	return StatusOf(err)
}
