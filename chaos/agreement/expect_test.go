package agreement_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// asked returns the requests begun in [from, to).
func (m *member) asked(from, to time.Duration) []try {
	m.mu.Lock()
	defer m.mu.Unlock()
	first, _ := slices.BinarySearchFunc(m.tries, from, func(t try, at time.Duration) int { return int(t.begin - at) })
	end, _ := slices.BinarySearchFunc(m.tries, to, func(t try, at time.Duration) int { return int(t.begin - at) })
	return slices.Clone(m.tries[first:end])
}

// served fails the test unless a node issued throughout [from, to), every ID
// within limit of true time.
func (m *member) served(from, to, limit time.Duration) {
	m.env.t.Helper()
	tries := m.asked(from, to)
	if len(tries) == 0 {
		m.env.t.Errorf("%s was not asked from %v to %v", m.name, from, to)
	}
	for _, t := range tries {
		if t.refusal != nil {
			m.env.t.Errorf("%s refused at %v: %v", m.name, t.begin, t.refusal)
			return
		}
		if off := t.off(); off.Abs() > limit {
			history.Violated(m.env.t, "I5", "%s issued an ID at %v that is %v from true time", m.name, t.begin, off)
			return
		}
	}
}

// refused fails the test unless a node refused throughout [from, to), each time
// for reason.
func (m *member) refused(from, to time.Duration, reason node.Reason) {
	m.env.t.Helper()
	tries := m.asked(from, to)
	if len(tries) == 0 {
		m.env.t.Errorf("%s was not asked from %v to %v", m.name, from, to)
	}
	for _, t := range tries {
		if t.refusal == nil {
			m.env.t.Errorf("%s issued an ID at %v, want it refused with %s", m.name, t.begin, reason)
			return
		}
		if t.refusal.Reason != reason {
			m.env.t.Errorf("%s refused at %v: %v, want %s", m.name, t.begin, t.refusal, reason)
			return
		}
	}
}

// off returns how far an issued ID's time is from true time, ahead if positive:
// from the nearest moment of the request.
func (t try) off() time.Duration {
	switch {
	case t.issued > clocktest.TrueMillis(t.end):
		return (t.issued - clocktest.TrueMillis(t.end)).Duration()
	case t.issued < clocktest.TrueMillis(t.begin):
		return (t.issued - clocktest.TrueMillis(t.begin)).Duration()
	}
	return 0
}

// ready reports whether the node would issue now.
func (m *member) ready() bool { return m.node.Ready() == nil }

// untilRefused waits for a request to be refused with reason, and returns since
// when that is so.
func (m *member) untilRefused(reason node.Reason, within time.Duration) (at time.Duration) {
	m.env.t.Helper()
	from := m.env.now()
	m.env.until(within, fmt.Sprintf("%s refuses with %s", m.name, reason), func() bool {
		r := m.node.Ready()
		return r != nil && r.Reason == reason
	})
	// A request of this very instant may have been answered before.
	time.Sleep(time.Millisecond)
	at = m.env.now()
	m.env.t.Logf("%s refuses with %s after %v", m.name, reason, at-from)
	return at
}

// untilReady waits for the node to issue.
func (m *member) untilReady(within time.Duration) (took time.Duration) {
	m.env.t.Helper()
	took = m.env.until(within, m.name+" is ready", m.ready)
	// A request of this very instant may have been refused before.
	time.Sleep(time.Millisecond)
	return took
}

// until waits for ok, and returns how long that took.
func (env *testEnv) until(within time.Duration, what string, ok func() bool) time.Duration {
	env.t.Helper()
	from := env.now()
	for !ok() {
		if env.now()-from > within {
			env.t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return env.now() - from
}

// wrote returns what a node wrote in [from, to) of true time, releases apart.
func (m *member) wrote(from, to time.Duration) (out []put) {
	m.env.mu.Lock()
	defer m.env.mu.Unlock()
	for _, p := range m.env.puts {
		if p.by == m.instance && p.op != lease.Release && p.at >= from && p.at < to {
			out = append(out, p)
		}
	}
	return out
}

// released returns when a node first gave its sid back at or after from.
func (m *member) released(from time.Duration) (time.Duration, bool) {
	m.env.mu.Lock()
	defer m.env.mu.Unlock()
	for _, p := range m.env.puts {
		if p.by == m.instance && p.op == lease.Release && p.at >= from {
			return p.at, true
		}
	}
	return 0, false
}

// beyond returns by how much the worst ceiling that a node wrote exceeds true
// time + W.
func (m *member) beyond() time.Duration {
	worst := -window
	for _, p := range m.wrote(0, m.env.now()) {
		worst = max(worst, (p.window.Ceil-clocktest.TrueMillis(p.at)).Duration()-window)
	}
	return worst
}

// clockEvents returns the events of the machine's wall clock, in order.
func (m *member) clockEvents() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, e := range m.events {
		s := e.Kind.String()
		if e.Kind == clock.Followed {
			s += " (" + string(e.By) + ")"
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func (m *member) verdict() clock.Verdict { return m.watch.Report().Gate.Verdict }

// cut and heal take the nodes of one side off the network of the other.
func (env *testEnv) cut(a, b []*member) {
	env.net.Partition(addresses(a), addresses(b))
}

func addresses(ms []*member) (out []string) {
	for _, m := range ms {
		out = append(out, m.net.Addr())
	}
	return out
}

// outage cuts a node off the store, and ends that.
func (m *member) outage(on bool) {
	if on {
		m.etcd.SetScript(storetest.Every(storetest.NotApplied))
	} else {
		m.etcd.SetScript(nil)
	}
}
