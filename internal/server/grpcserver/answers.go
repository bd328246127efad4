package grpcserver

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/wire"
)

// Bytes that answers hold until the client has read them.
const (
	answerBytes = 400 // besides the message: what the transport keeps for it
	// textBytes is what a text holds in an answer.
	textBytes = 40
	// textsInTurn is how many texts are made before other calls have a turn: some 40 µs.
	textsInTurn = 256
	// maxAhead is how many answers of a stream of IDs the transport holds. The next
	// request is not received until half of them are sent.
	maxAhead = 256
)

// name adds the space to the header of an answer that is no block, unless it is not known.
func (s *Server) name(ctx context.Context) {
	if id := s.issuer.Space(); id != 0 { // The error is that of a context without a call.
		_ = grpc.SetHeader(ctx, metadata.Pairs("allocator-space", fmt.Sprintf("%016x", id)))
	}
}

// codec is wire's, and counts the bytes of an *answer or a *response for as long as the
// transport holds them: until they are written, or dropped with their stream.
type codec struct{ wire.Codec }

// Marshal returns the bytes of a message.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*response); ok {
		return mem.BufferSlice{m.ahead.wrap(m.Bytes())}, nil
	}
	if b, ok := v.(encoded); ok { // without a quota
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	a, ok := v.(*answer)
	if !ok {
		return c.Codec.Marshal(v)
	}
	b := a.encoded
	if b == nil {
		var err error
		if b, err = proto.Marshal(a.message); err != nil {
			a.conn.Took(a.counted)
			return nil, err
		}
	}
	held := &holding{conn: a.conn, bytes: int64(cap(b)) + answerBytes}
	a.conn.More(held.bytes)
	a.conn.Took(a.counted)
	buf := &buffer{SliceBuffer: b, freed: held.free}
	buf.refs.Store(1)
	// The transport forgets a message for a stream that the client has just reset.
	runtime.AddCleanup(buf, (*holding).free, held)
	return mem.BufferSlice{buf}, nil
}

// encoded is a message of a stream that was marshaled before, once for several streams.
type encoded []byte

// answer is a message on its way to a client.
type answer struct {
	message proto.Message
	encoded []byte // The message, if this is not nil.
	conn    *quota.Conn
	counted int64 // The connection counts this many bytes for it already.
}

// holding is what the transport holds of an answer.
type holding struct {
	conn  *quota.Conn
	bytes int64
	over  atomic.Bool
}

func (h *holding) free() {
	if !h.over.Swap(true) {
		h.conn.Took(h.bytes)
	}
}

// buffer is a message that says when nobody needs it any more.
type buffer struct {
	mem.SliceBuffer
	refs  atomic.Int32
	freed func()
}

// Ref adds a reference.
func (b *buffer) Ref() { b.refs.Add(1) }

// Free drops one.
func (b *buffer) Free() {
	if b.refs.Add(-1) == 0 {
		b.freed()
	}
}

// countUnary makes the answer of a unary call count. A call of a method with a scope that was
// answered proves the connection.
func countUnary(ctx context.Context, req any, m method, next grpc.UnaryHandler) (any, error) {
	conn := connOf(ctx)
	if conn == nil {
		return next(ctx, req)
	}
	counted := m.holds + answerBytes
	if err := conn.Answer(ctx, counted); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	res, err := next(ctx, req)
	message, ok := res.(proto.Message)
	if err != nil || !ok {
		conn.Took(counted)
		return res, err
	}
	if !m.Open {
		conn.Valid()
	}
	return &answer{message: message, conn: conn, counted: counted}, nil
}

// countedStream is a stream whose answers count.
type countedStream struct {
	grpc.ServerStream
	conn   *quota.Conn
	method method
}

// SendMsg waits while the client does not read.
func (c *countedStream) SendMsg(m any) error {
	if c.conn == nil {
		return c.ServerStream.SendMsg(m)
	}
	counted := int64(answerBytes)
	done, _ := m.(encoded)
	message, ok := m.(proto.Message)
	switch {
	case done != nil:
		counted += int64(len(done))
	case ok:
		counted += int64(proto.Size(message))
	default:
		return c.ServerStream.SendMsg(m)
	}
	if err := c.conn.Answer(c.Context(), counted); err != nil {
		return status.FromContextError(err).Err()
	}
	if !c.method.Open && !c.conn.Proven() {
		c.conn.Valid()
	}
	return c.ServerStream.SendMsg(&answer{message: message, encoded: done, conn: c.conn, counted: counted})
}

// response is an answer of a stream of IDs.
type response struct {
	wire.Response
	ahead *ahead
}

// ahead counts the answers of a stream of IDs that the transport holds.
type ahead struct {
	conn    *quota.Conn
	n       atomic.Int64
	waiting atomic.Bool
	room    chan struct{} // has room for one
	last    *buffer
	free    func()
}

func newAhead(conn *quota.Conn) *ahead {
	a := &ahead{conn: conn, room: make(chan struct{}, 1)}
	a.free = a.sent
	return a
}

// wrap returns an answer as the transport is to hold it.
func (a *ahead) wrap(b mem.SliceBuffer) mem.Buffer {
	a.n.Add(1)
	a.conn.More(answerBytes)
	a.last = &buffer{SliceBuffer: b, freed: a.free}
	a.last.refs.Store(1)
	return a.last
}

// sent says that one was sent, or dropped.
func (a *ahead) sent() {
	a.conn.Took(answerBytes)
	if a.n.Add(-1) <= maxAhead/2 && a.waiting.Load() {
		select {
		case a.room <- struct{}{}:
		default:
		}
	}
}

// wait returns when the transport may hold one more, or with ctx's error.
func (a *ahead) wait(ctx context.Context) error {
	if a.n.Load() < maxAhead {
		return nil
	}
	a.waiting.Store(true)
	defer a.waiting.Store(false)
	for a.n.Load() > maxAhead/2 {
		select {
		case <-a.room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// end is called after the last answer. The transport forgets one that came while the client
// reset the stream.
func (a *ahead) end(ctx context.Context) {
	if ctx.Err() != nil && a.last != nil && a.last.refs.Swap(-1<<16) > 0 {
		a.sent()
	}
}
