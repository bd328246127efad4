package quota

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/clock"
)

// newBubble returns a rig on the clock of a test's bubble.
func newBubble() *rig {
	began := time.Now()
	return &rig{Quota: New(Config{Now: func() clock.Mono { return clock.Mono(time.Since(began)) }})}
}

// TestWithoutQuota: a connection of another listener is served as if there were no quota.
func TestWithoutQuota(t *testing.T) {
	plain := &socket{from: "10.0.0.1"}
	c := Of(plain)
	if c != nil || Of(tls.Server(plain, nil)) != nil {
		t.Fatal("a connection without a quota has one")
	}
	c.Charge(1 << 20)
	c.Valid()
	c.Hold(1 << 30)
	c.Hold(0)
	c.More(1 << 30)
	c.Took(1)
	c.Pay()
	c.CloseStream()
	if err := c.Answer(t.Context(), 1<<30); err != nil || !c.Proven() || !c.OpenStream(0) {
		t.Errorf("%v, proven %v", err, c.Proven())
	}
	counted := dial(newRig(Config{}).Listen(nil, ListenerConfig{}), "10.0.0.1")
	if Of(counted) != counted || Of(tls.Server(counted, nil)) != counted {
		t.Error("a connection with a quota has none")
	}
}

func TestProvenByACall(t *testing.T) {
	c := dial(newRig(Config{}).Listen(nil, ListenerConfig{}), "10.0.0.1")
	if c.Proven() {
		t.Error("proven without a call")
	}
	if c.Valid(); !c.Proven() {
		t.Error("not proven by a call")
	}
}

func TestStreamsOfAConnection(t *testing.T) {
	c := dial(newRig(Config{}).Listen(nil, ListenerConfig{}), "10.0.0.1")
	for range 3 {
		for i := range 4 {
			if got := c.OpenStream(2); got != (i < 2) {
				t.Errorf("stream %d of at most two: %v", i+1, got)
			}
		}
		c.CloseStream()
		c.CloseStream()
	}
}

// TestCallsPay: a valid call pays for frames to come, up to a bound.
func TestCallsPay(t *testing.T) {
	c := dial(newRig(Config{}).Listen(nil, ListenerConfig{}), "10.0.0.1")
	for before, after := range map[int64]int64{
		-100: -100 + worthCall, 0: worthCall, maxTokens - 1: maxTokens - 1 + worthCall, maxTokens: maxTokens,
	} {
		c.tokens.Store(before)
		if c.Valid(); c.tokens.Load() != after {
			t.Errorf("%d tokens after a call with %d", c.tokens.Load(), before)
		}
	}
}

// TestCallersConnect: a caller may connect as often as it makes a valid call on each connection.
func TestCallersConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newBubble().Listen(nil, ListenerConfig{})
		began := time.Now()
		for range 5 * connBurst {
			c := dial(l, "10.0.0.1", 1)
			if c.Pay(); c.tokens.Load() != firstTokens {
				t.Fatalf("%d tokens for the first call", c.tokens.Load())
			}
			c.Valid()
		}
		if took := time.Since(began); took != 0 || l.Stats().Slowed != 0 {
			t.Errorf("they waited for %v, %d times", took, l.Stats().Slowed)
		}
	})
}

// TestDebts: the source pays exactly what a connection owes, in time.
func TestDebts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newBubble().Listen(nil, ListenerConfig{})
		c := dial(l, "10.0.0.1")
		c.Pay()
		for _, debt := range []int64{1, partTokens, partTokens + 1, 300} {
			before := c.source.tokens.level
			c.tokens.Store(-debt)
			if c.Pay(); c.tokens.Load() != 0 || before-c.source.tokens.level != float64(debt) {
				t.Errorf("of a debt of %d, %d are left and %v were paid", debt, -c.tokens.Load(), before-c.source.tokens.level)
			}
		}
		c.source.tokens.level = 0
		began := time.Now()
		c.tokens.Store(-sourceRate)
		if c.Pay(); c.tokens.Load() != 0 || time.Since(began) < time.Second || time.Since(began) > 3*time.Second/2 {
			t.Errorf("the tokens of a second were paid after %v", time.Since(began))
		}
		if l.Stats().Slowed != 1 {
			t.Errorf("slowed %d times", l.Stats().Slowed)
		}
	})
}

