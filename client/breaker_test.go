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
	"github.com/flakelease/allocator/chaos/wait"
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
	b.pool = newPool(Options{AttemptTimeout: time.Second, Targets: []string{"127.0.0.1:1"}}, func() time.Duration { return b.now })
	t.Cleanup(b.end)
	var list []*endpoint
	for i := range n {
		e := &endpoint{pool: b.pool, addr: fmt.Sprintf("10.0.0.%d:9000", i), target: fmt.Sprintf("10.0.0.%d:9000", i), end: func() {}}
		conn, err := e.dial()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		e.conn.Store(conn)
		e.ready.Store(true)
		list = append(list, e)
	}
	b.list.Store(&list)
	return b
}

// asked returns whom the pool picks for the next n calls.
func (b *bench) asked(n int, avoid *endpoint) (list []*endpoint) {
	for range n {
		if e, _, _ := b.pick(avoid); e != nil {
			list = append(list, e)
		}
	}
	return list
}

// woken reports whether do wakes who waits for an endpoint.
func (b *bench) woken(do func()) bool {
	wake := *b.wake.Load()
	do()
	select {
	case <-wake:
		return true
	default:
		return false
	}
}

// TestPick: calls go to all nodes in turn, but not to one that is not connected, nor to the one that
// just failed where there is another.
func TestPick(t *testing.T) {
	b := newBench(t, 3)
	all := *b.list.Load()
	for _, tc := range []struct {
		name  string
		ready []bool
		avoid *endpoint
		want  []*endpoint
	}{
		{"all", []bool{true, true, true}, nil, all},
		{"but one", []bool{true, true, true}, all[1], []*endpoint{all[0], all[2]}},
		{"one is not connected", []bool{false, true, true}, nil, all[1:]},
		{"one is left", []bool{false, true, false}, all[1], all[1:2]},
		{"none", []bool{false, false, false}, nil, nil},
	} {
		for i, ready := range tc.ready {
			all[i].ready.Store(ready)
		}
		got := b.asked(30, tc.avoid)
		for _, e := range all {
			n := 0
			for _, g := range got {
				if g == e {
					n++
				}
			}
			if wanted := slices.Contains(tc.want, e); (n > 0) != wanted || wanted && n < 30/len(tc.want)/2 {
				t.Errorf("%s: %s was asked %d times of %d", tc.name, e.addr, n, len(got))
			}
		}
	}
	if n := b.connected(); n != 0 {
		t.Errorf("%d are connected", n)
	}
	all[2].ready.Store(true)
	if n := b.connected(); n != 1 {
		t.Errorf("%d are connected", n)
	}
}

