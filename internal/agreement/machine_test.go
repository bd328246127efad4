package agreement

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// list registers nodes with gossip, whose instances are their names.
func (d *desk) list(held bool, names ...string) []Action {
	s := lease.Status{Listed: true, Held: held, GateOpen: held}
	for _, n := range names {
		r := lease.Registration{Node: n, Instance: lease.Instance(n), Gossip: n}
		if n == "me" {
			r.Instance = "z"
		}
		s.Nodes = append(s.Nodes, r)
	}
	return d.m.Step(d.reading(), LeaseChanged{s})
}

// exchange takes an answer of a peer whose clocks are ahead of ours by off.
func (d *desk) exchange(node string, off time.Duration) []Action {
	raw := int64(d.now)
	return d.m.Step(d.reading(), Exchange{
		Node: node, Status: idle,
		Sample: clock.Sample{Instance: node, T1: raw, T4: raw, Peer: clock.Snapshot{Raw: raw, Issuing: int64(off), Wall: int64(off)}},
	})
}

func (d *desk) tick(after time.Duration) []Action {
	d.now += after
	return d.m.Step(d.reading(), Tick{})
}

func verdicts(actions []Action) (out []clock.Phase) {
	for _, v := range of[SetVerdict](actions) {
		out = append(out, v.Verdict.Phase)
	}
	return out
}

// TestAlone: a lone node waits for the list to settle, and then issues.
func TestAlone(t *testing.T) {
	d := newDesk()
	if d.m.Wake() != math.MaxInt64 || d.m.Verdict().State == clock.Open {
		t.Errorf("before the list: wakes at %d, %v", d.m.Wake(), d.m.Verdict())
	}
	if got := d.tick(time.Hour); got != nil {
		t.Errorf("evaluated before the list: %v", got)
	}
	if got := d.list(false, "me"); got != nil || d.m.Wake() != clock.Mono(d.now+settleFor) {
		t.Errorf("%v, wakes at %d", got, d.m.Wake())
	}
	got := d.tick(settleFor)
	if !slices.Equal(verdicts(got), []clock.Phase{clock.Confirmed}) || d.m.Wake() != clock.Mono(d.now+evaluateEvery) {
		t.Errorf("%v, wakes at %d", got, d.m.Wake())
	}
	if gates := of[SetGate](got); len(gates) != 1 || gates[0].Gate != (lease.Gate{Open: true, Agreed: true}) {
		t.Errorf("gates %v", gates)
	}
	if got := d.tick(evaluateEvery); got != nil {
		t.Errorf("nothing changed, and it does %v", got)
	}
}

// TestExpect: a start waits for the nodes that should be there, at most 5 s. A node
// without gossip is none of them.
func TestExpect(t *testing.T) {
	wait := func(names ...string) (clock.Phase, time.Duration) {
		d := newDesk()
		d.m.cfg.Expect = 3
		d.list(false, "me")
		if got := d.m.Step(d.reading(), Drain{}); got != nil {
			t.Errorf("drained before its first evaluation, it does %v", got)
		}
		d.m.Step(d.reading(), Undrain{})
		if len(names) > 0 {
			d.now += time.Second
			d.withoutGossip(names...)
		}
		from := d.now
		d.now = time.Duration(d.m.Wake())
		d.tick(0)
		return d.m.Verdict().Phase, d.now - from
	}
	if got, after := wait(); got != clock.Confirmed || after != expectFor {
		t.Errorf("alone, it is %v after %v", got, after)
	}
	if got, after := wait("me", alice); got != clock.Starting || after != expectFor-time.Second {
		t.Errorf("with one other, it is %v after %v", got, after)
	}
	if got, after := wait("me", alice, bob); got != clock.Starting || after != settleFor {
		t.Errorf("with two others, it is %v after %v", got, after)
	}
}

