package client

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flakelease/allocator/client/internal/balance"
)

// TestAsk: a call goes from node to node until one serves it, its own time or its caller's is over, or
// all nodes found its after too far ahead. Its error says why the last node did not serve it.
func TestAsk(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	away, broke, refusal := errors.New("no such host"), errors.New("it broke"), &Refusal{Reason: NoSID}
	far := func(after time.Duration) error { return &Refusal{Reason: AfterTooFar, RetryAfter: after} }
	type step struct {
		err     error
		takes   time.Duration
		refuses time.Duration // The node is not asked for this time.
		cancels bool          // The caller leaves.
	}
	for _, tc := range []struct {
		name     string
		own      bool
		timeout  time.Duration // -1: none
		deadline time.Duration // of the caller; 0: none, -1: it has left
		nodes    int
		before   func(*bench)
		steps    []step // those behind the last have no error
		tries    int
		took     time.Duration
		is       []error
		says     string
	}{
		{name: "served", timeout: s, nodes: 1, tries: 1},
		{name: "refused until its time is over", timeout: 3 * s, nodes: 1, tries: 3, took: 3 * s, is: []error{refusal},
			steps: []step{{err: refusal, refuses: 1400 * ms}, {err: refusal, refuses: 1400 * ms}, {err: refusal, refuses: 1400 * ms}},
			says:  "no node served within 3s"},
		{name: "refused until the caller's is", timeout: -1, deadline: 2 * s, nodes: 1, tries: 2, took: 2 * s,
			is:    []error{context.DeadlineExceeded, refusal},
			steps: []step{{err: refusal, refuses: 1400 * ms}, {err: refusal, refuses: 1400 * ms}}},
		{name: "no bound", timeout: -1, nodes: 1, tries: 3, took: 20 * s,
			steps: []step{{err: broke, takes: 10 * s}, {err: broke, takes: 10 * s}}},
		{name: "a try takes its time", timeout: 3 * s, nodes: 2, tries: 1, took: 3 * s, is: []error{ErrUnavailable, broke},
			steps: []step{{err: broke, takes: 3 * s}}, says: "within 3s"},
		{name: "the caller left before", timeout: s, deadline: -1, nodes: 1, before: func(b *bench) { b.lookupErr = away },
			is: []error{context.Canceled, ErrUnavailable, away}},
		{name: "the caller leaves a node that refuses", timeout: s, nodes: 1, tries: 1, before: func(b *bench) { b.lookupErr = away },
			steps: []step{{err: refusal, cancels: true}}, is: []error{context.Canceled, refusal}},
		{name: "the caller leaves a node that fails", timeout: s, nodes: 1, tries: 1,
			steps: []step{{err: broke, cancels: true}}, is: []error{context.Canceled, ErrUnavailable}, says: "no answer yet"},
		{name: "the caller's time ends a try", timeout: s, nodes: 1, tries: 1,
			steps: []step{{err: errDeadline}}, is: []error{context.DeadlineExceeded, ErrUnavailable}, says: "no answer yet"},
		{name: "so, of a node that failed before", timeout: s, nodes: 1, tries: 1, steps: []step{{err: errDeadline}},
			before: func(b *bench) { b.nodes.Nodes[0].fail(away) }, is: []error{context.DeadlineExceeded, ErrUnavailable, away}},
		{name: "so, after another failed", timeout: s, nodes: 1, tries: 2, steps: []step{{err: broke}, {err: errDeadline}},
			before: func(b *bench) { b.nodes.Nodes[0].fail(away) }, is: []error{context.DeadlineExceeded, ErrUnavailable, broke}},
		{name: "no node", timeout: s, took: s, before: func(b *bench) { b.lookupErr = away }, is: []error{ErrUnavailable, away}, says: "within 1s"},
		{name: "no node, for a caller", timeout: s, deadline: s / 2, took: s / 2, before: func(b *bench) { b.lookupErr = away },
			is: []error{context.DeadlineExceeded, ErrUnavailable, away}},
		{name: "another call was refused for good", timeout: 5 * s, nodes: 1, tries: 1, took: balance.RefusedPause,
			before: func(b *bench) { b.nodes.Nodes[0].refuse(&Refusal{Reason: AfterTooFar}) }},
		{name: "too far for all", timeout: s, nodes: 2, tries: 2, steps: []step{{err: far(0)}, {err: far(0)}}, is: []error{far(0)}},
		{name: "too far for some time", timeout: s, nodes: 2, tries: 3, took: 200 * ms, steps: []step{{err: far(300 * ms)}, {err: far(200 * ms)}}},
		{name: "the shortest is the first", timeout: s, nodes: 2, tries: 3, took: 200 * ms, steps: []step{{err: far(200 * ms)}, {err: far(300 * ms)}}},
		{name: "one has no delay", timeout: s, nodes: 2, tries: 3, took: 200 * ms, steps: []step{{err: far(200 * ms)}, {err: far(0)}}},
		{name: "all are asked again", timeout: s, nodes: 2, tries: 4, took: 200 * ms,
			steps: []step{{err: far(200 * ms)}, {err: far(200 * ms)}, {err: far(200 * ms)}}},
		{name: "too far for longer than it has", timeout: 100 * ms, nodes: 1, tries: 2, took: 100 * ms,
			steps: []step{{err: far(200 * ms)}, {err: far(200 * ms)}}, is: []error{far(0)}, says: "within 100ms"},
		{name: "too far for longer than the caller has", timeout: s, deadline: 100 * ms, nodes: 1, tries: 1, took: 100 * ms,
			steps: []step{{err: far(200 * ms)}}, is: []error{context.DeadlineExceeded, far(0)}},
		{name: "the client's own is too far", own: true, timeout: s, nodes: 2, tries: 4,
			steps: []step{{err: far(0)}, {err: far(0)}, {err: far(0)}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, tc.nodes)
			began := time.Now()
			b.pool.since = func() time.Duration { return time.Hour + time.Since(began) }
			c := &Client{o: Options{Timeout: tc.timeout}, pool: b.pool, begun: began}
			if tc.before != nil {
				tc.before(b)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			switch {
			case tc.deadline < 0:
				cancel()
			case tc.deadline > 0:
				ctx, cancel = context.WithTimeout(ctx, tc.deadline)
				defer cancel()
			}
			tries, noted, failed := 0, 0, 0
			err := c.ask(ctx, tc.own, func(error) { noted++ }, func(e *endpoint) error {
				defer func() { e.ended(e.conn.Load(), balance.Outcome{Kind: balance.Left}) }()
				if tries++; tries > len(tc.steps) {
					return nil
				}
				st := tc.steps[tries-1]
				if st.err != errDeadline && !st.cancels || st.err == refusal {
					failed++
				}
				if st.cancels {
					cancel()
				}
				if st.refuses > 0 {
					e.refuse(&Refusal{Reason: NoSID, RetryAfter: st.refuses})
				}
				time.Sleep(st.takes)
				return st.err
			})
			if took := time.Since(began); tries != tc.tries || took != tc.took || (err == nil) != (tc.is == nil) {
				t.Errorf("%s: %d tries in %v: %v", tc.name, tries, took, err)
			}
			for _, is := range []error{context.Canceled, context.DeadlineExceeded, ErrUnavailable, refusal, away, broke, far(0)} {
				want := false
				for _, w := range tc.is {
					want = want || errors.Is(w, is)
				}
				if errors.Is(err, is) != want {
					t.Errorf("%s: %v: is %v: %v", tc.name, err, is, !want)
				}
			}
			if err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: %v", tc.name, err)
			}
			if noted != failed || c.stats.retries.Load() != int64(failed) {
				t.Errorf("%s: %d failures, %d noted, %d counted", tc.name, failed, noted, c.stats.retries.Load())
			}
		})
	}
}

