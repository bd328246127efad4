package worker_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
)

const window = 60 * time.Second

// nodes are nodes that know one worker. Their clock is package time's.
type nodes struct {
	mu       sync.Mutex // guards the rest
	worker   *pb.Worker // nil: not acquired
	secret   string
	ahead    time.Duration // of not_before, when the worker is acquired
	refuse   error         // what calls end with; nil: they are served
	delay    time.Duration // on the way of each acquisition
	clock    time.Duration // The nodes' clock is ahead of the caller's by this.
	lose     bool          // calls are served, and their answers are lost
	aged     bool          // An acquisition that is repeated is refused: its worker was extended since. A client may have one.
	acquired int
	extended int
	floor    int64             // nodes answer with it, if it is above what they were told
	told     func(floor int64) // It is called with each extension before it is served; nil: nothing.
	released []int64           // used_until of each release
	calls    []*pb.AcquireWorkerRequest
}

func (n *nodes) set(change func(*nodes)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n)
}

func now() int64 { return time.Now().UnixMilli() }

// answer returns the worker as a node answers. n.mu is held.
func (n *nodes) answer() (*pb.Worker, error) {
	if n.lose {
		return nil, status.Error(codes.Unavailable, "the answer is lost")
	}
	w := n.worker
	return &pb.Worker{Id: w.Id, Worker: w.Worker, Term: w.Term, Name: w.Name, Handle: w.Handle, NotBeforeUnixMs: w.NotBeforeUnixMs,
		NotAfterUnixMs: w.NotAfterUnixMs, NowUnixMs: now() + n.clock.Milliseconds(),
		ExtendAtUnixMs: now() + n.clock.Milliseconds() + window.Milliseconds()/3, FloorUnixMs: n.floor}, nil
}

func (n *nodes) AcquireWorker(_ context.Context, req *pb.AcquireWorkerRequest, _ ...grpc.CallOption) (*pb.Worker, error) {
	time.Sleep(n.delay)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, req)
	if n.aged && n.worker != nil && n.worker.NotAfterUnixMs <= now() {
		n.worker = nil // Nobody extends it.
	}
	off := req.ClockUnixMs - now() - n.clock.Milliseconds()
	switch {
	case req.ClockUnixMs != 0 && max(off, -off) > 250:
		return nil, &client.Refusal{Reason: client.CallerClock, Metadata: map[string]string{"offset_ms": fmt.Sprint(off), "limit_ms": "250"}}
	case n.refuse != nil:
		return nil, n.refuse
	case n.worker != nil && n.secret == req.Secret && n.aged:
		return nil, &client.Refusal{Reason: client.InvalidFormat, Message: "the secret is that of a worker which was extended since"}
	case n.worker != nil && n.secret != req.Secret && n.aged:
		return nil, &client.Refusal{Reason: client.WorkerQuota, Message: "the client holds 1 workers, and may hold 1"}
	case n.worker != nil && n.secret != req.Secret:
		return nil, &client.Refusal{Reason: client.NoWorker, Message: "17 by another"}
	case n.worker == nil:
		n.acquired++
		n.secret, n.floor = req.Secret, 0
		begin := now() + n.ahead.Milliseconds()
		n.worker = &pb.Worker{Id: fmt.Sprint("17-", n.acquired), Worker: 17, Term: int64(n.acquired), Name: req.Name,
			Handle: fmt.Sprintf("w1.17.%d.%s", n.acquired, req.Secret), NotBeforeUnixMs: begin, NotAfterUnixMs: max(begin, now()+window.Milliseconds())}
		if req.TellsFloor {
			n.floor = begin
		}
	}
	return n.answer()
}

func (n *nodes) ExtendWorker(_ context.Context, req *pb.ExtendWorkerRequest, _ ...grpc.CallOption) (*pb.Worker, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.refuse != nil:
		return nil, n.refuse
	case n.worker == nil || n.worker.Handle != req.Handle:
		return nil, &client.Refusal{Reason: client.UnknownWorker}
	case req.NotAfterUnixMs > n.worker.NotAfterUnixMs:
		return nil, &client.Refusal{Reason: client.HistoryRewound}
	}
	if n.told != nil {
		n.told(req.FloorUnixMs)
	}
	n.extended++
	if n.floor != 0 {
		n.floor = max(n.floor, req.FloorUnixMs)
	}
	n.worker.NotAfterUnixMs = max(n.worker.NotAfterUnixMs, now()+window.Milliseconds())
	return n.answer()
}

func (n *nodes) ReleaseWorker(_ context.Context, req *pb.ReleaseWorkerRequest, _ ...grpc.CallOption) (*pb.ReleaseWorkerResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.refuse != nil:
		return nil, n.refuse
	case n.worker == nil || n.worker.Handle != req.Handle:
		return nil, &client.Refusal{Reason: client.UnknownWorker}
	}
	n.released = append(n.released, req.UsedUntilUnixMs)
	n.worker = nil
	return &pb.ReleaseWorkerResponse{ReusableFromUnixMs: req.UsedUntilUnixMs}, nil
}