// TestStartWaitsForAnswers: the answer that makes a majority ends the start.
func TestStartWaitsForAnswers(t *testing.T) {
	d := newDesk()
	d.list(false, "me", alice, bob)
	if got := d.exchange(alice, 0); verdicts(got) != nil {
		t.Errorf("a verdict before the list has settled: %v", got)
	}
	d = newDesk()
	d.list(false, "me", alice, bob)
	if got := verdicts(d.tick(settleFor)); got != nil {
		t.Errorf("without answers: %v", got)
	}
	if got := verdicts(d.exchange(alice, 0)); !slices.Equal(got, []clock.Phase{clock.Confirmed}) {
		t.Errorf("with an answer: %v", got)
	}
	if got := d.exchange(bob, 0); got != nil {
		t.Errorf("after the start an answer waits for the next evaluation: %v", got)
	}
}

// TestAskBeforeTheGateShuts: peers that disagree are asked again before the second
// evaluation that counts, and not once the gate is shut.
func TestAskBeforeTheGateShuts(t *testing.T) {
	d := newDesk()
	d.now = time.Minute
	d.list(true, "me", alice, bob)
	asked := 0
	for range 8 {
		d.exchange(alice, time.Second)
		d.exchange(bob, time.Second)
		asked += len(of[Ask](d.tick(evaluateEvery)))
		if d.m.Verdict().Phase == clock.Shut {
			break
		}
	}
	if d.m.Verdict().Phase != clock.Shut || asked == 0 {
		t.Errorf("phase %v, asked %d times", d.m.Verdict().Phase, asked)
	}
	for range 8 {
		if got := of[Ask](d.tick(evaluateEvery)); got != nil {
			t.Errorf("shut, and asks %v", got)
		}
	}
}

// TestAskOnceAfterAJump: a sample that contradicts the one before is asked about at
// once, but only once in a row.
func TestAskOnceAfterAJump(t *testing.T) {
	d := acquainted()
	jump := func(raw time.Duration) []Ask {
		d.now += time.Second
		at := int64(d.now)
		actions := d.m.Step(d.reading(), Exchange{
			Node: alice, Status: idle, Sample: clock.Sample{Instance: alice, T1: at, T4: at, Peer: clock.Snapshot{Raw: at + int64(raw)}},
		})
		if jumps := of[PeerClockJumped](actions); len(jumps) != len(of[Ask](actions)) {
			t.Errorf("%v", actions)
		}
		return of[Ask](actions)
	}
	for i, c := range []struct {
		raw   time.Duration
		want  int
		jumps uint64 // so far
	}{
		{0, 0, 0}, {0, 0, 0}, {time.Hour, 1, 1}, {2 * time.Hour, 0, 2}, {3 * time.Hour, 0, 3}, {3 * time.Hour, 0, 3},
		{time.Hour, 1, 4},
	} {
		if got := jump(c.raw); len(got) != c.want || d.m.Report(d.reading()).Discontinuities != c.jumps {
			t.Errorf("sample %d: asks %v, want %d; %d jumps, want %d", i, got, c.want,
				d.m.Report(d.reading()).Discontinuities, c.jumps)
		}
	}
}

// TestDrain: the gate of a drained node closes at once and stays closed until the drain is
// undone, and its sid is to be given up until it is not held any more.
func TestDrain(t *testing.T) {
	d := newDesk()
	d.list(true, "me")
	d.tick(settleFor)
	got := d.m.Step(d.reading(), Drain{})
	if gates := of[SetGate](got); len(gates) != 1 || gates[0].Gate.Open {
		t.Errorf("gates %v", gates)
	}
	giveUps := func(actions []Action) (n int) {
		for _, a := range of[Notify](actions) {
			if a.Event == (lease.GiveUp{}) {
				n++
			}
		}
		return n
	}
	if again := d.tick(evaluateEvery); giveUps(got) != 1 || giveUps(again) != 1 || of[SetGate](again) != nil {
		t.Errorf("%v, then %v", got, again)
	}
	d.list(false, "me")
	if got := d.tick(evaluateEvery); got != nil {
		t.Errorf("drained, and it does %v", got)
	}
	if gates := of[SetGate](d.m.Step(d.reading(), Undrain{})); len(gates) != 1 || !gates[0].Gate.Open {
		t.Errorf("undrained: gates %v", gates)
	}
	d.list(true, "me")
	if got := d.tick(evaluateEvery); giveUps(got) != 0 {
		t.Errorf("undrained, and it does %v", got)
	}
}

