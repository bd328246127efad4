package records

import (
	"slices"
	"strings"
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

// TestCompares: each operation compares what its description says.
func TestCompares(t *testing.T) {
	for op, want := range map[lease.Op]string{
		lease.Acquire: "config era holder ledger mark window",
		lease.Reclaim: "config era holder ledger mark window",
		lease.Rehold:  "config era holder ledger mark window",
		lease.Extend:  "config era holder ledger window",
		lease.Expire:  "config era holder ledger window",
		lease.Release: "ledger window",
	} {
		var keys []string
		for _, c := range (Space{Keys: "/allocator/default/"}).compares(lease.Txn{Op: op, SID: 3}) {
			name, _, _ := strings.Cut(strings.TrimPrefix(c.Key, "/allocator/default/"), "/")
			keys = append(keys, name)
		}
		slices.Sort(keys)
		if got := strings.Join(keys, " "); got != want {
			t.Errorf("%v compares %s, want %s", op, got, want)
		}
	}
}
