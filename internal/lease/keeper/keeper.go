package keeper

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/protocol"
	"github.com/flakelease/allocator/internal/text"
)

// Generator is what issues IDs from the tenures that the keeper confirms.
// Package node has the real one.
type Generator interface {
	// Begin seals the present tenure, if any, and starts issuing from g.
	Begin(g lease.Grant)
	// Lift has the present tenure issue nothing below floor from now on.
	Lift(floor clock.Millis)
	// Raise lets the present tenure issue up to ceil.
	Raise(ceil clock.Millis)
	// Seal ends the present tenure for good and returns a ceiling above all IDs
	// that it issued.
	Seal() clock.Millis
	// Report passes on the status of the lease after every change.
	Report(lease.Status)
}

// Config is what a keeper needs. All fields are required.
type Config struct {
	Machine   lease.Config
	Store     Store
	Generator Generator
	Clock     clock.Source
	Logger    *slog.Logger

	// CallTimeout is the deadline of one store call.
	CallTimeout time.Duration
	// StopTimeout bounds giving the sid back. After it the lease expires by itself,
	// and the next holder starts at the ceiling.
	StopTimeout time.Duration
}

// Keeper runs one protocol.Machine against a store and a generator.
type Keeper struct {
	cfg Config // It never changes.

	// Run's goroutine owns these.
	machine *protocol.Machine
	failed  error
	// failing is how many calls in a row have failed, the first of them at failedAt. One was answered at answeredAt.
	failing    int
	failedAt   clock.Millis
	answeredAt clock.Millis
	// problem is the kind of the one that was logged last.
	problem   string
	problemAt clock.Mono

	// Answers to requests of the machine. At most one about records and one about
	// the lease are outstanding, and there is room for both, so that no answer waits.
	answers chan lease.Event
	gate    chan lease.Gate
	hints   chan lease.Event
	calls   sync.WaitGroup // Run's goroutine alone adds to it.
	watched watched        // It guards itself.

	// Once Run is called, its goroutine alone stores these, but for stats, which guards itself: each call
	// counts there. limit is nil until the first pass of the loop, and ticked is the clock.Mono of the
	// last one. outage is how calls fail while there is an outage; nil: there is none.
	status atomic.Pointer[published]
	limit  atomic.Pointer[lease.Limit]
	ticked atomic.Int64
	outage atomic.Pointer[Outage]
	stats  stats
}

// published is a status. changed is closed once one that differs is stored.
type published struct {
	status  lease.Status
	changed chan struct{}
}

// New returns a keeper; Run starts it.
func New(cfg Config) *Keeper {
	k := &Keeper{
		cfg:     cfg,
		machine: protocol.New(cfg.Machine),
		answers: make(chan lease.Event, 2),
		gate:    make(chan lease.Gate, 1),
		hints:   make(chan lease.Event, 4),
		watched: watched{signal: make(chan struct{}, 1)},
	}
	k.publish()
	return k
}

// Status returns the latest status of the lease. Maps and slices in it are
// shared: do not write to them.
func (k *Keeper) Status() lease.Status { return k.status.Load().status }

// Limit returns up to which time ceilings may be written, as of the last pass of the loop.
func (k *Keeper) Limit() lease.Limit {
	if l := k.limit.Load(); l != nil {
		return *l
	}
	return lease.Limit{}
}

// Watch returns the latest status, as Status does, and a channel that is closed
// when the status next differs from it in anything. A caller that calls Watch
// again after each close misses no final status, though it may not see each one
// in between. The channel is never closed after Run has returned.
//
// It may be called from any goroutine, costs no more than Status, and has
// nothing to be released.
func (k *Keeper) Watch() (lease.Status, <-chan struct{}) {
	p := k.status.Load()
	return p.status, p.changed
}

// Ticked returns the time of the last pass of the keeper's loop, which makes at
// least one a second.
func (k *Keeper) Ticked() clock.Mono { return clock.Mono(k.ticked.Load()) }

