package client

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client/internal/balance"
	"github.com/flakelease/allocator/flake"
)

// requests is a stream that notes what is sent, and answers nothing.
type requests struct {
	grpc.ClientStream
	mu   sync.Mutex // guards sent
	sent [][3]int64 // number, count, after
}

// count returns how many were sent.
func (r *requests) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sent)
}

func (r *requests) SendMsg(m any) error {
	req := m.(*pb.AllocateStreamRequest)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = append(r.sent, [3]int64{req.Sequence, int64(req.Request.Count), req.Request.After})
	return nil
}

// open makes s the stream of its coalescer, and returns what is sent over it.
func (s *stream) open() *requests {
	r := &requests{}
	s.grpc, s.req.Request, s.end = r, &pb.AllocateRequest{}, func() {}
	s.co.c.o.AttemptTimeout, s.rotateAt = time.Minute, 1<<62
	s.co.cur = s
	return r
}

// unlocked reports whether nobody holds co.mu.
func (co *coalescer) unlocked() bool {
	if !co.mu.TryLock() {
		return false
	}
	co.mu.Unlock()
	return true
}

// TestJoin: callers share a batch up to the limit, and one that alone wants more has its own.
func TestJoin(t *testing.T) {
	co, _, _ := shared(t)
	co.limit = 10
	var batches []*batch
	for i, tc := range []struct {
		n, batch, want, callers int
		queue                   []int
		empty                   bool // All callers of the batch have gone before.
	}{
		{4, 0, 4, 1, nil, false}, {6, 0, 10, 2, nil, false}, {1, 1, 1, 1, []int{0}, false}, {20, 2, 20, 1, []int{0, 1}, false},
		{30, 2, 30, 2, []int{0, 1}, true}, {1, 3, 1, 1, []int{0, 1, 2}, false},
	} {
		if tc.empty {
			if gone, err := co.leave(co.forming, co.forming.want, context.Canceled); !gone || co.forming.want != 0 || co.forming.live != 0 {
				t.Errorf("step %d: %v, %v, %+v", i, gone, err, co.forming)
			}
		}
		b, err := co.join(tc.n)
		fatal.If(t, err)
		if !slices.Contains(batches, b) {
			batches = append(batches, b)
		}
		if co.forming != b || batches[tc.batch] != b || b.want != tc.want || b.callers != tc.callers || b.sealed || len(co.queue) != len(tc.queue) {
			t.Fatalf("step %d: %+v, %d wait before it", i, b, len(co.queue))
		}
		for k, q := range tc.queue {
			if co.queue[k] != batches[q] || !batches[q].sealed {
				t.Errorf("step %d: batch %d of the queue is %+v", i, k, co.queue[k])
			}
		}
	}
	b := co.forming
	b.abandoned = 0
	co.finish(b, nil)
	if gone, err := co.leave(b, 1, context.Canceled); gone || err != nil || b.want != 1 || !co.unlocked() {
		t.Errorf("a caller leaves a batch that is answered: %v, %v", gone, err)
	}
	co.closed = true
	if _, err := co.join(1); err != ErrClosed || !co.unlocked() {
		t.Error(err)
	}
}

// TestFlush: batches are sent in order, two at a time, with what the client has by then; those that
// everybody has left are not.
func TestFlush(t *testing.T) {
	co, s, _ := shared(t)
	r := s.open()
	co.c.order.Store(7)
	co.c.last.Store(99)
	one, left, two, three := co.waiting(1), co.waiting(2), co.waiting(3), co.waiting(4)
	left.live, three.sealed = 0, false
	co.queue, co.forming = []*batch{one, left, two}, three
	co.flush()
	if want := [][3]int64{{1, 1, 99}, {2, 3, 99}}; !slices.Equal(r.sent, want) || one.order != 7 || two.after != 99 || left.ended() != nil ||
		three.sealed || !co.unlocked() {
		t.Errorf("sent %v; %+v", r.sent, two)
	}
	s.pop()
	if co.flush(); len(r.sent) != 3 || !three.sealed || co.forming != nil {
		t.Errorf("sent %v; %+v", r.sent, three)
	}
	s.sent, three = nil, co.waiting(0)
	co.forming, three.sealed = three, false
	if co.flush(); len(r.sent) != 3 || three.ended() != nil || !three.sealed || co.forming != nil {
		t.Errorf("nobody waits for %+v, sent %v", three, r.sent)
	}
}