// TestPeerVote: answers to questions from before a step say nothing about it, and
// all whose estimate counts must have answered since.
func TestPeerVote(t *testing.T) {
	d := newDesk()
	d.now = time.Minute
	d.list(false, "me", alice, bob)
	vote := func() clock.Vote {
		r := d.reading()
		r.Anchor = clock.AnchorStats{Pending: true, Since: clock.Mono(time.Minute + time.Second), Held: time.Hour}
		return d.m.PeerVote(r).Vote
	}
	d.exchange(alice, time.Hour)
	d.exchange(bob, time.Hour)
	d.now += 2 * time.Second
	if got := vote(); got != clock.VoteNone {
		t.Errorf("on answers from before the step: %v", got)
	}
	d.exchange(alice, time.Hour)
	if got := vote(); got != clock.VoteNone {
		t.Errorf("before all have answered: %v", got)
	}
	d.exchange(bob, time.Hour)
	if got := vote(); got != clock.VoteNew {
		t.Errorf("when all have answered: %v", got)
	}
	for i, c := range []struct {
		status Status
		want   clock.Vote
	}{
		{Status{SID: 4}, clock.VoteIssued},
		{Status{SID: 0}, clock.VoteIssued},
		{Status{SID: 4, Verdict: clock.Skewed}, clock.VoteNew},
		{Status{SID: 4, Verdict: clock.Unverified}, clock.VoteNew},
		{Status{SID: -1}, clock.VoteNew},
	} {
		for _, node := range []string{alice, bob} {
			d.m.peers[node].last.Status = c.status
		}
		if got := vote(); got != c.want {
			t.Errorf("status %d: %v, want %v", i, got, c.want)
		}
	}
	if got := d.m.PeerVote(d.reading()); got != (clock.PeerVote{}) {
		t.Errorf("without a step: %v", got)
	}
}

// TestSuspend: a suspend that a reading shows makes all estimates void at once.
func TestSuspend(t *testing.T) {
	d := newDesk()
	d.list(false, "me", alice, bob)
	d.exchange(alice, 0)
	d.exchange(bob, 0)
	r := d.reading()
	fresh := func() (n int) {
		for _, p := range d.m.Report(r).Peers {
			if p.Fresh {
				n++
			}
		}
		return n
	}
	if got := fresh(); got != 2 {
		t.Errorf("%d estimates count before", got)
	}
	r.Anchor.Suspends = 1
	if got := fresh(); got != 0 {
		t.Errorf("%d estimates count after", got)
	}
}

// shut brings a node to where it refuses: of the two, alice's clock is an hour off.
func shut(t *testing.T, strict bool) *desk {
	d := newDesk()
	d.m.cfg.Gate.Strict = strict
	d.m.gate = clock.NewGate(d.m.cfg.Gate)
	d.list(true, "me", alice)
	for range 8 {
		d.exchange(alice, time.Hour)
		d.tick(evaluateEvery)
	}
	if v := d.m.Verdict(); v.Phase != clock.Shut || v.Finding != clock.ClusterSplit {
		t.Fatalf("two that differ by an hour: %+v", v)
	}
	return d
}

// until ticks until the gate is in another phase, and returns which and how long
// that took.
func (d *desk) until(most time.Duration) (clock.Phase, time.Duration) {
	from, before := d.now, d.m.Verdict().Phase
	for d.m.Verdict().Phase == before && d.now-from < most {
		d.tick(evaluateEvery)
	}
	return d.m.Verdict().Phase, d.now - from
}

