// Package operate decides what an operator does to a node and to a space: drain and undrain,
// quarantine and release a sid, accept a time, begin an era. The page for operators, the
// commands and gRPC all use it; they differ in how they ask nodes and in how they show a plan.
//
// An action is a [Plan] first: what was seen, what is compared, what is written, the command
// that does the same, and what an operator has to judge. [Operator.Do] carries a plan out as
// it was shown, or not at all. Records are compared by revision and by value. An era is
// decided again from answers that nodes give after the confirmation: an obstacle that nobody
// was shown refuses it.
//
// Package repair computes the records. It is apart since stores and settings need its types,
// and this package imports node. Stores, nodes, times and random texts arrive as
// arguments, and nothing here waits on its own. There is no table of actions: their plans
// differ in all but form, and would be hidden in its closures.
package operate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
)

// Store reads a space and carries out repairs. A write compares what its plan has read, by
// revision and by value, and returns repair.ErrChanged with nothing written. After any
// other error of a write its outcome is unknown.
type Store interface {
	Load(context.Context) (lease.View, error)
	Survey(context.Context, flake.SID) (lease.View, []repair.Line, error)
	Repair(context.Context, repair.Write) error
	AcceptTime(ctx context.Context, seen lease.View, a lease.AcceptedTime, acts ...lease.Act) error
	BeginEra(ctx context.Context, seen lease.View, e lease.Era, acts ...lease.Act) error
}

// Config is what an Operator works with. Store and Author are required.
type Config struct {
	Store Store
	// Ask asks the nodes that v has and all others that are known what they have seen.
	// Recover requires it.
	Ask     func(ctx context.Context, v lease.View) Answers
	Author  func() repair.Author // It signs a write, and reads the clock.
	Bounds  lease.Bounds
	Drainer *Drainer // Drain and Undrain require it.
	Etcd    string   // The endpoints of etcd, for command lines.
	GRPC    string   // The address of the Drainer's node, for command lines.
}

// ErrPartly says that some records were written before a write failed.
var ErrPartly = errors.New("only a part was done")

// Operator makes plans and carries them out. It is safe for concurrent use.
type Operator struct{ cfg Config }

// New returns an Operator.
func New(cfg Config) *Operator { return &Operator{cfg: cfg} }

// ErrUnknown says that a write may have been carried out.
var ErrUnknown = errors.New("whether it was written is unknown")

// Do carries p out, and returns it as it was done: an era has the floor of this moment.
//
// It returns ErrUnknown after a write without an answer, or the errors of Drainer. After every
// other error but ErrPartly nothing was written: repair.ErrChanged if a record is not as it was
// shown, repair.ErrRefused for an obstacle that is not in p.Accepted, or what kept it from reading.
func (o *Operator) Do(ctx context.Context, p Plan) (Plan, error) {
	if p.Refused != nil {
		return p, p.Refused
	}
	var err error
	switch p.Action {
	case Drain:
		_, err = o.cfg.Drainer.Drain(ctx)
		return p, err
	case Undrain:
		_, err = o.cfg.Drainer.Undrain()
		return p, err
	case Quarantine, ReleaseSID, Reserve, Unreserve:
		err = o.repair(ctx, p)
	case AcceptTime:
		err = o.cfg.Store.AcceptTime(ctx, p.View, p.Acceptance.Accepted, p.Act)
	case Recover:
		if p, err = o.again(ctx, p); err != nil {
			return p, err
		}
		err = o.cfg.Store.BeginEra(ctx, p.View, p.Era.Era, p.Act)
	}
	if err != nil && !errors.Is(err, repair.ErrChanged) && !errors.Is(err, repair.ErrRefused) {
		return p, fmt.Errorf("%w: %w", err, ErrUnknown)
	}
	if err == nil || p.Action != AcceptTime {
		return p, err
	}
	if now, failed := o.cfg.Store.Load(ctx); failed == nil && !now.Accepted.Same(p.View.Accepted) {
		other := now.Accepted.Value
		err = fmt.Errorf("%q accepted times up to %s meanwhile: %w", other.By, repair.At(other.Until), err)
	}
	return p, err
}

// repair carries out the writes of p in order, up to the first that fails.
func (o *Operator) repair(ctx context.Context, p Plan) error {
	var done lease.SIDSet
	for i, w := range p.Repairs {
		if i == 0 {
			w.Act = p.Act
		}
		err := o.cfg.Store.Repair(ctx, w)
		for range markTries {
			if w.Window.State != lease.Reserved || !errors.Is(err, repair.ErrChanged) {
				break
			}
			if w, err = o.afterRaise(ctx, w, err); err == nil {
				err = o.cfg.Store.Repair(ctx, w)
			}
		}
		if errors.Is(err, repair.ErrChanged) && w.Unused {
			// A record that was lost does not come back by running the command again.
			if v, ledger, failed := o.cfg.Store.Survey(ctx, w.SID); failed == nil && len(ledger) > 0 &&
				!v.SIDs[w.SID].Window.Exists() {
				err = fmt.Errorf("%w: sid %d: %s: run \"allocator admin release-sid %d\" first",
					repair.ErrRefused, w.SID, lease.PastWithoutWindow, w.SID)
			}
		}
		if err != nil && done.Len() > 0 {
			err = fmt.Errorf("%w: %w; sids %v were written", ErrPartly, err, done)
		}
		if err != nil {
			return err
		}
		done.Add(w.SID)
	}
	return nil
}

