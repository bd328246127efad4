package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/flakelease/allocator/chaos/nodestub"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

func allocator(args ...string) (code int, stdout, stderr string) {
	var out, errs strings.Builder
	code = run(context.Background(), args, strings.NewReader(""), &out, &errs, nil)
	return code, out.String(), errs.String()
}

// A node that is there and says nothing costs its share of the time, once: the
// blocks after it are asked of whoever answered.
func TestSilentNodeIsPassedOver(t *testing.T) {
	t.Parallel()
	silent, silentAddr := nodestub.Start(t, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	good, goodAddr := nodestub.Start(t, nodestub.Answering)
	code, out, errs := allocator("get", "25000", "--timeout", "20s", "--addr", silentAddr+","+goodAddr)
	if code != cli.ExitOK || strings.Count(out, "\n") != 25_000 || errs != "" {
		t.Fatalf("exit code %d, %d lines, stderr %q", code, strings.Count(out, "\n"), errs)
	}
	if silent.Asked.Load() != 1 || good.Asked.Load() != 3 {
		t.Errorf("the silent one was asked %d times, the other %d; want 1 and 3", silent.Asked.Load(), good.Asked.Load())
	}
}

func TestRefusalsAreTriedElsewhere(t *testing.T) {
	for _, c := range []struct {
		code   codes.Code
		reason string
		retry  time.Duration
	}{
		{codes.Unavailable, "NO_SID", 0}, {codes.Unavailable, "CLOCK_SKEW", time.Second}, {codes.ResourceExhausted, "ENTROPY_OVERFLOW", time.Millisecond},
		{codes.Unimplemented, "", 0}, // what a proxy without a node says
		{codes.ResourceExhausted, "RATE_LIMITED", time.Minute}, {codes.FailedPrecondition, "AFTER_TOO_FAR", time.Minute},
	} {
		_, bad := nodestub.Start(t, nodestub.Refusing(t, c.code, c.reason, c.retry))
		_, good := nodestub.Start(t, nodestub.Answering)
		if code, out, errs := allocator("get", "--addr", bad+","+good); code != cli.ExitOK || len(out) != 14 || errs != "" {
			t.Errorf("%s: exit code %d, %q, stderr %q", c.reason, code, out, errs)
		}
	}
}

func TestCallersFaultsAreNot(t *testing.T) {
	for reason, code := range map[string]codes.Code{
		"INVALID_COUNT": codes.InvalidArgument, "UNAUTHENTICATED": codes.Unauthenticated,
		"PERMISSION_DENIED": codes.PermissionDenied, "AFTER_TOO_FAR": codes.FailedPrecondition,
	} {
		_, bad := nodestub.Start(t, nodestub.Refusing(t, code, reason, 0))
		good, goodAddr := nodestub.Start(t, nodestub.Answering)
		got, out, errs := allocator("get", "--addr", bad+","+goodAddr)
		if got != cli.ExitInvalid || out != "" || errs != "allocator: node at "+bad+" refused: "+reason+": because\n" || good.Asked.Load() != 0 {
			t.Errorf("%s: exit code %d, %q, stderr %q; the other was asked %d times", reason, got, out, errs, good.Asked.Load())
		}
	}
}

// A refusal that will pass is waited for, when nobody else can.
func TestRefusalsThatPass(t *testing.T) {
	no := nodestub.Refusing(t, codes.Unavailable, "STARTING", 20*time.Millisecond)
	asked := 0
	_, late := nodestub.Start(t, func(ctx context.Context) error {
		if asked++; asked < 4 {
			return no(ctx)
		}
		return nil
	})
	code, out, errs := allocator("get", "--addr", late, "--addr", "127.0.0.1:1")
	if code != cli.ExitOK || len(out) != 14 || errs != "" || asked != 4 {
		t.Errorf("exit code %d, %q, stderr %q after %d questions", code, out, errs, asked)
	}

	_, never := nodestub.Start(t, nodestub.Refusing(t, codes.Unavailable, "STARTING", 20*time.Millisecond))
	code, out, errs = allocator("get", "--timeout", "3s", "--addr", "127.0.0.1:1,"+never)
	if code != cli.ExitInvalid || out != "" || !strings.HasPrefix(errs, "allocator: none of 2 nodes did it:\n") || !strings.Contains(errs, "node at "+never+" refused: STARTING: because") || !strings.Contains(errs, "node at 127.0.0.1:1: ") {
		t.Errorf("exit code %d, %q, stderr %q", code, out, errs)
	}
}

// Time that is up while nobody is asked is no interruption.
func TestTimeIsUpInAPause(t *testing.T) {
	_, never := nodestub.Start(t, nodestub.Refusing(t, codes.Unavailable, "STARTING", time.Millisecond))
	for range 100 {
		if code, _, errs := allocator("get", "--timeout", "10ms", "--addr", never); code == cli.ExitInterrupted || errs == "" {
			t.Fatalf("exit code %d, stderr %q", code, errs)
		}
	}
}

// A refusal is told, even if our time ends while the node is asked again.
func TestRefusalBeforeTimeIsUp(t *testing.T) {
	no := nodestub.Refusing(t, codes.Unavailable, "STARTING", 20*time.Millisecond)
	asked := 0
	_, silent := nodestub.Start(t, func(ctx context.Context) error {
		if asked++; asked == 1 {
			return no(ctx)
		}
		<-ctx.Done()
		return ctx.Err()
	})
	code, out, errs := allocator("get", "--timeout", "3s", "--addr", silent)
	if code != cli.ExitInvalid || out != "" || !strings.Contains(errs, "node at "+silent+" refused: STARTING: because") {
		t.Errorf("exit code %d, %q, stderr %q", code, out, errs)
	}
}

// What was printed before a failure counts, and is said.
func TestPartOfTheIDs(t *testing.T) {
	asked := 0
	_, addr := nodestub.Start(t, func(context.Context) error {
		if asked++; asked > 1 {
			return nodestub.Refusing(t, codes.Unavailable, "DRAINING", 0)(t.Context())
		}
		return nil
	})
	code, out, errs := allocator("get", "15000", "--addr", addr)
	if code != cli.ExitInvalid || strings.Count(out, "\n") != 10_000 || !strings.HasPrefix(errs, "allocator: got 10000 of 15000 IDs: node at ") {
		t.Errorf("exit code %d, %d lines, stderr %q", code, strings.Count(out, "\n"), errs)
	}
}
