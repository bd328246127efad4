package virtual

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/flakelease/allocator/chaos/etcdsim"
	"github.com/flakelease/allocator/chaos/netsim"
	"github.com/flakelease/allocator/chaos/scale"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/lease/keeper"
)

var (
	readsSizes = flag.String("reads", "", "measure what keepers read from etcd in clusters of these sizes, comma-separated, and write it to -reads-out")
	readsOut   = flag.String("reads-out", "../scale/testdata/reads.json", "see -reads")
)

// noGenerator is the generator of a keeper whose node issues nothing.
type noGenerator struct {
	mu   sync.Mutex // guards base
	base clock.Millis
}

func (g *noGenerator) Begin(b lease.Grant) { g.mu.Lock(); g.base = b.Base; g.mu.Unlock() }
func (g *noGenerator) Raise(clock.Millis)  {}
func (g *noGenerator) Seal() clock.Millis  { g.mu.Lock(); defer g.mu.Unlock(); return g.base }
func (g *noGenerator) Report(lease.Status) {}

// readsOf runs n keepers of layout fleet with default settings and etcd's own client,
// and without the rest of a node, for which there is not the time at a thousand of
// them. They start at once, run for calm, and then some restart in turn, one each
// pause.
func readsOf(t *testing.T, n int, calm time.Duration, restarts int, pause time.Duration) (out scale.Measured) {
	t.Helper()
	out = scale.Measured{Nodes: n, CalmSeconds: calm.Seconds(), Restarts: restarts, Pause: pause.Seconds()}
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		network := netsim.New(time.Millisecond)
		etcd := etcdsim.New(func() (net.Listener, error) { return network.Listen(etcdHost + ":2379") })
		defer etcd.Close()
		if err := etcd.Start(); err != nil {
			t.Fatal(err)
		}
		keepalives := int64(0) // etcd calls the function with a lock held
		etcd.SetFault(func(c etcdsim.Call) etcdsim.Fault {
			if c.Method == "Lease/LeaseKeepAlive" {
				keepalives++
			}
			return etcdsim.None
		})
		dial := func(host string, c *counted) *etcdstore.Store {
			dial := network.Dialer(host)
			client, err := etcdstore.Dial(etcdstore.Config{Endpoints: []string{"http://" + etcdHost + ":2379"}, Options: []grpc.DialOption{
				grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
					conn, err := dial(ctx, to)
					if err != nil {
						return nil, err
					}
					return countedConn{conn, c}, nil
				}),
				grpc.WithChainUnaryInterceptor(c.intercept),
			}})
			if err != nil {
				t.Fatal(err)
			}
			store, err := etcdstore.New(client, "allocator", "default")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			return store
		}
		store := dial("admin", &counted{})
		if _, _, err := store.Init(t.Context(), lease.Space{Layout: flake.Fleet, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "7c9e6679-7425-40de-944b-e07fc1f90ae7"}, 0); err != nil {
			t.Fatal(err)
		}
		src := clock.NewSystem(clock.SystemConfig{Clocks: &machine{begin: time.Now()}})
		l := config.Default().Lease
		type member struct {
			counted
			*keeper.Keeper
			stop func()
		}
		var all, members []*member
		start := func(i int) *member {
			m := &member{}
			all = append(all, m)
			host := fmt.Sprintf("host%d", i)
			m.Keeper = keeper.New(keeper.Config{
				Machine: lease.Config{
					Registration: lease.Registration{Instance: lease.Instance(fmt.Sprintf("7c9e6679-7425-40de-944b-%012x", len(all))), Node: fmt.Sprintf("allocator-%d", i),
						Version: "v1.0.0", GRPC: host + ":9000", HTTP: host + ":8080", Gossip: "10.0.0.100:7946"},
					Format: flake.Format{Layout: flake.Fleet, Epoch: flake.DefaultEpoch},
					Window: l.Window, ExtendEvery: l.ExtendEvery, TTL: l.TTL, KeepAliveEvery: l.KeepAlive, ReloadEvery: l.ReloadEvery,
					RetryAfter: 250 * time.Millisecond, MaxSkew: 250 * time.Millisecond, MaxLead: 250 * time.Millisecond,
					Nonce: rand.Text, Jitter: func(most time.Duration) time.Duration { return mathrand.N(max(most, 1)) },
				},
				Store: dial(host, &m.counted), Generator: &noGenerator{}, Clock: src, Logger: slog.New(slog.DiscardHandler),
				CallTimeout: l.CallTimeout, StopTimeout: 3 * time.Second,
			})
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- m.Run(ctx) }()
			m.stop = func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
			return m
		}
		total := func() (s sums) {
			for _, m := range all {
				s.loads += m.loads.Load()
				s.reads += m.reads.Load()
				s.writes += m.writes.Load()
				s.sent += m.sent.Load()
				s.received += m.received.Load()
			}
			s.keepalives = keepalives
			return s
		}
		for i := range n {
			members = append(members, start(i))
		}
		begin := time.Now()
		for slices.ContainsFunc(members, func(m *member) bool { return !m.Status().Held }) {
			if time.Sleep(50 * time.Millisecond); time.Since(begin) > 5*time.Minute {
				t.Fatal("not all hold a sid within 5 minutes")
			}
		}
		out.Start.Seconds = time.Since(begin).Seconds()
		s := total()
		out.Start.Loads, out.Start.Writes, out.Start.ReadBytes = float64(s.loads+s.reads)/float64(n), float64(s.writes)/float64(n), float64(s.received)/float64(n)
		check := func(when string) {
			for _, m := range members {
				if st := m.Status(); !st.Held || len(st.Nodes) != n || st.PoolHeld != n {
					t.Errorf("%s: a node has %d nodes and %d held sids in its list, want %d; phase %v", when, len(st.Nodes), st.PoolHeld, n, st.Phase)
					return
				}
			}
		}
		time.Sleep(100 * time.Second) // lists that the start asked for
		check("after the start")
		before, from := total(), time.Now()
		time.Sleep(calm)
		out.Calm = perNode(total().minus(before), time.Since(from), n)
		check("at rest")
		before, from = total(), time.Now()
		for i := range restarts {
			next := time.Now().Add(pause)
			members[i%n].stop()
			members[i%n] = start(i % n)
			time.Sleep(max(time.Until(next), 0))
		}
		out.Rolling = perNode(total().minus(before), time.Since(from), n)
		time.Sleep(70 * time.Second) // a node that has just started may list within 64 s
		check("after the restarts")
		for _, m := range members {
			go m.stop()
		}
		time.Sleep(30 * time.Second)
	})
	out.RealSeconds = time.Since(began).Seconds()
	return out
}

// TestReads measures what keepers read from etcd. With -reads it measures the given
// sizes and saves the results, from which docs/SCALE.md is made.
func TestReads(t *testing.T) {
	if *readsSizes == "" {
		slow(t)
		m := readsOf(t, 32, 22*time.Minute, 32, 2*time.Second)
		for _, d := range scale.ReadDifferences(m) {
			t.Error(d)
		}
		t.Logf("%+v", m)
		return
	}
	var all []scale.Measured
	for _, size := range strings.Split(*readsSizes, ",") {
		n, err := strconv.Atoi(size)
		if err != nil {
			t.Fatal(err)
		}
		calm := 22 * time.Minute // lists of all
		if n > 256 {
			calm = time.Minute // for which there is time: few list
		}
		m := readsOf(t, n, calm, 16, 2*time.Second)
		b, _ := json.Marshal(m)
		t.Logf("%s", b)
		all = append(all, m)
	}
	b, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*readsOut, append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
