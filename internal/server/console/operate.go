package console

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/operate"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/server/quota"
)

// plan is a plan that was shown, and the key of the form that confirms it; "": none does.
type plan struct {
	operate.Plan
	Key string
}

// Missing returns what keeps the page from the plan. Nobody accepts an obstacle here.
func (p plan) Missing() []string {
	if p.Refused != nil {
		return append([]string{p.Refused.Error()}, p.Obstacles...)
	}
	return p.Obstacles
}

// Do is the text of the button.
func (p plan) Do() string {
	if p.Action == operate.Recover {
		return "No other node runs: begin the era"
	}
	return strings.ToUpper(p.Title[:1]) + p.Title[1:]
}

// operateData is what the page shows.
type operateData struct {
	Plan     *plan
	Done     string
	Problem  string
	Drained  bool
	operator *operate.Operator
}

// Command returns the line for a terminal.
func (d operateData) Command(action string, args ...string) string {
	return d.operator.Command(operate.Action(action), args...)
}

func (c *Console) showOperated(w http.ResponseWriter, r *http.Request, code int, d operateData) {
	d.operator, d.Drained = c.cfg.Operate, c.cfg.Node.Stats().Draining
	c.show(w, r, code, "operate", d)
}

func (c *Console) showOperate(w http.ResponseWriter, r *http.Request) {
	c.showOperated(w, r, http.StatusOK, operateData{})
}

// operate shows the plan of an action, or carries out one that is confirmed.
func (c *Console) operate(w http.ResponseWriter, r *http.Request) {
	httpserver.Pay(r, quota.CostScrape)
	r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
	if err := r.ParseForm(); err != nil {
		c.fail(w, r, http.StatusBadRequest, "the form could not be read")
		return
	}
	if key := r.PostForm.Get("confirm"); key != "" {
		c.confirm(w, r, key)
		return
	}
	made, err := c.planFor(r)
	if err != nil {
		c.showOperated(w, r, http.StatusConflict, operateData{Problem: err.Error()})
		return
	}
	p := &plan{Plan: made}
	if len(p.Missing()) == 0 {
		p.Key = c.plans.add(made, "", c.cfg.Node.Clock().Now().Mono)
	}
	c.showOperated(w, r, http.StatusOK, operateData{Plan: p})
}

func (c *Console) confirm(w http.ResponseWriter, r *http.Request, key string) {
	p, shown := c.plans.get(key, c.cfg.Node.Clock().Now().Mono)
	if !shown || !c.plans.end(key) {
		c.showOperated(w, r, http.StatusConflict, operateData{
			Problem: "this plan was carried out, is older than 5 min, or was shown by another node: begin again",
		})
		return
	}
	caller, _ := c.identify(r) // It was admitted.
	log := c.cfg.Log.With("action", p.Title, "caller", caller.Name(), "by", caller.Kind(), "from", r.RemoteAddr).
		With(server.Named(r.Header.Values)...)
	if _, err := c.cfg.Operate.Do(r.Context(), p); err != nil {
		log.Warn(lease.Acted+" failed", "error", err)
		c.showOperated(w, r, http.StatusConflict, operateData{Problem: p.Title + ": " + err.Error()})
		return
	}
	log.Info(lease.Acted)
	c.showOperated(w, r, http.StatusOK, operateData{Done: p.Title + ": done."})
}

// planFor returns the plan of the action in a form. It writes nothing.
func (c *Console) planFor(r *http.Request) (operate.Plan, error) {
	o, form := c.cfg.Operate, r.PostForm
	switch action := operate.Action(form.Get("action")); action {
	case operate.Drain:
		return o.Drain(), nil
	case operate.Undrain:
		return o.Undrain(), nil
	case operate.Recover:
		return o.Recover(r.Context(), 0)
	case operate.Quarantine, operate.ReleaseSID:
		sid, err := operate.ParseSID(form.Get("sid"))
		if err != nil {
			return operate.Plan{}, err
		}
		if action == operate.Quarantine {
			return o.Quarantine(r.Context(), sid, form.Get("reason"), form.Get("force") != "")
		}
		var above clock.Millis
		if text := strings.TrimSpace(form.Get("above")); text != "" {
			if above, err = operate.ParseTime(text); err != nil {
				return operate.Plan{}, err
			}
		}
		return o.ReleaseSID(r.Context(), sid, above)
	default:
		return operate.Plan{}, fmt.Errorf("there is no action %.20q", action)
	}
}
