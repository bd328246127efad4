package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// Watermark says which IDs can still appear in a space: none below ID is issued any more, by
// any node. It is about IDs that nodes issue: a program may store one late, and NotCovered are
// generators that it says nothing about.
type Watermark struct {
	// UnixMilli is in Unix milliseconds: no ID with a time below it is issued any more.
	UnixMilli int64
	// ID is the smallest of the first unit of time that begins at or after UnixMilli; 0: every
	// ID of the space can still appear.
	ID flake.ID
	// ULID is the smallest wide form of ID, as a UUID too; zero if the space has none.
	ULID ulid.ID
	// Lag is how far UnixMilli lies behind the clock of the node that answered.
	Lag time.Duration
	// Conditional is what the watermark rests on besides compares in etcd; nil: nothing.
	Conditional *WatermarkCondition
	// BlockedBy is what holds the watermark back, the first cause most; empty while it follows
	// the clock.
	BlockedBy []WatermarkBlocker
	// Held: it lags so far that an operator should look.
	Held bool
	// NotCovered are sids of generators outside of the nodes that tell nobody what they issue.
	NotCovered []flake.SID
}

// WatermarkCondition is the last process that vanished whose window the watermark has passed.
// IDs with a time below Until rest on its clock going on. After a restore of etcd it is all
// processes of the history that was lost.
type WatermarkCondition struct {
	Node  string    // The process had this name; "": it is all of a lost history.
	SID   int       // It held this sid; -1 without a name.
	Until time.Time // Its window ended then.
}

// WatermarkBlocker is what holds a watermark back.
type WatermarkBlocker struct {
	Node  string    // The holder has this name; "": the cause is none.
	SID   int       // -1 without a holder
	Since time.Time // It let the watermark rise up to then.
	Why   string    // one of a closed set, such as silent; docs/reference/watermark.md lists all
	Text  string    // It says it to people.
}

// Time returns UnixMilli, in UTC.
func (w Watermark) Time() time.Time { return time.UnixMilli(w.UnixMilli).UTC() }

// Complete reports whether no ID at or below id can appear any more.
func (w Watermark) Complete(id flake.ID) bool { return id < w.ID }

// WatermarkOf returns the watermark in an answer of the generated gRPC client.
func WatermarkOf(m *pb.Watermark) Watermark {
	w := Watermark{
		UnixMilli: m.GetUnixMs(),
		ID:        flake.ID(m.GetInt()),
		Lag:       time.Duration(m.GetLagMs()) * time.Millisecond,
		Held:      m.GetHeld(),
	}
	w.ULID, _ = ulid.Parse(m.GetUlid()) // A space without wide forms has none.
	if c := m.GetConditional(); c != nil {
		w.Conditional = &WatermarkCondition{
			Node:  c.GetNode(),
			SID:   int(c.GetSid()),
			Until: time.UnixMilli(c.GetUntilUnixMs()).UTC(),
		}
	}
	for _, b := range m.GetBlockedBy() {
		w.BlockedBy = append(w.BlockedBy, WatermarkBlocker{
			Node:  b.GetNode(),
			SID:   int(b.GetSid()),
			Since: time.UnixMilli(b.GetSinceUnixMs()).UTC(),
			Why:   b.GetWhy(),
			Text:  b.GetText(),
		})
	}
	for _, sid := range m.GetNotCovered() {
		w.NotCovered = append(w.NotCovered, flake.SID(sid))
	}
	return w
}

// pollWait is for how long a node is asked to wait at a time: one that is paused meanwhile is
// noticed after that.
const pollWait = 5 * time.Second

// Watermark returns the watermark of the space. It never goes back from call to call, whichever
// nodes answer. The token, if nodes require one, needs the scope read.
//
// A node that has read no watermark refuses with Starting, and one whose etcd was restored from
// a backup with HistoryRewound; the call then goes on to the next node, as all calls do. The
// errors are those of the client.
func (c *Client) Watermark(ctx context.Context) (Watermark, error) { return c.askMark(ctx, 0, 0) }

// WaitFor returns the watermark once it is above id: no ID at or below id can appear any more.
// It waits at the nodes, until ctx ends; with ctx's error it then says what holds the watermark
// back. Its other errors are those of Watermark, and a *Refusal with InvalidID for an id that
// cannot be of the space.
func (c *Client) WaitFor(ctx context.Context, id flake.ID) (Watermark, error) {
	for {
		if last := c.mark.Load(); last != nil && id >= 0 && last.Complete(id) {
			return *last, nil
		}
		w, err := c.poll(ctx, id)
		if err != nil && ctx.Err() != nil {
			return Watermark{}, c.notPassed(err, id)
		}
		if err != nil || w.Complete(id) {
			return w, err
		}
	}
}

