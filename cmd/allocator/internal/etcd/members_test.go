package etcd

import (
	"errors"
	"testing"

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
