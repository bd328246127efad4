package respserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/server/respserver"
	"github.com/flakelease/allocator/internal/unixsocket"
)

// bothShells runs a test with connections of a loop, where there is one, and with a
// goroutine for each connection.
func bothShells(t *testing.T, test func(t *testing.T)) {
	t.Run("loop", test)
	t.Run("goroutines", func(t *testing.T) {
		goroutines = true
		defer func() { goroutines = false }()
		test(t)
	})
}

// TestGoroutines runs with a goroutine for each connection what other tests run with a loop.
func TestGoroutines(t *testing.T) {
	goroutines = true
	defer func() { goroutines = false }()
	for name, test := range map[string]func(*testing.T){
		"replies": TestReplies, "IDs": TestIDs, "pipeline": TestPipeline, "forms": TestPipelineOfForms,
		"refused": TestPipelineRefused, "wrong tokens": TestWrongTokensEndTheConnection, "HTTP": TestHTTPRequestsAreNotObeyed,
		"errors": TestProtocolErrors, "auth": TestAuth,
		"revoked": TestRevokedToken, "unauthenticated": TestUnauthenticatedClientsHoldLittle, "rate": TestRate,
		"drain": TestDrain, "cut off": TestCutOff, "idle": TestIdle, "costs": TestEveryCommandCosts, "empty": TestEmptyRequestsCost,
	} {
		t.Run(name, func(t *testing.T) {
			if name == "costs" || name == "idle" {
				tier.Check(t, "it waits for seconds")
			}
			test(t)
		})
	}
}

// TestSeveralLoops runs with four loops what elsewhere has one on a small machine.
func TestSeveralLoops(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	for name, test := range map[string]func(*testing.T){
		"agree": TestShellsAgree, "room": TestRoomIsMade, "shutdown": TestShutdownWhileConnecting,
	} {
		t.Run(name, test)
	}
}

// listenUnix opens a socket whose path is short enough on any machine.
func listenUnix(t *testing.T) net.Listener {
	t.Helper()
	dir, err := os.MkdirTemp("", "resp")
	fatal.If(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := unixsocket.Listen(t.Context(), unixsocket.Config{
		Addr: unixsocket.Prefix + filepath.Join(dir, "s"), Mode: 0o600,
	})
	fatal.If(t, err)
	if goroutines {
		return hidden{l}
	}
	return l
}

// session sends a stream cut into parts, and returns the replies with IDs as <id>.
func session(t *testing.T, in []byte, cuts []int, guard *access.Guard) (replies []string, issued int64) {
	t.Helper()
	w := newGuardedFixture(t, guard)
	c := w.serve(listenUnix(t)).dial()
	for w.listener.Connections() == 0 { // Of several loops another could accept the next one first.
		runtime.Gosched()
	}
	other := w.dial() // It is served between the parts, in the same buffers if a loop serves both.
	want := strings.Repeat("o", 200)
	if guard != nil {
		want = "-NOAUTH UNAUTHENTICATED no token was sent: send AUTH TOKEN, or set it as the password of your client"
	}
	sent := make(chan struct{})
	defer func() { <-sent }() // The other connection is asked until then.
	go func() {
		defer close(sent)
		for _, n := range cuts {
			n = min(n, len(in))
			if _, err := c.Write(in[:n]); err != nil {
				return // the server has closed the connection
			}
			in = in[n:]
			_, _ = io.WriteString(other, echo('o', 200))
			if got, err := other.read(); got != want {
				t.Errorf("another connection got %.300q, %v", got, err)
			}
		}
		_, _ = c.Write(in)
		_ = c.Conn.(*net.UnixConn).CloseWrite()
	}()
	var last flake.ID
	for {
		reply, err := c.read()
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the answer ends in %v", err)
			}
			return replies, w.node.Stats().Issued
		}
		words := strings.Split(strings.ReplaceAll(reply, w.addr, "<path>"), " ")
		for i, word := range words {
			text := strings.Trim(word, "*[]")
			if id, err := flake.Parse(text); err == nil {
				if id <= last {
					t.Errorf("%v after %v", id, last)
				}
				last = id
			}
			if n := len(text); n == 13 || n == 17 || n == 26 || n == 36 {
				words[i] = strings.Replace(word, text, "<id>", 1)
			}
		}
		replies = append(replies, strings.Join(words, " "))
	}
}

