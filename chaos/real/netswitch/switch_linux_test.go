package netswitch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
)

var entered error

func TestMain(m *testing.M) {
	entered = Enter()
	os.Exit(m.Run())
}

// network returns a switch with n hosts, and checks at the end that nothing is left.
func network(t *testing.T, n int) (*Switch, []*Host) {
	t.Helper()
	if entered != nil {
		t.Skip("not run:", entered)
	}
	goroutines := goleak.IgnoreCurrent()
	before := namespaces(t)
	s, err := New(1)
	fatal.If(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error("again:", err)
		}
		goleak.VerifyNone(t, goroutines)
		// A thread that ends is seen by others a moment later.
		wait.Until(t, fmt.Sprintf("no more network namespaces are held than the %d before", before),
			func() bool { return namespaces(t) <= before })
	})
	var hosts []*Host
	for i := range n {
		h, err := s.AddHost(fmt.Sprint("host-", i))
		fatal.If(t, err)
		hosts = append(hosts, h)
	}
	return s, hosts
}

// namespaces counts those that threads of this process are in, or that it holds open.
func namespaces(t *testing.T) int {
	t.Helper()
	found := map[string]bool{}
	for _, pattern := range []string{"/proc/self/task/*/ns/net", "/proc/self/fd/*"} {
		names, err := filepath.Glob(pattern)
		fatal.If(t, err)
		for _, name := range names {
			if to, err := os.Readlink(name); err == nil && strings.HasPrefix(to, "net:") {
				found[to] = true
			}
		}
	}
	return len(found)
}

