package history

import (
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// A sid that is given back lets a successor use what was not used of it; but not
// where etcd was put back meanwhile: the record that is given back then is of
// before, and what was granted since stays granted.
func TestReleaseAfterRewind(t *testing.T) {
	for _, tc := range []struct {
		name    string
		rewound bool
		want    Verdict
	}{{"released", false, Broken}, {"released after a rewind", true, Pass}} {
		t.Run(tc.name, func(t *testing.T) {
			setup := &Setup{Layout: "scalable", EpochMs: 0, WindowMs: 100}
			id := setup.Format()
			first, err := id.Make(150, 0, 3)
			fatal.If(t, err)
			window := func(rev, base, ceil int64, released bool) Op {
				return Op{Process: Etcd, Type: Info, F: FWindow, Node: "n1", Run: "n1#1", Window: &Window{SID: 3, Rev: rev, Term: 1, Base: base, Ceil: ceil, Released: released, Instance: "i"}}
			}
			r := NewReserved()
			ops := []Op{{Process: Harness, Type: Info, F: FSetup, Setup: setup}, window(1, 50, 100, false), window(2, 100, 200, false),
				{Process: "1", Type: Invoke, F: FAllocate, Node: "n1"},
				{Process: "1", Type: OK, F: FAllocate, Node: "n1", Run: "n1#1", Block: Block{First: first, Count: 1, Stride: 32}}}
			if tc.rewound {
				ops = append(ops, Op{Process: Nemesis, Type: Info, F: "restore", Fault: &Fault{Phase: FaultStart, ID: 1, Class: ClassData}})
			}
			for _, op := range append(ops, window(3, 50, 100, true)) {
				r.Add(&op)
			}
			if got := r.Finish(); got.Verdict != tc.want {
				t.Errorf("got %+v, want %s", got, tc.want)
			}
		})
	}
}