// markTries is how often a write is computed again because the watermark was raised meanwhile,
// about once a second.
const markTries = 3

// afterRaise returns the write that reserves w's sid above the watermark as it is now, if that is
// all that changed, and nothing that was shown; else changed.
func (o *Operator) afterRaise(ctx context.Context, w repair.Write, changed error) (repair.Write, error) {
	v, err := o.cfg.Store.Load(ctx)
	if err != nil || !v.Config.Same(w.Config) || !v.Era.Same(w.Era) || !v.SIDs[w.SID].Window.Same(w.Seen.Window) ||
		!v.SIDs[w.SID].Holder.Same(w.Seen.Holder) || v.Mark.Same(w.Mark) || v.Mark.Err != nil {
		return w, changed
	}
	next, by := w, o.cfg.Author()
	next.Mark, next.Window.Nonce = v.Mark, by.Nonce
	if at := v.Mark.Value.At; at > w.Window.Ceil {
		next.Window.Base, next.Window.Ceil = at, at
	}
	if next.Window.Ceil != w.Window.Ceil && next.Window.Ceil > by.Now { // A warning has to name it.
		return w, changed
	}
	return next, nil
}

// Drain returns the plan to take the node out of service.
func (o *Operator) Drain() Plan {
	return o.ofNode(Drain, "the node refuses with DRAINING", "its sid is released in etcd")
}

// Undrain returns the plan to put the node back into service.
func (o *Operator) Undrain() Plan { return o.ofNode(Undrain, "the node acquires a sid, and serves") }

func (o *Operator) ofNode(a Action, writes ...string) Plan {
	name := o.cfg.Drainer.cfg.Node.Config().Name
	return Plan{Action: a, Title: string(a) + " " + name, Writes: writes, Command: o.Command(a)}
}

// Quarantine returns the plan to take a sid out of use, with force also from its holder.
//
// It returns the errors of repair.Quarantine and of the store.
func (o *Operator) Quarantine(ctx context.Context, sid flake.SID, reason string, force bool) (Plan, error) {
	v, ledger, err := o.cfg.Store.Survey(ctx, sid)
	if err != nil {
		return Plan{}, err
	}
	w, err := repair.Quarantine(v, len(ledger) > 0, sid, reason, force, o.cfg.Author())
	if err != nil {
		return Plan{}, err
	}
	p := ofSID(Quarantine, v, w)
	p.Title, p.Command = fmt.Sprintf("quarantine sid %d", sid),
		o.Command(Quarantine, fmt.Sprint(sid), textFlag("reason", reason))
	if force {
		p.Command += " --force"
	}
	if w.Seen.Holder.Exists() {
		p.Found = append(p.Found, fmt.Sprintf("sid %d is held by %q, which loses it", sid, w.Seen.Holder.Value.Node))
	}
	return p, nil
}

// ReleaseSID returns the plan to repair a sid's record and give it back to the pool, or to
// reserve it again. above, if not 0, is a time that no ID of the sid has or will have.
//
// It returns the errors of repair.ReleaseSID and of the store.
func (o *Operator) ReleaseSID(ctx context.Context, sid flake.SID, above clock.Millis) (Plan, error) {
	v, ledger, err := o.cfg.Store.Survey(ctx, sid)
	if err != nil {
		return Plan{}, err
	}
	r, err := repair.ReleaseSID(v, ledger, sid, above, o.cfg.Bounds, o.cfg.Author())
	if err != nil {
		return Plan{}, err
	}
	p := ofSID(ReleaseSID, v, r.Write)
	p.Title, p.Command = fmt.Sprintf("release sid %d", sid),
		o.Command(ReleaseSID, fmt.Sprint(sid), timeFlag("above", above))
	if r.Write.Window.State == lease.Reserved {
		p.Title = fmt.Sprintf("repair the record of sid %d, which stays reserved", sid)
	}
	if r.Problem != "" {
		p.Found = append(p.Found, fmt.Sprintf("sid %d: %s", sid, r.Problem))
	}
	p.Found, p.Warnings = append(p.Found, "the ceiling comes from "+r.Bound), r.Warnings
	return p, nil
}

