package status

import (
	"context"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// Snapshot is the cluster for a page that stays open: what the node knows, and of when.
// Values of other nodes are as old as the fields beside them say.
type Snapshot struct {
	Cluster
	// At is when it was made, by the issuing clock.
	At int64 `json:"at_unix_ms"`
	// Read is when the nodes and sids were read from etcd. 0: never; then the nodes are
	// those of an earlier list, and sids is null.
	Read int64 `json:"read_unix_ms"`
	// After is the ID of the latest event when it was made: a stream goes on from there.
	After string `json:"last_event_id"`
}

const (
	// snapshotFresh is for how long a view of the space does for snapshots.
	snapshotFresh = 2 * time.Second
	// wideFresh is the same of a space with more than wideSIDs: a read has some 500 kB.
	wideFresh = 5 * time.Second
	wideSIDs  = 256
	// snapshotWait is how long a snapshot waits for a read; it shows the last one then.
	snapshotWait = 300 * time.Millisecond
)

// Snapshot returns the snapshot. It reads etcd at most every snapshotFresh, and if etcd
// does not answer it has what was last read, with a Problem.
func (r *Reader) Snapshot(ctx context.Context) Snapshot {
	fresh := snapshotFresh
	if r.known() > wideSIDs {
		fresh = wideFresh
	}
	wait, cancel := context.WithTimeout(ctx, snapshotWait)
	defer cancel()
	_, err := r.load(wait, fresh)
	r.mu.Lock()
	view, read, readAt := r.view, r.read, r.readAt
	r.mu.Unlock()
	after := ""
	if r.cfg.Feed != nil {
		_, after = r.cfg.Feed.Latest(0) // before what it describes: a stream that goes on from there misses nothing
	}

	st, clocks := r.node.Stats(), r.clocks()
	now := r.clock.Now()
	s := Snapshot{Cluster: r.base(st), At: int64(now.Wall), After: after}
	if read {
		s.fill(view, st)
		s.Read = int64(now.Wall - clock.MillisOf(now.Mono.Sub(readAt)))
	} else {
		s.fillNodes(st.Lease.Nodes, reportedSIDs(s.Self, clocks.Peers))
	}
	if err != nil {
		s.Problem = "etcd cannot be read: nodes and sids are as they were last read"
	}
	r.fillLive(&s.Cluster, clocks)
	return s
}

// known returns how many sids the last view of the space had.
func (r *Reader) known() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.view.SIDs)
}
