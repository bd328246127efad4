package nemesis

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/rig"
)

// What cannot run beside a fault waits until its effects have ended, and nothing
// else does.
func TestBeside(t *testing.T) {
	faults := []Fault{{Name: "one", Scope: OneNode}, {Name: "exclusive", Scope: OneNode, Exclusive: true}, {Name: "extra", Scope: Extra}, {Name: "whole", Scope: Whole}, {Name: "leader", Scope: Leader}}
	for _, tc := range []struct {
		first, second string
		on, to        []string
		want          bool
	}{
		{"one", "one", []string{"n1"}, []string{"n2"}, true},
		{"one", "one", []string{"n1"}, []string{"n1"}, false},
		{"one", "extra", []string{"n1"}, nil, true},
		{"extra", "one", nil, []string{"n1"}, true},
		{"one", "whole", []string{"n1"}, nil, false},
		{"whole", "one", nil, []string{"n1"}, false},
		{"exclusive", "one", []string{"n1"}, []string{"n2"}, false},
		{"one", "leader", []string{"n1"}, nil, false},
		{"leader", "extra", nil, nil, false},
	} {
		r := &Runner{Table: faults}
		if !r.begin(Action{ID: 1, Fault: tc.first, Targets: tc.on}) {
			t.Fatalf("%s cannot begin at all", tc.first)
		}
		if got := r.begin(Action{ID: 2, Fault: tc.second, Targets: tc.to}); got != tc.want {
			t.Errorf("%s of %v beside %s of %v: %v", tc.second, tc.to, tc.first, tc.on, got)
		}
		r.endAt(1, time.Now().Add(time.Hour)) // healed, and its effects last
		if got := r.begin(Action{ID: 3, Fault: tc.second, Targets: tc.to}); got && !tc.want {
			t.Errorf("%s after %s, whose effects last: %v", tc.second, tc.first, got)
		}
		r.endAt(1, time.Now())
		r.endAt(2, time.Now())
		r.endAt(3, time.Now())
		if !r.begin(Action{ID: 4, Fault: tc.second, Targets: tc.to}) {
			t.Errorf("%s cannot begin after %s has ended", tc.second, tc.first)
		}
	}
}

// A fault that takes longer to heal than planned moves the next one. One that shows what the product must not do says so.
func TestSlowHealing(t *testing.T) {
	var ended, began time.Time
	fault := func(name string, begin, end func()) Fault {
		return Fault{Name: name, Scope: Whole, Hold: between(1, 1),
			Expect: func(rig.Timing) Expect { return Expect{Settle: 100 * time.Millisecond} },
			Begin:  func(context.Context, *Injection) error { begin(); return nil },
			Fired:  func(context.Context, *Injection) (string, error) { return "seen", nil },
			End:    func(context.Context, *Injection) error { end(); return nil }}
	}
	nothing := func() {}
	broken := fault("broken", nothing, nothing)
	broken.Fired = func(context.Context, *Injection) (string, error) {
		return "", fmt.Errorf("%w: it is ready", rig.ErrBroken)
	}
	r := &Runner{Progress: func(string) {}, Rig: &rig.Rig{History: history.NewWriter(io.Discard, history.WriterConfig{})}, Table: []Fault{
		fault("slow", nothing, func() { time.Sleep(500 * time.Millisecond); ended = time.Now() }),
		fault("next", func() { began = time.Now() }, nothing), broken}}
	r.Run(t.Context(), Schedule{Actions: []Action{{ID: 1, Fault: "slow", ForMs: 1}, {ID: 2, Fault: "next", AtMs: 50, ForMs: 1}, {ID: 3, Fault: "broken", AtMs: 60, ForMs: 1}}})
	if got := r.Outcomes(); len(got) != 3 || !got[0].Fired || !got[1].Fired || got[0].Broken || got[2].Fired || !got[2].Broken {
		t.Fatalf("%+v", got)
	}
	if began.Before(ended.Add(100 * time.Millisecond)) {
		t.Errorf("the second began %v after the first was healed, whose effects last 100 ms", began.Sub(ended))
	}
}
