package operate

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
)

// Action is what an operator asks for: the name of the command.
type Action string

// The actions.
const (
	Drain      Action = "drain"
	Undrain    Action = "undrain"
	Quarantine Action = "quarantine"
	ReleaseSID Action = "release-sid"
	Reserve    Action = "reserve"
	Unreserve  Action = "unreserve"
	AcceptTime Action = "accept-time"
	Recover    Action = "recover"
)

// Plan is what an action would do, as people and programs read it, and what Do works with.
type Plan struct {
	Action   Action   `json:"action"`
	Title    string   `json:"plan"` // It has what the action is done to, as "quarantine sid 7".
	Found    []string `json:"found,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Obstacles are what an operator has to judge. Do refuses each that is not in Accepted.
	Obstacles []string `json:"obstacles,omitempty"`
	Compares  []string `json:"compares,omitempty"` // Nothing is written unless all of these hold.
	Writes    []string `json:"writes,omitempty"`   // Without any there is nothing to do.
	Command   string   `json:"command"`            // It does the same on a terminal.
	Accepted  []string `json:"-"`

	// Refused is why there is no such plan, although Found is known. Do returns it.
	Refused    error             `json:"-"`
	View       lease.View        `json:"-"` // Do compares it.
	Repairs    []repair.Write    `json:"-"` // Plans for sids write these in order, Quarantine and ReleaseSID one.
	Acceptance repair.Acceptance `json:"-"` // AcceptTime writes it.
	Era        repair.Era        `json:"-"` // Recover writes it.
	Floor      clock.Millis      `json:"-"` // An operator gave it to Recover; 0: computed.
	Nodes      []Node            `json:"-"` // Recover has asked them, this one first.
	Act        lease.Act         `json:"-"` // It is recorded with the first write; zero: nothing is.
}

// compares says what every write compares.
func compares(v lease.View) []string {
	return []string{compared("config", v.Config), compared("era", v.Era)}
}

func compared[T any](name string, e lease.Entry[T]) string {
	if !e.Exists() {
		return name + ": is absent"
	}
	return fmt.Sprintf("%s: unchanged since revision %d", name, e.Rev)
}

// ofSID returns what plans for one sid have in common.
func ofSID(a Action, v lease.View, w repair.Write) Plan {
	p := Plan{Action: a, View: v, Repairs: []repair.Write{w}}
	p.Compares = append(compares(v), compared("window of the sid", w.Seen.Window),
		compared("holder of the sid", w.Seen.Holder))
	if w.Gone != "" {
		p.Compares = append(p.Compares, "no process is registered with instance "+lease.Printable(string(w.Gone)))
	}
	p.Writes = []string{"window: " + lease.Encode(w.Window), "the holder is deleted"}
	if w.Ledger {
		p.Writes = append(p.Writes, fmt.Sprintf("a line of the ledger for term %d", w.Window.Term))
	}
	return p
}

// ofSIDs returns what plans for several sids have in common.
func ofSIDs(a Action, v lease.View, set lease.SIDSet, writes []repair.Write) Plan {
	p := Plan{Action: a, Title: fmt.Sprintf("%s %v", a, set), View: v, Repairs: writes}
	if len(writes) == 0 {
		return p
	}
	p.Compares = append(compares(v), "window and holder of each sid: unchanged since revision "+fmt.Sprint(v.Revision))
	for _, w := range writes[:min(len(writes), recordsShown)] {
		p.Writes = append(p.Writes, fmt.Sprintf("window of sid %d: %s", w.SID, lease.Encode(w.Window)))
	}
	if more := len(writes) - recordsShown; more > 0 {
		p.Writes = append(p.Writes, fmt.Sprintf("%d more", more))
	}
	return p
}

// recordsShown is how many records of one plan are shown.
const recordsShown = 8

// Command returns the line for a terminal of an action. Empty arguments are left out.
func (o *Operator) Command(a Action, args ...string) string {
	line := "allocator admin " + string(a)
	for _, arg := range args {
		if arg != "" {
			line += " " + arg
		}
	}
	if a == Drain || a == Undrain {
		return line + " --addr " + o.cfg.GRPC
	}
	return line + " --etcd.endpoints " + o.cfg.Etcd
}

// textFlag returns a flag with a value for a shell, or "" for the value "".
func textFlag(name, value string) string {
	if value == "" {
		return ""
	}
	return "--" + name + " '" + strings.ReplaceAll(value, "'", `'\''`) + "'"
}

// timeFlag returns a flag with a time, or "" for the time 0.
func timeFlag(name string, at clock.Millis) string {
	if at == 0 {
		return ""
	}
	return "--" + name + " " + repair.At(at)
}

// ParseSID reads a sid.
func ParseSID(text string) (flake.SID, error) {
	n, err := strconv.ParseUint(text, 10, 22)
	if err != nil {
		return 0, fmt.Errorf("%.20q is not a sid, which is a number such as 7", text)
	}
	return flake.SID(n), nil
}

// ParseTime reads a time as RFC 3339, without a zone (UTC) or without a time of day. It
// rounds up to a millisecond: a bound that loses its microseconds is no bound.
func ParseTime(text string) (clock.Millis, error) {
	for _, form := range []string{time.RFC3339, "2006-01-02T15:04:05", time.DateOnly} {
		if t, err := time.Parse(form, text); err == nil {
			if t.UnixMilli() <= 0 {
				return 0, errors.New("the time must be after 1970")
			}
			return clock.Millis(t.Add(time.Millisecond - 1).UnixMilli()), nil
		}
	}
	return 0, fmt.Errorf("%.40q is not a time such as 2026-02-01T12:00:00Z", text)
}
