package embed

import (
	"errors"
	"fmt"
	"strings"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// ErrClosed says that Close was called before or during the call.
var ErrClosed = errors.New("embed: closed")

// Holder is who holds a sid.
type Holder struct {
	SID      flake.SID // Node holds this sid.
	Node     string    // its name
	Instance string    // Instance identifies the process in etcd.
}

// PoolError is the error of Open if no sid was free in time, or not more than the reserve.
// errors.Is(err, &client.Refusal{Reason: client.NoSID}) holds.
type PoolError struct {
	SIDs        string // The program may take these sids, as first-last.
	Size        int    // number of these sids
	Quarantined int    // This many of these sids are quarantined and have no holder.
	Reserved    int    // This many are reserved for generators outside of the cluster.
	Reserve     int    // number of sids to leave free
	// Holders are the holders of the range, in the order of sids; nil if etcd did not
	// answer.
	Holders []Holder
	cause   error // the context's
}

// holdersShown is the maximum number of holders in the text.
const holdersShown = 32

// Error names the range, its holders, and what to do.
func (e *PoolError) Error() string {
	var who []string
	for i, h := range e.Holders {
		if i == holdersShown {
			who = append(who, fmt.Sprintf("and %d more", len(e.Holders)-i))
			break
		}
		who = append(who, fmt.Sprintf("%d by %s", h.SID, h.Node))
	}
	text := fmt.Sprintf("embed: no sid of %s is free", e.SIDs)
	if e.Reserve > 0 {
		text = fmt.Sprintf("embed: %d of the sids %s have to stay free (Reserve), and %d are free", e.Reserve, e.SIDs,
			e.free())
	}
	if e.Quarantined > 0 {
		who = append(who, fmt.Sprintf("%d quarantined", e.Quarantined))
	}
	if e.Reserved > 0 {
		who = append(who, fmt.Sprintf("%d reserved", e.Reserved))
	}
	if len(who) > 0 {
		text += ": held: " + strings.Join(who, ", ")
	}
	return text + ". Stop one of them, wait up to a minute for the sid of a crashed one, use a wider range (SIDs), " +
		"or use servers (package client)"
}

// Unwrap returns the refusal NO_SID and the context's error.
func (e *PoolError) Unwrap() []error {
	return []error{&client.Refusal{Reason: client.NoSID, Message: "no sid is free"}, e.cause}
}

// fill sets the holders and counts the other sids that nobody can take, from a view of the space.
func (e *PoolError) fill(v lease.View, within lease.SIDRange) {
	e.Holders, e.Quarantined, e.Reserved = []Holder{}, 0, 0
	for sid := within.From; sid < within.To; sid++ {
		switch s := v.SIDs[sid]; {
		case s.Holder.Exists():
			e.Holders = append(e.Holders,
				Holder{SID: sid, Node: s.Holder.Value.Node, Instance: string(s.Holder.Value.Instance)})
		case s.Window.Err != nil, s.Window.Value.State == lease.Quarantined:
			e.Quarantined++
		case s.Window.Value.State == lease.Reserved:
			e.Reserved++
		}
	}
}

// free returns the number of free sids.
func (e *PoolError) free() int { return e.Size - len(e.Holders) - e.Quarantined - e.Reserved }

// refusal returns a node's refusal as callers see it, or ErrClosed.
func (a *Allocator) refusal(err error) error {
	var r *node.Refusal
	if !errors.As(err, &r) {
		return err
	}
	if r.Reason == node.Draining && a.closing.Load() {
		return ErrClosed
	}
	return &client.Refusal{
		Reason:     client.Reason(r.Reason.String()),
		Message:    r.Message,
		RetryAfter: r.RetryAfter,
		Metadata:   r.Metadata,
	}
}
