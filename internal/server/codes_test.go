package server

import (
	"net/http/httptest"
	"os"
	"regexp"
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
		if got := w.reason.String(); got != "REASON_"+string(r) {
			t.Errorf("%s goes out as %s", r, got)
		}
		if w.grpc == codes.OK || w.http < 400 || w.http > 599 || w.title == "" || w.help == "" {
			t.Errorf("%s has no complete entry: %+v", r, w)
		}
		seen[w.reason] = true
	}
	if len(wires) != len(node.Reasons) || len(outcomes) != numOutcomes {
		t.Errorf("%d entries, %d outcomes for %d reasons", len(wires), len(outcomes), len(node.Reasons))
	}
	for n, name := range pb.Reason_name {
		if r := pb.Reason(n); r != pb.Reason_REASON_UNSPECIFIED && !seen[r] {
			t.Errorf("%s of the wire contract is nobody's reason", name)
		}
	}
	list := regexp.MustCompile(`(?s)\n    Reason:\n.*?enum:\n(.*?)\n    Problem:`).FindSubmatch(contract)
	if list == nil {
		t.Fatal("the HTTP contract has no list of reasons")
	}
	inContract := make(map[node.Reason]bool)
	for line := range strings.Lines(string(list[1])) {
		inContract[node.Reason(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "-")))] = true
	}
	for _, r := range node.Reasons {
		if !inContract[r] {
			t.Errorf("%s is not in the HTTP contract", r)
		}
	}
	if len(inContract) != len(node.Reasons) {
		t.Errorf("the HTTP contract lists %d reasons, want %d", len(inContract), len(node.Reasons))
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
	} {
		if w := wires[r]; w.grpc != want.grpc || w.http != want.http {
			t.Errorf("%s: %v and %d, want %v and %d", r, w.grpc, w.http, want.grpc, want.http)
		}
	}
}

// TestRetryRoundsUp: a retry must never come before its time.
func TestRetryRoundsUp(t *testing.T) {
	for _, c := range []struct {
		after  time.Duration
		ms     int64
		header string
	}{
		{0, 0, ""},
		{time.Nanosecond, 1, "1"},
		{time.Millisecond, 1, "1"},
		{time.Second, 1000, "1"},
		{1001 * time.Millisecond, 1001, "2"},
		{5 * time.Second, 5000, "5"},
	} {
		r := &node.Refusal{Reason: node.ClockSkew, RetryAfter: c.after}
		if got := refusalOf(r).RetryAfterMs; got != c.ms {
			t.Errorf("%v: %d ms in a stream, want %d", c.after, got, c.ms)
		}
		rec := httptest.NewRecorder()
		problemOf(r).write(rec)
		if got := rec.Header().Get("Retry-After"); got != c.header {
			t.Errorf("%v: Retry-After %q, want %q", c.after, got, c.header)
		}
	}
}

// TestContractEmbedded: what is served is the file that is tested.
func TestContractEmbedded(t *testing.T) {
	file, err := os.ReadFile("openapi.yaml")
	if err != nil || string(file) != string(contract) {
		t.Errorf("embedded contract differs from the file: %v", err)
	}
}

func TestWantsText(t *testing.T) {
	for accept, want := range map[string]bool{
		"": false, "*/*": false, "application/json": false, "text/plain": true, "text/*": true,
		"text/plain, */*": true, "text/plain, application/json": false,
		"text/plain;q=0.5, application/json": false, "text/plain, application/json;q=0.9": true,
		"text/plain;q=0": false, "*/*, text/plain;q=0": false, "text/plain; charset=utf-8": true,
		"text/html": false, "text/plain;q=x": false, "text/plain;q=NaN": false, ",,;": false, "TEXT/PLAIN": true,
	} {
		if got := wantsText(accept); got != want {
			t.Errorf("%q: %t, want %t", accept, got, want)
		}
	}
}
