package operate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/flakelease/allocator/chaos/etcdsim"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/node"
)

var (
	endpoint string // All tests share an etcd; each has its own space.
	spaces   atomic.Int32
)

func TestMain(m *testing.M) {
	etcd, at, err := etcdsim.OnLoopback()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	endpoint = at
	code := m.Run()
	etcd.Close()
	os.Exit(code)
}

const now clock.Millis = 1_800_000_000_000

// slack is what two nodes with windows of 30 s and workers with a minute have.
var slack = lease.Bounds{Window: 30 * time.Second, WorkerWindow: time.Minute, MaxSkew: 250 * time.Millisecond, MaxLead: 250 * time.Millisecond}

// counted is a store that notes its writes.
type counted struct {
	*etcdstore.Store
	writes int
	err    error // of each write, which is then not made
	away   error // of each read
}

func (c *counted) Load(ctx context.Context) (lease.View, error) {
	if c.away != nil {
		return lease.View{}, c.away
	}
	return c.Store.Load(ctx)
}

func (c *counted) Survey(ctx context.Context, sid flake.SID) (lease.View, []repair.Line, error) {
	if c.away != nil {
		return lease.View{}, nil, c.away
	}
	return c.Store.Survey(ctx, sid)
}

func (c *counted) write(f func() error) error {
	c.writes++
	if c.err != nil {
		return c.err
	}
	return f()
}

func (c *counted) Repair(ctx context.Context, w repair.Write) error {
	return c.write(func() error { return c.Store.Repair(ctx, w) })
}

func (c *counted) AcceptTime(ctx context.Context, seen lease.View, a lease.AcceptedTime, acts ...lease.Act) error {
	return c.write(func() error { return c.Store.AcceptTime(ctx, seen, a, acts...) })
}

func (c *counted) BeginEra(ctx context.Context, seen lease.View, e lease.Era, acts ...lease.Act) error {
	return c.write(func() error { return c.Store.BeginEra(ctx, seen, e, acts...) })
}

// env is a space in etcd with one released sid, 3, and an operator.
type env struct {
	*testing.T
	store   *counted
	answers Answers
	now     clock.Millis
	nonce   int
	root    string // All keys of the space begin with it.
	*Operator
}

func newEnv(t *testing.T) *env {
	t.Helper()
	name := fmt.Sprintf("space-%d", spaces.Add(1))
	s, err := etcdstore.New(nil, "test", name)
	fatal.If(t, err)
	disconnect, err := s.Connect(func() (etcdstore.Config, error) {
		return etcdstore.Config{Endpoints: []string{endpoint}}, nil
	})
	fatal.If(t, err)
	t.Cleanup(disconnect)
	space := lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "pool"}
	_, v, err := s.Init(t.Context(), space, now-3_600_000)
	fatal.If(t, err)
	id, err := s.Grant(t.Context(), time.Minute)
	fatal.If(t, err)
	w := lease.Window{Era: 1, Term: 1, Instance: "i", Node: "n", Nonce: "1", Base: now - 7_200_000, Ceil: now - 7_100_000,
		State: lease.Active, Wall: now - 7_130_000}
	acquired, v, err := s.Commit(t.Context(), lease.Txn{Op: lease.Acquire, SID: 3, Seen: v.SIDs[3], Config: v.Config, Era: v.Era,
		Lease: id, Holder: lease.Holder{Instance: "i", Node: "n"}, Window: w})
	if err != nil || !acquired {
		t.Fatal(acquired, err)
	}
	w.State, w.Nonce, w.Base = lease.Released, "2", w.Ceil
	if released, _, err := s.Commit(t.Context(), lease.Txn{Op: lease.Release, SID: 3, Seen: v.SIDs[3], Window: w}); err != nil || !released {
		t.Fatal(released, err)
	}
	e := &env{T: t, store: &counted{Store: s}, now: now, answers: fine(), root: "/test/" + name + "/"}
	e.Operator = New(Config{
		Store: e.store,
		Ask: func(context.Context, lease.View) Answers {
			return Answers{Nodes: slices.Clone(e.answers.Nodes), Confirmed: e.answers.Confirmed}
		},
		Author: func() repair.Author {
			e.nonce++
			return repair.Author{Who: "ann", Instance: "op", Nonce: fmt.Sprint("op-", e.nonce), Now: e.now}
		},
		Bounds: slack, Etcd: "http://10.0.0.1:2379", GRPC: "10.0.0.5:9000",
	})
	return e
}

