package console

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/operate"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/server/runbook"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/status/feed"
)

// Path is where the console is served.
const Path = "/console/"

// Config is what the console shows. Functions are safe for concurrent use.
type Config struct {
	Snapshot func(context.Context) status.Cluster // nil: there is no node, and nothing below but Format and Break
	Describe func(ctx context.Context, text, kind string) (status.Decoded, error)
	// Since returns since when nodes are in the states that they have in a cluster, by instance, in Unix ms.
	Since func(status.Cluster) map[string]int64
	// FalseSince returns since when a majority finds the clocks of nodes wrong, by instance, in Unix ms.
	FalseSince func() map[string]int64
	Node       *node.Node
	Feed       *feed.Feed

	Conditions func() []Condition // Conditions are those of readiness.
	Format     flake.Format
	Settings   []config.Setting // Secrets are in files, which settings name.
	API        string           // host:port of the HTTP API, for examples; "": none
	GRPC       string           // GRPC is the host:port of the gRPC API, for examples; "": none.

	Guard *access.Guard // who may see it; nil: everybody
	Break Breaker       // nil: nothing can be broken
	Log   *slog.Logger  // What operators did is logged here; required with Operate.

	Operate *operate.Operator // nil: nothing can be changed
}

// Condition is a condition of readiness.
type Condition struct {
	OK   bool   `json:"ok"`
	Text string `json:"text"`
}

//go:embed static templates
var files embed.FS

// Console serves the pages. Make one with New, and Add samples to it.
type Console struct {
	cfg   Config
	pages map[string]*template.Template
	past  past
	plans kept[operate.Plan]

	sessions kept[access.Caller]
	mux      *http.ServeMux
}

// page is an entry of the navigation.
type page struct {
	Path, Name string
	Here       bool // It is the one that is shown.
}

// New returns a console.
func New(cfg Config) *Console {
	c := &Console{
		cfg: cfg, pages: map[string]*template.Template{}, mux: http.NewServeMux(),
		plans:    kept[operate.Plan]{lasts: planFor, all: maxPlans, own: maxPlans},
		sessions: kept[access.Caller]{lasts: sessionFor, all: maxSessions, own: maxOwn},
	}
	layout := template.Must(template.New("layout.html").Funcs(functions).ParseFS(files, "templates/layout.html"))
	list, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		panic(err) // the pattern is wrong
	}
	for _, name := range list {
		page := template.Must(template.Must(layout.Clone()).ParseFS(files, name))
		c.pages[strings.TrimSuffix(path.Base(name), ".html")] = page
	}
	c.route(access.Read, "GET /console/{$}", c.shown("nodes"))
	c.mux.Handle("GET /console/nodes", http.RedirectHandler(Path, http.StatusFound))
	c.route(access.Read, "GET /console/pool", c.shown("pool"))
	c.route(access.Read, "GET /console/clocks", c.shown("clocks"))
	c.route(access.Read, "GET /console/node", func(w http.ResponseWriter, r *http.Request) {
		c.show(w, r, http.StatusOK, "node", cfg.Settings)
	})
	c.route(access.Read, "GET /console/ids", c.serveIDs)
	c.route(access.Read, "POST /console/ids", c.serveIDs)
	c.route(access.Read, "GET /console/events", c.showEvents)
	c.route(access.Read, "GET /console/feed", c.serveFeed)
	c.route(access.Read, "GET /console/charts", c.serveCharts)
	c.route(access.Read, "GET /console/timeline", c.showTimeline)
	if cfg.Snapshot != nil {
		c.route(access.Read, "GET /console/stretches", c.serveStretches)
	}
	if cfg.Break != nil {
		c.route(access.Read, "GET /console/break", c.serveBreak)
		c.route(access.Read, "GET /console/break/state", c.serveBroken)
		c.route(access.Admin, "POST /console/break", c.doBreak)
	}
	if cfg.Operate != nil {
		c.route(access.Admin, "GET /console/operate", c.showOperate)
		c.route(access.Admin, "POST /console/operate", c.operate)
	}
	c.mux.HandleFunc("GET /console/static/{name}", c.serveAsset)
	c.mux.HandleFunc("GET "+documents+"{page...}", c.serveDocument)
	c.mux.HandleFunc("GET /console/login", c.showLogin)
	c.mux.HandleFunc("POST /console/login", c.login)
	c.mux.HandleFunc("POST /console/logout", c.logout)
	c.mux.HandleFunc("/console/", func(w http.ResponseWriter, r *http.Request) {
		c.fail(w, r, http.StatusNotFound, "there is no such page")
	})
	return c
}

// route serves a pattern to callers with a scope.
func (c *Console) route(scope access.Scope, pattern string, h http.HandlerFunc) {
	c.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if c.admit(w, r, scope) {
			h(w, r)
		}
	})
}

// policy is what browsers may load for a page. Styles in attributes and scripts in a
// page have no effect, so neither has a name that contains them.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// ServeHTTP answers a request. The caller has checked Host.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if httpserver.CrossSite(r, r.URL.Path != Path+"feed") {
		http.Error(w, "the request was sent by a page of another site", http.StatusForbidden)
		return
	}
	c.mux.ServeHTTP(w, r)
}

// view is what every page gets.
type view struct {
	Page     string
	Pages    []page
	Snapshot Snapshot
	Problem  string // why there is no snapshot
	Login    bool   // the caller has shown a token
	Data     any    // Each page has a type of its own.
}

