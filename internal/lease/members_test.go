package lease

import (
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/internal/clock"
)

// TestMembers: a node that names no gossip address is left out, but a record that cannot
// be read shows nothing. A node that lapsed counts unless its name is registered.
func TestMembers(t *testing.T) {
	got := Members([]Registration{
		NewRegistration("i1", 3, Encode(Registration{Instance: "i1", Node: "a", Gossip: "a:3"})),
		NewRegistration("i2", 4, Encode(Registration{Instance: "i2", Node: "b", GRPC: "b:1"})),
		NewRegistration("i3", 5, "damaged"),
	}, []Lapsed{{Node: "c", Instance: "i4", Rev: 9}, {Node: "a", Instance: "i0", Rev: 9}, {Node: "b", Instance: "i9", Rev: 9}})
	want := []clock.Member{
		{Name: "c", Instance: "i4", Since: 9},
		{Name: "a", Instance: "i1", Since: 3},
		{Name: "b", Instance: "i2", Since: 4, NoGossip: true},
		{Instance: "i3", Since: 5},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Whoever can write to the store can write the escapes of a terminal, or a megabyte.
func TestRegistrationIsPrintable(t *testing.T) {
	r := NewRegistration("i1", 3, Encode(Registration{Instance: "i1", Node: "a\x1b[2J\nb\u202e", Version: strings.Repeat("é", 1000), GRPC: "h:1"}))
	if r.Node != "a\ufffd[2J\ufffdb\ufffd" || r.Version != strings.Repeat("é", 126) || r.GRPC != "h:1" {
		t.Errorf("got %q, %d bytes, %q", r.Node, len(r.Version), r.GRPC)
	}
}
