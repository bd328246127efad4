package meet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

var errScript = errors.New("as the script says")

// script is a shell of which some steps fail. It ends the start after it has waited a few times.
type script struct {
	heard  []member.Heard // what Ask returns, the last one again and again
	fails  member.Action
	said   []member.Action
	errs   []error // of the steps that wait
	cancel context.CancelFunc
}

func (s *script) Ask(context.Context) (member.Heard, error) {
	if s.fails == member.Ask {
		return nil, errScript
	}
	h := s.heard[0]
	s.heard = s.heard[min(1, len(s.heard)-1):]
	return h, nil
}

func (s *script) AskAt(context.Context, string) member.Answer { return member.Answer{Err: errScript} }

func (s *script) Write(step member.Step) error {
	if s.fails == step.Action {
		return errScript
	}
	return nil
}

func (s *script) Dial([]string) (*etcdstore.Group, error) { return nil, errScript }

func (s *script) Say(step member.Step) {
	s.said = append(s.said, step.Action)
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
	list := func(self member.Member) member.Heard {
		return member.Heard{"b": {Cluster: 7, Members: []member.Member{self, {ID: 2, Name: "b", Peers: []string{"http://b:1"}, Clients: []string{"http://b:2"}}}}}
	}
	moved := &member.Data{Host: "c", Peer: "http://c:1", Cluster: 7, ID: 1}
	for _, tc := range []struct {
		name  string
		own   member.Own
		data  *member.Data
		heard []member.Heard
		fails member.Action
		said  string // the steps
		ends  error
		waits error
	}{
		{"it begins", own, nil, []member.Heard{waits(true)}, "", "ask intend ask begin", nil, nil},
		{"it cannot ask", own, nil, nil, member.Ask, "ask", errScript, nil},
		{"its intention is not durable", own, nil, []member.Heard{waits(true)}, member.Intend, "ask intend", errScript, nil},
		{"removed data stay in its way", pod, &member.Data{Host: "a", Peer: url, Cluster: 7, ID: 5}, []member.Heard{list(member.Member{ID: 3, Peers: []string{"http://c:1"}, Clients: []string{"http://c:2"}})}, member.Discard, "ask discard", errScript, nil},
		{"the members are not told its address", own, moved, []member.Heard{list(member.Member{ID: 1, Name: "c", Peers: []string{"http://c:1"}, Clients: []string{"http://c:2"}})}, "",
			"ask ask at move wait ask ask at move wait ask ask at move wait", context.Canceled, errScript},
		{"no majority lists the members", own, nil, []member.Heard{list(member.Member{ID: 1, Peers: []string{url}, Learner: true})}, "", "ask list wait ask list wait ask list wait", context.Canceled, errScript},
		{"it is not added", own, nil, []member.Heard{list(member.Member{ID: 3, Peers: []string{"http://c:1"}, Clients: []string{"http://c:2"}})}, "", "ask add wait ask add wait ask add wait", context.Canceled, errScript},
		{"it is not removed", pod, nil, []member.Heard{list(member.Member{ID: 1, Name: "a", Peers: []string{url}, Clients: []string{"http://a:2"}})}, "", "ask remove wait ask remove wait ask remove wait", context.Canceled, errScript},
		{"the other does not intend to begin", own, nil, []member.Heard{waits(false)}, "", "ask intend ask wait ask wait ask wait", context.Canceled, nil},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s := &script{heard: slices.Clone(tc.heard), fails: tc.fails, cancel: cancel}
		step, err := Start(ctx, member.NewMachine(tc.own, tc.data), s, time.Microsecond)
		cancel()
		var said []string
		for _, a := range s.said {
			said = append(said, string(a))
		}
		if got := strings.Join(said, " "); got != tc.said || !errors.Is(err, tc.ends) || (err != nil) == (step.Action != "") {
			t.Errorf("%s: %s; %+v, %v; want %s, %v", tc.name, got, step, err, tc.said, tc.ends)
		}
		for _, err := range s.errs {
			if !errors.Is(err, tc.waits) {
				t.Errorf("%s: it waits because of %v, want %v", tc.name, err, tc.waits)
			}
		}
	}
}