// names are the pages in the order of the navigation.
var names = []page{
	{Path: "", Name: "Nodes"}, {Path: "timeline", Name: "Timeline"}, {Path: "pool", Name: "Pool"},
	{Path: "clocks", Name: "Clocks"},
	{Path: "node", Name: "Node"}, {Path: "ids", Name: "IDs"}, {Path: "events", Name: "Events"},
	{Path: "operate", Name: "Operate"},
	{Path: "break", Name: "Break it"},
}

// followable reports whether a page changes while it is open.
func followable(name string) bool {
	return slices.ContainsFunc(names, func(p page) bool { return name == cmp.Or(p.Path, "nodes") })
}

// shown returns the handler of a page that needs no more than a snapshot.
func (c *Console) shown(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { c.show(w, r, http.StatusOK, name, nil) }
}

// show writes a page.
func (c *Console) show(w http.ResponseWriter, r *http.Request, status int, name string, data any) {
	v := view{Page: name, Login: c.cfg.Guard.NeedsToken(), Data: data}
	for _, p := range names {
		if p.Path == "break" && c.cfg.Break == nil || p.Path == "operate" && c.cfg.Operate == nil {
			continue
		}
		p.Here = p.Path == strings.TrimPrefix(r.URL.Path, Path)
		v.Pages = append(v.Pages, p)
	}
	if name != "login" && name != "error" && name != "docs" {
		httpserver.Pay(r, quota.CostScrape)
		if c.cfg.Snapshot == nil {
			v.Problem = noNode
		} else {
			v.Snapshot = c.complete(c.cfg.Snapshot(r.Context()))
		}
	}
	sendHTML(w, status, c.render(v))
}

// render returns a page.
func (c *Console) render(v view) []byte { return c.execute(v.Page, "layout.html", v) }

// execute returns what a template of a page makes.
func (c *Console) execute(page, name string, data any) []byte {
	var out bytes.Buffer
	if err := c.pages[page].ExecuteTemplate(&out, name, data); err != nil {
		panic(fmt.Sprintf("console: page %s: %v", page, err))
	}
	return out.Bytes()
}

func sendHTML(w http.ResponseWriter, status int, page []byte) {
	httpserver.Send(w, status, "text/html; charset=utf-8", "no-store", page)
}

// serveDocument shows a document. It is for everybody, as the sources are.
func (c *Console) serveDocument(w http.ResponseWriter, r *http.Request) {
	p, ok := runbook.Find(r.PathValue("page"))
	if !ok {
		c.fail(w, r, http.StatusNotFound, "there is no such document")
		return
	}
	c.show(w, r, http.StatusOK, "docs", p)
}

// fail answers a request that failed, as JSON or as a page.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, status int, why string) {
	if wantsJSON(r) {
		sendJSON(w, status, map[string]string{"error": why})
		return
	}
	c.show(w, r, status, "error", why)
}

func wantsJSON(r *http.Request) bool {
	return slices.Contains(r.Header["Accept"], "application/json")
}

func sendJSON(w http.ResponseWriter, status int, v any) {
	httpserver.SendJSON(w, status, "application/json", "no-store", v)
}

// noNode is what pages say that have no node to show.
const noNode = "no node answers"

// shownEvents is how many of the latest events a page has before it follows the stream.
const shownEvents = 500

func (c *Console) showEvents(w http.ResponseWriter, r *http.Request) {
	var events []feed.Event
	if c.cfg.Feed != nil {
		events, _ = c.cfg.Feed.Latest(shownEvents)
		slices.Reverse(events)
	}
	c.show(w, r, http.StatusOK, "events", events)
}

// serveFeed serves what changes in an open page, as httpserver.ServeStream says: "show" has an element that
// replaces the one with its ID, and where the page has events, "event" has a row. A program's token may be in
// the header, as for the HTTP API.
func (c *Console) serveFeed(w http.ResponseWriter, r *http.Request) {
	what := followed{r.URL.Query().Get("page"), r.URL.Query().Get("grid") != ""}
	if !followable(what.page) {
		c.fail(w, r, http.StatusBadRequest, "page is none that can be followed")
		return
	}
	if c.cfg.Feed == nil {
		c.fail(w, r, http.StatusServiceUnavailable, noNode)
		return
	}
	// A session may end, and a token be revoked, before the stream and while it runs.
	reader := func() (access.Caller, error) {
		caller, err := c.identify(r)
		if err == nil {
			err = c.cfg.Guard.May(caller, access.Read)
		}
		return caller, err
	}
	caller, err := reader()
	if err != nil {
		c.fail(w, r, http.StatusUnauthorized, err.Error())
		return
	}
	refusal := httpserver.ServeStream(w, r, httpserver.Stream{
		Feed: c.cfg.Feed,
		Node: c.cfg.Node,
		Show: (&follower{what: what}).show,
		Event: func(e feed.Event) string {
			if what.page != "events" {
				return ""
			}
			return string(c.execute("events", "event", e))
		},
		Caller:   caller,
		Operator: true,
		Allowed:  func() error { _, err := reader(); return err },
	})
	if refusal != nil {
		c.fail(w, r, server.WireOf(refusal.Reason).Status(), refusal.Error())
	}
}