// SetGate passes on whether the cluster's clocks allow ceilings to be written. The
// latest call counts.
func (k *Keeper) SetGate(g lease.Gate) {
	for {
		select {
		case k.gate <- g:
			return
		default:
		}
		select {
		case <-k.gate:
		default:
		}
	}
}

// Notify passes on a GiveUp, a Changed or a ReportedRevision. It may drop one that
// arrives faster than the loop runs: repeat it for as long as it holds.
func (k *Keeper) Notify(ev lease.Event) {
	select {
	case k.hints <- ev:
	default:
	}
}

// Waits of the loop between two steps of the machine.
const (
	longestWait  = time.Second
	shortestWait = time.Millisecond
)

// Run leases a sid and keeps it until ctx ends, then gives it back and returns
// nil. It returns an error only if no retry can help: the node and the space have
// different ID formats, or the space was created again.
func (k *Keeper) Run(ctx context.Context) error {
	watchCtx, stopWatch := context.WithCancel(context.WithoutCancel(ctx))
	callCtx, stopCalls := context.WithCancel(context.WithoutCancel(ctx))
	var watching sync.WaitGroup
	watching.Go(func() { k.watch(watchCtx) })
	defer func() {
		k.cfg.Generator.Seal() // Whatever ended the loop, the sid is not kept any more.
		stopWatch()
		stopCalls()
		k.calls.Wait()
		watching.Wait()
	}()

	stopping, deadline := ctx.Done(), (<-chan time.Time)(nil)
	timer := time.NewTimer(0)
	defer timer.Stop()
	evs := []lease.Event{lease.Tick{}}
	for {
		if k.step(callCtx, evs) {
			return k.failed
		}
		var ev lease.Event = lease.Tick{}
		wait := k.machine.Wake().Sub(k.cfg.Clock.Now().Mono)
		timer.Reset(min(max(wait, shortestWait), longestWait))
		select {
		case ev = <-k.answers:
		case <-k.watched.signal:
			evs = k.watched.take()
			continue
		case ev = <-k.hints:
		case g := <-k.gate:
			ev = g
		case <-timer.C:
		case <-stopping:
			stopping = nil
			deadline = time.After(k.cfg.StopTimeout)
			ev = lease.Stop{}
		case <-deadline:
			k.cfg.Logger.Warn("release of the sid timed out: the sid is free when its lease expires",
				"timeout", k.cfg.StopTimeout, "problem", k.Status().Problem)
			return nil
		}
		evs = []lease.Event{ev}
	}
}

// step advances the machine by the events in queue and by all that follow at once. It
// reports whether the machine has ended.
func (k *Keeper) step(ctx context.Context, queue []lease.Event) (done bool) {
	for len(queue) > 0 {
		// Read before sending: what the store does later, it does after this.
		now := k.cfg.Clock.Now()
		k.ticked.Store(int64(now.Mono))
		k.noteOutage(now.Wall, queue[0])
		actions := k.machine.Step(now, queue[0])
		queue = queue[1:]
		limit := k.machine.Limit(now)
		k.limit.Store(&limit)
		for _, a := range actions {
			switch a := a.(type) {
			case lease.Begin:
				k.cfg.Generator.Begin(a.Grant)
			case lease.Lift:
				k.cfg.Generator.Lift(a.Floor)
			case lease.Raise:
				k.cfg.Generator.Raise(a.Ceil)
			case lease.Seal:
				queue = append(queue, lease.Sealed{Ceil: k.cfg.Generator.Seal()})
			case lease.Alarm:
				k.stats.alarm(a.Kind)
				level := slog.LevelError
				if a.Kind == lease.AlarmEra { // An operator meant that.
					level = slog.LevelWarn
				}
				k.cfg.Logger.Log(ctx, level, "alarm", "kind", a.Kind, "sid", a.SID, "message", a.Message)
			case lease.Rewatch:
				if k.failing == 0 { // In an outage nothing shows anything.
					k.cfg.Logger.Warn("watch of etcd opened again: it did not show what transactions show")
				}
				k.watched.restart()
			case lease.Fail:
				k.failed, done = a.Err, true
			case lease.Done:
				done = true
			default:
				k.call(ctx, a)
			}
		}
		k.publish()
		k.logProblem(now)
	}
	return done
}

