package feed

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// healthy is a state in which nothing is wrong: n1 holds sid 4 beside n2.
func healthy() State {
	s := State{
		Node: node.Stats{
			Name: "n1", Instance: "i1", Now: 1000, Holding: true, SID: 4, Base: 900, Ceil: 31_000,
			Lease: lease.Status{
				Phase: lease.Holding, Held: true, EverHeld: true, Listed: true, Grant: lease.Grant{SID: 4, Term: 7, Base: 900, Ceil: 31_000},
				Era:     lease.Era{Number: 1},
				Nodes:   []lease.Registration{{Instance: "i1", Node: "n1"}, {Instance: "i2", Node: "n2", Version: "v1"}},
				Holders: []lease.Held{{SID: 4, Instance: "i1", Node: "n1"}, {SID: 9, Instance: "i2", Node: "n2"}},
			},
		},
		Clocks: clock.Report{Peers: []clock.PeerReport{{Name: "n2", Instance: "i2", Fresh: true, Age: time.Second, Verdict: clock.Open}}},
		Files:  map[string]Files{"tokens": {}},
	}
	s.Clocks.Gate.Verdict.Phase = clock.Confirmed
	return s
}

func refusing(r node.Reason) *node.Refusal { return &node.Refusal{Reason: r, Message: "why"} }

