package legacy_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/bwmarrin/snowflake"
	"github.com/sony/sonyflake"
	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/worker"
	"github.com/flakelease/allocator/worker/legacy"
)

// nodes grant the number 17, 4,096 by 4,096 ms, and extend nothing once frozen.
type nodes struct {
	mu       sync.Mutex // guards the rest
	number   uint32
	from, to int64
	frozen   bool
	used     int64 // that it was released with
}

func (n *nodes) answer() *pb.Worker {
	now := time.Now().UnixMilli()
	if !n.frozen {
		n.to = now + 4096
	}
	return &pb.Worker{Id: "w-1", Worker: n.number, Term: 1, Handle: "h", NotBeforeUnixMs: n.from, NotAfterUnixMs: n.to, NowUnixMs: now, ExtendAtUnixMs: now + 1000}
}

func (n *nodes) AcquireWorker(context.Context, *pb.AcquireWorkerRequest, ...grpc.CallOption) (*pb.Worker, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.from = time.Now().UnixMilli()
	return n.answer(), nil
}

func (n *nodes) ExtendWorker(context.Context, *pb.ExtendWorkerRequest, ...grpc.CallOption) (*pb.Worker, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.answer(), nil
}

func (n *nodes) ReleaseWorker(_ context.Context, req *pb.ReleaseWorkerRequest, _ ...grpc.CallOption) (*pb.ReleaseWorkerResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.used = req.UsedUntilUnixMs
	return &pb.ReleaseWorkerResponse{}, nil
}

func (n *nodes) freeze() (to int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen = true
	return n.to
}

// drain draws IDs until the worker's interval is over. None is of a time after it, and all
// carry the number.
func drain(t *testing.T, n *nodes, next func() (id uint64, at int64, number uint32, err error), unit int64) {
	t.Helper()
	seen := map[uint64]bool{}
	to, frozen := int64(0), false
	for {
		id, at, number, err := next()
		if err != nil {
			if !errors.Is(err, worker.ErrExpired) {
				t.Fatal(err)
			}
			if !frozen || time.Now().UnixMilli() < to-unit {
				t.Fatalf("refused at %d, before the end of the interval at %d", time.Now().UnixMilli(), to)
			}
			return
		}
		if seen[id] || number != n.number || at < n.from || frozen && at+unit > to {
			t.Fatalf("ID %d of worker %d at %d, in [%d, %d)", id, number, at, n.from, to)
		}
		seen[id] = true
		if len(seen) == 500 {
			to, frozen = n.freeze(), true
		}
		time.Sleep(20 * time.Microsecond)
	}
}

func TestSnowflake(t *testing.T) {
	n := &nodes{number: 17}
	s, err := legacy.OpenSnowflake(t.Context(), worker.Config{Service: n})
	if err != nil {
		t.Fatal(err)
	}
	drain(t, n, func() (uint64, int64, uint32, error) {
		id, err := s.Generate()
		return uint64(id), id.Time(), uint32(id.Node()), err
	}, 1)
	if err := s.Close(); err != nil || n.used > n.to || n.used <= n.from {
		t.Errorf("%v, used until %d of %d", err, n.used, n.to)
	}
	if _, err := s.Generate(); !errors.Is(err, worker.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}

	n = &nodes{number: 1024}
	if _, err := legacy.OpenSnowflake(t.Context(), worker.Config{Service: n}); err == nil || n.used == 0 {
		t.Errorf("a number of 11 bits: %v, used until %d", err, n.used)
	}
	if _, err := legacy.OpenSnowflake(t.Context(), worker.Config{}); !errors.Is(err, worker.ErrConfig) {
		t.Errorf("no nodes: %v", err)
	}
}

// The epoch is that of the time of OpenSnowflake.
func TestSnowflakeEpoch(t *testing.T) {
	was := snowflake.Epoch
	defer func() { snowflake.Epoch = was }()
	snowflake.Epoch = 1704067200000
	s, err := legacy.OpenSnowflake(t.Context(), worker.Config{Service: &nodes{number: 3}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if _, err := s.Generate(); err != nil {
		t.Error(err)
	}
}

func TestSonyflake(t *testing.T) {
	for _, start := range []time.Time{{}, time.Date(2026, 1, 1, 0, 0, 0, 3_000_000, time.UTC)} {
		n := &nodes{number: 60_017}
		s, err := legacy.OpenSonyflake(t.Context(), worker.Config{Service: n}, sonyflake.Settings{StartTime: start})
		if err != nil {
			t.Fatal(err)
		}
		begin := start
		if start.IsZero() {
			begin = time.Date(2014, 9, 1, 0, 0, 0, 0, time.UTC)
		}
		drain(t, n, func() (uint64, int64, uint32, error) {
			id, err := s.NextID()
			return id, begin.Truncate(10*time.Millisecond).UnixMilli() + sonyflake.ElapsedTime(id).Milliseconds(), uint32(sonyflake.MachineID(id)), err
		}, 10)
		if err := s.Close(); err != nil || n.used > n.to || n.used <= n.from {
			t.Errorf("%v, used until %d of %d", err, n.used, n.to)
		}
	}

	n := &nodes{number: 1 << 16}
	if _, err := legacy.OpenSonyflake(t.Context(), worker.Config{Service: n}, sonyflake.Settings{}); err == nil || n.used == 0 {
		t.Errorf("a number of 17 bits: %v, used until %d", err, n.used)
	}
	if _, err := legacy.OpenSonyflake(t.Context(), worker.Config{Client: client.Options{Targets: []string{"nowhere"}}}, sonyflake.Settings{}); err == nil {
		t.Error("no nodes, and no error")
	}
}
