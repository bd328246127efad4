package grpcserver

import (
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
)

// StatusOf returns a refusal as a gRPC status with ErrorInfo, and with RetryInfo if
// waiting helps. Any other error is a status already, or comes from the caller's context.
func StatusOf(err error) error {
	r, ok := errors.AsType[*node.Refusal](err)
	if !ok {
		if _, ok := status.FromError(err); ok {
			return err
		}
		return status.FromContextError(err).Err()
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Reason: r.Reason.String(), Domain: server.ErrorDomain, Metadata: r.Metadata,
	}}
	if r.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.RetryAfter)})
	}
	st, err := status.New(server.WireOf(r.Reason).Code, r.Message).WithDetails(details...)
	if err != nil {
		panic(fmt.Sprintf("grpcserver: refusal %v has no wire form: %v", r, err))
	}
	return st.Err()
}

// RefusalProto returns a refusal as a message of a stream.
func RefusalProto(r *node.Refusal) *pb.Refusal {
	return &pb.Refusal{
		Reason:       pb.Reason(r.Reason),
		Message:      r.Message,
		RetryAfterMs: server.MillisUp(r.RetryAfter),
		Metadata:     r.Metadata,
	}
}
