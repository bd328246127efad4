package cluster_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/cluster"
)

// live is a node on real sockets.
type live struct {
	*cluster.Cluster
	peer    agreement.Peer // as it registered
	addr    string
	keys    string // its key file
	ring    *cluster.Keys
	changed chan struct{}

	mu  sync.Mutex // guards got
	got map[string]int
}

func (l *live) heard(of string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.got[of]
}

// until waits for a condition, looking at every exchange.
func (l *live) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(wait.Most)
	for !ok() {
		select {
		case <-l.changed:
		case <-limit:
			t.Fatalf("not reached: %s; %+v", what, l.Observe())
		}
	}
}

func key(i int) string {
	return base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(rune('a'+i)), 32)))
}

// keyID is what Observe shows of a key.
func keyID(i int) string {
	sum := sha256.Sum256([]byte(strings.Repeat(string(rune('a'+i)), 32)))
	return hex.EncodeToString(sum[:4])
}

func (l *live) write(t *testing.T, keys ...int) {
	t.Helper()
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintln(&b, key(k))
	}
	// Renamed into place, as a mounted secret is.
	fatal.If(t, os.WriteFile(l.keys+".new", []byte(b.String()), 0o600))
	fatal.If(t, os.Rename(l.keys+".new", l.keys))
}

// start runs a node on loopback, with keys or without.
func start(t *testing.T, name string, keys ...int) *live {
	t.Helper()
	l := &live{got: map[string]int{}, changed: make(chan struct{}, 1)}
	cfg := cluster.Config{
		Node: name, Instance: uuid.NewString(), Label: "allocator/real", Pool: "pool-1", Bind: "127.0.0.1:0",
		Local: &scripted{begin: time.Now(), origin: 1, rate: 1, status: agreement.Status{SID: -1}},
		Every: 20 * time.Millisecond, Rejoin: 100 * time.Millisecond,
		OnExchange: func(e agreement.Exchange) {
			l.mu.Lock()
			l.got[e.Node]++
			l.mu.Unlock()
			select {
			case l.changed <- struct{}{}:
			default:
			}
			if e.Sample.T4 < e.Sample.T1 || e.RTT() < 0 || e.Sample.Peer.Raw < 1 {
				t.Errorf("exchange %+v", e)
			}
		},
	}
	if len(keys) > 0 {
		l.keys = filepath.Join(t.TempDir(), "keys")
		l.write(t, keys...)
		var err error
		if cfg.Keys, err = cluster.NewKeys(l.keys, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		l.ring = cfg.Keys
	}
	transport, addr, err := cluster.Listen(cfg)
	fatal.If(t, err)
	cfg.Transport, l.addr = transport, addr
	l.peer = agreement.Peer{Node: name, Instance: cfg.Instance, Gossip: addr, Ask: true}
	if l.Cluster, err = cluster.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("%s: Run: %v", name, err)
			}
		case <-time.After(wait.Most):
			t.Errorf("%s: Run does not end", name)
		}
	})
	return l
}

func seedAll(nodes ...*live) {
	for i, n := range nodes {
		var peers []agreement.Peer
		for j, p := range nodes {
			if j != i {
				peers = append(peers, p.peer)
			}
		}
		n.SetPeers(peers)
	}
}

// members returns who is a live member of gossip for l.
func (l *live) members() (peers []cluster.Peer) {
	return slices.DeleteFunc(l.Observe().Peers, func(p cluster.Peer) bool { return !p.Live })
}

// noLeaks fails the test if goroutines are left once everything was stopped and
// the library's last timers ran out.
func noLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		wait.NoError(t, "no goroutine is left", func() error { return goleak.Find(before) })
	})
}

func trio(t *testing.T, keys ...int) []*live {
	t.Helper()
	nodes := []*live{start(t, "a", keys...), start(t, "b", keys...), start(t, "c", keys...)}
	seedAll(nodes...)
	more(t, nodes...)
	return nodes
}

// more waits until each of nodes had further exchanges with every other.
func more(t *testing.T, nodes ...*live) {
	t.Helper()
	for _, n := range nodes {
		for _, p := range nodes {
			if p == n {
				continue
			}
			name := p.addr
			peer := ""
			n.until(t, "that "+name+" is a member", func() bool {
				for _, q := range n.Observe().Peers {
					if q.Gossip == name && q.Live {
						peer = q.Node
					}
				}
				return peer != ""
			})
			want := n.heard(peer) + 5
			n.until(t, "exchanges with "+peer, func() bool { return n.heard(peer) >= want })
		}
	}
}

func TestRealExchanges(t *testing.T) {
	for name, keys := range map[string][]int{"plain": nil, "sealed": {0}} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			for _, n := range trio(t, keys...) {
				st := n.Observe()
				if len(st.Peers) != 2 || st.Keys != len(keys) || st.Addr != n.addr || st.Left != 0 {
					t.Errorf("%+v", st)
				}
			}
		})
	}
}

