package worker_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/marker"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/worker"
)

var (
	seed  = flag.Uint64("seed", 0, "the one random schedule to run; 0: many")
	seeds = flag.Uint64("seeds", 400, "how many random schedules to run")
)

// TestRandomSchedules has generators acquire, extend and release workers through nodes
// whose clocks are wrong and step, with calls that are interleaved request by request,
// requests that are lost, late or answered to nobody, leases that end, callers that
// repeat calls on other nodes, and new eras. No millisecond of a sid is ever permitted to
// two generators (I1, I4), and none below a watermark that does not name its sid (I9).
func TestRandomSchedules(t *testing.T) {
	if *seed != 0 {
		schedule(t, *seed)
		return
	}
	acquired, extended, released, shared := 0, 0, 0, 0
	raised, late, rested := 0, 0, 0
	for s := uint64(1); s <= *seeds; s++ {
		p := schedule(t, s)
		acquired, extended, released, shared = acquired+p.acquired, extended+p.extended, released+p.released, shared+p.shared
		raised, late, rested = raised+p.raised, late+p.late, rested+p.rested
	}
	// A test in which nothing happens would pass.
	if acquired < 1000 || extended < 1000 || released < 300 || shared < 500 {
		t.Errorf("only %d acquired, %d extended, %d released, %d of a sid that another had before", acquired, extended, released, shared)
	}
	if raised < 300 || late < 300 || rested < 20 {
		t.Errorf("the mark was raised only %d times, refused %d times, and passed %d holders", raised, late, rested)
	}
}

// generator is a foreign generator: what it was told, and what it permits itself.
type generator struct {
	name   string
	secret string
	given  bool
	tells  bool          // floors
	handle worker.Handle // zero: none yet
	from   clock.Millis
	to     clock.Millis // exclusive; 0: no interval yet
	floor  clock.Millis // it permits itself nothing below
	ended  bool         // it makes no ID any more
}

// running is a call on its way through a node.
type running struct {
	*worker.Call
	of   *generator
	on   int
	next worker.Action
}

type fleet struct {
	*env
	rnd    *rand.Rand
	seed   uint64
	clocks []clock.Millis // ahead of the test's, of each node
	known  []lease.Status // by each node
	gens   []*generator
	calls  []*running
	raise  *lease.MarkTxn // on its way; nil: none

	raised, late, rested                 int
	acquired, extended, released, shared int
}

func schedule(t *testing.T, seed uint64) *fleet {
	t.Helper()
	e := newEnv(t, seed)
	p := &fleet{env: e, seed: seed, rnd: rand.New(rand.NewPCG(seed, 2)), clocks: make([]clock.Millis, 3), known: make([]lease.Status, 3)}
	p.mem.Put("mark", lease.Encode(lease.Mark{Era: 1}))
	for i := range p.known {
		p.known[i] = e.status()
	}
	e.faulty.SetScript(func(storetest.Kind, int) storetest.Outcome {
		if p.rnd.IntN(8) > 0 {
			return storetest.Pass
		}
		return storetest.Outcome(1 + p.rnd.IntN(3))
	})
	for range 250 {
		p.step()
	}
	return p
}

func (p *fleet) step() {
	switch n := p.rnd.IntN(100); {
	case n < 60 && len(p.calls) > 0:
		p.advance(p.rnd.IntN(len(p.calls)))
	case n < 70:
		g := &generator{name: fmt.Sprintf("w%d", p.rnd.IntN(4)), secret: fmt.Sprintf("0123456789secret%d", len(p.gens)), given: p.rnd.IntN(2) == 0, tells: p.rnd.IntN(3) > 0}
		p.gens = append(p.gens, g)
		p.send(g, p.acquire(g))
	case n < 88 && len(p.gens) > 0:
		p.again(p.gens[p.rnd.IntN(len(p.gens))])
	case n < 90:
		p.mark()
	case n < 92:
		d := time.Duration(p.rnd.IntN(30_000)) * time.Millisecond
		p.pass(d)
	case n < 94:
		i := p.rnd.IntN(len(p.clocks))
		p.clocks[i] = clock.Millis(p.rnd.IntN(90_000) - 45_000) // no clock is trusted for I1
	case n < 96:
		p.faulty.Deliver()
	case n < 99:
		p.known[p.rnd.IntN(len(p.known))] = p.status()
	default:
		v, _ := p.mem.Load(context.Background())
		var highest clock.Millis
		for _, s := range v.SIDs {
			highest = max(highest, s.Window.Value.Ceil)
		}
		p.faulty.Drop() // an operator stops what is on its way
		p.calls = nil
		p.mem.Put("era", lease.Encode(lease.Era{Number: v.Era.Value.Number + 1, Floor: max(highest, v.Era.Value.Floor), Cluster: v.Cluster}))
	}
}