// TestAnswered: an answer is for the oldest request. What callers who have gone asked for is counted as
// dropped, and a stream that was replaced ends with its last answer.
func TestAnswered(t *testing.T) {
	for _, tc := range []struct {
		name               string
		retired, more, bad bool
		ends               int
	}{{"in use", false, false, false, 0}, {"replaced", true, false, false, 1}, {"replaced, not the last", true, true, false, 0},
		{"refused", false, false, true, 1}} {
		co, s, b := shared(t)
		r, ends := s.open(), 0
		s.end = func() { ends++ }
		s.retired = tc.retired
		one, next := co.waiting(5), co.waiting(1)
		one.abandoned, s.sent, co.queue = 2, []*batch{one}, []*batch{next}
		if tc.more {
			s.sent = append(s.sent, co.waiting(1))
		}
		s.res.Sequence, s.res.Result = 1, &pb.AllocateStreamResponse_Response{Response: &pb.AllocateResponse{
			First:  100,
			Count:  5,
			Stride: flake.Scalable.Stride(),
			Layout: pb.Layout(flake.Scalable.Number()),
		}}
		if tc.bad {
			s.res.Result = &pb.AllocateStreamResponse_Refusal{Refusal: &pb.Refusal{Reason: pb.Reason_REASON_NO_SID}}
		}
		co.answered(s)
		c, e := co.c, b.nodes.Nodes[0]
		if ends != tc.ends || !co.unlocked() {
			t.Errorf("%s: ended %d times", tc.name, ends)
		}
		if tc.bad {
			if co.cur != nil || !s.retired || len(co.queue) != 2 || e.Refusals != 1 || c.stats.batches.Load() != 0 {
				t.Errorf("%s: %d wait, %d refusals", tc.name, len(co.queue), e.Refusals)
			}
			continue
		}
		if one.ended() != nil || c.Last() != one.block.Last() || c.stats.ids.Load() != 3 || c.stats.dropped.Load() != 2 || c.stats.batches.Load() != 1 {
			t.Errorf("%s: %+v, %v; %d IDs, %d dropped in %d batches", tc.name, one.block, one.err, c.stats.ids.Load(),
				c.stats.dropped.Load(), c.stats.batches.Load())
		}
		if sent := len(r.sent) == 1; sent == (tc.ends == 1) {
			t.Errorf("%s: the next one is sent: %v", tc.name, sent)
		}
	}
	co, s, _ := shared(t)
	if co.answered(s); !co.unlocked() {
		t.Error("an answer without a request")
	}
}

// TestStreamEnded: what a stream did not answer is sent again, unless the request is wrong. That a stream
// ends that nobody uses, or with the client, is no failure of the node.
func TestStreamEnded(t *testing.T) {
	for _, tc := range []struct {
		name                   string
		retired, idle, closing bool
		err                    error
		failed, requeued       bool
	}{
		{"in use", false, false, false, io.EOF, true, true},
		{"in use, idle", false, true, false, io.EOF, true, false},
		{"replaced", true, false, false, io.EOF, true, true},
		{"replaced, idle", true, true, false, io.EOF, false, false},
		{"the client ends", false, false, true, io.EOF, false, true},
		{"a wrong token", false, false, false, status.Error(codes.Unauthenticated, ""), false, false},
	} {
		co, s, b := shared(t)
		s.open()
		s.retired, s.timer = tc.retired, time.AfterFunc(time.Hour, func() {})
		one := co.waiting(1)
		if !tc.idle {
			s.sent = []*batch{one}
		}
		if tc.closing {
			co.end()
		}
		co.streamEnded(s, tc.err)
		if n := b.nodes.Nodes[0].Failures; (n == 1) != tc.failed || s.timer.Stop() || !s.ended || !s.retired || co.cur != nil ||
			len(s.sent) != 0 || !co.unlocked() {
			t.Errorf("%s: %d failures, %+v", tc.name, n, s)
		}
		if queued := slices.Contains(co.queue, one); queued != tc.requeued || !tc.idle && (one.ended() == errors.ErrUnsupported) != queued {
			t.Errorf("%s: sent again: %v, %v", tc.name, queued, one.ended())
		}
	}
	if co, s, _ := shared(t); s.timer == nil {
		co.streamEnded(s, io.EOF) // before the first request
	}
}

