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

	"github.com/hashicorp/go-msgpack/v2/codec"
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
	if err := codec.NewEncoder(&b, &codec.MsgpackHandle{}).Encode(header); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// sealed is the beginning of a sealed stream that announces size bytes.
func sealed(size uint32) []byte { return binary.BigEndian.AppendUint32(append(label(), 10), size) }

// peak returns by how much the heap of this process grew while f ran, in MiB.
func peak(f func()) int {
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse
	}
	runtime.GC()
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

// Anybody who reaches the port can send what only the key would refuse. Before
// connections were bounded, 30 of them made a node hold over 1 GB, and 49 bytes
// in clear 117 MB.
func TestStreamsOfUnauthenticatedSenders(t *testing.T) {
	const limit = 64 // MiB: the bytes held, the copies of a buffer that grows, and garbage
	for _, tc := range []struct {
		name string
		keys []int
		head []byte
		size int // sent behind the head
		n    int
		why  string
	}{
		{"sealed, and long", []int{0}, sealed(20 << 20), 20 << 20, 30, "stream_invalid"},
		{"sealed, as long as allowed", []int{0}, sealed(1<<20 - 64), 1<<20 - 64<<10, 60, "stream_limit"},
		{"sealed with another key", []int{0}, sealed(64 << 10), 64 << 10, 30, "stream_invalid"},
		{"in clear to a node with a key", []int{0}, append(label(), members(t, 1<<20, 0)...), 0, 30, "stream_invalid"},
		{"a million members", nil, append(label(), members(t, 1<<20, 0)...), 0, 30, "stream_invalid"},
		{"a long state", nil, append(label(), members(t, 0, 20<<20)...), 20 << 20, 30, "stream_invalid"},
		{"a long message of a user", nil, append(label(), 8, 0x81, 0xaa, 'U', 's', 'e', 'r', 'M', 's', 'g', 'L', 'e', 'n', 0xce, 1, 0, 0, 0), 16 << 20, 30, "stream_invalid"},
		{"compressed", nil, append(label(), 9), 1 << 20, 30, "stream_invalid"},
		{"as many members as allowed", nil, append(label(), members(t, 4096, 0)...), 0, 60, "stream_limit"},
		{"nothing", []int{0}, nil, 0, 200, "stream_limit"},
		{"another label", []int{0}, []byte("\xf4\x01x"), 1 << 20, 30, "stream_invalid"},
		{"no label", []int{0}, []byte{10, 1, 2, 3, 4}, 1 << 20, 30, "stream_invalid"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			noLeaks(t)
			a := start(t, "a", tc.keys...)
			grew := peak(func() { flood(t, a.addr, tc.n, tc.head, tc.size, 500*time.Millisecond) })
			if grew > limit {
				t.Errorf("the heap grew by %d MiB", grew)
			}
			if n := a.Stats().Dropped[tc.why]; n == 0 {
				t.Errorf("none counted as %s: %v", tc.why, a.Stats().Dropped)
			}
			b := start(t, "b", tc.keys...)
			seedAll(a, b)
			a.until(t, "b was measured", func() bool { return a.heard("b") > 0 })
		})
	}
}

// Idle connections of one sender must not keep nodes out, nor stay.
func TestIdleStreams(t *testing.T) {
	noLeaks(t)
	a := start(t, "a", 0)
	idle := make(chan int)
	go func() { idle <- flood(t, a.addr, 300, label(), 0, 10*time.Second) }()
	for range 3 {
		b := start(t, "b", 0)
		seedAll(a, b)
		b.until(t, "a was measured", func() bool { return b.heard("a") > 0 })
	}
	if closed := <-idle; closed != 300 {
		t.Errorf("%d of 300 connections were closed within 10 s", closed)
	}
	if d := a.Stats().Dropped; d["stream_limit"] < 200 || d["stream_timeout"] == 0 {
		t.Errorf("dropped %v", d)
	}
}