func (p *fleet) acquire(g *generator) worker.Request {
	return worker.Acquire{Name: g.name, Secret: g.secret, Given: g.given, TellsFloor: g.tells, Owner: "shop", Quota: 100}
}

// grace is by how much the mark waits longer than a ceiling.
const grace = time.Second

// mark has a node that holds a sid raise the mark, in two steps. It has the right clock.
func (p *fleet) mark() {
	ctx, now := context.Background(), p.clock.Now().Wall
	if txn := p.raise; txn != nil {
		p.raise = nil
		applied, _, err := p.mem.PutMark(ctx, *txn)
		switch {
		case err != nil:
			p.t.Fatal(err)
		case !applied:
			p.late++
		case txn.Mark.Rests != txn.Seen.Value.Rests:
			p.rested++
		}
		if applied {
			p.raised++
		}
		p.final()
		return
	}
	p.mem.Put("window/0", lease.Encode(lease.Window{
		Era: p.status().Era.Number, Term: 1, Instance: "n", Node: "n", Nonce: "n", State: lease.Active, Base: now, Floor: now, Ceil: now + 1,
	}))
	p.mem.Put("holder/0", lease.Encode(lease.Holder{Instance: "n", Node: "n"}))
	v, err := p.mem.Load(ctx)
	fatal.If(p.t, err)
	next := marker.Next(lease.MarkRules{Grace: grace}, v, now, true)
	next.Nonce = fmt.Sprint(len(p.gens), p.raised+p.late)
	p.raise = &lease.MarkTxn{Config: v.Config, Era: v.Era, Seen: v.Mark, Mark: next}
}

// final checks I9: nobody that the mark covers permits itself anything below it, unless its interval has passed by
// the grace. A generator that tells no floors is covered where the mark does not name its sid.
func (p *fleet) final() {
	v, _ := p.mem.Load(context.Background())
	mark := v.Mark.Value.At
	for _, g := range p.gens {
		if from := max(g.from, g.floor); (g.tells || !v.Mark.Value.Names(g.handle.SID)) && !g.ended && from < g.to && from < mark && g.to+clock.MillisOf(grace) > p.clock.Now().Wall {
			p.t.Fatalf("seed %d: %s permits itself [%d,%d), and the mark is %d", p.seed, g.handle.ID(), from-start, g.to-start, mark-start)
		}
	}
}

// again has a generator call once more, whatever became of its other calls.
func (p *fleet) again(g *generator) {
	none := g.handle == worker.Handle{}
	switch {
	case none && g.given && !g.ended:
		p.send(g, p.acquire(g))
	case none:
	case p.rnd.IntN(4) == 0:
		// It stops first, and says then up to where it may have got.
		r := worker.Release{Handle: g.handle}
		if p.rnd.IntN(2) == 0 && !g.ended && g.to > g.from {
			r.UsedUntil = g.from + 1 + clock.Millis(p.rnd.IntN(int(g.to-g.from)))
			g.to = r.UsedUntil
		}
		g.ended = true
		p.send(g, r)
	case g.ended && p.rnd.IntN(2) == 0: // a late extension of what was given back
		p.send(g, worker.Extend{Handle: g.handle})
	default:
		e := worker.Extend{Handle: g.handle, NotAfter: g.told()}
		if g.tells && !g.ended && p.rnd.IntN(4) > 0 {
			g.floor = max(g.floor, min(g.to, p.clock.Now().Wall-clock.Millis(p.rnd.IntN(10_000))))
			e.Floor = g.floor
		}
		p.send(g, e)
	}
}