// TestDeadlinesEndAWait: a deadline that is set during a wait for tokens ends it, whichever it is,
// and one that was set before does not.
func TestDeadlinesEndAWait(t *testing.T) {
	for name, set := range map[string]func(*Conn) error{
		"both": func(c *Conn) error { return c.SetDeadline(time.Now()) },
		"read": func(c *Conn) error { return c.SetReadDeadline(time.Now()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newBubble().Listen(nil, ListenerConfig{})
				c := dial(l, "10.0.0.1", 1)
				c.Pay()
				_ = set(c)
				c.tokens.Store(-1 << 40)
				var read atomic.Bool
				go func() {
					_, _ = c.Read(make([]byte, 1))
					read.Store(true)
				}()
				time.Sleep(10 * time.Second)
				if synctest.Wait(); read.Load() {
					t.Fatal("it read without tokens")
				}
				_ = set(c)
				time.Sleep(lastPoll)
				if synctest.Wait(); !read.Load() {
					t.Error("a new deadline did not end the wait")
				}
				_ = c.Close()
			})
		})
	}
}

// TestRoomIsSeen: an answer does not wait if room was made just before.
func TestRoomIsSeen(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		unread, n int64
		waits     bool
	}{
		{0, 10 * maxUnread, false},
		{maxUnread / 2, maxUnread / 2, false},
		{maxUnread/2 + 1, maxUnread / 2, true},
		{1, 10 * maxUnread, true},
	} {
		c := dial(newRig(Config{}).Listen(nil, ListenerConfig{}), "10.0.0.1")
		c.More(tc.unread)
		if err := c.waitForRoom(ended, tc.n); errors.Is(err, context.Canceled) != tc.waits {
			t.Errorf("%d bytes with %d unread: %v", tc.n, tc.unread, err)
		}
	}
}

// TestSmallChangesAreGathered: a connection accounts for a change of step bytes, of unread answers
// and of calls, and for no smaller one.
func TestSmallChangesAreGathered(t *testing.T) {
	c := dial(newRig(Config{}).Listen(nil, ListenerConfig{}), "10.0.0.1")
	f := c.Frames(c).(*framed)
	for name, change := range map[string]func(n int64){
		"answers": func(n int64) {
			if n > 0 {
				c.More(n)
			} else {
				c.Took(-n)
			}
		},
		"calls": func(n int64) {
			f.held += n
			c.Hold(f.change())
		},
	} {
		for i, st := range []struct{ change, held int64 }{
			{step - 1, 0}, {1, step}, {1 - step, step}, {-1, 0}, {100 * step, 100 * step}, {-100 * step, 0},
		} {
			change(st.change)
			if held := c.held.Load() - connBytes; held != st.held {
				t.Errorf("%s, change %d: %d bytes are held, not %d", name, i, held, st.held)
			}
		}
	}
}

// TestCauses: each cause has a counter, and a source pays for connections that were closed for what
// they held.
func TestCauses(t *testing.T) {
	for cause := range numCauses {
		l := newRig(Config{}).Listen(nil, ListenerConfig{})
		c := dial(l, "10.0.0.1")
		before, want := c.source.opening.level, float64(0)
		if cause == Memory || cause == Stalled {
			want = costShed
		}
		c.end(cause)
		if paid := before - c.source.opening.level; paid != want || !isClosed(c) {
			t.Errorf("%s: %v connections were paid", cause, paid)
		}
		for name, n := range l.Stats().Closed {
			if (n == 1) != (name == cause.String()) {
				t.Errorf("%s: %d were closed for %s", cause, n, name)
			}
		}
	}
}

// TestNothingStaysInTheKernel: what the client of a connection that was ended has not read is not
// kept for it.
func TestNothingStaysInTheKernel(t *testing.T) {
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer nl.Close()
	l := newRig(Config{}).Listen(nl, ListenerConfig{})
	client, err := net.Dial("tcp", nl.Addr().String())
	fatal.If(t, err)
	defer client.Close()
	nc, err := l.Accept()
	fatal.If(t, err)
	Of(nc).end(Memory)
	_ = client.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client reads: %v", err)
	}
}

