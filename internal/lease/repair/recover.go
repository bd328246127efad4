package repair

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// NodeReport is the answer of a running node that was asked what etcd has
// confirmed to it, whatever etcd has now. Highest is the highest ceiling ever, or 0.
type NodeReport struct {
	Name    string
	Era     int64
	Highest clock.Millis
}

// Era is the era that an operator begins, and what it was derived from. Bounds have the
// window that the records show. Highest is the highest ceiling in a record or report, or
// 0, and HighestOf the record or node that has it.
type Era struct {
	Era       lease.Era
	Bounds    lease.Bounds
	Highest   clock.Millis
	HighestOf string
	Warnings  []string
}

// NextEra returns the era to begin after etcd's history went back. Its number is
// above that of every era in etcd and in the reports. Its floor is above every
// ceiling there, and above the present floor, by [lease.Bounds.Slack]: records that were lost and
// nodes that did not report can have as much. The era is to be written only if the
// one in etcd is as in v, by revision and by value.
//
// floor, if not 0, replaces the computed one, for a space where a wrong clock wrote
// a ceiling that all nodes would wait for. It must be at least
// now + W + 2·max_skew + max_lead.
//
// It returns ErrNotInitialized or ErrRefused.
func NextEra(
	v lease.View, reports []NodeReport, floor clock.Millis, bounds lease.Bounds, now clock.Millis,
) (e Era, _ error) {
	if !v.Config.Exists() {
		return e, fmt.Errorf("%w: it has no config, so there is no era to follow; "+
			"run \"allocator init\" without --fresh: its floor does the same. "+
			"If etcd lost all its data, or this is another etcd, also restart the nodes that ran before",
			ErrNotInitialized)
	}
	e.Bounds, e.Warnings = widened(bounds, v.SIDs)
	number := v.Era.Value.Number // It is 0 if the era is missing or unreadable.
	if !v.Era.Exists() || v.Era.Err != nil {
		e.Warnings = append(e.Warnings, "the era is missing or unreadable: "+
			"its number is taken from window records and nodes")
	}
	if longest := max(bounds.Window, bounds.WorkerWindow); e.Bounds.Window > longest {
		e.Warnings = append(e.Warnings, fmt.Sprintf("records have windows of %v, and lease.window is %v here: "+
			"the larger one is used", e.Bounds.Window, longest))
	}
	minimum := now + e.Bounds.Slack()
	// Sids are acquired before the floor is reached. sound is the highest ceiling that is not
	// beyond far.
	far := e.Bounds.SoundBy(now, v.Era.Value, true)
	var sound clock.Millis
	var distant []string
	see := func(ceil clock.Millis, who string) {
		if ceil > e.Highest {
			e.Highest, e.HighestOf = ceil, who
		}
		if ceil > far {
			distant = append(distant, fmt.Sprintf("%s has %s", who, At(ceil)))
		} else {
			sound = max(sound, ceil)
		}
	}
	for _, sid := range slices.Sorted(maps.Keys(v.SIDs)) {
		s := v.SIDs[sid]
		if s.Window.Err != nil {
			e.Warnings = append(e.Warnings, fmt.Sprintf("the record of sid %d is unreadable: "+
				"it stays quarantined (release-sid)", sid))
			continue
		}
		number = max(number, s.Window.Value.Era)
		see(s.Window.Value.Ceil, fmt.Sprintf("sid %d in etcd", sid))
	}
	for _, w := range reports {
		number = max(number, w.Era)
		see(w.Highest, "node "+w.Name)
	}
	ofSIDs := len(distant)
	see(v.Mark.Value.At, "the watermark")
	// Windows of the present era begin at its floor or later, so floors never fall.
	e.Era = lease.Era{
		Number:  number + 1,
		Floor:   max(sound, now, v.Era.Value.Floor) + e.Bounds.Slack(),
		Cluster: v.Cluster,
	}
	switch {
	case floor == 0 && len(distant) > 0:
		return e, refuse("ceilings are far in the future by this machine's clock, which reads %s: %s. "+
			"Check that clock. If it is correct, a wrong clock wrote the ceilings, "+
			"and every node would wait until then. Stop the node with the wrong clock, "+
			"run \"allocator admin quarantine\" for its sid, "+
			"and set the floor yourself, at least --floor %s", At(now), strings.Join(distant, "; "), At(e.Era.Floor))
	case floor == 0 && v.Era.Value.Floor > minimum:
		e.Warnings = append(e.Warnings, fmt.Sprintf("the floor of era %d is %s, and the new one is above it: "+
			"nothing is issued before that. "+
			"If a wrong clock made the old floor, set the new one yourself, at least --floor %s", v.Era.Value.Number,
			At(v.Era.Value.Floor), At(minimum)))
		return e, nil
	case floor == 0:
		return e, nil
	case floor < minimum:
		return e, refuse("the floor must be %s or later: nodes can have been granted that much", At(minimum))
	}
	if v.Mark.Err != nil {
		e.Warnings = append(e.Warnings, "the record of the watermark is unreadable: if the given floor is below a "+
			"watermark that was answered, IDs below that are issued, and readers miss them")
	}
	if floor <= v.Mark.Value.At {
		e.Warnings = append(e.Warnings, fmt.Sprintf("the given floor is not above the watermark, %s: readers may have "+
			"passed IDs that are issued from the floor on, and the watermark begins anew", At(v.Mark.Value.At)))
	}
	for _, d := range distant[:ofSIDs] {
		e.Warnings = append(e.Warnings, d+", and the given floor may be below that: quarantine the sid until then")
	}
	if floor < v.Era.Value.Floor {
		e.Warnings = append(e.Warnings, fmt.Sprintf("the given floor is below %s, that of era %d: "+
			"a node that was granted a window above the given floor may issue the same IDs",
			At(v.Era.Value.Floor), v.Era.Value.Number))
	}
	if floor < e.Era.Floor {
		e.Warnings = append(e.Warnings, fmt.Sprintf("the given floor is below %s, "+
			"the one computed from records and nodes", At(e.Era.Floor)))
	}
	e.Era.Floor = floor
	return e, nil
}