// agree sends a stream through both shells, cut in two ways, and returns how many replies it has.
func agree(t *testing.T, in []byte, cuts, otherCuts []int, guard func() *access.Guard) int {
	t.Helper()
	loop, issued := session(t, in, cuts, guard())
	goroutines = true
	defer func() { goroutines = false }()
	routine, alsoIssued := session(t, in, otherCuts, guard())
	for i := range max(len(loop), len(routine)) {
		if i >= len(loop) || i >= len(routine) || loop[i] != routine[i] {
			t.Errorf("reply %d of %d and %d differs:\n%.200q\n%.200q", i, len(loop), len(routine),
				append(loop, "", "")[min(i, len(loop))], append(routine, "", "")[min(i, len(routine))])
			break
		}
	}
	if issued != alsoIssued {
		t.Errorf("%d and %d IDs were issued", issued, alsoIssued)
	}
	return len(loop)
}

// FuzzShells: whatever is sent, a loop and a goroutine give the same answers.
func FuzzShells(f *testing.F) {
	f.Add([]byte("*1\r\n$7\r\nID.NEXT\r\nPING\r\nID.NEXT COUNT 3 FORMAT uuid\r\nID.NEXT x"), 7)
	f.Add([]byte("ID.NEXT COUNT 1000\r\nHELLO 3\r\nECHO \"ab\"\r\nQUIT\r\nPING\r\n"), 30)
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		agree(t, in, []int{max(cut, 1)}, nil, func() *access.Guard { return nil })
	})
}

// TestShellsAgree: whatever is sent, and however it is cut, a loop and a goroutine give the
// same answers.
func TestShellsAgree(t *testing.T) {
	list, tokens := servertest.Tokens(t, "issue")
	issue := "AUTH " + tokens["issue"] + "\r\n"
	requests := []string{
		"*1\r\n$7\r\nID.NEXT\r\n", "*1\r\n$7\r\nID.NEXT\r\n", "ID.NEXT\r\n", "HGET id uuid\r\n", "ID.NEXT FORMAT int\r\n",
		"ID.NEXT COUNT 3\r\n", "ID.NEXT COUNT 2000 FORMAT uuid\r\n", "ID.NEXT COUNT 0\r\n", "ID.NEXT FORMAT ulid\r\n",
		"PING\r\n", "ECHO \"a\x00\r\n", array([]string{"ECHO", "a \x00 'b'"}), "*2\r\n$4\r\nECHO\r\n$4096\r\n" + strings.Repeat("e", 4096) + "\r\n",
		"\r\n", "*0\r\n", "COMMAND DOCS\r\n", "CLIENT INFO\r\n", "HELLO 3\r\n", "RESET\r\n", "ID.DECODE 5 KIND int\r\n",
		"NOTHING x y\r\n", "AUTH wrong\r\n", issue, issue, issue,
	}
	ends := []string{"", "", "QUIT\r\nPING\r\n", "*1\r\n:5\r\n", "POST / HTTP/1.1\r\n", "*2\r\n$4\r\nEC", strings.Repeat("x", 9000)}
	served, most := 0, 0
	for seed := range uint64(25) {
		rnd := rand.New(rand.NewPCG(seed, 27))
		var in []byte
		for range rnd.IntN(60) {
			in = append(in, strings.Repeat(requests[rnd.IntN(len(requests))], 1+rnd.IntN(1+rnd.IntN(30)))...)
		}
		in = append(in, ends[rnd.IntN(len(ends))]...)
		cuts := func() (cuts []int) {
			for range rnd.IntN(40) {
				cuts = append(cuts, 1+rnd.IntN(1+rnd.IntN(20_000)))
			}
			return cuts
		}
		guard := func() *access.Guard {
			if seed%2 == 0 {
				return nil
			}
			return access.New(access.Config{Tokens: list, Now: func() clock.Mono { return 0 }})
		}
		replies := agree(t, in, cuts(), cuts(), guard)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		served, most = served+replies, max(most, len(in))
	}
	if served < 500 || most < 100_000 {
		t.Errorf("%d replies, streams of up to %d bytes: too few", served, most)
	}
}

// echo returns a request for n bytes of a letter.
func echo(letter byte, n int) string {
	return fmt.Sprintf("*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n", n, strings.Repeat(string(letter), n))
}

