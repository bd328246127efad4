package history

import (
	"fmt"
	"slices"

	"github.com/flakelease/allocator/internal/clock"
)

// Deadlines checks that nodes refuse in time. A fault may name a reason with
// which its targets Must refuse from a deadline on: no call that began after the deadline
// and ended before the stop got IDs, and each refusal had that reason, or a reason
// of May. A run in which no client asked a target after
// its deadline, or in which such a fault names no targets, shows nothing.
type Deadlines struct {
	findings
	calls
	faults
	due     map[*injection]map[string]*duty
	order   []*duty
	aimless string // a fault without a node that has to refuse
}

// duty is what a target of a fault did after the deadline.
type duty struct {
	on      *injection
	node    string
	refused int64 // as it must
	late    int64 // calls that began after the deadline and failed
	worst   clock.Mono
}

// NewDeadlines returns the check.
func NewDeadlines() *Deadlines { return &Deadlines{due: map[*injection]map[string]*duty{}} }

// Add takes calls and faults.
func (d *Deadlines) Add(op *Op) {
	if i := d.faults.take(op); i != nil && i.fault.Must != "" {
		switch op.Fault.Phase {
		case FaultStart:
			d.due[i] = map[string]*duty{}
			if len(i.fault.Targets) == 0 {
				d.aimless = fmt.Sprintf("%s (%d) has to be refused with %s, and names no target", i.f, i.fault.ID,
					i.fault.Must)
			}
			for _, node := range i.fault.Targets {
				d.due[i][node] = &duty{on: i, node: node}
				d.order = append(d.order, d.due[i][node])
			}
		case FaultStop:
			delete(d.due, i)
		}
	}
	a, done := d.calls.take(op)
	if !done || len(d.due) == 0 {
		return
	}
	for i, nodes := range d.due {
		duty := nodes[op.Node]
		if duty == nil {
			continue
		}
		deadline := i.at + clock.Mono(i.fault.DeadlineMs*1e6)
		if op.Type == Fail && op.Reason == i.fault.Must {
			if duty.refused == 0 {
				duty.worst = op.Time - i.at
			}
			duty.refused++
		}
		if a.at <= deadline {
			continue
		}
		if op.Type == Fail {
			duty.late++
		}
		switch {
		case op.Type == OK:
			d.add("refusal", op.Time, "%s (%d) began at %.3f s; %s still answered %v to a call of %.3f s, after its "+
				"deadline of %d ms",
				i.f, i.fault.ID, seconds(i.at), op.who(), op.Block.First, seconds(a.at), i.fault.DeadlineMs)
		case op.Type == Fail && op.Reason != i.fault.Must && !allows(i.fault.May, op.Reason):
			d.add("refusal", op.Time, "%s (%d): %s refused with %s, not with %s",
				i.f, i.fault.ID, op.who(), op.Reason, i.fault.Must)
		}
	}
}

// Finish returns what was found.
func (d *Deadlines) Finish() Result {
	missing := d.aimless
	var slowest clock.Mono
	var firsts []FirstRefusal
	for _, duty := range d.order {
		slowest = max(slowest, duty.worst)
		switch {
		case duty.refused > 0:
			firsts = append(firsts, FirstRefusal{duty.on.f, duty.on.fault.ID, duty.node, int64(duty.worst) / 1e6})
		case missing == "":
			missing = fmt.Sprintf("%s (%d): no call was seen refused by %s with %s",
				duty.on.f, duty.on.fault.ID, duty.node, duty.on.fault.Must)
		}
		if duty.late == 0 && missing == "" {
			missing = fmt.Sprintf("%s (%d): no client asked %s after its deadline of %d ms", duty.on.f,
				duty.on.fault.ID, duty.node, duty.on.fault.DeadlineMs)
		}
	}
	if len(d.order) == 0 && missing == "" {
		missing = "no fault had nodes refuse"
	}
	r := d.result("deadlines", "refusal in time", fmt.Sprintf("%d times a node had to refuse", len(d.order)), missing)
	r.Refused = firsts
	if slowest > 0 {
		r.Measurements = []Measurement{{"slowest refusal", float64(slowest) / 1e6, "ms"}}
	}
	return r
}

