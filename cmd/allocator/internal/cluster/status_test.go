package cluster

import (
	"regexp"
	"strings"
	"testing"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/status"
)

// TestWorkersAreListed: status lists the workers that hold sids by name, and one that
// was killed among the sids that nobody holds.
func TestWorkersAreListed(t *testing.T) {
	const now = 1_800_000_000_000
	var out strings.Builder
	err := view{Cluster: status.FromProto(&pb.GetClusterResponse{
		Space: "default", Layout: "scalable", ReadUnixMs: now, PoolSize: 32, PoolSids: "0-31", WorkerSids: "16-31", Era: 1,
		Nodes: []*pb.Node{{Name: "n1", Sid: -1}},
		Sids: []*pb.Sid{
			{Sid: 20, State: "held", Term: 3, Node: "import-1", Worker: true, Owner: "shop", CeilUnixMs: now + 41_000, WrittenUnixMs: now - 19_000},
			{Sid: 22, State: "held", Node: "mail-1", Worker: true, Owner: "mail"},
			{Sid: 23, State: "held", Node: "mail-2", Worker: true, Owner: "mail"},
			{Sid: 21, State: "waiting", Term: 1, Node: "import-2", Worker: true, CeilUnixMs: now + 7_000, WrittenUnixMs: now - 53_000, Unreleased: true},
		},
		Self: &pb.NodeStatus{Name: "n1", Ready: true, Sid: -1, NowUnixMs: now},
	})}.print(&out)
	fatal.If(t, err)
	for _, want := range []string{
		`(?m)^1 node; 3 of 32 sids held, sids 16-31 are for workers$`,
		`(?m)^WORKER +SID +TERM +INTERVAL LEFT +LAST EXTENDED +OWNER$`,
		`(?m)^import-1 +20 +3 +41\.0s +19s ago +shop$`,
		`(?m)^OWNER +WORKERS\nmail +2\nshop +1$`,
		`(?m)^21 +waiting +1 +import-2 +53s ago +in 7\.0s +not released$`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %s in:\n%s", want, out.String())
		}
	}
}
