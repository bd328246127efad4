package feed

import (
	"encoding/json"
	"fmt"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/text"
)

// Kind is what happened. The set is closed.
type Kind string

// The kinds. Those of the first group are about the node that reports them; those of
// the others name the node that they are about.
const (
	Started        Kind = "started"
	Refusing       Kind = "refusing" // a request would be refused from now on, or for another reason
	Serving        Kind = "serving"
	Drained        Kind = "drained"
	Undrained      Kind = "undrained"
	SIDAcquired    Kind = "sid_acquired"
	SIDReleased    Kind = "sid_released" // nothing is issued from it any more, and it is given back
	SIDLost        Kind = "sid_lost"     // another process has it, or its records cannot be trusted
	Standby        Kind = "standby"      // no sid is free
	EtcdFailing    Kind = "etcd_failing" // windows are not extended
	EtcdAnswers    Kind = "etcd_answers"
	BackupFailing  Kind = "backup_failing" // no snapshot of etcd inside is written, or none is copied elsewhere
	BackupMade     Kind = "backup_made"    // it failed before
	EraBegan       Kind = "era_began"
	HistoryRewound Kind = "history_rewound"
	SIDQuarantined Kind = "sid_quarantined"
	SIDUsable      Kind = "sid_usable" // it was quarantined
	Reload         Kind = "reload"
	ReloadFailing  Kind = "reload_failing"
	ClockAhead     Kind = "clock_ahead" // the alarm of that name
	ClockStep      Kind = "clock_step"
	ClockFollowed  Kind = "clock_step_followed"
	ClockRefuted   Kind = "clock_step_refuted"
	ClockReverted  Kind = "clock_step_reverted"
	ClockBlocked   Kind = "clock_step_blocked"
	ClockSuspend   Kind = "clock_suspend"
	ClockStall     Kind = "clock_stall"
	Confirmed      Kind = "clock_confirmed"
	Unconfirmed    Kind = "clock_unconfirmed"
	GateShut       Kind = "gate_shut" // Another node's event is made from what it reports.
	GateOpened     Kind = "gate_opened"
	ClockFalse     Kind = "clock_false" // a majority disagrees with the node's clock
	ClockTrue      Kind = "clock_true"
	PeerSilent     Kind = "peer_silent" // it answers no gossip
	PeerAnswers    Kind = "peer_answers"
	NodeJoined     Kind = "node_joined" // it registered
	NodeLeft       Kind = "node_left"
	HolderCame     Kind = "holder_came" // another node has the sid
	HolderLeft     Kind = "holder_left"
	WorkerAcquired Kind = "worker_acquired"
	WorkerReleased Kind = "worker_released" // or its lease ended
	OperatorActed  Kind = "operator_acted"  // on records or members of etcd, past the nodes
	EventsOmitted  Kind = "events_omitted"  // more happened at once than is kept
)

// Event is something that happened. Every text is printable and bounded.
type Event struct {
	ID         string            `json:"id"` // A Feed sets it; it rises within one process.
	At         int64             `json:"at_unix_ms"`
	Node       string            `json:"node"` // The event is about this node.
	Kind       Kind              `json:"kind"`
	SID        int               `json:"sid"`     // -1: none
	Message    string            `json:"message"` // The message is about Node and leaves its name out.
	Attributes map[string]string `json:"attributes"`
}

// maxText bounds a text of an event, in bytes.
const maxText = 512

// at returns an event without a sid. pairs are attributes: key, value, key, value.
func at(now clock.Millis, node string, kind Kind, message string, pairs ...string) Event {
	e := Event{
		At:         int64(now),
		Node:       printable(node),
		Kind:       kind,
		SID:        -1,
		Message:    printable(message),
		Attributes: map[string]string{},
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		e.Attributes[pairs[i]] = printable(pairs[i+1])
	}
	return e
}

// printable returns s as it may be shown, since names come from other machines.
func printable(s string) string { return text.Printable(text.Cut(s, maxText)) }

// JSON returns the JSON of a value of this package, on one line.
func JSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("feed: %T has no JSON form: %v", v, err))
	}
	return b
}
