package sim

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Live is a run under way that somebody looks at and acts in. The same seed, options and acts
// give the same run as Run does, however it is stepped and looked at. It is not safe for
// concurrent use.
type Live struct {
	sim   *simulation
	seed  uint64
	shown time.Duration // The run has been let this far, perhaps beyond its last event.
	acts  []Act         // done and to come, for a repetition
	step  func() (struct{}, bool)
	close func()
	over  bool
	count counter
}

// errClosed ends a run that nobody wants any more.
var errClosed = errors.New("the run is closed")

// Begin begins a run. Watch, if it is not nil, is called for all that happens in it.
func Begin(seed uint64, o Options, watch func(Happening)) *Live {
	sim := newSimulation(o)
	l := &Live{sim: sim, seed: seed, acts: o.Acts, count: newCounter()}
	sim.watch = func(h Happening) {
		l.count.take(h)
		if watch != nil {
			watch(h)
		}
	}
	l.step, l.close = iter.Pull(func(yield func(struct{}) bool) {
		sim.stepped = func() {
			if !yield(struct{}{}) {
				panic(errClosed)
			}
		}
		sim.play(seed, o)
	})
	l.Step() // It makes the hosts.
	return l
}

// Step lets one event happen. It reports false at the end of the run.
func (l *Live) Step() bool {
	if _, ok := l.step(); !ok {
		l.over = true
	}
	l.shown = max(l.shown, l.sim.now)
	return !l.over
}

// Advance lets time pass, and stops early after so many events. It returns how many happened.
func (l *Live) Advance(d time.Duration, events int) (happened int) {
	until := l.shown + d
	for ; happened < events && !l.over && l.sim.next() <= until; happened++ {
		l.Step()
	}
	if happened < events && !l.over {
		l.shown = until
	}
	return happened
}

// Close ends the run where it is.
func (l *Live) Close() { l.close() }

// Result returns what the run came to so far.
func (l *Live) Result() Result { return l.sim.result(l.seed) }

// Events returns how many events happened.
func (l *Live) Events() int { return l.sim.trace.events }

// Acts returns what was done in the run, for Options of another one that is the same.
func (l *Live) Acts() []Act { return l.acts }

// Happening is something that happened, for a picture of it.
type Happening struct {
	At      time.Duration
	Kind    string // start, end, pause, resume, window, seal, issue, refuse, message, away, step, drift, act
	Node    int    // the number of its host; -1: etcd, or none
	Process string

	Count  int // IDs issued: from First on, Stride apart
	First  flake.ID
	Stride int64

	SID        flake.SID
	Term       int64
	Base, Ceil clock.Millis // the window

	To    int           // who gets the message
	Until time.Duration // when a message arrives, or etcd has a leader again
	Lost  bool          // it does not arrive
	By    time.Duration // a clock steps by this, or gains it in each second
	What  string        // the reason of a refusal, what a message asks for, the act, another fault of a clock
}

// see tells whoever watches what happened on a host, or on none.
func (sim *simulation) see(on *host, h Happening) {
	if sim.watch != nil {
		h.At, h.Node = sim.now, sim.numberOf(on)
		sim.watch(h)
	}
}

// look lets whoever steps the run look at it.
func (sim *simulation) look() {
	if sim.stepped != nil {
		sim.stepped()
	}
}

// sent tells of a message from one process to another, or to or from etcd, which is nil.
func (sim *simulation) sent(from, to *process, takes time.Duration, lost bool, a any) {
	if sim.watch == nil {
		return
	}
	h := Happening{Kind: "message", To: -1, Until: sim.now + takes, Lost: lost}
	var on *host
	if from != nil {
		on, h.Process = from.host, from.name
	}
	if to != nil {
		h.To = sim.numberOf(to.host)
	}
	switch a := a.(type) {
	case nil:
		h.What = "clock"
	case lease.Commit:
		h.What = a.Txn.Op.String()
	default:
		_, h.What, _ = strings.Cut(fmt.Sprintf("%T", a), ".")
	}
	sim.see(on, h)
}

