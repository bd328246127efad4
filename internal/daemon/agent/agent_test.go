package agent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/daemon/agent"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/node"
)

const start clock.Millis = 1_769_904_000_000

// source gives IDs one after the other, or an error.
type source struct {
	mu     sync.Mutex // guards the rest
	next   flake.ID
	err    error
	there  bool // PrefetchedAfter has up to 1,000 IDs
	hangs  bool // BlockAfter answers when its context ends
	blocks int  // calls of BlockAfter
	after  flake.ID
}

func (s *source) take(n int) client.Block {
	b := client.Block{First: s.next, Count: n, Stride: 32, SID: 7, Node: "a node", SpaceID: 9}
	s.next += flake.ID(32 * n)
	return b
}

func (s *source) PrefetchedAfter(n int, after flake.ID) (client.Block, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after = after
	if !s.there || n < 1 || n > 1000 || s.next <= after {
		return client.Block{}, false
	}
	return s.take(n), true
}

func (s *source) BlockAfter(ctx context.Context, n int, after flake.ID) (client.Block, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocks++
	s.after = after
	if s.hangs {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return client.Block{}, ctx.Err()
	}
	if s.err != nil {
		return client.Block{}, s.err
	}
	return s.take(n), nil
}

func (s *source) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *source) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocks
}

var settings = gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 250}

func newAgent(s *source, src clock.Source) *agent.Agent {
	n := node.New(node.Config{Name: "agent", Gen: settings}, src, rand.NewPCG(1, 2))
	return agent.New(agent.Config{About: n.About(), Source: s, Clock: src, MaxWait: time.Second, MaxAge: time.Second})
}

// TestRefusals: what a node refused passes unchanged, however the client wraps it; all else is
// NO_NODE, or DRAINING where the agent ends.
func TestRefusals(t *testing.T) {
	refusal := &client.Refusal{Reason: client.ClockSkew, Message: "clocks disagree", RetryAfter: time.Second,
		Metadata: map[string]string{"offset_ms": "900"}, Node: "10.0.0.1:9000"}
	same := &node.Refusal{Reason: node.ClockSkew, Message: "clocks disagree", RetryAfter: time.Second,
		Metadata: map[string]string{"offset_ms": "900"}}
	unknown := &client.Refusal{Reason: "WRONG_PHASE_OF_MOON", Message: "wait a week", Node: "10.0.0.1:9000"}
	later := &client.Refusal{Reason: "WRONG_PHASE_OF_MOON", RetryAfter: time.Hour}
	ahead := &client.Refusal{Reason: client.AfterTooFar, RetryAfter: time.Hour}
	for name, tc := range map[string]struct {
		err    error
		delay  time.Duration // A refusal other than want has this delay. 0: any.
		want   *node.Refusal // nil: by the next two
		reason node.Reason
		says   string
	}{
		"refused":              {refusal, 0, same, 0, ""},
		"after retries":        {fmt.Errorf("no node served within 2s: %w", refusal), 0, same, 0, ""},
		"unknown":              {unknown, 0, nil, node.NoNode, "10.0.0.1:9000 refused for WRONG_PHASE_OF_MOON, a reason that the agent agent does not know: update the agent. The node says: wait a week"},
		"unknown, for an hour": {later, time.Hour, nil, node.NoNode, "a reason that"},
		"its own, for an hour": {ahead, time.Hour, nil, node.NoNode, "ahead of the clock"},
		"a number":             {&client.Refusal{Reason: "99"}, 0, nil, node.NoNode, "99"},
		"nobody":               {fmt.Errorf("%w within 2s: dial tcp: refused", client.ErrUnavailable), 0, nil, node.NoNode, "dial tcp: refused"},
		"closed":               {client.ErrClosed, 0, nil, node.Draining, "stopping"},
		"too late":             {context.DeadlineExceeded, 0, nil, node.NoNode, "deadline"},
		"its own last ID":      {&client.Refusal{Reason: client.AfterTooFar, Node: "10.0.0.1:9000"}, 0, nil, node.NoNode, "ahead of the clock of node 10.0.0.1:9000"},
	} {
		a := newAgent(&source{err: tc.err}, clocktest.NewManual(start))
		b, err := a.Next(t.Context(), 1, 0)
		r, ok := errors.AsType[*node.Refusal](err)
		switch {
		case !ok || b.Count != 0:
			t.Errorf("%s: %v, %v", name, b, err)
		case tc.want != nil && !reflect.DeepEqual(r, tc.want):
			t.Errorf("%s: %+v, want %+v", name, r, tc.want)
		case tc.delay > 0 && r.RetryAfter != tc.delay:
			t.Errorf("%s: %+v, want a delay of %v", name, r, tc.delay)
		case tc.want == nil && (r.Reason != tc.reason || !strings.Contains(r.Message, tc.says) || r.RetryAfter <= 0):
			t.Errorf("%s: %+v, want %v with %q", name, r, tc.reason, tc.says)
		}
		if n := a.Stats().Refused[r.Reason]; n != 1 {
			t.Errorf("%s: counted %d times", name, n)
		}
	}
}

