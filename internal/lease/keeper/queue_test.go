package keeper

import (
	"testing"

	"github.com/flakelease/allocator/internal/lease"
)

// TestFullQueue: where the loop does not take reports in time, what waits is dropped, and the
// machine is told that the watch begins anew at the last revision.
func TestFullQueue(t *testing.T) {
	w := watched{signal: make(chan struct{}, 1)}
	changes := make([]lease.Change, 99)
	revision := int64(0)
	for ; revision < 2*mostWatched/100; revision++ {
		w.add(lease.Watched{Revision: revision, Changes: changes})
	}
	<-w.signal
	list := w.take()
	first := list[0].(lease.Watched)
	if !first.Opened || len(first.Changes) != 0 || first.Revision == 0 || len(list) > mostWatched/100+1 {
		t.Errorf("%d reports, the first %+v", len(list), first)
	}
	for i, ev := range list[1:] {
		if w := ev.(lease.Watched); w.Opened || w.Revision != first.Revision+1+int64(i) || len(w.Changes) != len(changes) {
			t.Fatalf("after it: %v at %d", w.Opened, w.Revision)
		}
	}
	if last := list[len(list)-1].(lease.Watched); last.Revision != revision-1 {
		t.Errorf("the last is of revision %d, not %d", last.Revision, revision-1)
	}
	w.add(lease.Watched{Revision: revision})
	if list := w.take(); len(list) != 1 || list[0].(lease.Watched).Opened {
		t.Errorf("after the queue was taken: %+v", list)
	}
}
