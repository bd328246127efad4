package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/flakelease/allocator/flake"
)

// usage is which milliseconds of each sid each process answered with. The answers
// whose process is not known are together those of a process without a name.
type usage struct {
	format flake.Format
	used   map[usageKey]*spans
	node   map[string]string // The key is a run, the value its node by name.
}

type usageKey struct {
	sid flake.SID
	run string
}

func newUsage() usage {
	return usage{format: flake.Default, used: map[usageKey]*spans{}, node: map[string]string{}}
}

func (u *usage) take(op *Op) {
	if op.Setup != nil {
		u.format = op.Setup.Format()
	}
	if !op.isCall() || op.Type != OK {
		return
	}
	k := usageKey{sid: u.format.SID(op.Block.First)}
	if op.Node != "" {
		k.run = op.who()
	}
	s := u.used[k]
	if s == nil {
		s = new(spans)
		u.used[k] = s
		u.node[k.run] = op.Node
	}
	s.add(op.Block.milliseconds(u.format))
}

func (u *usage) keys() []usageKey {
	return slices.SortedFunc(maps.Keys(u.used), func(a, b usageKey) int {
		return cmp.Or(cmp.Compare(a.sid, b.sid), cmp.Compare(a.run, b.run))
	})
}

// Intervals checks what I4 means for IDs: no millisecond of a sid was used by two
// processes. It finds two holders at once even where chance kept their IDs
// apart, and needs nothing from etcd.
type Intervals struct {
	findings
	usage
}

// NewIntervals returns the check.
func NewIntervals() *Intervals { return &Intervals{usage: newUsage()} }

// Add takes the blocks of answers. One that runs on into the IDs of another sid uses its
// milliseconds, too.
func (i *Intervals) Add(op *Op) {
	i.take(op)
	if op.isCall() && op.Type == OK {
		if from, to := i.format.SID(op.Block.First), i.format.SID(op.Block.Last()); from != to {
			i.add("I4", op.Time, "%s answered %d IDs from %v: they run from sid %d into sid %d", op.who(),
				op.Block.Count, op.Block.First, from, to)
		}
	}
}

// Finish compares the processes of each sid.
func (i *Intervals) Finish() Result {
	keys := i.keys()
	for n, a := range keys {
		for _, b := range keys[n+1:] {
			if a.sid != b.sid {
				break
			}
			if a.run == "" { // it may be the other
				continue
			}
			if ms, ok := i.used[a].shared(*i.used[b]); ok {
				i.add("I4", 0, "sid %d: both %s and %s answered IDs of millisecond %d", a.sid, a.run, b.run, ms)
			}
		}
	}
	missing := ""
	if len(keys) == 0 {
		missing = "no IDs were answered"
	}
	return i.result("intervals", "I4", fmt.Sprintf("%d holdings of sids by processes", len(keys)), missing)
}

// Reserved checks I3 and I4 against etcd's own record: every millisecond that a
// process answered with lies in a window that was written for it, and the
// windows of a sid are disjoint and rise, in the order in which etcd applied
// them. Windows may come at any time of the run, so the check comes at the end.
//
// A window names the process it was written for by Run, else by Node: then it is
// taken for one of each process of the node.
type Reserved struct {
	findings
	usage
	windows int64
	granted map[usageKey]*spans // by run, or by node
	named   map[string]bool     // processes that a window named
	last    map[int64]Window
}

// NewReserved returns the check.
func NewReserved() *Reserved {
	return &Reserved{usage: newUsage(), granted: map[usageKey]*spans{},
		named: map[string]bool{}, last: map[int64]Window{}}
}

// Add takes answers, windows, and faults that tamper with etcd's data: the
// record of a sid after one is held against nothing before it.
func (r *Reserved) Add(op *Op) {
	r.take(op)
	if op.Fault != nil && op.Fault.Class == ClassData {
		clear(r.last)
	}
	if op.Window == nil || op.Window.Deleted || op.Window.Unreadable {
		return
	}
	w := *op.Window
	r.windows++
	last, known := r.last[w.SID]
	if known {
		r.follows(op, last, w)
	}
	r.last[w.SID] = w
	who := op.who()
	r.named[who] = true
	k := usageKey{flake.SID(w.SID), who}
	s := r.granted[k]
	if s == nil {
		s = new(spans)
		r.granted[k] = s
	}
	switch {
	case w.Released && known:
		s.cut(w.Ceil) // given back: a successor may use it
	case w.Released:
		// The record that was given back is one that etcd was put back to: it says
		// nothing of what was granted since, and the next holder begins above a floor.
	case w.Ceil > w.Base:
		s.add(w.Base, w.Ceil-1)
	}
}

// follows checks a window against the one it replaced.
func (r *Reserved) follows(op *Op, a, b Window) {
	switch {
	case b.Released && b.Term == a.Term && b.Ceil <= a.Ceil && b.Base <= b.Ceil:
	case b.Term < a.Term:
		r.add("I4", op.Time, "sid %d: term %d at revision %d follows term %d", b.SID, b.Term, b.Rev, a.Term)
	case b.Base < a.Ceil:
		r.add("I4", op.Time, "sid %d: window [%d,%d) of %s at revision %d follows a ceiling of %d", b.SID, b.Base,
			b.Ceil, op.who(), b.Rev, a.Ceil)
	case b.Ceil < b.Base:
		r.add("I4", op.Time, "sid %d: window [%d,%d) of %s at revision %d ends before it begins",
			b.SID, b.Base, b.Ceil, op.who(), b.Rev)
	case b.Term == a.Term && b.Instance != a.Instance:
		r.add("I4", op.Time, "sid %d: term %d was %s's and is %s's at revision %d",
			b.SID, b.Term, a.Instance, b.Instance, b.Rev)
	}
}

// Finish joins answers and windows.
func (r *Reserved) Finish() Result {
	for _, k := range r.keys() {
		if k.run == "" { // any process may have answered
			if ms, ok := r.used[k].without(grantedToAny(r.granted, k.sid)); ok {
				r.add("I3", 0, "IDs of millisecond %d of sid %d were answered, which no window holds", ms, k.sid)
			}
			continue
		}
		granted := r.granted[k]
		if !r.named[k.run] { // etcd knows only the node
			granted = r.granted[usageKey{k.sid, r.node[k.run]}]
		}
		var have spans
		if granted != nil {
			have = *granted
		}
		if ms, ok := r.used[k].without(have); ok {
			r.add("I3", 0, "%s answered IDs of millisecond %d of sid %d, which no window of its own holds",
				k.run, ms, k.sid)
		}
	}
	missing := ""
	switch {
	case len(r.used) == 0:
		missing = "no IDs were answered"
	case r.windows == 0:
		missing = "etcd's record of windows is not in the history"
	}
	res := r.result("reserved", "I3, I4", fmt.Sprintf("%d windows, %d holdings", r.windows, len(r.used)), missing)
	if r.windows == 0 && len(r.used) > 0 { // without windows nothing is held against IDs
		res = Result{Check: res.Check, Claim: res.Claim, Verdict: Unknown, Reason: missing}
	}
	return res
}

// grantedToAny returns what was granted of a sid, to any process.
func grantedToAny(granted map[usageKey]*spans, sid flake.SID) (all spans) {
	for k, s := range granted {
		if k.sid == sid {
			for _, g := range *s {
				all.add(g.from, g.to)
			}
		}
	}
	return all
}
