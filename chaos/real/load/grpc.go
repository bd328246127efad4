package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	allocatorv1 "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
)

// grpc connects to a node when first used, and again whenever it comes back.
func (l *Load) grpc(n *Node) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+n.GRPC,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return l.Dial(ctx, "tcp", addr) }),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second,
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, MaxDelay: 300 * time.Millisecond}}))
	if err != nil { // of options that contradict each other
		panic(fmt.Sprintf("load: grpc client: %v", err))
	}
	return conn
}

type unaryAsker struct {
	load *Load
	conn *grpc.ClientConn
}

func (u *unaryAsker) close() { _ = u.conn.Close() }

func (u *unaryAsker) ask(ctx context.Context, count int, after flake.ID) (answer, error) {
	resp, err := allocatorv1.NewAllocatorServiceClient(u.conn).Allocate(ctx, &allocatorv1.AllocateRequest{Count: int32(count), After: int64(after)})
	if err != nil {
		return fromError(err), nil
	}
	return u.load.checked(blockOf(resp), count, after)
}

func blockOf(r *allocatorv1.AllocateResponse) history.Block {
	return history.Block{First: flake.ID(r.GetFirst()), Count: int64(r.GetCount()), Stride: r.GetStride()}
}

// fromError tells a refusal, which says that nothing was issued, from an error
// that says nothing.
func fromError(err error) answer {
	s := status.Convert(err)
	a := answer{info: true, reason: "connection"}
	switch s.Code() {
	case codes.DeadlineExceeded:
		a.reason = "timeout"
	case codes.Canceled:
		a.reason = "canceled"
	}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			a.info, a.reason = false, d.GetReason()
		case *errdetails.RetryInfo:
			a.retry = d.GetRetryDelay().AsDuration()
		}
	}
	return a
}

// streamAsker keeps one stream open for as long as it works.
type streamAsker struct {
	load *Load
	conn *grpc.ClientConn
	s    allocatorv1.AllocatorService_AllocateStreamClient
	end  context.CancelFunc
	seq  int64
}

func (a *streamAsker) close() {
	a.hangUp()
	_ = a.conn.Close()
}

func (a *streamAsker) hangUp() {
	if a.end != nil {
		a.end()
	}
	a.s, a.end = nil, nil
}

func (a *streamAsker) ask(ctx context.Context, count int, after flake.ID) (answer, error) {
	out, err := a.exchange(ctx, count, after)
	if err != nil {
		a.hangUp()
		if errors.Is(err, errContract) {
			return out, err
		}
		out = fromError(err)
		if ctx.Err() != nil {
			out.reason = "timeout"
		}
		return out, nil
	}
	return out, nil
}

// send asks, and opens a stream first if there is none.
func (a *streamAsker) send(ctx context.Context, count int, after flake.ID) (stop func() bool, err error) {
	if a.s == nil {
		open, end := context.WithCancel(context.Background()) // the stream outlives the call
		a.end = end
		s, err := allocatorv1.NewAllocatorServiceClient(a.conn).AllocateStream(open)
		if err != nil {
			return nil, err
		}
		a.s = s
	}
	stop = context.AfterFunc(ctx, a.end)
	a.seq++
	if err := a.s.Send(&allocatorv1.AllocateStreamRequest{Sequence: a.seq,
		Request: &allocatorv1.AllocateRequest{Count: int32(count), After: int64(after)}}); err != nil {
		stop()
		_, got := a.s.Recv() // Send says only that the stream has ended; Recv says why
		return nil, got
	}
	return stop, nil
}

func (a *streamAsker) exchange(ctx context.Context, count int, after flake.ID) (answer, error) {
	old := a.s != nil
	stop, err := a.send(ctx, count, after)
	if err != nil && old && ctx.Err() == nil {
		// It ended while nobody used it, which says nothing of the node now. Nothing
		// was asked.
		a.hangUp()
		stop, err = a.send(ctx, count, after)
	}
	if err != nil {
		return answer{}, err
	}
	defer stop()
	resp, err := a.s.Recv()
	switch {
	case err != nil:
		return answer{}, err
	case resp.GetSequence() != a.seq:
		return answer{info: true, reason: "sequence"}, fmt.Errorf("%w: answer %d to request %d", errContract, resp.GetSequence(), a.seq)
	}
	if refusal := resp.GetRefusal(); refusal != nil {
		return answer{reason: strings.TrimPrefix(refusal.GetReason().String(), "REASON_"),
			retry: time.Duration(refusal.GetRetryAfterMs()) * time.Millisecond}, nil
	}
	return a.load.checked(blockOf(resp.GetResponse()), count, after)
}
