package virtual

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/etcdsim"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/gossiptest"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/netsim"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// Names of hosts on the network.
const (
	etcdHost   = "etcd"
	clientHost = "client"
)

// env is a space with its nodes in a bubble. All times are those of the bubble.
type env struct {
	t      *testing.T
	begin  time.Time
	net    *netsim.Network
	gossip *gossiptest.Network
	etcd   *etcdsim.Server
	admin  *clientv3.Client // from a host of its own, which has no faults
	store  *etcdstore.Store

	nodes []*member // all that were started
	ends  sync.WaitGroup

	mu   sync.Mutex // guards hist
	hist history.History
}

// run runs a scenario. When f returns, the nodes that still run are stopped, and the
// claims I1 to I4 are checked on what was issued.
func run(t *testing.T, f func(e *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &env{
			t: t, begin: time.Now(), net: netsim.New(time.Millisecond), gossip: gossiptest.New(time.Now, 1),
			hist: history.History{Format: flake.Default},
		}
		e.gossip.SetLink(gossiptest.Link{Latency: time.Millisecond, Jitter: 2 * time.Millisecond})
		e.etcd = etcdsim.New(func() (net.Listener, error) { return e.net.Listen(etcdHost + ":2379") })
		defer e.etcd.Close()
		fatal.If(t, e.etcd.Start())
		var err error
		e.admin, err = etcdstore.Dial(etcdstore.Config{
			Endpoints: []string{"http://" + etcdHost + ":2379"},
			Options:   []grpc.DialOption{grpc.WithContextDialer(e.net.Dialer("admin"))},
		})
		fatal.If(t, err)
		defer e.admin.Close()
		e.store, err = etcdstore.New(e.admin, "allocator", "default")
		fatal.If(t, err)
		space := lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "7c9e6679-7425-40de-944b-e07fc1f90ae7"}
		if _, _, err := e.store.Init(context.Background(), space, clocktest.Epoch); err != nil {
			t.Fatal(err)
		}
		defer e.finish()
		f(e)
	})
}

// finish stops all nodes and checks what they did.
func (e *env) finish() {
	e.etcd.SetFault(nil)
	for _, m := range e.nodes {
		m.stop()
	}
	e.ends.Wait()
	time.Sleep(30 * time.Second) // for timers of the gossip library, and leases of crashed nodes
	e.check()
	if e.t.Failed() {
		for _, m := range e.nodes {
			log := m.log.String()
			e.t.Logf("%s %s: %+v\n%s", m.host, m.id(), m.d.Node().Stats().Lease, log[max(0, len(log)-5000):])
		}
	}
}

// check checks the claims, and that etcd has no holder and no registration left:
// every node was stopped or has crashed.
func (e *env) check() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	const windows = "/allocator/default/window/"
	tenures := map[flake.SID][]lease.Window{} // as acquired, in the order of terms
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.etcd.Events(windows, clientv3.GetPrefixRangeEnd(windows)) {
		key := string(ev.Kv.Key)
		n, err := strconv.ParseUint(strings.TrimPrefix(key, windows), 10, 16)
		r, unreadable := lease.Decode[lease.Window](string(ev.Kv.Value))
		if err != nil || unreadable != nil || ev.Type != mvccpb.PUT {
			e.t.Errorf("%s was deleted or corrupted: %v", key, ev)
			continue
		}
		sid := flake.SID(n)
		e.hist.Writes = append(e.hist.Writes, history.Write{
			SID: sid, Rev: ev.Kv.ModRevision, Term: r.Term, Base: r.Base, Ceil: r.Ceil, Released: r.State == lease.Released,
		})
		if of := tenures[sid]; len(of) == 0 || of[len(of)-1].Term != r.Term {
			tenures[sid] = append(of, r)
		}
	}
	if len(tenures) == 0 {
		e.t.Error("etcd has no window record")
	}
	e.hist.Hold(e.t)
	e.successors(tenures)
	now, err := e.store.Load(ctx)
	if err != nil {
		e.t.Errorf("load: %v", err)
		return
	}
	for sid, s := range now.SIDs {
		if s.Holder.Exists() {
			e.t.Errorf("sid %d is still held by %+v", sid, s.Holder.Value)
		}
	}
	if len(now.Nodes) > 0 {
		e.t.Errorf("still registered: %+v", now.Nodes)
	}
}

// ids returns how many IDs were issued so far.
func (e *env) ids() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.hist.IDs()
}

// successors checks I2 and I4 in another way: no holder issued a millisecond at or
// above the one that the next holder of its sid began with. It detects an overlap
// even if no two IDs are equal.
func (e *env) successors(tenures map[flake.SID][]lease.Window) {
	e.t.Helper()
	reported := 0
	for _, i := range e.hist.Issues {
		from, to := clock.Millis(flake.Default.UnixMilli(i.First)), clock.Millis(flake.Default.UnixMilli(i.Last()))
		of := tenures[flake.Default.SID(i.First)]
		own := -1
		for n, t := range of {
			if string(t.Instance) == i.Process && t.Base <= from {
				own = n
			}
		}
		switch {
		case own < 0:
			history.Violated(e.t, "I3", "%s issued %d of sid %d, which it did not have",
				i.Process, from, flake.Default.SID(i.First))
		case own+1 < len(of) && of[own+1].Base <= to:
			if reported++; reported <= 10 {
				history.Violated(e.t, "I4", "sid %d: term %d issued millisecond %d, and term %d began at %d",
					flake.Default.SID(i.First), of[own].Term, to, of[own+1].Term, of[own+1].Base)
			}
		}
	}
}

// slow skips a test with -race that only repeats others for longer, or with more
// nodes.
func slow(t *testing.T) {
	t.Helper()
	if tier.Raced {
		t.Skip("not run with -race: too slow; runs without it")
	}
}

// now returns the time since the scenario began.
func (e *env) now() time.Duration { return time.Since(e.begin) }

// onlyOneSID quarantines all sids but 0, as an operator does.
func (e *env) onlyOneSID() {
	e.t.Helper()
	for sid := 1; sid < 32; sid++ {
		_, err := e.admin.Put(context.Background(), fmt.Sprintf("/allocator/default/window/%d", sid), lease.Encode(lease.Window{
			Era: 1, Term: 1, Instance: "none", Node: "none", Nonce: "none", Base: 1, Ceil: 1, State: lease.Quarantined,
		}))
		fatal.If(e.t, err)
	}
}

// settings returns the configuration of a node on a host: the defaults.
func settings(host, name string) config.Config {
	c := config.Default()
	c.Node.Name = name
	c.Etcd.Endpoints = []string{"http://" + etcdHost + ":2379"}
	c.Listen = config.Listen{GRPC: host + ":9000", HTTP: host + ":8080", Admin: host + ":7947", Gossip: "127.0.0.1:7946", Insecure: true}
	return c
}

// span is a time from the start of the scenario on.
type span struct{ from, to time.Duration }

func (d span) has(t time.Duration) bool { return d.from <= t && t <= d.to }

func (d span) String() string { return fmt.Sprintf("%v to %v", d.from, d.to) }

// dice returns a source of randomness by its seed, for scenarios that repeat as far
// as the scheduler allows.
func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 5)) }
