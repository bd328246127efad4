package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
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
	t.list(listed(ids...), 0)
	return t
}

// listed is what the store has of nodes called n, at addresses by their last byte.
func listed(ids ...uuid.UUID) (peers []agreement.Peer) {
	for _, id := range ids {
		peers = append(peers, agreement.Peer{
			Node: "n", Instance: id.String(), Gossip: fmt.Sprintf("10.0.0.%d:7946", id[15]), Ask: true,
		})
	}
	return peers
}

// announced is a member of gossip.
func announced(name string, id uuid.UUID, last byte) *memberlist.Node {
	return &memberlist.Node{Name: memberName(name, id), Addr: net.IPv4(10, 0, 0, last), Port: 7946}
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
		from, got := tb.receive(p, t1+tc.at)
		if got != tc.want || (got == none) != (from == tb.peers[anInstance]) {
			t.Errorf("%s: got %v %+v, want %v", name, faultNames[got], from, faultNames[tc.want])
		}
		// Whatever became of it, its nonce is used up.
		if tc.want != unknown {
			if _, got := tb.receive(p, t1+tc.at); got != replayed {
				t.Errorf("%s, again: %v", name, faultNames[got])
			}
		}
	}
}

// Answers count of those alone that the store lists when they come.
func TestReceiveFromUnlisted(t *testing.T) {
	tb := aTable(anInstance)
	tb.join(anInstance, announced("n", anInstance, anInstance[15]), 0)
	p := pong{Instance: anInstance, Node: "n", Nonce: tb.send(anInstance, 0)}
	tb.list(nil, 0)
	if _, got := tb.receive(p, 1); got != notMember {
		t.Errorf("got %v", faultNames[got])
	}
}

// What gossip says changes neither who is asked nor where.
func TestMembersAreHints(t *testing.T) {
	id := uuid.MustParse("00000000-0000-4000-8000-000000000007")
	tb := aTable(id)
	at := func(want byte) {
		t.Helper()
		targets, _ := tb.due(0)
		if len(targets) != 1 || targets[0].node.Addr[3] != want || tb.address(id).Addr[3] != want {
			t.Errorf("asked %v, answered at %v", targets, tb.address(id).Addr)
		}
		tb.peers[id].again = true
	}
	at(7)
	for _, n := range []*memberlist.Node{announced("evil", id, 66), announced("n", id, 66), announced("n", id, 7)} {
		tb.join(id, n, 0)
		at(7)
		if live := n.Addr[15] == 7; tb.live(id) != live || tb.impostor(id, n) == live {
			t.Errorf("%s at %v: live %v", n.Name, n.Addr, tb.live(id))
		}
	}
	tb.leave(id, memberName("evil", id))
	if !tb.live(id) {
		t.Error("another name's leave counts")
	}
	tb.leave(id, memberName("n", id))
	at(7)
	if tb.live(id) {
		t.Error("it is live after it left")
	}
	// One that is not listed here yet is answered where gossip has it, and not asked.
	other := uuid.MustParse("00000000-0000-4000-8000-000000000008")
	if tb.join(other, announced("m", other, 8), 0); tb.address(other).Addr[15] != 8 {
		t.Errorf("answered at %v", tb.address(other))
	}
	at(7)
	if tb.list(append(listed(id), agreement.Peer{Node: "m", Instance: other.String(), Gossip: "[::1]:7", Ask: true}), 0); tb.address(other).Port != 7 {
		t.Errorf("answered at %v, and not where it registered", tb.address(other))
	}
	for i := range 2 * maxMembers {
		id := uuid.NewMD5(id, []byte{byte(i), byte(i >> 8)})
		tb.join(id, announced("x", id, 1), 0)
	}
	if len(tb.members) != maxMembers {
		t.Errorf("%d members", len(tb.members))
	}
}

// A peer that the store lists comes back by that alone, with its schedule and what it said.
func TestListing(t *testing.T) {
	a, b := uuid.MustParse("00000000-0000-4000-8000-00000000000a"), uuid.MustParse("00000000-0000-4000-8000-00000000000b")
	tb := aTable(a)
	p := tb.peers[a]
	if !tb.list(listed(a, b), 5) || tb.peers[a] != p || tb.peers[b].due != 5 {
		t.Error("a new peer is not asked at once, or an old one was forgotten")
	}
	if tb.list(listed(b, a), 6) {
		t.Error("a peer is new that was there")
	}
	odd := listed(a, b)
	odd[0].Instance, odd[1].Gossip = "nobody", "some.name:7946"
	if tb.list(odd, 7) || len(tb.peers) != 0 {
		t.Errorf("listed %v", tb.peers)
	}
	if !tb.list(listed(a), 8) || tb.peers[a].due != 8 {
		t.Error("it did not come back")
	}
	moved := listed(a)
	moved[0].Gossip = "10.0.0.99:7946"
	if !tb.list(moved, 9) || tb.peers[a].node.Addr[3] != 99 {
		t.Error("it is asked where it was")
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
	tb.answered(tb.peers[anInstance], &agreement.Exchange{Sample: clock.Sample{T4: 8 * second}})
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
	p := tb.peers[anInstance]
	p.Ask = false
	if targets, wait := tb.due(0); len(targets) != 0 || wait != 2*time.Second {
		t.Errorf("asked %v, wait %v", targets, wait)
	}
	p.Ask = true
	if targets, _ := tb.due(0); len(targets) != 1 {
		t.Errorf("asked %v", targets)
	}
}

// A peer that is to be asked again is asked once more, and its turns stay.
func TestAskAgain(t *testing.T) {
	id := uuid.MustParse("00000000-0000-4000-8000-00000000000a")
	tb := aTable(id)
	tb.due(0)
	p := tb.peers[id]
	tb.answered(p, &agreement.Exchange{})
	turn := p.due
	p.again = true
	if targets, _ := tb.due(1); len(targets) != 1 || p.due != turn {
		t.Errorf("asked %d times, next at %d, want once and %d", len(targets), p.due, turn)
	}
	if targets, _ := tb.due(2); len(targets) != 0 {
		t.Errorf("asked %d times more", len(targets))
	}
}
