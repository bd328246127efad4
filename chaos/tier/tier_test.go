package tier_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/tier"
)

// probe is a test that writes down what happens to it.
type probe struct {
	testing.TB
	log string
}

func (p *probe) Helper()                   {}
func (p *probe) Logf(f string, a ...any)   { p.log += fmt.Sprintf(f, a...) }
func (p *probe) Skipf(f string, a ...any)  { panic(fmt.Sprintf("skip: "+f, a...)) }
func (p *probe) Fatalf(f string, a ...any) { panic(fmt.Sprintf("fatal: "+f, a...)) }

// outcome runs f as a test and returns how it ended.
func outcome(t *testing.T, f func(testing.TB)) (out string) {
	p := &probe{TB: t}
	defer func() {
		out = p.log
		if r := recover(); r != nil {
			out += fmt.Sprint(r)
		}
	}()
	f(p)
	return ""
}

func TestTiers(t *testing.T) {
	check := func(t testing.TB) { tier.Check(t, "an hour") }
	nightly := func(t testing.TB) { tier.Nightly(t, "a day") }
	seeds := func(t testing.TB) { t.Logf(" got %d", tier.Of(t, "seeds", 1, 20, 300)) }
	for name, want := range map[string][3]string{
		"":        {"skip: tier check: an hour", "skip: tier nightly: a day", "tier test: 1 seeds; in check 20, in nightly 300 got 1"},
		"test":    {"skip: tier check: an hour", "skip: tier nightly: a day", "tier test: 1 seeds; in check 20, in nightly 300 got 1"},
		"check":   {"", "skip: tier nightly: a day", "tier check: 20 seeds; in check 20, in nightly 300 got 20"},
		"nightly": {"", "", " got 300"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(tier.Variable, name)
			for i, f := range []func(testing.TB){check, nightly, seeds} {
				if got := outcome(t, f); got != want[i] {
					t.Errorf("got %q, want %q", got, want[i])
				}
			}
		})
	}
	t.Setenv(tier.Variable, "all")
	for _, f := range []func(testing.TB){check, nightly, seeds} {
		if got := outcome(t, f); !strings.HasPrefix(got, "fatal: TIER=all: there is no such tier") {
			t.Errorf("a tier that does not exist: %q", got)
		}
	}
}
