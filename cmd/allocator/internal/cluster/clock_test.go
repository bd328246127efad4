package cluster

import (
	"strings"
	"testing"

	pb "github.com/flakelease/allocator/api/allocator/v1"
)

func TestPeerColumns(t *testing.T) {
	for _, tc := range []struct {
		name string
		peer *pb.PeerClock
		want string // heard, verdict, offset
	}{
		{"never heard", nil, "never|-|-"},
		{"itself", &pb.PeerClock{Verdict: "open", Self: true, Fresh: true}, "(this node)|open|-"},
		{"fresh", &pb.PeerClock{Verdict: "open", Fresh: true, OffsetUs: -120, ErrorUs: 201, AgeUs: 640_000}, "0.6s ago|open|-0.1ms ±0.3ms"},
		{"false", &pb.PeerClock{Verdict: "skewed", Fresh: true, OffsetUs: 1e6, ErrorUs: 300, Falseticker: true}, "0.0s ago|skewed|+1000.0ms ±0.3ms FALSE"},
		{"silent since", &pb.PeerClock{Verdict: "open", OffsetUs: 5, AgeUs: 31_400_000}, "31.4s ago|silent|-"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			heard, verdict, offset := newPeerLine(tc.peer).columns()
			if got := heard + "|" + verdict + "|" + offset; got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
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
	for _, part := range []string{"if it is right run \"allocator admin accept-time\"\n", "kernel unknown;"} {
		if got := print(); !strings.Contains(got, part) {
			t.Errorf("%s\nhas no %q", got, part)
		}
	}
}
