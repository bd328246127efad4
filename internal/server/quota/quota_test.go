package quota

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/unixsocket"
)

// socket is a connection from an address. It reads what was sent to it, and then ends.
type socket struct {
	net.Conn
	from   string
	sent   io.Reader
	wrote  bytes.Buffer
	closed atomic.Bool
}

func (s *socket) RemoteAddr() net.Addr {
	if uid, ok := strings.CutPrefix(s.from, "uid:"); ok {
		n, _ := strconv.Atoi(uid)
		return unixsocket.Peer{UID: n, PID: 7, Known: true}
	}
	a, err := net.ResolveTCPAddr("tcp", s.from+":1")
	if err != nil {
		panic(err)
	}
	return a
}
func (s *socket) Read(b []byte) (int, error) {
	if s.closed.Load() {
		return 0, net.ErrClosed
	}
	return s.sent.Read(b)
}
func (s *socket) Write(b []byte) (int, error)     { return s.wrote.Write(b) }
func (s *socket) Close() error                    { s.closed.Store(true); return nil }
func (s *socket) SetReadDeadline(time.Time) error { return nil }
func (s *socket) SetDeadline(time.Time) error     { return nil }

// rig is a Quota on a clock that is moved by hand, or by the test's bubble.
type rig struct {
	*Quota
	now clock.Mono
}

func newRig(cfg Config) *rig {
	r := &rig{}
	cfg.Now = func() clock.Mono { return r.now }
	r.Quota = New(cfg)
	return r
}

// dial returns a connection to l, or nil if it was refused.
func dial(l *Listener, from string, sent ...byte) *Conn {
	return l.Admit(&socket{from: from, sent: bytes.NewReader(sent)})
}

func isClosed(c *Conn) bool { return c.Conn.(*socket).closed.Load() }

func TestPlaces(t *testing.T) {
	r := newRig(Config{PerSource: 5})
	l := r.Listen(nil, ListenerConfig{Connections: 16, Grace: 2 * time.Second})

	// One source gets its part, and no more.
	var first []*Conn
	for range 5 {
		first = append(first, dial(l, "10.0.0.1"))
	}
	first[1].Valid()
	if c := dial(l, "10.0.0.1"); c != nil {
		t.Error("a source had more connections than one may have")
	}
	// After the grace its oldest connection without a valid call makes room.
	r.now += clock.Mono(2 * time.Second)
	if c := dial(l, "10.0.0.1"); c == nil || !isClosed(first[0]) || isClosed(first[1]) || isClosed(first[2]) {
		t.Error("the oldest connection without a valid call did not make room")
	}
	// Others fill the rest, except for the part that is kept.
	for _, from := range []string{"10.0.0.2", "10.0.0.3"} {
		for range 4 {
			if dial(l, from) == nil {
				t.Fatal("refused below the limit")
			}
		}
	}
	if r.now += 1; dial(l, "10.0.0.4") == nil {
		t.Error("no connection past its grace made room")
	}
	for range 3 {
		dial(l, "10.0.0.4")
	}
	if dial(l, "10.0.0.5") != nil {
		t.Error("an unknown source got a place that is kept")
	}
	first[1].Close()
	if dial(l, "10.0.0.1") == nil {
		t.Error("a source with valid calls got no place")
	}
	if st := l.Stats(); st.Refused == 0 || st.Closed["room"] == 0 || st.Open > 16 {
		t.Errorf("%+v", st)
	}
}

// TestUsersAreSources: at a Unix socket each user has places of their own, as each address has at a
// port, and whoever cannot be told is one more user.
func TestUsersAreSources(t *testing.T) {
	l := newRig(Config{PerSource: 2}).Listen(nil, ListenerConfig{Grace: time.Hour})
	for from, want := range map[string]int{"uid:1000": 2, "uid:1001": 2, "127.0.0.1": 2} {
		got := 0
		for range 5 {
			if l.Admit(&socket{from: from}) != nil {
				got++
			}
		}
		if got != want {
			t.Errorf("%s has %d places, not %d", from, got, want)
		}
	}
}

