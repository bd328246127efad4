package client_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/node"
)

// fake is a node that follows a script, for faults that a real node cannot be made
// to have at the right moment. TestContract compares it with a real one.
type fake struct {
	pb.UnimplementedAllocatorServiceServer
	addr string
	sid  flake.SID
	grpc *grpc.Server

	// script, if set, is asked before each request and says what becomes of it.
	script atomic.Pointer[func(ctx context.Context, number int64, req *pb.AllocateRequest) act]
	asked  atomic.Int64 // requests
	open   atomic.Int64 // streams

	// marks, if set, answers for watermarks; else there is no such call.
	marks atomic.Pointer[func(context.Context, *pb.GetWatermarkRequest) (*pb.Watermark, client.Reason)]

	mu   sync.Mutex // guards word
	word int64      // the last ID, without the sid
	ends chan struct{}

	limit string // that an INVALID_COUNT names; "": 1,000,000
}

// act is what a fake does with a request. The zero act answers it.
type act struct {
	refuse client.Reason
	retry  time.Duration
	lose   bool                       // serve it, end the stream, and answer nothing
	hang   bool                       // serve it, and answer nothing
	mangle func(*pb.AllocateResponse) // change the answer

	renumber int64 // is added to the answer's number, on a stream
}

// newFake runs a fake node. Fakes of one test need different sids.
func newFake(t testing.TB, sid flake.SID, opts ...grpc.ServerOption) *fake {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	f := &fake{addr: l.Addr().String(), sid: sid, ends: make(chan struct{})}
	f.grpc = grpc.NewServer(opts...)
	pb.RegisterAllocatorServiceServer(f.grpc, f)
	served := make(chan error, 1)
	go func() { served <- f.grpc.Serve(l) }()
	stop := sync.OnceFunc(func() {
		close(f.ends)
		f.grpc.Stop()
		<-served
	})
	t.Cleanup(stop)
	return f
}

// act makes every later request end as do returns.
func (f *fake) act(do func(ctx context.Context, number int64, req *pb.AllocateRequest) act) {
	f.script.Store(&do)
}

// always makes every later request end in the same way.
func (f *fake) always(a act) {
	f.act(func(context.Context, int64, *pb.AllocateRequest) act { return a })
}

// wordOf returns the word of now.
func wordOf(at time.Time) int64 {
	return (at.UnixMilli() - flake.DefaultEpoch) << 15
}

func (f *fake) issue(n int32, after int64) *pb.AllocateResponse {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := max(f.word+1, wordOf(time.Now()), after>>5+1)
	f.word = first + int64(n) - 1
	return &pb.AllocateResponse{First: first<<5 | int64(f.sid), Count: n, Stride: 32, Node: fmt.Sprint("fake-", f.sid),
		Sid: int32(f.sid), Layout: pb.Layout_LAYOUT_SCALABLE, EpochUnixMs: flake.DefaultEpoch}
}

var errLost = errors.New("fake: the answer is lost")

// serve answers a request, refuses it, or loses it.
func (f *fake) serve(ctx context.Context, req *pb.AllocateRequest) (_ *pb.AllocateResponse, _ *pb.Refusal, renumber int64, _ error) {
	number, a := f.asked.Add(1), act{}
	if do := f.script.Load(); do != nil {
		a = (*do)(ctx, number, req)
	}
	if a.refuse == "" && (req.Count < 1 || req.Count > 1_000_000) {
		a.refuse = client.InvalidCount
	}
	if a.refuse != "" {
		return nil, &pb.Refusal{Reason: pb.Reason(node.ReasonOf(string(a.refuse))), Message: "by script",
			RetryAfterMs: a.retry.Milliseconds(), Metadata: map[string]string{"limit": cmp.Or(f.limit, "1000000")}}, a.renumber, nil
	}
	res := f.issue(req.Count, req.After)
	switch {
	case a.lose:
		return nil, nil, 0, status.Error(codes.Unavailable, errLost.Error())
	case a.hang:
		select {
		case <-ctx.Done():
		case <-f.ends:
		}
		return nil, nil, 0, status.FromContextError(context.Canceled).Err()
	case a.mangle != nil:
		a.mangle(res)
	}
	return res, nil, a.renumber, nil
}