// TestConnectionsShareNothing: connections that a loop serves with the same buffers get their own answers, though
// each has a part of a request there before the others, reads its answers after all others were answered, and has
// work under way at the same time.
func TestConnectionsShareNothing(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // one loop
	bothShells(t, func(t *testing.T) {
		w := newFixture(t).serve(listenNarrow(t))
		turns := w.dial()
		all := func(f func(i int, letter byte, c *client)) {
			for i, c := range w.clients[1:] {
				f(i, byte('a'+i), c)
			}
			for range 3 { // Each connection has had its turn before the second.
				turns.ask("PING")
			}
		}
		for range 12 {
			w.dial().ask(fmt.Sprint("CLIENT SETNAME client-", len(w.clients)-2))
		}
		want := func(c *client, want string) {
			t.Helper()
			if got := c.reply(); got != want {
				t.Fatalf("got %.100q of %d bytes, want %.100q of %d", got, len(got), want, len(want))
			}
		}
		for cut := 1; cut < 1000; cut += 250 {
			all(func(_ int, letter byte, c *client) {
				c.send("PING\r\n" + echo(letter, 1000)[:cut])
				want(c, "+PONG")
			})
			all(func(_ int, letter byte, c *client) { c.send(echo(letter, 1000)[cut:]) })
			all(func(_ int, letter byte, c *client) { want(c, strings.Repeat(string(letter), 1000)) })
		}
		all(func(_ int, letter byte, c *client) {
			c.send(strings.Repeat(echo(letter, 3000), 4) + "ID.NEXT COUNT 600\r\n")
		})
		seen := map[string]bool{}
		all(func(_ int, letter byte, c *client) {
			for range 4 {
				want(c, strings.Repeat(string(letter), 3000))
			}
			for id := range strings.FieldsSeq(strings.Trim(c.reply(), "*[]")) {
				seen[c.parse(id).String()] = true
			}
		})
		if len(seen) != 12*600 {
			t.Errorf("%d different IDs of %d", len(seen), 12*600)
		}
		all(func(i int, _ byte, c *client) {
			c.send(fmt.Sprintf("ID.DECODE %d KIND int\r\nCLIENT GETNAME\r\n", 1000+i))
		})
		all(func(i int, _ byte, c *client) {
			if got := c.reply(); !strings.Contains(got, fmt.Sprintf(`"int":"%d"`, 1000+i)) {
				t.Errorf("of %d: %s", 1000+i, got)
			}
			want(c, fmt.Sprint("client-", i))
		})
	})
}

// TestWaitDelaysNobody: while a request waits for the clock, other connections are answered,
// and the answers to what came after it are in order.
func TestWaitDelaysNobody(t *testing.T) {
	bothShells(t, func(t *testing.T) {
		w := newFixture(t)
		w.exhaust(w.clock, time.Minute)
		w.listen(server.Config{}).serve(nil)
		waiting, other := w.dial(), w.dial()
		// After a refusal the rest of its pipeline does not wait. What follows is no part of it.
		if got := waiting.ask("ID.NEXT AFTER 4611686018427387904"); !strings.HasPrefix(got, "-ERR AFTER_TOO_FAR") {
			t.Fatal(got)
		}
		waiting.send("PING\r\n" + strings.Repeat("*1\r\n$7\r\nID.NEXT\r\n", 3) + "ECHO x\r\nID.NEXT COUNT 2\r\n")
		if got := waiting.reply(); got != "+PONG" { // what came before it does not wait
			t.Fatal(got)
		}
		for range 100 {
			if got := other.ask("PING"); got != "+PONG" {
				t.Fatal(got)
			}
		}
		if n := w.node.Stats().Issued; n != 251<<15 {
			t.Fatalf("%d IDs were issued", n)
		}
		w.clock.Advance(10 * time.Millisecond)
		var last flake.ID
		for range 3 {
			id := waiting.parse(waiting.reply())
			if id <= last {
				t.Errorf("%v after %v", id, last)
			}
			last = id
		}
		if got := waiting.reply(); got != "x" {
			t.Error(got)
		}
		if got := strings.Fields(strings.Trim(waiting.reply(), "*[]")); len(got) != 2 || waiting.parse(got[0]) <= last {
			t.Errorf("%q after %v", got, last)
		}
	})
}