// TestCallers: who holds most comes first, and the list is as long as it is asked for.
func TestCallers(t *testing.T) {
	r := newRig(Config{})
	grpc, http := r.Listen(nil, ListenerConfig{}), r.Listen(nil, ListenerConfig{})
	conns := map[string]*Conn{}
	for _, from := range []string{"10.0.0.2", "10.0.0.1", "[2001:db8::1]", "uid:1000", "10.0.0.1"} {
		conns[from] = dial(grpc, from)
	}
	dial(http, "[2001:db8::2]").Rest(1) // Its source is 2001:db8::/64, as that of 2001:db8::1.
	conns["[2001:db8::1]"].OpenStream(9)
	conns["10.0.0.2"].Hold(1 << 20)
	gone := dial(http, "10.0.0.9")
	gone.Hold(1 << 30)
	_ = gone.Close()
	left := dial(http, "uid:1000") // Its source has another connection.
	left.OpenStream(9)
	_ = left.Close()
	want := []Caller{
		{"10.0.0.2", 1, 0, 0, connBytes + 1<<20},
		{"2001:db8::/64", 2, 1, 1, 2*connBytes + streamBytes},
		{"10.0.0.1", 2, 0, 0, 2 * connBytes},
		{"uid:1000", 1, 0, 0, connBytes},
	}
	for n := range 6 {
		if got := r.Callers(n); !slices.Equal(got, want[:min(n, len(want))]) {
			t.Errorf("%d: %+v", n, got)
		}
	}
}

// TestClosedConnectionsGiveAllBack: whatever happened on connections, nothing is counted
// when all are closed.
func TestClosedConnectionsGiveAllBack(t *testing.T) {
	r := newRig(Config{})
	l := r.Listen(nil, ListenerConfig{})
	var conns []*Conn
	for i := range 300 {
		c := dial(l, "10.0.0.1")
		c.Hold(int64(i) * 1000)
		c.Hold(-int64(i) * 300)
		conns = append(conns, c)
	}
	for _, c := range conns {
		c.Close()
		c.Hold(1 << 20)
		c.Close()
	}
	if held, _ := r.Held(); held != 0 || l.Stats().Open != 0 || len(r.conns)-r.gone != 0 {
		t.Errorf("%d bytes, %d open, %d of %d gone", held, l.Stats().Open, r.gone, len(r.conns))
	}
	for range sourceSweeps + 2 {
		r.sweep()
	}
	if len(r.sources) != 0 {
		t.Errorf("%d sources are remembered", len(r.sources))
	}
}

// TestLargestAreShed: a source above its share loses the connections with the most unfinished
// calls and unread answers, and those of others stay. Above the limit of all, the source that
// holds most does.
func TestLargestAreShed(t *testing.T) {
	const mib = 1 << 20
	r := newRig(Config{Memory: 16 * mib})
	l := r.Listen(nil, ListenerConfig{})
	honest := dial(l, "10.0.0.1")
	honest.Valid()
	honest.Hold(mib / 2)
	small := dial(l, "10.0.0.3")
	small.Valid()
	small.Hold(unfinished)
	var flood []*Conn
	for i := range 10 {
		c := dial(l, "10.0.0.3")
		c.Valid()
		c.More(int64(i+2) * mib / 4)
		flood = append(flood, c)
	}
	if n := flood[0].source.held.Load(); n > 4*mib || n < 2*mib {
		t.Errorf("a source holds %d of %d bytes", n, 4*mib)
	}
	if isClosed(honest) || isClosed(small) || isClosed(flood[0]) || !isClosed(flood[9]) {
		t.Error("not the largest were closed")
	}
	var many []*Conn
	for i := range 10 {
		c := dial(l, fmt.Sprintf("10.0.1.%d", i))
		c.Valid()
		many = append(many, c)
	}
	for _, c := range many {
		c.More(7 * mib / 4)
	}
	if held, _ := r.Held(); held > 16*mib || held < 12*mib {
		t.Errorf("%d bytes are held", held)
	}
	if isClosed(honest) || isClosed(small) {
		t.Error("a connection of a source that holds little was closed")
	}
}