// A key is changed in three steps under load, node by node, and no member is
// ever thought dead. A node that kept the old key is then a outsider.
func TestRealKeyRotation(t *testing.T) {
	noLeaks(t)
	nodes := trio(t, 0)
	for _, step := range [][]int{{0, 1}, {1, 0}, {1}} {
		for _, n := range nodes {
			n.write(t, step...)
			n.ring.Check()
			if st := n.Observe(); st.Keys != len(step) || st.PrimaryKey != keyID(step[0]) {
				t.Errorf("%s: keys %v: %+v", n.addr, step, st)
			}
			more(t, nodes...) // half of the cluster is a step behind
		}
	}
	for _, n := range nodes {
		st := n.Observe()
		if st.Joined != 2 || st.Left != 0 {
			t.Errorf("%s: %+v", n.addr, st)
		}
	}
	late := start(t, "late", 0)
	late.SetPeers([]agreement.Peer{nodes[0].peer})
	nodes[0].until(t, "that the old key was tried", func() bool { return late.Observe().JoinFailures >= 2 })
	if st := late.Observe(); len(late.members()) != 0 || st.Exchanges != 0 {
		t.Errorf("the old key still opens: %+v", st)
	}
}

func TestListenAddresses(t *testing.T) {
	noLeaks(t)
	for _, tc := range []struct{ bind, advertise, want string }{
		{"127.0.0.1:0", "", "127.0.0.1:"},
		{"localhost:0", "", "127.0.0.1:"},
		{"127.0.0.1:0", "192.0.2.7:7000", "192.0.2.7:7000"},
		{"127.0.0.1:0", "192.0.2.7:0", "192.0.2.7:"},
	} {
		tr, addr, err := cluster.Listen(cluster.Config{Bind: tc.bind, Advertise: tc.advertise, Local: &scripted{rate: 1}})
		fatal.If(t, err)
		if !strings.HasPrefix(addr, tc.want) || strings.HasSuffix(addr, ":0") {
			t.Errorf("bound to %s and told %q: got %s", tc.bind, tc.advertise, addr)
		}
		if ip, port, err := tr.FinalAdvertiseAddr("", 0); err != nil || net.JoinHostPort(ip.String(), fmt.Sprint(port)) != addr {
			t.Errorf("the transport says %v:%v, %v", ip, port, err)
		}
		// Packets and connections that nobody took must not keep it from closing.
		if tc.advertise == "" {
			udp, err := net.Dial("udp", addr)
			fatal.If(t, err)
			tcp, err := net.Dial("tcp", addr)
			fatal.If(t, err)
			for range 3 {
				_, _ = udp.Write([]byte("probe"))
			}
			defer udp.Close()
			defer tcp.Close()
		}
		if err := tr.Shutdown(); err != nil {
			t.Error(err)
		}
	}
	taken, addr, err := cluster.Listen(cluster.Config{Bind: "127.0.0.1:0", Local: &scripted{rate: 1}})
	fatal.If(t, err)
	defer func() { _ = taken.Shutdown() }()
	if _, _, err := cluster.Listen(cluster.Config{Bind: addr, Local: &scripted{rate: 1}}); err == nil {
		t.Error("one port was bound twice")
	}
}

func TestRunListensItself(t *testing.T) {
	noLeaks(t)
	cfg := cluster.Config{
		Node: "n", Instance: uuid.NewString(), Label: "l", Pool: "p", Bind: "127.0.0.1:0",
		Local: &scripted{begin: time.Now(), rate: 1}, OnExchange: func(agreement.Exchange) {},
	}
	c, err := cluster.New(cfg)
	fatal.If(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.Run(ctx); err != nil || !strings.HasPrefix(c.Observe().Addr, "127.0.0.1:") {
		t.Errorf("%v, %+v", err, c.Observe())
	}
	if err := c.Run(ctx); err == nil {
		t.Error("it ran twice")
	}
	var noKey = cfg
	noKey.Bind = "0.0.0.0:0"
	if _, err := cluster.New(noKey); !errors.Is(err, cluster.ErrNoKey) {
		t.Errorf("got %v", err)
	}
}

// A packet that the library still wants to send while it leaves is no error.
func TestPacketAfterShutdown(t *testing.T) {
	noLeaks(t)
	tr, addr, err := cluster.Listen(cluster.Config{Bind: "127.0.0.1:0", Local: &scripted{rate: 1}})
	fatal.If(t, err)
	fatal.If(t, tr.Shutdown())
	if _, err := tr.WriteTo([]byte("late"), addr); err != nil {
		t.Errorf("a packet after Shutdown: %v", err)
	}
	if _, err := tr.WriteToAddress([]byte("late"), cluster.Address{Addr: addr}); err != nil {
		t.Errorf("a packet after Shutdown: %v", err)
	}
}
