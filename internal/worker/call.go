package worker

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/text"
)

// racesByList is how many sids of one list may be found taken before it counts as old.
const racesByList = 3

// maxAsked bounds how many requests one call sends to the store.
const maxAsked = 16

// Call is one request of a caller. It is owned by one goroutine, and used once.
type Call struct {
	cfg Config
	req Request

	// known is what the node knew when it sent asked, the outstanding request. So many were
	// sent, and so many sids did another write take while this call asked for them.
	known Knowledge
	asked Action
	count int
	races int

	sid      flake.SID
	secret   string
	instance lease.Instance

	// What the store has answered. rec are the records of sid. bad are the sids that have a
	// ledger and no window.
	config lease.Entry[lease.Space]
	era    lease.Entry[lease.Era]
	mark   lease.Entry[lease.Mark]
	rec    lease.SIDRecords
	sids   map[flake.SID]lease.SIDRecords
	bad    map[flake.SID]bool

	// lease was taken by this call; 0 is none. renewed is the holder's, once it was renewed
	// or found gone, and old is the holder's once a release was sent.
	lease   lease.LeaseID
	renewed lease.LeaseID
	old     lease.LeaseID
	// want is the ceiling last asked for.
	want clock.Millis
	// unknown: a write of sid was sent whose outcome is not known.
	unknown bool
	// extend: this is an extension, or an acquisition that found its own record.
	extend bool
}

// NewCall returns a call that has asked for nothing.
func NewCall(cfg Config, req Request) *Call {
	c := &Call{cfg: cfg, req: req, bad: map[flake.SID]bool{}}
	switch r := req.(type) {
	case Acquire:
		c.secret = r.Secret
	case Extend:
		c.secret, c.sid, c.extend = r.Handle.Secret, r.Handle.SID, true
	case Release:
		c.secret, c.sid = r.Handle.Secret, r.Handle.SID
	}
	c.instance = Instance(c.secret)
	return c
}

// Step takes the answer to the latest action, and returns the next one. The first answer
// is empty.
//
// now and k were read, k first, after the answer arrived and before anything that the
// returned action sends. Done and Refused are final.
func (c *Call) Step(now clock.Reading, k Knowledge, a Answer) Action {
	act := c.next(now, k, a)
	switch act.(type) {
	case Done, Refused:
	default:
		if c.count++; c.count > maxAsked {
			act = c.refuse(c.gaveUp())
		}
	}
	c.known, c.asked = k, act
	return act
}

func (c *Call) next(now clock.Reading, k Knowledge, a Answer) Action {
	switch asked := c.asked.(type) {
	case nil:
		return c.start(now, k)
	case List:
		if a.Err != nil {
			return c.refuse(c.unavailable(a.Err))
		}
		return c.onList(now, k, a.View)
	case TakeLease:
		if a.Err != nil {
			return c.refuse(c.unavailable(a.Err))
		}
		c.lease = a.Lease
		return c.write(now, k)
	case KeepAlive:
		c.renewed = asked.Lease
		if errors.Is(a.Err, lease.ErrLeaseGone) {
			return Read{c.sid} // The holder's key goes with it.
		}
		return c.write(now, k) // After another error it does so too: the interval counts, not the lease.
	case Commit:
		if errors.Is(a.Err, lease.ErrLeaseGone) {
			c.lease = 0 // Nothing was written.
			return Read{c.sid}
		}
		if a.Err != nil {
			c.unknown = true
			return Read{c.sid}
		}
		return c.onView(now, k, a.View)
	case Read:
		if a.Err != nil {
			if c.count >= maxAsked/2 {
				return c.refuse(c.unavailable(a.Err))
			}
			return Read{c.sid}
		}
		return c.onView(now, k, a.View)
	}
	panic(fmt.Sprintf("worker: a step after %T", c.asked))
}

// start checks what needs no answer of the store.
func (c *Call) start(now clock.Reading, k Knowledge) Action {
	r, acquire := c.req.(Acquire)
	if barred := c.barred(now, k); barred != nil {
		return c.refuse(barred)
	}
	if !acquire {
		return Read{c.sid}
	}
	limit := c.cfg.Bounds.MaxSkew
	if off := r.Clock - now.Wall; r.Clock != 0 && max(off, -off) > clock.MillisOf(limit) {
		return c.refuse(&node.Refusal{
			Reason: node.CallerClock,
			Message: fmt.Sprintf("the caller's clock is off by %s, at most %v is allowed: "+
				"synchronize the clock of its machine", text.Span(off.Duration()), limit),
			Metadata: map[string]string{
				"offset_ms": strconv.FormatInt(int64(off), 10),
				"limit_ms":  strconv.FormatInt(limit.Milliseconds(), 10),
			},
		})
	}
	return List{Fresh: r.Given}
}