// TestWithoutWait: a caller that does not wait is told what is known, and asks nobody.
func TestWithoutWait(t *testing.T) {
	s := &source{err: &client.Refusal{Reason: client.ClockSkew}}
	a := newAgent(s, clocktest.NewManual(start))
	past, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for _, want := range []node.Reason{node.NoNode, node.ClockSkew} {
		asked := s.asked()
		if _, err := a.Next(past, 5000, 0); !errors.Is(err, &node.Refusal{Reason: want}) || s.asked() != asked || strings.Contains(err.Error(), "deadline") {
			t.Errorf("%v, want %v; nodes were asked %d times", err, want, s.asked()-asked)
		}
		if r := a.Ready(); (r != nil) != (want == node.ClockSkew) {
			t.Errorf("readiness: %v", r)
		}
		_, _ = a.Next(t.Context(), 1, 0)
	}
}

// TestWrongRequests: they are refused as by a node, word for word, and ask nobody.
func TestWrongRequests(t *testing.T) {
	src := clocktest.NewManual(start)
	n := node.New(node.Config{Name: "agent", Gen: settings}, src, rand.NewPCG(1, 2))
	s := &source{next: 1000, there: true}
	a := newAgent(s, src)
	for _, tc := range []struct {
		count int
		after flake.ID
	}{{0, 0}, {-1, 0}, {1 << 30, 0}, {1, -1}, {0, -1}, {0, 5}, {1 << 30, 5}} {
		_, want := n.Next(t.Context(), tc.count, tc.after)
		if _, err := a.Next(t.Context(), tc.count, tc.after); !reflect.DeepEqual(err, want) {
			t.Errorf("%+v: %v, want %v", tc, err, want)
		}
	}
	if s.asked() != 0 {
		t.Errorf("nodes were asked %d times", s.asked())
	}
}

// TestPrefetched: IDs that are there cost no wait if they are above after, and after is passed on.
func TestPrefetched(t *testing.T) {
	s := &source{next: 1000, there: true}
	a := newAgent(s, clocktest.NewManual(start))
	b, err := a.Next(t.Context(), 2, 0)
	if err != nil || b != (gen.Block{First: 1000, Count: 2, Stride: 32, SID: 7}) || s.asked() != 0 {
		t.Errorf("%+v, %v; nodes were asked %d times", b, err, s.asked())
	}
	if space := a.Space(); space != 9 {
		t.Errorf("the agent serves space %d, and the node's is 9", space)
	}
	if b, err := a.Try(clock.Reading{}, 1, 1063); err != nil || b.First != 1064 || s.asked() != 0 {
		t.Errorf("above its after: %+v, %v; nodes were asked %d times", b, err, s.asked())
	}
	if _, err := a.Try(clock.Reading{}, 1, 1096); err == nil {
		t.Error("Try does not look at after")
	}
	if _, err := a.Next(t.Context(), 1, 2000); err != nil || s.after != 2000 || s.asked() != 1 {
		t.Errorf("after is %v, %v; nodes were asked %d times", s.after, err, s.asked())
	}
	if st := a.Stats(); st.Issued != 4 || st.Name != "agent" {
		t.Errorf("%+v", st)
	}
	a.Stop()
	if _, err := a.Next(t.Context(), 1, 0); !errors.Is(err, &node.Refusal{Reason: node.Draining}) {
		t.Errorf("after Stop: %v", err)
	}
}

