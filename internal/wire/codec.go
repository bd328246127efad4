// Package wire is the gRPC codec of nodes and of package client. It reads and writes
// requests for IDs and blocks of IDs without reflection, in a tenth of the time, and on
// the side of a node without the generated types in between, which saves two allocations
// a call. All other messages go through gRPC's own codec.
//
// The bytes are those of protocol buffers; tests compare them with package proto. Programs
// compile this package with package client, so it imports no part of a node. It lies in internal at
// the root, the lowest place that client and a node may both import.
package wire

import (
	"encoding/binary"
	"slices"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that NewCodec wraps
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
)

// Codec is gRPC's codec for protocol buffers, except for the messages that carry IDs. A
// node reads a *Request and writes a *Response. A client writes a
// *pb.AllocateStreamRequest and reads a *pb.AllocateStreamResponse: interceptors of the
// program see the messages of the API.
type Codec struct {
	encoding.CodecV2 // for all other messages
}

// NewCodec returns the codec.
func NewCodec() Codec { return Codec{encoding.GetCodecV2("proto")} }

// Marshal returns the bytes of a message.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	var b []byte // The transport keeps the bytes, so they cannot come from a pool.
	switch m := v.(type) {
	case *Response:
		b = m.Bytes()
	case *pb.AllocateStreamRequest:
		q := m.GetRequest() // The client's own: it has no unknown fields.
		if q == nil || len(m.ProtoReflect().GetUnknown()) > 0 {
			return c.CodecV2.Marshal(v)
		}
		r := Request{Sequence: m.Sequence, Count: q.Count, After: q.After, Form: int32(q.Form)}
		b = r.appendStreamed(make([]byte, 0, maxRequest))
	default:
		return c.CodecV2.Marshal(v)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Unmarshal reads a message. A *pb.AllocateStreamResponse keeps the texts that are
// equal in one answer and the next.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *Request:
		if len(data) == 1 {
			return m.read(data[0].ReadOnlyData())
		}
		buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buf.Free()
		return m.read(buf.ReadOnlyData())
	case *pb.AllocateStreamResponse:
		if len(data) == 1 && readResponse(data[0].ReadOnlyData(), m) {
			return nil
		}
	}
	return c.CodecV2.Unmarshal(data, v)
}

// Tags of the fields: number and wire type.
const (
	tagSequence = 1<<3 | byte(protowire.VarintType)
	tagRequest  = 2<<3 | byte(protowire.BytesType)
	tagResponse = 2<<3 | byte(protowire.BytesType)

	tagCount = 1<<3 | byte(protowire.VarintType)
	tagAfter = 2<<3 | byte(protowire.Fixed64Type)
	tagForm  = 3<<3 | byte(protowire.VarintType)

	tagFirst      = 1<<3 | byte(protowire.Fixed64Type)
	tagIssued     = 2<<3 | byte(protowire.VarintType)
	tagStride     = 3<<3 | byte(protowire.VarintType)
	tagNode       = 4<<3 | byte(protowire.BytesType)
	tagSID        = 5<<3 | byte(protowire.VarintType)
	tagLayout     = 6<<3 | byte(protowire.VarintType)
	tagEpoch      = 7<<3 | byte(protowire.VarintType)
	tagText       = 8<<3 | byte(protowire.BytesType)
	tagLayoutBits = 9<<3 | byte(protowire.BytesType)
	tagSpace      = 10<<3 | byte(protowire.Fixed64Type)
)

// cut returns the tag of the first field of b, its number, and what follows. The number of
// a field of bytes is their length: they are the first of what follows, which has as many.
// The tag is 0, which no field has, if b ends within the field.
func cut(b []byte) (tag byte, number uint64, rest []byte) {
	tag, rest = b[0], b[1:]
	if protowire.Type(tag&7) == protowire.Fixed64Type {
		if len(rest) < 8 {
			return 0, 0, nil
		}
		return tag, binary.LittleEndian.Uint64(rest), rest[8:]
	}
	n := 1
	if len(rest) > 0 && rest[0] < 0x80 { // most numbers, without a call
		number = uint64(rest[0])
	} else {
		number, n = protowire.ConsumeVarint(rest)
	}
	if n < 0 || protowire.Type(tag&7) == protowire.BytesType && number > uint64(len(rest)-n) {
		return 0, 0, nil
	}
	return tag, number, rest[n:]
}