// TestRefusalWithoutRoom: a refused request is answered though the answers before it have filled
// the buffer, and nothing comes after it.
func TestRefusalWithoutRoom(t *testing.T) {
	w := newGuardedFixture(t, access.New(access.Config{Rate: 1, Now: func() clock.Mono { return 1 }})).serve(nil)
	c := w.dial()
	c.ask("ID.NEXT")
	for commands := range 60 { // At some number the refusal has no room beside them.
		c.send(strings.Repeat("COMMAND\r\n", commands) + "ECHO " + strings.Repeat("x", 3000) + "\r\nID.NEXT\r\n")
		for range commands + 1 {
			c.reply()
		}
		if got := c.reply(); !strings.HasPrefix(got, "-TRYAGAIN RATE_LIMITED") {
			t.Fatalf("after %d replies: %.80q", commands+1, got)
		}
	}
}

// TestClientLeavesWhileItWaits: the connection of a client that has left ends, also while a
// request of it waits, and nothing is issued for it. Over TCP that shows in a reset alone.
func TestClientLeavesWhileItWaits(t *testing.T) {
	for network, leave := range map[string]func(*client){
		"unix": func(c *client) { _ = c.Close() },
		"tcp":  func(c *client) { _ = c.Conn.(*net.TCPConn).SetLinger(0); _ = c.Close() },
	} {
		t.Run(network, func(t *testing.T) {
			w := newFixture(t)
			w.exhaust(w.clock, time.Minute)
			l := listen(t)
			if network == "unix" {
				_ = l.Close()
				l = listenUnix(t)
			}
			w.listen(server.Config{}).serve(l)
			c := w.dial()
			c.send("PING\r\nID.NEXT\r\n")
			c.reply()
			leave(c)
			if runtime.GOOS != "linux" {
				return // A goroutine notices when it writes.
			}
			wait.Until(t, "it has ended", func() bool { return w.listener.Connections() == 0 })
			ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
			defer cancel()
			if err := w.listener.Shutdown(ctx); err != nil {
				t.Errorf("its request still waits: %v", err)
			}
			w.clock.Advance(10 * time.Millisecond)
			if n := w.node.Stats().Issued; n != 251<<15 {
				t.Errorf("%d IDs were issued", n)
			}
		})
	}
}

// TestClientSendsNoMoreWhileItWaits: a client that has sent all that it will gets its answers.
func TestClientSendsNoMoreWhileItWaits(t *testing.T) {
	bothShells(t, func(t *testing.T) {
		w := newFixture(t)
		w.exhaust(w.clock, time.Minute)
		w.listen(server.Config{}).serve(nil)
		c, other := w.dial(), w.dial()
		c.send("PING\r\nID.NEXT\r\n")
		c.reply()
		fatal.If(t, c.Conn.(*net.TCPConn).CloseWrite())
		other.ask("PING") // A loop has had a turn since.
		w.clock.Advance(10 * time.Millisecond)
		c.parse(c.reply())
		c.closed()
	})
}

// TestEndOfAForkedConnection: what becomes of a connection that is closed, and that a child process has
// still, is no event of another one with its descriptor.
func TestEndOfAForkedConnection(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // one loop
	w := newFixture(t)
	w.exhaust(w.clock, time.Minute)
	child := -1
	respserver.OnAccept(t, func(fd int) {
		if child < 0 {
			var err error
			child, err = syscall.Dup(fd)
			fatal.If(t, err)
		}
	})
	w.listen(server.Config{}).serve(listenUnix(t))
	// The system gives the lowest descriptor that is free. This file's is for the next client, so that the
	// loop's is the one that is free again.
	held, err := os.Open(os.DevNull)
	fatal.If(t, err)
	gone := w.dial()
	gone.ask("PING")
	defer func() { _ = syscall.Close(child) }()
	if got := gone.ask("QUIT"); got != "+OK" {
		t.Fatal(got)
	}
	wait.Until(t, "it has ended", func() bool { return w.listener.Connections() == 0 })
	_ = held.Close()
	waiting := w.dial()
	waiting.send("PING\r\nID.NEXT\r\n")
	waiting.reply()
	_ = gone.Close()
	other := w.dial()
	for range 3 {
		other.ask("PING")
	}
	w.clock.Advance(10 * time.Millisecond)
	waiting.parse(waiting.reply())
}

