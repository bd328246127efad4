package member

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// State is a member and whether it answers.
type State struct {
	Member
	Healthy bool
}

// Quorum says how many voting members there are, how many of them answer, and how many the
// cluster needs.
type Quorum struct {
	Voters, Healthy, Needs int
}

// QuorumOf returns the quorum of members.
func QuorumOf(members []State) (q Quorum) {
	for _, m := range members {
		if m.Learner {
			continue
		}
		q.Voters++
		if m.Healthy {
			q.Healthy++
		}
	}
	q.Needs = q.Voters/2 + 1
	return q
}

// Holds says that the cluster can write.
func (q Quorum) Holds() bool { return q.Voters > 0 && q.Healthy >= q.Needs }

// Spare returns how many more members may fail.
func (q Quorum) Spare() int { return q.Healthy - q.Needs }

// String says it in a sentence.
func (q Quorum) String() string {
	switch s := fmt.Sprintf("%d of %d voting members answer, %d are needed", q.Healthy, q.Voters, q.Needs); {
	case !q.Holds():
		return s + ": there is no quorum"
	case q.Spare() == 0:
		return s + ": the loss of one more stops every write"
	default:
		return fmt.Sprintf("%s: %d more may fail", s, q.Spare())
	}
}

// Errors of Find and Remove.
var (
	ErrNoMember = errors.New("there is no such member")
	ErrQuorum   = errors.New("the quorum would not survive this")
)

// Find returns the member with a name, an ID in hexadecimal, or an address.
//
// It returns ErrNoMember with those that there are.
func Find(members []State, which string) (State, error) {
	var labels []string
	for _, m := range members {
		hosts := func(urls []string) bool {
			return slices.ContainsFunc(urls, func(u string) bool { return HostOf(u) == which })
		}
		if which != "" && (m.Name == which || fmt.Sprintf("%x", m.ID) == which || hosts(m.Peers)) {
			return m, nil
		}
		labels = append(labels, m.Label())
	}
	return State{}, fmt.Errorf("%w: %q; there are %s", ErrNoMember, which, strings.Join(labels, ", "))
}

// Remove answers whether the quorum survives that a member is removed: what holds before and
// after. It returns ErrQuorum if not.
func Remove(members []State, gone State) (before, after Quorum, err error) {
	before = QuorumOf(members)
	rest := slices.DeleteFunc(slices.Clone(members), func(m State) bool { return m.ID == gone.ID })
	after = QuorumOf(rest)
	switch {
	case !before.Holds():
		return before, after, fmt.Errorf("%w: %v. Start a member that has its data; if a majority lost theirs, "+
			"restore a snapshot", ErrQuorum, before)
	case !gone.Learner && !after.Holds():
		return before, after, fmt.Errorf("%w: without %s %v", ErrQuorum, gone.Label(), after)
	}
	return before, after, nil
}

// HostOf returns the host of a URL, without brackets.
func HostOf(u string) string {
	_, rest, ok := strings.Cut(u, "://")
	if !ok {
		rest = u
	}
	rest, _, _ = strings.Cut(rest, "/")
	if i := strings.LastIndex(rest, ":"); i > strings.LastIndex(rest, "]") {
		rest = rest[:i]
	}
	return strings.Trim(rest, "[]")
}