// fine are answers after which nothing keeps an era from beginning.
func fine() Answers {
	return Answers{Confirmed: true, Nodes: []Node{
		{Name: "a", Registered: true, Answered: true, Pool: "pool", Era: 1, Highest: now - 1000, Refusing: node.HistoryRewound},
		{Name: "b", GRPC: "10.0.0.6:9000", Answered: true, Era: 1, Highest: now - 500},
	}}
}

func (e *env) load() lease.View {
	e.Helper()
	v, err := e.store.Load(e.Context())
	fatal.If(e, err)
	return v
}

func (e *env) plan(action Action) Plan {
	e.Helper()
	p, err := e.try(action)
	if err != nil {
		e.Fatalf("%s: %v", action, err)
	}
	return p
}

func (e *env) try(action Action) (p Plan, err error) {
	switch action {
	case Quarantine:
		p, err = e.Quarantine(e.Context(), 3, "why", false)
	case ReleaseSID:
		p, err = e.ReleaseSID(e.Context(), 3, 0)
	case Reserve:
		p, err = e.Reserve(e.Context(), sidSet(e.T, "3"), "why")
	case Unreserve:
		p, err = e.Unreserve(e.Context(), sidSet(e.T, "3"), 0)
	case AcceptTime:
		p, err = e.AcceptTime(e.Context(), 0)
	case Recover:
		p, err = e.Recover(e.Context(), 0)
	}
	return p, err
}

// put writes a key of the space behind its back, or deletes it.
func (e *env) put(key, value string) {
	e.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	fatal.If(e, err)
	defer func() { _ = c.Close() }()
	if value == "" {
		_, err = c.Delete(e.Context(), e.root+key)
	} else {
		_, err = c.Put(e.Context(), e.root+key, value)
	}
	fatal.If(e, err)
}

func sidSet(t *testing.T, text string) lease.SIDSet {
	t.Helper()
	set, err := lease.ParseSIDSet(text)
	fatal.If(t, err)
	return set
}

// changes are the plans of all actions that write to etcd; prepare makes them possible.
var changes = []struct {
	action  Action
	prepare func(*env)
	command string
}{
	{Quarantine, func(*env) {}, "allocator admin quarantine 3 --reason 'why' --etcd.endpoints http://10.0.0.1:2379"},
	{ReleaseSID, func(e *env) { e.done(Quarantine) }, "allocator admin release-sid 3 --etcd.endpoints http://10.0.0.1:2379"},
	{Reserve, func(*env) {}, "allocator admin reserve 3 --reason 'why' --etcd.endpoints http://10.0.0.1:2379"},
	{Unreserve, func(e *env) { e.done(Reserve) }, "allocator admin unreserve 3 --etcd.endpoints http://10.0.0.1:2379"},
	{AcceptTime, func(*env) {}, "allocator admin accept-time --etcd.endpoints http://10.0.0.1:2379"},
	{Recover, func(*env) {}, "allocator admin recover --addr '10.0.0.6:9000' --etcd.endpoints http://10.0.0.1:2379"},
}

func (e *env) done(action Action) Plan {
	e.Helper()
	p, err := e.Do(e.Context(), e.plan(action))
	if err != nil {
		e.Fatalf("%s: %v", action, err)
	}
	return p
}

