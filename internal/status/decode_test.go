package status

import (
	"strings"
	"testing"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// TestForeign: who can have issued an ID, by the windows as they are read after it was issued.
func TestForeign(t *testing.T) {
	const reserved, operator, beyond = "reserved for a generator", "an operator had reserved or released", "beyond every window"
	const ceil clock.Millis = 1_769_904_000_000
	const floor = ceil - 9_000
	line := func(term int64, node string) *lease.LedgerLine {
		return &lease.LedgerLine{Term: term, Instance: "x", Node: node, Era: 1, Since: ceil - 1_000}
	}
	window := func(node string, state lease.WindowState) lease.Entry[lease.Window] {
		return lease.NewEntry[lease.Window](9, 0, lease.Encode(lease.Window{
			Era: 1, Term: 5, Instance: "x", Node: node, Nonce: "n", Base: ceil, Ceil: ceil, State: state,
		}))
	}
	broken := window("a", lease.Active)
	broken.Value, broken.Err = lease.Window{}, lease.ErrChecksum
	for name, tc := range map[string]struct {
		window lease.Entry[lease.Window]
		line   *lease.LedgerLine
		at     clock.Millis
		want   string
	}{
		"a node's":                            {window("a", lease.Active), line(5, "a"), ceil - 1, ""},
		"past a window":                       {window("a", lease.Active), line(5, "a"), ceil, beyond},
		"past a released window":              {window("a", lease.Released), line(5, "a"), ceil, beyond},
		"before the ledger":                   {window("a", lease.Active), nil, floor, ""},
		"of a sid that was never used":        {lease.Entry[lease.Window]{}, nil, floor, beyond},
		"of a history that was lost":          {lease.Entry[lease.Window]{}, nil, floor - 1, ""},
		"of a record that was lost":           {lease.Entry[lease.Window]{}, line(5, "a"), ceil, ""},
		"of a damaged record":                 {broken, line(5, "a"), ceil, ""},
		"of a reserved sid":                   {window(lease.Operator, lease.Reserved), line(5, lease.Operator), ceil, reserved},
		"of its holder before":                {window(lease.Operator, lease.Reserved), line(4, "a"), ceil - 1, ""},
		"of a sid that was reserved":          {window("a", lease.Active), line(4, lease.Operator), ceil - 1, operator},
		"of a sid that was given back":        {window(lease.Operator, lease.Released), line(4, lease.Operator), ceil - 1, operator},
		"past what an operator gave back":     {window(lease.Operator, lease.Released), line(5, lease.Operator), ceil, operator},
		"of a sid that an operator took then": {window("a", lease.Quarantined), line(5, "a"), ceil - 1, ""},
	} {
		v := lease.View{
			Era:  lease.NewEntry[lease.Era](2, 0, lease.Encode(lease.Era{Number: 1, Floor: floor})),
			SIDs: map[flake.SID]lease.SIDRecords{7: {Window: tc.window}},
		}
		format := flake.Format{Layout: flake.Scalable, Epoch: flake.DefaultEpoch}
		id := flake.ID((int64(tc.at)-flake.DefaultEpoch)<<20 | 7)
		got := foreign(v, format, id, tc.line)
		if !strings.Contains(got, tc.want) || tc.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
		v.Era = lease.Entry[lease.Era]{}
		if got := foreign(v, format, id, tc.line); got != "" {
			t.Errorf("%s, without an era: %q", name, got)
		}
	}
}
