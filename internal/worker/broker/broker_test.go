package broker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/worker"
	"github.com/flakelease/allocator/internal/worker/broker"
)

const (
	start  clock.Millis = 1_800_000_000_000
	window              = time.Minute
)

// cell is a space in memory and the nodes that serve workers on it, in virtual time.
type cell struct {
	t      *testing.T
	mem    *storetest.Memory
	faulty *storetest.Faulty
	began  time.Time
	log    bytes.Buffer // written by logger alone
	logger *slog.Logger
	known  lease.Status // at the beginning
}

// Now is the clock of all nodes.
func (c *cell) Now() clock.Reading {
	passed := time.Since(c.began)
	return clock.Reading{Wall: start + clock.MillisOf(passed), Mono: clock.Mono(passed + time.Hour)}
}

// Status is what all nodes know.
func (c *cell) Status() lease.Status { return c.known }

// status is what the store has now.
func (c *cell) status() lease.Status {
	v, _ := c.mem.Load(context.Background())
	return lease.Status{Space: v.Config.Value, Era: v.Era.Value, Cluster: v.Cluster, Revision: v.Revision, Listed: true, GateOpen: true}
}

// Limit permits any time.
func (c *cell) Limit() lease.Limit { return lease.Limit{Extend: math.MaxInt64, Acquire: math.MaxInt64} }

func newCell(t *testing.T) *cell {
	c := &cell{t: t, mem: storetest.NewMemory(7), began: time.Now()}
	c.faulty, c.logger = storetest.NewFaulty(c.mem, nil), slog.New(slog.NewTextHandler(&c.log, nil))
	if _, _, err := c.mem.Init(t.Context(), lease.Space{Layout: flake.Fleet, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "p"}, start); err != nil {
		t.Fatal(err)
	}
	c.known = c.status()
	return c
}

// node returns a broker on a node of its own.
func (c *cell) node(sids lease.SIDRange) (*broker.Broker, *node.Node) {
	n := node.New(node.Config{Name: "n", Gen: gen.Config{Layout: flake.Fleet, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 250}}, c, gen.Random())
	n.Report(c.Status())
	return broker.New(broker.Config{
		SIDs: sids, Bounds: lease.Bounds{WorkerWindow: window, MaxSkew: 250 * time.Millisecond, MaxLead: 250 * time.Millisecond}, CallTimeout: 2 * time.Second,
		Node: n, Keeper: c, Store: c.faulty, Logger: c.logger,
	}), n
}

// pass lets time pass, for leases too.
func (c *cell) pass(d time.Duration) {
	time.Sleep(d)
	c.mem.Advance(d)
}

var shop = broker.Client{Owner: "shop", Quota: 100}

// reason returns the reason of a refusal, 0 for nil and -1 for another error.
func reason(err error) node.Reason {
	if err == nil {
		return 0
	}
	r := refusal(err)
	if r == nil {
		return -1
	}
	return r.Reason
}

// refusal returns the refusal in an error; nil: it is another one.
func refusal(err error) *node.Refusal {
	r, _ := errors.AsType[*node.Refusal](err)
	return r
}