// appendField appends a number, unless it is 0: proto3 omits zero values.
func appendField(b []byte, tag byte, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(append(b, tag), v)
}

// appendFixed is appendField for a number of 8 bytes.
func appendFixed(b []byte, tag byte, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.LittleEndian.AppendUint64(append(b, tag), v)
}

// Lengths in bytes of the longest fields with their tags.
const (
	maxField = 1 + binary.MaxVarintLen64
	maxFixed = 1 + 8
)

// Request is an AllocateRequest, or with Streamed set an AllocateStreamRequest.
type Request struct {
	Streamed bool
	Sequence int64
	Count    int32
	After    int64
	Form     int32 // a pb.Form
}

// maxRequest is the length in bytes of the longest AllocateStreamRequest: sequence and
// the length of the request in it; count, after and form.
const maxRequest = maxField + 2 + maxField + maxFixed + maxField

// appendStreamed appends r as an AllocateStreamRequest.
func (r *Request) appendStreamed(b []byte) []byte {
	b = append(appendField(b, tagSequence, uint64(r.Sequence)), tagRequest, 0)
	at := len(b)
	b = appendField(b, tagCount, uint64(r.Count))
	b = appendFixed(b, tagAfter, uint64(r.After))
	b = appendField(b, tagForm, uint64(r.Form))
	b[at-1] = byte(len(b) - at) // at most 31: one byte
	return b
}

// read sets r to the message in b. Package proto reads messages with fields that are
// unknown here; read returns its errors.
func (r *Request) read(b []byte) error {
	r.Sequence, r.Count, r.After, r.Form = 0, 0, 0, 0
	if r.Streamed && r.readStreamed(b) || !r.Streamed && r.readPlain(b) {
		return nil
	}
	var m pb.AllocateStreamRequest
	var err error
	if r.Streamed {
		err = proto.Unmarshal(b, &m)
	} else {
		m.Request = &pb.AllocateRequest{}
		err = proto.Unmarshal(b, m.Request)
	}
	q := m.GetRequest()
	r.Sequence, r.Count, r.After, r.Form = m.GetSequence(), q.GetCount(), q.GetAfter(), int32(q.GetForm())
	return err
}

// readPlain reports whether b is an AllocateRequest with known fields only.
func (r *Request) readPlain(b []byte) bool {
	for len(b) > 0 {
		tag, v, rest := cut(b)
		switch tag {
		case tagCount:
			r.Count = int32(v)
		case tagAfter:
			r.After = int64(v)
		case tagForm:
			r.Form = int32(v)
		default:
			return false
		}
		b = rest
	}
	return true
}

// readStreamed reports whether b is an AllocateStreamRequest with known fields only.
func (r *Request) readStreamed(b []byte) bool {
	for len(b) > 0 {
		tag, v, rest := cut(b)
		switch {
		case tag == tagSequence:
			r.Sequence = int64(v)
		case tag == tagRequest && r.readPlain(rest[:v]): // A second one is merged into the first.
			rest = rest[v:]
		default:
			return false
		}
		b = rest
	}
	return true
}

// Response is an AllocateResponse, or with Streamed set an AllocateStreamResponse.
type Response struct {
	Streamed bool
	Sequence int64
	Block    Block
	Constant *ConstantFields
	Space    uint64
}

// Block is what a response says of its IDs. It has the fields of gen.Block, so that the one
// can be converted to the other.
type Block struct {
	First  flake.ID
	Count  int
	Stride int64
	SID    flake.SID
}

// ConstantFields are the encoded fields that are equal in all responses of a node.
type ConstantFields struct {
	node   []byte // absent if empty
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
	return x
}

// size returns the maximum length of the response in bytes: sequence and the length of the
// response in it; first, count, stride and sid.
func (r *Response) size() int {
	return 2*maxField + 2*maxFixed + 3*maxField + len(r.Constant.node) + len(r.Constant.format)
}

// Bytes returns the message.
func (r *Response) Bytes() []byte { return r.append(make([]byte, 0, r.size())) }

