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

// Outcome is the result of an action.
type Outcome struct {
	Action
	Fired  bool   `json:"fired"`
	Effect string `json:"effect,omitempty"`
	Error  string `json:"error,omitempty"`  // what failed while it began or was healed
	Broken bool   `json:"broken,omitempty"` // Error is what the product must not do.
	Start  int64  `json:"start_ms"`         // by the history's clock
	Stop   int64  `json:"stop_ms"`
	Over   int64  `json:"over_ms"`       // when its effects had to end
	Cut    bool   `json:"cut,omitempty"` // the run was interrupted
}

// Runner carries out a schedule.
type Runner struct {
	Rig      *rig.Rig
	Table    []Fault
	Snapshot rig.Snapshot
	Seed     uint64
	// Progress receives what happens, for people; it must not block.
	Progress func(string)

	extra atomic.Int64 // IDs of injections of AlsoInject

	mu       sync.Mutex // guards all below
	stalls   []string
	names    []string
	running  []active
	outcomes []Outcome
}

// active is an action whose effects last.
type active struct {
	id        int64
	targets   []string
	exclusive bool
	until     time.Time // zero while it is not healed
}

// Active names the faults in progress.
func (r *Runner) Active() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.names)
}

// Outcomes returns the results of the actions so far.
func (r *Runner) Outcomes() []Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.outcomes)
}

// healTimeout bounds the healing of one fault.
const healTimeout = 60 * time.Second

// Run carries out a schedule, and returns when all of it has ended and is healed. When
// ctx ends, faults in progress are healed and no other begins.
//
// If this machine is paused, the rest of the schedule moves by as much: faults that
// became due meanwhile would otherwise begin all at once. It also moves while healing
// takes longer than planned and the next fault cannot run beside it.
func (r *Runner) Run(ctx context.Context, s Schedule) {
	var all sync.WaitGroup
	defer all.Wait()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var ran time.Duration // position in the schedule
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
			r.paused(step)
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

// begin registers an action that is about to begin, unless one in progress excludes
// it.
func (r *Runner) begin(a Action) bool {
	f := Find(r.Table, a.Fault)
	me := active{id: a.ID, targets: a.Targets, exclusive: f.Exclusive || f.Scope != OneNode && f.Scope != Extra}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = slices.DeleteFunc(r.running, func(u active) bool { return !u.until.IsZero() && !now.Before(u.until) })
	for _, u := range r.running {
		if u.exclusive || me.exclusive ||
			slices.ContainsFunc(u.targets, func(t string) bool { return slices.Contains(a.Targets, t) }) {
			return false
		}
	}
	r.running = append(r.running, me)
	return true
}

// endAt sets when the effects of an action end.
func (r *Runner) endAt(id int64, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.running {
		if r.running[i].id == id {
			r.running[i].until = at
		}
	}
}

// stall is the longest pause of this machine that faults tolerate: more than an
// election of etcd takes.
const stall = 2 * time.Second

func (r *Runner) paused(d time.Duration) {
	text := fmt.Sprintf("%v until %v", d.Round(100*time.Millisecond),
		time.Duration(r.Rig.Now()).Round(100*time.Millisecond))
	r.Progress("this machine was paused for " + text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stalls = append(r.stalls, text)
}

// Stalls states when this machine was paused.
func (r *Runner) Stalls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.stalls)
}

