package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client/internal/balance"
	"github.com/flakelease/allocator/flake"
)

// bench is a pool of endpoints that are connected to nothing, on a clock that is moved by hand.
type bench struct {
	*pool
	now time.Duration
}

// newBench returns a pool of n connected endpoints, whose attempts take at most a second. Its time
// begins at an hour, since 0 is none.
func newBench(t *testing.T, n int) *bench {
	t.Helper()
	b := &bench{now: time.Hour}
	b.pool = newPool(Options{AttemptTimeout: time.Second, Targets: []string{"127.0.0.1:1"}}, func() time.Duration { return b.now }, nil)
	t.Cleanup(b.end)
	for i := range n {
		b.add(t, fmt.Sprintf("10.0.0.%d:9000", i))
	}
	return b
}

// add adds a connected endpoint.
func (b *bench) add(t *testing.T, addr string) *endpoint {
	t.Helper()
	e := b.endpoint(balance.Address{Target: addr, Addr: addr})
	e.end = func() {}
	conn, err := e.dial()
	fatal.If(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	e.conn.Store(conn)
	e.setReady(true)
	b.nodes.Use(append(slices.Clone(b.nodes.Nodes), e))
	return e
}

// refuse notes that e refused a request of the client.
func (e *endpoint) refuse(r *Refusal) { e.ended(e.conn.Load(), r.outcome(true)) }

// fail notes that e failed before, and may be asked again.
func (e *endpoint) fail(err error) {
	e.pool.mu.Lock()
	defer e.pool.mu.Unlock()
	e.pool.nodes.Ended(e, 1, balance.Outcome{Kind: balance.Failed, Err: err})
}

// left returns for how long e is not asked.
func (e *endpoint) left() time.Duration { return e.Paused(e.pool.since()) }

// woken reports whether do wakes who waits for an endpoint.
func (b *bench) woken(do func()) bool {
	wake := b.wake
	do()
	select {
	case <-wake:
		return true
	default:
		return false
	}
}

// TestOutcome: what a refusal shows about the node depends on its reason.
func TestOutcome(t *testing.T) {
	for reason, want := range map[Reason][2]balance.Kind{ // of a call of its own, and of one with the client's last ID
		AfterTooFar: {balance.OfCall, balance.TooFar}, InvalidCount: {balance.OfCall, balance.OfCall}, "": {balance.Refused, balance.Refused},
		Unauthenticated: {balance.OfCall, balance.OfCall}, Draining: {balance.Refused, balance.Refused}, "99": {balance.Refused, balance.Refused},
	} {
		r := &Refusal{Reason: reason, RetryAfter: 3}
		for i, own := range []bool{false, true} {
			if got := r.outcome(own); got != (balance.Outcome{Kind: want[i], Retry: 3, Err: r}) {
				t.Errorf("%s, own %v: %+v", reason, own, got)
			}
		}
	}
}

// TestWhyNobodyIsAsked: a node's reason comes before that of the name server.
func TestWhyNobodyIsAsked(t *testing.T) {
	b := newBench(t, 1)
	b.lookupErr = io.ErrNoProgress
	if err := b.lastError(nil); err != io.ErrNoProgress || b.refusal() != nil {
		t.Errorf("%v", err)
	}
	b.nodes.Nodes[0].refuse(&Refusal{Reason: AfterTooFar})
	if r := b.refusal(); r == nil || b.lastError(nil) != r || b.nodes.Nodes[0].why() != r {
		t.Errorf("%v, %v", r, b.lastError(nil))
	}
	if !b.woken(b.forgive) || b.refusal() != nil || b.nodes.Nodes[0].left() > 0 {
		t.Error("it is not forgiven")
	}
}

// TestSet: what is chosen of a lookup is connected to, once, and the rest is closed.
func TestSet(t *testing.T) {
	b := newBench(t, 0)
	found := func(list ...string) (out []balance.Address) {
		for _, s := range list {
			out = append(out, balance.Address{Target: "a", Addr: "127.0.1." + s + ":1"})
		}
		return out
	}
	_ = b.set(found("1", "2"), nil)
	one, two := b.nodes.Nodes[0], b.nodes.Nodes[1]
	if !b.woken(func() { _ = b.set(found("2", "3"), nil) }) || len(b.nodes.Nodes) != 2 || b.nodes.Nodes[0] != two {
		t.Errorf("%d nodes", len(b.nodes.Nodes))
	}
	wait.Until(t, "closed", func() bool { return one.conn.Load().GetState() == connectivity.Shutdown })
	if err := b.set(nil, map[string]error{"a": io.EOF}); err != io.EOF || b.lookupErr != io.EOF || len(b.nodes.Nodes) != 2 {
		t.Errorf("a lookup that fails: %v, %d nodes", err, len(b.nodes.Nodes))
	}
	b.o.DialOptions = []grpc.DialOption{grpc.WithDefaultServiceConfig("{bad")}
	if err := b.set(found("4"), nil); err == nil || b.lookupErr != err || len(b.nodes.Nodes) != 0 {
		t.Errorf("an address that cannot be dialed: %v, noted is %v", err, b.lookupErr)
	}
	b.close()
}

// TestLookup: a name with no addresses is a failed one, and an address needs no lookup.
func TestLookup(t *testing.T) {
	b := newBench(t, 0)
	b.lookupHost = func(_ context.Context, host string) ([]string, error) {
		addrs, ok := map[string][]string{"two": {"10.0.0.1", "fd00::1"}, "none": nil}[host]
		if !ok {
			return nil, &net.DNSError{Err: "no such host", Name: host}
		}
		return addrs, nil
	}
	b.o.Targets = []string{"two:9000", "none:9000", "missing:9000", "10.0.0.9:9000", "[fd00::2]:9000"}
	found, failed := b.lookup()
	slices.SortFunc(found, func(a, b balance.Address) int { return strings.Compare(a.Addr, b.Addr) })
	want := []balance.Address{
		{Target: "two:9000", Addr: "10.0.0.1:9000"}, {Target: "10.0.0.9:9000", Addr: "10.0.0.9:9000"},
		{Target: "two:9000", Addr: "[fd00::1]:9000"}, {Target: "[fd00::2]:9000", Addr: "[fd00::2]:9000"},
	}
	if !slices.Equal(found, want) || len(failed) != 2 || failed["none:9000"] == nil || failed["missing:9000"] == nil {
		t.Errorf("found %v, failed %v", found, failed)
	}
}

// named returns a pool of a name's nodes, none of which can be connected to.
func named(look func(host string) ([]string, error), targets ...string) *pool {
	began := time.Now()
	return newPool(Options{
		Targets:        targets,
		AttemptTimeout: time.Hour,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})},
	}, func() time.Duration { return time.Since(began) }, func(ctx context.Context, host string) ([]string, error) {
		addrs, err := look(host)
		if addrs == nil && err == nil {
			<-ctx.Done()
			err = ctx.Err()
		}
		return addrs, err
	})
}

