package ulid_test

import (
	"testing"

	googleuuid "github.com/google/uuid"
	oklog "github.com/oklog/ulid/v2"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// Sinks keep the compiler from dropping what is measured.
var (
	sinkID    ulid.ID
	sinkFlake flake.ID
	sinkOklog oklog.ULID
	sinkUUID  googleuuid.UUID
	sinkBytes []byte
	sinkErr   error
)

// Each of these runs ours beside the libraries people use, in one run on one
// machine: compare within a run only.

func BenchmarkAppendText(b *testing.B) {
	buf := make([]byte, 64)
	b.Run("this", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			sinkBytes, sinkErr = someID.AppendText(buf[:0])
		}
	})
	b.Run("oklog", func(b *testing.B) {
		id := oklog.ULID(someID.Bytes())
		b.ReportAllocs()
		for b.Loop() {
			sinkErr = id.MarshalTextTo(buf[:oklog.EncodedSize])
		}
	})
}

func BenchmarkParse(b *testing.B) {
	b.Run("this", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			sinkID, sinkErr = ulid.Parse(someULID)
		}
	})
	b.Run("oklog strict", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			sinkOklog, sinkErr = oklog.ParseStrict(someULID)
		}
	})
	b.Run("oklog unchecked", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			sinkOklog, sinkErr = oklog.Parse(someULID)
		}
	})
}

func BenchmarkAppendUUID(b *testing.B) {
	buf := make([]byte, 0, 64)
	b.Run("this", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			sinkBytes = someID.AppendUUID(buf)
		}
	})
	b.Run("google", func(b *testing.B) { // has no form without an allocation
		id := googleuuid.UUID(someID.Bytes())
		b.ReportAllocs()
		for b.Loop() {
			sinkBytes, sinkErr = id.MarshalText()
		}
	})
}

func BenchmarkParseUUID(b *testing.B) {
	b.Run("this", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			sinkID, sinkErr = ulid.ParseUUID(someUUID)
		}
	})
	b.Run("google", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			sinkUUID, sinkErr = googleuuid.Parse(someUUID)
		}
	})
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
		sinkID, sinkErr = ulid.FromFlake(f, flake.DefaultEpoch, uint64(f))
		f++
	}
}

func BenchmarkFlake(b *testing.B) {
	id := someID.ForceV7()
	b.ReportAllocs()
	for b.Loop() {
		sinkFlake, sinkErr = id.Flake(0)
	}
}
