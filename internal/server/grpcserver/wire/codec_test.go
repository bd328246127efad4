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
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/gen"
)

// TestResponseBytes: what is written by hand is what package proto writes.
func TestResponseBytes(t *testing.T) {
	for _, node := range []string{"", "a", "node-a", strings.Repeat("n", 63), strings.Repeat("long", 40), strings.Repeat("x", 20_000)} {
		for _, first := range []flake.ID{0, 1, 123456789, math.MaxInt64} {
			for _, count := range []int{0, 1, 127, 128, 1_000_000} {
				for _, sid := range []flake.SID{0, 7, 1023} {
					for _, sequence := range []int64{0, 1, -1, math.MaxInt64} {
						sameResponse(t, node, int64(first), int32(count), 32, int32(sid), sequence, flake.DefaultEpoch)
					}
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
	a := &Response{
		Sequence: sequence, Constant: &x,
		Block: gen.Block{First: flake.ID(first), Count: int(count), Stride: stride, SID: flake.SID(sid)},
	}
	plain := &pb.AllocateResponse{
		First: first, Count: count, Stride: stride, Node: node, Sid: sid, Layout: LayoutOf(flake.Scalable), EpochUnixMs: epoch,
	}
	for _, streamed := range []bool{false, true} {
		a.Streamed = streamed
		var m proto.Message = plain
		if streamed {
			m = &pb.AllocateStreamResponse{Sequence: sequence, Result: &pb.AllocateStreamResponse_Response{Response: plain}}
		}
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := NewCodec().Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if b := got.Materialize(); !bytes.Equal(b, want) {
			t.Fatalf("streamed %v, %v:\ngot  %x\nwant %x", streamed, m, b, want)
		}
		if len(want) < 1000 && a.size() < len(want) {
			t.Fatalf("%d bytes, of at most %d", len(want), a.size())
		}
	}
}

// FuzzRequest: of any bytes the codec reads what package proto reads, errors included.
func FuzzRequest(f *testing.F) {
	for _, m := range []proto.Message{
		&pb.AllocateRequest{}, &pb.AllocateRequest{Count: 1}, &pb.AllocateRequest{Count: -1, After: math.MaxInt64},
		&pb.AllocateRequest{Count: 2, Form: pb.Form_FORM_UUID}, &pb.AllocateRequest{Form: -1},
		&pb.AllocateStreamRequest{Sequence: -5}, &pb.AllocateStreamRequest{Sequence: 7, Request: &pb.AllocateRequest{Count: 1000, After: 99}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append(b, b...))                                   // fields twice
		f.Add(append(b, 0x9a, 0x06, 1, 'x'))                     // a field of later versions
		f.Add(append([]byte{0x9a, 0x06, 1, 'x'}, b...))          //
		f.Add(append(b, 0x12, 2, 0x08, 5))                       // a request, the second perhaps
		f.Add(append(b, 0x88, 0x00, 5))                          // a tag longer than it must be
		f.Add(append(b, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 63)) // a count beyond 32 bits
		f.Add(b[:max(len(b)-1, 0)])
	}
	f.Add(protowire.AppendVarint([]byte{0x08}, math.MaxUint64))
	f.Add([]byte{0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02}) // more than 64 bits
	f.Add([]byte{0x12, 0x05, 0x08})
	f.Fuzz(func(t *testing.T, b []byte) {
		c := NewCodec()
		dirty := Request{Sequence: 1, Count: 2, After: 3, Form: 4}

		var plain pb.AllocateRequest
		wantErr := c.Unmarshal(whole(b), &plain)
		for _, data := range []mem.BufferSlice{whole(b), halves(b)} {
			got := dirty
			if err := c.Unmarshal(data, &got); (err != nil) != (wantErr != nil) ||
				err == nil && got != (Request{Count: plain.GetCount(), After: plain.GetAfter(), Form: int32(plain.GetForm())}) {
				t.Fatalf("%x: got %+v, %v; want %v, %v", b, got, err, &plain, wantErr)
			}
		}

		var streamed pb.AllocateStreamRequest
		wantErr = c.Unmarshal(whole(b), &streamed)
		got := dirty
		got.Streamed = true
		want := Request{
			Streamed: true, Sequence: streamed.GetSequence(),
			Count: streamed.GetRequest().GetCount(), After: streamed.GetRequest().GetAfter(), Form: int32(streamed.GetRequest().GetForm()),
		}
		if err := c.Unmarshal(whole(b), &got); (err != nil) != (wantErr != nil) || err == nil && got != want {
			t.Fatalf("%x: got %+v, %v; want %v, %v", b, got, err, &streamed, wantErr)
		}
	})
}

func whole(b []byte) mem.BufferSlice { return mem.BufferSlice{mem.SliceBuffer(b)} }

func halves(b []byte) mem.BufferSlice {
	return mem.BufferSlice{mem.SliceBuffer(b[:len(b)/2]), mem.SliceBuffer(b[len(b)/2:])}
}

// TestRequestIsReset: nothing of a request is left for the next one that its message is
// used for.
func TestRequestIsReset(t *testing.T) {
	a := Request{Count: 5, After: 6, Sequence: 7, Form: 1}
	if err := a.read(nil); err != nil || a != (Request{}) {
		t.Errorf("%+v, %v", a, err)
	}
	a = Request{Streamed: true, Count: 5, After: 6, Sequence: 7, Form: 1}
	if err := a.read(nil); err != nil || a != (Request{Streamed: true}) {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestLayouts: the numbers of the proto file, by name.
func TestLayouts(t *testing.T) {
	custom, err := flake.ParseLayout("41/1/1")
	if err != nil {
		t.Fatal(err)
	}
	for l, want := range map[flake.Layout]pb.Layout{
		flake.Scalable: pb.Layout_LAYOUT_SCALABLE, flake.Standalone: pb.Layout_LAYOUT_STANDALONE, flake.Fleet: pb.Layout_LAYOUT_FLEET,
		flake.JS53: pb.Layout_LAYOUT_JS53, custom: pb.Layout_LAYOUT_CUSTOM,
	} {
		if got := LayoutOf(l); got != want {
			t.Errorf("%v is %v, want %v", l, got, want)
		}
	}
}
