package clock_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/clock"
)

const ms = int64(time.Millisecond)

// machine is a simulated machine's clocks over true time (ns). Its raw clock
// has a rate error and an origin of its own; issuing and wall clocks stand at
// constants from raw.
type machine struct {
	origin        int64
	ppm           float64
	issuing, wall int64
	kernel        clock.Sync
}

func newMachine(r *rand.Rand) *machine {
	return &machine{
		origin:  r.Int64N(int64(1000 * time.Hour)),
		ppm:     r.Float64()*198 - 99,
		issuing: 1_700_000_000_000_000_000 + r.Int64N(2000*ms) - 1000*ms,
		wall:    1_700_000_000_000_000_000 + r.Int64N(2000*ms) - 1000*ms,
	}
}

func (m *machine) raw(at int64) int64 { return m.origin + at + int64(float64(at)*m.ppm/1e6) }

func (m *machine) site(at int64) clock.Snapshot {
	return clock.Snapshot{Raw: m.raw(at), Issuing: m.issuing, Wall: m.wall, Kernel: m.kernel}
}

// offset is the truth: b's issuing clock minus a's.
func offset(a, b *machine, at int64) int64 { return b.raw(at) + b.issuing - a.raw(at) - a.issuing }

// network delays one message each way.
type network struct {
	name      string
	oneWay    time.Duration // at least
	jitter    time.Duration // mean of an exponential, added
	spikes    float64       // how many messages meet one
	spike     time.Duration // evenly up to this, added
	asymmetry time.Duration // added on the way there, always
	every     time.Duration
	p50, p99  time.Duration // half-widths, from the reference values
}

var networks = []network{
	{name: "LAN 0.2 ms", oneWay: 200 * time.Microsecond, jitter: 50 * time.Microsecond, spikes: .01, spike: 70 * time.Millisecond,
		every: 2 * time.Second, p50: 270 * time.Microsecond, p99: 630 * time.Microsecond},
	{name: "starved pods", jitter: 3 * time.Millisecond, spikes: .2, spike: 200 * time.Millisecond,
		every: 2 * time.Second, p50: 1400 * time.Microsecond, p99: 3100 * time.Microsecond},
	{name: "cross-AZ, 1 ms asymmetry", oneWay: time.Millisecond, jitter: 100 * time.Microsecond, spikes: .1, spike: 100 * time.Millisecond, asymmetry: time.Millisecond,
		every: 2 * time.Second, p50: 1600 * time.Microsecond, p99: 2200 * time.Microsecond},
	{name: "WAN 60 ms, 10 ms asymmetry", oneWay: 30 * time.Millisecond, jitter: 2 * time.Millisecond, spikes: .1, spike: 200 * time.Millisecond, asymmetry: 10 * time.Millisecond,
		every: 2 * time.Second, p50: 36 * time.Millisecond, p99: 38 * time.Millisecond},
	{name: "LAN, a sample in 30 s", oneWay: 200 * time.Microsecond, jitter: 50 * time.Microsecond, spikes: .01, spike: 70 * time.Millisecond,
		every: 30 * time.Second, p50: 270 * time.Microsecond, p99: 2650 * time.Microsecond},
}

func (n network) delay(r *rand.Rand) int64 {
	d := int64(n.oneWay) + int64(r.ExpFloat64()*float64(n.jitter))
	if r.Float64() < n.spikes {
		d += r.Int64N(int64(n.spike))
	}
	return d
}

// exchange lets a ask b at true time at, and returns the sample and the true
// time at which a has it.
func (n network) exchange(r *rand.Rand, a, b *machine, at int64) (clock.Sample, int64) {
	there := at + n.delay(r) + int64(n.asymmetry)
	answered := there + int64(r.ExpFloat64()*float64(50*time.Microsecond))
	back := answered + n.delay(r)
	return clock.Sample{
		Instance: "b",
		T1:       a.raw(at), T4: a.raw(back),
		Hold: time.Duration(b.raw(answered) - b.raw(there)),
		Peer: b.site(answered),
	}, back
}

