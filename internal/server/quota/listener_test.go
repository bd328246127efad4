package quota

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// queue is a listener with connections that wait, and then an error.
type queue struct {
	net.Listener
	waiting []*socket
}

var errQueue = errors.New("the listener is closed")

func (q *queue) Accept() (net.Conn, error) {
	if len(q.waiting) == 0 {
		return nil, errQueue
	}
	s := q.waiting[0]
	q.waiting = q.waiting[1:]
	return s, nil
}

// TestAccept: a connection without a place is told so and closed, and the next one is accepted.
func TestAccept(t *testing.T) {
	for _, refusal := range []string{"", "try another node"} {
		sockets := []*socket{{from: "10.0.0.1"}, {from: "10.0.0.1"}, {from: "10.0.0.1"}, {from: "10.0.0.2"}}
		l := newRig(Config{}).Listen(&queue{waiting: sockets}, ListenerConfig{PerSource: 1, Grace: time.Hour, Refusal: []byte(refusal)})
		for _, want := range []*socket{sockets[0], sockets[3]} {
			nc, err := l.Accept()
			if err != nil || Of(nc).Conn != want {
				t.Fatalf("%v, %v", nc, err)
			}
		}
		if _, err := l.Accept(); !errors.Is(err, errQueue) {
			t.Errorf("the listener's error became %v", err)
		}
		for i, s := range sockets {
			refused := i == 1 || i == 2
			if s.closed.Load() != refused || refused && s.wrote.String() != refusal || !refused && s.wrote.Len() > 0 {
				t.Errorf("connection %d: closed %v, %q", i, s.closed.Load(), s.wrote.String())
			}
		}
		if st := l.Stats(); st.Open != 2 || st.Refused != 2 {
			t.Errorf("%+v", st)
		}
	}
}

// TestRefusalsLetOthersRun: however many connections are refused one after the other, or make others
// leave, others have the processor in between.
func TestRefusalsLetOthersRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for grace, refused := range map[time.Duration]int64{time.Hour: 2, 0: 0} {
		// Of two pauses one is enough: at each 61st the scheduler may take the goroutine that paused.
		sockets := []*socket{{from: "10.0.0.1"}, {from: "10.0.0.1"}, {from: "10.0.0.1"}, {from: "10.0.0.2"}}
		l := newRig(Config{}).Listen(&queue{waiting: sockets}, ListenerConfig{PerSource: 1, Grace: grace})
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
		var ran atomic.Bool
		go ran.Store(true)
		for last := sockets[3]; ; {
			nc, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if Of(nc).Conn == last {
				break
			}
		}
		if got := int64(l.Stats().Refused); got != refused || !ran.Load() {
			t.Errorf("grace %v: %d were refused, and another goroutine ran: %v", grace, got, ran.Load())
		}
	}
}

// TestKeptPlaces: an eighth of the places, and of the memory, is for sources with valid calls; on a
// listener for probes for loopback too.
func TestKeptPlaces(t *testing.T) {
	for _, tc := range []struct {
		name         string
		cfg          ListenerConfig
		memory       int64
		from         string
		proven       bool
		want, source int // connections, and how many of one source
	}{
		{"places", ListenerConfig{Connections: 64}, 0, "10.0.0.%d", false, 56, 16},
		{"places of callers", ListenerConfig{Connections: 64}, 0, "10.0.0.%d", true, 64, 16},
		{"places of loopback", ListenerConfig{Connections: 64}, 0, "127.0.0.%d", false, 56, 80},
		{"places for probes", ListenerConfig{Connections: 64, Prompt: true}, 0, "10.0.0.%d", false, 56, 16},
		{"places for local probes", ListenerConfig{Connections: 64, Prompt: true}, 0, "127.0.0.%d", false, 64, 80},
		{"memory", ListenerConfig{}, 64 * connBytes, "10.0.0.%d", false, 56, 16},
		{"memory of callers", ListenerConfig{}, 64 * connBytes, "10.0.0.%d", true, 64, 16},
		{"memory for probes", ListenerConfig{Prompt: true}, 64 * connBytes, "10.0.0.%d", false, 80, 16},
		{"share", ListenerConfig{}, 64 * connBytes, "10.0.0.%d", true, 16, 80},
	} {
		r := newRig(Config{Memory: tc.memory})
		tc.cfg.Grace = time.Hour
		l := r.Listen(nil, tc.cfg)
		n := 0
		for i := range 80 {
			// Of those with a valid call none is idle, so that none makes room.
			if c := dial(l, fmt.Sprintf(tc.from, i/tc.source+1)); c != nil {
				if n++; tc.proven {
					c.Valid()
				}
			}
		}
		if !tc.cfg.Prompt && n != tc.want || l.Stats().Open != int64(tc.want) { // Probes make room.
			t.Errorf("%s: %d connections had a place, %d have one; want %d", tc.name, n, l.Stats().Open, tc.want)
		}
	}
}