// TestBreaker: a node that fails or refuses is not asked for some time, then by one call at a time until
// it serves. What that is depends on how it fails.
func TestBreaker(t *testing.T) {
	fail := func(silent bool) func(*endpoint) {
		return func(e *endpoint) {
			if silent { // which closes the connection
				conn, _ := e.dial()
				e.conn.Store(conn)
			}
			e.failed(e.conn.Load(), silent, io.EOF)
		}
	}
	refuse := func(after time.Duration) func(*endpoint) {
		return func(e *endpoint) { e.refused(&Refusal{Reason: NoSID, RetryAfter: after}) }
	}
	for _, tc := range []struct {
		name string
		do   func(*endpoint)
		want []time.Duration // of each time in a row
	}{
		{"fails", fail(false), []time.Duration{
			20 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond, 160 * time.Millisecond,
			320 * time.Millisecond, 640 * time.Millisecond, time.Second, time.Second,
		}},
		{"is silent", fail(true), []time.Duration{
			time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 15 * time.Second, 15 * time.Second,
		}},
		{"refuses", refuse(300 * time.Millisecond), []time.Duration{300 * time.Millisecond, 300 * time.Millisecond}},
		{"refuses without a delay", refuse(0), []time.Duration{time.Second, time.Second}},
		{"refuses for long", refuse(time.Hour), []time.Duration{5 * time.Second, 5 * time.Second}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, 1)
			e := (*b.list.Load())[0]
			for i, want := range tc.want {
				tc.do(e)
				b.now += want - time.Nanosecond
				if got, wait, _ := b.pick(nil); got != nil || wait != time.Nanosecond {
					t.Fatalf("time %d: asked within %v, next in %v", i, want, wait)
				}
				b.now += time.Nanosecond
				if got := b.asked(5, nil); len(got) != 1 {
					t.Fatalf("time %d: asked by %d calls after %v, want one", i, len(got), want)
				}
			}
			b.now += b.o.AttemptTimeout - time.Nanosecond // The trial has no outcome.
			if got, wait, _ := b.pick(nil); got != nil || wait != time.Nanosecond {
				t.Errorf("asked while a trial is under way, next in %v", wait)
			}
			b.now += time.Nanosecond
			if got := b.asked(5, nil); len(got) != 1 {
				t.Errorf("asked by %d calls after a trial without an outcome", len(got))
			}
			if !b.woken(e.served) || len(b.asked(5, nil)) != 5 || e.cause.Load() != nil {
				t.Error("it serves, and is not asked by all")
			}
			if b.woken(e.served) {
				t.Error("who waits is woken by each call that is served")
			}
			tc.do(e)
			if left := e.left(b.now); left != tc.want[0] {
				t.Errorf("after it served it is not asked for %v, want %v", left, tc.want[0])
			}
		})
	}
}

// TestFailuresOfOneTime: requests that were under way when another failed, or were sent over a connection
// before, count as no further failures.
func TestFailuresOfOneTime(t *testing.T) {
	b := newBench(t, 1)
	e := (*b.list.Load())[0]
	old := e.conn.Load()
	for range 5 {
		e.failed(old, false, io.EOF)
	}
	if n := e.fails.Load(); n != 1 || e.failures.Load() != 5 {
		t.Errorf("%d failures in a row of %d", n, e.failures.Load())
	}
	b.now += firstBackoff
	e.failed(old, false, io.EOF)
	if n := e.fails.Load(); n != 2 {
		t.Errorf("%d failures in a row", n)
	}
	conn, err := e.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	e.conn.Store(conn)
	b.now += time.Minute
	if e.failed(old, false, io.EOF); e.fails.Load() != 2 {
		t.Error("a failure over a connection before counts")
	}
	e.refused(&Refusal{Reason: NoSID})
	if e.fails.Load() != 0 || e.refusals.Load() != 1 {
		t.Error("a node that refuses answers")
	}
}

// TestDeadlinesOfCallers: callers whose deadlines pass are a failure of the node once no caller was
// answered for the time of an attempt.
func TestDeadlinesOfCallers(t *testing.T) {
	b := newBench(t, 1)
	e := (*b.list.Load())[0]
	timeOut := func(after time.Duration) int32 {
		b.now += after
		e.callerTimedOut(e.conn.Load())
		return e.fails.Load()
	}
	if timeOut(0)+timeOut(time.Second/2)+timeOut(time.Second/2) != 0 {
		t.Error("a failure within the time of an attempt")
	}
	e.served()
	if timeOut(time.Second)+timeOut(time.Second) != 0 {
		t.Error("a failure although a caller was answered")
	}
	if timeOut(time.Nanosecond) != 1 || e.unanswered.Load() != 0 {
		t.Error("no failure after the time of an attempt")
	}
	if e.until.Load() != int64(b.now+firstTimeoutBackoff) {
		t.Errorf("it is not asked for %v", time.Duration(e.until.Load())-b.now)
	}
	e.served()
	timeOut(0)
	e.refused(&Refusal{Reason: NoSID, RetryAfter: time.Millisecond})
	if timeOut(2*time.Second) != 0 {
		t.Error("a failure although a caller was refused")
	}
}