// shown is the kinds, nodes and sids of events, in their order.
func shown(events []Event) string {
	var out []string
	for _, e := range events {
		s := string(e.Kind)
		if e.Node != "n1" {
			s += " of " + e.Node
		}
		if e.SID >= 0 {
			s += fmt.Sprintf(" sid %d", e.SID)
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func TestTransitions(t *testing.T) {
	type change = func(*State)
	none := func(*State) {}
	phase := func(p clock.Phase) change { return func(s *State) { s.Clocks.Gate.Verdict.Phase = p } }
	reason := func(r node.Reason) change { return func(s *State) { s.Refusing = refusing(r) } }
	noSID := func(p lease.Phase) change {
		return func(s *State) { s.Node.Holding, s.Node.Lease.Held, s.Node.Lease.Phase = false, false, p }
	}
	lost := func(s *State) { s.Node.Lease.Phase = lease.Lost }
	for _, tc := range []struct {
		name     string
		old, new change
		want     string
	}{
		{"nothing", none, none, ""},
		{"time", none, func(s *State) {
			s.Node.Now += 1000
			s.Node.Issued += 5
			s.Node.Ceil += 5000
			s.Node.Lease.Grant.Ceil += 5000
		}, ""},

		{"refuses", none, reason(node.WindowExhausted), "refusing"},
		{"refuses for another reason", reason(node.WindowExhausted), reason(node.ClockSkew), "refusing"},
		{"refuses on", reason(node.ClockSkew), reason(node.ClockSkew), ""},
		{"serves again", reason(node.ClockSkew), none, "serving"},
		{"is drained", none, func(s *State) { s.Node.Draining = true; s.Refusing = refusing(node.Draining) }, "drained, refusing"},
		{"is undrained", func(s *State) { s.Node.Draining = true }, none, "undrained"},

		{"acquires", noSID(lease.Seeking), none, "sid_acquired sid 4"},
		{"releases", none, noSID(lease.Seeking), "sid_released sid 4"},
		{"loses it, and issues on", none, lost, "sid_lost sid 4"},
		{"issues no more from a lost one", lost, noSID(lease.Seeking), ""},
		{"loses it at once", none, noSID(lease.Lost), "sid_lost sid 4"},
		{"has another after a loss", lost, func(s *State) { s.Node.Lease.Grant.SID = 5 }, "sid_acquired sid 5"},
		{"has another term", none, func(s *State) { s.Node.Lease.Grant.Term = 8 }, "sid_lost sid 4, sid_acquired sid 4"},
		{"stands by", noSID(lease.Seeking), noSID(lease.Standby), "standby"},
		{"history goes back", none, noSID(lease.Rewound), "history_rewound, sid_lost sid 4"},
		{"recovered", noSID(lease.Rewound), func(s *State) { s.Node.Lease.Era.Number = 2 }, "era_began, sid_acquired sid 4"},
		{"reads its first era", func(s *State) { s.Node.Lease.Era.Number = 0 }, none, ""},

		{"etcd fails", none, func(s *State) { s.EtcdFails = true }, "etcd_failing"},
		{"etcd answers", func(s *State) { s.EtcdFails = true }, none, "etcd_answers"},
		{"snapshots fail", none, func(s *State) { s.Backup = "full" }, "backup_failing"},
		{"snapshots fail on", func(s *State) { s.Backup = "full" }, func(s *State) { s.Backup = "exit status 1" }, ""},
		{"snapshots succeed", func(s *State) { s.Backup = "full" }, none, "backup_made"},
		{"clock ahead", none, func(s *State) { s.Alarms = map[lease.AlarmKind]uint64{lease.AlarmClock: 1} }, "clock_ahead"},
		{"tokens", none, func(s *State) { s.Files = map[string]Files{"tokens": {Reloads: 1}} }, "reload"},
		{"bad tokens", none, func(s *State) { s.Files = map[string]Files{"tokens": {Failing: true}} }, "reload_failing"},

		{"gate shuts", none, phase(clock.Shut), "gate_shut"},
		{"gate opens", phase(clock.Shut), none, "gate_opened"},
		{"gate opens at the start", phase(clock.Starting), none, "gate_opened"},
		{"gate is shut at the start", phase(clock.Starting), phase(clock.Shut), "gate_shut"},
		{"another reason to be shut", phase(clock.Shut), phase(clock.Strict), ""},
		{"alone", none, phase(clock.Grace), "clock_unconfirmed"},
		{"grace is over", phase(clock.Grace), phase(clock.Unproven), ""},
		{"confirmed", phase(clock.Unproven), none, "clock_confirmed"},
		{"a false clock", none, func(s *State) { s.Clocks.Gate.Judgement.Falsetickers = []string{"n2"} }, "clock_false of n2"},
		{"a true clock", func(s *State) { s.Clocks.Gate.Judgement.Falsetickers = []string{"n2"} }, none, "clock_true of n2"},

		{"step", none, func(s *State) { s.Clocks.Anchor.StepsBack = 1 }, "clock_step"},
		{"step, followed at once", none, func(s *State) { s.Clocks.Anchor.StepsForward, s.Clocks.Anchor.Followed = 1, 1 }, "clock_step, clock_step_followed"},
		{"step refuted", none, func(s *State) { s.Clocks.Anchor.Refuted = 1 }, "clock_step_refuted"},
		{"step reverted", none, func(s *State) { s.Clocks.Anchor.Withdrawn = 1 }, "clock_step_reverted"},
		{"step, reverted at once", none, func(s *State) {
			s.Clocks.Anchor.StepsForward, s.Clocks.Anchor.StepsBack, s.Clocks.Anchor.Withdrawn = 1, 1, 1
		}, "clock_step, clock_step_reverted"},
		{"step blocked", none, func(s *State) { s.Clocks.Anchor.Blocked = true }, "clock_step_blocked"},
		{"suspend and stall", none, func(s *State) { s.Clocks.Anchor.Suspends, s.Clocks.Anchor.Stalls = 1, 1 }, "clock_suspend, clock_stall"},

		{"peer silent", none, func(s *State) { s.Clocks.Peers[0].Fresh = false }, "peer_silent of n2"},
		{"peer answers", func(s *State) { s.Clocks.Peers[0].Fresh = false }, none, "peer_answers of n2"},
		{"peer's first answer", func(s *State) {
			s.Clocks.Peers[0] = clock.PeerReport{Name: "n2", Instance: "i2", Verdict: clock.Unverified}
		}, none, ""},
		{"peer shuts", none, func(s *State) { s.Clocks.Peers[0].Verdict = clock.Skewed }, "gate_shut of n2"},
		{"peer opens", func(s *State) { s.Clocks.Peers[0].Verdict = clock.Skewed }, none, "gate_opened of n2"},

		{"quarantine", none, func(s *State) { s.Node.Lease.Quarantined = map[flake.SID]string{3: "by hand"} }, "sid_quarantined sid 3"},
		{"end of a quarantine", func(s *State) { s.Node.Lease.Quarantined = map[flake.SID]string{3: "by hand"} }, none, "sid_usable sid 3"},
		{"a quarantine goes on", func(s *State) { s.Node.Lease.Quarantined = map[flake.SID]string{3: "by hand"} },
			func(s *State) { s.Node.Lease.Quarantined = map[flake.SID]string{3: "its record is damaged"} }, ""},
		{"node joins", none, func(s *State) {
			s.Node.Lease.Nodes = append(slices.Clone(s.Node.Lease.Nodes), lease.Registration{Instance: "i3", Node: "n3"})
		}, "node_joined of n3"},
		{"node leaves", none, func(s *State) { s.Node.Lease.Nodes = s.Node.Lease.Nodes[:1] }, "node_left of n2"},
		{"node restarts", none, func(s *State) {
			s.Node.Lease.Nodes = []lease.Registration{s.Node.Lease.Nodes[0], {Instance: "i3", Node: "n2"}}
		}, "node_left of n2, node_joined of n2"},
		{"first list", func(s *State) { s.Node.Lease.Listed, s.Node.Lease.Nodes, s.Node.Lease.Holders = false, nil, nil }, none, ""},
		{"holder comes", none, func(s *State) {
			s.Node.Lease.Holders = append(slices.Clone(s.Node.Lease.Holders), lease.Held{SID: 1, Instance: "i3", Node: "n3"})
		}, "holder_came of n3 sid 1"},
		{"holder changes", none, func(s *State) {
			s.Node.Lease.Holders = []lease.Held{s.Node.Lease.Holders[0], {SID: 9, Instance: "i3", Node: "n3"}}
		}, "holder_left of n2 sid 9, holder_came of n3 sid 9"},
		{"worker comes", none, func(s *State) {
			s.Node.Lease.Holders = append(slices.Clone(s.Node.Lease.Holders), lease.Held{SID: 20, Instance: "w", Node: "w1", Worker: true})
		}, "worker_acquired of w1 sid 20"},
		{"worker goes", func(s *State) {
			s.Node.Lease.Holders = []lease.Held{s.Node.Lease.Holders[0], {SID: 9, Instance: "w", Node: "w1", Worker: true}}
		}, func(s *State) { s.Node.Lease.Holders = s.Node.Lease.Holders[:1] }, "worker_released of w1 sid 9"},
		{"first holder", func(s *State) { s.Node.Lease.Holders = nil }, none, "holder_came of n2 sid 9"},
		{"last holder", none, func(s *State) { s.Node.Lease.Holders = nil }, "holder_left of n2 sid 9"},
		{"no holders", func(s *State) { s.Node.Lease.Holders = nil }, func(s *State) { s.Node.Lease.Holders = nil }, ""},
		{"not listed any more", func(s *State) { s.Node.Lease.Quarantined = map[flake.SID]string{3: "by hand"} },
			func(s *State) { s.Node.Lease.Listed, s.Node.Lease.Nodes, s.Node.Lease.Holders = false, nil, nil }, ""},
		{"own holder key", none, func(s *State) { s.Node.Lease.Holders = s.Node.Lease.Holders[1:] }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			old, now := healthy(), healthy()
			tc.old(&old)
			tc.new(&now)
			events := Transitions(&old, now)
			if got := shown(events); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
			for _, e := range events {
				if e.At != int64(now.Node.Now) || e.Message == "" && e.Kind != Standby && e.Kind != HistoryRewound && e.Kind != ClockAhead {
					t.Errorf("%+v: has another time, or no message", e)
				}
			}
		})
	}
}

// TestFacts: attributes tell of the change, and not of all since the start.
func TestFacts(t *testing.T) {
	old := healthy()
	old.Clocks.Anchor = clock.AnchorStats{StepsForward: 5, StepsBack: 7, Suspends: 1, Asleep: time.Hour, Stalled: time.Minute}
	none, followed := func(*State) {}, func(s *State) {
		s.Clocks.Anchor.Followed++
		s.Clocks.Anchor.Ended = clock.AnchorEvent{Held: time.Hour, Lasted: 10 * time.Second, Jump: 59 * time.Minute, By: clock.ByHold}
	}
	for _, tc := range []struct {
		name   string
		change func(*State)
		kind   Kind
		fact   string // "" is the message
		want   string
	}{
		{"steps forward", func(s *State) { s.Clocks.Anchor.StepsForward += 2 }, ClockStep, "steps", "2"},
		{"steps back", func(s *State) { s.Clocks.Anchor.StepsBack += 3 }, ClockStep, "steps", "3"},
		{"suspend", func(s *State) {
			s.Clocks.Anchor.Suspends++
			s.Clocks.Anchor.Asleep += 90 * time.Second
		}, ClockSuspend, "for", "1m30s"},
		{"stall", func(s *State) {
			s.Clocks.Anchor.Stalls++
			s.Clocks.Anchor.Stalled += 3 * time.Second
		}, ClockStall, "for", "3s"},
		{"followed", followed, ClockFollowed, "held", "1h0m0s"},
		{"when", followed, ClockFollowed, "after", "10s"},
		{"how far at once", followed, ClockFollowed, "jump", "59m0s"},
		{"by whom", followed, ClockFollowed, "by", "hold"},
		{"reverted", func(s *State) {
			s.Clocks.Anchor.Withdrawn++
			s.Clocks.Anchor.Ended.Lasted = 4 * time.Second
		}, ClockReverted, "after", "4s"},
		{"end of an outage", none, EtcdAnswers, "after", "1m30s"},
		{"what is left then", none, EtcdAnswers, "window_left", "30s"},
		{"window", func(s *State) { s.EtcdFails = true }, EtcdFailing, "window_left", "30s"},
		{"no window", func(s *State) { s.EtcdFails, s.Node.Holding = true, false }, EtcdFailing, "window_left", "0s"},
		{"last success", func(s *State) { s.EtcdFails, s.EtcdLast = true, 1_795_789_625_124 }, EtcdFailing, "last_success", "2026-11-27T14:27:05.124Z"},
		{"IDs go on", func(s *State) { s.EtcdFails = true }, EtcdFailing, "", "calls to etcd fail: IDs are issued until the window ends"},
		{"there was no ID", func(s *State) { s.EtcdFails, s.Node.Holding = true, false }, EtcdFailing, "",
			"calls to etcd fail: the node has no window, and issues when etcd answers"},
		{"no success", func(s *State) { s.EtcdFails = true }, EtcdFailing, "last_success", "never"},
		{"lost, and why", func(s *State) { s.Node.Lease.Phase, s.Node.Lease.Problem = lease.Lost, "it is away" }, SIDLost, "",
			"sid 4 was lost: IDs are issued up to the confirmed ceiling; it is away"},
		{"lost", func(s *State) { s.Node.Lease.Phase = lease.Lost }, SIDLost, "", "sid 4 was lost: IDs are issued up to the confirmed ceiling"},
		{"unconfirmed", func(s *State) { s.Clocks.Gate.Verdict.Phase = clock.Strict }, GateShut, "",
			"too few peers confirm the clock, and clock.policy is refuse: nothing is issued; check gossip between the nodes"},
		{"wrong", func(s *State) { s.Clocks.Gate.Verdict.Phase = clock.Shut }, GateShut, "",
			"the clocks disagree: nothing is issued; check NTP"},
	} {
		now := healthy()
		now.Clocks.Anchor = old.Clocks.Anchor
		tc.change(&now)
		was := old
		if was.EtcdFails = tc.kind == EtcdAnswers; was.EtcdFails {
			was.EtcdSince = now.Node.Now - 90_000
		}
		events := Transitions(&was, now)
		i := slices.IndexFunc(events, func(e Event) bool { return e.Kind == tc.kind })
		if i < 0 {
			t.Errorf("%s: got %q", tc.name, shown(events))
			continue
		}
		got := events[i].Message
		if tc.fact != "" {
			got = events[i].Attributes[tc.fact]
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// TestAsManyAsFit: of exactly as many events as one transition may have none is left out.
func TestAsManyAsFit(t *testing.T) {
	old, now := healthy(), healthy()
	for i := range maxEvents {
		now.Node.Lease.Nodes = append(now.Node.Lease.Nodes, lease.Registration{Instance: lease.Instance(fmt.Sprint(i)), Node: "n"})
	}
	if events := Transitions(&old, now); len(events) != maxEvents || events[maxEvents-1].Kind != NodeJoined {
		t.Errorf("%d events, the last %+v", len(events), events[len(events)-1])
	}
}

// The first state is that of a process that has started; it lists nobody as new.
func TestFirstState(t *testing.T) {
	if got := shown(Transitions(nil, healthy())); got != "started, gate_opened, sid_acquired sid 4, serving" {
		t.Errorf("got %q", got)
	}
}

// However much happens at once, and whatever names nodes have, events are bounded and
// printable.
func TestBounds(t *testing.T) {
	old, now := healthy(), healthy()
	for i := range 5000 {
		now.Node.Lease.Nodes = append(now.Node.Lease.Nodes, lease.Registration{Instance: lease.Instance(fmt.Sprint(i)), Node: strings.Repeat("\x1b\n<b>\xff", 1000)})
	}
	events := Transitions(&old, now)
	if len(events) != maxEvents+1 || events[maxEvents].Kind != EventsOmitted || events[maxEvents].Attributes["count"] != fmt.Sprint(5000-maxEvents) {
		t.Fatalf("%d events, the last %+v", len(events), events[len(events)-1])
	}
	for _, e := range events {
		if b := JSON(e); len(b) > 8<<10 || strings.ContainsAny(e.Node+e.Message, "\x1b\n") {
			t.Fatalf("%d bytes: %q", len(b), e.Node)
		}
	}
}

// docs/reference/events.md, which the contracts refer to, has every kind.
func TestKindsAreDocumented(t *testing.T) {
	source, err := os.ReadFile("event.go")
	fatal.If(t, err)
	page, err := os.ReadFile("../../../docs/reference/events.md")
	fatal.If(t, err)
	kinds := regexp.MustCompile(`Kind = "(\w+)"`).FindAllSubmatch(source, -1)
	if len(kinds) < 30 {
		t.Fatalf("found %d", len(kinds))
	}
	for _, k := range kinds {
		if !bytes.Contains(page, []byte("`"+string(k[1])+"`")) {
			t.Errorf("docs/reference/events.md has no %s", k[1])
		}
	}
}
