package agreement_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
)

var update = flag.Bool("update", false, "rewrite testdata/steps.txt with what happens now; read the diff")

const year = 365 * 24 * time.Hour

// fault is injected into a wall clock, or a machine.
type fault struct {
	name  string
	step  time.Duration
	sleep time.Duration
}

var faults = []fault{
	{name: "−1 h", step: -time.Hour}, {name: "−1 s", step: -time.Second}, {name: "−10 ms", step: -10 * time.Millisecond},
	{name: "+10 ms", step: 10 * time.Millisecond}, {name: "+1 s", step: time.Second}, {name: "+1 h", step: time.Hour},
	{name: "+10 years", step: 10 * year}, {name: "asleep for 30 s", sleep: 30 * time.Second},
}

// places are how many of how many nodes it affects.
var places = []struct {
	name      string
	hit, size int
}{{"a lone node", 1, 1}, {"1 of 3", 1, 3}, {"2 of 3", 2, 3}, {"3 of 3", 3, 3}}

var moments = []string{"before the start", "while serving", "in an etcd outage"}

// outcome is a line of the matrix, without what it is the outcome of.
type outcome struct{ issued, refused, ceilings, shown string }

// TestStepMatrix plays every fault at every place and moment. The outcomes are a
// table in testdata/steps.txt, which docs/reference/clocks.md sums up; what must never be,
// whatever the table has, is checked by mustNot.
func TestStepMatrix(t *testing.T) {
	type at struct{ fault, place, moment int }
	var mu sync.Mutex // guards outcomes
	outcomes := map[at]outcome{}
	t.Run("play", func(t *testing.T) {
		for i, f := range faults {
			for j, p := range places {
				for k, when := range moments {
					t.Run(f.name+", "+p.name+", "+when, func(t *testing.T) {
						t.Parallel()
						runScenario(t, func(env *testEnv) {
							o := env.inject(f, p.hit, p.size, k)
							mu.Lock()
							defer mu.Unlock()
							outcomes[at{i, j, k}] = o
						})
					})
				}
			}
		}
	})
	if t.Failed() {
		return
	}
	var b strings.Builder
	b.WriteString("| wall clock | of | when | IDs of the affected nodes | refusals | their ceilings | their anchor; verdict at the end |\n|---|---|---|---|---|---|---|\n")
	type line struct {
		place, when string
		outcome
	}
	var lines []line
	affected := map[line][]string{}
	for j, p := range places {
		for i, f := range faults {
			for k := 0; k < len(moments); k++ {
				o, when := outcomes[at{i, j, k}], moments[k]
				for k+1 < len(moments) && outcomes[at{i, j, k + 1}] == o { // merge moments with the same outcome
					k++
					when += ", " + moments[k]
				}
				if when == strings.Join(moments, ", ") {
					when = "at any time"
				}
				l := line{p.name, when, o}
				if affected[l] == nil {
					lines = append(lines, l)
				}
				affected[l] = append(affected[l], f.name)
			}
		}
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", strings.Join(affected[l], ", "),
			l.place, l.when, l.issued, l.refused, l.ceilings, l.shown)
	}
	compareTable(t, b.String())
}

// compareTable holds the table against the one of testdata, or puts it there.
func compareTable(t *testing.T, table string) {
	t.Helper()
	const file = "testdata/steps.txt"
	if *update {
		fatal.If(t, os.WriteFile(file, []byte(table), 0o644))
		return
	}
	text, err := os.ReadFile(file)
	fatal.If(t, err)
	old, now := strings.Split(string(text), "\n"), strings.Split(table, "\n")
	for _, line := range now {
		if !slices.Contains(old, line) {
			t.Errorf("%s does not say, run with -update:\n%s", file, line)
		}
	}
	for _, line := range old {
		if !slices.Contains(now, line) {
			t.Errorf("%s has a line that is not so:\n%s", file, line)
		}
	}
}

// inject plays one fault on hit of size nodes, at moment k, and observes what
// comes of it for a minute.
func (env *testEnv) inject(f fault, hit, size, k int) outcome {
	const before, serving = 0, 1
	for i := range size {
		o := options{pace: 100 * time.Millisecond}
		if i == size-hit && i > 0 {
			time.Sleep(2 * time.Second) // sound nodes are there first: of two that start together, one may find itself alone
		}
		if k == before && i >= size-hit {
			o.off = f.step
		}
		env.start(o)
	}
	affected := env.members[size-hit:]
	time.Sleep(4 * time.Second) // with the first judgement of the clock
	from, woke := env.now(), time.Duration(-1)
	if k != before {
		time.Sleep(8 * time.Second)
		from = env.now()
		if k != serving && f.sleep == 0 {
			env.outage(true)
			time.Sleep(3 * time.Second)
		}
		if f.sleep > 0 {
			env.sleep(affected, f.sleep, k != serving)
			woke = env.now()
		}
		for _, m := range affected {
			m.clocks.Step(f.step)
		}
		if k != serving {
			time.Sleep(8 * time.Second) // 11 s in all: what is registered stays so
			env.outage(false)
		}
	}
	time.Sleep(time.Minute)
	env.mustNot(f, affected, from, woke)
	return outcome{issuedBy(affected, from, woke, f), env.refusals(affected, from), ceilingsOf(affected, f), shownBy(affected)}
}

