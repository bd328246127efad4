package inside

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

var errScript = errors.New("as the script says")

// script is a shell of which some steps fail. It ends the start after it has waited a few times.
type script struct {
	heard  member.Heard // Ask returns it.
	fails  member.Action
	said   []string // the actions of the steps
	errs   []error  // why those that wait do
	cancel context.CancelFunc
}

func (s *script) Ask(context.Context) (member.Heard, error) {
	if s.fails == member.Ask {
		return nil, errScript
	}
	return s.heard, nil
}

func (s *script) Write(step member.Step) error {
	if s.fails == step.Action {
		return errScript
	}
	return nil
}

func (s *script) Say(step member.Step) {
	s.said = append(s.said, string(step.Action))
	if step.Action == member.Wait {
		if s.errs = append(s.errs, step.Err); len(s.errs) == 3 {
			s.cancel()
		}
	}
}

// A step that fails is never taken for done: a start without a durable intention, or at an address that the members do
// not know, would break what they promised.
func TestStart(t *testing.T) {
	const url = "http://a:1"
	own := member.Own{Host: "a", Node: "a", Process: "a", Join: []string{"a", "b"}, Peer: url, Founds: 7}
	pod := own
	pod.Replaces = true
	waits := func(intends bool) member.Heard {
		return member.Heard{"b": {Waiting: &member.Waiting{Host: "b", Node: "b", Process: "b", Join: own.Join, Intends: intends}}}
	}
	at := func(id uint64, host string) member.Member {
		return member.Member{ID: id, Name: host, Peers: []string{"http://" + host + ":1"}, Clients: []string{"http://" + host + ":2"}}
	}
	list := func(other member.Member) member.Heard {
		return member.Heard{"b": {Cluster: 7, Members: []member.Member{other, at(2, "b")}}}
	}
	moved := &member.Data{Host: "c", Peer: "http://c:1", Cluster: 7, ID: 1}
	removed := &member.Data{Host: "a", Peer: url, Cluster: 7, ID: 5}
	added := member.Member{ID: 1, Peers: []string{url}, Learner: true}
	site := Site{
		TLS:  func() (*tls.Config, error) { return nil, errScript },
		Root: func() (c etcdstore.Config, err error) { return c, errScript },
	}
	for _, tc := range []struct {
		name  string
		own   member.Own
		data  *member.Data
		heard member.Heard
		fails member.Action
		said  string // the steps; those of a round three times if it waits
		waits error
	}{
		{"it begins", own, nil, waits(true), "", "ask intend ask begin", nil},
		{"it cannot ask", own, nil, nil, member.Ask, "ask", nil},
		{"its intention is not durable", own, nil, waits(true), member.Intend, "ask intend", nil},
		{"removed data stay in its way", pod, removed, list(at(3, "c")), member.Discard, "ask discard", nil},
		{"the members are not told its address", own, moved, list(at(1, "c")), "", "ask ask at move wait", errScript},
		{"no majority lists the members", own, nil, list(added), "", "ask list wait", errScript},
		{"it is not added", own, nil, list(at(3, "c")), "", "ask add wait", errScript},
		{"it is not removed", pod, nil, list(at(1, "a")), "", "ask remove wait", errScript},
		{"the other does not intend to begin", own, nil, waits(false), "", "ask intend ask wait", nil},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s := &script{heard: tc.heard, fails: tc.fails, cancel: cancel}
		step, _, err := site.Start(ctx, tc.own, tc.data, s, time.Microsecond)
		cancel()
		round, ends := strings.TrimPrefix(tc.said, "ask intend "), error(nil)
		switch {
		case strings.HasSuffix(tc.said, "wait"):
			tc.said, ends = tc.said+strings.Repeat(" "+round, 2), context.Canceled
		case tc.fails != "":
			ends = errScript
		}
		if got := strings.Join(s.said, " "); got != tc.said || !errors.Is(err, ends) || (err != nil) == (step.Action != "") {
			t.Errorf("%s: %s; %+v, %v; want %s, %v", tc.name, got, step, err, tc.said, ends)
		}
		for _, err := range s.errs {
			if !errors.Is(err, tc.waits) {
				t.Errorf("%s: it waits because of %v, want %v", tc.name, err, tc.waits)
			}
		}
	}
}
