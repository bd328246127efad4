package virtual

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
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

	"github.com/flakelease/allocator/chaos/etcdsim"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/netsim"
	"github.com/flakelease/allocator/chaos/scale"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/dev/devetcd"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/lease/keeper"
	"github.com/flakelease/allocator/internal/lease/protocol"
)

var (
	readsSizes = flag.String("reads", "", "measure what keepers read from etcd in clusters of these sizes, comma-separated, and write it to -reads-out")
	readsOut   = flag.String("reads-out", "../scale/testdata/reads.json", "see -reads")
	readsEtcd  = flag.String("reads-etcd", "", "measure keepers in real time against the etcd at this URL, which is empty, and write it to chaos/scale/testdata/real.json")
	realSize   = flag.Int("reads-keepers", 1024, "how many; see -reads-etcd")
)

// noGenerator is the generator of a keeper whose node issues nothing.
type noGenerator struct {
	mu     sync.Mutex // guards the rest
	base   clock.Millis
	grants int
}

func (g *noGenerator) Begin(b lease.Grant) { g.mu.Lock(); g.base = b.Base; g.grants++; g.mu.Unlock() }
func (g *noGenerator) Lift(clock.Millis)   {}
func (g *noGenerator) Raise(clock.Millis)  {}
func (g *noGenerator) Seal() clock.Millis  { g.mu.Lock(); defer g.mu.Unlock(); return g.base }
func (g *noGenerator) Report(lease.Status) {}

// keepers runs keepers of layout fleet with default settings and etcd's own client, and
// without the rest of a node, for which there is not the time at a thousand of them.
type keepers struct {
	endpoint   string
	dialer     func(host string) func(ctx context.Context, to string) (net.Conn, error)
	intercept  grpc.UnaryClientInterceptor // nil: none
	clock      clock.Source
	spread     time.Duration // between the starts of two
	keepalives *atomic.Int64
	phase      func(name string) // is called when one begins; nil: nothing is
}

func (k keepers) dial(t *testing.T, host string, c *counted) *etcdstore.Store {
	t.Helper()
	dial := k.dialer(host)
	calls := []grpc.UnaryClientInterceptor{c.intercept}
	if k.intercept != nil {
		calls = append(calls, k.intercept)
	}
	client, err := etcdstore.Dial(etcdstore.Config{Endpoints: []string{k.endpoint}, Options: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			conn, err := dial(ctx, to)
			if err != nil {
				return nil, err
			}
			return countedConn{conn, c}, nil
		}),
		grpc.WithChainUnaryInterceptor(calls...),
	}})
	fatal.If(t, err)
	store, err := etcdstore.New(client, "allocator", "default")
	fatal.If(t, err)
	t.Cleanup(func() { client.Close() })
	return store
}

// readsOf measures keepers in virtual time, which start at once.
func readsOf(t *testing.T, n int, calm time.Duration, restarts int, pause time.Duration) (out scale.Measured) {
	t.Helper()
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		network := netsim.New(time.Millisecond)
		etcd := etcdsim.New(func() (net.Listener, error) { return network.Listen(etcdHost + ":2379") })
		defer etcd.Close()
		fatal.If(t, etcd.Start())
		k := keepers{endpoint: "http://" + etcdHost + ":2379", dialer: network.Dialer, keepalives: new(atomic.Int64),
			clock: clock.NewSystem(clock.SystemConfig{Clocks: &machine{begin: time.Now()}})}
		etcd.SetFault(func(c etcdsim.Call) etcdsim.Fault {
			if c.Method == "Lease/LeaseKeepAlive" {
				k.keepalives.Add(1)
			}
			return etcdsim.None
		})
		out = k.run(t, n, calm, restarts, pause)
		time.Sleep(30 * time.Second)
	})
	out.RealSeconds = time.Since(began).Seconds()
	return out
}

