package cluster

import (
	"strings"
	"testing"

	pb "github.com/flakelease/allocator/api/allocator/v1"
)

func TestPeerColumns(t *testing.T) {
	for _, tc := range []struct {
		name            string
		peer            *pb.PeerClock
		verdict, offset string
	}{
		{"never heard", nil, "-", "no sample"},
		{"itself", &pb.PeerClock{Verdict: "open", Self: true, Fresh: true}, "open", "asked"},
		{"fresh", &pb.PeerClock{Verdict: "open", Fresh: true, OffsetUs: -120, ErrorUs: 201}, "open", "-0.1ms ±0.3ms"},
		{"false", &pb.PeerClock{Verdict: "skewed", Fresh: true, OffsetUs: 1e6, ErrorUs: 300, Falseticker: true}, "skewed", "+1000.0ms ±0.3ms FALSE"},
		{"silent since", &pb.PeerClock{Verdict: "open", OffsetUs: 5, AgeUs: 31_400_000}, "open", "no sample for 31s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if verdict, offset := newPeerLine(tc.peer).columns(); verdict != tc.verdict || offset != tc.offset {
				t.Errorf("got %q %q, want %q %q", verdict, offset, tc.verdict, tc.offset)
			}
		})
	}
}

// A step that is held back is shown, and so is whom it waits for.
func TestClockLines(t *testing.T) {
	c := &pb.Clock{
		State: "open", Phase: "grace", Finding: "unconfirmed", Registered: 3, Quorum: 2, Agree: 1, Silent: 2,
		StepsForward: 1, StepsBack: 2, Suspends: 3, Stalls: 4, StepPending: true, HeldUs: -1_500_000, GossipMembers: 1,
		Kernel: &pb.KernelClock{Known: true, Synchronized: true, MaxErrorUs: 12_300},
	}
	print := func() string {
		var b strings.Builder
		if err := newClockLine(c).print(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	want := `clock: open (grace, unconfirmed); 1 of 3 nodes agree, 2 are a majority
       steps 1 forward, 2 back; suspends 3; stalls 4; kernel synchronized within 12.3ms; gossip 1 member
       a step of the wall clock is not followed yet: it differs from the time of IDs by -1.5s
`
	if got := print(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	c.StepBlocked, c.Kernel = true, nil
	for _, part := range []string{"; set the clock back if it is wrong, or restart the node if it is right\n", "kernel unknown;"} {
		if got := print(); !strings.Contains(got, part) {
			t.Errorf("%s\nhas no %q", got, part)
		}
	}
}
