// Package httpserver is the HTTP API: IDs as texts, decoding and the cluster, as
// api/openapi.yaml describes them. NewServer also has the limits of connections, for every
// HTTP listener of a node.
package httpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/api"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/runbook"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/status/feed"
)

// Limits of HTTP connections.
const (
	maxBody           = 4 << 10
	maxHeaders        = 8 << 10
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 15 * time.Second // the largest reply has 400 kB
	idleTimeout       = 60 * time.Second
	headerSlack       = 4096 // added by net/http to MaxHeaderBytes
)

// NewServer returns a server with the limits of every HTTP listener of a node. Errors
// of single connections are logged at level debug. It speaks HTTP/1 alone: HTTP/2 would
// let one connection hold a hundred bodies, and its frames are counted by nobody.
//
// A client has to read an answer within WriteTimeout. A handler that needs longer sets
// its own deadline with http.ResponseController.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{
		Protocols:         protocols,
		ConnContext:       withConn,
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaders - headerSlack,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// Config is what the handler needs. Service is required, and at a node Reader and Feed.
type Config struct {
	Service *server.Service
	Reader  *status.Reader
	Hosts   *Hosts
	Feed    *feed.Feed
}

// handler answers requests of the public API.
type handler struct {
	cfg      Config
	service  *server.Service
	describe func(ctx context.Context, text, kind string) (status.Decoded, error)
	limits   server.Limits
	nodeJSON []byte // the node's name as a JSON string
	space    atomic.Pointer[[]string]
}

// New returns the handler of the public API.
func New(cfg Config) http.Handler { return newHandler(cfg).mux() }

func newHandler(cfg Config) *handler {
	name, _ := json.Marshal(cfg.Service.Issuer().About().Name) // A text always has a JSON form.
	limits := cfg.Service.Limits()
	limits.JSON = true
	return &handler{
		cfg:      cfg,
		service:  cfg.Service,
		describe: status.Describer(cfg.Reader, cfg.Service),
		limits:   limits,
		nodeJSON: name,
	}
}

// route is one pattern of the public API.
type route struct {
	pattern string
	need    server.Need
	handler http.HandlerFunc
}

// routes has every pattern. The open ones describe the API and show nothing of the
// node.
func (h *handler) routes() []route {
	other := server.Need{Open: true, Surface: server.HTTPOther}
	return []route{
		{http.MethodPost + " " + idsPath, server.Need{Scope: access.Issue, Surface: server.HTTPIDs}, h.serveIDs},
		{"/v1/ids", other, h.notAllowed(http.MethodPost,
			"Request IDs with POST: the answer to a GET may come from a cache. curl -X POST '%s/v1/ids?count=1'")},
		{"GET /v1/ids/{id}", server.Need{Scope: access.Read, Surface: server.HTTPDecode}, h.serveDecode},
		{"/v1/ids/{id}", other, h.notAllowed("GET, HEAD", "Decode an ID with GET: curl '%s/v1/ids/ID'")},
		{"GET /v1/cluster", server.Need{Scope: access.Read, Surface: server.HTTPCluster}, h.serveCluster},
		{"/v1/cluster", other, h.notAllowed("GET, HEAD", "curl '%s/v1/cluster'")},
		{"GET /v1/watermark", server.Need{Scope: access.Read, Surface: server.HTTPWatermark}, h.serveWatermark},
		{"/v1/watermark", other, h.notAllowed("GET, HEAD", "curl '%s/v1/watermark'")},
		{"GET /v1/events", server.Need{Scope: access.Read, Surface: server.HTTPEvents}, h.serveEvents},
		{"/v1/events", other, h.notAllowed("GET, HEAD", "curl -N '%s/v1/events'")},
		{http.MethodPost + " " + workersPath, server.Need{Scope: access.Worker, Surface: server.HTTPWorker},
			h.serveAcquire},
		{workersPath, other, h.notAllowed(http.MethodPost,
			`curl -X POST -H 'Content-Type: application/json' -d '{"name":"NAME"}' '%s/v1/workers'`)},
		{http.MethodPost + " " + workersPath + "/{worker}",
			server.Need{Scope: access.Worker, Surface: server.HTTPWorker}, h.serveExtend},
		{http.MethodDelete + " " + workersPath + "/{worker}",
			server.Need{Scope: access.Worker, Surface: server.HTTPWorker}, h.serveRelease},
		{workersPath + "/{worker}", other,
			h.notAllowed("POST, DELETE",
				"Extend a worker with POST '%s/v1/workers/ID:extend', and release it with DELETE of its path "+
					"without :extend")},
		{"GET /openapi.yaml", other, h.open(func(w http.ResponseWriter, _ *http.Request) {
			Send(w, http.StatusOK, "application/yaml", "no-store", api.OpenAPI)
		})},
		{"/openapi.yaml", other, h.notAllowed("GET, HEAD", "curl '%s/openapi.yaml'")},
		{"GET " + runbook.Path + "{page...}", other, h.open(func(w http.ResponseWriter, r *http.Request) {
			runbook.Serve(w, r.PathValue("page")) // Problem types name these documents.
		})},
		{"/", other, h.serveNotFound},
	}
}

