package lease

import (
	"fmt"
	"slices"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// Mark is the record of the watermark: no ID with a time below At is issued in the space any
// more. At never falls. Whoever raises it writes what held it back as well, so that every node
// can say that.
type Mark struct {
	// Era is the one that At was last raised in, and 0 before that. At is not below the floor of
	// Era then, and so above every mark of a history that was lost. Of an earlier era At is not
	// to be answered: it may be that of a backup.
	Era int64        `json:"era"`
	At  clock.Millis `json:"at"`
	// Nonce is unique to the write, and Wall is what its writer's clock read.
	Nonce string       `json:"nonce"`
	Node  string       `json:"node"`
	Wall  clock.Millis `json:"wall"`
	// Rests is the last holder that vanished whose window the mark has passed, or the era, whose
	// floor all holders of a lost history are below: that nothing is issued below that ceiling any
	// more rests on their clocks, which go on.
	Rests Blocker `json:"rests,omitzero"`
	// Blocked is what the mark waits for, the lowest floor first, at most four. It is empty
	// while the mark follows the clock.
	Blocked []Blocker `json:"blocked,omitempty"`
	// Uncovered are sids of generators that tell nobody what they issue, as a text of SIDSet.
	// The mark says nothing about them.
	Uncovered string `json:"uncovered,omitempty"`
}

// Blocker is a holder, or another cause, that the mark waits for or rests on. Floor is below
// what it may issue, and Ceil is the end of its window.
type Blocker struct {
	SID   flake.SID    `json:"sid"`
	Node  string       `json:"node"`
	Why   BlockWhy     `json:"why"`
	Floor clock.Millis `json:"floor"`
	Ceil  clock.Millis `json:"ceil"`
	// Worker: Node is the name of a worker.
	Worker bool `json:"worker,omitempty"`
}

// BlockWhy is a closed set, so that it can be a metric's label.
type BlockWhy string

// Why the mark waits.
const (
	// BlockedSilent: the holder is there, and has not extended its window.
	BlockedSilent BlockWhy = "silent"
	// BlockedWorker: the holder is a worker, and its next extension is not overdue.
	BlockedWorker BlockWhy = "worker"
	// BlockedVanished: the holder is gone and gave nothing back. Its ceiling has to pass.
	BlockedVanished BlockWhy = "vanished"
	// BlockedReplaced: the sid was acquired again before the ceiling of a vanished holder passed.
	BlockedReplaced BlockWhy = "replaced"
	// BlockedUnreadable: the record of the sid cannot be read.
	BlockedUnreadable BlockWhy = "unreadable"
	// BlockedDowntime: the mark is far behind the clocks of holders, none of which has held a sid
	// for long. Their clocks may be wrong. Ceil is when it goes on.
	BlockedDowntime BlockWhy = "downtime"
	// BlockedEra: the floor of the era has to pass, since holders may be known to nobody.
	BlockedEra BlockWhy = "era"
)

// Passes reports whether the mark waits for Ceil to pass, and for nothing that h does.
func (h Blocker) Passes() bool {
	return h.Why == BlockedVanished || h.Why == BlockedReplaced || h.Why == BlockedEra
}

// String says for people what the mark waits for.
func (h Blocker) String() string {
	kind := "node"
	if h.Worker {
		kind = "worker"
	}
	who := fmt.Sprintf("%s %s (sid %d)", kind, Printable(h.Node), h.SID)
	switch h.Why {
	case BlockedWorker:
		return who + " tells a floor at each extension, a third of worker.window apart, and the next one is to come"
	case BlockedSilent:
		return who + " holds its sid and does not extend its window: it is paused, cut off, or its clock is wrong"
	case BlockedVanished:
		return who + " vanished: its window ends at " + h.Ceil.Time().UTC().Format(time.RFC3339)
	case BlockedReplaced:
		return who + " vanished and was replaced: its window ends at " + h.Ceil.Time().UTC().Format(time.RFC3339)
	case BlockedUnreadable:
		return fmt.Sprintf("the record of sid %d is unreadable: run \"allocator admin release-sid %d\"", h.SID, h.SID)
	case BlockedDowntime:
		return "it was last raised long ago, or clocks are wrong: it goes on once nodes have had sids for " +
			"10 minutes"
	case BlockedEra:
		return "the era began with a floor of " + h.Ceil.Time().UTC().Format(time.RFC3339)
	}
	return who
}

// MarkTxn is a guarded write of the mark. It is applied only if config, era and mark are as
// read, by revision and by value: a holder that came since then has put the mark again.
type MarkTxn struct {
	Config Entry[Space]
	Era    Entry[Era]
	Seen   Entry[Mark]
	Mark   Mark
}

// Priors returns the owners that may still issue below the base of the next one, once w is
// replaced by a record of a new term: those before w, and that of w itself if it was not sealed.
// None that the mark has passed is kept.
func (w Window) Priors(m Mark) Prior {
	p := w.Prior
	switch {
	case !w.Unsealed():
	case w.Covered():
		floor := w.Floor
		if p.Ceil > m.At {
			floor = min(floor, p.Floor)
		}
		p.Floor, p.Ceil, p.Node = floor, max(p.Ceil, w.Ceil), w.Node
	default:
		p.Uncovered, p.Worker = max(p.Uncovered, w.Ceil), w.Node
	}
	if p.Ceil <= m.At {
		p.Floor, p.Ceil, p.Node = 0, 0, ""
	}
	if p.Uncovered <= m.Rests.Ceil {
		p.Uncovered, p.Worker = 0, ""
	}
	return p
}

// Covered reports whether the mark waits for the owner of w: for each node, and for a worker
// that tells floors.
func (w Window) Covered() bool { return !w.Worker || w.Floor > 0 }

// Unsealed reports whether the owner of w may issue.
func (w Window) Unsealed() bool {
	return w.State == Active || w.State == Quarantined && w.Node != Operator
}

// Says reports whether m tells something that o does not.
func (m Mark) Says(o Mark) bool {
	return m.At > o.At || m.Era != o.Era || m.Uncovered != o.Uncovered || m.Rests != o.Rests ||
		!slices.Equal(m.Blocked, o.Blocked)
}