// withoutGossip registers another node that has none.
func (d *desk) withoutGossip(names ...string) {
	s := lease.Status{Listed: true}
	for _, n := range names {
		s.Nodes = append(s.Nodes, lease.Registration{Node: n, Instance: lease.Instance(n), Gossip: n})
	}
	s.Nodes = append(s.Nodes, lease.Registration{Node: "other", Instance: "other"})
	d.m.Step(d.reading(), LeaseChanged{s})
}

// TestNobodyLeftWhoDisagrees: who shut because of a node that has left does what
// an unconfirmed node does, after a pause. A node that is silent has not left.
func TestNobodyLeftWhoDisagrees(t *testing.T) {
	for _, strict := range []bool{false, true} {
		want := clock.Unproven
		if strict {
			want = clock.Strict
		}
		d := shut(t, strict)
		d.withoutGossip("me", alice)
		if got, after := d.until(time.Hour); got != clock.Shut {
			t.Errorf("strict=%v: alice is silent, and the gate is %v after %v", strict, got, after)
		}
		d.withoutGossip("me")
		if got, after := d.until(time.Hour); got != want || after < 30*time.Second || after > 31*time.Second {
			t.Errorf("strict=%v: alice has left, and the gate is %v after %v, want %v after 30 s", strict, got, after, want)
		}
		if gate := d.m.setGate; gate.Open == strict || gate.Confirmed {
			t.Errorf("strict=%v: the keeper has %+v", strict, gate)
		}
	}
	d := shut(t, false)
	d.list(true, "me")
	if got, after := d.until(time.Hour); got != clock.Confirmed || after > 11*time.Second {
		t.Errorf("alone, the gate is %v after %v", got, after)
	}
}

// TestAgreementWithoutCalm: a majority that agrees, but never within half of the
// limit, opens a shut gate too, if later.
func TestAgreementWithoutCalm(t *testing.T) {
	d := shut(t, false)
	for d.m.Verdict().Phase == clock.Shut && d.now < time.Hour {
		d.exchange(alice, 200*time.Millisecond)
		d.tick(evaluateEvery)
	}
	if v := d.m.Verdict(); v.Phase != clock.Confirmed || d.now < 30*time.Second || d.now > 40*time.Second {
		t.Errorf("200 ms apart for %v: %+v", d.now, v)
	}
}

// TestLapsedNodesCount: a node whose registration lapsed, and that did not give its sid
// back, counts for ten minutes from its last write. Without that the last of three to be
// registered would be a majority by itself.
func TestLapsedNodesCount(t *testing.T) {
	d := newDesk()
	d.now = time.Hour
	wall := clock.Millis(d.now / time.Millisecond) // the issuing clock of a desk
	lapse := func(names ...string) {
		s := lease.Status{Listed: true, Nodes: []lease.Registration{{Node: "me", Instance: "z", Gossip: "me"}}}
		for _, n := range names {
			s.Lapsed = append(s.Lapsed, lease.Lapsed{Node: n, Instance: lease.Instance(n), Wall: wall})
		}
		d.m.Step(d.reading(), LeaseChanged{s})
	}
	d.list(true, "me", alice, bob)
	d.exchange(alice, 0)
	d.exchange(bob, 0)
	d.tick(settleFor)
	if p := d.m.Verdict().Phase; p != clock.Confirmed {
		t.Fatalf("three that agree: %v", p)
	}
	lapse(alice, bob)
	d.exchange(alice, 0)
	d.tick(evaluateEvery)
	if p := d.m.Verdict().Phase; p != clock.Confirmed || len(d.m.Voters()) != 2 {
		t.Errorf("cut off from the store alone, they still answer: %v of %v", p, d.m.Voters())
	}
	if got, after := d.until(time.Hour); got != clock.Grace || after > 11*time.Second {
		t.Errorf("silent, and the gate is %v after %v", got, after)
	}
	r := d.reading()
	r.Anchor = clock.AnchorStats{Pending: true, Since: r.Mono, Held: 5 * time.Minute}
	if v := d.m.PeerVote(r); v.Vote != clock.VoteNone {
		t.Errorf("its step has the vote %v", v.Vote)
	}
	if got, _ := d.until(time.Hour); got != clock.Unproven {
		t.Errorf("after the grace the gate is %v", got)
	}
	if got, _ := d.until(time.Hour); got != clock.Confirmed || d.now < time.Hour+lapsedFor || d.now > time.Hour+lapsedFor+time.Second {
		t.Errorf("%v after the last write, the gate is %v", d.now-time.Hour, got)
	}
	lapse() // given back
	if len(d.m.Voters()) != 0 {
		t.Errorf("nobody lapsed: %v", d.m.Voters())
	}
	d = newDesk() // It starts when they lapsed ten minutes ago, by its issuing clock.
	d.now = time.Hour + lapsedFor
	if lapse(alice, bob); len(d.m.Voters()) != 2 {
		t.Errorf("%v count", d.m.Voters())
	}
	d = newDesk()
	d.now = time.Hour + lapsedFor + time.Millisecond
	if lapse(alice, bob); len(d.m.Voters()) != 0 {
		t.Errorf("%v count", d.m.Voters())
	}
}

