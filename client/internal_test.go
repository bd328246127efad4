package client

import (
	"strings"
	"testing"

	pb "github.com/flakelease/allocator/api/allocator/v1"
)

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
