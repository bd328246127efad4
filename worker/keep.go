package worker

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
)

// Times of keep.
const (
	// firstRetry is how long after a call that failed the next one begins, twice as
	// long after each further one. The client has asked all nodes by then.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 2 * time.Second
	// demandEvery is how soon after a call another may begin since a Permit was refused:
	// generators ask thousands of times a second, also where only their clock is wrong.
	demandEvery = time.Second
	// leastEvery is the time between two calls that succeed, whatever nodes say.
	leastEvery = 100 * time.Millisecond
	// leastTimeout is the least time that a call has; a quarter of the time between two
	// calls, if that is longer. Several calls can fail before the interval ends, and
	// Worker.Err says why.
	leastTimeout = 500 * time.Millisecond
	// useWithin is how old the time of an ID may be when Permit is asked, if the watermark
	// covers the worker.
	useWithin = time.Second
)

// keep decides when a worker is extended, and what answers mean. It is pure: times are
// since any fixed moment, and do not step. The shell calls next, makes the call that it
// asks for, and reports how the call ended by answered or failed, before it asks next
// again. notAfter may be used as soon as answered returns.
type keep struct {
	id, handle          string
	notBefore, notAfter int64 // Unix ms
	floor               int64 // Unix ms; as nodes say it. Nothing below it is used.
	nodes               int64 // Unix ms; what the clock of a node read at time 0

	lost    error         // The worker is lost because of it; nil: it is held.
	due     time.Duration // when to extend next
	timeout time.Duration // A call to extend may take this long.
	fails   int           // calls in a row
	began   time.Duration // The last call began then.
	demand  bool          // a Permit was refused since the last call began
	refusal error         // The last call failed with it; nil: it succeeded.
}

// newKeep returns the keep of a worker that was acquired by a call begun at sent. An
// interval that is far in the future is empty at first.
func newKeep(w *pb.Worker, sent time.Duration) (*keep, error) {
	k := &keep{id: w.GetId(), handle: w.GetHandle(), notBefore: w.GetNotBeforeUnixMs()}
	if k.id == "" || k.handle == "" || w.GetNotAfterUnixMs() < k.notBefore || k.notBefore <= 0 {
		return nil, fmt.Errorf("%w: a worker %.40q of [%d, %d)", ErrContract, k.id, k.notBefore, w.GetNotAfterUnixMs())
	}
	return k, k.answered(w, sent)
}

// next returns whether a call to extend is to begin now, and else when to ask again.
func (k *keep) next(now time.Duration) (extend bool, again time.Duration) {
	due := k.due
	if k.demand {
		due = min(due, k.began+max(demandEvery, k.pause()))
	}
	if now < due {
		return false, due
	}
	k.began, k.demand = now, false
	return true, 0
}

// wanted notes that a Permit was refused since the interval had ended.
func (k *keep) wanted() { k.demand = true }

// answered takes the answer of a call that began at sent. After an error nothing of it
// is used, and the call counts as failed.
func (k *keep) answered(w *pb.Worker, sent time.Duration) error {
	switch {
	case w.GetId() != k.id || w.GetHandle() != k.handle || w.GetNotBeforeUnixMs() != k.notBefore:
		return fmt.Errorf("%w: it answered for worker %.40q of term %d instead of %s",
			ErrContract, w.GetId(), w.GetTerm(), k.id)
	case w.GetNotAfterUnixMs() < k.notAfter:
		return fmt.Errorf("%w: not_after of worker %s went back from %d to %d",
			ErrContract, k.id, k.notAfter, w.GetNotAfterUnixMs())
	}
	k.floor, k.nodes = w.GetFloorUnixMs(), w.GetNowUnixMs()-sent.Milliseconds()
	k.notAfter, k.fails, k.refusal, k.began = w.GetNotAfterUnixMs(), 0, nil, sent
	// By the node's clock alone: this machine's may be wrong. The answer took some time,
	// so that counting from sent is early.
	every := max(leastEvery, ms(w.GetExtendAtUnixMs()-w.GetNowUnixMs()))
	k.due, k.timeout = sent+every, max(leastTimeout, every/4)
	return nil
}

// passed returns a time (Unix ms) below which no ID needs to be used at now. clock is what this
// machine's clock reads. Where that is ahead of the nodes', theirs counts: it may be set back.
func (k *keep) passed(now time.Duration, clock int64) int64 {
	return min(clock, k.nodes+now.Milliseconds()) - useWithin.Milliseconds()
}

// ms returns a number of milliseconds, at most a day of them.
func ms(n int64) time.Duration {
	return time.Duration(min(n, 24*60*60*1000)) * time.Millisecond
}

// failed takes the error of a call, at its end. jitter is in [0, 1): workers that failed
// together do not retry together.
func (k *keep) failed(err error, now time.Duration, jitter float64) {
	k.refusal = err
	if over(err) {
		k.lost = err
		return
	}
	k.fails++
	wait := k.pause()
	k.due = now + wait/2 + time.Duration(float64(wait/2)*jitter)
}

// pause returns for how long nothing is asked after the failures so far.
func (k *keep) pause() time.Duration {
	if k.fails == 0 {
		return 0
	}
	return min(firstRetry<<min(k.fails-1, 10), lastRetry)
}

// over reports whether an error of a call to extend means that the worker is lost.
//
// After HISTORY_REWOUND, which the client returns once no node serves, what was confirmed
// may have been granted to somebody else: nodes stop as well.
func over(err error) bool {
	return is(err, client.UnknownWorker, client.HistoryRewound)
}

// hopeless reports whether an acquisition that failed so would fail again. The quota also counts what
// is soon over: calls whose outcome a node does not know yet, after which it says when to retry, and
// a worker that was abandoned before.
func hopeless(err error, abandoned bool) bool {
	var r *client.Refusal
	if errors.As(err, &r) && r.Reason == client.WorkerQuota {
		return r.RetryAfter == 0 && !abandoned
	}
	return is(err, client.WorkersOff, client.CallerClock, client.Unauthenticated, client.PermissionDenied,
		client.InvalidFormat)
}

// wasSlow reports whether a clock was refused that may be right: the call took so long
// that its time was old when the node read it.
func wasSlow(err error, took time.Duration) bool {
	var r *client.Refusal
	if !errors.As(err, &r) || r.Reason != client.CallerClock {
		return false
	}
	offset, errO := strconv.ParseInt(r.Metadata["offset_ms"], 10, 64)
	limit, errL := strconv.ParseInt(r.Metadata["limit_ms"], 10, 64)
	return errO == nil && errL == nil && offset < 0 && ms(-offset) <= ms(limit)+took
}
