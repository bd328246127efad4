package history

import "github.com/flakelease/allocator/internal/clock"

// injection is one fault from its start to the end of its effects.
type injection struct {
	f       string
	fault   Fault      // as it started
	at      clock.Mono // The fault started at this time.
	stopped clock.Mono // -1: not yet
	fired   bool
}

// end returns when the effects may last until.
func (i *injection) end() clock.Mono {
	if i.stopped < 0 {
		return 1<<63 - 1
	}
	return i.stopped + clock.Mono(i.fault.SettleMs*1e6)
}

// targets reports whether the fault was aimed at a node. A fault without targets
// is aimed at all.
func (i *injection) targets(node string) bool {
	for _, t := range i.fault.Targets {
		if t == node {
			return true
		}
	}
	return len(i.fault.Targets) == 0
}

// faults follows the faults of a run.
type faults struct {
	recent []*injection // those that a call in flight may have met
	byID   map[int64]*injection
}

// grace is how long an injection is kept after its end, for calls that began
// before it: no client waits longer.
const grace = clock.Mono(60e9)

// take notes what op says of a fault, and returns its injection.
func (f *faults) take(op *Op) *injection {
	if op.Fault == nil {
		return nil
	}
	if f.byID == nil {
		f.byID = map[int64]*injection{}
	}
	i := f.byID[op.Fault.ID]
	switch op.Fault.Phase {
	case FaultStart:
		i = &injection{f: op.F, fault: *op.Fault, at: op.Time, stopped: -1}
		f.byID[op.Fault.ID] = i
		kept := f.recent[:0]
		for _, r := range f.recent {
			if r.stopped < 0 || r.end() >= op.Time-grace {
				kept = append(kept, r)
			}
		}
		f.recent = append(kept, i)
	case FaultFired:
		if i != nil {
			i.fired = true
		}
	case FaultStop:
		if i != nil && i.stopped < 0 {
			i.stopped = op.Time
			delete(f.byID, op.Fault.ID)
		}
	}
	return i
}

// during calls f for every fault whose effects reach into a time.
func (f *faults) during(from, to clock.Mono, visit func(*injection)) {
	for _, i := range f.recent {
		if i.at <= to && i.end() >= from {
			visit(i)
		}
	}
}

// calm reports whether no fault's effects reach into a time.
func (f *faults) calm(from, to clock.Mono) bool {
	calm := true
	f.during(from, to, func(*injection) { calm = false })
	return calm
}