// A registered address may belong to anybody: its answer is bounded, too.
func TestAnswersOfSeeds(t *testing.T) {
	for _, tc := range []struct {
		name   string
		keys   []int
		answer []byte
		size   int
	}{
		{"sealed, and long", []int{0}, binary.BigEndian.AppendUint32([]byte{10}, 20<<20), 20 << 20},
		{"a million members", nil, members(t, 1<<20, 0), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			answered := make(chan struct{}, 100)
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer conn.Close()
						_, _ = conn.Read(make([]byte, 4096))
						_, err := conn.Write(append(tc.answer, make([]byte, tc.size)...))
						if err == nil && tc.size > 0 {
							t.Error("all of it was read")
						}
						answered <- struct{}{}
					}()
				}
			}()
			a := start(t, "a", tc.keys...)
			grew := peak(func() {
				a.SetSeeds([]string{l.Addr().String()})
				<-answered
				a.until(t, "the join failed", func() bool {
					if a.Stats().JoinFailures > 0 {
						return true
					}
					time.AfterFunc(10*time.Millisecond, func() {
						select {
						case a.changed <- struct{}{}:
						default:
						}
					})
					return false
				})
			})
			if limit := 32 + tc.size>>20; grew > limit { // the answer itself is made here
				t.Errorf("the heap grew by %d MiB", grew)
			}
		})
	}
}

// What a packet in clear can be unpacked into is not bounded by its size, and the
// library writes a line for each that it cannot open.
func TestPackets(t *testing.T) {
	noLeaks(t)
	send := func(b ...byte) []byte { return append(label(), b...) }
	bad := [][]byte{
		send(9, 1, 2, 3),                               // compressed
		send(12, 0, 0, 0, 0, 9, 1, 2, 3),               // with a checksum
		send(7, 1, 0, 2, 9, 1),                         // in a compound
		send(7, 2, 0, 1, 0, 2, 5, 9, 1),                // behind something else
		send(7, 1, 0, 5, 7, 1, 0, 1, 9),                // in a compound in a compound
		send(bytes.Repeat([]byte{8}, 1500)...),         // too long
		append([]byte{9}, bytes.Repeat(label(), 3)...), // without a label
	}
	for _, keys := range [][]int{nil, {0, 1}} {
		a := start(t, "a", keys...)
		conn, err := net.Dial("udp", a.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if keys != nil {
			bad = append(bad, send(0, 1, 2), send(append([]byte{1}, make([]byte, 600)...)...), append([]byte("\xf4\x01x\x01"), make([]byte, 600)...))
		}
		for _, b := range bad {
			if _, err := conn.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		dropped := func() uint64 { return a.Stats().Dropped["packet_invalid"] }
		for end := time.Now().Add(5 * time.Second); dropped() < uint64(len(bad)) && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond)
		}
		if dropped() != uint64(len(bad)) {
			t.Errorf("%d of %d packets were dropped: %v", dropped(), len(bad), a.Stats().Dropped)
		}
	}
}

// Registrations without a process behind them must cost a node little.
func TestManySeeds(t *testing.T) {
	noLeaks(t)
	a, b := start(t, "a", 0), start(t, "b", 0)
	var seeds []string
	for i := range 6_000 {
		seeds = append(seeds, fmt.Sprintf("127.1.%d.%d:1", i>>8, i&255)) // refused at once
	}
	seeds = append(seeds, b.addr)
	began := time.Now()
	for range 20 {
		a.SetSeeds(slices.Clone(seeds))
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("6,000 addresses were compared in %v", took/20)
	}
	const within = time.Second
	time.Sleep(within)
	// 100 ms is the test's Rejoin, and a fifteenth of it the pause between rounds.
	if joins, limit := a.Stats().Joins, uint64(64*(within*15/(100*time.Millisecond)+2)); joins == 0 || joins > limit {
		t.Errorf("%d addresses were dialled in %v; at most %d may be", joins, within, limit)
	}
	a.until(t, "b was measured", func() bool { return a.heard("b") > 0 })
}
