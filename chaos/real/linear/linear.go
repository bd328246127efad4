// Package linear holds sids against a sequential model, with porcupine: is there
// one order of everything that clients and etcd saw of a sid, in agreement with
// real time, in which each step is legal?
//
// # The model of a sid
//
// The state is how many versions of the sid's window record have been written,
// and the greatest ID that each process has issued of it.
//
//   - write(i), version i of the record: legal if exactly i versions were written
//     before it. It may take effect at any time from when an observer may first
//     have missed it until the observer saw it.
//   - allocate(p, block): legal if the versions written so far reserve every
//     millisecond of the block for process p and none of p's releases has given
//     one back, and if the block is above all that p has issued. It takes
//     effect between the client's call and the answer.
//
// Above a process's own order the model asks for none between processes: one
// that lost its sid may use up its window while its successor uses the next,
// which docs/DESIGN.md allows. That versions follow each other as the protocol
// has it is a matter of their order alone, which etcd's revisions give: package
// history checks it exactly.
//
// Only chaos may use this package: the product needs no porcupine.
package linear

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// Config bounds the work, since the question is NP-complete.
type Config struct {
	// Most is how many answers of a sid are checked, spread evenly over the
	// run; 0 is 3,000. Leaving out answers can hide a violation and make none.
	Most int
	// Timeout is how long to search for an order of one sid; 0 is a minute.
	Timeout time.Duration
	// Lag is how late the observer may see a version of a record. 0 is any time:
	// then a version may have been there from the start.
	Lag time.Duration
}

// Ownership is a history.Checker of the model above.
type Ownership struct {
	cfg    Config
	format flake.Format
	open   map[string]clock.Mono
	sids   map[flake.SID]*sid
	broken porcupine.LinearizationInfo
	shape  int  // processes in broken
	any    bool // broken is set
}

// sid is what was seen of one.
type sid struct {
	answers []answer
	seen    int // answers, those left out included
	stride  int // one answer in so many is kept
	writes  []write
}

type answer struct {
	run        string
	block      history.Block
	begin, end clock.Mono
}

type write struct {
	run        string
	base, ceil int64
	released   bool
	seen       clock.Mono
}

// New returns the check.
func New(cfg Config) *Ownership {
	cfg.Most, cfg.Timeout = cmp.Or(cfg.Most, 3000), cmp.Or(cfg.Timeout, time.Minute)
	return &Ownership{cfg: cfg, format: flake.Default, open: map[string]clock.Mono{}, sids: map[flake.SID]*sid{}}
}

func (o *Ownership) sid(n flake.SID) *sid {
	s := o.sids[n]
	if s == nil {
		s = &sid{stride: 1}
		o.sids[n] = s
	}
	return s
}

// Add takes calls, windows and the setup. Processes have to be known by Run.
func (o *Ownership) Add(op *history.Op) {
	switch {
	case op.Setup != nil:
		o.format = op.Setup.Format()
	case op.Window != nil && !op.Window.Deleted && !op.Window.Unreadable:
		w := op.Window
		s := o.sid(flake.SID(w.SID))
		s.writes = append(s.writes, write{op.Run, w.Base, w.Ceil, w.Released, op.Time})
	case op.F != history.FAllocate || op.Process == history.Nemesis:
	case op.Type == history.Invoke:
		o.open[op.Process] = op.Time
	default:
		begin, ok := o.open[op.Process]
		delete(o.open, op.Process)
		if !ok || op.Type != history.OK || op.Run == "" {
			return
		}
		s := o.sid(o.format.SID(op.Block.First))
		if s.seen++; s.seen%s.stride != 0 {
			return
		}
		s.answers = append(s.answers, answer{op.Run, op.Block, begin, op.Time})
		if len(s.answers) > o.cfg.Most { // keep every other, from here on too
			kept := s.answers[:0]
			for i := 1; i < len(s.answers); i += 2 {
				kept = append(kept, s.answers[i])
			}
			s.answers, s.stride = kept, 2*s.stride
		}
	}
}

// step is one operation of the model: a version, or an answer.
type step struct {
	version int // the version that a write made; −1: an answer
	run     int
	block   history.Block
	from    int // versions that must have been written for the answer …
	until   int // … and the number that must not be reached: it gives the time back
}

// state is how far a sid is. It is never changed.
type state struct {
	versions int
	issued   []flake.ID // the last ID that each process issued; −1: none
}

func (s state) next(v step) (bool, state) {
	if v.version >= 0 {
		return v.version == s.versions, state{s.versions + 1, s.issued}
	}
	if s.versions < v.from || s.versions >= v.until || v.block.First <= s.issued[v.run] {
		return false, s
	}
	issued := slices.Clone(s.issued)
	issued[v.run] = v.block.Last()
	return true, state{s.versions, issued}
}

