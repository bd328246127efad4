package server

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/node"
)

// TestReasonsEverywhere: the enum of the wire contract, the node's reasons, the
// map between them and the HTTP contract have the same members.
func TestReasonsEverywhere(t *testing.T) {
	seen := make(map[pb.Reason]bool)
	for _, r := range node.Reasons {
		w, ok := wires[r]
		if !ok {
			t.Errorf("%s is not in the map", r)
			continue
		}
		if got := w.Reason.String(); got != "REASON_"+string(r) {
			t.Errorf("%s goes out as %s", r, got)
		}
		if w.Code == codes.OK || w.Status < 400 || w.Status > 599 || w.Title == "" || w.Help == "" {
			t.Errorf("%s has no complete entry: %+v", r, w)
		}
		seen[w.Reason] = true
	}
	if len(wires) != len(node.Reasons) || len(outcomes) != numOutcomes {
		t.Errorf("%d entries, %d outcomes for %d reasons", len(wires), len(outcomes), len(node.Reasons))
	}
	for n, name := range pb.Reason_name {
		if r := pb.Reason(n); r != pb.Reason_REASON_UNSPECIFIED && !seen[r] {
			t.Errorf("%s of the wire contract is nobody's reason", name)
		}
	}
}

// TestStatuses spells the table out once more: clients depend on it.
func TestStatuses(t *testing.T) {
	for r, want := range map[node.Reason]struct {
		grpc codes.Code
		http int
	}{
		node.Starting: {codes.Unavailable, 503}, node.Draining: {codes.Unavailable, 503},
		node.NoSID: {codes.Unavailable, 503}, node.WindowExhausted: {codes.Unavailable, 503},
		node.ClockSkew: {codes.Unavailable, 503}, node.ClockUnverified: {codes.Unavailable, 503},
		node.ClockRegression: {codes.Unavailable, 503}, node.EntropyOverflow: {codes.ResourceExhausted, 429},
		node.AfterTooFar: {codes.FailedPrecondition, 409}, node.HistoryRewound: {codes.Unavailable, 503},
		node.InvalidCount: {codes.InvalidArgument, 400}, node.InvalidFormat: {codes.InvalidArgument, 400},
		node.InvalidID: {codes.InvalidArgument, 400}, node.Unauthenticated: {codes.Unauthenticated, 401},
		node.PermissionDenied: {codes.PermissionDenied, 403}, node.RateLimited: {codes.ResourceExhausted, 429},
		node.WorkersOff: {codes.FailedPrecondition, 409}, node.NoWorker: {codes.Unavailable, 503},
		node.UnknownWorker: {codes.NotFound, 404}, node.WorkerQuota: {codes.ResourceExhausted, 429},
		node.CallerClock: {codes.FailedPrecondition, 409}, node.EtcdUnavailable: {codes.Unavailable, 503},
	} {
		if w := wires[r]; w.Code != want.grpc || w.Status != want.http {
			t.Errorf("%s: %v and %d, want %v and %d", r, w.Code, w.Status, want.grpc, want.http)
		}
	}
}

// TestRetryRoundsUp: a retry must not come too early.
func TestRetryRoundsUp(t *testing.T) {
	for after, want := range map[time.Duration]int64{
		0: 0, time.Nanosecond: 1, time.Millisecond: 1, time.Second: 1000, 1001 * time.Millisecond: 1001,
	} {
		if got := MillisUp(after); got != want {
			t.Errorf("%v: %d ms, want %d", after, got, want)
		}
	}
}

// The type of a problem leads to a section with the reason's own codes.
func TestRunbookHasTheCodes(t *testing.T) {
	b, err := os.ReadFile("../../docs/reference/refusals.md")
	if err != nil {
		t.Fatal(err)
	}
	for reason, w := range wires {
		want := fmt.Sprintf("\n## %s\n<a id=\"%s\"></a>*%d, %s.*", reason, reason, w.Status, w.Code)
		if !strings.Contains(string(b), want) {
			t.Errorf("docs/reference/refusals.md has no section %s with %q", reason, fmt.Sprintf("*%d, %s.*", w.Status, w.Code))
		}
	}
}