func (env *testEnv) outage(on bool) {
	for _, m := range env.members {
		m.outage(on)
	}
}

// sleep suspends machines: nothing runs on them, and nobody reaches them. In an
// outage, etcd goes away for everybody 3 s before they wake.
func (env *testEnv) sleep(ms []*member, d time.Duration, outage bool) {
	for _, m := range ms {
		m.setAway(true)
		m.outage(true)
		env.cut([]*member{m}, slices.DeleteFunc(slices.Clone(env.members), func(o *member) bool { return o == m }))
		m.clocks.Sleep()
	}
	time.Sleep(d - 3*time.Second)
	env.outage(outage)
	for _, m := range ms {
		m.outage(true)
	}
	time.Sleep(3 * time.Second)
	env.net.Heal()
	for _, m := range ms {
		m.clocks.Wake()
		m.outage(outage)
		m.setAway(false)
	}
}

// oneTick is how long after waking a node may not know yet that it slept.
const oneTick = 60 * time.Millisecond

// mustNot checks what holds of every outcome: sound nodes serve on unless a
// majority is against them, a minority's step reaches no ID and no ceiling.
func (env *testEnv) mustNot(f fault, affected []*member, from, woke time.Duration) {
	env.t.Helper()
	minority := len(affected) <= (len(env.members)-1)/2
	for _, m := range env.members {
		hit := slices.Contains(affected, m)
		if !minority && (hit || len(affected) < len(env.members)) && f.step.Abs() > maxSkew {
			continue // a majority is believed
		}
		if !hit {
			m.served(from, env.now(), sound)
		}
		for _, x := range m.asked(from, env.now()) {
			if x.refusal == nil && x.off().Abs() > sound && !(woke >= 0 && x.begin < woke+oneTick) {
				history.Violated(env.t, "I5", "%s issued at %v an ID that is %v off", m.name, x.begin, x.off())
				break
			}
		}
		if b := m.beyond(); b > maxSkew {
			env.t.Errorf("%s wrote a ceiling %v beyond true time + W", m.name, b)
		}
	}
}

// issuedBy returns how true the IDs are that were issued from a time on.
func issuedBy(ms []*member, from, woke time.Duration, f fault) string {
	issued, worst, last := 0, time.Duration(0), time.Duration(0)
	for _, m := range ms {
		for _, x := range m.asked(from, m.env.now()) {
			if x.refusal != nil || woke >= 0 && x.begin >= woke && x.begin < woke+oneTick {
				continue
			}
			issued++
			last = x.off()
			if last.Abs() > worst.Abs() {
				worst = last
			}
		}
	}
	switch near := (worst - f.step).Abs() <= 50*time.Millisecond; {
	case issued == 0:
		return "none"
	case worst.Abs() <= sound:
		return "true"
	case near && (last-f.step).Abs() <= sound:
		return "**follow the step**"
	default:
		return fmt.Sprintf("up to %v off", worst.Round(100*time.Millisecond))
	}
}

// refusals lists the reasons of a node that was affected and of one that was not.
func (env *testEnv) refusals(affected []*member, from time.Duration) string {
	reasons := func(m *member) string {
		var all []node.Reason
		tries := m.asked(from, env.now())
		for _, x := range tries {
			if x.refusal != nil && !slices.Contains(all, x.refusal.Reason) {
				all = append(all, x.refusal.Reason)
			}
		}
		out := ""
		for i, r := range all {
			if i > 0 {
				out += ", "
			}
			out += "`" + r.String() + "`"
		}
		if out != "" && tries[len(tries)-1].refusal == nil {
			out += " for a while"
		}
		return out
	}
	of := func(ms []*member) string {
		var out []string
		for _, m := range ms {
			if r := reasons(m); r != "" && !slices.Contains(out, r) {
				out = append(out, r)
			}
		}
		slices.Sort(out)
		return strings.Join(out, "; ")
	}
	hit, others := of(affected), of(env.members[:len(env.members)-len(affected)])
	switch {
	case hit == "" && others == "":
		return "none"
	case others == "":
		return hit
	case hit == "":
		return "the others: " + others
	}
	return hit + "; the others: " + others
}

// ceilingsOf returns how far the ceilings are beyond true time + W.
func ceilingsOf(ms []*member, f fault) string {
	wrote, worst := 0, -window
	for _, m := range ms {
		wrote += len(m.wrote(0, m.env.now()))
		worst = max(worst, m.beyond())
	}
	switch {
	case wrote == 0:
		return "none"
	case worst <= maxSkew:
		return "within W"
	case (worst - f.step).Abs() <= maxSkew:
		return "**W and the step**"
	}
	return fmt.Sprintf("%v beyond W", worst.Round(100*time.Millisecond))
}

func shownBy(ms []*member) string {
	var out []string
	for _, m := range ms {
		v := m.verdict()
		s := v.Phase.String()
		if v.State == clock.Skewed {
			s += ", " + v.Finding.String()
		}
		if events := m.clockEvents(); events != "" {
			s = events + "; " + s
		}
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " / ")
}
