package lease

import (
	"errors"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// Acted is the message of the log lines that say what an operator did. Their attributes are action, caller, by (what
// identified the caller), from and reason: docs/reference/events.md promises them.
const Acted = "action of an operator"

// Act is what an operator did to the records of a space or to its etcd, for people. No step of the protocol reads it.
// Any client that may write to etcd can write one that names another user, or has texts that are not printable: By is
// not verified, and code that shows an act makes its texts printable.
type Act struct {
	Action string       `json:"action"` // such as "quarantine sid 7"
	By     string       `json:"by"`     // user@host, as the machine of the command says
	Reason string       `json:"reason,omitempty"`
	At     clock.Millis `json:"at"`    // by the clock of that machine
	Nonce  string       `json:"nonce"` // No other act has it.
}

const (
	// ActKept is how long etcd keeps an act: nodes log it within that time.
	ActKept = time.Hour
	// MaxActs is how many acts are read, the latest ones.
	MaxActs = 64
)

func (a Act) check() error {
	if a.Action == "" || a.By == "" || a.Nonce == "" || a.At < 1 {
		return errors.New("no action, operator, nonce or time")
	}
	return nil
}