// seeWindow tells of a window that the process may issue from.
func (p *process) seeWindow(ceil clock.Millis) {
	if p.sim.watch != nil {
		s := p.machine.Status()
		p.sim.see(p.host, Happening{
			Kind: "window", Process: p.name, SID: s.Grant.SID, Term: s.Grant.Term,
			Base: s.Grant.Base, Ceil: ceil,
		})
	}
}

// numberOf returns the place of a host among the hosts, and -1 for none. A second machine of one
// name has that of the first.
func (sim *simulation) numberOf(h *host) int {
	if h == nil {
		return -1
	}
	for i, o := range sim.hosts {
		if o.node == h.node {
			return i
		}
	}
	return -1
}

// counter counts what every visitor may count: IDs, and those that break a promise.
type counter struct {
	ids, refused, duplicates, disorder int

	twin    *Twin
	issued  map[flake.SID][]issued // in the order of the IDs, the latest of them; never iterated
	below   map[flake.SID]flake.ID // Blocks of a sid up to it are forgotten.
	last    map[string]flake.ID    // by process
	refusal map[string]string      // by process: why it refused last; empty: it issued
}

// issued is a block of IDs of one sid: all that it can have between first and last.
type issued struct {
	first, last flake.ID
	by          Issuer
}

// Issuer is who issued an ID, and when.
type Issuer struct {
	Process string
	SID     flake.SID
	At      time.Duration
}

// Twin is an ID that was issued twice.
type Twin struct {
	ID   flake.ID
	A, B Issuer
}

func newCounter() counter {
	return counter{
		issued:  map[flake.SID][]issued{},
		below:   map[flake.SID]flake.ID{},
		last:    map[string]flake.ID{},
		refusal: map[string]string{},
	}
}

func (c *counter) take(h Happening) {
	switch h.Kind {
	case "refuse":
		if _, asked := c.last[h.Process]; asked { // Callers do not know a process before it issues.
			c.refused++
		}
		c.refusal[h.Process] = h.What
	case "issue":
		c.refusal[h.Process] = ""
		c.ids += h.Count
		if last, ok := c.last[h.Process]; ok && h.First <= last || h.First <= c.below[h.SID] {
			c.disorder++ // One of a forgotten ID, too: those of a sid rise.
		}
		b := issued{h.First, h.First + flake.ID(int64(h.Count-1)*h.Stride), Issuer{h.Process, h.SID, h.At}}
		c.last[h.Process] = b.last
		list := c.issued[h.SID]
		i, _ := slices.BinarySearchFunc(list, b, func(x, b issued) int { return cmp.Compare(x.last, b.first) })
		for _, x := range list[i:] {
			if x.first > b.last {
				break
			}
			id := max(x.first, b.first)
			c.duplicates += int(int64(min(x.last, b.last)-id)/h.Stride) + 1
			if c.twin == nil {
				c.twin = &Twin{id, x.by, b.by}
			}
		}
		if list = slices.Insert(list, i, b); len(list) > keptBlocks/4 {
			c.below[h.SID] = list[len(list)/2-1].last
		}
		c.issued[h.SID] = latest(list, keptBlocks/4)
	}
}

// keptBlocks bounds what is kept of what was issued in a calm run, and a quarter of it what is
// kept of each sid in one that is looked at, so that a page may show one for long. Five nodes
// issue as much in five minutes.
const keptBlocks = 1 << 14

// latest returns list, without its older half if it is longer than most.
func latest[T any](list []T, most int) []T {
	if len(list) > most {
		return append(list[:0], list[len(list)/2:]...)
	}
	return list
}