// TestWhyNobodyIsAsked: the refusal of a node is the reason, else what failed, and the name server last.
func TestWhyNobodyIsAsked(t *testing.T) {
	b := newBench(t, 2)
	all := *b.list.Load()
	away := errors.New("no such host")
	b.lookupErr = away
	if err := b.lastError(); !errors.Is(err, away) || b.refusal() != nil {
		t.Errorf("%v", err)
	}
	all[0].failed(all[0].conn.Load(), false, io.ErrUnexpectedEOF)
	if err := b.lastError(); !errors.Is(err, io.ErrUnexpectedEOF) || b.refusal() != nil {
		t.Errorf("%v", err)
	}
	all[1].refused(&Refusal{Reason: AfterTooFar, RetryAfter: 2 * time.Second})
	for after, want := range map[time.Duration]bool{0: true, 2*time.Second - 1: true, 2 * time.Second: false} {
		now := b.now
		b.now += after
		if r := b.refusal(); (r != nil) != want || r != nil && (r.Reason != AfterTooFar || !errors.Is(b.lastError(), r)) {
			t.Errorf("after %v: %v", after, r)
		}
		b.now = now
	}
	// Once the client's last ID is another one, nodes are asked again that it was too far ahead for.
	b.now += 3 * time.Second
	if all[1].claim(b.now); all[1].left(b.now) <= 0 {
		t.Error("there is no trial")
	}
	b.now -= 3 * time.Second
	all[0].until.Store(int64(b.now + time.Second))
	if !b.woken(b.forgive) || all[1].left(b.now) > 0 || all[0].left(b.now) <= 0 || b.refusal() != nil || all[1].cause.Load() != nil {
		t.Errorf("%v and %v are left", all[0].left(b.now), all[1].left(b.now))
	}
}

// TestSet: addresses that are found are used, each once; those of a name that was not found stay, and a
// connection is kept.
func TestSet(t *testing.T) {
	b := newBench(t, 0)
	addrs := func() string {
		var out []string
		for _, e := range *b.list.Load() {
			out = append(out, e.target+"="+strings.TrimSuffix(e.addr, ":1"))
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	found := func(list ...string) (out []address) {
		for _, s := range list {
			target, addr, _ := strings.Cut(s, "=")
			out = append(out, address{target, addr + ":1"})
		}
		return out
	}
	away := errors.New("no such host")
	for i, tc := range []struct {
		found  []string
		failed map[string]error
		want   string
	}{
		{[]string{"a=127.0.1.1", "a=127.0.1.2", "b=127.0.1.2"}, nil, "a=127.0.1.1 a=127.0.1.2"},
		{[]string{"a=127.0.1.2", "b=127.0.1.3"}, nil, "a=127.0.1.2 b=127.0.1.3"},
		{[]string{"b=127.0.1.4"}, map[string]error{"a": away}, "a=127.0.1.2 b=127.0.1.4"},
		{nil, map[string]error{"a": away, "b": away}, "a=127.0.1.2 b=127.0.1.4"},
		{[]string{"a=127.0.1.2"}, nil, "a=127.0.1.2"},
	} {
		before := *b.list.Load()
		if !b.woken(func() { _ = b.set(found(tc.found...), tc.failed) }) {
			t.Errorf("lookup %d woke nobody", i)
		}
		if got := addrs(); got != tc.want || errors.Is(b.lookupErr, away) != (tc.failed != nil) {
			t.Errorf("lookup %d: %s, want %s; %v", i, got, tc.want, b.lookupErr)
		}
		for _, e := range *b.list.Load() {
			for _, was := range before {
				if was.addr == e.addr && was != e {
					t.Errorf("lookup %d: %s was connected anew", i, e.addr)
				}
			}
		}
		for _, e := range before {
			if !slices.Contains(*b.list.Load(), e) {
				wait.Until(t, e.addr+" is closed", func() bool { return e.conn.Load().GetState() == connectivity.Shutdown })
			}
		}
	}
	var many []string
	for i := range 3 * maxEndpoints {
		many = append(many, fmt.Sprintf("a=127.0.2.%d", i))
	}
	connected := (*newBench(t, 1).list.Load())[0]
	connected.addr = "127.0.3.1:1"
	b.list.Store(new(append(slices.Clone(*b.list.Load()), connected)))
	many = append(many, "a=127.0.3.1")
	seen := map[string]bool{}
	for range 20 {
		_ = b.set(found(many...), nil)
		if n := len(*b.list.Load()); n != maxEndpoints || !slices.Contains(*b.list.Load(), connected) {
			t.Fatalf("%d of %d addresses are used, the connected one: %v", n, len(many), slices.Contains(*b.list.Load(), connected))
		}
		for _, e := range *b.list.Load() {
			seen[e.addr] = true
		}
	}
	if len(seen) < 2*maxEndpoints {
		t.Errorf("the same %d of %d addresses are used each time", len(seen), len(many))
	}
	exactly := found(many[:maxEndpoints]...)
	_ = b.set(exactly, nil)
	if n := len(*b.list.Load()); n != maxEndpoints {
		t.Errorf("%d of %d addresses are used", n, maxEndpoints)
	}
	b.o.DialOptions = []grpc.DialOption{grpc.WithDefaultServiceConfig("{bad")}
	if err := b.set(found("a=127.0.4.1"), nil); err == nil || b.lookupErr != err || len(*b.list.Load()) != 0 {
		t.Errorf("an address that cannot be dialed: %v, noted is %v", err, b.lookupErr)
	}
	b.o.DialOptions = nil
	_ = b.set(exactly, nil)
	b.end()
	if _ = b.set(nil, nil); len(*b.list.Load()) != maxEndpoints {
		t.Error("a lookup after the client was closed changed what it uses")
	}
	b.work.Wait()
}

// resolver has the addresses of names.
type resolver map[string][]string

func (r resolver) LookupHost(_ context.Context, host string) ([]string, error) {
	addrs, ok := r[host]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host}
	}
	return addrs, nil
}