// barred returns why this node writes no ceiling now, or nil.
func (c *Call) barred(now clock.Reading, k Knowledge) *node.Refusal {
	_, acquire := c.req.(Acquire)
	switch {
	case k.Closed != nil:
		return k.Closed
	case now.Undecided && acquire && !c.extend:
		return again(node.ClockSkew,
			"this node's wall clock was set, and it is not known yet which time is right: try another node")
	case !k.Limit.Permits(now, acquire && !c.extend):
		return again(node.ClockSkew,
			"this node's clock reads %s, further ahead of what records show than is followed: "+
				"try another node", now.Wall.Time().UTC().Format(time.RFC3339))
	}
	return nil
}

// again refuses for a reason that may be over in a second.
func again(reason node.Reason, format string, args ...any) *node.Refusal {
	return &node.Refusal{Reason: reason, RetryAfter: time.Second, Message: fmt.Sprintf(format, args...)}
}

// onList chooses the sid to acquire.
func (c *Call) onList(now clock.Reading, k Knowledge, v lease.View) Action {
	// The list may be older than what the node has read since: the space alone is compared.
	if r := c.check(lease.Status{Space: c.known.Status.Space}, v); r != nil {
		return c.refuse(r)
	}
	if era := v.Era.Value; c.cfg.Bounds.Early(now.Wall, era) > 0 {
		return c.refuse(again(node.Starting, "%s", era.Begins(now.Wall)))
	}
	r := c.req.(Acquire)
	c.sids = maps.Clone(v.SIDs)
	for _, sid := range slices.Sorted(maps.Keys(c.sids)) { // In order the same call finds the same sid.
		if r.Given && c.holds(c.sids[sid].Window.Value) {
			c.sid = sid
			return Read{sid} // An earlier call acquired it.
		}
	}
	if held := c.held(r.Owner); held >= r.Quota {
		return c.refuse(&node.Refusal{
			Reason: node.WorkerQuota,
			Message: fmt.Sprintf("%s holds %d workers, and may hold %d: release some",
				lease.Printable(r.Owner), held, r.Quota),
			Metadata: map[string]string{"held": strconv.Itoa(held), "limit": strconv.Itoa(r.Quota)},
		})
	}
	return c.another(now, k)
}

// another goes on with another sid: no write of this call can be applied to the one
// before.
func (c *Call) another(now clock.Reading, k Knowledge) Action {
	sid, ok := c.choose(now, c.req.(Acquire))
	if !ok {
		return c.refuse(&node.Refusal{
			Reason:     node.NoWorker,
			RetryAfter: c.cfg.Bounds.WorkerWindow / 4,
			Message:    c.noneFree(now),
		})
	}
	c.sid, c.rec, c.unknown = sid, c.sids[sid], false
	return c.write(now, k)
}

// onView takes what the store shows of the sid.
func (c *Call) onView(now clock.Reading, k Knowledge, v lease.View) Action {
	if r := c.check(c.known.Status, v); r != nil {
		return c.refuse(r)
	}
	c.rec = v.SIDs[c.sid]
	switch r := c.req.(type) {
	case Acquire:
		if !c.extend {
			return c.acquired(now, k)
		}
		return c.extended(now, k, Extend{})
	case Extend:
		return c.extended(now, k, r)
	case Release:
		return c.released(now, k, r)
	}
	panic(fmt.Sprintf("worker: a request %T", c.req))
}

// holds reports whether a record gives its window to this worker.
func (c *Call) holds(w lease.Window) bool {
	return w.Instance == c.instance && w.Worker && w.State == lease.Active && w.Era == c.era.Value.Number
}

// ours reports whether the holder's key is the worker's.
func (c *Call) ours() bool {
	h := c.rec.Holder
	return h.Exists() && h.Err == nil && h.Value.Instance == c.instance
}