// TestNetworks: over 100 seeds and 10 virtual minutes a network, the truth lies
// in every interval, just after each sample and just before the next, and the
// half-widths are those of the reference values (and half as much again).
func TestNetworks(t *testing.T) {
	for _, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			var halves []time.Duration
			samples := 0
			for seed := range uint64(100) {
				r := rand.New(rand.NewPCG(seed, 7))
				a, b := newMachine(r), newMachine(r)
				var p clock.Peer
				for at := int64(0); at < int64(10*time.Minute); at += int64(n.every) {
					if p.Stats().Samples > 0 {
						within(t, seed, &p, a, b, at)
					}
					s, back := n.exchange(r, a, b, at)
					if change, err := p.Add(s); err != nil || change == clock.Discontinuity {
						t.Fatalf("seed %d at %v: %v, %v", seed, time.Duration(at), change, err)
					}
					samples++
					halves = append(halves, within(t, seed, &p, a, b, back).Half())
				}
			}
			slices.Sort(halves)
			p50, p99 := halves[len(halves)/2], halves[len(halves)*99/100]
			t.Logf("%d samples, half-width p50 %v, p99 %v", samples, p50, p99)
			if p50 > n.p50*3/2 || p99 > n.p99*3/2 {
				t.Errorf("half-width p50 %v, p99 %v; want at most %v, %v", p50, p99, n.p50*3/2, n.p99*3/2)
			}
		})
	}
}

func within(t *testing.T, seed uint64, p *clock.Peer, a, b *machine, at int64) clock.Interval {
	t.Helper()
	e := p.Estimate(a.raw(at), a.issuing)
	if truth := offset(a, b, at); truth < e.Issuing.Lo || truth > e.Issuing.Hi {
		t.Fatalf("seed %d at %v: the truth, %d, lies outside %v", seed, time.Duration(at), truth, e.Issuing)
	}
	if truth := b.raw(at) + b.wall - a.raw(at) - a.issuing; truth < e.Wall.Lo || truth > e.Wall.Hi {
		t.Fatalf("seed %d at %v: the truth of walls, %d, lies outside %v", seed, time.Duration(at), truth, e.Wall)
	}
	return e.Issuing
}

