package daemon

import (
	"maps"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/node"
)

// TestWorkOf: what a report says of a node's last seconds is what the pages show, with the time
// of its last write by the clock of the node that was told.
func TestWorkOf(t *testing.T) {
	r := cluster.PeerReport{Age: 3 * time.Second, Report: cluster.Report{P50: 20, P99: 900, Write: 1500, Written: 700}}
	r.Refused[node.ClockSkew], r.Refused[node.InvalidCount] = 7, 1
	got := workOf(r, 1_000_000)
	if got.P50 != 20 || got.P99 != 900 || got.Write != 1500 || got.Written != 1_000_000-3000-700 ||
		!maps.Equal(got.Refused, map[string]int64{"CLOCK_SKEW": 7, "INVALID_COUNT": 1}) {
		t.Errorf("%+v", got)
	}
	if got := workOf(cluster.PeerReport{Age: time.Second}, 1_000_000); got.Written != 0 || got.Refused != nil {
		t.Errorf("of a node that wrote nothing: %+v", got)
	}
}
