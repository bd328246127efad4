// Package adminserver is the operator's HTTP port: probes, metrics, the console and the
// profiler.
package adminserver

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/console"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/server/quota"
)

// Config is what the port shows. Ready and Alive are required, and of a node also Node and Clocks.
type Config struct {
	Node  *node.Node
	Ready func() *node.Refusal // Ready returns why a request for one ID would be refused now; nil: it would not.
	// Alive returns nil while the loops of the process run, else which one does not.
	// It must not depend on etcd or on clocks: a restart of the node would help with
	// neither.
	Alive    func() error
	Clocks   func() clock.Report // Clocks returns the measurements of this node's clock and its peers'.
	Metrics  http.Handler        // Metrics serves /metrics; nil: nothing does.
	Profiles bool                // Profiles serves /debug/pprof/: a program that embeds a node has its own.
	// Guard decides who may read profiles, for which the scope Admin is needed. Everything
	// else is open: probes and scrapers have no credentials.
	Guard *access.Guard
	// Console, if set, is served below /console/, and decides itself who may see it.
	Console http.Handler
}

// New returns the handler of the operator's port: /livez, /readyz and /metrics, and profiles and the
// console if they are asked for.
func New(cfg Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		if err := cfg.Alive(); err != nil {
			plain(w, http.StatusServiceUnavailable, err.Error()+"\n")
			return
		}
		plain(w, http.StatusOK, "ok\n")
	})
	mux.HandleFunc("GET /readyz", cfg.serveReady)
	if cfg.Metrics != nil {
		mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
			httpserver.Pay(r, quota.CostScrape)
			cfg.Metrics.ServeHTTP(w, r)
		})
	}
	if cfg.Profiles {
		profile := http.NewServeMux()
		profile.HandleFunc("/debug/pprof/", pprof.Index)
		profile.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		profile.HandleFunc("/debug/pprof/profile", pprof.Profile)
		profile.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		profile.HandleFunc("/debug/pprof/trace", pprof.Trace)
		mux.HandleFunc("/debug/pprof/", func(w http.ResponseWriter, r *http.Request) {
			if refusal := cfg.authorize(r); refusal != nil {
				plain(w, server.WireOf(refusal.Reason).Status(), refusal.Error()+"\n")
				return
			}
			profile.ServeHTTP(w, r)
		})
	}
	if cfg.Console != nil {
		mux.Handle(console.Path, cfg.Console)
		mux.Handle("GET /{$}", http.RedirectHandler(console.Path, http.StatusSeeOther))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		plain(w, http.StatusNotFound, fmt.Sprintf("no route for %.60q: this is the admin port, with /livez, /readyz, "+
			"/metrics and, of a node, /debug/pprof/ and /console/ if it is enabled; IDs are at listen.http\n",
			r.URL.Path))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		httpserver.Charge(r)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if httpserver.CrossSite(r, !strings.HasPrefix(r.URL.Path, "/debug/")) {
			plain(w, http.StatusForbidden, "the request was sent by a page of another site\n")
			return
		}
		mux.ServeHTTP(httpserver.Counted(w, r), r)
	})
}

// authorize returns the refusal of a request that needs the scope Admin, or nil.
func (c Config) authorize(r *http.Request) *node.Refusal {
	caller, err := server.Identify(c.Guard, server.CredentialsOf(r.TLS, r.RemoteAddr), r.Header["Authorization"])
	if err == nil {
		err = c.Guard.May(caller, access.Admin)
	}
	if err == nil {
		return nil
	}
	return c.Node.Refused(server.AccessRefusal(err, caller, access.Admin))
}

// serveReady answers 200 if a request for one ID would be served now, else 503 with
// the reason. With ?verbose it shows each condition on a line.
func (c Config) serveReady(w http.ResponseWriter, r *http.Request) {
	status, text := http.StatusOK, "ok\n"
	if refusal := c.Ready(); refusal != nil {
		status, text = http.StatusServiceUnavailable, refusal.Error()+"\n"
	}
	if _, verbose := r.URL.Query()["verbose"]; verbose && c.Node != nil {
		lines := ""
		for _, one := range c.Conditions() {
			mark := "[+] "
			if !one.OK {
				mark = "[-] "
			}
			lines += mark + one.Text + "\n"
		}
		text = lines + text
	}
	plain(w, status, text)
}

// Conditions returns the conditions of readiness as they are now.
func (c Config) Conditions() []console.Condition {
	st, g := c.Node.Stats(), c.Node.Config().Gen
	line := func(ok bool, format string, args ...any) console.Condition {
		return console.Condition{OK: ok, Text: fmt.Sprintf(format, args...)}
	}
	all := []console.Condition{
		line(!st.Draining, "draining: %t", st.Draining),
		line(st.Verdict.State == clock.Open, "clock: %s", clockLine(c.Clocks())),
	}
	problem := ""
	if st.Lease.Problem != "" {
		problem = ", " + st.Lease.Problem
	}
	within := st.Lease.SIDs
	if !st.Holding {
		return append(all, line(false, "sid: none held of %v, lease %v%s", within, st.Lease.Phase, problem))
	}
	return append(all,
		line(true, "sid: %d of %v, lease %v%s", st.SID, within, st.Lease.Phase, problem),
		line(st.Ceil > st.Now, "window: %v left", st.WindowLeft().Duration()),
		line(st.Lead <= g.MaxLead, "lead: %v, limit %v", st.Lead.Duration(), g.MaxLead.Duration()))
}

func plain(w http.ResponseWriter, status int, text string) {
	httpserver.Send(w, status, "text/plain; charset=utf-8", "no-store", []byte(text))
}

// clockLine describes the state of the clock.
func clockLine(r clock.Report) string {
	g := r.Gate
	text := "verdict " + g.Verdict.Phase.State().String() + " (" + g.Verdict.Phase.String() + ", " +
		g.Judgement.Finding.String() + ")"
	if g.Judgement.Known {
		text += ", the cluster's time minus this node's is " +
			clock.FormatOffset(g.Judgement.Offset, g.Judgement.Uncertainty)
	}
	if limit := g.Verdict.Limit.Duration(); limit > 0 {
		text += ", limit " + limit.String()
	}
	if r.Anchor.Pending {
		text += ", a step of the wall clock by " + r.Anchor.Held.Round(time.Millisecond).String() + " is held back"
	}
	return text
}
