package console

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
)

// operator notes what it is asked for.
type operator struct {
	done   []string
	writes []repair.Write
	err    error
	plan   Recovery // of a new era
	begun  []lease.View
}

func (o *operator) config() *Operator {
	return &Operator{
		Drain:   func(context.Context) error { o.done = append(o.done, "drain"); return o.err },
		Undrain: func() error { o.done = append(o.done, "undrain"); return o.err },
		Survey: func(context.Context, flake.SID) (lease.View, []repair.Line, error) {
			return lease.View{
				Config: lease.Entry[lease.Space]{Rev: 3, Raw: "c", Value: lease.Space{Layout: flake.Scalable}},
				Era:    lease.Entry[lease.Era]{Rev: 4, Raw: "e", Value: lease.Era{Number: 1}}, SIDs: map[flake.SID]lease.SIDRecords{},
			}, nil, nil
		},
		Repair:   func(_ context.Context, w repair.Write) error { o.writes = append(o.writes, w); return o.err },
		Recovery: func(context.Context) (Recovery, error) { return o.plan, o.err },
		Recover: func(_ context.Context, shown lease.View) (repair.Era, error) {
			o.begun = append(o.begun, shown)
			return o.plan.Era, o.err
		},
		Etcd: "http://10.0.0.1:2379",
	}
}

var confirmKey = regexp.MustCompile(`name="confirm" value="([A-Z0-9]+)"`)

// plan sends a form and returns the key of the plan that is shown; "": none.
func planOf(t *testing.T, c *Console, form url.Values, want ...string) string {
	t.Helper()
	body := do(c, "POST", Path+"operate", form.Encode()).Body.String()
	for _, text := range want {
		if !strings.Contains(body, text) {
			t.Errorf("%v: no %s in\n%s", form, text, body)
		}
	}
	if m := confirmKey.FindStringSubmatch(body); m != nil {
		return m[1]
	}
	return ""
}

// TestOperate: nothing is written before it was shown and confirmed, and then that is
// written which was shown, once.
func TestOperate(t *testing.T) {
	cluster, o := two(), new(operator)
	c := fixture(&cluster, func(c *Config) { c.Operate, c.Log = o.config(), slog.New(slog.DiscardHandler) })
	key := planOf(t, c, url.Values{"action": {"quarantine"}, "sid": {"9"}, "reason": {hostile}},
		"config: unchanged since revision 3", "era: unchanged since revision 4", "window of the sid: is absent", "&#34;state&#34;", "allocator admin quarantine 9 --reason", "--etcd.endpoints http://10.0.0.1:2379")
	if key == "" || len(o.writes) != 0 {
		t.Fatalf("%d writes before it was confirmed", len(o.writes))
	}
	if w := do(c, "POST", Path+"operate", "confirm="+key); w.Code != 200 || len(o.writes) != 1 || !strings.Contains(w.Body.String(), "quarantine sid 9: done.") {
		t.Fatalf("HTTP %d, %d writes", w.Code, len(o.writes))
	}
	if w := o.writes[0]; w.SID != 9 || w.Window.State != lease.Quarantined || w.Window.Reason != hostile || w.Config.Rev != 3 {
		t.Errorf("%+v", w)
	}
	if w := do(c, "POST", Path+"operate", "confirm="+key); w.Code != 409 || len(o.writes) != 1 {
		t.Errorf("confirmed twice: HTTP %d, %d writes", w.Code, len(o.writes))
	}
	for _, form := range []url.Values{
		{"action": {"quarantine"}, "sid": {"32"}}, {"action": {"quarantine"}, "sid": {"x"}}, {"action": {"release-sid"}, "sid": {"9"}},
		{"action": {"release-sid"}, "sid": {"9"}, "above": {"tomorrow"}}, {"action": {"quarantine"}, "sid": {"9"}, "reason": {"a\nb"}}, {"action": {"anything"}, "sid": {"9"}}, {},
	} {
		if key := planOf(t, c, form, `role="alert"`); key != "" {
			t.Errorf("%v can be confirmed", form)
		}
	}
	for _, action := range []string{"drain", "undrain"} {
		do(c, "POST", Path+"operate", "confirm="+planOf(t, c, url.Values{"action": {action}}, "allocator admin "+action))
	}
	if !slices.Equal(o.done, []string{"drain", "undrain"}) {
		t.Errorf("%q", o.done)
	}
	o.err = errors.New("records have changed")
	if w := do(c, "POST", Path+"operate", "confirm="+planOf(t, c, url.Values{"action": {"quarantine"}, "sid": {"9"}})); w.Code != 409 || !strings.Contains(w.Body.String(), "records have changed") {
		t.Errorf("a write that failed: HTTP %d", w.Code)
	}
}