// TestResolve: names are looked up again each half minute, and soon if that failed or was asked for.
func TestResolve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, asked := time.Now(), []time.Duration{}
		p := named(func(string) ([]string, error) {
			if asked = append(asked, time.Since(began)); len(asked) <= 2 {
				return nil, io.EOF
			}
			return []string{"127.0.5.1"}, nil
		}, "a:1")
		fatal.If(t, p.start())
		time.Sleep(65 * time.Second) // two failures, then an answer, and two more each 31 s later
		p.lookupSoon()
		time.Sleep(30 * time.Second)
		p.close()
		const s = time.Second
		if want := []time.Duration{0, s, 2 * s, 33 * s, 64 * s, 65 * s}; !slices.Equal(asked, want) {
			t.Errorf("looked up after %v, want %v", asked, want)
		}
	})
}

// TestHangingLookups: lookups that hang delay another one by the timeout of one.
func TestHangingLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := named(func(host string) ([]string, error) {
			if host == "good.example" {
				return []string{"127.0.5.1"}, nil
			}
			return nil, nil
		}, "a.example:1", "b.example:1", "c.example:1", "good.example:1")
		fatal.If(t, p.start())
		time.Sleep(lookupTimeout)
		synctest.Wait()
		if list := p.nodes.Nodes; len(list) != 1 || list[0].Addr != "127.0.5.1:1" {
			t.Errorf("%d nodes are used", len(list))
		}
		p.close()
	})
}