func (f *fake) GetWatermark(ctx context.Context, req *pb.GetWatermarkRequest) (*pb.Watermark, error) {
	do := f.marks.Load()
	if do == nil {
		return f.UnimplementedAllocatorServiceServer.GetWatermark(ctx, req)
	}
	res, refused := (*do)(ctx, req)
	if refused != "" {
		return nil, refusalError(&pb.Refusal{Reason: pb.Reason(node.ReasonOf(string(refused))), Message: "by script", RetryAfterMs: 50})
	}
	return res, ctx.Err()
}

func (f *fake) Allocate(ctx context.Context, req *pb.AllocateRequest) (*pb.AllocateResponse, error) {
	res, refusal, _, err := f.serve(ctx, req)
	if refusal == nil {
		return res, err
	}
	return nil, refusalError(refusal)
}

func refusalError(refusal *pb.Refusal) error {
	info := &errdetails.ErrorInfo{Reason: node.Reason(refusal.Reason).String(), Metadata: refusal.Metadata}
	st := status.New(codes.Unavailable, refusal.Message)
	if d, err := st.WithDetails(info); err == nil {
		st = d
	}
	if refusal.RetryAfterMs > 0 {
		if d, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Duration(refusal.RetryAfterMs) * time.Millisecond)}); err == nil {
			st = d
		}
	}
	return st.Err()
}

func (f *fake) AllocateStream(stream pb.AllocatorService_AllocateStreamServer) error {
	f.open.Add(1)
	defer f.open.Add(-1)
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		res, refusal, renumber, err := f.serve(stream.Context(), req.GetRequest())
		if err != nil {
			return err
		}
		out := &pb.AllocateStreamResponse{Sequence: req.GetSequence() + renumber}
		if refusal != nil {
			out.Result = &pb.AllocateStreamResponse_Refusal{Refusal: refusal}
		} else {
			out.Result = &pb.AllocateStreamResponse_Response{Response: res}
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

// callLog records the calls of one client, and the IDs they returned.
type callLog struct {
	ticks atomic.Int64 // real time: rises whenever somebody looks
	mu    sync.Mutex   // guards given
	given []given
}

type given struct {
	began, ended int64
	block        client.Block
}

// call makes one call and records its IDs.
func (w *callLog) call(do func() (client.Block, error)) error {
	began := w.ticks.Add(1)
	b, err := do()
	ended := w.ticks.Add(1)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.given = append(w.given, given{began, ended, b})
	w.mu.Unlock()
	return nil
}

// check fails if an ID was returned twice (I1), or if a call that began
// after another had returned got a smaller ID (I2).
func (w *callLog) check(t testing.TB, ordered bool) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := make(map[flake.ID]bool, len(w.given))
	for _, g := range w.given {
		for i := range g.block.Count {
			id := g.block.At(i)
			if seen[id] {
				history.Violated(t, "I1", "%v was given twice", id)
				return
			}
			seen[id] = true
		}
	}
	if !ordered {
		return
	}
	type event struct {
		at  int64
		end bool
		id  flake.ID
	}
	events := make([]event, 2*w.ticks.Load()+2)
	for _, g := range w.given {
		events[g.began] = event{g.began, false, g.block.First}
		events[g.ended] = event{g.ended, true, g.block.Last()}
	}
	need := map[int64]flake.ID{}
	var high flake.ID
	for _, e := range events {
		if e.at == 0 {
			continue
		}
		if e.end {
			high = max(high, e.id)
		} else {
			need[e.at] = high
		}
	}
	for _, g := range w.given {
		if g.block.First <= need[g.began] {
			history.Violated(t, "I2", "a call that began after %v had been returned got %v", need[g.began], g.block.First)
			return
		}
	}
}

// one returns an ID as a block of one.
func one(id flake.ID, err error) (client.Block, error) {
	return client.Block{First: id, Count: 1, Stride: 32}, err
}

// finish checks the calls, of which there have to be at least minimum.
func (w *callLog) finish(t testing.TB, ordered bool, minimum int) {
	t.Helper()
	w.check(t, ordered)
	if len(w.given) < minimum {
		t.Errorf("%d calls were served, fewer than %d show little", len(w.given), minimum)
	}
}

var modes = []client.Mode{client.Direct, client.Coalesce, client.Prefetch}