// TestSweep: batches that nobody waits for, or for too long, end; the search goes on for the rest, until
// the oldest of them has waited for too long.
func TestSweep(t *testing.T) {
	broke := errors.New("it broke")
	for _, tc := range []struct {
		name             string
		timeout          time.Duration
		queued, forming  time.Duration // how long they wait; 0: there is none
		left             bool          // by all callers of the one queued
		keeps, keepsLast bool
	}{
		{"both", time.Minute, 20 * time.Second, 10 * time.Second, false, true, true},
		{"too long", time.Minute, 2 * time.Minute, 10 * time.Second, false, false, true},
		{"nobody waits", time.Minute, 20 * time.Second, 10 * time.Second, true, false, true},
		{"both for too long", time.Minute, 3 * time.Minute, 2 * time.Minute, false, false, false},
		{"one forms", time.Minute, 0, 10 * time.Second, false, false, true},
		{"none forms", time.Minute, 20 * time.Second, 0, false, true, false},
		{"no bound", -1, 2 * time.Minute, 10 * time.Second, false, true, true},
	} {
		for _, last := range []error{nil, broke} {
			co, _, _ := shared(t)
			co.c.o.Timeout, co.c.begun = tc.timeout, time.Now().Add(-time.Hour)
			queued, forming := co.waiting(1), co.waiting(1)
			forming.sealed, queued.last, forming.last = false, io.EOF, io.EOF
			queued.begun, forming.begun = co.c.since()-tc.queued, co.c.since()-tc.forming
			if tc.left {
				queued.live = 0
			}
			if tc.queued > 0 {
				co.queue = []*batch{queued}
			}
			if tc.forming > 0 {
				co.forming = forming
			}
			deadline, reported, wanted := co.sweep(last)
			oldest := queued
			if !tc.keeps {
				oldest = forming
			}
			if wanted != (tc.keeps || tc.keepsLast) || co.connecting != wanted || (len(co.queue) == 1) != tc.keeps || (co.forming != nil) != tc.keepsLast {
				t.Errorf("%s: goes on %v, %d and %v", tc.name, wanted, len(co.queue), co.forming != nil)
			}
			for b, kept := range map[*batch]bool{queued: tc.keeps || tc.queued == 0, forming: tc.keepsLast || tc.forming == 0} {
				if err := b.ended(); kept != (err == errors.ErrUnsupported) || !kept && (!b.sealed || last != nil && !errors.Is(err, last) ||
					last == nil && !errors.Is(err, io.EOF)) {
					t.Errorf("%s: kept %v, %v", tc.name, kept, err)
				}
			}
			if !wanted {
				continue
			}
			if want := oldest.begun + tc.timeout; deadline != want && (tc.timeout > 0 || deadline != 0) {
				t.Errorf("%s: until %v, want %v", tc.name, deadline, want)
			}
			if last == nil && reported != io.EOF || last != nil && reported != last {
				t.Errorf("%s: %v", tc.name, reported)
			}
		}
	}
}

// TestFail: all batches end with the error.
func TestFail(t *testing.T) {
	co, _, _ := shared(t)
	one, two := co.waiting(1), co.waiting(1)
	two.sealed = false
	co.queue, co.forming = []*batch{one}, two
	if co.fail(io.EOF); one.ended() != io.EOF || two.ended() != io.EOF || !two.sealed || len(co.queue) != 0 || co.forming != nil || !co.unlocked() {
		t.Errorf("%v, %v", one.ended(), two.ended())
	}
	if co.fail(io.EOF); !co.unlocked() {
		t.Error("there was none")
	}
}

