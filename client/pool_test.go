package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// TestRefusingNodesAreAskedRarely: hundreds of callers do not send hundreds of
// requests to nodes that refuse: after the first refusal one call at a time is the
// trial, and only when the delay of the refusal has passed.
//
// What is early is judged by the node: a request that arrives within the delay after a
// refusal left cannot have been sent in time, however slow the machine is.
func TestRefusingNodesAreAskedRarely(t *testing.T) {
	const callers, trials, retry = 300, 20, 10 * time.Millisecond
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			nodes := []*fake{newFake(t, 1), newFake(t, 2)}
			var early, inTime [2]atomic.Int64
			for i, f := range nodes {
				var mu sync.Mutex
				var refused time.Time // the last time
				f.act(func(context.Context, int64, *pb.AllocateRequest) act {
					mu.Lock()
					defer mu.Unlock()
					if time.Since(refused) < retry {
						early[i].Add(1)
					} else {
						inTime[i].Add(1)
					}
					refused = time.Now()
					return act{refuse: client.NoSID, retry: retry}
				})
			}
			c := dial(t, client.Options{Targets: []string{nodes[0].addr, nodes[1].addr}, Mode: mode, Timeout: time.Minute, AttemptTimeout: time.Minute})
			connected(t, c, len(nodes))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var wg sync.WaitGroup
			var began atomic.Int64
			var wrong atomic.Value // an error
			for range callers {
				wg.Go(func() {
					began.Add(1)
					_, err := c.Next(ctx) // TestWhoLeavesIsTold has what a caller reads that leaves.
					if !errors.Is(err, &client.Refusal{Reason: client.NoSID}) && !errors.Is(err, context.Canceled) {
						wrong.Store(fmt.Sprint(err))
					}
				})
			}
			wait.Until(t, "all callers ask", func() bool { return began.Load() == callers })
			from := inTime[0].Load() + inTime[1].Load()
			wait.Until(t, "nodes are tried", func() bool { return inTime[0].Load()+inTime[1].Load() >= from+trials })
			cancel()
			wg.Wait()
			if w := wrong.Load(); w != nil {
				t.Errorf("got %v", w)
			}
			// Until its first refusal arrives a node may be asked once by each caller.
			for i := range nodes {
				if n := early[i].Load(); n > callers {
					t.Errorf("node %d got %d requests within the delay of its refusals, beside %d after it", i, n, inTime[i].Load())
				}
			}
			if t.Failed() {
				return
			}
			for _, f := range nodes {
				f.always(act{})
			}
			for range callers {
				wg.Go(func() {
					if _, err := c.Next(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestTrialsOfOtherCalls: calls that get no IDs end a trial as well, and the node is asked by all again.
func TestTrialsOfOtherCalls(t *testing.T) {
	t.Parallel()
	ms, _ := at(0)
	for name, call := range map[string]func(context.Context, *client.Client) error{
		"Watermark": func(ctx context.Context, c *client.Client) error { _, err := c.Watermark(ctx); return err },
		"Conn": func(ctx context.Context, c *client.Client) error {
			_, err := pb.NewAllocatorServiceClient(c.Conn()).GetWatermark(ctx, &pb.GetWatermarkRequest{})
			return err
		},
	} {
		f, n, refused := newFake(t, 1), 0, time.Now()
		f.marking(func(context.Context, flake.ID, time.Duration) (int64, client.Reason) {
			if n++; n == 1 {
				refused = time.Now()
				return 0, client.Starting
			}
			if took := time.Since(refused); took < 50*time.Millisecond {
				t.Errorf("%s: asked again after %v", name, took)
			}
			return ms, ""
		})
		c := newClient(t, client.Options{AttemptTimeout: time.Minute, Timeout: time.Minute}, f)
		for range 3 {
			if err := call(t.Context(), c); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}

// TestTrialThatIsRefusedForGood: calls that wait for another call's trial end with its
// refusal if retrying does not help, and do not ask the node again, one after the other.
func TestTrialThatIsRefusedForGood(t *testing.T) {
	const callers = 10
	f := newFake(t, 1)
	release := make(chan struct{})
	f.act(func(_ context.Context, number int64, _ *pb.AllocateRequest) act {
		if number == 1 {
			return act{refuse: client.NoSID, retry: 10 * time.Millisecond}
		}
		<-release
		return act{refuse: client.AfterTooFar}
	})
	c := dial(t, client.Options{Targets: []string{f.addr}, Mode: client.Direct, AttemptTimeout: time.Minute, Timeout: time.Minute})
	connected(t, c, 1)
	var wg sync.WaitGroup
	ask := func() {
		if _, err := c.Next(t.Context()); !errors.Is(err, &client.Refusal{Reason: client.AfterTooFar}) {
			t.Errorf("got %v", err)
		}
	}
	wg.Go(ask)
	wait.Until(t, "the trial", func() bool { return f.asked.Load() == 2 })
	for range callers {
		wg.Go(ask)
	}
	wait.Until(t, "all wait", func() bool { return waiting("client.(*Client).pause(") == callers })
	close(release)
	wg.Wait()
	if n := f.asked.Load(); n != 2 {
		t.Errorf("%d requests", n)
	}
}

// TestNextNOfASmallLimit: NextN and NextULIDs send as many requests as the limit of
// the cluster requires.
func TestNextNOfASmallLimit(t *testing.T) {
	t.Parallel()
	for limit, n := range map[int]int{10_000: 25_001, 1: 3} {
		f := newFake(t, 1)
		f.limit = fmt.Sprint(limit)
		f.act(func(_ context.Context, _ int64, req *pb.AllocateRequest) act {
			if int(req.Count) > limit {
				return act{refuse: client.InvalidCount}
			}
			return act{}
		})
		for _, mode := range modes {
			c := dial(t, client.Options{Targets: []string{f.addr}, Mode: mode})
			ids := make([]flake.ID, n)
			if err := c.NextN(t.Context(), ids); err != nil {
				t.Fatalf("%v: %v", mode, err)
			}
			for i := 1; i < len(ids); i++ {
				if ids[i] <= ids[i-1] {
					t.Fatalf("%v: ID %d is %v, after %v", mode, i, ids[i], ids[i-1])
				}
			}
			wides := make([]ulid.ID, n)
			if err := c.NextULIDs(t.Context(), wides); err != nil || !slices.IsSortedFunc(wides, ulid.ID.Compare) || wides[0].IsZero() {
				t.Fatalf("%v: %v, %d wide IDs", mode, err, n)
			}
			if _, err := c.Block(t.Context(), limit+1); !errors.Is(err, &client.Refusal{Reason: client.InvalidCount}) {
				t.Errorf("%v: a block above the limit: %v", mode, err)
			}
		}
	}
}

// TestNoWideForm: a space whose epoch has no wide IDs gives an error, and not some of them.
func TestNoWideForm(t *testing.T) {
	t.Parallel()
	f := newFake(t, 1)
	f.always(act{mangle: func(r *pb.AllocateResponse) { r.EpochUnixMs = -1 << 50 }})
	c := dial(t, client.Options{Targets: []string{f.addr}})
	if err := c.NextULIDs(t.Context(), make([]ulid.ID, 3)); !errors.Is(err, ulid.ErrBeforeEpoch) {
		t.Errorf("%v", err)
	}
	if _, err := c.NextULID(t.Context()); !errors.Is(err, ulid.ErrBeforeEpoch) {
		t.Errorf("%v", err)
	}
}

// TestSizeOfABlock: a block of more than any node grants, or of none, is refused without a request.
func TestSizeOfABlock(t *testing.T) {
	t.Parallel()
	f := newFake(t, 1)
	c := dial(t, client.Options{Targets: []string{f.addr}, Mode: client.Direct})
	for _, n := range []int{-1, 0, 1_000_001} {
		_, err := c.Block(t.Context(), n)
		if r := (*client.Refusal)(nil); !errors.As(err, &r) || r.Reason != client.InvalidCount || r.Node != "" {
			t.Errorf("%d IDs: %v", n, err)
		}
	}
	if b, err := c.Block(t.Context(), 1_000_000); err != nil || b.Count != 1_000_000 || f.asked.Load() != 1 {
		t.Errorf("%v, %v after %d requests", b, err, f.asked.Load())
	}
}

// TestDialOptionsAreChecked: New returns the error of an option that gRPC rejects,
// whether targets are addresses or names.
func TestDialOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"127.0.0.1:1", "nodes.example:1"} {
		c, err := client.New(client.Options{Targets: []string{target}, Resolver: &lookup{},
			DialOptions: []grpc.DialOption{grpc.WithDefaultServiceConfig("{bad")}})
		if err == nil {
			_ = c.Close()
			t.Errorf("%s: taken", target)
		}
	}
}

// TestIPv6: IPv6 addresses work as targets, also with a zone.
func TestIPv6(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("not run: this machine has no IPv6: %v", err)
	}
	f := newFake(t, 1)
	s := grpc.NewServer()
	pb.RegisterAllocatorServiceServer(s, f)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	defer func() { s.Stop(); <-ended }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, host := range []string{"::1", "::1%lo"} {
		if probe, err := net.Dial("tcp", net.JoinHostPort(host, port)); err != nil {
			t.Logf("not run for %s: %v", host, err)
			continue
		} else {
			_ = probe.Close()
		}
		c := dial(t, client.Options{Targets: []string{net.JoinHostPort(host, port)}})
		if _, err := c.Next(t.Context()); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
}
