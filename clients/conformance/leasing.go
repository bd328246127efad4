package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/node"
)

// leasing has the rows about worker numbers.
func leasing() (all []situation) {
	row := func(name, nodes string, do func(*stage)) {
		all = append(all, situation{name: name, nodes: nodes, options: patient, do: do})
	}
	// worker is a row whose worker is lent before do.
	worker := func(name, nodes string, do func(*stage)) {
		row(name, nodes, func(t *stage) {
			if t.lent(call{}) {
				do(t)
			}
		})
	}
	row("a worker number is lent, checked and given back", "serve", lends)
	row("only units that are in the interval as a whole", "serve", units)
	worker("an interval that begins later is waited for", "ahead 300", waits)
	row("a worker is extended", "serve, serve 100", extends)
	for _, r := range []node.Reason{node.WorkerQuota, node.CallerClock, node.PermissionDenied} {
		row(fmt.Sprintf("%v: no worker, at every node and time", r), fmt.Sprintf("refuse %v", r), noWorker(r))
	}
	for _, r := range []node.Reason{node.NoWorker, node.WorkerQuota, node.EtcdUnavailable} {
		worker(fmt.Sprintf("%v: no worker yet", r), fmt.Sprintf("refuse %v 20, serve", r), (*stage).close)
	}
	for _, r := range []node.Reason{node.NoWorker, node.WorkersOff} {
		row(fmt.Sprintf("%v: no worker in time", r), fmt.Sprintf("refuse %v", r), noneInTime(r))
		worker(fmt.Sprintf("%v: another node lends a number", r), fmt.Sprintf("refuse %v | serve", r), (*stage).close)
	}
	worker("the answer that lends a number is lost", "drop, serve", lendsAgain)
	for name, script := range map[string]string{
		"an extension is refused":                 "serve 100, refuse ETCD_UNAVAILABLE 300, serve",
		"an extension is lost":                    "serve 100, drop, serve",
		"an extension is late":                    "serve 100, late 400, serve",
		"an extension for another worker":         "serve 100, other, serve",
		"an extension with an end that went back": "serve 100, back, serve",
	} {
		worker(name, script, extendsAtLast)
	}
	worker("an extension by another space", "serve 100, space 100, space, serve 100", extendsInSpace)
	worker("UNKNOWN_WORKER: the worker is lost", "serve 100, refuse UNKNOWN_WORKER", losesTo(node.UnknownWorker))
	worker("HISTORY_REWOUND: the worker is lost", "serve 100, refuse HISTORY_REWOUND", losesTo(node.HistoryRewound))
	worker("a worker that was given back before", "serve, refuse UNKNOWN_WORKER", (*stage).close)
	worker("a pause of a minute", "serve", pauses)
	worker("the wall clock leaps under a worker", "serve", leaps)
	worker("the wall clock leaps under a worker that is not asked", "serve 100", leapsUnasked)
	worker("the wall clock leaps, and the worker is closed", "serve", leapsBeforeClose)
	worker("a forked child is no worker", "serve", forksWorker)
	for i := range all {
		switch name := all[i].name; {
		case name == "HISTORY_REWOUND: the worker is lost":
			all[i].options = brief // The client asks until a call's time is over.
		case name == "a pause of a minute", strings.HasPrefix(name, "the wall clock leaps"):
			all[i].not = map[string]string{"go": "TestCopiedMemory and TestOutage of package worker move its clocks"}
		case name == "a forked child is no worker":
			all[i].not = notForked
		}
	}
	return all
}

// lend opens a worker at all nodes.
func (t *stage) lend(c call) answer {
	c.Op, c.Options = "worker", t.s.options
	for _, n := range t.nodes {
		c.Nodes, c.GRPC = append(c.Nodes, t.scheme+n.http), append(c.GRPC, n.rpc)
	}
	return t.ask(c)
}

