package client

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client/internal/balance"
	"github.com/flakelease/allocator/flake"
)

// stream is one AllocateStream to one node.
type stream struct {
	co   *coalescer
	e    *endpoint
	conn *grpc.ClientConn
	grpc grpc.ClientStream
	end  context.CancelFunc

	req pb.AllocateStreamRequest  // used by whoever holds coalescer.sending
	res pb.AllocateStreamResponse // used by the receiver alone

	// Guarded by coalescer.mu.
	sent     []*batch // without an answer, the oldest first
	seq      int64    // the last request's
	answers  int64
	high     flake.ID // the last ID it gave
	retired  bool     // nothing more is sent
	ended    bool
	silent   bool          // it was ended, since an answer took too long
	rotateAt time.Duration // since the client's start
	timer    *time.Timer   // calls overdue
	armed    bool          // the timer runs
}

// stream opens a stream. It takes at most one attempt's time.
func (e *endpoint) stream(co *coalescer) (*stream, error) {
	e.requests.Add(1)
	ctx, cancel := context.WithCancel(co.ctx)
	s := &stream{co: co, e: e, conn: e.conn.Load(), end: cancel}
	late := time.AfterFunc(co.c.o.AttemptTimeout, cancel)
	g, err := s.conn.NewStream(ctx, &pb.AllocatorService_ServiceDesc.Streams[0],
		pb.AllocatorService_AllocateStream_FullMethodName)
	inTime := late.Stop()
	if err == nil && !inTime {
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		s.silent = !inTime
		return nil, s.judge(err)
	}
	s.grpc = g
	s.req.Request = &pb.AllocateRequest{}
	return s, nil
}

// judge turns the error that ended the stream into the client's, and counts it
// against the node unless the client ended the stream.
func (s *stream) judge(err error) error {
	if s.silent && s.co.ctx.Err() == nil {
		err = s.e.named(fmt.Errorf("no answer within %v", s.co.c.o.AttemptTimeout))
		s.e.ended(s.conn, balance.Outcome{Kind: balance.Silent, Err: err})
		return err
	}
	return s.e.judge(s.co.ctx, s.conn, true, err)
}

// push adds a batch to those under way and returns its number. co.mu is held.
func (s *stream) push(b *batch) int64 {
	now := s.co.c.since()
	b.sent = now
	s.sent = append(s.sent, b)
	s.seq++
	if !s.armed {
		s.armed = true
		if s.timer == nil {
			s.timer = time.AfterFunc(s.co.c.o.AttemptTimeout, s.overdue)
		} else {
			s.timer.Reset(s.co.c.o.AttemptTimeout)
		}
	}
	if now > s.rotateAt || !s.healthy() {
		s.rotateAt = s.co.rotateTime()
		s.co.rotate(s)
	}
	return s.seq
}

// healthy reports whether the connection takes new streams. After a node has
// announced that it closes it, requests under way are still answered.
func (s *stream) healthy() bool { return s.conn.GetState() == connectivity.Ready }

// overdue ends the stream if an answer has taken too long.
func (s *stream) overdue() {
	s.co.mu.Lock()
	defer s.co.mu.Unlock()
	if s.ended || len(s.sent) == 0 {
		s.armed = false
		return
	}
	if left := s.sent[0].sent + s.co.c.o.AttemptTimeout - s.co.c.since(); left > 0 {
		s.timer.Reset(left)
		return
	}
	s.silent = true
	s.end()
}

// send sends a request. An error of it is also that of the answer.
func (s *stream) send(seq int64, n int, after flake.ID) {
	s.req.Sequence, s.req.Request.Count, s.req.Request.After = seq, int32(n), int64(after)
	_ = s.grpc.SendMsg(&s.req)
}

// receive takes answers until the stream ends.
func (s *stream) receive() {
	defer s.end()
	for {
		if err := s.grpc.RecvMsg(&s.res); err != nil {
			s.co.streamEnded(s, err)
			return
		}
		s.co.answered(s)
	}
}

// pop removes the oldest batch under way, or returns nil if there is none. co.mu
// is held.
func (s *stream) pop() *batch {
	if len(s.sent) == 0 {
		return nil
	}
	b := s.sent[0]
	s.sent = slices.Delete(s.sent, 0, 1)
	s.answers++
	return b
}

// result returns what the last answer gives b. co.mu is held.
func (s *stream) result(b *batch) (Block, error) {
	if got := s.res.GetSequence(); got != s.answers {
		return Block{}, &contractError{s.e.Addr, fmt.Sprintf("answer %d to request %d", got, s.answers)}
	}
	if r := s.res.GetRefusal(); r != nil {
		return Block{}, refusalIn(r, s.e.Addr)
	}
	block, err := s.e.block(s.res.GetResponse(), b.want, max(b.after, s.high))
	if err != nil {
		return Block{}, err
	}
	s.high = block.Last()
	s.e.ended(s.conn, balance.Outcome{Kind: balance.Served})
	return block, nil
}
