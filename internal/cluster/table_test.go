package cluster

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/memberlist"

	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
)

const second = int64(time.Second)

func aTable(ids ...uuid.UUID) *table {
	t := newTable(2*time.Second, rand.NewPCG(1, 2))
	for _, id := range ids {
		t.join(id, Member{Node: "n", Instance: id.String()}, &memberlist.Node{Name: memberName("n", id)}, 0)
	}
	return t
}

// A reply counts once, from whom was asked, with what was sent, and in time.
func TestReceive(t *testing.T) {
	other := uuid.MustParse("00000000-0000-4000-8000-000000000001")
	for name, tc := range map[string]struct {
		edit func(*pong)
		at   int64 // ns after the ping
		want fault
	}{
		"in time":               {func(*pong) {}, second / 10, none},
		"at once":               {func(p *pong) { p.Hold = 0 }, 0, none},
		"just in time":          {func(*pong) {}, second, none},
		"too late":              {func(*pong) {}, second + 1, stale},
		"long forgotten":        {func(*pong) {}, nonceKept + 1, unknown},
		"never asked for":       {func(p *pong) { p.Nonce++ }, second / 10, unknown},
		"from another":          {func(p *pong) { p.Instance = other }, second / 10, forged},
		"under another name":    {func(p *pong) { p.Node = "m" }, second / 10, forged},
		"other t1":              {func(p *pong) { p.T1-- }, second / 10, forged},
		"before it was sent":    {func(p *pong) { p.Hold = 0 }, -1, forged},
		"held longer than away": {func(p *pong) { p.Hold = time.Second/10 + 1 }, second / 10, forged},
		"held all the time":     {func(p *pong) { p.Hold = time.Second / 10 }, second / 10, none},
	} {
		tb := aTable(anInstance, other)
		const t1 = 40 * second
		p := pong{Instance: anInstance, Node: "n", Nonce: tb.send(anInstance, t1), T1: t1, Hold: 1000}
		tc.edit(&p)
		tb.expire(t1 + tc.at)
		m, got := tb.receive(p, t1+tc.at)
		if got != tc.want || (got == none) != (m.Instance == anInstance.String()) {
			t.Errorf("%s: got %v %+v, want %v", name, faultNames[got], m, faultNames[tc.want])
		}
		// Whatever became of it, its nonce is used up.
		if tc.want != unknown {
			if _, got := tb.receive(p, t1+tc.at); got != replayed {
				t.Errorf("%s, again: %v", name, faultNames[got])
			}
		}
	}
}

func TestReceiveFromMemberThatLeft(t *testing.T) {
	tb := aTable(anInstance)
	p := pong{Instance: anInstance, Node: "n", Nonce: tb.send(anInstance, 0)}
	if tb.leave(anInstance, "another-name") || !tb.leave(anInstance, memberName("n", anInstance)) {
		t.Error("a member leaves under its own name only")
	}
	if _, got := tb.receive(p, 1); got != notMember {
		t.Errorf("got %v", faultNames[got])
	}
}

func TestNoncesAreBounded(t *testing.T) {
	tb := aTable(anInstance)
	first := tb.send(anInstance, 0)
	for range 3 * maxNonces {
		tb.send(anInstance, 0)
	}
	if len(tb.nonces) != maxNonces || len(tb.order) != maxNonces {
		t.Errorf("%d nonces, %d in order", len(tb.nonces), len(tb.order))
	}
	if _, got := tb.receive(pong{Nonce: first, Instance: anInstance}, 0); got != unknown {
		t.Errorf("the oldest: %v", faultNames[got])
	}
	if tb.expire(nonceKept + 1); len(tb.nonces) != 0 || len(tb.order) != 0 || tb.expired != 3*maxNonces+1 {
		t.Errorf("after a while: %d nonces, %d in order, %d expired", len(tb.nonces), len(tb.order), tb.expired)
	}
}

// A peer is asked at once, again soon until it first answers, then at an even pace.
func TestSchedule(t *testing.T) {
	tb := aTable(anInstance)
	var asked []int64
	step := func(now int64) {
		if targets, wait := tb.due(now); len(targets) > 0 {
			asked = append(asked, now)
		} else if wait <= 0 {
			t.Fatalf("at %d nobody is due, and the wait is %v", now, wait)
		}
	}
	const ms = int64(time.Millisecond)
	for now := int64(0); now < 8*second; now += 10 * ms {
		step(now)
	}
	want := []int64{0, 200 * ms, 600 * ms, 1400 * ms, 3000 * ms, 5000 * ms, 7000 * ms}
	if len(asked) != len(want) {
		t.Fatalf("asked at %v, want %v", asked, want)
	}
	for i := range want {
		if asked[i] != want[i] {
			t.Errorf("asked at %v, want %v", asked, want)
			break
		}
	}
	tb.answered(anInstance, &agreement.Exchange{Sample: clock.Sample{T4: 8 * second}})
	asked = nil
	for now := 8 * second; now < 30*second; now += 10 * ms {
		step(now)
	}
	if first := asked[0] - 8*second; first < second/2 || first > 2*second {
		t.Errorf("the first after an answer comes %d ns later", first)
	}
	for i := 1; i < len(asked); i++ {
		if gap := asked[i] - asked[i-1]; gap < 1980*ms || gap > 2020*ms {
			t.Errorf("gaps are not even: %v", asked)
		}
	}
	// After a pause of the process there is no burst to make up for it.
	asked = nil
	for now := 100 * second; now < 104*second; now += 10 * ms {
		step(now)
	}
	if len(asked) != 2 {
		t.Errorf("after a pause asked at %v", asked)
	}
	// A raw clock that fell back must not silence a peer for as long.
	asked = nil
	for now := int64(0); now < 5*second; now += 10 * ms {
		step(now)
	}
	if len(asked) != 2 {
		t.Errorf("with the clock at zero again asked at %v", asked)
	}
}

func TestOnlyVotersAreAsked(t *testing.T) {
	tb := aTable(anInstance)
	tb.chosen = map[string]bool{"m": true}
	if targets, wait := tb.due(0); len(targets) != 0 || wait != 2*time.Second {
		t.Errorf("asked %v, wait %v", targets, wait)
	}
	tb.chosen["n"] = true
	if targets, _ := tb.due(0); len(targets) != 1 {
		t.Errorf("asked %v", targets)
	}
}

// A peer that is to be asked again is asked once more, and its turns stay.
func TestAskAgain(t *testing.T) {
	id := uuid.MustParse("00000000-0000-4000-8000-00000000000a")
	tb := aTable(id)
	tb.due(0)
	tb.answered(id, &agreement.Exchange{})
	p := tb.peers[id]
	turn := p.due
	p.again = true
	if targets, _ := tb.due(1); len(targets) != 1 || p.due != turn {
		t.Errorf("asked %d times, next at %d, want once and %d", len(targets), p.due, turn)
	}
	if targets, _ := tb.due(2); len(targets) != 0 {
		t.Errorf("asked %d times more", len(targets))
	}
}