// model returns the model of a sid with a number of processes.
func model(processes int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return state{0, slices.Repeat([]flake.ID{-1}, processes)} },
		Step: func(s, in, _ any) (bool, any) {
			ok, next := s.(state).next(in.(step))
			return ok, next
		},
		Equal: func(a, b any) bool {
			x, y := a.(state), b.(state)
			return x.versions == y.versions && slices.Equal(x.issued, y.issued)
		},
		DescribeOperation: func(in, _ any) string {
			v := in.(step)
			if v.version >= 0 {
				return fmt.Sprintf("version %d", v.version+1)
			}
			return fmt.Sprintf("process %d: %d from %v (versions %d to %d)", v.run, v.block.Count, v.block.First,
				v.from, v.until-1)
		},
		DescribeState: func(s any) string {
			return fmt.Sprintf("%d versions, issued %v", s.(state).versions, s.(state).issued)
		},
	}
}

// never is a version that is never reached.
const never = 1 << 30

// reserved returns from which version on, and until which, a process may issue
// a millisecond range. A range that no versions reserve has from = never.
func (s *sid) reserved(run string, first, last int64) (from, until int) {
	need := first
	until = never
	for i, w := range s.writes {
		if w.run != run {
			continue
		}
		switch {
		case w.released && w.ceil <= last && need > last:
			return from, i + 1
		case w.released:
			need = min(need, max(first, w.ceil)) // what it had from there on is gone
		case w.base <= need && need < w.ceil:
			if need = w.ceil; need > last {
				from = i + 1
			}
		}
	}
	if need <= last {
		return never, never
	}
	return from, until
}

// operations turns what was seen into steps of the model.
func (o *Ownership) operations(s *sid) (ops []porcupine.Operation, processes int) {
	runs := map[string]int{}
	for i, w := range s.writes {
		since := int64(0)
		if o.cfg.Lag > 0 {
			since = max(0, int64(w.seen)-int64(o.cfg.Lag))
		}
		ops = append(ops, porcupine.Operation{Input: step{version: i}, Call: since, Return: int64(w.seen)})
	}
	for _, a := range s.answers {
		n, ok := runs[a.run]
		if !ok {
			n = len(runs)
			runs[a.run] = n
		}
		v := step{version: -1, run: n, block: a.block, until: never}
		if len(s.writes) > 0 {
			v.from, v.until = s.reserved(a.run, o.format.UnixMilli(a.block.First),
				o.format.UnixMilli(a.block.Last())+o.format.Layout.Unit()-1)
		}
		ops = append(ops, porcupine.Operation{ClientId: n + 1, Input: v, Call: int64(a.begin), Return: int64(a.end)})
	}
	return ops, len(runs)
}

// Finish searches an order of each sid.
func (o *Ownership) Finish() history.Result {
	r := history.Result{Check: "linear", Claim: "I2, I3", Verdict: history.Pass}
	answers, versions := 0, 0
	for _, n := range slices.Sorted(maps.Keys(o.sids)) {
		s := o.sids[n]
		answers += len(s.answers)
		versions += len(s.writes)
		ops, processes := o.operations(s)
		result, info := porcupine.CheckOperationsVerbose(model(processes), ops, o.cfg.Timeout)
		switch result {
		case porcupine.Illegal:
			r.Verdict = history.Broken
			r.Count++
			if !o.any {
				o.broken, o.shape, o.any = info, processes, true
			}
			r.Violations = append(r.Violations, history.Violation{
				Claim: r.Claim,
				Detail: fmt.Sprintf("sid %d: no order of %d answers and %d versions of its window is legal", n,
					len(s.answers), len(s.writes)),
			})
		case porcupine.Unknown:
			if r.Verdict == history.Pass {
				r.Verdict, r.Reason = history.Unknown, fmt.Sprintf("sid %d: no answer within %v", n, o.cfg.Timeout)
			}
		}
	}
	switch {
	case r.Verdict == history.Unknown:
	case answers == 0:
		r.Verdict, r.Reason = history.Unknown, "no answers of known processes"
	default:
		r.Reason = fmt.Sprintf("%d answers and %d versions of %d sids", answers, versions, len(o.sids))
	}
	return r
}

// Visualize writes a page of HTML that shows the first sid that has no legal
// order, after Finish. It returns false if every one has.
func (o *Ownership) Visualize(w io.Writer) (bool, error) {
	if !o.any {
		return false, nil
	}
	return true, porcupine.Visualize(model(o.shape), o.broken, w)
}
