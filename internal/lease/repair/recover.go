package repair

import (
	"fmt"
	"strings"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Witness is a running process that was asked what it has seen, whatever etcd
// has now.
type Witness struct {
	Name    string
	Era     int64
	Highest clock.Millis // highest ceiling ever confirmed to it; 0: none
}

// Era is the era that an operator begins, and what it was worked out from.
type Era struct {
	Era       lease.Era
	Slack     Slack        // with the window that nodes seem to have
	Highest   clock.Millis // highest ceiling that anything shows; 0: none
	HighestOf string       // what shows it
	Warnings  []string
}

// NextEra returns the era to begin after etcd's history went back: its number is
// above every one that etcd or a witness has seen, and its floor above every
// ceiling that they have seen, by what a node that nobody asked can have been
// granted beyond. It is to be written only if the era is as in v, by revision
// and by value.
//
// floor, if not 0, is the operator's instead: for where a bad clock has made a
// ceiling that would keep all nodes waiting for years. It cannot lie below
// now + W + 2·max_skew + max_lead.
//
// It returns ErrNotInitialized or ErrRefused.
func NextEra(v lease.View, asked []Witness, floor clock.Millis, slack Slack, now clock.Millis) (Era, error) {
	if !v.Config.Exists() {
		return Era{}, fmt.Errorf("%w: it has no config, so there is no era to follow. If etcd was lost with all its data, or this is another etcd, "+
			"run «allocator init» without --fresh: its floor does the same work; restart nodes that ran before. If it was restored, it was from before «allocator init»: "+
			"run that, without --fresh", ErrNotInitialized)
	}
	e := Era{Slack: slack.widened(v.SIDs)}
	number := v.Era.Value.Number // 0 where it is missing or unreadable
	if !v.Era.Exists() || v.Era.Err != nil {
		e.Warnings = append(e.Warnings, "the present era is missing or unreadable: its number is taken from window records and nodes")
	}
	if e.Slack.Window > slack.Window {
		e.Warnings = append(e.Warnings, fmt.Sprintf("records show windows of %v, and lease.window is %v here: the larger one counts", e.Slack.Window, slack.Window))
	}
	least := now + e.Slack.Total()
	far := max(now, v.Era.Value.Floor) + e.Slack.Total() // sids are taken before the floor is reached
	var sound clock.Millis                               // highest of those that are not far in the future
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
	for _, sid := range ordered(v.SIDs) {
		s := v.SIDs[sid]
		if s.Window.Err != nil {
			e.Warnings = append(e.Warnings, fmt.Sprintf("the record of sid %d is unreadable: it stays quarantined (release-sid)", sid))
			continue
		}
		number = max(number, s.Window.Value.Era)
		see(s.Window.Value.Ceil, fmt.Sprintf("sid %d in etcd", sid))
	}
	for _, w := range asked {
		number = max(number, w.Era)
		see(w.Highest, "node "+w.Name)
	}
	e.Era = lease.Era{Number: number + 1, Floor: max(sound, now) + e.Slack.Total(), Cluster: v.Cluster}
	switch {
	case floor == 0 && len(distant) > 0:
		return e, refuse("ceilings lie far in the future by this machine's clock, which shows %s: %s. Is that clock right? If it is, a bad clock wrote them, "+
			"and an era above them would keep every node waiting until then. Stop the node that did it, take that sid out of use with «allocator admin quarantine», "+
			"and give the floor yourself, at least --floor %s", At(now), strings.Join(distant, "; "), At(e.Era.Floor))
	case floor == 0:
		return e, nil
	case floor < least:
		return e, refuse("the floor has to be %s or later: nodes can have been granted that much", At(least))
	}
	for _, d := range distant {
		e.Warnings = append(e.Warnings, d+", which the floor given may lie below: that sid must not be used before it")
	}
	if floor < e.Era.Floor {
		e.Warnings = append(e.Warnings, fmt.Sprintf("the floor given lies below %s, which what was seen asks for", At(e.Era.Floor)))
	}
	e.Era.Floor = floor
	return e, nil
}
