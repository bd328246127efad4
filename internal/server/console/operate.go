package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/status"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/quota"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/text"
)

// Operator does what the page Operate asks for.
type Operator struct {
	Drain   func(context.Context) error
	Undrain func() error
	Survey  func(context.Context, flake.SID) (lease.View, []repair.Line, error)
	Repair  func(context.Context, repair.Write) error
	// Recovery returns the era that the node would begin; Recover begins one, over what
	// was shown.
	Recovery func(context.Context) (Recovery, error)
	Recover  func(ctx context.Context, shown lease.View) (repair.Era, error)
	Slack    repair.Slack
	Etcd     string // endpoints, for command lines
}

// Recovery is the era that a node would begin, and what it rests on.
type Recovery struct {
	View      lease.View
	Era       repair.Era
	Refused   error // why there is no such era; nil: there is
	Obstacles []string
	Nodes     []Asked // the node itself first
	Now       int64   // by its clock, Unix ms
}

// Asked is a node that was asked what it has seen.
type Asked struct {
	Name       string
	GRPC       string // "": none
	Registered bool   // in etcd
	Answered   bool   // else the rest is not known
	Era        int64
	Highest    int64  // ceiling ever confirmed to it, Unix ms; 0: none
	Refusing   string // "": it issues
}

// plan is what an action would do. It is carried out as it was shown, or not at all.
type plan struct {
	Key      string // of the form that confirms it
	Title    string
	Compares []string
	Writes   []string
	Warnings []string
	Missing  []string // what keeps the page from it; none: nothing does
	Asked    []Asked
	CLI      string
	Do       string // on the button

	at  clock.Mono
	run func(context.Context) error
}

const (
	maxPlans = 16
	planFor  = 5 * time.Minute
)

// plans are those that were shown and not confirmed, of all operators.
type plans struct {
	mu   sync.Mutex // guards list
	list []*plan    // in the order in which they were shown
}

func (p *plans) add(one *plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.list) == maxPlans {
		p.list = p.list[1:]
	}
	p.list = append(p.list, one)
}

// take returns a plan that was shown within planFor, once; nil: there is none.
func (p *plans) take(key string, now clock.Mono) *plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, one := range p.list {
		if one.Key == key {
			p.list = append(p.list[:i:i], p.list[i+1:]...)
			if now.Sub(one.at) <= planFor {
				return one
			}
		}
	}
	return nil
}

// operateData is what the page shows.
type operateData struct {
	Plan    *plan
	Done    string
	Problem string
	Drained bool
	GRPC    string
	Etcd    string
}

func (c *Console) showOperated(w http.ResponseWriter, r *http.Request, code int, d operateData) {
	d.Drained, d.GRPC, d.Etcd = c.cfg.Node.Stats().Draining, cmp.Or(c.cfg.GRPC, "HOST:PORT"), c.cfg.Operate.Etcd
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
	p, err := c.planFor(r)
	if err != nil {
		c.showOperated(w, r, http.StatusConflict, operateData{Problem: err.Error()})
		return
	}
	if len(p.Missing) == 0 {
		p.Key, p.at = rand.Text(), c.cfg.Node.Clock().Now().Mono
		c.plans.add(p)
	}
	c.showOperated(w, r, http.StatusOK, operateData{Plan: p})
}

func (c *Console) confirm(w http.ResponseWriter, r *http.Request, key string) {
	p := c.plans.take(key, c.cfg.Node.Clock().Now().Mono)
	if p == nil {
		c.showOperated(w, r, http.StatusConflict, operateData{Problem: "this plan was carried out, is older than 5 min, or was shown by another node: begin again"})
		return
	}
	caller, _ := c.identify(r, tokenOf(r)) // it was admitted
	log := c.cfg.Log.With("action", p.Title, "caller", caller.Name(), "by", caller.Kind(), "from", r.RemoteAddr)
	if err := p.run(r.Context()); err != nil {
		why := err.Error()
		if s, ok := status.FromError(err); ok {
			why = s.Message()
		}
		log.Warn("action of an operator failed", "error", why)
		c.showOperated(w, r, http.StatusConflict, operateData{Problem: p.Title + ": " + why})
		return
	}
	log.Info("action of an operator")
	c.showOperated(w, r, http.StatusOK, operateData{Done: p.Title + ": done."})
}

