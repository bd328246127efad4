package metrics

import (
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// Inside is the source of the series about the member of etcd that the node runs.
type Inside struct {
	Up                bool
	Voting, Answering int // members, of which Answering answered this node
	Size, Quota       int64
	Free              int64     // bytes on its disk; -1: not known
	Snapshot          time.Time // when the latest was written; zero: never
}

func collectInside(i Inside, now clock.Millis, gauge func(name string, v float64, labels ...string)) {
	gauge(etcdMemberUp, flag(i.Up))
	gauge(etcdMembers, float64(i.Voting), "voting")
	gauge(etcdMembers, float64(i.Answering), "answering")
	gauge(etcdDatabase, float64(i.Size))
	gauge(etcdQuota, float64(i.Quota))
	if i.Free >= 0 {
		gauge(etcdFree, float64(i.Free))
	}
	if !i.Snapshot.IsZero() {
		gauge(etcdSnapshotAge, now.Time().Sub(i.Snapshot).Seconds())
	}
}