// TestRecoveryPlan: the page shows what a new era rests on, and begins it only if nothing
// is missing, over what was shown.
func TestRecoveryPlan(t *testing.T) {
	cluster, o := two(), new(operator)
	c := fixture(&cluster, func(c *Config) { c.Operate, c.Log = o.config(), slog.New(slog.DiscardHandler) })
	view := lease.View{Cluster: 7, Config: lease.Entry[lease.Space]{Rev: 3, Raw: "c"}, Era: lease.Entry[lease.Era]{Rev: 4, Raw: "e"}}
	whole := Recovery{
		View: view, Now: start, Era: repair.Era{Era: lease.Era{Number: 5, Floor: start + 61_500, Cluster: 7}, Highest: start + 900, HighestOf: "node " + hostile, Warnings: []string{hostile}},
		Nodes: []Asked{{Name: "node-1", Registered: true, Answered: true, Era: 4, Highest: start, Refusing: "HISTORY_REWOUND"},
			{Name: hostile, GRPC: "10.0.0.9:9000';reboot", Answered: true, Era: 4, Highest: start + 900}},
	}
	form := url.Values{"action": {"recover"}}
	for what, change := range map[string]func(*Recovery){
		"a node did not answer": func(r *Recovery) { r.Obstacles, r.Nodes[1].Answered = []string{hostile + " did not answer"}, false },
		"there is no such era":  func(r *Recovery) { r.Refused, r.Era.Era = errors.New("ceilings are far in the future"), lease.Era{} },
	} {
		o.plan = whole
		o.plan.Nodes = slices.Clone(whole.Nodes)
		change(&o.plan)
		if key := planOf(t, c, form, "This page does not do it", "allocator admin recover --etcd.endpoints", map[bool]string{true: "did not answer", false: "far in the future"}[o.plan.Refused == nil]); key != "" {
			t.Errorf("%s: it can be confirmed", what)
		}
	}
	o.plan = whole
	key := planOf(t, c, form, "begin era 5?", "config: unchanged since revision 3", "era: unchanged since revision 4", "&#34;number&#34;:5", "in 61.5s", "HISTORY_REWOUND",
		"allocator admin recover --etcd.endpoints http://10.0.0.1:2379 --addr &#39;10.0.0.9:9000&#39;\\&#39;&#39;;reboot&#39;", "&lt;script&gt;alert(1)")
	if key == "" || len(o.begun) != 0 {
		t.Fatalf("key %q, %d begun before it was confirmed", key, len(o.begun))
	}
	if w := do(c, "POST", Path+"operate", "confirm="+key); w.Code != 200 || len(o.begun) != 1 || o.begun[0].Era.Rev != 4 {
		t.Errorf("HTTP %d, begun over %+v", w.Code, o.begun)
	}
	if strings.Contains(do(c, "POST", Path+"operate", form.Encode()).Body.String(), "<script>alert") {
		t.Error("a name is HTML")
	}
	o.err = errors.New("no answer")
	if key := planOf(t, c, form, "no answer"); key != "" {
		t.Error("without etcd it can be confirmed")
	}
}

// TestPlansAreBounded: the oldest is forgotten, and none is kept for long.
func TestPlansAreBounded(t *testing.T) {
	var p plans
	for i := range maxPlans + 1 {
		p.add(&plan{Key: string(rune('a' + i))})
	}
	if p.take("a", 0) != nil || p.take("b", clock.Mono(planFor)) == nil || p.take("c", clock.Mono(planFor)+1) != nil || p.take("c", 0) != nil {
		t.Error("which plans are kept")
	}
}

// TestWhoMayOperate: nobody where it is off, and where it is on, callers with scope admin.
func TestWhoMayOperate(t *testing.T) {
	cluster := two()
	off := fixture(&cluster)
	if w := do(off, "POST", Path+"operate", "action=drain"); w.Code < 400 || strings.Contains(do(off, "GET", Path, "").Body.String(), "Operate") {
		t.Errorf("where it is off: HTTP %d", w.Code)
	}
	_, tokens, guard := guarded(t, &cluster)
	o := new(operator)
	on := fixture(&cluster, func(c *Config) { c.Operate, c.Guard, c.Log = o.config(), guard, slog.New(slog.DiscardHandler) })
	for scope, want := range map[string]int{"read": 403, "issue": 403, "admin": 200} {
		if w := do(on, "POST", Path+"operate", "action=drain", "Cookie", cookie+"="+tokens[scope]); w.Code != want {
			t.Errorf("scope %s: HTTP %d, want %d", scope, w.Code, want)
		}
	}
	nobody := fixture(&cluster, func(c *Config) {
		c.Operate, c.Guard, c.Log = o.config(), access.New(access.Config{OpenAdmin: access.OpenToNobody}), slog.New(slog.DiscardHandler)
	})
	if w := do(nobody, "POST", Path+"operate", "action=drain"); w.Code != 403 {
		t.Errorf("with auth.open-admin none: HTTP %d", w.Code)
	}
	if w := do(nobody, "GET", Path, ""); w.Code != 200 {
		t.Errorf("reading there: HTTP %d", w.Code)
	}
	if len(o.done) != 0 {
		t.Errorf("%q was done", o.done)
	}
}
