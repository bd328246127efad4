package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// near keeps the ops around a violation: the last ones before it and the first
// ones after it.
type near struct {
	Left int // operations not shown

	at     clock.Mono
	detail string
	format flake.Format
	before []opRow // a ring
	next   int
	after  []opRow
	calls  map[string]call
}

// opRow is one op as text.
type opRow struct {
	Ms, At    string
	Who, What string
	Class     string
	Named     bool // the violation names the process
}

// Bounds of the table of ops.
const (
	maxBefore = 120
	maxAfter  = 60
)

func (n *near) add(op *history.Op) {
	if op.Setup != nil {
		n.format = op.Setup.Format()
		return
	}
	var began *call
	if op.F == history.FAllocate {
		if n.calls == nil {
			n.calls = map[string]call{}
		}
		if op.Type == history.Invoke && len(n.calls) < maxPending {
			n.calls[op.Process] = call{op.Time, op.Block.Count, op.After}
		} else if c, ok := n.calls[op.Process]; ok {
			began = &c
			delete(n.calls, op.Process)
		}
	}
	if op.Time < n.at-around || op.Time > n.at+around {
		return
	}
	row := opRow{
		Ms:    fmt.Sprintf("%+.3f", float64(op.Time-n.at)/1e6),
		At:    fmt.Sprintf("%.6f", seconds(op.Time)),
		What:  n.text(op, began),
		Named: n.names(op),
		Class: "seen",
		Who:   clip(cmp.Or(op.Run, op.Node, op.Process), 40),
	}
	switch {
	case op.F == history.FAllocate:
		row.Class = op.Type.String()
		row.Who += " ← client " + clip(op.Process, 12)
	case op.Fault != nil:
		row.Class = "fault"
	}
	switch {
	case op.Time <= n.at && len(n.before) < maxBefore:
		n.before = append(n.before, row)
	case op.Time <= n.at:
		n.before[n.next] = row
		n.next = (n.next + 1) % maxBefore
		n.Left++
	case len(n.after) < maxAfter:
		n.after = append(n.after, row)
	default:
		n.Left++
	}
}

// Rows returns the ops in order, with the violation between them.
func (n *near) Rows() []opRow {
	out := slices.Concat(n.before[n.next:], n.before[:n.next])
	out = append(out, opRow{
		Ms:    "0",
		At:    fmt.Sprintf("%.6f", seconds(n.at)),
		Class: "here",
		What:  "the violation was found",
	})
	return append(out, n.after...)
}

// text describes an op in a line; began is the call that it ends, if any.
func (n *near) text(op *history.Op, began *call) string {
	if op.F == history.FAllocate {
		return n.callText(op, began)
	}
	var payload any
	switch {
	case op.Fault != nil:
		payload = op.Fault
	case op.Sample != nil:
		payload = op.Sample
	case op.Window != nil:
		payload = op.Window
	case op.Holder != nil:
		payload = op.Holder
	default:
		return clip(op.F+" "+op.Node, 80)
	}
	data, err := json.Marshal(payload)
	if err != nil {
		return op.F
	}
	return clip(op.F+" "+strings.ReplaceAll(string(data), `"`, ""), 400)
}

func (n *near) callText(op *history.Op, began *call) (text string) {
	switch op.Type {
	case history.Invoke:
		text = fmt.Sprintf("requested %d by %s", op.Block.Count, clip(op.Via, 12))
		if op.After > 0 {
			text += fmt.Sprintf(", after %v", op.After)
		}
		return text
	case history.OK:
		first, last := op.Block.First, op.Block.Last()
		text = fmt.Sprintf("%d IDs %v … %v", op.Block.Count, first, last)
		if n.format.Layout.SIDBits() > 0 {
			text += fmt.Sprintf(" (sid %d, ms %d … %d)", n.format.SID(first), n.format.UnixMilli(first),
				n.format.UnixMilli(last))
		}
	case history.Fail:
		text = "refused: " + clip(op.Reason, 40)
	default:
		text = "unknown: " + clip(op.Reason, 40)
	}
	if began != nil {
		text += fmt.Sprintf(", took %.3f ms", float64(op.Time-began.at)/1e6)
	}
	return text
}

// names reports whether the violation names the process or node of op.
func (n *near) names(op *history.Op) bool {
	name := cmp.Or(op.Run, op.Node)
	return name != "" && containsWord(n.detail, name)
}

// containsWord reports whether a name is in a text as a word: n1 is not in n12.
func containsWord(text, name string) bool {
	ok, _ := regexp.MatchString(`(^|[^\pL\pN_-])`+regexp.QuoteMeta(name)+`($|[^\pL\pN_-])`, text)
	return ok
}