// TestGoAwayBetweenFrames: a GOAWAY frame is written between two others alone.
func TestGoAwayBetweenFrames(t *testing.T) {
	c := dial(newRig(Config{}).Listen(nil, ListenerConfig{}), "10.0.0.1")
	s, f := c.Conn.(*socket), c.Frames(c).(*framed)
	b := message(typeData, 0, 1, make([]byte, 20)...)
	for cut := range len(b) + 1 {
		s.wrote.Reset()
		_, _ = f.Write(b[:cut])
		f.goAway()
		_, _ = f.Write(b[cut:])
		if asked := bytes.Contains(s.wrote.Bytes(), goAwayFrame); asked != (cut == 0 || cut == len(b)) {
			t.Errorf("after %d bytes of a frame: written %v", cut, asked)
		}
	}
}

// TestUnprovenReads: little is read at a time before the first valid call, and nothing without
// tokens; each frame costs by its length.
func TestUnprovenReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newBubble().Listen(nil, ListenerConfig{})
		c := dial(l, "10.0.0.1", make([]byte, 1<<20)...)
		c.Pay()
		f := c.Frames(c.Conn) // as TLS, which may have read what it gives
		b := make([]byte, 4096)
		if n, _ := f.Read(b); n != unprovenRead {
			t.Errorf("%d bytes were read before the first call", n)
		}
		c.Valid()
		if n, _ := f.Read(b); n != len(b) {
			t.Errorf("%d bytes were read after it", n)
		}
		c.source.tokens.level = 0
		c.tokens.Store(-sourceRate)
		began := time.Now()
		if _, _ = f.Read(b); time.Since(began) < time.Second {
			t.Errorf("it read without tokens after %v", time.Since(began))
		}
	})
	for length, cost := range map[int]int64{0: 1, 511: 1, 512: 2, 16_384: 33, 70_000: 137} {
		c := dial(newRig(Config{}).Listen(nil, ListenerConfig{}), "10.0.0.1")
		f := c.Frames(c).(*framed)
		f.in.skip = 0
		if got := f.receive(message(typeData, 0, 1, make([]byte, length)...)); got != cost {
			t.Errorf("a frame of %d bytes costs %d", length, got)
		}
	}
}

// TestMostOfAConnection: calls may hold exactly as much as a connection may.
func TestMostOfAConnection(t *testing.T) {
	c := newRig(Config{}).Listen(nil, ListenerConfig{Prompt: true}).Admit(&socket{from: "10.0.0.1"})
	c.tokens.Store(1 << 40)
	c.Valid()
	f := c.Frames(c).(*framed)
	receive := func(b []byte) {
		c.Conn.(*socket).sent = bytes.NewReader(b)
		_, _ = f.Read(make([]byte, len(b)))
	}
	receive(make([]byte, preface))
	receive(message(typeHeaders, 4, 1))
	receive(message(typeData, 0, 1, make([]byte, maxHeld-callBytes-messageCost)...))
	if isClosed(c) || f.held != maxHeld {
		t.Fatalf("closed with %d bytes", f.held)
	}
	if receive(message(typeData, 0, 1)); !isClosed(c) {
		t.Errorf("open with %d bytes", f.held)
	}
}

// TestReadersAreSeen: each part of an answer that is written shows that the client reads, and
// nothing else does. A call that ends takes no memory from the next one.
func TestReadersAreSeen(t *testing.T) {
	c := dial(newRig(Config{}).Listen(nil, ListenerConfig{}), "10.0.0.1")
	f := c.Frames(c).(*framed)
	f.in.skip = 0
	in, out := message(typeHeaders, 4, 1), message(typeHeaders, 5, 1)
	if allocs := testing.AllocsPerRun(100, func() {
		f.receive(in)
		f.send(out)
	}); allocs != 0 {
		t.Errorf("%v allocations for a call", allocs)
	}
	if c.taken.Load() != 0 {
		t.Errorf("%d parts of answers without one", c.taken.Load())
	}
	for range 3 {
		f.send(message(typeData, 0, 1, 1))
	}
	if f.send(message(typeData, flagEndStream, 1)); c.taken.Load() != 4 {
		t.Errorf("%d parts of four", c.taken.Load())
	}
}
