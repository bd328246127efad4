package console

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/operate"
)

// operator is a store, nodes and a lease that note what they are asked for.
type operator struct {
	view    lease.View
	answers operate.Answers
	err     error // of all writes to the store
	done    []string
	writes  []repair.Write
	begun   []lease.Era
}

func (o *operator) Load(context.Context) (lease.View, error) { return o.view, nil }

func (o *operator) Survey(context.Context, flake.SID) (lease.View, []repair.Line, error) {
	return o.view, nil, nil
}

func (o *operator) Repair(_ context.Context, w repair.Write) error {
	o.writes = append(o.writes, w)
	return o.err
}

func (o *operator) AcceptTime(context.Context, lease.View, lease.AcceptedTime, ...lease.Act) error {
	return errors.New("the page has no such action")
}

func (o *operator) BeginEra(_ context.Context, _ lease.View, e lease.Era, _ ...lease.Act) error {
	o.begun = append(o.begun, e)
	return o.err
}

// newOperator returns the operator of a space of one era, which began on this etcd.
func newOperator() *operator {
	return &operator{view: lease.View{
		Cluster: 7,
		Config:  lease.Entry[lease.Space]{Rev: 3, Raw: "c", Value: lease.Space{Layout: flake.Scalable}},
		Era:     lease.Entry[lease.Era]{Rev: 4, Raw: "e", Value: lease.Era{Number: 4, Cluster: 7}},
		SIDs:    map[flake.SID]lease.SIDRecords{},
	}}
}

// serve has a console operate by o.
func (o *operator) serve(c *Config) {
	c.Log = slog.New(slog.DiscardHandler)
	drainer := operate.NewDrainer(operate.DrainConfig{
		Node:    c.Node,
		Release: func(context.Context) error { o.done = append(o.done, "drain"); return o.err },
		Resume:  func() { o.done = append(o.done, "undrain") },
		Window: func(context.Context, flake.SID) (lease.Entry[lease.Window], error) {
			return lease.Entry[lease.Window]{}, nil
		},
	})
	c.Operate = operate.New(operate.Config{
		Store:   o,
		Ask:     func(context.Context, lease.View) operate.Answers { return o.answers },
		Author:  func() repair.Author { return repair.Author{Instance: "op", Nonce: "n", Now: start} },
		Bounds:  lease.Bounds{Window: time.Minute},
		Drainer: drainer,
		Etcd:    "http://10.0.0.1:2379",
		GRPC:    "10.0.0.5:9000",
	})
}

var confirmKey = regexp.MustCompile(`name="confirm" value="([A-Z0-9]+)"`)

// whole leaves the marks of a command's words out.
var whole = strings.NewReplacer("<span>", "", "</span>", "")

// planOf sends a form and returns the key of the plan that is shown; "": none.
func planOf(t *testing.T, c *Console, form url.Values, want ...string) string {
	t.Helper()
	body := whole.Replace(do(c, "POST", Path+"operate", form.Encode()).Body.String())
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
	cluster, o := two(), newOperator()
	c := fixture(&cluster, o.serve)
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
		{"action": {"quarantine"}, "sid": {"32"}}, {"action": {"quarantine"}, "sid": {"x"}}, {"action": {"anything"}, "sid": {"9"}}, {},
	} {
		if key := planOf(t, c, form, `role="alert"`); key != "" {
			t.Errorf("%v can be confirmed", form)
		}
	}
	for _, action := range []string{"drain", "undrain"} {
		do(c, "POST", Path+"operate", "confirm="+planOf(t, c, url.Values{"action": {action}}, "allocator admin "+action+" --addr 10.0.0.5:9000", action[1:]+" node-1</button>"))
	}
	if !slices.Equal(o.done, []string{"drain", "undrain"}) {
		t.Errorf("%q", o.done)
	}
	o.err = errors.New("records have changed")
	if w := do(c, "POST", Path+"operate", "confirm="+planOf(t, c, url.Values{"action": {"quarantine"}, "sid": {"9"}})); w.Code != 409 || !strings.Contains(w.Body.String(), "records have changed") {
		t.Errorf("a write that failed: HTTP %d", w.Code)
	}
}

// TestRecoveryPlan: the page shows what a new era rests on, and begins it only if nothing is missing. internal/operate has
// all obstacles.
func TestRecoveryPlan(t *testing.T) {
	cluster, o := two(), newOperator()
	c := fixture(&cluster, o.serve)
	whole := operate.Answers{Confirmed: true, Nodes: []operate.Node{
		{Name: "node-1", Registered: true, Answered: true, Era: 4, Highest: start, Refusing: node.HistoryRewound},
		{Name: hostile, GRPC: "10.0.0.9:9000';reboot", Answered: true, Era: 4, Highest: start + 900},
	}}
	form := url.Values{"action": {"recover"}}
	o.answers = operate.Answers{Nodes: whole.Nodes} // The clock is not confirmed.
	if key := planOf(t, c, form, "This page does not do it", "allocator admin recover --addr", "no majority confirms"); key != "" {
		t.Error("an era with an obstacle can be confirmed")
	}
	o.answers = whole
	shown := []string{
		"begin era 5?", "config: unchanged since revision 3", "era: unchanged since revision 4", "&#34;number&#34;:5", "in 1m0.9s", "HISTORY_REWOUND",
		"--addr &#39;10.0.0.9:9000&#39;\\&#39;&#39;;reboot&#39; --etcd.endpoints http://10.0.0.1:2379", "&lt;script&gt;alert(1)",
	}
	key := planOf(t, c, form, shown...)
	if key == "" || len(o.begun) != 0 {
		t.Fatalf("key %q, %d begun before it was confirmed", key, len(o.begun))
	}
	if w := do(c, "POST", Path+"operate", "confirm="+key); w.Code != 200 || len(o.begun) != 1 || o.begun[0].Number != 5 {
		t.Errorf("HTTP %d, begun %+v", w.Code, o.begun)
	}
	if strings.Contains(do(c, "POST", Path+"operate", form.Encode()).Body.String(), "<script>alert") {
		t.Error("a name is HTML")
	}
}