// lent is lend where a number comes.
func (t *stage) lent(c call) bool {
	if a := t.lend(c); a.Error != nil || a.Value != "17" {
		t.failf("the worker is %s, and not 17", a)
		return false
	}
	return true
}

// permit asks whether IDs of a time may be used. want is the error; "": none.
func (t *stage) permit(at int64, want string) {
	got, a := "", t.ask(call{Op: "permit", At: at})
	if a.Error != nil {
		got = strings.TrimSpace(a.Error.Kind + " " + a.Error.Reason)
	}
	if got != want || want != "" && a.Error.Message == "" {
		l := t.nodes[0].held()
		t.failf("permit of %d in [%d, %d): %q, and not %q", at, l.begins, l.ends, a, want)
	}
}

// permitted asks until IDs of a time may be used. Until then the time is after the interval, and nothing worse.
func (t *stage) permitted(at int64) {
	for t.ctx.Err() == nil {
		a := t.ask(call{Op: "permit", At: at})
		if a.Error == nil {
			return
		}
		if a.Error.Kind != "refused" || a.Error.Reason != "EXPIRED" {
			t.failf("permit: %s", a)
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.failf("no ID of %d was ever permitted", at)
}

// giveBack closes the worker. used is up to where the number was used then.
func (t *stage) giveBack(used int64) {
	t.close()
	if l := t.nodes[0].held(); l.handle != "" || l.used != used {
		t.failf("the worker was given back as used until %d (handle %q), and not %d", l.used, l.handle, used)
	}
}

// leases returns the calls of a kind that a node got.
func (t *stage) leases(n *scripted, call string) (all []lease) {
	for _, r := range n.requests() {
		if r.lease.call == call {
			all = append(all, r.lease)
		}
	}
	return all
}

func lends(t *stage) {
	begun := time.Now().UnixMilli()
	if !t.lent(call{}) {
		return
	}
	l := t.nodes[0].held()
	t.permit(l.begins, "")
	t.permit(begun, "")
	t.permit(l.begins+20, "")
	t.permit(l.begins-1, "refused NOT_YET")
	t.permit(l.ends, "refused EXPIRED")
	if got := t.leases(t.nodes[0], "acquire"); len(got) != 1 || len(got[0].secret) < 16 || got[0].clock < begun {
		t.failf("it acquired by %+v: once, with a secret and its clock", got)
	}
	t.giveBack(begun + 1)
	t.permit(begun, "closed")
	t.close() // again
	if n := len(t.leases(t.nodes[0], "release")); n != 1 {
		t.failf("it was given back %d times", n)
	}
}

func units(t *stage) {
	if !t.lent(call{UnitMs: 10}) {
		return
	}
	l := t.nodes[0].held()
	t.permit(l.ends-9, "refused EXPIRED")
	t.permit(l.ends-10, "")
	t.giveBack(l.ends)
}

func waits(t *stage) {
	l := t.nodes[0].held()
	if early := l.begins - time.Now().UnixMilli(); early > 0 {
		t.failf("it was open %d ms before its interval", early)
	}
	t.permit(l.begins, "")
	t.giveBack(l.begins + 1)
}

func extends(t *stage) {
	t.nodes[0].play("serve 100")
	if !t.lent(call{}) {
		return
	}
	first := t.nodes[0].held().first
	t.permitted(first)
	asked := t.leases(t.nodes[0], "extend")
	if len(asked) == 0 || asked[0].ends != first {
		t.failf("it asked for more than [.., %d) by %+v", first, asked)
	}
	t.giveBack(first + 1)
}

func noWorker(r node.Reason) func(*stage) {
	return func(t *stage) {
		a := t.lend(call{})
		t.expect(call{}, a, "refused "+r.String())
		if n := len(t.nodes[0].requests()); n != 1 {
			t.failf("it asked %d times", n)
		}
	}
}

func noneInTime(r node.Reason) func(*stage) {
	return func(t *stage) {
		t.s.options.TimeoutMs = 600
		t.expect(call{}, t.lend(call{}), "refused "+r.String())
	}
}

func lendsAgain(t *stage) {
	if got := t.leases(t.nodes[0], "acquire"); len(got) < 2 || got[0].secret != got[1].secret {
		t.failf("it acquired by %+v: the second call finds the worker of the first by its secret", got)
	}
	t.permit(t.nodes[0].held().begins, "")
	t.close()
}

// extendsAtLast: after an extension that failed the interval is what it was, until another one succeeds.
func extendsAtLast(t *stage) {
	l := t.nodes[0].held()
	t.asked(t.nodes[0], 2)
	t.permit(l.begins, "")
	t.permitted(l.first + 50)
	t.permit(l.begins, "")
	if got := t.leases(t.nodes[0], "acquire"); len(got) != 1 {
		t.failf("it acquired %d workers", len(got))
	}
	t.giveBack(l.first + 51)
}

// extendsInSpace: two calls are answered by another space, which says another end, and then that it knows no such
// worker. Neither counts.
func extendsInSpace(t *stage) {
	at := t.nodes[0].held().first + 50
	t.permitted(at)
	if n := len(t.leases(t.nodes[0], "extend")); n < 3 {
		t.failf("it was extended after %d calls", n)
	}
	t.giveBack(at + 1)
}

func losesTo(r node.Reason) func(*stage) {
	return func(t *stage) {
		at := t.nodes[0].held().begins
		for t.ctx.Err() == nil {
			if a := t.ask(call{Op: "permit", At: at}); a.Error != nil {
				t.permit(at, "lost")
				if !strings.Contains(a.Error.Message, r.String()) {
					t.failf("%s: it does not say why", a)
				}
				break
			}
			time.Sleep(time.Millisecond)
		}
		asked := len(t.nodes[0].requests())
		t.close()
		if n := len(t.nodes[0].requests()); n != asked {
			t.failf("%d calls after the worker was lost", n-asked)
		}
	}
}

// pauses: both clocks went on. The interval is over, and the worker is extended as before.
func pauses(t *stage) {
	l := t.nodes[0].held()
	t.ask(call{Op: "pause", Ms: 60_000})
	t.permit(l.begins, "") // Nobody else has the number at that time.
	t.permitted(l.ends)
	if len(t.leases(t.nodes[0], "extend")) == 0 {
		t.failf("an ID was permitted at the end of the interval, and the worker was not extended")
	}
	t.giveBack(l.ends + 1)
}

// leaps: the wall clock alone went on, as in a machine that was saved. Another copy may hold the worker too.
func leaps(t *stage) {
	l := t.nodes[0].held()
	t.ask(call{Op: "leap", WallMs: 300}) // as a daemon sets it
	t.permit(l.begins, "")
	t.ask(call{Op: "leap", WallMs: -3000})
	t.permit(l.begins, "")
	t.ask(call{Op: "leap", WallMs: 2000})
	t.permit(l.ends-1, "lost")
	t.closeLost()
}

// closeLost closes a worker that the other copy of a machine holds too.
func (t *stage) closeLost() {
	asked := len(t.nodes[0].requests())
	t.close()
	if n := len(t.nodes[0].requests()); n != asked {
		t.failf("%d calls after the leap: the worker is that of the other copy", n-asked)
	}
}

// leapsUnasked: the call that extends the worker compares the clocks too.
func leapsUnasked(t *stage) {
	t.ask(call{Op: "leap", WallMs: 2000})
	for t.ask(call{Op: "lost"}).Value != "true" && len(t.problems) == 0 {
		time.Sleep(time.Millisecond)
	}
	t.closeLost()
}

func leapsBeforeClose(t *stage) {
	t.ask(call{Op: "leap", WallMs: 2000})
	t.closeLost()
}

func forksWorker(t *stage) {
	at := t.nodes[0].held().begins
	t.expect(call{}, t.ask(call{Op: "fork", At: at}), "lost")
	t.permit(at, "")
	t.giveBack(at + 1)
}
