package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/rig"
)

// Outcome is what became of an action.
type Outcome struct {
	Action
	Fired  bool   `json:"fired"`
	Effect string `json:"effect,omitempty"`
	Error  string `json:"error,omitempty"` // of beginning or healing
	Start  int64  `json:"start_ms"`        // on the history's clock
	Stop   int64  `json:"stop_ms"`
	Over   int64  `json:"over_ms"`       // when its effects had to be over
	Cut    bool   `json:"cut,omitempty"` // the run was ended before it was
}

// Runner carries out a schedule.
type Runner struct {
	Rig   *rig.Rig
	Table []Fault
	Copy  rig.Snapshot
	Seed  uint64
	// Tell is told of what happens, for people; it must not block.
	Tell func(string)

	extra atomic.Int64 // IDs of injections that healing needs

	mu       sync.Mutex // guards all below
	stalls   []string
	active   []string
	under    []underway
	outcomes []Outcome
}

// underway is an action whose effects last.
type underway struct {
	id      int64
	targets []string
	alone   bool
	until   time.Time // zero while it is not healed
}

// Active names the faults that go on now.
func (r *Runner) Active() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.active)
}

// Outcomes returns what became of the actions so far.
func (r *Runner) Outcomes() []Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.outcomes)
}

// healTimeout bounds the healing of one fault.
const healTimeout = 60 * time.Second

// Run carries out a schedule, and returns when all of it is over and healed. When
// ctx ends, what goes on is healed and nothing new begins.
//
// Should this machine stand for a while, the rest of the schedule moves by as
// much: faults that had come due meanwhile would otherwise strike all at once. So
// it does while a fault takes longer to heal than was planned, and the next one
// cannot go on beside it.
func (r *Runner) Run(ctx context.Context, s Schedule) {
	var all sync.WaitGroup
	defer all.Wait()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var ran time.Duration // as the schedule counts
	last := time.Now()
	for next := 0; next < len(s.Actions); {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if ctx.Err() != nil {
			return
		}
		step := time.Since(last)
		last = last.Add(step)
		if step > stall {
			r.stood(step)
			step = 0
		}
		ran += step
		for ; next < len(s.Actions) && time.Duration(s.Actions[next].AtMs)*time.Millisecond <= ran; next++ {
			a := s.Actions[next]
			if !r.begin(a) {
				ran = time.Duration(a.AtMs) * time.Millisecond
				break
			}
			all.Go(func() { r.inject(ctx, a) })
		}
	}
}

// begin notes an action that is about to begin, unless something that goes on
// rules it out.
func (r *Runner) begin(a Action) bool {
	f := Find(r.Table, a.Fault)
	me := underway{id: a.ID, targets: a.Targets, alone: f.Alone || f.Scope != OneNode && f.Scope != Aside}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.under = slices.DeleteFunc(r.under, func(u underway) bool { return !u.until.IsZero() && !now.Before(u.until) })
	for _, u := range r.under {
		if u.alone || me.alone || slices.ContainsFunc(u.targets, func(t string) bool { return slices.Contains(a.Targets, t) }) {
			return false
		}
	}
	r.under = append(r.under, me)
	return true
}

// over notes when the effects of an action are over.
func (r *Runner) over(id int64, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.under {
		if r.under[i].id == id {
			r.under[i].until = at
		}
	}
}

// stall is how long this machine may be late without saying so: more than an
// election of etcd takes, and all that faults leave in hand.
const stall = 2 * time.Second

func (r *Runner) stood(d time.Duration) {
	text := fmt.Sprintf("%v until %v", d.Round(100*time.Millisecond), time.Duration(r.Rig.Now()).Round(100*time.Millisecond))
	r.Tell("this machine stood for " + text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stalls = append(r.stalls, text)
}

// Stalls says when this machine stood.
func (r *Runner) Stalls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.stalls)
}

