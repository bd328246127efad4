package client

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/client/internal/balance"
	"github.com/flakelease/allocator/flake"
)

// connect connects e to a server that has no services.
func (e *endpoint) connect(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	server := grpc.NewServer()
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-ended })
	e.Addr = l.Addr().String()
	conn, err := e.dial()
	fatal.If(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		conn.WaitForStateChange(t.Context(), state)
	}
	e.conn.Store(conn)
}

// TestStreamThatDoesNotOpen: it takes the time of an attempt, and is a failure of a silent node, unless
// the client closed it.
func TestStreamThatDoesNotOpen(t *testing.T) {
	for _, closing := range []bool{false, true} {
		co, s, b := shared(t)
		b.o.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})}
		conn, err := s.e.dial()
		fatal.If(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		s.e.conn.Store(conn)
		co.c.o.AttemptTimeout = 20 * time.Millisecond
		if closing {
			co.end()
		}
		_, err = s.e.stream(co)
		if silent := err != nil && strings.HasSuffix(err.Error(), "no answer within 20ms"); silent == closing {
			t.Errorf("closing %v: %v", closing, err)
		}
		if left := s.e.left(); (left == balance.FirstSilence) == closing || (left == 0) != closing {
			t.Errorf("closing %v: not asked for %v", closing, left)
		}
	}
}

// TestPush: each request has the next number, and the first one without an answer starts the timer. A
// stream is replaced when its time is over, or its connection takes no new ones.
func TestPush(t *testing.T) {
	for _, tc := range []struct {
		name           string
		left           time.Duration // of the stream's time
		ready, replace bool
	}{{"in its time", time.Minute, true, false}, {"its time is over", -1, true, true}, {"unhealthy", time.Minute, false, true}} {
		co, s, b := shared(t)
		co.c.begun = time.Now().Add(-time.Hour)
		co.c.o.AttemptTimeout = time.Minute
		if tc.ready {
			s.e.connect(t)
			s.conn = s.e.conn.Load()
		}
		co.cur, co.connecting = s, false
		s.rotateAt = co.c.since() + tc.left
		was, picked := s.rotateAt, b.nodes.Turn
		one, two := co.waiting(1), co.waiting(1)
		co.mu.Lock()
		if n := s.push(one); n != 1 || len(s.sent) != 1 || one.sent < time.Hour || !s.armed || !s.timer.Reset(time.Hour) {
			t.Errorf("%s: number %d, sent at %v, armed %v", tc.name, n, one.sent, s.armed)
		}
		rotated := s.rotateAt
		if n := s.push(two); n != 2 || len(s.sent) != 2 || s.sent[1] != two || two.sent <= one.sent {
			t.Errorf("%s: number %d, sent at %v after %v", tc.name, n, two.sent, one.sent)
		}
		s.timer.Stop()
		s.armed = false
		if s.push(co.waiting(1)); !s.armed || !s.timer.Stop() {
			t.Errorf("%s: the timer does not run again", tc.name)
		}
		co.mu.Unlock()
		co.work.Wait()
		if looks := b.nodes.Turn != picked; looks != tc.replace || (rotated != was) != tc.replace {
			t.Errorf("%s: looks for another node: %v, is used for %v", tc.name, looks, rotated-was)
		}
	}
}

// TestOverdue: a stream ends when its oldest request has waited for the time of an attempt.
func TestOverdue(t *testing.T) {
	for _, tc := range []struct {
		name                 string
		age                  time.Duration // of the oldest request; 0: there is none
		ended                bool
		armed, runs, isEnded bool
	}{
		{"no request", 0, false, false, false, false},
		{"it has ended", 2 * time.Minute, true, false, false, false},
		{"in time", 59 * time.Second, false, true, true, false},
		{"late", 61 * time.Second, false, true, false, true},
	} {
		co, s, _ := shared(t)
		co.c.begun = time.Now().Add(-time.Hour)
		co.c.o.AttemptTimeout = time.Minute
		ends := 0
		s.end = func() { ends++ }
		s.timer = time.AfterFunc(time.Hour, func() {})
		s.timer.Stop()
		s.armed, s.ended = true, tc.ended
		if tc.age > 0 {
			s.sent = []*batch{{sent: co.c.since() - tc.age}, {sent: co.c.since()}}
		}
		s.overdue()
		if s.armed != tc.armed || s.timer.Stop() != tc.runs || s.silent != tc.isEnded || (ends == 1) != tc.isEnded {
			t.Errorf("%s: armed %v, silent %v, ended %d times", tc.name, s.armed, s.silent, ends)
		}
	}
}

// TestResult: an answer is that of the oldest request if it has its number, and gives IDs above all that
// the stream gave before.
func TestResult(t *testing.T) {
	res := func(number int64, first flake.ID) *pb.AllocateStreamResponse {
		return &pb.AllocateStreamResponse{Sequence: number, Result: &pb.AllocateStreamResponse_Response{
			Response: &pb.AllocateResponse{
				First:  int64(first),
				Count:  2,
				Stride: flake.Scalable.Stride(),
				Layout: pb.Layout(flake.Scalable.Number()),
			},
		}}
	}
	refusal := res(2, 0)
	refusal.Result = &pb.AllocateStreamResponse_Refusal{Refusal: &pb.Refusal{Reason: pb.Reason_REASON_INVALID_ID}}
	for _, tc := range []struct {
		name        string
		res         *pb.AllocateStreamResponse
		after, high flake.ID
		wrong       string
	}{
		{"above both", res(1, 100), 99, 99, ""},
		{"not above after", res(1, 100), 100, 99, "ID 100 is not above 100"},
		{"not above the one before", res(1, 100), 99, 100, "ID 100 is not above 100"},
		{"another number", res(2, 100), 99, 99, "answer 2 to request 1"},
		{"an earlier number", res(0, 100), 99, 99, "answer 0 to request 1"},
		{"a refusal with another number", refusal, 99, 99, "answer 2 to request 1"},
	} {
		co, s, _ := shared(t)
		one := co.waiting(2)
		one.after, s.high, s.sent = tc.after, tc.high, []*batch{one, co.waiting(1)}
		s.res.Sequence, s.res.Result = tc.res.Sequence, tc.res.Result
		s.e.fail(io.EOF)
		if b := s.pop(); b != one || len(s.sent) != 1 || s.answers != 1 {
			t.Errorf("%s: %d requests are left, %d answers", tc.name, len(s.sent), s.answers)
		}
		b, err := s.result(one)
		if tc.wrong != "" {
			if broken := (*contractError)(nil); !errors.As(err, &broken) || broken.what != tc.wrong || s.high != tc.high {
				t.Errorf("%s: %v, %v", tc.name, b, err)
			}
		} else if err != nil || b.Count != 2 || s.high != b.Last() || s.e.why() != nil {
			t.Errorf("%s: %v, %v, high %v", tc.name, b, err, s.high)
		}
	}
	if _, s, _ := shared(t); s.pop() != nil {
		t.Error("an answer without a request")
	}
}
