// Package watermark says which IDs can still appear in a space: what every surface answers
// about the watermark, from the record that the node has read and from what only this node
// knows. The protocol that raises the record is in packages lease and lease/protocol.
//
// [Of] is a function of its arguments. A [Reader] serves any number of callers from the
// status that the node's lease has published, and so reads nothing from etcd itself.
package watermark

import (
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/ulid"
)

// Answer is the watermark as a node knows it. Times are Unix ms.
type Answer struct {
	// At: no ID with a time below it is issued in the space any more. It never falls on a node
	// that runs. Of several nodes one may have read less than another.
	At int64 `json:"unix_ms"`
	// Int is the smallest ID of the first unit of time that begins at or after At: every ID
	// that can still appear is at or above it. It is 0 while At is not after the epoch. Flake
	// is its text; ULID and UUID are its smallest wide forms, empty if the space has none.
	Int   int64  `json:"int,string"`
	Flake string `json:"flake"`
	ULID  string `json:"ulid,omitempty"`
	UUID  string `json:"uuid,omitempty"`
	// Lag is how far At lies behind the clock of the node that answers.
	Lag int64 `json:"lag_ms"`
	// Conditional is what At rests on besides compares in etcd; nil: nothing.
	Conditional *Condition `json:"conditional,omitempty"`
	// BlockedBy is what At waits for, the cause that holds it back most first. It is empty
	// while At follows the clock.
	BlockedBy []Blocker `json:"blocked_by"`
	// NotCovered are sids of generators outside of the nodes that tell nobody what they
	// issue. At says nothing about them.
	NotCovered []int `json:"not_covered"`
	// Held: the lag is longer than a holder that vanished explains, so that an operator should look.
	Held bool `json:"held"`
}

// Condition is the last process that vanished whose window At has passed: IDs below Until rest
// on its clock going on. After a new era it is all processes of the history before it: Node is
// empty and SID -1.
type Condition struct {
	Node  string `json:"node"`
	SID   int    `json:"sid"`
	Until int64  `json:"until_unix_ms"`
}

// Blocker is what holds the watermark back.
type Blocker struct {
	// Node and SID name the holder; empty and -1: it is none.
	Node string `json:"node"`
	SID  int    `json:"sid"`
	// Since is up to when it let the watermark rise; 0: not known.
	Since int64 `json:"since_unix_ms"`
	// Why is one of Whys, and Text says it to people.
	Why  lease.BlockWhy `json:"why"`
	Text string         `json:"text"`
}

// Why the watermark waits, besides what its record says.
const (
	// EtcdAway: this node has read nothing from etcd for too long.
	EtcdAway lease.BlockWhy = "etcd_away"
	// NotRaised: nothing is known that holds it back, and no node raises it.
	NotRaised lease.BlockWhy = "not_raised"
)

// Whys are all causes.
var Whys = []lease.BlockWhy{
	EtcdAway, NotRaised, lease.BlockedSilent, lease.BlockedWorker, lease.BlockedVanished, lease.BlockedReplaced,
	lease.BlockedUnreadable, lease.BlockedDowntime,
}

// Config is what is known of how the watermark is raised.
type Config struct {
	Interval time.Duration // A holder says this often which times it issues no more.
	Reload   time.Duration // A node without a sid lists the space this often.
	Vanished time.Duration // A holder that vanished delays the watermark for less than this.
}

// slack is what a read or a raise may be late by, besides two intervals.
const slack = 5 * time.Second