// TestFewSourcesLeaveRoom: four sources with as many connections as they may have, each with unfinished
// calls and a valid one a minute, keep no new callers from the node.
func TestFewSourcesLeaveRoom(t *testing.T) {
	for name, scarce := range map[string]struct {
		memory int64
		places int
	}{"memory": {64 << 20, 0}, "places": {0, 1024}} {
		r := newRig(Config{Memory: scarce.memory, PerSource: 300})
		l := r.Listen(nil, ListenerConfig{Connections: scarce.places, Grace: 2 * time.Second})
		flood := func(each int) {
			for i := range 4 * each {
				if c := dial(l, fmt.Sprintf("10.0.0.%d", i%4)); c != nil {
					c.Valid()
					c.OpenStream(16)
					c.Hold(unfinished - 1)
				}
			}
		}
		flood(300)
		for i := range 2 * streamSweeps {
			if i%(streamSweeps-5) == 0 {
				for _, c := range r.conns {
					c.Valid()
				}
			}
			r.now += clock.Mono(sweepEvery)
			r.sweep()
		}
		flood(16)
		for i := range 60 {
			c := dial(l, fmt.Sprintf("10.0.1.%d", i%20))
			if c == nil {
				t.Fatalf("%s: caller %d got no place beside %d connections", name, i, l.Stats().Open)
			}
			c.Valid()
			if dial(l, "10.0.0.1") != nil {
				t.Fatalf("%s: who has many connections got one of the places that are kept", name)
			}
		}
		for _, c := range slices.Clone(r.conns) {
			_ = c.Close()
		}
		if l.many != 0 || r.many != 0 {
			t.Errorf("%s: %d and %d connections are counted, and none is open", name, l.many, r.many)
		}
	}
}

// TestCrowdMakesRoom: where three addresses have hundreds of connections, all that may be had beyond the first few of
// each address, one of theirs makes room for the 17th connection and more of a caller with less than half as many.
func TestCrowdMakesRoom(t *testing.T) {
	for name, tc := range map[string]struct {
		valid  bool // Calls of the crowd were valid.
		sweeps int  // since then
		has    int  // connections of the caller before
		other  int  // its connections at another listener, which take memory and no places
		caller bool // A call of the caller was valid.
		want   bool
	}{
		"new connections":                  {has: 16, caller: true, want: true},
		"an address without a valid call":  {has: 16},
		"a connection idle for a second":   {valid: true, sweeps: crowdSweeps, has: 16, caller: true, want: true},
		"a connection in use":              {valid: true, has: 16, caller: true},
		"an address with nearly half":      {has: 90, caller: true, want: true},
		"an address with more than a half": {has: 110, caller: true},
		"an address with more elsewhere":   {has: 16, other: 110, caller: true, want: true},
	} {
		for _, scarce := range []struct {
			memory int64
			places int
		}{{64 << 20, 0}, {0, 820}} {
			r := newRig(Config{Memory: scarce.memory})
			l := r.Listen(nil, ListenerConfig{Connections: scarce.places, Grace: time.Hour})
			own := 0
			for ; own < tc.has; own++ {
				if c := dial(l, "10.9.0.1"); tc.caller {
					c.Valid()
				}
			}
			other, want := r.Listen(nil, ListenerConfig{}), tc.want && (tc.other == 0 || scarce.places > 0)
			for range tc.other {
				dial(other, "10.9.0.1").Valid()
			}
			var crowd []*Conn
			for i := range 900 {
				if c := dial(l, fmt.Sprintf("10.0.0.%d", i%3)); c != nil {
					crowd = append(crowd, c)
				}
			}
			for _, c := range crowd {
				if tc.valid {
					c.Valid()
				}
			}
			r.sweep()
			for range tc.sweeps {
				r.sweep()
			}
			for _, c := range r.conns[:own] {
				if tc.caller {
					c.Valid()
				}
			}
			for range 4 {
				if got := dial(l, "10.9.0.1") != nil; got != want {
					t.Errorf("%s: beside %d and %d got a place: %v, want %v", name, own, len(crowd), got, want)
				}
			}
			for _, c := range r.conns[:own] {
				if isClosed(c) {
					t.Errorf("%s: a connection of the caller was closed", name)
				}
			}
		}
	}
}