// TestCall: a request has the time of an attempt and what the node may hold it back. What became of it
// counts for the node, unless the caller ended it.
func TestCall(t *testing.T) {
	const s = time.Second
	hang := func(ctx context.Context) error {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	answer := func(code codes.Code) func(context.Context) error {
		return func(context.Context) error { return status.Error(code, "by script") }
	}
	tooFar := func(context.Context) error {
		st, _ := status.New(codes.Unavailable, "").WithDetails(&errdetails.ErrorInfo{Reason: string(AfterTooFar)})
		return st.Err()
	}
	for _, tc := range []struct {
		name               string
		own                bool
		deadline, wait     time.Duration
		leaves             time.Duration // The caller does, after this time.
		send               func(context.Context) error
		took, left         time.Duration
		early              bool // The caller's deadline was first.
		failures, refusals int64
	}{
		{name: "served", send: func(context.Context) error { return nil }},
		{name: "no answer", send: hang, took: s, left: balance.FirstSilence, failures: 1},
		{name: "no answer, held back", wait: 3 * s, send: hang, took: 4 * s, left: balance.FirstSilence, failures: 1},
		{name: "a later deadline", deadline: 2 * s, send: hang, took: s, left: balance.FirstSilence, failures: 1},
		{name: "an earlier deadline", deadline: s / 2, send: hang, took: s / 2, early: true},
		{name: "a deadline at the same time", deadline: s, send: hang, took: s, early: true},
		{name: "unavailable", deadline: s / 2, send: answer(codes.Unavailable), left: balance.FirstPause, failures: 1},
		{name: "the caller leaves", leaves: s / 4, send: hang, took: s / 4},
		{name: "too far for one call", send: tooFar, refusals: 1},
		{name: "too far for all", own: true, send: tooFar, left: balance.RefusedPause, refusals: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, 1)
			began := time.Now()
			b.pool.since = func() time.Duration { return time.Hour + time.Since(began) }
			e := b.nodes.Nodes[0]
			e.refuse(&Refusal{Reason: NoSID, RetryAfter: 1})
			time.Sleep(time.Nanosecond)
			b.pick(nil) // the trial
			sent, wake := time.Now(), b.wake
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tc.deadline > 0 {
				ctx, cancel = context.WithTimeout(ctx, tc.deadline)
				defer cancel()
			}
			if tc.leaves > 0 {
				time.AfterFunc(tc.leaves, cancel)
			}
			err := e.attempt(ctx, tc.own, tc.wait, func(ctx context.Context, _ *grpc.ClientConn) error { return tc.send(ctx) })
			if took := time.Since(sent); took != tc.took || errors.Is(err, errDeadline) != tc.early || (err == nil) != (tc.name == "served") {
				t.Errorf("%s: %v after %v", tc.name, err, took)
			}
			if left := e.left(); left != tc.left {
				t.Errorf("%s: not asked for %v, want %v", tc.name, left, tc.left)
			}
			if e.requests.Load() != 1 || e.Failures != tc.failures || e.Refusals != tc.refusals+1 {
				t.Errorf("%s: %d requests, %d failures, %d refusals", tc.name, e.requests.Load(), e.Failures, e.Refusals-1)
			}
			if b.wake == wake {
				t.Errorf("%s: the trial goes on", tc.name)
			}
		})
	}
}

// TestPauseEnds: with the client.
func TestPauseEnds(t *testing.T) {
	b := newBench(t, 0)
	c := &Client{pool: b.pool, begun: time.Now()}
	b.end()
	if err := c.pause(t.Context(), time.Hour, 0, nil); err != ErrClosed {
		t.Error(err)
	}
	if err := c.ask(t.Context(), true, nil, func(*endpoint) error { return io.EOF }); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
