package server

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/node"
)

// TestReasonsEverywhere: each reason has a complete entry, and each outcome a name of its
// own.
func TestReasonsEverywhere(t *testing.T) {
	for _, r := range node.Reasons {
		if w := WireOf(r); w.Code == codes.OK || w.Status() < 400 || w.Status() > 599 || w.Title == "" || w.Help == "" {
			t.Errorf("%s has no complete entry: %+v", r, w)
		}
	}
	names := map[string]outcome{}
	for o := range outcome(numOutcomes) {
		if other, ok := names[o.String()]; ok {
			t.Errorf("outcomes %d and %d are both called %s", other, o, o)
		}
		names[o.String()] = o
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
		node.NoNode: {codes.Unavailable, 503},
	} {
		if w := wires[r]; w.Code != want.grpc || w.Status() != want.http {
			t.Errorf("%s: %v and %d, want %v and %d", r, w.Code, w.Status(), want.grpc, want.http)
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
	fatal.If(t, err)
	for _, reason := range node.Reasons {
		w := WireOf(reason)
		want := fmt.Sprintf("\n## %s\n<a id=\"%s\"></a>*%d, %s.*", reason, reason, w.Status(), w.Code)
		if !strings.Contains(string(b), want) {
			t.Errorf("docs/reference/refusals.md has no section %s with %q", reason, fmt.Sprintf("*%d, %s.*", w.Status(), w.Code))
		}
	}
}
