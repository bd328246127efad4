package httpserver

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/status/feed"
)

const (
	// heartbeatEvery is how often a stream of events sends something at least. It also
	// checks whether its caller may still read.
	heartbeatEvery = 2 * time.Second
	// slowAfter is how long a client may take to read what was sent: then the stream is
	// dropped, and the client goes on from the ID that it has.
	slowAfter = 5 * time.Second
	// streamBuffer bounds what the kernel holds for a client that does not read, in bytes.
	streamBuffer = 64 << 10
)

// Stream is how ServeStream serves one request.
type Stream struct {
	Feed *feed.Feed
	Node server.Issuer
	// Show, if set, sends what SetSnapshot was given, besides events.
	Show func(snapshot any, send func(kind, text string))
	// Event, if set, returns what is sent of an event in place of its JSON; "": nothing.
	Event    func(feed.Event) string
	Caller   access.Caller
	Operator bool         // on the admin port
	Allowed  func() error // why the caller may not read any more; asked with each heartbeat
}

// ServeStream answers a request with server-sent events until the client leaves, reads too
// slowly, or may not read any more, or the process stops. It returns the refusal of a
// stream that was not begun, which is not answered yet.
//
// The stream begins after the event whose ID is in the header Last-Event-ID or in the
// query as "after"; without one, with those that are kept, or with "new=1" with the next.
// Its events are:
//
//	event      a feed.Event; the id of the message is its ID
//	missed     a feed.Missed, where events cannot be had any more
//	heartbeat  {"now_unix_ms": …}, after heartbeatEvery
func ServeStream(w http.ResponseWriter, r *http.Request, cfg Stream) *node.Refusal {
	query := r.URL.Query()
	from := feed.From{
		After:     r.Header.Get("Last-Event-ID"),
		New:       query.Get("new") == "1",
		Snapshots: cfg.Show != nil,
		Client:    cfg.Caller.Owner(),
		Operator:  cfg.Operator,
	}
	if from.After == "" {
		from.After = query.Get("after")
	}
	s, err := cfg.Feed.Open(from)
	if err != nil {
		return server.StreamRefusal(err)
	}
	defer s.Close()

	conn := connOf(r.Context())
	conn.Valid()
	conn.OpenStream(1)
	defer conn.CloseStream()
	out := beginStream(w, conn)

	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	_ = s.Follow(r.Context(), tick.C, func(b feed.Batch) error { // Why it ended is the caller's matter.
		if b.Empty() {
			if err := cfg.Allowed(); err != nil {
				return err
			}
			out.event("heartbeat", "", fmt.Appendf(nil, `{"now_unix_ms":%d}`, cfg.Node.Clock().Now().Wall))
		}
		out.batch(b, cfg)
		return out.flush()
	})
	return nil
}

// beginStream begins an answer of server-sent events. They are sent with the next flush.
func beginStream(w http.ResponseWriter, conn *quota.Conn) *eventWriter {
	boundBuffer(conn)
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Time{}) // flush sets its own, and that for reading ended with the request
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h["Cache-Control"] = noStore
	h.Set("X-Accel-Buffering", "no") // A proxy such as nginx would hold events back without it.
	out := &eventWriter{w: w, control: control}
	out.begin().WriteString("retry: 1000\n\n")
	return out
}

// boundBuffer limits what the kernel holds for a connection.
func boundBuffer(c *quota.Conn) {
	if c == nil {
		return
	}
	if s, ok := c.Conn.(interface{ SetWriteBuffer(int) error }); ok {
		_ = s.SetWriteBuffer(streamBuffer)
	}
}

// eventWriter writes server-sent events.
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	text    *bytes.Buffer // from texts while it holds something; nil: nothing
}

// texts has buffers of streams. Most of the time a stream has none.
var texts = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// begin returns the buffer of what is sent next.
func (o *eventWriter) begin() *bytes.Buffer {
	if o.text == nil {
		o.text = texts.Get().(*bytes.Buffer)
		o.text.Reset()
	}
	return o.text
}

func (o *eventWriter) batch(b feed.Batch, cfg Stream) {
	if b.Missed != nil {
		o.event("missed", "", feed.JSON(b.Missed))
	}
	for _, e := range b.Entries {
		if cfg.Event == nil {
			o.event("event", e.Event.ID, e.JSON)
		} else if text := cfg.Event(e.Event); text != "" {
			o.event("event", e.Event.ID, lines(text))
		}
	}
	if b.Snapshot != nil {
		cfg.Show(b.Snapshot, func(kind, text string) { o.event(kind, "", lines(text)) })
	}
}

// lines returns a text, in which a carriage return is one of HTML, as the data of an event.
func lines(text string) []byte {
	return []byte(strings.NewReplacer("\n", "\ndata: ", "\r", "&#13;").Replace(text))
}

// event adds an event. data is JSON, which has no line breaks, or of lines.
func (o *eventWriter) event(kind, id string, data []byte) {
	text := o.begin()
	if id != "" {
		text.WriteString("id: " + id + "\n")
	}
	text.WriteString("event: " + kind + "\ndata: ")
	text.Write(data)
	text.WriteString("\n\n")
}

// flush sends what was added. It returns an error if the client has left or is too slow.
func (o *eventWriter) flush() error {
	if o.text == nil {
		return nil
	}
	late := time.AfterFunc(slowAfter, func() { _ = o.control.SetWriteDeadline(time.Unix(1, 0)) })
	defer late.Stop()
	_, err := o.w.Write(o.text.Bytes())
	texts.Put(o.text)
	o.text = nil
	return errors.Join(err, o.control.Flush())
}

// callerKey is the key of the access.Caller in the context of a stream.
type callerKey struct{}

func (h *handler) serveEvents(w http.ResponseWriter, r *http.Request) {
	began := h.service.Begin()
	guard, caller := h.service.Guard(), h.caller(r)
	refusal := ServeStream(w, r, Stream{
		Feed:    h.cfg.Feed,
		Node:    h.service.Issuer(),
		Caller:  caller,
		Allowed: func() error { return guard.May(caller, access.Read) },
	})
	if refusal != nil {
		h.fail(w, r, server.HTTPEvents, &fault{refusal: refusal}, began)
		return
	}
	// How long a stream lasted says nothing, so no time is measured.
	h.service.Done(server.HTTPEvents, nil, h.service.Begin())
}

// caller returns who sent a request of a surface whose clients count.
func (h *handler) caller(r *http.Request) access.Caller {
	caller, ok := r.Context().Value(callerKey{}).(access.Caller)
	if !ok {
		caller, _ = h.service.Guard().Identify(credentialsOf(r)) // never fails without a guard
	}
	return caller
}
