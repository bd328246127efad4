package agreement_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/gossiptest"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/agreement/watcher"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/keeper"
	"github.com/flakelease/allocator/internal/node"
)

// The defaults of package config, which tests below compare with.
const (
	window   = 30 * time.Second
	leaseTTL = 15 * time.Second
	maxSkew  = 250 * time.Millisecond
	maxLead  = 250 * time.Millisecond
	grace    = 60 * time.Second
	pool     = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
)

// testEnv is a space with its nodes in a bubble: whole ones, but for their ports,
// on one store and one network in memory. Package virtual has whole processes and a
// simulated etcd, whose smallest fault is a call; here each clock and packet has faults.
type testEnv struct {
	t     *testing.T
	begin time.Time
	net   *gossiptest.Network
	store *storetest.Memory
	ctx   context.Context // the environment's: for what is not a node

	members []*member

	mu   sync.Mutex // guards what follows, and makes writes and their record one
	hist history.History
	puts []put
}

// put is a window record as it came to be in the store.
type put struct {
	at     time.Duration // of true time, as all times here, since the beginning
	by     lease.Instance
	op     lease.Op
	sid    flake.SID
	window lease.Window
}

// runScenario runs f in simulated time. When f returns, all nodes stop, and the record of what
// they did is held against the claims I1 to I4.
func runScenario(t *testing.T, f func(env *testEnv)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		env := &testEnv{
			t: t, begin: time.Now(), net: gossiptest.New(time.Now, 1), store: storetest.NewMemory(1), ctx: ctx,
			hist: history.History{Format: flake.Default},
		}
		env.net.SetLink(gossiptest.Link{Latency: time.Millisecond, Jitter: 2 * time.Millisecond})
		_, _, err := env.store.Init(ctx, lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: pool}, 0)
		fatal.If(t, err)
		expiry := make(chan struct{})
		go func() {
			defer close(expiry)
			for ctx.Err() == nil {
				time.Sleep(500 * time.Millisecond)
				env.store.Advance(500 * time.Millisecond)
			}
		}()
		defer func() {
			for _, m := range env.members {
				m.stop()
			}
			stop()
			<-expiry
			time.Sleep(30 * time.Second) // for timers of the gossip library
			env.hist.Hold(t)
			if t.Failed() {
				for _, m := range env.members {
					t.Logf("%s\n%s", m, tail(m.log.String(), 6000))
				}
			}
		}()
		f(env)
	})
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// now returns true time.
func (env *testEnv) now() time.Duration { return time.Since(env.begin) }

// options say how a node differs from a sound one.
type options struct {
	name     string        // "" numbers it
	off      time.Duration // of its wall clock at the start
	kernel   string        // "good", "bad"; else it does not say
	strict   bool
	noGossip bool
	expect   int                 // nodes that its start waits for
	pace     time.Duration       // between requests; 0: 250 ms
	store    *storetest.Memory   // another than the environment's
	keep     func(*lease.Config) // edits the keeper's settings
	// What it reports to its peers, given the truth.
	clocks func(clock.Snapshot) clock.Snapshot
	status func(agreement.Status) agreement.Status
}

// member is a node of an environment.
type member struct {
	env      *testEnv
	name     string
	instance lease.Instance
	clocks   *clocktest.Machine
	system   *clock.System
	node     *node.Node
	keeper   *keeper.Keeper
	watch    *watcher.Watcher
	net      *gossiptest.Transport
	etcd     *storetest.Faulty
	stop     func() // gracefully; again does nothing
	log      *output.Text
	opts     options

	mu     sync.Mutex // guards the rest
	tries  []try
	events []clock.AnchorEvent
	away   bool // the client does not ask
}

// try is one request and its answer.
type try struct {
	begin, end time.Duration
	issued     clock.Millis
	refusal    *node.Refusal // nil: issued
}

func (m *member) String() string {
	return fmt.Sprintf("%s at %v: verdict %+v, lease %v %q, anchor %+v", m.name, m.env.now(),
		m.watch.Report().Gate.Verdict, m.keeper.Status().Phase, m.keeper.Status().Problem, m.system.Stats())
}