// idsPath is where IDs are issued.
const idsPath = "/v1/ids"

// endOnPanic ends the process for a panic of a handler, as the other listeners do: a
// panic means that a claim does not hold. Package net/http would log it and go on
// issuing.
func endOnPanic() {
	p := recover()
	if p == nil {
		return
	}
	stack := debug.Stack()
	go func() { panic(fmt.Sprintf("httpserver: %v\n\n%s", p, stack)) }() // in a goroutine where nothing recovers
	select {}
}

func (h *handler) mux() http.Handler {
	mux := http.NewServeMux()
	var issue http.HandlerFunc
	for _, r := range h.routes() {
		f := h.guarded(r.need, h.here(r.need.Surface, r.handler))
		mux.HandleFunc(r.pattern, f)
		if r.pattern == http.MethodPost+" "+idsPath {
			issue = f
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer endOnPanic()
		w.Header()["X-Content-Type-Options"] = noSniff
		Charge(r)
		if bad := h.browser(r); bad != nil {
			h.fail(w, r, server.HTTPOther, bad, h.service.Begin())
			return
		}
		// Nearly all requests are of this form, and the mux would cost half as much as
		// the answer. All other forms, such as an escaped path, go through the mux.
		if r.Method == http.MethodPost && r.URL.Path == idsPath && r.URL.RawPath == "" {
			r.Pattern = http.MethodPost + " " + idsPath // as the mux does
			issue(w, r)
			return
		}
		mux.ServeHTTP(Counted(w, r), r)
	})
}

// here returns what serves a route: its handler, or at an agent what says which nodes do.
func (h *handler) here(on server.Surface, next http.HandlerFunc) http.HandlerFunc {
	if h.service.Elsewhere("") == nil || on == server.HTTPIDs || on == server.HTTPDecode || on == server.HTTPOther {
		return next
	}
	return func(w http.ResponseWriter, r *http.Request) {
		h.service.NotFound(on, h.service.Begin())
		unserved(w, http.StatusNotImplemented,
			h.service.Elsewhere(fmt.Sprintf("%.10s %.60s", r.Method, r.URL.Path)).Error(),
			"Send the request to the HTTP API of a node.")
	}
}

// serveIDs issues IDs. The node is called after every check of the request, so that
// no ID is lost for a wrong one.
func (h *handler) serveIDs(w http.ResponseWriter, r *http.Request) {
	began := h.service.Begin()
	o, bad := h.readOrder(w, r)
	if bad != nil {
		h.fail(w, r, server.HTTPIDs, bad, began)
		return
	}
	b, err := h.service.Issue(r.Context(), o.Count, o.After)
	conn := connOf(r.Context())
	if server.Valid(err) {
		conn.Valid()
	}
	if err != nil {
		h.fail(w, r, server.HTTPIDs, err, began)
		return
	}
	h.service.Done(server.HTTPIDs, nil, began)
	lines := wantsText(r.Header.Get("Accept"))
	rep := replies.Get().(*reply)
	defer rep.release()
	rep.write(b, o.As, h.limits.Format, h.nodeJSON, lines)
	header := w.Header()
	h.name(header)
	header["Content-Type"], header["Cache-Control"] = jsonType, noStore
	if lines {
		header["Content-Type"] = textType
	}
	if len(rep.text) > autoLength {
		header.Set("Content-Length", strconv.Itoa(len(rep.text)))
		held := int64(cap(rep.text) + cap(rep.random))
		conn.Hold(held) // until the client has read it
		defer conn.Hold(-held)
	}
	_, _ = w.Write(rep.text) // an error means that the client has left
}

// spaceHeader has the space of an answer: nodes of two spaces may give the same ID.
const spaceHeader = "Allocator-Space"

