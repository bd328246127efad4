package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client/internal/balance"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/wire"
)

// request requests n IDs of one node after the other until one serves. They are above after, which is
// of an order; with after 0 above the client's last ID. It is bounded by ctx and Options.Timeout. sent is
// when the request that was served began, by Client.uptime. note is that of ask.
func (c *Client) request(ctx context.Context, n int, after flake.ID, order int64, note func(error)) (b Block,
	sent time.Duration, err error) {
	own := after == 0
	err = c.ask(ctx, own, note, func(e *endpoint) error {
		return e.attempt(ctx, own, 0, func(ctx context.Context, conn *grpc.ClientConn) error {
			sent = c.uptime.now()
			if own {
				order = c.order.Load() // before c.after: see Reset
				after = c.after()
			}
			res, err := pb.NewAllocatorServiceClient(conn).Allocate(ctx,
				&pb.AllocateRequest{Count: int32(n), After: int64(after)})
			if err == nil {
				b, err = e.block(res, n, after)
			}
			return err
		})
	})
	if err != nil {
		return Block{}, 0, err
	}
	c.raise(b.Last(), order)
	return b, sent, nil
}

// ask calls try with one node after the other until it succeeds, or every node would
// refuse. It is bounded by ctx and Options.Timeout. own reports whether the request's
// after is the client's last ID: AFTER_TOO_FAR then holds for every call, and else for
// this one alone. note, if not nil, is called with the error of each attempt that failed.
func (c *Client) ask(ctx context.Context, own bool, note func(error), try func(*endpoint) error) error {
	var end time.Duration // since the client's start; 0: none
	if c.o.Timeout > 0 {
		end = c.since() + c.o.Timeout
	}
	var last error
	var avoid *endpoint
	far, hold := 0, time.Duration(0) // nodes in a row that found this call's after too far ahead; their shortest delay
	for waited := false; ; {
		if err := ctx.Err(); err != nil {
			return gaveUp(err, c.pool.lastError(last), 0)
		}
		if far > 0 && far >= c.pool.connected() {
			if hold == 0 {
				return last
			}
			if err := c.pause(ctx, hold, end, nil); err != nil {
				return c.ended(err, last)
			}
			far, hold = 0, 0
		}
		e, wait, changed := c.pool.pick(avoid)
		if e == nil {
			r := (*Refusal)(nil)
			if !errors.As(last, &r) && last == nil && waited {
				r = c.pool.refusal() // It ended another call's trial.
			}
			if r != nil && r.permanent() {
				return r
			}
			if err := c.pause(ctx, wait, end, changed); err != nil {
				return c.ended(err, c.pool.lastError(last))
			}
			avoid, waited = nil, true
			continue
		}
		err := try(e)
		if err == nil {
			return nil
		}
		r := (*Refusal)(nil)
		if errors.As(err, &r) && r.Reason.callerError() {
			return err
		}
		if errors.Is(err, errDeadline) || r == nil && ctx.Err() != nil { // what came before says more
			last = cmp.Or(last, e.why(), e.named(errors.New("no answer yet")))
			return gaveUp(cmp.Or(ctx.Err(), context.DeadlineExceeded), last, 0)
		}
		last, avoid = err, e
		if far++; own || r == nil || r.Reason != AfterTooFar {
			far, hold = 0, 0
		} else if r.RetryAfter > 0 && (hold == 0 || r.RetryAfter < hold) {
			hold = r.RetryAfter
		}
		if note != nil {
			note(err)
		}
		c.stats.retries.Add(1)
		if end > 0 && c.since() >= end {
			return gaveUp(ctx.Err(), last, c.o.Timeout)
		}
	}
}

// errDeadline is the error of an attempt that the caller's deadline ended, not the
// client's own. The two are compared before the request, since gRPC's answer can
// come from the node and be ahead of the caller's clock.
var errDeadline = errors.New("client: deadline of the caller")

// errTimeout is the error after Options.Timeout.
var errTimeout = errors.New("client: timeout")

// ended returns the error of a call whose pause ended with err; last is that of gaveUp.
func (c *Client) ended(err, last error) error {
	if err == errTimeout {
		err = nil
	}
	return gaveUp(err, last, c.o.Timeout)
}

// pause waits until changed is closed, for at most wait. It returns an error if the
// call has to end: ctx's, errTimeout or ErrClosed. end is since the client's start;
// 0: none.
func (c *Client) pause(ctx context.Context, wait, end time.Duration, changed <-chan struct{}) error {
	now := c.since()
	if end > 0 && now >= end {
		return errTimeout
	}
	if end > 0 {
		wait = min(wait, end-now)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.pool.ctx.Done():
		return ErrClosed
	}
	return nil
}

