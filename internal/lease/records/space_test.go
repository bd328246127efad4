package records

import (
	"slices"
	"testing"

	"github.com/flakelease/allocator/internal/lease"
)

// TestFullDatabase: each transaction puts something, so that a database that is full refuses all of them alike. It
// takes deletions: then holders could not extend, and others would end their holds.
func TestFullDatabase(t *testing.T) {
	for op := lease.Acquire; op <= lease.Expire; op++ {
		ops := Space{Keys: "/allocator/default/"}.writes(lease.Txn{Op: op, SID: 3})
		if !slices.ContainsFunc(ops, func(o Op) bool { return o.Do == Put }) {
			t.Errorf("%v puts nothing: %+v", op, ops)
		}
	}
}