// told returns what the generator knows, unless it has lowered that itself.
func (g *generator) told() clock.Millis {
	if g.ended {
		return 0
	}
	return g.to
}

func (p *fleet) send(g *generator, req worker.Request) {
	on := p.rnd.IntN(len(p.clocks))
	r := &running{Call: worker.NewCall(p.cfg, req), of: g, on: on}
	p.calls = append(p.calls, r)
	r.next = r.Step(p.now(on), p.knows(on), worker.Answer{})
	p.settle(len(p.calls) - 1)
}

func (p *fleet) now(on int) clock.Reading {
	now := p.clock.Now()
	now.Wall += p.clocks[on]
	return now
}

func (p *fleet) knows(on int) worker.Knowledge {
	return worker.Knowledge{Status: p.known[on], Limit: anyTime()}
}

// advance carries out the request of a call, and passes the answer on at once, later or
// never: then the node has crashed.
func (p *fleet) advance(i int) {
	r := p.calls[i]
	a := ask(p.faulty, r.next)
	if p.rnd.IntN(40) == 0 {
		p.calls = append(p.calls[:i], p.calls[i+1:]...)
		return
	}
	r.next = r.Step(p.now(r.on), p.knows(r.on), a)
	p.settle(i)
}

// settle ends a call that is answered.
func (p *fleet) settle(i int) {
	r := p.calls[i]
	var revoke lease.LeaseID
	switch end := r.next.(type) {
	case worker.Done:
		revoke = end.Revoke
		if p.rnd.IntN(10) > 0 { // else the answer is lost
			p.told(r.of, end)
		}
	case worker.Refused:
		revoke = end.Revoke
		if end.Refusal.Reason == node.HistoryRewound && p.status().Era.Number == 1 {
			p.t.Fatalf("seed %d: no history was rewound: %v", p.seed, end.Refusal)
		}
	default:
		return
	}
	p.calls = append(p.calls[:i], p.calls[i+1:]...)
	p.revoke(revoke)
}

// told takes an answer to a generator, which permits itself what it says, and checks that
// nobody else ever did.
func (p *fleet) told(g *generator, d worker.Done) {
	w := d.Worker
	switch {
	case w == worker.Worker{}:
		p.released++
		return
	case g.ended:
		return
	case g.handle == worker.Handle{}:
		p.acquired++
		g.handle, g.from, g.to = w.Handle, w.NotBefore, w.NotAfter
	case g.handle != w.Handle: // two of its own acquisitions: it keeps the first
		return
	default:
		p.extended++
		if w.NotBefore != g.from || w.NotAfter < g.to && w.NotAfter < p.confirmed(g) {
			p.t.Fatalf("seed %d: %s was told [%d,%d), and now [%d,%d)", p.seed, w.Handle.ID(), g.from, g.to, w.NotBefore, w.NotAfter)
		}
		g.to = max(g.to, w.NotAfter)
	}
	g.floor = max(g.floor, w.Floor)
	if g.tells != (w.Floor > 0) {
		p.t.Fatalf("seed %d: %s tells floors: %v, and was told %d", p.seed, w.Handle.ID(), g.tells, w.Floor-start)
	}
	p.final()
	for _, o := range p.gens {
		if o == g || o.handle.SID != g.handle.SID || o.handle == (worker.Handle{}) {
			continue
		}
		p.shared++
		if o.from < g.to && g.from < o.to && o.from < o.to && g.from < g.to {
			history.Violated(p.t, "I4", "seed %d: sid %d is permitted twice: %s has [%d,%d) and %s has [%d,%d)", p.seed, g.handle.SID,
				g.handle.ID(), g.from-start, g.to-start, o.handle.ID(), o.from-start, o.to-start)
			p.t.FailNow()
		}
	}
}

