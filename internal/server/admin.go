package server

import (
	"fmt"
	"net/http"
	"net/http/pprof"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/node"
)

// Admin says what the operator's port shows.
type Admin struct {
	// Alive returns nil while the process's loops turn, and else which does
	// not. It must not depend on etcd or on clocks: to kill a node for those
	// helps nobody.
	Alive   func() error
	Metrics http.Handler // of /metrics; nil: there is none
	Profile bool         // serve /debug/pprof/
}

// AdminHTTP returns the handler of the operator's port: /livez, /readyz,
// /metrics, and the profiler where asked for.
func (s *Server) AdminHTTP(a Admin) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		if a.Alive != nil {
			if err := a.Alive(); err != nil {
				plain(w, http.StatusServiceUnavailable, err.Error()+"\n")
				return
			}
		}
		plain(w, http.StatusOK, "ok\n")
	})
	mux.HandleFunc("GET /readyz", s.serveReady)
	if a.Metrics != nil {
		mux.Handle("GET /metrics", a.Metrics)
	}
	if a.Profile {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// serveReady answers 200 if a request for one ID would be served now, else 503
// with the reason. ?verbose shows each condition on a line.
func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	status, text := http.StatusOK, "ok\n"
	if refusal := s.node.Ready(); refusal != nil {
		status, text = http.StatusServiceUnavailable, refusal.Error()+"\n"
	}
	if _, verbose := r.URL.Query()["verbose"]; verbose {
		st := s.node.Stats()
		clocks := fmt.Sprintf("verdict %v, offset %v, limit %v",
			st.Verdict.State, st.Verdict.Offset.Duration(), st.Verdict.Limit.Duration())
		if s.cfg.Clocks != nil {
			clocks = clockLine(s.cfg.Clocks())
		}
		text = conditions(st, s.node.Config().Gen, clocks) + text
	}
	plain(w, status, text)
}

// conditions returns a line for each thing that readiness depends on; clocks says
// how the verdict came about.
func conditions(st node.Stats, g gen.Config, clocks string) string {
	line := func(ok bool, format string, args ...any) string {
		mark := "[+] "
		if !ok {
			mark = "[-] "
		}
		return mark + fmt.Sprintf(format, args...) + "\n"
	}
	text := line(!st.Draining, "serving: draining %t", st.Draining) +
		line(st.Verdict.State == clock.Open, "clock: %s", clocks)
	problem := ""
	if st.Lease.Problem != "" {
		problem = ", " + st.Lease.Problem
	}
	within := st.Lease.SIDRange.In(g.Layout)
	if !st.Holding {
		return text + line(false, "sid: none of %v, lease %v%s", within, st.Lease.Phase, problem)
	}
	return text +
		line(true, "sid: %d of %v, lease %v%s", st.SID, within, st.Lease.Phase, problem) +
		line(st.Ceil > st.Now, "window: %v left", st.WindowLeft().Duration()) +
		line(st.Lead <= g.MaxLead, "lead: %v, limit %v", st.Lead.Duration(), g.MaxLead.Duration())
}

func plain(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // a probe that left learns it from that
}