// TestAnyNode: what one node acquired another extends and a third releases; the number is
// usable again at once. A node that dies loses no worker. Logs name workers, and show no
// handle.
func TestAnyNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t)
		sids := lease.SIDRange{From: 512, To: 513}
		one, n := c.node(sids)
		two, _ := c.node(sids)
		three, _ := c.node(sids)
		w, err := one.Acquire(t.Context(), shop, worker.Acquire{Name: "import-1"})
		if err != nil || w.Handle.SID != 512 || w.NotBefore != start || w.NotAfter != start+60_000 || w.ExtendAt != start+20_000 {
			t.Fatalf("%+v, %v", w, err)
		}
		if n.Stats().Reserved != w.NotAfter {
			t.Errorf("the node knows a ceiling of %d", n.Stats().Reserved)
		}
		if _, err := two.Acquire(t.Context(), shop, worker.Acquire{Name: "import-2"}); reason(err) != node.NoWorker || !strings.Contains(err.Error(), "1 of 1 are held by import-1") {
			t.Errorf("the second: %v", err)
		}
		c.pass(20 * time.Second)
		if w, err = two.Extend(t.Context(), shop, worker.Extend{Handle: w.Handle, NotAfter: w.NotAfter}); err != nil || w.NotAfter != start+80_000 || w.NotBefore != start {
			t.Fatalf("%+v, %v", w, err)
		}
		if _, err := one.Extend(t.Context(), shop, worker.Extend{Handle: worker.Handle{SID: 512, Term: 1, Secret: "0123456789ABCDEF"}}); reason(err) != node.UnknownWorker {
			t.Errorf("somebody else: %v", err)
		}
		at, err := three.Release(t.Context(), shop, w.Handle, c.Now().Wall)
		if err != nil || at != start+20_000 {
			t.Fatalf("reusable from %d, %v", at-start, err)
		}
		again, err := two.Acquire(t.Context(), shop, worker.Acquire{Name: "import-2"})
		if err != nil || again.Handle.Term != 2 || again.NotBefore != at {
			t.Fatalf("%+v, %v", again, err)
		}
		// Killed: its number is usable after its interval, and not before.
		c.pass(59 * time.Second)
		if _, err := one.Acquire(t.Context(), shop, worker.Acquire{Name: "import-3"}); reason(err) != node.NoWorker {
			t.Errorf("a second early: %v", err)
		}
		c.pass(2 * time.Second)
		if third, err := one.Acquire(t.Context(), shop, worker.Acquire{Name: "import-3"}); err != nil || third.NotBefore < again.NotAfter {
			t.Errorf("%+v, %v", third, err)
		}
		for _, secret := range []string{w.Handle.Secret, again.Handle.Secret} {
			if log := c.log.String(); strings.Contains(log, secret) || !strings.Contains(log, "import-1") {
				t.Errorf("the log has a secret, or no name:\n%s", log)
			}
		}
	})
}

// TestInTurn: a client that acquires and releases in turn, as often as it may and without a word on
// what it used, delays no other.
func TestInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t)
		sids := lease.SIDRange{From: 512, To: 520}
		one, _ := c.node(sids)
		two, _ := c.node(sids)
		inTurn, other := broker.Client{Owner: "in turn", Quota: 4}, broker.Client{Owner: "other", Quota: 4}
		patiently := func(call func() error) {
			t.Helper()
			err := call()
			for ; reason(err) == node.RateLimited; err = call() {
				c.pass(refusal(err).RetryAfter)
			}
			fatal.If(t, err)
		}
		cycle := func(b *broker.Broker, client broker.Client, used func() clock.Millis) (w worker.Worker) {
			t.Helper()
			patiently(func() (err error) {
				w, err = b.Acquire(t.Context(), client, worker.Acquire{Name: client.Owner})
				return err
			})
			patiently(func() error {
				_, err := b.Release(t.Context(), client, w.Handle, used())
				return err
			})
			return w
		}
		for range 100 {
			cycle(one, inTurn, func() clock.Millis { return 0 })
			now := c.Now().Wall
			if w := cycle(two, other, func() clock.Millis { return c.Now().Wall }); w.NotBefore > now {
				t.Fatalf("after %v the other client waits for %v", time.Since(c.began), (w.NotBefore - now).Duration())
			}
		}
		if time.Since(c.began) < window {
			t.Errorf("the calls took %v: no ceiling has passed", time.Since(c.began))
		}
	})
}

// TestTogether: workers that are acquired at once, on three nodes, get numbers of their own.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t)
		const many = 300
		sids := lease.SIDRange{From: 512, To: 512 + many}
		var brokers []*broker.Broker
		for range 3 {
			b, _ := c.node(sids)
			brokers = append(brokers, b)
		}
		var mu sync.Mutex
		got := map[flake.SID]bool{}
		var all sync.WaitGroup
		for i := range many {
			all.Go(func() {
				client := broker.Client{Owner: fmt.Sprint("team-", i%10), Quota: 40}
				for {
					w, err := brokers[i%3].Acquire(t.Context(), client, worker.Acquire{Name: fmt.Sprint("w", i)})
					mu.Lock()
					if err == nil && got[w.Handle.SID] {
						t.Errorf("sid %d twice", w.Handle.SID)
					}
					if err == nil {
						got[w.Handle.SID] = true
					}
					mu.Unlock()
					if err == nil {
						return
					}
					if r := reason(err); r != node.EtcdUnavailable && r != node.NoWorker { // lost too many races
						t.Error(err)
						return
					}
					time.Sleep(time.Second)
				}
			})
		}
		all.Wait()
		if len(got) != many {
			t.Errorf("%d numbers of %d", len(got), many)
		}
		if n := c.faulty.Calls(storetest.Load); n > many/3 {
			t.Errorf("%d acquisitions read the space %d times", many, n)
		}
	})
}