// acquired finds out whether the sid is the worker's now.
func (c *Call) acquired(now clock.Reading, k Knowledge) Action {
	_, answer := c.asked.(Commit)
	w := c.rec.Window
	switch {
	case w.Err == nil && c.holds(w.Value):
		if !answer && c.ours() && w.Value.Base != w.Value.Since {
			return c.refuse(&node.Refusal{
				Reason: node.InvalidFormat,
				Message: "the secret is that of a worker which was extended since: " +
					"draw another one at random for each worker",
			})
		}
		c.extend = true // It is a worker's, by this call or an earlier one.
		return c.extended(now, k, Extend{})
	case !w.Same(c.sids[c.sid].Window):
		// Another write came first: no write of ours can be applied any more.
		c.sids[c.sid] = c.rec
		if c.races++; c.races%racesByList == 0 {
			c.unknown = false
			return List{Fresh: true} // Many acquire, on other nodes.
		}
		return c.another(now, k)
	case c.rec.Past && !w.Exists():
		c.bad[c.sid] = true // No write of ours can be applied here either.
		return c.another(now, k)
	case c.rec.Holder.Exists():
		return c.refuse(again(node.NoWorker,
			"sid %d has a holder that does not belong to its window: etcd's data was edited", c.sid))
	}
	// It was not applied, and still may be: the same record is asked for again.
	return c.write(now, k)
}

// extended finds out whether the worker still has the sid, and for how long. A handle with
// term 0 matches whatever term the record has.
func (c *Call) extended(now clock.Reading, k Knowledge, r Extend) Action {
	if r := c.notHeld(r.Handle.Term); r != nil {
		return c.refuse(r)
	}
	w := c.rec.Window.Value
	switch ceil := c.cfg.ceiling(now, w.Ceil); {
	case w.Ceil < r.NotAfter:
		return c.refuse(again(node.HistoryRewound, "etcd's history cannot be trusted: "+
			"its record of sid %d ends at %d, and the worker was told %d", c.sid, w.Ceil, r.NotAfter))
	case r.Floor > ceil:
		return c.refuse(&node.Refusal{
			Reason: node.InvalidFormat,
			Message: fmt.Sprintf("the floor %d is beyond the end of the interval, %d: "+
				"check the clock of the worker's machine", r.Floor, ceil),
		})
	case c.rec.Holder.Exists() && !c.ours():
		return c.refuse(c.gone("its holder is another one, and its window is not: etcd's data was edited"))
	case c.ours() && (c.cfg.enough(now, w.Ceil) || c.want != 0 && w.Ceil >= c.want):
		return c.done(now)
	}
	return c.write(now, k)
}

// released finds out whether the sid is given back.
func (c *Call) released(now clock.Reading, k Knowledge, r Release) Action {
	w := c.rec.Window.Value
	if w.Instance == c.instance && w.Term == r.Handle.Term && w.State == lease.Released {
		return Done{Reusable: w.Ceil, Revoke: c.old}
	}
	if r := c.notHeld(r.Handle.Term); r != nil {
		return c.refuse(r)
	}
	return c.write(now, k)
}

// notHeld returns why the record is not that of the worker, or nil.
func (c *Call) notHeld(term int64) *node.Refusal {
	w := c.rec.Window
	switch v := w.Value; {
	case !w.Exists():
		return c.gone("it was never held")
	case w.Err != nil:
		return c.gone("its record is unreadable")
	case v.Instance != c.instance, term != 0 && v.Term != term:
		return c.gone("somebody else acquired it since, or the handle is wrong")
	case v.TakenByOperator():
		return c.gone(v.ByOperator())
	case v.State != lease.Active:
		return c.gone("it was released")
	case v.Era != c.era.Value.Number:
		return c.gone(fmt.Sprintf("era %d began, and it was acquired in era %d", c.era.Value.Number, v.Era))
	case !v.Worker:
		return c.gone("a node holds it")
	}
	return nil
}

func (c *Call) gone(why string) *node.Refusal {
	return &node.Refusal{
		Reason: node.UnknownWorker,
		Message: fmt.Sprintf("sid %d is not this worker's: %s: stop at not_after, and acquire another worker",
			c.sid, why),
	}
}

// passed refuses a worker whose key is gone and that the watermark no longer names: it might make
// IDs below what was answered.
func (c *Call) passed() *node.Refusal {
	const why = "the watermark has passed its interval"
	if _, acquire := c.req.(Acquire); acquire {
		return &node.Refusal{
			Reason:  node.InvalidFormat,
			Message: "the secret is that of a worker, and " + why + ": draw another one at random for each worker",
		}
	}
	return c.gone(why)
}

