package respserver_test

import (
	"io"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flakelease/allocator/internal/server"
)

// TestLoopSleeps: of a connection whose request waits, or whose answers are not read, epoll reports no bytes that
// have arrived. It would report them at once, again and again, and the loop would keep a processor busy.
func TestLoopSleeps(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // one loop
	w := newFixture(t)
	w.exhaust(w.clock, time.Minute)
	w.listen(server.Config{}).serve(listenNarrow(t))
	waiting, slow, other := w.dial(), w.dial(), w.dial()
	waiting.ask("CLIENT SETNAME waiting")
	waiting.send("PING\r\nID.NEXT\r\n")
	waiting.reply() // and the request after it waits
	waiting.send("PING\r\n")
	slow.ask("CLIENT SETNAME slow")
	for range 3 {
		slow.send(echo('s', 4000))
	}
	for range 3 { // The loop has had a turn with each of the others.
		other.ask("CLIENT SETNAME other")
	}
	got := w.listener.Armed()
	for name, want := range map[string]uint32{"waiting": 0, "slow": unix.EPOLLOUT, "other": unix.EPOLLIN} {
		if armed, ok := got[name]; !ok || armed != want {
			t.Errorf("%s: epoll reports %#x, want %#x", name, armed, want)
		}
	}
	w.clock.Advance(10 * time.Millisecond)
	waiting.parse(waiting.reply())
	if got := waiting.reply(); got != "+PONG" {
		t.Error(got)
	}
}

// TestFairness: a client of long answers that has room for several writes gets two at most, as one that was read and as
// one that has more, before all others have their turn.
func TestFairness(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // one loop
	w := newFixture(t).serve(listenUnix(t))         // What is sent to a Unix socket has arrived.
	greedy := w.dial()
	greedy.ask("CLIENT SETNAME greedy")
	writes := w.listener.Turn("greedy", func() { greedy.send("ID.NEXT COUNT 10000 FORMAT uuid\r\n") })
	if writes < 1 || writes > 2 {
		t.Errorf("%d writes in a turn", writes)
	}
	if n, err := io.CopyN(io.Discard, greedy.r, 10_000*43); err != nil {
		t.Errorf("%d bytes: %v", n, err)
	}
}
