package wire

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
)

var codec = NewCodec()

// same fails unless the codec writes v as package proto writes m. It returns the bytes.
func same(t *testing.T, v any, m proto.Message) []byte {
	t.Helper()
	want, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	fatal.If(t, err)
	got, err := codec.Marshal(v)
	fatal.If(t, err)
	if b := got.Materialize(); !bytes.Equal(b, want) {
		t.Fatalf("%+v:\ngot  %x\nwant %x", v, b, want)
	}
	return want
}

// TestRequestBytes: requests of a client are those of package proto.
func TestRequestBytes(t *testing.T) {
	for _, seq := range []int64{0, 1, 127, 128, math.MaxInt64, -1} {
		for _, count := range []int32{0, 1, 300, 1_000_000, -1, math.MinInt32} {
			for _, after := range []int64{0, 1, math.MaxInt64, -1} {
				for _, form := range []pb.Form{0, pb.Form_FORM_UUID, -1} {
					req := &pb.AllocateStreamRequest{Sequence: seq, Request: &pb.AllocateRequest{Count: count, After: after, Form: form}}
					if n := len(same(t, req, req)); n > maxRequest {
						t.Errorf("%v has %d bytes", req, n)
					}
				}
			}
		}
	}
}

// TestResponseBytes: responses of a node are those of package proto.
func TestResponseBytes(t *testing.T) {
	for _, node := range []string{"", "a", "node-a", strings.Repeat("n", 63), strings.Repeat("long", 40), strings.Repeat("x", 20_000)} {
		for _, first := range []int64{0, 1, 123456789, math.MaxInt64} {
			for _, count := range []int32{0, 1, 127, 128, 1_000_000} {
				for _, sid := range []int32{0, 7, 1023} {
					for _, sequence := range []int64{0, 1, -1, math.MaxInt64} {
						sameResponse(t, node, first, count, 32, sid, sequence, flake.DefaultEpoch)
					}
				}
			}
		}
	}
}

// TestBytesWithTexts: texts are those of package proto, in the order of the IDs.
func TestBytesWithTexts(t *testing.T) {
	constant := NewConstantFields("node-a", flake.Format{Layout: flake.Scalable, Epoch: flake.DefaultEpoch})
	for _, length := range []int{1, 36, 127} {
		for _, count := range []int{0, 1, 700} {
			r := Response{Block: Block{First: 1 << 40, Count: count, Stride: 32, SID: 7}, Constant: &constant}
			b := r.BytesWithTexts(length, func(b []byte, id flake.ID) []byte {
				text := id.String() + strings.Repeat("-", 127)
				return append(b, text[:length]...)
			})
			var m pb.AllocateResponse
			if err := proto.Unmarshal(b, &m); err != nil || len(m.Ids) != count {
				t.Fatalf("%d of %d texts, %v", len(m.Ids), count, err)
			}
			for i, text := range m.Ids {
				if want := (flake.ID(1<<40+32*i).String() + strings.Repeat("-", 127))[:length]; text != want {
					t.Fatalf("text %d is %s, not %s", i, text, want)
				}
			}
			m.Ids = nil
			same(t, &r, &m)
			b = r.BytesWithTexts(length, func(b []byte, id flake.ID) []byte {
				return append(b, strings.Repeat("-", int(id/32)%(length+1))...) // Each length up to this occurs.
			})
			if err := proto.Unmarshal(b, &m); err != nil || len(m.Ids) != count {
				t.Fatalf("%d of %d texts of other lengths, %v", len(m.Ids), count, err)
			}
			for i, text := range m.Ids {
				if want := (1<<35 + i) % (length + 1); len(text) != want {
					t.Fatalf("text %d has %d bytes, not %d", i, len(text), want)
				}
			}
		}
	}
}

func FuzzResponseBytes(f *testing.F) {
	f.Add("node-a", int64(1<<40), int32(1), int64(32), int32(7), int64(3), flake.DefaultEpoch)
	f.Add("", int64(0), int32(0), int64(0), int32(0), int64(0), int64(0))
	f.Add(strings.Repeat("n", 200), int64(-1), int32(-1), int64(-1), int32(-1), int64(-1), int64(-1))
	f.Fuzz(func(t *testing.T, node string, first int64, count int32, stride int64, sid int32, sequence, epoch int64) {
		sameResponse(t, strings.ToValidUTF8(node, "?"), first, count, stride, int32(flake.SID(sid)), sequence, epoch)
	})
}