// startAll starts n sound nodes.
func (env *testEnv) startAll(n int) []*member {
	for range n {
		env.start(options{})
	}
	return env.members[len(env.members)-n:]
}

// start starts a node as the daemon does.
func (env *testEnv) start(o options) *member {
	env.t.Helper()
	i := len(env.members)
	if o.name == "" {
		o.name = fmt.Sprintf("node-%02d", i)
	}
	if o.pace == 0 {
		o.pace = 250 * time.Millisecond
	}
	r := mathrand.New(mathrand.NewPCG(uint64(i), 7))
	m := &member{
		env: env, name: o.name, instance: lease.Instance(uuid.NewString()), opts: o, log: &output.Text{}, net: env.net.Listen(),
		clocks: clocktest.NewMachine(env.begin, o.off),
	}
	m.clocks.Origin, m.clocks.Rate = 1+r.Int64N(1e15), r.Int64N(100)-50
	if o.kernel != "" {
		m.clocks.SetKernel(o.kernel == "good")
	}
	m.system = clock.NewSystem(m.clocks)
	m.node = node.New(node.Config{
		Name: m.name, Instance: m.instance, MaxWait: 100 * time.Millisecond, MaxSkew: maxSkew,
		Gen: gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: clock.MillisOf(maxLead), MaxStep: 255},
	}, m.system, gen.Random())
	store := o.store
	if store == nil {
		store = env.store
	}
	m.etcd = storetest.NewFaulty(recorded{store, m}, nil)
	log := clocktest.Logger(m.log, env.begin)
	lc := lease.Config{
		Registration: lease.Registration{Instance: m.instance, Node: m.name, Version: "test", Gossip: m.net.Addr(), Started: m.system.Read().WallMillis()},
		Gated:        true, Format: flake.Default,
		Bounds: lease.Bounds{Window: window, MaxSkew: maxSkew, MaxLead: maxLead}, ExtendEvery: 5 * time.Second, TTL: leaseTTL, KeepAliveEvery: 3 * time.Second,
		ReloadEvery: 30 * time.Second, RetryAfter: 250 * time.Millisecond,
		Nonce: rand.Text, Jitter: func(most time.Duration) time.Duration { return mathrand.N(max(most, 1)) },
	}
	if o.noGossip {
		lc.Registration.Gossip = ""
	}
	if o.keep != nil {
		o.keep(&lc)
	}
	m.keeper = keeper.New(keeper.Config{
		Machine: lc, Store: reported{m.etcd, m}, Generator: m.node, Clock: m.system, Logger: log,
		CallTimeout: 2 * time.Second, StopTimeout: 5 * time.Second,
	})
	m.watch = watcher.New(watcher.Config{
		Machine: agreement.Config{
			Name: m.name, Instance: m.instance, Expect: o.expect,
			Gate: clock.GateConfig{MaxSkew: maxSkew, Grace: grace, Strict: o.strict},
		},
		Clock: m.system, Keeper: m.keeper, Node: m.node, Logger: log,
	})
	if o.noGossip {
		m.run(nil)
		env.members = append(env.members, m)
		return m
	}
	gossip, err := cluster.New(cluster.Config{
		Node: m.name, Instance: string(m.instance), Label: "allocator/test", Pool: pool, Transport: m.net,
		Local: outgoing{m}, Logger: log, Random: mathrand.NewPCG(uint64(i), 11),
		OnExchange: m.watch.OnExchange,
	})
	fatal.If(env.t, err)
	m.watch.SetGossip(gossip)
	m.run(gossip)
	env.members = append(env.members, m)
	return m
}

// run starts what a daemon runs, and a client. gossip may be nil.
func (m *member) run(gossip *cluster.Cluster) {
	keeping, stopKeeper := context.WithCancel(context.Background())
	running, stopAll := context.WithCancel(context.Background())
	var kept, all sync.WaitGroup
	check := func(err error) {
		if err != nil {
			m.env.t.Errorf("%s: %v", m.name, err)
		}
	}
	all.Go(func() {
		check(m.system.Run(running, m.watch.PeerVote, func(e clock.AnchorEvent) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.events = append(m.events, e)
		}))
	})
	all.Go(func() { check(m.watch.Run(running)) })
	if gossip != nil {
		all.Go(func() { check(gossip.Run(running)) })
	}
	kept.Go(func() { check(m.keeper.Run(keeping)) })
	all.Go(func() { m.client(running) })
	m.stop = sync.OnceFunc(func() {
		m.node.Drain()
		stopKeeper()
		kept.Wait()
		stopAll()
		all.Wait()
	})
}

