package server

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// Limits of HTTP connections.
const (
	maxBody           = 64 << 10
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 15 * time.Second // the largest reply has 400 kB
	idleTimeout       = 60 * time.Second
	httpWindow        = 256 << 10 // of what clients of HTTP/2 have sent and nobody has read, a connection
	headerSlack       = 4096      // that net/http adds to its limit
)

// contract is the OpenAPI description of what the handlers below do. A test
// holds them to it.
//
//go:embed openapi.yaml
var contract []byte

// NewHTTPServer returns a server with the limits that all our HTTP ports have.
// What goes wrong with single connections is logged for debugging alone.
//
// An answer has to be taken within WriteTimeout; a handler whose answer takes
// longer sets a deadline of its own, with http.ResponseController.
func NewHTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaders - headerSlack,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: httpWindow, MaxReceiveBufferPerStream: maxBody},
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// route is one pattern of the public API.
type route struct {
	pattern string
	need    need
	handler http.HandlerFunc
}

// routes has every pattern that answers. What is open tells a caller how to ask,
// and nothing of the node.
func (s *Server) routes() []route {
	other := need{open: true, surface: HTTPOther}
	return []route{
		{http.MethodPost + " " + idsPath, need{scope: access.Issue, surface: HTTPIDs}, s.serveIDs},
		{"/v1/ids", other, s.notAllowed(http.MethodPost, "IDs are made by POST, since an answer must never come from a cache: curl -X POST '%s/v1/ids?count=1'")},
		{"GET /v1/ids/{id}", need{scope: access.Read, surface: HTTPDecode}, s.serveDecode},
		{"/v1/ids/{id}", other, s.notAllowed("GET, HEAD", "Decode an ID with GET: curl '%s/v1/ids/ID'")},
		{"GET /v1/cluster", need{scope: access.Read, surface: HTTPCluster}, s.serveCluster},
		{"/v1/cluster", other, s.notAllowed("GET, HEAD", "curl '%s/v1/cluster'")},
		{"GET /openapi.yaml", other, s.serveContract},
		{"/openapi.yaml", other, s.notAllowed("GET, HEAD", "curl '%s/openapi.yaml'")},
		{"/", other, s.serveNotFound},
	}
}

// idsPath is where IDs are issued.
const idsPath = "/v1/ids"

// endOnPanic ends the process for a panic of a handler, as the other doors do: a
// claim does not hold, and package net/http would log that and go on issuing.
func endOnPanic() {
	p := recover()
	if p == nil {
		return
	}
	stack := debug.Stack()
	go func() { panic(fmt.Sprintf("server: %v\n\n%s", p, stack)) }() // where nobody recovers
	select {}
}

// HTTP returns the handler of the public API.
func (s *Server) HTTP() http.Handler {
	mux := http.NewServeMux()
	var issue http.HandlerFunc
	for _, r := range s.routes() {
		h := s.guarded(r.need, r.handler)
		mux.HandleFunc(r.pattern, h)
		if r.pattern == http.MethodPost+" "+idsPath {
			issue = h
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer endOnPanic()
		w.Header()["X-Content-Type-Options"] = noSniff
		// Nearly all requests are these, and looking for their route would cost
		// half as much as answering them. What is written otherwise, such as an
		// escaped path, is for the mux to judge.
		if r.Method == http.MethodPost && r.URL.Path == idsPath && r.URL.RawPath == "" {
			issue(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// serveIDs issues IDs. All that can be wrong with the request is looked at
// before the node is asked, so that no ID is burnt for it.
func (s *Server) serveIDs(w http.ResponseWriter, r *http.Request) {
	began := s.began()
	o, bad := s.readOrder(w, r)
	if bad != nil {
		refusal := s.refused(bad.reason, bad.message, bad.metadata())
		s.done(HTTPIDs, outcomeOf(refusal), began)
		p := problemOf(refusal)
		if bad.status != 0 {
			p.Status, p.Title = bad.status, http.StatusText(bad.status)
		}
		p.write(w)
		return
	}
	b, err := s.issue(r.Context(), o.count, o.after)
	s.done(HTTPIDs, outcomeOf(err), began)
	if err != nil {
		s.fail(w, err)
		return
	}
	lines := wantsText(r.Header.Get("Accept"))
	rep := replies.Get().(*reply)
	defer rep.release()
	rep.write(b, o.as, s.format.Epoch, s.nodeJSON, lines)
	h := w.Header()
	h["Content-Type"], h["Cache-Control"] = jsonType, noStore
	if lines {
		h["Content-Type"] = textType
	}
	if len(rep.text) > measured {
		h.Set("Content-Length", strconv.Itoa(len(rep.text)))
	}
	_, _ = w.Write(rep.text) // a client that left cannot be told
}

// Values of headers, made once for all answers: nobody changes them.
var (
	noSniff  = []string{"nosniff"}
	noStore  = []string{"no-store"}
	jsonType = []string{"application/json"}
	textType = []string{"text/plain; charset=utf-8"}
)

// measured is up to how many bytes package net/http finds the length of an
// answer itself.
const measured = 2 << 10

// bodies are for reading requests: none grows much beyond maxBody.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// readOrder reads the request's body, within its limit, and its order.
func (s *Server) readOrder(w http.ResponseWriter, r *http.Request) (order, *fault) {
	var body []byte
	if r.ContentLength != 0 {
		buf := bodies.Get().(*bytes.Buffer)
		defer bodies.Put(buf) // an order keeps none of it
		buf.Reset()
		_, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, maxBody))
		body = buf.Bytes()
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return order{}, &fault{
				status: http.StatusRequestEntityTooLarge, reason: node.InvalidFormat,
				message: fmt.Sprintf("the body exceeds %d bytes", maxBody),
			}
		}
		if err != nil {
			return order{}, malformed("the body could not be read")
		}
	}
	return parseOrder(r.URL.RawQuery, r.Header.Get("Content-Type"), body,
		limits{count: s.maxHTTP, wide: s.wide, format: s.format})
}

// fail writes the problem of a refusal. Any other error says that the caller
// has left: what is written then reaches nobody.
func (s *Server) fail(w http.ResponseWriter, err error) {
	if r, ok := errors.AsType[*node.Refusal](err); ok {
		problemOf(r).write(w)
		return
	}
	problem{
		Type: "about:blank", Title: "Request ended", Status: http.StatusServiceUnavailable,
		Detail: "the request ended before it was served; nothing was issued",
	}.write(w)
}

func send(w http.ResponseWriter, contentType, cache string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", cache)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // a client that left cannot be told
}

func sendJSON(w http.ResponseWriter, cache string, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("server: %T has no JSON form: %v", v, err))
	}
	send(w, "application/json", cache, append(body, '\n'))
}