func sameResponse(t *testing.T, node string, first int64, count int32, stride int64, sid int32, sequence, epoch int64) {
	t.Helper()
	x := NewConstantFields(node, flake.Format{Layout: flake.Scalable, Epoch: epoch})
	r := &Response{
		Sequence: sequence, Constant: &x, Space: uint64(epoch),
		Block: Block{First: flake.ID(first), Count: int(count), Stride: stride, SID: flake.SID(sid)},
	}
	plain := &pb.AllocateResponse{
		First: first, Count: count, Stride: stride, Node: node, Sid: sid, Layout: LayoutOf(flake.Scalable), EpochUnixMs: epoch,
		SpaceId: uint64(epoch),
	}
	same(t, r, plain)
	r.Streamed = true
	b := same(t, r, &pb.AllocateStreamResponse{Sequence: sequence, Result: &pb.AllocateStreamResponse_Response{Response: plain}})
	if len(b) < 1000 && r.size() < len(b) {
		t.Fatalf("%d bytes, of at most %d", len(b), r.size())
	}
}

// FuzzRequest: of any bytes the codec reads what package proto reads, errors included, and
// writes it again as package proto does.
func FuzzRequest(f *testing.F) {
	for _, m := range []proto.Message{
		&pb.AllocateRequest{}, &pb.AllocateRequest{Count: 1}, &pb.AllocateRequest{Count: -1, After: math.MaxInt64},
		&pb.AllocateRequest{Count: 2, Form: pb.Form_FORM_UUID}, &pb.AllocateRequest{Form: -1},
		&pb.AllocateStreamRequest{Sequence: -5}, &pb.AllocateStreamRequest{Sequence: 7, Request: &pb.AllocateRequest{Count: 1000, After: 99}},
	} {
		b, err := proto.Marshal(m)
		fatal.If(f, err)
		f.Add(b)
		f.Add(append(b, b...))                                   // fields twice
		f.Add(append(b, 0x9a, 0x06, 1, 'x'))                     // a field of later versions
		f.Add(append([]byte{0x9a, 0x06, 1, 'x'}, b...))          //
		f.Add(append(b, 0x12, 2, 0x08, 5))                       // a request, the second perhaps
		f.Add(append(b, 0x12, 4, 0x9a, 0x06, 1, 'x'))            // one with a field of later versions
		f.Add(append(b, 0x88, 0x00, 5))                          // a tag longer than it must be
		f.Add(append(b, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 63)) // a count beyond 32 bits
		f.Add(b[:max(len(b)-1, 0)])
	}
	f.Add(protowire.AppendVarint([]byte{0x08}, math.MaxUint64))
	f.Add([]byte{0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02}) // more than 64 bits
	f.Add([]byte{0x08, 0x80, 0x11, 8, 1, 8, 1, 8, 1, 8, 1})                         // after, if the count ended with its first byte
	f.Add([]byte{0x12, 0x05, 0x08})
	f.Fuzz(func(t *testing.T, b []byte) {
		var plain pb.AllocateRequest
		err := proto.Unmarshal(b, &plain)
		sameRequest(t, b, Request{Count: plain.GetCount(), After: plain.GetAfter(), Form: int32(plain.GetForm())}, err)

		var m pb.AllocateStreamRequest
		err = proto.Unmarshal(b, &m)
		q := m.GetRequest()
		sameRequest(t, b, Request{
			Streamed: true, Sequence: m.GetSequence(), Count: q.GetCount(), After: q.GetAfter(), Form: int32(q.GetForm()),
		}, err)
		if err == nil && len(q.ProtoReflect().GetUnknown()) == 0 {
			same(t, &m, &m)
		}
	})
}

// sameRequest fails unless the codec reads want or an error from b, in one piece or two.
func sameRequest(t *testing.T, b []byte, want Request, wantErr error) {
	t.Helper()
	for _, data := range []mem.BufferSlice{whole(b), {mem.SliceBuffer(b[:len(b)/2]), mem.SliceBuffer(b[len(b)/2:])}} {
		got := Request{Streamed: want.Streamed, Sequence: 1, Count: 2, After: 3, Form: 4}
		if err := codec.Unmarshal(data, &got); (err != nil) != (wantErr != nil) || err == nil && got != want {
			t.Fatalf("%x: got %+v, %v; want %+v, %v", b, got, err, want, wantErr)
		}
	}
}