// name writes spaceHeader, unless the space is not known. A node serves one space in its life, so that only the first
// answer allocates.
func (h *handler) name(header http.Header) {
	value := h.space.Load()
	if value == nil {
		id := h.service.Issuer().Space()
		if id == 0 {
			return
		}
		value = &[]string{fmt.Sprintf("%016x", id)}
		h.space.Store(value)
	}
	header[spaceHeader] = *value
}

// Values of headers, shared by all answers and never changed.
var (
	noSniff  = []string{"nosniff"}
	noStore  = []string{"no-store"}
	jsonType = []string{"application/json"}
	textType = []string{"text/plain; charset=utf-8"}
)

// autoLength is the largest answer, in bytes, for which package net/http sets
// Content-Length itself.
const autoLength = 2 << 10

// bodies has buffers for bodies of requests. None grows much beyond maxBody.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// readOrder reads the body of a request, within its limit, and returns its order.
func (h *handler) readOrder(w http.ResponseWriter, r *http.Request) (server.Order, *fault) {
	var body []byte
	if r.ContentLength != 0 {
		buf := bodies.Get().(*bytes.Buffer)
		defer bodies.Put(buf) // an order keeps no reference to it
		buf.Reset()
		_, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, maxBody))
		body = buf.Bytes()
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			bad := malformed("the body exceeds %d bytes: send count, as and after only", maxBody)
			bad.status = http.StatusRequestEntityTooLarge
			return server.Order{}, bad
		}
		if err != nil {
			return server.Order{}, malformed("the body could not be read: send it again")
		}
	}
	return parseOrder(r.URL.RawQuery, r.Header.Get("Content-Type"), body, h.limits)
}

// Send answers with a body.
func Send(w http.ResponseWriter, status int, contentType, cache string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", cache)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // an error means that the client has left
}

// SendJSON answers with v, which has a JSON form, on a line.
func SendJSON(w http.ResponseWriter, status int, contentType, cache string, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("httpserver: %T has no JSON form: %v", v, err))
	}
	Send(w, status, contentType, cache, append(body, '\n'))
}

// decodeCache allows clients to cache a decoded ID: its parts never change, and its
// holder does not until the ledger drops the entry.
const decodeCache = "private, max-age=60"

func (h *handler) serveDecode(w http.ResponseWriter, r *http.Request) {
	began := h.service.Begin()
	d, err := h.describe(r.Context(), r.PathValue("id"), r.URL.Query().Get("kind"))
	if err != nil {
		h.fail(w, r, server.HTTPDecode, err, began)
		return
	}
	h.service.Done(server.HTTPDecode, nil, began)
	connOf(r.Context()).Valid()
	cache := decodeCache
	if d.Problem != "" {
		cache = "no-store"
	}
	SendJSON(w, http.StatusOK, "application/json", cache, d)
}

func (h *handler) serveCluster(w http.ResponseWriter, r *http.Request) {
	began := h.service.Begin()
	c, err := h.cfg.Reader.Cluster(r.Context())
	if err != nil {
		h.fail(w, r, server.HTTPCluster, err, began)
		return
	}
	h.service.Done(server.HTTPCluster, nil, began)
	connOf(r.Context()).Valid()
	SendJSON(w, http.StatusOK, "application/json", "no-store", c)
}

// open counts requests that are always answered.
func (h *handler) open(answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		h.service.Done(server.HTTPOther, nil, h.service.Begin())
		answer(w, r)
	}
}

// notAllowed answers methods that a path does not have. hint has one %s, for the
// scheme and host that the client used.
func (h *handler) notAllowed(allow, hint string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		h.service.NotFound(server.HTTPOther, h.service.Begin())
		w.Header().Set("Allow", allow)
		scheme := "http://"
		if r.TLS != nil {
			scheme = "https://"
		}
		unserved(w, http.StatusMethodNotAllowed,
			fmt.Sprintf("method %.20s is not allowed for %.60s: use %s", r.Method, r.URL.Path, allow),
			fmt.Sprintf(hint, scheme+r.Host))
	}
}

func (h *handler) serveNotFound(w http.ResponseWriter, r *http.Request) {
	h.service.NotFound(server.HTTPOther, h.service.Begin())
	unserved(w, http.StatusNotFound, fmt.Sprintf("no route for %.60s", r.URL.Path),
		"Use POST /v1/ids, GET /v1/ids/{id}, GET /v1/cluster, GET /v1/watermark, GET /v1/events, "+
			"POST /v1/workers, or GET /openapi.yaml. Probes, metrics and pages for operators are on the admin port, "+
			"which listen.admin sets; its default is 7947.")
}
