package quota

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// TestShed compares with a slow version: the source that got more loses its largest connections
// until it is within its share, and then whoever holds most loses its largest until all are within
// the limit. Small connections are left alone.
func TestShed(t *testing.T) {
	const unit = unfinished
	all, shared := 0, 0 // runs in which the limit, and a share, was exceeded
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		r := newRig(Config{})
		l := r.Listen(nil, ListenerConfig{})
		total := int64(0)
		for i := range 1 + rnd.IntN(6) {
			for range 1 + rnd.IntN(5) {
				c := dial(l, fmt.Sprintf("10.0.0.%d", i))
				c.Hold(int64(rnd.IntN(20)) * unit)
				total += c.held.Load()
			}
		}
		r.cfg.Memory = total - int64(rnd.IntN(40))*unit
		if r.cfg.Memory <= 0 {
			continue
		}
		s := r.conns[rnd.IntN(len(r.conns))].source
		left := map[*source][]int64{} // what its large connections hold
		held := map[*source]int64{}
		for _, c := range r.conns {
			if held[c.source] += c.held.Load(); c.held.Load() >= connBytes+unfinished {
				left[c.source] = append(left[c.source], c.held.Load())
			}
		}
		held[s] += unit // which it gets now
		total += unit
		drop := func(s *source) {
			most := 0
			for i, n := range left[s] {
				if n > left[s][most] {
					most = i
				}
			}
			held[s] -= left[s][most]
			total -= left[s][most]
			left[s] = append(left[s][:most:most], left[s][most+1:]...)
		}
		for held[s] > r.share() && len(left[s]) > 0 {
			drop(s)
			shared++
		}
		even := false
		for total > r.cfg.Memory {
			var from *source
			for other, of := range left {
				if len(of) > 0 && (from == nil || held[other] > held[from]) {
					from = other
				}
			}
			if from == nil {
				break
			}
			for other, of := range left {
				even = even || other != from && len(of) > 0 && held[other] == held[from]
			}
			drop(from)
			all++
		}
		if even { // Either may lose a connection.
			continue
		}
		r.add(s, unit, true)
		if got := r.Quota.held.Load(); got != total {
			t.Fatalf("seed %d: %d bytes are held, want %d", seed, got, total)
		}
		for s, want := range held {
			if got := s.held.Load(); got != want {
				t.Fatalf("seed %d: a source holds %d, want %d", seed, got, want)
			}
		}
	}
	if all < 100 || shared < 100 {
		t.Errorf("only %d and %d connections were shed", all, shared)
	}
}

// TestNothingToShed: who holds exactly the share, or all that there is, loses nothing.
func TestNothingToShed(t *testing.T) {
	r := newRig(Config{Memory: 16 << 20})
	l := r.Listen(nil, ListenerConfig{})
	for i := range shares {
		c := dial(l, fmt.Sprintf("10.0.0.%d", i))
		c.Valid()
		c.Hold(r.share() - connBytes)
	}
	if held, limit := r.Held(); held != limit || l.Stats().Open != shares {
		t.Errorf("%d bytes of %d, %d open", held, limit, l.Stats().Open)
	}
}

