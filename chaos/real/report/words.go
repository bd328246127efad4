package report

import (
	"fmt"
	"math"
	"strings"
	"unicode"

	"github.com/flakelease/allocator/chaos/history"
)

// words says an op in a line; began is the call that it ends, if any.
func (n *near) words(op *history.Op, began *begun) string {
	switch {
	case op.F == history.FAllocate:
		return n.callWords(op, began)
	case op.Fault != nil:
		f := op.Fault
		text := fmt.Sprintf("fault %s #%d: %s", clip(op.F, 40), f.ID, clip(f.Phase, 12))
		if len(f.Targets) > 0 {
			text += " on " + targets(f.Targets)
		}
		if f.Effect != "" {
			text += ": " + clip(f.Effect, 160)
		}
		return text
	case op.Sample != nil:
		_, state := stateOf(op.Sample)
		_, gate := gateOf(op.Sample)
		s := op.Sample
		text := fmt.Sprintf("sample: %s, window left %d ms, lease left %d ms, offset %s ms ± %s ms", state, s.LeadMs, s.TTLMs, figure(s.OffsetMs), figure(s.ErrorMs))
		if gate != "" {
			text += ", " + gate
		}
		return text
	case op.Window != nil:
		w := op.Window
		switch {
		case w.Deleted:
			return fmt.Sprintf("window record of sid %d deleted (revision %d)", w.SID, w.Rev)
		case w.Unreadable:
			return fmt.Sprintf("window record of sid %d unreadable (revision %d)", w.SID, w.Rev)
		}
		text := fmt.Sprintf("window of sid %d: [%d, %d) term %d, revision %d", w.SID, w.Base, w.Ceil, w.Term, w.Rev)
		if w.Released {
			text += ", released"
		}
		return text
	case op.Holder != nil:
		h := op.Holder
		if h.Deleted {
			return fmt.Sprintf("holder record of sid %d deleted (revision %d)", h.SID, h.Rev)
		}
		return fmt.Sprintf("holder of sid %d: %s (revision %d)", h.SID, clip(h.Instance, 40), h.Rev)
	case op.F == history.FLeader:
		if op.Node == "" {
			return "etcd has no leader"
		}
		return "etcd is led by " + clip(op.Node, 24)
	}
	return clip(op.F, 40)
}

func (n *near) callWords(op *history.Op, began *begun) string {
	if op.Type == history.Invoke {
		text := fmt.Sprintf("asked for %d by %s", op.Block.Count, clip(op.Via, 12))
		if op.After > 0 {
			text += fmt.Sprintf(", after %v", op.After)
		}
		return text
	}
	text := ""
	switch op.Type {
	case history.OK:
		first, last := op.Block.First, op.Block.Last()
		text = fmt.Sprintf("%d IDs %v … %v", op.Block.Count, first, last)
		if n.format.Layout.SIDBits() > 0 {
			text += fmt.Sprintf(" (sid %d, ms %d … %d)", n.format.SID(first), n.format.UnixMilli(first), n.format.UnixMilli(last))
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

// names reports whether the violation speaks of the process or node of op.
func (n *near) names(op *history.Op) bool {
	if op.Run != "" {
		return holds(n.detail, op.Run)
	}
	return op.Node != "" && holds(n.detail, op.Node)
}

// holds reports whether a name stands in a text as a word: n1 does not in n12.
func holds(text, name string) bool {
	for from := 0; ; {
		i := strings.Index(text[from:], name)
		if i < 0 {
			return false
		}
		i += from
		end := i + len(name)
		if (i == 0 || !wordy(text[i-1])) && (end == len(text) || !wordy(text[end])) {
			return true
		}
		from = end
	}
}

func wordy(c byte) bool {
	return c == '_' || c == '-' || c >= 0x80 || unicode.IsLetter(rune(c)) || unicode.IsDigit(rune(c))
}

// count writes a number so that its size is seen at once.
func count(v float64) string {
	switch {
	case v >= 1e9:
		return fmt.Sprintf("%.3gG", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%.3gk", v/1e3)
	}
	return fmt.Sprintf("%.3g", v)
}

// grouped writes a whole number with its thousands apart.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// figure writes a measured value.
func figure(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e15 {
		return grouped(int64(v))
	}
	if math.Abs(v) >= 10_000 && math.Abs(v) < 1e15 {
		return grouped(int64(math.Round(v)))
	}
	return fmt.Sprintf("%.4g", v)
}

// lasting writes a time in seconds in the unit that fits.
func lasting(s float64) string {
	switch a := math.Abs(s); {
	case a == 0:
		return "0"
	case a < 1e-3:
		return fmt.Sprintf("%.3g µs", s*1e6)
	case a < 1:
		return fmt.Sprintf("%.3g ms", s*1e3)
	case a < 60:
		return fmt.Sprintf("%.3g s", s)
	case a < 3600:
		return fmt.Sprintf("%.3g min", s/60)
	case a < 86400:
		return fmt.Sprintf("%.3g h", s/3600)
	}
	return fmt.Sprintf("%.3g d", s/86400)
}