// TestSlowReader: a client that asks for much and reads nothing gets no more than the sockets
// hold, delays nobody, gets all of it once it reads, and is cut off when it never does.
func TestSlowReader(t *testing.T) {
	bothShells(t, func(t *testing.T) {
		const times = 300_000
		w := newFixture(t).serve(nil)
		slow, other := w.dial(), w.dial()
		ask := "*3\r\n$7\r\nID.NEXT\r\n$6\r\nFORMAT\r\n$4\r\nuuid\r\n"
		go func() { _, _ = io.WriteString(slow.Conn, strings.Repeat(ask, times)) }()
		var n, own int64
		for before := int64(-1); n != before; { // until nothing more fits
			before = n
			for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); own++ {
				other.parse(other.ask("ID.NEXT"))
			}
			n = w.node.Stats().Issued - own
		}
		if n >= times {
			t.Fatalf("%d IDs were issued to a client that reads nothing", n)
		}
		for range times {
			if got := slow.reply(); len(got) != 36 {
				t.Fatalf("%q", got)
			}
		}

		w = newFixture(t, func(c *respserver.Config) { c.WriteTimeout = 100 * time.Millisecond }).serve(nil)
		slow, other = w.dial(), w.dial()
		other.ask("PING")
		go func() { _, _ = io.WriteString(slow.Conn, strings.Repeat(ask, times)) }()
		for w.listener.Connections() != 1 {
			other.parse(other.ask("ID.NEXT"))
		}
	})
}

// listenNarrow is listenUnix with connections that hold a few KiB which the client has not read.
func listenNarrow(t *testing.T) net.Listener {
	l := listenUnix(t)
	if h, ok := l.(hidden); ok {
		return hidden{narrow(h)}
	}
	respserver.OnAccept(t, func(fd int) { fatal.If(t, syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, 1)) })
	return l
}

// narrow narrows connections of package net.
type narrow struct{ net.Listener }

func (n narrow) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	if err == nil {
		err = c.(*unixsocket.Conn).SetWriteBuffer(1)
	}
	return c, err
}

// unread asks for 300 IDs, which a narrow connection does not hold, and returns when they were issued.
func (c *client) unread(w *fixture, other *client) {
	c.t.Helper()
	before := w.node.Stats().Issued
	c.send("ID.NEXT COUNT 300 FORMAT uuid\r\n")
	for w.node.Stats().Issued == before {
		other.ask("PING")
	}
	other.ask("PING") // The turn of a loop has ended.
}

// TestDrainOfASlowReader: who has not read an answer yet gets all of it, though the server stops
// meanwhile, and then the connection ends.
func TestDrainOfASlowReader(t *testing.T) {
	bothShells(t, func(t *testing.T) {
		w, l := newFixture(t), listenNarrow(t)
		w.addr = strings.TrimPrefix(l.Addr().String(), unixsocket.Prefix)
		go func() { w.ended <- w.listener.Serve(l) }()
		slow, other := w.dial(), w.dial()
		slow.unread(w, other)
		finished := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), wait.Most)
			defer cancel()
			finished <- w.listener.Shutdown(ctx)
		}()
		other.closed() // All are drained.
		if got := strings.Fields(slow.reply()); len(got) != 300 {
			t.Errorf("%d IDs arrived", len(got))
		}
		slow.closed()
		if err := <-finished; err != nil {
			t.Error(err)
		}
		<-w.ended
	})
}

// TestSlowReaderMayRest: who was slow to read once, and has read all since, is idle, and has the time
// of those.
func TestSlowReaderMayRest(t *testing.T) {
	bothShells(t, func(t *testing.T) {
		w := newFixture(t, func(c *respserver.Config) { c.WriteTimeout = 2 * time.Second }).serve(listenNarrow(t))
		slow, never, other := w.dial(), w.dial(), w.dial()
		slow.unread(w, other)
		slow.reply()
		never.unread(w, other)
		for w.listener.Connections() > 2 { // until the one that reads nothing is cut off
			other.ask("PING")
		}
		if got := slow.ask("PING"); got != "+PONG" {
			t.Error(got)
		}
	})
}

