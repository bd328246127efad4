package ulid_test

import (
	"testing"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// Sinks keep the compiler from dropping what is measured.
var (
	sinkID    ulid.ID
	sinkFlake flake.ID
	sinkBytes []byte
	sinkErr   error
)

// Module bench runs these operations beside the libraries people use.

func BenchmarkAppendText(b *testing.B) {
	buf := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		sinkBytes, sinkErr = someID.AppendText(buf[:0])
	}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		sinkID, sinkErr = ulid.Parse(someULID)
	}
}

func BenchmarkAppendUUID(b *testing.B) {
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		sinkBytes = someID.AppendUUID(buf)
	}
}

func BenchmarkParseUUID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		sinkID, sinkErr = ulid.ParseUUID(someUUID)
	}
}

func BenchmarkAppendUint128(b *testing.B) {
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		sinkBytes = someID.AppendUint128(buf)
	}
}

func BenchmarkFromFlake(b *testing.B) {
	f := flake.ID(17089122411459096)
	b.ReportAllocs()
	for b.Loop() {
		sinkID, sinkErr = ulid.FromFlake(flake.Default, f, uint64(f))
		f++
	}
}

func BenchmarkFlake(b *testing.B) {
	id := someID.ForceV7()
	b.ReportAllocs()
	for b.Loop() {
		sinkFlake, sinkErr = id.Flake(flake.Format{Layout: flake.Scalable})
	}
}