// TestReady: readiness is that of the last request for a block, unless the request was wrong or large.
func TestReady(t *testing.T) {
	s, src := &source{}, clocktest.NewManual(start)
	a := newAgent(s, src)
	want := func(what string, reason node.Reason, changed <-chan struct{}) <-chan struct{} {
		t.Helper()
		if changed != nil {
			select {
			case <-changed:
			default:
				t.Errorf("%s: nobody was told", what)
			}
		}
		r, next := a.Watch()
		if (r == nil) != (reason == 0) || r != nil && r.Reason != reason {
			t.Errorf("%s: %v", what, r)
		}
		return next
	}
	changed := want("at first", 0, nil)
	ask := func(err error) {
		src.Advance(time.Second)
		s.set(err)
		_, _ = a.Next(t.Context(), 1, 5)
	}
	ask(&client.Refusal{Reason: client.AfterTooFar})
	if _, err := a.Next(t.Context(), 1, 5); !errors.Is(err, &node.Refusal{Reason: node.AfterTooFar}) {
		t.Errorf("the caller's after is too far: %v", err)
	}
	want("after a wrong after", 0, nil)
	ask(&client.Refusal{Reason: client.EntropyOverflow})
	want("after a request for too many", 0, nil)
	s.set(client.ErrUnavailable)
	_, _ = a.Next(t.Context(), 1000, 0)
	want("after one that nodes cannot serve in time", 0, nil)
	ask(&client.Refusal{Reason: client.NoSID})
	changed = want("no sid", node.NoSID, changed)
	ask(client.ErrUnavailable)
	want("nobody", node.NoNode, nil)
	ask(nil)
	changed = want("served", 0, changed)
	a.Stop()
	want("stopped", node.Draining, changed)
}

// TestKnown: what is known to fail is refused without a wait until nodes said to ask again, or for half a
// second.
func TestKnown(t *testing.T) {
	for _, tc := range []struct {
		err   error
		lasts time.Duration
	}{
		{&client.Refusal{Reason: client.ClockSkew, Message: "clocks disagree", RetryAfter: time.Second}, time.Second},
		{client.ErrUnavailable, 500 * time.Millisecond},
		{&client.Refusal{Reason: client.Unauthenticated}, 500 * time.Millisecond},
		{&client.Refusal{Reason: client.AfterTooFar, RetryAfter: time.Second}, 0}, // says nothing about others
	} {
		s, src := &source{err: tc.err, next: 1000}, clocktest.NewManual(start)
		a := newAgent(s, src)
		_, first := a.Next(t.Context(), 1, 5)
		ask := func(after flake.ID, want int) {
			t.Helper()
			before := s.asked()
			if _, err := a.Next(t.Context(), 1, after); !reflect.DeepEqual(err, first) && after == 5 || err == nil {
				t.Errorf("%v: %v", tc.err, err)
			}
			if n := s.asked() - before; n != want {
				t.Errorf("%v: nodes were asked %d times, want %d", tc.err, n, want)
			}
		}
		if tc.lasts > 0 {
			src.Advance(tc.lasts - 1)
			ask(5, 0)
			ask(0, 0)
			src.Advance(1)
		}
		ask(5, 1)
		if n := a.Stats().Refused[first.(*node.Refusal).Reason]; n != int64(s.asked())+2*int64(min(tc.lasts, 1)) {
			t.Errorf("%v: counted %d times", tc.err, n)
		}
		s.set(nil)
		src.Advance(tc.lasts)
		if _, err := a.Next(t.Context(), 1, 0); err != nil || a.Ready() != nil {
			t.Errorf("%v: nodes serve again: %v, %v", tc.err, err, a.Ready())
		}
	}
}

