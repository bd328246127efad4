package cluster

import (
	"fmt"
	"io"
	"strings"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/text"
)

// peerLine is the clock of one node as the one asked sees it. Times are in µs.
type peerLine struct {
	Verdict     string `json:"verdict"` // its own
	SID         int32  `json:"sid"`     // as it reports it
	Fresh       bool   `json:"fresh"`   // sampled lately: the values below are valid
	Offset      int64  `json:"offset_us"`
	Error       int64  `json:"error_us"`
	Wall        int64  `json:"wall_offset_us"`
	RTT         int64  `json:"rtt_us"`
	Age         int64  `json:"age_us"`
	Self        bool   `json:"self"` // it is the one asked
	Falseticker bool   `json:"falseticker"`
}

func newPeerLine(c *pb.PeerClock) *peerLine {
	if c == nil {
		return nil
	}
	return &peerLine{
		c.GetVerdict(), c.GetSid(), c.GetFresh(), c.GetOffsetUs(), c.GetErrorUs(), c.GetWallOffsetUs(),
		c.GetRttUs(), c.GetAgeUs(), c.GetSelf(), c.GetFalseticker(),
	}
}

// columns returns what the table shows under LAST HEARD, CLOCK VERDICT and CLOCK OFFSET.
func (p *peerLine) columns() (heard, verdict, offset string) {
	switch {
	case p == nil:
		return "never", "-", "-"
	case p.Self:
		heard, verdict, offset = "(this node)", p.Verdict, "-"
	case !p.Fresh:
		heard, verdict, offset = fmt.Sprintf("%.1fs ago", float64(p.Age)/1e6), "silent", "-"
	default:
		heard, verdict, offset = fmt.Sprintf("%.1fs ago", float64(p.Age)/1e6), p.Verdict, clock.FormatOffset(micros(p.Offset), micros(p.Error))
	}
	if p.Falseticker {
		offset += " FALSE"
	}
	return heard, verdict, offset
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// clockLine is what the node asked knows of its clock. Times are in µs.
type clockLine struct {
	State         string     `json:"state"`
	Phase         string     `json:"phase"`
	Finding       string     `json:"finding"`
	Known         bool       `json:"known"` // a quorum agrees on offset ± uncertainty
	Offset        int64      `json:"offset_us"`
	Uncertainty   int64      `json:"uncertainty_us"`
	Limit         int64      `json:"limit_us"`
	Registered    int32      `json:"registered"`
	Quorum        int32      `json:"quorum"`
	Agree         int32      `json:"agree"`
	Disagree      int32      `json:"disagree"`
	Ambiguous     int32      `json:"ambiguous"`
	Silent        int32      `json:"silent"`
	Falsetickers  []string   `json:"falsetickers"`
	Shuts         int64      `json:"shuts"`
	Unverified    int64      `json:"unverified_us"`
	StepsForward  int64      `json:"steps_forward"`
	StepsBack     int64      `json:"steps_back"`
	StepPending   bool       `json:"step_pending"`
	StepBlocked   bool       `json:"step_blocked"`
	Held          int64      `json:"held_us"`
	Suspends      int64      `json:"suspends"`
	Stalls        int64      `json:"stalls"`
	Kernel        kernelLine `json:"kernel"`
	GossipMembers int32      `json:"gossip_members"`
	GossipAddress string     `json:"gossip_address"`
}

type kernelLine struct {
	Known        bool  `json:"known"`
	Synchronized bool  `json:"synchronized"`
	MaxError     int64 `json:"max_error_us"`
}

func newClockLine(c *pb.Clock) *clockLine {
	if c == nil {
		return nil
	}
	k := c.GetKernel()
	return &clockLine{
		State: c.GetState(), Phase: c.GetPhase(), Finding: c.GetFinding(), Known: c.GetKnown(),
		Offset: c.GetOffsetUs(), Uncertainty: c.GetUncertaintyUs(), Limit: c.GetLimitUs(),
		Registered: c.GetRegistered(), Quorum: c.GetQuorum(),
		Agree: c.GetAgree(), Disagree: c.GetDisagree(), Ambiguous: c.GetAmbiguous(), Silent: c.GetSilent(),
		Falsetickers: append([]string{}, c.GetFalsetickers()...), Shuts: c.GetShuts(), Unverified: c.GetUnverifiedUs(),
		StepsForward: c.GetStepsForward(), StepsBack: c.GetStepsBack(),
		StepPending: c.GetStepPending(), StepBlocked: c.GetStepBlocked(), Held: c.GetHeldUs(),
		Suspends: c.GetSuspends(), Stalls: c.GetStalls(),
		Kernel:        kernelLine{k.GetKnown(), k.GetSynchronized(), k.GetMaxErrorUs()},
		GossipMembers: c.GetGossipMembers(), GossipAddress: c.GetGossipAddress(),
	}
}

// print writes two lines: the agreement with the others, and the machine's clock.
func (c *clockLine) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "clock: %s (%s, %s); %d of %s agree, %d are a majority", c.State, c.Phase, c.Finding,
		c.Agree, text.Count(int(c.Registered), "node"), c.Quorum)
	if c.Known {
		fmt.Fprintf(&b, "; the cluster's time minus its own is %s", clock.FormatOffset(micros(c.Offset), micros(c.Uncertainty)))
	}
	if len(c.Falsetickers) > 0 {
		fmt.Fprintf(&b, "; wrong clocks: %s", strings.Join(c.Falsetickers, ", "))
	}
	fmt.Fprintf(&b, "\n       steps %d forward, %d back; suspends %d; stalls %d; kernel %s; gossip %s",
		c.StepsForward, c.StepsBack, c.Suspends, c.Stalls, c.Kernel, text.Count(int(c.GossipMembers), "member"))
	if c.StepPending {
		fmt.Fprintf(&b, "\n       a step of the wall clock is not followed yet: it differs from the time of IDs by %v", micros(c.Held).Round(100*time.Microsecond))
		if c.StepBlocked {
			b.WriteString("; it is beyond clock.step-limit: set the clock right, or if it is right run \"allocator admin accept-time\"")
		}
	}
	_, err := fmt.Fprintln(w, b.String())
	return err
}

func (k kernelLine) String() string {
	switch {
	case !k.Known:
		return "unknown"
	case k.Synchronized:
		return fmt.Sprintf("synchronized within %.1fms", float64(k.MaxError)/1e3)
	}
	return "unsynchronized"
}