// TestConnect: a stream is looked for while there is none, by one goroutine, if a batch waits for it.
func TestConnect(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*coalescer, *stream)
		looks   bool
	}{
		"needed":    {func(*coalescer, *stream) {}, true},
		"under way": {func(co *coalescer, _ *stream) { co.connecting = true }, false},
		"in use":    {func(co *coalescer, s *stream) { co.cur = s }, false},
		"no batch":  {func(co *coalescer, _ *stream) { co.queue = nil }, false},
	} {
		co, s, _ := shared(t)
		left := co.waiting(0) // With it the search ends.
		co.connecting, co.queue = false, []*batch{left}
		tc.prepare(co, s)
		co.mu.Lock()
		if co.connect(); co.connecting != (tc.looks || name == "under way") {
			t.Errorf("%s: connecting %v", name, co.connecting)
		}
		co.mu.Unlock()
		co.work.Wait()
		if looked := left.ended() == nil || errors.Is(left.ended(), ErrUnavailable); looked != tc.looks {
			t.Errorf("%s: %v", name, left.ended())
		}
	}
}

// TestFindStream: nodes are asked for a stream one after the other, until one opens it or no batch waits.
// That the caller is wrong ends all batches.
func TestFindStream(t *testing.T) {
	const s = time.Second
	wrong, tooFar := status.Error(codes.Unauthenticated, ""), &Refusal{Reason: AfterTooFar}
	for _, tc := range []struct {
		name   string
		before func(*bench)
		errs   []error // of the streams that are opened; those behind the last open
		opens  int
		took   time.Duration
		is     error // of the batch; nil: it is sent
	}{
		{"opened", nil, nil, 1, 0, nil},
		{"by another", nil, []error{io.EOF}, 2, 0, nil},
		{"by the first, later", nil, []error{io.EOF, io.EOF}, 3, balance.FirstPause, nil},
		{"none is connected", func(b *bench) {
			for _, e := range b.nodes.Nodes {
				e.setReady(false)
			}
			b.lookupErr = io.ErrNoProgress
		}, nil, 0, 10 * s, io.ErrNoProgress},
		{"a wrong token", nil, []error{wrong}, 1, 0, &Refusal{Reason: Unauthenticated}},
		{"the client's ID is too far ahead", func(b *bench) {
			for _, e := range b.nodes.Nodes {
				e.refuse(tooFar)
			}
		}, nil, 0, 0, tooFar},
	} {
		synctest.Test(t, func(t *testing.T) {
			co, _, b := shared(t)
			began, opens := time.Now(), 0
			b.pool.since = func() time.Duration { return time.Hour + time.Since(began) }
			co.c.o.Timeout, co.c.o.AttemptTimeout = 10*s, s
			r := &requests{}
			b.o.DialOptions = []grpc.DialOption{grpc.WithStreamInterceptor(func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string,
				_ grpc.Streamer, _ ...grpc.CallOption) (grpc.ClientStream, error) {
				if opens <= len(tc.errs) { // A stream over a connection that is not up is replaced: those are not counted.
					opens++
				}
				if opens <= len(tc.errs) {
					return nil, tc.errs[opens-1]
				}
				return &hanging{requests: r, ctx: ctx}, nil
			})}
			b.nodes.Use(nil)
			for range 2 {
				b.add(t, "10.0.0.1:9000")
			}
			if tc.before != nil {
				tc.before(b)
			}
			one := co.waiting(1)
			one.begun, co.connecting, co.queue = co.c.since(), false, []*batch{one}
			if tc.is == tooFar {
				one.last = tooFar
			}
			co.flush()
			synctest.Wait()
			for r.count() == 0 && one.ended() == errors.ErrUnsupported && time.Since(began) < time.Minute {
				time.Sleep(time.Millisecond)
				synctest.Wait()
			}
			took := time.Since(began)
			if opens != tc.opens || took < tc.took || took > tc.took+sweepEvery || co.connecting {
				t.Errorf("%s: %d streams in %v, connecting %v", tc.name, opens, took, co.connecting)
			}
			if err := one.ended(); tc.is != nil && !errors.Is(err, tc.is) || (len(r.sent) == 1) != (tc.is == nil) || (co.cur != nil) != (tc.is == nil) {
				t.Errorf("%s: %v, sent %v", tc.name, err, r.sent)
			}
			if co.cur != nil && co.cur.rotateAt < co.c.since()+rotateEvery/2-s {
				t.Errorf("%s: used until %v", tc.name, co.cur.rotateAt)
			}
			co.mu.Lock()
			one.live = 0 // else it would be sent again
			co.mu.Unlock()
			co.end()
			co.work.Wait()
		})
	}
}