func (r *Runner) inject(ctx context.Context, a Action) {
	f := Find(r.Table, a.Fault)
	s := &Injection{Rig: r.Rig, Action: a, Fault: f, Copy: r.Copy, Also: r.also}
	out := Outcome{Action: a}
	over := time.Now() // if it never begins
	defer func() { r.over(a.ID, over) }()
	if err := r.aim(ctx, s); err != nil {
		out.Error = err.Error()
		r.done(out)
		return
	}
	out.Targets = s.Targets
	e := f.Expect(r.Rig.Timing)
	name, class := fmt.Sprintf("%s(%d)", f.Name, a.ID), classOf(f)
	r.mu.Lock()
	r.active = append(r.active, name)
	r.mu.Unlock()
	out.Start = r.write(f.Name, history.Fault{Phase: history.FaultStart, ID: a.ID, Class: class, Targets: s.Targets, Amount: a.Amount, Unit: a.Unit,
		Must: e.Must, DeadlineMs: e.Within.Milliseconds(), May: e.May, SettleMs: e.Settle.Milliseconds()})
	r.Tell(fmt.Sprintf("%s begins: %s %v%s", f.Name, f.About, s.Targets, amountText(a)))

	until := time.Now().Add(s.hold())
	err := f.Begin(ctx, s)
	late := until.Add(2 * time.Second) // for the effect to be seen
	if now := time.Now(); now.After(until) {
		late = now.Add(5 * time.Second) // beginning took long
	}
	for err == nil && ctx.Err() == nil && (time.Now().Before(until) || !out.Fired && time.Now().Before(late)) {
		if !out.Fired {
			var effect string
			if effect, err = f.Fired(ctx, s); err == nil {
				out.Fired, out.Effect = true, effect
				r.write(f.Name, history.Fault{Phase: history.FaultFired, ID: a.ID, Class: class, Targets: s.Targets, Effect: effect})
				r.Tell(f.Name + ": " + effect)
			} else if errors.Is(err, errNotYet) {
				out.Error, err = err.Error(), nil // stands if nothing better comes
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(100*time.Millisecond, max(time.Millisecond, time.Until(until)))):
		}
	}
	if out.Fired {
		out.Error = ""
	}
	out.Cut = ctx.Err() != nil
	heal, cancel := context.WithTimeout(context.WithoutCancel(ctx), healTimeout)
	healed := f.End(heal, s)
	cancel()
	if err := errors.Join(err, healed); err != nil {
		out.Error = err.Error()
		r.Tell(f.Name + ": " + out.Error)
	}
	if s.Healed != "" {
		out.Effect += "; " + s.Healed
		r.Tell(f.Name + ": " + s.Healed)
	}
	out.Stop = r.write(f.Name, history.Fault{Phase: history.FaultStop, ID: a.ID, Class: class, Targets: s.Targets, SettleMs: e.Settle.Milliseconds()})
	out.Over = out.Stop + e.Settle.Milliseconds()
	over = time.Now().Add(e.Settle)
	r.Tell(f.Name + " is healed")
	r.mu.Lock()
	r.active = slices.DeleteFunc(r.active, func(n string) bool { return n == name })
	r.mu.Unlock()
	r.done(out)
}

// classOf returns the class that the history is told: what keeps etcd's own rules
// (a lease ends, a key goes) is no tampering with the records that claims rest on.
func classOf(f *Fault) string {
	if f.Class == Data && !f.Outside {
		return "records"
	}
	return string(f.Class)
}

func amountText(a Action) string {
	switch a.Unit {
	case "":
		return ""
	case "ns":
		return " " + time.Duration(a.Amount).String()
	}
	return fmt.Sprintf(" %d %s", a.Amount, a.Unit)
}

func (r *Runner) done(o Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcomes = append(r.outcomes, o)
}

// write puts a moment of a fault into the history, and returns its time in ms.
func (r *Runner) write(name string, f history.Fault) int64 {
	at, _ := r.Rig.History.Write(history.Op{Process: history.Nemesis, Type: history.Info, F: name, Fault: &f})
	return int64(at) / 1e6
}

// also is Injection.Also.
func (r *Runner) also(name, class string, targets []string, e Expect, do func() (string, error)) error {
	id := 1_000_000 + r.extra.Add(1)
	r.write(name, history.Fault{Phase: history.FaultStart, ID: id, Class: class, Targets: targets, May: e.May, SettleMs: e.Settle.Milliseconds()})
	effect, err := do()
	if err == nil {
		r.write(name, history.Fault{Phase: history.FaultFired, ID: id, Class: class, Targets: targets, Effect: effect})
		r.Tell(name + ": " + effect)
	}
	r.write(name, history.Fault{Phase: history.FaultStop, ID: id, Class: class, Targets: targets, SettleMs: e.Settle.Milliseconds()})
	return err
}

// aim finds out whom the action hits.
func (r *Runner) aim(ctx context.Context, s *Injection) error {
	random := rand.New(rand.NewPCG(r.Seed, uint64(s.ID)))
	members := func(hit ...int) {
		s.Hit = hit
		for _, i := range hit {
			s.Targets = append(s.Targets, s.Etcds[i].Name)
		}
	}
	switch f := s.Fault; f.Scope {
	case OneNode:
		for _, n := range s.Nodes {
			if slices.Contains(s.Targets, n.Name) {
				s.Node = n
			}
		}
		if s.Node == nil {
			return fmt.Errorf("%w: no node %v", errNothing, s.Targets)
		}
		s.Before = s.Node.Look(ctx)
	case Member, Leader:
		leader := r.Rig.Op.Leader(ctx)
		if leader < 0 {
			return fmt.Errorf("%w: etcd has no leader", errNothing)
		}
		if f.Scope == Leader {
			members(leader)
		} else {
			members((leader + 1 + random.IntN(rig.Members-1)) % rig.Members)
		}
	case Quorum:
		first := random.IntN(rig.Members)
		members(first, (first+1)%rig.Members)
		if f.Expect(s.Timing).Must != "" {
			s.Targets = s.Names() // it is they who have to refuse
		}
	case Whole:
		if e := f.Expect(s.Timing); len(e.May) > 0 || e.Must != "" {
			s.Targets = s.Names()
		} else {
			s.Targets = []string{"etcd"} // or it would be aimed at all
		}
	case Aside:
		s.Targets = []string{"extra"}
	}
	return nil
}
