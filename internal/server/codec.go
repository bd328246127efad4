package server

import (
	"encoding/binary"
	"slices"
	"sync"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that ours hands all else to
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/gen"
)

// codec is gRPC's codec for protocol buffers, but for the messages that carry
// IDs: an *ask is read, and an *answer written, without a message in between.
// The bytes are the same, as tests show.
type codec struct {
	encoding.CodecV2 // all other messages
}

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Marshal returns the bytes of a message. An answer that came from the pool goes
// back to it.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	a, ok := v.(*answer)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	// The bytes are the transport's from here on: they cannot come from a pool.
	b := make([]byte, 0, a.size())
	if a.streamed {
		b = a.appendStreamed(b)
	} else {
		b = a.append(b)
	}
	if a.call != nil {
		calls.Put(a.call)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Unmarshal reads a message.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	a, ok := v.(*ask)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if len(data) == 1 {
		return a.read(data[0].ReadOnlyData())
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return a.read(buf.ReadOnlyData())
}

// ask is a request for IDs: an AllocateRequest, or with streamed set the
// AllocateStreamRequest around one.
type ask struct {
	streamed bool
	sequence int64
	count    int32
	after    int64
}

// read sets a to the message in b. What it does not know it leaves to package
// proto, whose errors it returns.
func (a *ask) read(b []byte) error {
	a.sequence, a.count, a.after = 0, 0, 0
	if a.streamed && a.readStreamed(b) || !a.streamed && a.readPlain(b) {
		return nil
	}
	if !a.streamed {
		var m pb.AllocateRequest
		err := proto.Unmarshal(b, &m)
		a.sequence, a.count, a.after = 0, m.GetCount(), m.GetAfter()
		return err
	}
	var m pb.AllocateStreamRequest
	err := proto.Unmarshal(b, &m)
	a.sequence, a.count, a.after = m.GetSequence(), m.GetRequest().GetCount(), m.GetRequest().GetAfter()
	return err
}

// Tags of the fields: their numbers and how their values are written.
const (
	tagCount    = 1<<3 | byte(protowire.VarintType)
	tagAfter    = 2<<3 | byte(protowire.Fixed64Type)
	tagSequence = 1<<3 | byte(protowire.VarintType)
	tagRequest  = 2<<3 | byte(protowire.BytesType)

	tagFirst    = 1<<3 | byte(protowire.Fixed64Type)
	tagIssued   = 2<<3 | byte(protowire.VarintType)
	tagStride   = 3<<3 | byte(protowire.VarintType)
	tagNode     = 4<<3 | byte(protowire.BytesType)
	tagSID      = 5<<3 | byte(protowire.VarintType)
	tagLayout   = 6<<3 | byte(protowire.VarintType)
	tagEpoch    = 7<<3 | byte(protowire.VarintType)
	tagResponse = 2<<3 | byte(protowire.BytesType)
)

// readPlain reports whether b was an AllocateRequest of fields it knows.
func (a *ask) readPlain(b []byte) bool {
	for len(b) > 0 {
		tag := b[0]
		b = b[1:]
		switch {
		case tag == tagCount:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return false
			}
			a.count, b = int32(v), b[n:]
		case tag == tagAfter && len(b) >= 8:
			a.after, b = int64(binary.LittleEndian.Uint64(b)), b[8:]
		default:
			return false
		}
	}
	return true
}

// readStreamed reports whether b was an AllocateStreamRequest of fields it knows.
func (a *ask) readStreamed(b []byte) bool {
	for len(b) > 0 {
		tag := b[0]
		b = b[1:]
		switch {
		case tag == tagSequence:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return false
			}
			a.sequence, b = int64(v), b[n:]
		case tag == tagRequest: // a second one is merged into the first
			v, n := protowire.ConsumeBytes(b)
			if n < 0 || !a.readPlain(v) {
				return false
			}
			b = b[n:]
		default:
			return false
		}
	}
	return true
}

// answer is a block of IDs: an AllocateResponse, or with streamed set the
// AllocateStreamResponse around one.
type answer struct {
	streamed bool
	sequence int64
	block    gen.Block
	fixed    *fixed
	call     *call // where the answer lies, if that is from the pool
}

// fixed are the fields that all answers of a node share, as bytes.
type fixed struct {
	node   []byte // absent if empty, as any field is that has its type's zero
	format []byte // layout and epoch
}

func newFixed(node string, f flake.Format) fixed {
	var x fixed
	if node != "" {
		x.node = protowire.AppendString([]byte{tagNode}, node)
	}
	x.format = appendField(x.format, tagLayout, uint64(layoutOf(f.Layout)))
	x.format = appendField(x.format, tagEpoch, uint64(f.Epoch))
	x.node, x.format = slices.Clip(x.node), slices.Clip(x.format)
	return x
}

// size returns how many bytes the answer has at most.
func (a *answer) size() int {
	const numbers = 9 + 4*(1+binary.MaxVarintLen64) // first, count, stride, sid; sequence
	const lengths = 1 + binary.MaxVarintLen64       // of the answer within the stream's
	return numbers + lengths + len(a.fixed.node) + len(a.fixed.format)
}

// append appends the answer as an AllocateResponse.
func (a *answer) append(b []byte) []byte {
	if a.block.First != 0 {
		b = append(b, tagFirst)
		b = binary.LittleEndian.AppendUint64(b, uint64(a.block.First))
	}
	b = appendField(b, tagIssued, uint64(int32(a.block.Count)))
	b = appendField(b, tagStride, uint64(a.block.Stride))
	b = append(b, a.fixed.node...)
	b = appendField(b, tagSID, uint64(int32(a.block.SID)))
	return append(b, a.fixed.format...)
}

// appendStreamed appends the answer as an AllocateStreamResponse.
func (a *answer) appendStreamed(b []byte) []byte {
	b = appendField(b, tagSequence, uint64(a.sequence))
	b = append(b, tagResponse)
	// The length of what follows takes one byte, or more with a long name: then
	// what follows makes room for it.
	at := len(b)
	b = a.append(append(b, 0))
	length := len(b) - at - 1
	if n := protowire.SizeVarint(uint64(length)); n > 1 {
		b = slices.Insert(b, at+1, make([]byte, n-1)...)
	}
	binary.PutUvarint(b[at:], uint64(length))
	return b
}

// appendField appends a number, unless it is 0.
func appendField(b []byte, tag byte, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(append(b, tag), v)
}

// call is one unary request and its answer.
type call struct {
	ask    ask
	answer answer
}

var calls = sync.Pool{New: func() any { return new(call) }}
