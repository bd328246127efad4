package inside

import (
	"testing"

	"github.com/flakelease/allocator/internal/config"
)

// The cluster that a list founds differs from a restored one of the same members.
func TestClusterOf(t *testing.T) {
	var e config.Etcd
	i := &Inside{cfg: Config{Etcd: e}, join: []string{"10.0.0.1", "10.0.0.2"}}
	initial, token := i.founding()
	id, err := clusterOf(initial, token)
	if err != nil || id == 0 {
		t.Fatalf("%s, %s: %x, %v", initial, token, id, err)
	}
	if other, err := clusterOf(initial, "restored-1"); err != nil || other == id {
		t.Errorf("restored: %x, %v", other, err)
	}
	if _, err := clusterOf("a=:", token); err == nil {
		t.Error("a list without URLs founds a cluster")
	}
}