// TestOneAsks: while nodes do not answer, Run alone waits for them, and nobody has to once they do.
func TestOneAsks(t *testing.T) {
	for _, maxAge := range []time.Duration{time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s, src := &source{hangs: true, next: 1000}, clock.NewSystem(nil)
			n := node.New(node.Config{Name: "agent", Gen: settings}, src, rand.NewPCG(1, 2))
			a := agent.New(agent.Config{About: n.About(), Source: s, Clock: src, MaxWait: time.Second, MaxAge: maxAge})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- a.Run(ctx) }()
			next := func(want time.Duration) {
				t.Helper()
				began := time.Now()
				_, err := a.Next(t.Context(), 1, 0)
				if took := time.Since(began); took != want || !errors.Is(err, &node.Refusal{Reason: node.NoNode}) {
					t.Errorf("%v: %v after %v, want %v", maxAge, err, took, want)
				}
			}
			next(time.Second)
			for range 100 {
				time.Sleep(70 * time.Millisecond)
				next(0)
			}
			s.mu.Lock()
			s.hangs = false
			s.mu.Unlock()
			time.Sleep(1501 * time.Millisecond) // what is left of the last attempt, and the time to the next
			if _, err := a.Next(t.Context(), 1, 0); err != nil || a.Ready() != nil {
				t.Errorf("%v: nodes answer again: %v, %v", maxAge, err, a.Ready())
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMaxWait: a request waits for nodes that do not answer as long as it may and no longer. That
// says something about the nodes, unless the caller left before.
func TestMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(&source{hangs: true}, clock.NewSystem(nil))
		for left, want := range map[time.Duration]time.Duration{400 * time.Millisecond: 400 * time.Millisecond, time.Hour: time.Second} {
			ctx, leave := context.WithCancel(t.Context())
			time.AfterFunc(left, leave)
			began := time.Now()
			_, err := a.Next(ctx, 1, 0)
			if took := time.Since(began); took != want || !errors.Is(err, &node.Refusal{Reason: node.NoNode}) {
				t.Errorf("the caller leaves after %v: %v after %v", left, err, took)
			}
			if r := a.Ready(); (r == nil) != (left == want) {
				t.Errorf("the caller leaves after %v: readiness is %v", left, r)
			}
			leave()
			a = newAgent(&source{hangs: true}, clock.NewSystem(nil))
		}
	})
}

// TestRun: IDs are kept fresh for a minute after the last request, and no longer; while nodes do not
// serve, they are asked again.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{next: 1000}
		a := newAgent(s, clock.NewSystem(nil))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		in := func(d time.Duration) int {
			before := s.asked()
			time.Sleep(d)
			synctest.Wait()
			return s.asked() - before
		}
		time.Sleep(time.Millisecond)
		if n := in(time.Hour); n != 0 {
			t.Errorf("without a request nodes were asked %d times", n)
		}
		if _, err := a.Next(t.Context(), 1, 0); err != nil {
			t.Fatal(err)
		}
		if n := in(50 * time.Second); n < 95 || n > 105 {
			t.Errorf("in 50 s after a request nodes were asked %d times", n)
		}
		s.mu.Lock()
		s.there = true
		s.mu.Unlock()
		if _, err := a.Next(t.Context(), 1, 0); err != nil {
			t.Fatal(err)
		}
		if n := in(50 * time.Second); n < 95 {
			t.Errorf("in 50 s after a request that asked nobody nodes were asked %d times", n)
		}
		in(time.Minute)
		if n := in(time.Hour); n != 0 {
			t.Errorf("long after the last request nodes were asked %d times", n)
		}
		s.mu.Lock()
		s.there, s.err = false, client.ErrUnavailable
		s.mu.Unlock()
		_, _ = a.Next(t.Context(), 1, 0)
		in(2 * time.Minute)
		if n := in(10 * time.Second); n < 19 || a.Ready() == nil {
			t.Errorf("while none served nodes were asked %d times; %v", n, a.Ready())
		}
		s.mu.Lock()
		s.hangs = true
		s.mu.Unlock()
		if n := in(10 * time.Second); n < 9 || a.Ready() == nil {
			t.Errorf("while none answered nodes were asked %d times; %v", n, a.Ready())
		}
		s.mu.Lock()
		s.hangs, s.err = false, nil
		s.mu.Unlock()
		if in(2 * time.Second); a.Ready() != nil {
			t.Errorf("nodes serve again: %v", a.Ready())
		}
		s.set(client.ErrUnavailable)
		_, _ = a.Next(t.Context(), 1, 0)
		s.set(nil)
		in(2 * time.Second)
		if n := in(20 * time.Second); n < 38 {
			t.Errorf("in 20 s soon after a request that none served nodes were asked %d times", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