// TestProbesPayAtOnce: at a listener for probes a source that connects too often is refused, unless
// it is this machine; others pay when they are read.
func TestProbesPayAtOnce(t *testing.T) {
	for _, tc := range []struct {
		prompt bool
		from   string
		want   int
	}{{true, "10.0.0.1", connBurst}, {true, "127.0.0.1", 2 * connBurst}, {false, "10.0.0.1", 2 * connBurst}} {
		l := newRig(Config{}).Listen(nil, ListenerConfig{Prompt: tc.prompt})
		n := 0
		for range 2 * connBurst {
			c := dial(l, tc.from)
			if c == nil {
				continue
			}
			n++
			if paid := c.tokens.Load() == firstTokens; paid != tc.prompt || c.paid.Load() != tc.prompt {
				t.Fatalf("%+v: %d tokens", tc, c.tokens.Load())
			}
			_ = c.Close()
		}
		if n != tc.want {
			t.Errorf("%+v: %d had a place", tc, n)
		}
	}
}

// TestCallersMakeRoomFreely: a source with valid calls replaces connections without one as often as
// it connects, and pays for its own when they are read. An unknown source has paid by then, and gets
// that back with its first valid call.
func TestCallersMakeRoomFreely(t *testing.T) {
	r := newRig(Config{})
	l := r.Listen(nil, ListenerConfig{Connections: 1000, Grace: time.Second})
	caller := dial(l, "10.9.0.1")
	caller.Valid()
	for i := range 999 - 125 {
		if dial(l, fmt.Sprintf("10.1.%d.%d", i/250, i%250)) == nil {
			t.Fatal("refused below the limit")
		}
	}
	r.now += clock.Mono(time.Second)
	for range 125 + 2*unknownBurst {
		if c := dial(l, "10.9.0.1"); c == nil || c.tokens.Load() != -1 {
			t.Fatalf("a caller got no place, or paid before: %v", c)
		}
	}
	level := r.unknown.level
	c := dial(l, "10.2.0.1")
	if c == nil || !c.paid.Load() || c.tokens.Load() != firstTokens || r.unknown.level != level-1 {
		t.Fatalf("an unknown source did not pay for its place: %v left of %v", r.unknown.level, level)
	}
	if c.Valid(); r.unknown.level != level {
		t.Errorf("%v left of %v after a valid call", r.unknown.level, level)
	}
}

