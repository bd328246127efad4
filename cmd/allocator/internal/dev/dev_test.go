//go:build !nodev

package dev

import (
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// What dev prints of a node holds the clocks of all others, but those known to
// be false.
func TestOthers(t *testing.T) {
	peer := func(name string, offset, give time.Duration) clock.PeerReport {
		return clock.PeerReport{Name: name, Fresh: true, Offset: offset, Error: give}
	}
	silent := peer("c", time.Hour, 0)
	silent.Fresh = false
	r := clock.Report{Peers: []clock.PeerReport{silent, peer("d", time.Minute, 0)}}
	r.Gate.Judgement.Falsetickers = []string{"d"}
	if _, _, ok := others(r); ok {
		t.Error("clocks of a silent and a false node count")
	}
	r.Peers = append(r.Peers, peer("a", -2*time.Millisecond, time.Millisecond), peer("b", 4*time.Millisecond, time.Millisecond))
	if offset, within, ok := others(r); !ok || offset != time.Millisecond || within != 4*time.Millisecond {
		t.Errorf("got %v ±%v (known %v), want 1ms ±4ms", offset, within, ok)
	}
}
