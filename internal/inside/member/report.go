package member

import (
	"cmp"
	"fmt"
)

// Holds is what the volume of a member of fixed name holds for the cluster of its token.
type Holds string

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

// Answer returns what r says to a member that reports own and has a list.
func (r Report) Answer(own Report, join []string) Answer {
	switch {
	case r.Token != own.Token:
		return Answer{Err: fmt.Errorf("it runs another cluster (%s, not %s): stop all members, then start them "+
			"together", r.Token, own.Token)}
	// Each would have other keys in the one cluster. Who does not intend to begin does not where others have data.
	case r.Snapshot != own.Snapshot && (r.Holds != HoldsData || own.Holds == HoldsIntent):
		return Answer{Err: fmt.Errorf("it begins with another snapshot (%s, not %s): stop all members, then start "+
			"them together with one snapshot and a new token", cmp.Or(r.Snapshot, "none"),
			cmp.Or(own.Snapshot, "none"))}
	case r.Holds == HoldsNothing, r.Holds == HoldsIntent:
		return Answer{Waiting: &Waiting{Host: r.Name, Node: r.Name, Process: r.Name, Join: join,
			Intends: r.Holds == HoldsIntent}}
	}
	return Answer{Began: r.Holds == HoldsData}
}

// Knows reports whether the member may say who belongs to the cluster of a token: it has data.
func (r Report) Knows(token string) bool { return r.Token == token && r.Holds == HoldsData }