// planFor returns the plan of the action in a form. It writes nothing.
func (c *Console) planFor(r *http.Request) (*plan, error) {
	o, form, name := c.cfg.Operate, r.PostForm, c.cfg.Node.Config().Name
	grpc := cmp.Or(c.cfg.GRPC, "HOST:PORT")
	switch form.Get("action") {
	case "drain":
		return &plan{Title: "drain " + name, Writes: []string{"the node refuses with DRAINING", "its sid is released in etcd"},
			CLI: "allocator admin drain --addr " + grpc, run: o.Drain}, nil
	case "recover":
		return c.planRecovery(r.Context())
	case "undrain":
		return &plan{Title: "undrain " + name, Writes: []string{"the node acquires a sid, and serves"},
			CLI: "allocator admin undrain --addr " + grpc, run: func(context.Context) error { return o.Undrain() }}, nil
	}
	n, err := strconv.ParseUint(form.Get("sid"), 10, 22)
	if err != nil {
		return nil, fmt.Errorf("%.20q is not a sid, which is a number such as 7", form.Get("sid"))
	}
	sid := flake.SID(n)
	v, ledger, err := o.Survey(r.Context(), sid)
	if err != nil {
		return nil, fmt.Errorf("etcd could not be read: %w", err)
	}
	by := repair.Author{Instance: lease.Instance(uuid.NewString()), Nonce: rand.Text(), Now: c.cfg.Node.Clock().Now().Wall}
	p := &plan{}
	var write repair.Write
	switch form.Get("action") {
	case "quarantine":
		reason, force := form.Get("reason"), form.Get("force") != ""
		if strings.ContainsFunc(reason, func(r rune) bool { return r < ' ' }) {
			return nil, errors.New("the reason has a line break or another control character")
		}
		if write, err = repair.Quarantine(v, len(ledger) > 0, sid, reason, force, by); err != nil {
			return nil, err
		}
		p.Title, p.CLI = fmt.Sprintf("quarantine sid %d", sid), fmt.Sprintf("allocator admin quarantine %d --reason %s --etcd.endpoints %s", sid, quoted(reason), o.Etcd)
		if force {
			p.CLI += " --force"
		}
	case "release-sid":
		var above clock.Millis
		if text := strings.TrimSpace(form.Get("above")); text != "" {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil || at.UnixMilli() <= 0 {
				return nil, fmt.Errorf("%.40q is not a time such as 2026-02-01T12:00:00Z", text)
			}
			above = clock.Millis(at.Add(time.Millisecond - 1).UnixMilli())
		}
		release, err := repair.ReleaseSID(v, ledger, sid, above, o.Slack, by)
		if err != nil {
			return nil, err
		}
		write, p.Warnings = release.Write, release.Warnings
		if release.Problem != "" {
			p.Warnings = append([]string{release.Problem}, p.Warnings...)
		}
		p.Title, p.CLI = fmt.Sprintf("release sid %d", sid), fmt.Sprintf("allocator admin release-sid %d --etcd.endpoints %s", sid, o.Etcd)
		if above != 0 {
			p.CLI += " --above " + repair.At(above)
		}
		p.Writes = append(p.Writes, "the ceiling comes from "+release.Bound)
	default:
		return nil, fmt.Errorf("there is no action %.20q", form.Get("action"))
	}
	p.Compares = []string{compared("config", v.Config), compared("era", v.Era), compared("window of the sid", write.Seen.Window), compared("holder of the sid", write.Seen.Holder)}
	if write.Gone != "" {
		p.Compares = append(p.Compares, "no process is registered with instance "+lease.Printable(string(write.Gone)))
	}
	p.Writes = append([]string{"window: " + lease.Encode(write.Window), "the holder is deleted"}, p.Writes...)
	if write.Ledger {
		p.Writes = append(p.Writes, fmt.Sprintf("a line of the ledger for term %d", write.Window.Term))
	}
	p.run = func(ctx context.Context) error { return o.Repair(ctx, write) }
	return p, nil
}

// planRecovery returns the plan of a new era. The page carries it out only if nothing is
// left that an operator would have to judge, except whether all nodes are in its table.
func (c *Console) planRecovery(ctx context.Context) (*plan, error) {
	o := c.cfg.Operate
	r, err := o.Recovery(ctx)
	if err != nil {
		return nil, err
	}
	p := &plan{Title: "begin a new era", Warnings: r.Era.Warnings, Missing: r.Obstacles, Asked: r.Nodes, CLI: "allocator admin recover --etcd.endpoints " + o.Etcd}
	var others []string // that the command does not find in the registry
	for _, n := range r.Nodes {
		if !n.Registered && n.GRPC != "" {
			others = append(others, n.GRPC)
		}
	}
	if len(others) > 0 {
		p.CLI += " --addr " + quoted(strings.Join(others, ","))
	}
	p.Compares = []string{compared("config", r.View.Config), compared("era", r.View.Era)}
	if r.Era.Highest > 0 {
		p.Writes = append(p.Writes, fmt.Sprintf("the floor is above the highest ceiling that etcd and the nodes show: %s, of %s", repair.At(r.Era.Highest), lease.Printable(r.Era.HighestOf)))
	}
	if r.Refused != nil {
		p.Missing = append([]string{r.Refused.Error()}, p.Missing...)
		return p, nil
	}
	e := r.Era.Era
	p.Title, p.Do = fmt.Sprintf("begin era %d", e.Number), "No other node runs: begin the era"
	p.Writes = append(p.Writes, "era: "+lease.Encode(e), fmt.Sprintf("nodes give up what they hold, and nothing is issued before the floor, %s, in %s; it is computed again when you confirm",
		repair.At(e.Floor), text.Seconds(int64(e.Floor)-r.Now)))
	p.run = func(ctx context.Context) error { _, err := o.Recover(ctx, r.View); return err }
	return p, nil
}

// compared says what a transaction compares of a key.
func compared[T any](name string, e lease.Entry[T]) string {
	if !e.Exists() {
		return name + ": is absent"
	}
	return fmt.Sprintf("%s: unchanged since revision %d", name, e.Rev)
}

// quoted returns a text as an argument of a shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