// TestWatch: an endpoint connects, connects anew after it was silent, and is asked no more once it ends.
// While it cannot connect it says why, and names are looked up.
func TestWatch(t *testing.T) {
	b := newBench(t, 1)
	e := b.nodes.Nodes[0]
	e.connect(t)
	first := e.conn.Load()
	fatal.If(t, e.open())
	connected := func() bool { return e.isReady() && e.conn.Load().GetState() == connectivity.Ready }
	e.setReady(false)
	wait.Until(t, "connected", connected)
	second := e.conn.Load()
	if e.ended(second, balance.Outcome{Kind: balance.Silent}); first == second {
		t.Error("open did not connect")
	}
	wait.Until(t, "connected anew", func() bool { return e.conn.Load() != second && connected() })
	if err := e.connectError(); err != nil {
		t.Errorf("connected: %v", err)
	}
	third := e.conn.Load()
	e.end()
	b.work.Wait()
	if e.isReady() || third.GetState() != connectivity.Shutdown || len(b.lookups) != 0 {
		t.Errorf("ready %v, %v", e.isReady(), third.GetState())
	}
	e.Addr = "127.0.0.1:1"
	fatal.If(t, e.open())
	wait.Until(t, "a lookup", func() bool { return len(b.lookups) == 1 })
	wait.Until(t, "why", func() bool {
		err := e.connectError()
		return err != nil && strings.HasPrefix(err.Error(), "127.0.0.1:1: unavailable: ") && strings.Contains(err.Error(), "refused")
	})
	b.close()
}

// TestConnecting: a connection has the time of two attempts, and one that is refused is tried again
// later and later.
func TestConnecting(t *testing.T) {
	for _, hangs := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, 0)
			var tried []time.Time
			b.o.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				if tried = append(tried, time.Now()); hangs {
					<-ctx.Done()
				}
				return nil, io.EOF
			})}
			e := b.endpoint(balance.Address{Addr: "10.0.0.1:9000"})
			fatal.If(t, e.open())
			time.Sleep(time.Minute)
			if b.close(); e.conn.Load().GetState() != connectivity.Shutdown {
				t.Error("it connects although the client is closed")
			}
			pause := 50 * time.Millisecond
			for i := range 12 {
				took := tried[i+1].Sub(tried[i])
				if hangs {
					took -= 2 * b.o.AttemptTimeout
				}
				if took < pause*79/100 || took > pause*121/100 {
					t.Errorf("hangs %v: try %d follows after %v more", hangs, i+1, took)
				}
				pause = min(pause*16/10, time.Second)
			}
		})
	}
}

// TestGaveUp: the error of a call says what ended it, and why no node served before that.
func TestGaveUp(t *testing.T) {
	refusal, broke := &Refusal{Reason: NoSID, Message: "no"}, errors.New("it broke")
	for _, tc := range []struct {
		cause, last error
		says        string
		is          []error
	}{
		{context.Canceled, refusal, "context canceled: no node served: NO_SID: no", []error{context.Canceled, refusal}},
		{nil, refusal, "no node served within 3s: NO_SID: no", []error{refusal}},
		{context.Canceled, broke, "context canceled: client: no node answered: it broke", []error{context.Canceled, ErrUnavailable, broke}},
		{nil, broke, "client: no node answered within 3s: it broke", []error{ErrUnavailable, broke}},
		{context.Canceled, nil, "context canceled: client: no node answered: none is connected", []error{context.Canceled, ErrUnavailable}},
		{nil, nil, "client: no node answered within 3s: none is connected", []error{ErrUnavailable}},
	} {
		err := gaveUp(tc.cause, tc.last, 3*time.Second)
		if !strings.HasPrefix(err.Error(), tc.says) {
			t.Errorf("%v", err)
		}
		for _, is := range []error{context.Canceled, ErrUnavailable, refusal, broke} {
			if errors.Is(err, is) != slices.Contains(tc.is, is) {
				t.Errorf("%v: is %v: %v", err, is, errors.Is(err, is))
			}
		}
	}
}