// poll returns the watermark once it is above id, or after a while.
func (c *Client) poll(ctx context.Context, id flake.ID) (Watermark, error) {
	wait := pollWait
	if end, ok := ctx.Deadline(); ok { // A node that is asked for more time than there is seems not to answer.
		wait = min(wait, time.Until(end)/2)
	}
	if wait < time.Millisecond {
		<-ctx.Done()
	}
	return c.askMark(ctx, id, wait)
}

// notPassed returns the error of a wait that ended with err.
func (c *Client) notPassed(err error, id flake.ID) error {
	w := c.mark.Load()
	switch {
	case w == nil:
		return err
	case len(w.BlockedBy) > 0:
		return fmt.Errorf("client: the watermark has not passed %v, and is at %v: %s: %w", id, w.ID,
			w.BlockedBy[0].Text, err)
	}
	return fmt.Errorf("client: the watermark has not passed %v, and is at %v: %w", id, w.ID, err)
}

// WatchWatermark yields the watermark, then again each time it has risen, and every 5 s at least,
// so that its lag and what holds it back are as of now. It ends after an error, which is one of
// WaitFor.
func (c *Client) WatchWatermark(ctx context.Context) iter.Seq2[Watermark, error] {
	return func(yield func(Watermark, error) bool) {
		w, err := c.askMark(ctx, 0, 0)
		for yield(w, err) && err == nil {
			w, err = c.poll(ctx, w.ID)
		}
	}
}

// LowestWatermark returns the lowest watermark of several spaces, one for each client: a cut
// through all of them. Its ID is of the space that is lowest. Other spaces may have another
// layout: make their IDs of UnixMilli. The error is that of the first client that has none.
func LowestWatermark(ctx context.Context, clients ...*Client) (Watermark, error) {
	if len(clients) == 0 {
		return Watermark{}, errors.New("client: no clients: give one for each space")
	}
	marks, errs := make([]Watermark, len(clients)), make([]error, len(clients))
	var all sync.WaitGroup
	for i, c := range clients {
		all.Go(func() { marks[i], errs[i] = c.Watermark(ctx) })
	}
	all.Wait()
	lowest := marks[0]
	for i, w := range marks {
		if errs[i] != nil {
			return Watermark{}, errs[i]
		}
		if w.UnixMilli < lowest.UnixMilli {
			lowest = w
		}
	}
	return lowest, nil
}

// WaitForTime returns the lowest watermark of several spaces, as LowestWatermark does, once it is
// not below t: in none of them an ID with an earlier time can appear any more. It waits at the nodes,
// until ctx ends; with ctx's error it then says what holds the watermark back. Its other errors are
// those of LowestWatermark.
func WaitForTime(ctx context.Context, t time.Time, clients ...*Client) (Watermark, error) {
	for _, c := range clients {
		var last Watermark
		for w, err := range c.WatchWatermark(ctx) {
			switch {
			case err != nil && len(last.BlockedBy) > 0:
				return Watermark{}, fmt.Errorf("client: the watermark is %v, and not %v: %s: %w", last.Time(), t.UTC(),
					last.BlockedBy[0].Text, err)
			case err != nil:
				return Watermark{}, err
			}
			if last = w; !w.Time().Before(t) {
				break
			}
		}
	}
	return LowestWatermark(ctx, clients...)
}

// askMark asks for the watermark. With a wait the node answers when it is above after, or after
// that time.
func (c *Client) askMark(ctx context.Context, after flake.ID, wait time.Duration) (Watermark, error) {
	if err := ctx.Err(); err != nil {
		return Watermark{}, err
	}
	if c.isClosed() {
		return Watermark{}, ErrClosed
	}
	req := &pb.GetWatermarkRequest{After: int64(after), WaitMs: wait.Milliseconds()}
	if after == 0 && wait > 0 {
		req.After = 1 // 0 is none.
	}
	res := new(pb.Watermark)
	err := c.ask(ctx, false, nil, func(e *endpoint) error {
		return e.attempt(ctx, false, wait, func(ctx context.Context, over *grpc.ClientConn) error {
			return e.invoke(ctx, over, pb.AllocatorService_GetWatermark_FullMethodName, req, res)
		})
	})
	if err != nil {
		return Watermark{}, err
	}
	return c.raiseMark(WatermarkOf(res)), nil
}

// raiseMark returns w, or what is known of it with a higher watermark that the client has seen.
func (c *Client) raiseMark(w Watermark) Watermark {
	for {
		last := c.mark.Load()
		if last != nil && last.UnixMilli > w.UnixMilli {
			ahead := time.Duration(last.UnixMilli-w.UnixMilli) * time.Millisecond
			w.UnixMilli, w.ID, w.ULID = last.UnixMilli, last.ID, last.ULID
			w.Conditional, w.NotCovered = last.Conditional, last.NotCovered
			w.Lag = max(0, w.Lag-ahead)
			return w
		}
		if c.mark.CompareAndSwap(last, &w) {
			return w
		}
	}
}

// isClosed reports whether Close was called.
func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}