// A plan writes nothing. Done, it writes what it showed, once: a second time, or after any
// other write to a record that it compares, nothing is written.
func TestPlansAreDoneAsShown(t *testing.T) {
	for _, c := range changes {
		t.Run(string(c.action), func(t *testing.T) {
			e := newEnv(t)
			c.prepare(e)
			before := e.load()
			e.store.writes = 0
			p := e.plan(c.action)
			if p.Command != c.command || len(p.Compares) < 2 || p.Action != c.action || p.Title == "" {
				t.Errorf("%+v", p)
			}
			if e.store.writes != 0 || e.load().Revision != before.Revision {
				t.Error("the plan wrote")
			}
			if _, err := e.Do(t.Context(), p); err != nil || e.store.writes != 1 {
				t.Fatalf("%d writes, %v", e.store.writes, err)
			}
			after := e.load()
			wrote := map[Action]string{
				Quarantine: "window: " + after.SIDs[3].Window.Raw,
				ReleaseSID: "window: " + after.SIDs[3].Window.Raw,
				Reserve:    "window of sid 3: " + after.SIDs[3].Window.Raw,
				Unreserve:  "window of sid 3: " + after.SIDs[3].Window.Raw,
				AcceptTime: "accepted time: " + after.Accepted.Raw,
				Recover:    "era: " + after.Era.Raw,
			}
			if p.Writes[0] != wrote[c.action] {
				t.Errorf("shown %s, and etcd has %s", p.Writes[0], wrote[c.action])
			}
			again := p
			again.Acceptance.Accepted.Nonce = "another"
			again.Repairs = slices.Clone(p.Repairs)
			for i := range again.Repairs {
				again.Repairs[i].Window.Nonce = "another"
			}
			if _, err := e.Do(t.Context(), again); !errors.Is(err, repair.ErrChanged) || e.load().Revision != after.Revision {
				t.Errorf("done twice: %v", err)
			}
		})
	}
}

func TestOvertaken(t *testing.T) {
	for _, c := range changes {
		for _, other := range []Action{Quarantine, AcceptTime, Recover} {
			compared := other == c.action || other == Recover || other == Quarantine && strings.Contains(c.command, " 3 ")
			t.Run(string(c.action+" after "+other), func(t *testing.T) {
				e := newEnv(t)
				c.prepare(e)
				p := e.plan(c.action)
				if other == Quarantine && (c.action == ReleaseSID || c.action == Unreserve) {
					e.done(c.action) // It is quarantined already, or cannot be.
				}
				e.now += 3_600_000 // The quarantine recorded the time before.
				e.done(other)
				before := e.load().Revision
				_, err := e.Do(t.Context(), p)
				if compared != errors.Is(err, repair.ErrChanged) || compared && e.load().Revision != before || !compared && err != nil {
					t.Errorf("compared %t: %v, revision %d before and %d after", compared, err, before, e.load().Revision)
				}
				if compared && c.action == AcceptTime && other != AcceptTime && strings.Contains(err.Error(), "accepted times") {
					t.Errorf("nobody accepted a time: %v", err)
				}
				if other == AcceptTime && compared && !strings.Contains(err.Error(), `"ann" accepted times up to `) {
					t.Errorf("who was first: %v", err)
				}
			})
		}
	}
}