// TestIdleMakeRoom: idle connections of a source make room for others of it at its share of
// the memory, and for those of other sources at the limit; those that work do not.
func TestIdleMakeRoom(t *testing.T) {
	r := newRig(Config{Memory: 64 * connBytes})
	grpc, http := r.Listen(nil, ListenerConfig{}), r.Listen(nil, ListenerConfig{})
	called := func(l *Listener, from string) *Conn {
		c := dial(l, from)
		if c != nil {
			c.Valid()
		}
		return c
	}
	busy := called(grpc, "10.0.0.1")
	var idle []*Conn
	for i := range 15 {
		idle = append(idle, called([]*Listener{grpc, http}[i%2], "10.0.0.1"))
	}
	if called(http, "10.0.0.1") != nil {
		t.Error("a source got more than its share on two ports together")
	}
	for range idleSweeps {
		r.sweep()
		busy.Valid()
	}
	r.sweep()
	if called(http, "10.0.0.1") == nil || isClosed(busy) || !isClosed(idle[0]) {
		t.Error("the idlest connection of a source did not make room")
	}
	for i := range 3 {
		for range 16 {
			if called(grpc, fmt.Sprintf("10.0.0.%d", i+2)) == nil {
				t.Fatal("refused within the share")
			}
		}
	}
	for range idleSweeps + 1 {
		busy.Valid()
		r.sweep()
	}
	for i := range 8 {
		c := called(grpc, "10.0.0.9")
		if c == nil {
			t.Fatalf("connection %d of a source that holds little got no place", i)
		}
		r.sweep() // It stays within idleSweeps.
	}
	if held, _ := r.Held(); held > 64*connBytes || isClosed(busy) {
		t.Errorf("%d bytes are held, closed %v", held, isClosed(busy))
	}
}

// TestStreamsAreNoIdleConnections: a connection with an open stream makes room only after a
// minute without a call.
func TestStreamsAreNoIdleConnections(t *testing.T) {
	r := newRig(Config{Memory: 64 * connBytes})
	l := r.Listen(nil, ListenerConfig{})
	for range 16 {
		c := dial(l, "10.0.0.1")
		c.Valid()
		c.OpenStream(16)
	}
	for range streamSweeps - 1 {
		r.sweep()
	}
	if dial(l, "10.0.0.1") != nil {
		t.Error("a connection with a stream made room")
	}
	r.sweep()
	r.sweep()
	if dial(l, "10.0.0.1") == nil {
		t.Error("a connection with a stream keeps its place forever")
	}
}

// TestProbesHavePlaces: at a listener for probes, a source with few connections gets a place
// from the one with most, which all work.
func TestProbesHavePlaces(t *testing.T) {
	r := newRig(Config{})
	l := r.Listen(nil, ListenerConfig{Connections: 64, PerSource: 16, Prompt: true})
	var all []*Conn
	for i := range 64 {
		c := dial(l, fmt.Sprintf("10.0.0.%d", i%4))
		if c == nil {
			continue // An eighth is kept for sources with valid calls.
		}
		c.Valid()
		all = append(all, c)
	}
	for _, from := range []string{"127.0.0.1", "10.0.0.9"} {
		for range 5 {
			for _, c := range all {
				c.Valid()
			}
			r.sweep()
			c := dial(l, from)
			if c == nil {
				t.Fatalf("a probe from %s got no place", from)
			}
			for i := range 4 { // One of them has a place less than before.
				if more := dial(l, fmt.Sprintf("10.0.0.%d", i)); more != nil {
					more.Valid()
				}
			}
			if isClosed(c) {
				t.Errorf("a probe from %s was closed for a source with many connections", from)
			}
			c.Valid()
			_ = c.Close()
		}
	}
}

// TestClientsAreAskedToLeave: a client of HTTP/2 whose idle connection makes room gets a
// GOAWAY frame first.
func TestClientsAreAskedToLeave(t *testing.T) {
	r := newRig(Config{Memory: 64 * connBytes})
	l := r.Listen(nil, ListenerConfig{})
	wrote := make(chan []byte, 1)
	for range 16 {
		c := dial(l, "10.0.0.1")
		c.Frames(written{c, wrote})
		c.Valid()
	}
	for range idleSweeps + 1 {
		r.sweep()
	}
	first := r.conns[0]
	if dial(l, "10.0.0.1") == nil {
		t.Fatal("no connection made room")
	}
	if b := <-wrote; !bytes.Equal(b, goAwayFrame) || isClosed(first) || l.Stats().Open != 16 {
		t.Errorf("%v was written, closed %v, %d have a place", b, isClosed(first), l.Stats().Open)
	}
	first.Hold(2 * unfinished)
	if r.sweep(); isClosed(first) {
		t.Error("it has no time to leave")
	}
	if r.sweep(); !isClosed(first) {
		t.Error("it stays open")
	}
	if held, _ := r.Held(); held != 16*connBytes || l.Stats().Closed["room"] != 1 {
		t.Errorf("%d bytes are held, %+v", held, l.Stats())
	}
}