// BytesWithTexts returns the message with each ID as a text too, in the order of the IDs.
// write appends the text of one, of at most length bytes; length is at most 127.
func (r *Response) BytesWithTexts(length int, write func(b []byte, id flake.ID) []byte) []byte {
	b := r.append(make([]byte, 0, r.size()+r.Block.Count*(2+length)))
	for i := range r.Block.Count {
		b = append(b, tagText, 0)
		at := len(b)
		b = write(b, r.Block.First+flake.ID(int64(i)*r.Block.Stride))
		b[at-1] = byte(len(b) - at)
	}
	return b
}

// append appends r.
func (r *Response) append(b []byte) []byte {
	if !r.Streamed {
		return r.appendPlain(b)
	}
	b = append(appendField(b, tagSequence, uint64(r.Sequence)), tagResponse)
	// The length of the response takes one byte. With a long name of the node it takes
	// more, and the response moves back to make room.
	at := len(b)
	b = r.appendPlain(append(b, 0))
	length := len(b) - at - 1
	if n := protowire.SizeVarint(uint64(length)); n > 1 {
		b = slices.Insert(b, at+1, make([]byte, n-1)...)
	}
	binary.PutUvarint(b[at:], uint64(length))
	return b
}

// appendPlain appends r as an AllocateResponse.
func (r *Response) appendPlain(b []byte) []byte {
	b = appendFixed(b, tagFirst, uint64(r.Block.First))
	b = appendField(b, tagIssued, uint64(int32(r.Block.Count)))
	b = appendField(b, tagStride, uint64(r.Block.Stride))
	b = append(b, r.Constant.node...)
	b = appendField(b, tagSID, uint64(int32(r.Block.SID)))
	return appendFixed(append(b, r.Constant.format...), tagSpace, r.Space)
}

// readResponse reads a response with a block into m, whose last block it uses again. It
// returns false, with m in no particular state, for a refusal and for unknown fields.
func readResponse(b []byte, m *pb.AllocateStreamResponse) bool {
	body, ok := m.Result.(*pb.AllocateStreamResponse_Response)
	if !ok || body.Response == nil {
		body = &pb.AllocateStreamResponse_Response{Response: &pb.AllocateResponse{}}
	}
	m.Sequence, m.Result = 0, nil
	for len(b) > 0 {
		tag, v, rest := cut(b)
		switch {
		case tag == tagSequence:
			m.Sequence = int64(v)
		case tag == tagResponse && m.Result == nil && readBlock(rest[:v], body.Response):
			m.Result, rest = body, rest[v:]
		default:
			return false
		}
		b = rest
	}
	return m.Result != nil
}

// readBlock is readResponse for the block.
func readBlock(b []byte, m *pb.AllocateResponse) bool {
	node, bits, ok := m.Node, m.LayoutBits, false
	m.First, m.Count, m.Stride, m.Node, m.Sid, m.Layout, m.EpochUnixMs, m.LayoutBits = 0, 0, 0, "", 0, 0, 0, ""
	m.SpaceId = 0
	for len(b) > 0 {
		tag, v, rest := cut(b)
		switch tag {
		case tagFirst:
			m.First = int64(v)
		case tagIssued:
			m.Count = int32(v)
		case tagStride:
			m.Stride = int64(v)
		case tagNode:
			if m.Node, ok = text(rest[:v], node); !ok {
				return false
			}
			rest = rest[v:]
		case tagSID:
			m.Sid = int32(v)
		case tagLayout:
			m.Layout = pb.Layout(v)
		case tagEpoch:
			m.EpochUnixMs = int64(v)
		case tagSpace:
			m.SpaceId = v
		case tagLayoutBits:
			if m.LayoutBits, ok = text(rest[:v], bits); !ok {
				return false
			}
			rest = rest[v:]
		default:
			return false
		}
		b = rest
	}
	return true
}

// text returns b as a string, which is last if that has the same bytes. It reports whether
// b is UTF-8; last has to be.
func text(b []byte, last string) (string, bool) {
	if string(b) == last {
		return last, true
	}
	return string(b), utf8.Valid(b)
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

// ParseLayout returns the layout of an answer, which has bits if the layout has no number.
func ParseLayout(number pb.Layout, bits string) (flake.Layout, error) {
	if number == pb.Layout_LAYOUT_CUSTOM {
		return flake.ParseLayout(bits)
	}
	return flake.ByNumber(int(number))
}
