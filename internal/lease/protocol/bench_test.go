package protocol_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/protocol"
)

// BenchmarkStep plays what happened to a holder in an hour again, to the machine alone.
func BenchmarkStep(b *testing.B) {
	mem, start := storetest.NewMemory(1), clock.Millis(flake.DefaultEpoch+1_000_000_000)
	_, _, err := mem.Init(context.Background(), lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "p"}, start)
	fatal.If(b, err)
	w := &cluster{store: mem, window: 30 * time.Second, clock: clocktest.NewManual(start), began: start, marks: true}
	machine := func() *protocol.Machine {
		w.nonce = 0
		return protocol.New(w.config("a", "a-1", func(most time.Duration) time.Duration { return most / 2 }))
	}
	type step struct {
		now clock.Reading
		ev  lease.Event
	}
	own := func(ev lease.Event) lease.Event { // A machine keeps the records of a list, and writes to them.
		if l, ok := ev.(lease.Loaded); ok {
			l.View.SIDs = maps.Clone(l.View.SIDs)
			return l
		}
		return ev
	}
	var steps []step
	p := &process{w: w, name: "a-1"}
	for m, end := machine(), w.clock.Now().Mono.Add(time.Hour); w.clock.Now().Mono < end; {
		for queue := []lease.Event{lease.Tick{}}; len(queue) > 0; queue = queue[1:] {
			steps = append(steps, step{w.clock.Now(), queue[0]})
			for _, a := range m.Step(w.clock.Now(), own(queue[0])) {
				switch a.(type) {
				case lease.Load, lease.Read, lease.Commit, lease.Register, lease.KeepAlive, lease.PutMark:
					queue = append(queue, p.ask(a))
				}
			}
		}
		w.clock.Advance(max(time.Millisecond, m.Wake().Sub(w.clock.Now().Mono)))
	}
	for b.Loop() {
		m := machine()
		for _, s := range steps {
			m.Step(s.now, own(s.ev))
		}
		if !m.Status().Held {
			b.Fatalf("it holds no sid: %+v", m.Status().Phase)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(steps)), "ns/step")
}