// Of returns the watermark that a node with status st answers at now.
//
// The error is a *node.Refusal, not counted yet: HISTORY_REWOUND, or STARTING while the node
// has read none.
func Of(st lease.Status, now clock.Reading, f flake.Format, cfg Config) (Answer, error) {
	if err := refusal(st); err != nil {
		return Answer{}, err
	}
	m := st.Mark
	a := Answer{At: int64(m.At), Lag: max(0, int64(now.Wall-m.At)), BlockedBy: []Blocker{}, NotCovered: []int{}}
	a.Held = a.Lag > (2*cfg.Interval + cfg.Vanished).Milliseconds()
	id := First(f, int64(m.At))
	a.Int, a.Flake = id.Int64(), id.String()
	if wide, err := ulid.FromFlake(f, id, 0); err == nil {
		a.ULID, a.UUID = wide.String(), wide.UUID()
	}
	if r := m.Rests; r.Ceil > 0 {
		a.Conditional = &Condition{Node: lease.Printable(r.Node), SID: int(r.SID), Until: int64(r.Ceil)}
		if r.Why == lease.BlockedEra {
			a.Conditional.SID = -1
		}
	}
	late := 2*cfg.Interval + slack
	silent := late
	if !st.Held {
		silent += cfg.Reload
	}
	if quiet := now.Mono.Sub(st.MarkedAt); quiet > silent {
		since := now.Wall - clock.MillisOf(quiet)
		a.block(EtcdAway, since, "this node has read nothing from etcd since "+stamp(since))
	}
	for _, h := range m.Blocked {
		b := Blocker{
			Node:  lease.Printable(h.Node),
			SID:   int(h.SID),
			Since: int64(max(h.Floor, m.At)),
			Why:   h.Why,
			Text:  h.String(),
		}
		a.BlockedBy = append(a.BlockedBy, b)
	}
	if len(a.BlockedBy) == 0 && a.Lag > late.Milliseconds() {
		a.block(NotRaised, m.Wall,
			"no node raises it: a node that holds a sid, and whose clock the others confirm, does")
	}
	if set, err := lease.ParseSIDSet(m.Uncovered); err == nil && m.Uncovered != "" {
		for sid := range set.Each {
			a.NotCovered = append(a.NotCovered, int(sid))
		}
	}
	return a, nil
}

func (a *Answer) block(why lease.BlockWhy, since clock.Millis, text string) {
	a.BlockedBy = append(a.BlockedBy, Blocker{SID: -1, Since: int64(since), Why: why, Text: text})
}

func stamp(at clock.Millis) string { return at.Time().UTC().Format(time.RFC3339) }

// Complete reports whether nothing at or below id can appear any more.
func (a Answer) Complete(id flake.ID) bool { return id.Int64() < a.Int }

// First returns the smallest ID of the first unit of time that begins at or after a time in
// Unix ms; 0 before the epoch, and the greatest ID after the last unit.
func First(f flake.Format, at int64) flake.ID {
	if at <= f.Epoch {
		return 0
	}
	unit := f.Layout.Unit()
	at += (unit - (at-f.Epoch)%unit) % unit
	id, err := f.Min(at)
	if err != nil {
		id, _ = f.Max(f.Epoch + f.Layout.End() - 1) // The layout is known, and the time its last.
	}
	return id
}

// Pauses suggested to callers.
const (
	retryStarting = time.Second
	retryRewound  = 5 * time.Second
)

// refusal returns why a node answers no watermark, or nil.
func refusal(st lease.Status) error {
	switch {
	case st.Phase == lease.Rewound:
		return &node.Refusal{Reason: node.HistoryRewound, RetryAfter: retryRewound, Message: st.Problem}
	case st.Mark.At > 0 && st.Mark.Era == st.Era.Number:
		return nil
	case len(st.Mark.Blocked) > 0:
		return &node.Refusal{Reason: node.Starting, RetryAfter: retryStarting,
			Message: "there is no watermark yet: " + st.Mark.Blocked[0].String()}
	case st.Mark.At > 0: // A backup may have had it, and a later one was answered.
		return &node.Refusal{Reason: node.Starting, RetryAfter: retryStarting,
			Message: fmt.Sprintf("there is no watermark yet: era %d began, and the last one is of era %d",
				st.Era.Number, st.Mark.Era)}
	case st.Problem != "":
		return &node.Refusal{Reason: node.Starting, RetryAfter: retryStarting,
			Message: fmt.Sprintf("this node has read no watermark yet: %s", st.Problem)}
	}
	return &node.Refusal{Reason: node.Starting, RetryAfter: retryStarting,
		Message: "this node has read no watermark yet: the first one is written seconds after a node has " +
			"acquired a sid"}
}
