package flake_test

import (
	"strconv"
	"testing"

	"github.com/flakelease/allocator/flake"
)

// Sinks keep the compiler from dropping what is measured.
var (
	sinkID    flake.ID
	sinkBytes []byte
	sinkErr   error
)

func BenchmarkAppendText(b *testing.B) {
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	id := someID
	for b.Loop() {
		sinkBytes, sinkErr = id.AppendText(buf)
		id++
	}
}

func BenchmarkAppendInt(b *testing.B) {
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	id := someID
	for b.Loop() {
		sinkBytes = id.AppendInt(buf)
		id++
	}
}

func BenchmarkAppendJSON(b *testing.B) {
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		sinkBytes, sinkErr = someID.AppendJSON(buf)
	}
}

func BenchmarkString(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = someID.String()
	}
}

func BenchmarkParse(b *testing.B) {
	s := someID.String()
	b.ReportAllocs()
	for b.Loop() {
		sinkID, sinkErr = flake.Parse(s)
	}
}

func BenchmarkUnmarshalText(b *testing.B) {
	s := []byte(someID.String())
	b.ReportAllocs()
	for b.Loop() {
		sinkErr = sinkID.UnmarshalText(s)
	}
}

func BenchmarkParseInvalid(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		sinkID, sinkErr = flake.Parse("00CMXB6TAK4SU")
	}
}

// The yardstick: the standard library's base 32, which is not Crockford's but
// does the same work.
func BenchmarkStrconvBase32(b *testing.B) {
	buf := make([]byte, 0, 64)
	s := strconv.FormatInt(int64(someID), 32)
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			sinkBytes = strconv.AppendInt(buf, int64(someID), 32)
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v, err := strconv.ParseInt(s, 32, 64)
			sinkID, sinkErr = flake.ID(v), err
		}
	})
}