// TestLongPipelineWaitsOnce: after a refusal the rest of a pipeline does not wait, however many reads
// it takes.
func TestLongPipelineWaitsOnce(t *testing.T) {
	bothShells(t, func(t *testing.T) {
		w := newFixture(t)
		w.exhaust(w.clock, time.Minute)
		w.listen(server.Config{}).serve(listenUnix(t))
		c := w.dial()
		for _, length := range []int{100, 4000, 4096, 5000, 8192, 12_000} {
			pipeline := "ID.NEXT AFTER 4611686018427387904\r\n"
			for len(pipeline) < length {
				pipeline += "ID.NEXT\r\n"
			}
			c.send(pipeline) // It is in the socket as a whole.
			for n := range strings.Count(pipeline, "\n") {
				want := "-TRYAGAIN ENTROPY_OVERFLOW "
				if n == 0 {
					want = "-ERR AFTER_TOO_FAR "
				}
				if got := c.reply(); !strings.HasPrefix(got, want) {
					t.Fatalf("%d bytes, answer %d: %s", length, n, got)
				}
			}
			c.send("PING\r\n") // no part of it
			c.reply()
		}
	})
}

// TestIdleConnectionsHoldLittle: an idle connection of a loop has no goroutine and no buffer.
func TestIdleConnectionsHoldLittle(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("not run: only Linux has a loop")
	}
	const number, most = 400, 2 << 10
	var conns [number]*client
	w := newFixture(t).serve(nil)
	usage := func() (goroutines int, bytes uint64) {
		for range 5 { // Each collection halves the stacks of goroutines that wait.
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), m.HeapAlloc + m.StackInuse
	}
	w.dial().ask("PING")
	idle := runtime.NumGoroutine()
	for i := range conns { // the clients are not what is measured
		c, err := net.Dial("tcp", w.addr)
		fatal.If(t, err)
		t.Cleanup(func() { _ = c.Close() })
		conns[i] = newClient(t, c)
		if i == 0 {
			conns[i].ask("ID.NEXT")
		}
	}
	wait.Until(t, "all are connected, and no goroutine is left of that", func() bool {
		return w.listener.Connections() == number+1 && runtime.NumGoroutine() <= idle+number/10
	})
	before, used := usage()
	for _, c := range conns { // all of them have been used, with half a request at the end
		c.ask("ID.NEXT FORMAT uuid")
		c.send(strings.Repeat("PING\r\n", 600) + "ID.NE")
		for range 600 {
			c.reply()
		}
	}
	after, now := usage()
	runtime.KeepAlive(&conns)     // A client has a buffer.
	if after > before+number/10 { // A few are of the test.
		t.Errorf("%d goroutines, and %d after use", before, after)
	}
	if each := int64(now-used) / number; int64(now) > int64(used) && each > most {
		t.Errorf("an idle connection holds %d bytes", each)
	}
}

// TestRoomIsMade: a connection that makes room for another ends, and its place is free.
func TestRoomIsMade(t *testing.T) {
	bothShells(t, func(t *testing.T) {
		w := newFixture(t)
		q := quota.New(quota.Config{Now: func() clock.Mono { return 0 }})
		l := q.Listen(listen(t), quota.ListenerConfig{Connections: 8, Refusal: respserver.TooMany})
		w.serve(l)
		var all []*client
		for i := range 7 { // one in eight is kept for those with a valid call
			c := w.dial()
			if got := c.ask("PING"); got != "+PONG" {
				t.Fatalf("connection %d: %s", i, got)
			}
			all = append(all, c)
		}
		late := w.dial()
		late.parse(late.ask("ID.NEXT"))
		all[0].closed()
		all[1].parse(all[1].ask("ID.NEXT"))
		if st := l.Stats(); st.Open != 7 || st.Closed["room"] != 1 {
			t.Errorf("%+v", st)
		}
		for _, c := range all {
			_ = c.Close()
		}
		wait.Until(t, "all but one have ended", func() bool { return l.Stats().Open == 1 })
	})
}

// TestShutdownWhileConnecting: connections that are opened while the server stops end, however
// far they are.
func TestShutdownWhileConnecting(t *testing.T) {
	for i := range 20 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			ctx, stop := context.WithCancel(context.Background())
			var dialing sync.WaitGroup
			t.Cleanup(func() { stop(); dialing.Wait() }) // after the server has stopped
			w := newFixture(t).serve(nil)
			dialing.Go(func() {
				for {
					c, err := (&net.Dialer{}).DialContext(ctx, "tcp", w.addr)
					if err != nil {
						return
					}
					_, _ = io.WriteString(c, "PING\r\n")
					defer c.Close()
				}
			})
			time.Sleep(time.Duration(i) * time.Millisecond)
		})
	}
}
