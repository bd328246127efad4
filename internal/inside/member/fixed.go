package member

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Holds is what the volume of a member of fixed name holds for the cluster of its token.
type Holds string

// A member without data writes that it intends to begin the cluster before it begins, so that
// members which crash meanwhile do not wait for each other forever.
const (
	HoldsNothing Holds = "none"
	HoldsIntent  Holds = "intended"
	HoldsData    Holds = "present"
)

// Report is what a member of fixed name says of itself, before its etcd runs and after.
type Report struct {
	Name  string `json:"name"`
	Token string `json:"token"`
	Holds Holds  `json:"data"`
	// Snapshot is the file that it begins a new cluster with; "": with nothing.
	Snapshot string `json:"snapshot,omitempty"`
}

// Fixed is what a member of fixed name knows before its etcd runs.
type Fixed struct {
	Name   string
	Peer   string   // its own peer URL
	Others []string // names of the other members
	Token  string
	Holds  Holds
	// ID is the member ID in the data, 0 if it is not known.
	ID uint64
	// Reports are the last answers of the others by name. One that does not answer is missing.
	Reports map[string]Report
	// Members are those of the cluster as a quorum confirmed them; nil: no quorum answered.
	Members []Member
	// Snapshot is the file that a new cluster begins with; "": with nothing.
	Snapshot string
}

// Decide returns what to do now. Nobody is asked: a member that lost its data is replaced.
func (f Fixed) Decide() Step {
	switch {
	case f.Holds == HoldsData && f.ID != 0 && f.Members != nil && find(f.Members, f.ID) < 0:
		return Step{Action: Discard, ID: f.ID, Why: "this member was removed from the cluster: its data are of no use"}
	case f.Holds == HoldsData:
		return Step{Action: Start, Why: "there are data"}
	case f.Members == nil:
		return f.begin()
	}
	i := slices.IndexFunc(f.Members, func(m Member) bool {
		return m.Name == f.Name || slices.Contains(m.Peers, f.Peer)
	})
	if i < 0 {
		return admit(f.Members)
	}
	if m := f.Members[i]; !m.Learner || m.Name != "" {
		return Step{Action: Remove, ID: m.ID, Why: "the cluster lists this member, whose data are lost"}
	}
	return join(f.Name, f.Peer, f.Members)
}

// begin is the step of a member without data, when no quorum of the others answers.
func (f Fixed) begin() Step {
	var none, present, silent, foreign, differ []string
	for _, name := range f.Others {
		r, ok := f.Reports[name]
		if ok && r.Snapshot != f.Snapshot {
			differ = append(differ, fmt.Sprintf("%s (%s)", name, cmp.Or(r.Snapshot, "none")))
		}
		switch {
		case ok && r.Token != f.Token:
			foreign = append(foreign, fmt.Sprintf("%s (%s)", name, r.Token))
		case r.Holds == HoldsData:
			present = append(present, name)
		case r.Holds == HoldsNothing:
			none = append(none, name)
		case r.Holds != HoldsIntent:
			silent = append(silent, name)
		}
	}
	wait := func(format string, args ...any) Step { return Step{Action: Wait, Why: fmt.Sprintf(format, args...)} }
	switch {
	case len(foreign) > 0:
		return wait("members run another cluster than %s: %s; stop all members, then start them together", f.Token,
			strings.Join(foreign, ", "))
	// Each would have other keys in the one cluster.
	case f.Holds == HoldsIntent && len(differ) > 0:
		return wait("members begin with another snapshot than %s: %s; stop all members, then start them together with "+
			"one snapshot and a new token", cmp.Or(f.Snapshot, "none"), strings.Join(differ, ", "))
	// It decided to begin once, and wrote nothing since: it never voted.
	case f.Holds == HoldsIntent && (len(present) > 0 || len(none) == 0 && len(silent) == 0):
		if f.Snapshot != "" {
			return Step{Action: Restore, Why: "no member has data, and there is a snapshot to begin with"}
		}
		return Step{Action: Begin, Why: "no member has data"}
	case len(silent) > 0:
		return wait("this member has no data, and these do not answer: %s", strings.Join(silent, ", "))
	case len(present) > 0:
		return wait("this member has lost its data, and those that have data are no quorum: %s; if the others have "+
			"lost their volumes, restore a snapshot", strings.Join(present, ", "))
	case f.Holds == HoldsIntent:
		return wait("these have not yet seen that no member has data: %s", strings.Join(none, ", "))
	}
	return Step{Action: Intend, Why: "no member has data"}
}