func TestSampleRejected(t *testing.T) {
	good := clock.Sample{Instance: "b", T1: 100, T4: 300, Hold: 50, Peer: clock.Snapshot{Raw: 7000}}
	var p clock.Peer
	if _, err := p.Add(good); err != nil {
		t.Fatal(err)
	}
	before := p.Estimate(400, 0)
	for _, c := range []struct {
		name   string
		change func(*clock.Sample)
		want   error
	}{
		{"answered before it was asked", func(s *clock.Sample) { s.T4 = 99 }, clock.ErrSampleOrder},
		{"before it by centuries", func(s *clock.Sample) { s.T1, s.T4 = math.MaxInt64, math.MinInt64 }, clock.ErrSampleOrder},
		{"over a second", func(s *clock.Sample) { s.T4 = s.T1 + 1000*ms + 1 }, clock.ErrSampleSlow},
		{"over centuries", func(s *clock.Sample) { s.T1, s.T4 = math.MinInt64, math.MaxInt64 }, clock.ErrSampleSlow},
		{"held for less than nothing", func(s *clock.Sample) { s.Hold = -1 }, clock.ErrSampleHold},
		{"held for longer than it took", func(s *clock.Sample) { s.Hold = 201 }, clock.ErrSampleHold},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := good
			c.change(&s)
			if _, err := p.Add(s); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if after := p.Estimate(400, 0); after != before {
				t.Errorf("a rejected sample changed the estimate: %v, was %v", after, before)
			}
		})
	}
	if got := p.Stats(); got != (clock.PeerStats{Samples: 1, Rejected: 6}) {
		t.Errorf("stats are %+v", got)
	}
	for _, s := range []clock.Sample{
		{Instance: "b", T1: 100, T4: 100, Peer: clock.Snapshot{Raw: 7000}},
		{Instance: "b", T1: 100, T4: 100 + 1000*ms, Hold: time.Second, Peer: clock.Snapshot{Raw: 7000}},
	} {
		if _, err := new(clock.Peer).Add(s); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// TestSampleInterval: the intervals of one exchange and of two, worked out by hand.
func TestSampleInterval(t *testing.T) {
	const s = int64(time.Second)
	first := clock.Sample{T1: 100 * s, T4: 100*s + 500_000, Hold: 200_000, Peer: clock.Snapshot{Raw: 300 * s}}
	for _, c := range []struct {
		name    string
		samples []clock.Sample
		at      int64
		want    clock.Interval
	}{
		// The peer read 300 s between 100.0002 s and 100.0005 s; the later end and its
		// hold may have drifted by 200 ppm of the 500 µs: 100 ns. 1 ns is for rounding.
		{"just now", []clock.Sample{first}, first.T4, iv{200*s - 500_000 - 1, 200*s - 200_000 + 101 + 1}},
		{"10 s old", []clock.Sample{first}, first.T4 + 10*s, iv{200*s - 500_000 - 2_000_001, 200*s - 200_000 + 101 + 2_000_001}},
		// An answer that took a second is overtaken by one, and widened from when it came.
		{"come late", []clock.Sample{
			{T1: 109 * s, T4: 110 * s, Peer: clock.Snapshot{Raw: 309*s + s/2}},
			first,
		}, 110 * s, iv{200*s - 500_000 - 1_999_901 - 1, 200*s - 200_000 + 101 + 1_999_901 + 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p clock.Peer
			for _, s := range c.samples {
				if change, err := p.Add(s); err != nil || change == clock.Discontinuity {
					t.Fatalf("%v, %v", change, err)
				}
			}
			if got := p.Estimate(c.at, 0).Issuing; got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// pair is two machines on a LAN and what one knows of the other.
type pair struct {
	r    *rand.Rand
	a, b *machine
	p    clock.Peer
	at   int64
}

func newPair(seed uint64) *pair {
	r := rand.New(rand.NewPCG(seed, 11))
	return &pair{r: r, a: newMachine(r), b: newMachine(r)}
}

// ask lets 2 s pass and makes an exchange.
func (p *pair) ask(t *testing.T) (clock.Change, clock.Estimate) {
	t.Helper()
	p.at += int64(2 * time.Second)
	s, back := networks[0].exchange(p.r, p.a, p.b, p.at)
	change, err := p.p.Add(s)
	fatal.If(t, err)
	return change, p.p.Estimate(p.a.raw(back), p.a.issuing)
}

// TestDiscontinuity: where a raw clock jumps, as after a virtual machine was
// paused or moved, the estimate says so, is silent for one exchange, and is true
// again from the next on, on either side.
func TestDiscontinuity(t *testing.T) {
	for _, c := range []struct {
		name string
		jump func(p *pair)
	}{
		{"peer paused for 5 s", func(p *pair) { p.b.origin -= 5000 * ms }},
		{"peer migrated, 20 ms ahead", func(p *pair) { p.b.origin += 20 * ms }},
		{"we were paused for 5 s", func(p *pair) { p.a.origin -= 5000 * ms }},
		{"our raw clock went back by 15 s", func(p *pair) { p.a.origin -= 15_000 * ms }},
		{"peer's raw clock began anew", func(p *pair) { p.b.origin = 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(3)
			for range 5 {
				p.ask(t)
			}
			before := p.a.raw(p.at)
			c.jump(p)
			if e := p.p.Estimate(p.a.raw(p.at), p.a.issuing); p.a.raw(p.at) < before-1000*ms && e.Fresh {
				t.Error("an answer from the future is fresh")
			}
			if change, e := p.ask(t); change != clock.Discontinuity || e.Fresh {
				t.Errorf("after the jump: change %v, fresh %v; want %v and not fresh", change, e.Fresh, clock.Discontinuity)
			}
			if change, e := p.ask(t); change != clock.Steady || !e.Fresh {
				t.Errorf("one later: change %v, fresh %v; want %v and fresh", change, e.Fresh, clock.Steady)
			}
			within(t, 3, &p.p, p.a, p.b, p.at+100*ms)
			if got := p.p.Stats().Discontinuities; got != 1 {
				t.Errorf("%d discontinuities, want 1", got)
			}
		})
	}
}

// TestRestart: another process has other clocks; nothing of the old one's stays,
// and it counts at once.
func TestRestart(t *testing.T) {
	p := newPair(4)
	for range 5 {
		p.ask(t)
	}
	p.b = newMachine(p.r)
	s, back := networks[0].exchange(p.r, p.a, p.b, p.at+ms)
	s.Instance = "c"
	if change, err := p.p.Add(s); change != clock.Met || err != nil {
		t.Errorf("got %v, %v; want %v", change, err, clock.Met)
	}
	if within(t, 4, &p.p, p.a, p.b, back); !p.p.Estimate(p.a.raw(back), p.a.issuing).Fresh {
		t.Error("the new process is not heard")
	}
}

// TestSteps: a step of an issuing clock shows whole with the next answer and is
// no discontinuity; one of ours shows without any.
func TestSteps(t *testing.T) {
	p := newPair(5)
	for range 5 {
		p.ask(t)
	}
	p.b.issuing += 3_600_000 * ms
	if change, _ := p.ask(t); change != clock.Steady {
		t.Errorf("the peer's step is %v, want %v", change, clock.Steady)
	}
	within(t, 5, &p.p, p.a, p.b, p.at+100*ms)
	p.a.issuing -= 500 * ms
	within(t, 5, &p.p, p.a, p.b, p.at+200*ms)
}

func TestFreshness(t *testing.T) {
	var p clock.Peer
	if p.Estimate(0, 0).Fresh {
		t.Error("a peer never heard is fresh")
	}
	s := clock.Sample{T1: 5 * ms, T4: 7 * ms, Peer: clock.Snapshot{Raw: 50 * ms}}
	if _, err := p.Add(s); err != nil {
		t.Fatal(err)
	}
	at := s.T1 + int64(clock.Freshness)
	if !p.Estimate(at, 0).Fresh || p.Estimate(at+1, 0).Fresh {
		t.Errorf("fresh at the last instant %v, after it %v; want true, false", p.Estimate(at, 0).Fresh, p.Estimate(at+1, 0).Fresh)
	}

	// Old answers keep no peer alive, however often they are played back, nor
	// bring back its earlier clocks; and they do no harm.
	stepped := clock.Sample{T1: 2000 * ms, T4: 2002 * ms, Peer: clock.Snapshot{Raw: 2046 * ms, Issuing: 900 * ms}}
	if _, err := p.Add(stepped); err != nil {
		t.Fatal(err)
	}
	for _, old := range []clock.Sample{s, stepped, s, stepped} {
		old.T4 += 900 * ms // the same answer once more, to the same question
		if change, err := p.Add(old); change != clock.Steady || err != nil {
			t.Fatalf("an answer played back: %v, %v", change, err)
		}
	}
	if e := p.Estimate(stepped.T4+900*ms, 0); e.Issuing.Mid() < 900*ms {
		t.Errorf("an answer played back took the step back: %v", e.Issuing)
	}
	if e := p.Estimate(stepped.T1+int64(clock.Freshness)+1, 0); e.Fresh {
		t.Error("answers played back keep a silent peer fresh")
	}
	forged := stepped // and as the answer to another question: that is a contradiction, and silences the peer
	forged.T1, forged.T4 = 5000*ms, 5001*ms
	if change, err := p.Add(forged); change != clock.Discontinuity || err != nil || p.Estimate(5001*ms, 0).Fresh {
		t.Errorf("an old answer to a new question: %v, %v, want %v and silence", change, err, clock.Discontinuity)
	}
}

// TestOvertaking: of two answers the one read later counts, in whatever order
// they come.
func TestOvertaking(t *testing.T) {
	early := clock.Sample{T1: 1000 * ms, T4: 1900 * ms, Peer: clock.Snapshot{Raw: 1001 * ms, Issuing: 0}}
	late := clock.Sample{T1: 1500 * ms, T4: 1502 * ms, Peer: clock.Snapshot{Raw: 1501 * ms, Issuing: 300 * ms}}
	for _, order := range [][]clock.Sample{{early, late}, {late, early}} {
		var p clock.Peer
		for _, s := range order {
			if change, err := p.Add(s); err != nil || change == clock.Discontinuity {
				t.Fatalf("%v, %v", change, err)
			}
		}
		if e := p.Estimate(1900*ms, 0); e.Issuing.Lo > 300*ms || e.Issuing.Hi < 300*ms || e.Age != 400*time.Millisecond {
			t.Errorf("estimate %+v, want 300 ms within and an age of 400 ms", e)
		}
	}
}

// TestPeerThatContradictsItself: a peer that says something else each time is set aside once,
// and then heard for what it said last.
func TestPeerThatContradictsItself(t *testing.T) {
	p := newPair(6)
	p.ask(t)
	for i := range 50 {
		p.b.origin += int64(i%2*2-1) * 700 * ms
		if _, e := p.ask(t); e.Fresh != (i > 0) {
			t.Fatalf("at exchange %d: fresh %v", i, e.Fresh)
		}
	}
	if got := p.p.Stats().Discontinuities; got != 50 {
		t.Errorf("%d discontinuities, want 50", got)
	}
}

func FuzzPeer(f *testing.F) {
	f.Add(int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), int64(0))
	f.Add(int64(math.MinInt64), int64(math.MinInt64+5), int64(3), int64(math.MaxInt64), int64(math.MinInt64), int64(math.MaxInt64), int64(9), int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, t1, t4, hold, raw, issuing, t1b, rawB, now int64) {
		var p clock.Peer
		for _, s := range []clock.Sample{
			{T1: t1, T4: t4, Hold: time.Duration(hold), Peer: clock.Snapshot{Raw: raw, Issuing: issuing}},
			{T1: t1b, T4: t1b, Peer: clock.Snapshot{Raw: rawB, Issuing: issuing}},
			{T1: t1, T4: t4, Hold: time.Duration(hold), Peer: clock.Snapshot{Raw: rawB, Issuing: raw}},
		} {
			_, _ = p.Add(s)
			if e := p.Estimate(now, issuing); e.Issuing.Lo > e.Issuing.Hi || e.Wall.Lo > e.Wall.Hi {
				t.Fatalf("upside down: %+v", e)
			}
		}
	})
}

func TestPeers(t *testing.T) {
	var ps clock.Peers
	members := []clock.Member{{"b", "b1", 0, false}, {"c", "c1", 0, false}}
	if got := ps.Opinions(members, 0, 0); len(got) != 2 || got[0].Fresh || got[0].Name != "b" || got[1].Name != "c" {
		t.Errorf("before any sample: %+v", got)
	}
	ps.Forget()
	ps.Retain(members)
	if _, err := ps.Add(clock.Sample{Instance: "x", T1: 1}); err == nil {
		t.Error("a bad sample is taken")
	}
	for i, instance := range []string{"c1", "b0"} {
		s := clock.Sample{Instance: instance, T1: ms, T4: 2 * ms, Peer: clock.Snapshot{Raw: int64(i+1) * 100 * ms}}
		if change, err := ps.Add(s); change != clock.Met || err != nil {
			t.Fatalf("%v, %v", change, err)
		}
	}
	// b0 is an older process of b: it is heard and counts for nothing.
	got := ps.Opinions(members, 2*ms, 0)
	if got[0].Fresh || !got[1].Fresh || got[1].Issuing.Lo > 99*ms || got[1].Issuing.Hi < 98*ms {
		t.Errorf("opinions are %+v, want c's alone, about 98 ms", got)
	}
	ps.Retain(members)
	if got := ps.Stats("b0"); got.Samples != 0 {
		t.Errorf("b0 is kept: %+v", got)
	}
	ps.Forget()
	if got := ps.Opinions(members, 2*ms, 0); got[1].Fresh || ps.Stats("c1").Samples != 1 {
		t.Errorf("forgotten, and yet %+v", got)
	}
	jumped := clock.Sample{Instance: "c1", T1: 3 * ms, T4: 4 * ms, Peer: clock.Snapshot{Raw: 9000 * ms}}
	if change, err := ps.Add(jumped); change != clock.Met || err != nil || !ps.Opinions(members, 4*ms, 0)[1].Fresh {
		t.Errorf("after forgetting: %v, %v, want it heard at once", change, err)
	}
}

func TestSyncOf(t *testing.T) {
	for k, want := range map[clock.Kernel]clock.Sync{
		{}:                                clock.SyncUnknown,
		{Synchronized: true}:              clock.SyncUnknown,
		{Known: true}:                     clock.Unsynchronized,
		{Known: true, Synchronized: true}: clock.Synchronized,
	} {
		if got := clock.SyncOf(k); got != want {
			t.Errorf("SyncOf(%+v) = %v, want %v", k, got, want)
		}
	}
}
