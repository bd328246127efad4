package httpserver

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/runbook"
)

// problemTypes precedes a reason in the URI of its problem type, which is relative to the node:
// there operators read about it, as of its version.
const problemTypes = runbook.Path + "reference/refusals.md#"

// problem is the body of every HTTP error (RFC 9457).
type problem struct {
	Type         string            `json:"type"`
	Title        string            `json:"title"`
	Status       int               `json:"status"`
	Detail       string            `json:"detail"`
	Reason       node.Reason       `json:"reason,omitempty"` // absent if the request had no route
	Metadata     map[string]string `json:"metadata,omitempty"`
	RetryAfterMs int64             `json:"retry_after_ms,omitempty"`
	Help         string            `json:"help,omitempty"`
}

// problemOf returns a refusal as an HTTP problem.
func problemOf(r *node.Refusal) problem {
	w := server.WireOf(r.Reason)
	return problem{
		Type:         problemTypes + r.Reason.String(),
		Title:        w.Title,
		Status:       w.Status(),
		Detail:       r.Message,
		Reason:       r.Reason,
		Metadata:     r.Metadata,
		RetryAfterMs: server.MillisUp(r.RetryAfter),
		Help:         w.Help,
	}
}

// write sends the problem. Retry-After has whole seconds, rounded up.
func (p problem) write(w http.ResponseWriter) {
	if p.RetryAfterMs > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt((p.RetryAfterMs+999)/1000, 10))
	}
	SendJSON(w, p.Status, "application/problem+json", "no-store", p)
}

// unserved writes a problem that no reason stands for.
func unserved(w http.ResponseWriter, status int, detail, help string) {
	problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail, Help: help}.write(w)
}

// refuse writes a problem, and logs that of a refusal if the request names itself.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, p problem) {
	if p.Reason != 0 {
		h.service.LogRefused(p.Reason, p.Detail, r.Method+" "+r.URL.Path, r.RemoteAddr, r.Header.Values)
	}
	p.write(w)
}

// fail counts a request that ended with an error, and writes its problem: that of a fault, which it counts as a refusal
// too, or of a refusal. Any other error means that the caller has left.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, on server.Surface, err error, began clock.Mono) {
	p := problem{
		Type: "about:blank", Title: "Request ended", Status: http.StatusServiceUnavailable,
		Detail: "the request ended before it was served: the client left or its deadline passed; nothing was issued",
	}
	if bad, ok := errors.AsType[*fault](err); ok {
		p, err = bad.problem(), h.service.Issuer().Refused(bad.refusal)
	} else if refusal, ok := errors.AsType[*node.Refusal](err); ok {
		p = problemOf(refusal)
	}
	h.service.Done(on, err, began)
	h.refuse(w, r, p)
}
