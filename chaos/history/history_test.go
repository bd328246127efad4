package history

import (
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// id makes an ID of sid s at ms milliseconds past the epoch.
func id(t *testing.T, ms int64, entropy uint32, s flake.SID) flake.ID {
	t.Helper()
	v, err := flake.Default.Make(flake.DefaultEpoch+ms, entropy, s)
	fatal.If(t, err)
	return v
}

func at(ms int64) clock.Millis { return clock.Millis(flake.DefaultEpoch + ms) }

// TestCheck plants one fault in a sound history at a time: each check must find
// its own and the sound history must pass.
func TestCheck(t *testing.T) {
	sound := func() *History {
		return &History{
			Format: flake.Default,
			Issues: []Issue{
				{Process: "a", First: id(t, 10, 5, 3), Count: 10, Stride: 32, Begin: 1, End: 2},
				{Process: "a", First: id(t, 10, 40, 3), Count: 1, Stride: 32, Begin: 3, End: 4},
				{Process: "b", First: id(t, 10, 5, 4), Count: 100, Stride: 32, Begin: 1, End: 9},
				{Process: "b", First: id(t, 30, 0, 3), Count: 1, Stride: 32, Begin: 10, End: 11},
			},
			Grants: []Grant{
				{Process: "a", SID: 3, Base: at(5), Ceil: at(20), At: 0},
				{Process: "b", SID: 4, Base: at(5), Ceil: at(11), At: 0},
				{Process: "b", SID: 3, Base: at(20), Ceil: at(40), At: 10},
			},
			Writes: []Write{
				{SID: 3, Rev: 2, Term: 1, Base: at(5), Ceil: at(20)},
				{SID: 3, Rev: 5, Term: 1, Base: at(5), Ceil: at(11), Released: true},
				{SID: 3, Rev: 7, Term: 2, Base: at(20), Ceil: at(40)},
			},
		}
	}
	tests := []struct {
		name  string
		spoil func(*History)
		want  string
	}{
		{"sound", func(*History) {}, ""},
		{"one ID twice", func(h *History) {
			h.Issues[1].First = id(t, 10, 14, 3)
		}, "I1"},
		{"a block inside another", func(h *History) {
			h.Issues = append(h.Issues, Issue{Process: "c", First: id(t, 10, 50, 4), Count: 1, Stride: 32})
			h.Issues = append(h.Issues, Issue{Process: "d", First: id(t, 10, 90, 4), Count: 1, Stride: 32})
			h.Grants = append(h.Grants, Grant{Process: "c", SID: 4, Base: at(10), Ceil: at(11)},
				Grant{Process: "d", SID: 4, Base: at(10), Ceil: at(11)})
		}, "I1"},
		{"a block that runs into the next sid", func(h *History) {
			h.Issues[1].Count, h.Issues[1].Stride = 2, 1
		}, "I4"},
		{"a later call got less", func(h *History) {
			h.Issues[1].First = id(t, 9, 0, 3)
		}, "I2"},
		{"a later call got less, of another sid", func(h *History) {
			h.Issues[3].First = id(t, 10, 0, 3)
			h.Grants[2].Base = at(10)
		}, "I2"},
		{"below the base", func(h *History) {
			h.Issues[0].First = id(t, 4, 5, 3)
		}, "I3"},
		{"at the ceiling", func(h *History) {
			h.Issues[3].First = id(t, 40, 0, 3)
		}, "I3"},
		{"the end of a block at the ceiling", func(h *History) {
			h.Issues[2].Count = 1 << 15
		}, "I3"},
		{"before it was confirmed", func(h *History) {
			h.Grants[2].At = 12
		}, "I3"},
		{"in a window of another process", func(h *History) {
			h.Grants[0].Process = "b"
		}, "I3"},
		{"windows overlap", func(h *History) {
			h.Writes[2].Base = at(10)
		}, "I4"},
		{"terms fall", func(h *History) {
			h.Writes[2].Term = 0
		}, "I4"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := sound()
			tt.spoil(h)
			got := h.Check()
			if tt.want == "" {
				if len(got) > 0 {
					t.Errorf("violations of a sound history: %v", got)
				}
				return
			}
			found := false
			for _, v := range got {
				found = found || strings.HasPrefix(v.Error(), tt.want)
			}
			if !found {
				t.Errorf("got %v, want a violation of %s", got, tt.want)
			}
		})
	}
}
