package scale

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

// view is what a node keeps of n others in its head: a list of the space.
func view(n int) lease.View {
	v := lease.View{SIDs: map[flake.SID]lease.SIDRecords{}}
	for i := range n {
		instance := lease.Instance(fmt.Sprintf("7c9e6679-7425-40de-944b-%012x", i))
		name := fmt.Sprintf("allocator-%d", i)
		v.SIDs[flake.SID(i)] = lease.SIDRecords{
			Holder: lease.NewEntry[lease.Holder](int64(i+1), 1, lease.Encode(lease.Holder{Instance: instance, Node: name})),
			Window: lease.NewEntry[lease.Window](int64(i+1), 0, lease.Encode(lease.Window{Era: 1, Term: 1, Instance: instance, Node: name,
				Nonce: "ABCDEFGHIJKLMNOPQRSTUVWXYZ", Base: aTime, Ceil: aTime, State: lease.Active, Wall: aTime})),
		}
		v.Nodes = append(v.Nodes, lease.NewRegistration(instance, int64(i+1), lease.Encode(lease.Registration{Instance: instance, Node: name,
			Version: "v1.0.0", GRPC: "host100:9000", HTTP: "host100:8080", Gossip: "10.0.0.100:7946"})))
	}
	return v
}

// viewBytes is what a list of the space takes in memory for each holder, in bytes.
const viewBytes = 1050

// TestViewMemory measures what a list of the space takes, of which a node has one,
// and two while it takes the next.
func TestViewMemory(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const n = 1024
	before := heap()
	v := view(n)
	each := float64(heap()-before) / n
	runtime.KeepAlive(v)
	t.Logf("%.0f bytes for each holder", each)
	if each < 0.75*viewBytes || each > 1.25*viewBytes {
		t.Errorf("%.0f bytes for each holder, want about %d", each, viewBytes)
	}
}