// TestLooksOnce: above the limit, and above a share, small connections have all others looked at once in each sweep, and
// one that gets large at once.
func TestLooksOnce(t *testing.T) {
	for limit, tc := range map[string]struct {
		memory  int64
		sources int
	}{"all": {10 * connBytes, 11}, "share": {10 * connBytes * shares, 1}} {
		r := newRig(Config{Memory: 1 << 30})
		l := r.Listen(nil, ListenerConfig{})
		conns := make([]*Conn, 11)
		for i := range conns {
			conns[i] = dial(l, fmt.Sprintf("10.0.0.%d", i%tc.sources))
		}
		r.cfg.Memory = tc.memory
		hold := func() {
			conns[0].Hold(1)
			conns[0].Hold(-1)
		}
		looks := func(f func()) bool { return testing.AllocsPerRun(1, f) > 0 } // It calls f once before.
		if looks(hold) {
			t.Errorf("%s: a small connection looks twice in a sweep", limit)
		}
		conns[2].OpenStream(1)
		if looks(func() { conns[2].Hold(1); conns[2].Hold(-1) }) {
			t.Errorf("%s: a connection with a stream looks twice in a sweep", limit)
		}
		conns[2].CloseStream()
		if !looks(func() { r.sweep(); hold() }) {
			t.Errorf("%s: nobody looks after a sweep", limit)
		}
		conns[1].Hold(unfinished)
		if got := l.Stats().Open; int(got) != len(conns)-1 || r.bare.Load() || conns[0].source.bare.Load() {
			t.Errorf("%s: %d of %d connections are open after one got large, and nobody would look again", limit, got, len(conns))
		}
		// One that gets large below the limit is shed when others pass that; a stream alone makes none large.
		conns[2].OpenStream(1)
		conns[2].Hold(1)
		r.cfg.Memory -= connBytes
		hold()
		r.cfg.Memory *= 2
		conns[3].Hold(unfinished)
		r.cfg.Memory /= 2
		if hold(); !isClosed(conns[3]) || isClosed(conns[2]) {
			t.Errorf("%s: of a connection that was large before the limit was passed, and one with a stream, the wrong one is open", limit)
		}
	}
}

// TestOpenTakesFromBoth: a connection of an unknown source takes one from the source and one from
// all unknown ones, or nothing; that of a known one takes from the source alone.
func TestOpenTakesFromBoth(t *testing.T) {
	for _, tc := range []struct {
		unknown              bool
		ofAll, ofOne         float64 // before
		want                 bool
		leftOfAll, leftOfOne float64
	}{
		{true, 5, 5, true, 4, 4},
		{true, 0, 5, false, 0, 5},
		{true, 5, 0, false, 5, 0},
		{false, 0, 5, true, 0, 4},
		{false, 5, 0, false, 5, 0},
	} {
		r := newRig(Config{})
		s := r.sourceOf((&socket{from: "10.0.0.1"}).RemoteAddr())
		r.unknown.level, s.opening.level = tc.ofAll, tc.ofOne
		if got := r.open(s, tc.unknown, 0); got != tc.want || r.unknown.level != tc.leftOfAll ||
			s.opening.level != tc.leftOfOne {
			t.Errorf("%+v: %v, %v and %v are left", tc, got, r.unknown.level, s.opening.level)
		}
	}
}

// TestSourcesAreForgotten: a source is remembered while it has a connection, and for a minute after.
func TestSourcesAreForgotten(t *testing.T) {
	r := newRig(Config{})
	c := dial(r.Listen(nil, ListenerConfig{}), "10.0.0.1")
	for range 3 * sourceSweeps {
		r.sweep()
	}
	_ = c.Close()
	for i := range sourceSweeps + 1 {
		if len(r.sources) != 1 {
			t.Fatalf("forgotten after %d sweeps", i)
		}
		r.sweep()
	}
	if len(r.sources) != 0 {
		t.Error("remembered for longer")
	}
}

// TestClosedConnectionsAreForgotten: as many connections may come and go as like to.
func TestClosedConnectionsAreForgotten(t *testing.T) {
	r := newRig(Config{})
	l := r.Listen(nil, ListenerConfig{})
	for range 100 {
		dial(l, "10.0.0.1")
	}
	for range 10_000 {
		_ = dial(l, "10.0.0.2").Close()
		if len(r.conns) > 300 {
			t.Fatalf("%d connections are remembered, 100 are open", len(r.conns))
		}
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newBubble().Quota
		c := dial(q.Listen(nil, ListenerConfig{CloseSilent: true}), "10.0.0.1")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- q.Run(ctx) }()
		time.Sleep(silentSweeps * sweepEvery)
		if synctest.Wait(); isClosed(c) {
			t.Error("closed early")
		}
		time.Sleep(2 * sweepEvery)
		if synctest.Wait(); !isClosed(c) {
			t.Error("a silent connection stays open")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