// run starts n keepers, leaves them alone for calm, and then some restart in turn, one
// each pause.
func (k keepers) run(t *testing.T, n int, calm time.Duration, restarts int, pause time.Duration) scale.Measured {
	t.Helper()
	out := scale.Measured{Nodes: n, CalmSeconds: calm.Seconds(), Restarts: restarts, Pause: pause.Seconds()}
	phase := func(name string) {
		if k.phase != nil {
			k.phase(name)
		}
	}
	if _, _, err := k.dial(t, "admin", &counted{}).Init(t.Context(), lease.Space{Layout: flake.Fleet, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "7c9e6679-7425-40de-944b-e07fc1f90ae7"}, 0); err != nil {
		t.Fatal(err)
	}
	l := config.Default().Lease
	type member struct {
		counted
		*keeper.Keeper
		generator noGenerator
		stop      func()
	}
	var all, members []*member
	start := func(i int) *member {
		m := &member{}
		all = append(all, m)
		host := fmt.Sprintf("host%d", i)
		m.Keeper = keeper.New(keeper.Config{
			Machine: protocol.Config{
				Registration: lease.Registration{Instance: lease.Instance(fmt.Sprintf("7c9e6679-7425-40de-944b-%012x", len(all))), Node: fmt.Sprintf("allocator-%d", i),
					Version: "v1.0.0", GRPC: host + ":9000", HTTP: host + ":8080", Gossip: "10.0.0.100:7946"},
				Format: flake.Format{Layout: flake.Fleet, Epoch: flake.DefaultEpoch},
				Window: l.Window, ExtendEvery: l.ExtendEvery, TTL: l.TTL, KeepAliveEvery: l.KeepAlive, ReloadEvery: l.ReloadEvery,
				RetryAfter: 250 * time.Millisecond, MaxSkew: 250 * time.Millisecond, MaxLead: 250 * time.Millisecond,
				Nonce: rand.Text, Jitter: func(most time.Duration) time.Duration { return mathrand.N(max(most, 1)) },
			},
			Store: k.dial(t, host, &m.counted), Generator: &m.generator, Clock: k.clock, Logger: slog.New(slog.DiscardHandler),
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
		s.keepalives = k.keepalives.Load()
		return s
	}
	begin := time.Now()
	for i := range n {
		members = append(members, start(i))
		time.Sleep(k.spread)
	}
	for slices.ContainsFunc(members, func(m *member) bool { return !m.Status().Held }) {
		if time.Sleep(50 * time.Millisecond); time.Since(begin) > time.Duration(n)*k.spread+5*time.Minute {
			t.Fatal("not all hold a sid 5 minutes after the last began")
		}
	}
	out.Start.Seconds = time.Since(begin).Seconds()
	s := total()
	out.Start.Loads, out.Start.Writes, out.Start.ReadBytes = float64(s.loads+s.reads)/float64(n), float64(s.writes)/float64(n), float64(s.received)/float64(n)
	check := func(when string) {
		for _, m := range members {
			if st := m.Status(); !st.Held || len(st.Nodes) != n || st.Pool.Held != n {
				t.Errorf("%s: a node has %d nodes and %d held sids in its list, want %d; phase %v", when, len(st.Nodes), st.Pool.Held, n, st.Phase)
				return
			}
		}
	}
	time.Sleep(100 * time.Second) // lists that the start asked for
	check("after the start")
	phase("rest")
	before, from := total(), time.Now()
	time.Sleep(calm)
	out.Calm = perNode(total().minus(before), time.Since(from), n)
	check("at rest")
	phase("restarts")
	before, from = total(), time.Now()
	for i := range restarts {
		next := time.Now().Add(pause)
		members[i%n].stop()
		members[i%n] = start(i % n)
		time.Sleep(max(time.Until(next), 0))
	}
	out.Rolling = perNode(total().minus(before), time.Since(from), n)
	phase("end")
	time.Sleep(70 * time.Second) // a node that has just started may list within 64 s
	check("after the restarts")
	var ends sync.WaitGroup
	for _, m := range members {
		ends.Go(m.stop)
	}
	ends.Wait()
	grants := 0
	for _, m := range all {
		grants += m.generator.grants
	}
	if grants != n+restarts {
		t.Errorf("%d sids were acquired, want %d: leases were lost", grants, n+restarts)
	}
	return out
}

// TestReads measures what keepers read from etcd. With -reads it measures the given
// sizes and saves the results, to which chaos/scale holds its calculation.
func TestReads(t *testing.T) {
	if *readsSizes == "" {
		slow(t)
		tier.Check(t, "22 minutes of 32 keepers")
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
		fatal.If(t, err)
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
	fatal.If(t, err)
	fatal.If(t, os.WriteFile(*readsOut, append(b, '\n'), 0o644))
}

// TestReadsOfARealEtcd measures keepers in real time against the etcd of -reads-etcd,
// and saves the results for chaos/scale. That etcd must have no space
// allocator/default yet. Without it the test has an etcd of its own and saves nothing.
func TestReadsOfARealEtcd(t *testing.T) {
	keep := *readsEtcd != ""
	if !keep {
		tier.Nightly(t, "1,024 keepers on a real etcd, in real time")
		etcd, err := devetcd.Start(t.Context(), devetcd.Config{})
		fatal.If(t, err)
		defer etcd.Close()
		*readsEtcd = etcd.Endpoint()
	}
	const calm, restarts, pause = 2 * time.Minute, 32, 2 * time.Second
	var mu sync.Mutex // guards took
	var took []time.Duration
	type mark struct {
		at     time.Time
		sent   float64
		cpu    float64
		writes []time.Duration // since the mark before
	}
	marks := map[string]mark{}
	k := keepers{
		endpoint: *readsEtcd, clock: clock.NewSystem(clock.SystemConfig{}), keepalives: new(atomic.Int64),
		spread: 200 * time.Millisecond, // each start is four messages to every watch and two lists
		dialer: func(string) func(context.Context, string) (net.Conn, error) {
			return func(ctx context.Context, to string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", to)
			}
		},
		intercept: func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			began := time.Now()
			err := invoke(ctx, method, req, reply, cc, opts...)
			if r, ok := req.(*etcdserverpb.TxnRequest); ok && slices.ContainsFunc(r.Success, func(o *etcdserverpb.RequestOp) bool { return o.GetRequestPut() != nil }) {
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
			return err
		},
		phase: func(name string) {
			m := mark{at: time.Now(), sent: etcdMetric(t, "etcd_network_client_grpc_sent_bytes_total"), cpu: etcdMetric(t, "process_cpu_seconds_total")}
			mu.Lock()
			m.writes, took = took, nil
			mu.Unlock()
			slices.Sort(m.writes)
			marks[name] = m
		},
	}
	began := time.Now()
	out := scale.Real{Measured: k.run(t, *realSize, calm, restarts, pause)}
	out.RealSeconds = time.Since(began).Seconds()
	between := func(from, to mark) scale.RealRates {
		s, of := to.at.Sub(from.at).Seconds(), func(share float64) float64 {
			return float64(to.writes[int(share*float64(len(to.writes)-1))].Microseconds()) / 1e3
		}
		return scale.RealRates{Messages: (to.sent - from.sent) / s, Cores: (to.cpu - from.cpu) / s, WriteMedian: of(0.5), Write99: of(0.99), WriteMax: of(1)}
	}
	out.AtRest, out.InRestarts = between(marks["rest"], marks["restarts"]), between(marks["restarts"], marks["end"])
	b, err := json.MarshalIndent(out, "", "\t")
	fatal.If(t, err)
	t.Logf("%s", b)
	if t.Failed() || !keep {
		return
	}
	fatal.If(t, os.WriteFile("../scale/testdata/real.json", append(b, '\n'), 0o644))
}

// etcdMetric returns a metric of the etcd of -reads-etcd.
func etcdMetric(t *testing.T, name string) float64 {
	t.Helper()
	res, err := http.Get(*readsEtcd + "/metrics")
	fatal.If(t, err)
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			fatal.If(t, err)
			return v
		}
	}
	t.Fatalf("etcd has no metric %s", name)
	return 0
}