// TestAskAfterAStep: for 3 s after a step of the wall clock all peers are asked four times a second,
// whatever else happens, and nobody is while nothing is wrong.
func TestAskAfterAStep(t *testing.T) {
	d := newDesk()
	d.now = time.Minute
	d.list(true, "me", alice, bob)
	since := time.Duration(0)
	step := func(ev Event) int {
		r := d.reading()
		if since > 0 {
			r.Anchor = clock.AnchorStats{Pending: true, Since: clock.Mono(since), Held: time.Hour}
		}
		return len(of[Ask](d.m.Step(r, ev)))
	}
	for i := range 40 {
		if i%4 == 0 {
			d.exchange(alice, 0)
			d.exchange(bob, 0)
		}
		d.now += evaluateEvery
		if n := step(Tick{}); n != 0 {
			t.Fatalf("nothing is wrong, and %d are asked", n)
		}
	}
	since = d.now
	for i := range 20 {
		want := 0
		if d.now-since < askSoon {
			want = 2
		}
		if n := step(Tick{}); n != want {
			t.Errorf("tick %d after a step: %d are asked, want %d", i, n, want)
		}
		d.now += evaluateEvery / 2
		if n := step(Drain{}) + step(Undrain{}); n != 0 {
			t.Errorf("asked %d times more than four times a second", n)
		}
		d.now += evaluateEvery / 2
	}
}

// TestNoVoteWithoutAList: who has not read who is registered is not alone.
func TestNoVoteWithoutAList(t *testing.T) {
	d := newDesk()
	r := d.reading()
	r.Anchor = clock.AnchorStats{Pending: true, Since: r.Mono, Held: time.Hour}
	if got := d.m.PeerVote(r); got != (clock.PeerVote{}) {
		t.Errorf("before the first list: %+v", got)
	}
	d.list(true, "me")
	if got := d.m.PeerVote(r); got.Vote != clock.VoteAlone || got.Held != time.Hour {
		t.Errorf("alone: %+v", got)
	}
	r.Anchor.Pending = false
	if got := d.m.PeerVote(r); got != (clock.PeerVote{}) {
		t.Errorf("alone without a step: %+v", got)
	}
}