// echo answers datagrams and connections to port 7 of h.
func echo(t *testing.T, h *Host) {
	t.Helper()
	var packets net.PacketConn
	var listener net.Listener
	err := h.Do(func() (err error) {
		if packets, err = net.ListenPacket("udp", h.IP()+":7"); err != nil {
			return err
		}
		listener, err = net.Listen("tcp", h.IP()+":7")
		return err
	})
	fatal.If(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for b := make([]byte, 9000); ; {
			n, from, err := packets.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo(b[:n], from)
		}
	})
	wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() { _, _ = io.Copy(c, c) })
		}
	})
	t.Cleanup(func() {
		packets.Close()
		listener.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

func dial(t *testing.T, from *Host, network, address string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
	defer cancel()
	c, err := from.DialContext(ctx, network, address)
	fatal.If(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func apply(t *testing.T, s *Switch, e Effect, m Match, pairs ...Pair) *Fault {
	t.Helper()
	f, err := s.Apply(e, m, pairs...)
	fatal.If(t, err)
	return f
}

// ask sends and demands the same back.
func ask(t *testing.T, c net.Conn, content string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(wait.Most))
	if _, err := io.WriteString(c, content); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(content))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != content {
		t.Fatalf("%q, %v", b, err)
	}
}

func TestThrough(t *testing.T) {
	s, hosts := network(t, 3)
	a, b := hosts[0], hosts[1]
	echo(t, b)
	ask(t, dial(t, a, "udp", b.IP()+":7"), "a datagram")
	ask(t, dial(t, a, "tcp", b.IP()+":7"), "a connection")
	if got := s.Traffic(Pair{a, b}); got.Packets < 4 || got.Bytes < 100 {
		t.Errorf("a to b: %+v", got)
	}
	if got := s.Traffic(Pair{a, hosts[2]}); got != (Traffic{}) {
		t.Errorf("a to c: %+v", got)
	}
	if s.Lost() != 0 {
		t.Errorf("%d packets were lost", s.Lost())
	}
	// A host's loopback is its own.
	echo(t, hosts[2])
	var listener net.Listener
	fatal.If(t, b.Do(func() (err error) { listener, err = net.Listen("tcp", "127.0.0.1:9"); return err }))
	defer listener.Close()
	dial(t, b, "tcp", "127.0.0.1:9")
	if c, err := a.DialContext(t.Context(), "tcp", "127.0.0.1:9"); err == nil {
		c.Close()
		t.Error("the loopback of b answers a")
	}
	// Nothing leads out of the network.
	if c, err := a.DialContext(t.Context(), "tcp", "203.0.113.1:9"); !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("a way out: %v, %v", c, err)
	}
}

// sent is the content of the n-th datagram of deliveries.
func sent(n int) string { return fmt.Sprintf("%06d and some words to fill it", n) }

// quiet is for how long no more than expected arrives.
const quiet = 50 * time.Millisecond

// deliveries sends n datagrams from a to b and returns those that arrive: as many as f, where there is one,
// lets through, and what else does within a short time.
func deliveries(t *testing.T, a, b *Host, f *Fault, n int) (out []string) {
	t.Helper()
	var in net.PacketConn
	fatal.If(t, b.Do(func() (err error) { in, err = net.ListenPacket("udp", b.IP()+":0"); return err }))
	defer in.Close()
	c := dial(t, a, "udp", in.LocalAddr().String())
	buffer := make([]byte, 9000)
	read := func(within time.Duration) bool {
		_ = in.SetReadDeadline(time.Now().Add(within))
		n, _, err := in.ReadFrom(buffer)
		if err == nil {
			out = append(out, string(buffer[:n]))
		}
		return err == nil
	}
	for i := range n {
		if _, err := io.WriteString(c, sent(i)); err != nil {
			t.Error(err)
		}
		if i%100 != 99 && i != n-1 { // So few fit into every buffer.
			continue
		}
		wait.Until(t, "all that was sent has arrived", func() bool {
			for read(time.Millisecond) {
			}
			d := Done{Matched: uint64(i + 1)}
			if f != nil {
				d = f.Done()
			}
			return d.Matched == uint64(i+1) && uint64(len(out)) >= d.Matched+d.Duplicated-d.Dropped-d.Corrupted
		})
	}
	for read(quiet) {
	}
	return out
}

func TestOneWay(t *testing.T) {
	s, hosts := network(t, 2)
	a, b := hosts[0], hosts[1]
	f := apply(t, s, Cut, Match{}, Pair{a, b})
	if got := deliveries(t, a, b, f, 20); len(got) != 0 {
		t.Errorf("%d datagrams went through a cut", len(got))
	}
	if got := deliveries(t, b, a, nil, 20); len(got) != 20 {
		t.Errorf("%d of 20 datagrams went the other way", len(got))
	}
	if d := f.Done(); d != (Done{Matched: 20, Dropped: 20}) || !d.Fired() {
		t.Errorf("done: %+v", d)
	}
	f.Lift()
	f.Lift()
	if got := deliveries(t, a, b, nil, 20); len(got) != 20 {
		t.Errorf("%d of 20 after it was lifted", len(got))
	}
	f = apply(t, s, Cut, Match{}, Both(a, b)...)
	for f.Done().Matched == 0 {
		ctx, cancel := context.WithTimeout(t.Context(), quiet)
		if c, err := a.DialContext(ctx, "tcp", b.IP()+":7"); err == nil {
			c.Close()
			t.Error("connected through a cut")
		}
		cancel()
	}
	s.Heal()
	if got := deliveries(t, a, b, nil, 20); len(got) != 20 {
		t.Errorf("%d of 20 after all was healed", len(got))
	}
}

func TestPorts(t *testing.T) {
	s, hosts := network(t, 2)
	a, b := hosts[0], hosts[1]
	echo(t, b)
	f := apply(t, s, Cut, Match{Proto: UDP, Ports: []uint16{7}}, Pair{b, a}) // the answers alone
	ask(t, dial(t, a, "tcp", b.IP()+":7"), "a connection")
	if f.Done().Matched != 0 {
		t.Errorf("done: %+v", f.Done())
	}
	c := dial(t, a, "udp", b.IP()+":7")
	fmt.Fprint(c, "a question")
	wait.Until(t, "the answer is lost", func() bool { return f.Done().Dropped == 1 })
	_ = c.SetReadDeadline(time.Now().Add(quiet))
	if n, err := c.Read(make([]byte, 100)); err == nil {
		t.Errorf("%d bytes of answer", n)
	}
}

func TestStatistics(t *testing.T) {
	s, hosts := network(t, 2)
	a, b := hosts[0], hosts[1]
	const n = 1000
	for _, tc := range []struct {
		name      string
		e         Effect
		low, high int // of arrivals
		bad       bool
		count     func(Done) uint64
	}{
		{"nothing", Effect{}, n, n, false, func(d Done) uint64 { return d.Matched }},
		{"drop", Effect{Drop: .25}, 650, 850, false, func(d Done) uint64 { return d.Dropped }},
		{"corrupt", Effect{Corrupt: .25}, 650, 850, false, func(d Done) uint64 { return d.Corrupted }},
		{"forge", Effect{Forge: .25}, n, n, true, func(d Done) uint64 { return d.Forged }},
		{"duplicate", Effect{Duplicate: .25}, 1150, 1350, false, func(d Done) uint64 { return d.Duplicated }},
		{"delay", Effect{Delay: 20 * time.Millisecond}, n, n, false, func(d Done) uint64 { return d.Delayed }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := apply(t, s, tc.e, Match{}, Pair{a, b})
			defer f.Lift()
			got := deliveries(t, a, b, f, n)
			if len(got) < tc.low || len(got) > tc.high {
				t.Errorf("%d of %d arrived", len(got), n)
			}
			bad := 0
			for i, text := range got {
				if tc.low == n && tc.high == n && text != sent(i) || tc.low != n && text[6:] != sent(0)[6:] {
					bad++
				}
			}
			if tc.bad && (bad < 150 || bad > 350 || uint64(bad) != f.Done().Forged) || !tc.bad && bad != 0 {
				t.Errorf("%d arrived damaged: %+v", bad, f.Done())
			}
			if tc.name != "forge" && !slices.IsSorted(got) {
				t.Error("they overtook one another")
			}
			if c := tc.count(f.Done()); c == 0 || f.Done().Matched != n {
				t.Errorf("done: %+v", f.Done())
			}
		})
	}
	if s.Lost() != 0 {
		t.Errorf("%d packets were lost", s.Lost())
	}
}