func whole(b []byte) mem.BufferSlice { return mem.BufferSlice{mem.SliceBuffer(b)} }

// FuzzResponse: of any bytes the codec reads what package proto reads, whatever the message
// held before.
func FuzzResponse(f *testing.F) {
	block := &pb.AllocateResponse{First: math.MaxInt64, Count: 3, Stride: 32, Node: "n-1", Sid: 31, Layout: 3, EpochUnixMs: -5, SpaceId: 6}
	for _, m := range []*pb.AllocateStreamResponse{
		{Sequence: 7, Result: &pb.AllocateStreamResponse_Response{Response: block}},
		{Sequence: 7, Result: &pb.AllocateStreamResponse_Response{Response: &pb.AllocateResponse{}}},
		{Result: &pb.AllocateStreamResponse_Response{Response: &pb.AllocateResponse{Node: "old", LayoutBits: "41/1/1", Ids: []string{"a"}}}},
		{Sequence: -1, Result: &pb.AllocateStreamResponse_Refusal{Refusal: &pb.Refusal{
			Reason: pb.Reason_REASON_NO_SID, Metadata: map[string]string{"a": "b"}}}},
	} {
		b, err := proto.Marshal(m)
		fatal.If(f, err)
		f.Add(b)
		f.Add(append(b, b...))
		f.Add(append(b, 0x12, 2, 0x10, 9)) // a second block, which is merged into the first
	}
	f.Add([]byte{})
	f.Add([]byte{0x12, 2, 0x22, 9})
	f.Add([]byte{0x12, 3, 0x22, 1, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		got := &pb.AllocateStreamResponse{Sequence: 99, Result: &pb.AllocateStreamResponse_Response{Response: &pb.AllocateResponse{
			First: 1, Count: 2, Stride: 3, Node: "old", Sid: 4, Layout: 1, EpochUnixMs: 5, LayoutBits: "41/1/1", SpaceId: 6}}}
		want := &pb.AllocateStreamResponse{}
		err1, err2 := codec.Unmarshal(whole(bytes.Clone(b)), got), proto.Unmarshal(b, want)
		if (err1 == nil) != (err2 == nil) {
			t.Fatalf("%x: %v, and %v", b, err1, err2)
		}
		if err1 == nil && !proto.Equal(got, want) {
			t.Fatalf("%x: %v, want %v", b, got, want)
		}
	})
}

// TestMessagesAreReused: nothing of a request is left for the next one that its message is
// used for. Neither it nor an answer from the node of the last one allocates, its name included.
func TestMessagesAreReused(t *testing.T) {
	for _, streamed := range []bool{false, true} {
		r := Request{Streamed: streamed, Count: 5, After: 6, Sequence: 7, Form: 1}
		if err := r.read(nil); err != nil || r != (Request{Streamed: streamed}) {
			t.Errorf("%+v, %v", r, err)
		}
	}
	custom, err := flake.ParseLayout("41/1/1")
	fatal.If(t, err)
	x := NewConstantFields("node-a", flake.Format{Layout: custom})
	data := whole((&Response{Streamed: true, Constant: &x}).append(nil))
	bits := custom.String()
	sent := whole((&Request{Sequence: 1, Count: 1, After: 2}).appendStreamed(nil))
	r := Request{Streamed: true}
	var m pb.AllocateStreamResponse
	if n := testing.AllocsPerRun(100, func() {
		if codec.Unmarshal(sent, &r) != nil || r.After != 2 || codec.Unmarshal(data, &m) != nil ||
			m.GetResponse().GetNode() != "node-a" || m.GetResponse().GetLayoutBits() != bits {
			t.Error(&m)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestLayouts: the numbers of the proto file, by name.
func TestLayouts(t *testing.T) {
	custom, err := flake.ParseLayout("41/1/1")
	fatal.If(t, err)
	for l, want := range map[flake.Layout]pb.Layout{
		flake.Scalable: pb.Layout_LAYOUT_SCALABLE, flake.Standalone: pb.Layout_LAYOUT_STANDALONE, flake.Fleet: pb.Layout_LAYOUT_FLEET,
		flake.JS53: pb.Layout_LAYOUT_JS53, custom: pb.Layout_LAYOUT_CUSTOM,
	} {
		if got := LayoutOf(l); got != want {
			t.Errorf("%v is %v, want %v", l, got, want)
		}
	}
}