// TestVoteWhileSlewing: where the wall clock is now is seen from where the issuing clock is on its way to.
func TestVoteWhileSlewing(t *testing.T) {
	for off, want := range map[time.Duration]clock.Vote{
		time.Hour - time.Minute: clock.VoteNew, time.Hour + time.Minute: clock.VoteNone, -time.Minute: clock.VoteOld,
		time.Minute: clock.VoteNone,
	} {
		d := newDesk()
		d.now = time.Minute
		d.list(false, "me", alice, bob)
		d.exchange(alice, off)
		d.exchange(bob, off)
		r := d.reading()
		r.Anchor = clock.AnchorStats{Pending: true, Since: clock.Mono(d.now), Held: time.Hour, Slewing: time.Minute}
		if got := d.m.PeerVote(r).Vote; got != want {
			t.Errorf("peers are %v ahead: %v, want %v", off, got, want)
		}
		r.Anchor.Suspends++ // The answers are from before.
		if got := d.m.PeerVote(r).Vote; got != clock.VoteNone {
			t.Errorf("after a suspend: %v", got)
		}
	}
}

// TestAcceptedTime: what records showed at the start goes on with the clock, and counts as an accepted time.
func TestAcceptedTime(t *testing.T) {
	for _, tc := range []struct{ accepted, recorded, want clock.Millis }{
		{0, 0, 0}, {5000, 0, 5000}, {0, 1000, 3000}, {5000, 1000, 5000}, {2500, 1000, 3000},
	} {
		d := newDesk()
		d.now = 10 * time.Second
		d.m.Step(d.reading(), LeaseChanged{lease.Status{
			Listed: true, Accepted: tc.accepted, Recorded: tc.recorded, RecordedAt: clock.Mono(8 * time.Second),
		}})
		r := d.reading()
		r.Anchor = clock.AnchorStats{Pending: true, Since: r.Mono, Held: time.Hour}
		if got := d.m.PeerVote(r).Accepted; got != tc.want {
			t.Errorf("%+v: %d", tc, got)
		}
	}
}

// TestSuspendInEveryStep: an evaluation after a suspend rests on no answer from before, and on those since.
func TestSuspendInEveryStep(t *testing.T) {
	d := newDesk()
	d.now = time.Minute
	d.list(false, "me", alice, bob)
	d.exchange(alice, 0)
	d.exchange(bob, 0)
	judged := func(ev Event) int {
		r := d.reading()
		r.Anchor.Suspends = 1
		d.m.Step(r, ev)
		return d.m.gate.Stats().Judgement.Agree
	}
	d.tick(evaluateEvery)
	if n := d.m.gate.Stats().Judgement.Agree; n != 3 {
		t.Fatalf("%d agree", n)
	}
	if n := judged(Tick{}); n != 1 {
		t.Errorf("%d agree by answers from before a suspend", n)
	}
	at := int64(d.now)
	for _, n := range []string{alice, bob} {
		judged(Exchange{Node: n, Status: idle, Sample: clock.Sample{Instance: n, T1: at, T4: at, Peer: clock.Snapshot{Raw: at}}})
	}
	if n := judged(Tick{}); n != 3 {
		t.Errorf("%d agree by answers since", n)
	}
}

// TestWhoReturnsIsAskedAnew: nothing that a peer said counts after it was not registered.
func TestWhoReturnsIsAskedAnew(t *testing.T) {
	d := newDesk()
	d.list(false, "me", alice, bob)
	d.exchange(alice, 0)
	d.exchange(bob, 0)
	d.list(false, "me", bob)
	d.list(false, "me", alice, bob)
	for _, p := range d.m.Report(d.reading()).Peers {
		if p.Fresh != (p.Name == bob) {
			t.Errorf("%+v", p)
		}
	}
}