func TestOrder(t *testing.T) {
	s, hosts := network(t, 2)
	for name, e := range map[string]Effect{"reorder": {Reorder: .1}, "jitter": {Delay: 10 * time.Millisecond, Jitter: 8 * time.Millisecond}} {
		f := apply(t, s, e, Match{}, Pair{hosts[0], hosts[1]})
		got := deliveries(t, hosts[0], hosts[1], f, 500)
		f.Lift()
		if len(got) != 500 || slices.IsSorted(got) || !f.Done().Fired() {
			t.Errorf("%s: %d arrived, in order: %t; %+v", name, len(got), slices.IsSorted(got), f.Done())
		}
	}
}

// TCP repairs what the switch does to it, and so what arrives is what was sent.
func TestTCPSurvives(t *testing.T) {
	s, hosts := network(t, 2)
	a, b := hosts[0], hosts[1]
	echo(t, b)
	f := apply(t, s, Effect{Drop: .02, Corrupt: .02, Duplicate: .05, Reorder: .05, Delay: time.Millisecond}, Match{}, Both(a, b)...)
	content := bytes.Repeat([]byte("some words to fill it. "), 20_000)
	c := dial(t, a, "tcp", b.IP()+":7")
	_ = c.SetDeadline(time.Now().Add(wait.Most))
	go func() { _, _ = c.Write(content) }()
	got := make([]byte, len(content))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, content) {
		t.Errorf("another content arrived: %v", err)
	}
	if d := f.Done(); d.Dropped == 0 || d.Duplicated == 0 || d.Reordered == 0 {
		t.Errorf("done: %+v", d)
	}
}

func TestThroughput(t *testing.T) {
	s, hosts := network(t, 2)
	a, b := hosts[0], hosts[1]
	echo(t, b)
	c := dial(t, a, "tcp", b.IP()+":7")
	_ = c.SetDeadline(time.Now().Add(wait.Most))
	const size = 32 << 20
	began := time.Now()
	go func() { _, _ = io.CopyN(c, zeros{}, size) }()
	if n, err := io.CopyN(io.Discard, c, size); err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	t.Logf("%.0f MB/s there and back", 2*size/1e6/time.Since(began).Seconds())
	if s.Lost() != 0 {
		t.Errorf("%d packets were lost", s.Lost())
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// A process that was started in a host is in it, and ends with the switch.
func TestProcess(t *testing.T) {
	s, hosts := network(t, 1)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestInside$")
	cmd.Env = append(os.Environ(), "NETSWITCH_TEST_INSIDE="+hosts[0].IP())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	fatal.If(t, err)
	fatal.If(t, hosts[0].Start(cmd))
	line := make([]byte, 7)
	if _, err := io.ReadFull(out, line); err != nil || string(line) != "inside\n" {
		t.Errorf("it says %q, %v", line, err)
	}
	fatal.If(t, s.Close())
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v", err)
	}
}

func TestInside(t *testing.T) {
	ip := os.Getenv("NETSWITCH_TEST_INSIDE")
	if ip == "" {
		t.Skip("for TestProcess")
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil || !slices.ContainsFunc(addresses, func(a net.Addr) bool { return a.String() == ip+"/16" }) {
		fmt.Println(addresses, err)
		os.Exit(1)
	}
	fmt.Println("inside")
	time.Sleep(time.Hour) // Where nothing can wake a process, Go ends it as deadlocked.
}

func TestClosed(t *testing.T) {
	s, hosts := network(t, 2)
	if _, err := s.Apply(Cut, Match{}, Pair{hosts[0], hosts[0]}); err == nil {
		t.Error("a wire from a host to itself")
	}
	if _, err := s.Apply(Effect{Drop: 2}, Match{}, Pair{hosts[0], hosts[1]}); err == nil {
		t.Error("a share of 2")
	}
	fatal.If(t, s.Close())
	if err := hosts[0].Do(func() error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("Do: %v", err)
	}
	if _, err := hosts[0].DialContext(t.Context(), "tcp", "10.77.0.1:1"); !errors.Is(err, ErrClosed) {
		t.Errorf("DialContext: %v", err)
	}
	if _, err := s.AddHost("late"); !errors.Is(err, ErrClosed) {
		t.Errorf("AddHost: %v", err)
	}
}
