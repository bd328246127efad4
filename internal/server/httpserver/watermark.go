package httpserver

import (
	"net/http"
	"net/url"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/status/feed"
	"github.com/flakelease/allocator/internal/watermark"
)

// serveWatermark answers what the watermark is: at once, when it is above the ID in "after" or
// after the time in "wait", or as a stream.
func (h *handler) serveWatermark(w http.ResponseWriter, r *http.Request) {
	stream, exact := quality(r.Header.Get("Accept"), "text", "event-stream")
	after, wait, bad := h.parseWait(r.URL.RawQuery)
	if bad == nil && stream > 0 && exact {
		if r.URL.RawQuery == "" {
			h.streamWatermark(w, r)
			return
		}
		bad = malformed("a stream has neither after nor wait: leave them out")
	}
	if bad != nil {
		h.fail(w, r, server.HTTPWatermark, bad, h.service.Begin())
		return
	}
	control := http.NewResponseController(w)
	if wait > 0 {
		_ = control.SetWriteDeadline(time.Time{}) // That for reading ended with the request.
	}
	conn := connOf(r.Context())
	conn.Rest(1)
	a, err := h.service.Watermark(r.Context(), h.caller(r).Owner(), after, wait, conn.Valid)
	conn.Rest(-1)
	if wait > 0 {
		late := time.AfterFunc(writeTimeout, func() { _ = control.SetWriteDeadline(time.Unix(1, 0)) })
		defer late.Stop()
		defer func() { _ = control.Flush() }() // Else it would be written after that.
	}
	if err != nil {
		h.fail(w, r, server.HTTPWatermark, err, h.service.Begin()) // How long it waited says nothing.
		return
	}
	h.service.Done(server.HTTPWatermark, nil, h.service.Begin())
	h.name(w.Header())
	SendJSON(w, http.StatusOK, "application/json", "no-store", a)
}

// parseWait reads after=ID&wait=30s. What is not given is 0.
func (h *handler) parseWait(query string) (after flake.ID, wait time.Duration, bad *fault) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return 0, 0, malformed("the query is malformed: send after and wait")
	}
	for name, given := range values {
		switch {
		case name != "after" && name != "wait":
			return 0, 0, unknownField(name, "after", "wait")
		case len(given) > 1:
			return 0, 0, malformed("%s is given twice: send it once", name)
		case name == "after":
			id, refusal := h.service.ParseAfter(given[0])
			if refusal != nil {
				return 0, 0, &fault{refusal: refusal}
			}
			after = id
		default:
			if wait, err = time.ParseDuration(given[0]); err != nil {
				return 0, 0, malformed("wait is %.40q: give a time such as 30s", given[0])
			}
		}
	}
	return after, wait, nil
}

// streamWatermark answers with server-sent events of type "watermark", until the client
// leaves, reads too slowly or may not read any more, or the node cannot answer.
func (h *handler) streamWatermark(w http.ResponseWriter, r *http.Request) {
	guard, caller := h.service.Guard(), h.caller(r)
	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	var out *eventWriter
	err := h.service.WatchWatermark(r.Context(), caller.Owner(), tick.C, func(a *watermark.Shared, due bool) error {
		if out == nil {
			conn := connOf(r.Context())
			conn.Valid()
			conn.OpenStream(1)
			h.name(w.Header())
			out = beginStream(w, conn)
		} else if err := guard.May(caller, access.Read); due && err != nil {
			return err
		}
		message, err := a.Bytes(watermark.JSON, func(a watermark.Answer) ([]byte, error) { return feed.JSON(a), nil })
		if err != nil {
			return err
		}
		out.event("watermark", "", message)
		return out.flush()
	})
	if out == nil {
		h.fail(w, r, server.HTTPWatermark, err, h.service.Begin())
		return
	}
	connOf(r.Context()).CloseStream()
	h.service.Done(server.HTTPWatermark, nil, h.service.Begin()) // Why it ended is the caller's matter.
}
