package clock

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// running are clocks that run with package time's, and whose wall clock and
// sleep a test sets meanwhile.
type running struct {
	origin time.Time
	step   atomic.Int64
	slept  atomic.Int64
}

func (c *running) Read() Readings {
	m, slept := int64(time.Since(c.origin)), c.slept.Load()
	return Readings{Wall: began + m + slept + c.step.Load(), Mono: Mono(m), Raw: m, Boot: m + slept}
}

func (c *running) Elapsed() Mono { return Mono(time.Since(c.origin)) }

func (c *running) Kernel() Kernel { return Kernel{Known: true, Synchronized: true} }

func newRunning() (*System, *running) {
	c := &running{origin: time.Now()}
	return NewSystem(c), c
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newRunning()
		time.Sleep(3 * time.Second) // between New and Run nobody ticks
		var mu sync.Mutex           // guards both
		var kinds []string
		says := VoteNone
		say := func(s Vote) {
			mu.Lock()
			defer mu.Unlock()
			says = s
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- s.Run(ctx,
				func() PeerVote {
					mu.Lock()
					defer mu.Unlock()
					return PeerVote{Vote: says, Held: s.Stats().Held}
				},
				func(e AnchorEvent) {
					mu.Lock()
					defer mu.Unlock()
					kinds = append(kinds, e.Kind.String())
				})
		}()
		want := func(events string, wall time.Duration) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			now := s.Now()
			if got := now.Wall.Duration() - time.Duration(began) - time.Duration(now.Mono); got != wall {
				t.Errorf("issuing time is %v off, want %v", got, wall)
			}
			if got := strings.Join(kinds, " "); got != events {
				t.Errorf("events %q, want %q", got, events)
			}
		}
		time.Sleep(time.Second)
		want("", 0)
		c.step.Add(int64(5 * time.Minute))
		time.Sleep(tickEvery)
		want("stepped", 0)
		if !s.Now().Undecided {
			t.Error("a step that nobody has voted on is not undecided")
		}
		time.Sleep(time.Minute)
		want("stepped", 0)
		say(VoteNew)
		time.Sleep(tickEvery)
		want("stepped followed", 5*time.Minute)
		c.slept.Add(int64(time.Minute))
		time.Sleep(tickEvery)
		want("stepped followed suspended", 6*time.Minute)
		say(VoteNone)
		c.step.Add(int64(-time.Second))
		time.Sleep(tickEvery)
		synctest.Wait() // for the tick of this very moment
		say(VoteNew)
		time.Sleep(12 * time.Second)
		want("stepped followed suspended stepped followed", 6*time.Minute-time.Second)
		if st := s.Stats(); st.StepsForward != 1 || st.StepsBack != 1 || st.Suspends != 1 || !st.Kernel.Known {
			t.Errorf("stats %+v", st)
		}
		if got, want := s.UnixNano(s.Read().Mono), s.Read().Wall; got != want {
			t.Errorf("UnixNano %d, want the wall clock's %d", got, want)
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
		// Without Run, time goes on.
		time.Sleep(time.Second)
		want("stepped followed suspended stepped followed", 6*time.Minute-time.Second)
	})
}

// Lines are replaced, slewed ones among them, under the eyes of readers.
func TestNowNeverGoesBack(t *testing.T) {
	s, c := newRunning()
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			var last int64
			var mono Mono
			for {
				select {
				case <-stop:
					return
				default:
				}
				now := s.Now()
				got := s.UnixNano(now.Mono) // may be of a newer line than now, and so later
				if got < last || now.Mono < mono || now.Wall > Millis(got/1e6) {
					t.Errorf("%d after %d", got, last)
					return
				}
				last, mono = got, now.Mono
			}
		})
	}
	for i := range 20_000 {
		switch i % 4 {
		case 0:
			c.step.Add(int64(15 * time.Millisecond))
		case 2:
			c.step.Add(-int64(15 * time.Millisecond))
		}
		s.tick(PeerVote{Vote: VoteNew, Held: s.Stats().Held})
	}
	close(stop)
	readers.Wait()
	if st := s.Stats(); st.NudgesForward < 5000 || st.NudgesBack < 5000 {
		t.Errorf("stats %+v, want 5000 nudges each way", st)
	}
}

// TestMachine looks at the real clocks.
func TestMachine(t *testing.T) {
	s := NewSystem(nil)
	a, k := s.Read(), s.Kernel()
	b := s.Read()
	t.Logf("%+v %+v", b, k)
	const pause = time.Minute // A busy machine does something else between two reads, but not for so long.
	if age := time.Since(time.Unix(0, b.Wall)); age.Abs() > pause {
		t.Errorf("the wall clock is %v from package time's", age)
	}
	if b.Mono <= a.Mono || b.Raw <= a.Raw || b.Boot <= a.Boot {
		t.Errorf("%+v after %+v: a clock does not advance", b, a)
	}
	if d := (b.Offset() - a.Offset()).Abs(); d > pause {
		t.Errorf("wall and monotonic clock moved apart by %v between two readings", d)
	}
	if d := (b.slept() - a.slept()).Abs(); d > pause {
		t.Errorf("boot and monotonic clock moved apart by %v between two readings", d)
	}
	if now := s.Now().Mono; now < b.Mono || now.Sub(b.Mono) > pause {
		t.Errorf("Now is at %d, Read was at %d: they count from different origins", now, b.Mono)
	}
	if k.MaxError < 0 || !k.Known && k != (Kernel{}) {
		t.Errorf("kernel %+v", k)
	}
	if off := (s.Read().WallMillis() - s.Now().Wall).Duration(); off.Abs() > pause {
		t.Errorf("issuing time is %v off when it begins", off)
	}
	s.tick(PeerVote{})
	if st := s.Stats(); st.Kernel.Known != k.Known || st.TickDelay <= 0 {
		t.Errorf("stats %+v", st)
	}
}

// pausing are clocks of a process that is paused during some reads.
type pausing struct {
	*manualClocks
	pauses int
}

func (p *pausing) Read() Readings {
	if p.pauses--; p.pauses >= 0 {
		p.Advance(time.Second)
	}
	return p.manualClocks.Read()
}

// A snapshot is taken again when a pause came between its reads, but not forever.
func TestSnapshot(t *testing.T) {
	for pauses, reads := range map[int]int{0: 2, 2: 4, 4: 6, 100: 2 * snapshotAttempts} {
		c := &pausing{manualClocks: newManualClocks(began)}
		s := NewSystem(c)
		c.pauses = pauses
		snap, m := s.Snapshot()
		if got := pauses - c.pauses; got != reads || pauses < 100 && m != c.manualClocks.Read().Mono || snap.Wall != began {
			t.Errorf("%d pauses: %d reads, %+v at %d", pauses, got, snap, m)
		}
	}
}

// A request reads one clock: to read all of them costs two calls of the kernel.
func TestNowReadsOneClock(t *testing.T) {
	c := &pausing{manualClocks: newManualClocks(began)}
	s := NewSystem(c)
	c.pauses = 100
	if s.Now(); c.pauses != 100 {
		t.Error("Now read all clocks")
	}
}

func TestCalmTickDoesNotAllocate(t *testing.T) {
	c := newManualClocks(began)
	s := NewSystem(c)
	if n := testing.AllocsPerRun(1000, func() {
		c.Advance(tickEvery)
		s.tick(PeerVote{})
	}); n != 0 {
		t.Errorf("%v allocations a tick, want none", n)
	}
}

var sink Reading

func BenchmarkNow(b *testing.B) {
	b.ReportAllocs()
	s := NewSystem(nil)
	for b.Loop() {
		sink = s.Now()
	}
}
