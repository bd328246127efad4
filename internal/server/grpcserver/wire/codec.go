// Package wire is the gRPC codec: it reads requests for IDs and writes blocks of IDs
// without the generated types in between, which saves two allocations a call and
// their garbage. All other messages go through gRPC's own codec.
//
// The bytes are those of protocol buffers; tests compare them with package proto.
package wire

import (
	"encoding/binary"
	"slices"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that NewCodec wraps
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/gen"
)

// Codec is gRPC's codec for protocol buffers, except for the messages that carry
// IDs: it reads a *Request and writes a *Response directly. Tests compare the bytes
// with those of package proto.
type Codec struct {
	encoding.CodecV2 // for all other messages
}

// NewCodec returns the codec.
func NewCodec() Codec { return Codec{encoding.GetCodecV2("proto")} }

// Marshal returns the bytes of a message.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*Response)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	// The transport keeps the bytes, so they cannot come from a pool.
	b := make([]byte, 0, r.size())
	if r.Streamed {
		b = r.appendStreamed(b)
	} else {
		b = r.append(b)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Unmarshal reads a message.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*Request)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if len(data) == 1 {
		return r.read(data[0].ReadOnlyData())
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return r.read(buf.ReadOnlyData())
}

// Request is an AllocateRequest, or with Streamed set an AllocateStreamRequest.
type Request struct {
	Streamed bool
	Sequence int64
	Count    int32
	After    int64
	Form     int32 // of pb.Form
}

// read sets r to the message in b. Package proto reads messages with fields that are
// unknown here; read returns its errors.
func (r *Request) read(b []byte) error {
	r.Sequence, r.Count, r.After, r.Form = 0, 0, 0, 0
	if r.Streamed && r.readStreamed(b) || !r.Streamed && r.readPlain(b) {
		return nil
	}
	if !r.Streamed {
		var m pb.AllocateRequest
		err := proto.Unmarshal(b, &m)
		r.Sequence, r.Count, r.After, r.Form = 0, m.GetCount(), m.GetAfter(), int32(m.GetForm())
		return err
	}
	var m pb.AllocateStreamRequest
	err := proto.Unmarshal(b, &m)
	q := m.GetRequest()
	r.Sequence, r.Count, r.After, r.Form = m.GetSequence(), q.GetCount(), q.GetAfter(), int32(q.GetForm())
	return err
}

// Tags of the fields: number and wire type.
const (
	tagCount    = 1<<3 | byte(protowire.VarintType)
	tagAfter    = 2<<3 | byte(protowire.Fixed64Type)
	tagForm     = 3<<3 | byte(protowire.VarintType)
	tagSequence = 1<<3 | byte(protowire.VarintType)
	tagRequest  = 2<<3 | byte(protowire.BytesType)

	tagFirst      = 1<<3 | byte(protowire.Fixed64Type)
	tagIssued     = 2<<3 | byte(protowire.VarintType)
	tagStride     = 3<<3 | byte(protowire.VarintType)
	tagNode       = 4<<3 | byte(protowire.BytesType)
	tagSID        = 5<<3 | byte(protowire.VarintType)
	tagLayout     = 6<<3 | byte(protowire.VarintType)
	tagLayoutBits = 9<<3 | byte(protowire.BytesType)
	tagEpoch      = 7<<3 | byte(protowire.VarintType)
	tagResponse   = 2<<3 | byte(protowire.BytesType)
)

// readPlain reports whether b is an AllocateRequest with known fields only.
func (r *Request) readPlain(b []byte) bool {
	for len(b) > 0 {
		tag := b[0]
		b = b[1:]
		switch {
		case tag == tagCount:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return false
			}
			r.Count, b = int32(v), b[n:]
		case tag == tagAfter && len(b) >= 8:
			r.After, b = int64(binary.LittleEndian.Uint64(b)), b[8:]
		case tag == tagForm:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return false
			}
			r.Form, b = int32(v), b[n:]
		default:
			return false
		}
	}
	return true
}

// readStreamed reports whether b is an AllocateStreamRequest with known fields only.
func (r *Request) readStreamed(b []byte) bool {
	for len(b) > 0 {
		tag := b[0]
		b = b[1:]
		switch {
		case tag == tagSequence:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return false
			}
			r.Sequence, b = int64(v), b[n:]
		case tag == tagRequest: // a second one is merged into the first
			v, n := protowire.ConsumeBytes(b)
			if n < 0 || !r.readPlain(v) {
				return false
			}
			b = b[n:]
		default:
			return false
		}
	}
	return true
}

// Response is an AllocateResponse, or with Streamed set an AllocateStreamResponse.
type Response struct {
	Streamed bool
	Sequence int64
	Block    gen.Block
	Constant *ConstantFields
}

// ConstantFields are the encoded fields that are equal in all responses of a node.
type ConstantFields struct {
	node   []byte // absent if empty: proto3 omits zero values
	format []byte // layout and epoch
}

// NewConstantFields returns the fields of a node and its format.
func NewConstantFields(node string, f flake.Format) ConstantFields {
	var x ConstantFields
	if node != "" {
		x.node = protowire.AppendString([]byte{tagNode}, node)
	}
	x.format = appendField(x.format, tagLayout, uint64(LayoutOf(f.Layout)))
	x.format = appendField(x.format, tagEpoch, uint64(f.Epoch))
	if bits := LayoutBits(f.Layout); bits != "" {
		x.format = protowire.AppendString(append(x.format, tagLayoutBits), bits)
	}
	x.node, x.format = slices.Clip(x.node), slices.Clip(x.format)
	return x
}

// size returns the maximum length of the response in bytes.
func (r *Response) size() int {
	const numbers = 9 + 4*(1+binary.MaxVarintLen64) // first, count, stride, sid; sequence
	const lengths = 1 + binary.MaxVarintLen64       // of the response within the stream's
	return numbers + lengths + len(r.Constant.node) + len(r.Constant.format)
}

// append appends r as an AllocateResponse.
func (r *Response) append(b []byte) []byte {
	if r.Block.First != 0 {
		b = append(b, tagFirst)
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Block.First))
	}
	b = appendField(b, tagIssued, uint64(int32(r.Block.Count)))
	b = appendField(b, tagStride, uint64(r.Block.Stride))
	b = append(b, r.Constant.node...)
	b = appendField(b, tagSID, uint64(int32(r.Block.SID)))
	return append(b, r.Constant.format...)
}

// appendStreamed appends r as an AllocateStreamResponse.
func (r *Response) appendStreamed(b []byte) []byte {
	b = appendField(b, tagSequence, uint64(r.Sequence))
	b = append(b, tagResponse)
	// The length of the response takes one byte. With a long name of the node it takes
	// more, and the response moves back to make room.
	at := len(b)
	b = r.append(append(b, 0))
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

// LayoutBits returns what an answer with IDs says of a layout beside its number: its
// text if it is a custom one.
func LayoutBits(l flake.Layout) string {
	if l.Number() > 0 {
		return ""
	}
	return l.String()
}

// LayoutOf returns the number of a layout in the proto file, where 0 is "unspecified".
func LayoutOf(l flake.Layout) pb.Layout {
	if n := l.Number(); n > 0 {
		return pb.Layout(n)
	}
	return pb.Layout_LAYOUT_CUSTOM
}