// hanging is a stream without answers.
type hanging struct {
	*requests
	ctx context.Context
}

func (h *hanging) RecvMsg(any) error {
	<-h.ctx.Done()
	return h.ctx.Err()
}

// TestUse: a stream that is replaced ends when it has answered all.
func TestUse(t *testing.T) {
	for _, waits := range []bool{false, true} {
		co, old, _ := shared(t)
		old.open()
		ended := false
		old.end = func() { ended = true }
		if waits {
			old.sent = []*batch{co.waiting(1)}
		}
		next := &stream{co: co, e: old.e, conn: old.conn}
		next.open()
		co.cur = old
		co.end()
		next.grpc = &hanging{requests: &requests{}, ctx: co.ctx}
		if co.use(next); ended == waits || !old.retired || co.connecting || !next.ended {
			t.Errorf("requests under way %v: ended %v, retired %v", waits, ended, old.retired)
		}
	}
}

// TestReplace: a stream that works is replaced by one to another node alone, and one whose connection takes
// no new streams by one to the same node as well. Where there is neither, batches that wait have one looked for.
func TestReplace(t *testing.T) {
	for _, tc := range []struct {
		name           string
		healthy, other bool
		replaced       bool
		refuses        bool // No node opens a stream.
	}{{"by another", true, true, true, false}, {"no other", true, false, false, false}, {"unhealthy", false, false, true, false},
		{"refused", true, true, false, true}} {
		co, old, b := shared(t)
		b.o.DialOptions = []grpc.DialOption{grpc.WithStreamInterceptor(func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string,
			_ grpc.Streamer, _ ...grpc.CallOption) (grpc.ClientStream, error) {
			if tc.refuses {
				return nil, io.EOF
			}
			return &hanging{requests: &requests{}, ctx: ctx}, nil
		})}
		for range 2 {
			e := b.add(t, "127.0.0.1:1")
			e.connect(t)
			e.setReady(tc.other)
		}
		list := b.nodes.Nodes[1:]
		b.nodes.Use(list)
		list[0].setReady(true)
		old.e, old.conn = list[0], list[0].conn.Load()
		if old.open(); !tc.healthy {
			_ = old.conn.Close()
			old.e.connect(t)
		}
		done := make(chan struct{})
		go func() { co.replace(old); close(done) }()
		if tc.replaced {
			wait.Until(t, tc.name, func() bool { co.mu.Lock(); defer co.mu.Unlock(); return co.cur != old && co.cur != nil })
			if co.mu.Lock(); (co.cur.e == old.e) == tc.other {
				t.Errorf("%s: it is to %s", tc.name, co.cur.e.Addr)
			}
			co.mu.Unlock()
			co.end()
		}
		if <-done; !tc.replaced && (co.cur != old || co.connecting) {
			t.Errorf("%s: connecting %v", tc.name, co.connecting)
		}
		left := co.waiting(0)
		co.cur, co.connecting, co.queue = nil, true, []*batch{left}
		list[0].setReady(false)
		list[1].setReady(false)
		co.replace(old)
		if co.work.Wait(); left.ended() == errors.ErrUnsupported {
			t.Errorf("%s: no stream is looked for", tc.name)
		}
	}
}
