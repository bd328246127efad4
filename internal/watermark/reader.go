package watermark

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
)

// MaxWait is the longest that a caller may wait for a watermark at a time.
const MaxWait = time.Minute

// Reader answers what the watermark is. All methods are safe for concurrent use.
type Reader struct {
	node   *node.Node
	format flake.Format
	cfg    Config
	end    func()
	ended  chan struct{}

	waiting atomic.Int64

	mu      sync.Mutex // guards the rest
	shared  *Shared
	made    clock.Mono      // when shared was made
	changed <-chan struct{} // shared is of the status that ends with this
}

// New returns a reader of the watermark that n has read.
func New(n *node.Node, cfg Config) *Reader {
	g := n.Config().Gen
	ended := make(chan struct{})
	return &Reader{
		node:   n,
		format: flake.Format{Layout: g.Layout, Epoch: int64(g.Epoch)},
		cfg:    cfg,
		end:    sync.OnceFunc(func() { close(ended) }),
		ended:  ended,
	}
}

// Read returns the watermark now. Its error is that of Of.
func (r *Reader) Read() (Answer, error) {
	st, _ := r.node.Lease()
	return Of(st, r.node.Clock().Now(), r.format, r.cfg)
}

// Shared is an answer that many callers get.
type Shared struct {
	Answer
	number uint64
	forms  [numForms]struct {
		once  sync.Once
		bytes []byte
		err   error
	}
}

// Form is how callers write an answer.
type Form int

// The forms.
const (
	JSON Form = iota
	Message
	numForms
)

// Bytes returns the answer in a form, which encode made once for all callers, or its error. Nobody writes to it.
func (s *Shared) Bytes(f Form, encode func(Answer) ([]byte, error)) ([]byte, error) {
	form := &s.forms[f]
	form.once.Do(func() { form.bytes, form.err = encode(s.Answer) })
	return form.bytes, form.err
}

// Differs reports whether s says something other than last, which may be nil, besides the lag.
func (s *Shared) Differs(last *Shared) bool { return last == nil || s.number != last.number }

// sharedFor is how long an answer is given to callers that share it. Its lag is older by as much.
const sharedFor = 250 * time.Millisecond

// Watch returns the watermark, and a channel that is closed when it may be another one, but for what passes
// with time, such as the lag. All callers of a quarter of a second have the same answer. Its error is that of Of.
func (r *Reader) Watch() (*Shared, <-chan struct{}, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st, changed := r.node.Lease()
	now := r.node.Clock().Now()
	old := r.shared != nil && now.Mono.Sub(r.made) >= sharedFor
	if r.shared != nil && r.changed == changed && !old {
		return r.shared, changed, nil
	}
	a, err := Of(st, now, r.format, r.cfg)
	if err != nil {
		return nil, changed, err
	}
	same := r.shared != nil && Same(a, r.shared.Answer)
	if !same || old {
		next := &Shared{Answer: a}
		if r.shared != nil {
			next.number = r.shared.number
		}
		if !same {
			next.number++
		}
		r.shared, r.made = next, now.Mono
	}
	r.changed = changed
	return r.shared, changed, nil
}

// Wait returns the watermark when it is above after, or as it is when wait has passed or the
// node stops. Its error is that of Of, or ctx's.
func (r *Reader) Wait(ctx context.Context, after flake.ID, wait time.Duration) (Answer, error) {
	var timer *time.Timer
	for {
		st, changed := r.node.Lease()
		if wait <= 0 || refusal(st) != nil || after < First(r.format, int64(st.Mark.At)) {
			return Of(st, r.node.Clock().Now(), r.format, r.cfg)
		}
		if timer == nil {
			timer = time.NewTimer(wait)
			defer timer.Stop()
			r.waiting.Add(1)
			defer r.waiting.Add(-1)
		}
		select {
		case <-changed:
		case <-timer.C:
			wait = 0
		case <-r.ended:
			wait = 0
		case <-ctx.Done():
			return Answer{}, ctx.Err()
		}
	}
}

// Waiting returns how many callers wait.
func (r *Reader) Waiting() int64 { return r.waiting.Load() }

// Ended returns a channel that is closed by End.
func (r *Reader) Ended() <-chan struct{} { return r.ended }

// End has those who wait answered at once: the node stops.
func (r *Reader) End() { r.end() }

// Check returns the refusal of a caller that waits until the watermark is above after; 0 is
// none. The refusal is not counted yet.
func (r *Reader) Check(after flake.ID, wait time.Duration) *node.Refusal {
	malformed := func(format string, args ...any) *node.Refusal {
		return &node.Refusal{Reason: node.InvalidFormat, Message: fmt.Sprintf(format, args...)}
	}
	switch err := r.format.Holds(after); {
	case after < 0:
		return &node.Refusal{Reason: node.InvalidID,
			Message: fmt.Sprintf("after is %d: an ID is never negative", after.Int64())}
	case err != nil:
		return &node.Refusal{Reason: node.InvalidID, Message: "after is no ID of this space: " + err.Error(),
			Metadata: map[string]string{"class": "out_of_range"}}
	case r.foreign(after):
		st, _ := r.node.Lease()
		return &node.Refusal{
			Reason: node.InvalidID,
			Message: fmt.Sprintf("after has sid %d, and this space has sids %v: ask a node of the ID's space",
				r.format.SID(after), st.Space.SIDs().Of(st.Space.Layout)),
			Metadata: map[string]string{"class": "out_of_range"},
		}
	case wait < 0:
		return malformed("wait is negative: give the time to wait at most, such as 30s")
	case wait > MaxWait:
		return malformed("wait is above %v: wait for at most that, and ask again", MaxWait)
	case wait > 0 && after == 0:
		return malformed("wait is given without after: give the ID that the watermark has to pass")
	}
	return nil
}

// foreign reports whether an ID was issued by another space. The smallest ID of a time is a bound
// that nobody issued.
func (r *Reader) foreign(id flake.ID) bool {
	st, _ := r.node.Lease()
	low, err := r.format.Min(r.format.UnixMilli(id))
	bound := err != nil || id == low || r.format.Layout.Timestamp(id) == 0
	return st.Space.Pool != "" && !bound && !st.Space.SIDs().Has(r.format.SID(id))
}

// Same reports whether two answers differ in nothing but the lag.
func Same(a, b Answer) bool {
	a.Lag, b.Lag = 0, 0
	return reflect.DeepEqual(a, b)
}