// TestBounds: what one client can make a node do.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t)
		b, n := c.node(lease.SIDRange{From: 512, To: 1024})
		few := broker.Client{Owner: "few", Quota: 2}
		for i := range 3 {
			_, err := b.Acquire(t.Context(), few, worker.Acquire{Name: "w"})
			if want := map[bool]node.Reason{true: 0, false: node.WorkerQuota}[i < 2]; reason(err) != want {
				t.Errorf("acquisition %d: %v", i, err)
			}
		}
		// Acquisitions whose answers are lost hold leases: they count, for as long as those.
		c.faulty.SetScript(func(k storetest.Kind, _ int) storetest.Outcome {
			return map[bool]storetest.Outcome{true: storetest.Applied, false: storetest.Pass}[k == "grant"]
		})
		lost := broker.Client{Owner: "lost", Quota: 5}
		for i := range 8 {
			_, err := b.Acquire(t.Context(), lost, worker.Acquire{Name: "w"})
			if want := map[bool]node.Reason{true: node.EtcdUnavailable, false: node.WorkerQuota}[i < 5]; reason(err) != want {
				t.Errorf("acquisition %d without an answer: %v", i, err)
			}
		}
		c.faulty.SetScript(nil)
		c.pass(window + time.Second)
		n.Report(c.Status())
		if _, err := b.Acquire(t.Context(), lost, worker.Acquire{Name: "w"}); err != nil {
			t.Errorf("after their leases: %v", err)
		}
		// A caller in a loop.
		limited := 0
		for range 200 {
			_, err := b.Extend(t.Context(), few, worker.Extend{Handle: worker.Handle{SID: 600, Term: 1, Secret: "0123456789ABCDEF"}})
			if r, ok := errors.AsType[*node.Refusal](err); ok && r.Reason == node.RateLimited && r.RetryAfter > 0 {
				limited++
			} else if reason(err) != node.UnknownWorker {
				t.Error(err)
			}
		}
		if limited < 150 {
			t.Errorf("%d of 200 calls were refused", limited)
		}
		// Many addresses.
		for i := range 4096 + 512 {
			_, _ = b.Extend(t.Context(), broker.Client{Owner: fmt.Sprint("ip:", i), Quota: 2}, worker.Extend{Handle: worker.Handle{SID: 600, Term: 1, Secret: "0123456789ABCDEF"}})
		}
		if got := b.Owners(); got > 4097 {
			t.Errorf("%d clients are remembered", got)
		}
	})
}

// TestLeasesOfCallsThatFail: a refused acquisition gives its lease back, and counts until then; one
// whose lease may be left counts for as long as that lasts.
func TestLeasesOfCallsThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t)
		b, _ := c.node(lease.SIDRange{From: 512, To: 1024})
		one := broker.Client{Owner: "one", Quota: 1}
		fails := func(kinds ...storetest.Kind) {
			c.faulty.SetScript(func(k storetest.Kind, _ int) storetest.Outcome {
				return map[bool]storetest.Outcome{true: storetest.NotApplied}[slices.Contains(kinds, k)]
			})
		}
		acquire := storetest.KindOf(lease.Acquire)
		fails(acquire)
		began := time.Now()
		if _, err := b.Acquire(t.Context(), one, worker.Acquire{Name: "w"}); reason(err) != node.EtcdUnavailable {
			t.Errorf("not written: %v", err)
		}
		if took := time.Since(began); took == 0 {
			t.Error("an etcd that fails is asked again at once")
		}
		if n := c.faulty.Calls(storetest.Revoke); n != 1 {
			t.Errorf("%d leases were given back, want 1", n)
		}
		fails(acquire, storetest.Revoke)
		if _, err := b.Acquire(t.Context(), one, worker.Acquire{Name: "w"}); reason(err) != node.EtcdUnavailable {
			t.Errorf("the lease before was given back, and counts: %v", err)
		}
		fails()
		if _, err := b.Acquire(t.Context(), one, worker.Acquire{Name: "w"}); reason(err) != node.WorkerQuota {
			t.Errorf("a lease may be left, and does not count: %v", err)
		}
		c.pass(window + time.Second)
		w, err := b.Acquire(t.Context(), one, worker.Acquire{Name: "w", Secret: "0123456789ABCDEF"})
		fatal.If(t, err)

		// An extension renews the lease. A repetition needs none of its own.
		kept, revoked := c.faulty.Calls(storetest.KeepAlive), c.faulty.Calls(storetest.Revoke)
		c.pass(20 * time.Second)
		if _, err := b.Extend(t.Context(), one, worker.Extend{Handle: w.Handle}); err != nil || c.faulty.Calls(storetest.KeepAlive) != kept+1 {
			t.Errorf("%v, renewed %d times", err, c.faulty.Calls(storetest.KeepAlive)-kept)
		}
		if c.faulty.Calls(storetest.Revoke) != revoked {
			t.Error("a lease was given back that nobody took")
		}

		// What is not settled counts beside what is held.
		two := broker.Client{Owner: "one", Quota: 2}
		fails(acquire, storetest.Revoke)
		if _, err := b.Acquire(t.Context(), two, worker.Acquire{Name: "w"}); reason(err) != node.EtcdUnavailable {
			t.Errorf("the second: %v", err)
		}
		fails()
		if _, err := b.Acquire(t.Context(), two, worker.Acquire{Name: "w"}); reason(err) != node.WorkerQuota {
			t.Errorf("one is held and one is not settled: %v", err)
		}

		if _, err := b.Release(t.Context(), one, w.Handle, 0); err != nil || !strings.Contains(c.log.String(), `msg="worker released" worker=`+w.Handle.ID()) {
			t.Errorf("%v, log:\n%s", err, &c.log)
		}
		for range 100 {
			_, err = b.Release(t.Context(), one, w.Handle, 0)
		}
		if reason(err) != node.RateLimited {
			t.Errorf("released a hundred times: %v", err)
		}
	})
}

