package virtual

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/etcdsim"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/gossiptest"
	"github.com/flakelease/allocator/chaos/netsim"
	"github.com/flakelease/allocator/chaos/scale"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

var (
	scaleSizes = flag.String("scale", "", "measure clusters of these sizes, comma-separated, and write them to -scale-out")
	scaleOut   = flag.String("scale-out", "../scale/testdata/measured.json", "see -scale")
)

// counted counts the traffic of a node with etcd.
type counted struct {
	loads, reads, writes, other atomic.Int64 // calls
	sent, received              atomic.Int64 // bytes, without headers of IP and TCP
}

// intercept counts the calls that a node makes.
func (c *counted) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	switch r := req.(type) {
	case *etcdserverpb.TxnRequest:
		// A list of the space has ranges without bounds of a single key's.
		switch puts := slices.ContainsFunc(r.Success, func(o *etcdserverpb.RequestOp) bool { return o.GetRequestPut() != nil }); {
		case puts:
			c.writes.Add(1)
		case slices.ContainsFunc(r.Success, func(o *etcdserverpb.RequestOp) bool {
			return strings.HasSuffix(string(o.GetRequestRange().GetKey()), "/node/")
		}):
			c.loads.Add(1)
		default:
			c.reads.Add(1)
		}
	default:
		c.other.Add(1)
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// countedConn counts the bytes of a connection.
type countedConn struct {
	net.Conn
	c *counted
}

func (w countedConn) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.c.received.Add(int64(n))
	return n, err
}

func (w countedConn) Write(b []byte) (int, error) {
	n, err := w.Conn.Write(b)
	w.c.sent.Add(int64(n))
	return n, err
}

// measuredNode is a node of a cluster that is measured.
type measuredNode struct {
	counted
	d      *daemon.Daemon
	gossip *gossiptest.Transport
	host   string
	stop   func()
}

// sums is the traffic of all nodes until now.
type sums struct {
	loads, reads, writes, other, keepalives        int64
	sent, received                                 int64
	gossipSent, packets, dropped, pings, exchanges int64
}

func (a sums) minus(b sums) sums {
	return sums{a.loads - b.loads, a.reads - b.reads, a.writes - b.writes, a.other - b.other, a.keepalives - b.keepalives, a.sent - b.sent, a.received - b.received,
		a.gossipSent - b.gossipSent, a.packets - b.packets, a.dropped - b.dropped, a.pings - b.pings, a.exchanges - b.exchanges}
}

