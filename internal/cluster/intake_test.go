package cluster_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-msgpack/v2/codec"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/agreement"
)

// label is how streams and packets to live nodes begin.
func label() []byte { return append([]byte{244, 14}, "allocator/real"...) }

// members is the beginning of a list of members in clear, with the header that
// memberlist sends, and nothing behind it.
func members(t *testing.T, n, state int) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteByte(6)
	header := struct {
		Nodes, UserStateLen int
		Join                bool
	}{n, state, true}
	fatal.If(t, codec.NewEncoder(&b, &codec.MsgpackHandle{}).Encode(header))
	return b.Bytes()
}

// sealed is the beginning of a sealed stream that announces size bytes.
func sealed(size uint32) []byte { return binary.BigEndian.AppendUint32(append(label(), 10), size) }

// peak returns by how much what this process holds grew while f ran, in MiB. Garbage does
// not count: how much there is depends on what else the machine does.
func peak(f func()) int {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse
	}
	before, highest := heap(), uint64(0)
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			highest = max(highest, heap())
			select {
			case <-done:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	f()
	close(done)
	watching.Wait()
	return int(max(highest, before)-before) >> 20
}

// flood opens n connections to addr, writes head and then size zeros on each, and
// waits until the other side closed them or the time is up.
func flood(t *testing.T, addr string, n int, head []byte, size int, wait time.Duration) (closed int) {
	t.Helper()
	var (
		mu sync.Mutex
		wg sync.WaitGroup
	)
	zeros := make([]byte, 64<<10)
	for range n {
		wg.Go(func() {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(wait))
			_, err = conn.Write(head)
			for left := size; left > 0 && err == nil; left -= len(zeros) {
				_, err = conn.Write(zeros)
			}
			if err == nil {
				_, err = io.Copy(io.Discard, conn)
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				mu.Lock()
				closed++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return closed
}

// TestStreamsOfUnauthenticatedSenders: anybody who reaches the port can send what only
// the key would refuse. Before connections were bounded, 30 of them made a node hold
// over 1 GB, and 49 bytes in clear 117 MB.
func TestStreamsOfUnauthenticatedSenders(t *testing.T) {
	const limit = 128 // MiB: the bytes held, and the copies of buffers that grow
	for _, tc := range []struct {
		name string
		keys []int
		head []byte
		size int // sent behind the head
		n    int
		why  string
	}{
		{"sealed, and long", []int{0}, sealed(20 << 20), 20 << 20, 30, "stream_invalid"},
		{"sealed, as long as allowed", []int{0}, sealed(1<<20 - 64), 1<<20 - 64<<10, 200, "stream_limit"},
		{"sealed with another key", []int{0}, sealed(64 << 10), 64 << 10, 30, "stream_invalid"},
		{"in clear to a node with a key", []int{0}, append(label(), members(t, 1<<20, 0)...), 0, 30, "stream_invalid"},
		{"a million members", nil, append(label(), members(t, 1<<20, 0)...), 0, 30, "stream_invalid"},
		{"a long state", nil, append(label(), members(t, 0, 20<<20)...), 20 << 20, 30, "stream_invalid"},
		{"a long message of a user", nil, append(label(), "\x08\x81\xaaUserMsgLen\xce\x01\x00\x00\x00"...), 16 << 20, 30, "stream_invalid"},
		{"compressed", nil, append(label(), 9), 1 << 20, 30, "stream_invalid"},
		{"as many members as allowed", nil, append(label(), members(t, 4096, 0)...), 0, 100, "stream_limit"},
		{"nothing", []int{0}, nil, 0, 200, "stream_limit"},
		{"another label", []int{0}, []byte("\xf4\x01x"), 1 << 20, 30, "stream_invalid"},
		{"no label", []int{0}, []byte{10, 1, 2, 3, 4}, 1 << 20, 30, "stream_invalid"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			noLeaks(t)
			a := start(t, "a", tc.keys...)
			// On a busy machine the first connections may be over before the last are made.
			for wait := 500 * time.Millisecond; a.Observe().Dropped[tc.why] == 0; wait *= 2 {
				if wait > time.Minute {
					t.Fatalf("none counted as %s: %v", tc.why, a.Observe().Dropped)
				}
				if grew := peak(func() { flood(t, a.addr, tc.n, tc.head, tc.size, wait) }); grew > limit {
					t.Errorf("the heap grew by %d MiB", grew)
				}
			}
			b := start(t, "b", tc.keys...)
			seedAll(a, b)
			a.until(t, "b was measured", func() bool { return a.heard("b") > 0 })
		})
	}
}

// TestIdleStreams: idle connections of one sender do not keep nodes out, nor stay.
func TestIdleStreams(t *testing.T) {
	noLeaks(t)
	a := start(t, "a", 0)
	idle := make(chan int)
	go func() { idle <- flood(t, a.addr, 300, label(), 0, wait.Most) }()
	for range 3 {
		b := start(t, "b", 0)
		seedAll(a, b)
		b.until(t, "a was measured", func() bool { return b.heard("a") > 0 })
	}
	if closed := <-idle; closed != 300 {
		t.Errorf("%d of 300 connections were closed", closed)
	}
	if d := a.Observe().Dropped; d["stream_limit"] == 0 || d["stream_timeout"] == 0 {
		t.Errorf("dropped %v", d)
	}
}

// TestAnswerOfAPeer: a registered address may belong to anybody, and its answer is bounded, too.
func TestAnswerOfAPeer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer l.Close()
	a := start(t, "a", 0)
	a.SetPeers([]agreement.Peer{{Node: "b", Instance: uuid.NewString(), Gossip: l.Addr().String(), Ask: true}})
	conn, err := l.Accept()
	fatal.If(t, err)
	defer conn.Close()
	_, _ = conn.Read(make([]byte, 4096))
	const size = 20 << 20
	answer := append(binary.BigEndian.AppendUint32([]byte{10}, size), make([]byte, size)...)
	grew := peak(func() {
		if n, err := conn.Write(answer); err == nil {
			t.Errorf("all %d bytes were read", n)
		}
	})
	if grew > 32 {
		t.Errorf("the heap grew by %d MiB", grew)
	}
}

// TestPackets: the library writes a line for each packet that it cannot open.
func TestPackets(t *testing.T) {
	noLeaks(t)
	send := func(b ...byte) []byte { return append(label(), b...) }
	long := send(bytes.Repeat([]byte{8}, 1500)...)
	unlabeled := append([]byte{9}, bytes.Repeat(label(), 3)...)
	for _, tc := range []struct {
		keys []int
		bad  [][]byte
	}{
		{nil, [][]byte{long, unlabeled, send()}},
		{[]int{0, 1}, [][]byte{
			long,
			unlabeled,
			send(),
			send(0, 1, 2),
			send(append([]byte{1}, make([]byte, 600)...)...),
			append([]byte("\xf4\x01x\x01"), make([]byte, 600)...),
		}},
	} {
		a := start(t, "a", tc.keys...)
		conn, err := net.Dial("udp", a.addr)
		fatal.If(t, err)
		defer conn.Close()
		for _, b := range tc.bad {
			if _, err := conn.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		dropped := func() uint64 { return a.Observe().Dropped["packet_invalid"] }
		wait.Until(t, "all packets are dropped", func() bool { return dropped() == uint64(len(tc.bad)) })
	}
}

// TestManyPeers: registrations without a process behind them cost a node little.
func TestManyPeers(t *testing.T) {
	noLeaks(t)
	a, b := start(t, "a", 0), start(t, "b", 0)
	var peers []agreement.Peer
	for i := range 6_000 {
		peers = append(peers, agreement.Peer{
			Node:     fmt.Sprint("n", i),
			Instance: uuid.NewString(),
			Gossip:   fmt.Sprintf("127.1.%d.%d:1", i>>8, i&255), // It refuses at once.
		})
	}
	peers = append(peers, b.peer)
	began := time.Now()
	for range 20 {
		a.SetPeers(slices.Clone(peers))
	}
	wait.Until(t, "some addresses are dialed", func() bool { return a.Observe().Joins > 64 })
	joins, within := a.Observe().Joins, time.Since(began)
	// 100 ms is the test's Rejoin, and a fifteenth of it the pause between rounds.
	if limit := uint64(64 * (within*15/(100*time.Millisecond) + 2)); joins > limit {
		t.Errorf("%d addresses were dialled in %v; at most %d may be", joins, within, limit)
	}
	a.until(t, "b was measured", func() bool { return a.heard("b") > 0 })
}