// confirmed returns the ceiling of a generator's record, or 0.
func (p *fleet) confirmed(g *generator) clock.Millis {
	v, _ := p.mem.Read(context.Background(), g.handle.SID)
	if w := v.SIDs[g.handle.SID].Window.Value; w.Instance == worker.Instance(g.secret) && w.Term == g.handle.Term {
		return w.Ceil
	}
	return 0
}

// TestEveryCallFails: a short life in which every single request fails, in each way. The
// callers repeat what was not answered, on another node.
func TestEveryCallFails(t *testing.T) {
	kinds := []storetest.Kind{storetest.Load, storetest.Read, storetest.Grant, storetest.KeepAlive, storetest.Revoke,
		storetest.KindOf(lease.Acquire), storetest.KindOf(lease.Extend), storetest.KindOf(lease.Rehold), storetest.KindOf(lease.Release)}
	for _, kind := range kinds {
		n := 0
		for sent := true; sent; n++ {
			sent = false
			for outcome := storetest.NotApplied; outcome <= storetest.Delayed; outcome++ {
				sent = life(t, kind, n+1, outcome) || sent
			}
		}
		if n < 2 {
			t.Errorf("%v: no request was sent, so none failed", kind)
		}
	}
}

// life reports whether the nth request of the kind was sent.
func life(t *testing.T, kind storetest.Kind, n int, outcome storetest.Outcome) bool {
	t.Helper()
	e := newEnv(t, 3)
	e.faulty.SetScript(storetest.At(kind, n, outcome))
	name := fmt.Sprintf("%s call %d, outcome %d", kind, n, outcome)
	must := func(req worker.Request) worker.Done {
		t.Helper()
		for range 3 {
			if d, ok := e.call(req).(worker.Done); ok {
				return d
			}
			e.faulty.Deliver()
		}
		t.Fatalf("%s: %T fails three times: %v", name, req, show(e.call(req)))
		return worker.Done{}
	}
	first := acquire("a")
	first.Given, first.TellsFloor = true, true
	a := must(first).Worker
	e.pass(20 * time.Second)
	told := start + 19_000
	a = must(worker.Extend{Handle: a.Handle, NotAfter: a.NotAfter, Floor: told}).Worker
	if a.Floor != told {
		t.Fatalf("%s: told the floor %d, and answered %d", name, told-start, a.Floor-start)
	}
	mark := start + 21_000 // of a clock that is ahead
	e.mem.Put("mark", lease.Encode(lease.Mark{Era: 1, At: mark}))
	v, _ := e.mem.Read(t.Context(), a.Handle.SID)
	e.mem.Expire(v.SIDs[a.Handle.SID].Holder.Lease)
	e.pass(25 * time.Second)
	a = must(worker.Extend{Handle: a.Handle, NotAfter: a.NotAfter, Floor: told}).Worker
	if a.NotBefore != start || a.NotAfter != start+105_000 || a.Floor != mark {
		t.Fatalf("%s: [%d,%d) from %d", name, a.NotBefore-start, a.NotAfter-start, a.Floor-start)
	}
	used := start + 50_000
	if d := must(worker.Release{Handle: a.Handle, UsedUntil: used}); d.Reusable != used {
		t.Fatalf("%s: reusable from %d", name, d.Reusable-start)
	}
	e.faulty.Deliver()
	e.pass(5 * time.Second)
	v, _ = e.mem.Load(t.Context())
	if len(v.SIDs) != 1 || v.SIDs[a.Handle.SID].Holder.Exists() {
		t.Fatalf("%s: left behind %+v", name, v.SIDs)
	}
	b := acquire("b")
	b.Given = true
	e.cfg.SIDs = lease.SIDRange{From: a.Handle.SID, To: a.Handle.SID + 1}
	if w := must(b).Worker; w.NotBefore != used {
		t.Fatalf("%s: the next begins at %d", name, w.NotBefore-start)
	}
	return e.faulty.Calls(kind) >= n
}
