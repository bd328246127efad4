package respserver

import (
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/node"
)

// TestErrorCode: a client asks again what may succeed later or at another node, also where no delay is named.
func TestErrorCode(t *testing.T) {
	for reason, want := range map[node.Reason]string{
		node.ClockSkew: "TRYAGAIN", node.Draining: "TRYAGAIN", node.EtcdUnavailable: "TRYAGAIN", node.RateLimited: "TRYAGAIN",
		node.InvalidCount: "ERR", node.Unauthenticated: "NOAUTH", node.PermissionDenied: "NOPERM",
	} {
		if got := errorCode(&node.Refusal{Reason: reason}); got != want {
			t.Errorf("%v: %s, want %s", reason, got, want)
		}
	}
	if got := errorCode(&node.Refusal{Reason: node.AfterTooFar, RetryAfter: time.Second}); got != "TRYAGAIN" {
		t.Errorf("a refusal that ends is %s", got)
	}
}