// written passes on what is written.
type written struct {
	net.Conn
	to chan []byte
}

func (w written) Write(b []byte) (int, error) {
	w.to <- bytes.Clone(b)
	return len(b), nil
}

// TestAnswersWaitForRoom: an answer is made when the client has read enough of those before,
// and a large one alone.
func TestAnswersWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Config{})
		c := dial(r.Listen(nil, ListenerConfig{}), "10.0.0.1")
		var made atomic.Int64
		for range 5 {
			go func() {
				if c.Answer(t.Context(), maxUnread/2) == nil {
					made.Add(1)
				}
			}()
		}
		for want := int64(2); want <= 5; want++ {
			synctest.Wait()
			if n := made.Load(); n != want || c.held.Load() > connBytes+maxUnread {
				t.Fatalf("%d answers hold %d bytes", n, c.held.Load())
			}
			c.Took(maxUnread / 2)
		}
		c.Took(maxUnread / 2)
		if err := c.Answer(t.Context(), 10*maxUnread); err != nil || c.held.Load() != connBytes+10*maxUnread {
			t.Errorf("one large answer: %v, %d held", err, c.held.Load())
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Answer(ended, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("a call that was given up: %v", err)
		}
		go func() { _ = c.Close() }()
		if err := c.Answer(t.Context(), 1); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a closed connection: %v", err)
		}
		if held, _ := r.Held(); held != 0 {
			t.Errorf("%d bytes are held", held)
		}
	})
}

func TestSweep(t *testing.T) {
	r := newRig(Config{})
	l := r.Listen(nil, ListenerConfig{CloseSilent: true})
	silent, used, stalled := dial(l, "10.0.0.1"), dial(l, "10.0.0.1"), dial(l, "10.0.0.1")
	used.Valid()
	used.Hold(2 * unfinished)
	stalled.Valid()
	stalled.Hold(unfinished)
	reading := dial(l, "10.0.0.1")
	reading.Valid()
	reading.More(100 * unfinished)
	for i := range silentSweeps + 1 {
		used.Valid()
		if i%stallSweeps == 0 {
			reading.taken.Add(1) // a part of an answer
		}
		if isClosed(silent) || isClosed(stalled) != (i > stallSweeps+1) { // The first sweep sees its call.
			t.Fatalf("closed after %d sweeps", i)
		}
		r.sweep()
	}
	if !isClosed(silent) || !isClosed(stalled) || isClosed(used) || isClosed(reading) {
		t.Errorf("silent %v, stalled %v, used %v, reading %v", isClosed(silent), isClosed(stalled), isClosed(used),
			isClosed(reading))
	}
}

// TestSourcesPay: frames that lead to nothing are read at the rate of their source,
// whatever the number of connections; valid calls are read without a delay.
func TestSourcesPay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBubble()
		l := r.Listen(nil, ListenerConfig{})
		var read, useful atomic.Int64
		for i := range 9 {
			c := dial(l, "10.0.0.1", make([]byte, 1_000_000)...)
			go func() {
				b := make([]byte, 100)
				for {
					if _, err := c.Read(b); err != nil {
						return
					}
					c.Charge(int64(len(b)) * CostFrame)
					if i > 0 {
						read.Add(int64(len(b)))
						continue
					}
					useful.Add(int64(len(b))) // 3 frames a call
					for range len(b) / 3 {
						c.Valid()
					}
				}
			}()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := useful.Load(); n != 1_000_000 {
			t.Errorf("of the frames of valid calls %d were read", n)
		}
		if n := read.Load(); n > sourceBurst+10*sourceRate+8*200 || n < 9*sourceRate {
			t.Errorf("of the other frames %d were read in 10 s", n)
		}
		r.mu.Lock()
		conns := r.conns
		r.mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
	})
}

