package member

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Status is what one member says of itself. If Err is set, it did not answer or refused, and what
// follows is zero.
type Status struct {
	Member   // Of one that is known by its endpoint alone it has the ID, and whether it votes.
	Endpoint string
	Took     time.Duration // 0: it was not measured.
	Err      error
	Cluster  uint64
	Version  string
	Leader   bool // It knows of a leader.
	Leads    bool // It is the leader itself.
	Revision int64
	Applied  uint64 // It has applied so many entries of the log.
	Lag      uint64 // It has applied so many less than the one that applied most.
	// Size is that of the database on disk in bytes, InUse what holds something, and Quota its
	// maximum. Old versions of etcd do not report a quota, and it is 0.
	Size, InUse, Quota int64
	Alarms, Problems   []string
}

// Quorum says how many voting members there are, how many of them answer, and how many the
// cluster needs.
type Quorum struct {
	Voters, Healthy, Needs int
}

// QuorumOf returns the quorum of members.
func QuorumOf(members []Status) (q Quorum) {
	for _, m := range members {
		if m.Learner {
			continue
		}
		q.Voters++
		if m.Err == nil {
			q.Healthy++
		}
	}
	q.Needs = q.Voters/2 + 1
	return q
}

// Answering returns the quorum of members by what endpoints answered that were asked; without voters: they
// do not show of each voter whether it answers.
func Answering(list []Member, asked []Status) Quorum {
	var all []Status
	for _, m := range list {
		of := func(s Status) bool {
			if s.Err == nil {
				return s.ID == m.ID
			}
			at := s.Endpoint[strings.LastIndex(s.Endpoint, "/")+1:] // Settings may leave the scheme out.
			return slices.ContainsFunc(m.Clients, func(url string) bool { return strings.HasSuffix(url, "/"+at) })
		}
		i := slices.IndexFunc(asked, of)
		if i < 0 && !m.Learner {
			return Quorum{}
		}
		if i >= 0 {
			all = append(all, Status{Member: m, Err: asked[i].Err})
		}
	}
	return QuorumOf(all)
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

// Errors of Find, Without and Replace.
var (
	ErrNoMember = errors.New("there is no such member")
	ErrQuorum   = errors.New("the quorum would not survive this")
	ErrNoPlace  = errors.New("the new member could not be added")
)

// Find returns the member with a name, an ID in hexadecimal, or an address.
//
// It returns ErrNoMember with those that there are.
func Find(members []Status, which string) (Status, error) {
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
	return Status{}, fmt.Errorf("%w: %q; there are %s", ErrNoMember, which, strings.Join(labels, ", "))
}

// Without answers whether the quorum survives that a member is removed: what holds before and
// after. It returns ErrQuorum if not.
func Without(members []Status, gone Status) (before, after Quorum, err error) {
	before = QuorumOf(members)
	rest := slices.DeleteFunc(slices.Clone(members), func(m Status) bool { return m.ID == gone.ID })
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

// Replace says why no member with a peer URL could be added after gone is removed; nil: one could.
// It returns ErrNoPlace.
func Replace(members []Status, gone Status, peer string) error {
	for _, m := range members {
		switch {
		case m.ID == gone.ID:
		case slices.Contains(m.Peers, peer):
			return fmt.Errorf("%w: %s is a member already (%x): name a host that is none", ErrNoPlace, HostOf(peer),
				m.ID)
		case m.Learner:
			return fmt.Errorf("%w: %s (%x) has no vote yet, and members join one at a time: wait until it votes, or "+
				"remove it", ErrNoPlace, m.Label(), m.ID)
		}
	}
	return nil
}

// MayRestore refuses a restore on a host that has already started in the restored cluster, whose members are given:
// it would come back as itself without the votes it cast. The error is a *Refusal.
func MayRestore(host, peer string, members []Status) error {
	for _, m := range members {
		if slices.Contains(m.Peers, peer) && !m.Started() && !m.Learner {
			return nil
		}
	}
	return Again(host)
}

// HostOf returns the host of a URL, without brackets.
func HostOf(u string) string {
	scheme, rest, ok := strings.Cut(u, "://")
	if !ok {
		rest = u
	}
	if scheme == "unix" {
		return rest
	}
	rest, _, _ = strings.Cut(rest, "/")
	if i := strings.LastIndex(rest, ":"); i > strings.LastIndex(rest, "]") {
		rest = rest[:i]
	}
	return strings.Trim(rest, "[]")
}

// Defragment returns the endpoints to defragment, one after the other and the leader last, whose
// databases could shrink by at least least bytes. It returns an error if a member is not healthy: a
// member that defragments answers nobody, and one that is away already is enough.
func Defragment(members []Status, least int64) (out []string, err error) {
	last := ""
	for _, m := range slices.SortedFunc(slices.Values(members), func(a, b Status) int {
		return cmp.Compare(a.Endpoint, b.Endpoint)
	}) {
		switch {
		case m.Err != nil || !m.Leader || m.Learner:
			return nil, fmt.Errorf("defragment: %s is not healthy: nothing is done while a member is away; bring it "+
				"back first", cmp.Or(m.Endpoint, m.Label()))
		case m.Size-m.InUse < least:
		case m.Leads:
			last = m.Endpoint
		default:
			out = append(out, m.Endpoint)
		}
	}
	if last != "" {
		out = append(out, last)
	}
	return out, nil
}
