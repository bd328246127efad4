package cluster

import (
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/status"
)

func TestPeerColumns(t *testing.T) {
	for _, tc := range []struct {
		name string
		peer *status.PeerClock
		want string // heard, verdict, offset
	}{
		{"never heard", nil, "never|-|-"},
		{"itself", &status.PeerClock{Verdict: "open", Self: true, Fresh: true}, "(this node)|open|-"},
		{"fresh", &status.PeerClock{Verdict: "open", Fresh: true, Offset: -120, Error: 201, Age: 640_000}, "0.6s ago|open|-0.1ms ±0.3ms"},
		{"false", &status.PeerClock{Verdict: "skewed", Fresh: true, Offset: 1e6, Error: 300, Falseticker: true}, "0.0s ago|skewed|+1000.0ms ±0.3ms FALSE"},
		{"silent since", &status.PeerClock{Verdict: "open", Offset: 5, Age: 31_400_000}, "31.4s ago|silent|-"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			heard, verdict, offset := columns(tc.peer)
			if got := heard + "|" + verdict + "|" + offset; got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// A step that is held back is shown, and so is whom it waits for.
func TestClockLines(t *testing.T) {
	c := &status.Clock{
		State: "open", Phase: "grace", Finding: "unconfirmed", Registered: 3, Quorum: 2, Agree: 1, Silent: 2,
		StepsForward: 1, StepsBack: 2, Suspends: 3, Stalls: 4, StepPending: true, Held: -1_500_000, GossipMembers: 1,
		Kernel: status.KernelClock{Known: true, Synchronized: true, MaxError: 12_300},
	}
	print := func() string {
		var b strings.Builder
		fatal.If(t, printClock(&b, c))
		return b.String()
	}
	want := `clock: open (grace, unconfirmed); 1 of 3 nodes agree, 2 are a majority
       steps 1 forward, 2 back; suspends 3; stalls 4; kernel synchronized within 12.3ms; gossip 1 member
       a step of the wall clock is not followed yet: it differs from the time of IDs by -1.5s
`
	if got := print(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	c.StepBlocked, c.Kernel = true, status.KernelClock{}
	for _, part := range []string{"if it is right run \"allocator admin accept-time\"\n", "kernel unknown;"} {
		if got := print(); !strings.Contains(got, part) {
			t.Errorf("%s\nhas no %q", got, part)
		}
	}
}
