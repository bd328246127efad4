package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/ulid"
)

// maxBlock is how many IDs a request over gRPC may ask for.
const maxBlock = 1_000_000

// serve answers a request over gRPC, or refuses it. The error ends the call or the stream; again: the
// answer is sent twice.
func (n *scripted) serve(ctx context.Context, r *pb.AllocateRequest) (res *pb.AllocateResponse, no *pb.Refusal,
	again bool, err error) {
	q := request{count: int(r.GetCount()), form: "int", after: flake.ID(r.GetAfter())}
	if v := metadata.ValueFromIncomingContext(ctx, "authorization"); len(v) > 0 {
		q.token = strings.TrimPrefix(v[0], "Bearer ")
	}
	o := n.decide(q, maxBlock)
	if o.refuse != 0 {
		return nil, o.refusal(), false, nil
	}
	if err := n.carry(ctx, o); err != nil {
		return nil, nil, false, err
	}
	layout := pb.Layout_LAYOUT_SCALABLE
	switch o.act {
	case "unknown":
		return nil, &pb.Refusal{Reason: 9999, Message: "of a later version"}, false, nil
	case "layout":
		layout = pb.Layout_LAYOUT_FLEET
	}
	return &pb.AllocateResponse{
		First:       o.ids[0].Int64(),
		Count:       int32(len(o.ids)),
		Stride:      stride(o.ids),
		Node:        fmt.Sprint("node-", n.sid),
		Sid:         int32(n.sid),
		Layout:      layout,
		EpochUnixMs: flake.DefaultEpoch,
		SpaceId:     o.space(),
	}, nil, o.act == "twice", nil
}

// refusal is how gRPC says that a request is refused.
func (o outcome) refusal() *pb.Refusal {
	no := &pb.Refusal{Reason: pb.Reason(o.refuse), Message: o.detail, RetryAfterMs: o.retry.Milliseconds()}
	if o.refuse == node.InvalidCount {
		no.Metadata = map[string]string{"limit": strconv.Itoa(o.limit)}
	}
	return no
}

// carry does to an answer on its way what the script says: the error takes its place.
func (n *scripted) carry(ctx context.Context, o outcome) error {
	n.mu.Lock()
	done := n.done
	n.mu.Unlock()
	switch o.act {
	case "late":
		ms, _ := strconv.Atoi(o.arg)
		select {
		case <-time.After(time.Duration(ms) * time.Millisecond):
		case <-ctx.Done():
		case <-done:
		}
	case "hang":
		select {
		case <-ctx.Done():
		case <-done:
		}
		return status.FromContextError(context.Canceled).Err()
	case "drop", "cut":
		n.hangUp()
		return status.Error(codes.Unavailable, "the connection is lost")
	case "html":
		return status.Error(codes.Unavailable, "unexpected HTTP status code received from server: 502")
	}
	return nil
}

func stride(ids []flake.ID) int64 {
	if len(ids) < 2 {
		return flake.Default.Layout.Stride()
	}
	return int64(ids[1] - ids[0])
}

// Allocate serves a unary request.
func (n *scripted) Allocate(ctx context.Context, r *pb.AllocateRequest) (*pb.AllocateResponse, error) {
	res, no, _, err := n.serve(ctx, r)
	if no == nil {
		return res, err
	}
	return nil, statusOf(no)
}

// statusOf returns the error of a unary call that is refused.
func statusOf(no *pb.Refusal) error {
	reason := node.Reason(no.Reason).String()
	code := server.WireOf(node.Reason(no.Reason)).Code
	if no.Reason == 9999 {
		reason, code = laterReason, codes.Unavailable
	}
	st, err := status.New(code, no.Message).WithDetails(
		&errdetails.ErrorInfo{Reason: reason, Domain: server.ErrorDomain, Metadata: no.Metadata})
	if err == nil && no.RetryAfterMs > 0 {
		delay := durationpb.New(time.Duration(no.RetryAfterMs) * time.Millisecond)
		st, err = st.WithDetails(&errdetails.RetryInfo{RetryDelay: delay})
	}
	if err != nil {
		return err
	}
	return st.Err()
}

// AllocateStream serves the requests of a stream.
func (n *scripted) AllocateStream(stream pb.AllocatorService_AllocateStreamServer) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		res, no, again, err := n.serve(stream.Context(), r.GetRequest())
		if err != nil {
			return err
		}
		out := &pb.AllocateStreamResponse{Sequence: r.GetSequence()}
		if no != nil {
			out.Result = &pb.AllocateStreamResponse_Refusal{Refusal: no}
		} else {
			out.Result = &pb.AllocateStreamResponse_Response{Response: res}
		}
		if err := stream.Send(out); err != nil {
			return err
		}
		if again {
			if err := stream.Send(out); err != nil {
				return err
			}
		}
	}
}

// mark is the watermark of the next answer: it rises by a millisecond with every third request for it.
func (n *scripted) mark() *pb.Watermark {
	n.mu.Lock()
	defer n.mu.Unlock()
	at := start.UnixMilli() + int64(n.marks/3)
	n.marks++
	id, err := flake.Default.Min(at)
	w, bad := ulid.FromFlake(flake.Default, id, 0)
	if err = errors.Join(err, bad); err != nil {
		panic("conformance: " + err.Error()) // start is in 2026, which the layout has
	}
	return &pb.Watermark{UnixMs: at, Int: id.Int64(), Flake: id.String(), Ulid: w.String(), Uuid: w.UUID()}
}

// GetWatermark answers with the watermark at once, whatever it was asked to wait for.
func (n *scripted) GetWatermark(ctx context.Context, _ *pb.GetWatermarkRequest) (*pb.Watermark, error) {
	return n.mark(), n.now().nameOver(ctx)
}

// nameOver is name over gRPC.
func (o outcome) nameOver(ctx context.Context) error {
	if id := o.space(); id != 0 {
		return grpc.SetHeader(ctx, metadata.Pairs(spaceHeader, fmt.Sprintf("%016x", id)))
	}
	return nil
}

// watermark is the same over HTTP.
func (n *scripted) watermark() []byte {
	m := n.mark()
	return encode(map[string]any{"unix_ms": m.UnixMs, "int": strconv.FormatInt(m.Int, 10), "flake": m.Flake,
		"ulid": m.Ulid, "uuid": m.Uuid, "lag_ms": 0, "blocked_by": []any{}, "not_covered": []any{}, "held": false})
}