func seconds(t clock.Mono) float64 { return float64(t) / 1e9 }

// allows reports whether a list of reasons holds one, or "*".
func allows(may []string, reason string) bool {
	return slices.Contains(may, reason) || slices.Contains(may, "*")
}

// ReasonStopped is the reason of calls that the harness itself ended.
const ReasonStopped = "STOPPED"

// never are reasons that say nothing of the cluster: the caller's faults,
// demand above the cap, and calls that the harness ended.
var never = []string{
	"INVALID_COUNT", "INVALID_FORMAT", "INVALID_ID", "AFTER_TOO_FAR", "ENTROPY_OVERFLOW",
	"UNAUTHENTICATED", "PERMISSION_DENIED", "RATE_LIMITED", "WORKERS_OFF", "CALLER_CLOCK", "UNKNOWN_WORKER",
	"WORKER_QUOTA", "NO_WORKER", ReasonStopped,
}

// Refusals checks that no call is refused without cause: no call fails while no
// fault's effects last, and while some do, only calls of their targets, with
// reasons that a fault of that target May have. A fault of one node excuses no
// other. A call that names no node may have asked any, so faults excuse it only if
// they excuse every node of the run. A call whose outcome is unknown counts as failed
// with its reason.
type Refusals struct {
	findings
	calls
	faults
	nodes          []string   // the run has these
	inCalm, failed int64      // calls
	quiet          clock.Mono // time without faults, up to since
	last           clock.Mono
}

// NewRefusals returns the check.
func NewRefusals() *Refusals { return &Refusals{} }

// Add takes calls and faults.
func (r *Refusals) Add(op *Op) {
	if r.calm(r.last, op.Time) {
		r.quiet += op.Time - r.last
	}
	r.last = op.Time
	if op.Setup != nil {
		r.nodes = op.Setup.Nodes
	}
	r.faults.take(op)
	a, done := r.calls.take(op)
	if !done {
		return
	}
	calm := r.calm(a.at, op.Time)
	if calm {
		r.inCalm++
	}
	if op.Type == OK || slices.Contains(never, op.Reason) {
		return
	}
	r.failed++
	if calm {
		r.add("no false refusal", op.Time, "%s failed a call in calm: %s", op.who(), op.Reason)
		return
	}
	asked := []string{op.Node}
	if op.Node == "" && len(r.nodes) > 0 {
		asked = r.nodes
	}
	excused, names := map[string]bool{}, ""
	r.during(a.at, op.Time, func(i *injection) {
		names += " " + i.f
		if !allows(i.fault.May, op.Reason) && (i.fault.Must == "" || i.fault.Must != op.Reason) {
			return
		}
		for _, node := range asked {
			excused[node] = excused[node] || i.targets(node)
		}
	})
	if slices.ContainsFunc(asked, func(node string) bool { return !excused[node] }) {
		r.add("no false refusal", op.Time, "%s failed a call with %s, which no fault of its own explains:%s",
			op.who(), op.Reason, names)
	}
}

// Finish returns what was found.
func (r *Refusals) Finish() Result {
	missing := ""
	if r.inCalm == 0 {
		missing = "no call was made in calm"
	}
	res := r.result("refusals", "no false refusal",
		fmt.Sprintf("%d calls in calm, %d failed during faults", r.inCalm, r.failed-r.count), missing)
	res.Measurements = []Measurement{{"calm", seconds(r.quiet), "s"}}
	if r.last > 0 {
		res.Measurements = append(res.Measurements,
			Measurement{"calm share", 100 * float64(r.quiet) / float64(r.last), "%"})
	}
	return res
}