// TestPlansAreBounded: the oldest is forgotten, and none is kept for long.
func TestPlansAreBounded(t *testing.T) {
	cluster := two()
	p := &fixture(&cluster).plans
	var keys []string
	for range maxPlans + 1 {
		keys = append(keys, p.add(operate.Plan{}, "", 0))
	}
	has := func(key string, at time.Duration) bool { _, ok := p.get(key, clock.Mono(at)); return ok }
	if has(keys[0], 0) || !has(keys[1], planFor-1) || !p.end(keys[1]) || p.end(keys[1]) || has(keys[1], 0) || has(keys[2], planFor) {
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
	o := newOperator()
	on := fixture(&cluster, o.serve, func(c *Config) { c.Guard = guard })
	for scope, want := range map[string]int{"read": 403, "issue": 403, "admin": 200} {
		if w := do(on, "POST", Path+"operate", "action=drain", "Authorization", "Bearer "+tokens[scope]); w.Code != want {
			t.Errorf("scope %s: HTTP %d, want %d", scope, w.Code, want)
		}
	}
	nobody := fixture(&cluster, o.serve, func(c *Config) {
		c.Guard = access.New(access.Config{OpenAdmin: access.OpenToNobody})
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

// TestForms: what a form says is in the plan.
func TestForms(t *testing.T) {
	cluster, o := two(), newOperator()
	var log bytes.Buffer
	c := fixture(&cluster, func(c *Config) {
		o.serve(c)
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	if w := do(c, "GET", Path+"operate", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `value="quarantine"`) {
		t.Errorf("the page: HTTP %d, %s", w.Code, w.Body)
	}
	if w := do(c, "POST", Path+"operate", "action=drain&reason="+strings.Repeat("x", 4<<10)); w.Code != 400 ||
		!strings.Contains(w.Body.String(), "the form could not be read") {
		t.Errorf("a form of more than 4 KiB: HTTP %d", w.Code)
	}
	window := lease.Window{
		Era: 4, Term: 1, Instance: "i", Node: "n", Nonce: "x", Base: start, Ceil: start + 1000, State: lease.Active, Wall: start,
	}
	o.view.SIDs[9] = lease.SIDRecords{
		Window: lease.NewEntry[lease.Window](5, 0, lease.Encode(window)),
		Holder: lease.NewEntry[lease.Holder](5, 1, lease.Encode(lease.Holder{Instance: "i", Node: "n"})),
	}
	o.view.SIDs[8] = lease.SIDRecords{Window: lease.NewEntry[lease.Window](5, 0, "damaged")}
	const above = "2030-01-02T03:04:05.000Z"
	const etcd = " --etcd.endpoints http://10.0.0.1:2379"
	for _, tc := range []struct {
		form    url.Values
		command string // of the plan that can be confirmed; "": none
		says    string
	}{
		{url.Values{"action": {"quarantine"}, "sid": {"9"}}, "", "or use --force"},
		{url.Values{"action": {"quarantine"}, "sid": {"9"}, "force": {"1"}}, "quarantine 9" + etcd + " --force", "which loses it"},
		{url.Values{"action": {"release-sid"}, "sid": {"8"}}, "release-sid 8" + etcd, ""},
		{url.Values{"action": {"release-sid"}, "sid": {"8"}, "above": {"  "}}, "release-sid 8" + etcd, ""},
		{url.Values{"action": {"release-sid"}, "sid": {"8"}, "above": {" " + above + " "}}, "release-sid 8 --above " + above + etcd, ""},
		{url.Values{"action": {"release-sid"}, "sid": {"8"}, "above": {"tomorrow"}}, "", "is not a time"},
	} {
		body, command := whole.Replace(do(c, "POST", Path+"operate", tc.form.Encode()).Body.String()), ""
		if m := regexp.MustCompile(`(?s)<section class="card plan".*?<pre>allocator admin (.*?)</pre>`).FindStringSubmatch(body); m != nil {
			command = m[1]
		}
		if command != tc.command || confirmKey.MatchString(body) != (tc.command != "") || !strings.Contains(body, tc.says) {
			t.Errorf("%v: %q\n%s", tc.form, command, body)
		}
	}
	for _, fails := range []bool{false, true} {
		log.Reset()
		if o.err = nil; fails {
			o.err = errors.New("the connection broke")
		}
		do(c, "POST", Path+"operate", "confirm="+planOf(t, c, url.Values{"action": {"quarantine"}, "sid": {"7"}}, ">Quarantine sid 7</button>"))
		want := `level=INFO msg="action of an operator" action="quarantine sid 7"`
		if fails {
			want = `level=WARN msg="action of an operator failed" action="quarantine sid 7"`
		}
		if got := log.String(); strings.Count(got, want) != 1 || strings.Count(got, "\n") != 1 {
			t.Errorf("logged %s", got)
		}
	}
	o.view.Era.Value.Cluster = 8
	o.answers = operate.Answers{Confirmed: true}
	o.view.SIDs = map[flake.SID]lease.SIDRecords{}
	if key := planOf(t, c, url.Values{"action": {"recover"}}, ">No other node runs: begin the era</button>"); key == "" {
		t.Error("an era cannot be confirmed")
	}
}
