package cluster

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/text"
)

// columns returns what the table shows under LAST HEARD, CLOCK VERDICT and CLOCK OFFSET.
func columns(p *status.PeerClock) (heard, verdict, offset string) {
	switch {
	case p == nil:
		return "never", "-", "-"
	case p.Self:
		heard, verdict, offset = "(this node)", p.Verdict, "-"
	case !p.Fresh:
		heard, verdict, offset = text.Seconds(p.Age/1000)+" ago", "silent", "-"
	default:
		heard, verdict = text.Seconds(p.Age/1000)+" ago", p.Verdict
		offset = clock.FormatOffset(micros(p.Offset), micros(p.Error))
	}
	if p.Falseticker {
		offset += " FALSE"
	}
	return heard, verdict, offset
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// printClock writes two lines: the agreement with the others, and the machine's clock.
func printClock(w io.Writer, c *status.Clock) error {
	var b strings.Builder
	fmt.Fprintf(&b, "clock: %s (%s, %s); %d of %s agree, %d are a majority", c.State, c.Phase, c.Finding,
		c.Agree, text.Count(c.Registered, "node"), c.Quorum)
	if c.Known {
		fmt.Fprintf(&b, "; the cluster's time minus its own is %s",
			clock.FormatOffset(micros(c.Offset), micros(c.Uncertainty)))
	}
	if len(c.Falsetickers) > 0 {
		fmt.Fprintf(&b, "; wrong clocks: %s", strings.Join(c.Falsetickers, ", "))
	}
	fmt.Fprintf(&b, "\n       steps %d forward, %d back; suspends %d; stalls %d; kernel %s; gossip %s",
		c.StepsForward, c.StepsBack, c.Suspends, c.Stalls, kernel(c.Kernel), text.Count(c.GossipMembers, "member"))
	if c.StepPending {
		fmt.Fprintf(&b, "\n       a step of the wall clock is not followed yet: it differs from the time of IDs by %v",
			micros(c.Held).Round(100*time.Microsecond))
		if c.StepBlocked {
			b.WriteString("; it is beyond what nodes follow: set the clock right, " +
				"or if it is right run \"allocator admin accept-time\"")
		}
	}
	_, err := fmt.Fprintln(w, b.String())
	return err
}

func kernel(k status.KernelClock) string {
	switch {
	case !k.Known:
		return "unknown"
	case k.Synchronized:
		return fmt.Sprintf("synchronized within %.1fms", float64(k.MaxError)/1e3)
	}
	return "unsynchronized"
}