// TestLookup: a name with no addresses is a failed one, and an address needs no lookup.
func TestLookup(t *testing.T) {
	b := newBench(t, 0)
	b.o.Resolver = resolver{"two": {"10.0.0.1", "fd00::1"}, "none": nil}
	b.o.Targets = []string{"two:9000", "none:9000", "missing:9000", "10.0.0.9:9000", "[fd00::2]:9000"}
	found, failed := b.lookup()
	slices.SortFunc(found, func(a, b address) int { return strings.Compare(a.addr, b.addr) })
	want := []address{
		{"two:9000", "10.0.0.1:9000"}, {"10.0.0.9:9000", "10.0.0.9:9000"}, {"two:9000", "[fd00::1]:9000"},
		{"[fd00::2]:9000", "[fd00::2]:9000"},
	}
	if !slices.Equal(found, want) || len(failed) != 2 || failed["none:9000"] == nil || failed["missing:9000"] == nil {
		t.Errorf("found %v, failed %v", found, failed)
	}
}

// namesOf answers after a number of failures, and notes when it was asked.
type namesOf struct {
	begun time.Time
	fails int
	asked []time.Duration
}

func (n *namesOf) LookupHost(context.Context, string) ([]string, error) {
	if n.asked = append(n.asked, time.Since(n.begun)); len(n.asked) <= n.fails {
		return nil, io.EOF
	}
	return []string{"127.0.5.1"}, nil
}

// TestResolve: names are looked up again each time the interval has passed, and soon if that failed or
// was asked for.
func TestResolve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := &namesOf{begun: time.Now(), fails: 2}
		p := newPool(Options{
			Targets:        []string{"a:1"},
			Resolver:       names,
			ResolveEvery:   time.Minute,
			AttemptTimeout: time.Hour,
			DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})},
		}, func() time.Duration { return time.Since(names.begun) })
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(125 * time.Second) // two failures, then an answer, and two more each 61 s later
		p.lookupSoon()
		time.Sleep(time.Minute)
		p.close()
		const s = time.Second
		if want := []time.Duration{0, s, 2 * s, 63 * s, 124 * s, 125 * s}; !slices.Equal(names.asked, want) {
			t.Errorf("looked up after %v, want %v", names.asked, want)
		}
	})
}

