// Package etcdpod decides what a member of an etcd cluster of fixed names does when it
// starts, as each pod of the chart's etcd does: begin a new cluster, go on from its data,
// or take the place of a member that lost them.
//
// It upholds one rule: a member that may have voted or acknowledged a write never comes
// back under its old ID without its data, since raft counts on what it promised. A member
// without data begins a new cluster only after every other has said that it has no data
// either. Otherwise it waits for a quorum of the others, has its predecessor removed, and
// joins as a learner, which votes for nothing until it has all data.
//
// The package does no I/O. Its callers ask Decide again after each step that changes what
// is seen, so that a crash between two steps is one more case of the same table.
package etcdpod

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Data is what a member's volume holds for the cluster of its token.
type Data string

// A member without data writes that it intends to begin the cluster before it begins, so that
// members which crash meanwhile do not wait for each other forever.
const (
	DataNone     Data = "none"
	DataIntended Data = "intended"
	DataPresent  Data = "present"
)

// Report is what a configured member says of itself, before its etcd runs and after.
type Report struct {
	Name  string `json:"name"`
	Token string `json:"token"`
	Data  Data   `json:"data"`
}

// Listed is a member as etcd's list has it. The name is empty until its etcd has started.
type Listed struct {
	ID      uint64
	Name    string
	Peers   []string
	Learner bool
}

// Seen is what a member knows before its etcd runs.
type Seen struct {
	Name   string
	Peer   string   // its own peer URL
	Others []string // names of the other configured members
	Token  string
	Data   Data
	// ID is the member ID in the data, 0 if it is not known.
	ID uint64
	// Reports are the last answers of the others by name. One that does not answer is missing.
	Reports map[string]Report
	// List is the list of members as a quorum confirmed it; nil: no quorum answered.
	List []Listed
	// Snapshot is the file that a new cluster begins with; "": with nothing.
	Snapshot string
}

// Do is one step.
type Do string

// The steps. After Intend, Discard, Remove and Add the caller asks again; Wait asks again after
// some time. The others start etcd.
const (
	Wait      Do = "wait"      // for what Why says
	Intend    Do = "intend"    // write durably that this member begins the cluster
	Discard   Do = "discard"   // move the data of a removed member out of the way
	Remove    Do = "remove"    // have the predecessor, Member, removed from the list
	Add       Do = "add"       // have this member added as a learner
	Start     Do = "start"     // etcd goes on from its data
	Bootstrap Do = "bootstrap" // etcd begins a new cluster with all configured members
	Restore   Do = "restore"   // etcd begins a new cluster with the snapshot
	Join      Do = "join"      // etcd starts as the learner that the list has, and is promoted
)

// Step is what to do, and why, for people.
type Step struct {
	Do     Do
	Member uint64
	Why    string
}

// Decide returns the next step of a member whose etcd does not run.
func Decide(s Seen) Step {
	if s.Data == DataPresent {
		if s.ID != 0 && s.List != nil && !slices.ContainsFunc(s.List, func(l Listed) bool { return l.ID == s.ID }) {
			return Step{Discard, s.ID, "this member was removed from the cluster: its data are of no use"}
		}
		return Step{Do: Start, Why: "there are data"}
	}
	if s.List != nil {
		return replace(s)
	}
	return begin(s)
}

// replace is the step of a member without data, when others have a quorum.
func replace(s Seen) Step {
	i := slices.IndexFunc(s.List, func(l Listed) bool { return l.Name == s.Name || slices.Contains(l.Peers, s.Peer) })
	if i < 0 {
		if slices.ContainsFunc(s.List, func(l Listed) bool { return l.Learner }) {
			return Step{Do: Wait, Why: "another member is joining"}
		}
		return Step{Do: Add, Why: "the cluster does not list this member"}
	}
	l := s.List[i]
	if l.Learner && l.Name == "" {
		return Step{Join, l.ID, "the cluster expects this member as a learner"}
	}
	return Step{Remove, l.ID, "the cluster lists this member, whose data are lost"}
}

// begin is the step of a member without data, when no quorum of the others answers.
func begin(s Seen) Step {
	var none, present, silent, foreign []string
	for _, name := range s.Others {
		r, ok := s.Reports[name]
		switch {
		case !ok:
			silent = append(silent, name)
		case r.Token != s.Token:
			foreign = append(foreign, fmt.Sprintf("%s (%s)", name, r.Token))
		case r.Data == DataPresent:
			present = append(present, name)
		case r.Data == DataNone:
			none = append(none, name)
		}
	}
	new := Step{Do: Bootstrap, Why: "no member has data"}
	if s.Snapshot != "" {
		new = Step{Do: Restore, Why: "no member has data, and there is a snapshot to begin with"}
	}
	switch {
	case len(foreign) > 0:
		return Step{Do: Wait, Why: fmt.Sprintf("members run another cluster than %s: %s; stop all members, then start "+
			"them together", s.Token, strings.Join(foreign, ", "))}
	// It decided to begin once, and wrote nothing since: it never voted.
	case s.Data == DataIntended && (len(present) > 0 || len(none) == 0 && len(silent) == 0):
		return new
	case len(silent) > 0:
		return Step{Do: Wait, Why: "this member has no data, and these do not answer: " + strings.Join(silent, ", ")}
	case len(present) > 0:
		return Step{Do: Wait, Why: fmt.Sprintf("this member has lost its data, and those that have data are no "+
			"quorum: %s; if the others have lost their volumes, restore a snapshot", strings.Join(present, ", "))}
	case s.Data == DataIntended:
		return Step{Do: Wait, Why: "these have not yet seen that no member has data: " + strings.Join(none, ", ")}
	}
	return Step{Do: Intend, Why: "no member has data"}
}

// Condition is the state of a running member.
type Condition struct {
	Endpoint string
	Leader   bool
	Healthy  bool
	Size     int64 // bytes of the database on disk
	Used     int64 // bytes that hold something
}

// Defragment returns the endpoints to defragment, one after the other and the leader last, whose databases
// could shrink by at least least bytes. It returns an error if a member is not healthy: a
// member that defragments answers nobody, and one that is away already is enough.
func Defragment(members []Condition, least int64) ([]string, error) {
	for _, m := range members {
		if !m.Healthy {
			return nil, fmt.Errorf("defragment: %s is not healthy: nothing is done while a member is away; bring it "+
				"back first", m.Endpoint)
		}
	}
	sorted := slices.SortedStableFunc(slices.Values(members), func(a, b Condition) int {
		if a.Leader != b.Leader {
			return map[bool]int{false: -1, true: 1}[a.Leader]
		}
		return cmp.Compare(a.Endpoint, b.Endpoint)
	})
	var out []string
	for _, m := range sorted {
		if m.Size-m.Used >= least {
			out = append(out, m.Endpoint)
		}
	}
	return out, nil
}

// Suffix ends the names of complete snapshots, which sort by their time.
const Suffix = ".snapshot"

// Expired returns those of the files in a directory to remove, so that keep snapshots are left: the
// oldest snapshots, and nothing else.
func Expired(files []string, keep int) []string {
	var snapshots []string
	for _, f := range files {
		if strings.HasSuffix(f, Suffix) {
			snapshots = append(snapshots, f)
		}
	}
	slices.Sort(snapshots)
	return snapshots[:max(0, len(snapshots)-keep)]
}