// TestReport: what people see of each peer.
func TestReport(t *testing.T) {
	d := newDesk()
	d.now = time.Minute
	d.list(true, "me", alice, bob)
	at := int64(d.now)
	sample := clock.Sample{
		Instance: alice, T1: at - int64(60*time.Millisecond), T4: at, Hold: 20 * time.Millisecond,
		Peer: clock.Snapshot{Raw: at, Issuing: int64(time.Second), Wall: int64(2 * time.Second), Kernel: clock.Synchronized},
	}
	e := Exchange{Node: alice, Status: Status{SID: 4, Term: 9, Verdict: clock.Skewed}, Sample: sample}
	if e.RTT() != 40*time.Millisecond {
		t.Errorf("the messages took %v", e.RTT())
	}
	d.m.Step(d.reading(), e)
	d.now += 500 * time.Millisecond
	r := d.reading()
	r.Clocks.Issuing = int64(time.Hour)
	got := d.m.Report(r)
	if got.Now != clock.Millis((d.now+time.Hour)/time.Millisecond) || got.Gossip != 1 {
		t.Errorf("now %d", got.Now)
	}
	r.Clocks.Issuing = 0
	got = d.m.Report(r)
	p := got.Peers[0]
	if p.Name != alice || !p.Fresh || p.SID != 4 || p.Term != 9 || p.Verdict != clock.Skewed || p.RTT != 40*time.Millisecond ||
		p.Age != 500*time.Millisecond || p.Stats.Samples != 1 || p.Kernel != clock.Synchronized {
		t.Errorf("%+v", p)
	}
	near := func(d, want time.Duration) bool { return d > want-50*time.Millisecond && d < want+50*time.Millisecond }
	if !near(p.Offset, time.Second) || !near(p.Wall, 2*time.Second) || p.Error < 20*time.Millisecond || p.Error > 60*time.Millisecond {
		t.Errorf("offset %v ± %v, wall clock %v", p.Offset, p.Error, p.Wall)
	}
	if b := got.Peers[1]; b.Name != bob || b.Fresh || b.SID != -1 || b.Verdict != clock.Unverified || b.Age != 0 {
		t.Errorf("one that never answered: %+v", b)
	}
}

// TestImpossibleAnswers: an answer that came before its question changes nothing.
func TestImpossibleAnswers(t *testing.T) {
	d := acquainted()
	d.is(Status{SID: 3, Term: 7, Era: 1, Revision: 5, Cluster: 9})
	at := int64(time.Minute)
	if got := d.m.Step(d.reading(), Exchange{
		Node: alice, Status: holds(3, 7), Sample: clock.Sample{Instance: alice, T1: at, T4: at - 1, Peer: clock.Snapshot{Raw: at}},
	}); got != nil || len(d.m.peers) != 0 {
		t.Errorf("%v, %d peers", got, len(d.m.peers))
	}
}

// TestStatus: a node reports the sid that it extends, and none that it has lost.
func TestStatus(t *testing.T) {
	for _, tc := range []struct {
		held  bool
		phase lease.Phase
		want  int
	}{{true, lease.Holding, 4}, {true, lease.Lost, -1}, {false, lease.Holding, -1}, {false, lease.Seeking, -1}} {
		d := newDesk()
		d.m.Step(d.reading(), LeaseChanged{lease.Status{Held: tc.held, Phase: tc.phase, Grant: lease.Grant{SID: 4, Term: 2}}})
		if s := d.m.Status(); s.SID != tc.want || (s.Term == 2) != (tc.want == 4) {
			t.Errorf("%+v: %+v", tc, s)
		}
	}
}

// TestLapsedByIssuingClock: for how long a node has lapsed is seen from the clock that writes records.
func TestLapsedByIssuingClock(t *testing.T) {
	d := newDesk()
	d.now = time.Hour
	r := d.reading()
	r.Clocks.Issuing = int64(24 * time.Hour)
	d.m.Step(r, LeaseChanged{lease.Status{
		Listed: true,
		Nodes:  []lease.Registration{{Node: "me", Instance: "z", Gossip: "me"}},
		Lapsed: []lease.Lapsed{
			{Node: alice, Instance: alice, Wall: clock.Millis(25 * time.Hour / time.Millisecond)},
			{Node: bob, Instance: bob, Wall: clock.Millis((25*time.Hour-lapsedFor)/time.Millisecond) - 1},
		},
	}})
	if v := d.m.Voters(); len(v) != 1 || v[0].Name != alice {
		t.Errorf("%v count", v)
	}
}

