package sim

import (
	"math"
	"time"

	"github.com/flakelease/allocator/internal/agreement"
)

// event is something that will happen. One of a process waits while that is
// paused, and does not happen once it is gone.
type event struct {
	at   time.Duration
	seq  uint64 // Of two events at one time the one with the lower seq happens first.
	kind kind
	p    *process // nil: of the simulation
	run  func()   // Only events of kind call have it.
	gen  int      // A wake or evaluate counts only while this is its latest number.
}

// kind saves a closure for the events that make up most of a run.
type kind uint8

const (
	call kind = iota
	tick
	evaluate
	echo
	wake
	client
)

// queue is a heap of events by time.
type queue struct {
	heap []event
	seq  uint64
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

func (q *queue) push(e event) {
	q.seq++
	e.seq = q.seq
	q.heap = append(q.heap, e)
	h := q.heap
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(&h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (q *queue) pop() event {
	h := q.heap
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	q.heap = h
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			break
		}
		if down+1 < last && h[down+1].before(&h[down]) {
			down++
		}
		if !h[down].before(&h[i]) {
			break
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
	return first
}

// in plans something of the simulation.
func (sim *simulation) in(d time.Duration, run func()) {
	sim.queue.push(event{at: sim.now + max(d, 0), run: run})
}

// in plans something of the process.
func (p *process) in(d time.Duration, run func()) {
	p.sim.queue.push(event{at: p.sim.now + max(d, 0), p: p, run: run})
}

func (p *process) plan(d time.Duration, k kind) { p.planNumbered(d, k, p.wakes) }

// planNumbered plans something that counts only if gen is still the latest number.
func (p *process) planNumbered(d time.Duration, k kind, gen int) {
	p.sim.queue.push(event{at: p.sim.now + max(d, 0), kind: k, p: p, gen: gen})
}

// run lets d of true time pass.
func (sim *simulation) run(d time.Duration) {
	until := sim.now + d
	for sim.next() <= until {
		if len(sim.acts) > 0 && sim.acts[0].At <= sim.next() {
			sim.actNow()
			continue
		}
		e := sim.queue.pop()
		sim.now = e.at
		if e.p == nil {
			sim.trace.event(int64(e.at), int64(e.kind), 0)
			e.run()
			sim.look()
			continue
		}
		if e.p.gone {
			continue
		}
		sim.trace.event(int64(e.at), int64(e.kind), int64(e.p.number))
		if e.p.asleep {
			e.p.waiting = append(e.p.waiting, e)
			continue
		}
		e.p.happen(e)
		sim.look()
	}
	sim.now = until
}

// next returns when the next event happens, or the next act.
func (sim *simulation) next() time.Duration {
	at := time.Duration(math.MaxInt64)
	if len(sim.queue.heap) > 0 {
		at = sim.queue.heap[0].at
	}
	if len(sim.acts) > 0 {
		at = min(at, sim.acts[0].At)
	}
	return at
}

// happen lets an event of the process take place.
func (p *process) happen(e event) {
	switch e.kind {
	case call:
		e.run()
	case tick:
		p.tickAnchor()
	case evaluate:
		if e.gen == p.judge.wakes {
			p.agree(agreement.Tick{})
		}
	case echo:
		p.askPeers()
	case wake:
		if e.gen == p.wakes {
			p.notify(tickEvent)
		}
	case client:
		p.serve()
	}
}
