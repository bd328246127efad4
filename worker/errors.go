package worker

import "errors"

// Errors of Permit, and of what needs a worker that is held. Test with errors.Is.
var (
	// ErrNotYet means that the time is before the interval: the clock is behind, or the
	// interval has not begun.
	ErrNotYet = errors.New("worker: not yet: the time is before the worker's interval; check this machine's clock")
	// ErrBehind means that the time is more than a second old, and the watermark was told that
	// none so old is used any more: see Config.Watermark. Make another ID.
	ErrBehind = errors.New("worker: behind: the watermark has passed the time; make another ID, and check this " +
		"machine's clock")
	// ErrExpired means that the time is not in the interval any more: it could not be
	// extended, or the clock is ahead. A later call can succeed.
	ErrExpired = errors.New("worker: expired: the time is after the worker's interval; check that nodes can be " +
		"reached, and this machine's clock")
	// ErrLost means that the worker is not held any more and never will be again.
	ErrLost = errors.New("worker: lost: open another one")
	// ErrClosed means that the worker was closed.
	ErrClosed = errors.New("worker: closed")
)

// ErrConfig says that a Config cannot work. It comes wrapped: the text behind it names
// the field.
var ErrConfig = errors.New("worker")

// ErrContract says that an answer breaks the contract of the API. It comes wrapped, and
// the answer is not used.
var ErrContract = errors.New("worker: a node broke the contract: check that all targets are nodes of one space, in " +
	"compatible versions")
