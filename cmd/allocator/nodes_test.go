package main

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/flakelease/allocator/chaos/nodestub"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

func allocator(args ...string) (code int, stdout, stderr string) {
	var out, errs strings.Builder
	code = run(context.Background(), args, strings.NewReader(""), &out, &errs, nil)
	return code, out.String(), errs.String()
}

// TestOtherNodesAreAsked: get prints the IDs of whichever node answers, and no error. Package remote has who is asked.
func TestOtherNodesAreAsked(t *testing.T) {
	_, bad := nodestub.Start(t, nodestub.Refusing(t, codes.Unavailable, "NO_SID", 0))
	_, good := nodestub.Start(t, nodestub.Answering)
	code, out, errs := allocator("get", "25000", "--timeout", "1m", "--addr", bad+","+good)
	if code != cli.ExitOK || strings.Count(out, "\n") != 25_000 || errs != "" {
		t.Errorf("exit code %d, %d lines, stderr %q", code, strings.Count(out, "\n"), errs)
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