// write sends the next write of the sid, or what has to come before it.
func (c *Call) write(now clock.Reading, k Knowledge) Action {
	if barred := c.barred(now, k); barred != nil {
		return c.refuse(barred)
	}
	w := c.rec.Window.Value
	t := lease.Txn{SID: c.sid, Seen: c.rec, Config: c.config, Era: c.era, Mark: c.mark, Lease: c.lease}
	switch r := c.req.(type) {
	case Release:
		t.Op = lease.Release
		if c.ours() {
			c.old = c.rec.Holder.Lease
		}
		if r.UsedUntil != 0 {
			w.Ceil = min(w.Ceil, max(w.Since, r.UsedUntil))
		}
		w.Base, w.State, w.Floor = w.Since, lease.Released, w.Ceil
	case Acquire, Extend:
		a, acquire := r.(Acquire)
		switch {
		case acquire && !c.extend:
			t.Op = lease.Acquire
			base := max(w.Ceil, c.era.Value.Floor, now.Wall, c.mark.Value.At)
			w = lease.Window{
				Era: c.era.Value.Number, Term: w.Term + 1, Instance: c.instance, Node: a.Name, Owner: a.Owner,
				Base: base, Ceil: c.cfg.ceiling(now, base), Since: base, State: lease.Active, Worker: true,
				Prior: w.Priors(c.mark.Value),
			}
			if a.TellsFloor {
				w.Floor = base
			}
		case c.ours():
			t.Op, t.Lease = lease.Extend, c.rec.Holder.Lease
			w = c.further(now, w, 0)
		default:
			t.Op = lease.Rehold
			// The mark may have passed it: it had vanished. It keeps to the mark from the answer on,
			// and nothing of the new part of its interval is used before that. One that tells no floors
			// keeps to no mark.
			if w.Floor == 0 && c.mark.Value.At > w.Since && !c.mark.Value.Names(c.sid) {
				return c.refuse(c.passed())
			}
			w = c.further(now, w, c.mark.Value.At)
		}
		switch {
		case t.Op.TakesHolder() && c.mark.Err != nil:
			return c.refuse(again(node.Starting,
				"the record of the watermark is unreadable (%v): run \"allocator admin recover\"", c.mark.Err))
		case t.Lease == 0:
			return TakeLease{c.cfg.Bounds.WorkerWindow}
		case t.Op == lease.Extend && c.renewed != t.Lease:
			return KeepAlive{t.Lease}
		}
		c.want = w.Ceil
		t.Holder = lease.Holder{Instance: c.instance, Node: w.Node, Worker: true, Owner: w.Owner}
	}
	w.Nonce, w.Wall, w.Gossip = c.cfg.Nonce(), now.Wall, false
	t.Window = w
	return Commit{t}
}

// further returns the record of an extension. A worker that tells floors uses nothing below
// the one that it told, nor below mark once it has the answer.
func (c *Call) further(now clock.Reading, w lease.Window, mark clock.Millis) lease.Window {
	w.Base, w.Ceil = w.Ceil, c.cfg.ceiling(now, w.Ceil)
	if told, _ := c.req.(Extend); w.Floor > 0 {
		w.Floor = max(w.Floor, told.Floor, mark)
	}
	return w
}

// done answers with what the record gives.
func (c *Call) done(now clock.Reading) Action {
	d := Done{Worker: c.cfg.worker(now, c.secret, c.sid, c.rec.Window.Value)}
	if c.lease != c.rec.Holder.Lease {
		d.Revoke = c.lease // It was taken for nothing.
	}
	return d
}

// refuse ends the call. Its lease is revoked, so that no write of it can be applied any
// more, unless somebody may find the worker: with a secret of the caller's own.
func (c *Call) refuse(r *node.Refusal) Action {
	a, acquire := c.req.(Acquire)
	if c.unknown && (!acquire || a.Given) {
		return Refused{Refusal: r}
	}
	return Refused{Refusal: r, Revoke: c.lease}
}

// gaveUp returns why a call that sent maxAsked requests is ended.
func (c *Call) gaveUp() *node.Refusal {
	if c.races > 0 && !c.unknown {
		return again(node.NoWorker, "others took %d sids of worker.sid-range %v while this call asked for them: retry",
			c.races, c.cfg.SIDs)
	}
	return c.unavailable(errors.New("too many attempts"))
}

func (c *Call) unavailable(err error) *node.Refusal {
	return again(node.EtcdUnavailable,
		"etcd did not confirm the call: %v: send the same call again, to any node", err)
}