// client asks for an ID again and again, and writes down what it gets.
func (m *member) client(ctx context.Context) {
	for ctx.Err() == nil {
		if !m.isAway() {
			m.request(ctx)
		}
		select {
		case <-time.After(m.opts.pace):
		case <-ctx.Done():
		}
	}
}

func (m *member) isAway() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.away
}

func (m *member) setAway(away bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = away
}

func (m *member) request(ctx context.Context) {
	t := try{begin: m.env.now()}
	b, err := m.node.Next(ctx, 1, 0)
	t.end = m.env.now()
	switch r, ok := errors.AsType[*node.Refusal](err); {
	case err == nil:
		t.issued = clock.Millis(flake.Default.UnixMilli(b.First))
		m.env.mu.Lock()
		m.env.hist.Issues = append(m.env.hist.Issues, history.Issue{
			Process: string(m.instance), First: b.First, Count: 1, Stride: b.Stride,
			Begin: clock.Mono(t.begin), End: clock.Mono(t.end),
		})
		m.env.mu.Unlock()
	case !ok:
		m.env.t.Errorf("%s: %v is no refusal", m.name, err)
		return
	default:
		t.refusal = r
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tries = append(m.tries, t)
}

// outgoing is what a node reports to its peers: the truth, unless its options say
// otherwise.
type outgoing struct{ *member }

func (v outgoing) Clocks() clock.Snapshot {
	c, _ := v.system.Snapshot()
	if v.opts.clocks != nil {
		c = v.opts.clocks(c)
	}
	return c
}

func (v outgoing) Status() agreement.Status {
	s := v.watch.Status()
	if v.opts.status != nil {
		s = v.opts.status(s)
	}
	return s
}

// recorded is the store itself, with a record of what was written to it: also
// where the writer gets no answer.
type recorded struct {
	*storetest.Memory
	m *member
}

func (r recorded) Commit(ctx context.Context, txn lease.Txn) (bool, lease.View, error) {
	env := r.m.env
	env.mu.Lock()
	defer env.mu.Unlock()
	ok, v, err := r.Memory.Commit(ctx, txn)
	if ok && err == nil {
		rec := v.SIDs[txn.SID].Window
		env.puts = append(env.puts, put{time.Since(env.begin), r.m.instance, txn.Op, txn.SID, rec.Value})
		if r.Memory == env.store && txn.Op != lease.Expire {
			env.hist.Writes = append(env.hist.Writes, history.Write{
				SID: txn.SID, Rev: rec.Rev, Term: rec.Value.Term, Base: rec.Value.Base, Ceil: rec.Value.Ceil,
				Released: rec.Value.State == lease.Released,
			})
		}
	}
	return ok, v, err
}

// reported is the store as a node gets its answers: its records count as grants
// from then on. Each call takes a while.
type reported struct {
	*storetest.Faulty
	m *member
}

func (h reported) Commit(ctx context.Context, txn lease.Txn) (bool, lease.View, error) {
	time.Sleep(time.Millisecond)
	ok, v, err := h.Faulty.Commit(ctx, txn)
	h.note(v, err)
	return ok, v, err
}

func (h reported) Read(ctx context.Context, sid flake.SID) (lease.View, error) {
	time.Sleep(time.Millisecond)
	v, err := h.Faulty.Read(ctx, sid)
	h.note(v, err)
	return v, err
}

func (h reported) note(v lease.View, err error) {
	if err != nil {
		return
	}
	h.m.env.mu.Lock()
	defer h.m.env.mu.Unlock()
	for sid, s := range v.SIDs {
		if r := s.Window.Value; r.Instance == h.m.instance && r.State == lease.Active {
			h.m.env.hist.Grants = append(h.m.env.hist.Grants, history.Grant{
				Process: string(h.m.instance), SID: sid, Base: r.Base, Ceil: r.Ceil, At: clock.Mono(h.m.env.now()),
			})
		}
	}
}
