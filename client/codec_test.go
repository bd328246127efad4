package client

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc/encoding"
	gproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	pb "github.com/flakelease/allocator/api/allocator/v1"
)

// TestCodecRequests: the codec encodes requests as Protocol Buffers do.
func TestCodecRequests(t *testing.T) {
	c := newCodec()
	for _, seq := range []int64{0, 1, 127, 128, math.MaxInt64, -1} {
		for _, count := range []int32{0, 1, 300, 1_000_000, -1, math.MinInt32} {
			for _, after := range []int64{0, 1, math.MaxInt64, -1} {
				req := &pb.AllocateStreamRequest{Sequence: seq, Request: &pb.AllocateRequest{Count: count, After: after}}
				got, err := c.Marshal(req)
				if err != nil {
					t.Fatal(err)
				}
				want, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got.Materialize(), want) {
					t.Errorf("%v: %x, want %x", req, got.Materialize(), want)
				}
				if len(want) > maxRequest {
					t.Errorf("%v has %d bytes", req, len(want))
				}
			}
		}
	}
	form := &pb.AllocateStreamRequest{Request: &pb.AllocateRequest{Count: 1, Form: pb.Form_FORM_UUID}}
	if got, err := c.Marshal(form); err != nil || !bytes.Equal(got.Materialize(), []byte{18, 4, 8, 1, 24, 4}) {
		t.Errorf("with a form: %x, %v", got.Materialize(), err)
	}
	if got, err := c.Marshal(&pb.AllocateStreamRequest{Sequence: 3}); err != nil || !bytes.Equal(got.Materialize(), []byte{8, 3}) {
		t.Errorf("without a request: %x, %v", got.Materialize(), err)
	}
}

// FuzzCodecAnswers: the codec decodes any bytes as Protocol Buffers do, whatever the
// message held before.
func FuzzCodecAnswers(f *testing.F) {
	add := func(m *pb.AllocateStreamResponse) {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	block := &pb.AllocateResponse{First: math.MaxInt64, Count: 3, Stride: 32, Node: "n-1", Sid: 31, Layout: 3, EpochUnixMs: -5}
	add(&pb.AllocateStreamResponse{Sequence: 7, Result: &pb.AllocateStreamResponse_Response{Response: block}})
	add(&pb.AllocateStreamResponse{Sequence: 7, Result: &pb.AllocateStreamResponse_Response{Response: &pb.AllocateResponse{}}})
	add(&pb.AllocateStreamResponse{Sequence: -1, Result: &pb.AllocateStreamResponse_Refusal{Refusal: &pb.Refusal{
		Reason: pb.Reason_REASON_NO_SID, Metadata: map[string]string{"a": "b"}}}})
	f.Add([]byte{})
	f.Add([]byte{0x12, 2, 0x22, 9})
	f.Add([]byte{0x12, 3, 0x22, 1, 0xff})
	std := encoding.GetCodecV2(gproto.Name)
	f.Fuzz(func(t *testing.T, b []byte) {
		got := &pb.AllocateStreamResponse{Sequence: 99, Result: &pb.AllocateStreamResponse_Response{
			Response: &pb.AllocateResponse{First: 1, Count: 2, Stride: 3, Node: "old", Sid: 4, Layout: 1, EpochUnixMs: 5}}}
		want := &pb.AllocateStreamResponse{}
		data := func() mem.BufferSlice { return mem.BufferSlice{mem.SliceBuffer(bytes.Clone(b))} }
		err1, err2 := newCodec().Unmarshal(data(), got), std.Unmarshal(data(), want)
		if (err1 == nil) != (err2 == nil) {
			t.Fatalf("%x: %v, and %v", b, err1, err2)
		}
		if err1 == nil && !proto.Equal(got, want) {
			t.Fatalf("%x: %v, want %v", b, got, want)
		}
	})
}

// TestReasons: a refusal on a stream has the reason that its number stands for, and one of
// a later version the number.
func TestReasons(t *testing.T) {
	for number, name := range pb.Reason_name {
		want := Reason(strings.TrimPrefix(name, "REASON_"))
		if number == 0 {
			want = ""
		}
		if got := refusalIn(&pb.Refusal{Reason: pb.Reason(number)}, "n").Reason; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for number, want := range map[pb.Reason]Reason{pb.Reason(len(pb.Reason_name)): "23", -1: "-1"} {
		if got := refusalIn(&pb.Refusal{Reason: number}, "n").Reason; got != want {
			t.Errorf("reason %d is %q, want %q", number, got, want)
		}
	}
}

// TestRandom: random bits are not used twice.
func TestRandom(t *testing.T) {
	seen := map[uint64]bool{}
	for range 3 * randomBytes {
		v := random()
		if seen[v] {
			t.Fatalf("%x twice", v)
		}
		seen[v] = true
	}
}