func (r *Runner) inject(ctx context.Context, a Action) {
	f := Find(r.Table, a.Fault)
	s := &Injection{Rig: r.Rig, Action: a, Fault: f, Snapshot: r.Snapshot, AlsoInject: r.alsoInject}
	out := Outcome{Action: a}
	over := time.Now() // stands if the fault never begins
	defer func() { r.endAt(a.ID, over) }()
	if err := r.selectTargets(ctx, s); err != nil {
		out.Error = err.Error()
		r.done(out)
		return
	}
	out.Targets = s.Targets
	e := f.Expect(r.Rig.Timing)
	name := fmt.Sprintf("%s(%d)", f.Name, a.ID)
	r.mu.Lock()
	r.names = append(r.names, name)
	r.mu.Unlock()
	event := event{r, f.Name, history.Fault{ID: a.ID, Class: classOf(f), Targets: s.Targets}}
	out.Start = event.write(history.FaultStart, history.Fault{
		Amount:     a.Amount,
		Unit:       a.Unit,
		Must:       e.Must,
		DeadlineMs: e.Within.Milliseconds(),
		May:        e.May,
		SettleMs:   e.Settle.Milliseconds(),
	})
	r.Progress(fmt.Sprintf("%s begins: %s %v%s", f.Name, f.About, s.Targets, amountText(a)))

	until := time.Now().Add(s.hold())
	err := f.Begin(ctx, s)
	deadline := until.Add(2 * time.Second) // the effect has to be seen by then
	if now := time.Now(); now.After(until) {
		deadline = now.Add(5 * time.Second) // Begin took long
	}
	for err == nil && ctx.Err() == nil && (time.Now().Before(until) || !out.Fired && time.Now().Before(deadline)) {
		if !out.Fired {
			var effect string
			if effect, err = f.Fired(ctx, s); err == nil {
				out.Fired, out.Effect = true, effect
				event.fired(effect)
			} else if errors.Is(err, errNotYet) {
				out.Error, err = err.Error(), nil // kept unless another follows
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
		out.Error, out.Broken = err.Error(), errors.Is(err, rig.ErrBroken)
		r.Progress(f.Name + ": " + out.Error)
	}
	if s.Healed != "" {
		out.Effect += "; " + s.Healed
		r.Progress(f.Name + ": " + s.Healed)
	}
	out.Stop = event.write(history.FaultStop, history.Fault{SettleMs: e.Settle.Milliseconds()})
	out.Over = out.Stop + e.Settle.Milliseconds()
	over = time.Now().Add(e.Settle)
	r.Progress(f.Name + " is healed")
	r.mu.Lock()
	r.names = slices.DeleteFunc(r.names, func(n string) bool { return n == name })
	r.mu.Unlock()
	r.done(out)
}

// classOf returns the class for the history: what follows etcd's rules (a lease
// expires, a key is deleted) does not edit the records that claims rely on.
func classOf(f *Fault) string {
	if f.Class == Data && !f.EditsHistory {
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

// event is what the history has of all phases of a fault.
type event struct {
	*Runner
	name  string
	fault history.Fault
}

// write adds a phase to the history, and returns its time in ms.
func (e event) write(phase string, f history.Fault) int64 {
	f.Phase, f.ID, f.Class, f.Targets = phase, e.fault.ID, e.fault.Class, e.fault.Targets
	at, _ := e.Rig.History.Write(history.Op{Process: history.Nemesis, Type: history.Info, F: e.name, Fault: &f})
	return int64(at) / 1e6
}

// fired writes what was seen of the fault.
func (e event) fired(effect string) {
	e.write(history.FaultFired, history.Fault{Effect: effect})
	e.Progress(e.name + ": " + effect)
}

// alsoInject is Injection.AlsoInject.
func (r *Runner) alsoInject(name, class string, targets []string, e Expect, do func() (string, error)) error {
	id := 1_000_000 + r.extra.Add(1)
	event := event{r, name, history.Fault{ID: id, Class: class, Targets: targets}}
	event.write(history.FaultStart, history.Fault{May: e.May, SettleMs: e.Settle.Milliseconds()})
	effect, err := do()
	if err == nil {
		event.fired(effect)
	}
	event.write(history.FaultStop, history.Fault{SettleMs: e.Settle.Milliseconds()})
	return err
}

// selectTargets sets the targets of the action.
func (r *Runner) selectTargets(ctx context.Context, s *Injection) error {
	random := rand.New(rand.NewPCG(r.Seed, uint64(s.ID)))
	members := func(targets ...int) {
		s.Members = targets
		for _, i := range targets {
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
			return fmt.Errorf("%w: no node %v", errNoTarget, s.Targets)
		}
		s.Before = s.Node.Scrape(ctx)
	case Member, Leader:
		leader := r.Rig.Op.Leader(ctx)
		if leader < 0 {
			return fmt.Errorf("%w: etcd has no leader", errNoTarget)
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
			s.Targets = s.Names() // every node has to refuse
		}
	case Whole:
		if e := f.Expect(s.Timing); len(e.May) > 0 || e.Must != "" {
			s.Targets = s.Names()
		} else {
			s.Targets = []string{"etcd"} // no targets would mean all
		}
	case Extra:
		s.Targets = []string{"extra"}
	}
	return nil
}