// attempt sends e one request by send, with the timeout of an attempt and wait besides, for which
// the node may hold it back. own is that of ask.
// The error is a *Refusal; after any other, it is unknown whether the request was served.
func (e *endpoint) attempt(ctx context.Context, own bool, wait time.Duration,
	send func(context.Context, *grpc.ClientConn) error) error {
	e.requests.Add(1)
	deadline, ok := ctx.Deadline()
	timeout := e.pool.o.AttemptTimeout + wait
	callers := ok && time.Until(deadline) <= timeout
	attempt, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn := e.conn.Load()
	err := send(attempt, conn)
	switch {
	case err == nil:
		e.ended(conn, balance.Outcome{Kind: balance.Served})
		return nil
	case callers && status.Code(err) == codes.DeadlineExceeded:
		late := e.named(errors.New("no answer within the deadlines of callers"))
		e.ended(conn, balance.Outcome{Kind: balance.Deadline, Err: late})
		return errDeadline
	}
	return e.judge(ctx, conn, own, err)
}

// judge turns an error of a request into the client's, and counts it against e unless ctx, the caller's,
// has ended. own is that of ask.
func (e *endpoint) judge(ctx context.Context, conn *grpc.ClientConn, own bool, err error) error {
	o := balance.Outcome{Kind: balance.Failed, Err: err}
	if _, ok := err.(*contractError); ok { // This package returns it, and does not wrap it.
		e.ended(conn, o)
		return err
	}
	if r := RefusalOf(err, e.Addr); r != nil {
		e.ended(conn, r.outcome(own))
		return r
	}
	o.Err = e.named(err)
	switch {
	case ctx.Err() != nil: // The caller ended it.
		o.Kind = balance.Left
	case status.Code(err) == codes.DeadlineExceeded:
		o.Kind = balance.Silent
	}
	e.ended(conn, o)
	return o.Err
}

// block returns an answer's block, or an error if it is not what was requested.
func (e *endpoint) block(res *pb.AllocateResponse, n int, after flake.ID) (Block, error) {
	layout, known := wire.ParseLayout(res.GetLayout(), res.GetLayoutBits())
	b := Block{
		First:  flake.ID(res.GetFirst()),
		Count:  int(res.GetCount()),
		Stride: res.GetStride(),
		SID:    flake.SID(res.GetSid()),
		Format: flake.Format{Layout: layout, Epoch: res.GetEpochUnixMs()},
		Node:   res.GetNode(),
	}
	b.SpaceID = res.GetSpaceId()
	switch {
	case known != nil:
		return Block{}, &contractError{e.Addr, fmt.Sprintf("layout %d: %v", res.GetLayout(), known)}
	case b.Count != n:
		return Block{}, &contractError{e.Addr, fmt.Sprintf("%d IDs, not %d", b.Count, n)}
	case b.Stride != layout.Stride():
		return Block{}, &contractError{e.Addr, fmt.Sprintf("a stride of %d in layout %v", b.Stride, layout)}
	case b.First <= after:
		return Block{}, &contractError{e.Addr, fmt.Sprintf("ID %d is not above %d", b.First, after)}
	case b.Last() < b.First:
		return Block{}, &contractError{e.Addr, fmt.Sprintf("a block from %d on exceeds 63 bits", b.First)}
	}
	if f := e.pool.format.Load(); f == nil {
		e.pool.format.CompareAndSwap(nil, &b.Format) // whoever loses is compared next time
	} else if *f != b.Format {
		return Block{}, &contractError{e.Addr, fmt.Sprintf("layout %v and epoch %d, where others have %v and %d",
			b.Format.Layout, b.Format.Epoch, f.Layout, f.Epoch)}
	}
	return b, e.inSpace(b.SpaceID)
}

// inSpace returns an error if an answer of e is of another space than the first answer that named its own; 0: it does
// not.
func (e *endpoint) inSpace(id uint64) error {
	first := &e.pool.space
	if id != 0 && !first.CompareAndSwap(0, id) && first.Load() != id {
		return &contractError{e.Addr, fmt.Sprintf("it is of space %016x, and this program's IDs are of %016x",
			id, first.Load())}
	}
	return nil
}

// invoke makes a call whose answer is no block. Its space is in the header.
func (e *endpoint) invoke(ctx context.Context, over *grpc.ClientConn, method string, args, reply any,
	opts ...grpc.CallOption) error {
	var header metadata.MD
	err := over.Invoke(ctx, method, args, reply, append(slices.Clip(opts), grpc.Header(&header))...)
	id, _ := strconv.ParseUint(strings.Join(header.Get("allocator-space"), ""), 16, 64) // 0: it has none.
	if err != nil && e.pool.space.Load() == 0 {
		return err // A refusal does not decide which space is the program's.
	}
	return cmp.Or(e.inSpace(id), err)
}