// TestReserveSome: sids that are reserved already stay as they are, a plan is refused whole if
// one of its sids cannot be reserved, and a write that fails says which sids were written.
func TestReserveSome(t *testing.T) {
	e := newEnv(t)
	e.done(Reserve)
	p, err := e.Reserve(t.Context(), sidSet(t, "2-5"), "")
	if err != nil || len(p.Repairs) != 3 || len(p.Writes) != 3 || fmt.Sprint(p.Found) != "[sids 3 are reserved already]" {
		t.Fatalf("%+v, %v", p, err)
	}
	if _, err := e.Do(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for sid := flake.SID(2); sid <= 5; sid++ {
		if w := e.load().SIDs[sid].Window; w.Value.State != lease.Reserved || w.Err != nil {
			t.Errorf("sid %d: %+v", sid, w)
		}
	}
	if p, err := e.Reserve(t.Context(), sidSet(t, "2-5"), ""); err != nil || len(p.Repairs)+len(p.Writes) != 0 {
		t.Errorf("a second time: %+v, %v", p, err)
	}

	p, err = e.Reserve(t.Context(), sidSet(t, "6-8"), "")
	fatal.If(t, err)
	quarantine, err := e.Quarantine(t.Context(), 7, "", false)
	fatal.If(t, err)
	if _, err := e.Do(t.Context(), quarantine); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Do(t.Context(), p); !errors.Is(err, repair.ErrChanged) || !errors.Is(err, ErrPartly) || !strings.HasSuffix(err.Error(), "; sids 6 were written") {
		t.Errorf("overtaken at the second sid: %v", err)
	}
	if _, err := e.Reserve(t.Context(), sidSet(t, "8-9,7"), ""); !errors.Is(err, repair.ErrRefused) {
		t.Errorf("with a quarantined sid: %v", err)
	}
	if w := e.load().SIDs[8].Window; w.Exists() {
		t.Errorf("sid 8 was written: %+v", w)
	}

	// What is given back in part can be given back in full.
	p, err = e.Unreserve(t.Context(), sidSet(t, "3-8"), 0)
	if err != nil || len(p.Repairs) != 4 || fmt.Sprint(p.Found) != "[sids 7-8 are not reserved]" {
		t.Fatalf("%+v, %v", p, err)
	}
	if _, err := e.Do(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Unreserve(t.Context(), sidSet(t, "3-8"), 0); !errors.Is(err, repair.ErrRefused) {
		t.Errorf("none is reserved: %v", err)
	}
}

// obstaclesTable has each reason alone that keeps an era from beginning.
var obstaclesTable = []struct {
	name string
	set  func(*Answers)
	text string
}{
	{"nothing shows a need", func(a *Answers) { a.Nodes[0].Refusing = 0 }, "may not be needed"},
	{"a registered node is silent", func(a *Answers) {
		a.Nodes = append(a.Nodes, Node{Name: "c", GRPC: "10.0.0.7:9000", Registered: true})
	}, "c at 10.0.0.7:9000 did not answer"},
	{"a member of gossip is silent", func(a *Answers) { a.Nodes[1].Answered = false }, "b at 10.0.0.6:9000 did not answer"},
	{"a node without a name", func(a *Answers) { a.Nodes = append(a.Nodes, Node{GRPC: "10.0.0.7:9000"}) }, "10.0.0.7:9000 did not answer"},
	{"no majority confirms the clock", func(a *Answers) { a.Confirmed = false }, "no majority confirms"},
}

// TestObstacles: each obstacle alone refuses an era that accepts none, and not one whose
// operator has seen it.
func TestObstacles(t *testing.T) {
	for _, tc := range obstaclesTable {
		t.Run(tc.name, func(t *testing.T) {
			e := newEnv(t)
			tc.set(&e.answers)
			p := e.plan(Recover)
			if len(p.Obstacles) != 1 || !strings.Contains(p.Obstacles[0], tc.text) {
				t.Fatalf("%q", p.Obstacles)
			}
			if _, err := e.Do(t.Context(), p); !errors.Is(err, repair.ErrRefused) || !strings.Contains(err.Error(), tc.text) || e.store.writes != 0 {
				t.Errorf("%d writes, %v", e.store.writes, err)
			}
			p.Accepted = p.Obstacles
			if _, err := e.Do(t.Context(), p); err != nil {
				t.Error(err)
			}
		})
	}
	other, lost := lease.View{Cluster: 8}, lease.View{Cluster: 7}
	other.Era = lease.NewEntry[lease.Era](1, 0, lease.Encode(lease.Era{Number: 1, Cluster: 7}))
	lost.Era = lease.NewEntry[lease.Era](1, 0, "rubbish")
	for _, v := range []lease.View{other, lost, {Cluster: 7}} {
		if got := obstacles(v, Answers{Confirmed: true}); got != nil {
			t.Errorf("an era that is of another etcd, unreadable or gone: %v", got)
		}
	}
}

// TestEraIsDecidedAgain: what came up since a plan was shown refuses it, also for an operator
// who accepted other obstacles. Nothing is written then.
func TestEraIsDecidedAgain(t *testing.T) {
	type since struct {
		name string
		set  func(*env)
		text string
	}
	var all []since
	for _, tc := range obstaclesTable {
		all = append(all, since{tc.name, func(e *env) { tc.set(&e.answers) }, tc.text})
	}
	all = append(all,
		since{"a ceiling far in the future", func(e *env) { e.answers.Nodes[1].Highest = now + 86_400_000 }, "far in the future"},
		since{"a node of a later era", func(e *env) { e.answers.Nodes[1].Era = 9 }, "begin era 10"},
		since{"a node of another space", func(e *env) { e.answers.Nodes[1].Pool = "other" }, "another space"},
		since{"another operator began one", func(e *env) { e.done(Recover) }, "records have changed"},
	)
	for _, accepted := range [][]string{nil, {"z did not answer"}} {
		for _, tc := range all {
			t.Run(tc.name, func(t *testing.T) {
				e := newEnv(t)
				p := e.plan(Recover)
				if p.Refused != nil || len(p.Obstacles) > 0 {
					t.Fatal(p.Refused, p.Obstacles)
				}
				p.Accepted = accepted
				tc.set(e)
				e.store.writes = 0
				if _, err := e.Do(t.Context(), p); err == nil || !strings.Contains(err.Error(), tc.text) || e.store.writes != 0 {
					t.Errorf("%d writes, %v", e.store.writes, err)
				}
			})
		}
	}
}

// The floor rests on what nodes say and on the clock at the confirmation. TestNextEra of package repair has the rule.
func TestFloorOfAnEra(t *testing.T) {
	e := newEnv(t)
	p := e.plan(Recover)
	e.now += 300_000
	e.answers.Nodes[1].Highest = e.now + 20_000
	silent := Node{Name: "z", Registered: true, Era: 9, Highest: e.now + 40_000}
	e.answers.Nodes = append(e.answers.Nodes, silent) // What it said once does not count.
	p.Accepted = e.plan(Recover).Obstacles
	if _, err := e.Do(t.Context(), p); err != nil || e.load().Era.Value.Floor != e.now+20_000+60_750 {
		t.Errorf("after five minutes: %v, floor %d, now %d", err, e.load().Era.Value.Floor, e.now)
	}
}

// A plan that cannot be says why, and shows what it found.
func TestRefusedPlans(t *testing.T) {
	e := newEnv(t)
	e.answers.Nodes[0].Highest = now + 86_400_000
	p := e.plan(Recover)
	if p.Refused == nil || len(p.Nodes) != 2 || len(p.Writes) != 0 || !strings.Contains(p.Refused.Error(), "far in the future") {
		t.Errorf("%+v", p)
	}
	p.Accepted = p.Obstacles
	e.answers = fine() // A plan that was refused stays so.
	if _, err := e.Do(t.Context(), p); !errors.Is(err, repair.ErrRefused) || e.store.writes != 0 {
		t.Errorf("done: %v", err)
	}
	e.done(AcceptTime)
	if p := e.plan(AcceptTime); !p.Acceptance.Done || len(p.Writes) != 0 || len(p.Found) != 3 {
		t.Errorf("accepted again: %+v", p)
	}
}

// A sid whose record was lost is not reserved, and the operator is told what to do.
func TestReserveWithAPast(t *testing.T) {
	e := newEnv(t)
	p, err := e.Reserve(t.Context(), sidSet(t, "5-6"), "")
	fatal.If(t, err)
	e.put("ledger/5/00000000000000000001", "a line")
	e.store.err = errors.New("the connection broke")
	if _, err := e.Do(t.Context(), p); !errors.Is(err, ErrUnknown) || errors.Is(err, repair.ErrRefused) {
		t.Errorf("an error of the write itself: %v", err)
	}
	e.store.err = nil
	_, err = e.Do(t.Context(), p)
	if !errors.Is(err, repair.ErrRefused) || !strings.Contains(err.Error(), `run "allocator admin release-sid 5" first`) {
		t.Errorf("%v", err)
	}
	if v := e.load(); v.SIDs[5].Window.Exists() || v.SIDs[6].Window.Exists() {
		t.Errorf("written: %+v", v.SIDs)
	}
}

// TestReserveBesideRaises: the watermark is raised about once a second, and a sid that is shown to an
// operator meanwhile is reserved above it all the same. What else has changed is shown again.
func TestReserveBesideRaises(t *testing.T) {
	e := newEnv(t)
	e.put("mark", lease.Encode(lease.Mark{Era: 1, At: now - 9_000, Nonce: "a"}))
	shown := func(sid string) Plan {
		t.Helper()
		p, err := e.Reserve(t.Context(), sidSet(t, sid), "why")
		fatal.If(t, err)
		return p
	}
	p := shown("5")
	e.put("mark", lease.Encode(lease.Mark{Era: 1, At: now - 8_000, Nonce: "b"}))
	if _, err := e.Do(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if w := e.load().SIDs[5].Window.Value; w.State != lease.Reserved || w.Ceil != now-8_000 || w.Reason != "why" {
		t.Errorf("beside a raise: %+v", w)
	}

	// So is a sid whose record was lost, and which is reserved again.
	e.put("ledger/7/00000000000000000001",
		lease.Encode(lease.LedgerLine{Term: 1, Instance: "op", Node: lease.Operator, Era: 1, Since: now - 9_000}))
	p, err := e.ReleaseSID(t.Context(), 7, now-9_000)
	fatal.If(t, err)
	e.put("mark", lease.Encode(lease.Mark{Era: 1, At: now - 7_000, Nonce: "c"}))
	if _, err := e.Do(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if w := e.load().SIDs[7].Window.Value; w.State != lease.Reserved || w.Ceil != now-7_000 || w.Term != 2 {
		t.Errorf("reserved again: %+v", w)
	}

	p = shown("6")
	e.put("mark", lease.Encode(lease.Mark{Era: 1, At: now + 8_000, Nonce: "d"})) // A warning would say that.
	if _, err := e.Do(t.Context(), p); !errors.Is(err, repair.ErrChanged) {
		t.Errorf("the watermark went ahead of the clock: %v", err)
	}
	p = shown("6")
	e.put("era", lease.Encode(lease.Era{Number: 2, Floor: now - 3_600_000}))
	if _, err := e.Do(t.Context(), p); !errors.Is(err, repair.ErrChanged) {
		t.Errorf("beside a new era: %v", err)
	}
}

// Asked are this node first, those in etcd, those that were there before, and those of gossip.
func TestAsked(t *testing.T) {
	self := Node{Name: "a", Answered: true}
	reg := func(i lease.Instance, name, grpc string) lease.Registration {
		return lease.Registration{Instance: i, Node: name, GRPC: grpc}
	}
	got := Asked(self, "1", []lease.Registration{reg("5", "e", "h:5"), reg("1", "a", ""), reg("2", "b", "h:2")},
		[]lease.Registration{reg("2", "b", "h:2"), reg("3", "c", "h:3")},
		map[lease.Instance]Node{
			"2": {Name: "liar", GRPC: "h:9", Answered: true, Era: 4},
			"4": {Name: "d", GRPC: "h:4"},
		})
	want := []Node{
		{Name: "a", Registered: true, Answered: true},
		{Name: "b", GRPC: "h:2", Registered: true, Answered: true, Era: 4},
		{Name: "c", GRPC: "h:3"},
		{Name: "d", GRPC: "h:4"},
		{Name: "e", GRPC: "h:5", Registered: true},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := Asked(self, "9", []lease.Registration{reg("2", "b", "h:2")}, nil, nil); got[0].Registered {
		t.Error("a node that is not registered counts as registered")
	}
}

// TestWithoutEtcd: what etcd does not say is not guessed, before and after a confirmation. After an error of a write
// nobody knows whether it was made, and the error says so.
func TestWithoutEtcd(t *testing.T) {
	away := errors.New("etcd is away")
	for _, c := range changes {
		e := newEnv(t)
		c.prepare(e)
		shown := e.plan(c.action)
		e.store.err = away
		if _, err := e.Do(t.Context(), shown); !errors.Is(err, ErrUnknown) || !errors.Is(err, away) {
			t.Errorf("%s: the write failed: %v", c.action, err)
		}
		e.store.away, e.store.err, e.store.writes = away, nil, 0
		if p, err := e.try(c.action); !errors.Is(err, away) || p.Title != "" {
			t.Errorf("%s: %v, %q", c.action, err, p.Title)
		}
		if c.action != Recover {
			continue
		}
		if _, err := e.Do(t.Context(), shown); !errors.Is(err, away) || e.store.writes != 0 {
			t.Errorf("%s, confirmed: %v, %d writes", c.action, err, e.store.writes)
		}
	}
}

// TestWhatPlansShow: what an operator reads before a sid, a time or an era is changed.
func TestWhatPlansShow(t *testing.T) {
	e := newEnv(t)
	datadriven.RunTest(t, "testdata/plans.txt", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		for line := range strings.Lines(d.Input) {
			f := strings.Fields(line)
			var p Plan
			var err error
			switch f[0] {
			case "reserve":
				p, err = e.Reserve(t.Context(), sidSet(t, f[1]), "")
			case "unreserve":
				p, err = e.Unreserve(t.Context(), sidSet(t, f[1]), 0)
			case "quarantine":
				p, err = e.Quarantine(t.Context(), sidSet(t, f[1])[0].From, "it's odd", len(f) > 2)
			case "release":
				p, err = e.ReleaseSID(t.Context(), sidSet(t, f[1])[0].From, 0)
			case "above":
				p, err = e.ReleaseSID(t.Context(), sidSet(t, f[1])[0].From, now+5000)
			case "accept":
				p, err = e.AcceptTime(t.Context(), 0)
			case "accept-up-to-now":
				p, err = e.AcceptTime(t.Context(), now-1)
			case "recover":
				p, err = e.Recover(t.Context(), 0)
			case "node":
				e.answers.Nodes = append(e.answers.Nodes, Node{Name: f[1], GRPC: f[2], Registered: true, Answered: true})
				continue
			case "record": // of a sid, with a state and a ceiling
				ceil, _ := strconv.Atoi(f[3])
				e.put("window/"+f[1], lease.Encode(lease.Window{
					Era: 1, Term: 2, Instance: "x", Node: "x", Nonce: "x", State: lease.WindowState(f[2]), Base: now,
					Ceil: now + clock.Millis(ceil), Wall: now,
				}))
				continue
			case "damage": // the record of a sid that a node had last, or an operator
				e.put("window/"+f[1], "a1 00000000 {}")
				line := lease.LedgerLine{Term: 1, Instance: "x", Node: f[2], Era: 1, Since: now - 9_000}
				e.put("ledger/"+f[1]+"/00000000000000000001", lease.Encode(line))
				continue
			case "hold": // a sid
				e.put("holder/"+f[1], lease.Encode(lease.Holder{Instance: "x", Node: "x"}))
				continue
			case "config": // what cannot be read, or none
				e.put("config", strings.Join(f[1:], " "))
				continue
			case "era": // of a number and a cluster, or what cannot be read, or none
				text := strings.Join(f[1:], " ")
				if number, cluster := 0, 0; len(f) == 3 {
					_, err := fmt.Sscan(text, &number, &cluster)
					fatal.If(t, err)
					text = lease.Encode(lease.Era{Number: int64(number), Floor: now - 1, Cluster: uint64(cluster)})
				}
				e.put("era", text)
				continue
			case "other":
				e = newEnv(t)
				continue
			default:
				t.Fatalf("%q", line)
			}
			if err != nil {
				fmt.Fprintf(&out, "ERROR %v\n", err)
				continue
			}
			fmt.Fprintf(&out, "%s\n", p.Title)
			for _, list := range []struct {
				name  string
				lines []string
			}{
				{"found", p.Found}, {"warning", p.Warnings}, {"obstacle", p.Obstacles}, {"compares", p.Compares},
				{"writes", p.Writes},
			} {
				for _, line := range list.lines {
					line = regexp.MustCompile(`revision \d+|cluster [0-9a-f]+|"cluster":"\d+"`).ReplaceAllString(line, "…")
					fmt.Fprintf(&out, "%s: %s\n", list.name, regexp.MustCompile(`a1 [0-9a-f]{8}`).ReplaceAllString(line, "a1"))
				}
			}
			fmt.Fprintf(&out, "$ %s\n", p.Command)
		}
		return out.String()
	})
}

// TestOvertakenAtFirst: a plan whose first write fails has done no part of it, and is not told to
// repair a sid that has no past.
func TestOvertakenAtFirst(t *testing.T) {
	e := newEnv(t)
	p, err := e.Reserve(t.Context(), sidSet(t, "5-6"), "")
	if err != nil || len(p.Found) != 0 {
		t.Fatal(err, p.Found)
	}
	e.done(Recover)
	_, err = e.Do(t.Context(), p)
	if !errors.Is(err, repair.ErrChanged) || errors.Is(err, ErrPartly) || strings.Contains(err.Error(), "release-sid") {
		t.Errorf("%v", err)
	}
	if p, err := e.Reserve(t.Context(), sidSet(t, "3"), ""); err != nil || len(p.Found) != 0 {
		t.Errorf("%v, %q", err, p.Found)
	}
	e.done(Reserve)
	if p := e.plan(Unreserve); len(p.Found) != 0 {
		t.Errorf("%q", p.Found)
	}
	if p, err := e.Reserve(t.Context(), sidSet(t, "3"), ""); err != nil || len(p.Compares) != 0 {
		t.Errorf("with nothing to write: %v, %q", err, p.Compares)
	}
}

func TestArguments(t *testing.T) {
	for text, want := range map[string]flake.SID{"0": 0, "7": 7, "4194303": 4194303} {
		if got, err := ParseSID(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "x", "4194304", "1.5"} {
		if got, err := ParseSID(text); err == nil || got != 0 {
			t.Errorf("%q is sid %v", text, got)
		}
	}
	for text, want := range map[string]clock.Millis{
		"2026-02-01T12:00:00Z":           1769947200000,
		"2026-02-01T12:00:00.000000001Z": 1769947200001,
		"2026-02-01T12:00:00.001Z":       1769947200001,
		"2026-02-01T13:00:00+01:00":      1769947200000,
		"2026-02-01T12:00:00":            1769947200000,
		"2026-02-01":                     1769904000000,
		"1970-01-01T00:00:00.001Z":       1,
	} {
		if got, err := ParseTime(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "12:00", "1970-01-01", "1969-12-31T23:59:59Z", "2026-02-30"} {
		if got, err := ParseTime(text); err == nil || got != 0 {
			t.Errorf("%q is %v", text, got)
		}
	}
	for want, n := range map[string]Node{
		"?": {Highest: now}, "-": {Answered: true}, "2027-01-15T08:00:00.000Z": {Answered: true, Highest: now},
	} {
		if got := n.Ceiling(); got != want {
			t.Errorf("%+v: %s", n, got)
		}
	}
}

// An act is recorded once for several sids, and not if nothing was written; an era that is decided again keeps it.
func TestActOfAPlan(t *testing.T) {
	e := newEnv(t)
	act := lease.Act{Action: "it", By: "alice@db-1", At: now, Nonce: "a"}
	do := func(p Plan, err error) {
		t.Helper()
		if err == nil {
			p.Act, p.Accepted = act, p.Obstacles
			_, err = e.Do(t.Context(), p)
		}
		if err != nil {
			t.Error(err)
		}
		if acts, err := e.store.Acts(t.Context()); err != nil || len(acts) == 0 || acts[len(acts)-1] != act {
			t.Errorf("%+v, %v", acts, err)
		}
		act.At, act.Nonce = act.At+1, act.Nonce+"a"
	}
	do(e.Reserve(t.Context(), sidSet(t, "5-7"), "why"))
	do(e.AcceptTime(t.Context(), 0))
	do(e.Recover(t.Context(), 0))
}
