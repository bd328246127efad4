package server

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
)

// This file is for doors that stand outside this package and speak of IDs in
// texts: they read requests and write IDs by it as HTTP does, and their requests
// are counted with all others.

// Form is a text form of IDs. The zero Form is the flake.
type Form = form

// ParseForm returns the form of a name: flake, int, ulid or uuid.
func ParseForm(name string) (Form, bool) { return parseForm(name) }

// Append appends the text of an ID in form f. epoch is that of the space in Unix
// ms; random are 54 bits for a wide form, and not looked at for the others. It
// panics for a flake that has no such form: look at Texts.Wide before.
func (f form) Append(text []byte, id flake.ID, epoch int64, random uint64) []byte {
	return appendID(text, id, f, epoch, random)
}

// Wide reports whether f has 128 bits, of which 54 are random.
func (f form) Wide() bool { return f.wide() }

// Len returns the most bytes that an ID has in form f.
func (f form) Len() int { return [numForms]int{13, 19, 26, 36}[f] }

// Texts is what a door has to know of the space to read and write IDs.
type Texts struct {
	MaxCount int // of IDs that one request may ask for as texts
	Wide     bool
	Format   flake.Format
}

// Texts returns it.
func (s *Server) Texts() Texts {
	return Texts{MaxCount: s.maxHTTP, Wide: s.wide, Format: s.format}
}

// Order is a request for IDs in which there is nothing wrong.
type Order struct {
	Count int
	As    Form
	After flake.ID // 0: none
}

// ReadOrder reads the fields of a request as they were written; nil is one that is
// not given. The error is a *node.Refusal, which is counted: INVALID_COUNT,
// INVALID_FORMAT or INVALID_ID, with the words and figures that HTTP has for it.
func (s *Server) ReadOrder(count, as, after []byte) (Order, error) {
	given := func(b []byte) field { return field{text: string(b), given: b != nil} }
	o, bad := fields{count: given(count), as: given(as), after: given(after)}.order(limits{count: s.maxHTTP, wide: s.wide, format: s.format})
	if bad != nil {
		return Order{}, s.refused(bad.reason, bad.message, bad.metadata())
	}
	return Order{Count: o.count, As: o.as, After: o.after}, nil
}

// Malformed refuses a request that is none: INVALID_FORMAT, counted.
func (s *Server) Malformed(format string, args ...any) *node.Refusal {
	return s.refused(node.InvalidFormat, fmt.Sprintf(format, args...), nil)
}

// Node returns the node that issues.
func (s *Server) Node() *node.Node { return s.node }

// DecodeJSON returns what GET /v1/ids/{id} answers for the text of an ID. The error
// is a *node.Refusal, which is counted, or ctx's.
func (s *Server) DecodeJSON(ctx context.Context, text, kind string) ([]byte, error) {
	d, err := s.describe(ctx, text, kind)
	if err != nil {
		return nil, err
	}
	return json.Marshal(d)
}

// SelfJSON returns how the node sees itself: the member «self» of what GET
// /v1/cluster answers. It asks nobody else.
func (s *Server) SelfJSON() ([]byte, error) { return json.Marshal(s.self(s.node.Stats())) }

// Began returns the time a request began, for Done.
func (s *Server) Began() clock.Mono { return s.began() }

// Done counts n requests that began together and ended as err says: nil, a
// *node.Refusal, or that the caller has left. Their time is observed once: it was
// one piece of work, and to note it for each would take longer than the work.
func (s *Server) Done(on Surface, n int, err error, began clock.Mono) {
	outcome := outcomeOf(err)
	s.stats.addN(on, outcome, int64(n))
	if s.cfg.Observe == nil {
		return
	}
	s.cfg.Observe(on.String(), s.clock.Now().Mono.Sub(began))
}

// NoCommand counts a request that asks for nothing we have.
func (s *Server) NoCommand(on Surface, began clock.Mono) { s.done(on, outcomeNoRoute, began) }

// MillisUp rounds d up to whole milliseconds: a retry before its time would be
// refused again.
func MillisUp(d time.Duration) int64 { return millisUp(d) }

// ErrorCode returns the first word that a Redis client is told about a refusal,
// which is what such clients go by: TRYAGAIN where the same request can succeed
// later or at another node, else ERR; NOAUTH and NOPERM as Redis has them.
func ErrorCode(r *node.Refusal) string {
	switch w := wires[r.Reason]; w.http {
	case 401:
		return "NOAUTH"
	case 403:
		return "NOPERM"
	case 429, 503:
		return "TRYAGAIN"
	default:
		if r.RetryAfter > 0 {
			return "TRYAGAIN"
		}
		return "ERR"
	}
}