// silentNames answers for one name alone.
type silentNames struct{}

func (silentNames) LookupHost(ctx context.Context, host string) ([]string, error) {
	if host == "good.example" {
		return []string{"127.0.5.1"}, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestHangingLookups: lookups that hang delay another one by the timeout of one.
func TestHangingLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := newPool(Options{
			Targets:        []string{"a.example:1", "b.example:1", "c.example:1", "good.example:1"},
			Resolver:       silentNames{},
			ResolveEvery:   time.Minute,
			AttemptTimeout: time.Hour,
			DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})},
		}, func() time.Duration { return time.Since(began) })
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookupTimeout)
		synctest.Wait()
		if list := *p.list.Load(); len(list) != 1 || list[0].addr != "127.0.5.1:1" {
			t.Errorf("%d nodes are used", len(list))
		}
		p.close()
	})
}

// TestWatch: an endpoint connects, connects anew after it was silent, and is asked no more once it ends.
// While it cannot connect it says why, and names are looked up.
func TestWatch(t *testing.T) {
	b := newBench(t, 1)
	e := (*b.list.Load())[0]
	e.connect(t)
	first := e.conn.Load()
	if err := e.open(); err != nil {
		t.Fatal(err)
	}
	connected := func() bool { return e.ready.Load() && e.conn.Load().GetState() == connectivity.Ready }
	e.ready.Store(false)
	wait.Until(t, "connected", connected)
	second := e.conn.Load()
	if e.failed(second, true, io.EOF); first == second {
		t.Error("open did not connect")
	}
	wait.Until(t, "connected anew", func() bool { return e.conn.Load() != second && connected() })
	if err := e.connectError(); err != nil {
		t.Errorf("connected: %v", err)
	}
	third := e.conn.Load()
	e.end()
	b.work.Wait()
	if e.ready.Load() || third.GetState() != connectivity.Shutdown || len(b.lookups) != 0 {
		t.Errorf("ready %v, %v", e.ready.Load(), third.GetState())
	}
	e.addr = "127.0.0.1:1"
	if err := e.open(); err != nil {
		t.Fatal(err)
	}
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
			e := &endpoint{pool: b.pool, addr: "10.0.0.1:9000"}
			if err := e.open(); err != nil {
				t.Fatal(err)
			}
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
		{context.Canceled, nil, "context canceled: client: no node answered: none is connected yet", []error{context.Canceled, ErrUnavailable}},
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
		got, err := (*b.list.Load())[0].block(res, 3, 100)
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
	e := (*b.list.Load())[0]
	return co, &stream{co: co, e: e, conn: e.conn.Load()}, b
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
			(*b.list.Load())[0].refused(refusal)
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
		s.e.trial.Store(1)
		refusal := &Refusal{Reason: tc.reason, Metadata: map[string]string{"limit": tc.limit}}
		co.refused(s, b, refusal)
		if err := b.ended(); s.e.trial.Load() != 0 || errors.Is(err, errRejoin) != tc.rejoin || !tc.rejoin && !errors.Is(err, refusal) {
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
		"no other":   {func(co *coalescer, s *stream) { co.cur = s; s.e.ready.Store(false) }, true},
		"not in use": {func(co *coalescer, s *stream) { co.cur = nil }, false},
		"under way":  {func(co *coalescer, s *stream) { co.cur, co.connecting = s, true }, false},
		"closing":    {func(co *coalescer, s *stream) { co.cur = s; co.end() }, false},
	} {
		co, s, b := shared(t)
		co.connecting = false
		tc.prepare(co, s)
		picked := b.next.Load()
		co.mu.Lock()
		if co.rotate(s); co.connecting != (tc.looks || name == "under way") {
			t.Errorf("%s: connecting %v", name, co.connecting)
		}
		co.mu.Unlock()
		co.work.Wait()
		if looks := b.next.Load() != picked; looks != tc.looks || co.connecting != (name == "under way") {
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