// TestCallersLeave: a caller that leaves in the middle leaves nothing half done.
func TestCallersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t)
		b, _ := c.node(lease.SIDRange{From: 512, To: 513})
		gone, leave := context.WithCancel(t.Context())
		c.faulty.SetScript(func(k storetest.Kind, _ int) storetest.Outcome {
			leave()
			return storetest.Pass
		})
		if _, err := b.Acquire(gone, shop, worker.Acquire{Name: "a", Secret: "0123456789ABCDEF"}); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		synctest.Wait()
		w, err := b.Acquire(t.Context(), shop, worker.Acquire{Name: "a", Secret: "0123456789ABCDEF"})
		if err != nil || w.Handle.Term != 1 {
			t.Errorf("the same again: %+v, %v", w, err)
		}
	})
}

// TestBarred: a node that may write no ceilings sends callers away, and writes nothing.
func TestBarred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t)
		b, n := c.node(lease.SIDRange{From: 512, To: 520})
		off, _ := c.node(lease.SIDRange{})
		if _, err := off.Acquire(t.Context(), shop, worker.Acquire{Name: "a"}); reason(err) != node.WorkersOff {
			t.Errorf("off: %v", err)
		}
		var none *broker.Broker
		if _, err := none.Extend(t.Context(), shop, worker.Extend{Handle: worker.Handle{}}); reason(err) != node.WorkersOff {
			t.Errorf("none: %v", err)
		}
		status := c.Status()
		for name, tc := range map[string]struct {
			change func(*lease.Status)
			want   node.Reason
		}{
			"rewound":    {func(s *lease.Status) { s.Phase = lease.Rewound }, node.HistoryRewound},
			"not listed": {func(s *lease.Status) { s.Listed = false }, node.Starting},
			"gate shut":  {func(s *lease.Status) { s.GateOpen = false }, node.Starting},
		} {
			s := status
			tc.change(&s)
			n.Report(s)
			if _, err := b.Acquire(t.Context(), shop, worker.Acquire{Name: "a"}); reason(err) != tc.want {
				t.Errorf("%s: %v", name, err)
			}
		}
		n.Report(status)
		n.SetVerdict(clock.Verdict{State: clock.Skewed})
		if _, err := b.Acquire(t.Context(), shop, worker.Acquire{Name: "a"}); reason(err) != node.ClockSkew {
			t.Errorf("skewed: %v", err)
		}
		n.SetVerdict(clock.Verdict{})
		n.Drain()
		if _, err := b.Acquire(t.Context(), shop, worker.Acquire{Name: "a"}); reason(err) != node.Draining {
			t.Errorf("draining: %v", err)
		}
		if after := c.status(); after.Revision != status.Revision {
			t.Error("something was written")
		}
	})
}