// measure runs n unmodified nodes of layout fleet in a bubble: they start at once,
// run for calm without a fault, and then some are restarted in turn, one each pause.
func measure(t *testing.T, n int, calm time.Duration, restarts int, pause time.Duration) (out scale.Measured) {
	t.Helper()
	out = scale.Measured{Nodes: n, CalmSeconds: calm.Seconds(), Restarts: restarts, Pause: pause.Seconds()}
	began := time.Now()
	heapAtFirst, _ := memory()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		network := netsim.New(time.Millisecond)
		gossip := gossiptest.New(time.Now, 1)
		gossip.SetLink(gossiptest.Link{Latency: time.Millisecond, Jitter: 2 * time.Millisecond})
		etcd := etcdsim.New(func() (net.Listener, error) { return network.Listen(etcdHost + ":2379") })
		defer etcd.Close()
		fatal.If(t, etcd.Start())
		admin, err := etcdstore.Dial(etcdstore.Config{
			Endpoints: []string{"http://" + etcdHost + ":2379"},
			Options:   []grpc.DialOption{grpc.WithContextDialer(network.Dialer("admin"))},
		})
		fatal.If(t, err)
		defer admin.Close()
		store, err := etcdstore.New(admin, "allocator", "default")
		fatal.If(t, err)
		space := lease.Space{Layout: flake.Fleet, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "7c9e6679-7425-40de-944b-e07fc1f90ae7"}
		if _, _, err := store.Init(t.Context(), space, clocktest.TrueMillis(0)); err != nil { // Else no node takes the mark along for ten minutes.
			t.Fatal(err)
		}
		var mu sync.Mutex // guards keepalives
		keepalives := int64(0)
		etcd.SetFault(func(c etcdsim.Call) etcdsim.Fault {
			if c.Method == "Lease/LeaseKeepAlive" {
				mu.Lock()
				keepalives++
				mu.Unlock()
			}
			return etcdsim.None
		})

		var nodes, all []*measuredNode
		var ends sync.WaitGroup
		start := func(name string) *measuredNode {
			g := &measuredNode{host: fmt.Sprintf("host%d", len(all)+1)}
			all = append(all, g)
			cfg := settings(g.host, name)
			cfg.Layout = flake.Fleet
			dial := network.Dialer(g.host)
			var err error
			g.d, err = daemon.New(daemon.Config{Settings: cfg, Version: "v1.0.0", Logger: slog.New(slog.DiscardHandler), Host: daemon.Host{
				Clock:  clock.NewSystem(clocktest.NewMachine(begin, 0)),
				Listen: func(_ context.Context, _, at string) (net.Listener, error) { return network.Listen(at) },
				Gossip: func(cluster.Config) (cluster.Transport, string, error) {
					g.gossip = gossip.Listen()
					return g.gossip, g.gossip.Addr(), nil
				},
				Etcd: []grpc.DialOption{
					grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
						c, err := dial(ctx, to)
						if err != nil {
							return nil, err
						}
						return countedConn{c, &g.counted}, nil
					}),
					grpc.WithChainUnaryInterceptor(g.intercept),
				},
			}})
			fatal.If(t, err)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			ends.Go(func() {
				defer close(ended)
				if err := g.d.Run(ctx); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
			g.stop = func() { cancel(); <-ended }
			return g
		}
		total := func() (s sums) {
			for _, g := range all {
				s.loads += g.loads.Load()
				s.reads += g.reads.Load()
				s.writes += g.writes.Load()
				s.other += g.other.Load()
				s.sent += g.sent.Load()
				s.received += g.received.Load()
				if g.gossip != nil {
					s.gossipSent += int64(g.gossip.Traffic.Sent.Load())
					s.packets += int64(g.gossip.Traffic.Packets.Load())
					s.dropped += int64(g.gossip.Traffic.Dropped.Load())
				}
			}
			mu.Lock()
			s.keepalives = keepalives
			mu.Unlock()
			return s
		}

		for i := range n {
			nodes = append(nodes, start(fmt.Sprintf("allocator-%d", i)))
		}
		for !allReady(nodes) {
			if time.Since(begin) > 5*time.Minute {
				t.Fatalf("%d nodes: not all ready within 5 min", n)
			}
			time.Sleep(50 * time.Millisecond)
		}
		out.Start.Seconds = time.Since(begin).Seconds()
		s := total()
		out.Start.Loads, out.Start.Writes, out.Start.ReadBytes = float64(s.loads+s.reads)/float64(n), float64(s.writes)/float64(n), float64(s.received)/float64(n)

		time.Sleep(90 * time.Second) // lists that the start asked for, and gossip's first exchanges
		before, from := total(), time.Now()
		time.Sleep(calm)
		out.Calm = perNode(total().minus(before), time.Since(from), n)
		confirmed := 0
		for _, g := range nodes {
			if g.d.Clocks().Gate.Verdict.Confirmed() {
				confirmed++
			}
		}
		out.Confirmed = confirmed
		heap, goroutines := memory()
		out.HeapKB = float64(heap-heapAtFirst) / float64(n) / 1024
		out.Goroutines = float64(goroutines) / float64(n)

		if restarts > 0 {
			before, from = total(), time.Now()
			for i := range restarts {
				next := time.Now().Add(pause)
				nodes[i%n].stop()
				nodes[i%n] = start(fmt.Sprintf("allocator-%d", i%n))
				time.Sleep(max(time.Until(next), 0))
			}
			out.Rolling = perNode(total().minus(before), time.Since(from), n)
		}
		out.Dropped = int(total().dropped)
		for _, g := range nodes {
			go g.stop()
		}
		ends.Wait()
		time.Sleep(30 * time.Second)
	})
	out.RealSeconds = time.Since(began).Seconds()
	return out
}

func allReady(nodes []*measuredNode) bool {
	for _, g := range nodes {
		if g.d.Node().Ready() != nil {
			return false
		}
	}
	return true
}

func perNode(s sums, d time.Duration, n int) scale.Rates {
	per := func(v int64) float64 { return float64(v) / d.Seconds() / float64(n) }
	return scale.Rates{
		Writes: per(s.writes), Loads: per(s.loads), KeepAlives: per(s.keepalives),
		SentBytes: per(s.sent), ReadBytes: per(s.received),
		GossipPackets: per(s.packets), GossipBytes: per(s.gossipSent),
	}
}

// memory returns bytes of the heap and stacks in use, and goroutines.
func memory() (bytes int64, goroutines int) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
}

// TestScale measures small clusters and compares them with the calculation; with
// -scale it measures the given sizes and saves the results.
func TestScale(t *testing.T) {
	if *scaleSizes == "" {
		slow(t)
		m := measure(t, 6, 2*time.Minute, 6, 5*time.Second)
		for _, d := range scale.Differences(m) {
			t.Error(d)
		}
		t.Logf("%+v", m)
		return
	}
	var all []scale.Measured
	for _, size := range strings.Split(*scaleSizes, ",") {
		n, err := strconv.Atoi(size)
		fatal.If(t, err)
		m := measure(t, n, 2*time.Minute, min(n, 32), 2*time.Second)
		b, _ := json.Marshal(m)
		t.Logf("%s", b)
		all = append(all, m)
	}
	// Measurements of other sizes stay.
	if b, err := os.ReadFile(*scaleOut); err == nil {
		var old []scale.Measured
		fatal.If(t, json.Unmarshal(b, &old))
		for _, m := range old {
			if !slices.ContainsFunc(all, func(o scale.Measured) bool { return o.Nodes == m.Nodes }) {
				all = append(all, m)
			}
		}
	}
	slices.SortFunc(all, func(a, b scale.Measured) int { return a.Nodes - b.Nodes })
	b, err := json.MarshalIndent(all, "", "\t")
	fatal.If(t, err)
	fatal.If(t, os.WriteFile(*scaleOut, append(b, '\n'), 0o644))
}