// View is the state of a run.
type View struct {
	Now        time.Duration // since the start, by true time
	Events     int
	Over       bool
	Mode       Mode
	Hash       uint64
	IDs        int
	Duplicates int
	Disorder   int   // blocks of IDs that do not rise: of one process, and from holder to holder of a sid
	Refused    int   // by processes that had issued
	Twin       *Twin // the first duplicate
	Violations []Violation
	Away       bool // etcd has no leader
	Revision   int64
	Era        int64
	Mark       clock.Millis
	Nodes      []NodeView
}

// NodeView is a host and the latest process on it.
type NodeView struct {
	Name, Process string
	Up            bool
	Paused        bool
	Cut           bool // It does not reach etcd.
	Replay        bool // Answers of etcd do not reach it.
	GossipCut     bool
	Phase         lease.Phase
	Problem       string
	Reason        string // why it refused last; empty: it issued
	Grant         lease.Grant
	Held          bool
	Gate          clock.Phase
	Off           time.Duration // its issuing clock minus true time
	Wall          time.Duration // its wall clock minus true time
	// A majority is at most this far from its issuing clock; the greatest duration: unknown.
	Error time.Duration
}

// View returns the state of the run. It changes nothing.
func (l *Live) View() View {
	sim, c := l.sim, &l.count
	v := View{
		Now: l.shown, Events: sim.trace.events, Over: l.over, Mode: sim.plan.mode, Hash: sim.trace.hash,
		IDs: c.ids, Duplicates: c.duplicates, Disorder: c.disorder + len(sim.terms.check()), Refused: c.refused,
		Twin: c.twin, Violations: sim.violations, Away: l.shown < sim.etcd.away, Revision: sim.etcd.revision(),
	}
	records := sim.etcd.view()
	v.Era, v.Mark = records.Era.Value.Number, records.Mark.Value.At
	for i, h := range sim.hosts {
		r := h.read(l.shown)
		n := NodeView{
			Name: h.node, Cut: l.shown < h.noRequests, Replay: h.noRequests <= l.shown && l.shown < h.noReplies,
			GossipCut: l.shown < h.alone || l.shown < sim.net.parted && sim.net.parts[1]>>(i%64)&1 == 1,
			Wall:      time.Duration(r.Wall - startTime - int64(l.shown)),
		}
		if p := h.process; p != nil {
			n.Process, n.Up, n.Paused, n.Reason = p.name, !p.gone, p.asleep, c.refusal[p.name]
			n.Phase, n.Problem, n.Grant, n.Held = p.status.Phase, p.status.Problem, p.status.Grant, p.status.Held
			n.Off = time.Duration(p.judge.anchor.UnixNano(r.Mono-p.origin) - startTime - int64(l.shown))
			if n.Error = math.MaxInt64; p.judge.machine != nil {
				n.Gate, n.Error = p.judge.machine.Verdict().Phase, p.judge.uncertain
			}
		}
		v.Nodes = append(v.Nodes, n)
	}
	return v
}

// Since makes a Unix time one since the start of a run.
func Since(ms clock.Millis) time.Duration { return time.Duration(int64(ms)*1e6 - startTime) }

// calmPlan is a cluster at default settings, with links as slow that messages can be seen.
func calmPlan(o Options) plan {
	p := plan{
		mode: Calm, virtual: cmp.Or(o.Virtual, time.Hour), nodes: cmp.Or(o.Nodes, 4), format: flake.Default,
		window: 30 * time.Second, extendEvery: 5 * time.Second, ttl: 15 * time.Second, keepAlive: 5 * time.Second,
		reload: 10 * time.Second, retry: 250 * time.Millisecond, timeout: 2 * time.Second,
		maxSkew: 250 * time.Millisecond, maxLead: 250 * time.Millisecond, markGrace: 5 * time.Second,
		plainEntropy: true, tickEvery: 100 * time.Millisecond, pace: 100 * time.Millisecond, follow: 0.1,
		latency: 150 * time.Millisecond, gossipLatency: 100 * time.Millisecond,
	}
	p.spare = cmp.Or(o.SIDs, p.format.Layout.Holders())
	return p
}
