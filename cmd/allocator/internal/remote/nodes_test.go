package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flakelease/allocator/chaos/nodestub"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

// asking asks nodes that answer as a test says, a function each.
type asking struct {
	*Nodes
	answers []func(context.Context) error
	asked   []int // nodes, in order
}

func newAsking(timeout time.Duration, answers ...func(context.Context) error) *asking {
	a := &asking{Nodes: &Nodes{Timeout: timeout}, answers: answers}
	for i := range slices.DeleteFunc(answers, func(f func(context.Context) error) bool { return f == nil }) {
		a.Addrs = append(a.Addrs, string(rune('a'+i)))
		a.Conns = append(a.Conns, new(grpc.ClientConn))
	}
	return a
}

// ask returns the exit code of a request, what it says, and how long it took.
func (a *asking) ask(ctx context.Context) (code int, says string, took time.Duration) {
	began := time.Now()
	err := a.Ask(ctx, func(ctx context.Context, c *grpc.ClientConn) error {
		at := slices.Index(a.Conns, c)
		a.asked = append(a.asked, at)
		return a.answers[at](ctx)
	})
	if exit, ok := errors.AsType[*cli.ExitError](err); ok {
		code = exit.Code
	}
	return code, fmt.Sprint(err), time.Since(began)
}

func silent(ctx context.Context) error {
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

func down(context.Context) error { return status.Error(codes.Unavailable, "connection refused") }

// TestAsk: a node that cannot answer costs its share of the time, a refusal that passes is waited for when nobody
// else answers, and what every node would refuse is told at once.
func TestAsk(t *testing.T) {
	no := func(code codes.Code, reason string, retry time.Duration) func(context.Context) error {
		return nodestub.Refusing(t, code, reason, retry)
	}
	noSID := func(retry time.Duration) func(context.Context) error { return no(codes.Unavailable, "NO_SID", retry) }
	starting := no(codes.Unavailable, "STARTING", time.Second)
	// then answers as first so many times, and then as last.
	then := func(n int, first, last func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			if n--; n >= 0 {
				return first(ctx)
			}
			return last(ctx)
		}
	}
	gives := nodestub.Answering
	for name, tc := range map[string]struct {
		first, second func(context.Context) error // nil: there is one node
		asked         string
		took          time.Duration
		code          int
		says          string
	}{
		"the first answers":        {gives, down, "[0]", 0, 0, ""},
		"one is down":              {down, gives, "[0 1]", 0, 0, ""},
		"one is silent":            {silent, gives, "[0 1]", 10 * time.Second, 0, ""},
		"one has no sid":           {noSID(0), gives, "[0 1]", 0, 0, ""},
		"one is too busy":          {no(codes.ResourceExhausted, "RATE_LIMITED", time.Minute), gives, "[0 1]", 0, 0, ""},
		"one is behind":            {no(codes.FailedPrecondition, "AFTER_TOO_FAR", time.Minute), gives, "[0 1]", 0, 0, ""},
		"a proxy without a node":   {no(codes.Unimplemented, "", 0), gives, "[0 1]", 0, 0, ""},
		"a refusal that passes":    {then(3, starting, gives), down, "[0 1 0 1 0 1 0]", 3 * time.Second, 0, ""},
		"the shorter delay":        {noSID(time.Hour), then(1, starting, gives), "[0 1 0 1]", time.Second, 0, ""},
		"a delay beyond the time":  {noSID(time.Hour), nil, "[0]", 0, 1, "node at a refused: NO_SID: because"},
		"a refusal, then silence":  {then(1, starting, silent), nil, "[0 0]", 20 * time.Second, 1, "a refused: STARTING: because"},
		"a wrong count":            {no(codes.InvalidArgument, "INVALID_COUNT", 0), gives, "[0]", 0, 1, "a refused: INVALID_COUNT: because"},
		"no token":                 {no(codes.Unauthenticated, "UNAUTHENTICATED", 0), gives, "[0]", 0, 1, "UNAUTHENTICATED"},
		"no scope":                 {no(codes.PermissionDenied, "PERMISSION_DENIED", 0), gives, "[0]", 0, 1, "PERMISSION_DENIED"},
		"above every node's clock": {no(codes.FailedPrecondition, "AFTER_TOO_FAR", 0), gives, "[0]", 0, 1, "AFTER_TOO_FAR"},
		"one down, one refuses": {down, noSID(0), "[0 1]", 0, 1,
			"none of 2 nodes did it:\nnode at a: connection refused\nnode at b refused: NO_SID: because"},
		"all down": {down, down, "[0 1]", 0, 3, "no node answers at a, b: is one running?"},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newAsking(20*time.Second, tc.first, tc.second)
			code, says, took := a.ask(t.Context())
			if asked := fmt.Sprint(a.asked); code != tc.code || asked != tc.asked || took != tc.took {
				t.Errorf("%s: exit code %d, asked %s, took %v; want %+v", name, code, asked, took, tc)
			}
			if !strings.Contains(says, tc.says) {
				t.Errorf("%s: it says %q, want %q", name, says, tc.says)
			}
		})
	}
}

// TestAskGoesOn: who answered last is asked first, so that a silent node costs its share once.
func TestAskGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(20*time.Second, silent, nodestub.Answering)
		for range 3 {
			a.ask(t.Context())
		}
		if got := fmt.Sprint(a.asked); got != "[0 1 1 1]" {
			t.Errorf("asked %s", got)
		}
	})
}

// TestAskIsEnded: only the caller's own end is an interruption, and not that time is up, during a call or a pause.
func TestAskIsEnded(t *testing.T) {
	for name, answer := range map[string]func(context.Context) error{
		"in a call": silent, "in a pause": nodestub.Refusing(t, codes.Unavailable, "STARTING", 3*time.Second),
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(7*time.Second, cancel)
			a := newAsking(20*time.Second, answer)
			if code, says, took := a.ask(ctx); code != cli.ExitInterrupted || took != 7*time.Second {
				t.Errorf("%s: exit code %d, %s, after %v", name, code, says, took)
			}
			if code, says, _ := newAsking(10*time.Second, answer).ask(t.Context()); code == cli.ExitInterrupted || says == "" {
				t.Errorf("%s: exit code %d, %s", name, code, says)
			}
		})
	}
}