// TestUnknownSources: connections of sources without a valid call are read at one rate,
// whatever the number of sources. Callers of as many sources are not held up, and one with
// valid calls is not while others are.
func TestUnknownSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sources, each, seconds = 1000, 4, 3
		r := newBubble()
		l := r.Listen(nil, ListenerConfig{})
		var read atomic.Int64
		open := func(from string, valid bool) {
			c := dial(l, from, 1)
			go func() {
				if _, err := c.Read(make([]byte, 1)); err == nil {
					read.Add(1)
					if valid {
						c.Valid()
					}
				}
			}()
		}
		for i := range sources {
			open(fmt.Sprintf("10.0.%d.%d", i/250, i%250), true)
		}
		time.Sleep(seconds * time.Second)
		synctest.Wait()
		if n := read.Swap(0); n != sources {
			t.Errorf("%d of %d callers were read in %d s", n, sources, seconds)
		}
		for i := range sources * each {
			open(fmt.Sprintf("10.1.%d.%d", i%sources/250, i%sources%250), false)
		}
		time.Sleep(seconds * time.Second)
		synctest.Wait()
		if n := read.Swap(0); n > unknownBurst+seconds*unknownRate || n < seconds*unknownRate {
			t.Errorf("%d connections of unknown sources were read in %d s", n, seconds)
		}
		open("10.0.0.1", true)
		synctest.Wait()
		if n := read.Load(); n != 1 {
			t.Error("a source with valid calls waits for unknown ones")
		}
		for _, c := range slices.Clone(r.conns) {
			c.Close()
		}
	})
}

// TestUnknownSourcesMakeRoom: at a full listener, unknown sources replace connections no
// more often than they may connect.
func TestUnknownSourcesMakeRoom(t *testing.T) {
	r := newRig(Config{})
	l := r.Listen(nil, ListenerConfig{Connections: 1000, Grace: 2 * time.Second})
	admitted := func(net int) (n int) {
		for i := range 1000 {
			if dial(l, fmt.Sprintf("10.%d.%d.%d", net, i/250, i%250)) != nil {
				n++
			}
		}
		return n
	}
	if n := admitted(1); n != 1000-1000/reserved {
		t.Fatalf("%d connections had a place", n)
	}
	r.now += clock.Mono(2 * time.Second)
	if n := admitted(2); n != unknownBurst {
		t.Errorf("%d connections were replaced at once", n)
	}
	r.now += clock.Mono(time.Second / 10)
	if n := admitted(3); n != unknownRate/10 {
		t.Errorf("%d connections were replaced in a tenth of a second", n)
	}
}

