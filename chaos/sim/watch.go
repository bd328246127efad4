package sim

import (
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/lease"
)

// watch is a process's watch of etcd, as it is there: reports travel in order, and the
// process takes all that have come when it finds the time.
type watch struct {
	number  int   // Each watch of the process has a number; what happens to an earlier watch has no effect.
	open    bool  // etcd has it
	silent  bool  // and sends nothing any more, but for the progress of a member that is cut off
	lags    bool  // The watch is on a member that is cut off: it reports old progress and no changes.
	reached int64 // revision that was sent
	sent    []lease.Watched
	coming  bool // a report is on its way
}

// openWatch opens the process's watch, once etcd has a leader. The old one ends.
func (p *process) openWatch(after time.Duration) {
	sim := p.sim
	p.watch = watch{number: p.watch.number + 1}
	number := p.watch.number
	p.in(after, func() {
		switch {
		case number != p.watch.number:
		case sim.now < sim.etcd.away || sim.noisy() && sim.now < max(p.host.noRequests, p.host.noReplies):
			p.openWatch(sim.plan.retry)
		default:
			p.watch.open, p.watch.reached = true, sim.etcd.revision()
			p.report(lease.Watched{Opened: true, Revision: p.watch.reached})
			p.planProgress(number)
		}
	})
}

// planProgress has etcd report how far the watch is, again and again.
func (p *process) planProgress(number int) {
	p.sim.in(p.config.ProgressEvery(), func() {
		if p.gone || number != p.watch.number {
			return
		}
		switch w := &p.watch; {
		case w.lags:
			p.report(lease.Watched{Revision: w.reached})
		default:
			p.sendChanges()
		}
		p.planProgress(number)
	})
}

// sendChanges sends what the watch has not reported.
func (p *process) sendChanges() {
	sim, w := p.sim, &p.watch
	if !w.open || w.silent || sim.noisy() && sim.now < p.host.noReplies {
		return
	}
	ev := lease.Watched{}
	ev.Changes, ev.Revision = sim.etcd.mem.Changes(w.reached)
	w.reached = ev.Revision
	p.report(ev)
}

func (p *process) report(ev lease.Watched) {
	sim, number := p.sim, p.watch.number
	p.watch.sent = append(p.watch.sent, ev)
	if p.watch.coming {
		return
	}
	p.watch.coming = true
	p.in(sim.plan.latency+sim.upTo(sim.plan.latency), func() {
		if number != p.watch.number {
			return
		}
		sent := p.watch.sent
		p.watch.sent, p.watch.coming = nil, false
		for _, ev := range sent {
			p.notify(ev)
		}
	})
}

// hint sends what changed to those that watch. Some watches break at it, and some are
// silent from then on.
func (e *etcd) hint() {
	sim := e.sim
	for _, p := range sim.processes {
		if p.gone || !p.watch.open {
			continue
		}
		if sim.stage == trouble && sim.chance(sim.plan.watchLost) {
			switch sim.rng.IntN(4) {
			case 0:
				sim.note(p, "its watch says nothing any more")
				p.watch.silent = true
			case 1:
				sim.note(p, "its watch is on a member that is cut off")
				p.watch.silent, p.watch.lags = true, true
			default:
				sim.note(p, "its watch breaks")
				p.openWatch(sim.logTime(time.Millisecond, time.Second))
			}
			continue
		}
		p.sendChanges()
	}
}

// breakWatches ends all watches, as losing the leader or a restore does.
func (e *etcd) breakWatches() {
	for _, p := range e.sim.processes {
		if !p.gone {
			p.openWatch(e.travel())
		}
	}
}

// checkLists checks, in a cluster without faults, that each process knows who is
// registered.
func (sim *simulation) checkLists() {
	want := sim.etcd.view().Nodes
	for _, h := range sim.hosts {
		if p := h.process; p != nil && !p.gone && !slices.Equal(p.status.Nodes, want) {
			sim.violate("list", "%s has %d nodes in its list, and %d are registered: %s",
				p.name, len(p.status.Nodes), len(want), sim.state(p))
		}
	}
}