// TestWhoMakesRoom: which connection makes room is a matter of the listener that has no place, or of
// all for memory.
func TestWhoMakesRoom(t *testing.T) {
	type rigs struct {
		*rig
		a, b *Listener
	}
	sweeps := func(r rigs, n int, busy ...*Conn) {
		for range n {
			for _, c := range busy {
				c.Valid()
			}
			r.sweep()
		}
	}
	for _, tc := range []struct {
		name   string
		memory int64
		probes bool
		fill   func(r rigs) (want *Conn) // fills listener a, or the memory
	}{
		{"one without a valid call", 0, false, func(r rigs) *Conn {
			dial(r.b, "10.0.0.1") // It is older, and has no place of a.
			valid := dial(r.a, "10.0.0.1")
			valid.Valid()
			first := dial(r.a, "10.0.0.2")
			dial(r.a, "10.0.0.2")
			dial(r.a, "10.0.0.2").Valid()
			return first
		}},
		{"the idlest", 0, false, func(r rigs) *Conn {
			other := dial(r.b, "10.0.0.1")
			other.Valid()
			sweeps(r, 1)
			first := dial(r.a, "10.0.0.1")
			first.Valid()
			sweeps(r, 1)
			for range 3 {
				dial(r.a, "10.0.0.1").Valid()
			}
			sweeps(r, idleSweeps+1)
			return first
		}},
		{"one of who has most places", 0, false, func(r rigs) *Conn {
			dial(r.a, "10.0.0.1").Valid()
			for range 5 {
				dial(r.b, "10.0.0.1").Valid()
			}
			sweeps(r, 1)
			first := dial(r.a, "10.0.0.2")
			first.Valid()
			sweeps(r, 1)
			for range 2 {
				dial(r.a, "10.0.0.2").Valid()
			}
			sweeps(r, idleSweeps+1)
			return first
		}},
		{"of probes one without a valid call", 0, true, func(r rigs) *Conn {
			dial(r.a, "10.0.0.2")
			for range 2 {
				dial(r.a, "10.0.0.1").Valid()
			}
			sweeps(r, 3)
			return dial(r.a, "10.0.0.1")
		}},
		{"for memory one without a valid call on any listener", 64 * connBytes, false, func(r rigs) *Conn {
			var first *Conn
			for i := range 64 {
				c := dial([]*Listener{r.a, r.b}[i%2], fmt.Sprintf("10.0.1.%d", i/16))
				if c == nil {
					continue // An eighth is kept.
				}
				if i != 21 {
					c.Valid()
				} else {
					first = c
				}
			}
			return first
		}},
		{"for memory the idlest of who holds most", 64 * connBytes, false, func(r rigs) *Conn {
			var first *Conn
			for i := range 63 {
				c := dial([]*Listener{r.a, r.b}[i%2], fmt.Sprintf("10.0.1.%d", i/16))
				c.Valid()
				if i == 0 {
					sweeps(r, 2) // It is idle for longer, and its source holds less.
				}
				if i == 16 {
					first = c
					sweeps(r, 1)
				}
			}
			first.source.held.Add(connBytes)
			r.held.Add(connBytes)
			sweeps(r, idleSweeps+1)
			return first
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rigs{rig: newRig(Config{Memory: tc.memory})}
			cfg := ListenerConfig{Prompt: tc.probes}
			if tc.memory == 0 {
				cfg.Connections = 4
			}
			r.a, r.b = r.Listen(nil, cfg), r.Listen(nil, ListenerConfig{})
			known := r.sourceOf((&socket{from: "10.0.0.9"}).RemoteAddr())
			known.proven.Store(true)
			want := tc.fill(r)
			if dial(r.a, "10.0.0.9") == nil {
				t.Fatal("it got no place")
			}
			for i, c := range r.conns {
				if isClosed(c) != (c == want) {
					t.Errorf("connection %d of %s is closed: %v", i, c.RemoteAddr(), isClosed(c))
				}
			}
		})
	}
}

// TestAskedToLeaveOnce: a connection that was asked to leave has no place any more, and is not asked
// for a second one.
func TestAskedToLeaveOnce(t *testing.T) {
	r := newRig(Config{})
	l := r.Listen(nil, ListenerConfig{Connections: 16})
	wrote := make(chan []byte, 16)
	for range 14 {
		c := dial(l, "10.0.0.1")
		c.Frames(written{c, wrote})
		c.Valid()
	}
	for range 2 {
		dial(l, "10.0.0.1").Valid()
	}
	for range idleSweeps + 1 {
		r.sweep()
	}
	for n := range 4 {
		c := dial(l, "10.0.0.1")
		if c == nil || l.Stats().Open != 16 {
			t.Fatalf("connection %d: %+v", n, l.Stats())
		}
		c.Valid()
		if b := <-wrote; !bytes.Equal(b, goAwayFrame) {
			t.Errorf("%v was written", b)
		}
	}
	r.sweep()
	r.sweep()
	for i, c := range r.conns {
		if isClosed(c) != (i < 4) {
			t.Errorf("connection %d is closed: %v", i, isClosed(c))
		}
	}
}

// TestNoRoomForWhoHasMore: a source makes no room for another one that has as many places.
func TestNoRoomForWhoHasMore(t *testing.T) {
	for idle, want := range map[int]bool{2: false, 3: true} {
		r := newRig(Config{})
		l := r.Listen(nil, ListenerConfig{Connections: 4})
		for range idle {
			dial(l, "10.0.0.1").Valid()
		}
		for range idleSweeps + 1 {
			r.sweep()
		}
		for range 4 - idle {
			dial(l, "10.0.0.2").Valid()
		}
		if got := dial(l, "10.0.0.2") != nil; got != want {
			t.Errorf("one that has %d of 4 places got another one: %v", 4-idle, got)
		}
	}
}