// Reserve returns the plan to keep sids for generators outside of the cluster. Those that are
// reserved already stay as they are.
//
// It returns the errors of repair.Reserve and of the store.
func (o *Operator) Reserve(ctx context.Context, sids lease.SIDSet, reason string) (Plan, error) {
	v, err := o.cfg.Store.Load(ctx)
	if err != nil {
		return Plan{}, err
	}
	var writes []repair.Write
	var warnings []string
	var already lease.SIDSet
	for sid := range sids.Each {
		if v.SIDs[sid].Window.Value.State == lease.Reserved {
			already.Add(sid)
			continue
		}
		w, warning, err := repair.Reserve(v, sid, reason, o.cfg.Author())
		if err != nil {
			return Plan{}, err
		}
		if warning != "" {
			warnings = append(warnings, warning)
		}
		writes = append(writes, w)
	}
	p := ofSIDs(Reserve, v, sids, writes)
	p.Warnings, p.Command = warnings, o.Command(Reserve, sids.String(), textFlag("reason", reason))
	if already.Len() > 0 {
		p.Found = []string{fmt.Sprintf("sids %v are reserved already", already)}
	}
	return p, nil
}

// Unreserve returns the plan to give reserved sids to the cluster. Those that are not reserved
// stay as they are. above, if not 0, is a time that no ID of theirs has or will have.
//
// It returns repair.ErrRefused if none is reserved, or the errors of repair.Unreserve and of the store.
func (o *Operator) Unreserve(ctx context.Context, sids lease.SIDSet, above clock.Millis) (Plan, error) {
	v, err := o.cfg.Store.Load(ctx)
	if err != nil {
		return Plan{}, err
	}
	var writes []repair.Write
	var others lease.SIDSet
	for sid := range sids.Each {
		if s := v.SIDs[sid].Window; s.Err == nil && s.Value.State != lease.Reserved {
			others.Add(sid)
			continue
		}
		w, err := repair.Unreserve(v, sid, above, o.cfg.Bounds, o.cfg.Author())
		if err != nil {
			return Plan{}, err
		}
		writes = append(writes, w)
	}
	if len(writes) == 0 {
		return Plan{}, fmt.Errorf("%w: none of the sids %v is reserved", repair.ErrRefused, sids)
	}
	p := ofSIDs(Unreserve, v, sids, writes)
	if others.Len() > 0 {
		p.Found = []string{fmt.Sprintf("sids %v are not reserved", others)}
	}
	p.Command = o.Command(Unreserve, sids.String(), timeFlag("above", above))
	p.Warnings = []string{"generators with these sids must have stopped: one that runs on issues what nodes issue"}
	return p, nil
}

// AcceptTime returns the plan to let nodes follow clocks up to a time; 0: an hour from now.
//
// It returns the errors of repair.AcceptTime and of the store.
func (o *Operator) AcceptTime(ctx context.Context, until clock.Millis) (Plan, error) {
	v, err := o.cfg.Store.Load(ctx)
	if err != nil {
		return Plan{}, err
	}
	a, err := repair.AcceptTime(v, until, o.cfg.Bounds, o.cfg.Author())
	if err != nil {
		return Plan{}, err
	}
	later := (a.Accepted.At - a.Latest).Duration().Round(time.Second)
	p := Plan{
		Action: AcceptTime,
		Title:  "accept clocks up to " + repair.At(a.Accepted.Until),
		Found: []string{
			fmt.Sprintf("latest record: %s, of %s", repair.At(a.Latest), a.LatestOf),
			fmt.Sprintf("this machine's clock: %s, %v later", repair.At(a.Accepted.At), later),
		},
		Warnings:   a.Warnings,
		Compares:   append(compares(v), compared("accepted time", v.Accepted)),
		Command:    o.Command(AcceptTime, timeFlag("until", until)),
		View:       v,
		Acceptance: a,
	}
	if a.Latest == 0 {
		p.Found = []string{"no node's record shows a time", "this machine's clock: " + repair.At(a.Accepted.At)}
	}
	if b := a.Before; b.Until != 0 {
		p.Found = append(p.Found,
			fmt.Sprintf("accepted before: up to %s, by %q at %s", repair.At(b.Until), b.By, repair.At(b.At)))
	}
	if !a.Done {
		p.Writes = []string{"accepted time: " + lease.Encode(a.Accepted)}
	}
	return p, nil
}

// Recover returns the plan of a new era, with the floor that an operator gives; 0: computed.
//
// It returns repair.ErrNotInitialized, ErrOtherSpace, or an error of the store.
func (o *Operator) Recover(ctx context.Context, floor clock.Millis) (Plan, error) {
	v, err := o.cfg.Store.Load(ctx)
	if err != nil {
		return Plan{}, err
	}
	return o.era(v, o.cfg.Ask(ctx, v), floor)
}