// holderView is a line of the ledger.
type holderView struct {
	Node     string  `json:"node"`
	Instance string  `json:"instance"`
	Term     int64   `json:"term"`
	Since    *string `json:"since"` // RFC 3339: when the tenure's first window begins
}

// ledgerView is what decoding adds to the parts of an ID.
type ledgerView struct {
	Holder  *holderView `json:"holder"` // null: the ledger does not say
	Problem string      `json:"holder_problem,omitempty"`
}

func viewHolder(t *lease.LedgerLine) *holderView {
	if t == nil {
		return nil
	}
	return &holderView{t.Node, string(t.Instance), t.Term, describe.Time(int64(t.Since))}
}

// MarshalJSON writes the parts, and the holder behind them.
func (d decoded) MarshalJSON() ([]byte, error) {
	ledger := ledgerView{viewHolder(d.holder), d.problem}
	if d.parts.Wide != nil {
		return json.Marshal(struct {
			*describe.WideParts
			ledgerView
		}{d.parts.Wide, ledger})
	}
	return json.Marshal(struct {
		*describe.FlakeParts
		ledgerView
	}{d.parts.Flake, ledger})
}

// decodeCache lets a client keep what was decoded: the bits do not change, and
// neither does a past holder until the ledger forgets it.
const decodeCache = "private, max-age=60"

func (s *Server) serveDecode(w http.ResponseWriter, r *http.Request) {
	began := s.began()
	d, err := s.describe(r.Context(), r.PathValue("id"), r.URL.Query().Get("kind"))
	s.done(HTTPDecode, outcomeOf(err), began)
	if err != nil {
		s.fail(w, err)
		return
	}
	cache := decodeCache
	if d.problem != "" {
		cache = "no-store"
	}
	sendJSON(w, cache, d)
}

func (s *Server) serveCluster(w http.ResponseWriter, r *http.Request) {
	began := s.began()
	c, err := s.cluster(r.Context())
	s.done(HTTPCluster, outcomeOf(err), began)
	if err != nil {
		s.fail(w, err)
		return
	}
	sendJSON(w, "no-store", c)
}

func (s *Server) serveContract(w http.ResponseWriter, _ *http.Request) {
	began := s.began()
	s.done(HTTPOther, outcomeOK, began)
	send(w, "application/yaml", "no-store", contract)
}

// notAllowed answers methods that a path does not have. hint has one %s, for
// the scheme and host that the client used.
func (s *Server) notAllowed(allow, hint string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.done(HTTPOther, outcomeNoRoute, s.began())
		w.Header().Set("Allow", allow)
		problem{
			Type: "about:blank", Title: http.StatusText(http.StatusMethodNotAllowed), Status: http.StatusMethodNotAllowed,
			Detail: fmt.Sprintf("%.20s is not a method of %.60s: use %s", r.Method, r.URL.Path, allow),
			Help:   fmt.Sprintf(hint, origin(r)),
		}.write(w)
	}
}

// origin returns the scheme and host that r was sent to, for a line to copy.
func origin(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

func (s *Server) serveNotFound(w http.ResponseWriter, r *http.Request) {
	s.done(HTTPOther, outcomeNoRoute, s.began())
	problem{
		Type: "about:blank", Title: http.StatusText(http.StatusNotFound), Status: http.StatusNotFound,
		Detail: fmt.Sprintf("there is nothing at %.60s", r.URL.Path),
		Help:   "POST /v1/ids, GET /v1/ids/{id}, GET /v1/cluster, GET /openapi.yaml",
	}.write(w)
}
