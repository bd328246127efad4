package history

import "fmt"

// Holders checks that a sid has one holder: in the order in which etcd applied
// them, nobody writes the record of a sid that another node holds, before it was
// deleted, by its holder or because its lease ran out. The same node may take its
// own record over, as a restarted process does.
type Holders struct {
	findings
	now    map[int64]holding
	writes int64
}

type holding struct{ instance, node string }

// NewHolders returns the check.
func NewHolders() *Holders { return &Holders{now: map[int64]holding{}} }

// Add takes holder records, and faults that tamper with etcd's data: after one,
// nothing is known of who holds what.
func (h *Holders) Add(op *Op) {
	if op.Fault != nil && op.Fault.Class == ClassData {
		clear(h.now)
	}
	if op.Holder == nil {
		return
	}
	h.writes++
	v := op.Holder
	if v.Deleted {
		delete(h.now, v.SID)
		return
	}
	if before, ok := h.now[v.SID]; ok && before.instance != v.Instance &&
		(before.node == "" || before.node != op.Node) {
		h.add("one holder", op.Time, "sid %d: %s of %s became its holder at revision %d, and %s of %s was",
			v.SID, v.Instance, op.Node, v.Rev, before.instance, before.node)
	}
	h.now[v.SID] = holding{v.Instance, op.Node}
}

// Finish returns what was found.
func (h *Holders) Finish() Result {
	missing := ""
	if h.writes == 0 {
		missing = "etcd's record of holders is not in the history"
	}
	return h.result("holders", "one holder", fmt.Sprintf("%d versions of holder records", h.writes), missing)
}