// TestHints: an answer of something else than a node says what to change.
func TestHints(t *testing.T) {
	for message, want := range map[string]string{
		`error reading server preface: http2: frame too large, note that the frame header looked like an HTTP/1.1 header`: "use the node's gRPC port",
		"unexpected HTTP status code received from server: 404 (Not Found)":                                               "check the target",
		"connection refused": "",
	} {
		err := (&attemptError{"n:1", status.Error(codes.Unavailable, message)}).Error()
		if !strings.HasPrefix(err, "n:1: unavailable: "+message) || !strings.Contains(err, want) ||
			(want == "") != strings.HasSuffix(err, message) {
			t.Errorf("%s", err)
		}
	}
	if err := (&attemptError{"n:1", io.EOF}).Error(); err != "n:1: EOF" {
		t.Errorf("%s", err)
	}
	for err, want := range map[error]bool{
		context.Canceled: true, context.DeadlineExceeded: true, status.Error(codes.Canceled, ""): true,
		status.Error(codes.DeadlineExceeded, ""): true, io.EOF: false, status.Error(codes.Unavailable, ""): false,
	} {
		if contextual(err) != want {
			t.Errorf("%v is of a context: %v", err, !want)
		}
	}
}

// TestAnswersAreChecked: an answer that breaks the contract in anything is not used.
func TestAnswersAreChecked(t *testing.T) {
	good := func() *pb.AllocateResponse {
		return &pb.AllocateResponse{
			First: 1 << 40, Count: 3, Stride: flake.Scalable.Stride(), Sid: 4, Layout: pb.Layout(flake.Scalable.Number()),
			EpochUnixMs: flake.DefaultEpoch, Node: "n",
		}
	}
	for name, tc := range map[string]struct {
		change func(*pb.AllocateResponse)
		says   string
	}{
		"good":             {func(*pb.AllocateResponse) {}, ""},
		"above after":      {func(r *pb.AllocateResponse) { r.First = 101 }, ""},
		"at after":         {func(r *pb.AllocateResponse) { r.First = 100 }, "is not above 100"},
		"another count":    {func(r *pb.AllocateResponse) { r.Count = 2 }, "2 IDs, not 3"},
		"another stride":   {func(r *pb.AllocateResponse) { r.Stride++ }, "a stride of"},
		"no layout":        {func(r *pb.AllocateResponse) { r.Layout = 999 }, "layout 999"},
		"beyond 63 bits":   {func(r *pb.AllocateResponse) { r.First = 1<<63 - 1 }, "exceeds 63 bits"},
		"another epoch":    {func(r *pb.AllocateResponse) { r.EpochUnixMs++ }, "where others have"},
		"a custom layout":  {func(r *pb.AllocateResponse) { r.Layout, r.LayoutBits, r.Stride = pb.Layout_LAYOUT_CUSTOM, "43/5/15", 1 }, "where others have"},
		"a custom mistake": {func(r *pb.AllocateResponse) { r.Layout, r.LayoutBits = pb.Layout_LAYOUT_CUSTOM, "x" }, "layout"},
	} {
		b := newBench(t, 1)
		b.format.Store(&flake.Format{Layout: flake.Scalable, Epoch: flake.DefaultEpoch})
		res := good()
		tc.change(res)
		got, err := b.nodes.Nodes[0].block(res, 3, 100)
		if tc.says == "" {
			if err != nil || got.Count != 3 || got.SID != 4 || got.Node != "n" || int64(got.First) != res.GetFirst() {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		} else if broken := (*contractError)(nil); !errors.As(err, &broken) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// shared returns a coalescer on a pool of one node that is connected to nothing, and a stream to that.
func shared(t *testing.T) (*coalescer, *stream, *bench) {
	t.Helper()
	b := newBench(t, 1)
	c := &Client{o: Options{Timeout: time.Minute}, pool: b.pool, begun: time.Now()}
	co := newCoalescer(c)
	t.Cleanup(co.end)
	co.connecting = true // Nothing looks for another stream.
	e := b.nodes.Nodes[0]
	return co, &stream{co: co, e: e, conn: e.conn.Load()}, b
}

// isReady reports whether e may be asked.
func (e *endpoint) isReady() bool {
	e.pool.mu.Lock()
	defer e.pool.mu.Unlock()
	return e.pool.nodes.Connected() == 1
}

// waiting returns a batch that callers wait for, which want as many IDs.
func (co *coalescer) waiting(callers int) *batch {
	co.open.Add(1)
	return &batch{done: make(chan struct{}), want: callers, live: callers, callers: callers, sealed: true}
}

// ended returns the error of a batch, or errors.ErrUnsupported if it has no answer.
func (b *batch) ended() error {
	select {
	case <-b.done:
		return b.err
	default:
		return errors.ErrUnsupported
	}
}

// TestWhoLeavesIsTold: a caller that leaves while there is no stream reads why, as far as that is known.
func TestWhoLeavesIsTold(t *testing.T) {
	refusal, broke := &Refusal{Reason: Draining}, errors.New("it broke")
	for _, tc := range []struct {
		name          string
		stream, knows bool
		last          error
		is            []error
	}{
		{"no stream, nothing known", false, false, nil, []error{context.Canceled, ErrUnavailable}},
		{"no stream, a node refuses", false, true, nil, []error{context.Canceled, refusal}},
		{"an attempt failed", false, true, broke, []error{context.Canceled, ErrUnavailable, broke}},
		{"its request is under way", true, true, nil, []error{context.Canceled}},
		{"a second request is", true, false, broke, []error{context.Canceled, ErrUnavailable, broke}},
	} {
		co, s, b := shared(t)
		if tc.stream {
			co.cur = s
		}
		if tc.knows {
			b.nodes.Nodes[0].refuse(refusal)
		}
		one := co.waiting(2)
		one.last = tc.last
		gone, err := co.leave(one, 1, context.Canceled)
		if !gone || one.live != 1 || one.abandoned != 1 {
			t.Errorf("%s: gone %v, %+v", tc.name, gone, one)
		}
		for _, is := range []error{context.Canceled, ErrUnavailable, refusal, broke} {
			if errors.Is(err, is) != slices.Contains(tc.is, is) {
				t.Errorf("%s: %v: is %v: %v", tc.name, err, is, errors.Is(err, is))
			}
		}
	}
}

// TestBatchesThatAreTooLarge: callers of a batch above the node's limit join others, and one that asked
// for too many by itself is refused, as is one to whom no smaller limit is named.
func TestBatchesThatAreTooLarge(t *testing.T) {
	for _, tc := range []struct {
		callers int
		limit   string
		reason  Reason
		rejoin  bool
	}{
		{5, "4", InvalidCount, true}, {5, "1", InvalidCount, true}, {5, "5", InvalidCount, false}, {5, "0", InvalidCount, false},
		{5, "", InvalidCount, false}, {5, "-3", InvalidCount, false}, {1, "4", InvalidCount, false}, {5, "4", PermissionDenied, false},
	} {
		co, s, _ := shared(t)
		b := co.waiting(tc.callers)
		b.want = 5
		refusal := &Refusal{Reason: tc.reason, Metadata: map[string]string{"limit": tc.limit}}
		co.refused(s, b, refusal)
		if err := b.ended(); errors.Is(err, errRejoin) != tc.rejoin || !tc.rejoin && !errors.Is(err, refusal) {
			t.Errorf("%+v: %v", tc, err)
		}
		if (co.limit != maxBlock) != tc.rejoin || tc.rejoin && fmt.Sprint(co.limit) != tc.limit {
			t.Errorf("%+v: the limit is %d", tc, co.limit)
		}
	}
}

// TestRequeue: a batch that was not served is sent again, ahead of younger ones, unless nobody waits for
// it or it has waited for too long.
func TestRequeue(t *testing.T) {
	broke := errors.New("it broke")
	for _, tc := range []struct {
		live   int
		age    time.Duration
		queued bool
	}{{2, 0, true}, {2, 59 * time.Second, true}, {2, time.Minute + time.Second, false}, {0, 0, false}, {0, 2 * time.Minute, false}} {
		co, _, _ := shared(t)
		co.c.begun = time.Now().Add(-time.Hour)
		older, younger := co.waiting(1), co.waiting(1)
		older.begun, younger.begun = co.c.since()-2*time.Minute, co.c.since()+time.Minute
		co.queue = []*batch{older, younger}
		b := co.waiting(3)
		b.live, b.abandoned, b.begun = tc.live, 1, co.c.since()-tc.age
		co.requeue(b, broke)
		if at := slices.Index(co.queue, b); (at == 1) != tc.queued || len(co.queue) != 2 && !tc.queued {
			t.Errorf("%+v: it is number %d of %d", tc, at, len(co.queue))
		}
		if tc.queued && (b.want != 2 || b.abandoned != 0 || b.last != broke || co.c.stats.retries.Load() != 1) {
			t.Errorf("%+v: %+v", tc, b)
		}
		if err := b.ended(); tc.queued != errors.Is(err, errors.ErrUnsupported) || !tc.queued && !errors.Is(err, broke) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
	co, _, _ := shared(t)
	b, younger := co.waiting(1), co.waiting(1)
	b.begun, younger.begun = co.c.since(), co.c.since()+time.Minute
	co.queue = []*batch{younger}
	if co.requeue(b, broke); co.queue[0] != b || co.queue[1] != younger {
		t.Error("the oldest is not the first")
	}
}

// TestTake: a caller joins another batch if its own was too large, unless its context has ended.
func TestTake(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			co, _, _ := shared(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			got := make(chan error, 2)
			go func() { _, err := co.take(ctx, 3); got <- err }()
			synctest.Wait()
			first := co.forming
			co.mu.Lock()
			co.forming = nil
			co.finish(first, errRejoin)
			if leaves {
				cancel()
			}
			co.mu.Unlock()
			if synctest.Wait(); !leaves {
				second := co.forming
				if second == nil || second.want != 3 {
					t.Fatalf("the caller joins %+v", second)
				}
				co.forming = nil
				second.block = Block{First: 1, Count: 3, Stride: 1}
				co.finish(second, nil)
			}
			if err := <-got; leaves != errors.Is(err, context.Canceled) || leaves == (err == nil) {
				t.Errorf("leaves %v: %v", leaves, err)
			}
			// A caller that leaves has no part in the batch any more, and the client ends with all it began.
			ctx, cancel = context.WithCancel(t.Context())
			go func() { _, err := co.take(ctx, 3); got <- err }()
			synctest.Wait()
			cancel()
			if err := <-got; !errors.Is(err, context.Canceled) {
				t.Errorf("it left: %v", err)
			}
			co.finish(co.forming, nil)
			co.work.Go(func() { <-co.ctx.Done(); time.Sleep(time.Second) })
			began := time.Now()
			if co.close(); time.Since(began) != time.Second {
				t.Errorf("closed after %v", time.Since(began))
			}
		})
	}
}

// TestRotate: a stream in use is replaced, by one goroutine at a time, and not once the client closes.
func TestRotate(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*coalescer, *stream)
		looks   bool // for another node
	}{
		"in use":     {func(co *coalescer, s *stream) { co.cur = s }, true},
		"no other":   {func(co *coalescer, s *stream) { co.cur = s; s.e.setReady(false) }, true},
		"not in use": {func(co *coalescer, s *stream) { co.cur = nil }, false},
		"under way":  {func(co *coalescer, s *stream) { co.cur, co.connecting = s, true }, false},
		"closing":    {func(co *coalescer, s *stream) { co.cur = s; co.end() }, false},
	} {
		co, s, b := shared(t)
		co.connecting = false
		tc.prepare(co, s)
		picked := b.nodes.Turn
		co.mu.Lock()
		if co.rotate(s); co.connecting != (tc.looks || name == "under way") {
			t.Errorf("%s: connecting %v", name, co.connecting)
		}
		co.mu.Unlock()
		co.work.Wait()
		if looks := b.nodes.Turn != picked; looks != tc.looks || co.connecting != (name == "under way") {
			t.Errorf("%s: looks for another node: %v, connecting %v", name, looks, co.connecting)
		}
	}
}

// TestRotateTime: a stream is used for half a minute to a minute.
func TestRotateTime(t *testing.T) {
	co, _, _ := shared(t)
	for range 1000 {
		before := co.c.since()
		if at := co.rotateTime(); at < before+rotateEvery/2 || at > co.c.since()+rotateEvery {
			t.Fatalf("a stream is used for %v", at-before)
		}
	}
}