// call carries out a request to the store and queues its answer.
func (k *Keeper) call(ctx context.Context, a lease.Action) {
	k.calls.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, k.cfg.CallTimeout)
		defer cancel()
		from := k.cfg.Clock.Now().Mono
		op, answer, err := Ask(ctx, k.cfg.Store, a)
		now := k.cfg.Clock.Now().Mono
		k.stats.observe(op, now.Sub(from), err)
		if c, ok := answer.(lease.Committed); ok && c.Applied && err == nil {
			k.stats.wrote(Write{now.Sub(from), now})
			if txn := a.(lease.Commit).Txn; txn.Op == lease.Expire {
				k.cfg.Logger.Warn("ended the hold of a node whose window is long over, and whose lease lives on",
					"sid", txn.SID, "node", lease.Printable(txn.Seen.Holder.Value.Node),
					"window_ended", txn.Seen.Window.Value.Ceil.Time().UTC())
			}
		}
		k.answers <- answer
	})
}

// Ask carries out a request to a store and returns its answer, which has the error if there
// was one. Tests that step machines without a keeper use it too.
func Ask(ctx context.Context, s Store, a lease.Action) (op Op, answer lease.Event, err error) {
	switch a := a.(type) {
	case lease.Load:
		v, err := s.Load(ctx)
		return OpLoad, lease.Loaded{View: v, Err: err}, err
	case lease.Read:
		v, err := s.Read(ctx, a.SID)
		return OpRead, lease.Loaded{View: v, Err: err}, err
	case lease.Commit:
		applied, v, err := s.Commit(ctx, a.Txn)
		return Op(a.Txn.Op.String()), lease.Committed{Applied: applied, View: v, Err: err}, err
	case lease.PutMark:
		applied, e, err := s.PutMark(ctx, a.Txn)
		return OpMark, lease.Marked{Applied: applied, Mark: e, Err: err}, err
	case lease.Register:
		id, err := s.Register(ctx, a.Lease, a.TTL, a.Registration)
		return OpRegister, lease.Registered{Lease: id, Err: err}, err
	case lease.KeepAlive:
		err := s.KeepAlive(ctx, a.Lease)
		return OpKeepAlive, lease.KeptAlive{Err: err}, err
	case lease.Revoke:
		err := s.Revoke(ctx, a.Lease)
		return OpRevoke, lease.Revoked{Err: err}, err
	}
	panic(fmt.Sprintf("keeper: unknown action %T", a))
}

// publish passes the machine's status on if it has changed. The new one is
// stored before the channel of the old one is closed, so that a waiter sees it.
func (k *Keeper) publish() {
	s := k.machine.Status()
	old := k.status.Load()
	if old != nil && reflect.DeepEqual(old.status, s) {
		return
	}
	k.status.Store(&published{status: s, changed: make(chan struct{})})
	k.cfg.Generator.Report(s)
	switch {
	case old == nil:
		k.cfg.Logger.Info("lease keeper started", "phase", s.Phase.String(), "problem", s.Problem)
		return
	case old.status.Phase != s.Phase:
		k.cfg.Logger.Info("lease phase changed", "phase", s.Phase.String(), "problem", s.Problem)
		k.problem, k.problemAt = text.Kind(s.Problem), k.Ticked()
	}
	close(old.changed)
}

// logProblem logs what the machine waits for when its kind changes, and once a minute while it
// lasts: the numbers in it may change each second. An outage is an event.
func (k *Keeper) logProblem(now clock.Reading) {
	s := k.Status()
	kind := text.Kind(s.Problem)
	away := k.failing > 0
	if s.Problem == "" || kind == k.problem && now.Mono.Sub(k.problemAt) < time.Minute && !away {
		return
	}
	k.problem, k.problemAt = kind, now.Mono
	if away {
		return // The problem stays until the next list, after the outage.
	}
	k.cfg.Logger.Warn("lease problem", "phase", s.Phase.String(), "problem", s.Problem)
}
