package etcd

import (
	"errors"
	"strings"
	"testing"

	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/member"
)

// A member that is replaced keeps its host, however it was named.
func TestHostOf(t *testing.T) {
	all := []member.Status{
		{Member: member.Member{ID: 0xa1, Name: "one", Peers: []string{"https://10.0.0.1:2380"}}},
		{Member: member.Member{ID: 0xb2, Name: "two", Peers: []string{"https://[fd00::2]:2380"}}},
	}
	for which, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "one": "10.0.0.1", "a1": "10.0.0.1", "b2": "fd00::2", "fd00::2": "fd00::2",
	} {
		if host, err := hostOf(all, which); err != nil || host != want {
			t.Errorf("%s: %s, %v; want %s", which, host, err, want)
		}
	}
	if host, err := hostOf(all, "10.0.0.9"); !errors.Is(err, member.ErrNoMember) {
		t.Errorf("no member: %s, %v", host, err)
	}
}

// A replacement that could not be added is refused before the old member is removed.
func TestPlanReplace(t *testing.T) {
	e := config.Etcd{Inside: config.Inside{PeerPort: 2380}}
	list := func(fourth ...member.Status) (out []member.Status) {
		for i, host := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
			out = append(out, member.Status{Member: member.Member{
				ID:      uint64(i + 1),
				Name:    host,
				Peers:   []string{e.PeerURL(host)},
				Clients: []string{e.ClientURL(host)},
			}})
		}
		return append(out, fourth...)
	}
	learner := member.Status{Member: member.Member{ID: 4, Peers: []string{e.PeerURL("10.0.0.4")}, Learner: true}}
	for _, tc := range []struct {
		which, with string
		list        []member.Status
		says        string // empty: it is done
	}{
		{"10.0.0.3", "10.0.0.3", list(), ""},
		{"10.0.0.3", "10.0.0.4", list(), ""},
		{"10.0.0.3", "10.0.0.2", list(), "10.0.0.2 is a member already (2)"},
		{"10.0.0.3", "10.0.0.4", list(learner), "10.0.0.4 is a member already (4)"},
		{"10.0.0.3", "10.0.0.5", list(learner), "10.0.0.4:2380 (4) has no vote yet"},
		{"10.0.0.4", "10.0.0.4", list(learner), ""},
		{"10.0.0.3", "", list(learner), ""}, // It is removed alone.
	} {
		_, gone, err := planChange(seen{list: tc.list}, e, tc.which, tc.with)
		if gone.ID == 0 || (err == nil) != (tc.says == "") || errors.Is(err, member.ErrNoPlace) != (tc.says != "") ||
			err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("replace %s with %q: %v; want %q", tc.which, tc.with, err, tc.says)
		}
	}
}
