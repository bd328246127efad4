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
	Copied            time.Time // when the latest verified copy was written; zero: there is none
	Failing           bool      // No snapshot can be written or copied.
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
	gauge(etcdSnapshotFailing, flag(i.Failing))
	for name, at := range map[string]time.Time{etcdSnapshotAge: i.Snapshot, etcdCopyAge: i.Copied} {
		if !at.IsZero() {
			gauge(name, now.Time().Sub(at).Seconds())
		}
	}
}