// message is a frame as it is sent.
func message(kind, flags byte, stream uint32, payload ...byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

// TestFrames: calls hold memory from their first frame to their last, however the bytes
// are cut.
func TestFrames(t *testing.T) {
	type exchange struct {
		sent  bool // by the server
		frame []byte
		held  int64
	}
	fields, body := make([]byte, 100), make([]byte, 50)
	const open = callBytes + 100*fieldFactor
	steps := []exchange{
		{false, message(4, 0, 0), 0},
		{false, message(typeHeaders, 4, 1, fields...), open},
		{false, message(typeData, 0, 1, body...), open + 50 + messageCost},
		{false, message(typeHeaders, 4, 3, fields...), 2*open + 50 + messageCost},
		{false, message(typeData, 1, 3, body...), 2*open + 100 + 2*messageCost},
		{true, message(typeHeaders, 4, 3, body...), 2*open + 100 + 2*messageCost},
		{true, message(typeData, 0, 3, body...), 2*open + 50 + messageCost},
		{true, message(typeData, 0, 3, body...), 2*open + 50 + messageCost},
		{true, message(6, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8), 2*open + 50 + messageCost},
		{true, message(typeHeaders, 5, 3, body...), open + 50 + messageCost},
		{true, message(typeReset, 0, 3, 0, 0, 0, 0), open + 50 + messageCost},
		{false, message(typeData, 0, 1, body...), open + 100 + 2*messageCost},
		{false, message(typeData, 0, 1), open + 100 + 3*messageCost},
		{true, message(typeWindowUpdate, 0, 1, 0, 0, 0, 80), open + 20 + 3*messageCost},
		{true, message(typeWindowUpdate, 0, 0, 0, 0, 0, 80), open + 20 + 3*messageCost},
		{true, message(typeData, 0, 1, body...), open + 20 + 2*messageCost},
		{false, message(typeReset, 0, 1, 0, 0, 0, 8), 0},
		{false, message(typeData, 0, 1, body...), 0},
		{false, message(typeHeaders, 4, 5, fields...), open},
		{false, message(typeData, 1, 5, body...), open + 50 + messageCost},
		{false, message(typeWindowUpdate, 0, 0), open + 50 + messageCost},
		{true, message(typeData, 0, 1, 0, 0, 0, 10), open + 50 + messageCost},
		{false, message(typeData, 1, 5, body...), open + 100 + 2*messageCost},
		{true, message(typeData, 0, 5, 0, 0, 0, 10), open + 100 + messageCost},
		{true, message(typeReset, 0, 5, 0, 0, 0, 0), 0},
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		r := newRig(Config{})
		c := r.Listen(nil, ListenerConfig{Prompt: true}).Admit(&socket{from: "10.0.0.1"})
		c.tokens.Store(1000)
		s := c.Conn.(*socket)
		f := c.Frames(c).(*framed)
		transfer := func(sent bool, b []byte) {
			for len(b) > 0 {
				n := 1 + random.IntN(len(b))
				part := b[:n]
				if b = b[n:]; sent {
					_, _ = f.Write(part)
					continue
				}
				s.sent = bytes.NewReader(part)
				_, _ = f.Read(make([]byte, len(part)))
			}
		}
		transfer(false, make([]byte, preface))
		frames := int64(0)
		for i, st := range steps {
			transfer(st.sent, st.frame)
			if !st.sent {
				frames++
			}
			if f.held != st.held || c.held.Load() != connBytes+f.reported || f.held-f.reported >= step || f.reported-f.held >= step || c.tokens.Load() != 1000-frames {
				t.Fatalf("step %d: %d held, %d in all, %d tokens; want %d", i, f.held, c.held.Load(), c.tokens.Load(), st.held)
			}
		}
	}
}

// FuzzFrames: however bytes are cut, the frames in them are those that are found in one piece, and what
// the calls hold together is what is counted.
func FuzzFrames(f *testing.F) {
	in := slices.Concat(message(typeHeaders, 4, 1, 1, 2, 3), message(typeData, 1, 1, 1, 2), message(typeHeaders, 5, 3),
		message(typeWindowUpdate, 0, 0, 0, 0, 1, 0), message(typeReset, 0, 3, 0, 0, 0, 8))
	out := slices.Concat(message(typeHeaders, 4, 1, 1), message(typeWindowUpdate, 0, 1, 0, 0, 0, 1), message(typeData, 0, 1, 9),
		message(typeWindowUpdate, 0, 1, 5), message(typeHeaders, 5, 1))
	f.Add(in, out, []byte{1})
	f.Add(in, out, []byte{200, 3, 7})
	f.Fuzz(func(t *testing.T, in, out, cuts []byte) {
		type stretch struct {
			sent bool // by the server
			part []byte
		}
		var parts []stretch
		for i, left := 0, [2][]byte{in, out}; len(left[0])+len(left[1]) > 0; i++ {
			of, n := &left[i%2], 256
			if len(cuts) > 0 {
				n = 1 + int(cuts[i%len(cuts)])
			}
			n = min(n, len(*of))
			parts = append(parts, stretch{i%2 == 1, (*of)[:n]})
			*of = (*of)[n:]
		}
		c := newRig(Config{}).Listen(nil, ListenerConfig{}).Admit(&socket{from: "10.0.0.1"})
		framed := c.Frames(c).(*framed)
		framed.in.skip = 0
		var r reader
		var got []frame
		for _, p := range parts {
			if p.sent {
				framed.send(p.part)
			} else {
				framed.receive(p.part)
				for h, rest, ok := r.next(p.part); ok; h, rest, ok = r.next(rest) {
					got = append(got, h)
				}
			}
			sum := int64(0)
			for stream, n := range framed.calls {
				if sum += n.held(); n.stream != stream || n.bytes < 0 || n.messages < 0 {
					t.Fatalf("stream %d: %+v", stream, *n)
				}
			}
			if framed.held != sum {
				t.Fatalf("%d are held, and counted as %d", sum, framed.held)
			}
		}
		if want := framesOf(in); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// framesOf returns the frames whose headers b has, each with the increment if it has one.
func framesOf(b []byte) (list []frame) {
	for len(b) >= 9 {
		length := binary.BigEndian.Uint32(append([]byte{0}, b[:3]...))
		h := frame{length: int64(length), kind: b[3], flags: b[4], stream: binary.BigEndian.Uint32(b[5:9]) << 1 >> 1}
		if h.kind == typeWindowUpdate && length == 4 {
			if len(b) < 13 {
				return list
			}
			h.increment = binary.BigEndian.Uint32(b[9:13]) << 1 >> 1
		}
		list, b = append(list, h), b[min(len(b), 9+int(length)):]
	}
	return list
}

// TestTooMuchOnOneConnection: a connection holds no more than a connection may.
func TestTooMuchOnOneConnection(t *testing.T) {
	r := newRig(Config{})
	c := r.Listen(nil, ListenerConfig{Prompt: true}).Admit(&socket{from: "10.0.0.1"})
	c.tokens.Store(1 << 30)
	sent := make([]byte, preface)
	for stream := range uint32(100) {
		sent = append(sent, message(typeHeaders, 4, 2*stream+1)...)
		for range 4 {
			sent = append(sent, message(typeData, 0, 2*stream+1, make([]byte, 16_000)...)...)
		}
	}
	c.Conn.(*socket).sent = bytes.NewReader(sent)
	n, _ := io.Copy(io.Discard, c.Frames(c))
	if n > maxHeld+64<<10 || !isClosed(c) {
		t.Errorf("%d bytes of unfinished calls were read", n)
	}
}

// BenchmarkFrames is what counting costs a unary call, and a request of a stream.
func BenchmarkFrames(b *testing.B) {
	for name, call := range map[string]func(stream uint32) (in, out []byte){
		"unary": func(stream uint32) (in, out []byte) {
			return append(message(typeHeaders, 4, stream, make([]byte, 40)...), message(typeData, 1, stream, make([]byte, 7)...)...),
				slices.Concat(message(typeHeaders, 4, stream, make([]byte, 5)...), message(typeData, 0, stream, make([]byte, 50)...), message(typeHeaders, 5, stream, make([]byte, 5)...))
		},
		"16 requests of a stream": func(stream uint32) (in, out []byte) {
			return bytes.Repeat(message(typeData, 0, 1, make([]byte, 12)...), 16), bytes.Repeat(message(typeData, 0, 1, make([]byte, 60)...), 16)
		},
		"stream": func(stream uint32) (in, out []byte) {
			return message(typeData, 0, 1, make([]byte, 12)...), message(typeData, 0, 1, make([]byte, 60)...)
		},
	} {
		b.Run(name, func(b *testing.B) {
			r := newRig(Config{})
			c := r.Listen(nil, ListenerConfig{Prompt: true}).Admit(&socket{from: "10.0.0.1"})
			f := c.Frames(c).(*framed)
			f.in.skip = 0
			f.received(frame{kind: typeHeaders, stream: 1})
			in, out := call(3)
			b.ReportAllocs()
			for b.Loop() {
				f.mu.Lock()
				frames := f.receive(in)
				change := f.change()
				f.mu.Unlock()
				c.Charge(frames)
				c.Hold(change)
				c.Valid()
				f.mu.Lock()
				f.send(out)
				change = f.change()
				f.mu.Unlock()
				c.Hold(change)
			}
		})
	}
}

// TestPayNow: a connection whose source has no tokens is told when to ask again, less and less
// often, and counts as slowed at the first time.
func TestPayNow(t *testing.T) {
	r := newRig(Config{})
	l := r.Listen(nil, ListenerConfig{})
	c := dial(l, "10.0.0.1")
	if pause := c.PayNow(0); pause != 0 { // it pays for the connection
		t.Fatalf("a new connection has to wait %v", pause)
	}
	c.Charge(firstTokens + sourceBurst + 100)
	for paused, most := range map[time.Duration]time.Duration{0: 10e6, 10e6: 20e6, 77e6: 154e6, 160e6: 320e6, 320e6: 320e6} {
		seen := map[time.Duration]bool{}
		for range 100 {
			pause := c.PayNow(paused)
			if pause <= most/2 || pause > most {
				t.Fatalf("a pause of %v after one of %v, want more than half of %v, and at most that", pause, paused, most)
			}
			seen[pause] = true
		}
		if len(seen) < 50 {
			t.Errorf("pauses after one of %v are of %d lengths: connections that came together ask together", paused, len(seen))
		}
	}
	r.now += clock.Mono(time.Second)
	if pause := c.PayNow(320e6); pause != 0 {
		t.Errorf("with tokens: %v", pause)
	}
	if n := l.Stats().Slowed; n != 100 {
		t.Errorf("slowed %d times, and 100 pauses were the first", n)
	}
	if pause := (*Conn)(nil).PayNow(0); pause != 0 {
		t.Errorf("without a quota: %v", pause)
	}
}