// TestBlockedStep: while a step beyond the limit is held, a peer that has its time and issues nothing
// does not disagree, unless it agreed before from its first answer on that showed whether it did.
func TestBlockedStep(t *testing.T) {
	for _, tc := range []struct {
		blocked bool
		before  []time.Duration
		off     time.Duration
		want    clock.Finding
	}{
		{true, nil, time.Hour, clock.Unconfirmed},
		{true, nil, time.Hour + time.Minute, clock.SelfFalse},
		{true, nil, time.Hour + 2*time.Minute, clock.SelfFalse},
		{false, nil, time.Hour, clock.SelfFalse},
		{true, []time.Duration{0}, time.Hour, clock.SelfFalse},
		{true, []time.Duration{250 * time.Millisecond, 0}, time.Hour, clock.SelfFalse},
		{true, []time.Duration{time.Hour, 0}, time.Hour, clock.Unconfirmed},
		{true, []time.Duration{time.Minute, 0}, time.Hour, clock.Unconfirmed},
	} {
		d := newDesk()
		d.now = time.Minute
		d.list(true, "me", alice, bob)
		for _, off := range tc.before {
			d.exchange(alice, off)
			d.exchange(bob, off)
			d.tick(evaluateEvery)
		}
		d.exchange(alice, tc.off)
		d.exchange(bob, tc.off)
		r := d.reading()
		r.Anchor = clock.AnchorStats{Blocked: tc.blocked, Held: time.Hour + time.Minute, Slewing: time.Minute}
		d.m.Step(r, Tick{})
		if j := d.m.gate.Stats().Judgement; j.Finding != tc.want {
			t.Errorf("%+v: %+v", tc, j)
		}
	}
}

// TestRepairedBeforeOthers: alice and bob started with the time of a step that this node held against,
// and they are a majority. When its own wall clock is set right first, they do not disagree either, and
// it keeps its sid, though it has refused for minutes: who started with a wrong time would acquire with
// it once nobody holds a sid. Ten minutes after the last answer with that time it is forgotten.
func TestRepairedBeforeOthers(t *testing.T) {
	d := newDesk()
	d.m.cfg.Gate.Strict = true
	d.m.gate = clock.NewGate(d.m.cfg.Gate)
	d.now = time.Minute
	d.list(true, "me", alice, bob)
	step := func(held, off time.Duration) (gaveUp bool) {
		d.now += time.Second
		for _, peer := range []string{alice, bob} {
			d.exchange(peer, off)
		}
		r := d.reading()
		r.Clocks.Wall = r.Clocks.Issuing // The wall clock is set right before the tick that notices it.
		r.Anchor = clock.AnchorStats{Blocked: held != 0, Held: held}
		for _, a := range of[Notify](d.m.Step(r, Tick{})) {
			gaveUp = gaveUp || a.Event == lease.GiveUp{}
		}
		return gaveUp
	}
	is := func(when string, want clock.Phase, started int) {
		t.Helper()
		if j := d.m.gate.Stats().Judgement; d.m.Verdict().Phase != want || j.Started != started {
			t.Fatalf("%s: %v, want %v: %+v", when, d.m.Verdict().Phase, want, j)
		}
	}
	for range 180 {
		if step(time.Hour, time.Hour) {
			t.Fatal("it gives its sid back while the step is held")
		}
	}
	is("while the step is held", clock.Strict, 2)
	for range 1200 {
		if step(0, time.Hour) {
			t.Fatal("it gives its sid back, and the others have the wrong time")
		}
	}
	is("when it was set right alone", clock.Strict, 2)
	for range 2 {
		if step(0, 0) {
			t.Fatal("it gives its sid back when all are right")
		}
	}
	is("when all are right", clock.Confirmed, 0)
	for range 590 {
		step(0, 0)
	}
	for range 6 {
		step(0, time.Hour)
	}
	is("wrong again within ten minutes", clock.Grace, 2)
	for range 610 {
		step(0, 0)
	}
	for range 6 {
		step(0, time.Hour)
	}
	is("after ten minutes", clock.Shut, 0)
}
